//! What a family is: a kind of models, the methods that fit them, and everything that is theirs.
//!
//! A [`Family`] is known to the [registry](crate::registry) by its name alone. It defines its words and keys of
//! `[model]` and `[method]` and reads them into a [`Fit`], which knows everything else that is its
//! own: checks across tables, the stages ([`StagePlan`]), what a run's files say about its model,
//! and what `predict`, `impute` and `adapt` do. Nothing outside matches on a model's or a method's
//! kind.

use crate::failure::{Failure, Result};
use crate::files::{DIGITS, figure, quoted, read_artifact};
use crate::job::Job;
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts, Files};
use crate::template::{DataFacts, Suggestion};
use serde_json::{Map, Value};
use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use whimbrel_codec::channel::{Auto, Downlink, UpRule, Uplink};
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Measure};
use whimbrel_data::{ColumnType, Described, Input};
use whimbrel_engine::{Outcome, Stage};
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::reader::{Read, Reader, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::fedem::FrameKind;
use whimbrel_methods::settings::Weights;
use whimbrel_methods::sgd::Preset;

/// A kind of models and the methods that fit them.
pub trait Family: Send + Sync + 'static {
    /// Its name, that of its folder.
    fn name(&self) -> &'static str;
    /// The words of `kind` in `[model]`.
    fn models(&self) -> &'static [ModelKind];
    /// The words of `kind` in `[method]`.
    fn methods(&self) -> &'static [MethodKind];
    /// Reads what a job asks of it.
    fn read(&self, tables: &Tables<'_>) -> Read<Box<dyn Fit>>;
    /// The `[model]`, `[method]` and `[uplink]` tables that `whimbrel new` writes for a data file,
    /// where the family is for such data.
    fn suggest(&self, _: Option<&DataFacts>) -> Option<Suggestion> {
        None
    }
}

/// A word of `kind` in `[model]`.
#[derive(Debug)]
pub struct ModelKind {
    /// The word.
    pub word: Word,
    /// The keys of `[model]` that it takes.
    pub keys: &'static [&'static JobKey],
}

impl ModelKind {
    /// A model with these keys.
    pub const fn new(
        name: &'static str,
        doc: &'static str,
        keys: &'static [&'static JobKey],
    ) -> Self {
        Self { word: Word { name, doc }, keys }
    }
}

/// A word of `kind` in `[method]`.
#[derive(Clone, Copy, Debug)]
pub struct MethodKind {
    /// The word.
    pub word: Word,
    /// The algorithm it names: another word where this one also sets the channels.
    pub algorithm: &'static str,
    /// The channels that it sets.
    pub preset: Option<Preset>,
    /// The keys of `[method]` that it takes.
    pub keys: &'static [&'static JobKey],
    /// Whether reports call it by its preset.
    pub names_presets: bool,
    /// Whether one client holds everything, so that nothing travels.
    pub pooled: bool,
    /// Whether `batch = "auto"` has a meaning, and is the default.
    pub auto_batch: bool,
    /// Whether a job may leave it to the method when it ends.
    pub converges: bool,
    /// The uplink's rule where the job does not say.
    pub up_rule: UpRule<Auto>,
    /// How clients are weighted where the job does not say.
    pub weights: Weights,
}

impl MethodKind {
    /// A method with these keys, in which several clients take part, each weighted by its samples.
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
            up_rule: UpRule::Plain,
            weights: Weights::Samples,
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
    /// The word of `kind` in `[model]`.
    pub model_kind: &'static str,
    /// The word of `kind` in `[method]`.
    pub method_kind: &'static MethodKind,
    /// `[model]`.
    pub model: &'a Reader<'a>,
    /// `[method]`.
    pub method: &'a Reader<'a>,
}

