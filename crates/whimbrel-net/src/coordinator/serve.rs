//! A coordinator from its start to its end.

use super::Network;
use super::gather::{Asking, Call, Gathered, Rules};
use crate::audit::Audit;
use crate::durable_run::{DurableRun, insist};
use crate::events::{Order, Parts, SharedState};
use crate::frames::Parcel;
use crate::invitation::Fingerprint;
use crate::limits::{Limits, connections_by_descriptors};
use crate::listen::listen;
use crate::proto::Kind;
use crate::registry::{Registry, Standing};
use crate::status::{Board, Exchanged, RunState};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::codegen::Bytes;
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::Quorum;
use whimbrel_engine::client::StepId;
use whimbrel_engine::journal::Line;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{Chain, Ending, Observer, Outcome, Row, StageRules, run_with};

/// How often `status.json` is written, where something changed.
const STATUS_EVERY: Duration = Duration::from_millis(500);
/// Rounds that the rate is taken over.
const ROUNDS_TIMED: usize = 20;
/// How long the last words may take.
const GOODBYE: Duration = Duration::from_millis(500);

/// What a coordinator is made of.
pub struct Setup {
    /// The run's folder; its registry must exist.
    pub folder: PathBuf,
    /// Go on where an earlier process stopped.
    pub resume: bool,
    /// What enrolled clients are told.
    pub offer: Vec<u8>,
    /// The seed of every draw.
    pub seed: u64,
    /// When a round closes.
    pub rules: Rules,
    /// Whether clients are asked for evaluations; they must have been told.
    pub evaluates: bool,
    /// What a stranger can cost.
    pub limits: Limits,
    /// The coordinator's end of TLS.
    pub tls: Arc<ServerConfig>,
    /// The certificate that it will have later, where it changes: clients are told.
    pub next_certificate: Option<Fingerprint>,
    /// For people.
    pub board: Board,
    /// Set to make the coordinator stop in order.
    pub stop: Arc<AtomicBool>,
}

/// A coordinator at work.
pub struct Coordinator {
    runtime: Runtime,
    network: Network,
    kept: DurableRun,
    seed: u64,
    board: Board,
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    last_stage: u32,
}

/// How it ended: as the engine says it.
pub type Served = Outcome;

impl Coordinator {
    /// Opens the files and begins to listen. The listener is bound by the caller, who knows the
    /// address to print.
    pub fn start(setup: Setup, listener: std::net::TcpListener) -> Result<Self> {
        let Setup { folder, resume, offer, seed, rules, evaluates, limits, tls, .. } = setup;
        let Setup { next_certificate, board, stop, .. } = setup;
        let kept = match resume {
            true => DurableRun::resume(&folder, board.clone(), stop.clone())?,
            false => DurableRun::create(&folder, board.clone(), stop.clone())?,
        };
        let connections = limits.connections.min(connections_by_descriptors());
        let limits = Limits { connections, ..limits };
        let registry = Registry::open(&folder)?;
        let audit = Audit::open(&folder);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("whimbrel-net")
            .enable_all()
            .build()
            .map_err(|e| Error::internal(format!("no runtime: {e}")))?;
        let parts =
            Parts { registry, limits, offer, next_certificate, board: board.clone(), audit };
        let (shared, events) = SharedState::new(parts);
        let fates = kept.fates()?;
        let handle = runtime.handle().clone();
        let mut network = Network::new(shared.clone(), events, handle, stop.clone(), rules, fates)?;
        network.evaluates = evaluates;
        network.joined = kept.joined()?;
        network.repaired = kept.repaired()?;
        network.show_rounds(&kept.rounds()?);
        if let Some((stage, round)) = kept.stands_at() {
            board.change(|s| (s.stage_index, s.round) = (stage, round));
        }
        kept.rows().into_iter().for_each(|row| board.row(row));
        let fault = |e| Error::internal(format!("the listener cannot be used: {e}"));
        listener.set_nonblocking(true).map_err(fault)?;
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(fault)?;
        runtime.spawn(listen(listener, tls, shared));
        runtime.spawn(write_status(board.clone(), folder.clone()));
        drop(_inside);
        Ok(Self { runtime, network, kept, seed, board, folder, stop, last_stage: 0 })
    }

