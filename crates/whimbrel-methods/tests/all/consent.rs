//! Consent of a client: exact statistics leave once, and messages outside the job are refused.

use crate::attacks::Spy;
use crate::federation::*;
use crate::personal;
use std::sync::Arc;
use whimbrel_codec::channel::{DownMessage, GridNote};
use whimbrel_codec::{Codec, Inclusion, Packet, SharedGrid};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, DynMethod, Erased, Shared, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{
    ClientMachine, Consent, Machine, Participant, Participation, Purpose, Question, Stage, StepId,
};
use whimbrel_methods::fedem::{self, Estimator, Form, OuterLoop};
use whimbrel_methods::federated::{BindRows, Down, ExchangeKind};
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_models::{LatentModel, Rows};

/// The first question of a server that starts from these clients: its parameters depend on them.
fn first_question(method: &Arc<dyn DynMethod>, summaries: &[(ClientId, &[u8])]) -> Vec<u8> {
    let keys = StageKeys::new(summaries.len() as u64, 0);
    let machine = Machine::start(method.clone(), keys, Participation::Everyone, summaries).unwrap();
    let exchange = machine.open().unwrap().unwrap();
    machine.message(&exchange, ClientId(0)).unwrap().1.to_bytes()
}

#[test]
fn the_exact_statistic_is_told_once() {
    let setup = dithered(12);
    let method: Arc<dyn DynMethod> = setup.erased();
    let clients: Vec<ClientData> = unequal(14).into_iter().map(ClientData::Table).collect();
    let summary = |i: u32| {
        let data = method.bind(&clients[i as usize]).unwrap();
        method.enroll(&data, StageKeys::new(3, 0).enrol(ClientId(i))).unwrap().1
    };
    let summaries: Vec<Vec<u8>> = (0..4).map(summary).collect();
    let roster: Vec<(ClientId, &[u8])> =
        summaries.iter().zip(0..).map(|(s, i)| (ClientId(i), &s[..])).collect();
    let participant = Participant {
        chain: Box::new(vec![Stage::new("fit", method.clone())]),
        data: clients[0].clone(),
        seed: 3,
        consent: Consent::default(),
    };
    let mut client = ClientMachine::new(participant);
    let mut ask = |purpose, at, message: Vec<u8>| {
        let question = Question { purpose, at, client: ClientId(0), message: message.into() };
        let answer = client.answer(&question).map_err(|e| e.to_string());
        client.acknowledge(at, true);
        answer
    };
    let nothing = Vec::<Artifact>::new().to_bytes();
    ask(Purpose::Enrol, StepId::enrolment(0), nothing).unwrap();
    let first = first_question(&method, &roster);
    // Other parameters, if only in the last bit of one.
    let mut other = first.clone();
    let last = other.len() - 8;
    other[last] ^= 1;
    ask(Purpose::Exchange, StepId::exchange(0, 0), first.clone()).unwrap();
    // Nobody was heard: the same question again tells nothing new.
    ask(Purpose::Exchange, StepId::exchange(0, 1), first).unwrap();
    let said = ask(Purpose::Exchange, StepId::exchange(0, 2), other).unwrap_err();
    assert!(said.contains("of the kind `first state` than the 1"), "{said}");
}

/// The first state's question, a round, or the opening of memories.
fn down(
    kind: ExchangeKind,
    outer: Option<u32>,
    private: Option<Vec<f64>>,
    at: &[f64],
) -> fedem::Down {
    let state = Shared::new(&DownMessage::whole(at));
    Down { kind, uplink: 0, note: outer.map(OuterLoop), private, grid: None, state }
}

fn spy(setup: &Setup) -> Spy {
    Spy::new(setup.erased(), ClientData::Table(unequal(14).remove(2)))
}

#[track_caller]
fn refused(spy: &mut Spy, message: &impl Wire, why: &str) {
    let said = spy.ask(message).expect_err("it was answered");
    assert!(said.contains(why), "{why}\n---\n{said}");
}

