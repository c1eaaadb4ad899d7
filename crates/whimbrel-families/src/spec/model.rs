//! `[model]`: what is fitted.

use super::gmm::{
    COMPONENTS, COVARIANCE, COVARIANCE_FLOOR, Gmm, INIT, KNOWN_COVARIANCE, PENALTY, REG_COVAR,
    WEIGHT_FLOOR,
};
use super::low_rank::{self, LowRank};
use whimbrel_job::choices;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number, text};

/// `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A Gaussian mixture.
    Gmm(Gmm),
    /// Linear regression by least squares.
    Linear(Regression),
    /// Logistic regression with two classes.
    Logistic(Regression),
    /// A table of low rank.
    LowRank(LowRank),
}

/// A linear predictor of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regression {
    /// The factor of half the squared norm of the coefficients.
    pub ridge: f64,
    /// The factor of the bounded penalty that is not convex; zero where there is none.
    pub nonconvex: f64,
    /// Whether a constant is added.
    pub intercept: bool,
}

choices! {
    /// The word in `[model]`'s `kind`.
    pub enum ModelKind {
        Gmm = "gmm": "a Gaussian mixture",
        Linear = "linear": "linear regression by least squares",
        Logistic = "logistic": "logistic regression with two classes",
        LowRank = "low-rank": "a table of low rank with gaps, to be filled in",
    }
}

const REGRESSIONS: &[&str] = &["linear", "logistic"];

pub(crate) static KIND: Key =
    Key::required("kind", "", "the family of models").words(ModelKind::WORDS);
static RIDGE: Key = Key::default(
    "ridge",
    "a number of at least 0",
    "0.0",
    "the factor of half the squared norm of the coefficients, the intercept's too",
)
.only(REGRESSIONS, "only regressions have it");
static NONCONVEX: Key = Key::default(
    "nonconvex",
    "a number of at least 0",
    "0.0",
    "the factor of `sum_j w_j^2 / (1 + w_j^2)`, a bounded penalty that is not convex, in place of \
     the ridge: no minimum is computed, and `gradient_norm2` is reported where `excess_loss` would be",
)
.only(&["logistic"], "only logistic regression has it");
static INTERCEPT: Key =
    Key::default("intercept", "true or false", "true", "whether a constant is added")
        .only(REGRESSIONS, "only regressions have it");

/// `[model]`.
pub(crate) static SECTION: Section = Section {
    name: "model",
    doc: "What is fitted.",
    keys: &[
        &KIND,
        &RIDGE,
        &NONCONVEX,
        &INTERCEPT,
        &COMPONENTS,
        &COVARIANCE,
        &KNOWN_COVARIANCE,
        &INIT,
        &REG_COVAR,
        &WEIGHT_FLOOR,
        &COVARIANCE_FLOOR,
        &PENALTY,
        &low_rank::FAMILY,
        &low_rank::VARIANCE,
        &low_rank::RANK,
        &low_rank::LAMBDA,
        &low_rank::EFFECTS,
        &low_rank::LAMBDA_EFFECTS,
        &low_rank::PERSONAL,
    ],
    example: "[model]\nkind = \"gmm\"\ncomponents = 3\ncovariance = \"full\"\n\
              init = \"federated-kmeans\"\nreg_covar = 1e-6\n\
              penalty = { dirichlet = 0.001, inverse_wishart = { nu = 0.01, psi = 0.01 } }\n",
};

impl Model {
    /// What a job file calls it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// What it is, in a few words for a report.
    pub fn describe(&self) -> String {
        match self {
            Self::Gmm(gmm) => {
                format!("gmm, {} components, {}", gmm.components, gmm.covariance.name())
            }
            Self::Linear(regression) | Self::Logistic(regression) => {
                let intercept = if regression.intercept { "" } else { ", no intercept" };
                let penalty = match regression.nonconvex {
                    0.0 => format!("ridge {}", regression.ridge),
                    lambda => format!("bounded penalty {lambda}"),
                };
                format!("{}, {penalty}{intercept}", self.name())
            }
            Self::LowRank(table) => table.describe(),
        }
    }

    /// The word for its covariances, where it has any.
    pub fn covariance_name(&self) -> Option<&'static str> {
        match self {
            Self::Gmm(gmm) => Some(gmm.covariance.name()),
            Self::Linear(_) | Self::Logistic(_) | Self::LowRank(_) => None,
        }
    }

    /// Whether it predicts a target.
    pub fn is_supervised(&self) -> bool {
        matches!(self, Self::Linear(_) | Self::Logistic(_))
    }

    fn kind(&self) -> ModelKind {
        match self {
            Self::Gmm(_) => ModelKind::Gmm,
            Self::Linear(_) => ModelKind::Linear,
            Self::Logistic(_) => ModelKind::Logistic,
            Self::LowRank(_) => ModelKind::LowRank,
        }
    }

    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let kind: ModelKind = reader.read(&KIND, |v| v.choice())?;
        match kind {
            ModelKind::Gmm => Gmm::read(reader).map(Self::Gmm),
            ModelKind::Linear => Regression::read(reader, kind).map(Self::Linear),
            ModelKind::Logistic => Regression::read(reader, kind).map(Self::Logistic),
            ModelKind::LowRank => LowRank::read(reader).map(Self::LowRank),
        }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        out.put(&KIND, text(self.name()));
        match self {
            Self::Gmm(gmm) => gmm.write(out),
            Self::Linear(regression) | Self::Logistic(regression) => {
                regression.write(out, self.kind())
            }
            Self::LowRank(table) => table.write(out),
        }
    }
}

impl Regression {
    fn read(reader: &Reader<'_>, kind: ModelKind) -> Read<Self> {
        let why = format!("has no meaning for {}: other models have it", kind.name());
        let logistic = kind == ModelKind::Logistic;
        let keys: &[&Key] = match logistic {
            true => &[&KIND, &RIDGE, &NONCONVEX, &INTERCEPT],
            false => &[&KIND, &RIDGE, &INTERCEPT],
        };
        reader.refuse_all_but(keys, &why);
        let ridge = reader.read(&RIDGE, |v| v.number(|x| x >= 0.0));
        let nonconvex = match logistic {
            true => reader.read(&NONCONVEX, |v| v.number(|x| x >= 0.0)),
            false => Ok(0.0),
        };
        let intercept = reader.read(&INTERCEPT, |v| v.boolean());
        Ok(Self { ridge: ridge?, nonconvex: nonconvex?, intercept: intercept? })
    }

    fn write(&self, out: &mut Writer, kind: ModelKind) {
        out.put(&RIDGE, number(self.ridge));
        if kind == ModelKind::Logistic {
            out.put(&NONCONVEX, number(self.nonconvex));
        }
        out.put(&INTERCEPT, self.intercept.to_string());
    }
}
