//! The consent screen: the computation and its readers, the messages in words, then as a table.

use super::messages::{note, warning};
use super::{privacy, roster};
use whimbrel_codec::Codec;
use whimbrel_codec::channel::Uplink;
use whimbrel_core::Key;
use whimbrel_core::math::normal_quantile;
use whimbrel_core::method::Exposure;
use whimbrel_core::text::printable;
use whimbrel_engine::{Agreement, Consent};
use whimbrel_families::Offer;
use whimbrel_families::failure::Result;
use whimbrel_families::job::Job;
use whimbrel_families::plan::{Plan, StageDisclosures};
use whimbrel_families::registry::registry;
use whimbrel_report::format;

/// Columns of text on the screen.
const WIDTH: usize = 96;
/// The most columns that are listed by name.
const NAMES_MAX: usize = 12;

/// An offer as its user sees it.
pub struct Screen<'a> {
    pub offer: &'a Offer,
    pub plan: &'a Plan,
    pub limits: &'a Consent,
    pub has_roster: bool,
    /// Whether this client takes part in sums over some of the clients.
    pub partial: bool,
    /// The coordinator's address.
    pub address: &'a str,
}

impl Screen<'_> {
    /// Prints the screen for the client of this name.
    pub fn show(&self, name: &str) -> Result<()> {
        let job = self.offer.job()?;
        let (asks, address) = (printable(&job.name), printable(self.address));
        note(&format!("`{asks}` at {address} asks you to take part as `{name}`"));
        note("");
        note("What is computed, and for whom");
        for (key, value) in self.purpose(&job) {
            lines(&value, &format!("  {key:<9}"), "           ").iter().for_each(|l| note(l));
        }
        note("");
        note("What leaves this machine");
        for sentence in self.sentences(&job)? {
            lines(&sentence, "  - ", "    ").iter().for_each(|line| note(line));
        }
        note("");
        note("Messages that would leave this machine (times and bytes are upper limits)");
        messages_table(self.plan, self.limits)?.iter().for_each(|line| note(line));
        if self.rows_leave()? {
            warning("messages about single rows leave this machine");
        }
        note("The program sends nothing else, nothing longer and nothing more often.");
        Ok(())
    }

    /// The model, its data and its readers.
    fn purpose(&self, job: &Job) -> Vec<(&'static str, String)> {
        let schema = self.offer.schema();
        let kinds = registry().models(job.model);
        let doc = kinds.first().map_or(job.model, |(_, kind)| kind.word.doc);
        let described = job.fit.describe();
        let details = described.split_once(", ").map(|(_, details)| format!(" ({details})"));
        let details = details.unwrap_or_default();
        let target = schema.target.as_ref().map(|target| &target.column);
        let mut names: Vec<&String> =
            schema.columns.iter().filter(|name| Some(*name) != target).collect();
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        let names: Vec<String> = names.iter().map(|name| printable(name)).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let rows = match schema.rows.len() {
            0 => String::new(),
            count => format!(", for {} rows of a table", format::count(count as u64)),
        };
        let clients = match self.plan.clients() {
            1 => "your rows alone".to_owned(),
            n => format!("the rows of {} clients, yours among them", format::count(n as u64)),
        };
        let mut all = vec![("model", printable(&format!("{doc}{details}")))];
        all.extend(target.map(|target| ("target", printable(target))));
        all.push(("columns", format!("{}{more}{rows}", names.join(", "))));
        all.push(("from", clients));
        all.push(("result", "the coordinator and all clients receive the model".into()));
        all
    }

    /// The messages and their protection in words.
    fn sentences(&self, job: &Job) -> Result<Vec<String>> {
        let mut all = vec![
            if self.rows_leave()? {
                "Messages about single rows leave this machine, and numbers computed from many of them."
            } else {
                "Your rows stay here. Numbers that this machine computes from them are sent to the \
                 coordinator, which answers with the current model, round after round."
            }
            .to_owned(),
        ];
        all.extend(self.typical_size()?);
        if let Some(rows) = self.plan.batch_min() {
            all.push(format!(
                "Each message of a round is computed from {rows} of your rows, drawn at random."
            ));
        }
        all.extend(group_sentence(job));
        all.extend(self.mask_sentences(job));
        all.extend(privacy::sentence(job, self.plan));
        Ok(all)
    }

    /// Whether a message holds values of single rows.
    fn rows_leave(&self) -> Result<bool> {
        let stages = self.plan.disclosures()?;
        Ok(stages.iter().flat_map(|stage| &stage.disclosures).any(|d| d.exposure == Exposure::Rows))
    }

    /// The estimated size of a compressed message in a round of the fit.
    fn typical_size(&self) -> Result<Option<String>> {
        let agreements = self.plan.agreements(self.limits)?;
        let fit = agreements.last().filter(|fit| fit.rounds() > 0);
        let (Some(fit), Some(each)) = (fit, typical_bytes(self.plan.uplink())?) else {
            return Ok(None);
        };
        let each = each.min(fit.sizes.up);
        let is_bounded = fit.kinds.iter().all(|kind| kind.bounded);
        let all = bytes(each.saturating_mul(fit.rounds().into()));
        let all =
            if is_bounded { format!(", {all} in all rounds together") } else { String::new() };
        let each = bytes(each);
        Ok(Some(format!("A compressed message of a round has about {each}{all}.")))
    }

    /// Masked sums in words; none without them.
    fn mask_sentences(&self, job: &Job) -> Vec<String> {
        let Some(least) = job.privacy.least_masked(self.plan.clients()) else { return Vec::new() };
        let keys = if self.has_roster {
            "the clients are those of the roster that you gave"
        } else {
            "the coordinator hands out the clients' true keys (only --roster checks this)"
        };
        let over = if self.partial { "at least" } else { "all clients of the first sum, at least" };
        let mut all = vec![format!(
            "Messages marked \"in a sum\" are hidden by random numbers that cancel in the sum: the \
             coordinator can read only the sum over {over} {least} clients. This holds as long as {keys}, \
             and fewer than a third of the clients work together with it."
        )];
        if self.partial {
            all.push(format!(
                "From sums of several rounds over different clients, the parts of single clients can be \
                 computed: {}.",
                roster::RETURNS
            ));
        }
        all
    }
}

