//! The interface between the loop over stages and whatever carries messages: the simulator, a
//! network, a test.
//!
//! A [`Runner`] takes a stage from exchange to exchange until the method is done; a [`Carrier`]
//! opens one for each stage. Evaluations, stopping rules, journal, metrics, checkpoints and the
//! chain of stages are the same for all runners and belong to [`run_with`](crate::run_with).

use crate::keys::StageKeys;
use crate::machine::Machine;
use crate::metrics::Figure;
use crate::run::Stage;
use crate::runner_state::{Change, Saved};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use whimbrel_core::method::{Artifact, ClientGroup, Metric};
use whimbrel_core::{ClientId, Error, Opaque, Result, wire};

/// One stage under way: a server with its clients, or neighbours without a server.
pub trait Runner {
    fn state(&self) -> &StageState;
    /// Client names by id.
    fn names(&self) -> Vec<String>;
    /// Runs one exchange. Clients learn of it by [`Runner::acknowledge`], which the caller calls
    /// once the exchange is durable.
    fn step(&mut self) -> Result<Step>;
    /// Tells the clients of the last exchange that it counts. By default there is nothing to tell:
    /// both ends moved in the step and are saved together.
    fn acknowledge(&mut self) -> Result<()> {
        Ok(())
    }
    /// Begins an evaluation by separate exchanges, which the next steps run; `false` if it
    /// needs none, or no more.
    fn begin_evaluation(&mut self) -> Result<bool> {
        Ok(false)
    }
    /// Runs the method's evaluation; `None` if no client answered.
    fn evaluate(&mut self) -> Result<Option<Evaluated>>;
    /// Passes each client's personal artifact to `sink`, in id order; none by default, because
    /// remote clients keep theirs.
    fn client_artifacts(
        &self,
        _sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

/// The protocol of a stage: a server's [`Machine`], or neighbours that mix their states.
pub trait Protocol: Send + Sync {
    /// Rounds done.
    fn round(&self) -> u32;
    /// Exchanges done, openings included.
    fn exchanges(&self) -> u32;
    /// Whether the next exchange is a round (`false`: an opening); `None` when the method is done.
    fn next_is_round(&self) -> Result<Option<bool>>;
    /// Whether the method ended because it converged by its own rule.
    fn has_converged(&self) -> bool {
        false
    }
    /// Parts of messages that clients withheld so far.
    fn withheld(&self) -> u64 {
        0
    }
    /// The clients that take part, in id order.
    fn enrolled(&self) -> Vec<ClientId>;
    /// The model, or the input of the next stage.
    fn artifact(&self) -> Result<Artifact>;
    /// The state as bytes.
    fn save(&self) -> Result<Saved>;
    /// The difference that the last exchange made; `moved` are the clients that joined before it or
    /// were accepted in it.
    fn change(&self, moved: &[ClientId]) -> Result<Change>;
}

/// The state of a stage that every runner has.
pub struct StageState<P: ?Sized = dyn Protocol> {
    /// Client states by id; empty where clients keep their own.
    pub clients: Vec<Opaque>,
    /// Bytes and rounds of each client in this stage, by id.
    pub tallies: Vec<Tally>,
    /// Bytes of this stage.
    pub traffic: Traffic,
    /// Whether an exchange failed half-way: some clients moved and the server did not.
    pub(crate) broken: bool,
    pub machine: P,
}

impl<P> StageState<P> {
    /// A new stage of this many clients.
    pub fn new(machine: P, clients: usize) -> Self {
        let tallies = vec![Tally::default(); clients];
        let traffic = Traffic::default();
        Self { clients: Vec::new(), tallies, traffic, broken: false, machine }
    }

    /// A saved stage without its clients' states.
    pub fn resumed(machine: P, saved: &SavedStage) -> Self {
        let (tallies, traffic) = (saved.tallies.clone(), saved.traffic);
        Self { clients: Vec::new(), tallies, traffic, broken: false, machine }
    }

    /// Counts the bytes of an exchange's messages to and from a client.
    pub fn count(&mut self, evaluates: bool, id: ClientId, (down, up): (u64, u64)) {
        if evaluates {
            self.traffic.eval += down + up;
        } else {
            self.count_down(id, down);
            self.count_up(id, up);
        }
    }

    /// Counts bytes that a client sent.
    pub fn count_up(&mut self, id: ClientId, bytes: u64) {
        self.tallies[id.0 as usize].bytes_up += bytes;
        self.traffic.up += bytes;
    }

    /// Counts bytes that were sent to a client.
    pub fn count_down(&mut self, id: ClientId, bytes: u64) {
        self.tallies[id.0 as usize].bytes_down += bytes;
        self.traffic.down += bytes;
    }
}

impl<P: Protocol + ?Sized> StageState<P> {
    /// Refuses to use the state after an exchange that failed half-way.
    pub(crate) fn check_whole(&self) -> Result<()> {
        if self.broken {
            return Err(Error::internal("a stage is used after an exchange that failed"));
        }
        Ok(())
    }

    /// The stage as bytes, without the states of clients.
    pub fn save(&self) -> Result<SavedStage> {
        self.check_whole()?;
        let (tallies, traffic) = (self.tallies.clone(), self.traffic);
        Ok(SavedStage { state: self.machine.save()?, clients: Vec::new(), tallies, traffic })
    }

    /// The states of these clients as bytes; a million of them do not fit into memory twice.
    pub fn save_clients(&self, ids: Range<usize>) -> Vec<Vec<u8>> {
        self.clients[ids].par_iter().map(|client| client.save()).collect()
    }
}

impl StageState<Machine> {
    /// The evaluation of a method whose exchanges contain it; `None` if they had no sum.
    pub fn evaluated(&mut self) -> Result<Option<Evaluated>> {
        let evaluated = self.conclude(0, &BTreeMap::<ClientId, Vec<u8>>::new())?;
        Ok(Some(evaluated).filter(|evaluated| !evaluated.metrics.is_empty()))
    }

    /// Concludes an evaluation from the answers to a question of `asked` bytes.
    pub fn conclude<A: AsRef<[u8]>>(
        &mut self,
        asked: usize,
        answers: &BTreeMap<ClientId, A>,
    ) -> Result<Evaluated> {
        let method = self.machine.method();
        let mut own = vec![Vec::new(); self.tallies.len()];
        for (id, answer) in answers {
            let answer = answer.as_ref();
            let figures = method.own(*id, self.machine.peer(*id), answer)?;
            own[id.0 as usize] = figures.into_iter().map(Into::into).collect();
            self.traffic.eval += (asked + answer.len()) as u64;
        }
        let mut each = answers.iter().map(|(id, answer)| (*id, Cow::from(answer.as_ref())));
        let metrics = method.conclude(self.machine.server(), &mut each, ClientGroup::Trained)?;
        Ok(Evaluated { metrics, own, answered: answers.keys().copied().collect() })
    }
}

/// Opens a runner for each stage of a job.
pub trait Carrier {
    /// Enrols the clients for a stage, or resumes a saved one.
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>>;
}

/// The start of a stage.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// The stage's number, from zero.
    pub index: u32,
    /// Whether this is the last stage.
    pub last: bool,
    pub keys: StageKeys,
    /// The artifacts of the stages before.
    pub delivered: &'a [Artifact],
    /// The saved stage to resume.
    pub saved: Option<&'a SavedStage>,
}

/// The result of [`Runner::step`].
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// The exchange is closed.
    Exchanged(Done),
    /// These clients joined. That must be durable before the next exchange, so that a crash does
    /// not change whom it asks.
    Joined(Vec<ClientId>),
    Over,
    /// The run was interrupted while it waited for clients; nothing moved.
    Interrupted,
}

