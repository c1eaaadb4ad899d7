//! Single steps of chains, and chains that diverge.

use whimbrel_core::{Key, Result, Wire, vector};
use whimbrel_models::sampler::{ChainState, Kernel, Potential, Scratch, curvature};

/// `U(z) = sum p_j z_j^2 / 2`.
struct Bowl(Vec<f64>);

impl Potential for Bowl {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        gradient.iter_mut().zip(z).zip(&self.0).for_each(|((g, z), p)| *g = p * z);
        0.5 * vector::dot(z, gradient)
    }
}

/// A valley without a gradient that can be computed beyond 1.
struct Cliff;

impl Potential for Cliff {
    fn len(&self) -> usize {
        1
    }
    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        gradient[0] = if z[0].abs() < 1.0 { 0.1 * z[0] } else { f64::NAN };
        0.05 * z[0] * z[0]
    }
}

fn all() -> impl Iterator<Item = Kernel> {
    Kernel::NAMES.into_iter().map(|name| Kernel::named(name).unwrap())
}

fn walk(kernel: Kernel, state: &mut ChainState, gamma: f64, key: Key, steps: usize) -> Result<()> {
    let mut bowl = Bowl(vec![1.0, 4.0, 0.25]);
    let (mut stream, mut scratch) = (key.stream(), Scratch::new(3));
    (0..steps).try_for_each(|_| kernel.step(state, &mut bowl, gamma, &mut stream, &mut scratch))
}

#[test]
fn names_come_back() {
    assert!(all().map(Kernel::name).eq(Kernel::NAMES));
    assert_eq!(Kernel::named("nuts"), None);
}

#[test]
fn a_step_by_hand() {
    let mut noise = [0.0; 3];
    Key::root(1).stream().fill_normal(&mut noise);
    let start = [1.0, -2.0, 0.5];
    let mut state = ChainState::at(start.to_vec());
    walk(Kernel::Ula, &mut state, 0.1, Key::root(1), 1).unwrap();
    for j in 0..3 {
        let expected = start[j] - 0.1 * [1.0, 4.0, 0.25][j] * start[j] + 0.2f64.sqrt() * noise[j];
        assert!((state.position[j] - expected).abs() < 1e-15);
    }
    assert_eq!(state.proposed, 0);
}

#[test]
fn a_unit_diagonal_is_ula_and_one_leapfrog_step_is_mala() {
    let after = |kernel, steps| {
        let mut state = ChainState::at(vec![1.0, -2.0, 0.5]);
        walk(kernel, &mut state, 0.2, Key::root(2), steps).unwrap();
        state
    };
    assert_eq!(after(Kernel::Ula, 50), after(Kernel::PreconditionedUla, 50));
    // HMC draws the number of leapfrog steps first: here one word of the stream.
    let mut mala = ChainState::at(vec![1.0, -2.0, 0.5]);
    let mut hmc = mala.clone();
    let (mut bowl, mut scratch) = (Bowl(vec![1.0, 4.0, 0.25]), Scratch::new(3));
    let (mut one, mut other) = (Key::root(2).stream(), Key::root(2).stream());
    for _ in 0..50 {
        one.next_u64();
        Kernel::Mala.step(&mut mala, &mut bowl, 0.2, &mut one, &mut scratch).unwrap();
        let single = Kernel::Hmc { leapfrog: 1 };
        single.step(&mut hmc, &mut bowl, 0.2, &mut other, &mut scratch).unwrap();
    }
    assert_eq!(mala, hmc);
    assert!(mala.accepted > 0 && mala.accepted <= 50 && mala.proposed == 50);
}

#[test]
fn a_saved_chain_goes_on_with_the_same_bits() {
    for kernel in all() {
        let mut state = ChainState::at(vec![0.3; 3]);
        walk(kernel, &mut state, 0.1, Key::root(3), 7).unwrap();
        let mut resumed = ChainState::from_bytes(&state.to_bytes()).unwrap();
        walk(kernel, &mut state, 0.1, Key::root(4), 7).unwrap();
        walk(kernel, &mut resumed, 0.1, Key::root(4), 7).unwrap();
        assert_eq!(state, resumed, "{}", kernel.name());
    }
}

#[test]
fn an_explosion_is_named_with_a_stable_step() {
    // The largest curvature is 4, so steps from 0.5 on are unstable.
    for kernel in all() {
        let mut state = ChainState::at(vec![0.3; 3]);
        let walked = walk(kernel, &mut state, 0.7, Key::root(5), 200);
        if kernel.is_adjusted() {
            walked.unwrap();
        } else {
            let message = walked.unwrap_err().to_string();
            assert!(message.starts_with("the chain explodes: the step 0.7 is"), "{message}");
            let (_, rest) = message.split_once("a step of ").unwrap();
            let step: f64 = rest.split(' ').next().unwrap().parse().unwrap();
            // Power iteration that stops at a change of 1 % is within a tenth here.
            assert!((0.25..0.275).contains(&step), "{message}");
            let mut state = ChainState::at(vec![0.3; 3]);
            walk(kernel, &mut state, step, Key::root(5), 10_000).unwrap();
        }
        assert!(vector::all_finite(&state.position));
    }
}

#[test]
fn a_wide_target_is_no_explosion() {
    let (mut wide, mut scratch) = (Bowl(vec![1e-10]), Scratch::new(1));
    for kernel in all() {
        let (mut state, mut stream) = (ChainState::at(vec![0.0]), Key::root(6).stream());
        for _ in 0..100 {
            kernel.step(&mut state, &mut wide, 1e10, &mut stream, &mut scratch).unwrap();
        }
        assert!(state.position[0].abs() > 1e3, "{}", kernel.name());
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_named() {
    let (mut state, mut scratch) = (ChainState::at(vec![0.5]), Scratch::new(1));
    let mut stream = Key::root(7).stream();
    let mut step = || Kernel::Ula.step(&mut state, &mut Cliff, 0.1, &mut stream, &mut scratch);
    let error = (0..1000).find_map(|_| step().err()).unwrap().to_string();
    assert!(error.contains("not finite where the step 0.1 took the chain"), "{error}");
}

#[test]
fn curvature_is_the_largest_eigenvalue() {
    let mut bowl = Bowl((1..=50).map(f64::from).collect());
    let found = curvature(&mut bowl, &vec![3.0; 50]);
    // After 30 iterations in 50 dimensions the error is below ln(50) / 60 = 7 % on average
    // (Kuczynski and Wozniakowski, 1992).
    assert!((46.0..=50.0 + 1e-6).contains(&found), "{found}");
}

#[test]
fn improper_preconditioners_are_refused_by_place() {
    let error = Scratch::new(2).precondition(&[1.0, 0.0]).unwrap_err().to_string();
    assert_eq!(error, "entry 2 of the preconditioner is 0, not a positive number");
}
