//! The life of a coordinator: start, rounds, delivery of the model.

use super::gather::{Collector, Gathered, Request, Rules};
use super::{Inbox, Network};
use crate::audit::Audit;
use crate::durable_run::{DurableRun, retry_storage};
use crate::events::{Order, SharedState};
use crate::frames::Parcel;
use crate::invitation::Fingerprint;
use crate::limits::{Limits, connections_by_descriptors};
use crate::listen::{into_async, listen};
use crate::proto::Kind;
use crate::registry::{Registry, Standing};
use crate::status::{Board, PastExchange, RunState};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::codegen::Bytes;
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::Quorum;
use whimbrel_engine::client::StepId;
use whimbrel_engine::journal::Line;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{Chain, Ending, Observer, Outcome, Row, StageRules, run_with};

/// Longest delay until a change is written to `status.json`.
const STATUS_EVERY: Duration = Duration::from_millis(500);
/// Rounds over which the rate is averaged.
const ROUNDS_TIMED: usize = 20;
/// Time for farewells to be sent.
const GOODBYE: Duration = Duration::from_millis(500);
/// Farewell of a coordinator that can be resumed.
const RESUMABLE: &str = "the coordinator was stopped and may come back";

/// Settings of a coordinator.
pub struct Setup {
    /// The run's folder; its registry must exist.
    pub folder: PathBuf,
    pub resume: bool,
    /// The job as enrolled clients receive it.
    pub offer: Vec<u8>,
    pub seed: u64,
    pub rules: Rules,
    /// Whether clients are asked for evaluations; the offer must say so.
    pub evaluates: bool,
    pub limits: Limits,
    pub tls: Arc<ServerConfig>,
    /// A future certificate, announced to clients.
    pub next_certificate: Option<Fingerprint>,
    pub board: Board,
    /// Set to stop the coordinator in order.
    pub stop: Arc<AtomicBool>,
}

/// A running coordinator.
pub struct Coordinator {
    runtime: Runtime,
    network: Network,
    run: DurableRun,
    seed: u64,
    board: Board,
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    last_stage: u32,
    /// The verdict on the fit, once it is over.
    verdict: String,
}

impl Coordinator {
    /// Opens the files and starts to accept connections. The caller binds the listener, since it
    /// prints the address.
    pub fn start(setup: Setup, listener: std::net::TcpListener) -> Result<Self> {
        let Setup { folder, resume, offer, seed, rules, evaluates, limits, tls, .. } = setup;
        let Setup { next_certificate, board, stop, .. } = setup;
        let open = if resume { DurableRun::resume } else { DurableRun::create };
        let run = open(&folder, board.clone(), stop.clone())?;
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
        let (shared, events) =
            SharedState::new(registry, limits, offer, next_certificate, board.clone(), audit);
        let inbox = Inbox { events, runtime: runtime.handle().clone(), stop: stop.clone() };
        let network = Network::new(shared.clone(), inbox, rules, evaluates, run.history()?)?;
        if let Some((stage, round)) = run.position() {
            board.change(|s| (s.stage_index, s.round) = (stage, round));
        }
        run.rows().into_iter().for_each(|row| board.row(row));
        let listener = into_async(listener, &runtime)?;
        runtime.spawn(listen(listener, tls, shared));
        runtime.spawn(write_changes(board.clone(), folder.clone()));
        let verdict = "delivered".into();
        Ok(Self { runtime, network, run, seed, board, folder, stop, last_stage: 0, verdict })
    }

