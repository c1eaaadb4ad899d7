//! `cargo xtask figures`: compares the figures of the documentation with the results of their jobs.
//!
//! A comment after a figure, in the same cell or word, names its source:
//! `2.86 Mbit<!-- jobs/heterogeneous/known-fedem-dithering.toml bits_up -->`. The second word is a
//! key of the run's `summary.json` (dotted within a table; over several seeds its mean, or with `KEY:log10` and
//! `KEY:log10-sd` mean and standard deviation of the logarithms), or `KEY@ROUND`, a line of its
//! `metrics.jsonl`, or `KEY@ROUND..:median` (`:min`, `:max`), the evaluations from that round on. `JOB KEY / JOB KEY` is
//! a quotient. A figure is right if the result, rounded to its digits, has the same text. The pages of `docs/papers` are
//! written by the program and compared as a whole.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Outcome, cargo};

const OPEN: &str = "<!-- jobs/";
const CLOSE: &str = " -->";

/// Runs the jobs named in the pages and compares; `--write` corrects the pages.
pub fn run(arguments: &[String]) -> Outcome {
    let write = match arguments {
        [] => false,
        [only] if only == "--write" => true,
        _ => return Err("the only option is `--write`".to_owned()),
    };
    let mut runs = Runs::default();
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in pages(&cargo::root().join("docs"))? {
        let shown = page.display().to_string();
        let text = fs::read_to_string(&page).map_err(|e| format!("{shown}: {e}"))?;
        let mut out = String::new();
        for (number, line) in text.lines().enumerate() {
            let mut line = line.to_owned();
            for figure in figures(&line)? {
                checked += 1;
                let mut value = runs.value(&figure.job, &figure.key)?;
                if let Some((job, key)) = &figure.over {
                    value /= runs.value(job, key)?;
                }
                let right = figure.written(value);
                if right != figure.text {
                    let place = format!("{shown}:{}", number + 1);
                    wrong.push(format!("{place}: {} is {right} ({})", figure.text, figure.job));
                    let marked = |text: &str| format!("{text}{}", figure.comment);
                    line = line.replacen(&marked(&figure.text), &marked(&right), 1);
                }
            }
            out.push_str(&line);
            out.push('\n');
        }
        if write && out != text {
            fs::write(&page, out).map_err(|e| format!("{shown}: {e}"))?;
        }
    }
    let papers = papers(write)?;
    checked += papers.len();
    wrong.extend(papers.into_iter().flatten());
    wrong.iter().for_each(|line| eprintln!("{line}"));
    match (wrong.len(), write) {
        (0, _) => eprintln!("xtask figures: {checked} figures agree with their jobs"),
        (n, true) => eprintln!("xtask figures: {n} of {checked} figures written"),
        (n, false) => return Err(format!("{n} of {checked} figures differ from their jobs")),
    }
    Ok(())
}

/// Runs all studies of papers at quick scale and compares the pages they write: for each page, the first
/// line that differs.
fn papers(write: bool) -> Result<Vec<Option<String>>, String> {
    let root = cargo::root();
    let folder = root.join("target/figures/papers");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let [out, made] = ["runs", "pages"].map(|part| folder.join(part).display().to_string());
    let program = ["run", "--quiet", "--locked", "--profile", "ci", "--package", "whimbrel", "--"];
    let check = ["--quiet", "paper", "check", "--data", "jobs/data", "--out", &out];
    cargo::run(&[&program[..], &check, &["--markdown", &made]].concat())?;
    let mut differ = Vec::new();
    for page in pages(Path::new(&made))? {
        let kept = root.join("docs/papers").join(page.file_name().unwrap_or_default());
        let read =
            |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
        let (new, old) = (read(&page)?, read(&kept).unwrap_or_default());
        let line =
            new.lines().zip(old.lines().chain(std::iter::repeat(""))).position(|(a, b)| a != b);
        let line = line.or((new != old).then(|| new.lines().count()));
        differ.push(line.map(|line| format!("{}:{}: out of date", kept.display(), line + 1)));
        if write {
            fs::write(&kept, new).map_err(|e| format!("{}: {e}", kept.display()))?;
        }
    }
    Ok(differ)
}

