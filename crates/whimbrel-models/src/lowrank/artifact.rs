//! A fitted table as named tensors.
//!
//! Row and column effects are `row_effects` and `column_effects`. The `k`-th other term is `effect_k`, by
//! class of the row and of the column. Its classes (`effect_k_rows`, `effect_k_columns`) are stored if
//! they are neither one in all nor one per line, its covariates (`effect_k_row_weights`,
//! `effect_k_column_weights`) if it has any. `row_errors` and `row_prior`, their counterparts for columns
//! and `effect_k`, and `usual_variance` store the [`Uncertainty`]. `column_means` and `column_scales` lead
//! from a fit of standardised columns to the data.

use super::ceiling::Ceiling;
use super::interval::{Calibration, Coverage, Group};
use super::side::Side;
use super::{
    Classes, Effects, Factors, Family, Lines, LowRank, LowRankFit, Posteriors, Settings, Term,
    Uncertainty, Variance,
};
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Error, Result, vector};

pub const KIND: &str = "low-rank";
const SIDES: [&str; 2] = ["row", "column"];
/// Tensor of the calibration groups, and numbers per group.
const GROUPS: &str = "variance_groups";
const GROUP: usize = 4;
/// Tensors of the units of standardised columns.
const UNITS: [&str; 2] = ["column_means", "column_scales"];

impl LowRankFit {
    /// The fit as named tensors.
    pub fn to_artifact(&self) -> Artifact {
        let (settings, lines) = (self.model.settings(), [self.model.rows(), self.model.columns()]);
        let Factors { intercept, u, v, .. } = &self.factors;
        let mut out = Artifact::new(KIND);
        out.add("u", &[lines[0], settings.rank], u.clone());
        out.add("v", &[lines[1], settings.rank], v.clone());
        let numbers = [
            ("intercept", *intercept),
            ("family", settings.family.code()),
            ("lambda", settings.lambda),
            ("lambda_effects", settings.lambda_effects),
            ("clients", f64::from(self.clients)),
            ("unit_variance", f64::from(settings.variance == Variance::Unit)),
        ];
        numbers.into_iter().for_each(|(name, value)| out.add(name, &[], vec![value]));
        for (side, counts) in SIDES.iter().zip(&self.observations) {
            let counts: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
            out.add(&format!("{side}_observations"), &[counts.len()], counts);
        }
        let mut others = 0;
        for (t, term) in self.model.terms().iter().enumerate() {
            let numbers = self.factors.effects[t].clone();
            match Side::BOTH.into_iter().find(|side| term.is_line(*side)) {
                Some(side) => {
                    let name = format!("{}_effects", SIDES[side as usize]);
                    out.add(&name, &[numbers.len()], numbers);
                }
                None => {
                    let open = self.uncertainty.as_ref().map(|all| &all.terms[t]);
                    put_term(&mut out, others, term, term.shape(lines[0], lines[1]), numbers, open);
                    others += 1;
                }
            }
        }
        if !settings.term_ridges.is_empty() {
            let ridges = settings.term_ridges.clone();
            out.add("effect_ridges", &[ridges.len()], ridges);
        }
        if !settings.units.is_empty() {
            for (at, name) in UNITS.iter().enumerate() {
                let each: Vec<f64> = settings.units.iter().map(|unit| unit[at]).collect();
                out.add(name, &[each.len()], each);
            }
        }
        if let Some(Ceiling { rows, columns }) = &self.ceiling {
            out.add("row_ceiling", &[rows.len()], rows.clone());
            out.add("column_ceiling", &[columns.len()], columns.clone());
        }
        if let Some(Calibration { dispersion, groups, calibrated, coverage, doubtful }) =
            &self.calibration
        {
            let group =
                |g: &Group| [f64::from(g.class), f64::from(g.last), g.quantile, g.dispersion];
            let shape = [groups.len(), GROUP];
            out.add(GROUPS, &shape, groups.iter().flat_map(group).collect());
            out.add("dispersion", &[], vec![*dispersion]);
            out.add("calibrated", &[], vec![f64::from(*calibrated)]);
            out.add("doubtful", &[], vec![f64::from(*doubtful)]);
            if let Some(Coverage { share, cells }) = coverage {
                out.add("coverage", &[], vec![*share]);
                out.add("coverage_cells", &[], vec![*cells as f64]);
            }
        }
        if let Some(sure) = &self.uncertainty {
            for (side, all) in SIDES.iter().zip(&sure.lines) {
                put_posteriors(&mut out, side, all);
            }
            out.add("usual_variance", &[], vec![sure.usual]);
        }
        out
    }

    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        if artifact.kind != KIND {
            return Err(Error::data(format!("a model of kind `{}` is not a table", artifact.kind)));
        }
        let has = |name: &str| artifact.tensor(name).is_some();
        let optional =
            |name: &str, length| has(name).then(|| artifact.values(name, length)).transpose();
        let shape = |name: &str| match artifact.tensor(name).map(|tensor| &tensor.shape[..]) {
            Some(&[lines, rank]) => Ok([lines as usize, rank as usize]),
            _ => Err(Error::data(format!("the model has no factors `{name}`"))),
        };
        let ([rows, rank], [columns, _]) = (shape("u")?, shape("v")?);
        let Terms { terms, effects, of_lines } = read_terms(artifact, [rows, columns])?;
        let units = match (optional(UNITS[0], columns)?, optional(UNITS[1], columns)?) {
            (Some(means), Some(scales)) => {
                means.into_iter().zip(scales).map(|(mean, scale)| [mean, scale]).collect()
            }
            _ => Vec::new(),
        };
        let family = Family::from_code(artifact.number("family")?)?;
        let model = LowRank::new(Settings {
            units,
            rank,
            effects: Effects::of(terms),
            term_ridges: optional("effect_ridges", effects.len())?.unwrap_or_default(),
            lambda: artifact.number("lambda")?,
            lambda_effects: artifact.number("lambda_effects")?,
            variance: match artifact.number("unit_variance")? {
                0.0 => Variance::Estimated,
                _ => Variance::Unit,
            },
            ..Settings::new(rows, columns, family)
        })?;
        check_effects(&model, &effects, of_lines)?;
        let uncertainty = read_uncertainty(artifact, &model, &effects, of_lines)?;
        let ceiling = match optional("row_ceiling", rows)? {
            Some(rows) => {
                Some(Ceiling { rows, columns: artifact.values("column_ceiling", columns)? })
            }
            None => None,
        };
        let groups = artifact.tensor(GROUPS);
        let calibration = groups.map(|groups| read_calibration(artifact, groups)).transpose()?;
        let counts = |name: &str, length: usize| -> Result<Vec<u32>> {
            Ok(artifact.values(name, length)?.iter().map(|count| *count as u32).collect())
        };
        Ok(Self {
            factors: Factors {
                rank: rank as u32,
                intercept: artifact.number("intercept")?,
                effects,
                u: artifact.values("u", rows * rank)?,
                v: artifact.values("v", columns * rank)?,
            },
            ceiling,
            clients: artifact.number("clients")? as u32,
            observations: [
                counts("row_observations", rows)?,
                counts("column_observations", columns)?,
            ],
            calibration,
            uncertainty,
            model,
        })
    }
}

