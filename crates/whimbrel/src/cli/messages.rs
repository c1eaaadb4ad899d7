//! Output of commands: data to standard output, everything else to standard error.

use super::args::LogForm;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel_core::text::is_shown;
use whimbrel_core::{Error, Measure};
use whimbrel_engine::simulator::Done;
use whimbrel_engine::{Observer, Row, StageRules};
use whimbrel_families::failure::{Failure, Result, remedy};
use whimbrel_report::{format, measure_text};

/// Writes data to standard output.
pub fn data(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// Writes bytes to standard output. A closed pipe (`| head`) is not a failure.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::storage("standard output", e).into())
        }
        _ => Ok(()),
    }
}

/// The options that carry out the remedies in hints.
const OPTIONS: [(&str, &str); 14] = [
    (remedy::OTHER_FOLDER, "--out"),
    (remedy::NAME_FOLDER, "--out DIR"),
    (remedy::NEW_RUN, "without --resume"),
    (remedy::RESUME, "--resume"),
    (remedy::REPLACE, "--force"),
    (remedy::REPLACE_ALL, "--force"),
    (remedy::OPEN, "`whimbrel report`"),
    (remedy::NAME_CLIENT, "--client NAME"),
    (remedy::NO_CLIENT, "without --client"),
    (remedy::ADAPT, "`whimbrel adapt RUN --data ROWS --out FOLDER`, then --client FOLDER"),
    (remedy::COMPLETE, "`whimbrel impute`"),
    (remedy::ADD_ROWS, "`whimbrel adapt`"),
    (remedy::GIVE_FILE, "--data"),
    (remedy::DRAFT, "`whimbrel new`"),
];

/// Prints the reason for a failure.
pub fn failure(failure: &Failure) {
    match failure.clone().with_ways(&OPTIONS).with_ways(&remedy::KEYS) {
        failure if LOGGED.load(Ordering::Relaxed) => tracing::error!("{failure}"),
        // Job errors come with their own headings, one each.
        Failure::Job(errors) => say(&errors.to_string()),
        other => say(&format!("error: {other}")),
    }
}

/// Prints a warning.
pub fn warning(text: &str) {
    if LOGGED.load(Ordering::Relaxed) {
        tracing::warn!("{text}");
    } else {
        say(&format!("warning: {text}"));
    }
}

/// Prints a note, unless `--quiet`.
pub fn note(text: &str) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    say(text);
}

/// Prints a line that `--quiet` does not suppress.
fn say(text: &str) {
    let text = &shown(text);
    if LOGGED.load(Ordering::Relaxed) {
        return tracing::info!("{text}");
    }
    // A closed standard error cannot be reported.
    let _ = writeln!(stderr(), "{}", coloured(text));
}

/// Asks for an answer on the same line.
pub fn prompt(text: &str) {
    let text = &shown(text);
    if LOGGED.load(Ordering::Relaxed) {
        tracing::info!("{}", text.trim_end());
    } else {
        drop(write!(stderr(), "{text}"));
    }
}

/// A message without control characters, which file names and peers could bring in. Line breaks stay;
/// colours are added afterwards.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_shown(c) || matches!(c, '\n' | '\t') {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// Prefixes of messages and their colours.
const HEADS: [(&str, &str); 3] =
    [("error:", "\u{1b}[1;31m"), ("warning:", "\u{1b}[1;33m"), ("hint:", "\u{1b}[1;36m")];

/// A message with its prefix in colour, if colours are on.
fn coloured(text: &str) -> String {
    if !COLOURED.load(Ordering::Relaxed) {
        return text.into();
    }
    let line = |line: &str| match HEADS.iter().find(|(head, _)| line.starts_with(head)) {
        Some((head, colour)) => format!("{colour}{head}\u{1b}[0m{}", &line[head.len()..]),
        None => line.into(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Whether prefixes of messages are coloured.
static COLOURED: AtomicBool = AtomicBool::new(false);

/// Whether `--quiet` is set.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets colours and `--quiet`.
pub fn set_manner(colour: bool, quiet: bool) {
    COLOURED.store(colour, Ordering::Relaxed);
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether messages are lines of the log.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// Log lines on standard error; `WHIMBREL_LOG` chooses them as `RUST_LOG` does elsewhere.
pub fn start_log(form: LogForm) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("WHIMBREL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Messages of the commands are always shown.
    let said = "whimbrel::cli=info".parse().expect("a valid directive");
    // A closed standard error cannot be reported.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.add_directive(said))
        .with_writer(stderr)
        .log_internal_errors(false);
    // The first log of a process stays.
    let _ = match form {
        LogForm::Json => {
            LOGGED.store(true, Ordering::Relaxed);
            log.json().try_init()
        }
        // Colours need a feature of the crate that is not built.
        LogForm::Text => log.with_target(false).with_ansi(false).try_init(),
    };
}

/// A progress bar over the stages of one run; hidden unless standard error is a terminal.
pub struct Progress {
    bar: ProgressBar,
    /// Rounds of the fit, if known.
    rounds: Option<u32>,
    results: Vec<Measure>,
    bits: bool,
    place: String,
}

impl Progress {
    /// A bar for a job; `bits` adds the bits sent.
    pub fn new(name: &str, rounds: Option<u32>, bits: bool) -> Self {
        let bar = ProgressBar::hidden().with_style(style(UNKNOWN));
        if !QUIET.load(Ordering::Relaxed) {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
        bar.set_prefix(name.to_string());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, rounds, results: Vec::new(), bits, place: String::new() }
    }
}

/// Removes the bar.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The bar of a known number of rounds, with the remaining time.
const KNOWN: &str = "{prefix:>12} {bar:24} {human_pos}/{human_len} rounds{left}  {wide_msg}";

/// The bar of an unknown number of rounds.
const UNKNOWN: &str = "{prefix:>12} {spinner} {human_pos} rounds, {elapsed}  {wide_msg}";

fn style(layout: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(layout);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    style.progress_chars("=> ").with_key("left", time_left)
}

/// The remaining time, from the first round on.
fn time_left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    if state.pos() > 0 {
        // A closed standard error cannot be reported.
        let _ = write!(out, ", {:#} left", HumanDuration(state.eta()));
    }
}

impl Observer for Progress {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        self.place = match of {
            1 => String::new(),
            _ => format!("stage {} of {of}: {}", index + 1, stage.name),
        };
        // The number of rounds is known for the fit only.
        let length = self.rounds.filter(|_| index + 1 == of).map(u64::from);
        match length {
            Some(length) => self.bar.set_length(length),
            None => self.bar.unset_length(),
        }
        self.bar.set_style(style(if length.is_some() { KNOWN } else { UNKNOWN }));
        self.bar.reset();
        self.bar.set_message(self.place.clone());
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
        let sent = || format!("{} up", format::bytes(8.0 * row.traffic.up as f64));
        let place = Some(self.place.clone()).filter(|place| !place.is_empty());
        let text: Vec<String> =
            place.into_iter().chain(figures).chain(self.bits.then(sent)).collect();
        self.bar.set_message(text.join(", "));
    }
}
