//! A status in the text format of Prometheus.

use super::{ClientState, ClientStatus, OpenExchange, RunState, Status};

/// The figures of a status, one per line, with their meanings.
pub fn metrics_text(status: &Status) -> String {
    let mut text = Text::default();
    for (name, kind, help, value) in of_the_run(status) {
        if let Some(value) = value {
            text.metric(name, kind, help, &[(String::new(), value)]);
        }
    }
    for measure in &status.measures {
        let mut newest = status.series.iter().rev();
        if let Some(value) = newest.find_map(|sample| sample.figures.get(&*measure.key)) {
            let name = measure.key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let help = format!("{}, when last evaluated.", measure.caption).replace('\n', " ");
            text.metric(&name, "gauge", &help, &[(String::new(), *value)]);
        }
    }
    let states = STATES
        .map(|(state, name)| (labelled("state", name), f64::from(u8::from(status.state == state))));
    text.metric("state", "gauge", "The run's state: 1 for the current state.", &states);
    let clients: Vec<_> = ClientState::ALL
        .iter()
        .zip(status.client_counts)
        .map(|(state, count)| (labelled("state", state.name()), count as f64))
        .collect();
    text.metric("clients", "gauge", "Clients by state.", &clients);
    for (name, kind, help, of) in OF_CLIENTS {
        let each = status.clients.iter();
        let each = each.filter_map(|c| Some((labelled("client", &c.name), of(c)?)));
        text.metric(name, kind, help, &each.collect::<Vec<_>>());
    }
    let refused: Vec<_> = status
        .refused
        .iter()
        .map(|(reason, count)| (labelled("reason", reason), *count as f64))
        .collect();
    text.metric("refused_total", "counter", "Refused messages by reason.", &refused);
    text.0
}

const STATES: [(RunState, &str); 5] = [
    (RunState::Waiting, "waiting"),
    (RunState::Running, "running"),
    (RunState::Paused, "paused"),
    (RunState::Done, "done"),
    (RunState::Failed, "failed"),
];

/// Name, type, meaning and value of a figure of the run.
type OfRun = (&'static str, &'static str, &'static str, Option<f64>);

fn of_the_run(s: &Status) -> [OfRun; 14] {
    let int = |value: u64| Some(value as f64);
    let open = |of: fn(&OpenExchange) -> u32| s.exchange.as_ref().map(|open| f64::from(of(open)));
    [
        ("round", "gauge", "Completed rounds of the stage.", int(s.round.into())),
        ("rounds", "gauge", "Planned rounds of the stage.", s.rounds.map(f64::from)),
        ("stage", "gauge", "The current stage, from zero.", int(s.stage.into())),
        ("seconds", "gauge", "Seconds since the coordinator started.", Some(s.seconds)),
        ("bytes_up_total", "counter", "Bytes from clients in the stage.", int(s.bytes_up)),
        ("bytes_down_total", "counter", "Bytes to clients in the stage.", int(s.bytes_down)),
        ("bytes_eval_total", "counter", "Bytes of evaluations in the stage.", int(s.bytes_eval)),
        ("log_bytes", "gauge", "Bytes of the log since the checkpoint.", int(s.log_bytes)),
        ("rounds_per_second", "gauge", "Speed over the last rounds.", s.rounds_per_second),
        ("round_seconds", "gauge", "Seconds of the last round.", s.round_seconds),
        ("disk_free_bytes", "gauge", "Free bytes on the run's disk.", s.disk_free.and_then(int)),
        ("epsilon_spent", "gauge", "Privacy loss so far.", s.epsilon_spent),
        ("cohort", "gauge", "Clients asked in the exchange.", open(|open| open.cohort)),
        ("answered", "gauge", "Clients that answered in the exchange.", open(|open| open.answered)),
    ]
}

/// Name, type, meaning and value of a figure of a client.
type OfClient = (&'static str, &'static str, &'static str, fn(&ClientStatus) -> Option<f64>);

const OF_CLIENTS: [OfClient; 6] = [
    ("client_rows", "gauge", "Rows stated at enrolment.", |c| c.rows.map(|rows| rows as f64)),
    ("client_latency_seconds", "gauge", "Seconds to the last answer.", |c| c.latency_s),
    ("client_missed_total", "counter", "Rounds that closed without its upload.", |c| {
        Some(c.missed as f64)
    }),
    ("client_disconnects_total", "counter", "Disconnections.", |c| Some(c.disconnects as f64)),
    ("client_bytes_up_total", "counter", "Bytes from a client in the stage.", |c| {
        Some(c.bytes_up as f64)
    }),
    ("client_bytes_down_total", "counter", "Bytes to a client in the stage.", |c| {
        Some(c.bytes_down as f64)
    }),
];

/// The text so far.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Adds a metric: its type and meaning, and a value for each label.
    fn metric(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        self.0 += &format!("# HELP whimbrel_{name} {help}\n# TYPE whimbrel_{name} {kind}\n");
        for (label, value) in values {
            self.0 += &format!("whimbrel_{name}{label} {value}\n");
        }
    }
}

/// A label with backslashes, quotes and line ends escaped.
fn labelled(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;
    use whimbrel_core::Measure;

    #[test]
    fn figures_are_lines_of_the_format() {
        let status = Status {
            round: 7,
            state: RunState::Running,
            measures: vec![Measure::objective("The minimised function")],
            series: vec![
                Sample { figures: [("objective".into(), 2.5)].into(), ..Sample::default() },
                Sample::default(),
            ],
            clients: vec![ClientStatus {
                name: "a \"b\"".into(),
                missed: 4,
                rows: Some(60),
                latency_s: Some(0.25),
                ..Default::default()
            }],
            rounds_per_second: Some(2.5),
            client_counts: [0, 0, 1, 0, 0, 0],
            refused: vec![("a \"late\"\nupload".into(), 3)],
            ..Status::default()
        };
        let text = metrics_text(&status);
        for line in [
            "whimbrel_round 7",
            "whimbrel_objective 2.5",
            "whimbrel_rounds_per_second 2.5",
            "whimbrel_client_missed_total{client=\"a \\\"b\\\"\"} 4",
            "whimbrel_client_rows{client=\"a \\\"b\\\"\"} 60",
            "whimbrel_client_latency_seconds{client=\"a \\\"b\\\"\"} 0.25",
            "whimbrel_state{state=\"running\"} 1",
            "whimbrel_state{state=\"done\"} 0",
            "whimbrel_clients{state=\"away\"} 1",
            "whimbrel_refused_total{reason=\"a \\\"late\\\"\\nupload\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let plain = text.lines().filter(|l| !l.starts_with('#'));
        assert!(plain.clone().count() > 10);
        for line in plain {
            let value = line.rsplit_once(' ').unwrap().1;
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