/// The effects of a stored model with their coefficients; the first `of_lines` are those of rows and
/// columns.
struct Terms {
    terms: Vec<Term>,
    effects: Vec<Vec<f64>>,
    of_lines: usize,
}

fn read_terms(artifact: &Artifact, [rows, columns]: [usize; 2]) -> Result<Terms> {
    let (mut terms, mut effects) = (Vec::new(), Vec::new());
    let of_lines =
        [(Term::row(), "row_effects", rows), (Term::column(), "column_effects", columns)];
    for (term, name, length) in of_lines {
        if artifact.tensor(name).is_some() {
            terms.push(term);
            effects.push(artifact.values(name, length)?);
        }
    }
    let of_lines = terms.len();
    for k in 0.. {
        let Some(numbers) = artifact.tensor(&format!("effect_{k}")) else { break };
        terms.push(read_term(artifact, k, numbers, [rows, columns])?);
        effects.push(numbers.values.clone());
    }
    Ok(Terms { terms, effects, of_lines })
}

/// Refuses effects that do not fit the model's terms.
fn check_effects(model: &LowRank, effects: &[Vec<f64>], of_lines: usize) -> Result<()> {
    let lengths = model.terms().iter().map(|term| model.term_len(term));
    if !lengths.eq(effects.iter().map(Vec::len)) {
        return Err(Error::data("an effect does not have one coefficient per class"));
    }
    if (of_lines..effects.len()).any(|t| Side::BOTH.map(|s| model.line_term(s)).contains(&Some(t)))
    {
        return Err(Error::data("a row or column effect is stored under another name"));
    }
    Ok(())
}

