//! The result of a selection: the model to fit, its start, and the candidates.

use super::candidates::{Candidate, Scores};
use super::state::Server;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result};
use whimbrel_models::lowrank::Settings;

/// The kind of the artifact.
pub const KIND: &str = "selection";
/// The kind of the artifact of baselines.
pub const BASELINES_KIND: &str = "baselines";
/// The names of the baselines in that artifact.
pub const BASELINES: [&str; 3] = ["column_means", "row_column_effects", "effects_alone"];
/// Columns of the table of candidates after those of the candidate itself.
const FOUND: usize = 3;

/// The stage's result.
#[derive(Clone, PartialEq, Debug)]
pub struct Selection {
    /// The model to fit.
    pub chosen: Candidate,
    /// Its fit to all cells in the form of messages; `None` where the stage ended before.
    pub factors: Option<Vec<f64>>,
    /// Every candidate with its mean validation deviance, the standard error of that, and its number
    /// of rounds.
    pub tried: Vec<(Candidate, f64, f64, u32)>,
}

impl Selection {
    /// A placeholder for the stage's artifact: the model of these settings.
    pub fn stand_in(settings: &Settings) -> Artifact {
        let Settings { rank, lambda, lambda_effects, term_ridges, .. } = settings;
        let numbers = [("rank", *rank as f64), ("lambda", *lambda)];
        let numbers = numbers.into_iter().chain([("lambda_effects", *lambda_effects)]);
        let out = numbers.fold(Artifact::new(KIND), |out, (name, x)| out.with(name, &[], vec![x]));
        out.with("term_ridges", &[term_ridges.len()], term_ridges.clone()).with(
            "candidates",
            &[0, FOUND],
            Vec::new(),
        )
    }

    /// Reads the stage's artifact.
    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        let broken = || Error::data("the artifact is not a selection of this program");
        let list = |name: &str| artifact.tensor(name).map(|tensor| tensor.values.clone());
        let table = artifact.tensor("candidates").ok_or_else(broken)?;
        let row = |row: &[f64]| {
            let (candidate, found) = row.split_at_checked(row.len().checked_sub(FOUND)?)?;
            Some((Candidate::from_numbers(candidate)?, found[0], found[1], found[2] as u32))
        };
        let width = table.shape.last().map_or(0, |width| *width as usize).max(1);
        let tried: Option<_> = table.values.chunks_exact(width).map(row).collect();
        let chosen = Candidate {
            rank: artifact.number("rank")? as usize,
            lambda: artifact.number("lambda")?,
            lambda_effects: artifact.number("lambda_effects")?,
            term_ridges: list("term_ridges").unwrap_or_default(),
        };
        Ok(Self { chosen, factors: list("factors"), tried: tried.ok_or_else(broken)? })
    }
}

/// The artifact of a comparison: the number of held-out cells, and each baseline's mean deviance there.
pub(super) fn baselines(server: &Server) -> Artifact {
    let scores = Scores::new(&server.sums);
    let out = Artifact::new(BASELINES_KIND).with("held_out_cells", &[], vec![scores.cells()]);
    let known = BASELINES.iter().take(server.candidates.len()).enumerate();
    let known = known.filter(|_| scores.cells() > 0.0);
    known.fold(out, |out, (i, name)| out.with(name, &[], vec![scores.mean(i)]))
}

/// The artifact of a server that chose this candidate.
pub(super) fn artifact(server: &Server, chosen: usize, factors: Option<Vec<f64>>) -> Artifact {
    let scores = Scores::new(&server.sums);
    let Candidate { rank, lambda, lambda_effects, term_ridges } = &server.candidates[chosen];
    let row = |i: usize| {
        let found = [scores.mean(i), scores.standard_error(i), f64::from(server.rounds[i])];
        server.candidates[i].numbers().into_iter().chain(found)
    };
    let table: Vec<f64> = (0..scores.count()).flat_map(row).collect();
    let known = scores.count() > 0;
    let numbers = [
        ("rank", *rank as f64),
        ("lambda", *lambda),
        ("lambda_effects", *lambda_effects),
        ("validation_deviance", if known { scores.mean(chosen) } else { 0.0 }),
        ("validation_error", if known { scores.standard_error(chosen) } else { 0.0 }),
        ("validation_cells", scores.cells()),
        ("folds", f64::from(server.splits.count)),
        ("lambda_max", server.lambda_max),
    ];
    let mut out = Artifact::new(KIND);
    numbers.into_iter().for_each(|(name, value)| out.add(name, &[], vec![value]));
    let own = Some(term_ridges.clone()).filter(|own| !own.is_empty());
    for (name, list) in [("term_ridges", own), ("factors", factors)] {
        list.into_iter().for_each(|list| out.add(name, &[list.len()], list));
    }
    let width = server.candidates[chosen].numbers().len() + FOUND;
    out.with("candidates", &[scores.count(), width], table)
}
