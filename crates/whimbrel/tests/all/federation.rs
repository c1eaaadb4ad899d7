//! `serve` and `join` as processes: the bits of `run`, through kills.

use crate::impute::exhibit;
use crate::support::{Sandbox, one_line};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const NAMES: [&str; 3] = ["east", "north", "west"];
const PATIENCE: Duration = Duration::from_secs(180);

const GMM: &str = "[model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\n\
    evaluate = { every = 5 }\n";

/// The group that `serve` writes into a job without one.
const GROUP: &str = "min_group = 5";

/// Three wards: a file for each, and one with all rows for the simulation.
pub(crate) fn wards(rounds: u32, rest: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\n\n{GMM}rounds = {rounds}\n{rest}\n\
         [uplink]\ncodec = {{ kind = \"dithering\", levels = 4 }}\n\n[privacy]\n{GROUP}\n\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n"
    ));
    write_two_groups(&sandbox, &NAMES, |w| 60 + 20 * w);
    sandbox
}

/// Rows of two groups, distinct in each client: a file per client, and `all.csv` with their names.
pub(crate) fn write_two_groups<N: AsRef<str>>(
    sandbox: &Sandbox,
    names: &[N],
    count: impl Fn(usize) -> usize,
) {
    let mut all = String::from("a,b,ward\n");
    for (w, name) in names.iter().enumerate() {
        let name = name.as_ref();
        let mut own = String::from("a,b\n");
        for i in 0..count(w) {
            let group = f64::from((i * 7 + w) as u32 % 2);
            let wave = |step: usize| ((i * step + 13 * w) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (4.0 * group + wave(31), -3.0 * group + wave(57));
            writeln!(own, "{a},{b}").unwrap();
            writeln!(all, "{a},{b},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
}

/// A process that is killed when it is dropped.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// Kills the process and waits for its end.
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

    /// The exit code after the end; -1 after a signal.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

/// A free port.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "no {what}");
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
    invitations_of(sandbox, NAMES.len())
}

pub(crate) fn invitations_of(sandbox: &Sandbox, clients: usize) -> Vec<(String, String)> {
    let text = || fs::read_to_string(sandbox.path("serve.out")).unwrap_or_default();
    wait("invitations", || text().matches('\n').count() == clients);
    let pair = |line: &str| line.split_once('\t').map(|(n, i)| (n.to_owned(), i.to_owned()));
    text().lines().filter_map(pair).collect()
}

/// A coordinator, and the name and invitation of its first client.
pub(crate) fn served(sandbox: &Sandbox) -> (Process, String, String) {
    let coordinator = serve(sandbox, false);
    let (name, invitation) = invitations(sandbox).swap_remove(0);
    (coordinator, name, invitation)
}

pub(crate) fn join(sandbox: &Sandbox, name: &str, invitation: &str) -> Process {
    // Held-out parts of a few rows count here, as in a simulation.
    join_with(sandbox, name, invitation, &["--min-group", "1"])
}

pub(crate) fn join_with(sandbox: &Sandbox, name: &str, invitation: &str, more: &[&str]) -> Process {
    let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
    let args = ["join", invitation, "--data", &data, "--out", &out, "--yes", "--give-up", "120"];
    Process::start(sandbox, name, &[&args[..], more].concat())
}

pub(crate) fn join_all(sandbox: &Sandbox, invitations: &[(String, String)]) -> Vec<Process> {
    invitations.iter().map(|(name, invitation)| join(sandbox, name, invitation)).collect()
}

/// Waits for the end of the coordinator and its clients.
pub(crate) fn all_end(
    sandbox: &Sandbox,
    coordinator: Process,
    invitations: &[(String, String)],
    clients: Vec<Process>,
) {
    coordinator.ends(sandbox, "serve");
    assert_eq!(invitations.len(), clients.len());
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(sandbox, name);
    }
}

/// Runs all clients to the end of the job.
pub(crate) fn finish(sandbox: &Sandbox, coordinator: Process) {
    let invitations = invitations(sandbox);
    all_end(sandbox, coordinator, &invitations, join_all(sandbox, &invitations));
}

/// Serves the job with all clients to its end.
pub(crate) fn serve_to_end(sandbox: &Sandbox) {
    finish(sandbox, serve(sandbox, false));
}

pub(crate) fn same_model(sandbox: &Sandbox) {
    same_but_for(sandbox, &[]);
}

/// Compares model, journal and metrics with a simulation, except for these metrics.
fn same_but_for(sandbox: &Sandbox, others: &[&str]) {
    sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
    let bytes = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(bytes("served") == bytes("simulated"), "another model than the simulation's");
    for name in NAMES {
        assert!(bytes(&format!("client-{name}")) == bytes("served"), "{name} has another model");
    }
    assert_eq!(sandbox.read("served/journal"), sandbox.read("simulated/journal"));
    let rows = |run: &str| {
        let mut rows = sandbox.timeless_metrics(run);
        rows.iter_mut().for_each(|row| row.retain(|key, _| !others.contains(&&key[..])));
        rows
    };
    assert_eq!(rows("served"), rows("simulated"));
}

/// Clients on a network hold such parts back; a simulation scores them without the rule.
#[test]
fn a_simulation_scores_held_out_parts_below_the_smallest_group() {
    let sandbox = wards(3, "");
    let job = sandbox.read("job.toml");
    sandbox.write("job.toml", &job.replace("client = \"ward\"", "client = \"ward\"\ntest = 0.04"));
    sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
    let last = sandbox.timeless_metrics("simulated").pop().unwrap();
    assert!(last["test_log_likelihood"].as_f64().is_some_and(f64::is_finite), "{last:?}");
}

#[test]
fn a_served_job_ends_in_the_bits_of_a_simulated_one() {
    let sandbox = wards(12, "");
    serve_to_end(&sandbox);
    same_model(&sandbox);
    let told = sandbox.read("north.log");
    assert!(told.contains("Messages that would leave this machine"), "{told}");
    sandbox.ok(&["predict", "client-north", "--data", "north.csv", "--out", "labels.csv"]);
    let status = sandbox.ok(&["status", "served"]);
    assert!(status.stdout.starts_with("wards: converged: "), "{}", status.stdout);
    assert!(sandbox.read("served/report.html").contains("wards"));
    assert!(sandbox.read("served/audit.jsonl").contains("\"enrolled\""));
    // The coordinator knows the stated number of rows.
    let rows = |run: &str| -> Vec<String> {
        let text = sandbox.read(&format!("{run}/clients.csv"));
        let first = |line: &str| line.split(',').take(3).collect::<Vec<_>>().join(",");
        text.lines().map(first).collect()
    };
    assert_eq!(rows("served"), ["client,rows,rounds", "east,60,12", "north,80,12", "west,100,12"]);
    assert_eq!(rows("served"), rows("simulated"));
}

/// Serves a method on wards with two classes, both directions compressed and cohorts drawn, so that
/// messages depend on the server's memory.
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
    write_classes(&sandbox);
    serve_to_end(&sandbox);
    sandbox
}

/// Rows of two classes, distinct in each client: a file per client, and `all.csv` with their names.
pub(crate) fn write_classes(sandbox: &Sandbox) {
    let mut all = String::from("a,b,y,ward\n");
    for (w, name) in NAMES.iter().enumerate() {
        let mut own = String::from("y,a,b\n");
        for i in 0..40 + 20 * w {
            let wave = |step: usize| ((i * step + 13 * w) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (3.0 * wave(31), wave(57));
            // Noise, so that no line separates the classes.
            let y = u8::from(a - b + 2.0 * wave(11) > 0.0);
            writeln!(own, "{y},{a},{b}").unwrap();
            writeln!(all, "{a},{b},{y},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
}

#[test]
fn a_served_gradient_method_ends_in_the_bits_of_a_simulated_one() {
    let sandbox = served_classes("kind = \"mcm\"\nstep = \"1/L\"");
    // A simulation also measures the distance to the solution.
    same_but_for(
        &sandbox,
        &["excess_loss", "excess_relative", "distance2", "memory_gap2", "bits_eval"],
    );
    let summary = sandbox.object("served/summary.json");
    assert!(summary["bits_down"].as_u64().is_some_and(|bits| bits > 0), "{summary:?}");
    // The held-out rows are those of the simulation.
    for key in ["test_loss", "test_accuracy", "test_accuracy_p10", "validation_loss", "train_loss"]
    {
        let simulated = &sandbox.object("simulated/summary.json")[key];
        assert!(summary[key].is_number() && summary[key] == *simulated, "{key}");
    }
    let own = sandbox.read("served/clients.csv");
    let head = own.lines().next().unwrap();
    assert!(head.contains(",loss,test_loss,test_accuracy,"), "{head}");
}

/// Weights stay with the client, whose folder predicts as the simulated client.
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

/// The wards with uploads on a grid, under masks or not.
pub(crate) fn masked_wards(rounds: u32, masks: bool) -> Sandbox {
    let sandbox = wards(rounds, "");
    let job =
        sandbox.read("job.toml").replace("components = 2", "components = 2\ninit = \"moments\"");
    let job = job.replace("{ kind = \"dithering\", levels = 4 }", "\"grid\"");
    sandbox.write("job.toml", &job.replace("[privacy]", &format!("[privacy]\nmasks = {masks}")));
    sandbox
}

/// The model is that of the job without masks, with column statistics and start as masked sums, too.
#[test]
fn a_masked_job_ends_in_the_bits_of_the_simulated_and_of_the_unmasked_one() {
    let by_sums = |masks| {
        let sandbox = masked_wards(8, masks);
        let job = sandbox.read("job.toml").replace("\"moments\"", "\"federated-kmeans\"");
        sandbox.write("job.toml", &format!("{job}\n[data.prepare]\nstandardize = true\n"));
        sandbox
    };
    let sandbox = by_sums(true);
    serve_to_end(&sandbox);
    same_model(&sandbox);
    let told = one_line(&sandbox.read("north.log"));
    assert!(told.contains("in a sum over at least 3 clients"), "{told}");
    for file in ["serve.log", "served/summary.json"] {
        assert!(!sandbox.read(file).contains("not asked for evaluations"), "{file}");
    }
    let why = "there are no figures of single clients: under masks the coordinator learns sums";
    assert!(sandbox.ok(&["status", "served"]).stdout.contains(why));
    for run in ["served", "simulated"] {
        assert!(sandbox.read(&format!("{run}/report.html")).contains(why), "{run}");
    }
    let plain = by_sums(false);
    plain.ok(&["run", "job.toml", "--out", "simulated"]);
    let model =
        |sandbox: &Sandbox| fs::read(sandbox.path("simulated/model/model.safetensors")).unwrap();
    assert!(model(&plain) == model(&sandbox), "masks change the model");
    let figures = |sandbox: &Sandbox| {
        let mut rows = sandbox.timeless_metrics("simulated");
        rows.iter_mut().for_each(|row| row.retain(|key, _| !key.starts_with("bits_")));
        rows
    };
    assert!(figures(&sandbox).len() == 3, "{:?}", figures(&sandbox));
    assert_eq!(figures(&plain), figures(&sandbox));
}

/// A regression is served under masks unless the job says otherwise, and ends in the bits of the simulation
/// without masks.
#[test]
fn a_masked_regression_ends_in_the_bits_of_the_unmasked_one() {
    let job = |privacy: &str| {
        format!(
            "name = \"wards\"\nseed = 7\n[data]\nsource = \"csv\"\npath = \"all.csv\"\n\
             client = \"ward\"\ntarget = \"b\"\n[model]\nkind = \"glm\"\n[method]\n\
             kind = \"newton\"\nerrors = \"clustered\"\n{privacy}\
             [federation]\nclients = [\"west\", \"east\", \"north\"]\n\
             listen = \"127.0.0.1:0\"\ndashboard = false\nheartbeat_s = 1\n"
        )
    };
    let sandbox = wards(1, "");
    sandbox.write("job.toml", &job(&format!("[privacy]\n{GROUP}\n")));
    sandbox.ok(&["run", "job.toml", "--out", "plain"]);
    sandbox.write("job.toml", &job(""));
    serve_to_end(&sandbox);
    let model =
        |of: &str| fs::read(sandbox.path(&format!("{of}/model/model.safetensors"))).unwrap();
    assert!(model("plain") == model("served"), "masks change the model");
    let told = one_line(&sandbox.read("north.log"));
    assert!(told.contains("in a sum over at least 3 clients"), "{told}");
}

#[test]
fn killed_processes_resume_and_end_in_the_same_bits() {
    let sandbox = wards(60, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let start = |at: usize| join(&sandbox, &invitations[at].0, &invitations[at].1);
    let mut clients = join_all(&sandbox, &invitations);
    let exchanges = || fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
    for kill in 0..6usize {
        let before = exchanges();
        wait("something new", || exchanges() != before || coordinator.is_over());
        if coordinator.is_over() {
            break;
        }
        let at = kill % NAMES.len();
        if kill % 2 == 0 {
            drop(coordinator);
            coordinator = serve(&sandbox, true);
        } else if !clients[at].is_over() {
            clients[at].kill();
            clients[at] = start(at);
        }
    }
    all_end(&sandbox, coordinator, &invitations, clients);
    same_model(&sandbox);
}

/// A coordinator has no rows, so their paths do not matter.
#[test]
fn a_moved_run_resumes() {
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
    // All other keys are compared.
    sandbox.write("other.toml", &first.read("job.toml").replace("seed = 7", "seed = 8"));
    let ran = sandbox.run(&["serve", "other.toml", "--out", "served", "--resume"]);
    assert!(ran.code == 2 && ran.stderr.contains("`seed` was 7, now 8"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("data.path"), "{}", ran.stderr);
    finish(&sandbox, serve(&sandbox, true));
    same_model(&sandbox);
}

#[test]
fn a_restarted_client_with_the_model_reports_its_path() {
    let sandbox = wards(3, "");
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    all_end(&sandbox, coordinator, &invitations, join_all(&sandbox, &invitations));
    // As after a kill before the model's files were written.
    let (name, invitation) = &invitations[0];
    fs::remove_dir_all(sandbox.path(&format!("client-{name}")).join("model")).unwrap();
    join(&sandbox, name, invitation).ends(&sandbox, name);
    let said = sandbox.read(&format!("{name}.log"));
    let wanted = format!("the job is over; the model is in client-{name}");
    assert_eq!(said.matches(&wanted).count(), 2, "{said}");
    same_model(&sandbox);
}

#[test]
fn open_enrolment_invites_clients_that_choose_their_names() {
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--open-enrolment", "3"];
    let coordinator = Process::start(&sandbox, "serve", &args);
    let invitations = invitations(&sandbox);
    let invited: Vec<&str> = invitations.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(invited, ["client-1", "client-2", "client-3"]);
    let named: Vec<(String, String)> =
        NAMES.iter().zip(invitations).map(|(name, (_, i))| ((*name).to_owned(), i)).collect();
    let start = |(name, i): &(String, String)| join_with(&sandbox, name, i, &["--name", name]);
    let clients = named.iter().map(start).collect();
    all_end(&sandbox, coordinator, &named, clients);
    same_model(&sandbox);
}

#[test]
fn wrong_invitations_and_files_are_refused() {
    let sandbox = wards(3, "");
    sandbox.fails(&["join", "whimbrel1-abc", "--data", "north.csv"], 2, "is damaged or incomplete");
    sandbox.fails(&["status", "nowhere"], 2, "is not a served run");

    let (_coordinator, name, invitation) = served(&sandbox);
    sandbox.write("wrong.csv", "a,c\n1,2\n");
    let enter = |data, out| ["join", &invitation, "--data", data, "--out", out, "--yes"];
    sandbox.fails(&enter("wrong.csv", "x"), 2, "no column \"b\"");
    // No consent: standard input is closed.
    let declined = &enter("east.csv", "x")[..6];
    sandbox.fails(declined, 5, "no rows, and nothing computed");
    sandbox.fails(declined, 5, "--yes consents without a prompt");
    // The invitation is bound to the key in that folder.
    sandbox.fails(&enter("east.csv", "y"), 4, "this invitation was used with another key");
    let more = sandbox.ok(&["invite", "served", "south"]);
    assert!(more.stdout.starts_with("whimbrel1-"), "{}", more.stdout);
    sandbox.ok(&["revoke", "served", &name]);
    sandbox.fails(&["revoke", "served", "nobody"], 2, "there is no client `nobody`");
    sandbox.fails(&["revoke", "served", &name, "--dead"], 2, "was revoked, which is final");
}

/// Monthly counts of three observers: a file for each, and one with all.
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
    // Only the coordinator's file describes the months.
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
    // The last site was never observed.
    sandbox.write("sites.txt", "s0\ns1\ns2\ns3\ns4\ns5\ns6\ns7\ns8\ns9\n");
    sandbox
}

#[test]
fn a_served_table_ends_in_the_bits_of_a_simulated_one() {
    let sandbox = counts();
    serve_to_end(&sandbox);
    same_model(&sandbox);
    let model = |run: &str| sandbox.object(&format!("{run}/model/model.json"));
    assert_eq!(model("served"), model("simulated"));
    assert_eq!(model("client-east")["unobserved_rows"], serde_json::json!([9]));
    for key in ["holdout_deviance", "baselines", "coverage", "intervals"] {
        let of = |run: &str| sandbox.object(&format!("{run}/summary.json"))[key].clone();
        assert!(!of("served").is_null() && of("served") == of("simulated"), "{key}");
    }
    let answer = sandbox.object("served/summary.json")["answer"].to_string();
    assert!(answer.contains("90 % intervals cover") && !answer.contains("verdict"), "{answer}");
    let page = sandbox.read("served/report.html");
    assert!(page.contains("<dt>Coverage of 90 % intervals</dt>"));
    assert!(page.contains("<pre>whimbrel serve ") && !page.contains("<pre>whimbrel run "));

    // A client imputes its table and knows its observations.
    let args = ["impute", "client-east", "--data", "east.csv", "--out", "own.csv", "--json"];
    let own = sandbox.ok(&args).json();
    assert_eq!(own["observed"], sandbox.read("east.csv").lines().count() - 1);
    sandbox.ok(&["impute", "simulated", "--data", "east.csv", "--out", "same.csv"]);
    assert_eq!(sandbox.read("own.csv"), sandbox.read("same.csv"));
    assert!(sandbox.read("own.csv").contains("\ns1,2,yes,2,"));
    // The coordinator does not know them, despite its own file.
    let ran = sandbox.ok(&["impute", "served", "--out", "all-estimated.csv", "--json"]);
    assert!(ran.stderr.contains("only the clients hold the observations"), "{}", ran.stderr);
    assert!(ran.json()["observed"].is_null());
    let lines = sandbox.read("all-estimated.csv");
    assert_eq!(lines.lines().skip(1).filter(|line| line.contains(",unknown,,")).count(), 50);
    assert!(exhibit(&sandbox, "served", "heat").is_none());
    assert!(exhibit(&sandbox, "served", "series").is_none());
    assert_eq!(sandbox.object("served/summary.json")["baselines"].as_object().unwrap().len(), 3);
}
