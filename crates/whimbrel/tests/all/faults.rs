//! Simulated faults, as recorded in the journal.

use crate::support::{Sandbox, mixture_job, number};
use serde_json::{Map, Value};

fn method(simulation: &str) -> String {
    format!(
        "kind = \"fedem\"\nrounds = 30\nstep = 0.5\n[uplink]\n\
         codec = {{ kind = \"dithering\", levels = 1 }}\n[simulation]\n{simulation}"
    )
}

/// The journal's rounds.
fn rounds(sandbox: &Sandbox) -> Vec<Map<String, Value>> {
    let entries = sandbox.journal("out").into_iter();
    entries.filter(|entry| entry.get("round").is_some_and(Value::is_u64)).collect()
}

/// The ids of `0-2,4`.
fn ids(entry: &Map<String, Value>, key: &str) -> Vec<u32> {
    let text = entry.get(key).and_then(Value::as_str).unwrap_or_default();
    text.split(',')
        .filter(|part| !part.is_empty())
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse::<u32>().unwrap()..=last.parse::<u32>().unwrap()
        })
        .collect()
}

fn sandbox(simulation: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method(simulation)));
    let summary = sandbox.run_job("out");
    let first = number(&sandbox.metrics("out")[0], "objective");
    assert!(number(&summary, "objective") < first, "the fit improves");
    assert_eq!(rounds(&sandbox).len(), 30);
    sandbox
}

/// The names of the clients.
fn names() -> Vec<String> {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method("lost = 0.0")));
    sandbox.run_job("out");
    let csv = sandbox.read("out/clients.csv");
    csv.lines().skip(1).map(|line| line.split(',').next().unwrap().to_owned()).collect()
}

#[test]
fn lost_uploads_are_in_the_cohort_and_not_accepted() {
    let sandbox = sandbox("lost = 0.3");
    let entries = rounds(&sandbox);
    let asked: usize = entries.iter().map(|e| ids(e, "cohort").len()).sum();
    let accepted: usize = entries.iter().map(|e| ids(e, "accepted").len()).sum();
    assert_eq!(asked, 30 * 6);
    // Binomial(180, 0.3) lost: six standard deviations are 37.
    let lost = asked - accepted;
    assert!((17..=91).contains(&lost), "{lost} of {asked}");
    let csv = sandbox.read("out/clients.csv");
    let taken: usize =
        csv.lines().skip(1).map(|l| l.split(',').nth(2).unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!(taken, accepted, "rounds in clients.csv count accepted uploads");
}

#[test]
fn scripted_drops_hit_the_named_clients() {
    let clients = names();
    let drops = format!(
        "drops = [{{ round = 3, clients = [\"{}\", \"{}\"] }}, {{ round = 7, clients = [\"{}\"] }}]",
        clients[1], clients[4], clients[0]
    );
    let sandbox = sandbox(&drops);
    for entry in rounds(&sandbox) {
        assert_eq!(ids(&entry, "cohort"), [0, 1, 2, 3, 4, 5]);
        let wanted: &[u32] = match entry["round"].as_u64() {
            Some(3) => &[0, 2, 3, 5],
            Some(7) => &[1, 2, 3, 4, 5],
            _ => &[0, 1, 2, 3, 4, 5],
        };
        assert_eq!(ids(&entry, "accepted"), wanted, "{entry:?}");
    }
}

#[test]
fn late_joiners_join_in_their_round() {
    let last = names().pop().unwrap();
    let sandbox = sandbox(&format!("late = [{{ client = \"{last}\", round = 10 }}]"));
    for entry in rounds(&sandbox) {
        let round = entry["round"].as_u64().unwrap();
        assert_eq!(ids(&entry, "joined"), if round == 10 { vec![5] } else { vec![] }, "{round}");
        assert_eq!(ids(&entry, "cohort").contains(&5), round >= 10, "{round}");
    }
    let csv = sandbox.read("out/clients.csv");
    let line = csv.lines().find(|l| l.starts_with(&format!("{last},"))).unwrap();
    assert_eq!(line.split(',').nth(2), Some("21"), "rounds 10 to 30");
}

#[test]
fn cohorts_have_the_fixed_size() {
    let method = method("lost = 0.0").replace("step", "participation = { size = 2 }\nstep");
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method));
    sandbox.run_job("out");
    let accepted: Vec<usize> =
        rounds(&sandbox).iter().map(|entry| ids(entry, "accepted").len()).collect();
    assert_eq!(accepted[0], 6, "the first round is the E-step of all clients");
    assert_eq!(accepted[1..], [2; 29]);
}

#[test]
fn a_replay_of_the_journal_ends_in_the_same_bits() {
    let sandbox = sandbox("lost = 0.3\nlate = [{ client = \"client-2\", round = 9 }]");
    let job = |simulation: &str| mixture_job("init = \"moments\"", &method(simulation));
    sandbox.write("calm.toml", &job("lost = 0.0"));
    let replay = ["run", "calm.toml", "--out", "again", "--replay", "out/journal"];
    sandbox.ok(&replay);
    assert_eq!(sandbox.timeless_metrics("out"), sandbox.timeless_metrics("again"));
    for file in ["model/model.safetensors", "journal", "clients.csv"] {
        let bytes = |run: &str| std::fs::read(sandbox.path(&format!("{run}/{file}"))).unwrap();
        assert!(bytes("out") == bytes("again"), "{file} differs");
    }
    let journal = sandbox.read("out/journal");
    let (first, _) = journal.split_once("\"exchange\":1,").unwrap();
    sandbox.write("short", &first[..=first.rfind('\n').unwrap()]);
    let short = ["run", "calm.toml", "--out", "short-run", "--replay", "short"];
    sandbox.fails(&short, 1, "it ends before exchange 1");
}
