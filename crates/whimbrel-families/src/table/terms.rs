//! The terms of the main effects, from their names in a job.

use super::keys::{EffectsKey, LowRankKeys};
use crate::failure::{Failure, Result};
use std::collections::HashMap;
use whimbrel_core::Error;
use whimbrel_data::{Attribute, AttributeOf, Described};
use whimbrel_models::lowrank::{Classes, Effects, Lines, Term};

/// Separator of the parts of an interaction.
const JOINT: char = ':';
/// Names of the effects of rows and columns.
const ROW: &str = "row";
const COLUMN: &str = "column";
/// Maximum number of terms.
pub(super) const TERMS_MAX: usize = 16;

/// The columns of the file that effects and covariates refer to.
pub(super) fn described(keys: &LowRankKeys) -> Described {
    let EffectsKey::Terms(terms) = &keys.effects else {
        return Described { factors: Vec::new(), covariates: keys.covariates.clone() };
    };
    let mut factors: Vec<String> = Vec::new();
    for part in terms.iter().flat_map(|term| term.split(JOINT)) {
        let known = [ROW, COLUMN].contains(&part)
            || keys.covariates.iter().any(|name| name == part)
            || factors.iter().any(|name| name == part);
        if !known {
            factors.push(part.to_owned());
        }
    }
    Described { factors, covariates: keys.covariates.clone() }
}

/// The job's terms for a table of this size; covariates come last.
pub(super) fn effects(
    keys: &LowRankKeys,
    lines: [usize; 2],
    attributes: &[Attribute],
) -> Result<Effects> {
    let named = match &keys.effects {
        EffectsKey::None => vec![],
        EffectsKey::Row => vec![ROW.to_owned()],
        EffectsKey::Column => vec![COLUMN.to_owned()],
        EffectsKey::RowColumn => vec![ROW.to_owned(), COLUMN.to_owned()],
        EffectsKey::Terms(terms) => terms.clone(),
    };
    let mut terms: Vec<Term> = Vec::new();
    for name in named.iter().chain(&keys.covariates) {
        let found = term(name, lines, attributes)?;
        if let Some(same) = terms.iter().find(|other| other.sides == found.sides) {
            let what = format!("effects {:?} and {name:?} are the same", same.name);
            return Err(Error::config(what).hint("take one of them out").into());
        }
        terms.push(found);
    }
    Ok(Effects::of(terms))
}

fn term(name: &str, lines: [usize; 2], attributes: &[Attribute]) -> Result<Term> {
    let mut sides = [Lines::of(Classes::All), Lines::of(Classes::All)];
    for (at, part) in name.split(JOINT).enumerate() {
        if name.split(JOINT).take(at).any(|earlier| earlier == part) {
            let what = format!("effect {name:?} names {part:?} twice");
            return Err(Error::config(what).hint("an interaction joins different columns").into());
        }
        let (side, of) = match part {
            ROW => (0, Lines::of(Classes::Each)),
            COLUMN => (1, Lines::of(Classes::Each)),
            _ => {
                let found = attributes.iter().find(|attribute| attribute.name == part);
                let found = found.ok_or_else(|| {
                    Failure::config(format!("{part:?} does not describe rows or columns"))
                })?;
                let side = match found.of {
                    AttributeOf::Row => 0,
                    AttributeOf::Column => 1,
                };
                if found.values.len() != lines[side] {
                    let what = format!("{part:?} describes another table");
                    return Err(Error::peer(what).into());
                }
                (side, lines_of(found)?)
            }
        };
        let own = &mut sides[side];
        *own = joined(std::mem::replace(own, Lines::of(Classes::All)), of);
    }
    Ok(Term { name: name.into(), sides })
}

/// An attribute as classes, or as weights.
fn lines_of(attribute: &Attribute) -> Result<Lines> {
    let lines = attribute.values.len();
    if attribute.levels.is_empty() {
        return Ok(Lines { classes: Classes::All, weights: standardised(attribute)? });
    }
    let unknown = attribute.levels.len();
    if unknown == 1 && !attribute.values.contains(&None) {
        let what =
            format!("effect {:?} has a single level, {:?}", attribute.name, attribute.levels[0]);
        return Err(Error::config(what).hint("take it out of `effects`").into());
    }
    let code = |value: &Option<f64>| value.map_or(unknown as u32, |value| value as u32);
    let of: Vec<u32> = attribute.values.iter().map(code).collect();
    let count = unknown + usize::from(attribute.values.contains(&None));
    Ok(Lines::of(classes(count, of, lines)))
}

/// Classes of lines; one class per line if there are as many classes as lines.
fn classes(count: usize, of: Vec<u32>, lines: usize) -> Classes {
    if count == lines { Classes::Each } else { Classes::Of { count, of } }
}

/// The interaction of two parts of a term on the same side.
fn joined(a: Lines, b: Lines) -> Lines {
    let weights = match (a.weights.is_empty(), b.weights.is_empty()) {
        (true, _) => b.weights,
        (_, true) => a.weights,
        _ => a.weights.iter().zip(&b.weights).map(|(a, b)| a * b).collect(),
    };
    let classes = match (a.classes, b.classes) {
        (Classes::All, other) | (other, Classes::All) => other,
        (Classes::Each, _) | (_, Classes::Each) => Classes::Each,
        (Classes::Of { of: a, .. }, Classes::Of { of: b, .. }) => {
            let mut pairs = HashMap::new();
            let number = |pair: (&u32, &u32)| {
                let next = pairs.len() as u32;
                *pairs.entry((*pair.0, *pair.1)).or_insert(next)
            };
            let of: Vec<u32> = a.iter().zip(&b).map(number).collect();
            let lines = of.len();
            classes(pairs.len(), of, lines)
        }
    };
    Lines { classes, weights }
}

/// A standardised covariate; 0 for lines without a value.
fn standardised(attribute: &Attribute) -> Result<Vec<f64>> {
    let known: Vec<f64> = attribute.values.iter().flatten().copied().collect();
    let n = known.len() as f64;
    let mean = known.iter().sum::<f64>() / n;
    let sd = (known.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
    if known.is_empty() {
        let what = format!("covariate {:?} has no value", attribute.name);
        return Err(Error::data(what).hint("take it out of `covariates`").into());
    }
    if !sd.is_finite() {
        let what = format!("covariate {:?} has values too large to be squared", attribute.name);
        return Err(Error::data(what).hint("rescale it").into());
    }
    if sd == 0.0 {
        let what = format!("covariate {:?} is constant", attribute.name);
        return Err(Error::config(what).hint("take it out of `covariates`").into());
    }
    Ok(attribute.values.iter().map(|x| x.map_or(0.0, |x| (x - mean) / sd)).collect())
}
