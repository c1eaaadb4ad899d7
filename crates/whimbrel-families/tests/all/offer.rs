//! What a coordinator offers, what a client makes of it, and what either refuses.

use crate::{has, parse, refusal};
use std::fs;
use std::path::PathBuf;
use whimbrel_core::method::Exposure;
use whimbrel_core::{ClientData, Targets};
use whimbrel_engine::Chain;
use whimbrel_families::failure::Failure;
use whimbrel_families::job::{Clients, Federation, Quorum};
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_methods::choice::Choice;

/// A mixture over columns that the job names: no file is needed to offer it.
const MIXTURE: &str = r#"name = "wards"
seed = 7
[federation]
clients = ["north", "south"]
[data]
source = "csv"
path = "secret/all.csv"
client = "ward"
columns = ["age", "dose"]
standardize = true
[model]
kind = "gmm"
components = 2
[method]
kind = "fedem"
rounds = 10
step = "theory"
evaluate = { every = 2 }
[uplink]
codec = { kind = "dithering", levels = 4 }
"#;

const LOGISTIC: &str = r#"[federation]
clients = 2
[data]
source = "csv"
path = "absent.csv"
columns = ["age", "dose"]
target = "ill"
[model]
kind = "logistic"
ridge = 0.1
[method]
kind = "diana"
rounds = 10
[uplink]
codec = "natural"
"#;

fn offer(text: &str) -> Result<Offer, Failure> {
    let job = parse(text);
    Offer::of(&job, &Facts::on_network(&job)?)
}

/// Why a job cannot be served.
fn refused(text: &str) -> String {
    match offer(text) {
        Ok(_) => panic!("offered:\n{text}"),
        Err(failure) => {
            assert_eq!(failure.exit_code(), 2, "{failure}");
            failure.to_string()
        }
    }
}

#[test]
fn an_offer_comes_back_from_its_text_and_holds_no_secret() {
    let own = "[simulation]\nlost = 0.125\n[federation]\nlisten = \"10.9.8.7:44\"\nquorum = 2\n";
    let sent = offer(&MIXTURE.replace("[federation]\n", own)).unwrap();
    let text = sent.to_json();
    assert_eq!(Offer::from_json(text.as_bytes()).unwrap(), sent);
    for hidden in ["secret", "all.csv", "10.9.8.7", "quorum = 2", "0.125"] {
        assert!(!text.contains(hidden), "{hidden} leaves the coordinator in {text}");
    }
    let job = sent.job().unwrap();
    assert_eq!((job.name.as_str(), job.seed), ("wards", 7));
    assert_eq!(job.federation, Some(Federation::of(2)));
    assert_eq!(sent.names(), ["north", "south"]);
    assert_eq!(sent.schema().columns, ["age", "dose"]);
    assert_ne!(sent.hash(), offer(&MIXTURE.replace("seed = 7", "seed = 8")).unwrap().hash());
}

#[test]
fn an_offer_that_was_touched_is_refused() {
    let text = offer(MIXTURE).unwrap().to_json();
    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        ("rounds = 10", "rounds = 11"),
        ("\"clients\":2", "\"clients\":3"),
        ("\"age\",\"dose\"", "\"age\",\"age\""),
        ("\"version\":1", "\"version\":1,\"more\":0"),
        ("{", "["),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Offer::from_json(text.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert_eq!(error.exit_code(), 4, "{to}: {error}");
    }
    for length in 0..text.len() {
        assert!(Offer::from_json(&text.as_bytes()[..length]).is_err(), "{length} bytes");
    }
    assert!(Offer::from_json(&vec![b' '; whimbrel_engine::OFFER_BYTES_MAX + 1]).is_err());
}

