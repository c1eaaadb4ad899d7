//! The family's keys: a Gaussian mixture in `[model]`, `inner` and `form` in `[method]`.

use std::path::PathBuf;
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::matrix::{read_covariance, write_matrix};
use whimbrel_job::named;
use whimbrel_job::path::{looks_like_path, write_path};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};
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

named! {
    /// The forms of a mixture's covariances.
    pub(super) COVARIANCES: Covariance {
        Covariance::Known(Vec::new()) => "known": "given, the same for every component, and not fitted",
        Covariance::Tied => "tied": "fitted, the same for every component",
        Covariance::Diagonal => "diagonal": "fitted for each component, without correlations",
        Covariance::Full => "full": "fitted for each component",
    }
}

named! {
    /// What travels in a round.
    pub(super) FORMS: Form {
        Form::Pair => "pair": "the statistic and the parameters go down, the compressed field comes \
         up, as in the paper",
        Form::State => "state": "the statistic goes down, and clients compute the parameters from it \
         and pooled moments sent once; the only form for degraded downlinks",
        Form::Lean => "lean": "the parameters go down, and the server subtracts its statistic itself",
    }
}

/// What a job file calls a covariance.
pub fn covariance_name(covariance: &Covariance) -> &'static str {
    match covariance {
        Covariance::Known(_) => COVARIANCES.words[0].name,
        fitted => COVARIANCES.name(fitted.clone()),
    }
}

const NOT_FITTED: &str = "the covariance is given, not fitted";

/// The numbers of components that "auto" chooses from.
const AUTO_COMPONENTS: std::ops::RangeInclusive<usize> = 1..=10;

pub(super) static COMPONENTS: Key = Key::required(
    "components",
    "an integer of at least 1, a list of them, or \"auto\"",
    "how many components the mixture has; of several numbers, that of the lowest BIC, which a stage \
     before the fit finds by exact EM from sums alone",
)
.words(&[Word { name: "auto", doc: "1 to 10" }]);
pub(super) static STARTS: Key = Key::default(
    "starts",
    "an integer of at least 1",
    "1",
    "how many starts are tried by short runs of exact EM in a stage before the fit, which starts from \
     the one of the highest likelihood; by federated k-means or from moments",
);
pub(super) static COVARIANCE: Key =
    Key::default("covariance", "", "\"tied\"", "the form of the covariances")
        .words(COVARIANCES.words);
pub(super) static KNOWN_COVARIANCE: Key = Key::optional(
    "known_covariance",
    "a square matrix",
    "the covariance of the `init` file",
    "the covariance of every component",
);
pub(super) static INIT: Key = Key::default(
    "init",
    "\"federated-kmeans\", \"moments\", \"examples\" or a .json file",
    "\"federated-kmeans\"",
    "where the fit starts; a file holds `weights`, `means` and `covariance` (of all components) or \
     `covariances` (one for each)",
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
]);
pub(super) static REG_COVAR: Key = Key::default(
    "reg_covar",
    "a number of at least 0",
    "0.0",
    "added to the diagonal of every fitted covariance",
);
pub(super) static WEIGHT_FLOOR: Key = Key::default(
    "weight_floor",
    "a positive number, at most 1/2 divided by `components`",
    "1e-10",
    "the smallest weight that the M-step returns; a clip is counted as a repair",
);
pub(super) static COVARIANCE_FLOOR: Key = Key::default(
    "covariance_floor",
    "a number between 0 and 1",
    "1e-10",
    "the smallest variance of a fitted covariance in any direction, with each column in units of its spread; \
     a clip is counted as a repair",
);
pub(super) static PENALTY: Key = Key::default(
    "penalty",
    "a table of penalties",
    "{ dirichlet = 0.0, inverse_wishart = { nu = 0.0, psi = 0.0 } }",
    "the penalty on the parameters; zeros mean none",
)
.tables(&[&PENALTY_SECTION, &WISHART_SECTION]);

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

pub(super) static INNER: Key = Key::default(
    "inner",
    "an integer of at least 1 or \"auto\"",
    "\"auto\"",
    "rounds of an outer loop: a client's first upload of one comes from a pass over all its rows",
)
.words(&[Word {
    name: "auto",
    doc: "(1 + omega) sqrt(m/2) rounded up, with m the mean number of rows of a client",
}]);
pub(super) static FORM: Key = Key::optional(
    "form",
    "",
    "\"pair\" over an exact downlink, \"state\" over others",
    "what travels in a round",
)
.words(FORMS.words);

pub(super) static ALLOW_DEGENERATE: Key = Key::default(
    "allow_degenerate",
    "true or false",
    "false",
    "whether a degenerate fit (repaired parameters, a component without weight, worse than one \
     Gaussian) exits with code 0; it is reported all the same",
);