/// One figure of a line.
struct Figure {
    text: String,
    comment: String,
    job: String,
    key: String,
    /// Job and key of the divisor.
    over: Option<(String, String)>,
}

impl Figure {
    /// A value in the unit and digits of the text.
    fn written(&self, value: f64) -> String {
        let (number, unit) = self.text.split_once(' ').unwrap_or((&self.text, ""));
        let divisor = match unit {
            "Gbit" => 1e9,
            "Mbit" => 1e6,
            "kbit" => 1e3,
            _ => 1.0,
        };
        let mantissa = number.split('e').next().unwrap_or(number);
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let value = value / divisor;
        let text = if number.contains('e') {
            format!("{value:.decimals$e}")
        } else {
            format!("{value:.decimals$}")
        };
        let text = if number.contains(',') { with_commas(&text) } else { text };
        if unit.is_empty() { text } else { format!("{text} {unit}") }
    }
}

/// Separates thousands.
fn with_commas(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let digits: Vec<char> = whole.chars().collect();
    let mut text = String::new();
    for (i, digit) in digits.iter().enumerate() {
        if i > 0 && digits[i - 1].is_ascii_digit() && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(*digit);
    }
    text + rest
}

/// The figures of a line with their sources.
fn figures(line: &str) -> Result<Vec<Figure>, String> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = line[from..].find(OPEN).map(|at| from + at) {
        let end = line[at..].find(CLOSE).map(|end| at + end).ok_or("a comment has no end")?;
        let source = &line[at + "<!-- ".len()..end];
        let pair = |source: &str| {
            let (job, key) = source.split_once(' ').ok_or(format!("`{source}` names no key"))?;
            Ok::<_, String>((job.to_owned(), key.to_owned()))
        };
        let (source, over) = source.split_once(" / ").map_or((source, None), |(a, b)| (a, Some(b)));
        let ((job, key), over) = (pair(source)?, over.map(pair).transpose()?);
        // The number and its unit.
        let before = &line[from..at];
        let start = before.rfind(['|', '(']).map_or(0, |bar| bar + 1);
        let words: Vec<&str> = before[start..].split_whitespace().collect();
        let unit = words.last().is_some_and(|word| word.ends_with("bit"));
        let text = words[words.len().saturating_sub(1 + usize::from(unit))..].join(" ");
        found.push(Figure {
            text,
            comment: line[at..end + CLOSE.len()].to_owned(),
            job,
            key,
            over,
        });
        from = end + CLOSE.len();
    }
    Ok(found)
}

/// All pages below a folder, sorted.
fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries.flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(pages(&path)?),
            path if path.extension().is_some_and(|e| e == "md") => found.push(path),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// The runs so far, by job: the summary and the lines of the metrics.
#[derive(Default)]
struct Runs(BTreeMap<String, (Value, Vec<Value>)>);

impl Runs {
    fn value(&mut self, job: &str, key: &str) -> Result<f64, String> {
        if !self.0.contains_key(job) {
            self.0.insert(job.to_owned(), run_job(job)?);
        }
        let (summary, rows) = &self.0[job];
        read(summary, rows, key).ok_or_else(|| format!("{job}: its run has no `{key}`"))
    }
}

/// The value of a key in a run.
fn read(summary: &Value, rows: &[Value], key: &str) -> Option<f64> {
    let (place, summed) = key.split_once(':').map_or((key, None), |(k, by)| (k, Some(by)));
    let Some((name, round)) = place.split_once('@') else {
        let found = place.split('.').fold(summary, |found, key| &found[key]);
        return match summed {
            None => found.as_f64().or_else(|| found["mean"].as_f64()),
            Some(by) => {
                let values = found["values"].as_array()?.iter().filter_map(Value::as_f64);
                sum_up(values.map(f64::log10).collect(), by)
            }
        };
    };
    let (first, later) = round.strip_suffix("..").map_or((round, false), |first| (first, true));
    let first: u64 = first.parse().ok()?;
    let here = |row: &&Value| {
        row["round"].as_u64().is_some_and(|round| round == first || later && round > first)
    };
    let values: Vec<f64> = rows.iter().filter(here).filter_map(|row| row[name].as_f64()).collect();
    match summed {
        None => values.first().copied(),
        Some(by) => sum_up(values, by),
    }
}

