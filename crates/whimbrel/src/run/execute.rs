//! Execution of one job: from the file to the run's folder.

use super::{Listener, page, search, view};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error};
use whimbrel_data::hash_path;
use whimbrel_engine::journal::names;
use whimbrel_engine::metrics::Row;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{Ending, Limits, Observer, StageRules, run as run_chain};
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result, remedy};
use whimbrel_families::family::RunData;
use whimbrel_families::load::{Loaded, load};
use whimbrel_families::plan::Plan;
use whimbrel_report::RunView;
use whimbrel_runs::{
    DELIVERED, Existing, RunDir, aggregate, best_seed, owner, resolved, take_ending,
};

/// A job to run, with its destination.
pub struct Request<'a> {
    /// The job.
    pub job: Job,
    /// The run's folder; `None` makes a new one in `runs`.
    pub out: Option<&'a Path>,
    /// The treatment of an existing run in the folder.
    pub existing: Existing,
    /// A journal whose losses and late joins are replayed.
    pub replay: Option<&'a Path>,
}

/// The result of a [`Request`].
pub struct CarriedOut {
    /// The job, with the settings chosen by a search.
    pub job: Job,
    /// The run's folder.
    pub dir: RunDir,
    /// The outcome.
    pub done: Executed,
    /// The report, if it could be written.
    pub report: Option<PathBuf>,
}

impl Request<'_> {
    /// Searches if the job asks for it, checks everything, runs the job and writes its report; `None`
    /// if interrupted during the search.
    pub fn carry_out(self, to: &dyn Listener) -> Result<Option<CarriedOut>> {
        let Self { job, out, existing, replay } = self;
        let resume = existing == Existing::Resume;
        let Some(job) = search::settle(job, out, resume, to)? else { return Ok(None) };
        let mut ready = match replay {
            Some(journal) => Ready::replaying(job, journal, to)?,
            None => Ready::new(job)?,
        };
        if let (Existing::Replace, Some(out)) = (existing, out) {
            keep_inputs(&ready.job, replay, out)?;
        }
        let dir = RunDir::open(out, &ready.job.name, existing)?;
        if resume {
            check_resumable(&dir, to)?;
        }
        ready.say("", to);
        let done = ready.execute(&dir, resume, to)?;
        let page = dir.path().join("report.html");
        let report = page::write_or_warn(&ready.job.name, &done.views, &page, to);
        Ok(Some(CarriedOut { job: ready.job, dir, done, report }))
    }
}

/// The defect in the ending of a degenerate fit.
#[cfg(feature = "cli")]
pub fn defect(ending: &[String; 2]) -> Option<&str> {
    (ending[0] == "degenerate").then_some(&ending[1])
}

/// Refuses to replace a run that the job reads from.
pub fn keep_inputs(job: &Job, replay: Option<&Path>, out: &Path) -> Result<()> {
    let Ok(folder) = out.canonicalize() else { return Ok(()) };
    let mut job = job.clone();
    let mut inputs = job.paths_mut().into_iter().map(|path| path.as_path()).chain(replay);
    let Some(input) = inputs.find(|path| owner(path).is_some_and(|run| run.starts_with(&folder)))
    else {
        return Ok(());
    };
    let what = format!("replacing the run would remove {}, which it reads", input.display());
    Err(Error::config(what).hint(remedy::OTHER_FOLDER).into())
}

/// Refuses to resume a finished run; warns if there is no run yet.
fn check_resumable(dir: &RunDir, to: &dyn Listener) -> Result<()> {
    let folder = dir.path().display();
    if let Some(ending) = dir.ending() {
        let error = Error::config(format!("the run in {folder} has ended: {}", ending[0]));
        return Err(error.hint(format!("{}, or {}", remedy::OPEN, remedy::REPLACE)).into());
    }
    if !dir.is_started() {
        to.warning(&format!("{folder} holds no run yet; starting one"));
    }
    Ok(())
}

/// A path quoted for a shell.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as UTF-8, which job files are.
pub fn in_text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::config(format!("{} is not UTF-8, which job files require", path.display()))
            .hint("rename the file or its folder")
            .into()
    })
}

/// Endings of files that hold data.
const DATA_ENDS: [&str; 7] = ["csv", "tsv", "gz", "libsvm", "npy", "parquet", "arrow"];

/// Reads a job and resolves its paths against its folder.
pub fn read_job(path: &Path) -> Result<Job> {
    let is_data = |end: &OsStr| DATA_ENDS.iter().any(|data| end.eq_ignore_ascii_case(data));
    if path.extension().is_some_and(is_data) && path.exists() {
        let what = format!("{} holds data, not a job", path.display());
        let file = shell_word(path);
        let hint = format!("`whimbrel new {file} --out job.toml` writes a job for it");
        return Err(Error::config(what).hint(hint).into());
    }
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(path, &e))?;
    parse_job(&text, &path.display().to_string(), path.parent().unwrap_or(Path::new(".")))
}