#[test]
fn what_only_a_simulation_can_do_is_not_served() {
    let with = |from: &str, to: &str| {
        assert!(MIXTURE.contains(from), "{from}");
        refused(&MIXTURE.replace(from, to))
    };
    let split = "split = { by = \"iid\", clients = 2 }";
    assert!(with("client = \"ward\"", split).contains("those of a network are real"));
    let examples = "components = 2\ninit = \"examples\"";
    assert!(with("components = 2", examples).contains("sends rows of the clients"));
    assert!(with("seed = 7", "seed = 7\nseeds = 3").contains("one seed"));
    assert!(with("columns = [\"age\", \"dose\"]", "").contains("the columns are unknown"));
    let pooled = MIXTURE.replace("kind = \"fedem\"", "kind = \"em\"");
    let pooled = pooled.split("[uplink]").next().unwrap().replace("step = \"theory\"\n", "");
    assert!(refused(&pooled).contains("in one place"));
    let drawn = "[federation]\nclients = 2\n[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\n\
                 components = 2\n[method]\nkind = \"fedem\"\nrounds = 3\n";
    assert!(refused(drawn).contains("generated rows"));
    let with = |from: &str, to: &str| refused(&LOGISTIC.replace(from, to));
    assert!(with("target", "standardize = true\ntarget").contains("standardises"));
    let theory = LOGISTIC.replace("ridge = 0.1", "ridge = 0");
    let theory = theory.replace("rounds = 10", "rounds = 10\nstep = \"theory\"");
    assert!(refused(&theory).contains("set `average` in [method]"));
    assert!(with("rounds = 10", "rounds = 10\nstop = { patience = 3 }").contains("evaluate = {"));
    assert!(with("rounds = 10", "rounds = 10\nstop = { excess_loss = 1e-3 }").contains("minimum"));
    let own = "[[uplink.for]]\nclients = [\"a\"]\ncodec = \"exact\"\n";
    assert!(refused(&format!("{LOGISTIC}{own}")).contains("choose their own names"));
    let without = MIXTURE.replace("[federation]\nclients = [\"north\", \"south\"]\n", "");
    assert!(refused(&without).contains("no [federation] table"));
    let ghost = "[downlink]\nrule = \"ghost\"\ncodec = \"natural\"\n";
    let ghost = LOGISTIC.replace("kind = \"diana\"", "kind = \"ghost\"") + ghost;
    assert!(refused(&ghost).contains("ghost"));
}

/// Levels are sent with the columns, and a level that is not among them has no place.
#[test]
fn clients_of_a_mixed_table_are_sent_its_levels() {
    let text = MIXTURE
        .replace(
            "columns = [\"age\", \"dose\"]",
            "columns = [\"age\", \"falls\", \"smoker\", \"home\"]",
        )
        .replace("standardize = true\n", "")
        .replace("kind = \"gmm\"", "kind = \"mixture\"")
        .replace("step = \"theory\"\n", "");
    let with = |schema: &str| format!("{text}\n[schema]\n{schema}\n");
    let schema = "falls = { type = \"count\" }\nsmoker = { type = \"yes-no\" }\n\
                  age = { unit = \"years\", min = 0, max = 120 }\n\
                  home = { type = \"category\", levels = [\"flat\", \"house\"] }";
    let sent = offer(&with(schema)).unwrap();
    let sent = Offer::from_json(sent.to_json().as_bytes()).unwrap();
    let list = |levels: &[&str]| levels.iter().map(ToString::to_string).collect::<Vec<_>>();
    let levels = [vec![], vec![], list(&["0", "1"]), list(&["flat", "house"])];
    assert_eq!(sent.schema().levels, levels);
    sent.plan().unwrap().disclosures().unwrap();
    let unknown = refused(&with("home = { type = \"category\" }"));
    assert!(unknown.contains("the levels of column \"home\""), "{unknown}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.csv");
    fs::write(&path, "home,age,smoker,falls\nhouse,61,1,0\n,NA,0,\nflat,50,,2\n").unwrap();
    let Ok(ClientData::Table(table)) = sent.read(&path, "north") else { panic!("refused") };
    let gap = f64::NAN;
    let rows = [61.0, 0.0, 1.0, 1.0, gap, gap, 0.0, gap, 50.0, 2.0, gap, 0.0];
    assert_eq!(format!("{:?}", table.values), format!("{rows:?}"));
    fs::write(&path, "home,age,smoker,falls\nhouse,61,1,0\ntent,50,0,1\n").unwrap();
    let refused = sent.read(&path, "north").err().expect("an unknown level").to_string();
    let part =
        "line 3 (row 2), column \"home\": \"tent\" is not one of the levels [\"flat\", \"house\"]";
    assert!(refused.contains(part), "{refused}");
    fs::write(&path, "home,age,smoker,falls\nhouse,161,1,0\n").unwrap();
    let refused = sent.read(&path, "north").err().expect("an age beyond its limit").to_string();
    let part = "line 2 (row 1), column \"age\": 161 is above `max`, 120 years";
    assert!(refused.contains(part), "{refused}");
    assert!(refused.ends_with("; only the coordinator can change the job"), "{refused}");
}

