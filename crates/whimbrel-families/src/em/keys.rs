//! Keys of Gaussian mixtures and of the EM methods.

use std::path::PathBuf;
use whimbrel_job::form::{
    BOOLEAN, COUNT, COUNT_U32, Form as KeyForm, NOT_NEGATIVE, PATH, POSITIVE, Table,
};
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::matrix::COVARIANCE as MATRIX;
use whimbrel_job::reader::{Read, Reader, Shape};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, form, inline, list, number, table};
use whimbrel_methods::fedem::Form;
use whimbrel_models::gmm::{Covariance, GmmPenalty, GmmSettings};

/// `[model]` with `kind = "gmm"`.
#[derive(Clone, Debug, PartialEq)]
pub struct GmmKeys {
    /// With zero columns until the data are read, and an empty known covariance if it is in the init file.
    pub settings: GmmSettings,
    pub init: Init,
    /// Candidates for the number of components; the settings have the largest until one is chosen.
    pub components: Vec<usize>,
    /// Number of starts, of which the best is used.
    pub starts: u32,
}

/// Initial value of a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Init {
    /// Means drawn from the pooled first two moments.
    Moments,
    /// A federated k-means stage.
    #[default]
    FederatedKmeans,
    /// Means are rows of the clients.
    Examples,
    /// A JSON file with `weights`, `means` and `covariance`.
    File(PathBuf),
}

impl Default for GmmKeys {
    fn default() -> Self {
        let settings = GmmSettings::default();
        Self { components: vec![settings.components], settings, init: Init::default(), starts: 1 }
    }
}

table! {
    pub(super) GMM: GmmKeys, then check {
        + settings: SETTINGS;
        /// number of components; given a list, the value with the lowest BIC, chosen before the fit
        /// by exact EM on sums of the clients
        components: COMPONENTS = "components", NUMBERS, required;
        /// number of starts: by federated k-means and, every second one, from moments (at least ten where
        /// one client holds all rows); runs of exact EM choose the one with the highest likelihood
        starts: STARTS = "starts", COUNT_U32, default;
        /// initial value of the fit; a file has `weights`, `means` and `covariance` (of all
        /// components) or `covariances` (one per component)
        init: INIT = "init", INITS, default;
    }
}

table! {
    pub(super) SETTINGS: GmmSettings {
        + covariance: COVARIANCE_KEYS;
        /// added to the diagonal of every fitted covariance; for a `mixture`, this share of each
        /// column's variance is added
        reg_covar: REG_COVAR = "reg_covar", NOT_NEGATIVE, default;
        /// smallest weight after an M-step; clips are counted as repairs
        weight_floor: WEIGHT_FLOOR = "weight_floor",
            POSITIVE.takes("a positive number, at most 1/2 divided by `components`"), default;
        /// smallest variance of a fitted covariance in any direction, with columns in units of
        /// their spread; clips are counted as repairs
        covariance_floor: COVARIANCE_FLOOR = "covariance_floor",
            number!("a number between 0 and 1", |x| x > 0.0 && x < 1.0), default;
        /// penalty on the parameters
        penalty: PENALTY = "penalty", inline!(PENALTIES).takes("a table of penalties"), default;
        ..from GmmSettings::default()
    }
}

/// The keys of `kind = "gmm"`.
pub(super) static GMM_KEYS: [&JobKey; 9] = [
    &COMPONENTS,
    &STARTS,
    &COVARIANCE,
    &KNOWN_COVARIANCE,
    &INIT,
    &REG_COVAR,
    &WEIGHT_FLOOR,
    &COVARIANCE_FLOOR,
    &PENALTY,
];

/// Candidates of "auto".
const AUTO_COMPONENTS: std::ops::RangeInclusive<usize> = 1..=10;

pub(super) const NUMBERS: KeyForm<Vec<usize>> = KeyForm::new(
    "an integer of at least 1, a list of them, or \"auto\"",
    |v| match v.shape() {
        Shape::Number => Ok(vec![v.count()?]),
        Shape::List => match list!(COUNT, "").read(v)? {
            all if all.is_empty() => {
                Err(v.fail("`components` is an empty list", "list at least one number"))
            }
            all => Ok(all),
        },
        _ => match v.text()?.as_str() {
            "auto" => Ok(AUTO_COMPONENTS.collect()),
            other => Err(v.unknown_word(other)),
        },
    },
    |all| match all[..] {
        [one] => one.to_string(),
        _ => list!(COUNT, "").write(all),
    },
)
.words(&[Word { name: "auto", doc: "1 to 10" }]);