/// What a job asks of its family: a model, and what is the family's own in `[method]`.
pub trait Fit: FitValue {
    /// What it is, in a few words for a report.
    fn describe(&self) -> String;
    /// Writes its keys of `[model]`, without `kind`.
    fn write_model(&self, out: &mut Writer);
    /// Writes its own keys of `[method]`.
    fn write_method(&self, out: &mut Writer);
    /// Fills in what depends on other tables.
    fn resolve(&mut self, _: &crate::job::channel::Downlink) {}
    /// The frame of `[uplink]` where the job does not say; none where there is no choice.
    fn usual_frame(&self, _: &Job) -> Option<FrameKind> {
        None
    }
    /// Whether a degenerate fit counts as a success.
    fn allows_degenerate(&self) -> bool {
        false
    }
    /// Reports what is wrong between its tables and the others.
    fn check(&self, job: &Job, source: &Source<'_>);
    /// The files that it names.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }
    /// How clients' rows are laid out.
    fn layout(&self) -> Layout;
    /// What the columns of a mixed table hold, where the job says so.
    fn types(&self) -> &[(String, ColumnType)] {
        &[]
    }

    /// The columns of a table's file that describe its rows and columns.
    fn described(&self) -> Described {
        Described::default()
    }

    /// The stages, for clients that are known; `rows` are there in a simulation only.
    fn plan(
        &self,
        common: &Common,
        facts: &Facts,
        rows: Option<&Loaded>,
        files: Files<'_>,
    ) -> Result<Box<dyn StagePlan>>;
    /// Why clients of the run in this folder have nothing of their own, and what to do instead; none where
    /// they have.
    fn without_own(&self, _run: &Path) -> Option<(String, String)> {
        None
    }
    /// Refuses what only a simulation can do.
    fn check_served(&self, _: &Job) -> Result<()> {
        Ok(())
    }
    /// Removes what clients on a network must not or need not see; `elsewhere` stands for a file.
    fn hide_paths(&mut self, _: &dyn StagePlan, _elsewhere: &dyn Fn(&str) -> PathBuf) {}

    /// Keys of `model.json` beside the tensors.
    fn model_keys(&self, data: &RunData, model: &Artifact) -> Map<String, Value>;
    /// What it keeps of the data for [`Fit::results`].
    fn remember(&self, _: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
    /// What a finished run's files say beyond those of other families.
    fn results(&self, _: &Ended<'_>) -> Result<Results> {
        Ok(Results::default())
    }
    /// Its keys of `summary.json` that have a mean and a spread over seeds.
    fn spread_over_seeds(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether a job of several seeds delivers the model of the best of them by its objective;
    /// otherwise the first one's.
    fn delivers_best_seed(&self) -> bool {
        false
    }
    /// What was found on the way to the fit, in words for the terminal.
    fn findings(&self, _: &[Artifact]) -> Vec<String> {
        Vec::new()
    }

    /// A prediction for each row.
    fn predict(&self, use_of: &ModelUse<'_>, rows: &Input) -> Result<Predicted>;
    /// The completed table of a run, written to `_out`.
    fn impute(
        &self,
        run: &ModelUse<'_>,
        _: &ImputeOptions<'_>,
        _out: &mut dyn Write,
    ) -> Result<Imputed> {
        Err(run.no_meaning("has no table to complete"))
    }
    /// What a client that was not there in training gets of its own, in memory.
    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        _rows: &Input,
        _labels: Option<&Path>,
    ) -> Result<FittedClient> {
        Err(run.no_meaning("has no part of a client's own to fit"))
    }
    /// A client that was not there in training gets its own model.
    fn adapt(&self, run: &ModelUse<'_>, _: &AdaptOptions<'_>) -> Result<Adapted> {
        Err(run.no_meaning("has no part of a client's own to fit"))
    }
}

/// What every [`Fit`] that can be copied and compared has.
pub trait FitValue: Any + Debug + Send + Sync {
    /// A copy.
    fn boxed(&self) -> Box<dyn Fit>;
    /// Whether the other is of the same type and equal.
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

/// A derived comparison of a struct with such a field takes it by reference.
impl PartialEq<&Self> for Box<dyn Fit> {
    fn eq(&self, other: &&Self) -> bool {
        self == *other
    }
}

/// The stages of a job whose clients are known: everything checked that can be checked without
/// running.
pub trait StagePlan: Send + Sync {
    /// How many stages there are.
    fn len(&self, common: &Common) -> usize;
    /// Builds one stage.
    fn build(
        &self,
        common: &Common,
        index: usize,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<Stage>;
    /// The uplink of clients without one of their own.
    fn uplink(&self) -> &Uplink;
    /// The downlink.
    fn downlink(&self) -> &Downlink;
    /// The rounds that are planned, where the job or the data tell.
    fn rounds(&self, common: &Common) -> Option<u32>;
    /// What should be looked at before the run starts.
    fn warnings(&self, _: &Common) -> Vec<String> {
        Vec::new()
    }
    /// What is worth knowing before the run starts.
    fn notes(&self, _: &Common) -> Vec<String> {
        Vec::new()
    }
    /// Whether the constants of the uplink depend on rows that are not here.
    fn uplink_is_unknown(&self, _: &Common) -> bool {
        false
    }
    /// Something of the form that a stage delivers, to build the next one without it.
    fn stand_in(&self, _: &Common, _index: usize) -> Artifact {
        Artifact::default()
    }
    /// Whether the fit can be tried without what this stage delivers.
    fn can_skip(&self, _: &Common, _index: usize) -> bool {
        false
    }
    /// The minimum of the loss, where it is known.
    fn minimum(&self) -> Option<f64> {
        None
    }
    /// The constants behind `step = "theory"`, where they were found before the run.
    fn theory(&self) -> &[(&'static str, f64)] {
        &[]
    }
    /// The fewest rows of a minibatch of any client; none where all rows are taken.
    fn batch_min(&self, common: &Common) -> Option<u32> {
        common.batch().size()
    }
    /// Every client's first memory, where a file gives it.
    fn memory(&self) -> Option<&[f64]> {
        None
    }
    /// The plan itself, for its family.
    fn as_any(&self) -> &dyn Any;
}

/// What is kept of a run's data to write its files at the end.
#[derive(Default)]
pub struct RunData {
    /// Column names.
    pub columns: Vec<String>,
    /// The rows of a table with gaps; empty for others.
    pub row_labels: Vec<String>,
    /// Rows by client.
    pub rows: Vec<Option<u64>>,
    /// The data's hash; empty where no process has seen them all.
    pub hash: String,
    /// Some rows of two-dimensional data, for the picture.
    pub preview: Vec<[f64; 2]>,
    /// What the reader did to the columns.
    pub standardization: Option<whimbrel_data::Standardization>,
    /// The two classes as the data have them, the one that became -1 first.
    pub classes: Vec<String>,
    /// The levels of each column of a mixed table; empty for others.
    pub levels: Vec<Vec<String>>,
    /// What describes the rows and columns of a table with gaps.
    pub attributes: Vec<whimbrel_data::Attribute>,
    /// What the family remembers of them.
    pub remembered: Option<Box<dyn Any + Send + Sync>>,
}

/// A run that is over.
pub struct Ended<'a> {
    /// Its job.
    pub job: &'a Job,
    /// What is known of its data.
    pub data: &'a RunData,
    /// What it left.
    pub outcome: &'a Outcome,
    /// Its folder.
    pub folder: &'a Path,
}

/// What a family adds to a run's files.
#[derive(Default)]
pub struct Results {
    /// Keys of `summary.json`.
    pub summary: Map<String, Value>,
    /// What these figures are, for tables of results and means over seeds.
    pub measures: Vec<Measure>,
    /// Notes in it.
    pub notes: Vec<String>,
    /// Further notes in it, of which the user is warned.
    pub warnings: Vec<String>,
    /// What the user is told beside them.
    pub said: Vec<String>,
    /// What the report shows.
    pub sections: Vec<Section>,
}

/// A finished run's model, to be used.
pub struct ModelUse<'a> {
    /// The run's folder.
    pub folder: &'a Path,
    /// Its job.
    pub job: &'a Job,
    /// The content of `model.json`.
    pub model: &'a Map<String, Value>,
    /// Its tensors, where they are not read from the folder.
    pub tensors: Option<&'a Artifact>,
    /// What the client whose model is used has of its own.
    pub own: Option<&'a Artifact>,
    /// Whether files are LIBSVM's text.
    pub libsvm: bool,
}

impl RunData {
    /// The columns that a model reads: those that preparation left.
    pub fn used_columns(&self, model: &Artifact) -> Vec<String> {
        match model.tensor("prepare.kept") {
            None => self.columns.clone(),
            Some(kept) => {
                let at = kept.values.iter().map(|at| *at as usize);
                at.filter_map(|at| self.columns.get(at).cloned()).collect()
            }
        }
    }
}

impl ModelUse<'_> {
    /// The file of the model.
    pub fn path(&self) -> PathBuf {
        self.folder.join("model/model.json")
    }

    /// A command that the model has no meaning for.
    fn no_meaning(&self, why: &str) -> Failure {
        let (folder, model) = (self.folder.display(), self.job.model);
        Failure::config(format!("{folder} holds a model of kind `{model}`, which {why}"))
    }

    /// A model that cannot be used.
    pub fn broken(&self, what: &str) -> Failure {
        Failure::config(format!("{}: {what}", self.path().display()))
    }

    /// A list of numbers: from `model.json`, or from the tensors where it is too long for that.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let broken = || self.broken(&format!("`{name}` must be a list of numbers"));
        if let Some(list) = self.model.get(name) {
            let numbers = list.as_array().map(|xs| xs.iter().map(Value::as_f64).collect());
            return numbers.flatten().ok_or_else(broken);
        }
        self.tensors()?.tensor(name).map(|tensor| tensor.values.clone()).ok_or_else(broken)
    }

    /// The tensors of the model.
    pub fn tensors(&self) -> Result<Cow<'_, Artifact>> {
        match self.tensors {
            Some(tensors) => Ok(Cow::Borrowed(tensors)),
            None => Ok(Cow::Owned(read_artifact(&self.folder.join("model/model.safetensors"))?)),
        }
    }

    /// The columns a model was fitted to.
    pub fn columns(&self) -> Result<Vec<String>> {
        let list = self.model.get("columns").and_then(Value::as_array);
        let names = list.map(|all| all.iter().filter_map(|c| c.as_str().map(String::from)));
        Ok(names.ok_or_else(|| self.broken("`columns` is missing"))?.collect())
    }
}

/// Predictions, and what is said about them.
pub struct Predicted {
    /// What is predicted, by name: a value for each row.
    pub columns: Vec<(String, Predictions)>,
    /// Figures about them, by key.
    pub figures: Vec<(&'static str, Value)>,
    /// The same in words.
    pub words: String,
}

/// One column of predictions.
#[derive(Clone, Debug, PartialEq)]
pub enum Predictions {
    /// One of several labels.
    Labels {
        /// The number of each row's label, from zero.
        of: Vec<usize>,
        /// All of them.
        names: Vec<String>,
    },
    /// Numbers.
    Wide(Vec<f64>),
    /// Numbers of models in single precision.
    Narrow(Vec<f32>),
}

impl Predictions {
    fn len(&self) -> usize {
        match self {
            Self::Labels { of, .. } => of.len(),
            Self::Wide(values) => values.len(),
            Self::Narrow(values) => values.len(),
        }
    }
}

impl Predicted {
    /// How many rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// The values of a numeric column; empty without one of this name.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        match self.columns.iter().find(|(known, _)| known == name) {
            Some((_, Predictions::Wide(values))) => values.clone(),
            Some((_, Predictions::Narrow(values))) => values.iter().map(|x| (*x).into()).collect(),
            _ => Vec::new(),
        }
    }

