//! Tables of a description, by client and pooled.

use super::keys::DescribeFit;
use super::{blocks, least_group, survival::survival};
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::files::figure;
use serde_json::{Map, Value, json};
use whimbrel_core::declare::{Exhibit, Rows, Section};
use whimbrel_core::method::Artifact;
use whimbrel_core::text::counted;
use whimbrel_engine::metrics::number;
use whimbrel_methods::describe::{Blocks, QUANTILES, Spread, Tally};

/// Most columns of a kind that the answer names.
const NAMED_MAX: usize = 8;

impl FitReport for DescribeFit {
    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        Map::from_iter([("column_levels".into(), json!(data.facts.levels))])
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let [tally, bins] = &ended.outcome.delivered[..] else { return Ok(Results::default()) };
        let (facts, masks) = (&ended.data.facts, ended.job.privacy.is_masked());
        let description = Description {
            columns: &facts.columns,
            levels: &facts.levels,
            clients: ended.outcome.names.len(),
            names: if masks { &[] } else { &ended.outcome.names },
            blocks: blocks(facts),
            tally,
            rows: tally.tensor("rows").map_or(&[][..], |tensor| &tensor.values),
            figures: tally.tensor("figures").map_or(&[][..], |tensor| &tensor.values),
            bins,
            group: ended.job.privacy.groups().map(least_group),
        };
        let all = description.columns()?;
        let mut summary = Map::new();
        summary.insert("rows_described".into(), json!(description.total() as u64));
        summary.insert("columns".into(), all.iter().map(|it| description.json(it)).collect());
        summary.insert("answer".into(), description.answer(&all).into());
        let tiles = vec![
            ("Rows".into(), exact(description.total())),
            ("Columns".into(), all.len().to_string()),
        ];
        let mut sections = vec![description.section(&all)];
        let by = self.by.as_ref().and_then(|by| facts.columns.iter().position(|c| c == by));
        let levels = by.map_or(&[][..], |by| &facts.levels[by]);
        if let Some((json, section)) = survival(self, levels, bins) {
            summary.insert("survival".into(), json);
            sections.push(section);
        }
        let notes = description.withheld();
        Ok(Results { summary, sections, notes, tiles, ..Results::default() })
    }
}

/// The delivered figures with their names.
struct Description<'a> {
    columns: &'a [String],
    levels: &'a [Vec<String>],
    clients: usize,
    /// The clients with tables: none under masks.
    names: &'a [String],
    blocks: Blocks,
    tally: &'a Artifact,
    /// Rows by client, zero if withheld; under masks those of all.
    rows: &'a [f64],
    figures: &'a [f64],
    bins: &'a Artifact,
    group: Option<u64>,
}

/// A column: pooled, then by client.
enum Column {
    Numbers(Vec<Numbers>),
    Categories(Vec<Categories>),
}

/// Figures of numbers; NaN where they are unknown.
struct Numbers {
    count: f64,
    missing: f64,
    mean: f64,
    /// Divided by one less than the count.
    sd: f64,
    /// Estimate, lower and upper bound.
    quantiles: Vec<[f64; 3]>,
}

struct Categories {
    count: f64,
    missing: f64,
    /// The fewest and the most rows of each category.
    bounds: Vec<[f64; 2]>,
}

