//! What people read: help, and what is said when something is wrong. One snapshot each.

use crate::examples;
use crate::support::{Sandbox, fixture, mixture_job};

#[track_caller]
fn snapshot(name: &str, sandbox: &Sandbox, args: &[&str]) {
    let ran = sandbox.run(args);
    let text = format!(
        "$ whimbrel {}\nexit code {}\n{}{}",
        args.join(" "),
        ran.code,
        ran.stdout,
        sandbox.redact(&ran.stderr)
    );
    insta::assert_snapshot!(name, text);
}

#[test]
fn help() {
    let sandbox = Sandbox::new();
    snapshot("help", &sandbox, &["--help"]);
    for command in ["new", "check", "run", "compare", "report", "predict"] {
        snapshot(&format!("help_{command}"), &sandbox, &[command, "--help"]);
    }
    snapshot("help_inspect", &sandbox, &["data", "inspect", "--help"]);
}

const JOB: &str = r#"name = "wards"
seed = 1

[data]
source = "csv"
path = "data.csv"
client = "client"

[model]
kind = "gmm"
components = 3
covariance = "tied"
init = "init.json"

[method]
kind = "fedem"
rounds = 5
"#;

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    sandbox.write("data.csv", &fixture("data.csv"));
    sandbox.write("init.json", &fixture("init-tied.json"));
    sandbox
}

const RUN: [&str; 4] = ["run", "job.toml", "--out", "out"];

/// Each mistake has a hint with the remedy.
#[test]
fn common_mistakes_have_a_remedy() {
    let sandbox = sandbox(&JOB.replace("rounds = 5", "rounds = 5\nstep = 0,05"));
    let says = |args: &[&str], code: i32, words: &[&str]| {
        let ran = sandbox.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
        for word in words {
            assert!(ran.stderr.contains(word), "{args:?}: {word} is not in {}", ran.stderr);
        }
        ran.stderr
    };
    says(&RUN, 2, &["`0,05` is not a number", "hint: numbers have a decimal point: 0.05"]);
    let data =
        says(&["run", "data.csv"], 2, &["holds data", "whimbrel new data.csv --out job.toml"]);
    assert_eq!(data.lines().count(), 2, "{data}");
    says(&["train", "job.toml"], 2, &["'run'"]);
    says(&["trian", "job.toml"], 2, &["'run'"]);
    says(&["job.toml"], 2, &["whimbrel run job.toml"]);
    says(
        &["run", "job.toml", "--rounds", "10"],
        2,
        &["`rounds` is a key of the job file, in [method]"],
    );
    says(&["new", "gone.csv"], 2, &["there is no file gone.csv", "hint: give the path"]);
    says(&["join", "@none", "--data", "data.csv"], 2, &["none: ", "hint: `@FILE` names"]);
    says(&["help", "serv"], 2, &["'serve'"]);
    let logistic = "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"client\"\ntarget = \"a\"\n\
                    [model]\nkind = \"glm\"\nfamily = \"logistic\"\n[method]\nkind = \"newton\"\n";
    sandbox.write("job.toml", logistic);
    says(&RUN, 2, &["did you mean \"binomial\"?"]);
    // The cause before what follows from it.
    let mistyped = JOB.replace("\"fedem\"", "\"dianna\"").replace("rounds", "round");
    sandbox.write("job.toml", &mistyped);
    let said = says(&RUN, 2, &["\"diana\"", "`rounds`"]);
    let at = |part: &str| said.find(part).unwrap_or_else(|| panic!("{part}: {said}"));
    assert!(at("dianna") < at("unknown key `round`"), "{said}");
    assert!(!said.contains("no length of the run"), "{said}");
    let rows = fixture("data.csv");
    let first = rows.lines().nth(1).unwrap();
    let client = first.split(',').next().unwrap();
    let shouted = first.replacen(client, &client.to_uppercase(), 1);
    sandbox.write("data.csv", &rows.replacen(first, &shouted, 1));
    sandbox.write("job.toml", JOB);
    says(&RUN, 0, &["differ by case only: are they the same one?"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    sandbox.write(
        "job.toml",
        &JOB.replace("init = \"init.json\"\n", "")
            .replace("path = \"data.csv\"\nclient = \"client\"\n", "columns = [\"x\", \"y\"]\n")
            .replace("[method]", "[federation]\nclients = [\"a\"]\n\n[method]"),
    );
    let serve = ["serve", "job.toml", "--out", "served", "--listen", &address];
    says(&serve, 2, &["cannot listen on", "another program uses this port", "--listen"]);
}

#[test]
fn a_wrong_key() {
    snapshot("wrong_key", &sandbox(&JOB.replace("components", "componnets")), &RUN);
}

#[test]
fn files_that_are_not_there() {
    snapshot("no_job", &Sandbox::new(), &RUN);
    snapshot("no_data", &sandbox(&JOB.replace("data.csv", "date.csv")), &RUN);
    snapshot("no_init", &sandbox(&JOB.replace("init.json", "start.json")), &RUN);
}

#[test]
fn a_folder_is_no_job() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("job.toml")).unwrap();
    snapshot("job_is_folder", &sandbox, &RUN);
}

