//! `[model]` with `kind = "gmm"`: a Gaussian mixture.

use super::model::ModelKind;
use std::path::PathBuf;
use whimbrel_job::choices;
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::matrix::{Matrix, read_covariance, write_matrix};
use whimbrel_job::path::{looks_like_path, write_path};
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, inline, number, text};

/// A Gaussian mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct Gmm {
    /// How many components.
    pub components: usize,
    /// The form of the covariances.
    pub covariance: Covariance,
    /// The covariance of every component, for `Covariance::Known`; `None`: the one of the init
    /// file.
    pub known_covariance: Option<Matrix>,
    /// Where the fit starts.
    pub init: Init,
    /// Added to the diagonal of every fitted covariance.
    pub reg_covar: f64,
    /// The smallest weight that the M-step returns.
    pub weight_floor: f64,
    /// The smallest variance of a fitted covariance in any direction, with each column in units of
    /// its spread.
    pub covariance_floor: f64,
    /// The penalty `R`.
    pub penalty: Penalty,
}

/// Where a fit starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Means drawn from the pooled first two moments.
    Moments,
    /// A federated k-means stage.
    FederatedKmeans,
    /// Rows of the clients as means.
    Examples,
    /// A JSON file with `weights`, `means` and `covariance`.
    File(PathBuf),
}

/// The penalty `R(theta)`; all zero: none.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Penalty {
    /// `a` in `-a sum_k ln pi_k`.
    pub dirichlet: f64,
    /// `(nu/2) ln det Sigma + (psi/2) tr Sigma^-1`.
    pub inverse_wishart: InverseWishart,
}

/// The strength of an inverse-Wishart penalty.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct InverseWishart {
    /// Weight of the log-determinant.
    pub nu: f64,
    /// Weight of the trace of the inverse.
    pub psi: f64,
}

choices! {
    /// The form of a mixture's covariances.
    pub enum Covariance {
        Known = "known": "given, the same for every component, and not fitted",
        Tied = "tied": "fitted, the same for every component",
        Diagonal = "diagonal": "fitted for each component, without correlations",
        Full = "full": "fitted for each component",
    }
}

const FITTED: &[&str] = &["tied", "diagonal", "full"];
const NOT_FITTED: &str = "the covariance is given, not fitted";
const MIXTURE: &[&str] = &["gmm"];
const MIXTURE_ONLY: &str = "only mixtures have it";

pub(crate) static COMPONENTS: Key =
    Key::required("components", "an integer of at least 1", "how many components the mixture has")
        .only(MIXTURE, MIXTURE_ONLY);
pub(crate) static COVARIANCE: Key =
    Key::default("covariance", "", "\"tied\"", "the form of the covariances")
        .words(Covariance::WORDS)
        .only(MIXTURE, MIXTURE_ONLY);
pub(super) static KNOWN_COVARIANCE: Key = Key::optional(
    "known_covariance",
    "a square matrix",
    "the covariance of the `init` file",
    "the covariance of every component",
)
.only(&["known"], "the covariance is fitted");
pub(crate) static INIT: Key = Key::default(
    "init",
    "\"federated-kmeans\", \"moments\", \"examples\" or a .json file",
    "\"federated-kmeans\"",
    "where the fit starts; a file holds `weights`, `means` and `covariance`",
)
.words(&[
    Word {
        name: "federated-kmeans",
        doc: "a stage in which clients send centres and sizes of clusters of five rows or more",
    },
    Word {
        name: "moments",
        doc: "means drawn from the pooled first two moments: clients send nothing but sums",
    },
    Word { name: "examples", doc: "rows of the clients as means: raw rows leave the client" },
])
.only(MIXTURE, MIXTURE_ONLY);
pub(super) static REG_COVAR: Key = Key::default(
    "reg_covar",
    "a number of at least 0",
    "0.0",
    "added to the diagonal of every fitted covariance",
)
.only(FITTED, NOT_FITTED);
pub(super) static WEIGHT_FLOOR: Key = Key::default(
    "weight_floor",
    "a positive number, at most 1/2 divided by `components`",
    "1e-10",
    "the smallest weight that the M-step returns; a clip is counted as a repair",
)
.only(MIXTURE, MIXTURE_ONLY);
pub(super) static COVARIANCE_FLOOR: Key = Key::default(
    "covariance_floor",
    "a number between 0 and 1",
    "1e-10",
    "the smallest variance of a fitted covariance in any direction, with each column in units of its spread; \
     a clip is counted as a repair",
)
.only(FITTED, NOT_FITTED);
pub(super) static PENALTY: Key = Key::default(
    "penalty",
    "a table of penalties",
    "{ dirichlet = 0.0, inverse_wishart = { nu = 0.0, psi = 0.0 } }",
    "the penalty on the parameters; zeros mean none",
)
.tables(&[&PENALTY_SECTION, &WISHART_SECTION])
.only(MIXTURE, MIXTURE_ONLY);