/// The finding of the attacks in `whimbrel-methods/tests/all/attacks.rs`.
fn reads_rows(masks: bool) -> String {
    let without = if masks { " without masks" } else { "" };
    format!(
        "You have to trust the coordinator: one that sends models made up for this purpose can read single \
         rows from the answers (in a test{without} all 200 rows of a client, in 23 rounds)"
    )
}

/// The rule of the smallest group in one sentence.
fn group_sentence(job: &Job) -> Option<String> {
    let masks = job.privacy.is_masked();
    let reads = reads_rows(masks);
    Some(match (job.privacy.groups(), job.fit.keeps_groups(job)) {
        // Noise is in the sums before anybody reads them.
        _ if job.privacy.epsilon.is_some() && masks => return None,
        _ if job.privacy.epsilon.is_some() => format!("{reads}."),
        (Some(group), _) if job.fit.takes_surrogates() => format!(
            "The messages are computed from surrogates of your rows. Whatever is asked, they tell the size, the \
             mean and the rounded covariance of each group of at least {group} similar rows, and the covariance \
             of all rows. A value that a whole group shares is not hidden."
        ),
        (Some(group), _) if job.fit.is_served_masked() => {
            let rest = if masks {
                "could still compute single rows from the sums over all clients, if it knows many of their values or a \
                 column of text has many different ones"
            } else {
                "can still compute single rows from such sums; `masks = true` in the job would show it sums over \
                 the rows of all clients only"
            };
            format!(
                "Each number is a sum over at least {group} of your rows, or is left out. A coordinator that \
                 chooses its questions {rest}."
            )
        }
        (Some(group), _) => format!(
            "Each number is a sum over at least {group} of your rows, or is left out. Somebody who chooses \
             the questions and compares the answers could still find out single rows; only random noise \
             (`epsilon` in the job) limits that."
        ),
        (None, Ok(())) if job.fit.takes_surrogates() => {
            format!("{reads}; `min_group` in the job would prevent this.")
        }
        (None, Ok(())) => format!("{reads}; `min_group` in the job would make it harder."),
        (None, Err(why)) => format!("{reads}; this method cannot prevent it: {why}."),
    })
}

