//! What a command says: data on standard output, everything else on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel::core::{Error, Measure};
use whimbrel::engine::simulator::Done;
use whimbrel::engine::{Observer, Row, StageRules};
use whimbrel::families::failure::{Failure, Result};
use whimbrel::report::{format, measure_text};

/// Writes data to standard output.
pub fn data(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// The same for bytes. A reader who has seen enough (`| head`) is no failure.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::storage("standard output", e).into())
        }
        _ => Ok(()),
    }
}

/// Says why a command failed.
pub fn failure(failure: &Failure) {
    match failure {
        _ if LOGGED.load(Ordering::Relaxed) => tracing::error!("{failure}"),
        // Job errors come with their own headings, one each.
        Failure::Job(errors) => note(&errors.to_string()),
        other => note(&format!("error: {other}")),
    }
}

/// Says something that does not stop the command.
pub fn warning(text: &str) {
    match LOGGED.load(Ordering::Relaxed) {
        true => tracing::warn!("{text}"),
        false => note(&format!("warning: {text}")),
    }
}

/// Says when runs side by side, named with the hashes of their data, are not on the same rows:
/// objectives are means over rows, so these are other quantities.
pub fn warn_of_other_data<'a>(mut runs: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some((first, hash)) = runs.next() else { return };
    let others = runs.filter(|(_, other)| *other != hash).map(|(name, _)| format!("`{name}`"));
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        let others = others.join(", ");
        warning(&format!(
            "the data of {others} are not those of `{first}`: objectives are not comparable"
        ));
    }
}

/// Says where things are.
pub fn note(text: &str) {
    if LOGGED.load(Ordering::Relaxed) {
        return tracing::info!("{text}");
    }
    // There is nobody left to tell that nobody listens.
    let _ = writeln!(stderr(), "{text}");
}

/// Asks for an answer on the same line.
pub fn prompt(text: &str) {
    match LOGGED.load(Ordering::Relaxed) {
        true => tracing::info!("{}", text.trim_end()),
        false => drop(write!(stderr(), "{text}")),
    }
}

/// Whether messages are lines of the log.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// From now on messages are lines of the log: whoever reads that with a program meets no others.
pub fn log_messages() {
    LOGGED.store(true, Ordering::Relaxed);
}

/// A progress bar over the rounds of one run; silent where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
    results: Vec<Measure>,
    bits: bool,
}

impl Progress {
    /// A bar for a job of so many rounds, where that is known; with or without the bits sent.
    pub fn new(name: &str, rounds: Option<u32>, bits: bool) -> Self {
        let bar = match rounds {
            Some(rounds) => ProgressBar::new(u64::from(rounds)),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        let layout = match rounds {
            Some(_) => "{prefix:>12} {bar:24} {human_pos}/{human_len} rounds  {msg}",
            None => "{prefix:>12} {spinner} {human_pos} rounds  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(layout) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(name.to_string());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, results: Vec::new(), bits }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        if of > 1 {
            self.bar.set_message(format!("stage {} of {of}: {}", index + 1, stage.name));
        }
        self.results = stage.measures.iter().filter(|m| m.headline).cloned().collect();
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round {
            self.bar.set_position(u64::from(round));
        }
    }

    fn row(&mut self, row: &Row) {
        let figures = self.results.iter().filter_map(|measure| {
            let value = row.number(&measure.key)?;
            Some(format!("{} {}", measure.name, measure_text(measure, value)))
        });
        let sent = || format!("{} up", format::bits(8.0 * row.traffic.up as f64));
        let text: Vec<String> = figures.chain(self.bits.then(sent)).collect();
        self.bar.set_message(text.join(", "));
    }
}
