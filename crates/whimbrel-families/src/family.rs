//! Families of models: their words and keys, their stages, and the use of a fitted model.
//!
//! A [`Family`] reads its keys of `[model]` and `[method]` into a [`Fit`]. A fit has three sides:
//! [`Fit`] itself plans a run, [`FitReport`] describes a finished one, and [`FitUse`] applies the
//! fitted model (`predict`, `impute`, `adapt`). Code outside a family never matches on the kind of
//! a model or method.

pub use crate::usage::{
    AdaptOptions, Adapted, FittedClient, ImputeOptions, Imputed, ModelUse, Predicted, Predictions,
};

use crate::failure::Result;
use crate::job::{Job, PrivacyUnit};
use crate::load::{Layout, Loaded};
use crate::plan::{Basis, Facts, Planned};
use crate::predictions::TestRows;
use crate::table::observed::ObservedTable;
use crate::template::{DataFacts, Suggestion};
use serde_json::{Map, Value};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use whimbrel_codec::channel::{Auto, Preset, UpRule};
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Measure, Table};
use whimbrel_data::{Input, Standardization};
use whimbrel_engine::Outcome;
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::reader::{Read, Reader, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::guard::{self, Withheld};
use whimbrel_methods::settings::Weights;

/// A kind of models and the methods that fit them.
pub struct Family {
    pub name: &'static str,
    /// Values of `kind` in `[model]`.
    pub models: &'static [ModelKind],
    /// Values of `kind` in `[method]`.
    pub methods: &'static [MethodKind],
    /// Reads the family's keys of a job.
    pub read: fn(&Tables<'_>) -> Read<Box<dyn Fit>>,
    /// Proposes tables to `whimbrel new`; `None` if the family is not meant for such data.
    pub suggest: fn(Option<&DataFacts>) -> Option<Suggestion>,
}

/// A value of `kind` in `[model]`.
#[derive(Debug)]
pub struct ModelKind {
    pub word: Word,
    /// The keys of `[model]` that it takes.
    pub keys: &'static [&'static JobKey],
}

impl ModelKind {
    pub const fn new(
        name: &'static str,
        doc: &'static str,
        keys: &'static [&'static JobKey],
    ) -> Self {
        Self { word: Word { name, doc }, keys }
    }
}

/// A value of `kind` in `[method]`.
#[derive(Clone, Copy, Debug)]
pub struct MethodKind {
    pub word: Word,
    /// The algorithm; differs from the word if the word also sets the channels.
    pub algorithm: &'static str,
    /// The channels that the word sets.
    pub preset: Option<Preset>,
    /// The keys of `[method]` that it takes.
    pub keys: &'static [&'static JobKey],
    /// Whether reports show the preset's name instead of the algorithm's.
    pub names_presets: bool,
    /// Whether a single client holds all rows and nothing is sent.
    pub pooled: bool,
    /// Whether `batch = "auto"` is supported and the default.
    pub auto_batch: bool,
    /// Whether the method can stop by itself, without `rounds` or `epochs`.
    pub converges: bool,
    /// Whether it chooses the levels of automatic dithering.
    pub auto_levels: bool,
    /// Default rule of the uplink.
    pub up_rule: UpRule<Auto>,
    /// Default weights of the clients.
    pub weights: Weights,
    /// The units that noise can hide; empty if no bound of a contribution is known.
    pub private: &'static [PrivacyUnit],
}

impl MethodKind {
    /// A federated method with clients weighted by their rows.
    pub const fn new(
        name: &'static str,
        doc: &'static str,
        keys: &'static [&'static JobKey],
    ) -> Self {
        Self {
            word: Word { name, doc },
            algorithm: name,
            preset: None,
            keys,
            names_presets: false,
            pooled: false,
            auto_batch: false,
            converges: false,
            auto_levels: false,
            up_rule: UpRule::Plain,
            weights: Weights::Samples,
            private: &[],
        }
    }
}

impl PartialEq for MethodKind {
    fn eq(&self, other: &Self) -> bool {
        self.word.name == other.word.name
    }
}

/// The tables that a family reads.
pub struct Tables<'a> {
    /// The value of `kind` in `[model]`.
    pub model_kind: &'static str,
    pub method_kind: &'static MethodKind,
    pub model: &'a Reader<'a>,
    pub method: &'a Reader<'a>,
}

