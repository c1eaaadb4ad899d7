//! Jobs of methods without a server: their graphs, and what is refused.

use crate::{has, parse, plans, refusal};
use whimbrel_families::Job;

/// Twelve clients, two of them unseen.
fn job(kind: &str, rest: &str) -> String {
    format!(
        "seed = 3\n[data]\nsource = \"synthetic-mixture\"\nclients = 12\ncomponents = 2\n\
         dimension = 5\nalpha = 0.4\nunseen = 0.17\n[model]\nkind = \"logistic\"\n[method]\n\
         kind = \"{kind}\"\nrounds = 4\nbatch = 32\nstep = 1.0\n{rest}\n"
    )
}

fn failure(text: &str) -> String {
    plans::plan(&parse(text)).map(|_| ()).expect_err("the job was planned").to_string()
}

/// Pairs of a path through these clients.
fn path(names: &[&str]) -> Vec<String> {
    names.windows(2).map(|pair| format!("[\"{}\", \"{}\"]", pair[0], pair[1])).collect()
}

fn training(job: &Job) -> Vec<String> {
    let loaded = whimbrel_families::load::load(job).unwrap();
    loaded.training().map(|(id, _)| loaded.clients[id.0 as usize].0.clone()).collect()
}

#[test]
fn every_graph_is_written_back_and_runs() {
    let words = [
        "",
        "topology = \"complete\"",
        "topology = \"ring\"\nmixing = \"fastest-mixing\"",
        "topology = { kind = \"torus\" }\nmixing = \"maximum-degree\"",
        "topology = { kind = \"ring\", redraw = true }\nscaling = \"paper\"",
        "topology = { kind = \"erdos-renyi\", p = 0.3, redraw = true }",
    ];
    for (kind, rest) in words.iter().map(|rest| ("d-fedmix", *rest)).chain([
        ("d-fedavg", ""),
        ("d-fedprox", "mu = 0.1"),
        ("d-pfedme", "lambda = 5.0"),
    ]) {
        let job = parse(&job(kind, rest));
        let written = job.to_toml();
        assert_eq!(parse(&written), job, "{written}");
        let outcome = plans::run(&job);
        let last = outcome.last.as_ref().unwrap();
        for key in ["test_accuracy", "test_accuracy_p10", "unseen_accuracy", "disagreement"] {
            assert!(last.number(key).is_some(), "{kind} {rest}: {key}");
        }
        let gap = last.number("spectral_gap").unwrap();
        assert!(gap > 0.0 && gap <= 1.0, "{kind} {rest}: {gap}");
        assert_eq!(outcome.tallies.iter().filter(|tally| tally.rounds == 4).count(), 10);
        let idle = outcome.tallies.iter().filter(|tally| tally.bytes_up == 0).count();
        assert_eq!(idle, 2, "unseen clients send nothing");
    }
}

