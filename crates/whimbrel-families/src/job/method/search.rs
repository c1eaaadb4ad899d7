//! `search` in `[method]`: a grid search on the validation rows.

use crate::job::Job;
use toml::{Table, Value as Toml};
use whimbrel_core::Error;
use whimbrel_job::define_keys;
use whimbrel_job::form::Form;
use whimbrel_job::matrix::read_numbers;
use whimbrel_job::writer::{inline, list, number};

/// Most combinations of a search.
const CANDIDATES_MAX: usize = 1000;

define_keys! {
    /// grid of values; each combination is run, and the best on the validation rows is used
    pub SEARCH = "search", SEARCHES, default(Search::default());
}

pub(crate) const SEARCHES: Form<Search> = Form::new(
    "a table of keys of [method] and lists of numbers",
    |v| {
        let mut keys = Vec::new();
        for (name, values) in v.entries()? {
            keys.push((name, read_numbers(values, f64::is_finite)?));
        }
        let count = keys.iter().map(|(_, values)| values.len()).product::<usize>();
        if count > CANDIDATES_MAX {
            let what = format!("{count} combinations are too many to try");
            return Err(v.fail(what, format!("at most {CANDIDATES_MAX}")));
        }
        Ok(Search(keys))
    },
    |Search(keys)| {
        let written = |values: &Vec<f64>| list(values.iter().map(|x| number(*x)));
        inline(keys.iter().map(|(key, values)| (key.as_str(), written(values))))
    },
);

/// Keys and the values of their grids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Search(pub Vec<(String, Vec<f64>)>);

impl Search {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All combinations; the last key varies fastest.
    fn combinations(&self) -> Vec<Vec<(&str, f64)>> {
        let mut all = vec![Vec::new()];
        for (key, values) in &self.0 {
            let longer = all.iter().flat_map(|chosen: &Vec<(&str, f64)>| {
                values.iter().map(|value| {
                    let mut chosen = chosen.clone();
                    chosen.push((key.as_str(), *value));
                    chosen
                })
            });
            all = longer.collect();
        }
        all
    }
}

impl Job {
    /// The job of each combination with its label (`step=0.1`).
    pub fn candidates(&self) -> crate::failure::Result<Vec<(String, Job)>> {
        let mut plain = self.clone();
        plain.method.search = Search::default();
        let broken = |e: toml::de::Error| Error::internal(format!("the job as written: {e}"));
        let table: Table = plain.to_toml().parse().map_err(broken)?;
        let mut jobs = Vec::new();
        for chosen in self.method.search.combinations() {
            let mut table = table.clone();
            let method = table.get_mut("method").and_then(Toml::as_table_mut);
            let method = method.ok_or_else(|| Error::internal("a job without [method]"))?;
            for (key, value) in &chosen {
                let whole = method.get(*key).is_some_and(Toml::is_integer);
                let value = if whole && value.fract() == 0.0 {
                    Toml::Integer(*value as i64)
                } else {
                    Toml::Float(*value)
                };
                method.insert((*key).into(), value);
            }
            let words: Vec<String> =
                chosen.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let words = words.join(",");
            let text = table.to_string();
            let job = Job::parse(&text, &format!("search {words}"))?;
            jobs.push((words, job));
        }
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_job_of_its_own() {
        let text = "[data]\nsource = \"synthetic-mixture\"\nclients = 9\n[model]\nkind = \"logistic\"\n\
            [method]\nkind = \"fedmix\"\nrounds = 3\nsearch = { step = [0.1, 2], components = [2, 3] }\n";
        let job = Job::parse(text, "job.toml").unwrap();
        assert_eq!(Job::parse(&job.to_toml(), "job.toml").unwrap(), job);
        let all = job.candidates().unwrap();
        let words: Vec<&str> = all.iter().map(|(words, _)| words.as_str()).collect();
        // A table's keys are read in order of their names.
        let expected = [
            "components=2,step=0.1",
            "components=2,step=2",
            "components=3,step=0.1",
            "components=3,step=2",
        ];
        assert_eq!(words, expected);
        assert!(all.iter().all(|(_, job)| job.method.search.is_empty()));
        assert_ne!(all[0].1, all[1].1);
        let said = Job::parse(&text.replace("components = [2, 3]", "componets = [2]"), "job.toml");
        assert!(said.unwrap().candidates().unwrap_err().to_string().contains("componets"));
    }
}
