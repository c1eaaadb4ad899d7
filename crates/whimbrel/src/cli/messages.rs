//! What people read while a command works: everything on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;
use whimbrel::engine::simulator::Done;
use whimbrel::engine::{Observer, Row};
use whimbrel::job::failure::Failure;
use whimbrel::report::format;

/// Says why a command failed.
pub fn failure(failure: &Failure) {
    match failure {
        // Job errors come with their own headings, one each.
        Failure::Job(errors) => eprintln!("{errors}"),
        other => eprintln!("error: {other}"),
    }
}

/// Says something that does not stop the command.
pub fn warning(text: &str) {
    eprintln!("warning: {text}");
}

/// Says where things are.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// A progress bar over the rounds of one run; silent where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for a job of so many rounds, where that is known.
    pub fn new(name: &str, rounds: Option<u32>) -> Self {
        let bar = match rounds {
            Some(rounds) => ProgressBar::new(u64::from(rounds)),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        let layout = "{prefix:>12} {bar:24} {pos:>6}/{len:<6} {msg}";
        if let Ok(style) = ProgressStyle::with_template(layout) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(name.to_string());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn stage(&mut self, name: &str, index: usize, of: usize) {
        if of > 1 {
            self.bar.set_message(format!("stage {} of {of}: {name}", index + 1));
        }
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round {
            self.bar.set_position(u64::from(round));
        }
    }

    fn row(&mut self, row: &Row) {
        let figure = |name: &str, label: &str, digits| {
            row.number(name).map(|value| format!("{label} {}", format::number(value, digits)))
        };
        let up = Some(format!("{} up", format::bits(8.0 * row.traffic.up as f64)));
        let parts = [figure("objective", "objective", 8), figure("field_norm2", "||h||^2", 3), up];
        let text: Vec<String> = parts.into_iter().flatten().collect();
        self.bar.set_message(text.join(", "));
    }
}
