//! The design of a regression, and its stage.

use super::RegressionFit;
use crate::failure::{AtKey, Failure, Result};
use crate::family::refuse;
use crate::job::{DataSource, Job};
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Basis, Built, Common, FitStages, Planned};
use whimbrel_core::method::Artifact;
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::masked::Masks;
use whimbrel_methods::newton::Newton;
use whimbrel_methods::pooled::ExactSums;
use whimbrel_methods::settings::Budget;
use whimbrel_models::glm::{Asked, Design, Errors, Factor, Family, Model, Term};

/// Most rounds unless the job gives them; fits to columns that are not very skewed take up to 25. Each is a question
/// that a client answers.
const ROUNDS: u32 = 40;
/// Most rounds.
const ROUNDS_MAX: u32 = 100;
/// Most classes that a message lists.
const CLASSES_SHOWN: usize = 5;

/// Warning for sums without masks.
const COMPUTABLE: &str = "without masks a coordinator that chooses its questions can compute rows of a client from \
    its sums; `masks = true` in [privacy] (from three clients on) shows it sums over all clients only";

/// Note on fits whose rows have unequal weights.
const APPROXIMATE: &str = "standard errors are approximate under `min_group`: in the information, large weights of single rows \
    are lowered and rows of small cells take their mean weight; estimates are not affected";

struct RegressionPlan {
    method: Newton,
    masks: Option<Masks>,
}

pub(super) fn planned(asked: &RegressionFit, on: &Basis<'_>) -> Result<Planned> {
    let Basis { common, facts, .. } = *on;
    let model = asked.model(&common.job, &facts.columns, &facts.levels)?;
    let p = model.parameters();
    let method = Newton {
        ridge: asked.keys.ridge,
        asked: Asked {
            errors: asked.inference.errors,
            heterogeneity: asked.inference.heterogeneity,
            frequencies: asked.keys.frequencies,
            min_group: common.privacy().min_group.unwrap_or(1) as usize,
        },
        tests: asked.inference.tests,
        rounds: match common.budget() {
            Budget::Rounds(rounds) => rounds.min(ROUNDS_MAX),
            Budget::Epochs(_) | Budget::Converged(_) => ROUNDS,
        },
        min_group: common.privacy().min_group,
        baseline: asked.keys.baseline,
        model,
    };
    let masks = common.masks_of_all()?;
    let channels = Channels::new(common, &Vectors::gradients(&[p]))?;
    let mut warnings = Vec::new();
    if method.asked.errors == Errors::Clustered && common.clients <= p {
        warnings.push(format!(
            "{} clients and {p} coefficients: clustered errors need more clients than coefficients",
            common.clients
        ));
    }
    if masks.is_none() && on.rows.is_none() {
        warnings.push(COMPUTABLE.into());
    }
    let is_unequal = method.model.family != Family::Gaussian || asked.keys.weights.is_some();
    let is_settled = common.job.privacy.groups().is_some() && method.model.family != Family::Cox;
    let settings = vec![format!("coefficients: {}", method.model.names().join(", "))];
    let rounds = Some(method.rounds);
    Ok(Planned {
        rounds,
        settings,
        warnings,
        notes: Vec::from_iter((is_settled && is_unequal).then(|| APPROXIMATE.into())),
        ..Planned::new(common, &channels, RegressionPlan { method, masks })
    })
}

impl FitStages for RegressionPlan {
    fn build(&self, common: &Common, _: usize, _: &[Artifact]) -> Built {
        let rounds = Some(self.method.rounds);
        let exact = ExactSums { method: self.method.clone(), masks: self.masks };
        Ok(common.fit(exact.erased(BindRows), rounds))
    }
}