    /// Runs the job to its end, or until it is told to stop.
    pub fn run(&mut self, chain: &dyn Chain, observer: &mut dyn Observer) -> Result<Outcome> {
        self.last_stage = chain.len().saturating_sub(1) as u32;
        let mut watching =
            Watching { board: self.board.clone(), observer, pace: None, rounds: VecDeque::new() };
        let ended = run_with(
            chain,
            &mut self.network,
            &mut self.kept,
            self.seed,
            &self.stop,
            &mut watching,
        );
        match &ended {
            Ok(Outcome { ending: Ending::Failed(error), .. }) => {
                self.board.state(RunState::Failed, format!("failed: {error}"));
                self.goodbye(&format!("{}{error}", crate::JOB_FAILED), true);
            }
            Ok(Outcome { ending: Ending::Interrupted, .. }) => {
                self.board.state(RunState::Paused, "stopped; everything is kept");
                self.goodbye("the coordinator was stopped and may come back", false);
            }
            Ok(Outcome { ending: Ending::Degenerate(why), .. }) => {
                let line = format!("the fit is degenerate: {why}");
                self.board.warn(&line);
                self.board.state(RunState::Running, line);
            }
            Ok(_) => self.board.state(RunState::Running, "the fit is done"),
            Err(error) => {
                self.board.state(RunState::Failed, format!("stopped: {error}"));
                self.goodbye("the coordinator stopped", false);
            }
        }
        ended
    }

    /// Writes files of the run. A full disk is waited for, as in the rounds: clients stay connected
    /// until there is space, or until the coordinator is told to stop.
    pub fn write<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        let before = self.board.watch().borrow().clone();
        let written = insist(&self.board, &self.stop, work);
        if written.is_ok() && self.board.watch().borrow().state != before.state {
            self.board.state(before.phase, before.state);
        }
        self.write_status();
        written
    }

    /// Hands the finished model's files to everyone, as long as the limits say; false where the
    /// coordinator was told to stop before.
    pub fn deliver(&mut self, files: &[(String, Vec<u8>)]) -> Result<bool> {
        let network = &mut self.network;
        network.look_at_registry();
        let ids: Vec<ClientId> = (0..network.names.len() as u32)
            .map(ClientId)
            .filter(|id| {
                let name = network.name(*id);
                network.standings.get(name) != Some(&Standing::Revoked)
                    && !network.is_excused(name)
                    && !network.finished.contains(name)
            })
            .collect();
        let asking = Asking {
            kind: Kind::Deliver,
            at: StepId { stage: self.last_stage + 1, step: 0 },
            what: "the model is ready".into(),
            rules: Rules {
                quorum: Quorum::Number(0),
                deadline: Some(network.shared.limits.linger),
            },
        };
        let mut call = Delivery { files: files_to_bytes(files) };
        if network.gather(&asking, &ids, &mut call)? == Gathered::Interrupted {
            self.board.state(RunState::Paused, "stopped; not everyone has the model yet");
            self.goodbye("the coordinator was stopped and may come back", false);
            return Ok(false);
        }
        let without: Vec<String> = ids
            .iter()
            .map(|id| network.name(*id))
            .filter(|name| !network.finished.contains(*name) && !network.is_excused(name))
            .map(|name| format!("`{name}`"))
            .collect();
        if !without.is_empty() {
            let line = format!(
                "{} did not fetch the model: serve the run again with --resume to hand it out",
                without.join(", ")
            );
            network.shared.audit.note("not-delivered", "", &line, false);
            self.board.warn(&line);
        }
        self.board.change(|s| (s.finished, s.eta_s) = (true, None));
        self.board.state(RunState::Done, "finished");
        self.goodbye("the job is over", true);
        Ok(true)
    }

    /// What anybody may watch.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Runs something beside the rounds, such as a page for people.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn goodbye(&mut self, reason: &str, over: bool) {
        if self.network.links.is_empty() {
            return self.write_status();
        }
        for link in self.network.links.values() {
            link.order(Order::Close { reason: reason.into(), over });
        }
        self.network.links.clear();
        self.board.change(|s| s.clients.values_mut().for_each(|c| c.connected = false));
        // The words are handed to the connections; what does not leave in time is lost with them.
        self.runtime.block_on(async { tokio::time::sleep(GOODBYE).await });
        self.write_status();
    }

    /// Writes how it ended: the process may be gone before the next write is due.
    fn write_status(&self) {
        if let Err(error) = self.board.write(&self.folder) {
            tracing::debug!(%error, "status.json could not be written");
        }
    }
}

/// Files as one message.
pub fn files_to_bytes(files: &[(String, Vec<u8>)]) -> Bytes {
    files.to_vec().to_bytes().into()
}

