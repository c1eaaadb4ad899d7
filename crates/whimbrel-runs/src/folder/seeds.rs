//! The summary of a job with several seeds.

use serde_json::{Map, Value, json};
use whimbrel_core::Measure;
use whimbrel_core::declare::OverSeeds;
use whimbrel_engine::metrics::number;

/// Counts of every run, whose means are plain numbers.
const COUNTS: [&str; 5] = ["rounds", "bits_up", "bits_down", "bits_eval", "seconds"];

/// The summary of a job with several seeds, from its runs' summaries in order. Declared results and the
/// family's `results` have a mean, a standard deviation and the values; declared counts have a mean.
pub fn aggregate(
    summaries: &[Map<String, Value>],
    measures: &[Measure],
    results: &[&str],
) -> Map<String, Value> {
    let Some(first) = summaries.first() else { return Map::new() };
    let numbers = |key: &str| -> Option<Vec<f64>> {
        summaries.iter().map(|summary| summary.get(key)?.as_f64()).collect()
    };
    let mut object = first.clone();
    let declared = || measures.iter().filter(|measure| measure.summary);
    let own = results.iter().copied();
    let results = declared().filter(|m| m.over_seeds != OverSeeds::Mean).map(|m| &*m.key);
    for key in results.chain(own).filter(|key| first.contains_key(*key)) {
        let value = numbers(key).map_or(Value::Null, |values| {
            let (mean, sd) = mean_sd(&values);
            let values: Value = values.iter().map(|x| number(*x)).collect();
            json!({ "mean": number(mean), "sd": number(sd), "values": values })
        });
        object.insert(key.into(), value);
    }
    let counts = declared().filter(|m| m.over_seeds == OverSeeds::Mean).map(|m| &*m.key);
    for key in COUNTS.into_iter().chain(counts) {
        if let Some(values) = numbers(key) {
            let (mean, _) = mean_sd(&values);
            let whole = mean.fract() == 0.0 && mean.abs() < 9e15 && key != "seconds";
            object.insert(key.into(), if whole { (mean as i64).into() } else { number(mean) });
        }
    }
    let of = |word: &&str| summaries.iter().find(|one| one.get("ending") == Some(&(*word).into()));
    if let Some(worst) = ["diverged", "degenerate", "stopped"].iter().find_map(of) {
        take_ending(&mut object, worst);
    }
    object.insert("seeds".into(), summaries.len().into());
    object
}

/// Gives a summary the ending of another.
pub fn take_ending(to: &mut Map<String, Value>, from: &Map<String, Value>) {
    let keys = ["ending", "ending_detail"].into_iter();
    to.extend(keys.filter_map(|key| Some((key.into(), from.get(key)?.clone()))));
}

/// The key of `summary.json` for the seed whose model a job delivers.
pub const DELIVERED: &str = "delivered_seed";

/// The seed of the lowest objective among runs that did not fail.
pub fn best_seed(summaries: &[Map<String, Value>]) -> Option<u64> {
    let has_failed = |summary: &Map<String, Value>| {
        let ending = summary.get("ending").and_then(Value::as_str).unwrap_or_default();
        ["diverged", "degenerate"].contains(&ending)
    };
    let sound = summaries.iter().filter(|summary| !has_failed(summary));
    let ranked =
        sound.filter_map(|s| Some((s.get("objective")?.as_f64()?, s.get("seed")?.as_u64()?)));
    ranked.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, seed)| seed)
}

/// The mean and the standard deviation (of a sample; zero for one value).
fn mean_sd(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_get_a_spread_and_counts_a_mean() {
        let run = |objective: f64, bits: u64| {
            let object = json!({
                "name": "a", "seed": 1, "objective": objective, "bits_up": bits, "f_star": 0.25,
                "ending": "converged",
            });
            object.as_object().unwrap().clone()
        };
        let all = aggregate(&[run(1.0, 10), run(3.0, 20)], &[Measure::objective("")], &[]);
        assert_eq!(all["objective"]["mean"], 2.0);
        assert_eq!(all["objective"]["sd"], 2f64.sqrt());
        assert_eq!(all["objective"]["values"], json!([1.0, 3.0]));
        assert_eq!(all["bits_up"], 15);
        assert_eq!(all["f_star"], 0.25);
        assert_eq!(all["seeds"], 2);
    }
}
