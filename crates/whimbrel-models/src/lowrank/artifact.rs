//! A fitted table as named tensors.
//!
//! Effects of single rows and columns are `row_effects` and `column_effects`. Term `k` of the others is
//! `effect_k`, by class of the row and of the column, with the classes (`effect_k_rows`,
//! `effect_k_columns`) where they are neither one in all nor one per line, and the weights
//! (`effect_k_row_weights`, `effect_k_column_weights`) where there are any.

use super::ceiling::Ceiling;
use super::interval::{Calibration, Group};
use super::side::Side;
use super::{
    Classes, Effects, Factors, Family, Lines, LowRank, LowRankFit, Settings, Term, Uncertainty,
    Variance,
};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Error, Result};

/// The kind of the artifact.
pub const KIND: &str = "low-rank";

impl LowRankFit {
    /// The fit as named tensors.
    pub fn to_artifact(&self) -> Artifact {
        let Settings { rows, columns, rank, family, lambda, lambda_effects, variance, .. } =
            *self.model.settings();
        let Factors { intercept, effects, u, v, .. } = &self.factors;
        let lines = Side::BOTH.map(|side| self.model.line_term(side));
        let of_lines = |side: Side, count: usize| match lines[side as usize] {
            Some(t) => effects[t].clone(),
            None => vec![0.0; count],
        };
        let out = Artifact::new(KIND)
            .with("row_effects", &[rows], of_lines(Side::Row, rows))
            .with("column_effects", &[columns], of_lines(Side::Column, columns))
            .with("u", &[rows, rank], u.clone())
            .with("v", &[columns, rank], v.clone());
        let number = |out: Artifact, (name, value): (&str, f64)| out.with(name, &[], vec![value]);
        let numbers = [
            ("intercept", *intercept),
            ("family", family.code()),
            (
                "effects",
                f64::from(
                    lines
                        .map(|t| u8::from(t.is_some()))
                        .iter()
                        .rev()
                        .fold(0, |code, bit| 2 * code + bit),
                ),
            ),
            ("lambda", lambda),
            ("lambda_effects", lambda_effects),
            ("clients", f64::from(self.clients)),
            ("unit_variance", f64::from(u8::from(variance == Variance::Unit))),
        ];
        let mut out = numbers.into_iter().fold(out, number);
        for (name, counts) in OBSERVATIONS.into_iter().zip(&self.observations) {
            let counts: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
            out = out.with(name, &[counts.len()], counts);
        }
        for (k, t) in self.model.shared_terms().enumerate() {
            let open = self.uncertainty.as_ref().map(|all| &all.terms[t][..]);
            out = with_term(out, k, &self.model, t, &effects[t], open);
        }
        let ridges = &self.model.settings().term_ridges;
        if !ridges.is_empty() {
            out = out.with("effect_ridges", &[ridges.len()], ridges.clone());
        }
        if let Some(Ceiling { rows: of_rows, columns: of_columns }) = &self.ceiling {
            out = out.with("row_ceiling", &[rows], of_rows.clone());
            out = out.with("column_ceiling", &[columns], of_columns.clone());
        }
        if let Some(Calibration { dispersion, groups, calibrated, coverage, doubtful }) =
            &self.calibration
        {
            let column = |of: fn(&Group) -> f64| groups.iter().map(of).collect();
            out = out
                .with("interval_classes", &[groups.len()], column(|g| f64::from(g.class)))
                .with("interval_octaves", &[groups.len()], column(|g| f64::from(g.last)))
                .with("interval_quantiles", &[groups.len()], column(|g| g.quantile))
                .with("interval_dispersions", &[groups.len()], column(|g| g.dispersion));
            let flags = [
                ("dispersion", *dispersion),
                ("calibrated", f64::from(u8::from(*calibrated))),
                ("doubtful", f64::from(u8::from(*doubtful))),
            ];
            let coverage = coverage.map(|coverage| ("coverage", coverage));
            out = flags.into_iter().chain(coverage).fold(out, number);
        }
        if let Some(Uncertainty { rows: of_rows, columns: of_columns, .. }) = &self.uncertainty {
            let shape = |lines: usize, all: &[f64]| [lines, all.len() / lines];
            out = out.with("row_uncertainty", &shape(rows, of_rows), of_rows.clone());
            out = out.with("column_uncertainty", &shape(columns, of_columns), of_columns.clone());
        }
        out
    }