#[test]
fn columns_that_are_not_there() {
    snapshot("no_client_column", &sandbox(&JOB.replace("\"client\"", "\"ward\"")), &RUN);
}

#[test]
fn cells_that_are_no_numbers() {
    let sandbox = sandbox(JOB);
    sandbox.write("data.csv", "client,a,b,c\nx,1,2,3\nx,NaN,2,3\ny,1,tall,3\ny,1,2,inf\n");
    snapshot("bad_cells", &sandbox, &RUN);
    sandbox.write("data.csv", "");
    snapshot("empty_file", &sandbox, &RUN);
    sandbox.write("data.csv", "client,a,b,c\n");
    snapshot("no_rows", &sandbox, &RUN);
}

#[test]
fn starts_that_do_not_fit() {
    let sandbox = sandbox(JOB);
    let means = "\"means\": [[0,0,0],[1,1,1],[2,2,2]]";
    let weights = "\"weights\": [0.5,0.25,0.25]";
    let eye = "[[1,0,0],[0,1,0],[0,0,1]]";
    let cases = [
        (
            "init_not_definite",
            format!("{{{weights},{means},\"covariance\":[[1,2,0],[2,1,0],[0,0,1]]}}"),
        ),
        (
            "init_not_symmetric",
            format!("{{{weights},{means},\"covariance\":[[1,2,0],[0,1,0],[0,0,1]]}}"),
        ),
        ("init_ragged", format!("{{{weights},{means},\"covariance\":[[1,0,0],[0,1],[0,0,1]]}}")),
        ("init_flat", format!("{{{weights},{means},\"covariance\":[1,1,1]}}")),
        ("init_weights", format!("{{\"weights\":[0.5,0.1,0.1],{means},\"covariance\":{eye}}}")),
        (
            "init_count",
            format!("{{\"weights\":[0.5,0.5],\"means\":[[0,0,0],[1,1,1]],\"covariance\":{eye}}}"),
        ),
        ("init_no_means", format!("{{{weights},\"covariance\":{eye}}}")),
        ("init_not_json", "weights = [1.0]".to_string()),
    ];
    for (name, text) in cases {
        sandbox.write("init.json", &text);
        snapshot(name, &sandbox, &RUN);
    }
    assert!(!sandbox.path("out").exists(), "a job that cannot start leaves nothing");
}

#[test]
fn clients_that_are_not_there() {
    let job = JOB.to_string() + "participation = { default = 0.5, clients = { nord = 0.9 } }\n";
    snapshot("unknown_client", &sandbox(&job), &RUN);
    let job = JOB.to_string() + "[simulation]\nlate = [{ client = \"up\", round = 2 }]\n";
    snapshot("unknown_late_client", &sandbox(&job), &RUN);
}

#[test]
fn folders_in_use() {
    let sandbox = sandbox(JOB);
    sandbox.ok(&RUN);
    snapshot("out_not_empty", &sandbox, &RUN);
    snapshot("resume_finished", &sandbox, &["run", "job.toml", "--out", "out", "--resume"]);
    snapshot("resume_nowhere", &sandbox, &["run", "job.toml", "--resume"]);
    std::fs::create_dir(sandbox.path("photos")).unwrap();
    sandbox.write("photos/1.jpg", "");
    snapshot("resume_no_run", &sandbox, &["run", "job.toml", "--out", "photos", "--resume"]);
    snapshot("force_no_run", &sandbox, &["run", "job.toml", "--out", "photos", "--force"]);
    snapshot("out_is_file", &sandbox, &["run", "job.toml", "--out", "data.csv"]);
    snapshot("out_below_file", &sandbox, &["run", "job.toml", "--out", "data.csv/run"]);
    snapshot("compare_not_empty", &sandbox, &["compare", "job.toml", "--out", "photos"]);
    assert!(sandbox.path("photos/1.jpg").exists());
    sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
}

