//! The family's keys: a low-rank table in `[model]`, `copies` in `[method]`.

use super::terms::TERMS_MAX;
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT_U32, Form, NOT_NEGATIVE, POSITIVE};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{form, integer, list, table};
use whimbrel_methods::fedmiss::Copies;
use whimbrel_models::lowrank::{self, Family, Variance};

/// A low-rank table.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankKeys {
    /// What entries are.
    pub family: Family,
    /// The noise of Gaussian entries.
    pub variance: Variance,
    /// The rank of the table; `None`: chosen by cross-validation.
    pub rank: Option<usize>,
    /// The penalty on the factors; `None`: chosen by cross-validation.
    pub lambda: Option<f64>,
    /// Main effects beside the factors.
    pub effects: EffectsKey,
    /// Columns of numbers that describe rows or columns.
    pub covariates: Vec<String>,
    /// The penalty on main and personal effects; `None`: chosen where rank or lambda is, or there are
    /// no effects.
    pub lambda_effects: Option<f64>,
    /// Whether each client has an effect of its own, which it keeps.
    pub personal: bool,
    /// Whether estimates of unobserved counts are capped.
    pub ceiling: bool,
}

impl Default for LowRankKeys {
    fn default() -> Self {
        Self {
            family: Family::Gaussian,
            variance: Variance::default(),
            rank: None,
            lambda: None,
            effects: EffectsKey::None,
            covariates: Vec::new(),
            lambda_effects: None,
            personal: false,
            ceiling: true,
        }
    }
}

table! {
    pub(super) LOW_RANK: LowRankKeys, then check {
        family: FAMILY = "family", FAMILIES, required, "what the table's entries are";
        variance: VARIANCE = "variance", VARIANCES, default,
            "the noise of Gaussian entries";
        rank: RANK = "rank", RANKS, default,
            "the rank of the table, main effects apart; below both of its sides";
        lambda: LAMBDA = "lambda", LAMBDAS, default,
            "the ridge penalty on the factors, of each client: the sum over clients weighs on the table's \
             singular values";
        effects: EFFECTS = "effects", EFFECTS_WORDS,
            unset "\"row+column\" where `rank` or `lambda` is \"auto\", else \"none\""
            or if is_none(&rank) || is_none(&lambda) { EffectsKey::RowColumn } else { EffectsKey::None },
            "main effects beside the factors, which are what is left after them; a choice of the rank \
             starts from them";
        covariates: COVARIATES = "covariates", COLUMNS, default,
            "columns of numbers that describe rows or columns, each with a slope (of the number less its mean, \
             over its standard deviation)";
        lambda_effects: LAMBDA_EFFECTS = "lambda_effects", POSITIVE,
            unset "chosen where `rank` or `lambda` is \"auto\", else 1e-3",
            "the ridge penalty on main and personal effects: a row of zeros would otherwise have the \
             logarithm of zero";
        personal: PERSONAL = "personal", BOOLEAN, default,
            "whether each client has an effect of its own, which never leaves it: experts and beginners \
             then count differently";
        ceiling: CEILING = "ceiling", BOOLEAN, default,
            "whether no count is estimated above the larger of two fitted values: the largest among the \
             observed cells of its row, and among those of its column; for tables with factors";
    }
}

form! {
    /// What entries are.
    pub FAMILIES: Family {
        Family::Gaussian => "gaussian": "any numbers, with normal noise",
        Family::Poisson => "poisson": "counts; the table holds logarithms of their means",
        Family::Bernoulli => "bernoulli": "0 or 1; the table holds log-odds",
    }
}

form! {
    /// The noise of Gaussian entries.
    pub(super) VARIANCES: Variance {
        Variance::Unit => "unit": "variance 1",
        Variance::Estimated => "estimated": "from the residuals; it widens intervals and leaves the \
         fit as it is",
    }
}

form! {
    RANKS: Option<usize>, "an integer of at least 0 or \"auto\"" {
        None => "auto": "chosen by cross-validation over all clients, before the fit",
    }
    number integer!(usize, 0 to 4294967295) => Some;
}

form! {
    LAMBDAS: Option<f64>, "a number of at least 0 or \"auto\"" {
        None => "auto": "chosen by cross-validation over all clients, before the fit",
    }
    number NOT_NEGATIVE => Some;
}

/// Main effects.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectsKey {
    /// None.
    None,
    /// A number for each row.
    Row,
    /// A number for each column.
    Column,
    /// Both.
    RowColumn,
    /// A number for each value of these columns of the file, or for each combination of several; each
    /// with a ridge of its own.
    Terms(Vec<String>),
}

const COLUMNS: Form<Vec<String>> = list!(COLUMN, "a list of column names");