    /// Runs the job to its end, or until it is told to stop.
    pub fn run(&mut self, chain: &dyn Chain, observer: &mut dyn Observer) -> Result<Outcome> {
        self.last_stage = chain.len().saturating_sub(1) as u32;
        let (board, rounds) = (self.board.clone(), VecDeque::new());
        let mut observer = BoardObserver { board, observer, rounds };
        let (network, run) = (&mut self.network, &mut self.run);
        let ended = run_with(chain, network, run, self.seed, &self.stop, &mut observer);
        let is_told = self.stop.load(Ordering::Relaxed);
        match &ended {
            // Also while it waits for clients, which is an error of the stage.
            Ok(Outcome { ending: Ending::Interrupted, .. }) | Err(_) if is_told => {
                self.board.state(RunState::Paused, "stopped; all state is saved");
                self.goodbye(RESUMABLE, false);
            }
            Ok(Outcome { ending: Ending::Failed(error), .. }) => {
                let error = one_line(error);
                self.board.state(RunState::Failed, format!("diverged: {error}"));
                self.goodbye(&format!("{}{error}", crate::JOB_FAILED), true);
            }
            Ok(Outcome { ending, .. }) => {
                self.verdict = ending.to_string();
                if !matches!(ending, Ending::Converged(_)) {
                    self.board.warn(&self.verdict);
                    // Not logged a second time.
                    self.board.change(|status| status.state.clone_from(&self.verdict));
                }
                self.board.state(RunState::Running, &*self.verdict);
            }
            Err(error) => {
                self.board.state(RunState::Failed, format!("stopped: {}", one_line(error)));
                self.goodbye("the coordinator stopped", false);
            }
        }
        ended
    }

    /// Writes files of the run. On a full disk it retries, with clients connected, until there is
    /// space or the coordinator is told to stop.
    pub fn write<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        let before = self.board.watch().borrow().clone();
        let written = retry_storage(&self.board, &self.stop, work);
        if written.is_ok() && self.board.watch().borrow().state != before.state {
            self.board.state(before.phase, before.state);
        }
        self.write_status();
        written
    }

    /// Delivers the model's files to all clients, within the configured time; false if the
    /// coordinator was told to stop before.
    pub fn deliver(&mut self, files: &[(String, Vec<u8>)]) -> Result<bool> {
        let network = &mut self.network;
        network.refresh_registry();
        let mut ids = network.expected();
        ids.retain(|id| {
            let name = network.roster.name(*id);
            network.roster.standing(name) != Some(Standing::Revoked)
                && !network.roster.finished.contains(name)
        });
        let deadline = Some(network.shared.limits.linger);
        let request = Request {
            kind: Kind::Deliver,
            at: StepId { stage: self.last_stage + 1, step: 0 },
            what: "the model is ready".into(),
            rules: Rules { quorum: Quorum::Number(0), deadline },
        };
        let mut delivery = Delivery { files: files_to_bytes(files) };
        if network.gather(&request, &ids, &mut delivery)? == Gathered::Interrupted {
            self.board.state(RunState::Paused, "stopped; some clients lack the model");
            self.goodbye(RESUMABLE, false);
            return Ok(false);
        }
        let names = ids.iter().map(|id| network.roster.name(*id));
        let without: Vec<String> = names
            .filter(|name| !network.roster.finished.contains(*name) && !network.is_excused(name))
            .map(|name| format!("`{name}`"))
            .collect();
        if !without.is_empty() {
            let line = format!(
                "{} did not fetch the model: serve the run again with --resume to deliver it",
                without.join(", ")
            );
            network.shared.audit.note("not-delivered", "", &line);
            self.board.warn(&line);
        }
        self.board.change(|s| (s.finished, s.eta_s) = (true, None));
        self.board.state(RunState::Done, &*self.verdict);
        self.goodbye("the job is over", true);
        Ok(true)
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The runtime of the connections, for further services such as the dashboard.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn goodbye(&mut self, reason: &str, over: bool) {
        let links = &mut self.network.connections.links;
        if !links.is_empty() {
            for (_, link) in links.drain() {
                link.order(Order::Close { reason: reason.into(), over });
            }
            self.board.change(|s| s.clients.values_mut().for_each(|c| c.connected = false));
            self.runtime.block_on(async { tokio::time::sleep(GOODBYE).await });
        }
        self.write_status();
    }

    /// Writes the status at once, since the process may end before the next regular write.
    fn write_status(&self) {
        if let Err(error) = self.board.write(&self.folder) {
            tracing::debug!(%error, "status.json could not be written");
        }
    }
}