impl Description<'_> {
    fn total(&self) -> f64 {
        self.rows.iter().sum()
    }

    /// The categories of a column; columns of numbers have those of zeros and ones.
    fn levels(&self, column: usize) -> Vec<String> {
        match self.levels.get(column) {
            Some(levels) if !levels.is_empty() => levels.clone(),
            _ => vec!["0".into(), "1".into()],
        }
    }

    fn columns(&self) -> Result<Vec<(usize, Column)>> {
        let columns = 0..self.columns.len();
        columns.map(|column| Ok((column, self.column(column)?))).collect()
    }

    fn column(&self, column: usize) -> Result<Column> {
        let yes_no = self.blocks.yes_no(column, self.figures);
        let clients: Vec<&[f64]> = match &yes_no {
            Some(each) => each.iter().map(<[f64; 3]>::as_slice).collect(),
            None => self.blocks.each(column, self.figures).collect(),
        };
        if self.blocks.levels[column] > 0 || yes_no.is_some() {
            let each: Vec<Categories> =
                clients.iter().zip(self.rows).map(|(block, n)| Categories::of(block, *n)).collect();
            let mut pooled = Categories::pooled(&each, self.total());
            if let Some(known) = self.tally.tensor(&Tally::bounds_of(column)) {
                pooled.bounds = known.values.as_chunks().0.to_vec();
            }
            let mut all = vec![pooled];
            all.extend(each);
            let places = &self.blocks.places[column];
            for it in all.iter_mut().filter(|_| !places.is_empty()) {
                it.bounds = places.iter().map(|place| it.bounds[*place]).collect();
            }
            return Ok(Column::Categories(all));
        }
        let pooled = self.blocks.pooled(column, self.figures)?;
        let of = |name: &str| self.bins.tensor(&format!("{name}.{column}"));
        let values = |name: &str| of(name).map_or(&[][..], |tensor| &tensor.values);
        let edges = (values("edges"), self.blocks.whole(column, self.figures));
        let spread = Spread::from_flat(values("counts"));
        let together = QUANTILES.map(|q| spread.quantile(q));
        let mut all = vec![Numbers::of(&pooled, self.total(), edges, together.as_flattened())];
        let each = values("quantiles").chunks_exact(3 * QUANTILES.len());
        let each = each.chain(std::iter::repeat(&[][..]));
        for ((block, rows), places) in clients.iter().zip(self.rows).zip(each) {
            all.push(Numbers::of(block, *rows, edges, places));
        }
        Ok(Column::Numbers(all))
    }

    /// The key and the heading of missing cells: an upper bound under a smallest group.
    fn missing(&self) -> [&'static str; 2] {
        match self.group {
            None => ["missing", "missing"],
            Some(_) => ["missing_at_most", "missing at most"],
        }
    }

    fn json(&self, (column, found): &(usize, Column)) -> Value {
        let object = |figures: Vec<Value>| {
            let mut each = figures.into_iter();
            let pooled = each.next();
            let clients: Map<String, Value> = self.names.iter().cloned().zip(each).collect();
            (pooled, clients)
        };
        let [missing, _] = self.missing();
        let (kind, (pooled, clients)) = match found {
            Column::Numbers(all) => {
                ("number", object(all.iter().map(|it| it.json(missing)).collect()))
            }
            Column::Categories(all) => {
                let levels = self.levels(*column);
                ("category", object(all.iter().map(|it| it.json(missing, &levels)).collect()))
            }
        };
        json!({ "column": self.columns[*column], "kind": kind, "pooled": pooled, "clients": clients })
    }

    /// The described columns in a sentence.
    fn answer(&self, all: &[(usize, Column)]) -> String {
        let named = |wanted: fn(&Column) -> bool| {
            let names =
                all.iter().filter(|(_, found)| wanted(found)).map(|(c, _)| &self.columns[*c]);
            let mut names: Vec<&str> = names.map(String::as_str).collect();
            let more = names.len().saturating_sub(NAMED_MAX);
            names.truncate(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            names.join(", ") + &more
        };
        let numbers = named(|found| matches!(found, Column::Numbers(_)));
        let categories = named(|found| matches!(found, Column::Categories(_)));
        let kinds = [("numbers", numbers), ("categories", categories)];
        let kinds = kinds.iter().filter(|(_, names)| !names.is_empty());
        let kinds: Vec<String> = kinds.map(|(kind, names)| format!("{kind}: {names}")).collect();
        format!("{} described; {}", counted(all.len(), "column"), kinds.join("; "))
    }

    fn section(&self, all: &[(usize, Column)]) -> Section {
        let alone = if self.names.is_empty() {
            " There are no tables of single clients: under masks the coordinator learns sums over clients only."
        } else {
            ""
        };
        let text = format!(
            "{} rows of {}. {}{alone}",
            exact(self.total()),
            counted(self.clients, "client"),
            "Quantiles lie within the stated distance: they follow from counts between edges."
        );
        let mut exhibits = vec![Exhibit::Text { text }];
        for pooled in [true, false] {
            let tables = [self.numbers(all, pooled), self.categories(all, pooled)];
            exhibits.extend(tables.into_iter().filter(|t| !t.rows.is_empty()).map(Exhibit::Table));
        }
        Section { title: "Description".into(), exhibits }
    }

    /// The pooled row of a column, or those of the clients.
    fn shown<'t, T>(
        &'t self,
        all: &'t [T],
        pooled: bool,
    ) -> impl Iterator<Item = (Option<&'t String>, &'t T)> {
        let clients = self.names.iter().map(Some).zip(all.iter().skip(1));
        let first = all.first().map(|first| (None, first)).into_iter();
        first.chain(clients).filter(move |(name, _)| name.is_none() == pooled)
    }

    fn numbers(&self, all: &[(usize, Column)], pooled: bool) -> Rows {
        let mut rows = Vec::new();
        for (column, found) in all {
            let Column::Numbers(found) = found else { continue };
            for (client, it) in self.shown(found, pooled) {
                let mut row = vec![self.columns[*column].clone()];
                row.extend(client.cloned());
                row.extend([exact(it.count), exact(it.missing), shown(it.mean), shown(it.sd)]);
                row.extend(it.quantiles.iter().map(|quantile| shown(quantile[0])));
                row.push(shown(it.error()));
                rows.push(row);
            }
        }
        let heads = ["count", self.missing()[1], "mean", "sd"];
        let more = ["5 %", "25 %", "median", "75 %", "95 %", "within"];
        table("Numbers", &[&heads[..], &more].concat(), rows, pooled)
    }

    fn categories(&self, all: &[(usize, Column)], pooled: bool) -> Rows {
        let mut rows = Vec::new();
        for (column, found) in all {
            let Column::Categories(found) = found else { continue };
            for (client, it) in self.shown(found, pooled) {
                for (level, [least, most]) in self.levels(*column).iter().zip(&it.bounds) {
                    let mut row = vec![self.columns[*column].clone()];
                    row.extend(client.cloned());
                    let (count, share) = if least == most {
                        (exact(*least), format!("{:.1}", 100.0 * least / it.count))
                    } else {
                        (format!("{} to {}", exact(*least), exact(*most)), String::new())
                    };
                    let share = if it.count > 0.0 { share } else { String::new() };
                    row.extend([level.clone(), count, share, exact(it.missing)]);
                    rows.push(row);
                }
            }
        }
        table("Categories", &["category", "count", "%", self.missing()[1]], rows, pooled)
    }

    /// The rules of a smallest group, if one applies.
    fn withheld(&self) -> Vec<String> {
        let Some(group) = self.group else { return Vec::new() };
        let few = match self.names {
            [] => "clients".into(),
            _ => counted(self.rows.iter().filter(|rows| **rows == 0.0).count(), "client"),
        };
        vec![format!(
            "min_group = {group}: {few} with fewer rows described nothing, merged categories are given as ranges, \
             means and deviations are rounded, quantiles in outermost bins have no bound, \
             and a column with 1 to {} missing cells at a client counts as one with {group}",
            group - 1
        )]
    }
}

