//! The live dashboard: its files, its status, and the same figures for Prometheus.
//!
//! The coordinator fills a [`Status`] and serves these files. The page polls `status.json` and loads
//! nothing else.

mod metrics;

pub use metrics::metrics_text;

use serde::Serialize;
use std::collections::BTreeMap;
use whimbrel_core::Measure;

/// A file of the page.
pub struct Asset {
    /// The path under the dashboard's address.
    pub path: &'static str,
    pub media_type: &'static str,
    pub content: &'static str,
}

/// All files of the page, the page itself first.
pub const ASSETS: [Asset; 4] = [
    Asset {
        path: "/",
        media_type: "text/html; charset=utf-8",
        content: include_str!("index.html"),
    },
    Asset {
        path: "/style.css",
        media_type: "text/css; charset=utf-8",
        content: include_str!("style.css"),
    },
    Asset {
        path: "/app.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("app.js"),
    },
    Asset { path: "/icon.svg", media_type: "image/svg+xml", content: include_str!("icon.svg") },
];

/// HTTP headers of the page: own files only, no frames, no cache.
pub const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// A snapshot of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    pub job: String,
    pub method: String,
    /// The model, in words.
    pub model: String,
    /// The content of the clients' messages and their protection, in a sentence.
    pub privacy: String,
    pub version: String,
    pub state: RunState,
    /// A message for operators; empty if nothing is wrong.
    pub message: String,
    /// Path of the report; empty until the run is over.
    pub report: String,
    /// The current stage, from zero.
    pub stage: u32,
    pub stages: u32,
    pub stage_name: String,
    pub round: u32,
    /// Planned rounds, if known.
    pub rounds: Option<u32>,
    pub exchange: Option<OpenExchange>,
    /// Seconds since the coordinator started.
    pub seconds: f64,
    pub seconds_left: Option<f64>,
    /// Rounds per second over the last rounds; `None` before the second.
    pub rounds_per_second: Option<f64>,
    /// Duration of the last round.
    pub round_seconds: Option<f64>,
    /// Epsilon so far and delta, under differential privacy.
    pub epsilon_spent: Option<f64>,
    pub delta: Option<f64>,
    /// Bytes of the log since the last checkpoint.
    pub log_bytes: u64,
    /// Free bytes on the run's disk.
    pub disk_free: Option<u64>,
    /// Bytes from clients in this stage, including enrolment.
    pub bytes_up: u64,
    /// Bytes to clients in this stage.
    pub bytes_down: u64,
    /// Bytes of evaluations in this stage.
    pub bytes_eval: u64,
    /// The declared results in the order shown.
    pub measures: Vec<Measure>,
    /// Evaluated rounds, possibly thinned.
    pub series: Vec<Sample>,
    pub clients: Vec<ClientStatus>,
    /// The number of clients not listed.
    pub clients_more: u64,
    /// The number of clients in each state, in the order of [`ClientState::ALL`].
    pub client_counts: [u64; 6],
    /// Refused messages by reason.
    pub refused: Vec<(String, u64)>,
    /// The last lines of the log, oldest first.
    pub log: Vec<LogLine>,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Waiting for required clients.
    #[default]
    Waiting,
    Running,
    /// Paused until an operator acts.
    Paused,
    Done,
    Failed,
}

/// An exchange with pending uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OpenExchange {
    /// Clients asked.
    pub cohort: u32,
    pub answered: u32,
    /// The required number of answers.
    pub quorum: u32,
    /// Seconds until it closes without the missing answers.
    pub deadline_s: Option<f64>,
}

/// One evaluated round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    pub round: u32,
    /// Seconds since the start of the run.
    pub seconds: f64,
    /// The declared results by key, without missing values.
    pub figures: BTreeMap<String, f64>,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

/// The status of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClientStatus {
    pub name: String,
    pub state: ClientState,
    /// Seconds since the last message.
    pub last_seen_s: Option<f64>,
    /// Rounds with an accepted upload.
    pub rounds: u32,
    /// The last address; empty before the first connection.
    pub address: String,
    /// Seconds from the last question to the answer.
    pub latency_s: Option<f64>,
    /// Rounds that closed without its upload.
    pub missed: u64,
    pub disconnects: u64,
    /// The stated number of rows, if known.
    pub rows: Option<u64>,
    /// Bytes from the client in this stage.
    pub bytes_up: u64,
    /// Bytes to the client in this stage.
    pub bytes_down: u64,
    pub refused: u64,
    /// The last rounds, oldest first: `y` accepted, `n` no answer, `.` not asked.
    pub strip: String,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// Invited, not yet enrolled.
    #[default]
    Invited,
    Connected,
    /// Enrolled but disconnected.
    Away,
    /// Has the model.
    Finished,
    /// Invitation or key revoked.
    Revoked,
    /// Declared dead; its last memory stays in the sums.
    Dead,
}

impl ClientState {
    pub const ALL: [Self; 6] =
        [Self::Invited, Self::Connected, Self::Away, Self::Finished, Self::Revoked, Self::Dead];

    pub fn name(self) -> &'static str {
        match self {
            Self::Invited => "invited",
            Self::Connected => "connected",
            Self::Away => "away",
            Self::Finished => "finished",
            Self::Revoked => "revoked",
            Self::Dead => "dead",
        }
    }
}

/// A line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// The time of day, UTC.
    pub time: String,
    /// `info`, `warn` or `error`.
    pub level: String,
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page loads only served files, and the policy forbids inline code.
    #[test]
    fn the_page_loads_its_own_files_only_and_holds_no_inline_code() {
        let page = ASSETS[0].content;
        for piece in page.split("src=\"").skip(1).chain(page.split("href=\"").skip(1)) {
            let target = piece.split('"').next().unwrap_or_default();
            let served = ASSETS.iter().any(|asset| asset.path.trim_start_matches('/') == target);
            let own =
                served || target.starts_with('#') || ["metrics", "status.json"].contains(&target);
            assert!(own, "{target}");
        }
        assert!(
            !page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick")
        );
        assert!(page.matches("<script").count() == 1 && page.contains("<script src="));
        for asset in &ASSETS {
            assert!(!asset.content.contains("innerHTML") && !asset.content.contains("https://"));
        }
    }

    /// The status has all keys that the script reads.
    #[test]
    fn the_script_reads_keys_that_exist() {
        let status = Status {
            measures: vec![Measure::objective("")],
            series: vec![Sample::default()],
            clients: vec![ClientStatus::default()],
            log: vec![LogLine::default()],
            exchange: Some(OpenExchange::default()),
            ..Status::default()
        };
        let value = serde_json::to_value(&status).unwrap();
        let script = ASSETS[2].content;
        let after = |prefix: &str| -> Vec<String> {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let pieces = script.match_indices(prefix).filter(|(at, _)| {
                !script[..*at].chars().next_back().is_some_and(|c| word(c) || c == '.')
            });
            let rest = pieces.map(|(at, _)| &script[at + prefix.len()..]);
            rest.map(|piece| piece.chars().take_while(|c| word(*c)).collect()).collect()
        };
        for (prefix, object) in [
            ("s.", &value),
            ("client.", &value["clients"][0]),
            ("line.", &value["log"][0]),
            ("p.", &value["series"][0]),
            ("m.", &value["measures"][0]),
            ("open.", &value["exchange"]),
        ] {
            let keys = after(prefix);
            assert!(!keys.is_empty(), "{prefix}");
            for key in keys {
                assert!(object.get(&key).is_some(), "{prefix}{key}");
            }
        }
    }
}
