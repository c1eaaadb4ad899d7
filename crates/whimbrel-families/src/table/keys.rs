//! Keys of low-rank tables and of `fedmiss`.

use super::terms::TERMS_MAX;
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT_U32, Form, NOT_NEGATIVE, POSITIVE};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{define_keys, form, integer, list, table};
use whimbrel_methods::fedmiss::Copies;
use whimbrel_models::lowrank::{self, Family, Variance};

/// A low-rank table.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankKeys {
    pub family: Family,
    /// Of Gaussian entries.
    pub variance: Variance,
    /// `None`: chosen by cross-validation.
    pub rank: Option<usize>,
    /// Penalty on the factors; `None`: chosen by cross-validation.
    pub lambda: Option<f64>,
    pub effects: EffectsKey,
    /// Numeric columns that describe rows or columns of the table.
    pub covariates: Vec<String>,
    /// Penalty on main and personal effects; `None`: chosen with rank or lambda, or no effects.
    pub lambda_effects: Option<f64>,
    /// Whether clients have personal effects.
    pub personal: bool,
    /// Whether estimates of counts are capped.
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
        /// distribution of the entries
        family: FAMILY = "family", FAMILIES, required;
        /// noise of Gaussian entries
        variance: VARIANCE = "variance", VARIANCES, default;
        /// rank of the table without main effects, below both of its dimensions
        rank: RANK = "rank", RANKS, default;
        /// ridge penalty on the factors per client; the sum over clients penalises the table's
        /// singular values
        lambda: LAMBDA = "lambda", LAMBDAS, default;
        /// main effects, fitted with the factors; an automatic rank starts from them
        effects: EFFECTS = "effects", EFFECTS_WORDS,
            unset "\"row+column\" where `rank` or `lambda` is \"auto\", else \"none\""
            or if is_none(&rank) || is_none(&lambda) { EffectsKey::RowColumn } else { EffectsKey::None };
        /// numeric columns that describe rows or columns of the table, each with a slope; they are
        /// standardised
        covariates: COVARIATES = "covariates", COLUMNS, default;
        /// ridge penalty on main and personal effects, which keeps effects of zero counts finite
        lambda_effects: LAMBDA_EFFECTS = "lambda_effects", POSITIVE,
            unset "chosen where `rank` or `lambda` is \"auto\", else 1e-3";
        /// whether clients have personal effects, such as different levels of experience, which
        /// they do not send
        personal: PERSONAL = "personal", BOOLEAN, default;
        /// whether estimates of counts are capped at the largest fitted value of the observed cells
        /// in the same row or column; for tables with factors
        ceiling: CEILING = "ceiling", BOOLEAN, default;
    }
}

form! {
    pub FAMILIES: Family {
        /// numbers with normal noise
        "gaussian" => Family::Gaussian,
        /// counts; the table has the logarithms of their means
        "poisson" => Family::Poisson,
        /// 0 or 1; the table has log-odds
        "bernoulli" => Family::Bernoulli,
    }
}

form! {
    pub(super) VARIANCES: Variance {
        /// variance 1
        "unit" => Variance::Unit,
        /// from the residuals, for intervals; the fit does not depend on it
        "estimated" => Variance::Estimated,
    }
}

form! {
    RANKS: Option<usize>, "an integer of at least 0 or \"auto\"" {
        /// chosen by cross-validation over all clients, before the fit
        "auto" => None,
    }
    number integer!(usize, 0 to 4294967295) => Some;
}

form! {
    LAMBDAS: Option<f64>, "a number of at least 0 or \"auto\"" {
        /// chosen by cross-validation over all clients, before the fit
        "auto" => None,
    }
    number NOT_NEGATIVE => Some;
}

/// Main effects.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectsKey {
    None,
    /// One per row.
    Row,
    /// One per column.
    Column,
    /// Both.
    RowColumn,
    /// One per value of these columns of the file, or per combination of several; each with its own ridge.
    Terms(Vec<String>),
}

const COLUMNS: Form<Vec<String>> = list!(COLUMN, "a list of column names");

form! {
    pub EFFECTS_WORDS: EffectsKey, "a word, or a list of column names, joined by `:` for interactions" {
        /// the factors alone
        "none" => EffectsKey::None,
        /// one per row
        "row" => EffectsKey::Row,
        /// one per column
        "column" => EffectsKey::Column,
        /// one per row and one per column
        "row+column" => EffectsKey::RowColumn,
    }
    list list!(some COLUMN, "") => EffectsKey::Terms;
}

impl EffectsKey {
    /// Description for messages.
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
        reader.refuse_if_given(&CEILING, "applies to counts only");
    }
    if keys.family != Family::Gaussian {
        reader.refuse_if_given(&VARIANCE, "applies to Gaussian entries only");
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
            "covariates require main effects, which include the intercept",
            "write effects = \"row+column\"",
        ));
    }
    if keys.effects == EffectsKey::None && chooses {
        return Err(reader.fault(
            &EFFECTS,
            "an automatic rank or lambda requires main effects",
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
            "a table of rank 0 without effects has no parameters",
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
    pub(super) COPIES_WORDS: Copies {
        /// "fewest", with a given step reduced to a stable one for the memories; "clients" for a
        /// given step with minibatches or a codec and without memories
        "auto" => Copies::Auto,
        /// one per client, as in the paper
        "clients" => Copies::Clients,
        /// the number of observations of each cell: the largest steps with guaranteed descent
        "fewest" => Copies::Fewest,
    }
}

define_keys! {
    /// number of random starts for given rank and lambda, of which the lowest objective is used
    pub(super) STARTS = "starts", COUNT_U32, default(1);
    /// whether to use the paper's iterates: full convergence of T in every round, one copy per
    /// client, no ceiling
    pub(super) EXACT = "exact", BOOLEAN, default(false);
    /// number of completed-data copies, M: a step of 1 moves a cell by 1/M of its residual
    pub(super) COPIES = "copies", COPIES_WORDS, default(Copies::default());
}