static DIRICHLET: Key = Key::default(
    "dirichlet",
    "a number of at least 0",
    "0.0",
    "`a` in the penalty `-a sum_k ln pi_k` on the weights",
);
static WISHART: Key = Key::default(
    "inverse_wishart",
    "a table { nu, psi }",
    "{ nu = 0.0, psi = 0.0 }",
    "the penalty `(nu/2) ln det Sigma + (psi/2) tr Sigma^-1` on each fitted covariance",
);
static PENALTY_SECTION: Section = Section {
    name: "penalty",
    doc: "penalties on the parameters",
    keys: &[&DIRICHLET, &WISHART],
    example: "",
};

static NU: Key =
    Key::default("nu", "a number of at least 0", "0.0", "weight of the log-determinant");
static PSI: Key =
    Key::default("psi", "a number of at least 0", "0.0", "weight of the trace of the inverse");
static WISHART_SECTION: Section = Section {
    name: "inverse_wishart",
    doc: "strength of the inverse-Wishart penalty",
    keys: &[&NU, &PSI],
    example: "",
};

impl Gmm {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        reader.check_meaning_among(ModelKind::WORDS, ModelKind::Gmm.name());
        let components = reader.read(&COMPONENTS, |v| v.count());
        let init = reader.read(&INIT, read_init);
        let covariance: Read<Covariance> = reader.read(&COVARIANCE, |v| v.choice());
        if let Ok(form) = covariance {
            reader.check_meaning_among(Covariance::WORDS, form.name());
        }
        let known_covariance = reader.optional(&KNOWN_COVARIANCE, read_covariance);
        let reg_covar = reader.read(&REG_COVAR, |v| v.number(|x| x >= 0.0));
        let covariance_floor = reader.read(&COVARIANCE_FLOOR, |v| v.number(|x| x > 0.0 && x < 1.0));
        // Floors above this would leave the largest weight no room.
        let floor_max = 0.5 / *components.as_ref().unwrap_or(&1) as f64;
        let weight_floor = reader.read(&WEIGHT_FLOOR, |v| v.number(|x| x > 0.0 && x <= floor_max));
        let known = matches!(covariance, Ok(Covariance::Known));
        let penalty = reader.read(&PENALTY, |v| read_penalty(v, known));
        let (init, known_covariance) = (init?, known_covariance?);
        if known && known_covariance.is_none() && !matches!(init, Init::File(_)) {
            return Err(reader.lacking(
                &KNOWN_COVARIANCE,
                "covariance = \"known\", but nothing in [model] says what it is",
                "give `known_covariance`, or an `init` file that has a covariance",
            ));
        }
        Ok(Self {
            components: components?,
            covariance: covariance?,
            known_covariance,
            init,
            reg_covar: reg_covar?,
            weight_floor: weight_floor?,
            covariance_floor: covariance_floor?,
            penalty: penalty?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&COMPONENTS, self.components.to_string());
        out.put(&COVARIANCE, text(self.covariance.name()));
        if let Some(matrix) = &self.known_covariance {
            out.put(&KNOWN_COVARIANCE, write_matrix(matrix));
        }
        let init = match &self.init {
            Init::Moments => text("moments"),
            Init::FederatedKmeans => text("federated-kmeans"),
            Init::Examples => text("examples"),
            Init::File(path) => write_path(path),
        };
        out.put(&INIT, init);
        let fitted = self.covariance != Covariance::Known;
        if fitted {
            out.put(&REG_COVAR, number(self.reg_covar));
        }
        out.put(&WEIGHT_FLOOR, number(self.weight_floor));
        if fitted {
            out.put(&COVARIANCE_FLOOR, number(self.covariance_floor));
        }
        let Penalty { dirichlet, inverse_wishart: InverseWishart { nu, psi } } = self.penalty;
        let mut penalties = vec![(DIRICHLET.name, number(dirichlet))];
        if fitted {
            let wishart = inline([(NU.name, number(nu)), (PSI.name, number(psi))]);
            penalties.push((WISHART.name, wishart));
        }
        out.put(&PENALTY, inline(penalties));
    }
}

fn read_init(value: Value<'_>) -> Read<Init> {
    match value.text()?.as_str() {
        "moments" => Ok(Init::Moments),
        "federated-kmeans" => Ok(Init::FederatedKmeans),
        "examples" => Ok(Init::Examples),
        path if path.ends_with(".json") => Ok(Init::File(path.into())),
        path if looks_like_path(path) => Err(value.refuse()),
        other => Err(value.unknown_word(other)),
    }
}

fn read_penalty(value: Value<'_>, known: bool) -> Read<Penalty> {
    let reader = value.table(&PENALTY_SECTION)?;
    if known && !value.is_default() {
        reader.refuse_if_given(&WISHART, &format!("has no meaning for known: {NOT_FITTED}"));
    }
    let dirichlet = reader.read(&DIRICHLET, |v| v.number(|x| x >= 0.0));
    let inverse_wishart = reader.read(&WISHART, |v| {
        let reader = v.table(&WISHART_SECTION)?;
        let nu = reader.read(&NU, |v| v.number(|x| x >= 0.0));
        let psi = reader.read(&PSI, |v| v.number(|x| x >= 0.0));
        Ok(InverseWishart { nu: nu?, psi: psi? })
    });
    Ok(Penalty { dirichlet: dirichlet?, inverse_wishart: inverse_wishart? })
}
