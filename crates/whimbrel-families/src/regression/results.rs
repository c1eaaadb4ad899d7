//! The table of coefficients, tests and figures of a fitted regression.

use super::RegressionFit;
use super::keys::{ERROR_WORDS, GlmFamily};
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::files::{figure, p_value};
use crate::job::DataSource;
use serde_json::{Map, Value, json};
use whimbrel_core::declare::{Exhibit, Lines, Rows, Section, Series, SeriesPoint};
use whimbrel_core::method::Artifact;
use whimbrel_engine::metrics::number;
use whimbrel_methods::newton::End;
use whimbrel_models::glm::inference::{Coefficient, Heterogeneity, Test, auc, table};
use whimbrel_models::glm::{Errors, Model};

/// Most baseline hazards drawn.
const LINES_MAX: usize = 12;
/// Most coefficients printed on the terminal.
const PRINTED_MAX: usize = 40;

impl FitReport for RegressionFit {
    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        Map::from_iter([("column_levels".into(), json!(data.facts.levels))])
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let Some(fitted) = ended.outcome.delivered.last() else { return Ok(Results::default()) };
        let facts = &ended.data.facts;
        let model = self.model(ended.job, &facts.columns, &facts.levels)?;
        let (names, student) = (model.labels(), self.is_student());
        let of = |name: &str| fitted.number(name).unwrap_or(f64::NAN);
        if fitted.tensor("covariance").is_none() {
            let warnings = vec!["the fit ended before its standard errors".into()];
            return Ok(Results { warnings, ..Results::default() });
        }
        let all = self.coefficients(&model, fitted)?;
        let tests = self.tests(&model, fitted);
        let mut summary = Map::new();
        let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
        put("coefficients", all.iter().map(|row| self.as_json(row)).collect());
        let target = match &ended.job.data.source {
            DataSource::Csv(csv) => csv.target.as_deref().unwrap_or_default(),
            _ => "",
        };
        put("answer", self.answer((target, &all), fitted, &names).into());
        put("errors", ERROR_WORDS.name(&self.inference.errors).into());
        let (log_likelihood, parameters) = (of("log_likelihood"), of("parameters"));
        put("log_likelihood", number(log_likelihood));
        put("aic", number(2.0 * parameters - 2.0 * log_likelihood));
        for key in ["null_log_likelihood", "deviance", "dispersion"] {
            put(key, number(of(key)));
        }
        put("rows_used", (of("rows") as u64).into());
        put("rows_missing", (of("dropped") as u64).into());
        put("df_residual", number(of("degrees")));
        if !tests.is_empty() {
            put("tests", tests.iter().map(test_json).collect());
        }
        let between = between_clients(&names, fitted);
        if !between.is_empty() {
            put("heterogeneity", between.iter().map(heterogeneity_json).collect());
        }
        let bins = fitted.tensor("bins").map(|bins| &bins.values[..]);
        if let Some(bins) = bins {
            let (auc, bound) = auc(bins);
            put("auc", number(auc));
            put("auc_bound", number(bound));
            put("calibration", calibration(bins).iter().map(|group| json!(group)).collect());
        }
        let mut exhibits = self.exhibits(&all, &tests, student, fitted);
        exhibits.extend(bins.map(calibrated));
        if !between.is_empty() {
            exhibits.push(heterogeneity_table(&between));
        }
        if self.keys.baseline {
            let curves = baselines(fitted, &ended.outcome.names);
            summary.insert("baselines".into(), curves.iter().map(baseline_json).collect());
            exhibits.push(hazards(target, curves));
        }
        let (mut notes, warnings) = verdict(fitted, &names);
        if !log_likelihood.is_finite() && of("dispersion").is_finite() {
            let why = "no log-likelihood: with these weights its constants differ by row, and clients do \
                       not send them";
            notes.push(why.into());
        }
        if self.inference.heterogeneity && between.is_empty() {
            let few = "heterogeneity: no coefficient is determined by two or more clients alone";
            notes.push(few.into());
        }
        let said = self.printed(&all, student, fitted, &exhibits);
        let sections = vec![Section { title: "Coefficients".into(), exhibits }];
        let known = Some(log_likelihood).filter(|x| x.is_finite());
        let tile = known.map(|x| ("Log-likelihood".into(), figure(x, 7)));
        Ok(Results {
            summary,
            notes,
            warnings,
            said,
            sections,
            tiles: tile.into_iter().collect(),
            ..Results::default()
        })
    }
}

