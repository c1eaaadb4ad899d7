//! Equal bits of decentralised methods under all ways to run them.
//!
//! [`neighbours_agree`] runs a method on one, two and five threads, and again with every round
//! resumed from bytes, and compares states, counts and metrics after every round.

use std::sync::Arc;
use whimbrel_core::decentralised::Decentralised;
use whimbrel_core::method::Metric;
use whimbrel_core::{ClientData, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::{Runner, SavedStage, Start, Step};
use whimbrel_engine::{Duty, Federation, Graphs, Neighbours};

/// The saved stage and the evaluation of a round.
type Round = (Vec<u8>, Vec<Metric>);

/// Runs the method in all ways, with the last client only evaluated, and compares every round.
/// Returns the last round's metrics.
pub fn neighbours_agree(
    name: &str,
    method: &Arc<dyn Decentralised>,
    graphs: &Graphs,
    data: &[ClientData],
) -> Vec<Metric> {
    let open = |saved: Option<&SavedStage>| {
        let bound = data.iter().map(|data| method.bind(data).expect("data")).collect();
        let names = (0..data.len()).map(|i| format!("c{i:02}")).collect();
        let mut duties = vec![Duty::Train; data.len()];
        duties[data.len() - 1] = Duty::Evaluate;
        let federation = Arc::new(Federation { names, data: bound, duties });
        let keys = StageKeys::new(1, 0);
        let start = Start { index: 0, last: true, keys, delivered: &[], saved };
        Neighbours::open(method.clone(), graphs.clone(), federation, &start).expect("a start")
    };
    let look = |runner: &mut Neighbours| -> Round {
        let saved = runner.state().save().expect("a saved stage").to_bytes();
        (saved, runner.evaluate().expect("an evaluation").expect("answers").metrics)
    };
    let whole = |threads: usize| -> Vec<Round> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let mut runner = open(None);
            let mut rounds = vec![look(&mut runner)];
            while let Step::Exchanged(_) = runner.step().expect("a round") {
                rounds.push(look(&mut runner));
            }
            rounds
        })
    };
    let reference = whole(1);
    for threads in [2, 5] {
        assert!(whole(threads) == reference, "{name}: {threads} threads differ");
    }
    for (k, pair) in reference.windows(2).enumerate() {
        let saved = SavedStage::from_bytes(&pair[0].0).expect("its own bytes");
        let mut resumed = open(Some(&saved));
        // Evaluations of the first process are counted, and those of this one must be too.
        assert!(resumed.evaluate().expect("an evaluation").is_some());
        assert!(matches!(resumed.step(), Ok(Step::Exchanged(_))), "{name}: round {k}");
        assert!(look(&mut resumed) == pair[1], "{name}: resumed before round {k} it differs");
    }
    reference.last().expect("the start is looked at").1.clone()
}