/// Reads the text of a job; `name` is its file in messages.
pub fn parse_job(text: &str, name: &str, folder: &Path) -> Result<Job> {
    let mut job = Job::parse(text, name)?;
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
            failure.hint(format!("name an existing file, or {}", remedy::DRAFT)).into()
        }
        std::io::ErrorKind::IsADirectory => failure.hint("name a job file in this folder").into(),
        _ => failure.into(),
    }
}

/// The canonical path of an existing file, else the absolute path.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
}

/// A checked job with its data.
pub struct Ready {
    /// The job.
    pub job: Job,
    loaded: Loaded,
    data: RunData,
    hashes: Vec<(String, String)>,
    /// The plan of the first seed.
    plan: Plan,
}

/// The outcome of a run, or of the runs of several seeds.
pub struct Executed {
    /// The ending.
    pub ending: Ending,
    /// Rounds of the last stage.
    pub rounds: u32,
    /// The content of `summary.json`.
    pub summary: Map<String, Value>,
    /// The runs as a report shows them.
    pub views: Vec<RunView>,
    /// Tables of results for a terminal; none for several seeds.
    pub said: Vec<String>,
}

impl Ready {
    /// Loads the data and checks the job against them.
    pub fn new(job: Job) -> Result<Self> {
        let loaded = load(&job)?;
        let hashes = loaded.files.clone();
        let plan = Plan::new(&job, &loaded)?;
        Ok(Self { data: RunData::of(&loaded), job, loaded, hashes, plan })
    }

    /// The same with the losses, late joins and client ids of a journal. The journal's hash is recorded
    /// with the data, so that a resumed replay reads the same one.
    fn replaying(job: Job, journal: &Path, to: &dyn Listener) -> Result<Self> {
        if job.seeds.is_some() {
            let error = Error::config("a journal belongs to a single seed").hint("remove `seeds`");
            return Err(error.into());
        }
        let text =
            std::fs::read_to_string(journal).map_err(|e| Error::read(journal.display(), &e))?;
        let path = absolute(journal);
        let mut loaded = load(&job)?;
        let mut hashes = loaded.files.clone();
        hashes.push((path.display().to_string(), hash_path(&path)?));
        number(&mut loaded, &job, &text, to)?;
        let plan = Plan::new(&job, &loaded)?.replaying(text);
        Ok(Self { data: RunData::of(&loaded), job, loaded, hashes, plan })
    }

    /// The hash of its data.
    pub fn data_hash(&self) -> &str {
        &self.data.hash
    }

    /// Reports warnings and notes of the plan.
    pub fn say(&self, prefix: &str, to: &dyn Listener) {
        self.plan.warnings().iter().for_each(|w| to.warning(&format!("{prefix}{w}")));
        self.plan.notes().iter().for_each(|n| to.note(&format!("{prefix}{n}")));
    }

    /// Runs all seeds in a folder, and writes everything but the report.
    pub fn execute(&mut self, dir: &RunDir, resume: bool, to: &dyn Listener) -> Result<Executed> {
        dir.record_job(&resolved(&self.job, &self.hashes), resume)?;
        if self.job.seeds.is_none() {
            // A single run takes the rows over.
            let clients = std::mem::take(&mut self.loaded.clients);
            dir.keep_noise(&mut self.plan)?;
            let of = (&self.job, &self.plan, &self.data);
            return self.execute_one(of, clients.into(), dir, resume, to);
        }
        let (mut summaries, mut views, mut rounds) = (Vec::new(), Vec::new(), 0);
        let seeds = self.job.each_seed();
        let mut last = Ending::Converged(format!("all {} seeds", seeds.len()));
        let mut degenerate = Vec::new();
        for job in seeds {
            let seed = dir.seed(job.seed);
            let done = match seed.ending() {
                // A resumed job skips finished seeds.
                Some(ending) if resume => finished_before(&seed, &ending, to)?,
                _ => {
                    seed.record_job(&resolved(&job, &self.hashes), resume)?;
                    let own = if job.data.fresh { Some(load(&job)?) } else { None };
                    let loaded = own.as_ref().unwrap_or(&self.loaded);
                    let plan = Plan::new(&job, loaded)?;
                    let data = RunData::of(loaded);
                    let of = (&job, &plan, &data);
                    self.execute_one(of, (&loaded.clients).into(), &seed, resume, to)?
                }
            };
            views.extend(done.views);
            done.said.iter().for_each(|table| to.note(table));
            match done.ending {
                Ending::Interrupted => return Ok(Executed { views, said: Vec::new(), ..done }),
                Ending::Failed(error) => last = Ending::Failed(error),
                Ending::Degenerate(why) => {
                    degenerate.push(job.seed.to_string());
                    if last.is_over() {
                        last = Ending::Degenerate(why);
                    }
                }
                Ending::Stopped(why) if last.word() == "converged" => last = Ending::Stopped(why),
                Ending::Stopped(_) | Ending::Converged(_) => {}
            }
            rounds = rounds.max(done.rounds);
            summaries.push(done.summary);
        }
        let measures = dir.seeds().first().map_or_else(Vec::new, RunDir::measures);
        let mut summary = aggregate(&summaries, &measures, self.job.fit.spread_over_seeds());
        // Objectives on different data are not comparable.
        if self.job.fit.delivers_best_seed()
            && !self.job.data.fresh
            && let Some(seed) = best_seed(&summaries)
        {
            summary.insert(DELIVERED.into(), seed.into());
            to.note(&view::delivered(seed));
            // The delivered seed is not degenerate.
            if matches!(last, Ending::Degenerate(_)) {
                let seeds = degenerate.join(", ");
                to.warning(&format!("the fits of these seeds are degenerate: {seeds}"));
                summary.insert("degenerate_seeds".into(), degenerate.into());
                let is_it =
                    |one: &&Map<_, _>| one.get("seed").and_then(Value::as_u64) == Some(seed);
                let best = summaries.iter().find(is_it);
                best.into_iter().for_each(|best| take_ending(&mut summary, best));
                last = verdict(&view::ending(&summary));
            }
        }
        view::of_seeds(&mut views, dir, &summary);
        dir.finish_seeds(&summary)?;
        Ok(Executed { ending: last, rounds, summary, views, said: Vec::new() })
    }

