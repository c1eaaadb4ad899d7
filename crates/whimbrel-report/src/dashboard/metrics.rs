//! A status in the text format of Prometheus.

use super::{ClientState, ClientStatus, RunState, Status};

/// The figures of a status, one per line, with their meanings.
pub fn metrics_text(status: &Status) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        family(&mut text, name, kind, help);
        text.push_str(&format!("whimbrel_{name} {value}\n"));
    };
    one("round", "gauge", "Rounds done in the stage under way.", f64::from(status.round));
    if let Some(rounds) = status.rounds {
        one("rounds", "gauge", "Rounds planned in the stage under way.", f64::from(rounds));
    }
    one("stage", "gauge", "The stage under way, from zero.", f64::from(status.stage));
    one("seconds", "gauge", "Seconds since the coordinator was started.", status.seconds);
    one(
        "bytes_up_total",
        "counter",
        "Bytes from clients in the stage under way.",
        status.bytes_up as f64,
    );
    one(
        "bytes_down_total",
        "counter",
        "Bytes to clients in the stage under way.",
        status.bytes_down as f64,
    );
    one(
        "bytes_eval_total",
        "counter",
        "Bytes of evaluations in the stage under way.",
        status.bytes_eval as f64,
    );
    one(
        "log_bytes",
        "gauge",
        "Bytes of the log since the last checkpoint.",
        status.log_bytes as f64,
    );
    if let Some(rate) = status.rounds_per_second {
        one("rounds_per_second", "gauge", "Rounds per second over the last ones.", rate);
    }
    if let Some(seconds) = status.round_seconds {
        one("round_seconds", "gauge", "Seconds that the last round took.", seconds);
    }
    if let Some(bytes) = status.disk_free {
        one("disk_free_bytes", "gauge", "Bytes that are free where the run is kept.", bytes as f64);
    }
    for measure in &status.measures {
        let mut newest = status.series.iter().rev();
        if let Some(value) = newest.find_map(|sample| sample.figures.get(&*measure.key)) {
            let name = measure.key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let help = format!("{}, when last evaluated.", measure.caption).replace('\n', " ");
            one(&name, "gauge", &help, *value);
        }
    }
    if let Some(open) = status.exchange {
        one("cohort", "gauge", "Clients asked in the exchange under way.", f64::from(open.cohort));
        one("answered", "gauge", "Clients heard in it.", f64::from(open.answered));
    }
    family(&mut text, "state", "gauge", "Where the run stands: one for the state it is in.");
    for (state, name) in [
        (RunState::Waiting, "waiting"),
        (RunState::Running, "running"),
        (RunState::Paused, "paused"),
        (RunState::Done, "done"),
        (RunState::Failed, "failed"),
    ] {
        let is = u8::from(status.state == state);
        text.push_str(&format!("whimbrel_state{{state=\"{name}\"}} {is}\n"));
    }
    family(&mut text, "clients", "gauge", "Clients by state.");
    for (state, count) in ClientState::ALL.iter().zip(status.client_counts) {
        text.push_str(&format!("whimbrel_clients{{state=\"{}\"}} {count}\n", state.name()));
    }
    type OfClient = fn(&ClientStatus) -> Option<f64>;
    let each: [(&str, &str, &str, OfClient); 6] = [
        ("client_rows", "gauge", "Rows that a client stated when it enrolled.", |c| {
            c.rows.map(|rows| rows as f64)
        }),
        (
            "client_latency_seconds",
            "gauge",
            "Seconds from the last question to a client's answer.",
            |c| c.latency_s,
        ),
        ("client_missed_total", "counter", "Rounds that went on without a client.", |c| {
            Some(c.missed as f64)
        }),
        ("client_disconnects_total", "counter", "How often a client's connection ended.", |c| {
            Some(c.disconnects as f64)
        }),
        ("client_bytes_up_total", "counter", "Bytes from a client in the stage under way.", |c| {
            Some(c.bytes_up as f64)
        }),
        ("client_bytes_down_total", "counter", "Bytes to a client in the stage under way.", |c| {
            Some(c.bytes_down as f64)
        }),
    ];
    for (name, kind, help, of) in each {
        family(&mut text, name, kind, help);
        for client in &status.clients {
            if let Some(value) = of(client) {
                let client = label(&client.name);
                text.push_str(&format!("whimbrel_{name}{{client=\"{client}\"}} {value}\n"));
            }
        }
    }
    family(&mut text, "refused_total", "counter", "Messages refused, by reason.");
    for (reason, count) in &status.refused {
        text.push_str(&format!("whimbrel_refused_total{{reason=\"{}\"}} {count}\n", label(reason)));
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    text.push_str(&format!("# HELP whimbrel_{name} {help}\n# TYPE whimbrel_{name} {kind}\n"));
}

/// A label's value: backslashes, quotes and line ends escaped.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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
            measures: vec![Measure::objective("What is minimised")],
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
            client_counts: [0, 0, 1, 0, 0],
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
