//! Long work on a background thread, while Python's thread handles its events.
//!
//! The background thread sends [`Event`]s, which Python's thread passes to a callable. Between events
//! it checks for Ctrl-C: the run then ends after the current exchange with its state saved; a second
//! Ctrl-C returns at once. The interpreter is released meanwhile, for learners written in Python.

use crate::errors::{exception, panicked, refuse_forks};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use whimbrel::parts::core::Error;
use whimbrel::parts::engine::runner::Done;
use whimbrel::parts::engine::{Observer, Row, StageRules};
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
    /// A round or an evaluation, whose figures are JSON; the reply is whether the run ends here.
    Call(Called, Sender<bool>),
    /// Batches for shards of clients, by number; the answers are returned in this order.
    Ask(Vec<(usize, Vec<u8>)>, Sender<Vec<Vec<u8>>>),
}

/// The stage, its completed rounds, the planned number of rounds if known, and figures if evaluated.
type Called = (&'static str, u32, Option<u32>, Option<String>);

/// The background thread's side.
pub struct Reporter {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    /// Whether the listener has a callback for rounds.
    calls: bool,
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
    let calls = listener.hasattr("call")? && listener.getattr("calls")?.is_truthy()?;
    let reporter = Reporter { events, stop: stop.clone(), calls };
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
        Event::Call(called, reply) => {
            let ends = listener.call1(("call", called))?.is_truthy()?;
            // The asking thread may have ended.
            let _ = reply.send(ends);
            return Ok(());
        }
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
        let last = Instant::now();
        Box::new(Watch {
            reporter: self,
            fit_rounds: rounds,
            rounds,
            last,
            stage: "",
            round: 0,
            ends: false,
        })
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

/// Reports rounds at the pace of [`PULSE`], and calls back after each one if the listener asks for it.
struct Watch<'a> {
    reporter: &'a Reporter,
    fit_rounds: Option<u32>,
    rounds: Option<u32>,
    last: Instant,
    stage: &'static str,
    round: u32,
    ends: bool,
}

impl Watch<'_> {
    /// Waits for the callback; without an answer the run was interrupted.
    fn call(&mut self, figures: Option<String>) {
        if self.reporter.calls {
            let (reply, answer) = channel();
            let called = (self.stage, self.round, self.rounds, figures);
            self.reporter.send(Event::Call(called, reply));
            self.ends |= answer.recv().unwrap_or(false);
        }
    }
}

impl Observer for Watch<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        (self.stage, self.round, self.ends) = (stage.name, 0, false);
        self.rounds = self.fit_rounds.filter(|_| index + 1 == of);
        self.reporter.send(Event::Stage(stage.name.into(), index + 1, of, self.rounds));
    }

    fn exchange(&mut self, done: &Done) {
        let Some(round) = done.round else { return };
        if self.last.elapsed() >= PULSE || Some(round) == self.fit_rounds {
            self.last = Instant::now();
            self.reporter.send(Event::Round(round));
        }
        self.round = round;
        self.call(None);
    }

    fn row(&mut self, row: &Row) {
        if self.reporter.calls {
            self.round = row.round;
            self.call(Some(Value::Object(row.to_json()).to_string()));
        }
    }

    fn ends(&self) -> bool {
        self.ends
    }
}