    /// Reads an artifact back.
    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        if artifact.kind != KIND {
            return Err(Error::data(format!("a model of kind `{}` has no cells", artifact.kind)));
        }
        let tensor = |name: &str| -> Result<&Tensor> {
            artifact.tensor(name).ok_or_else(|| Error::data(format!("the model lacks `{name}`")))
        };
        let values = |name: &str, length: usize| -> Result<Vec<f64>> {
            let values = &tensor(name)?.values;
            match values.len() == length {
                true => Ok(values.clone()),
                false => Err(Error::data(format!(
                    "`{name}` has {} numbers where the model needs {length}",
                    values.len()
                ))),
            }
        };
        let number = |name: &str| -> Result<f64> { Ok(values(name, 1)?[0]) };
        let has = |name: &str| artifact.tensor(name).is_some();
        let length = |name: &str| -> Result<usize> { Ok(tensor(name)?.values.len()) };
        let (rows, columns) = (length("row_effects")?, length("column_effects")?);
        let rank = tensor("u")?.shape.last().map_or(0, |r| *r as usize);
        let code = number("effects")? as u8;
        let mut terms = Vec::new();
        let mut of_terms = Vec::new();
        let named =
            [(Term::row(), "row_effects", rows), (Term::column(), "column_effects", columns)];
        for (bit, (term, name, length)) in named.into_iter().enumerate() {
            if code >> bit & 1 == 1 {
                terms.push(term);
                of_terms.push(values(name, length)?);
            }
        }
        let of_lines = terms.len();
        for k in 0.. {
            let Some(numbers) = artifact.tensor(&format!("effect_{k}")) else { break };
            terms.push(read_term(artifact, k, numbers, [rows, columns])?);
            of_terms.push(numbers.values.clone());
        }
        let model = LowRank::new(Settings {
            rows,
            columns,
            rank,
            family: Family::from_code(number("family")?)?,
            effects: Effects::of(terms),
            term_ridges: match has("effect_ridges") {
                true => values("effect_ridges", of_terms.len())?,
                false => Vec::new(),
            },
            lambda: number("lambda")?,
            lambda_effects: number("lambda_effects")?,
            variance: match number("unit_variance")? {
                0.0 => Variance::Estimated,
                _ => Variance::Unit,
            },
        })?;
        let lengths = model.terms().iter().map(|term| model.term_len(term));
        if !lengths.eq(of_terms.iter().map(Vec::len)) {
            return Err(Error::data("an effect has not a number for each of its classes"));
        }
        let factors = Factors {
            rank: rank as u32,
            intercept: number("intercept")?,
            effects: of_terms,
            u: values("u", rows * rank)?,
            v: values("v", columns * rank)?,
        };
        let mut calibration = None;
        if has("interval_octaves") {
            let count = length("interval_octaves")?.max(1);
            let classes = values("interval_classes", count)?;
            let octaves = values("interval_octaves", count)?;
            let quantiles = values("interval_quantiles", count)?;
            let dispersions = values("interval_dispersions", count)?;
            let group = |i: usize| Group {
                class: classes[i] as u32,
                last: octaves[i] as u32,
                quantile: quantiles[i],
                dispersion: dispersions[i],
            };
            calibration = Some(Calibration {
                dispersion: number("dispersion")?,
                groups: (0..count).map(group).collect(),
                calibrated: number("calibrated")? != 0.0,
                coverage: number("coverage").ok(),
                doubtful: number("doubtful")? != 0.0,
            });
        }
        let packed = |side: Side| packed_len(model.unknowns(side));
        let uncertainty = match has("row_uncertainty") {
            false => None,
            true => Some(Uncertainty {
                rows: values("row_uncertainty", rows * packed(Side::Row))?,
                columns: values("column_uncertainty", columns * packed(Side::Column))?,
                terms: (0..factors.effects.len())
                    .map(|t| match t.checked_sub(of_lines) {
                        None => Ok(Vec::new()),
                        Some(k) => {
                            values(&format!("effect_{k}_uncertainty"), factors.effects[t].len())
                        }
                    })
                    .collect::<Result<_>>()?,
            }),
        };
        let ceiling = match has("row_ceiling") {
            false => None,
            true => Some(Ceiling {
                rows: values("row_ceiling", rows)?,
                columns: values("column_ceiling", columns)?,
            }),
        };
        let clients = number("clients")? as u32;
        let counts = |name: &str, length: usize| -> Result<Vec<u32>> {
            Ok(values(name, length)?.iter().map(|count| *count as u32).collect())
        };
        let observations = [counts(OBSERVATIONS[0], rows)?, counts(OBSERVATIONS[1], columns)?];
        Ok(Self { model, factors, ceiling, clients, observations, calibration, uncertainty })
    }
}

/// How often each row, and each column, was observed.
const OBSERVATIONS: [&str; 2] = ["row_observations", "column_observations"];
/// Names of the sides in tensors of a term.
const SIDES: [&str; 2] = ["row", "column"];

/// Adds term `t` of a model, the `k`-th of those that are not of lines.
fn with_term(
    mut out: Artifact,
    k: usize,
    model: &LowRank,
    t: usize,
    numbers: &[f64],
    open: Option<&[f64]>,
) -> Artifact {
    let term = &model.terms()[t];
    let shape = term.shape(model.rows(), model.columns());
    out = out.with(&format!("effect_{k}"), &shape, numbers.to_vec());
    for (name, lines) in SIDES.iter().zip(&term.sides) {
        if let Classes::Of { of, .. } = &lines.classes {
            let of: Vec<f64> = of.iter().map(|class| f64::from(*class)).collect();
            out = out.with(&format!("effect_{k}_{name}s"), &[of.len()], of);
        }
        let weights = &lines.weights;
        if !weights.is_empty() {
            let name = format!("effect_{k}_{name}_weights");
            out = out.with(&name, &[weights.len()], weights.clone());
        }
    }
    match open {
        Some(open) => out.with(&format!("effect_{k}_uncertainty"), &shape, open.to_vec()),
        None => out,
    }
}

/// The `k`-th term that is not of lines, whose numbers are these.
fn read_term(artifact: &Artifact, k: usize, numbers: &Tensor, lines: [usize; 2]) -> Result<Term> {
    let &[of_rows, of_columns] = &numbers.shape[..] else {
        return Err(Error::data(format!("`effect_{k}` has not two sides")));
    };
    let side = |name: &str, count: usize, lines: usize| {
        let values = |name: &str| artifact.tensor(name).map(|tensor| tensor.values.clone());
        let of = values(&format!("effect_{k}_{name}s"));
        let classes = match of {
            Some(of) => Classes::Of { count, of: of.iter().map(|class| *class as u32).collect() },
            None if count == lines && count > 1 => Classes::Each,
            None => Classes::All,
        };
        let weights = values(&format!("effect_{k}_{name}_weights")).unwrap_or_default();
        Lines { classes, weights }
    };
    let sides =
        [side(SIDES[0], of_rows as usize, lines[0]), side(SIDES[1], of_columns as usize, lines[1])];
    Ok(Term { name: format!("effect_{k}"), sides })
}