/// Reads such a message; names that are no plain file names are refused.
pub fn files_from_bytes(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let files: Vec<(String, Vec<u8>)> = Vec::from_bytes(bytes)?;
    let plain = |name: &str| {
        let mut parts = Path::new(name).components();
        let single = matches!(parts.next(), Some(std::path::Component::Normal(_)));
        single && parts.next().is_none() && !name.contains(['/', '\\', '\0'])
    };
    match files.iter().find(|(name, _)| !plain(name)) {
        Some((name, _)) => Err(Error::peer(format!("`{}` is no file name", name.escape_debug()))),
        None => Ok(files),
    }
}

struct Delivery {
    files: Bytes,
}

impl Call for Delivery {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.files.clone().into())
    }

    fn take(&mut self, _: ClientId, _: Vec<u8>) -> Result<()> {
        Err(Error::peer("a delivery has no answer"))
    }
}

async fn write_status(board: Board, folder: PathBuf) {
    let mut watch = board.watch();
    watch.mark_changed();
    while watch.changed().await.is_ok() {
        watch.borrow_and_update();
        if let Err(error) = board.write(&folder) {
            tracing::debug!(%error, "status.json could not be written");
        }
        tokio::time::sleep(STATUS_EVERY).await;
    }
}

/// Shows the run's progress on the board, and to the other observer.
struct Watching<'a> {
    board: Board,
    observer: &'a mut dyn Observer,
    /// The first round that this process saw of the stage, and when.
    pace: Option<(u32, Instant)>,
    /// When the last rounds were closed.
    rounds: VecDeque<Instant>,
}

impl Watching<'_> {
    /// Seconds until the last round of the last stage, at the pace so far.
    fn seconds_left(&mut self, round: u32) -> Option<f64> {
        let (first, since) = *self.pace.get_or_insert_with(|| (round, Instant::now()));
        let watch = self.board.watch();
        let status = watch.borrow();
        let left = status.rounds_total?.checked_sub(round)?;
        let made = round.checked_sub(first).filter(|made| *made > 0)?;
        let last_stage = status.stage_index + 1 == status.stages;
        last_stage.then(|| f64::from(left) * since.elapsed().as_secs_f64() / f64::from(made))
    }
}

impl Watching<'_> {
    /// Rounds per second over the last ones, and the seconds of the last.
    fn rate(&mut self) -> (Option<f64>, Option<f64>) {
        let (now, before) = (Instant::now(), self.rounds.back().copied());
        self.rounds.push_back(now);
        if self.rounds.len() > ROUNDS_TIMED {
            self.rounds.pop_front();
        }
        let spans = (self.rounds.len() - 1) as f64;
        let seconds = |since: Instant| now.duration_since(since).as_secs_f64();
        let rate = before.map(|_| spans / seconds(self.rounds[0]).max(1e-9));
        (rate, before.map(seconds))
    }
}

impl Observer for Watching<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        self.board.state(RunState::Running, format!("stage {} of {of}: {}", index + 1, stage.name));
        self.board.change(|s| {
            s.stage = stage.name.into();
            s.measures = stage.measures.clone();
            // A run that goes on stands where it was kept.
            if s.stage_index != index as u32 {
                s.round = 0;
            }
            (s.stage_index, s.stages) = (index as u32, of as u32);
            s.eta_s = None;
        });
        self.pace = None;
        self.observer.stage(stage, index, of);
    }

    fn exchange(&mut self, done: &Done) {
        let numbers = |ids: &[ClientId]| ids.iter().map(|id| id.0).collect();
        let stage = self.board.watch().borrow().stage_index;
        let (cohort, accepted) = (numbers(&done.cohort), numbers(&done.accepted));
        self.board.exchanged(Exchanged { stage, round: done.round, cohort, accepted });
        if let Some(round) = done.round {
            let left = self.seconds_left(round);
            let (rate, last) = self.rate();
            self.board.change(|s| {
                (s.eta_s, s.rounds_per_second, s.round_seconds) = (left, rate, last);
            });
        }
        tracing::debug!(line = %Line::exchange(stage, done).to_text().trim_end(), "exchange");
        self.observer.exchange(done);
    }

    fn row(&mut self, row: &Row) {
        self.board.row(serde_json::Value::Object(row.to_json()));
        self.observer.row(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_delivered_files_are_plain() {
        let message = |name: &str| files_to_bytes(&[(name.to_owned(), vec![1])]);
        assert_eq!(files_from_bytes(&message("model.json")).unwrap()[0].0, "model.json");
        let strange =
            ["", ".", "..", "a/b", "/a", "../a", "a\\b", "..\\a", "a\0b", "a/", "./a", "model//x"];
        for name in strange {
            assert!(files_from_bytes(&message(name)).is_err(), "{name:?}");
        }
    }
}