impl RegressionFit {
    /// The regression over these columns of the table.
    pub fn model(&self, job: &Job, columns: &[String], levels: &[Vec<String>]) -> Result<Model> {
        let keys = &self.keys;
        let at = |name: &String| {
            let found = columns.iter().position(|known| known == name);
            found.ok_or_else(|| Failure::config(format!("there is no column {name:?}")))
        };
        let place = |name: &Option<String>| name.as_ref().map(at).transpose();
        let DataSource::Csv(csv) = &job.data.source else {
            return refuse("a regression reads csv files", "write source = \"csv\" in [data]");
        };
        let Some(target) = place(&csv.target)? else {
            return refuse(
                "a regression predicts a target",
                "name its column with `target` in [data]",
            );
        };
        let event = if self.cox { place(&keys.event)? } else { None };
        let (offset, weights) = (place(&keys.offset)?, place(&keys.weights)?);
        let beside = [Some(target), event, offset, weights];
        let features = (0..columns.len()).filter(|column| !beside.contains(&Some(*column)));
        let mut terms = Vec::new();
        for column in features {
            let factors = vec![self.factor(column, columns, levels)?];
            terms.push(Term { name: columns[column].clone(), factors });
        }
        for name in &keys.interactions {
            let parts = name.split(':').map(|part| at(&part.to_owned()));
            let parts = parts.collect::<Result<Vec<usize>>>().at("model.interactions")?;
            if parts.len() < 2 || parts.iter().any(|part| beside.contains(&Some(*part))) {
                return refuse(format!("{name:?} is not a product of features"), "write \"a:b\"")
                    .at("model.interactions");
            }
            let factors = parts.into_iter().map(|part| self.factor(part, columns, levels));
            terms.push(Term { name: name.clone(), factors: factors.collect::<Result<_>>()? });
        }
        for (name, _) in &keys.reference {
            at(name).at("model.reference")?;
        }
        let classes = levels.get(target).cloned().unwrap_or_default();
        let family = self.family(classes.len());
        self.check_target(&csv.target, &classes)?;
        let class_weights = self.class_weights(&classes)?;
        let design = Design {
            columns: columns.to_vec(),
            target,
            classes,
            event,
            offset,
            weights,
            class_weights,
            intercept: keys.intercept,
            terms,
        };
        let model = Model { family, design, by_client: keys.by_client };
        if model.parameters() == 0 {
            return refuse("the model has no coefficients", "name feature columns in [data]");
        }
        Ok(model)
    }

    /// A column as a factor; its reference level is the job's, else the first.
    fn factor(&self, column: usize, columns: &[String], levels: &[Vec<String>]) -> Result<Factor> {
        let levels = levels.get(column).cloned().unwrap_or_default();
        let stated = self.keys.reference.iter().find(|(name, _)| *name == columns[column]);
        let place = stated.map(|(_, level)| levels.iter().position(|known| known == level));
        if let (Some((name, level)), Some(None)) = (stated, place) {
            let what = format!("column {name:?} has no level {level:?}");
            let hint = match &levels[..] {
                [] => "its cells are numbers: declare its type in [schema]".into(),
                levels => format!("its levels are {levels:?}"),
            };
            return refuse(what, hint).at("model.reference");
        }
        Ok(Factor { column, levels, reference: place.flatten().unwrap_or(0) })
    }

    fn check_target(&self, target: &Option<String>, classes: &[String]) -> Result<()> {
        use super::keys::GlmFamily::{Binomial, Multinomial};
        let fits = match self.keys.family {
            Multinomial if !self.cox => classes.len() > 1,
            Binomial if !self.cox => classes.is_empty() || classes.len() == 2,
            _ => classes.is_empty(),
        };
        if fits {
            return Ok(());
        }
        let name = target.as_deref().unwrap_or_default();
        let few = classes.iter().take(CLASSES_SHOWN).map(|class| format!("{class:?}"));
        let dots = (classes.len() > CLASSES_SHOWN).then(|| "...".into());
        let few = few.chain(dots).collect::<Vec<_>>().join(", ");
        let what = format!("the target {name:?} holds {} classes: {few}", classes.len());
        refuse(
            what,
            "use family = \"binomial\" in [model] for two classes, \"multinomial\" for more",
        )
        .at("data.target")
    }

    fn class_weights(&self, classes: &[String]) -> Result<Vec<f64>> {
        let given = &self.keys.class_weights;
        if given.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = ["0".to_owned(), "1".to_owned()];
        let classes = if classes.is_empty() { &numbers[..] } else { classes };
        if let Some((name, _)) = given.iter().find(|(name, _)| !classes.contains(name)) {
            let what = format!("the target has no class {name:?}");
            return refuse(what, format!("its classes are {classes:?}")).at("model.class_weights");
        }
        let weight =
            |class: &String| given.iter().find(|(name, _)| name == class).map_or(1.0, |(_, w)| *w);
        Ok(classes.iter().map(weight).collect())
    }
}
