//! A coordinator that is killed anywhere: every exchange is kept before anybody hears of it, so the
//! next process goes on exactly there, with clients that keep their own states.

use crate::toy::{Client, SOUND, Toy, clients, stage, view};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use whimbrel_core::{ClientData, ClientId, DynMethod, Error, Probability, Result, StateKind, Wire};
use whimbrel_engine::checkpoint::Checkpoint;
use whimbrel_engine::keeper::{Progress, Snapshot};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::metrics::Latest;
use whimbrel_engine::runner::{Done, Evaluated, Start, Step, Tally, Traffic};
use whimbrel_engine::runner_state::Change;
use whimbrel_engine::{
    Carrier, Keeper, Machine, Outcome, Participation, Protocol, Runner, Stage, StageState, run_with,
};

/// Who joins late in each stage, and before which round.
const LATE: (ClientId, u32) = (ClientId(2), 4);
const COUNT: u32 = 6;

fn two() -> Vec<Stage> {
    let build = |(rounds, evaluate_every)| Stage {
        participation: Participation::Bernoulli(Probability::new(0.6).unwrap()),
        evaluate_every,
        ..stage(Toy { rounds, ..SOUND })
    };
    [(5, None), (8, Some(2))].map(build).into()
}

/// Kills the process at one of the places that ask.
struct Fate(Option<u32>);

impl Fate {
    fn strikes(&mut self) -> Result<()> {
        let Some(left) = self.0.as_mut() else { return Ok(()) };
        if *left == 0 {
            self.0 = None;
            return Err(Error::storage("here", "killed"));
        }
        *left -= 1;
        Ok(())
    }
}

/// The disk of the coordinator: a snapshot and what came after it.
#[derive(Default)]
struct Disk {
    snapshot: Option<Vec<u8>>,
    records: Vec<Record>,
    rows: Vec<u32>,
}

struct Record {
    change: Vec<u8>,
    done: Done,
    tallies: Vec<Tally>,
    traffic: Traffic,
    progress: Progress,
    latest: Option<Latest>,
}

struct Journalled {
    disk: Rc<RefCell<Disk>>,
    fate: Rc<RefCell<Fate>>,
}

impl Keeper for Journalled {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        let disk = self.disk.borrow();
        let Some(snapshot) = &disk.snapshot else { return Ok(None) };
        let mut checkpoint = Checkpoint::from_bytes(snapshot)?;
        for record in &disk.records {
            checkpoint.runner.state.apply(Change::from_bytes(&record.change)?)?;
            checkpoint.runner.tallies.clone_from(&record.tallies);
            checkpoint.runner.traffic = record.traffic;
            checkpoint.evaluated = record.progress.evaluated;
            checkpoint.patience = record.progress.patience;
            checkpoint.accepted = record.progress.accepted;
            checkpoint.latest = record.latest.as_ref().map(|latest| {
                // What is kept does not depend on the clock.
                Latest::from_bytes(&latest.to_bytes()).expect("its own bytes")
            });
        }
        Ok(Some(checkpoint))
    }

    fn seconds_before(&self) -> f64 {
        0.0
    }

    fn opened(&mut self, _: bool, snapshot: &Snapshot<'_>) -> Result<()> {
        self.fate.borrow_mut().strikes()?;
        let mut disk = self.disk.borrow_mut();
        disk.snapshot = Some(snapshot.checkpoint()?.to_bytes());
        disk.records.clear();
        Ok(())
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        self.fate.borrow_mut().strikes()?;
        let moved: Vec<ClientId> = done.joined.iter().chain(&done.accepted).copied().collect();
        let state = snapshot.runner.state();
        self.disk.borrow_mut().records.push(Record {
            change: state.machine.change(&moved)?.to_bytes(),
            done: done.clone(),
            tallies: state.tallies.clone(),
            traffic: state.traffic,
            progress: snapshot.progress,
            latest: snapshot.latest.cloned(),
        });
        // The changes since the snapshot amount to the machine itself.
        let rebuilt = self.resume()?.expect("there is a snapshot");
        assert_eq!(rebuilt, snapshot.checkpoint()?);
        Ok(())
    }

    fn evaluated(&mut self, _: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        self.disk.borrow_mut().rows.push(snapshot.latest.expect("it was evaluated").row.round);
        Ok(())
    }

    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        self.fate.borrow_mut().strikes()?;
        let mut disk = self.disk.borrow_mut();
        disk.snapshot = Some(snapshot.checkpoint()?.to_bytes());
        disk.records.clear();
        Ok(())
    }

    fn failed(&mut self) -> Result<()> {
        panic!("nothing diverges here")
    }
}

