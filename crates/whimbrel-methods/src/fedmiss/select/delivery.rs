//! What a selection delivers: the model to fit, where to start, and what was tried.

use super::SHARE;
use super::search::{Candidate, Choice, Trial};
use super::state::Server;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result};
use whimbrel_models::lowrank::{Effects, Factors};

/// The kind of the artifact.
pub const KIND: &str = "selection";
/// The model of rank 0 to mix with, and its fit.
const BESIDE: [&str; 4] =
    ["beside", "beside_intercept", "beside_row_effects", "beside_column_effects"];
/// Columns of the artifact's table of candidates.
const COLUMNS: usize = 7;

/// What the stage delivers.
#[derive(Clone, PartialEq, Debug)]
pub struct Selection {
    /// The model to fit.
    pub chosen: Candidate,
    /// Its fit to all cells, as the parameters travel; none where the stage broke off before.
    pub factors: Option<Vec<f64>>,
    /// The model of rank 0 to mix it with and its fit to all cells, where it is not clear which of the
    /// two is better.
    pub beside: Option<(Candidate, Factors)>,
    /// Every candidate with its mean validation deviance, the standard error of that, and the
    /// rounds it took.
    pub tried: Vec<(Candidate, f64, f64, u32)>,
}

impl Selection {
    /// What share of the delivered table a candidate has.
    pub fn share_of(&self, candidate: &Candidate) -> f64 {
        match &self.beside {
            Some((plain, _)) if plain == candidate => 1.0 - SHARE,
            Some(_) if self.chosen == *candidate => SHARE,
            None if self.chosen == *candidate => 1.0,
            _ => 0.0,
        }
    }

    /// Reads the stage's artifact.
    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        let broken = || Error::data("the selection is not one that this program writes");
        let table = artifact.tensor("candidates").ok_or_else(broken)?;
        let number = |name: &str| {
            let tensor = artifact.tensor(name)?;
            tensor.values.first().copied()
        };
        let row = |row: &[f64]| Some((candidate(&row[..4])?, row[4], row[5], row[6] as u32));
        let chosen: Option<Vec<f64>> =
            ["effects", "rank", "lambda", "lambda_effects"].into_iter().map(number).collect();
        let chosen = chosen.and_then(|numbers| candidate(&numbers));
        let tried: Option<_> = table.values.chunks_exact(COLUMNS).map(row).collect();
        let factors = artifact.tensor("factors").map(|tensor| tensor.values.clone());
        let beside = match BESIDE.map(|name| artifact.tensor(name)) {
            [Some(model), Some(intercept), Some(rows), Some(columns)] => {
                let factors = Factors {
                    rank: 0,
                    intercept: intercept.values.first().copied().ok_or_else(broken)?,
                    row_effects: rows.values.clone(),
                    column_effects: columns.values.clone(),
                    u: Vec::new(),
                    v: Vec::new(),
                };
                Some((candidate(&model.values).ok_or_else(broken)?, factors))
            }
            [None, None, None, None] => None,
            _ => return Err(broken()),
        };
        let (chosen, tried) = (chosen.ok_or_else(broken)?, tried.ok_or_else(broken)?);
        Ok(Self { chosen, factors, beside, tried })
    }
}

fn candidate(numbers: &[f64]) -> Option<Candidate> {
    let &[effects, rank, lambda, lambda_effects] = numbers else { return None };
    let all = [Effects::None, Effects::Row, Effects::Column, Effects::RowColumn];
    let effects = all.into_iter().find(|known| f64::from(*known as u8) == effects)?;
    Some(Candidate { effects, rank: rank as usize, lambda, lambda_effects })
}

fn numbers(candidate: &Candidate) -> [f64; 4] {
    let Candidate { effects, rank, lambda, lambda_effects } = *candidate;
    [effects as u8 as f64, rank as f64, lambda, lambda_effects]
}

/// The artifact of a server that makes this choice.
pub(super) fn artifact(server: &Server, choice: Choice, factors: Option<Vec<f64>>) -> Artifact {
    let trial = &server.trials[choice.trial];
    let [effects, rank, lambda, lambda_effects] = numbers(&trial.candidate);
    let row = |trial: &Trial| {
        let scores = [trial.mean(), trial.standard_error(), f64::from(trial.rounds)];
        numbers(&trial.candidate).into_iter().chain(scores)
    };
    let table: Vec<f64> = server.trials.iter().flat_map(row).collect();
    let numbers = [
        ("effects", effects),
        ("rank", rank),
        ("lambda", lambda),
        ("lambda_effects", lambda_effects),
        ("validation_deviance", trial.mean()),
        ("validation_error", trial.standard_error()),
        ("validation_cells", trial.cells),
        ("folds", f64::from(server.folds.count)),
        ("lambda_max", server.lambda_max),
    ];
    let mut out = Artifact { kind: KIND.into(), tensors: Vec::new() };
    for (name, value) in numbers {
        out = out.with(name, &[], vec![value]);
    }
    out = out.with("candidates", &[server.trials.len(), COLUMNS], table);
    if let (Some(beside), Some(plain)) = (choice.beside, &server.plain) {
        let Factors { intercept, row_effects, column_effects, .. } = plain;
        let [model, mean, of_rows, of_columns] = BESIDE;
        out = out
            .with(model, &[4], self::numbers(&server.trials[beside].candidate).to_vec())
            .with(mean, &[], vec![*intercept])
            .with(of_rows, &[row_effects.len()], row_effects.clone())
            .with(of_columns, &[column_effects.len()], column_effects.clone());
    }
    match factors {
        Some(factors) => out.with("factors", &[factors.len()], factors),
        None => out,
    }
}