    /// The label of each row; empty without a column of labels.
    pub fn labels(&self) -> Vec<String> {
        let labels = self.columns.iter().find_map(|(_, column)| match column {
            Predictions::Labels { of, names } => {
                Some(of.iter().map(|at| names[*at].clone()).collect())
            }
            _ => None,
        });
        labels.unwrap_or_default()
    }

    /// The CSV file.
    pub fn text(&self) -> String {
        let mut text = String::from("row");
        self.columns.iter().for_each(|(name, _)| text += &format!(",{}", quoted(name)));
        text.push('\n');
        for row in 0..self.rows() {
            text += &(row + 1).to_string();
            for (_, column) in &self.columns {
                text.push(',');
                text += &match column {
                    Predictions::Labels { of, names } => quoted(&names[of[row]]),
                    Predictions::Wide(values) => figure(values[row], DIGITS),
                    Predictions::Narrow(values) => values[row].to_string(),
                };
            }
            text.push('\n');
        }
        text
    }
}

/// What `impute` is asked for.
pub struct ImputeOptions<'a> {
    /// Observations other than the run's.
    pub data: Option<&'a Input>,
    /// Whose table.
    pub client: Option<&'a str>,
    /// Whether the file has one line for each row of the table.
    pub wide: bool,
    /// Imputations drawn for each cell.
    pub draws: u32,
}