/// An error and its hint on one line.
fn one_line(error: &Error) -> String {
    error.to_string().replace('\n', "; ")
}

/// Encodes files as one message.
pub fn files_to_bytes(files: &[(String, Vec<u8>)]) -> Bytes {
    files.to_vec().to_bytes().into()
}

/// Decodes such a message; a name that is not a plain file name is refused.
pub fn files_from_bytes(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let files: Vec<(String, Vec<u8>)> = Vec::from_bytes(bytes)?;
    let plain = |name: &str| {
        let mut parts = Path::new(name).components();
        let single = matches!(parts.next(), Some(Component::Normal(_)));
        single && parts.next().is_none() && !name.contains(['/', '\\', '\0'])
    };
    match files.iter().find(|(name, _)| !plain(name)) {
        Some((name, _)) => {
            Err(Error::peer(format!("`{}` is not a file name", name.escape_debug())))
        }
        None => Ok(files),
    }
}

struct Delivery {
    files: Bytes,
}

impl Collector for Delivery {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.files.clone().into())
    }

    fn accept(&mut self, _: ClientId, _: Vec<u8>) -> Result<()> {
        Err(Error::peer("a delivery has no answer"))
    }
}

async fn write_changes(board: Board, folder: PathBuf) {
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

/// Shows progress on the status board and passes it to another observer.
struct BoardObserver<'a> {
    board: Board,
    observer: &'a mut dyn Observer,
    /// Closing times of the last rounds.
    rounds: VecDeque<Instant>,
}

impl BoardObserver<'_> {
    /// Rate of the last rounds, duration of the last one, and remaining time at that rate.
    fn time_round(&mut self, round: u32) {
        let now = Instant::now();
        let seconds = |since: &Instant| now.duration_since(*since).as_secs_f64().max(1e-9);
        let last = self.rounds.back().map(seconds);
        let rate = self.rounds.front().map(|first| self.rounds.len() as f64 / seconds(first));
        self.rounds.push_back(now);
        if self.rounds.len() > ROUNDS_TIMED {
            self.rounds.pop_front();
        }
        self.board.change(|s| {
            let is_last_stage = s.stage_index + 1 == s.stages;
            let left = s.rounds_total.filter(|_| is_last_stage).and_then(|n| n.checked_sub(round));
            s.eta_s = rate.zip(left).map(|(rate, left)| f64::from(left) / rate);
            (s.rounds_per_second, s.round_seconds) = (rate, last);
        });
    }
}

impl Observer for BoardObserver<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        self.board.state(RunState::Running, format!("stage {} of {of}: {}", index + 1, stage.name));
        self.board.change(|s| {
            s.stage = stage.name.into();
            s.measures = stage.measures.clone();
            // A resumed stage keeps its round.
            if s.stage_index != index as u32 {
                s.round = 0;
            }
            (s.stage_index, s.stages) = (index as u32, of as u32);
            s.eta_s = None;
        });
        self.rounds.clear();
        self.observer.stage(stage, index, of);
    }

    fn exchange(&mut self, done: &Done) {
        let numbers = |ids: &[ClientId]| ids.iter().map(|id| id.0).collect();
        let stage = self.board.watch().borrow().stage_index;
        let (cohort, accepted) = (numbers(&done.cohort), numbers(&done.accepted));
        self.board.exchanged(PastExchange { stage, round: done.round, cohort, accepted });
        if let Some(round) = done.round {
            self.time_round(round);
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
        let refused =
            ["", ".", "..", "a/b", "/a", "../a", "a\\b", "..\\a", "a\0b", "a/", "./a", "model//x"];
        for name in refused {
            assert!(files_from_bytes(&message(name)).is_err(), "{name:?}");
        }
    }
}
