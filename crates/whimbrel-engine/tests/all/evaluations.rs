//! Who answers an evaluation decides when a job stops: what was kept of it is not asked again.

use crate::toy::{SOUND, Toy, clients, stage};
use std::sync::atomic::AtomicBool;
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::checkpoint::Checkpoint;
use whimbrel_engine::journal::Line;
use whimbrel_engine::keeper::Snapshot;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{
    Chain, Ending, Faults, Journal, Keeper, Outcome, Simulation, Stage, Stopping, run_with,
};

/// Forty rounds, evaluated one by one, that stop once nothing improves.
fn patient(replay: Option<Journal>) -> Vec<Stage> {
    let faults = Faults { replay, ..Faults::default() };
    let stopping = Stopping { patience: Some(3), ..Stopping::default() };
    vec![Stage { faults, evaluate_every: Some(1), stopping, ..stage(Toy { rounds: 40, ..SOUND }) }]
}

/// Keeps every evaluation, and dies before the stage can be left.
#[derive(Default)]
struct Abrupt {
    kept: Option<Vec<u8>>,
    journal: String,
    dies: bool,
}

impl Keeper for Abrupt {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        self.kept.as_deref().map(Checkpoint::from_bytes).transpose()
    }

    fn seconds_before(&self) -> f64 {
        0.0
    }

    fn opened(&mut self, fresh: bool, snapshot: &Snapshot<'_>) -> Result<()> {
        if fresh {
            self.journal +=
                &Line::stage_begin(snapshot.stage, &snapshot.runner.state().machine.enrolled())
                    .to_text();
        }
        Ok(())
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        self.journal += &Line::exchange(snapshot.stage, done).to_text();
        Ok(())
    }

    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let round = snapshot.latest.expect("it was evaluated").row.round;
        self.journal += &Line::evaluation(snapshot.stage, round, answered).to_text();
        self.kept = Some(snapshot.checkpoint()?.to_bytes());
        Ok(())
    }

    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        if std::mem::take(&mut self.dies) {
            return Err(Error::storage("here", "killed"));
        }
        self.kept = Some(snapshot.checkpoint()?.to_bytes());
        Ok(())
    }

    fn failed(&mut self) -> Result<()> {
        panic!("nothing diverges here")
    }
}

fn run(chain: &dyn Chain, keeper: &mut Abrupt) -> Result<Outcome> {
    let mut simulation = Simulation::new(clients(3));
    run_with(chain, &mut simulation, keeper, 7, &AtomicBool::new(false), &mut ())
}

fn same(a: &Outcome, b: &Outcome) {
    assert_eq!(
        (&a.ending, a.rounds, &a.delivered, a.traffic, &a.own, &a.tallies),
        (&b.ending, b.rounds, &b.delivered, b.traffic, &b.own, &b.tallies)
    );
    let figures = |o: &Outcome| o.last.as_ref().map(|row| row.figures.clone());
    assert_eq!(figures(a), figures(b));
}

#[test]
fn a_stop_that_was_decided_and_not_kept_is_decided_again() {
    let calm = run(&patient(None), &mut Abrupt::default()).unwrap();
    assert!(matches!(calm.ending, Ending::Stopped(_)), "{:?}", calm.ending);
    assert!(calm.rounds < 40);
    let mut keeper = Abrupt { dies: true, ..Abrupt::default() };
    run(&patient(None), &mut keeper).err().expect("it was killed");
    same(&run(&patient(None), &mut keeper).unwrap(), &calm);
    // And once more, from a stage that is over: nobody is asked, and nothing is lost.
    same(&run(&patient(None), &mut keeper).unwrap(), &calm);
}

#[test]
fn a_replay_evaluates_over_those_who_answered() {
    let mut keeper = Abrupt::default();
    let calm = run(&patient(None), &mut keeper).unwrap();
    let again = Journal::parse(&keeper.journal, 0).unwrap();
    let replayed = patient(Some(again));
    same(&run(&replayed, &mut Abrupt::default()).unwrap(), &calm);

    // Nobody is heard after round 1, and in the next three rounds two of three are.
    let everyone = |round| Line::evaluation(0, round, &[0, 1, 2].map(ClientId)).to_text();
    let mut journal = keeper.journal.replace(&everyone(1), "");
    for round in 2..5 {
        let some = Line::evaluation(0, round, &[1, 2].map(ClientId)).to_text();
        journal = journal.replace(&everyone(round), &some);
    }
    let chain = patient(Some(Journal::parse(&journal, 0).unwrap()));
    let mut keeper = Abrupt::default();
    // Without the first client the objective is lower: this run would stop later than the journal.
    let error = run(&chain, &mut keeper).err().expect("it stops where the other did").to_string();
    assert!(error.contains("it ends before exchange"), "{error}");
    assert!(keeper.journal.starts_with(&journal), "{}\n{journal}", keeper.journal);
    assert!(!journal.contains(&everyone(1)) && journal.contains("\"answered\":\"1-2\""));
}