/// What `adapt` is asked for.
pub struct AdaptOptions<'a> {
    /// The new client's rows.
    pub data: &'a Input,
    /// The labels of its images, where it holds images.
    pub labels: Option<&'a Path>,
    /// Imputations drawn for each cell.
    pub draws: u32,
    /// The folder for what is found; it exists and is empty.
    pub out: &'a Path,
}

/// What was written, and what is said about it.
#[derive(Default)]
pub struct Imputed {
    /// Figures, by key.
    pub figures: Map<String, Value>,
    /// Warnings, then notes.
    pub warnings: Vec<String>,
    /// Notes.
    pub notes: Vec<String>,
}

/// The same for a client's own model.
pub type Adapted = Imputed;

/// What was found for a client that took no part in training.
pub struct FittedClient {
    /// What the client has of its own.
    pub artifact: Artifact,
    /// Its predictions for its own rows.
    pub predicted: Predicted,
    /// How many rows it has.
    pub rows: usize,
    /// Further keys of its summary.
    pub figures: Vec<(&'static str, Value)>,
    /// Notes.
    pub notes: Vec<String>,
}

/// The word of a run that is to be refused: a failure of configuration with a hint.
pub fn refuse<T>(what: &str, hint: &str) -> Result<T> {
    Err(Error::config(what).hint(hint).into())
}

/// A number of things: `1 row`, `2 rows`.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
