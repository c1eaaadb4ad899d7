//! The family's keys: a Gaussian mixture in `[model]`, `inner` and `form` in `[method]`.

use std::path::PathBuf;
use whimbrel_job::form::{
    BOOLEAN, COUNT, COUNT_U32, Form as KeyForm, NOT_NEGATIVE, PATH, POSITIVE, Table,
};
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::matrix::COVARIANCE as MATRIX;
use whimbrel_job::reader::{Read, Reader, Shape};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{form, inline, list, number, table};
use whimbrel_methods::fedem::Form;
use whimbrel_models::gmm::{Covariance, GmmPenalty, GmmSettings};

/// `[model]` with `kind = "gmm"`.
#[derive(Clone, Debug, PartialEq)]
pub struct GmmKeys {
    /// The mixture. Its number of columns is zero until the data tell, and a known covariance is
    /// empty where the init file has it.
    pub settings: GmmSettings,
    /// Where the fit starts.
    pub init: Init,
    /// The numbers of components to choose from; one where there is no choice. The settings have the
    /// largest until the choice is made.
    pub components: Vec<usize>,
    /// Starts of which the best is taken.
    pub starts: u32,
}

/// Where a fit starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Init {
    /// Means drawn from the pooled first two moments.
    Moments,
    /// A federated k-means stage.
    #[default]
    FederatedKmeans,
    /// Rows of the clients as means.
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
        components: COMPONENTS = "components", NUMBERS, required,
            "how many components the mixture has; of several numbers, that of the lowest BIC, which a stage \
             before the fit finds by exact EM from sums alone";
        starts: STARTS = "starts", COUNT_U32, default,
            "how many starts are tried by short runs of exact EM in a stage before the fit, which starts from \
             the one of the highest likelihood; by federated k-means or from moments";
        init: INIT = "init", INITS, default,
            "where the fit starts; a file holds `weights`, `means` and `covariance` (of all components) or \
             `covariances` (one for each)";
    }
}

