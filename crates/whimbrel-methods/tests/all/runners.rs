//! The same bits in every runner, a line per method.

use crate::federation::*;
use crate::{fedmiss, selection, sgd};
use whimbrel_codec::Inclusion;
use whimbrel_codec::channel::preset::NAMES;
use whimbrel_codec::channel::{DownRule, Feedback, Memories, Reset};
use whimbrel_core::{ClientData, Erased, Key};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::clustering::Clustering;
use whimbrel_methods::describe::{Bins, Blocks, Tally};
use whimbrel_methods::fedem::{AutoStep, Batch, Estimator, FirstMemories, Form, FrameKind};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::masked::{BindMasked, MaskSecret, Masked, Masks, Trust};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::pooled::{ExactSums, Pooled, Stage};
use whimbrel_methods::prepare::{Columns, Pca};
use whimbrel_methods::spider::Spider;
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::Covariance;
use whimbrel_testkit::runners::runners_agree;

const BATCH: Batch = Batch::Sample { size: 7, replacement: true, local_steps: 2 };

fn tables() -> Vec<ClientData> {
    unequal(14).into_iter().map(ClientData::Table).collect()
}

/// The same bits in every runner and, without losses, with and without masks.
fn exact_sums<P: Pooled>(name: &str, method: impl Fn() -> P, masks: &Masks) {
    let exact = |masks| ExactSums { method: method(), masks };
    let result = |masks| {
        let method = exact(masks).erased(BindRows);
        let everyone = (Participation::Everyone, Faults::default());
        let mut simulator = simulator_of(method.clone(), &tables(), 1, everyone.0, everyone.1);
        while simulator.step().unwrap().is_some() {}
        method.artifact(simulator.machine().server()).unwrap()
    };
    assert_eq!(result(None), result(Some(*masks)), "{name}: masks change the result");
    runners_agree(name, Erased(exact(None), BindRows), &tables());
    let masked = Masked::new(exact(Some(*masks)), masks);
    runners_agree(&format!("{name}, masked"), Erased(masked, BindMasked(BindRows)), &tables());
}

#[test]
fn em() {
    let base = || dithered(12);
    let spider = || Setup { estimator: Estimator::Spider { inner: 4 }, batch: BATCH, ..base() };
    let preserved = |memories| Some((dither(), DownRule::Preserved { alpha: 0.2, memories }));
    let state = |down| Setup { form: Form::State, down, ..base() };
    let known = Covariance::Known(TRUTH.to_vec());
    let grid = crate::grid::codec(16, 14, Inclusion::Equal(0.6));
    let setups = [
        ("fedem", base()),
        ("fedem, lean", Setup { form: Form::Lean, ..base() }),
        ("fedem on a grid", Setup { codec: grid.clone(), ..base() }),
        ("dem on a grid", Setup { codec: grid.clone(), batch: BATCH, memory: false, ..base() }),
        ("dem", Setup { batch: BATCH, memory: false, ..base() }),
        ("fedem, zero memories", Setup { memories: FirstMemories::Zero, ..base() }),
        ("vr-fedem", spider()),
        ("vr-fedem, state", Setup { form: Form::State, covariance: known, ..spider() }),
        ("fedem over mcm", state(preserved(Memories::Groups(1)))),
        ("fedem over rand-mcm", state(preserved(Memories::PerClient))),
        ("fedem over one memory", state(preserved(Memories::Single { reset: Reset::Every(3) }))),
    ];
    for (name, setup) in setups {
        runners_agree(name, setup.erased(), &tables());
    }
}

