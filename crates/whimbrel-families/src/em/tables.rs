//! Tables of a mixture: the choice among candidates, parameters, and shares of clients.

use crate::family::Ended;
use crate::files::figure;
use serde_json::{Map, Value, json};
use whimbrel_core::declare::{Exhibit, Heat, Rows, Section};
use whimbrel_core::method::{Artifact, MetricValue};
use whimbrel_core::text::counted;
use whimbrel_engine::Outcome;
use whimbrel_engine::metrics::{Figure, number};
use whimbrel_methods::choice::{Candidate, Choice};
use whimbrel_methods::fedem::SHARES;

/// Most columns in a table of parameters.
const COLUMNS_MAX: usize = 30;
/// Largest matrix that is shown.
const MATRIX_MAX: usize = 12;
/// Most clients in the table of shares.
const CLIENTS_MAX: usize = 100;

/// The choice in a sentence for the terminal.
pub fn choice_note(choice: &Choice) -> Option<String> {
    let chosen = choice.chosen().ok()?;
    let numbers = numbers_of_components(choice);
    let starts = choice.candidates.len() / numbers.len().max(1);
    let start = match starts {
        1 => String::new(),
        _ => format!("start {} of {starts} has the highest likelihood", chosen.start),
    };
    let components = match &numbers[..] {
        [_] => String::new(),
        all => {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            let clipped = choice.candidates.iter().any(|c| c.clipped && c.compared);
            let aside = if clipped { ", ignoring fits with clipped parameters" } else { "" };
            let all = all.join(", ");
            format!("{} components have the lowest BIC of {all}{aside}", chosen.components)
        }
    };
    let said: Vec<String> = [components, start].into_iter().filter(|s| !s.is_empty()).collect();
    Some(said.join("; "))
}

/// The best candidate of each number of components, for the summary.
pub fn compared(choice: &Choice) -> Value {
    let best = numbers_of_components(choice).into_iter().filter_map(|components| {
        let own = |c: &&Candidate| c.components == components && c.compared && !c.failed;
        choice
            .candidates
            .iter()
            .filter(own)
            .min_by(|a, b| a.clipped.cmp(&b.clipped).then(a.bic.total_cmp(&b.bic)))
    });
    let row = |c: &Candidate| {
        json!({
            "components": c.components, "bic": number(c.bic),
            "log_likelihood": number(c.log_likelihood), "parameters": c.parameters,
            "clipped": c.clipped, "chosen": c.chosen,
        })
    };
    best.map(row).collect()
}

/// The warning about a choice at the edge of the grid.
pub fn edge(choice: &Choice) -> Option<String> {
    let (numbers, chosen) = (numbers_of_components(choice), choice.chosen().ok()?.components);
    let (least, most) = (numbers.iter().min()?, numbers.iter().max()?);
    let side = match chosen {
        _ if least == most => return None,
        n if n == *most => "more",
        n if n == *least && n > 1 => "fewer",
        _ => return None,
    };
    Some(format!(
        "the lowest BIC is at the edge of the grid, {chosen} components: try {side} in `components`"
    ))
}

/// Most components whose shares are listed.
const SHARES_MAX: usize = 6;

/// The fit in a sentence (`answer`), its log-likelihood over all rows, degrees of freedom and BIC.
pub fn answer(
    weights: &[f64],
    ended: &Ended<'_>,
    free_parameters: Option<usize>,
) -> Map<String, Value> {
    let mut summary = Map::new();
    if weights.is_empty() {
        return summary;
    }
    let rows: Option<u64> = ended.data.rows.iter().copied().sum();
    let share = |weight: &f64| match rows {
        Some(rows) => format!("{:.0} ({:.1} %)", weight * rows as f64, 100.0 * weight),
        None => format!("{:.1} %", 100.0 * weight),
    };
    let mut listed: Vec<String> = weights.iter().take(SHARES_MAX).map(share).collect();
    listed.extend((weights.len() > SHARES_MAX).then(|| "...".into()));
    let components = counted(weights.len(), "component");
    let mut said = vec![format!("{components} with {} of the rows", listed.join(", "))];
    if let Some((likelihood, rows)) = log_likelihood(ended).zip(rows) {
        summary.insert("log_likelihood".into(), number(likelihood));
        said.push(format!("log-likelihood {likelihood:.1}"));
        if let Some(free) = free_parameters {
            summary.insert("free_parameters".into(), free.into());
            let bic = free as f64 * (rows as f64).ln() - 2.0 * likelihood;
            summary.insert("bic".into(), number(bic));
            said.push(format!("{free} degrees of freedom, BIC {bic:.1} (lower is better)"));
        }
    }
    summary.insert("answer".into(), said.join("; ").into());
    summary
}