impl RegressionFit {
    /// Whether tests use Student's distribution.
    fn is_student(&self) -> bool {
        let gaussian = self.keys.family == GlmFamily::Gaussian && !self.cox;
        gaussian && self.inference.errors == Errors::Model
    }

    /// The table of coefficients of a fitted model.
    pub fn coefficients(&self, model: &Model, fitted: &Artifact) -> Result<Vec<Coefficient>> {
        let p = model.parameters();
        let estimates = fitted.values("coefficients", p)?;
        let covariance = fitted.values("covariance", p * p)?;
        let degrees = self.is_student().then(|| fitted.number("degrees")).transpose()?;
        let mut all = table(&model.names(), &estimates, &covariance, degrees);
        let fixed = fitted.tensor("fixed").map_or(&[][..], |t| &t.values);
        let places = fixed.iter().map(|at| *at as usize);
        let absent = places.filter(|at| model.column(*at).is_some());
        absent.for_each(|at| all[at].estimate = f64::NAN);
        Ok(all)
    }

    /// The name of `exp(coefficient)`, if it has one.
    fn ratio(&self) -> Option<&'static str> {
        match self.keys.family {
            _ if self.cox => Some("hazard ratio"),
            GlmFamily::Binomial | GlmFamily::Multinomial => Some("odds ratio"),
            GlmFamily::Poisson | GlmFamily::NegativeBinomial => Some("rate ratio"),
            GlmFamily::Gaussian | GlmFamily::Gamma => None,
        }
    }

    fn as_json(&self, row: &Coefficient) -> Value {
        let mut object = json!({
            "term": row.term,
            "estimate": number(row.estimate),
            "se": number(row.se),
            "statistic": number(row.statistic),
            "p": number(row.p),
            "low": number(row.low),
            "high": number(row.high),
        });
        if let (Some(_), true) = (self.ratio(), row.term != "alpha") {
            object["ratio"] = number(row.estimate.exp());
        }
        object
    }

    /// The likelihood-ratio test of each term, if the fit made them.
    pub fn tests(&self, model: &Model, fitted: &Artifact) -> Vec<Test> {
        let Some(found) = fitted.tensor("tests") else { return Vec::new() };
        let pairs = model.terms().into_iter().zip(found.values.chunks_exact(2));
        pairs.map(|((name, _), pair)| Test::chi2(name, pair[0], pair[1])).collect()
    }

    /// Cells of the table, with headers.
    fn cells(&self, all: &[Coefficient], student: bool) -> Vec<Vec<String>> {
        let statistic = if student { "t" } else { "z" };
        let mut heads = vec!["term", "estimate", "se", statistic, "p", "2.5 %", "97.5 %"];
        heads.extend(self.ratio());
        let row = |row: &Coefficient| {
            let mut cells = vec![row.term.clone()];
            cells.extend([row.estimate, row.se, row.statistic].map(|x| figure(x, 5)));
            cells.push(p_value(row.p));
            cells.extend([row.low, row.high].map(|x| figure(x, 5)));
            if self.ratio().is_some() {
                let plain = row.term != "alpha";
                cells.push(if plain { figure(row.estimate.exp(), 5) } else { String::new() });
            }
            cells
        };
        std::iter::once(heads.into_iter().map(String::from).collect())
            .chain(all.iter().map(row))
            .collect()
    }

    /// The coefficients, then the titled tables of the report.
    fn printed(
        &self,
        all: &[Coefficient],
        student: bool,
        fitted: &Artifact,
        exhibits: &[Exhibit],
    ) -> Vec<String> {
        let shown = &all[..all.len().min(PRINTED_MAX)];
        let lines = aligned(&self.cells(shown, student));
        let more = match all.len() - shown.len() {
            0 => String::new(),
            n => format!("\n  and {n} more in summary.json"),
        };
        let coefficients = format!("{}\n{lines}{more}", self.headline(fitted));
        let titled = exhibits.iter().filter_map(|exhibit| match exhibit {
            Exhibit::Table(table) if !table.title.is_empty() => {
                let cells = [std::slice::from_ref(&table.heads), &table.rows[..]].concat();
                Some(format!("{}\n{}", table.title, aligned(&cells)))
            }
            _ => None,
        });
        [coefficients].into_iter().chain(titled).collect()
    }

    fn headline(&self, fitted: &Artifact) -> String {
        let of = |name: &str| fitted.number(name).unwrap_or(f64::NAN);
        let dropped = match of("dropped") {
            0.0 => String::new(),
            n => format!(" ({n} with missing or withheld cells left out)"),
        };
        let shown = |x: f64| (x != 1.0 && x.is_finite()).then(|| figure(x, 5));
        let dispersion = shown(of("dispersion")).map(|phi| format!(", dispersion {phi}"));
        let aic = 2.0 * of("parameters") - 2.0 * of("log_likelihood");
        let aic = aic.is_finite().then(|| format!(", AIC {}", figure(aic, 7)));
        format!(
            "{} rows of {} clients{dropped}{}{}{}; {} errors",
            of("rows"),
            of("clients"),
            likelihood(fitted, ", "),
            aic.unwrap_or_default(),
            dispersion.unwrap_or_default(),
            match self.inference.errors {
                Errors::Model => "model-based",
                Errors::Robust => "robust (HC0)",
                Errors::Clustered => "clustered",
            }
        )
    }

    fn exhibits(
        &self,
        all: &[Coefficient],
        tests: &[Test],
        student: bool,
        fitted: &Artifact,
    ) -> Vec<Exhibit> {
        let mut cells = self.cells(all, student);
        let heads = cells.remove(0);
        let mut exhibits = vec![
            Exhibit::Text { text: self.headline(fitted) },
            Exhibit::Table(Rows { heads, rows: cells, ..Rows::default() }),
        ];
        let slopes = all.iter().filter(|row| {
            row.se.is_finite() && !row.term.ends_with("Intercept") && row.term != "alpha"
        });
        let points: Vec<SeriesPoint> = slopes
            .map(|row| SeriesPoint {
                label: row.term.clone(),
                value: row.estimate,
                interval: Some([row.low, row.high]),
                note: format!(
                    "{} [{}, {}], p {}",
                    figure(row.estimate, 4),
                    figure(row.low, 4),
                    figure(row.high, 4),
                    p_value(row.p)
                ),
                count: 0,
            })
            .collect();
        if !points.is_empty() {
            exhibits.push(Exhibit::Series(Series {
                title: "Estimates".into(),
                caption: "Coefficients with 95 % intervals".into(),
                counted: String::new(),
                points,
            }));
        }
        if !tests.is_empty() {
            let row = |t: &Test| {
                vec![t.term.clone(), figure(t.statistic, 5), t.degrees.to_string(), p_value(t.p)]
            };
            exhibits.push(Exhibit::Table(Rows {
                title: "Likelihood-ratio tests".into(),
                heads: ["term", "chi-squared", "df", "p"].map(String::from).to_vec(),
                rows: tests.iter().map(row).collect(),
                ..Rows::default()
            }));
        }
        exhibits
    }

    /// The fit in a sentence: the target, the terms whose 95 % interval excludes zero, and the log-likelihood; or
    /// the terms with infinite estimates.
    fn answer(
        &self,
        (target, all): (&str, &[Coefficient]),
        fitted: &Artifact,
        names: &[String],
    ) -> String {
        if fitted.number("ended").unwrap_or_default() as u8 == End::Separated as u8 {
            let those = named(fitted, "separated", names).join(", ");
            return format!("Separation: the estimate of {those} is infinite");
        }
        let is_term = |row: &&Coefficient| {
            !row.term.ends_with("Intercept") && row.term != "alpha" && row.estimate.is_finite()
        };
        let terms = all.iter().filter(is_term);
        let clear: Vec<&str> =
            terms.clone().filter(|row| row.p < 0.05).map(|row| row.term.as_str()).collect();
        let those = match clear.len() {
            0 => String::new(),
            n if n > NAMED_MAX => format!(" ({} and so on)", clear[..NAMED_MAX].join(", ")),
            _ => format!(" ({})", clear.join(", ")),
        };
        let of = if target.is_empty() { String::new() } else { format!("Target {target}: ") };
        format!(
            "{of}95 % intervals of {} of {} terms exclude zero{those}{}",
            clear.len(),
            terms.count(),
            likelihood(fitted, "; ")
        )
    }
}

