//! `validation`, `test` and `role` in `[data]`: rows that no method fits.

use whimbrel_job::form::{BELOW_ONE, COLUMN};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number, text};

/// Which rows are kept out of the fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldOut {
    /// The share of each client's rows for validation.
    pub validation: f64,
    /// The share of each client's rows for tests.
    pub test: f64,
    /// The column that says what each row is for.
    pub role: Option<String>,
}

const DEFAULT: &str =
    "0.2 for leaf, cifar10, cifar100, jpeg, speeches and synthetic-mixture, else 0";

/// `validation`.
pub(crate) static VALIDATION: JobKey = BELOW_ONE.unset(
    "validation",
    DEFAULT,
    "the share of its rows that each client keeps out of the fit to choose settings by",
);
/// `test`.
pub(crate) static TEST: JobKey = BELOW_ONE.unset(
    "test",
    DEFAULT,
    "the share of its rows that each client keeps out of the fit to judge the result by; for \
     regressions `standardize` looks at all rows",
);
/// `role`.
pub(crate) static ROLE: JobKey = COLUMN
    .unset(
        "role",
        "every row is for training, but for `validation` and `test`",
        "a column that says of each row whether it is for `train`, `validation` or `test`",
    )
    .only(&["csv"], "only csv files have named columns");

impl HeldOut {
    /// Reads the shares, of which each is `usual` where the job does not say; `tests` says whether
    /// test rows are in files of their own.
    pub(super) fn read(reader: &Reader<'_>, usual: f64, tests: bool) -> Read<Self> {
        let usual = if reader.has(&ROLE) { 0.0 } else { usual };
        let share = |key: &'static JobKey| {
            let given = reader.optional_as(key, &BELOW_ONE);
            given.map(|x| x.unwrap_or(usual))
        };
        if tests {
            reader.refuse_if_given(&TEST, "has no meaning beside `tests`, which has the rows");
        }
        let test = if tests { Ok(0.0) } else { share(&TEST) };
        let validation = share(&VALIDATION);
        let role = reader.optional_as(&ROLE, &COLUMN);
        let held_out = Self { validation: validation?, test: test?, role: role? };
        if held_out.role.is_some() {
            for key in [&VALIDATION, &TEST] {
                reader.refuse_if_given(key, "has no meaning beside `role`, which names the rows");
            }
        }
        if held_out.validation + held_out.test >= 1.0 {
            return reader.read(&TEST, |v| {
                let hint = "`validation` and `test` together are below 1";
                Err(v.fail("this leaves no rows for training", hint))
            });
        }
        Ok(held_out)
    }

    /// Whether rows are kept out at all.
    pub fn is_something(&self) -> bool {
        self.validation > 0.0 || self.test > 0.0 || self.role.is_some()
    }

    pub(super) fn write(&self, out: &mut Writer, usual: f64, tests: bool) {
        for (key, share) in [(&VALIDATION, self.validation), (&TEST, self.test)] {
            if share > 0.0 || (usual > 0.0 && !(tests && key.name == TEST.name)) {
                out.put(key, number(share));
            }
        }
        if let Some(role) = &self.role {
            out.put(&ROLE, text(role));
        }
    }
}