#[test]
fn edge_lists_name_clients() {
    let names = training(&parse(&job("d-fedmix", "")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let edges = |edges: &[String], rest: &str| {
        let list = edges.join(", ");
        job("d-fedmix", &format!("topology = {{ kind = \"edges\", edges = [{list}] }}\n{rest}"))
    };
    let all = path(&names);
    let good = parse(&edges(&all, ""));
    assert_eq!(parse(&good.to_toml()), good);
    plans::plan(&good).unwrap();
    let cut = failure(&edges(&all[1..], ""));
    let expected = format!("no path joins `{}` to `{}`", names[1], names[0]);
    assert!(cut.contains(&expected), "{cut}");
    has(&failure(&edges(&path(&[names[0], "nobody"]), "")), "names client `nobody`");
    // Weights: those in the middle of the path give both neighbours theirs.
    let weigh = |weight: f64| -> Vec<String> {
        all.iter().map(|edge| edge.replace(']', &format!(", {weight}]"))).collect()
    };
    plans::plan(&parse(&edges(&weigh(0.5), "mixing = \"given\""))).unwrap();
    let heavy = failure(&edges(&weigh(0.7), "mixing = \"given\""));
    assert!(heavy.contains("not doubly stochastic") && heavy.contains(names[1]), "{heavy}");
    let mut own = weigh(0.4);
    own.push(format!("[\"{}\", \"{}\", 0.3]", names[1], names[1]));
    let own = failure(&edges(&own, "mixing = \"given\""));
    assert!(own.contains(&format!("the weights of `{}` sum to 1.1", names[1])), "{own}");
    let mut own = weigh(0.4);
    own.push(format!("[\"{}\", \"{}\", 0.1]", names[1], names[1]));
    let own = failure(&edges(&own, "mixing = \"given\""));
    assert!(own.contains(&format!("the weights of `{}` sum to 0.9", names[1])), "{own}");
    assert!(own.contains("with its own weight they must sum to one"), "{own}");
    let mut twice = weigh(0.5);
    twice.push(format!("[\"{}\", \"{}\", 0.25]", names[1], names[0]));
    has(&failure(&edges(&all, "mixing = \"given\"")), &format!("and `{}` has no weight", names[1]));
    has(&failure(&edges(&weigh(0.5), "")), &format!("and `{}` has a weight", names[1]));
    has(&failure(&edges(&twice, "mixing = \"given\"")), "not symmetric");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.txt");
    let lines: Vec<String> =
        names.windows(2).map(|pair| format!("{} {}", pair[0], pair[1])).collect();
    std::fs::write(&file, format!("# a path\n{}\n", lines.join("\n"))).unwrap();
    let from_file = |file: &std::path::Path| {
        let rest =
            format!("topology = {{ kind = \"edges\", path = {:?} }}", file.display().to_string());
        job("d-fedmix", &rest)
    };
    plans::plan(&parse(&from_file(&file))).unwrap();
    std::fs::write(&file, format!("{}, {}, 1.5\n", names[0], names[1])).unwrap();
    has(&failure(&from_file(&file)), "line 1: an edge is two client names");
    let sparse = job("d-fedmix", "topology = { kind = \"erdos-renyi\", p = 1e-9 }");
    assert!(failure(&sparse).contains("is connected"), "{}", failure(&sparse));
}

#[test]
fn what_needs_a_server_is_refused() {
    let refused = |rest: &str, why: &str| {
        let said = refusal(&job("d-fedmix", rest));
        assert!(said.contains(why), "{rest}: {said}");
    };
    refused("participation = 0.5", "`participation` has no meaning for d-fedmix");
    refused("channels = \"mcm\"", "`channels` has no meaning for d-fedmix");
    refused("sampling = \"unbiased\"", "`sampling` has no meaning for d-fedmix");
    refused("epochs = 3.0", "`epochs` has no meaning for d-fedmix");
    let codec = "codec = { kind = \"dithering\", levels = 4 }";
    refused(&format!("[uplink]\n{codec}"), "d-fedmix has no server and therefore no [uplink]");
    refused(
        &format!("[downlink]\nrule = \"degraded\"\n{codec}"),
        "d-fedmix has no server and therefore no [downlink]",
    );
    refused("[simulation]\nlost = 0.1", "`lost` has no meaning for d-fedmix");
    refused("topology = { kind = \"ring\", p = 0.5 }", "`p` has no meaning for ring");
    refused(
        "topology = { kind = \"complete\", redraw = true }",
        "`redraw` has no meaning for complete",
    );
    refused("topology = { kind = \"edges\" }", "missing key `edges`");
    refused("topology = \"edges\"", "an edge list needs edges");
    refused("topology = \"star\"", "unknown `topology`");
    refused("mixing = \"given\"", "only an edge list has weights");
    refused(
        "topology = { kind = \"ring\", redraw = true }\nmixing = \"fastest-mixing\"",
        "computed for a fixed graph",
    );
    has(&refusal(&job("fedmix", "topology = \"ring\"")), "`topology` has no meaning for fedmix");
}
