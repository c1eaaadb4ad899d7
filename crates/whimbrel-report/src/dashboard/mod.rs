//! The live dashboard: its files, what it shows, and the same figures for Prometheus.
//!
//! Pure values: the coordinator fills a [`Status`] and serves these files. The page asks
//! for `status.json` and draws it; it loads nothing else.

mod metrics;

pub use metrics::metrics_text;

use serde::Serialize;
use std::collections::BTreeMap;
use whimbrel_core::Measure;

/// A file of the page: its path, its media type and its content.
pub struct Asset {
    /// Its path under the dashboard's address.
    pub path: &'static str,
    /// Its media type.
    pub media_type: &'static str,
    /// Its content.
    pub content: &'static str,
}

/// Everything that the page loads, the page itself first.
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

/// What a browser is told about the page: only its own files, no frames, nothing kept.
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

/// A run at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// The job's name.
    pub job: String,
    /// The method's kind.
    pub method: String,
    /// The model, in words.
    pub model: String,
    /// The program's version.
    pub version: String,
    /// Where the run stands.
    pub state: RunState,
    /// What a person should know or do now; empty where all is well.
    pub message: String,
    /// The stage under way, from zero.
    pub stage: u32,
    /// How many stages there are.
    pub stages: u32,
    /// The stage's name.
    pub stage_name: String,
    /// Rounds done.
    pub round: u32,
    /// Rounds planned, where that is known.
    pub rounds: Option<u32>,
    /// The exchange under way.
    pub exchange: Option<OpenExchange>,
    /// Seconds since the coordinator was started.
    pub seconds: f64,
    /// An estimate of the seconds left.
    pub seconds_left: Option<f64>,
    /// Rounds per second over the last ones; none before there are two.
    pub rounds_per_second: Option<f64>,
    /// Seconds that the last round took.
    pub round_seconds: Option<f64>,
    /// Bytes of the log since the last checkpoint.
    pub log_bytes: u64,
    /// Bytes that are free where the run is kept.
    pub disk_free: Option<u64>,
    /// Bytes from clients in this stage, enrolment included.
    pub bytes_up: u64,
    /// Bytes to clients in this stage.
    pub bytes_down: u64,
    /// Bytes of evaluations in this stage.
    pub bytes_eval: u64,
    /// The declared results, in the order in which they are shown.
    pub measures: Vec<Measure>,
    /// Evaluated rounds, or some of them.
    pub series: Vec<Sample>,
    /// The clients, or the first of them.
    pub clients: Vec<ClientStatus>,
    /// How many clients are not listed.
    pub clients_more: u64,
    /// How many clients there are in each state, in the order of [`ClientState::ALL`].
    pub client_counts: [u64; 5],
    /// Messages refused, by reason.
    pub refused: Vec<(String, u64)>,
    /// The last lines of the log, oldest first.
    pub log: Vec<LogLine>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// A client that is needed is absent, or has not answered yet.
    #[default]
    Waiting,
    /// Rounds are made.
    Running,
    /// Something must be mended before it goes on.
    Paused,
    /// It ended as it should.
    Done,
    /// It ended otherwise.
    Failed,
}

/// An exchange that waits for uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OpenExchange {
    /// How many clients were asked.
    pub cohort: u32,
    /// How many were heard.
    pub answered: u32,
    /// How many are enough.
    pub quorum: u32,
    /// Seconds until it closes without the rest.
    pub deadline_s: Option<f64>,
}

/// One evaluated round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// The round.
    pub round: u32,
    /// Seconds since the run began.
    pub seconds: f64,
    /// The values of the declared results, by key; those that do not exist are left out.
    pub figures: BTreeMap<String, f64>,
    /// Bytes up to then.
    pub bytes_up: u64,
    /// Bytes down to then.
    pub bytes_down: u64,
}

/// One client.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClientStatus {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub state: ClientState,
    /// Seconds since it was last heard.
    pub last_seen_s: Option<f64>,
    /// Rounds in which its upload was accepted.
    pub rounds: u32,
    /// Where it connected from last; empty before that.
    pub address: String,
    /// Seconds from the last question to its answer.
    pub latency_s: Option<f64>,
    /// Rounds that went on without it because it was not connected.
    pub missed: u64,
    /// How often its connection ended.
    pub disconnects: u64,
    /// Rows that it stated, where that is known.
    pub rows: Option<u64>,
    /// Bytes it sent in this stage; over all clients they are the run's.
    pub bytes_up: u64,
    /// Bytes sent to it in this stage.
    pub bytes_down: u64,
    /// Its messages that were refused.
    pub refused: u64,
    /// The last rounds, oldest first: `y` accepted, `n` asked and not heard, `.` not asked.
    pub strip: String,
}

/// Whether a client is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// Invited, and not heard of yet.
    #[default]
    Invited,
    /// Connected.
    Connected,
    /// Enrolled, and not connected.
    Away,
    /// Its invitation or its key was revoked.
    Revoked,
    /// Declared dead: its last memory stays in the sums.
    Dead,
}

impl ClientState {
    /// Every state.
    pub const ALL: [Self; 5] =
        [Self::Invited, Self::Connected, Self::Away, Self::Revoked, Self::Dead];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invited => "invited",
            Self::Connected => "connected",
            Self::Away => "away",
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
    /// What happened.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page may load only what is served beside it, and the policy forbids anything inline.
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

    /// Every key that the script reads of the status is one that the status has.
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