/// The main figures of a mixture's summary, which loses its BIC to that of a stage that compared candidates.
pub fn tiles(summary: &mut Map<String, Value>, choice: Option<&Choice>) -> Vec<(String, String)> {
    let figures = [("Log-likelihood", "log_likelihood"), ("BIC, lower is better", "bic")];
    let tile = |(name, key): (&str, &str)| {
        Some((name.to_owned(), format!("{:.1}", summary.get(key)?.as_f64()?)))
    };
    let tiles = figures.into_iter().filter_map(tile).collect();
    if choice.and_then(|choice| choice.chosen().ok()).is_some_and(|chosen| chosen.compared) {
        summary.remove("bic");
    }
    tiles
}

/// Removes the curves of the weights from a section.
pub fn take_curves(section: &mut Section) -> Vec<Exhibit> {
    let is_curve = |exhibit: &mut Exhibit| matches!(exhibit, Exhibit::Entries { .. });
    section.exhibits.extract_if(.., is_curve).collect()
}

/// The numbering of the components by a curve; empty if they are numbered as in the model.
pub fn order(curves: &[Exhibit]) -> Vec<usize> {
    let order = curves.iter().find_map(|exhibit| match exhibit {
        Exhibit::Entries { order, .. } => Some(order.clone()),
        _ => None,
    });
    order.unwrap_or_default()
}

/// The weights in the order of the tables.
pub fn in_order(model: &Artifact, order: &[usize]) -> Vec<f64> {
    let Some(weights) = model.tensor("weights") else { return Vec::new() };
    match order {
        [] => weights.values.clone(),
        order => order.iter().filter_map(|k| weights.values.get(*k).copied()).collect(),
    }
}

/// Adds the expected rows of each component to the tables of components.
pub fn add_rows(section: &mut Section, weights: &[f64], ended: &Ended<'_>) {
    let Some(all) = ended.data.rows.iter().copied().sum::<Option<u64>>() else { return };
    for exhibit in &mut section.exhibits {
        let Exhibit::Table(table) = exhibit else { continue };
        if table.heads.get(1).is_some_and(|head| head == "weight") {
            table.heads.insert(2, "rows".into());
            for (row, weight) in table.rows.iter_mut().zip(weights) {
                row.insert(2, format!("{:.0}", weight * all as f64));
            }
        }
    }
}

/// The log-likelihood of all rows, from the clients' losses at the last evaluation.
fn log_likelihood(ended: &Ended<'_>) -> Option<f64> {
    let loss = |figures: &Vec<Figure>| {
        figures.iter().find_map(|figure| match figure.value {
            MetricValue::Number(value) if figure.name == "loss" => Some(value),
            _ => None,
        })
    };
    let (own, rows) = (&ended.outcome.own, &ended.data.rows);
    match &own[..] {
        // Pooled EM has one client with all rows.
        [all] => Some(-loss(all)? * rows.iter().copied().sum::<Option<u64>>()? as f64),
        _ if own.is_empty() || own.len() != rows.len() => None,
        _ => own.iter().zip(rows).map(|(own, n)| Some(-loss(own)? * (*n)? as f64)).sum(),
    }
}