/// Notes and warnings about the end of the fit, beside its distance from the maximum.
fn verdict(fitted: &Artifact, names: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let of = |name: &str| fitted.number(name).unwrap_or_default();
    let named = |list: &str| named(fitted, list, names);
    if of("ended") as u8 == End::Separated as u8 {
        warnings.push(format!(
            "separation: the estimate of {} is infinite, and its standard error and test have no \
             meaning; merge levels, drop the term or set a ridge",
            named("separated").join(", ")
        ));
    } else if of("degrees") <= 0.0 || of("dispersion").is_nan() {
        warnings.push(format!(
            "the fit is exact, with {} rows and {} coefficients: there are no residuals to estimate \
             errors from",
            of("rows"),
            of("parameters")
        ));
    }
    let (alpha, levels): (Vec<&str>, _) =
        named("fixed").into_iter().partition(|name| *name == "alpha");
    if !alpha.is_empty() {
        notes.push(
            "alpha is zero: the counts are not overdispersed, and the fit is Poisson's".into(),
        );
    }
    if !levels.is_empty() {
        let levels = levels.join(", ");
        notes.push(format!("no coefficient, because no row has this level: {levels}"));
    }
    (notes, warnings)
}

/// The log-likelihood after a mark, if it is known.
fn likelihood(fitted: &Artifact, mark: &str) -> String {
    let known = fitted.number("log_likelihood").ok().filter(|x| x.is_finite());
    known.map_or(String::new(), |x| format!("{mark}log-likelihood {}", figure(x, 7)))
}

