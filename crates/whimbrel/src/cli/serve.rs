//! `whimbrel serve`: coordinates a job whose clients are on a network.

use super::args::{LogForm, Serve};
use super::execute::{INTERRUPTED, degenerate, interrupt_flag};
use super::listener::Terminal;
use super::messages::{data, log_messages, note, warning};
use crate::run::execute::{defect, read_job, shell_word};
use crate::run::{page, view};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use whimbrel_core::Error;
use whimbrel_data::hash_file;
use whimbrel_engine::Ending;
use whimbrel_engine::checkpoint::write_privately;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::job::{Clients, Federation};
use whimbrel_families::offer::with_data_paths_of;
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_net::coordinator::{Coordinator, Rules, Setup};
use whimbrel_net::dashboard::{About, Dashboard};
use whimbrel_net::inspection::LOST_IDENTITY;
use whimbrel_net::registry::{Draft, Registry, unhex};
use whimbrel_net::status::Board;
use whimbrel_net::tls::{Identity, fingerprint_of_file, server_config};
use whimbrel_net::{Invitation, Limits};
use whimbrel_runs::{Existing, RunDir, resolved, unseen_data};

/// What a client's folder gets of the run, beside the model.
pub const TOLD: [&str; 2] = ["metrics.jsonl", "summary.json"];
/// The model.
pub const MODEL: [&str; 2] = ["model.json", "model.safetensors"];

/// Where invitations are that standard output has no place for.
const INVITATIONS: &str = "invitations";

/// What a run loses whose clients are never asked how well the model does.
const UNEVALUATED: &str = "the job asks its clients for no evaluations: there will be no objective and \
    no figures of what was held out, and stopping rules that need them never apply; \
    `evaluate = { every = N }` in [method] asks for them";

/// Serves one job until it is done.
pub fn serve_command(args: &Serve) -> Result<u8> {
    start_log(args.log);
    let mut job = read_job(&args.job)?;
    if let (Some(count), Some(federation)) = (args.open_enrolment, &mut job.federation) {
        federation.clients = Clients::Number(count);
    }
    if !job.method.search.is_empty() {
        let error = Error::config(
            "a search runs each candidate to its end, and clients agree to one job",
        )
        .hint("choose with `whimbrel run` where there are data, or take `search` out of [method]");
        return Err(error.into());
    }
    let facts = Facts::on_network(&job)?;
    let offer = Offer::of(&job, &facts)?;
    let plan = Plan::on_network(&job, &facts)?;
    let Some(federation) = job.federation.clone() else {
        return Err(Failure::config("the job has no [federation] table"));
    };
    if let Some(file) = args.invitations.as_deref().filter(|_| !args.resume) {
        check_invitations(file)?;
    }
    let brought = brought(args)?;
    let next_certificate = args.next_cert.as_deref().map(fingerprint_of_file).transpose()?;
    // A service has one command line for its first start and all others.
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
    // A run that goes on has its port from its folder: a process at work there is named first.
    // Otherwise the port comes before anything is removed: its holder may still be at work.
    let resumed = args.resume.then(open).transpose()?;
    let listener = bind(args, &federation)?;
    let dir = resumed.map_or_else(open, Ok)?;
    plan.warnings().iter().for_each(|w| warning(w));
    if !plan.evaluates() {
        warning(UNEVALUATED);
    }
    dir.record_job(&resolved(&recorded(args, &job, dir.path()), &[]), args.resume)?;
    check_bound(args, dir.path())?;
    let identity = brought.map_or_else(|| identity(args, dir.path()), Ok)?;
    let registry = registry(args, dir.path(), &federation, &listener, &identity)?;
    let over = dir.ending();
    if let Some(why) = over.as_deref().filter(|ending| ending.starts_with("failed")) {
        let error = Error::config(format!(
            "there is no model to hand out: the run in {} {why}",
            dir.path().display()
        ))
        .hint("start anew in another folder, or with --force");
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
        board: Board::new(&job.name),
        stop: interrupt_flag(),
    };
    setup.board.change(|status| status.rounds_total = plan.rounds());
    let bound = listener.local_addr().map_err(|e| Error::storage("the listener", e))?.to_string();
    let mut coordinator = Coordinator::start(setup, listener)?;
    dashboard(args, &job, federation.dashboard.as_deref(), dir.path(), &coordinator)?;
    let (reached, folder) = (registry.book().address, dir.path().display());
    match reached == bound {
        true => note(&format!("listening on {bound}; the run is in {folder}")),
        false => note(&format!(
            "listening on {bound}, which clients reach at {reached}; the run is in {folder}"
        )),
    }
    if over.is_none()
        && let Some(code) = run(args, &job, &facts, &plan, &dir, &mut coordinator)?
    {
        return Ok(code);
    }
    // Clients do not wait for the report: it is written after them where there is no space now.
    let written = write_report(&job, &dir);
    if let Err(failure) = &written {
        warning(&format!("{failure}; the report is written after the model is handed out"));
    }
    if !coordinator.deliver(&files(dir.path())?)? {
        return Ok(interrupted(args, &dir));
    }
    if written.is_err() && insist(&coordinator, || write_report(&job, &dir))?.is_none() {
        return Ok(interrupted(args, &dir));
    }
    note(&format!("report: {}", dir.path().join("report.html").display()));
    // Everyone has the model all the same: that it is no fit is for people to judge.
    match dir.ending().as_deref().and_then(defect) {
        Some(why) => degenerate(&job, why).map(|()| 0),
        None => Ok(0),
    }
}

