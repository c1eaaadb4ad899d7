//! Job files.

use super::by_methods;
use super::progress::{Callback, Progress, Watch};
use super::run::Run;
use crate::run::{Request, parse_job, read_job};
use std::ops::ControlFlow;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_families::failure::{Failure, Result, remedy};
use whimbrel_families::plan::Minima;
use whimbrel_runs::Existing;

/// Adds the methods and the keys of the job file that carry out the remedies in a hint.
fn by_keys(failure: Failure) -> Failure {
    by_methods(failure).with_ways(&remedy::KEYS)
}

/// A job file that was read and checked.
///
/// ```
/// let text = r#"
///     [data]
///     source = "mixture"
///     [model]
///     kind = "gmm"
///     components = 3
///     [method]
///     kind = "fedem"
///     rounds = 20
/// "#;
/// let run = whimbrel::Job::parse(text)?.run()?;
/// assert_eq!(run.rounds(), 20);
/// assert!(run.figure("objective").is_some());
/// # Ok::<(), whimbrel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Job(whimbrel_families::Job);

impl Job {
    /// Reads a file. Its paths are relative to its folder.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        read_job(path.as_ref()).map(Self).map_err(by_keys)
    }

    /// Reads text. Its paths are relative to the working directory.
    pub fn parse(text: &str) -> Result<Self> {
        parse_job(text, "the job", Path::new(".")).map(Self).map_err(by_keys)
    }

    /// The job file with every default written out.
    pub fn to_toml(&self) -> String {
        self.0.to_toml()
    }

    /// Replaces the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = seed;
        self
    }

    /// Runs the job in memory; nothing is written.
    pub fn run(&self) -> Result<Run> {
        self.run_with(|_| ControlFlow::Continue(()))
    }

    /// Runs in memory with a callback after each round and each evaluation, the first at round 0. `Break`
    /// ends the fit there, and it is returned as it stands.
    pub fn run_with(
        &self,
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Run> {
        let watch: &mut Watch<'_> = &mut watch;
        Run::in_memory(self.0.clone(), Minima::Solved, str::to_owned, watch).map_err(by_keys)
    }

    /// Runs into a new folder, as `whimbrel run` does: checkpoints, journal, model and report.
    pub fn run_in(&self, folder: impl AsRef<Path>) -> Result<Run> {
        self.run_in_with(folder, |_| ControlFlow::Continue(()))
    }

    /// Runs into a new folder with a callback after each round and each evaluation. `Break` saves the
    /// state and is an error; [`resume`](Self::resume) continues the run.
    pub fn run_in_with(
        &self,
        folder: impl AsRef<Path>,
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Run> {
        self.carry_out(folder.as_ref(), Existing::Refuse, &mut watch)
    }

    /// Resumes the interrupted run in a folder.
    pub fn resume(&self, folder: impl AsRef<Path>) -> Result<Run> {
        self.resume_with(folder, |_| ControlFlow::Continue(()))
    }

    /// Resumes with a callback after each round and each evaluation.
    pub fn resume_with(
        &self,
        folder: impl AsRef<Path>,
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Run> {
        self.carry_out(folder.as_ref(), Existing::Resume, &mut watch)
    }

    fn carry_out(&self, folder: &Path, existing: Existing, watch: &mut Watch<'_>) -> Result<Run> {
        let request = Request { job: self.0.clone(), out: Some(folder), existing, replay: None };
        let done = request.carry_out(&Callback::new(watch)).map_err(by_keys)?;
        match done.map(|done| done.done.ending) {
            Some(Ending::Failed(error)) => Err(by_keys(error.into())),
            None | Some(Ending::Interrupted) => {
                let what = format!("the run in {} was stopped", folder.display());
                Err(Error::config(what).hint("`resume` continues it").into())
            }
            Some(_) => Run::open(folder),
        }
    }
}
