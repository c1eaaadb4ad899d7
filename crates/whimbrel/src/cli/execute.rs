//! `whimbrel run`: one job from its file to its report.

use super::args::Run;
use super::messages::{Progress, data, note, warning};
use super::{report, view};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;
use whimbrel::core::Error;
use whimbrel::engine::{Ending, Limits, run as run_chain};
use whimbrel::job::Job;
use whimbrel::job::build::Plan;
use whimbrel::job::failure::{Failure, Result};
use whimbrel::job::load::{file_hashes, load};
use whimbrel::job::rundir::{Existing, Facts, RunDir, resolved};
use whimbrel::job::spec::MethodKind;
use whimbrel::report::format;

/// The exit code of a run that was interrupted and saved.
pub const INTERRUPTED: u8 = 130;

/// Runs one job file.
pub fn run_command(args: &Run) -> Result<u8> {
    let job = read_job(&args.job)?;
    let existing = match (args.resume, args.force) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    };
    let prepared = Prepared::new(job)?;
    prepared.warnings().iter().for_each(|w| warning(w));
    let dir = RunDir::open(args.out.as_deref(), &prepared.job.name, existing)?;
    if args.resume {
        check_resumable(&dir)?;
    }
    let done = prepared.execute(&dir, args.resume)?;
    let views = [view::load(&dir)?];
    let report = report::write(&views[0].name, &views, &dir.path().join("report.html"))?;
    if args.json {
        let mut object = done.summary;
        object.insert("run".into(), dir.path().display().to_string().into());
        data(&format!("{}\n", Value::Object(object)))?;
    }
    match &done.ending {
        Ending::Failed(error) => {
            note(&format!("what was computed is in {}", report.display()));
            return Err(error.clone().into());
        }
        Ending::Interrupted => {
            note(&format!("interrupted after round {}; the state is saved", done.rounds));
            note(&format!(
                "go on with: whimbrel run {} --out {} --resume",
                shell_word(&args.job),
                shell_word(dir.path())
            ));
            return Ok(INTERRUPTED);
        }
        Ending::Early(why) => note(&format!("stopped after round {}: {why}", done.rounds)),
        Ending::Finished => {}
    }
    if !args.json {
        data(&whimbrel::report::closing_table(&views))?;
    }
    note(&format!("report: {}", report.display()));
    Ok(0)
}

/// Refuses to go on with a run that is over; says so where there is none to go on with.
fn check_resumable(dir: &RunDir) -> Result<()> {
    let folder = dir.path().display();
    if let Some(ending) = dir.ending() {
        let error = Error::config(format!("the run in {folder} is over: {ending}"))
            .hint("`whimbrel report` shows it; --force runs it again");
        return Err(error.into());
    }
    if !dir.is_started() {
        warning(&format!("{folder} holds no run yet: this starts one"));
    }
    Ok(())
}

/// A path as one word of a command line.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as a job file can hold it.
pub fn in_text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::config(format!("{} is not UTF-8, and a job file is", path.display()))
            .hint("rename the file or its folder")
            .into()
    })
}

/// Reads a job and resolves its paths against its folder.
pub fn read_job(path: &Path) -> Result<Job> {
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(path, &e))?;
    let mut job = Job::parse(&text, &path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new("."));
    for named in job.paths_mut() {
        *named = absolute(&folder.join(&*named));
        in_text(named)?;
    }
    Ok(job)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Error::config(format!("{}: {error}", path.display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            failure.hint("`whimbrel new` writes a job to start from").into()
        }
        _ => failure.into(),
    }
}

/// The path without `.` and links where it exists, else only made absolute.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
}

/// A job that can be run: data loaded, everything checked.
pub struct Prepared {
    pub job: Job,
    plan: Plan,
    facts: Facts,
    resolved: String,
    clients: Vec<(String, whimbrel::core::ClientData)>,
}

/// How a run went.
pub struct Executed {
    pub ending: Ending,
    pub rounds: u32,
    pub summary: Map<String, Value>,
}

impl Prepared {
    /// Loads the data and checks the job against them.
    pub fn new(job: Job) -> Result<Self> {
        let resolved = resolved(&job, &file_hashes(&job)?);
        let loaded = load(&job)?;
        let plan = Plan::new(&job, &loaded)?;
        let facts = Facts::of(&loaded);
        Ok(Self { job, plan, facts, resolved, clients: loaded.clients })
    }

    /// The hash of its data.
    pub fn data_hash(&self) -> &str {
        &self.facts.hash
    }

    /// What should be said before it runs.
    pub fn warnings(&self) -> Vec<String> {
        self.plan.warnings()
    }

    /// Runs it in a folder and writes everything but the report.
    pub fn execute(self, dir: &RunDir, resume: bool) -> Result<Executed> {
        dir.settle(&self.resolved, resume)?;
        let interrupt = interrupt_flag();
        let limits = Limits {
            folder: Some(dir.path()),
            resume,
            checkpoint_every: Duration::from_secs_f64(self.job.simulation.checkpoint_seconds),
            interrupt: &interrupt,
        };
        let sends = self.job.method.kind != MethodKind::Em;
        let mut progress = Progress::new(&self.job.name, self.plan.rounds(), sends);
        let outcome = run_chain(&self.plan, self.clients, self.job.seed, &limits, &mut progress);
        progress.done();
        let outcome = outcome?;
        if let Some(theory) = outcome.delivered.iter().find(|a| a.kind == "theory") {
            let constants = theory
                .numbers()
                .map(|(name, value)| format!("{name} = {}", format::number(value, 4)));
            note(&format!(
                "theory, from constants estimated near the start: {}",
                constants.collect::<Vec<_>>().join(", ")
            ));
        }
        let repairs = outcome.last.as_ref().and_then(|row| row.number("repairs")).unwrap_or(0.0);
        if repairs > 0.0 {
            warning(&format!("{repairs} values had to be clipped to stay in the domain of T"));
        }
        let summary = dir.finish(&self.job, &self.facts, &outcome)?;
        Ok(Executed { ending: outcome.ending, rounds: outcome.rounds, summary })
    }
}

/// A flag that the first Ctrl-C sets; the second ends the process at once.
fn interrupt_flag() -> Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    static HANDLER: Once = Once::new();
    let flag = FLAG.get_or_init(|| Arc::new(AtomicBool::new(false))).clone();
    HANDLER.call_once(|| {
        let seen = flag.clone();
        let set = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(INTERRUPTED));
            }
        });
        if let Err(e) = set {
            warning(&format!("Ctrl-C will not save the state: {e}"));
        }
    });
    flag
}
