//! The family's keys: a low-rank table in `[model]`, `copies` in `[method]`.

use whimbrel_job::key::{Key, Word};
use whimbrel_job::named;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, number, text};
use whimbrel_methods::fedmiss::Copies;
use whimbrel_models::lowrank::{self, Effects, Family, Variance};

/// A low-rank table.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    pub effects: Effects,
    /// The penalty on main and personal effects; `None`: chosen where rank or lambda is, or there are
    /// no effects.
    pub lambda_effects: Option<f64>,
    /// Whether each client has an effect of its own, which it keeps.
    pub personal: bool,
    /// Whether estimates of counts that nobody observed are capped.
    pub ceiling: bool,
}

named! {
    /// What entries are.
    pub FAMILIES: Family {
        Family::Gaussian => "gaussian": "any numbers, with normal noise",
        Family::Poisson => "poisson": "counts; the table holds logarithms of their means",
        Family::Bernoulli => "bernoulli": "0 or 1; the table holds log-odds",
    }
}

named! {
    /// The noise of Gaussian entries.
    pub(super) VARIANCES: Variance {
        Variance::Unit => "unit": "variance 1",
        Variance::Estimated => "estimated": "from the residuals; it widens intervals and leaves the \
         fit as it is",
    }
}

named! {
    /// Main effects.
    pub EFFECTS_WORDS: Effects {
        Effects::None => "none": "the factors alone",
        Effects::Row => "row": "a number for each row",
        Effects::Column => "column": "a number for each column",
        Effects::RowColumn => "row+column": "a number for each row and each column",
    }
}

const CHOSEN: Word =
    Word { name: "auto", doc: "chosen by cross-validation over all clients, before the fit" };

pub(super) static FAMILY: Key =
    Key::required("family", "", "what the table's entries are").words(FAMILIES.words);
pub(super) static VARIANCE: Key =
    Key::default("variance", "", "\"estimated\"", "the noise of Gaussian entries")
        .words(VARIANCES.words);
pub(super) static RANK: Key = Key::default(
    "rank",
    "an integer of at least 0 or \"auto\"",
    "\"auto\"",
    "the rank of the table, main effects apart; below both of its sides",
)
.words(&[CHOSEN]);
pub(super) static LAMBDA: Key = Key::default(
    "lambda",
    "a number of at least 0 or \"auto\"",
    "\"auto\"",
    "the ridge penalty on the factors, of each client: the sum over clients weighs on the table's \
     singular values",
)
.words(&[CHOSEN]);
pub(super) static EFFECTS: Key = Key::optional(
    "effects",
    "",
    "\"row+column\" where `rank` or `lambda` is \"auto\", else \"none\"",
    "main effects beside the factors; a choice of the rank starts from them",
)
.words(EFFECTS_WORDS.words);
pub(super) static LAMBDA_EFFECTS: Key = Key::optional(
    "lambda_effects",
    "a positive number",
    "chosen where `rank` or `lambda` is \"auto\", else 1e-3",
    "the ridge penalty on main and personal effects: a row of zeros would otherwise have the \
     logarithm of zero",
);
pub(super) static PERSONAL: Key = Key::default(
    "personal",
    "true or false",
    "false",
    "whether each client has an effect of its own, which never leaves it: experts and beginners \
     then count differently",
);

pub(super) static CEILING: Key = Key::default(
    "ceiling",
    "true or false",
    "true",
    "whether no count is estimated above the larger of two fitted values: the largest among the \
     observed cells of its row, and among those of its column; for tables with factors",
);

