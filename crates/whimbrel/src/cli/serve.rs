//! `whimbrel serve`: coordinates a job whose clients are on a network.

use super::args::{LogForm, Serve};
use super::execute::{INTERRUPTED, degenerate, interrupt_flag};
use super::federation::{check_address, listen_on};
use super::listener::Terminal;
use super::messages::{data, note, start_log, warning};
use super::privacy::{self, Spending};
use super::registration::{
    brought, check_bound, check_invitations, create_registry, identity, reopen_registry,
};
use super::roster::trust_of_coordinator;
use crate::run::execute::{absolute, defect, read_job, shell_word};
use crate::run::{page, view};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::family::RunData;
use whimbrel_families::job::{Clients, Federation};
use whimbrel_families::offer::with_data_paths_of;
use whimbrel_families::plan::{Facts, NO_FIGURES, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_net::Limits;
use whimbrel_net::coordinator::{Coordinator, Rules, Setup};
use whimbrel_net::dashboard::{About, Dashboard, Visits};
use whimbrel_net::durable_run::is_full_disk;
use whimbrel_net::registry::Registry;
use whimbrel_net::status::Board;
use whimbrel_net::tls::{fingerprint_of_file, server_config};
use whimbrel_report::answer;
use whimbrel_runs::{Existing, RunDir, resolved};

/// Files of the run that clients receive besides the model.
pub const TOLD: [&str; 2] = ["metrics.jsonl", "summary.json"];
/// Files of the model.
pub const MODEL: [&str; 2] = ["model.json", "model.safetensors"];

/// Warning for a job without evaluations.
const UNEVALUATED: &str = "clients are not asked for evaluations: the run has no objective and no \
    held-out metrics, and stopping rules that need them never apply; `evaluate = { every = N }` in \
    [method] asks for them";

/// Serves one job until it is done.
pub fn serve_command(args: &Serve) -> Result<u8> {
    check_address(args.address.as_deref(), "--address")?;
    serve(args).map_err(|failure| match failure {
        Failure::Core(error) if is_full_disk(&error) => error
            .hint("free space on this disk and start the command again with --resume: nothing is lost")
            .into(),
        other => other,
    })
}

/// Warns of a fit without figures. Regressions and descriptions have their own.
fn warn_unevaluated(job: &Job, plan: &Plan) {
    let has_figures = plan.evaluates() || job.fit.sends_exact_sums() || plan.private().is_some();
    if !has_figures && plan.rounds() != Some(0) {
        warning(UNEVALUATED);
    }
}

fn serve(args: &Serve) -> Result<u8> {
    start_log(args.log);
    let (job, federation) = read_federation(args)?;
    let facts = Facts::on_network(&job)?;
    let offer = Offer::of(&job, &facts)?;
    let board = Board::new(&job.name);
    let mut plan = Plan::watched(&job, &facts, trust_of_coordinator(&board, &facts.names))?;
    if let Some(file) = args.invitations.as_deref().filter(|_| !args.resume) {
        check_invitations(file)?;
    }
    let brought = brought(args)?;
    let next_certificate = args.next_cert.as_deref().map(fingerprint_of_file).transpose()?;
    // Before invitations are made and anything is written.
    let page = bind_dashboard(args, &federation)?;
    let probes =
        args.probes.as_deref().map(|address| listen_on(address, "--probes")).transpose()?;
    let (dir, listener) = open(args, &job, &federation)?;
    plan.warnings().iter().for_each(|w| warning(w));
    if job.privacy.is_masked() {
        note(NO_FIGURES);
    }
    warn_unevaluated(&job, &plan);
    dir.record_job(&resolved(&recorded(args, &job, dir.path()), &[]), args.resume)?;
    check_bound(args, dir.path())?;
    let identity = brought.map_or_else(|| identity(args, dir.path()), Ok)?;
    let local = listener.local_addr().map_err(|e| Error::storage("the listener", e))?;
    let registry = if args.resume && Registry::exists(dir.path()) {
        reopen_registry(args, dir.path(), &identity)?
    } else {
        create_registry(args, dir.path(), &federation, local, &identity)?
    };
    let ended = dir.ending();
    if ended.is_none() {
        dir.keep_noise(&mut plan)?;
    }
    if let Some([_, why]) = ended.as_ref().filter(|ending| ending[0] == "diverged") {
        let folder = dir.path().display();
        let error = Error::config(format!(
            "there is no model to deliver: the run in {folder} diverged: {why}"
        ))
        .hint("begin a new run in another folder, or with --force");
        return Err(error.into());
    }
    let setup = Setup {
        folder: dir.path().to_path_buf(),
        resume: args.resume,
        offer: offer.to_json().into_bytes(),
        seed: job.seed,
        rules: rules(&federation),
        evaluates: plan.evaluates(),
        limits: limits(&federation),
        tls: server_config(&identity, args.client_ca.as_deref())?,
        next_certificate,
        board,
        stop: interrupt_flag(),
    };
    setup.board.change(|status| status.rounds_total = plan.rounds());
    let mut coordinator = Coordinator::start(setup, listener)?;
    if let Some(listener) = probes {
        Dashboard::probes(coordinator.board().clone())?.start(listener, coordinator.runtime())?;
    }
    let visits = page
        .map(|listener| dashboard(args, (&job, &plan), listener, (&coordinator, dir.path())))
        .transpose()?;
    let (address, bound) = (registry.list().address.clone(), local.to_string());
    let public = if address == bound { String::new() } else { format!(" (clients use {address})") };
    note(&format!("listening on {bound}{public}; the run is in {}", dir.path().display()));
    let mut carry_out = || {
        let code = match ended {
            None => run(args, &job, &facts, &plan, &dir, &mut coordinator)?,
            Some(_) => None,
        };
        code.map_or_else(|| deliver(args, &job, &dir, &mut coordinator), Ok)
    };
    let code = carry_out();
    visits.iter().for_each(|visits| visits.wait());
    code
}

/// Delivers the model and writes the report. On a full disk the report follows the delivery.
fn deliver(args: &Serve, job: &Job, dir: &RunDir, coordinator: &mut Coordinator) -> Result<u8> {
    let mut written = write_report(job, dir);
    if let Err(failure) = &written {
        warning(&format!("{failure}; the report is written after the delivery"));
    }
    if !coordinator.deliver(&files(dir.path())?)? {
        return Ok(interrupted(args, dir));
    }
    if written.is_err() {
        let Some(answer) = write_or_stop(coordinator, || write_report(job, dir))? else {
            return Ok(interrupted(args, dir));
        };
        written = Ok(answer);
    }
    written.iter().filter(|answer| !answer.is_empty()).for_each(|answer| note(answer));
    note(&format!("report: {}", dir.path().join("report.html").display()));
    match dir.ending().as_ref().and_then(defect) {
        Some(why) => degenerate(job, why).map(|()| 0),
        None => Ok(0),
    }
}

/// The job and its `[federation]` table.
fn read_federation(args: &Serve) -> Result<(Job, Federation)> {
    let mut job = read_job(&args.job)?;
    if !job.method.search.is_empty() {
        let error =
            Error::config("a search runs each candidate to its end, and clients agree to one job")
                .hint(
                    "choose with `whimbrel run` on data at hand, or remove `search` from [method]",
                );
        return Err(error.into());
    }
    let Some(federation) = &mut job.federation else {
        let error = Error::config("the job has no [federation] table").hint(
            "add [federation] with `clients`, their names or number; `whimbrel run` simulates the job \
             without one",
        );
        return Err(error.into());
    };
    if let Some(count) = args.open_enrolment {
        federation.clients = Clients::Number(count);
    }
    leave_out(federation, &args.without)?;
    let federation = federation.clone();
    // A run resumes with the rules that it began with.
    let before = args.out.as_ref().filter(|_| args.resume).and_then(|run| job_before(run));
    let privacy = before.unwrap_or_else(|| job.served()).privacy;
    job.privacy.min_group = job.privacy.min_group.or(privacy.min_group);
    job.privacy.masks = job.privacy.masks.or(privacy.masks);
    Ok((job, federation))
}

/// Removes clients from the list of the job.
fn leave_out(federation: &mut Federation, without: &[String]) -> Result<()> {
    let Clients::Named(names) = &mut federation.clients else {
        return match without {
            [] => Ok(()),
            _ => Err(Failure::config(
                "--without takes names of clients, and the job gives only their number",
            )),
        };
    };
    for gone in without {
        let Some(at) = names.iter().position(|name| name == gone) else {
            return Err(Failure::config(format!("--without: the job has no client `{gone}`")));
        };
        names.remove(at);
    }
    Ok(())
}

/// The run's folder and a listener. A resumed run takes its port from its folder, so the folder is
/// opened first; otherwise the port is bound first, before anything is removed.
fn open(args: &Serve, job: &Job, federation: &Federation) -> Result<(RunDir, TcpListener)> {
    // The command line of a service is the same for its first start and all others.
    let is_new = args.resume && args.out.as_deref().is_some_and(|out| !out.exists());
    if is_new {
        warning("there is no run in --out: a new one begins");
    }
    let existing = match (args.resume && !is_new, args.force) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    };
    let open = || RunDir::open(args.out.as_deref(), &job.name, existing);
    let resumed = args.resume.then(open).transpose()?;
    let listener = bind(args, federation)?;
    Ok((resumed.map_or_else(open, Ok)?, listener))
}

