//! Claims against results.

use super::study::{Bound, Claim, Scale};
use serde_json::{Map, Value, json};
use whimbrel_core::{Error, Result};
use whimbrel_report::RunView;
use whimbrel_report::format::number;

/// The ending of a run whose state grew beyond all bounds.
pub const DIVERGED: &str = "diverged";

/// The results of a study's runs.
#[derive(Default)]
pub struct Results {
    /// Summaries by job.
    pub summaries: Map<String, Value>,
    pub views: Vec<RunView>,
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    /// Does not hold, within the range that its analysis explains.
    Known,
    Misses,
    /// Not checked at this scale.
    Unchecked,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "yes",
            Self::Known => "no (known)",
            Self::Misses => "NO",
            Self::Unchecked => "-",
        }
    }
}

/// A claim and the value obtained.
pub struct Judged<'a> {
    pub claim: &'a Claim,
    bound: Option<Bound>,
    obtained: f64,
    pub verdict: Verdict,
}

impl<'a> Judged<'a> {
    pub fn new(claim: &'a Claim, scale: Scale, results: &Results) -> Result<Self> {
        let bound = claim.bound(scale);
        let obtained = results.figure(claim)?;
        let verdict = match (bound, claim.known_range) {
            (None, _) => Verdict::Unchecked,
            (Some(bound), _) if bound.holds(obtained) => Verdict::Holds,
            (Some(_), Some(range)) if range.holds(obtained) => Verdict::Known,
            (Some(_), _) => Verdict::Misses,
        };
        Ok(Self { claim, bound, obtained, verdict })
    }

    /// The headings of [`Self::row`].
    pub const COLUMNS: [&'static str; 5] = ["claim", "paper", "bound", "obtained", "holds"];

    pub fn row(&self) -> Vec<String> {
        let Claim { says, paper, .. } = self.claim;
        let bound = match (self.bound, self.claim.bound(Scale::Paper)) {
            (Some(bound), _) => bound.to_string(),
            (None, Some(bound)) => format!("paper scale: {bound}"),
            (None, None) => "-".into(),
        };
        let word = self.verdict.word().into();
        vec![says.clone(), paper.clone(), bound, number(self.obtained, 4), word]
    }

    pub fn value(&self) -> Value {
        json!({
            "claim": self.claim.says,
            "paper": self.claim.paper,
            "bound": self.bound.map(|bound| bound.to_string()),
            "obtained": self.obtained,
            "holds": self.verdict.word(),
            "known_disagreement": self.claim.known_disagreement,
            "known_range": self.claim.known_range.map(|range| range.to_string()),
        })
    }
}

impl Results {
    /// The figure of a claim; NaN, for which no claim holds, where a run lacks it.
    fn figure(&self, claim: &Claim) -> Result<f64> {
        if let (Some(text), Some((job, key))) = (&claim.text, claim.figure.split_once('.')) {
            let said = self.summary(job)?[key].as_array().into_iter().flatten();
            let has = said.filter_map(Value::as_str).any(|one| one.contains(&**text));
            return Ok(f64::from(u8::from(has)));
        }
        let found = self.mean(&claim.figure, claim.log10)?;
        let less = claim.less.as_deref().map(|less| self.mean(less, claim.log10)).transpose()?;
        Ok(less.map_or(found, |less| found - less))
    }

    fn summary(&self, job: &str) -> Result<&Value> {
        self.summaries.get(job).ok_or_else(|| {
            Error::internal(format!("a claim is about `{job}`, which its study does not run"))
        })
    }

    /// The mean over seeds, or the mean of logarithms.
    fn mean(&self, name: &str, log10: bool) -> Result<f64> {
        let (job, key) = name.split_once('.').unwrap_or((name, ""));
        let summary = self.summary(job)?;
        let seeds: Vec<f64> = match key.split_once('@') {
            Some((key, fraction)) => {
                let fraction = fraction.parse().map_err(|_| Error::internal(name.to_owned()))?;
                let views = self.views.iter().filter(|view| view.name == job);
                views.map(|view| during(view, key, fraction)).collect()
            }
            // A diverged run has no final value.
            None if summary["ending"] == DIVERGED => return Ok(f64::INFINITY),
            None => {
                let seeds = summary[key]["values"].as_array();
                let seeds = seeds.map_or(std::slice::from_ref(&summary[key]), Vec::as_slice);
                seeds.iter().map(|seed| seed.as_f64().unwrap_or(f64::NAN)).collect()
            }
        };
        let value = |seed: &f64| if log10 { seed.log10() } else { *seed };
        Ok(seeds.iter().map(value).sum::<f64>() / seeds.len() as f64)
    }