#[test]
fn a_resumed_run_must_be_the_same() {
    let sandbox = sandbox(JOB);
    sandbox.ok(&RUN);
    let resume = ["run", "job.toml", "--out", "out", "--resume"];
    std::fs::remove_file(sandbox.path("out/summary.json")).unwrap();
    sandbox.write("job.toml", &(JOB.replace("rounds = 5", "rounds = 6") + "step = 0.5\n"));
    snapshot("resume_other_job", &sandbox, &resume);
    sandbox.write("job.toml", JOB);
    sandbox.write("data.csv", &(fixture("data.csv") + "west,1,1,1\n"));
    snapshot("resume_other_data", &sandbox, &resume);
    sandbox.write("data.csv", &fixture("data.csv"));
    sandbox.ok(&resume);
}

#[test]
fn arguments() {
    let sandbox = sandbox(JOB);
    snapshot("no_threads", &sandbox, &["run", "job.toml", "--threads", "0"]);
    snapshot("out_too_early", &sandbox, &["--out", "out", "run", "job.toml"]);
    snapshot("no_such_command", &sandbox, &["rnu", "job.toml"]);
    snapshot("two_of_a_name", &sandbox, &["compare", "job.toml", "job.toml"]);
    snapshot("not_a_run", &sandbox, &["report", "."]);
    assert!(!sandbox.path("runs").exists());
}

#[test]
fn a_stream_cannot_be_pooled() {
    let job = mixture_job("init = \"moments\"", "kind = \"em\"\nrounds = 5");
    let sandbox = Sandbox::with_job(&job.replace("rows = 40", "stream = true"));
    snapshot("em_stream", &sandbox, &RUN);
}

/// Jobs of the gradient family that cannot be run, by name, with what is replaced in the small one.
#[test]
fn channels_that_cannot_work() {
    let down = "[downlink]\ncodec = { kind = \"dithering\", levels = 1, norm = 2 }\n";
    let with = |line: &str| format!("{down}{line}\n");
    let cases = [
        ("biased_down", examples::JOB.replace(down, "[downlink]\ncodec = \"sign\"\n")),
        ("alpha_above_one", examples::JOB.replace(down, &with("alpha = 1.5"))),
        ("alpha_one", examples::JOB.replace(down, &with("alpha = 1"))),
        ("alpha_zero", examples::JOB.replace(down, &with("alpha = 0"))),
        ("alpha_up_zero", examples::JOB.replace("[downlink]", "alpha = 0\n[downlink]")),
        (
            "too_many_groups",
            examples::JOB
                .replace("\"mcm\"\n", "\"rand-mcm-g\"\n")
                .replace(down, &with("memories = 7")),
        ),
        (
            "other_rule",
            examples::JOB
                .replace("kind = \"mcm\"", "kind = \"sgd\"\nchannels = \"mcm\"")
                .replace(down, &with("rule = \"degraded\"")),
        ),
        (
            "biased_up",
            examples::JOB.replace("[downlink]", "rule = \"memory\"\n[downlink]").replacen(
                "{ kind = \"dithering\", levels = 1, norm = 2 }",
                "\"sign\"",
                1,
            ),
        ),
    ];
    for (name, job) in cases {
        assert_ne!(job, examples::JOB, "{name}");
        let sandbox = examples::sandbox(&job);
        snapshot(name, &sandbox, &RUN);
        assert!(!sandbox.path("out").exists(), "{name}");
    }
}

#[test]
fn an_embedding_of_other_rows() {
    let sandbox = examples::sandbox(examples::JOB);
    sandbox.write("points.f32le", &"\0".repeat(8 * 239));
    snapshot("embedding_rows", &sandbox, &RUN);
}

#[test]
fn a_form_that_a_downlink_cannot_carry() {
    let method = "kind = \"fedem\"\nform = \"pair\"\nchannels = \"artemis\"\nrounds = 5\n[uplink]\n\
        codec = \"dithering\"\n[downlink]\ncodec = \"dithering\"";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", method));
    snapshot("pair_degraded", &sandbox, &RUN);
}

#[test]
fn names_of_clients_that_differ_by_case_are_warned_of() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "hospitals", "--out", "."]);
    let job = sandbox.read("job.toml").replace("\"south\"", "\"North\"");
    sandbox.write("job.toml", &job);
    let ran = sandbox.ok(&["check", "job.toml"]);
    let warning = "clients `North` and `north` differ by case only: are they the same one?";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
}

#[test]
fn a_job_without_clients_is_not_served() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", "kind = \"fedem\""));
    sandbox.fails(
        &["serve", "job.toml", "--out", "out"],
        2,
        "hint: add [federation] with `clients`",
    );
}
