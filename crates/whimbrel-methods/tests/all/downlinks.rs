//! FedEM over every downlink that its form allows: 100 heterogeneous clients in the plane, three in
//! four a round, one-level dithering both ways, step 0.1.

use crate::federation::*;
use std::collections::BTreeMap;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{
    DownRule, Downlink, Feedback, Memories, Reset, UpRule, Uplink, blocks_omega, gradient_alpha,
};
use whimbrel_core::{ClientId, Error};
use whimbrel_data::Sizes;
use whimbrel_engine::Faults;
use whimbrel_methods::fedem::Form;
use whimbrel_models::gmm::Covariance;
use whimbrel_testkit::{pairs, relative_gap};

const FORMS: [Form; 3] = [Form::Pair, Form::State, Form::Lean];

fn known() -> Covariance {
    Covariance::Known(TRUTH.to_vec())
}

fn preserved(form: Form, covariance: &Covariance, memories: Memories) -> (Codec, DownRule) {
    let blocks = form.blocks(&gmm(covariance.clone()));
    let alpha = gradient_alpha(blocks_omega(&dither(), &blocks).unwrap());
    (dither(), DownRule::Preserved { alpha, memories })
}

/// Dithered both ways in this form, with known covariances.
fn over(form: Form, down: (Codec, DownRule), rounds: u32) -> Setup {
    let (codec, down) = (dither(), Some(down));
    Setup { covariance: known(), codec, gamma: 0.1, rounds, form, down, ..Setup::default() }
}

fn last_field(setup: &Setup, clients: usize) -> f64 {
    let tables = tables(clients, Sizes::Equal(100));
    run(setup, &tables, bernoulli(0.75), Faults::default(), setup.rounds).fields[0].1
}

#[test]
fn with_everyone_and_exact_codecs_the_three_forms_are_one() {
    let tables = unequal(9);
    for covariance in [known(), Covariance::Tied, Covariance::Diagonal, Covariance::Full] {
        let go = |form| {
            let setup = Setup {
                covariance: covariance.clone(),
                form,
                gamma: 0.5,
                rounds: 60,
                ..Setup::default()
            };
            states(&setup, &tables)
        };
        let pair = go(Form::Pair);
        for form in [Form::State, Form::Lean] {
            for (a, b) in pairs(&go(form), &pair) {
                let gap = relative_gap(&a.global.s_hat, &b.global.s_hat);
                assert!(gap < 1e-11, "{form:?}, {covariance:?}, round {}: {gap:e}", a.round);
            }
        }
    }
}

#[test]
fn preserved_downlinks_converge_linearly_in_every_form() {
    let all = [
        Memories::Groups(1),
        Memories::Groups(7),
        Memories::PerClient,
        Memories::Single { reset: Reset::Every(12) },
    ];
    for form in FORMS {
        for memories in all {
            let down = preserved(form, &known(), memories);
            let field = last_field(&over(form, down, 800), 100);
            assert!(field < 1e-15, "{form:?}, {memories:?}: {field:e}");
        }
    }
}

#[test]
fn a_fitted_covariance_survives_compression_of_theta() {
    for form in FORMS {
        let down = preserved(form, &Covariance::Tied, Memories::PerClient);
        let setup = Setup { covariance: Covariance::Tied, ..over(form, down, 800) };
        let field = last_field(&setup, 100);
        assert!(field < 1e-9, "{form:?}: {field:e}");
    }
}

#[test]
fn the_state_form_runs_over_degraded_and_detached_downlinks() {
    let omega = dither().omega(6).unwrap();
    let rules = [
        DownRule::Degraded { feedback: Feedback::Off },
        DownRule::Degraded { feedback: Feedback::Contractive },
        DownRule::Degraded { feedback: Feedback::Share(1.0 / (1.0 + omega)) },
        DownRule::Detached,
        DownRule::Ghost,
    ];
    for rule in rules {
        let field = last_field(&over(Form::State, (dither(), rule), 400), 40);
        // Full batches and memories: the update itself goes to zero, and its compression with it.
        // A detached replica keeps the errors of its first rounds for ever, so it only stays near.
        let limit = if rule == DownRule::Detached { 0.1 } else { 1e-6 };
        assert!(field < limit, "{rule:?}: {field:e}");
    }
}

#[test]
fn lost_uploads_and_late_joiners_keep_both_ends_of_every_memory_together() {
    // If the two ends drifted apart, the limit would not be a fixed point of EM.
    let faults = Faults {
        lost: 0.3,
        late: BTreeMap::from([(ClientId(3), 50), (ClientId(11), 90)]),
        ..Faults::default()
    };
    let tables = unequal(20);
    for memories in [
        Memories::Groups(1),
        Memories::Groups(4),
        Memories::PerClient,
        Memories::Single { reset: Reset::Every(10) },
    ] {
        let down = preserved(Form::State, &known(), memories);
        let setup = Setup { gamma: 0.05, ..over(Form::State, down, 3000) };
        let trace = run(&setup, &tables, bernoulli(0.75), faults.clone(), 3000);
        assert!(trace.fields[0].1 < 1e-15, "{memories:?}: {:e}", trace.fields[0].1);
    }
}

#[test]
fn one_group_is_shared_and_with_everyone_a_group_each_is_per_client() {
    let tables = unequal(8);
    let go = |memories| {
        let setup = over(Form::State, preserved(Form::State, &known(), memories), 40);
        states(&setup, &tables).pop().unwrap().global.s_hat
    };
    assert_eq!(go(Memories::Groups(8)), go(Memories::PerClient));
    assert_ne!(go(Memories::Groups(1)), go(Memories::PerClient));
}

#[test]
fn forms_refuse_the_channels_they_cannot_run_over() {
    let degraded =
        Downlink::new(dither(), DownRule::Degraded { feedback: Feedback::Off }, 6, false).unwrap();
    let up = |rule| Uplink::new(Codec::Exact, rule, 6).unwrap();
    let memory = up(UpRule::Memory { alpha: 1.0 });
    let exact = Downlink::exact(6);
    assert!(matches!(Form::Lean.check(&up(UpRule::Plain), &exact), Err(Error::Config { .. })));
    assert!(Form::Lean.check(&memory, &exact).is_ok());
    for form in [Form::Pair, Form::Lean] {
        assert!(matches!(form.check(&memory, &degraded), Err(Error::Config { .. })));
    }
    assert!(Form::State.check(&memory, &degraded).is_ok());
}