/// The posteriors, if stored; `of_lines` is the number of row and column effects.
fn read_uncertainty(
    artifact: &Artifact,
    model: &LowRank,
    effects: &[Vec<f64>],
    of_lines: usize,
) -> Result<Option<Uncertainty>> {
    if artifact.tensor("usual_variance").is_none() {
        if artifact.tensor("row_errors").is_none() {
            return Ok(None);
        }
        let what = "the model's errors are from another version of the program";
        return Err(Error::data(what).hint("fit it again"));
    }
    let side = |side: Side| {
        let count = [model.rows(), model.columns()][side as usize];
        read_posteriors(artifact, SIDES[side as usize], count, model.unknowns(side))
    };
    let term = |(t, own): (usize, &Vec<f64>)| match t.checked_sub(of_lines) {
        None => Ok(Posteriors::default()),
        Some(k) => read_posteriors(artifact, &format!("effect_{k}"), own.len(), 1),
    };
    let lines = [side(Side::Row)?, side(Side::Column)?];
    let terms = effects.iter().enumerate().map(term).collect::<Result<_>>()?;
    let usual = artifact.number("usual_variance")?;
    if !(usual >= 0.0 && usual.is_finite()) {
        return Err(Error::data("the model's usual variance is not a variance"));
    }
    Ok(Some(Uncertainty { lines, terms, usual }))
}

fn read_calibration(artifact: &Artifact, groups: &Tensor) -> Result<Calibration> {
    let group = |g: &[f64]| Group {
        class: g[0] as u32,
        last: g[1] as u32,
        quantile: g[2],
        dispersion: g[3],
    };
    let groups: Vec<Group> = groups.values.chunks_exact(GROUP).map(group).collect();
    if groups.is_empty() {
        return Err(Error::data("the model's calibration has no group"));
    }
    Ok(Calibration {
        dispersion: artifact.number("dispersion")?,
        groups,
        calibrated: artifact.number("calibrated")? != 0.0,
        coverage: artifact.number("coverage").ok().map(|share| {
            let cells = artifact.number("coverage_cells").unwrap_or(0.0) as u64;
            Coverage { share, cells }
        }),
        doubtful: artifact.number("doubtful")? != 0.0,
    })
}

/// Adds the `k`-th term other than row and column effects.
fn put_term(
    out: &mut Artifact,
    k: usize,
    term: &Term,
    shape: [usize; 2],
    numbers: Vec<f64>,
    open: Option<&Posteriors>,
) {
    out.add(&format!("effect_{k}"), &shape, numbers);
    for (side, Lines { classes, weights }) in SIDES.iter().zip(&term.sides) {
        if let Classes::Of { of, .. } = classes {
            let of: Vec<f64> = of.iter().map(|class| f64::from(*class)).collect();
            out.add(&format!("effect_{k}_{side}s"), &[of.len()], of);
        }
        if !weights.is_empty() {
            let name = format!("effect_{k}_{side}_weights");
            out.add(&name, &[weights.len()], weights.clone());
        }
    }
    open.into_iter().for_each(|open| put_posteriors(out, &format!("effect_{k}"), open));
}

fn put_posteriors(out: &mut Artifact, of: &str, Posteriors { prior, each }: &Posteriors) {
    let width = Posteriors::width(prior.len());
    out.add(&format!("{of}_prior"), &[prior.len()], prior.clone());
    out.add(&format!("{of}_errors"), &[each.len() / width, width], each.clone());
}

fn read_posteriors(artifact: &Artifact, of: &str, count: usize, q: usize) -> Result<Posteriors> {
    let prior = artifact.values(&format!("{of}_prior"), q)?;
    let each = artifact.values(&format!("{of}_errors"), count * Posteriors::width(q))?;
    let is_positive = |x: &f64| *x > 0.0 && x.is_finite();
    let mut factors = each.chunks_exact(Posteriors::width(q));
    let diagonals = factors.all(|each| (0..q).all(|k| is_positive(&each[k * q + k])));
    if !(diagonals && prior.iter().all(is_positive) && vector::all_finite(&each)) {
        return Err(Error::data(format!("`{of}_errors` are not posteriors")));
    }
    Ok(Posteriors { prior, each })
}

/// The `k`-th term other than row and column effects, with these coefficients.
fn read_term(artifact: &Artifact, k: usize, numbers: &Tensor, lines: [usize; 2]) -> Result<Term> {
    let &[of_rows, of_columns] = &numbers.shape[..] else {
        return Err(Error::data(format!("`effect_{k}` is not a matrix")));
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
