//! The stages that prepare the rows of a mixture.

use super::keys::Init;
use crate::failure::{AtKey, Result, remedy};
use crate::family::refuse;
use crate::job::Prepare;
use crate::load::Loaded;
use crate::plan::Common;
use std::sync::Arc;
use whimbrel_core::method::{Artifact, Bind, Evaluate};
use whimbrel_core::{ClientData, DynMethod, Erased, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::federated::{BindRows, Federated, Judge};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::pooled::{self, ExactSums, Pooled};
use whimbrel_methods::prepare::{Columns, Outside, Pca, Preparation, Prepared};

/// Most columns named in a message.
const NAMED_MAX: usize = 8;

/// The preparation of a job's rows before the fit.
#[derive(Clone, Debug)]
pub struct Preparing {
    asked: Prepare,
    /// Number of columns of the data.
    columns: usize,
    /// Columns that are constant over all rows of all clients except late joiners.
    constant: Vec<String>,
    /// The map by limits that the job states.
    known: Option<Preparation>,
    /// Whether a constant column has a density: the fitted variances stay positive.
    regularised: bool,
}

impl Preparing {
    /// The preparation of rows in a simulation. Constant columns that are kept are refused unless
    /// the variances are `regularised`.
    pub fn seen(common: &Common, loaded: &Loaded, regularised: bool) -> Result<Self> {
        let constant = constant_columns(common, loaded);
        let asked = Self::asked(common, &loaded.columns)?;
        Self { constant, regularised, ..asked }.checked()
    }

    /// No preparation.
    pub fn nothing(columns: usize) -> Self {
        let (asked, constant) = (Prepare::default(), Vec::new());
        Self { asked, columns, constant, known: None, regularised: false }
    }

    /// The preparation on a network: constant columns are known after clients have sent their sums.
    pub fn unseen(common: &Common, init: &Init, columns: &[String]) -> Result<Self> {
        let preparing = Self::asked(common, columns)?;
        let file = matches!(init, Init::File(_));
        let Prepare { drop_constant, pca, .. } = preparing.asked;
        if drop_constant && pca.is_none() && file {
            return refuse(
                "the number of columns after drop_constant is known only once clients have \
                 joined, so an init file cannot match it",
                "list the columns that vary with `columns`, or use another `init`",
            );
        }
        preparing.checked()
    }

    fn asked(common: &Common, columns: &[String]) -> Result<Self> {
        let asked = common.job.data.preparation();
        let known = by_limits(common, columns)?;
        let (columns, constant) = (columns.len(), Vec::new());
        Ok(Self { asked, columns, constant, known, regularised: false })
    }

    fn checked(self) -> Result<Self> {
        if self.left() == 0 {
            return Err(Error::data("all columns are constant")).at("data.path");
        }
        if let Some(components) = self.asked.pca {
            Pca::new(self.left(), components).at("data.prepare.pca")?;
        } else if !(self.asked.drop_constant || self.regularised || self.constant.is_empty()) {
            let (names, are) = named(&self.constant);
            let error = Error::data(format!("{names} {are} constant: the likelihood is unbounded"));
            let hint = format!("{}, name other `columns`, or set reg_covar", remedy::DROP_CONSTANT);
            return Err(error.hint(hint)).at("data.path");
        }
        Ok(self)
    }

    /// Number of stages: one for single columns, one for pairs of columns.
    pub fn stages(&self) -> usize {
        usize::from(self.asked.asks_clients()) + usize::from(self.asked.pca.is_some())
    }

    /// Numbers per prepared row, as far as known.
    pub fn width(&self) -> usize {
        self.asked.pca.unwrap_or(self.left())
    }

    /// Number of columns after dropping constant ones.
    fn left(&self) -> usize {
        self.columns - if self.asked.drop_constant { self.constant.len() } else { 0 }
    }

    /// Builds the first stage, or the second one after `found` was delivered.
    pub fn build(
        &self,
        common: &Common,
        found: Option<Preparation>,
    ) -> whimbrel_core::Result<Stage> {
        Ok(match (found, self.asked.pca) {
            (Some(found), Some(components)) => {
                let pca = Pca::new(found.width(), components)?;
                let method = if common.job.uplink.is_on_grid() {
                    exact_sums(common, pooled::Stage(pca), Some(found))
                } else {
                    bound(Once(pca), Some(found))
                };
                common.quiet("principal components", method)
            }
            _ if common.job.uplink.is_on_grid() => {
                let columns = pooled::Stage(self.of_columns());
                common.quiet("columns", exact_sums(common, columns, None))
            }
            _ => common.quiet("columns", bound(Once(self.of_columns()), None)),
        })
    }

    /// The first stage.
    fn of_columns(&self) -> Columns {
        let Prepare { drop_constant, standardize, pca, .. } = self.asked;
        let centre = standardize || pca.is_some();
        Columns { columns: self.columns, drop_constant, standardize, centre }
    }

    /// The preparation that the stages so far have delivered.
    pub fn delivered(&self, all: &[Artifact]) -> whimbrel_core::Result<Option<Preparation>> {
        if self.known.is_some() {
            return Ok(self.known.clone());
        }
        let own = &all[..self.stages().min(all.len())];
        Preparation::delivered(&self.of_columns(), self.asked.pca, own)
    }

    /// The artifact of a stage if no further column were constant.
    pub fn stand_in(&self, index: usize) -> Artifact {
        match (index, self.asked.pca) {
            (1, Some(components)) => Pca::stand_in(self.left(), components),
            _ => Columns::stand_in(self.left()),
        }
    }

    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.asked.drop_constant && !self.constant.is_empty() {
            let (names, are) = named(&self.constant);
            notes.push(format!("{names} {are} constant and left out"));
        }
        if let Some(components) = self.asked.pca {
            notes.push(format!(
                "likelihoods refer to {components} principal components, not to the columns"
            ));
        }
        notes
    }
}