/// The table of all candidates.
pub fn of_choice(choice: &Choice) -> Section {
    let several = numbers_of_components(choice).len() > 1;
    let validated = choice.candidates.iter().any(|c| c.validation.is_some());
    let mut heads =
        vec!["components", "start", "EM steps", "free parameters", "log-likelihood per row"];
    if several {
        heads.push("BIC");
    }
    if validated {
        heads.push("validation log-likelihood per row");
    }
    heads.push("");
    let row = |c: &Candidate| {
        let mut row = vec![
            c.components.to_string(),
            c.start.to_string(),
            c.steps.to_string(),
            c.parameters.to_string(),
            if c.failed { String::new() } else { format!("{:.5}", c.log_likelihood) },
        ];
        if several {
            row.push(if c.compared && !c.failed { format!("{:.1}", c.bic) } else { String::new() });
        }
        if validated {
            let value = c.validation.filter(|_| !c.failed);
            row.push(value.map_or_else(String::new, |value| format!("{value:.5}")));
        }
        let word = match c {
            c if c.chosen => "chosen",
            c if c.failed => "no start or failed",
            c if c.clipped => "clipped",
            _ => "",
        };
        row.push(word.into());
        row
    };
    let sentence = if several {
        "The best starts of each number of components ran until convergence; the fit starts from \
         the parameters with the lowest BIC among runs without clipped parameters."
    } else {
        "Short runs of exact EM from each start, of which the best and the first ran until \
         convergence; the fit starts from the parameters with the highest likelihood."
    };
    let table = Rows {
        heads: heads.into_iter().map(String::from).collect(),
        rows: choice.candidates.iter().map(row).collect(),
        ..Rows::default()
    };
    Section {
        title: "Choice of the mixture".into(),
        exhibits: vec![Exhibit::Text { text: sentence.into() }, Exhibit::Table(table)],
    }
}

fn numbers_of_components(choice: &Choice) -> Vec<u32> {
    let mut numbers: Vec<u32> = choice.candidates.iter().map(|c| c.components).collect();
    numbers.dedup();
    numbers
}

/// The parameters, and each client's share of every component. `plane` is the section of a
/// two-dimensional mixture, whose numbering of components the tables follow.
pub fn section(
    model: &Artifact,
    columns: &[String],
    plane: Option<Section>,
    outcome: &Outcome,
) -> Option<Section> {
    let weights = &model.tensor("weights")?.values;
    let means = model.tensor("means")?;
    let width = means.values.len() / weights.len().max(1);
    let names = if width == columns.len() {
        columns.to_vec()
    } else {
        (1..=width).map(|i| format!("PC {i}")).collect()
    };
    let is_plane = plane.is_some();
    let drawn = plane.as_ref().map_or_else(Vec::new, |section| order(&section.exhibits));
    let order = if is_plane { drawn } else { (0..weights.len()).collect() };
    let mut exhibits = plane.map_or_else(Vec::new, |section| section.exhibits);
    if !is_plane {
        exhibits.extend(gaussians("Means", model, &order, &names)?);
    }
    exhibits.extend(shares(&order, &outcome.names, &outcome.own));
    Some(Section { title: "Mixture".into(), exhibits })
}

/// Means under this title, standard deviations and covariance matrices.
pub(super) fn gaussians(
    title: &str,
    model: &Artifact,
    order: &[usize],
    names: &[String],
) -> Option<Vec<Exhibit>> {
    let weights = &model.tensor("weights")?.values;
    let means = &model.tensor("means")?.values;
    let deviations = deviations(model, weights.len(), names.len())?;
    let table =
        |title, values: &[f64], spread| parameters(title, order, weights, values, names, spread);
    let mut exhibits = vec![
        table(title, means, Some(&deviations[..])),
        table("Standard deviations", &deviations, None),
    ];
    exhibits.extend(matrices(model, order, names));
    Some(exhibits)
}

/// One row for each component, with enough digits to distinguish values that differ by a fraction of
/// their `spread`.
pub(super) fn parameters(
    title: &str,
    order: &[usize],
    weights: &[f64],
    values: &[f64],
    names: &[String],
    spread: Option<&[f64]>,
) -> Exhibit {
    let shown = names.len().min(COLUMNS_MAX);
    let title = match names.len() - shown {
        0 => title.to_string(),
        more => format!("{title} (without the last {more} columns)"),
    };
    let heads = ["component", "weight"].map(String::from).into_iter();
    let row = |(place, &k): (usize, &usize)| {
        let numbers = (k * names.len()..).take(shown).map(|i| {
            let by = spread.map_or(0.0, |spread| (values[i] / spread[i]).abs().log10());
            // A double has at most 17 digits.
            let more = if by.is_finite() { by.clamp(1.0, 14.0).floor() as usize } else { 1 };
            figure(values[i], 3 + more)
        });
        [(place + 1).to_string(), format!("{:.4}", weights[k])].into_iter().chain(numbers).collect()
    };
    Exhibit::Table(Rows {
        title,
        heads: heads.chain(names[..shown].iter().cloned()).collect(),
        rows: order.iter().enumerate().map(row).collect(),
        ..Rows::default()
    })
}

