//! `validation`, `test` and `role` in `[data]`: held-out rows.

use super::file::{NAMED, NAMED_COLUMNS};
use whimbrel_job::define_keys;
use whimbrel_job::form::{BELOW_ONE, COLUMN};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number, text};

/// Held-out rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldOut {
    /// Share of each client's rows.
    pub validation: f64,
    /// Share of each client's rows.
    pub test: f64,
    /// Column with the part of each row.
    pub role: Option<String>,
}

const DEFAULT: &str =
    "0.2 for leaf, cifar10, cifar100, jpeg, speeches and synthetic-mixture, else 0";

/// `validation`.
pub(crate) static VALIDATION: JobKey = BELOW_ONE.unset(
    "validation",
    DEFAULT,
    "share of its rows that each client holds out to choose settings",
);
/// `test`.
pub(crate) static TEST: JobKey = BELOW_ONE.unset(
    "test",
    DEFAULT,
    "share of its rows that each client holds out to evaluate the result; for regressions `standardize` \
     uses all rows",
);
define_keys! {
    /// column with the part of each row: `train`, `validation` or `test`
    pub(crate) ROLE = "role", COLUMN,
        unset "rows are for training, except the shares `validation` and `test`",
        only (NAMED, NAMED_COLUMNS);
}

impl HeldOut {
    /// Reads the shares, which default to `usual`; `tests`: whether there are separate test files.
    pub(super) fn read(reader: &Reader<'_>, usual: f64, tests: bool) -> Read<Self> {
        let usual = if reader.has(&ROLE) { 0.0 } else { usual };
        let share = |key: &'static JobKey| {
            let given = reader.optional_as(key, &BELOW_ONE);
            given.map(|x| x.unwrap_or(usual))
        };
        if tests {
            reader.refuse_if_given(&TEST, "has no meaning beside `tests`");
        }
        let test = if tests { Ok(0.0) } else { share(&TEST) };
        let validation = share(&VALIDATION);
        let role = reader.optional_as(&ROLE, &COLUMN);
        let held_out = Self { validation: validation?, test: test?, role: role? };
        if held_out.role.is_some() {
            for key in [&VALIDATION, &TEST] {
                reader.refuse_if_given(key, "has no meaning beside `role`");
            }
        }
        if held_out.validation + held_out.test >= 1.0 {
            return reader.read(&TEST, |v| {
                let hint = "the sum of `validation` and `test` must be below 1";
                Err(v.fail("this leaves no rows for training", hint))
            });
        }
        Ok(held_out)
    }

    /// Whether rows are held out.
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