/// Most terms that the answer names.
const NAMED_MAX: usize = 5;

/// The parameters at the places of a list.
fn named<'a>(fitted: &Artifact, list: &str, names: &'a [String]) -> Vec<&'a str> {
    let places = fitted.tensor(list).map_or(&[][..], |t| &t.values);
    places.iter().filter_map(|at| names.get(*at as usize)).map(String::as_str).collect()
}

/// Heterogeneity of each coefficient that two or more clients determine alone.
fn between_clients(names: &[String], fitted: &Artifact) -> Vec<(String, Heterogeneity)> {
    let Some(found) = fitted.tensor("own_fits") else { return Vec::new() };
    let each = names.iter().zip(found.values.chunks_exact(4));
    each.filter_map(|(name, sums)| Some((name.clone(), Heterogeneity::of(sums)?))).collect()
}

fn heterogeneity_json((term, found): &(String, Heterogeneity)) -> Value {
    json!({
        "term": term,
        "q": number(found.q),
        "df": number(found.degrees),
        "p": number(found.p),
        "i2": number(found.i2),
    })
}

fn heterogeneity_table(all: &[(String, Heterogeneity)]) -> Exhibit {
    let row = |(term, it): &(String, Heterogeneity)| {
        vec![
            term.clone(),
            figure(it.q, 5),
            it.degrees.to_string(),
            p_value(it.p),
            format!("{:.3}", it.i2),
        ]
    };
    Exhibit::Table(Rows {
        title: "Heterogeneity between clients".into(),
        heads: ["term", "Cochran's Q", "df", "p", "I²"].map(String::from).to_vec(),
        rows: all.iter().map(row).collect(),
        ..Rows::default()
    })
}