/// The messages of each stage: how often, how long, and their content.
pub fn messages_table(plan: &Plan, limits: &Consent) -> Result<Vec<String>> {
    let mut rows = vec![["stage", "when", "times", "size", "content"].map(str::to_owned)];
    let mut unbounded = false;
    for (stage, agreed) in plan.disclosures()?.iter().zip(plan.agreements(limits)?) {
        unbounded |= agreed.kinds.iter().any(|kind| !kind.bounded);
        rows.extend(rows_of(stage, &agreed));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut table = Vec::new();
    for [stage, when, times, size, content] in &rows {
        let [a, b, c, d] = widths;
        let head = format!("  {stage:<a$}  {when:<b$}  {times:>c$}  {size:>d$}  ");
        table.extend(lines(content, &head, &" ".repeat(head.len())));
    }
    if unbounded {
        table.push(
            "  The job does not fix the number of rounds; --max-rounds sets the limit.".into(),
        );
    }
    Ok(table)
}

/// The rows of a stage: messages of one kind share their limits.
fn rows_of(stage: &StageDisclosures, agreed: &Agreement) -> Vec<[String; 5]> {
    let content = |message: &str| {
        let all = stage.disclosures.iter().filter(|d| d.message == message);
        let mut before = None;
        let said = all.map(|d| {
            let meaning = d.meaning.trim_start_matches("at evaluations: ");
            match (d.exposure, before.replace(d.exposure)) {
                (Exposure::Rows, _) => format!("SINGLE ROWS: {meaning}"),
                (Exposure::Sum(least), before) if before != Some(d.exposure) => {
                    format!("in a sum over at least {least} clients: {meaning}")
                }
                _ => meaning.to_owned(),
            }
        });
        said.collect::<Vec<_>>().join("; ")
    };
    let opening =
        "keys and signatures that let the coordinator read the sum; nothing from your rows";
    let all = [
        ("at the start", 1, agreed.sizes.summary, content("summary")),
        ("in rounds", agreed.rounds(), agreed.sizes.up, content("up")),
        ("at evaluations", agreed.all_evaluations(), agreed.sizes.answer, content("answer")),
        ("in between", agreed.continuations(), agreed.sizes.up, opening.to_owned()),
    ];
    let said = all.into_iter().filter(|(_, times, size, _)| *times > 0 && *size > 0);
    let row = |(when, times, size, content): (&str, u32, u64, String)| {
        [stage.stage.into(), when.into(), format::count(times.into()), bytes(size), content]
    };
    said.map(row).collect()
}

/// A text in lines of the screen's width, the first one after `head`, the others after `indent`.
fn lines(text: &str, head: &str, indent: &str) -> Vec<String> {
    let mut lines = vec![head.to_owned()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("a line was begun");
        let is_begun = last.len() > head.len().max(indent.len());
        if is_begun && last.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            let space = if is_begun { " " } else { "" };
            last.push_str(&format!("{space}{word}"));
        }
    }
    lines
}

fn bytes(count: u64) -> String {
    format::bytes(8.0 * count as f64)
}

/// Bytes of a compressed upload, an estimate: those of a Gaussian vector; `None` if its length is fixed.
fn typical_bytes(uplink: &Uplink) -> Result<Option<u64>> {
    let codec = uplink.codec();
    if codec.is_exact() || matches!(codec, Codec::Grid(_)) {
        return Ok(None);
    }
    // Quantiles in the order of a golden-ratio sequence: no run of them is sorted.
    let golden = |i: usize| ((i as f64 + 0.5) * 0.618_033_988_749_895).fract();
    let x: Vec<f64> = (0..uplink.dimension()).map(|i| normal_quantile(golden(i))).collect();
    Ok(Some(codec.encode(&x, Key::root(0))?.len() as u64))
}