/// In the Fisher frame, over every downlink that has one, with the trust region and early full passes.
#[test]
fn em_in_the_fisher_frame() {
    let base = || Setup {
        codec: dither(),
        covariance: Covariance::Full,
        rounds: 10,
        frame: FrameKind::Fisher,
        auto: Some(AUTO),
        ..Setup::default()
    };
    let spider = Spider { inner: 4, batch: 14.0, omega: 1.5, alpha: 0.4, clients: 0.0 };
    let preserved = |memories| Some((dither(), DownRule::Preserved { alpha: 0.2, memories }));
    let over = |form, down| Setup { form, down, ..base() };
    let degraded = Some((dither(), DownRule::Degraded { feedback: Feedback::Off }));
    let setups = [
        ("pair", base()),
        ("state, tied", Setup { form: Form::State, covariance: Covariance::Tied, ..base() }),
        ("lean, diagonal", Setup { form: Form::Lean, covariance: Covariance::Diagonal, ..base() }),
        ("plain", Setup { memory: false, ..base() }),
        (
            "groups on a grid",
            Setup {
                codec: crate::grid::codec(16, 14, Inclusion::Equal(0.6)),
                ..over(Form::Lean, preserved(Memories::Groups(3)))
            },
        ),
        (
            "vr-fedem",
            Setup {
                estimator: Estimator::Spider { inner: 4 },
                batch: BATCH,
                auto: Some(AutoStep { spider: Some(spider), ..AUTO }),
                ..base()
            },
        ),
        ("state over degraded", over(Form::State, degraded)),
        ("pair over mcm", over(Form::Pair, preserved(Memories::Groups(1)))),
        ("lean over groups", over(Form::Lean, preserved(Memories::Groups(3)))),
        ("state over rand-mcm", over(Form::State, preserved(Memories::PerClient))),
        ("lean over rand-mcm", over(Form::Lean, preserved(Memories::PerClient))),
        ("lean over ghost", over(Form::Lean, Some((dither(), DownRule::Ghost)))),
        ("pair over detached", over(Form::Pair, Some((dither(), DownRule::Detached)))),
    ];
    for (name, setup) in setups {
        runners_agree(name, setup.erased(), &tables());
    }
}

#[test]
fn gradients() {
    let data = sgd::examples(0.3);
    for (name, preset, _) in NAMES {
        let setup =
            sgd::Setup { batch: BATCH, groups: Some(3), rounds: 8, ..sgd::Setup::of(*preset) };
        runners_agree(name, setup.method(&data), &data);
    }
}

#[test]
fn tables_with_gaps() {
    for setup in fedmiss::setups() {
        let data = fedmiss::clients(setup.settings.family, 7, 40, Key::root(23));
        runners_agree("fedmiss", setup.method(), &data);
    }
    let data = selection::counts(1, Key::root(51));
    runners_agree("selection", selection::selecting(5), &data);
    runners_agree("baselines", selection::comparing(), &data);
}

#[test]
fn stages_before_a_fit() {
    let setup = Setup { codec: dither(), batch: BATCH, ..Setup::default() };
    let constants = Constants { fit: setup.typed(), participation: 0.5 };
    runners_agree("constants", Erased(constants, BindRows), &tables());
    let kmeans = Once(FederatedKmeans { model: gmm(Covariance::Tied), rows_min: 5 });
    let (secret, trust) = (MaskSecret::Simulated, Trust::default());
    let masks = Masks { least: 3, clients: 14, seed: 1, secret, trust };
    for batch in [Batch::Full, BATCH] {
        let codec = crate::grid::codec(16, 14, Inclusion::Equal(0.6));
        let setup = Setup { codec, batch, ..dithered(6) };
        let masked = Masked::new(setup.typed(), &masks);
        runners_agree("fedem under masks", Erased(masked, BindMasked(BindRows)), &tables());
    }
    runners_agree("k-means", Erased(kmeans, BindRows), &tables());
    // Stages of exact sums, and their results with and without masks.
    let columns = Columns { columns: 2, drop_constant: false, standardize: true, centre: true };
    let model = gmm(Covariance::Tied);
    let moments = model.moments(&model.bind(&tables()[0]).unwrap()).unwrap();
    let clustering = || Clustering { model: model.clone(), moments: moments.clone(), rows_min: 5 };
    exact_sums("columns", || Stage(columns), &masks);
    exact_sums("pca", || Stage(Pca::new(2, 1).unwrap()), &masks);
    exact_sums("k-means by sums", clustering, &masks);
    // `describe`, with merged bins.
    let tally =
        Tally { blocks: Blocks { levels: vec![0, 0], places: vec![Vec::new(); 2] }, group: 5 };
    exact_sums("tally", || Stage(tally.clone()), &masks);
    let edges = vec![vec![0.0], vec![-1.0, 0.5, 2.0]];
    let bins =
        || Bins { blocks: tally.blocks.clone(), group: 5, edges: edges.clone(), survival: None };
    exact_sums("bins", || Stage(bins()), &masks);
    runners_agree("choice", Erased(choice(true), BindRows), &tables());
}