#[test]
fn a_file_is_checked_against_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| -> PathBuf {
        let path = folder.path().join("own.csv");
        fs::write(&path, text).unwrap();
        path
    };
    let mixture = offer(MIXTURE).unwrap();
    let fails = |offer: &Offer, text: &str, name: &str| match offer.read(file(text), name) {
        Ok(_) => panic!("taken as {name}:\n{text}"),
        Err(failure) => failure.to_string(),
    };
    // Columns in any order, more than needed, with or without the client's own name.
    for text in ["dose,age\n1,2\n3,4\n", "ward,age,note,dose\nnorth,2,a,1\nnorth,4,b,3\n"] {
        let Ok(ClientData::Table(table)) = mixture.read(file(text), "north") else {
            panic!("refused:\n{text}")
        };
        assert_eq!(
            (table.columns.to_vec(), table.values),
            (vec!["age".into(), "dose".into()], vec![2.0, 1.0, 4.0, 3.0])
        );
    }
    let others = "ward,age,dose\nnorth,1,2\nsouth,3,4\n";
    assert!(fails(&mixture, others, "north").contains("row 2 has \"south\""));
    assert!(mixture.read(file("age,dose\n1,2\n"), "east").is_ok(), "who is invited late may join");
    assert!(fails(&mixture, others, "east").contains("row 1 has \"north\""));
    assert!(fails(&mixture, "age\n1\n", "north").contains("no column \"dose\""));
    assert!(fails(&mixture, "age,dose\n1,\n", "north").contains("cannot be used"));
    assert!(fails(&mixture, "age,dose\n1,high\n2,low\n", "north").contains("holds text"));
    let logistic = offer(LOGISTIC).unwrap();
    assert_eq!(logistic.schema().classes(), ["-1", "1"]);
    let one_class = logistic.read(file("age,dose,ill\n1,2,1\n"), "anyone").unwrap();
    let ClientData::Labelled(rows) = one_class else { panic!() };
    assert_eq!(rows.targets, [1.0]);
    assert!(
        fails(&logistic, "age,dose,ill\n1,2,0\n", "anyone")
            .contains("\"0\" is not a declared class")
    );
}

#[test]
fn classes_come_from_a_file_that_the_coordinator_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.csv");
    fs::write(&path, "age,dose,ill\n1,2,no\n3,4,yes\n").unwrap();
    let mut job = parse(LOGISTIC);
    job.paths_mut().into_iter().for_each(|named| named.clone_from(&path));
    let offer = Offer::of(&job, &Facts::on_network(&job).unwrap()).unwrap();
    assert_eq!(offer.schema().classes(), ["no", "yes"]);
    let own = folder.path().join("own.csv");
    fs::write(&own, "ill,dose,age\nyes,1,2\n").unwrap();
    let Ok(ClientData::Labelled(rows)) = offer.read(&own, "me") else { panic!() };
    assert_eq!(rows.targets, [1.0], "`yes` is the second class, also where it is the only one");
}

#[test]
fn a_client_sees_beforehand_what_would_leave_it() {
    let stages = offer(MIXTURE).unwrap().plan().unwrap().disclosures().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage.stage).collect();
    assert_eq!(names, ["columns", "federated k-means", "constants", "fit"]);
    for stage in &stages {
        assert!(!stage.disclosures.is_empty(), "{}", stage.stage);
        for one in &stage.disclosures {
            assert!(one.bytes_max > 0 && one.exposure == Exposure::Aggregate, "{one:?}");
        }
    }
    let answers = |text: &str| {
        let stages = offer(text).unwrap().plan().unwrap().disclosures().unwrap();
        stages.iter().flat_map(|s| &s.disclosures).filter(|d| d.message == "answer").count()
    };
    assert_eq!(answers(MIXTURE), 1);
    assert_eq!(answers(&MIXTURE.replace("evaluate = { every = 2 }\n", "")), 0, "off by default");
}

#[test]
fn the_smallest_group_of_the_job_is_that_of_clusters() {
    let job = MIXTURE.replace("step = \"theory\"\n", "");
    for (group, told) in [(1, "at least 5 rows"), (9, "at least 9 rows")] {
        let offer = offer(&format!("{job}[privacy]\nmin_group = {group}\n")).unwrap();
        let stages = offer.plan().unwrap().disclosures().unwrap();
        let all = stages.iter().flat_map(|stage| &stage.disclosures);
        assert_eq!(all.filter(|d| d.meaning.contains(told)).count(), 1, "{group}");
    }
}

/// What earlier stages delivered comes from the coordinator: it makes no message longer than was shown.
#[test]
fn a_choice_that_the_job_does_not_name_is_refused() {
    assert!(MIXTURE.contains("components = 2\n"));
    let several = MIXTURE.replace("components = 2\n", "components = [2, 3]\n");
    let plan = offer(&several).unwrap().plan().unwrap();
    let last = plan.len() - 1;
    let refused = |chosen: u32| {
        let mut delivered: Vec<_> = (0..last).map(|at| plan.stand_in(at)).collect();
        let choice = delivered.iter_mut().find(|artifact| artifact.kind == "choice").unwrap();
        *choice = Choice::stand_in(chosen);
        let said = plan.build(last, &delivered).err().map(|error| error.to_string());
        said.is_some_and(|said| {
            said.contains("components were chosen, which the job does not name")
        })
    };
    assert!(refused(4) && refused(50) && !refused(2) && !refused(3));
}

