//! Steps that are too long for their minibatches: few clients, or many cells for each, under the
//! paper's copies.

use crate::fedmiss::{
    Setup, all_cells, begun, cells, clients, cohort, dither, given, gradient, reaches, run,
    soft_impute,
};
use whimbrel_codec::channel::UpRule;
use whimbrel_core::{ClientData, Key};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedmiss::{Copies, StepRule};
use whimbrel_methods::settings::Batch;
use whimbrel_methods::step::Schedule;
use whimbrel_models::lowrank::{Effects, Family};
use whimbrel_testkit::pairs;

const BATCH: u32 = 20;
/// Of the 198 cells of the table.
const CELLS: usize = 120;

/// Exact minibatches of [`BATCH`] cells with a given step.
fn setup(family: Family, gamma: f64, rounds: u32) -> Setup {
    Setup { step: given(gamma), batch: cells(BATCH), rounds, ..Setup::new(family) }
}

/// The same with a rank above that of the optimum.
fn gaussian(n: usize, gamma: f64, rounds: u32) -> Setup {
    let settings = Setup::ranked(Family::Gaussian, 9, 2.0 / n as f64).settings;
    Setup { settings, ..setup(Family::Gaussian, gamma, rounds) }
}

/// The message with which a run ends early.
fn failure(setup: &Setup, data: &[ClientData]) -> Option<String> {
    let everyone = Participation::Everyone;
    let mut simulator = begun(setup.method(), data, 1, everyone, Faults::default());
    loop {
        match simulator.step() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

#[test]
fn few_clients_reach_the_optimum_of_soft_impute_in_minibatches() {
    for n in [1, 2, 3, 5] {
        let data = clients(Family::Gaussian, n, CELLS, Key::root(31));
        let (_, best) = soft_impute(&all_cells(&data), 2.0);
        for gamma in [0.3, 1.0] {
            reaches(best, &gaussian(n, gamma, 3_000), &data);
        }
    }
}

/// With the paper's copies the first of these runs diverges.
#[test]
fn copies_that_a_job_insists_on_diverge() {
    let data = clients(Family::Gaussian, 1, CELLS, Key::root(31));
    let setup = Setup { copies: Copies::Clients, ..gaussian(1, 1.0, 3_000) };
    let message = failure(&setup, &data).expect("a step six times too long");
    assert!(message.contains("diverged"), "{message}");
}

#[test]
fn coarse_codecs_and_absences_leave_the_optimum_where_it_is() {
    for (family, effects) in [
        (Family::Gaussian, Effects::none()),
        (Family::Poisson, Effects::row_column()),
        (Family::Bernoulli, Effects::row_column()),
    ] {
        let data = clients(family, 2, CELLS, Key::root(32));
        let cells = all_cells(&data);
        for (levels, p) in [(1, 1.0), (4, 0.5)] {
            let mut setup =
                Setup { codec: dither(levels), participation: p, ..setup(family, 0.3, 10_000) };
            setup.settings.effects = effects.clone();
            setup.settings.lambda_effects = 0.02;
            let (server, _) = run(&setup, &data, cohort(p), None);
            let largest = gradient(&setup, &server.factors, &cells, 2.0);
            assert!(largest < 1e-6, "{family:?}, {levels} levels, {p}: {largest}");
        }
    }
}

/// A run without memories keeps its noise and has the paper's copies; one without noise has the fewest,
/// and its step is not reduced.
#[test]
fn runs_without_memories_have_the_papers_copies_and_runs_without_noise_the_fewest() {
    let data = clients(Family::Poisson, 4, CELLS, Key::root(33));
    let end = |setup: &Setup| run(setup, &data, Participation::Everyone, None).0.factors;
    let plain = Setup { rule: UpRule::Plain, ..setup(Family::Poisson, 0.9, 20) };
    assert!(end(&plain) == end(&Setup { copies: Copies::Clients, ..plain.clone() }));
    for gamma in [0.7, 1.0] {
        let full = Setup { batch: Batch::Full, ..setup(Family::Poisson, gamma, 20) };
        assert!(end(&full) == end(&Setup { copies: Copies::Fewest, ..full.clone() }), "{gamma}");
        let paper = Setup { copies: Copies::Clients, ..full.clone() };
        assert!(end(&full) != end(&paper), "{gamma}");
    }
    // A is 6 here: one step is short enough, the other is cut to 1/12.
    for (gamma, used) in [(0.05, given(0.05)), (0.3, StepRule::Auto)] {
        let cut = setup(Family::Poisson, gamma, 20);
        let same = Setup { step: used, copies: Copies::Fewest, ..cut.clone() };
        assert!(end(&cut) == end(&same), "{gamma}");
    }
}

/// A schedule is followed from where it falls below the longest stable step.
#[test]
fn a_decreasing_step_is_cut_while_it_is_too_long() {
    let data = clients(Family::Gaussian, 2, CELLS, Key::root(34));
    let step = StepRule::Given(Schedule::decreasing(1.0, 1.0, 1.0).unwrap());
    let setup = Setup { step, ..gaussian(2, 1.0, 30) };
    let (_, steps) = run(&setup, &data, Participation::Everyone, Some("step"));
    // 1/(2A) is 1/12, and 1/(1 + k) is below that from k = 12 on.
    for (k, step) in pairs(1..=30, &steps) {
        let expected = (1.0 / 12.0f64).min(1.0 / f64::from(1 + k));
        assert!((step - expected).abs() < 1e-12, "round {k}: {step}");
    }
}
