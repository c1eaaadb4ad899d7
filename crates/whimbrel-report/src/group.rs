//! Groups of runs: the seeds of one job.

use crate::view::RunView;

/// One line of every plot.
pub(crate) struct Group<'a> {
    /// The name shown, unique in a report.
    pub label: String,
    /// The runs, one per seed.
    pub runs: Vec<&'a RunView>,
}

impl Group<'_> {
    /// The values of the seeds that have one.
    pub fn values(&self, value: impl Fn(&RunView) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter_map(|run| value(run)).collect()
    }

    /// The run whose model, clients and exhibits are shown: the delivered seed's, otherwise the first.
    pub fn shown(&self) -> &RunView {
        self.runs.iter().find(|run| run.delivered).unwrap_or(&self.runs[0])
    }

    /// The worst verdict of its runs.
    pub fn ending(&self) -> &str {
        let mut words = ["diverged", "degenerate", "stopped"].into_iter();
        let worst = words.find(|word| self.runs.iter().any(|run| run.ending == *word));
        worst.unwrap_or(&self.runs[0].ending)
    }
}

/// Groups in order of first appearance. A repeated seed starts a new group: the job was run twice.
pub(crate) fn groups(runs: &[RunView]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    let key = |run: &RunView| (run.name.clone(), run.method.clone(), run.model.clone());
    for run in runs {
        let same = |group: &&mut Group| {
            key(group.runs[0]) == key(run) && group.runs.iter().all(|other| other.seed != run.seed)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { label: name(run), runs: vec![run] }),
        }
    }
    let labels: Vec<String> = groups.iter().map(|group| group.label.clone()).collect();
    let shared = |label: &String| labels.iter().filter(|other| *other == label).count() > 1;
    for group in groups.iter_mut().filter(|group| shared(&group.label)) {
        group.label = format!("{} ({})", group.label, group.runs[0].method);
    }
    for index in 1..groups.len() {
        let taken = |label: &str| groups[..index].iter().any(|group| group.label == label);
        let label = &groups[index].label;
        let free = (2..).map(|place| format!("{label} #{place}")).find(|label| !taken(label));
        if taken(label) {
            groups[index].label = free.unwrap_or_default();
        }
    }
    groups
}

/// The mean and, for two or more values, the standard deviation (divided by n - 1).
pub(crate) fn mean_sd(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    match values.len() {
        0 => None,
        1 => Some((values[0], None)),
        _ => {
            let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
            Some((mean, Some((squares / (count - 1.0)).sqrt())))
        }
    }
}

/// The geometric mean of positive values and, for two or more, the standard deviation of log10.
pub(crate) fn geometric(values: &[f64]) -> Option<(f64, Option<f64>)> {
    if let [value] = values {
        return Some((*value, None));
    }
    let logs: Vec<f64> = values.iter().map(|value| value.log10()).collect();
    mean_sd(&logs).map(|(mean, sd)| (10f64.powf(mean), sd))
}

fn name(run: &RunView) -> String {
    let named = [&run.name, &run.method].into_iter().find(|text| !text.is_empty());
    named.map_or("run", String::as_str).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, method: &str, seed: u64) -> RunView {
        RunView { name: name.into(), method: method.into(), seed, ..RunView::default() }
    }

    #[test]
    fn seeds_join_and_names_stay_apart() {
        let runs = [
            run("wards", "fedem", 1),
            run("wards", "fedem", 2),
            run("wards", "dem", 1),
            run("wards", "fedem", 1),
            run("", "em", 1),
        ];
        let groups = groups(&runs);
        let shown: Vec<(&str, usize)> =
            groups.iter().map(|group| (group.label.as_str(), group.runs.len())).collect();
        let expected =
            [("wards (fedem)", 2), ("wards (dem)", 1), ("wards (fedem) #2", 1), ("em", 1)];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_delivered_seed_is_shown() {
        let mut runs = [run("wards", "fedem", 1), run("wards", "fedem", 2)];
        assert_eq!(groups(&runs)[0].shown().seed, 1);
        runs[1].delivered = true;
        assert_eq!(groups(&runs)[0].shown().seed, 2);
    }

    #[test]
    fn spread_needs_two_values() {
        assert_eq!(mean_sd(&[]), None);
        assert_eq!(mean_sd(&[3.0]), Some((3.0, None)));
        assert_eq!(mean_sd(&[1.0, 3.0]), Some((2.0, Some(2f64.sqrt()))));
    }
}