/// The map by the limits in `[schema]`, which must have those of each column of the fit; `None` unless
/// the job asks for it.
fn by_limits(common: &Common, columns: &[String]) -> Result<Option<Preparation>> {
    if !common.job.data.prepare.limits {
        return Ok(None);
    }
    let limits = |column: &String| match common.job.limits().find(|(name, _)| *name == column) {
        Some((_, limits)) => Ok(limits),
        None => refuse(
            format!("the limits of column `{column}` are not declared"),
            "give `min` and `max` of each column of the fit in [schema]",
        )
        .at("data.prepare.limits"),
    };
    let limits = columns.iter().map(limits).collect::<Result<Vec<_>>>()?;
    let outside = if common.job.clips() { Outside::Clip } else { Outside::Refuse };
    Preparation::by_ranges(&limits, outside).map(Some).at("data.prepare.limits")
}

/// Binds a method to raw or prepared rows.
pub(super) fn bound<M>(method: M, preparation: Option<Preparation>) -> Arc<dyn DynMethod>
where
    M: Evaluate,
    BindRows: Bind<M>,
{
    match preparation {
        None => Arc::new(Erased(method, BindRows)),
        Some(preparation) => Arc::new(Erased(method, Prepared { preparation, then: BindRows })),
    }
}

/// A federated method over raw or prepared rows, under masks if its terms ask for them.
pub(super) fn federated<O: Judge>(
    method: Federated<O>,
    preparation: Option<Preparation>,
) -> Arc<dyn DynMethod> {
    match preparation {
        None => method.erased(BindRows),
        Some(preparation) => method.erased(Prepared { preparation, then: BindRows }),
    }
}

/// A stage of exact sums over raw or prepared rows, under masks if the job asks for them.
pub(super) fn exact_sums<P: Pooled>(
    common: &Common,
    method: P,
    preparation: Option<Preparation>,
) -> Arc<dyn DynMethod> {
    let exact = ExactSums { method, masks: common.privacy().masks };
    match preparation {
        None => exact.erased(BindRows),
        Some(preparation) => exact.erased(Prepared { preparation, then: BindRows }),
    }
}

/// Columns that are constant over all tables; late joiners take no part in preparation.
fn constant_columns(common: &Common, loaded: &Loaded) -> Vec<String> {
    let mut first: Option<Vec<f64>> = None;
    let mut varies = vec![false; loaded.columns.len()];
    for (id, (_, data)) in loaded.training() {
        let ClientData::Table(table) = data else { return Vec::new() };
        if varies.iter().all(|varies| *varies) {
            break;
        }
        if common.faults.late.contains_key(&id) {
            continue;
        }
        for i in 0..table.rows() {
            let row = table.row(i);
            let first = first.get_or_insert_with(|| row.to_vec());
            for ((v, x), f) in varies.iter_mut().zip(row).zip(first.iter()) {
                *v |= x != f;
            }
        }
    }
    let names = loaded.columns.iter().zip(varies);
    names.filter(|(_, varies)| !varies).map(|(name, _)| name.clone()).collect()
}

/// Columns in words, with the verb that follows.
fn named(columns: &[String]) -> (String, &'static str) {
    let some: Vec<String> = columns.iter().take(NAMED_MAX).map(|c| format!("`{c}`")).collect();
    let some = some.join(", ");
    match columns.len() {
        1 => (format!("column {some}"), "is"),
        n if n > NAMED_MAX => (format!("{n} columns ({some} and so on)"), "are"),
        _ => (format!("columns {some}"), "are"),
    }
}