    fn execute_one(
        &self,
        (job, plan, data): (&Job, &Plan, &RunData),
        clients: Cow<'_, [(String, ClientData)]>,
        dir: &RunDir,
        resume: bool,
        to: &dyn Listener,
    ) -> Result<Executed> {
        let interrupt = to.interrupt();
        let limits = Limits {
            folder: Some(dir.path()),
            resume,
            checkpoint_every: Duration::from_secs_f64(job.simulation.checkpoint_seconds),
            interrupt: &interrupt,
        };
        let sends = !job.method.kind.pooled;
        let name = match self.job.seeds {
            Some(_) => format!("{}, seed {}", job.name, job.seed),
            None => job.name.clone(),
        };
        let mut watching = Watching { progress: to.watch(&name, plan.rounds(), sends), dir };
        let outcome = run_chain(plan, clients, job.seed, &limits, &mut watching);
        drop(watching);
        let mut outcome = outcome?;
        if let Ending::Failed(error) = outcome.ending {
            outcome.ending = Ending::Failed(job.remedied(error));
        }
        job.fit.findings(&outcome.delivered).iter().for_each(|found| to.note(found));
        let finished = dir.finish(job, data, &outcome, plan)?;
        finished.warnings.iter().for_each(|text| to.warning(&format!("{name}: {text}")));
        finished.notes.iter().for_each(|words| to.note(words));
        let summary = finished.summary;
        let views = view::load_or_warn(dir, to);
        if self.job.seeds.is_some() {
            page::write_or_warn(&name, &views, &dir.path().join("report.html"), to);
        }
        let said = finished.said;
        Ok(Executed { ending: outcome.ending, rounds: outcome.rounds, summary, views, said })
    }
}

/// Forwards progress and writes personal artifacts.
struct Watching<'a> {
    progress: Box<dyn Observer + 'a>,
    dir: &'a RunDir,
}

impl Observer for Watching<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        self.progress.stage(stage, index, of);
    }

    fn exchange(&mut self, done: &Done) {
        self.progress.exchange(done);
    }

    fn ends(&self) -> bool {
        self.progress.ends()
    }

    fn row(&mut self, row: &Row) {
        self.progress.row(row);
    }

    fn client_artifact(&mut self, name: &str, own: Artifact) -> whimbrel_core::Result<()> {
        Ok(self.dir.write_client(name, &own)?)
    }
}

/// Gives clients their ids in a journal; absent clients are dropped.
fn number(loaded: &mut Loaded, job: &Job, journal: &str, to: &dyn Listener) -> Result<()> {
    let names = names(journal)?;
    if names.is_empty() {
        return Err(Error::storage("journal", "it contains no client").into());
    }
    let absent = loaded.renumber(&names, job)?;
    if !absent.is_empty() {
        let those = absent.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let more = if absent.len() > 5 { ", ..." } else { "" };
        to.note(&format!("dropped, absent from the journal: {those}{more}"));
    }
    Ok(())
}

/// The outcome of a seed that an earlier process finished.
fn finished_before(dir: &RunDir, ending: &[String; 2], to: &dyn Listener) -> Result<Executed> {
    let view = view::load(dir, to)?;
    let rounds = view.last("round").unwrap_or(0.0) as u32;
    let (ending, summary) = (verdict(ending), view::summary(dir)?);
    Ok(Executed { ending, rounds, summary, views: vec![view], said: Vec::new() })
}

/// The ending behind the words of a summary.
fn verdict([word, detail]: &[String; 2]) -> Ending {
    match word.as_str() {
        "converged" => Ending::Converged(detail.clone()),
        "degenerate" => Ending::Degenerate(detail.clone()),
        "diverged" => Ending::Failed(Error::numerical(detail.clone())),
        _ => Ending::Stopped(detail.clone()),
    }
}