#[test]
fn a_served_job_trains_every_client() {
    has(
        &refusal(&MIXTURE.replace("[data]\n", "[data]\nunseen = 0.5\n")),
        "clients of a served job take part with all rows",
    );
}

#[test]
fn a_served_job_says_who_takes_part_and_when_a_round_closes() {
    let federation =
        |keys: &str| -> Job { parse(&MIXTURE.replace("clients = [\"north\", \"south\"]", keys)) };
    let settled = federation("clients = [\"b\", \"a\"]").federation.unwrap();
    assert_eq!(settled.clients, Clients::Named(vec!["a".into(), "b".into()]));
    assert_eq!(Federation { clients: Clients::Number(2), ..settled }, Federation::of(2));
    let job = federation(
        "clients = 5\nquorum = 0.5\ndeadline_s = 30\ndashboard = false\nlisten = \"[::1]:9\"\n\
         heartbeat_s = 2\nmessage_max = 4096",
    );
    let set = job.federation.as_ref().unwrap();
    assert_eq!((set.quorum, set.deadline_s), (Quorum::Share(0.5), Some(30.0)));
    assert_eq!((set.listen.as_str(), &set.dashboard), ("[::1]:9", &None));
    assert_eq!(parse(&job.to_toml()), job);
    for (keys, why) in [
        ("clients = []", "`clients` is empty"),
        ("clients = 0", "not 0"),
        ("clients = [\"a\", \"a\"]", "listed twice"),
        ("clients = [\"a\"]\nquorum = 2", "a quorum of 2 out of 1"),
        ("clients = 2\nquorum = \"most\"", "unknown `quorum`"),
        ("clients = 2\nquorum = 1.5", "not 1.5"),
        ("clients = 2\nlisten = \"here\"", "not \"here\""),
        ("clients = 2\ndashboard = true", "not true"),
        ("clients = 2\ndeadline_s = 0", "not 0"),
        ("clients = 2\ndeadline_s = 1e20", "a number above 0 and at most 31536000"),
        ("clients = [\"a\u{200b}b\"]", "without control or invisible characters"),
        ("quorum = 2", "missing key `clients`"),
    ] {
        let text = MIXTURE.replace("clients = [\"north\", \"south\"]", keys);
        assert!(refusal(&text).contains(why), "{keys}: {}", refusal(&text));
    }
}

#[test]
fn a_client_is_told_the_longest_message_and_nothing_else_of_the_coordinators_settings() {
    let keys = "clients = 2\nlisten = \"10.0.0.1:9\"\nmessage_max = 4096";
    let text = MIXTURE.replace("clients = [\"north\", \"south\"]", keys);
    let told = offer(&text).unwrap().job().unwrap().federation.unwrap();
    assert_eq!(told, Federation { message_max: 4096, ..Federation::of(2) });
}

#[test]
fn a_job_for_a_network_alone_is_not_simulated() {
    let job = parse(&MIXTURE.replace("client = \"ward\"\n", ""));
    let failure = whimbrel_families::load::load(&job).map(|_| ()).unwrap_err();
    assert!(failure.to_string().contains("which client holds a row"), "{failure}");
    Plan::on_network(&job, &Facts::on_network(&job).unwrap()).unwrap();
}

#[test]
fn a_learner_on_a_network_reads_samples_with_the_coordinators_classes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let sample = write("sample.csv", "x,bird\n1,wren\n2,owl\n3,teal\n");
    let text = format!(
        "[federation]\nclients = 2\n[data]\nsource = \"csv\"\npath = {sample:?}\n\
         target = \"bird\"\ntest = 0.5\n[model]\nkind = \"softmax\"\n[method]\n\
         kind = \"fedavg\"\nrounds = 3\n"
    );
    let offer = offer(&text).unwrap();
    let own = write("own.csv", "x,bird\n7,wren\n8,teal\n9,wren\n6,teal\n");
    let ClientData::Samples(samples) = offer.read(&own, "north").unwrap() else {
        panic!("not samples");
    };
    let Targets::Classes { of, count } = &samples.targets else { panic!("not classes") };
    assert!(*count == 3 && of.iter().all(|class| [1, 2].contains(class)), "{of:?}");
    assert_eq!(samples.len() + samples.held_out.test.as_ref().unwrap().len(), 4);
    let odd = write("odd.csv", "x,bird\n7,wren\n8,crow\n");
    let message = offer.read(&odd, "north").map(|_| ()).unwrap_err().to_string();
    let wanted = "line 3 (row 2), column \"bird\": \"crow\" is not a declared class";
    assert!(message.contains(wanted), "{message}");
}