/// One client's disk: it survives every process of the coordinator.
#[derive(Clone, Default)]
struct Home {
    client: Vec<u8>,
    staged: Option<(u32, Vec<u8>)>,
}

struct Post {
    data: Vec<(String, ClientData)>,
    homes: Rc<RefCell<Vec<Home>>>,
    disk: Rc<RefCell<Disk>>,
    fate: Rc<RefCell<Fate>>,
}

struct Mail<'a> {
    method: Arc<dyn DynMethod>,
    keys: StageKeys,
    post: &'a Post,
    state: StageState<Machine>,
    accepted: Vec<ClientId>,
}

impl Carrier for Post {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let (Start { keys, saved, .. }, method) = (*start, stage.method.server()?.clone());
        let participation = stage.participation.clone();
        let state = if let Some(saved) = saved {
            self.reconcile();
            let machine = Machine::load(method.clone(), keys, participation, &saved.state)?;
            StageState::resumed(machine, saved)
        } else {
            let mut summaries = Vec::new();
            for id in (0..COUNT).map(ClientId) {
                summaries.push((id, self.enrol(&*method, keys, id)?));
            }
            let on_time = summaries.iter().filter(|(id, _)| *id != LATE.0);
            let roster: Vec<_> = on_time.map(|(id, s)| (*id, &s[..])).collect();
            let machine = Machine::start(method.clone(), keys, participation, &roster)?;
            let mut state = StageState::new(machine, COUNT as usize);
            roster.iter().for_each(|(id, summary)| state.count_up(*id, summary.len() as u64));
            state
        };
        Ok(Box::new(Mail { method, keys, post: self, state, accepted: Vec::new() }))
    }
}

impl Post {
    fn enrol(&self, method: &dyn DynMethod, keys: StageKeys, id: ClientId) -> Result<Vec<u8>> {
        let data = method.bind(&self.data[id.0 as usize].1)?;
        let (client, summary) = method.enroll(&data, keys.enrol(id))?;
        let client = client.save();
        self.homes.borrow_mut()[id.0 as usize] = Home { client, staged: None };
        Ok(summary)
    }

    /// Clients that come back with a staged state are told whether it was accepted.
    fn reconcile(&self) {
        let disk = self.disk.borrow();
        let last = disk.records.last().map(|record| &record.done);
        for (i, home) in self.homes.borrow_mut().iter_mut().enumerate() {
            if let Some((exchange, client)) = home.staged.take() {
                let id = ClientId(i as u32);
                let kept = last.is_some_and(|d| d.exchange == exchange && d.accepted.contains(&id));
                if kept {
                    home.client = client;
                }
            }
        }
    }
}

impl Mail<'_> {
    /// One client's work, its staged state durable before the upload leaves it.
    fn work(&self, id: ClientId, exchange: u32, down: &[u8]) -> Result<Vec<u8>> {
        let method = &self.method;
        let data = method.bind(&self.post.data[id.0 as usize].1)?;
        let mut homes = self.post.homes.borrow_mut();
        let home = &mut homes[id.0 as usize];
        let client = method.load(StateKind::Client, &home.client)?;
        let key = self.keys.exchange(exchange).local(id);
        let done = method.local_step(&client, &down.to_vec().into(), &data, key)?;
        home.staged = Some((exchange, done.client.save()));
        Ok(done.up)
    }
}

