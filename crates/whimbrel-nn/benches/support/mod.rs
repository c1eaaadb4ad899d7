//! What benchmarks share: the clock, medians, and a process of another language that measures the same.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// This thread's processor time, to a few milliseconds, where the system tells it.
pub fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(1e-9 * text.split(' ').next()?.parse::<f64>().ok()?)
}

/// Median and least.
pub fn summary(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

/// A process that measures the same: it says its version, then answers each line with a number.
pub struct Peer {
    pub version: String,
    _child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// The script, run by the interpreter that this environment variable names (default `python3`); none
    /// where it cannot run.
    pub fn start(variable: &str, script: &str) -> Option<Self> {
        let python = std::env::var(variable).unwrap_or_else(|_| "python3".to_owned());
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let questions = child.stdin.take()?;
        let mut answers = BufReader::new(child.stdout.take()?);
        let mut version = String::new();
        answers.read_line(&mut version).ok().filter(|n| *n > 0)?;
        let version = version.trim().to_owned();
        Some(Self { version, _child: child, questions, answers })
    }

    /// The answer to a question.
    pub fn ask(&mut self, question: &str) -> f64 {
        writeln!(self.questions, "{question}").expect("the peer listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the peer answers");
        answer.trim().parse().expect("a number")
    }
}
