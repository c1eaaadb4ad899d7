//! The interface between a kind of mixture and the EM methods.

use super::keys::Init;
use super::prepare::Preparing;
use super::start::InitFile;
use crate::failure::Result;
use crate::family::{Ended, ModelUse, Predicted, RunData};
use crate::job::Job;
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts};
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::path::PathBuf;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_data::{ColumnType, Input};
use whimbrel_job::reader::Source;
use whimbrel_job::writer::Writer;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::prepare::Affine;
use whimbrel_models::MixtureModel;

/// The keys of `[model]` for one kind of mixture: reading, checking and planning.
pub trait MixtureKeys: MixtureUse + Clone + PartialEq + Debug + Send + Sync + 'static {
    type Model: MixtureModel;
    /// Whether surrogates can stand for rows: all columns are numbers without gaps.
    const SURROGATES: bool;

    fn candidates(&self) -> Candidates<'_>;
    /// The path of the start, if it is a file.
    fn init_path(&mut self) -> Option<&mut PathBuf>;
    fn with_components(&self, components: usize) -> Self;
    /// Takes the types of columns in `[schema]`, if they matter.
    fn take_types(&mut self, _: Vec<(String, ColumnType)>) {}
    /// The mixture over the columns of the data.
    fn over(&self, _: &Facts) -> Result<Self> {
        Ok(self.clone())
    }
    /// The kind of mixture and the form of its covariances, in words.
    fn words(&self) -> (&'static str, &'static str);
    /// The model's name for readers.
    fn title(&self) -> &'static str;
    fn write(&self, out: &mut Writer);
    /// Reports conflicts with other tables.
    fn check(&self, job: &Job, source: &Source<'_>);
    fn layout(&self) -> Layout;
    /// The preparation of the rows before the fit.
    fn preparing(&self, common: &Common, facts: &Facts, rows: Option<&Loaded>)
    -> Result<Preparing>;
    /// The model and its start for rows of this width, standardised by `affine` if given.
    fn model_and_start(
        &self,
        job: &Job,
        columns: usize,
        file: Option<&(PathBuf, InitFile)>,
        affine: Option<&Affine>,
    ) -> whimbrel_core::Result<(Self::Model, MixtureStart)>;
    /// Copies the settings that clients need from the start's file, which they do not receive.
    fn keep_of_file(&mut self, _: &Self::Model) {}
}

/// The use of a fitted mixture.
pub trait MixtureUse {
    /// Keys of `model.json` beside the tensors.
    fn model_keys(&self, data: &RunData) -> Map<String, Value>;
    /// The section of the report.
    fn section(&self, model: &Artifact, ended: &Ended<'_>) -> Option<Section>;
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted>;
}

/// The mixtures among which a fit chooses.
pub struct Candidates<'a> {
    pub init: &'a Init,
    /// Numbers of components to try.
    pub components: &'a [usize],
    /// Starts for each number of components.
    pub starts: u32,
}

impl Candidates<'_> {
    /// Whether a stage before the fit chooses among several candidates.
    pub fn are_several(&self) -> bool {
        self.components.len() > 1 || self.starts > 1
    }
}