/// The job of a run, if its folder has one.
fn job_before(run: &Path) -> Option<Job> {
    let text = std::fs::read_to_string(run.join("job.toml")).ok()?;
    Job::parse(&text, "job.toml").ok()
}

/// The job for the comparison with the run's: files of `[data]` may have moved.
fn recorded(args: &Serve, job: &Job, run: &Path) -> Job {
    match job_before(run).filter(|_| args.resume) {
        Some(before) => with_data_paths_of(job, &before),
        None => job.clone(),
    }
}

fn bind(args: &Serve, federation: &Federation) -> Result<TcpListener> {
    let mut listen = args.listen.clone().unwrap_or_else(|| federation.listen.clone());
    // A port chosen by the system must be kept, since clients know it.
    if listen.ends_with(":0")
        && args.resume
        && let Some(run) = args.out.as_deref().filter(|run| Registry::exists(run))
    {
        let port = Registry::open(run)?.list().address.clone();
        let port = port.rsplit_once(':').map_or("0", |(_, port)| port).to_owned();
        listen.truncate(listen.len() - 1);
        listen.push_str(&port);
    }
    // The default address may belong to another coordinator of this machine; invitations have the
    // address that is used.
    let is_default = args.listen.is_none() && listen == Federation::of(1).listen;
    match TcpListener::bind(&listen) {
        Err(e) if e.kind() == ErrorKind::AddrInUse && is_default && !args.resume => {
            listen_on("127.0.0.1:0", "--listen")
        }
        Err(_) => listen_on(&listen, "--listen"),
        Ok(listener) => Ok(listener),
    }
}

