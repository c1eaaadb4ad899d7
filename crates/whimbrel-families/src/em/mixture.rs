//! What a kind of mixture is to the EM methods: its keys, its model, and what is said of a fit.

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
use whimbrel_data::ColumnType;
use whimbrel_data::Input;
use whimbrel_job::reader::Source;
use whimbrel_job::writer::Writer;
use whimbrel_methods::mixture::{Mixture, MixtureStart};
use whimbrel_methods::prepare::Affine;

/// Keys of `[model]` that ask for a mixture.
pub trait MixtureKeys: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The model.
    type Model: Mixture;

    /// Where the fit starts.
    fn init(&self) -> &Init;
    /// The file of the start, where there is one.
    fn init_path(&mut self) -> Option<&mut PathBuf>;
    /// The numbers of components to choose from; one where there is no choice.
    fn components(&self) -> &[usize];
    /// Starts of which the best is taken.
    fn starts(&self) -> u32;
    /// The mixture with this number of components.
    fn with_components(&self, components: usize) -> Self;
    /// The mixture over these columns.
    fn over(&self, _: &Facts) -> Result<Self> {
        Ok(self.clone())
    }

    /// In words for `check`: the kind and what is assumed.
    fn words(&self) -> (&'static str, &'static str);
    /// Writes the keys.
    fn write(&self, out: &mut Writer);
    /// What only shows beside other tables.
    fn check(&self, job: &Job, source: &Source<'_>);
    /// How rows are laid out.
    fn layout(&self) -> Layout;
    /// What the columns of a mixed table hold.
    fn types(&self) -> &[(String, ColumnType)] {
        &[]
    }
    /// What is done to the rows before the fit.
    fn preparing(&self, common: &Common, facts: &Facts, rows: Option<&Loaded>)
    -> Result<Preparing>;
    /// The model and its start for rows of this width, in standardised units where there is a map
    /// to them.
    fn model_and_start(
        &self,
        job: &Job,
        columns: usize,
        file: Option<&(PathBuf, InitFile)>,
        affine: Option<&Affine>,
    ) -> whimbrel_core::Result<(Self::Model, MixtureStart)>;
    /// Takes over what clients need of a file that they are not sent.
    fn hide_file(&mut self, _: &Self::Model) {}

    /// What `model.json` says beside the tensors.
    fn model_keys(&self, data: &RunData) -> Map<String, Value>;
    /// The fitted mixture in the report.
    fn section(&self, model: &Artifact, ended: &Ended<'_>) -> Option<Section>;
    /// A fitted mixture on new rows.
    fn predict(&self, run: &ModelUse<'_>, file: &Input) -> Result<Predicted>;

    /// Whether a stage before the fit chooses among candidates.
    fn chooses(&self) -> bool {
        self.components().len() > 1 || self.starts() > 1
    }
}