/// Messages of every kind that no coordinator of the job sends: none is answered, and the run goes on.
#[test]
fn messages_outside_the_job_are_refused() {
    use ExchangeKind::{FirstState, OpenMemories, Round};
    let setup = Setup { memory: false, rounds: 50, ..Setup::default() };
    let (model, mut spy) = (setup.typed().oracle.model, spy(&setup));
    let MixtureStart::Given(theta) = start(&model) else { panic!("a start") };
    let whole = [&vec![0.1; model.statistic_len()][..], &theta].concat();
    let (nan, long) = (vec![f64::NAN; whole.len()], [&whole[..], &[0.0]].concat());
    let length = "numbers where the job has";
    refused(&mut spy, &down(Round, None, None, &theta), length);
    refused(&mut spy, &down(Round, None, None, &long), length);
    refused(&mut spy, &down(Round, None, None, &nan), "not finite");
    refused(&mut spy, &down(FirstState, None, None, &whole), "coordinates");
    refused(&mut spy, &down(FirstState, None, None, &nan[..theta.len()]), "coordinate 1 is NaN");
    refused(&mut spy, &down(Round, None, Some(vec![0.5; 5]), &whole), "pooled moments");
    refused(&mut spy, &down(FirstState, None, Some(vec![0.5; 5]), &theta), "pooled moments");
    refused(&mut spy, &down(Round, Some(0), None, &whole), "the job has none");
    refused(&mut spy, &down(FirstState, Some(0), None, &theta), "the job has none");
    refused(&mut spy, &down(OpenMemories, None, None, &whole), "`memories` than the 0");
    let mut other = down(Round, None, None, &whole);
    other.uplink = 1;
    refused(&mut spy, &other, "an uplink that the job does not have");
    let (mut twice, packet) = (down(FirstState, None, None, &theta), Packet::default());
    twice.state = Shared::new(&DownMessage::whole(&theta).then(packet));
    refused(&mut spy, &twice, "one whole vector");
    refused(&mut spy, &(), "");
    spy.ask(&down(FirstState, None, None, &theta)).unwrap();
    spy.ask(&down(Round, None, None, &whole)).unwrap();
    refused(&mut spy, &down(FirstState, None, None, &theta), "`first state` of fit after `rounds`");
}

/// Moments and outer loops, where the job has them.
#[test]
fn moments_and_outer_loops_are_those_of_the_job() {
    use ExchangeKind::Round;
    let setup = Setup { memory: false, form: Form::State, ..Setup::default() };
    let (model, mut asked) = (setup.typed().oracle.model, spy(&setup));
    let data = model.bind(&ClientData::Table(unequal(14).remove(2))).unwrap();
    let moments = model.moments(&data).unwrap();
    let MixtureStart::Given(theta) = start(&model) else { panic!("a start") };
    let mut s = vec![0.0; model.statistic_len()];
    model.expect(&model.from_vector(&theta).unwrap(), &data, Rows::All, &mut s).unwrap();
    let why = "pooled moments are missing, or not those of the job";
    refused(&mut asked, &down(Round, None, None, &s), why);
    refused(&mut asked, &down(Round, None, Some(vec![f64::NAN; moments.len()]), &s), why);
    for length in [0, moments.len() - 1, moments.len() + 1, 2 * moments.len(), 100_000] {
        refused(&mut asked, &down(Round, None, Some(vec![0.5; length]), &s), why);
    }
    asked.ask(&down(Round, None, Some(moments), &s)).unwrap();
    let spider = Estimator::Spider { inner: 4 };
    let setup = Setup { memory: false, estimator: spider, ..Setup::default() };
    let whole = [&s[..], &theta].concat();
    refused(&mut spy(&setup), &down(Round, None, None, &whole), "an outer loop is missing");
    spy(&setup).ask(&down(Round, Some(0), None, &whole)).unwrap();
}

/// Local steps are those of the job, and so are solvers.
#[test]
fn local_steps_are_those_of_the_job() {
    let setup = personal::Setup::with_everyone(personal::FEDAVG, 6, None);
    let method: Arc<dyn DynMethod> = Arc::new(Erased(setup.method(), BindRows));
    let mut spy = Spy::new(method, personal::clients(true).remove(5));
    let w = vec![0.1f32; setup.learner.parameters()];
    let down = |note: Option<f64>, private: u8| {
        let (kind, state) = (ExchangeKind::Round, Shared::new(&DownMessage::whole(&w)));
        Down { kind, uplink: 0, note, private, grid: None, state }
    };
    refused(&mut spy, &down(None, 0), "names no local step");
    for rate in [0.0, 0.1, 0.125, 1e300, -0.5, f64::NAN] {
        refused(&mut spy, &down(Some(rate), 0), "which the job does not have");
    }
    refused(&mut spy, &down(Some(0.5), 2), "a solver that the job does not have");
    spy.ask(&down(Some(0.5), 0)).unwrap();
}

/// Without the job's grid, values would leave exactly.
#[test]
fn grids_are_those_of_the_job() {
    let model = Setup::default().typed().oracle.model;
    let MixtureStart::Given(theta) = start(&model) else { panic!("a start") };
    let mut first = down(ExchangeKind::FirstState, None, None, &theta);
    let grid = SharedGrid::new(16).unwrap().among(14, Inclusion::Equal(1.0));
    let setup = Setup { codec: Codec::Grid(grid), ..Setup::default() };
    let why = "lacks the grid of the job, or the job has none";
    refused(&mut spy(&setup), &first, why);
    spy(&Setup::default()).ask(&first).unwrap();
    let note =
        |total| Some(GridNote { total, enrolled: 14, inclusion: None, exponents: Vec::new() });
    first.grid = note(1e4);
    refused(&mut spy(&Setup::default()), &first, why);
    spy(&setup).ask(&first).unwrap();
    // A total below the client's own weight would enlarge its part of the sum.
    first.grid = note(0.5);
    refused(&mut spy(&setup), &first, "does not suit the job");
}
