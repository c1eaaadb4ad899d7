//! Both halves of a job driven by bytes: client machines behind a transport, killed and loaded
//! again, give the simulator's bits.

use crate::toy::{SOUND, Toy, clients, stage};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::keeper::Nowhere;
use whimbrel_engine::{
    ClientMachine, Consent, Limits, Observer, Outcome, Participant, Participation, Purpose,
    Question, Remote, Stage, StepId, Transport, run, run_with,
};

const COUNT: u32 = 4;
const SEED: u64 = 12;

fn two() -> Vec<Stage> {
    let build = |rounds| Stage {
        participation: Participation::Fixed(3),
        evaluate_every: Some(2),
        ..stage(Toy { rounds, ..SOUND })
    };
    [4, 5].map(build).into()
}

fn participant(i: u32) -> Participant {
    let data = clients(COUNT).swap_remove(i as usize).1;
    Participant { chain: Box::new(two()), data, seed: SEED, consent: Consent::default() }
}

/// What each client has of its own.
#[derive(Default)]
struct Collected(BTreeMap<String, Artifact>);

impl Observer for Collected {
    fn client_artifact(&mut self, name: &str, artifact: Artifact) -> Result<()> {
        assert!(self.0.insert(name.into(), artifact).is_none(), "{name} twice");
        Ok(())
    }
}

/// Clients as their saved bytes: each is loaded for a question, asked twice, and saved again.
struct Saved(Vec<Vec<u8>>);

impl Saved {
    fn with<T>(&mut self, id: ClientId, act: impl FnOnce(&mut ClientMachine) -> T) -> T {
        let bytes = &mut self.0[id.0 as usize];
        let mut machine = if bytes.is_empty() {
            ClientMachine::new(participant(id.0))
        } else {
            ClientMachine::load(participant(id.0), bytes).unwrap()
        };
        let result = act(&mut machine);
        *bytes = machine.save();
        result
    }
}

impl Transport for Saved {
    type Answer = Vec<u8>;

    fn names(&self) -> Vec<String> {
        clients(COUNT).into_iter().map(|(name, _)| name).collect()
    }

    fn ask(&mut self, questions: Vec<Question>) -> Result<Vec<(ClientId, Vec<u8>)>> {
        let answer = |question: Question| {
            let question = Question::from_bytes(&question.to_bytes())?;
            let (id, first) =
                (question.client, self.with(question.client, |c| c.answer(&question))?);
            // A repeated question, after a restart, has the same answer.
            assert_eq!(self.with(id, |c| c.answer(&question))?, first);
            Ok((id, first))
        };
        questions.into_iter().rev().map(answer).collect()
    }

    fn acknowledge(&mut self, id: ClientId, at: StepId, accepted: bool) -> Result<()> {
        self.with(id, |client| client.acknowledge(at, accepted));
        Ok(())
    }
}

fn simulated(observer: &mut Collected) -> Outcome {
    run(&two(), clients(COUNT), SEED, &Limits::default(), observer).unwrap()
}

#[test]
fn clients_behind_bytes_give_the_simulations_bits() {
    let mut own = Collected::default();
    let wanted = simulated(&mut own);
    let mut remote = Remote(Saved(vec![Vec::new(); COUNT as usize]));
    let calm = AtomicBool::new(false);
    let mut nobody = Collected::default();
    let outcome = run_with(&two(), &mut remote, &mut Nowhere, SEED, &calm, &mut nobody).unwrap();
    assert_eq!(outcome.delivered, wanted.delivered);
    assert_eq!((outcome.tallies, outcome.traffic), (wanted.tallies, wanted.traffic));
    assert_eq!(outcome.last.map(|row| row.figures), wanted.last.map(|row| row.figures));
    // In a simulation each client's own result is handed out; elsewhere it stays with the client.
    assert_eq!((own.0.len(), nobody.0.len()), (COUNT as usize, 0));
    for (id, (name, _)) in (0..COUNT).map(ClientId).zip(clients(COUNT)) {
        let kept = remote.0.with(id, |client| client.artifact()).unwrap().unwrap();
        assert_eq!(kept, own.0[&name]);
    }
}

#[test]
fn a_client_moves_only_when_its_upload_was_accepted() {
    let mut client = ClientMachine::new(participant(2));
    let ask = |purpose, at, message: Vec<u8>| {
        let message = message.into();
        Question { purpose, at, client: ClientId(2), message }
    };
    let enrol = ask(Purpose::Enrol, StepId::enrolment(0), Vec::<Artifact>::new().to_bytes());
    let first = StepId::exchange(0, 0);
    let down = |round: u32, known: u32| [round.to_le_bytes(), known.to_le_bytes()].concat();
    // Nothing can be exchanged before an enrolment.
    let early = client.answer(&ask(Purpose::Exchange, first, down(0, 0))).unwrap_err();
    assert!(matches!(early, Error::Peer { .. }), "{early}");
    client.answer(&enrol).unwrap();
    // To be asked is to be enrolled.
    let upload = client.answer(&ask(Purpose::Exchange, first, down(0, 0))).unwrap();
    assert_eq!(client.committed().unwrap().at, StepId::enrolment(0));
    client.acknowledge(first, false);
    assert!(client.staged().is_none());
    // A dropped step is computed anew, from the same state and with the same draws.
    assert_eq!(client.answer(&ask(Purpose::Exchange, first, down(0, 0))).unwrap(), upload);
    client.acknowledge(StepId::exchange(0, 7), true);
    assert_eq!(client.staged().unwrap().at, first, "another step's fate says nothing");
    client.acknowledge(first, true);
    // The toy refuses a message that does not know of the accepted upload.
    let second = StepId::exchange(0, 1);
    let stale = client.answer(&ask(Purpose::Exchange, second, down(1, 0))).unwrap_err();
    assert!(stale.to_string().contains("the server knows 0 accepted uploads"), "{stale}");
    client.answer(&ask(Purpose::Exchange, second, down(1, 1))).unwrap();
    let before = client.save();
    let records = |c: &ClientMachine| (c.committed().cloned(), c.staged().cloned());
    let kept = records(&client);
    client.answer(&ask(Purpose::Evaluate, second, 1.0f64.to_bytes())).unwrap();
    assert_eq!(records(&client), kept, "an evaluation changes no state");
    for cut in 0..before.len() {
        assert!(ClientMachine::load(participant(2), &before[..cut]).is_err());
    }
    let nowhere = ask(Purpose::Enrol, StepId::enrolment(2), Vec::<Artifact>::new().to_bytes());
    assert!(matches!(client.answer(&nowhere), Err(Error::Peer { .. })));
    let error = client.forget().unwrap_err().to_string();
    assert!(error.contains("`join --renew`"), "{error}");
    client.renew();
    client.forget().unwrap();
    assert_eq!((client.committed(), client.staged()), (None, None));
}