/// A statistic of several numbers.
fn sum_up(mut values: Vec<f64>, by: &str) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    match by {
        "log10" => Some(mean),
        "log10-sd" => {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            Some((squares / (count - 1.0)).sqrt())
        }
        "min" => values.first().copied(),
        "max" => values.last().copied(),
        "median" => {
            let [low, high] = [(values.len() - 1) / 2, values.len() / 2].map(|at| values.get(at));
            Some((low? + high?) / 2.0)
        }
        _ => None,
    }
}

fn run_job(job: &str) -> Result<(Value, Vec<Value>), String> {
    let folder = cargo::root().join("target/figures").join(job.replace('/', "-"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let out = folder.display().to_string();
    let program = ["run", "--quiet", "--locked", "--profile", "ci", "--package", "whimbrel", "--"];
    let ran = cargo::run(&[&program[..], &["--quiet", "run", job, "--out", &out]].concat());
    let parse = |text: &str| serde_json::from_str(text).map_err(|e| format!("{out}: {e}"));
    // A degenerate fit has figures but a non-zero exit code.
    let summary: Value = match fs::read_to_string(folder.join("summary.json")) {
        Ok(text) => parse(&text)?,
        Err(e) => return Err(ran.err().unwrap_or_else(|| format!("{out}/summary.json: {e}"))),
    };
    // A run over several seeds has no metrics at the top.
    let rows = fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    let rows = rows.lines().map(parse).collect::<Result<_, _>>()?;
    Ok((summary, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ask_for_one_number() {
        let summary = serde_json::json!({
            "bits_up": 8.0, "theory": { "gamma": 0.5 }, "loss": { "mean": 5.5, "values": [0.1, 10.0] }
        });
        let rows: Vec<Value> = [(0, 9.0), (10, 1.0), (20, 4.0), (30, 2.0)]
            .map(|(round, h)| serde_json::json!({ "round": round, "h": h }))
            .into();
        let read = |key| read(&summary, &rows, key);
        assert_eq!(
            (read("bits_up"), read("loss"), read("h@20")),
            (Some(8.0), Some(5.5), Some(4.0))
        );
        assert_eq!(read("theory.gamma"), Some(0.5));
        assert_eq!((read("h@10..:median"), read("h@10..:max")), (Some(2.0), Some(4.0)));
        assert_eq!((read("loss:log10"), read("loss:log10-sd")), (Some(0.0), Some(2f64.sqrt())));
        assert_eq!((read("h@15"), read("gone"), read("h@0..:mode")), (None, None, None));
    }

    #[test]
    fn figures_are_found_and_written_as_they_are() {
        let line = "| known | 2.2e-7<!-- jobs/a.toml field_norm2@100 --> | 12,345.6 Mbit<!-- jobs/a.toml bits_up --> |";
        let found = figures(line).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].text.as_str(), found[0].key.as_str()), ("2.2e-7", "field_norm2@100"));
        assert_eq!(found[0].written(2.249e-7), "2.2e-7");
        assert_eq!(found[0].written(2.26e-7), "2.3e-7");
        assert_eq!(found[1].text, "12,345.6 Mbit");
        assert_eq!(found[1].written(1_234_567_890.0), "1,234.6 Mbit");
        assert!(figures("a plain line").unwrap().is_empty());
        let quotient = figures("| 4.5<!-- jobs/a.toml up / jobs/b.toml up --> |").unwrap();
        assert_eq!(quotient[0].over, Some(("jobs/b.toml".into(), "up".into())));
    }
}