/// The keys of `kind = "gmm"`.
pub(super) static GMM: [&Key; 9] = [
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

impl GmmKeys {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let components = reader.read(&COMPONENTS, read_components);
        let starts = reader.read(&STARTS, |v| v.count_u32());
        let init = reader.read(&INIT, read_init);
        let covariance = reader.read(&COVARIANCE, |v| v.named(&COVARIANCES));
        let is_known = matches!(covariance, Ok(Covariance::Known(_)));
        if is_known {
            for key in [&REG_COVAR, &COVARIANCE_FLOOR] {
                reader.refuse_if_given(key, &format!("has no meaning for known: {NOT_FITTED}"));
            }
        } else if covariance.is_ok() {
            let why = "has no meaning here: the covariance is fitted";
            reader.refuse_if_given(&KNOWN_COVARIANCE, why);
        }
        let known = reader.optional(&KNOWN_COVARIANCE, read_covariance);
        let reg_covar = reader.read(&REG_COVAR, |v| v.number(|x| x >= 0.0));
        let covariance_floor = reader.read(&COVARIANCE_FLOOR, |v| v.number(|x| x > 0.0 && x < 1.0));
        // Floors above this would leave the largest weight no room.
        let most = components.as_ref().ok().and_then(|all| all.last().copied()).unwrap_or(1);
        let floor_max = 0.5 / most as f64;
        let weight_floor = reader.read(&WEIGHT_FLOOR, |v| v.number(|x| x > 0.0 && x <= floor_max));
        let penalty = reader.read(&PENALTY, |v| read_penalty(v, is_known));
        let (init, known) = (init?, known?);
        let (components, starts) = (components?, starts?);
        if (components.len() > 1 || starts > 1) && matches!(init, Init::File(_) | Init::Examples) {
            let key = if starts > 1 { &STARTS } else { &COMPONENTS };
            return Err(reader.lacking(
                key,
                "several starts are drawn by federated k-means or from moments",
                "take `init` out, or give one number of components and one start",
            ));
        }
        if is_known && known.is_none() && !matches!(init, Init::File(_)) {
            return Err(reader.lacking(
                &KNOWN_COVARIANCE,
                "covariance = \"known\", but nothing in [model] says what it is",
                "give `known_covariance`, or an `init` file that has a covariance",
            ));
        }
        let covariance = match covariance? {
            Covariance::Known(_) => Covariance::Known(known.map_or_else(Vec::new, |m| m.concat())),
            fitted => fitted,
        };
        let mut settings = GmmSettings::new(most, 0, covariance);
        settings.reg_covar = reg_covar?;
        settings.weight_floor = weight_floor?;
        settings.covariance_floor = covariance_floor?;
        settings.penalty = penalty?;
        Ok(Self { settings, init, components, starts })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let GmmSettings { covariance, penalty, .. } = &self.settings;
        let components = match &self.components[..] {
            [one] => one.to_string(),
            several => list(several.iter().map(usize::to_string)),
        };
        out.put(&COMPONENTS, components);
        out.put(&STARTS, self.starts.to_string());
        out.put(&COVARIANCE, text(covariance_name(covariance)));
        let fitted = match covariance {
            Covariance::Known(values) => {
                if !values.is_empty() {
                    let d = values.len().isqrt();
                    let matrix = values.chunks(d).map(<[f64]>::to_vec).collect();
                    out.put(&KNOWN_COVARIANCE, write_matrix(&matrix));
                }
                false
            }
            _ => true,
        };
        let init = match &self.init {
            Init::Moments => text("moments"),
            Init::FederatedKmeans => text("federated-kmeans"),
            Init::Examples => text("examples"),
            Init::File(path) => write_path(path),
        };
        out.put(&INIT, init);
        if fitted {
            out.put(&REG_COVAR, number(self.settings.reg_covar));
        }
        out.put(&WEIGHT_FLOOR, number(self.settings.weight_floor));
        if fitted {
            out.put(&COVARIANCE_FLOOR, number(self.settings.covariance_floor));
        }
        let mut penalties = vec![(DIRICHLET.name, number(penalty.dirichlet))];
        if fitted {
            let wishart = [
                (NU.name, number(penalty.wishart_degrees)),
                (PSI.name, number(penalty.wishart_scale)),
            ];
            penalties.push((WISHART.name, inline(wishart)));
        }
        out.put(&PENALTY, inline(penalties));
    }
}

/// Whether a stage before the fit chooses among candidates.
impl GmmKeys {
    pub(super) fn chooses(&self) -> bool {
        self.components.len() > 1 || self.starts > 1
    }

    /// The mixture with so many components.
    pub(super) fn of(&self, components: usize) -> Self {
        let settings = GmmSettings { components, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }
}

/// In ascending order, each once.
fn read_components(value: Value<'_>) -> Read<Vec<usize>> {
    let mut components = match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => AUTO_COMPONENTS.collect(),
            other => return Err(value.unknown_word(other)),
        },
        Shape::List => value.list()?.iter().map(|v| v.count()).collect::<Read<Vec<_>>>()?,
        _ => vec![value.count()?],
    };
    components.sort_unstable();
    components.dedup();
    match components.is_empty() {
        true => Err(value.refuse()),
        false => Ok(components),
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

fn read_penalty(value: Value<'_>, known: bool) -> Read<GmmPenalty> {
    let reader = value.table(&PENALTY_SECTION)?;
    if known && !value.is_default() {
        reader.refuse_if_given(&WISHART, &format!("has no meaning for known: {NOT_FITTED}"));
    }
    let dirichlet = reader.read(&DIRICHLET, |v| v.number(|x| x >= 0.0));
    let wishart = reader.read(&WISHART, |v| {
        let reader = v.table(&WISHART_SECTION)?;
        let nu = reader.read(&NU, |v| v.number(|x| x >= 0.0));
        let psi = reader.read(&PSI, |v| v.number(|x| x >= 0.0));
        Ok((nu?, psi?))
    });
    let (wishart_degrees, wishart_scale) = wishart?;
    Ok(GmmPenalty { dirichlet: dirichlet?, wishart_degrees, wishart_scale })
}

/// `inner`; `None`: the method's.
pub(super) fn read_inner(value: Value<'_>) -> Read<Option<u32>> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(None),
            other => Err(value.unknown_word(other)),
        },
        _ => value.count_u32().map(Some),
    }
}