/// The job as it is compared with the one in the run's folder: files of `[data]` may be elsewhere now.
fn recorded(args: &Serve, job: &Job, run: &Path) -> Job {
    let before = std::fs::read_to_string(run.join("job.toml")).ok().filter(|_| args.resume);
    match before.and_then(|text| Job::parse(&text, "job.toml").ok()) {
        Some(before) => with_data_paths_of(job, &before),
        None => job.clone(),
    }
}

fn bind(args: &Serve, federation: &Federation) -> Result<TcpListener> {
    let mut listen = args.listen.clone().unwrap_or_else(|| federation.listen.clone());
    // Any port will do the first time; afterwards clients know it.
    if listen.ends_with(":0")
        && args.resume
        && let Some(run) = args.out.as_deref().filter(|run| Registry::exists(run))
    {
        let port = Registry::open(run)?.book().address;
        let port = port.rsplit_once(':').map_or("0", |(_, port)| port).to_owned();
        listen.truncate(listen.len() - 1);
        listen.push_str(&port);
    }
    TcpListener::bind(&listen)
        .map_err(|e| Failure::config(format!("cannot listen on {listen}: {e}")))
}

/// Runs the job and writes the run's files; a code where there is no model to hand out.
fn run(
    args: &Serve,
    job: &Job,
    facts: &Facts,
    plan: &Plan,
    dir: &RunDir,
    coordinator: &mut Coordinator,
) -> Result<Option<u8>> {
    let outcome = match coordinator.run(plan, &mut ()) {
        Ok(outcome) => outcome,
        Err(_) if interrupt_flag().load(Ordering::Relaxed) => {
            return Ok(Some(interrupted(args, dir)));
        }
        Err(error) => return Err(error.into()),
    };
    // Rows as clients stated them when they enrolled.
    let stated = coordinator.board().watch().borrow().clients.clone();
    let rows = outcome.names.iter().map(|name| stated.get(name)?.rows).collect();
    let run_facts = unseen_data(facts, rows);
    let finish = || dir.finish(job, &run_facts, &outcome, plan);
    let Some(finished) = insist(coordinator, finish)? else {
        return Ok(Some(interrupted(args, dir)));
    };
    if args.json {
        let mut object = finished.summary;
        object.insert("run".into(), dir.path().display().to_string().into());
        data(&format!("{}\n", Value::Object(object)))?;
    }
    let is_over = matches!(outcome.ending, Ending::Failed(_) | Ending::Interrupted);
    if is_over && let Err(failure) = write_report(job, dir) {
        warning(&format!("no report: {failure}"));
    }
    match outcome.ending {
        Ending::Failed(error) => Err(error.into()),
        Ending::Interrupted => Ok(Some(interrupted(args, dir))),
        Ending::Early(why) => {
            note(&format!("stopped after round {}: {why}", outcome.rounds));
            Ok(None)
        }
        Ending::Finished | Ending::Degenerate(_) => Ok(None),
    }
}

/// Writes files, and waits for as long as there is no space; none where the coordinator was told to
/// stop before they were written.
fn insist<T>(coordinator: &Coordinator, mut work: impl FnMut() -> Result<T>) -> Result<Option<T>> {
    match coordinator.write(|| work().map_err(Error::from)) {
        Err(Error::Storage { .. }) if interrupt_flag().load(Ordering::Relaxed) => Ok(None),
        written => Ok(Some(written?)),
    }
}

fn write_report(job: &Job, dir: &RunDir) -> Result<()> {
    let views = vec![view::load(dir, &Terminal)?];
    page::write(&job.name, &views, &dir.path().join("report.html"))?;
    Ok(())
}

