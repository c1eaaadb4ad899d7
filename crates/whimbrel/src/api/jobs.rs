//! Job files.

use super::run::{Progress, Run, Silent, Watch};
use crate::run::{Listener, Request, parse_job, read_job};
use std::ops::ControlFlow;
use std::path::Path;
use whimbrel::core::Error;
use whimbrel::families::Job as Asked;
use whimbrel::families::failure::Result;
use whimbrel::runs::Existing;

/// A job file, read and checked.
///
/// ```
/// let text = "[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\ncomponents = 3\n\
///             [method]\nkind = \"fedem\"\nrounds = 20\n";
/// let run = whimbrel::Job::parse(text)?.run()?;
/// assert_eq!(run.rounds(), 20);
/// assert!(run.figure("objective").is_some());
/// # Ok::<(), whimbrel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Job(Asked);

impl Job {
    /// Reads a file; what it names is relative to its folder.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        read_job(path.as_ref()).map(Self)
    }

    /// Reads text; what it names is relative to the working folder.
    pub fn parse(text: &str) -> Result<Self> {
        parse_job(text, "the job", Path::new(".")).map(Self)
    }

    /// With every default written out.
    pub fn to_toml(&self) -> String {
        self.0.to_toml()
    }

    /// With another seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = seed;
        self
    }

    /// Runs it in memory: nothing is written.
    pub fn run(&self) -> Result<Run> {
        self.run_with(|_| ControlFlow::Continue(()))
    }

    /// The same, with a callback after every round; `Break` ends the run there.
    pub fn run_with(&self, mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()>) -> Result<Run> {
        let watch: &mut Watch<'_> = &mut watch;
        Run::of(self.0.clone(), watch)
    }

    /// Runs it into a new folder, as `whimbrel run` does: with checkpoints, journal and report.
    pub fn run_in(&self, folder: impl AsRef<Path>) -> Result<Run> {
        self.carry_out(folder.as_ref(), Existing::Refuse, &Silent::default())
    }

    /// Goes on with a run that was interrupted.
    pub fn resume(&self, folder: impl AsRef<Path>) -> Result<Run> {
        self.carry_out(folder.as_ref(), Existing::Resume, &Silent::default())
    }

    fn carry_out(&self, folder: &Path, existing: Existing, to: &dyn Listener) -> Result<Run> {
        let (job, out) = (self.0.clone(), Some(folder));
        let done = Request { job, out, existing, replay: None }.carry_out(to)?;
        match done {
            Some(_) => Run::open(folder),
            None => Err(Error::config("the run was stopped").into()),
        }
    }
}
