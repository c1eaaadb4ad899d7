//! The keys of `kind = "mixture"`.

use super::super::keys::{
    COMPONENTS, COVARIANCE_FLOOR, INIT, INITS, Init, NUMBERS, REG_COVAR, STARTS, WEIGHT_FLOOR,
};
use whimbrel_data::ColumnType;
use whimbrel_job::form::{COUNT_U32, NOT_NEGATIVE};
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};
use whimbrel_job::{define_keys, form};
use whimbrel_models::mixed::{MixedSettings, Numeric};

/// `[model]` with `kind = "mixture"`.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedKeys {
    /// Without columns until the data are read, and with the largest number of components until one is chosen.
    pub settings: MixedSettings,
    /// Types of columns in the order of the job; others are numbers.
    pub types: Vec<(String, ColumnType)>,
    pub init: Init,
    /// Candidates for the number of components.
    pub components: Vec<usize>,
    /// Number of starts, of which the best is used.
    pub starts: u32,
}

form! {
    pub(super) NUMERICS: Numeric {
        /// numbers are independent within a component, as other columns are
        "diagonal" => Numeric::Diagonal,
        /// one covariance matrix of all numbers per component
        "full" => Numeric::Full,
    }
}

/// Words of column types.
const WORDS: [Word; 4] = [
    Word { name: "number", doc: "Gaussian within a component; the default" },
    Word { name: "count", doc: "non-negative integers, Poisson within a component" },
    Word { name: "yes-no", doc: "two values; the second in byte order means yes" },
    Word { name: "category", doc: "the values in the file; a list of levels fixes them" },
];

define_keys! {
    /// covariances of numeric columns
    pub(in super::super) NUMERIC = "numeric", NUMERICS, default(Numeric::default());
}
/// `types`.
pub(crate) static TYPES: JobKey = JobKey::default(
    "types",
    "a table from columns to \"number\", \"count\", \"yes-no\", \"category\" or a list of levels",
    || write_types(&[]),
    "types of columns, such as `{ falls = \"count\", smoker = \"yes-no\", ward = \"category\" }`; text columns \
     without a type are factors of a regression and are dropped by a mixture. Clients receive the levels, and unknown levels are errors",
)
.words(&WORDS);

/// The keys.
pub(in super::super) static KEYS: [&JobKey; 8] =
    [&COMPONENTS, &STARTS, &NUMERIC, &TYPES, &INIT, &REG_COVAR, &WEIGHT_FLOOR, &COVARIANCE_FLOOR];

impl MixedKeys {
    pub(in super::super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let components = reader.read_as(&COMPONENTS, &NUMBERS);
        let starts = reader.read_as(&STARTS, &COUNT_U32);
        let numeric = reader.read_as(&NUMERIC, &NUMERICS);
        let types = reader.read(&TYPES, read_types);
        let init = reader.read(&INIT, |v| match INITS.read(&v)? {
            init @ (Init::Moments | Init::FederatedKmeans) => Ok(init),
            Init::Examples | Init::File(_) => Err(v.fail(
                "a mixture over mixed columns starts from clusters or moments",
                "write \"federated-kmeans\" or \"moments\"",
            )),
        });
        let reg_covar = reader.read_as(&REG_COVAR, &NOT_NEGATIVE);
        let covariance_floor = reader.read(&COVARIANCE_FLOOR, |v| v.number(|x| x > 0.0 && x < 1.0));
        let mut components = components?;
        components.sort_unstable();
        components.dedup();
        let Some(&most) = components.last() else {
            return reader.read(&COMPONENTS, |v| Err(v.refuse()));
        };
        let floor_max = 0.5 / most as f64;
        let weight_floor = reader.read(&WEIGHT_FLOOR, |v| v.number(|x| x > 0.0 && x <= floor_max));
        let mut settings = MixedSettings::new(most, Vec::new(), numeric?);
        settings.reg_covar = reg_covar?;
        settings.weight_floor = weight_floor?;
        settings.covariance_floor = covariance_floor?;
        Ok(Self { settings, types: types?, init: init?, components, starts: starts? })
    }

    pub(super) fn write_keys(&self, out: &mut Writer) {
        out.put(&COMPONENTS, NUMBERS.write(&self.components));
        out.put(&STARTS, self.starts.to_string());
        out.put(&NUMERIC, NUMERICS.write(&self.settings.numeric));
        out.put(&TYPES, write_types(&self.types));
        out.put(&INIT, INITS.write(&self.init));
        out.put(&REG_COVAR, number(self.settings.reg_covar));
        out.put(&WEIGHT_FLOOR, number(self.settings.weight_floor));
        out.put(&COVARIANCE_FLOOR, number(self.settings.covariance_floor));
    }
}

pub(crate) fn read_types(value: Value<'_>) -> Read<Vec<(String, ColumnType)>> {
    let entry = |(name, value): (String, Value<'_>)| {
        let kind = match value.shape() {
            Shape::Text => match value.text()?.as_str() {
                "number" => ColumnType::Number,
                "count" => ColumnType::Count,
                "yes-no" => ColumnType::YesNo,
                "category" => ColumnType::Category(Vec::new()),
                other => return Err(value.unknown_word(other)),
            },
            Shape::List => {
                let levels: Vec<String> =
                    value.list()?.iter().map(|v| v.text()).collect::<Read<_>>()?;
                let twice = (1..levels.len()).any(|at| levels[..at].contains(&levels[at]));
                if levels.len() < 2 || twice {
                    let what = format!("column {name:?} needs two or more different levels");
                    return Err(value.fail(what, "or write \"category\" to take those of the file"));
                }
                ColumnType::Category(levels)
            }
            _ => return Err(value.refuse()),
        };
        Ok((name, kind))
    };
    value.entries()?.into_iter().map(entry).collect()
}

/// Types as TOML.
pub(crate) fn write_types(types: &[(String, ColumnType)]) -> String {
    fn entry((name, kind): &(String, ColumnType)) -> (&str, String) {
        let kind = match kind {
            ColumnType::Number => text("number"),
            ColumnType::Count => text("count"),
            ColumnType::YesNo => text("yes-no"),
            ColumnType::Category(levels) if levels.is_empty() => text("category"),
            ColumnType::Category(levels) => list(levels.iter().map(|level| text(level))),
        };
        (name.as_str(), kind)
    }
    inline(types.iter().map(entry))
}