form! {
    /// Main effects.
    pub EFFECTS_WORDS: EffectsKey, "a word, or a list of column names, with `:` between those whose combinations count" {
        EffectsKey::None => "none": "the factors alone",
        EffectsKey::Row => "row": "a number for each row",
        EffectsKey::Column => "column": "a number for each column",
        EffectsKey::RowColumn => "row+column": "a number for each row and each column",
    }
    list list!(some COLUMN, "") => EffectsKey::Terms;
}

impl EffectsKey {
    /// In words.
    pub fn words(&self) -> String {
        match self {
            Self::Terms(names) => names.join(", "),
            word => EFFECTS_WORDS.name(word).into(),
        }
    }
}

/// The largest ridge.
const RIDGE_MAX: f64 = 1e12;

fn is_none<T>(read: &Read<Option<T>>) -> bool {
    matches!(read, Ok(None))
}

fn check(reader: &Reader<'_>, mut keys: LowRankKeys) -> Read<LowRankKeys> {
    let chooses = keys.rank.is_none() || keys.lambda.is_none();
    if keys.family != Family::Poisson {
        reader.refuse_if_given(&CEILING, "is for counts only: other means do not run away");
    }
    if keys.family != Family::Gaussian {
        reader.refuse_if_given(&VARIANCE, "is the noise of Gaussian entries only");
    }
    let terms = match &keys.effects {
        EffectsKey::Terms(names) => names.len(),
        _ => 2,
    };
    for (key, ridge) in [(&LAMBDA, keys.lambda), (&LAMBDA_EFFECTS, keys.lambda_effects)] {
        if ridge.is_some_and(|ridge| ridge > RIDGE_MAX) {
            return Err(reader.fault(
                key,
                format!("a ridge above {RIDGE_MAX:e} leaves nothing to fit"),
                "give a smaller one, or \"auto\"",
            ));
        }
    }
    if terms + keys.covariates.len() > TERMS_MAX {
        return Err(reader.fault(
            &EFFECTS,
            format!("more than {TERMS_MAX} effects and covariates"),
            "take some of them out",
        ));
    }
    if keys.effects == EffectsKey::None && !keys.covariates.is_empty() {
        return Err(reader.fault(
            &COVARIATES,
            "covariates come with main effects, whose intercept they need",
            "write effects = \"row+column\"",
        ));
    }
    if keys.effects == EffectsKey::None && chooses {
        return Err(reader.fault(
            &EFFECTS,
            "an automatic rank or lambda starts from main effects",
            "write effects = \"row+column\", or give rank and lambda as numbers",
        ));
    }
    if keys.effects == EffectsKey::None && !keys.personal {
        reader.refuse_if_given(&LAMBDA_EFFECTS, "has no meaning without `effects` or `personal`");
    } else if !chooses {
        keys.lambda_effects.get_or_insert(lowrank::LAMBDA_EFFECTS);
    }
    if keys.rank == Some(0) && keys.effects == EffectsKey::None {
        return Err(reader.fault(
            &RANK,
            "rank 0 without effects leaves nothing to fit",
            "give effects = \"row+column\", or a rank of at least 1",
        ));
    }
    Ok(keys)
}

impl LowRankKeys {
    pub(super) fn write(&self, out: &mut Writer) {
        if self.family != Family::Gaussian {
            out.skip(&[&VARIANCE]);
        }
        if self.family != Family::Poisson {
            out.skip(&[&CEILING]);
        }
        LOW_RANK.write(self, out);
    }

    pub(super) fn describe(&self) -> String {
        let rank = self.rank.map_or("chosen".to_owned(), |rank| rank.to_string());
        let effects = match &self.effects {
            EffectsKey::None => String::new(),
            effects => format!(", {} effects", effects.words()),
        };
        format!("{}, {}, rank {rank}{effects}", "low-rank", FAMILIES.name(&self.family))
    }
}

form! {
    /// The number of completed-data copies.
    pub(super) COPIES_WORDS: Copies {
        Copies::Auto => "auto": "\"fewest\", with a given step cut where the memories could not keep \
         up with it; \"clients\" with a given step, minibatches or a codec, and no memories",
        Copies::Clients => "clients": "one for each client, as in the paper",
        Copies::Fewest => "fewest": "as many as a cell has observations: the largest steps that are \
         sure to descend",
    }
}

/// How many starts.
pub(super) static STARTS: JobKey = COUNT_U32.default(
    "starts",
    || COUNT_U32.write(&1),
    "where rank and lambda are given: number of random starts, of which the fit with the lowest \
     objective is taken",
);
/// The paper's iterates.
pub(super) static EXACT: JobKey = BOOLEAN.default(
    "exact",
    || BOOLEAN.write(&false),
    "the paper's iterates: T carried out to the end in every round, one copy for each client, no \
     ceiling",
);

/// The number of completed-data copies.
pub(super) static COPIES: JobKey = COPIES_WORDS.default(
    "copies",
    || COPIES_WORDS.write(&Copies::default()),
    "number of completed-data copies, M: a step of 1 moves a cell by 1/M of its residual",
);
