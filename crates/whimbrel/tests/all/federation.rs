//! `serve` and `join` as processes: the bits of `run`, through kills.

use crate::impute::exhibit;
use crate::support::Sandbox;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const NAMES: [&str; 3] = ["east", "north", "west"];
const PATIENCE: Duration = Duration::from_secs(180);

const GMM: &str = "[model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\n\
    evaluate = { every = 5 }\n";

/// Three wards: a file for each, and one with all rows for the simulation.
pub(crate) fn wards(rounds: u32, rest: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\n\n{GMM}rounds = {rounds}\n{rest}\n\
         [uplink]\ncodec = {{ kind = \"dithering\", levels = 4 }}\n\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n"
    ));
    let mut all = String::from("a,b,ward\n");
    for (w, name) in NAMES.iter().enumerate() {
        let mut own = String::from("b,a\n");
        for i in 0..60 + 20 * w {
            // Two groups, with a spread that no two rows share.
            let group = f64::from((i * 7 + w) as u32 % 2);
            let wave = |step: usize| ((i * step + 13 * w) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (4.0 * group + wave(31), -3.0 * group + wave(57));
            writeln!(own, "{b},{a}").unwrap();
            writeln!(all, "{a},{b},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
    sandbox
}

/// Processes that do not outlive a failing test.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// Ends it at once, and returns when it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub(crate) fn start(sandbox: &Sandbox, log: &str, args: &[&str]) -> Self {
        Self::spawn(sandbox, log, sandbox.command(args))
    }

    pub(crate) fn spawn(sandbox: &Sandbox, log: &str, mut command: Command) -> Self {
        let file =
            |name: String| File::options().create(true).append(true).open(sandbox.path(&name));
        command.stdout(Stdio::from(file(format!("{log}.out")).unwrap()));
        command.stderr(Stdio::from(file(format!("{log}.log")).unwrap()));
        Self(command.spawn().expect("the program starts"))
    }

    pub(crate) fn ends(mut self, sandbox: &Sandbox, log: &str) {
        let begun = Instant::now();
        let status = loop {
            match self.0.try_wait().unwrap() {
                Some(status) => break status,
                None => {
                    assert!(begun.elapsed() < PATIENCE, "{}", sandbox.read(&format!("{log}.log")))
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{log}: {}", sandbox.read(&format!("{log}.log")));
    }

    /// Its exit code, once it has ended; -1 where a signal ended it.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

/// A port that is free: the listener that found it is gone when a coordinator takes it.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn serve(sandbox: &Sandbox, resume: bool) -> Process {
    let mut args = vec!["serve", "job.toml", "--out", "served"];
    args.extend(resume.then_some("--resume"));
    Process::start(sandbox, "serve", &args)
}

/// The invitations that `serve` printed, by name.
pub(crate) fn invitations(sandbox: &Sandbox) -> Vec<(String, String)> {
    let path = sandbox.path("serve.out");
    wait("the invitations", || {
        fs::read_to_string(&path).is_ok_and(|text| text.matches('\n').count() == NAMES.len())
    });
    let text = sandbox.read("serve.out");
    let pair = |line: &str| line.split_once('\t').map(|(n, i)| (n.to_owned(), i.to_owned()));
    text.lines().filter_map(pair).collect()
}

pub(crate) fn join(sandbox: &Sandbox, name: &str, invitation: &str) -> Process {
    let data = format!("{name}.csv");
    let out = format!("client-{name}");
    // Held-out parts of a few rows count here, as in a simulation.
    let mut args = vec!["join", invitation, "--data", &data, "--out", &out, "--yes"];
    args.extend(["--give-up", "120", "--min-group", "1"]);
    Process::start(sandbox, name, &args)
}

/// The whole job, with clients as they are started by default.
pub(crate) fn finish(sandbox: &Sandbox, coordinator: Process) {
    let clients: Vec<(String, Process)> = invitations(sandbox)
        .into_iter()
        .map(|(name, invitation)| (name.clone(), join(sandbox, &name, &invitation)))
        .collect();
    coordinator.ends(sandbox, "serve");
    for (name, client) in clients {
        client.ends(sandbox, &name);
    }
}

pub(crate) fn same_model(sandbox: &Sandbox) {
    same_but_for(sandbox, &[]);
}

/// The same model, journal and figures, but for these figures.
fn same_but_for(sandbox: &Sandbox, others: &[&str]) {
    sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
    let bytes = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(bytes("served") == bytes("simulated"), "another model than the simulation's");
    for name in NAMES {
        assert!(bytes(&format!("client-{name}")) == bytes("served"), "{name} has another model");
    }
    assert_eq!(sandbox.read("served/journal"), sandbox.read("simulated/journal"));
    let rows = |run: &str| -> Vec<_> {
        let rows = sandbox.metrics(run).into_iter().map(|mut row| {
            row.retain(|figure, _| figure != "seconds" && !others.contains(&&figure[..]));
            row
        });
        rows.collect()
    };
    assert_eq!(rows("served"), rows("simulated"));
}

#[test]
fn a_served_job_ends_in_the_bits_of_a_simulated_one() {
    let sandbox = wards(12, "");
    let coordinator = serve(&sandbox, false);
    finish(&sandbox, coordinator);
    same_model(&sandbox);
    // What a client was told before it agreed, and what it can do afterwards.
    let told = sandbox.read("north.log");
    assert!(told.contains("what would leave this machine:"), "{told}");
    sandbox.ok(&["predict", "client-north", "--data", "north.csv", "--out", "labels.csv"]);
    let status = sandbox.ok(&["status", "served"]);
    assert!(status.stdout.starts_with("wards: finished\n"), "{}", status.stdout);
    assert!(sandbox.read("served/report.html").contains("wards"));
    assert!(sandbox.read("served/audit.jsonl").contains("\"enrolled\""));
    // The coordinator knows how many rows each client stated.
    let rows = |run: &str| -> Vec<String> {
        let text = sandbox.read(&format!("{run}/clients.csv"));
        let first = |line: &str| line.split(',').take(3).collect::<Vec<_>>().join(",");
        text.lines().map(first).collect()
    };
    assert_eq!(rows("served"), ["client,rows,rounds", "east,60,12", "north,80,12", "west,100,12"]);
    assert_eq!(rows("served"), rows("simulated"));
}

/// Both directions compressed and a cohort drawn for each round: what clients are sent depends on
/// what the server remembers of its own messages.
/// Serves and simulates a method on wards with two classes.
fn served_classes(method: &str) -> Sandbox {
    let codec = "codec = { kind = \"dithering\", levels = 2, norm = 2 }";
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 5\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\ntarget = \"y\"\nvalidation = 0.1\ntest = 0.25\n\n\
         [model]\nkind = \"logistic\"\n\n[method]\n{method}\nrounds = 30\nbatch = 10\nparticipation = 0.7\n\
         evaluate = {{ every = 5 }}\n\n[uplink]\n{codec}\n\n[downlink]\n{codec}\n\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n"
    ));
    let mut all = String::from("a,b,y,ward\n");
    for (w, name) in NAMES.iter().enumerate() {
        let mut own = String::from("y,a,b\n");
        for i in 0..40 + 20 * w {
            let wave = |step: usize| ((i * step + 13 * w) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (3.0 * wave(31), wave(57));
            // With noise: no line separates them.
            let y = u8::from(a - b + 2.0 * wave(11) > 0.0);
            writeln!(own, "{y},{a},{b}").unwrap();
            writeln!(all, "{a},{b},{y},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
    let coordinator = serve(&sandbox, false);
    finish(&sandbox, coordinator);
    sandbox
}

#[test]
fn a_served_gradient_method_ends_in_the_bits_of_a_simulated_one() {
    let sandbox = served_classes("kind = \"mcm\"\nstep = \"1/L\"");
    // A simulation solves the problem first, and also asks how far away the solution is.
    same_but_for(&sandbox, &["excess_loss", "distance2", "memory_gap2", "bits_eval"]);
    let summary = sandbox.object("served/summary.json");
    assert!(summary["bits_down"].as_u64().is_some_and(|bits| bits > 0), "{summary:?}");
    // Clients keep the same rows out as in a simulation.
    for key in ["test_loss", "test_accuracy", "test_accuracy_p10", "validation_loss", "train_loss"]
    {
        let simulated = &sandbox.object("simulated/summary.json")[key];
        assert!(summary[key].is_number() && summary[key] == *simulated, "{key}");
    }
    let own = sandbox.read("served/clients.csv");
    let head = own.lines().next().unwrap();
    assert!(head.contains(",loss,test_loss,test_accuracy,"), "{head}");
}

/// Weights stay with the client, whose folder predicts with them as the simulated client does.
#[test]
fn a_served_mixture_leaves_weights_with_the_clients() {
    let sandbox =
        served_classes("kind = \"fedmix\"\ncomponents = 2\nchannels = \"mcm\"\nstep = 0.5");
    same_but_for(&sandbox, &["memory_gap2", "bits_eval"]);
    assert!(!sandbox.path("served/clients").exists());
    for name in NAMES {
        let (data, folder) = (format!("{name}.csv"), format!("client-{name}"));
        sandbox.ok(&["predict", &folder, "--data", &data, "--out", "own.csv", "--force"]);
        let simulated = ["predict", "simulated", "--client", name, "--data", &data];
        sandbox.ok(&[&simulated[..], &["--out", "simulated.csv", "--force"]].concat());
        assert_eq!(sandbox.read("own.csv"), sandbox.read("simulated.csv"), "{name}");
    }
}

#[test]
fn killed_processes_go_on_and_end_in_the_same_bits() {
    let sandbox = wards(60, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let start = |at: usize| join(&sandbox, &invitations[at].0, &invitations[at].1);
    let mut clients: Vec<Process> = (0..NAMES.len()).map(start).collect();
    let exchanges = || fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
    for kill in 0..6usize {
        let before = exchanges();
        wait("something new", || exchanges() != before || coordinator.is_over());
        if coordinator.is_over() {
            break;
        }
        match kill % 2 {
            0 => {
                drop(coordinator);
                coordinator = serve(&sandbox, true);
            }
            _ => {
                let at = kill % NAMES.len();
                if !clients[at].is_over() {
                    clients[at].kill();
                    clients[at] = start(at);
                }
            }
        }
    }
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    same_model(&sandbox);
}

/// A coordinator has no rows: where its machine would have them does not matter.
#[test]
fn a_run_that_was_moved_to_another_folder_goes_on() {
    let first = wards(12, "");
    let mut coordinator = serve(&first, false);
    invitations(&first);
    wait("the registry", || first.path("served/status.json").exists());
    coordinator.kill();
    let sandbox = Sandbox::new();
    let rows = NAMES.map(|name| format!("{name}.csv"));
    for file in rows.iter().map(String::as_str).chain(["job.toml", "all.csv", "serve.out"]) {
        sandbox.write(file, &first.read(file));
    }
    fs::rename(first.path("served"), sandbox.path("served")).unwrap();
    // Everything else is compared.
    sandbox.write("other.toml", &first.read("job.toml").replace("seed = 7", "seed = 8"));
    let ran = sandbox.run(&["serve", "other.toml", "--out", "served", "--resume"]);
    let said =
        ran.stderr.contains("cannot be resumed: ") && ran.stderr.contains("`seed` was 7, now 8");
    assert!(ran.code == 2 && said, "{}: {}", ran.code, ran.stderr);
    assert!(!ran.stderr.contains("data.path"), "{}", ran.stderr);
    let coordinator = serve(&sandbox, true);
    finish(&sandbox, coordinator);
    same_model(&sandbox);
}

#[test]
fn a_client_that_has_the_model_says_where_it_is_however_often_it_is_started() {
    let sandbox = wards(3, "");
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let clients: Vec<Process> =
        invitations.iter().map(|(name, invitation)| join(&sandbox, name, invitation)).collect();
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    // As after a kill before the model's files were written: the folder holds it as it came.
    let (name, invitation) = &invitations[0];
    fs::remove_dir_all(sandbox.path(&format!("client-{name}")).join("model")).unwrap();
    join(&sandbox, name, invitation).ends(&sandbox, name);
    let said = sandbox.read(&format!("{name}.log"));
    let wanted = format!("the job is over; the model is in client-{name}");
    assert_eq!(said.matches(&wanted).count(), 2, "{said}");
    same_model(&sandbox);
}

#[test]
fn open_enrolment_invites_clients_that_bring_their_names() {
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--open-enrolment", "3"];
    let coordinator = Process::start(&sandbox, "serve", &args);
    let invitations = invitations(&sandbox);
    let invited: Vec<&str> = invitations.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(invited, ["client-1", "client-2", "client-3"]);
    let start = |(name, (_, invitation)): (&&str, &(String, String))| {
        let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
        let args = ["join", invitation, "--name", name, "--data", &data, "--out", &out, "--yes"];
        Process::start(&sandbox, name, &args)
    };
    let clients: Vec<Process> = NAMES.iter().zip(&invitations).map(start).collect();
    coordinator.ends(&sandbox, "serve");
    for (name, client) in NAMES.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    same_model(&sandbox);
}

#[test]
fn what_is_wrong_with_an_invitation_or_a_file_is_said() {
    let sandbox = wards(3, "");
    let ran = sandbox.run(&["join", "whimbrel1-abc", "--data", "north.csv"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("this invitation is damaged or incomplete"), "{}", ran.stderr);
    let ran = sandbox.run(&["status", "nowhere"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("is no run that is served"), "{}", ran.stderr);

    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (name, invitation) = &invitations[0];
    sandbox.write("wrong.csv", "a,c\n1,2\n");
    let ran = sandbox.run(&["join", invitation, "--data", "wrong.csv", "--out", "x", "--yes"]);
    assert!(ran.code == 2 && ran.stderr.contains("no column \"b\""), "{}", ran.stderr);
    // Nobody agreed: standard input is closed.
    let ran = sandbox.run(&["join", invitation, "--data", "east.csv", "--out", "x"]);
    assert!(
        ran.code == 5 && ran.stderr.contains("no rows, and nothing computed"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("--yes agrees without being asked"), "{}", ran.stderr);
    // The invitation is bound to the key in that folder.
    let ran = sandbox.run(&["join", invitation, "--data", "east.csv", "--out", "y", "--yes"]);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("this invitation was used with another key"), "{}", ran.stderr);
    let more = sandbox.ok(&["invite", "served", "south"]);
    assert!(more.stdout.starts_with("whimbrel1-"), "{}", more.stdout);
    sandbox.ok(&["revoke", "served", name]);
    assert_eq!(sandbox.run(&["revoke", "served", "nobody"]).code, 2);
    let ran = sandbox.run(&["revoke", "served", name, "--dead"]);
    assert!(ran.code == 2 && ran.stderr.contains("was revoked, and stays so"), "{}", ran.stderr);
    drop(coordinator);
}

/// Counts of three observers at sites, month by month: a file for each, and one of everybody's.
pub(crate) fn counts() -> Sandbox {
    let sandbox = Sandbox::with_job(
        "name = \"birds\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\n\
         client = \"observer\"\nrow = \"site\"\ncolumn = \"month\"\nvalue = \"count\"\n\
         row_labels = \"sites.txt\"\ncolumn_labels = [\"1\", \"2\", \"3\", \"4\", \"5\"]\n\
         holdout = 0.2\nseed = 3\n\n[model]\nkind = \"low-rank\"\nfamily = \"poisson\"\nrank = 1\n\
         lambda = 0.1\neffects = [\"site\", \"half\", \"site:half\"]\n\n[method]\nkind = \"fedmiss\"\nepochs = 8\nbatch = 6\n\
         evaluate = { every = 5 }\n\n[uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n",
    );
    // What describes the months is in the coordinator's file alone.
    let mut all = String::from("observer,site,month,half,count\n");
    for (o, name) in NAMES.iter().enumerate() {
        let mut own = String::from("month,site,count\n");
        for site in 0..9 {
            for month in (1..=5).filter(|month| (site * 5 + month) % 4 != o) {
                let count = (site * month + 3 * o) % 7;
                writeln!(own, "{month},s{site},{count}").unwrap();
                let half = if month < 3 { "early" } else { "late" };
                writeln!(all, "{name},s{site},{month},{half},{count}").unwrap();
            }
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
    // Nobody was at the last one.
    sandbox.write("sites.txt", "s0\ns1\ns2\ns3\ns4\ns5\ns6\ns7\ns8\ns9\n");
    sandbox
}

#[test]
fn a_served_table_ends_in_the_bits_of_a_simulated_one_and_is_completed_by_its_clients() {
    let sandbox = counts();
    let coordinator = serve(&sandbox, false);
    finish(&sandbox, coordinator);
    same_model(&sandbox);
    let model = |run: &str| sandbox.object(&format!("{run}/model/model.json"));
    assert_eq!(model("served"), model("simulated"));
    assert_eq!(model("client-east")["unobserved_rows"], serde_json::json!([9]));
    for key in ["holdout_deviance", "baselines", "coverage", "intervals"] {
        let of = |run: &str| sandbox.object(&format!("{run}/summary.json"))[key].clone();
        assert!(!of("served").is_null() && of("served") == of("simulated"), "{key}");
    }

    // A client fills in its own table, and knows what it observed.
    let args = ["impute", "client-east", "--data", "east.csv", "--out", "own.csv", "--json"];
    let own = sandbox.ok(&args).json();
    assert_eq!(own["observed"], sandbox.read("east.csv").lines().count() - 1);
    sandbox.ok(&["impute", "simulated", "--data", "east.csv", "--out", "same.csv"]);
    assert_eq!(sandbox.read("own.csv"), sandbox.read("same.csv"));
    assert!(sandbox.read("own.csv").contains("\ns1,2,yes,2,"));
    // The coordinator does not, although it has a file that looks like the clients'.
    let ran = sandbox.ok(&["impute", "served", "--out", "all-estimated.csv", "--json"]);
    assert!(ran.stderr.contains("only the clients hold the observations"), "{}", ran.stderr);
    assert!(ran.json()["observed"].is_null());
    let lines = sandbox.read("all-estimated.csv");
    assert_eq!(lines.lines().skip(1).filter(|line| line.contains(",unknown,,")).count(), 50);
    assert!(exhibit(&sandbox, "served", "heat").is_none());
    assert!(exhibit(&sandbox, "served", "series").is_none());
    assert_eq!(sandbox.object("served/summary.json")["baselines"].as_object().unwrap().len(), 2);
}