/// Shows the run to people, where the job or the command line says so.
fn dashboard(
    args: &Serve,
    job: &Job,
    asked: Option<&str>,
    run: &Path,
    coordinator: &Coordinator,
) -> Result<()> {
    let Some(address) = args.dashboard.as_deref().or(asked).filter(|a| *a != "off") else {
        return Ok(());
    };
    let fault = |e| Failure::config(format!("the dashboard cannot listen on {address}: {e}"));
    let listener = TcpListener::bind(address).map_err(fault)?;
    let local = listener.local_addr().map_err(fault)?;
    let about = About {
        method: job.method.name().into(),
        model: job.fit.describe(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let folder = (!args.open_dashboard).then_some(run);
    let page = Dashboard::new(coordinator.board().clone(), about, folder)?;
    // What is no terminal may be the log of a service, which more people read than may look.
    match page.token_file().filter(|_| !std::io::stderr().is_terminal()) {
        Some(file) => {
            note(&format!("dashboard: http://{local}/; its token is in {}", file.display()))
        }
        None => note(&format!("dashboard: {}", page.link(local))),
    }
    Ok(page.start(listener, coordinator.runtime())?)
}

fn interrupted(args: &Serve, dir: &RunDir) -> u8 {
    note("interrupted; everything is kept, and clients wait");
    note(&format!("resume with: {}", again(args, dir.path())));
    INTERRUPTED
}

/// The command that goes on: what was given and is not kept in the run's folder is given again.
fn again(args: &Serve, run: &Path) -> String {
    let Serve { job, out: _, resume: _, force: _, json, log, listen, address, .. } = args;
    let Serve { dashboard, open_dashboard, cert, key, client_ca, next_cert, .. } = args;
    // Invitations are made once, and a change of certificate or address is kept once it was made.
    let Serve { open_enrolment, invitations: _, valid_days: _, rotate: _, .. } = args;
    let mut line = format!("whimbrel serve {} --out {} --resume", shell_word(job), shell_word(run));
    let mut add = |flag: &str, value: Option<&Path>| {
        if let Some(value) = value {
            line.push_str(&format!(" {flag} {}", shell_word(value)));
        }
    };
    let count = open_enrolment.map(|count| count.to_string());
    add("--open-enrolment", count.as_deref().map(Path::new));
    add("--listen", listen.as_deref().map(Path::new));
    add("--address", address.as_deref().map(Path::new));
    add("--dashboard", dashboard.as_deref().map(Path::new));
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

/// The files that clients get.
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

/// Refuses to go on without a certificate or authorities that the run was begun with, or at another
/// address: leaving them out by mistake would serve under another name, or let strangers'
/// certificates in.
fn check_bound(args: &Serve, run: &Path) -> Result<()> {
    if !args.resume || !Registry::exists(run) {
        return Ok(());
    }
    let book = Registry::open(run)?.book();
    let refuse = |what: &str, hint: &str| Err(Error::config(what).hint(hint).into());
    if args.address.as_ref().is_some_and(|address| *address != book.address) && !args.rotate {
        return refuse(
            &format!("invitations of this run name the address {}", book.address),
            "--rotate goes on with another one: clients that have joined need an invitation with it, \
             from `whimbrel invite RUN NAME --again`",
        );
    }
    if book.brought && args.cert.is_none() {
        return refuse(
            "this run was served with a certificate of its own",
            "give --cert and --key again",
        );
    }
    match (&book.client_ca, authorities(args)?) {
        (Some(_), None) => refuse(
            "this run takes only clients with certificates of the authorities in --client-ca",
            "give --client-ca again",
        ),
        (Some(before), Some(now)) if *before != now && !args.rotate => {
            refuse("--client-ca has other authorities than before", "--rotate goes on with these")
        }
        (None, Some(_)) if !args.rotate => refuse(
            "this run was begun without --client-ca",
            "--rotate goes on with it: clients without such a certificate are shut out",
        ),
        _ => Ok(()),
    }
}

/// SHA-256 of the file with the authorities, in hexadecimal.
fn authorities(args: &Serve) -> Result<Option<String>> {
    Ok(args.client_ca.as_deref().map(hash_file).transpose()?)
}

/// The certificate that was brought, and the authorities, checked before anything is written.
fn brought(args: &Serve) -> Result<Option<Identity>> {
    let brought = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(Identity::bring(cert, key)?),
        _ => None,
    };
    if args.client_ca.is_some() {
        let made = brought.is_none().then(|| Identity::make("check")).transpose()?;
        if let Some(identity) = brought.as_ref().or(made.as_ref()) {
            server_config(identity, args.client_ca.as_deref())?;
        }
    }
    Ok(brought)
}

/// The certificate of a coordinator that brings none, made in the run's folder when the run begins.
fn identity(args: &Serve, run: &Path) -> Result<Identity> {
    let folder = run.join("tls");
    if args.resume && Registry::exists(run) && !args.rotate && Identity::kept(&folder)?.is_none() {
        let what = format!(
            "{LOST_IDENTITY}\nhint: restore tls/ from a copy; where there is none, --rotate goes on with \
             a new identity, and each client needs an invitation with it, from `whimbrel invite RUN NAME \
             --again`"
        );
        return Err(Error::storage(folder.join("identity").display(), what).into());
    }
    Ok(Identity::keep(&folder, "whimbrel coordinator")?)
}

/// The run's registry; a new one invites everyone and says so on standard output.
fn registry(
    args: &Serve,
    run: &Path,
    federation: &Federation,
    listener: &TcpListener,
    identity: &Identity,
) -> Result<Registry> {
    if args.resume && Registry::exists(run) {
        let registry = Registry::open(run)?;
        let book = registry.book();
        let fingerprint = identity.fingerprint();
        let changed = unhex(&book.certificate) != fingerprint;
        if changed && !args.rotate {
            let error =
                Error::config("the certificate is another one than this run's invitations name")
                    .hint(
                        "clients that have not heard of it will not come: announce it first with \
                     --next-cert, then give it with --cert, --key and --rotate",
                    );
            return Err(error.into());
        }
        let address = args.address.clone().unwrap_or_else(|| book.address.clone());
        let client_ca = authorities(args)?;
        if changed || address != book.address || client_ca != book.client_ca {
            registry.moved(&address, &fingerprint, (args.cert.is_some(), client_ca))?;
            note(
                "new invitations name this address and certificate; `whimbrel invite --again` makes \
                  one for a client that has joined",
            );
        }
        let book = registry.book();
        if let Some(first) = book.unused().first() {
            note(&format!(
                "invitations not used so far: {}; `whimbrel invite {} {}` makes a new one in its \
                 place",
                book.unused().join(", "),
                shell_word(run),
                shell_word(Path::new(first))
            ));
        }
        return Ok(registry);
    }
    let local = listener.local_addr().map_err(|e| Error::storage("the listener", e))?;
    let address = args.address.clone().unwrap_or_else(|| local.to_string());
    if args.address.is_none() && local.ip().is_unspecified() {
        warning(&format!(
            "invitations name {address}, which no other machine can reach; give --address HOST:PORT"
        ));
    }
    let draft = Draft::new(&address, &identity.fingerprint())?;
    let mut draft = draft.bound(args.cert.is_some(), authorities(args)?);
    let mut lines = String::new();
    let mut invited = |name: &str, token| {
        let server = identity.fingerprint();
        let invitation = Invitation { address: address.clone(), server, name: name.into(), token };
        lines.push_str(&format!("{name}\t{}\n", invitation.encode()));
    };
    match &federation.clients {
        Clients::Named(names) => {
            for name in names {
                invited(name, draft.invite(name, false, args.valid_days)?);
            }
        }
        Clients::Number(count) => {
            let digits = count.to_string().len();
            for n in 1..=*count {
                let name = format!("client-{n:0digits$}");
                invited(&name, draft.invite(&name, true, args.valid_days)?);
            }
        }
    }
    // Standard output is the summary's, and standard error may be the log of a service.
    let file = args.invitations.clone().or_else(|| args.json.then(|| run.join(INVITATIONS)));
    match file {
        Some(file) => {
            check_invitations(&file)?;
            write_privately(&file, lines.as_bytes())?;
            note(&format!("one invitation for each client is in {}", file.display()));
        }
        None => {
            note("one invitation for each client, to be handed over in private:");
            data(&lines)?;
        }
    }
    // Said before they are good: a process killed here begins anew, and says others.
    Ok(draft.create(run)?)
}

/// Refuses to write invitations over another file; those of a process that was killed before they
/// were good may go.
fn check_invitations(file: &Path) -> Result<()> {
    let is_invitation =
        |line: &str| line.split_once('\t').is_some_and(|(_, i)| Invitation::decode(i).is_ok());
    let is_free = match std::fs::read_to_string(file) {
        Ok(before) => before.lines().all(is_invitation),
        Err(e) => e.kind() == ErrorKind::NotFound,
    };
    match is_free {
        true => Ok(()),
        false => {
            let what = format!("{} is there already, and holds no invitations", file.display());
            Err(Error::config(what).hint("name a new file with --invitations").into())
        }
    }
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

/// Log lines on standard error; `WHIMBREL_LOG` chooses them as `RUST_LOG` does elsewhere.
pub fn start_log(form: LogForm) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("WHIMBREL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // What a command says is not chosen: it is said in every form.
    let said = "whimbrel::cli=info".parse().expect("a valid directive");
    // A closed standard error cannot be reported.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter.add_directive(said))
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    // A second log in one process is refused, and the first one does.
    let _ = match form {
        LogForm::Json => {
            log_messages();
            log.json().try_init()
        }
        LogForm::Text => {
            let colour = std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal();
            log.with_target(false).with_ansi(colour).try_init()
        }
    };
}
