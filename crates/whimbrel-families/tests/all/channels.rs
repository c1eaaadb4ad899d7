//! Channels as a job names them: presets, rules that agree with them, and those that do not.

use crate::{PLAIN, has, parse, refusal, says};
use whimbrel_codec::channel::preset::NAMES;
use whimbrel_families::em::EmFit;
use whimbrel_families::job::*;
use whimbrel_methods::fedem::Form;

/// A regression by `sgd`, as a start for others.
const TOY: &str = "[data]\nsource = \"toy\"\n[model]\nkind = \"linear\"\n[method]\nrounds = 100\n";

fn toy(lines: &str) -> String {
    format!("{TOY}{lines}\n")
}

const DITHERING: &str = "[uplink]\ncodec = \"dithering\"\n[downlink]\ncodec = \"dithering\"";

#[test]
fn a_preset_that_compresses_needs_a_codec_that_does() {
    let warned = |channels: &str| {
        let job = format!(
            "[data]\nsource = \"synthetic-mixture\"\nclients = 3\ndimension = 4\n[model]\n\
             kind = \"logistic\"\n[method]\nkind = \"fedmix\"\nrounds = 2\n{channels}"
        );
        let job = parse(&job);
        let loaded = whimbrel_families::load::load(&job).unwrap();
        let warnings = whimbrel_families::plan::Plan::new(&job, &loaded).unwrap().warnings();
        warnings.into_iter().find(|said| said.contains("compresses nothing"))
    };
    let codec = "codec = { kind = \"dithering\", levels = 2 }\n";
    assert!(warned("channels = \"mcm\"\n").unwrap().contains("[uplink] and [downlink]"));
    has(
        &warned(&format!("channels = \"mcm\"\n[uplink]\n{codec}")).unwrap(),
        "levels = 1 } in [downlink]",
    );
    assert_eq!(warned(&format!("channels = \"diana\"\n[uplink]\n{codec}")), None);
    assert_eq!(warned(""), None);
}

#[test]
fn every_preset_sets_both_rules() {
    let memory = UpRule::Memory { alpha: None };
    let preserved = |memories| DownRule::Preserved { alpha: None, memories };
    let degraded = |feedback| DownRule::Degraded { feedback };
    let expected = [
        ("sgd", UpRule::Plain, DownRule::Exact),
        ("qsgd", UpRule::Plain, DownRule::Exact),
        ("ecq-sgd", UpRule::Feedback, DownRule::Exact),
        ("diana", memory, DownRule::Exact),
        ("artemis", memory, degraded(Feedback::Off)),
        ("artemis-nd", memory, DownRule::Detached),
        ("dore", memory, degraded(Feedback::Share(None))),
        ("double-squeeze", UpRule::Feedback, degraded(Feedback::Contractive)),
        ("dist-ef-sgd", UpRule::Feedback, degraded(Feedback::Contractive)),
        ("mcm", memory, preserved(Memories::Groups(1))),
        ("rand-mcm", memory, preserved(Memories::PerClient)),
        ("rand-mcm-g", memory, preserved(Memories::Groups(3))),
        ("ghost", memory, DownRule::Ghost),
    ];
    assert_eq!(expected.len(), NAMES.len());
    for (name, up, down) in expected {
        let groups = if name == "rand-mcm-g" { "[downlink]\nmemories = 3" } else { "" };
        let by_kind = parse(&toy(&format!("kind = \"{name}\"\n{groups}")));
        let by_channels = parse(&toy(&format!("kind = \"sgd\"\nchannels = \"{name}\"\n{groups}")));
        assert_eq!((&by_kind.uplink.rule, &by_kind.downlink.rule), (&up, &down), "{name}");
        assert_eq!(by_kind.method.kind.algorithm, "sgd");
        assert_eq!(by_kind.uplink, by_channels.uplink);
        assert_eq!(by_kind.downlink, by_channels.downlink);
        assert_eq!(parse(&by_kind.to_toml()), by_kind, "{name}");
        let shown = by_kind.method.name();
        assert_eq!(shown, if name == "dist-ef-sgd" { "double-squeeze" } else { name });
    }
}

fn form(job: &Job) -> Option<Form> {
    job.fit_as::<EmFit>().expect("a mixture").keys.form
}