/// Runs the job and writes the run's files; an exit code if there is no model to deliver.
fn run(
    args: &Serve,
    job: &Job,
    facts: &Facts,
    plan: &Plan,
    dir: &RunDir,
    coordinator: &mut Coordinator,
) -> Result<Option<u8>> {
    let mut spending = Spending::new(plan, coordinator.board())?;
    let outcome = match coordinator.run(plan, &mut spending) {
        Ok(outcome) => outcome,
        Err(_) if interrupt_flag().load(Ordering::Relaxed) => {
            return Ok(Some(interrupted(args, dir)));
        }
        Err(error) => return Err(error.into()),
    };
    // Rows as stated at enrolment.
    let stated = coordinator.board().watch().borrow().clients.clone();
    let rows = outcome.names.iter().map(|name| stated.get(name)?.rows).collect();
    let run_facts = RunData::unseen(facts, rows);
    let finish = || dir.finish(job, &run_facts, &outcome, plan);
    let Some(finished) = write_or_stop(coordinator, finish)? else {
        return Ok(Some(interrupted(args, dir)));
    };
    if args.json {
        let mut object = finished.summary;
        object.insert("run".into(), dir.path().display().to_string().into());
        data(&format!("{}\n", Value::Object(object)))?;
    } else {
        finished.said.iter().try_for_each(|table| data(&format!("{table}\n\n")))?;
    }
    let is_over = matches!(outcome.ending, Ending::Failed(_) | Ending::Interrupted);
    if is_over && let Err(failure) = write_report(job, dir) {
        warning(&format!("no report: {failure}"));
    }
    match outcome.ending {
        Ending::Failed(error) => Err(error.into()),
        Ending::Interrupted => Ok(Some(interrupted(args, dir))),
        // The log and the answer say so.
        _ => Ok(None),
    }
}

/// Writes files, and waits while the disk is full; `None` if the coordinator was told to stop.
fn write_or_stop<T>(
    coordinator: &Coordinator,
    mut work: impl FnMut() -> Result<T>,
) -> Result<Option<T>> {
    match coordinator.write(|| work().map_err(Error::from)) {
        Err(Error::Storage { .. }) if interrupt_flag().load(Ordering::Relaxed) => Ok(None),
        written => Ok(Some(written?)),
    }
}

/// Writes the report; the outcome in sentences.
fn write_report(job: &Job, dir: &RunDir) -> Result<String> {
    let views = vec![view::load(dir, &Terminal)?];
    page::write(&job.name, &views, &dir.path().join("report.html"))?;
    Ok(answer(&views))
}