impl Runner for Mail<'_> {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.post.data.iter().map(|(name, _)| name.clone()).collect()
    }

    fn step(&mut self) -> Result<Step> {
        let mut joined = Vec::new();
        let machine = &mut self.state.machine;
        if machine.peer(LATE.0).is_none() && machine.round() + 1 >= LATE.1 {
            let summary = self.post.enrol(&*self.method, self.keys, LATE.0)?;
            machine.admit(LATE.0, &summary)?;
            self.state.count_up(LATE.0, summary.len() as u64);
            joined.push(LATE.0);
        }
        let Some(exchange) = self.state.machine.open()? else { return Ok(Step::Over) };
        let mut shard = self.state.machine.shard(&exchange);
        for invited in &exchange.cohort {
            let id = invited.id;
            let (peer, down) = self.state.machine.message(&exchange, id)?;
            let up = self.work(id, exchange.number, &down.to_bytes())?;
            self.post.fate.borrow_mut().strikes()?;
            // One upload in four comes too late.
            if (exchange.number + id.0) % 4 != 3 {
                shard.accept(*invited, peer, &up)?;
                self.state.tallies[id.0 as usize].rounds += u32::from(exchange.round.is_some());
            }
            self.state.count_up(id, up.len() as u64);
            self.state.count_down(id, down.len() as u64);
        }
        let (number, round) = (exchange.number, exchange.round);
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|invited| invited.id).collect();
        self.accepted = self.state.machine.close(exchange, vec![shard])?;
        let accepted = self.accepted.clone();
        let done = Done { exchange: number, round, joined, cohort, accepted, ..Done::default() };
        Ok(Step::Exchanged(done))
    }

    fn acknowledge(&mut self) -> Result<()> {
        for (i, home) in self.post.homes.borrow_mut().iter_mut().enumerate() {
            self.post.fate.borrow_mut().strikes()?;
            if let Some((_, client)) = home.staged.take()
                && self.accepted.contains(&ClientId(i as u32))
            {
                home.client = client;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        Ok(Some(Evaluated::default()))
    }
}

/// How a federation ends whose coordinator is killed at these places, counted from the last one.
struct End {
    outcome: Outcome,
    homes: Vec<Vec<u8>>,
    rows: Vec<u32>,
    kills: usize,
}

fn federation(kills: &[u32]) -> End {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let homes = Rc::new(RefCell::new(vec![Home::default(); COUNT as usize]));
    for (attempt, at) in kills.iter().copied().map(Some).chain([None]).enumerate() {
        let fate = Rc::new(RefCell::new(Fate(at)));
        let mut post = Post {
            data: clients(COUNT),
            homes: homes.clone(),
            disk: disk.clone(),
            fate: fate.clone(),
        };
        let mut keeper = Journalled { disk: disk.clone(), fate };
        let calm = AtomicBool::new(false);
        match run_with(&two(), &mut post, &mut keeper, 3, &calm, &mut ()) {
            Err(error) => assert!(error.to_string().contains("killed"), "{error}"),
            Ok(outcome) => {
                let homes = homes.borrow().iter().map(|home| home.client.clone()).collect();
                let mut rows = disk.borrow().rows.clone();
                // A row after the last kept exchange is made again by the next process.
                rows.dedup();
                return End { outcome, homes, rows, kills: attempt };
            }
        }
    }
    panic!("the last process is not killed")
}

fn same(one: &End, other: &End, what: &str) {
    let (a, b) = (&one.outcome, &other.outcome);
    assert_eq!(a.delivered, b.delivered, "{what}");
    assert_eq!(a.tallies, b.tallies, "{what}");
    assert_eq!((a.traffic, a.rounds), (b.traffic, b.rounds), "{what}");
    assert_eq!((&one.homes, &one.rows), (&other.homes, &other.rows), "{what}");
}

#[test]
fn a_coordinator_killed_anywhere_goes_on_exactly_there() {
    let calm = federation(&[]);
    assert!(calm.outcome.ending.is_over(), "{:?}", calm.outcome.ending);
    assert_eq!(calm.outcome.rounds, 8);
    let joined = Client::from_bytes(&calm.homes[LATE.0.0 as usize]).unwrap();
    assert!(joined.accepted > 0, "the late joiner is heard");
    let mut places = 0;
    loop {
        let end = federation(&[places]);
        same(&end, &calm, &format!("killed at place {places}"));
        if end.kills == 0 {
            break;
        }
        places += 1;
    }
    assert!(places > 100, "only {places} places to be killed at");
    // Killed again and again, also while it starts anew.
    for every in 1..12 {
        let end = federation(&[every; 40]);
        same(&end, &calm, &format!("killed at every place {every}"));
    }
}

#[test]
fn a_change_out_of_turn_is_refused() {
    let stage = two().remove(0);
    let method = stage.method.server().unwrap().clone();
    let keys = StageKeys::new(1, 0);
    let summary = 3u32.to_bytes();
    let roster = [(ClientId(0), &summary[..]), (ClientId(1), &summary[..])];
    let mut machine =
        Machine::start(method.clone(), keys, Participation::Everyone, &roster).unwrap();
    let mut saved = machine.save().unwrap();
    let before = saved.clone();
    assert!(saved.apply(machine.change(&[]).unwrap()).is_err(), "nothing has happened yet");
    assert_eq!(saved, before);
    for _ in 0..2 {
        let exchange = machine.open().unwrap().unwrap();
        let shard = machine.shard(&exchange);
        machine.close(exchange, vec![shard]).unwrap();
    }
    assert!(saved.apply(machine.change(&[]).unwrap()).is_err(), "an exchange is missing");
    assert!(machine.change(&[ClientId(7)]).is_err(), "nobody has that id");
    let peer: &crate::toy::Peer = view(machine.peer(ClientId(0)).unwrap());
    assert_eq!(peer.accepted, 0);
}
