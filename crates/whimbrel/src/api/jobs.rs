//! Job files.

use super::by_methods;
use super::progress::{Callback, Progress, Watch};
use super::run::Run;
use crate::run::{Request, parse_job, read_job};
use std::ops::ControlFlow;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_families::failure::Result;
use whimbrel_families::plan::Minima;
use whimbrel_runs::Existing;

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
        read_job(path.as_ref()).map(Self)
    }

    /// Reads text. Its paths are relative to the working directory.
    pub fn parse(text: &str) -> Result<Self> {
        parse_job(text, "the job", Path::new(".")).map(Self)
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

    /// Runs in memory with a callback after every round; `Break` stops the run after that round.
    pub fn run_with(
        &self,
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Run> {
        let watch: &mut Watch<'_> = &mut watch;
        Run::in_memory(self.0.clone(), Minima::Solved, watch)
    }

    /// Runs into a new folder, as `whimbrel run` does: checkpoints, journal, model and report.
    pub fn run_in(&self, folder: impl AsRef<Path>) -> Result<Run> {
        self.run_in_with(folder, |_| ControlFlow::Continue(()))
    }

    /// Runs into a new folder with a callback after every round. After `Break` the state is saved,
    /// and [`resume`](Self::resume) continues the run.
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

    /// Resumes with a callback after every round.
    pub fn resume_with(
        &self,
        folder: impl AsRef<Path>,
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<Run> {
        self.carry_out(folder.as_ref(), Existing::Resume, &mut watch)
    }

    fn carry_out(&self, folder: &Path, existing: Existing, watch: &mut Watch<'_>) -> Result<Run> {
        let request = Request { job: self.0.clone(), out: Some(folder), existing, replay: None };
        let done = request.carry_out(&Callback::new(watch)).map_err(by_methods)?;
        match done.map(|done| done.done.ending) {
            Some(Ending::Failed(error)) => Err(error.into()),
            None | Some(Ending::Interrupted) => {
                let what = format!("the run in {} was stopped", folder.display());
                Err(Error::config(what).hint("`resume` continues it").into())
            }
            Some(_) => Run::open(folder),
        }
    }
}