/// The steps of a client's cumulative hazard: times and hazards.
type Hazard = (String, Vec<[f64; 2]>);

fn baselines(fitted: &Artifact, names: &[String]) -> Vec<Hazard> {
    let of = |(id, name): (usize, &String)| {
        let steps = &fitted.tensor(&format!("baseline.{id}"))?.values;
        Some((name.clone(), steps.as_chunks::<2>().0.to_vec()))
    };
    names.iter().enumerate().filter_map(of).collect()
}

fn baseline_json((client, steps): &Hazard) -> Value {
    let column = |at: usize| steps.iter().map(|step| number(step[at])).collect::<Vec<_>>();
    json!({ "client": client, "time": column(0), "cumulative_hazard": column(1) })
}

fn hazards(target: &str, curves: Vec<Hazard>) -> Exhibit {
    let drawn = |(name, steps): Hazard| {
        let starts = [[0.0, 0.0]].into_iter().chain(steps.iter().copied());
        let corners = starts.zip(&steps).flat_map(|(from, to)| [[to[0], from[1]], *to]);
        (name, [[0.0, 0.0]].into_iter().chain(corners).collect())
    };
    Exhibit::Lines(Lines {
        title: "Baseline hazards".into(),
        caption: "Cumulative hazard of each client's stratum at covariates of zero".into(),
        axis: target.into(),
        bounds: None,
        lines: curves.into_iter().take(LINES_MAX).map(drawn).collect(),
    })
}

/// Mean probability, share of events and rows of about ten groups of rows.
fn calibration(bins: &[f64]) -> Vec<[f64; 3]> {
    let total: f64 = bins.iter().step_by(3).sum();
    let (mut groups, mut sums) = (Vec::new(), [0.0; 3]);
    for (at, bin) in bins.chunks_exact(3).enumerate() {
        sums.iter_mut().zip(bin).for_each(|(sum, x)| *sum += x);
        if sums[0] >= 0.1 * total || (at + 1 == bins.len() / 3 && sums[0] > 0.0) {
            let [rows, events, p] = std::mem::take(&mut sums);
            groups.push([p / rows, events / rows, rows]);
        }
    }
    groups
}

fn calibrated(bins: &[f64]) -> Exhibit {
    let (auc, bound) = auc(bins);
    let groups = calibration(bins);
    let points = groups.iter().map(|group| [group[0], group[1]]).collect();
    Exhibit::Lines(Lines {
        title: "Calibration".into(),
        caption: format!(
            "Events by predicted probability; area under the ROC curve {auc:.3} ± {bound:.3}"
        ),
        axis: "predicted probability".into(),
        bounds: Some([0.0, 1.0]),
        lines: vec![("observed".into(), points), ("perfect".into(), vec![[0.0, 0.0], [1.0, 1.0]])],
    })
}

fn test_json(test: &Test) -> Value {
    json!({
        "term": test.term,
        "statistic": number(test.statistic),
        "df": number(test.degrees),
        "p": number(test.p),
    })
}

/// Columns of text; the first is aligned to the left.
pub(super) fn aligned(cells: &[Vec<String>]) -> String {
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(at, cell)| match at {
            0 => format!("  {cell:<0$}", width(0)),
            at => format!("  {cell:>0$}", width(at)),
        });
        cells.collect::<String>()
    };
    cells.iter().map(line).collect::<Vec<_>>().join("\n")
}