fn table(what: &str, heads: &[&str], rows: Vec<Vec<String>>, pooled: bool) -> Rows {
    let of = if pooled { &["column"][..] } else { &["column", "client"] };
    let heads = of.iter().chain(heads).map(|head| (*head).to_owned()).collect();
    let title = if pooled { what.into() } else { format!("{what} by client") };
    Rows { title, heads, rows, collapsed: !pooled, ..Rows::default() }
}

impl Numbers {
    /// Quantiles of whole numbers are whole.
    fn of(figures: &[f64], rows: f64, (edges, whole): (&[f64], bool), places: &[f64]) -> Self {
        let [count, mean, squares, ..] = figures else { unreachable!("six figures") };
        let known = |x: f64, least: f64| if *count >= least { x } else { f64::NAN };
        let quantile = |places: &[f64]| match (*squares, places) {
            _ if *count == 0.0 => [f64::NAN; 3],
            (0.0, _) => [*mean; 3],
            (_, [at, below, above]) => {
                let [low, high] = [below, above].map(|place| value(edges, *place));
                let found = if *at > 0.0 { value(edges, *at) } else { f64::NAN };
                let next = found.ceil().min(high.floor()).max(low.floor() + 1.0);
                [if whole && found.is_finite() { next } else { found }, low, high]
            }
            _ => [f64::NAN; 3],
        };
        let places = places.chunks_exact(3).chain(std::iter::repeat(&[][..]));
        Self {
            count: *count,
            missing: rows - count,
            mean: known(*mean, 1.0),
            sd: known((squares / (count - 1.0)).sqrt(), 2.0),
            quantiles: places.take(QUANTILES.len()).map(quantile).collect(),
        }
    }