    /// The final value for a figure; `None` where a run lacks it.
    pub fn last(&self, job: &str, key: &str, log10: bool) -> Option<f64> {
        let mean = self.mean(&format!("{job}.{key}"), log10).ok()?;
        Some(if log10 { 10f64.powf(mean) } else { mean }).filter(|value| value.is_finite())
    }
}

/// The last value of a metric in the first rounds, up to that fraction of all.
fn during(view: &RunView, key: &str, fraction: f64) -> f64 {
    let round = |row: &Map<String, Value>| row.get("round").and_then(Value::as_f64);
    let until = fraction * view.last("round").unwrap_or(0.0);
    let early = view.rows.iter().rev().filter(|row| round(row).is_some_and(|at| at <= until));
    early.filter_map(|row| row.get(key)?.as_f64()).next().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(figure: &str, log10: bool, less: Option<&str>) -> Claim {
        Claim {
            says: String::new(),
            paper: String::new(),
            figure: figure.into(),
            log10,
            less: less.map(String::from),
            text: None,
            bound: Some(Bound::AtMost(1e300)),
            paper_bound: None,
            quick_bound: None,
            known_disagreement: None,
            known_range: None,
        }
    }

    #[test]
    fn figures_are_means_over_seeds_and_no_claim_holds_for_an_absent_one() {
        let summaries = json!({
            "one": { "loss": { "mean": 0.5, "sd": 0.5, "values": [0.01, 1.0] }, "best": 0.7 },
            "two": { "loss": 0.25, "notes": ["step 0.1", "compression two-way; H yes"] },
        });
        let rows = [(1, 8.0), (2, 4.0), (4, 1.0)];
        let rows = rows.map(|(k, x)| json!({ "round": k, "loss": x }).as_object().unwrap().clone());
        let view = RunView { name: "two".into(), rows: rows.into(), ..RunView::default() };
        let summaries = summaries.as_object().unwrap().clone();
        let results = Results { summaries, views: vec![view] };
        let value = |figure: &str, log10, less| results.figure(&claim(figure, log10, less));
        assert_eq!(value("one.loss", false, None).unwrap(), 0.505);
        assert_eq!(value("one.loss", true, None).unwrap(), -1.0);
        assert_eq!(value("one.loss", false, Some("two.loss")).unwrap(), 0.255);
        assert_eq!(value("two.loss@0.5", false, None).unwrap(), 4.0);
        assert!(value("three.loss", false, None).is_err());
        let says = |text: &str| {
            let text = Some(text.to_owned());
            results.figure(&Claim { text, ..claim("two.notes", false, None) }).unwrap()
        };
        assert_eq!([says("two-way; H yes"), says("two-way; H no")], [1.0, 0.0]);
        let verdict = |figure: &str, scale| {
            Judged::new(&claim(figure, false, None), scale, &results).unwrap().verdict
        };
        assert_eq!(verdict("one.loss", Scale::Quick), Verdict::Holds);
        assert_eq!(verdict("two.absent", Scale::Quick), Verdict::Misses);
    }

    #[test]
    fn bounds_differ_by_scale_and_a_known_disagreement_is_not_a_miss() {
        let summaries = json!({ "one": { "loss": 2.0 } }).as_object().unwrap().clone();
        let results = Results { summaries, views: Vec::new() };
        let mut claim = claim("one.loss", false, None);
        (claim.bound, claim.paper_bound) = (None, Some(Bound::Within(1.0, 0.1)));
        let verdict = |claim: &Claim, scale| Judged::new(claim, scale, &results).unwrap().verdict;
        assert_eq!(verdict(&claim, Scale::Quick), Verdict::Unchecked);
        let row = Judged::new(&claim, Scale::Quick, &results).unwrap().row();
        assert_eq!(row[2..], ["paper scale: 1.0 ± 0.1", "2", "-"]);
        assert_eq!(verdict(&claim, Scale::Paper), Verdict::Misses);
        claim.known_range = Some(Bound::Between(1.5, 1.9));
        assert_eq!(verdict(&claim, Scale::Paper), Verdict::Misses);
        claim.known_range = Some(Bound::Between(1.5, 2.5));
        assert_eq!(verdict(&claim, Scale::Paper), Verdict::Known);
        claim.quick_bound = Some(Bound::AtLeast(1.5));
        assert_eq!(verdict(&claim, Scale::Quick), Verdict::Holds);
    }
}
