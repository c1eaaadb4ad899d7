//! A long piece of work on a background thread, while Python's thread handles its events.
//!
//! What that thread has to say comes as [`Event`]s, which Python's hands to a callable, and between
//! them Python's looks for Ctrl-C, so that the run ends after the exchange under way with its state
//! saved; a second one returns at once. The interpreter is free meanwhile: learners that are written in Python take it.

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

/// How often Ctrl-C is looked for and progress shown.
const PULSE: Duration = Duration::from_millis(50);

/// What Python is told or asked.
pub enum Event {
    /// Something worth knowing.
    Note(String),
    /// Something to look at.
    Warning(String),
    /// A stage begins: its name, its number from 1, how many there are, its rounds where known.
    Stage(String, usize, usize, Option<u32>),
    /// The number of rounds done.
    Round(u32),
    /// Batches for shards of clients, by number; their answers go back in this order.
    Ask(Vec<(usize, Vec<u8>)>, Sender<Vec<Vec<u8>>>),
}

/// The end of the thread that does the work.
pub struct Voice {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

/// Does the work, and calls `hear(kind, value)` with what it has to say.
pub fn in_background<T: Send + 'static>(
    py: Python<'_>,
    hear: &Bound<'_, PyAny>,
    work: impl FnOnce(&Voice) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    refuse_forks()?;
    let (events, inbox) = channel();
    let (inbox, stop) = (Mutex::new(inbox), Arc::new(AtomicBool::new(false)));
    let voice = Voice { events, stop: stop.clone() };
    let worker = thread::Builder::new().name("whimbrel".into()).spawn(move || work(&voice))?;
    let mut raised: Option<PyErr> = None;
    loop {
        let heard = match py.detach(|| next(&inbox)) {
            Ok(event) if raised.is_none() => tell(py, hear, event),
            Ok(_) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match heard.and_then(|()| py.check_signals()) {
            Err(error) if raised.is_none() => {
                stop.store(true, Ordering::Relaxed);
                raised = Some(error);
            }
            // Who asks twice does not want to wait: the exchange under way ends without anybody.
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

/// An unanswered event drops its sender, which the thread that asked notices.
fn tell(py: Python<'_>, hear: &Bound<'_, PyAny>, event: Event) -> PyResult<()> {
    match event {
        Event::Note(text) => hear.call1(("note", text)),
        Event::Warning(text) => hear.call1(("warning", text)),
        Event::Stage(name, index, of, rounds) => hear.call1(("stage", (name, index, of, rounds))),
        Event::Round(round) => hear.call1(("round", round)),
        Event::Ask(batches, reply) => {
            let batches: Vec<_> =
                batches.iter().map(|(shard, batch)| (shard, PyBytes::new(py, batch))).collect();
            let answers: Vec<PyBuffer<u8>> = hear.call1(("ask", batches))?.extract()?;
            let answers =
                answers.iter().map(|answer| answer.to_vec(py)).collect::<PyResult<_>>()?;
            // The thread that asked may be gone.
            let _ = reply.send(answers);
            return Ok(());
        }
    }
    .map(drop)
}

impl Voice {
    /// Says something; who does not listen any more has interrupted.
    fn say(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Whether the run is to end.
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Asks the shards of clients.
    pub fn ask(
        &self,
        batches: Vec<(usize, Vec<u8>)>,
    ) -> whimbrel::parts::core::Result<Vec<Vec<u8>>> {
        let (reply, answers) = channel();
        self.say(Event::Ask(batches, reply));
        let gone = || Error::peer("the clients were not asked: the run was interrupted");
        answers.recv().map_err(|_| gone())
    }
}

impl Listener for Voice {
    fn note(&self, text: &str) {
        self.say(Event::Note(text.into()));
    }

    fn warning(&self, text: &str) {
        self.say(Event::Warning(text.into()));
    }

    fn watch(&self, _: &str, rounds: Option<u32>, _: bool) -> Box<dyn Observer + '_> {
        Box::new(Watch { voice: self, rounds, last: Instant::now() })
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

/// Reports rounds, not more of them than somebody can see.
struct Watch<'a> {
    voice: &'a Voice,
    rounds: Option<u32>,
    last: Instant,
}

impl Observer for Watch<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        let rounds = self.rounds.filter(|_| index + 1 == of);
        self.voice.say(Event::Stage(stage.name.into(), index + 1, of, rounds));
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round
            && (self.last.elapsed() >= PULSE || Some(round) == self.rounds)
        {
            self.last = Instant::now();
            self.voice.say(Event::Round(round));
        }
    }
}