#[test]
fn channels_are_for_every_vector_method() {
    let job = parse(&format!("{PLAIN}channels = \"mcm\"\n{DITHERING}\n"));
    assert_eq!(job.method.name(), "fedem");
    assert_eq!(form(&job), Some(Form::Lean), "over a compressed downlink");
    let exact = parse(&format!("{PLAIN}channels = \"mcm\"\n[uplink]\ncodec = \"dithering\"\n"));
    assert_eq!(form(&exact), Some(Form::Pair), "an exact codec makes the downlink exact");
    let pair = parse(&format!("{PLAIN}channels = \"mcm\"\nform = \"pair\"\n{DITHERING}\n"));
    assert_eq!(form(&pair), Some(Form::Pair));
    for job in [job, exact, pair] {
        assert_eq!(parse(&job.to_toml()), job);
    }
}

#[test]
fn a_rule_given_as_well_must_agree() {
    let up = toy("kind = \"mcm\"\n[uplink]\nrule = \"plain\"");
    says(&refusal(&up), "9:8", "rule = \"plain\" contradicts \"mcm\", whose uplink is \"memory\"");
    let down = toy("kind = \"sgd\"\nchannels = \"artemis\"\n[downlink]\nrule = \"preserved\"");
    says(
        &refusal(&down),
        "10:8",
        "rule = \"preserved\" contradicts \"artemis\", whose downlink is \"degraded\"",
    );
    says(
        &refusal(&toy("kind = \"mcm\"\nchannels = \"dore\"")),
        "8:12",
        "kind = \"mcm\" and channels = \"dore\" contradict each other",
    );
    let agreeing = "kind = \"mcm\"\n[uplink]\nrule = \"memory\"\n[downlink]\nrule = \"preserved\"\n\
                    memories = \"shared\"";
    assert_eq!(parse(&toy(agreeing)), parse(&toy("kind = \"mcm\"")));
}

#[test]
fn codecs_that_would_not_be_used() {
    says(
        &refusal(&toy(&format!("kind = \"diana\"\n{DITHERING}"))),
        "11:9",
        "diana sends the state exactly: dithering would not be used",
    );
    says(
        &refusal(&format!("{PLAIN}[downlink]\ncodec = \"dithering\"\n")),
        "13:9",
        "fedem sends the state exactly: dithering would not be used",
    );
    says(
        &refusal(&toy("kind = \"sgd\"\n[uplink]\ncodec = \"dithering\"")),
        "9:9",
        "sgd does not compress: the codec would be ignored",
    );
    parse(&toy("kind = \"sgd\"\n[uplink]\ncodec = \"dithering\"\nrule = \"plain\""));
}

#[test]
fn biased_codecs_on_downlinks() {
    let text = toy("kind = \"mcm\"\n[downlink]\ncodec = { kind = \"top-k\", k = 3 }");
    says(
        &refusal(&text),
        "9:9",
        "top-k is biased: on a preserved downlink its error would never average out",
    );
    for kind in ["artemis", "artemis-nd", "dore", "rand-mcm", "ghost"] {
        refusal(&toy(&format!("kind = \"{kind}\"\n[downlink]\ncodec = \"sign\"")));
    }
    let double =
        "kind = \"double-squeeze\"\n[uplink]\ncodec = \"sign\"\n[downlink]\ncodec = \"sign\"";
    parse(&toy(double));
    // Under error feedback an unbiased codec is scaled to a contraction.
    parse(&toy(&format!("kind = \"double-squeeze\"\n{DITHERING}")));
}

#[test]
fn memories_that_cannot_converge() {
    let text = toy("kind = \"mcm\"\n[downlink]\ncodec = \"dithering\"\nalpha = 1.0");
    says(
        &refusal(&text),
        "10:9",
        "a downlink memory with alpha = 1 does not converge: at 0 it never moves, at 1 it carries all compression noise on",
    );
    for alpha in ["0", "1", "0.0", "1.0"] {
        let lines = format!("[downlink]\ncodec = \"dithering\"\nalpha = {alpha}");
        refusal(&toy(&format!("kind = \"mcm\"\n{lines}")));
        let job = parse(&toy(&format!("kind = \"mcm\"\nallow_divergence = true\n{lines}")));
        assert_eq!(parse(&job.to_toml()), job);
    }
    for alpha in ["-0.1", "1.5", "\"atuo\"", "nan"] {
        refusal(&toy(&format!(
            "kind = \"mcm\"\nallow_divergence = true\n[downlink]\nalpha = {alpha}"
        )));
    }
}

