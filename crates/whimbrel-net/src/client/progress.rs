//! The progress of a session, for the log.

use std::time::Duration;
use tokio::time::Instant;
use whimbrel_report::format;

/// Time between two lines of progress.
const PACE: Duration = Duration::from_secs(5);

/// Bytes and rounds of a session.
pub(super) struct Progress {
    /// Bytes of the client's answers, those of earlier sessions included.
    sent: u64,
    /// The stage, its rounds at the first answer, and the time of it.
    first: Option<(&'static str, u32, Instant)>,
    /// The time of the last line.
    said: Instant,
}

impl Progress {
    /// The progress of a client that has sent this number of bytes before.
    pub(super) fn new(sent: u64) -> Self {
        Self { sent, first: None, said: Instant::now() }
    }

    /// Logs stage, rounds, remaining time, bytes and withheld parts every five seconds.
    pub(super) fn say(
        &mut self,
        now: Option<(&'static str, u32, Option<u32>)>,
        bytes: u64,
        withheld: u64,
    ) {
        self.sent += bytes;
        let Some((stage, round, most)) = now else { return };
        let first = self.first.take_if(|(before, ..)| *before == stage);
        let (_, before, begun) =
            *self.first.insert(first.unwrap_or((stage, round, Instant::now())));
        if self.said.elapsed() < PACE {
            return;
        }
        self.said = Instant::now();
        let sent = format::bytes(8.0 * self.sent as f64);
        let withheld = match withheld {
            0 => String::new(),
            parts => format!(", {} parts withheld", format::count(parts)),
        };
        tracing::info!(
            "{stage}: {}, {sent} sent{withheld}",
            rounds_left(round, most, (before, begun.elapsed()))
        );
    }
}

/// "round 12 of at most 50, about 20 s left": the time left follows from the rounds since `before`.
fn rounds_left(round: u32, most: Option<u32>, (before, passed): (u32, Duration)) -> String {
    let Some(most) = most else { return format!("round {}", format::count(round.into())) };
    let (now, of) = (format::count(round.into()), format::count(most.into()));
    let left = match round.saturating_sub(before) {
        0 => String::new(),
        done => {
            let each = passed.as_secs_f64() / f64::from(done);
            let left = each * f64::from(most.saturating_sub(round));
            format!(", about {} left", format::duration(left))
        }
    };
    format!("round {now} of at most {of}{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_rounds_and_the_time_left() {
        let since = |before, seconds| (before, Duration::from_secs(seconds));
        let said = rounds_left(1_012, Some(2_012), since(12, 10));
        assert_eq!(said, "round 1,012 of at most 2,012, about 10 s left");
        assert_eq!(rounds_left(3, Some(50), since(3, 9)), "round 3 of at most 50");
        assert_eq!(
            rounds_left(60, Some(50), since(0, 9)),
            "round 60 of at most 50, about 0 ms left"
        );
        assert_eq!(rounds_left(3, None, since(0, 9)), "round 3");
    }

    #[test]
    fn bytes_go_on_from_those_of_earlier_sessions() {
        let mut progress = Progress::new(1_000);
        progress.say(None, 24, 0);
        assert_eq!(progress.sent, 1_024);
    }
}
