//! The battery of the methods, on every method and on FedEM over several uplinks.

use crate::federation::*;
use crate::{selection, sgd};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::preset::NAMES;
use whimbrel_codec::channel::{DownRule, Feedback, Memories, Preset, Reset, UpRule, Uplink};
use whimbrel_codec::{Codec, Inclusion, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, Key};
use whimbrel_methods::fedem::{Batch, Estimator, FirstMemories, Form, Weights};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::prepare::{Columns, Pca};
use whimbrel_methods::sgd::Average;
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::Covariance;
use whimbrel_testkit::method::{MethodUnderTest, laws};

/// Eight clients of 5 to 33 rows.
fn passes(name: &str, method: &dyn DynMethod, exchanges: u64) {
    let data: Vec<ClientData> = unequal(8).into_iter().map(ClientData::Table).collect();
    laws(&MethodUnderTest { name, method, data: &data, exchanges });
}

#[test]
fn fedem_over_every_kind_of_uplink() {
    let codecs = [
        Codec::Exact,
        Codec::ExactF32,
        dither(),
        Codec::dithering(16, Norm::Infinity, Some(4)).unwrap(),
        Codec::block_p(3, Norm::P(2)).unwrap(),
        Codec::sparse(0.4).unwrap(),
        Codec::sparse_exactly(2).unwrap(),
        Codec::Natural,
        crate::grid::codec(12, 8, Inclusion::Fixed(3)),
    ];
    for codec in codecs {
        for memory in [true, false] {
            let name = format!("fedem, {}, memory: {memory}", codec.name());
            let setup = Setup { codec: codec.clone(), memory, gamma: 0.1, ..Setup::default() };
            passes(&name, &*setup.erased(), 4);
        }
    }
}

#[test]
fn fedem_over_feedback() {
    for codec in [Codec::top_k(2).unwrap(), Codec::Sign, dither()] {
        let mut fit = Setup { gamma: 0.1, ..Setup::default() }.typed();
        let name = format!("fedem, {} with feedback", codec.name());
        fit.terms.uplinks =
            vec![Uplink::new(codec, UpRule::Feedback, fit.oracle.model.statistic_len()).unwrap()];
        passes(&name, &Erased(fit, BindRows), 4);
    }
}

#[test]
fn fedem_over_every_kind_of_downlink() {
    let preserved = |memories| DownRule::Preserved { alpha: 0.2, memories };
    for rule in [
        preserved(Memories::Groups(2)),
        preserved(Memories::PerClient),
        preserved(Memories::Single { reset: Reset::Every(2) }),
        DownRule::Degraded { feedback: Feedback::Off },
        DownRule::Detached,
    ] {
        let name = format!("fedem, {rule:?}");
        let fine = Codec::dithering(64, Norm::Infinity, None).unwrap();
        let (form, down) = (Form::State, Some((fine, rule)));
        let setup = Setup { form, down, ..dithered(200) };
        passes(&name, &*setup.erased(), 6);
    }
    let setup = Setup { form: Form::Lean, ..dithered(200) };
    passes("fedem, lean", &*setup.erased(), 4);
}

#[test]
fn fedem_with_every_covariance_batch_and_memory() {
    let known = Covariance::Known(TRUTH.to_vec());
    let per_component = [Covariance::Diagonal, Covariance::Spherical, Covariance::Full];
    for covariance in [known, Covariance::Tied].into_iter().chain(per_component) {
        let name = format!("fedem, {covariance:?}");
        let setup = Setup { covariance, ..dithered(200) };
        passes(&name, &*setup.erased(), 4);
    }
    let batch = Batch::Sample { size: 7, replacement: true, local_steps: 2 };
    let weights = Weights::Equal;
    for memories in [FirstMemories::Zero, FirstMemories::Given(vec![0.5; 6])] {
        let name = format!("fedem, {memories:?}");
        let setup = Setup { memories, batch, weights, gamma: 0.1, ..Setup::default() };
        passes(&name, &*setup.erased(), 4);
    }
}

