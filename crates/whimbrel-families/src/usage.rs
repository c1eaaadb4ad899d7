//! A fitted model at work: its files, predictions, and new clients.

use crate::failure::{Failure, Result};
use crate::files::{DIGITS, artifact_bytes, figure, quoted, read_artifact};
use crate::job::{DataSource, Job};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use whimbrel_core::Key;
use whimbrel_core::method::Artifact;
use whimbrel_core::text::counted;
use whimbrel_data::{CsvOptions, Input, Standardization};
use whimbrel_engine::checkpoint::write_atomically;

/// Delimiters that the reader of text detects.
const DETECTED: &str = ",;\t";

/// The model of a finished run, in its folder or in memory.
pub struct ModelUse<'a> {
    pub folder: &'a Path,
    pub job: &'a Job,
    /// The content of `model.json`.
    pub model: &'a Map<String, Value>,
    /// The tensors of a model in memory; `None`: they are read from the folder.
    pub tensors: Option<&'a Artifact>,
    /// The client's personal artifact.
    pub own: Option<&'a Artifact>,
    /// Whether files hold LIBSVM's text.
    pub libsvm: bool,
}

impl ModelUse<'_> {
    /// The path of `model.json`.
    pub fn path(&self) -> PathBuf {
        self.folder.join("model/model.json")
    }

    /// A command that this kind of model does not support.
    pub(crate) fn unsupported(&self, why: &str) -> Failure {
        let (folder, model) = (self.folder.display(), self.job.model);
        Failure::config(format!("{folder} holds a model of kind `{model}`, which {why}"))
    }

    /// An invalid `model.json`.
    pub fn broken(&self, what: &str) -> Failure {
        Failure::config(format!("{}: {what}", self.path().display()))
    }

    /// A list of numbers from `model.json`, or from the tensors if it is too long for that file.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let broken = || self.broken(&format!("`{name}` must be a list of numbers"));
        if let Some(list) = self.model.get(name) {
            return numbers(list).ok_or_else(broken);
        }
        self.tensors()?.tensor(name).map(|tensor| tensor.values.clone()).ok_or_else(broken)
    }

    pub fn tensors(&self) -> Result<Cow<'_, Artifact>> {
        match self.tensors {
            Some(tensors) => Ok(Cow::Borrowed(tensors)),
            None => Ok(Cow::Owned(read_artifact(&self.folder.join("model/model.safetensors"))?)),
        }
    }

    /// Options to read rows that are written as those of the run.
    pub fn csv_options(&self) -> CsvOptions {
        let delimiter = match &self.job.data.source {
            DataSource::Csv(csv) => csv.delimiter.filter(|mark| !DETECTED.contains(*mark)),
            _ => None,
        };
        let spelling = self.job.data.spelling();
        CsvOptions { delimiter: delimiter.map(|c| c as u8), spelling, ..CsvOptions::default() }
    }

    /// The columns that the model was fitted to.
    pub fn columns(&self) -> Result<Vec<String>> {
        self.names("columns").ok_or_else(|| self.broken("`columns` is missing"))
    }

    /// A list of texts in `model.json`.
    pub(crate) fn names(&self, key: &str) -> Option<Vec<String>> {
        texts(self.model.get(key)?)
    }

    /// The standardisation of a model's columns.
    pub(crate) fn standardization(&self) -> Result<Option<Standardization>> {
        let Some(done) = self.model.get("standardization") else { return Ok(None) };
        let list = |key: &str| done.get(key).and_then(numbers);
        let (Some(means), Some(scales)) = (list("means"), list("scales")) else {
            return Err(self.broken("`standardization` must hold `means` and `scales`"));
        };
        Ok(Some(Standardization { columns: self.columns()?, means, scales, constant: 0 }))
    }
}

/// A JSON list of numbers.
pub(crate) fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

/// A JSON list of texts.
pub(crate) fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(String::from)).collect()
}

