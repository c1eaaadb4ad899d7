//! The keys of `kind = "mixture"`.

use super::super::keys::{
    COMPONENTS, COVARIANCE_FLOOR, INIT, INITS, Init, NUMBERS, REG_COVAR, STARTS, WEIGHT_FLOOR,
};
use whimbrel_data::ColumnType;
use whimbrel_job::form::{COUNT_U32, NOT_NEGATIVE};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};
use whimbrel_job::{define_keys, form};
use whimbrel_models::mixed::{MixedSettings, Numeric};

/// `[model]` with `kind = "mixture"`.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedKeys {
    /// Without columns until the data are read, and with the largest number of components until one is chosen.
    pub settings: MixedSettings,
    /// Types of columns in `[schema]`; others are numbers.
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

define_keys! {
    /// covariances of numeric columns
    pub(in super::super) NUMERIC = "numeric", NUMERICS, default(Numeric::default());
}

/// The keys.
pub(in super::super) static KEYS: [&JobKey; 7] =
    [&COMPONENTS, &STARTS, &NUMERIC, &INIT, &REG_COVAR, &WEIGHT_FLOOR, &COVARIANCE_FLOOR];

impl MixedKeys {
    pub(in super::super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let components = reader.read_as(&COMPONENTS, &NUMBERS);
        let starts = reader.read_as(&STARTS, &COUNT_U32);
        let numeric = reader.read_as(&NUMERIC, &NUMERICS);
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
        Ok(Self { settings, types: Vec::new(), init: init?, components, starts: starts? })
    }

    pub(super) fn write_keys(&self, out: &mut Writer) {
        out.put(&COMPONENTS, NUMBERS.write(&self.components));
        out.put(&STARTS, self.starts.to_string());
        out.put(&NUMERIC, NUMERICS.write(&self.settings.numeric));
        out.put(&INIT, INITS.write(&self.init));
        out.put(&REG_COVAR, number(self.settings.reg_covar));
        out.put(&WEIGHT_FLOOR, number(self.settings.weight_floor));
        out.put(&COVARIANCE_FLOOR, number(self.settings.covariance_floor));
    }
}