form! {
    pub(super) INITS: Init, "\"federated-kmeans\", \"moments\", \"examples\" or a .json file" {
        /// clients send centres and sizes of clusters of at least five rows; on a grid, counts and sums of
        /// the rows in clusters, in 15 rounds of k-means
        "federated-kmeans" => Init::FederatedKmeans,
        /// means drawn from the pooled first two moments: clients send only sums
        "moments" => Init::Moments,
        /// rows of the clients as means: these rows leave the client
        "examples" => Init::Examples,
    }
    path PATH => Init::File;
}

form! {
    pub(super) COVARIANCES: Covariance {
        /// given and equal for all components
        "known" => Covariance::Known(Vec::new()),
        /// fitted and equal for all components
        "tied" => Covariance::Tied,
        /// fitted per component, without correlations
        "diagonal" => Covariance::Diagonal,
        /// fitted per component: one variance for all columns, in units of `standardize` where that is set
        "spherical" => Covariance::Spherical,
        /// fitted per component
        "full" => Covariance::Full,
    }
}

define_keys! {
    /// structure of the covariances
    pub(super) COVARIANCE = "covariance", COVARIANCES, default(GmmSettings::default().covariance);
    /// the covariance of every component
    KNOWN_COVARIANCE = "known_covariance", MATRIX, unset "the covariance of the `init` file";
}

/// The covariance, with the matrix of a known one.
const COVARIANCE_KEYS: Table<Covariance> = Table {
    section: Section::of(const { &[&COVARIANCE, &KNOWN_COVARIANCE] }),
    read: |reader| {
        let covariance = reader.read_as(&COVARIANCE, &COVARIANCES);
        let known = reader.optional_as(&KNOWN_COVARIANCE, &MATRIX);
        match covariance? {
            Covariance::Known(_) => Ok(Covariance::Known(known?.unwrap_or_default().concat())),
            fitted => {
                let why = "applies to covariance = \"known\" only";
                reader.refuse_if_given(&KNOWN_COVARIANCE, why);
                Ok(fitted)
            }
        }
    },
    write: |covariance, out| {
        out.put(&COVARIANCE, text(covariance_name(covariance)));
        if let Covariance::Known(values) = covariance
            && !values.is_empty()
        {
            let rows = values.chunks(values.len().isqrt()).map(<[f64]>::to_vec).collect();
            out.put(&KNOWN_COVARIANCE, MATRIX.write(&rows));
        }
    },
};

/// The word for a covariance.
pub fn covariance_name(covariance: &Covariance) -> &'static str {
    match covariance {
        Covariance::Known(_) => COVARIANCES.words[0].name,
        fitted => COVARIANCES.name(fitted),
    }
}

#[derive(Default)]
struct Penalties {
    dirichlet: f64,
    wishart: Wishart,
}

#[derive(Default)]
struct Wishart {
    nu: f64,
    psi: f64,
}

table! {
    PENALTY_KEYS: Penalties = "penalty", "penalty on the parameters" {
        /// `a` in the penalty `-a sum_k ln pi_k` on the weights
        dirichlet: DIRICHLET = "dirichlet", NOT_NEGATIVE, default;
        /// the penalty `(nu/2) ln det Sigma + (psi/2) tr Sigma^-1` on each fitted covariance
        wishart: WISHART = "inverse_wishart", inline!(WISHARTS), default;
    }
}

table! {
    WISHARTS: Wishart = "inverse_wishart", "strength of the inverse-Wishart penalty" {
        /// weight of the log-determinant
        nu: NU = "nu", NOT_NEGATIVE, default;
        /// weight of the trace of the inverse
        psi: PSI = "psi", NOT_NEGATIVE, default;
    }
}