/// Binds the address of the dashboard, if the job or the command line asks for one.
fn bind_dashboard(args: &Serve, federation: &Federation) -> Result<Option<TcpListener>> {
    let asked = args.dashboard.as_deref().or(federation.dashboard.as_deref());
    let Some(address) = asked.filter(|a| *a != "off") else { return Ok(None) };
    Ok(Some(match TcpListener::bind(address) {
        // The address of the job may belong to another coordinator of this machine.
        Err(e) if e.kind() == ErrorKind::AddrInUse && args.dashboard.is_none() => {
            listen_on("127.0.0.1:0", "--dashboard")?
        }
        Err(_) => listen_on(address, "--dashboard")?,
        Ok(listener) => listener,
    }))
}

/// Starts the dashboard.
fn dashboard(
    args: &Serve,
    (job, plan): (&Job, &Plan),
    listener: TcpListener,
    (coordinator, run): (&Coordinator, &Path),
) -> Result<Arc<Visits>> {
    let local = listener.local_addr().map_err(|e| Error::storage("the dashboard", e))?;
    let about = About {
        method: job.method.name().into(),
        model: job.fit.describe(),
        privacy: privacy::line(job, plan)?,
        version: env!("CARGO_PKG_VERSION").into(),
        report: absolute(run).join("report.html").display().to_string(),
    };
    let folder = (!args.open_dashboard).then_some(run);
    let page = Dashboard::new(coordinator.board().clone(), about, folder)?;
    // Without a terminal, standard error may be a log whose readers may not see the token.
    match page.token_file().filter(|_| !std::io::stderr().is_terminal()) {
        Some(file) => {
            note(&format!("dashboard: http://{local}/; its token is in {}", file.display()))
        }
        None => note(&format!("dashboard: {}", page.link(local))),
    }
    Ok(page.start(listener, coordinator.runtime())?)
}

fn interrupted(args: &Serve, dir: &RunDir) -> u8 {
    note("interrupted; all state is saved, and clients wait");
    note(&format!("resume with: {}", again(args, dir.path())));
    INTERRUPTED
}

/// The command that resumes the run, with the options that its folder does not keep.
fn again(args: &Serve, run: &Path) -> String {
    let Serve { job, out: _, resume: _, force: _, json, log, listen, address, .. } = args;
    let Serve { dashboard, probes, open_dashboard, cert, key, client_ca, next_cert, .. } = args;
    // Invitations are made once, and a changed certificate or address is stored.
    let Serve { open_enrolment, without, invitations: _, valid_days: _, rotate: _, .. } = args;
    let mut line = format!("whimbrel serve {} --out {} --resume", shell_word(job), shell_word(run));
    let mut add = |flag: &str, value: Option<&Path>| {
        if let Some(value) = value {
            line.push_str(&format!(" {flag} {}", shell_word(value)));
        }
    };
    let count = open_enrolment.map(|count| count.to_string());
    add("--open-enrolment", count.as_deref().map(Path::new));
    without.iter().for_each(|name| add("--without", Some(Path::new(name))));
    add("--listen", listen.as_deref().map(Path::new));
    add("--address", address.as_deref().map(Path::new));
    add("--dashboard", dashboard.as_deref().map(Path::new));
    add("--probes", probes.as_deref().map(Path::new));
    add("--cert", cert.as_deref());
    add("--key", key.as_deref());
    add("--client-ca", client_ca.as_deref());
    add("--next-cert", next_cert.as_deref());
    add("--log", (*log == LogForm::Json).then_some(Path::new("json")));
    for (flag, given) in [("--open-dashboard", *open_dashboard), ("--json", *json)] {
        if given {
            line.push_str(&format!(" {flag}"));
        }
    }
    line
}

/// The files that clients receive.
fn files(run: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (folder, names) in [(run.join("model"), MODEL), (run.to_path_buf(), TOLD)] {
        for name in names {
            let path = folder.join(name);
            let bytes = std::fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
            files.push((name.to_owned(), bytes));
        }
    }
    Ok(files)
}

fn rules(federation: &Federation) -> Rules {
    Rules {
        quorum: federation.quorum,
        deadline: federation.deadline_s.map(Duration::from_secs_f64),
    }
}

fn limits(federation: &Federation) -> Limits {
    Limits {
        heartbeat: Duration::from_secs_f64(federation.heartbeat_s),
        message_bytes: federation.message_max,
        linger: Duration::from_secs_f64(federation.linger_s),
        ..Limits::default()
    }
}