impl LowRankKeys {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let family = reader.read(&FAMILY, |v| v.named(&FAMILIES));
        let variance = reader.read(&VARIANCE, |v| v.named(&VARIANCES));
        let rank = reader.read(&RANK, |v| match chosen(&v)? {
            true => Ok(None),
            false => v.integer(0..=u64::from(u32::MAX)).map(|rank| Some(rank as usize)),
        });
        let lambda = reader.read(&LAMBDA, |v| match chosen(&v)? {
            true => Ok(None),
            false => v.number(|x| x >= 0.0).map(Some),
        });
        let chooses = matches!(rank, Ok(None)) || matches!(lambda, Ok(None));
        let effects = reader.optional(&EFFECTS, |v| match v.named(&EFFECTS_WORDS)? {
            Effects::None if chooses => Err(v.fail(
                "an automatic rank or lambda starts from main effects",
                "write effects = \"row+column\", or give rank and lambda as numbers",
            )),
            effects => Ok(effects),
        });
        let usual = if chooses { Effects::RowColumn } else { Effects::None };
        let effects = effects.map(|effects| effects.unwrap_or(usual));
        let lambda_effects = reader.optional(&LAMBDA_EFFECTS, |v| v.number(|x| x > 0.0));
        let personal = reader.read(&PERSONAL, |v| v.boolean());
        let ceiling = reader.read(&CEILING, |v| v.boolean());
        if matches!(family, Ok(Family::Gaussian | Family::Bernoulli)) {
            reader.refuse_if_given(&CEILING, "is for counts only: other means do not run away");
        }
        if matches!(family, Ok(Family::Poisson | Family::Bernoulli)) {
            reader.refuse_if_given(&VARIANCE, "is the noise of Gaussian entries only");
        }
        let no_effects = matches!((&effects, &personal), (Ok(Effects::None), Ok(false)));
        if no_effects {
            reader
                .refuse_if_given(&LAMBDA_EFFECTS, "has no meaning without `effects` or `personal`");
        }
        let usual = (!chooses && !no_effects).then_some(lowrank::LAMBDA_EFFECTS);
        let (rank, effects) = (rank?, effects?);
        if rank == Some(0) && effects == Effects::None {
            return reader.read(&RANK, |v| {
                Err(v.fail(
                    "rank 0 without effects leaves nothing to fit",
                    "give effects = \"row+column\", or a rank of at least 1",
                ))
            });
        }
        Ok(Self {
            family: family?,
            variance: variance?,
            rank,
            lambda: lambda?,
            effects,
            lambda_effects: lambda_effects?.or(usual),
            personal: personal?,
            ceiling: ceiling?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let auto = || text(CHOSEN.name);
        out.put(&FAMILY, text(FAMILIES.name(self.family)));
        if self.family == Family::Gaussian {
            out.put(&VARIANCE, text(VARIANCES.name(self.variance)));
        }
        out.put(&RANK, self.rank.map_or_else(auto, |rank| rank.to_string()));
        out.put(&LAMBDA, self.lambda.map_or_else(auto, number));
        out.put(&EFFECTS, text(EFFECTS_WORDS.name(self.effects)));
        if let Some(lambda_effects) = self.lambda_effects {
            out.put(&LAMBDA_EFFECTS, number(lambda_effects));
        }
        out.put(&PERSONAL, self.personal.to_string());
        if self.family == Family::Poisson {
            out.put(&CEILING, self.ceiling.to_string());
        }
    }

    pub(super) fn describe(&self) -> String {
        let rank = self.rank.map_or("chosen".to_owned(), |rank| rank.to_string());
        let effects = match self.effects {
            Effects::None => String::new(),
            effects => format!(", {} effects", EFFECTS_WORDS.name(effects)),
        };
        format!("{}, {}, rank {rank}{effects}", "low-rank", FAMILIES.name(self.family))
    }
}

/// Whether a key is left to cross-validation.
fn chosen(value: &Value<'_>) -> Read<bool> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(true),
            other => Err(value.unknown_word(other)),
        },
        _ => Ok(false),
    }
}

named! {
    /// The number of completed-data copies.
    pub(super) COPIES_WORDS: Copies {
        Copies::Auto => "auto": "\"fewest\", with a given step cut where the memories could not keep \
         up with it; \"clients\" with a given step, minibatches or a codec, and no memories",
        Copies::Clients => "clients": "one for each client, as in the paper",
        Copies::Fewest => "fewest": "as many as a cell has observations: the largest steps that are \
         sure to descend",
    }
}

pub(super) static COPIES: Key = Key::default(
    "copies",
    "",
    "\"auto\"",
    "how many complete tables EM imagines: a step of 1 moves a cell by one part in so many",
)
.words(COPIES_WORDS.words);
