//! Long work on a background thread, while Python's thread handles its events.
//!
//! The background thread sends [`Event`]s, which Python's thread passes to a callable. Between events
//! it checks for Ctrl-C: the run then ends after the current exchange with its state saved; a second
//! Ctrl-C returns at once. The interpreter is released meanwhile, for learners written in Python.

use crate::errors::{exception, panicked, refuse_forks};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use whimbrel::parts::core::Error;
use whimbrel::parts::engine::runner::Done;
use whimbrel::parts::engine::{Observer, StageRules};
use whimbrel::parts::families::failure::Result;
use whimbrel::run::Listener;

/// The interval of checks for Ctrl-C and of progress.
const PULSE: Duration = Duration::from_millis(50);

/// Messages to Python.
pub enum Event {
    Note(String),
    Warning(String),
    /// The start of a stage: name, number from 1, number of stages, rounds if known.
    Stage(String, usize, usize, Option<u32>),
    /// The number of completed rounds.
    Round(u32),
    /// Batches for shards of clients, by number; the answers are returned in this order.
    Ask(Vec<(usize, Vec<u8>)>, Sender<Vec<Vec<u8>>>),
}

/// The background thread's side.
pub struct Reporter {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

/// Runs `work` in the background and calls `listener(kind, value)` with its events.
pub fn in_background<T: Send + 'static>(
    py: Python<'_>,
    listener: &Bound<'_, PyAny>,
    work: impl FnOnce(&Reporter) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    refuse_forks()?;
    let (events, inbox) = channel();
    let (inbox, stop) = (Mutex::new(inbox), Arc::new(AtomicBool::new(false)));
    let reporter = Reporter { events, stop: stop.clone() };
    let worker = thread::Builder::new().name("whimbrel".into()).spawn(move || work(&reporter))?;
    let mut raised: Option<PyErr> = None;
    loop {
        let heard = match py.detach(|| next(&inbox)) {
            Ok(event) if raised.is_none() => tell(py, listener, event),
            Ok(_) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match heard.and_then(|()| py.check_signals()) {
            Err(error) if raised.is_none() => {
                stop.store(true, Ordering::Relaxed);
                raised = Some(error);
            }
            // The second interrupt does not wait for the current exchange.
            Err(error) => return Err(error),
            Ok(()) => {}
        }
    }
    let done = py.detach(|| worker.join());
    match (raised, done) {
        (Some(error), _) => Err(error),
        (None, Ok(done)) => done.map_err(|failure| exception(&failure)),
        (None, Err(payload)) => Err(panicked(payload)),
    }
}

fn next(inbox: &Mutex<Receiver<Event>>) -> std::result::Result<Event, RecvTimeoutError> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PULSE)
}

/// An unanswered question drops its sender, which the asking thread detects.
fn tell(py: Python<'_>, listener: &Bound<'_, PyAny>, event: Event) -> PyResult<()> {
    match event {
        Event::Note(text) => listener.call1(("note", text)),
        Event::Warning(text) => listener.call1(("warning", text)),
        Event::Stage(name, index, of, rounds) => {
            listener.call1(("stage", (name, index, of, rounds)))
        }
        Event::Round(round) => listener.call1(("round", round)),
        Event::Ask(batches, reply) => {
            let batches: Vec<_> =
                batches.iter().map(|(shard, batch)| (shard, PyBytes::new(py, batch))).collect();
            let answers: Vec<PyBuffer<u8>> = listener.call1(("ask", batches))?.extract()?;
            let answers =
                answers.iter().map(|answer| answer.to_vec(py)).collect::<PyResult<_>>()?;
            // The asking thread may have ended.
            let _ = reply.send(answers);
            return Ok(());
        }
    }
    .map(drop)
}

impl Reporter {
    /// Sends an event; a closed channel means an interrupt.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Whether the run was interrupted.
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Asks the shards of clients.
    pub fn ask(
        &self,
        batches: Vec<(usize, Vec<u8>)>,
    ) -> whimbrel::parts::core::Result<Vec<Vec<u8>>> {
        let (reply, answers) = channel();
        self.send(Event::Ask(batches, reply));
        let gone = || Error::peer("the clients were not asked: the run was interrupted");
        answers.recv().map_err(|_| gone())
    }
}

impl Listener for Reporter {
    fn note(&self, text: &str) {
        self.send(Event::Note(text.into()));
    }

    fn warning(&self, text: &str) {
        self.send(Event::Warning(text.into()));
    }

    fn watch(&self, _: &str, rounds: Option<u32>, _: bool) -> Box<dyn Observer + '_> {
        Box::new(Watch { reporter: self, rounds, last: Instant::now() })
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

/// Reports rounds at the pace of [`PULSE`].
struct Watch<'a> {
    reporter: &'a Reporter,
    rounds: Option<u32>,
    last: Instant,
}

impl Observer for Watch<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        let rounds = self.rounds.filter(|_| index + 1 == of);
        self.reporter.send(Event::Stage(stage.name.into(), index + 1, of, rounds));
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round
            && (self.last.elapsed() >= PULSE || Some(round) == self.rounds)
        {
            self.last = Instant::now();
            self.reporter.send(Event::Round(round));
        }
    }
}