/// A job's request to its family: the model, and the family's own keys of `[method]`.
///
/// These methods are called while a job is read and planned.
pub trait Fit: FitValue + FitReport + FitUse {
    /// A short description for reports.
    fn describe(&self) -> String;
    /// Writes the keys of `[model]` except `kind`.
    fn write_model(&self, out: &mut Writer);
    /// Writes the family's own keys of `[method]`.
    fn write_method(&self, out: &mut Writer);
    /// Replaces automatic values that depend on other tables. Overrides decide on `uplink.frame`.
    fn resolve(&mut self, job: &mut Job, source: &Source<'_>) {
        job.uplink.refuse_frame(source);
    }
    /// Reports conflicts between the family's tables and the others.
    fn check(&self, job: &Job, source: &Source<'_>);
    /// Whether a degenerate fit counts as a success.
    fn allows_degenerate(&self) -> bool {
        false
    }
    /// The files that the family's keys name.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }
    /// The form in which clients' rows are read.
    fn layout(&self) -> Layout;
    /// Plans the stages for known clients; `rows` are present in a simulation only.
    fn plan(&self, on: &Basis<'_>) -> Result<Planned>;
    /// Whether messages can keep to a smallest group of rows ([`Privacy::min_group`]); else the reason.
    ///
    /// [`Privacy::min_group`]: crate::job::Privacy::min_group
    fn keeps_groups(&self, _: &Job) -> KeepsGroups {
        Err("an upload of this method mixes the rows of several steps, so no count of rows bounds \
             what it reveals")
    }
    /// The rows outside the model's domain, by their places in the table of all clients.
    fn faults(&self, _: &Job, _: &Table, _: &[Vec<String>]) -> Vec<(usize, Error)> {
        Vec::new()
    }
    /// Whether uploads are exact sums, which masks hide without a grid.
    fn sends_exact_sums(&self) -> bool {
        false
    }
    /// Whether `whimbrel serve` masks the sums of a job that does not say: no figure depends on masks, and rows of
    /// a client can be computed from its own sums at chosen parameters.
    fn is_served_masked(&self) -> bool {
        false
    }
    /// Whether the rule of the smallest group is kept by [surrogates](guard::surrogates) for the rows.
    fn takes_surrogates(&self) -> bool {
        false
    }
    /// Withholds cells and rows of a client that fewer rows than a group determine, in columns of a table
    /// with these names and levels.
    fn withhold(
        &self,
        job: &Job,
        data: &mut ClientData,
        (_, levels): (&[String], &[Vec<String>]),
    ) -> Result<Withheld> {
        let Some(group) = job.privacy.groups() else { return Ok(Withheld::default()) };
        let withheld = guard::cells(data, levels, group);
        if self.takes_surrogates() {
            guard::surrogates(data, group)?;
        }
        Ok(withheld)
    }
    /// Refuses rows of a client that a single message reveals one by one, whatever is asked.
    fn check_client(&self, _: &ClientData) -> Result<()> {
        Ok(())
    }
    /// Refuses settings that only a simulation supports.
    fn check_served(&self, _: &Job) -> Result<()> {
        Ok(())
    }
}

/// Whether messages can keep to a smallest group of rows; else the reason, as a sentence.
pub type KeepsGroups = std::result::Result<(), &'static str>;

/// The description of a finished run.
pub trait FitReport {
    /// Keys of `model.json` beside the tensors.
    fn model_keys(&self, data: &RunData, model: &Artifact) -> Map<String, Value>;
    /// Settings that the fit chose, for the summary.
    fn chosen(&self, _delivered: &[Artifact]) -> Map<String, Value> {
        Map::new()
    }
    /// Additions to the run's summary and report.
    fn results(&self, _: &Ended<'_>) -> Result<Results> {
        Ok(Results::default())
    }
    /// Keys of `summary.json` that get a mean and a spread over seeds.
    fn spread_over_seeds(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether a job with several seeds delivers the model with the best objective; otherwise the
    /// model of the first seed.
    fn delivers_best_seed(&self) -> bool {
        false
    }
    /// Messages about the artifacts of earlier stages, for the terminal.
    fn findings(&self, _: &[Artifact]) -> Vec<String> {
        Vec::new()
    }
}

/// A trained learner.
pub struct Learned {
    /// The tensors of a parameter vector, in order: names and shapes.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Parameter vectors with their weights in the prediction: several for a mixture.
    pub models: Vec<(f64, Vec<f32>)>,
}

/// The use of a fitted model.
pub trait FitUse {
    /// A prediction for each row.
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted>;
    /// Writes the completed table of a run.
    fn impute(
        &self,
        run: &ModelUse<'_>,
        _: &ImputeOptions<'_>,
        _: &mut dyn Write,
    ) -> Result<Imputed> {
        Err(run.unsupported("does not describe a table to complete"))
    }
    /// The trained learner of the client [`ModelUse::own`], or the shared one.
    fn learned(&self, run: &ModelUse<'_>) -> Result<Learned> {
        Err(run.unsupported("is not a learner over a vector of parameters"))
    }
    /// Fits the personal part of a new client in memory; `labels` is the label file of images.
    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        _rows: &Input,
        _labels: Option<&Path>,
    ) -> Result<FittedClient> {
        Err(run.unsupported("has no personal part to fit"))
    }
    /// Fits the personal part of a new client and writes its folder.
    fn adapt(&self, run: &ModelUse<'_>, options: &AdaptOptions<'_>) -> Result<Adapted> {
        self.adapt_rows(run, options.data, options.labels)?.write(run, options)
    }
    /// Whether the run's model predicts without a client's personal model.
    fn shared_predicts(&self) -> bool {
        true
    }
    /// If clients of the run have no personal model: the reason, and the alternative.
    fn without_own(&self) -> Option<(String, &'static str)> {
        None
    }
}

/// Cloning and comparison of boxed fits; implemented for every `Fit + Clone + PartialEq`.
pub trait FitValue: Any + Debug + Send + Sync {
    fn boxed(&self) -> Box<dyn Fit>;
    fn equals(&self, other: &dyn Fit) -> bool;
}

impl<T: Fit + Clone + PartialEq> FitValue for T {
    fn boxed(&self) -> Box<dyn Fit> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Fit) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
}

impl Clone for Box<dyn Fit> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

impl PartialEq for Box<dyn Fit> {
    fn eq(&self, other: &Self) -> bool {
        (**self).equals(&**other)
    }
}

/// Needed by derived comparisons, which take the field by reference.
impl PartialEq<&Self> for Box<dyn Fit> {
    fn eq(&self, other: &&Self) -> bool {
        self == *other
    }
}

/// Facts about a run's data that its files need after the rows are gone.
#[derive(Default)]
pub struct RunData {
    pub facts: Facts,
    /// Rows by client.
    pub rows: Vec<Option<u64>>,
    /// Hash of the data; empty if no process has seen all of them.
    pub hash: String,
    /// Some rows of two-dimensional data, for the scatter plot.
    pub preview: Vec<[f64; 2]>,
    pub standardization: Option<Standardization>,
    /// Test rows of learners.
    pub(crate) tests: Option<TestRows>,
    /// Observed cells of a table with gaps.
    pub(crate) cells: Option<ObservedTable>,
}

/// Rows shown in the scatter plot of two-dimensional data.
const PREVIEW_ROWS: usize = 2000;

impl RunData {
    /// The facts about loaded data.
    pub fn of(loaded: &Loaded) -> Self {
        let is_plane = loaded.columns.len() == 2;
        let preview = is_plane.then(|| loaded.preview(PREVIEW_ROWS)).flatten();
        Self {
            facts: Facts::of(loaded),
            rows: loaded.rows.clone(),
            hash: loaded.hash.clone(),
            preview: preview.into_iter().flatten().map(|row| [row[0], row[1]]).collect(),
            standardization: loaded.standardization.clone(),
            tests: TestRows::of(loaded),
            cells: ObservedTable::of(&loaded.clients),
        }
    }