/// Predictions with a summary.
pub struct Predicted {
    /// Named columns with a value for each row.
    pub columns: Vec<(String, Predictions)>,
    /// Summary figures by key.
    pub figures: Vec<(&'static str, Value)>,
    /// The summary as text.
    pub words: String,
}

/// One column of predictions.
#[derive(Clone, Debug, PartialEq)]
pub enum Predictions {
    /// One of several labels.
    Labels {
        /// The index of each row's label.
        of: Vec<usize>,
        /// All labels.
        names: Vec<String>,
    },
    /// Numbers in double precision.
    Wide(Vec<f64>),
    /// Numbers in single precision.
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
    /// Number of rows.
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

    /// The predictions as CSV.
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

/// The columns of a mixture: label, log-density and responsibilities (`k` per row).
pub(crate) fn mixture_columns(
    labels: &[u32],
    log_density: Vec<f64>,
    responsibilities: &[f64],
    k: usize,
) -> Vec<(String, Predictions)> {
    let names = (1..=k).map(|component| component.to_string()).collect();
    let of = labels.iter().map(|label| *label as usize).collect();
    let responsibility = |component: usize| {
        let each = responsibilities.iter().skip(component).step_by(k);
        (format!("p{}", component + 1), Predictions::Wide(each.copied().collect()))
    };
    let first = [
        ("label".into(), Predictions::Labels { of, names }),
        ("log_density".into(), Predictions::Wide(log_density)),
    ];
    first.into_iter().chain((0..k).map(responsibility)).collect()
}

/// Options of `impute`.
pub struct ImputeOptions<'a> {
    /// Observations to use instead of the run's.
    pub data: Option<&'a Input>,
    /// The client whose table is completed; `None`: the table of all clients.
    pub client: Option<&'a str>,
    /// Whether the output is the table itself, with its gaps filled.
    pub wide: bool,
    /// Imputations drawn for each cell; with `wide`, the number of the imputation that fills the gaps, or 0
    /// for the estimates.
    pub draws: u32,
}

/// The random stream of an imputation, by its number.
pub(crate) fn imputation(seed: u64, number: u32) -> Key {
    const DRAWS: u64 = 0xD4A5;
    Key::root(seed).child(DRAWS).child(u64::from(number))
}

/// Options of `adapt`.
pub struct AdaptOptions<'a> {
    /// The new client's rows.
    pub data: &'a Input,
    /// The label file of images.
    pub labels: Option<&'a Path>,
    /// Imputations drawn for each cell.
    pub draws: u32,
    /// An existing, empty folder for the output.
    pub out: &'a Path,
}

/// The outcome of `impute`.
#[derive(Default)]
pub struct Imputed {
    pub figures: Map<String, Value>,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

/// The outcome of `adapt`.
pub type Adapted = Imputed;

/// The personal part of a new client.
pub struct FittedClient {
    /// The client's personal artifact.
    pub artifact: Artifact,
    /// Predictions for the client's own rows.
    pub predicted: Predicted,
    pub rows: usize,
    /// Further keys of its summary.
    pub figures: Vec<(&'static str, Value)>,
    pub notes: Vec<String>,
}

impl FittedClient {
    /// Writes the new client's folder.
    pub(crate) fn write(self, run: &ModelUse<'_>, options: &AdaptOptions<'_>) -> Result<Adapted> {
        let (folder, out) = (run.folder.display(), options.out.display());
        let write = |name: &str, bytes: &[u8]| write_atomically(&options.out.join(name), bytes);
        write("model.safetensors", &artifact_bytes(&self.artifact)?)?;
        write("predictions.csv", self.predicted.text().as_bytes())?;
        let mut figures = Map::new();
        figures.insert("run".into(), folder.to_string().into());
        figures.insert("rows".into(), self.rows.into());
        figures.extend(self.figures.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let text = serde_json::to_string_pretty(&figures).unwrap_or_default();
        write("summary.json", (text + "\n").as_bytes())?;
        figures.insert("out".into(), out.to_string().into());
        let mut notes = self.notes;
        notes.push(format!("{}: {out}", counted(self.rows, "row")));
        notes.push(format!(
            "predict with: whimbrel predict {folder} --client {out} --data FILE --out FILE"
        ));
        Ok(Adapted { figures, warnings: Vec::new(), notes })
    }
}