#[test]
fn groups_and_memories() {
    says(
        &refusal(&toy("kind = \"rand-mcm-g\"\n[downlink]\nmemories = 21")),
        "9:12",
        "21 groups of 20 clients",
    );
    says(&refusal(&toy("kind = \"rand-mcm-g\"")), "", "rand-mcm-g needs the number of groups");
    let refused = [
        "kind = \"mcm\"\n[downlink]\nmemories = \"per-client\"",
        "kind = \"mcm\"\n[downlink]\nmemories = 2",
        "kind = \"rand-mcm\"\n[downlink]\nmemories = \"shared\"",
        "kind = \"artemis\"\n[downlink]\nmemories = \"shared\"",
        "kind = \"mcm\"\n[downlink]\nreset = 4",
        "kind = \"mcm\"\n[downlink]\nmemories = \"single\"\nreset = 0",
        "kind = \"mcm\"\n[downlink]\nfeedback = true",
        "kind = \"artemis\"\n[downlink]\nfeedback = true",
        "kind = \"double-squeeze\"\n[downlink]\nfeedback = false",
        "kind = \"dore\"\n[downlink]\nfeedback = false",
        "kind = \"qsgd\"\n[uplink]\nmemory = \"off\"",
        "kind = \"diana\"\n[uplink]\nmemory = \"off\"\nalpha = 0.1",
        "kind = \"diana\"\n[uplink]\nstart = \"memory.json\"",
        "kind = \"mcm\"\n[[downlink.for]]\nclients = [\"client-00\"]\ncodec = \"natural\"",
        "kind = \"diana\"\n[[uplink.for]]\nclients = [\"a\", \"a\"]\ncodec = \"natural\"",
        "kind = \"diana\"\n[[uplink.for]]\nclients = [\"a\"]\ncodec = \"sign\"",
        "kind = \"diana\"\n[[uplink.for]]\nclients = [\"a\"]\ncodex = \"natural\"",
        "kind = \"diana\"\nchannels = \"dianna\"",
    ];
    for lines in refused {
        refusal(&toy(lines));
    }
    let accepted = [
        "kind = \"mcm\"\n[downlink]\nmemories = \"single\"",
        "kind = \"rand-mcm\"\n[downlink]\nmemories = \"single\"\nreset = \"never\"",
        "kind = \"rand-mcm\"\n[downlink]\nmemories = \"single\"\nreset = 44",
        "kind = \"rand-mcm-g\"\n[downlink]\nmemories = 20",
        "kind = \"dore\"\n[downlink]\nfeedback = true",
        "kind = \"diana\"\n[uplink]\nmemory = \"off\"",
        "kind = \"rand-mcm\"\n[downlink]\ncodec = \"dithering\"\n\
         for = [{ clients = [\"client-00\"], codec = \"natural\" }]",
        "kind = \"diana\"\n[[uplink.for]]\nclients = [\"a\"]\ncodec = \"natural\"\n\
         [[uplink.for]]\nclients = [\"b\", \"c\"]\ncodec = \"exact\"",
    ];
    for lines in accepted {
        let job = parse(&toy(lines));
        assert_eq!(parse(&job.to_toml()), job, "{lines}");
    }
}

#[test]
fn forms_that_cannot_run_over_a_downlink() {
    let text = format!("{PLAIN}channels = \"artemis\"\nform = \"lean\"\n{DITHERING}\n");
    says(
        &refusal(&text),
        "13:8",
        "a degraded downlink replaces the server's state by the decoded message, but theta is not that state",
    );
    refusal(&format!("{PLAIN}channels = \"dore\"\nform = \"pair\"\n{DITHERING}\n"));
    refusal(&format!("{PLAIN}channels = \"mcm\"\nstep = \"theory\"\n{DITHERING}\n"));
    for form in ["pair", "state", "lean"] {
        parse(&format!("{PLAIN}channels = \"rand-mcm\"\nform = \"{form}\"\n{DITHERING}\n"));
    }
}

#[test]
fn dem_has_no_memories_and_em_no_channels() {
    refusal(&format!("{}channels = \"diana\"\n", PLAIN.replace("fedem", "dem")));
    refusal(&format!("{}channels = \"sgd\"\n", PLAIN.replace("fedem", "em")));
    refusal(&format!("{}[downlink]\nrule = \"preserved\"\n", PLAIN.replace("fedem", "em")));
    refusal(&format!("{}[downlink]\ncodec = \"natural\"\n", PLAIN.replace("fedem", "em")));
    parse(&format!("{}channels = \"qsgd\"\n", PLAIN.replace("fedem", "dem")));
}