/// Standard deviations by component.
fn deviations(model: &Artifact, components: usize, width: usize) -> Option<Vec<f64>> {
    let root = |x: &f64| x.max(0.0).sqrt();
    if let Some(shared) = model.tensor("covariance") {
        let one: Vec<f64> = shared.values.iter().step_by(width + 1).map(root).collect();
        return Some(one.repeat(components));
    }
    let own = model.tensor("covariances")?;
    Some(match own.shape.len() {
        2 => own.values.iter().map(root).collect(),
        _ => own
            .values
            .chunks_exact(width * width)
            .flat_map(|matrix| matrix.iter().step_by(width + 1).map(root))
            .collect(),
    })
}

/// Covariance matrices of at most `MATRIX_MAX` columns.
fn matrices(model: &Artifact, order: &[usize], names: &[String]) -> Vec<Exhibit> {
    let width = names.len();
    if width > MATRIX_MAX {
        return Vec::new();
    }
    let table = |title: String, matrix: &[f64]| {
        let row = |(name, cells): (&String, &[f64])| {
            let cells = cells.iter().map(|x| figure(*x, 4));
            std::iter::once(name.clone()).chain(cells).collect()
        };
        Exhibit::Table(Rows {
            title,
            heads: std::iter::once(String::new()).chain(names.iter().cloned()).collect(),
            rows: names.iter().zip(matrix.chunks_exact(width)).map(row).collect(),
            collapsed: true,
            ..Rows::default()
        })
    };
    if let Some(shared) = model.tensor("covariance") {
        return vec![table("Covariance of all components".into(), &shared.values)];
    }
    let own = model.tensor("covariances").filter(|own| own.shape.len() == 3);
    let Some(own) = own else { return Vec::new() };
    let matrix = |(place, &k): (usize, &usize)| {
        let matrix = &own.values[k * width * width..][..width * width];
        table(format!("Covariance of component {}", place + 1), matrix)
    };
    order.iter().enumerate().map(matrix).collect()
}

/// Mean responsibilities of each client's rows, as a heat map and a table.
pub(super) fn shares(order: &[usize], names: &[String], own: &[Vec<Figure>]) -> Vec<Exhibit> {
    let of = |figures: &Vec<Figure>| {
        figures.iter().find(|figure| figure.name == SHARES).and_then(|figure| match &figure.value {
            MetricValue::List(values) if values.len() == order.len() => {
                Some(order.iter().map(|k| values[*k]).collect::<Vec<f64>>())
            }
            _ => None,
        })
    };
    let each: Vec<Option<Vec<f64>>> = own.iter().map(of).collect();
    if each.iter().flatten().count() < 2 || order.len() < 2 {
        return Vec::new();
    }
    let text = [
        "Components of each client".into(),
        "Mean responsibilities of each client's rows (clients by components)".into(),
    ];
    let heat = Exhibit::Heat(Heat::of_components(text, names, order.len(), &each));
    let row = |(client, shares): (&String, &Vec<f64>)| {
        let shares = shares.iter().map(|x| format!("{x:.3}"));
        std::iter::once(client.clone()).chain(shares).collect()
    };
    let known = names.iter().zip(&each).filter_map(|(name, own)| Some((name, own.as_ref()?)));
    let table = Exhibit::Table(Rows {
        title: if each.len() > CLIENTS_MAX {
            format!("Shares of components in the rows of the first {CLIENTS_MAX} clients")
        } else {
            "Shares of components in each client's rows".into()
        },
        heads: std::iter::once("client".into())
            .chain((1..=order.len()).map(|k| format!("component {k}")))
            .collect(),
        rows: known.take(CLIENTS_MAX).map(row).collect(),
        collapsed: true,
        ..Rows::default()
    });
    vec![heat, table]
}
