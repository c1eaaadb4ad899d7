//! Who carries a stage's exchanges: the simulator, a network, a test's loop.
//!
//! A [`Runner`] takes a stage from exchange to exchange until the method is done; a [`Carrier`]
//! opens one for each stage. Everything around the exchanges (evaluations, stopping rules, journal, metrics,
//! checkpoints, the chain of stages) is [`run_with`](crate::run_with)'s and the same for all.

use crate::keys::StageKeys;
use crate::metrics::Figure;
use crate::run::Stage;
use crate::runner_state::{Change, Saved};
use std::ops::Range;
use whimbrel_core::method::{Artifact, Metric};
use whimbrel_core::{ClientId, Result, wire};

/// One stage under way: a server with its clients, or neighbours without a server.
pub trait Runner {
    /// Rounds done.
    fn round(&self) -> u32;
    /// Exchanges done, openings included.
    fn exchanges(&self) -> u32;
    /// Whether the next exchange is a round (`false`: an opening); none when the method is done.
    fn next_is_round(&self) -> Result<Option<bool>>;
    /// Everyone who takes part, in id order.
    fn enrolled(&self) -> Vec<ClientId>;
    /// Runs one exchange. It must not be announced yet: first it is kept, then comes
    /// [`Runner::acknowledge`].
    fn step(&mut self) -> Result<Step>;
    /// The last exchange is kept: its clients may move.
    fn acknowledge(&mut self) -> Result<()>;
    /// Asks the method's evaluation; none where no client answered.
    fn evaluate(&mut self) -> Result<Option<Evaluated>>;
    /// Client names by id.
    fn names(&self) -> Vec<String>;
    /// Bytes and rounds of each client in this stage, by id.
    fn tallies(&self) -> &[Tally];
    /// Bytes of this stage.
    fn traffic(&self) -> Traffic;
    /// The stage as bytes, without the states of clients.
    fn save(&self) -> Result<SavedStage>;
    /// How many clients' states are kept with the stage: by default none, because clients are
    /// elsewhere and keep their own.
    fn clients_kept(&self) -> usize {
        0
    }
    /// The states of these clients as bytes: of a million they do not fit into memory twice.
    fn save_clients(&self, _ids: Range<usize>) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    /// What the last exchange changed, where these clients joined before it or were accepted in it.
    fn change(&self, moved: &[ClientId]) -> Result<Change>;
    /// What the stage amounts to: the model, or what the next stage starts from.
    fn artifact(&self) -> Result<Artifact>;
    /// Hands what each client has of its own to `sink`, one client after the other; nothing where
    /// clients are elsewhere and keep it there.
    fn client_artifacts(
        &self,
        sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()>;
}

/// Opens a runner for each stage of a job.
pub trait Carrier {
    /// Enrols the clients for a stage, or goes on where one was saved.
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>>;
}

/// How a stage starts.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// The stage's number, from zero.
    pub index: u32,
    /// Whether no other follows.
    pub last: bool,
    /// Its keys.
    pub keys: StageKeys,
    /// What the stages before it delivered.
    pub delivered: &'a [Artifact],
    /// Where the stage was saved, to go on from.
    pub saved: Option<&'a SavedStage>,
}

/// What came of asking for an exchange.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// It is closed.
    Exchanged(Done),
    /// These clients joined, and that is to be kept before an exchange counts on it: then everyone
    /// is asked the same again after a crash.
    Joined(Vec<ClientId>),
    /// The method is done.
    Over,
    /// The run was interrupted while clients were waited for; nothing moved.
    Interrupted,
}

/// What happened in one exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Done {
    /// Its number, openings included, from zero.
    pub exchange: u32,
    /// The round it was, from one; none for an opening.
    pub round: Option<u32>,
    /// Who joined just before it.
    pub joined: Vec<ClientId>,
    /// Who was asked.
    pub cohort: Vec<ClientId>,
    /// Whose upload was accepted.
    pub accepted: Vec<ClientId>,
    /// Who was asked and never reached: no bytes down are counted.
    pub unsent: Vec<ClientId>,
    /// Who was asked and sent nothing that is counted.
    pub unheard: Vec<ClientId>,
}

/// What an evaluation showed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evaluated {
    /// The method's figures.
    pub metrics: Vec<Metric>,
    /// Each client's own figures, by id; empty for those who did not answer.
    pub own: Vec<Vec<Figure>>,
    /// Over whose answers, in order.
    pub answered: Vec<ClientId>,
}

/// Bytes and rounds of one client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rounds in which its upload was accepted.
    pub rounds: u32,
    /// Bytes it sent (a lost upload was sent too).
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
    /// Both ways, for evaluations alone.
    pub eval: u64,
}

/// A stage as bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedStage {
    /// The runner's own state.
    pub state: Saved,
    /// Each client's state by id; empty where clients keep their own.
    pub clients: Vec<Vec<u8>>,
    /// Each client's counts.
    pub tallies: Vec<Tally>,
    /// Bytes so far.
    pub traffic: Traffic,
}

wire!(Tally { rounds, bytes_up, bytes_down });
wire!(Traffic { up, down, eval });
wire!(SavedStage { state, clients, tallies, traffic });