    /// The facts of a coordinator, which never sees the rows; `rows` are counts by client.
    pub fn unseen(facts: &Facts, rows: Vec<Option<u64>>) -> Self {
        Self { facts: facts.clone(), rows, ..Self::default() }
    }

    /// The columns that the model reads, after preparation.
    pub fn used_columns(&self, model: &Artifact) -> Vec<String> {
        let columns = &self.facts.columns;
        match model.tensor("prepare.kept") {
            None => columns.clone(),
            Some(kept) => {
                let at = kept.values.iter().map(|at| *at as usize);
                at.filter_map(|at| columns.get(at).cloned()).collect()
            }
        }
    }
}

/// A finished run.
pub struct Ended<'a> {
    pub job: &'a Job,
    pub data: &'a RunData,
    pub outcome: &'a Outcome,
    /// The personal artifact of a client.
    pub own: &'a dyn Fn(&str) -> Option<Artifact>,
}

/// A family's additions to a run's files.
#[derive(Default)]
pub struct Results {
    /// Keys of `summary.json`.
    pub summary: Map<String, Value>,
    /// Declarations of these figures, for result tables and means over seeds.
    pub measures: Vec<Measure>,
    pub notes: Vec<String>,
    /// Notes in the summary that are also printed as warnings.
    pub warnings: Vec<String>,
    /// Tables of results for a terminal, each with its heading.
    pub said: Vec<String>,
    pub sections: Vec<Section>,
    /// Main figures for the first screen: a name and a value each.
    pub tiles: Vec<(String, String)>,
    /// Sections under the report's diagnostics.
    pub diagnostics: Vec<Section>,
}

impl Ended<'_> {
    /// The fitted model, if the run has one.
    pub fn model(&self) -> Option<&Artifact> {
        self.outcome.delivered.last()
    }

    /// The personal artifacts of these clients.
    pub fn artifacts(&self, names: &[String]) -> BTreeMap<String, Artifact> {
        names.iter().filter_map(|name| Some((name.clone(), (self.own)(name)?))).collect()
    }
}

/// An error of configuration with a hint.
pub fn refuse<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T> {
    Err(Error::config(what.into()).hint(hint.into()).into())
}