/// The penalty, with its inverse-Wishart part as an inner table.
const PENALTIES: Table<GmmPenalty> = Table {
    section: PENALTY_KEYS.section,
    read: |reader| {
        let Penalties { dirichlet, wishart: Wishart { nu, psi } } = PENALTY_KEYS.read(reader)?;
        Ok(GmmPenalty { dirichlet, wishart_degrees: nu, wishart_scale: psi })
    },
    write: |penalty, out| {
        let GmmPenalty { dirichlet, wishart_degrees: nu, wishart_scale: psi } = *penalty;
        PENALTY_KEYS.write(&Penalties { dirichlet, wishart: Wishart { nu, psi } }, out);
    },
};

fn check(reader: &Reader<'_>, mut keys: GmmKeys) -> Read<GmmKeys> {
    let GmmKeys { settings, init, components, starts } = &mut keys;
    components.sort_unstable();
    components.dedup();
    let Some(&most) = components.last() else {
        return reader.read(&COMPONENTS, |v| Err(v.refuse()));
    };
    settings.components = most;
    if let Covariance::Known(values) = &settings.covariance {
        let why = "has no meaning for known: the covariance is given, not fitted";
        for key in [&REG_COVAR, &COVARIANCE_FLOOR] {
            reader.refuse_if_given(key, why);
        }
        if (settings.penalty.wishart_degrees, settings.penalty.wishart_scale) != (0.0, 0.0) {
            reader.read(&PENALTY, |v| {
                v.table(const { &PENALTIES.section })?.refuse_if_given(&WISHART, why);
                Ok(())
            })?;
        }
        if values.is_empty() && !matches!(init, Init::File(_)) {
            return Err(reader.lacking(
                &KNOWN_COVARIANCE,
                "covariance = \"known\" without a covariance",
                "give `known_covariance`, or an `init` file that has a covariance",
            ));
        }
    }
    // A higher floor would not leave room for the largest weight.
    if settings.weight_floor > 0.5 / most as f64 {
        return reader.read(&WEIGHT_FLOOR, |v| Err(v.refuse()));
    }
    if (components.len() > 1 || *starts > 1) && matches!(init, Init::File(_) | Init::Examples) {
        let key = if *starts > 1 { &STARTS } else { &COMPONENTS };
        return Err(reader.lacking(
            key,
            "several starts are by federated k-means or from moments",
            "take `init` out, or give one number of components and one start",
        ));
    }
    match init {
        Init::File(path) if path.extension().is_none_or(|ending| ending != "json") => {
            reader.read(&INIT, |v| Err(v.refuse()))
        }
        _ => Ok(keys),
    }
}

impl GmmKeys {
    pub(super) fn write(&self, out: &mut Writer) {
        if matches!(self.settings.covariance, Covariance::Known(_)) {
            out.skip(&[&REG_COVAR, &COVARIANCE_FLOOR]);
        }
        GMM.write(self, out);
    }
}

/// Settings of the EM methods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EmKeys {
    /// Rounds of an outer loop of vr-fedem; `None`: automatic.
    pub inner: Option<u32>,
    /// Content of the messages; `None`: by downlink.
    pub form: Option<Form>,
    /// Whether a degenerate fit exits with code 0.
    pub allow_degenerate: bool,
}

table! {
    pub(super) EM_KEYS: EmKeys {
        /// rounds of an outer loop, which starts with a pass over all rows of each client
        inner: INNER = "inner", INNERS, default;
        /// content of the messages
        form: FORM = "form", FORMS, unset "\"pair\" over an exact downlink, \"lean\" over preserved ones, \"state\" over others";
        /// whether a degenerate fit (repaired parameters, an empty component, or worse than one
        /// component) counts as success; it is reported either way
        allow_degenerate: ALLOW_DEGENERATE = "allow_degenerate", BOOLEAN, default;
    }
}

form! {
    INNERS: Option<u32>, "an integer of at least 1 or \"auto\"" {
        /// min((1 + omega) sqrt(m/2), m/(2 `batch`)) rounded up, with m the mean number of rows of
        /// a client
        "auto" => None,
    }
    number COUNT_U32 => Some;
}

form! {
    pub(super) FORMS: Form {
        /// the server sends statistic and parameters, clients send the field, as in the paper
        "pair" => Form::Pair,
        /// the server sends the statistic, from which clients compute the parameters with pooled
        /// moments that are sent once; the only form for degraded downlinks
        "state" => Form::State,
        /// the server sends the parameters and subtracts its statistic itself
        "lean" => Form::Lean,
    }
}