/// A closed exchange.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Done {
    /// Its number, openings included, from zero.
    pub exchange: u32,
    /// The number of the round, from one; `None` for an opening.
    pub round: Option<u32>,
    /// Clients that joined just before it.
    pub joined: Vec<ClientId>,
    pub cohort: Vec<ClientId>,
    /// Clients whose upload was accepted.
    pub accepted: Vec<ClientId>,
    /// Clients of the cohort that the message did not reach; its bytes are not counted.
    pub unsent: Vec<ClientId>,
    /// Clients of the cohort without a counted upload.
    pub unheard: Vec<ClientId>,
}

/// The result of an evaluation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evaluated {
    pub metrics: Vec<Metric>,
    /// Each client's own figures, by id; empty for those without an answer.
    pub own: Vec<Vec<Figure>>,
    /// The clients that answered, in order.
    pub answered: Vec<ClientId>,
}

/// Bytes and rounds of one client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rounds in which its upload was accepted.
    pub rounds: u32,
    /// Bytes it sent, lost uploads included.
    pub bytes_up: u64,
    /// Bytes sent to it.
    pub bytes_down: u64,
}

/// Bytes of the whole federation so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Clients to server, enrolment included.
    pub up: u64,
    /// Server to clients.
    pub down: u64,
    /// Both ways, for evaluations.
    pub eval: u64,
}

/// A stage as bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedStage {
    pub state: Saved,
    /// Client states by id; empty where clients keep their own.
    pub clients: Vec<Vec<u8>>,
    pub tallies: Vec<Tally>,
    pub traffic: Traffic,
}

wire!(Tally { rounds, bytes_up, bytes_down });
wire!(Traffic { up, down, eval });
wire!(SavedStage { state, clients, tallies, traffic });