#[test]
fn vr_fedem_in_every_form() {
    let estimator = Estimator::Spider { inner: 2 };
    for replacement in [true, false] {
        let batch = Batch::Sample { size: 7, replacement, local_steps: 1 };
        for form in [Form::Pair, Form::State, Form::Lean] {
            let name = format!("vr-fedem, {form:?}, replacement: {replacement}");
            let setup = Setup { estimator, batch, form, ..dithered(200) };
            passes(&name, &*setup.erased(), 6);
        }
    }
}

#[test]
fn fedem_with_codecs_for_single_clients() {
    let mut fit = dithered(200).typed();
    let q = fit.oracle.model.statistic_len();
    let own = Uplink::new(Codec::Natural, UpRule::Memory { alpha: 0.5 }, q).unwrap();
    fit.terms.uplinks.push(own);
    fit.terms.own_uplinks = BTreeMap::from([(1, 1), (4, 1)]);
    passes("fedem, codecs for single clients", &Erased(fit, BindRows), 4);
}

#[test]
fn fedem_that_starts_from_examples() {
    let mut fit = Setup { gamma: 0.1, ..Setup::default() }.typed();
    fit.oracle.initial = MixtureInitial::plain(MixtureStart::Examples);
    passes("fedem, examples", &Erased(fit, BindRows), 4);
}

#[test]
fn federated_kmeans() {
    let method = Arc::new(Erased(
        Once(FederatedKmeans { model: gmm(Covariance::Tied), rows_min: 5 }),
        BindRows,
    ));
    passes("federated k-means", &*method, 1);
}

#[test]
fn the_choice_of_a_mixture() {
    for clusters in [true, false] {
        let method = Erased(choice(clusters), BindRows);
        passes("choice of a mixture", &method, 12);
    }
}

#[test]
fn the_constants_of_the_theory() {
    let batch = Batch::Sample { size: 7, replacement: false, local_steps: 1 };
    let setup = Setup { codec: dither(), batch, ..Setup::default() };
    let method = Arc::new(Erased(Constants { fit: setup.typed(), participation: 0.5 }, BindRows));
    passes("constants", &*method, 20);
    let setup = Setup { estimator: Estimator::Spider { inner: 5 }, ..setup };
    let method = Arc::new(Erased(Constants { fit: setup.typed(), participation: 1.0 }, BindRows));
    passes("constants of vr-fedem", &*method, 20);
}

#[test]
fn preparation() {
    let columns = Columns { columns: 2, drop_constant: true, standardize: true, centre: true };
    passes("columns", &Erased(Once(columns), BindRows), 1);
    passes("pca", &Erased(Once(Pca::new(2, 1).unwrap()), BindRows), 1);
}

#[test]
fn selection_and_baselines_of_a_table() {
    let data = selection::counts(1, Key::root(61));
    let (selecting, comparing) = (selection::selecting(2), selection::comparing());
    let methods: [(&str, &dyn DynMethod); 2] =
        [("select", &*selecting), ("baselines", &*comparing)];
    for (name, method) in methods {
        laws(&MethodUnderTest { name, method, data: &data, exchanges: 7 });
    }
}

#[test]
fn the_gradient_family() {
    let data = sgd::examples(0.3);
    let batch = Batch::Sample { size: 5, replacement: true, local_steps: 1 };
    let passes = |name: &str, setup: &sgd::Setup, average: Average| {
        let mut method = setup.method(&data);
        Arc::get_mut(&mut method).expect("one owner").0.oracle.average = average;
        laws(&MethodUnderTest { name, method: &*method, data: &data, exchanges: 4 });
    };
    for (name, preset, _) in NAMES {
        let setup = sgd::Setup { batch, groups: Some(3), ..sgd::Setup::of(*preset) };
        passes(name, &setup, Average::Last);
    }
    let setup = sgd::Setup { over_l: 0.3, ..sgd::Setup::of(Preset::Mcm) };
    passes("mcm, full gradients, averaged", &setup, Average::Uniform);
}