table! {
    pub(super) SETTINGS: GmmSettings {
        + covariance: COVARIANCE_KEYS;
        reg_covar: REG_COVAR = "reg_covar", NOT_NEGATIVE, default,
            "added to the diagonal of every fitted covariance";
        weight_floor: WEIGHT_FLOOR = "weight_floor",
            POSITIVE.takes("a positive number, at most 1/2 divided by `components`"), default,
            "the smallest weight that the M-step returns; a clip is counted as a repair";
        covariance_floor: COVARIANCE_FLOOR = "covariance_floor",
            number!("a number between 0 and 1", |x| x > 0.0 && x < 1.0), default,
            "the smallest variance of a fitted covariance in any direction, with each column in units of its \
             spread; a clip is counted as a repair";
        penalty: PENALTY = "penalty", inline!(PENALTIES).takes("a table of penalties"), default,
            "the penalty on the parameters; zeros mean none";
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

/// The numbers of components that "auto" chooses from.
const AUTO_COMPONENTS: std::ops::RangeInclusive<usize> = 1..=10;

/// Numbers of components.
pub(super) const NUMBERS: KeyForm<Vec<usize>> = KeyForm::new(
    "an integer of at least 1, a list of them, or \"auto\"",
    |v| match v.shape() {
        Shape::Number => Ok(vec![v.count()?]),
        Shape::List => list!(COUNT, "").read(v),
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
    /// Starts.
    pub(super) INITS: Init, "\"federated-kmeans\", \"moments\", \"examples\" or a .json file" {
        Init::FederatedKmeans => "federated-kmeans": "a stage in which clients send centres and sizes of \
         clusters of five rows or more",
        Init::Moments => "moments": "means drawn from the pooled first two moments: clients send nothing but \
         sums",
        Init::Examples => "examples": "rows of the clients as means: raw rows leave the client",
    }
    path PATH => Init::File;
}

form! {
    /// The forms of a mixture's covariances.
    pub(super) COVARIANCES: Covariance {
        Covariance::Known(Vec::new()) => "known": "given, the same for every component, and not fitted",
        Covariance::Tied => "tied": "fitted, the same for every component",
        Covariance::Diagonal => "diagonal": "fitted for each component, without correlations",
        Covariance::Full => "full": "fitted for each component",
    }
}

/// `covariance`.
pub(super) static COVARIANCE: JobKey = COVARIANCES.default(
    "covariance",
    || COVARIANCES.write(&GmmSettings::default().covariance),
    "the form of the covariances",
);
static KNOWN_COVARIANCE: JobKey = MATRIX.unset(
    "known_covariance",
    "the covariance of the `init` file",
    "the covariance of every component",
);

/// The covariance, and the matrix of a known one beside it.
const COVARIANCE_KEYS: Table<Covariance> = Table {
    section: Section::of(const { &[&COVARIANCE, &KNOWN_COVARIANCE] }),
    read: |reader| {
        let covariance = reader.read_as(&COVARIANCE, &COVARIANCES);
        let known = reader.optional_as(&KNOWN_COVARIANCE, &MATRIX);
        match covariance? {
            Covariance::Known(_) => Ok(Covariance::Known(known?.unwrap_or_default().concat())),
            fitted => {
                let why = "has no meaning here: the covariance is fitted";
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

/// What a job file calls a covariance.
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
    PENALTY_KEYS: Penalties = "penalty", "penalties on the parameters" {
        dirichlet: DIRICHLET = "dirichlet", NOT_NEGATIVE, default,
            "`a` in the penalty `-a sum_k ln pi_k` on the weights";
        wishart: WISHART = "inverse_wishart", inline!(WISHARTS), default,
            "the penalty `(nu/2) ln det Sigma + (psi/2) tr Sigma^-1` on each fitted covariance";
    }
}

table! {
    WISHARTS: Wishart = "inverse_wishart", "strength of the inverse-Wishart penalty" {
        nu: NU = "nu", NOT_NEGATIVE, default, "weight of the log-determinant";
        psi: PSI = "psi", NOT_NEGATIVE, default, "weight of the trace of the inverse";
    }
}

/// The penalty, whose inverse-Wishart part has a table of its own.
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
                "covariance = \"known\", but nothing in [model] says what it is",
                "give `known_covariance`, or an `init` file that has a covariance",
            ));
        }
    }
    // A higher floor would leave the largest weight no room.
    if settings.weight_floor > 0.5 / most as f64 {
        return reader.read(&WEIGHT_FLOOR, |v| Err(v.refuse()));
    }
    if (components.len() > 1 || *starts > 1) && matches!(init, Init::File(_) | Init::Examples) {
        let key = if *starts > 1 { &STARTS } else { &COMPONENTS };
        return Err(reader.lacking(
            key,
            "several starts are drawn by federated k-means or from moments",
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

/// What a job asks of the method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EmKeys {
    /// Rounds of an outer loop of vr-fedem; none: the method's.
    pub inner: Option<u32>,
    /// What travels in a round.
    pub form: Option<Form>,
    /// Whether a degenerate fit exits with code 0.
    pub allow_degenerate: bool,
}

table! {
    pub(super) EM_KEYS: EmKeys {
        inner: INNER = "inner", INNERS, default,
            "rounds of an outer loop: a client's first upload of one comes from a pass over all its rows";
        form: FORM = "form", FORMS, unset "\"pair\" over an exact downlink, \"lean\" over preserved ones, \"state\" over others",
            "what travels in a round";
        allow_degenerate: ALLOW_DEGENERATE = "allow_degenerate", BOOLEAN, default,
            "whether a degenerate fit (repaired parameters, a component without weight, worse than one \
             component) exits with code 0; it is reported all the same";
    }
}

form! {
    INNERS: Option<u32>, "an integer of at least 1 or \"auto\"" {
        None => "auto": "(1 + omega) sqrt(m/2) or m/(2 `batch`), the smaller, rounded up, with m the mean number of rows \
         of a client",
    }
    number COUNT_U32 => Some;
}

form! {
    /// What travels in a round.
    pub(super) FORMS: Form {
        Form::Pair => "pair": "the statistic and the parameters go down, the compressed field comes \
         up, as in the paper",
        Form::State => "state": "the statistic goes down, and clients compute the parameters from it \
         and pooled moments sent once; the only form for degraded downlinks",
        Form::Lean => "lean": "the parameters go down, and the server subtracts its statistic itself",
    }
}