    /// The largest distance of a quantile from its estimate, of those with bounds.
    fn error(&self) -> f64 {
        let each = self.quantiles.iter();
        let bounded = each.filter(|[_, low, high]| (high - low).is_finite());
        let errors = bounded.map(|[at, low, high]| (at - low).max(high - at));
        errors.fold(f64::NAN, |most, error| if error.is_finite() { error.max(most) } else { most })
    }

    fn json(&self, missing: &str) -> Value {
        let quantile = |(q, [at, low, high]): (f64, &[f64; 3])| json!({ "q": q, "estimate": number(*at), "low": number(*low), "high": number(*high) });
        let quantiles: Vec<Value> =
            QUANTILES.into_iter().zip(&self.quantiles).map(quantile).collect();
        json!({
            "count": self.count as u64,
            missing: self.missing as u64,
            "mean": number(self.mean),
            "sd": number(self.sd),
            "quantiles": quantiles,
        })
    }
}

/// The value at a place among the edges, counted from 1.
fn value(edges: &[f64], place: f64) -> f64 {
    let at = place.floor() as usize;
    let Some(low) = at.checked_sub(1).and_then(|at| edges.get(at)) else { return f64::NAN };
    edges.get(at).map_or(*low, |high| low + (high - low) * place.fract())
}

impl Categories {
    fn of(figures: &[f64], rows: f64) -> Self {
        let count = figures[0];
        Self { count, missing: rows - count, bounds: Blocks::bounds(figures) }
    }

    fn pooled(clients: &[Self], rows: f64) -> Self {
        let count = clients.iter().map(|client| client.count).sum::<f64>();
        let levels = clients.first().map_or(0, |client| client.bounds.len());
        let sum = |level: usize, end: usize| clients.iter().map(|it| it.bounds[level][end]).sum();
        let bounds = (0..levels).map(|level| [sum(level, 0), sum(level, 1)]).collect();
        Self { count, missing: rows - count, bounds }
    }

    fn json(&self, missing: &str, levels: &[String]) -> Value {
        let level = |(name, [least, most]): (&String, &[f64; 2])| {
            let count = (least == most).then_some(*least as u64);
            let bounds = json!([*least as u64, *most as u64]);
            json!({ "category": name, "count": count, "bounds": bounds })
        };
        let categories: Vec<Value> = levels.iter().zip(&self.bounds).map(level).collect();
        json!({
            "count": self.count as u64,
            missing: self.missing as u64,
            "categories": categories,
        })
    }
}

/// A figure with five digits; empty if it is unknown.
pub(super) fn shown(x: f64) -> String {
    if x.is_finite() { figure(x, 5) } else { String::new() }
}

/// A whole number.
pub(super) fn exact(n: f64) -> String {
    format!("{n:.0}")
}
