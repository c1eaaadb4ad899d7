//! Odd arguments, odd files and odd terminals.

use crate::support::{Sandbox, fixture, mixture_job, number};
use std::path::Path;
use std::process::Stdio;
use whimbrel::parts::core::Key;

const METHOD: &str = "kind = \"fedem\"\nrounds = 10";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    sandbox.write("data.csv", &fixture("data.csv"));
    sandbox
}

/// A column under a usual name is the target of a regression; the job runs as it is written.
#[test]
fn a_table_with_labels_gets_a_regression() {
    let sandbox = Sandbox::new();
    let rows = |classes: usize, client: bool| {
        let mut text = String::from(if client { "who,x1,x2,label\n" } else { "x1,x2,label\n" });
        for i in 0..60 {
            let class = i % classes;
            let who = if client { ["a,", "b,", "c,"][i % 7 % 3] } else { "" };
            let [x1, x2] = [0.1 * (i * 7 % 31) as f64 + class as f64, (i * 11 % 17) as f64];
            text.push_str(&format!("{who}{x1:.1},{x2},k{class}\n"));
        }
        text
    };
    for (classes, client, family) in [(2, true, "binomial"), (3, false, "multinomial")] {
        sandbox.write("rows.csv", &rows(classes, client));
        let job = sandbox.ok(&["new", "rows.csv"]).stdout;
        for wanted in [&format!("family = \"{family}\""), "kind = \"newton\"", "target = \"label\""]
        {
            assert!(job.contains(wanted), "{wanted}: {job}");
        }
        assert_eq!(job.contains("client = \"who\""), client, "{job}");
        sandbox.write("job.toml", &job);
        let summary = sandbox.run_job("out");
        assert_eq!(summary["ending"], "converged", "{summary:?}");
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    // Many values are numbers to predict.
    let many: String = (0..60).map(|i| format!("{},{i}.5\n", i % 7)).collect();
    sandbox.write("rows.csv", &format!("x1,y\n{many}"));
    assert!(sandbox.ok(&["new", "rows.csv"]).stdout.contains("family = \"gaussian\""));
}

/// A text column beside months and one other number labels the rows of a table, whatever its name; where lines
/// repeat its cells, it does not.
#[test]
fn a_draft_finds_the_table_of_a_text_column() {
    let mut stream = Key::root(13).stream();
    let mut rows = String::from("shop,year,month,revenue\n");
    for i in (0..288).filter(|i| i % 9 != 2) {
        let (shop, year, month) = (i / 24, 2019 + i / 12 % 2, 1 + i % 12);
        let revenue = 90.0 + 9.0 * shop as f64 + 5.0 * month as f64 + stream.normal();
        rows += &format!("shop {shop},{year},{month},{revenue:.2}\n");
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    for part in ["row = \"shop\"", "column = [\"year\", \"month\"]", "value = \"revenue\""] {
        assert!(job.contains(part), "{part}: {job}");
    }
    assert_eq!(sandbox.run_job("out")["ending"], "converged");
    sandbox.write("d.csv", &(rows.clone() + &rows[rows.find('\n').unwrap() + 1..]));
    assert!(sandbox.ok(&["new", "d.csv"]).stdout.contains("client = \"shop\""));
}

/// A model of complete rows names those that read gaps.
#[test]
fn missing_cells_point_to_models_that_read_them() {
    for model in [
        "[model]\nkind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"em\"\n",
        "target = \"y\"\n[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\nrounds = 5\n",
    ] {
        let data = "[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n";
        let sandbox = Sandbox::with_job(&format!("name = \"g\"\nseed = 1\n{data}{model}"));
        sandbox.write("d.csv", "site,x,y\na,1,2\na,,3\nb,2,1\nb,0,4\n");
        let ways = "\"mixture\" reads rows with gaps, and \"glm\" leaves them out";
        sandbox.fails(&["run", "job.toml"], 3, ways);
    }
}

#[test]
fn a_reader_may_leave() {
    let sandbox = sandbox();
    sandbox.run_job("out");
    let commands: [&[&str]; 6] = [
        &["new"],
        &["check", "job.toml"],
        &["data", "inspect", "data.csv"],
        &["run", "job.toml", "--out", "piped"],
        &["report", "out", "--json"],
        &["--help"],
    ];
    for args in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = sandbox.command(args);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn nobody_may_listen_at_all() {
    let sandbox = sandbox();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = sandbox.command(&["run", "missing.toml"]);
    let status = command.stdout(Stdio::null()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn messages_have_no_colour_and_no_bar_outside_a_terminal() {
    let sandbox = sandbox();
    for (name, value) in [("NO_COLOR", "1"), ("CLICOLOR", "1")] {
        let mut command = sandbox.command(&["run", "job.toml", "--out", name]);
        let output = command.env(name, value).output().unwrap();
        assert!(output.status.success());
        let all = [output.stdout, output.stderr].concat();
        assert!(!all.contains(&0x1b), "no escape sequences: {}", String::from_utf8_lossy(&all));
    }
}

#[test]
fn new_jobs_can_be_checked_where_they_are() {
    let sandbox = sandbox();
    std::fs::create_dir_all(sandbox.path("jobs/data")).unwrap();
    sandbox.write("jobs/data/rows.csv", &fixture("data.csv"));
    sandbox.ok(&["new", "--out", "generated.toml"]);
    sandbox.ok(&["new", "data.csv", "--out", "beside.toml"]);
    sandbox.ok(&["new", "data.csv", "--out", "jobs/elsewhere.toml"]);
    sandbox.ok(&["new", "jobs/data/rows.csv", "--out", "jobs/below.toml"]);
    assert!(sandbox.read("beside.toml").contains("path = \"data.csv\""));
    assert!(sandbox.read("jobs/below.toml").contains("path = \"data/rows.csv\""));
    for job in ["generated.toml", "beside.toml", "jobs/elsewhere.toml", "jobs/below.toml"] {
        sandbox.ok(&["check", job]);
    }
    assert_eq!(sandbox.run(&["new", "--out", "beside.toml"]).code, 2, "nothing is overwritten");
}

/// What `new` writes for the wards beside this repository's jobs ends where pooled EM does.
#[test]
fn a_new_job_ends_in_the_fit_of_em() {
    let wards = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jobs/wards/wards.csv");
    let sandbox = Sandbox::new();
    std::fs::copy(wards, sandbox.path("wards.csv")).unwrap();
    sandbox.ok(&["new", "wards.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    assert!(job.contains("standardize = true"), "{job}");
    let federated = sandbox.run_job("out");
    let em = job.split("[method]").next().unwrap().to_string() + "[method]\nkind = \"em\"\n";
    sandbox.write("job.toml", &(em + "rounds = 200\n"));
    let pooled = sandbox.run_job("em");
    let gap = number(&federated, "objective") - number(&pooled, "objective");
    assert!(gap.abs() <= 1e-6, "off by {gap:e}");
}

#[test]
fn inspect_finds_the_clients_by_itself() {
    let sandbox = sandbox();
    let seen = sandbox.ok(&["data", "inspect", "data.csv", "--json"]).json();
    assert_eq!(seen["rows"], 240);
    assert_eq!(seen["clients"]["north"], 90);
    let page = sandbox.ok(&["data", "inspect", "data.csv"]).stdout;
    assert!(page.contains("4 clients"), "{page}");
}

#[test]
fn inspect_shows_what_the_clients_of_a_job_hold() {
    let sandbox = Sandbox::with_job(
        "[data]\nsource = \"synthetic-mixture\"\nclients = 20\ndimension = 4\nunseen = 0.2\n\
         test_samples = 30\n[model]\nkind = \"logistic\"\n[method]\nkind = \"sgd\"\nrounds = 2\n",
    );
    let seen = sandbox.ok(&["data", "inspect", "job.toml", "--json"]).json();
    let clients = seen["clients"].as_object().unwrap();
    assert_eq!((clients.len(), &seen["columns"]), (20, &4.into()));
    let unseen = clients.values().filter(|client| client["unseen"] == true);
    assert_eq!(unseen.count(), 4);
    for client in clients.values() {
        let classes: u64 =
            client["classes"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!((client["rows"].as_u64(), client["test"].as_u64()), (Some(classes), Some(30)));
    }
    let page = sandbox.ok(&["data", "inspect", "job.toml"]).stdout;
    assert!(page.contains("20 clients, 4 only evaluated; 4 columns"), "{page}");
    let list = sandbox.ok(&["data", "list"]).stdout;
    assert!(list.contains("synthetic-mixture") && list.contains("pachinko"), "{list}");
    assert!(sandbox.ok(&["data", "list", "--json"]).json()["source"]["leaf"].is_string());
}

#[test]
fn a_client_may_hold_one_row() {
    let sandbox = Sandbox::with_job(
        "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"client\"\n[model]\n\
         kind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"\nrounds = 20\n",
    );
    sandbox.write("data.csv", &(fixture("data.csv") + "alone,0.5,0.5,0.5\n"));
    let summary = sandbox.run_job("out");
    assert_eq!(summary["clients"], 5);
    let clients = sandbox.read("out/clients.csv");
    assert!(clients.contains("alone,1,20,"), "one row, every round: {clients}");
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let sandbox = sandbox();
    let odd = OsStr::from_bytes(b"odd-\xff.csv");
    std::fs::write(sandbox.path("").join(odd), fixture("data.csv")).unwrap();
    let inspect = sandbox.run(&[OsStr::new("data"), OsStr::new("inspect"), odd]);
    assert_eq!(inspect.code, 0, "reading is no problem: {}", inspect.stderr);
    // A job is a text file: it cannot name the file, and must not name another.
    sandbox.fails(&[OsStr::new("new"), odd], 2, "is not UTF-8");
    let out = OsStr::from_bytes(b"out-\xff");
    let run = [OsStr::new("run"), OsStr::new("job.toml"), OsStr::new("--out"), out];
    assert_eq!(sandbox.run(&run).code, 0);
    assert!(sandbox.path("").join(out).join("summary.json").is_file());
}

#[cfg(unix)]
#[test]
fn a_line_break_in_a_files_name_stays_in_it() {
    let job = "name = \"n\"\n[data]\nsource = \"csv\"\npath = \"a\\nb.csv\"\nclient = \"client\"\n\
        [model]\nkind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"\nrounds = 3\n";
    let sandbox = Sandbox::with_job(job);
    sandbox.write("a\nb.csv", &fixture("data.csv"));
    sandbox.run_job("out");
    sandbox.ok(&["run", "out/job.toml", "--out", "again"]);
}

/// The rows are the clients': there is nothing to try, and what they would be asked for is shown.
#[test]
fn a_served_job_is_checked_without_rows() {
    let job = "[data]\nsource = \"csv\"\ncolumns = [\"age\", \"sodium\"]\n\
               [model]\nkind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"\nrounds = 5\n\
               [federation]\nclients = [\"north\", \"south\"]\n";
    let sandbox = Sandbox::with_job(job);
    let ran = sandbox.ok(&["check", "job.toml"]);
    assert!(ran.stdout.contains("clients = [\"north\", \"south\"]"), "{}", ran.stdout);
    assert!(ran.stderr.contains("the number of rows, and averages over all"), "{}", ran.stderr);
    let checked = sandbox.ok(&["check", "job.toml", "--json"]).json();
    assert_eq!((number(&checked, "clients"), number(&checked, "rounds")), (2.0, 5.0));
    let alone = Sandbox::with_job(&job[..job.find("[federation]").unwrap()]);
    let refused = alone.run(&["check", "job.toml"]);
    assert!(refused.stderr.contains("missing key `path` in [data]"), "{}", refused.stderr);
}

#[test]
fn a_file_without_a_feature_gets_no_job() {
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", "x,y\n1,2\n");
    let why = "no column is left to fit a model to\nhint: \"x\": it identifies rows; \"y\": it identifies rows";
    sandbox.fails(&["new", "d.csv", "--out", "job.toml"], 2, why);
    assert!(!sandbox.path("job.toml").exists());
}
