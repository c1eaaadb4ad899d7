//! The pages of studies that have run: one HTML page for all, and pages of the documentation.

use super::judge::{Judged, Verdict};
use super::study::{self, Against, Claim, PAPERS, Panel, Scale, Study, Variant};
use super::{ALL, Done};
use std::fmt::Write as _;
use whimbrel_core::Result;
use whimbrel_report::studies::{Axes, Chart, Line, StudyView, TableView, html as page};

/// The page of all studies.
pub fn html(done: &[Done], scale: Scale) -> Result<String> {
    let views: Vec<StudyView> = done.iter().map(|one| view(one, scale)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let about = format!(
        "Published beside obtained, at {scale} scale, by whimbrel {version}. Quick scale checks orders and \
         signs, paper scale values; bounds come from the published values."
    );
    let missing = PAPERS.iter().map(|(paper, citation)| {
        let row = |one: study::Missing| vec![one.exhibit, one.title, one.why];
        Ok(TableView {
            title: format!("{citation}: exhibits without a command"),
            columns: MISSING.map(String::from).into(),
            rows: study::missing(paper)?.into_iter().map(row).collect(),
        })
    });
    let missing: Vec<TableView> = missing.collect::<Result<_>>()?;
    Ok(page("Figures and tables of the papers", &about, &views, &missing))
}

/// The columns of the exhibits without a study.
const MISSING: [&str; 3] = ["exhibit", "content", "reason"];

fn view<'a>(done: &'a Done<'a>, scale: Scale) -> StudyView<'a> {
    let Study { name, title, exhibits, place, note, .. } = done.study;
    let mut facts = vec![format!("{} ({place})", exhibits.join(", "))];
    facts.extend(note.clone());
    facts.push(command(name, scale, &done.study.data));
    StudyView {
        id: name.clone(),
        title: title.clone(),
        facts,
        columns: Judged::COLUMNS.map(String::from).to_vec(),
        rows: done.judged.iter().map(|one| (one.row(), one.verdict == Verdict::Misses)).collect(),
        remarks: disagreements(done),
        charts: done.study.figures.iter().map(|panel| chart(panel, done)).collect(),
    }
}

fn command(name: &str, scale: Scale, data: &[String]) -> String {
    let data = if data.is_empty() { "" } else { " --data DIR" };
    format!("whimbrel paper run {name} --scale {scale}{data}")
}

/// Paragraphs on claims that do not hold, or are not checked at this scale and do not hold at the other:
/// each analysis after its claims and the ranges that it explains.
fn disagreements(done: &Done) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for one in &done.judged {
        let Claim { says, known_disagreement, known_range, .. } = one.claim;
        if let (Verdict::Known | Verdict::Unchecked, Some(why), Some(range)) =
            (one.verdict, known_disagreement, known_range)
        {
            let claim = format!("*{says}* (explained: {range})");
            match found.iter_mut().find(|(other, _)| other == why) {
                Some((_, claims)) => claims.push(claim),
                None => found.push((why, vec![claim])),
            }
        }
    }
    found.into_iter().map(|(why, claims)| format!("{}: {why}", claims.join("; "))).collect()
}

/// A figure in the paper's layout: its axes, and its lines in the order of its legend.
fn chart<'a>(panel: &Panel, done: &'a Done) -> Chart<'a> {
    let variants = &done.study.variants;
    let named = |name: &String| variants.iter().find(|variant| variant.name == *name);
    let lines: Vec<&Variant> = match &panel.lines[..] {
        [] => variants.iter().collect(),
        lines => lines.iter().filter_map(named).collect(),
    };
    let job = |variant: &Variant, setting: Option<&String>| match setting {
        Some(setting) => format!("{}-{setting}", variant.name),
        None => variant.name.clone(),
    };
    let (title, y_label) = (panel.title.clone(), panel.y_label.clone());
    if panel.x == Against::Final {
        let point = |variant: &Variant, setting: Option<&String>, at: f64| {
            Some([at, done.results.last(&job(variant, setting), &panel.y, panel.log)?])
        };
        let lines = if panel.over.is_empty() {
            let one = |v: &&Variant| point(v, panel.setting.as_ref(), v.at?);
            vec![(String::new(), lines.iter().filter_map(one).collect())]
        } else {
            let line = |v: &&Variant| {
                let points = panel.over.iter().filter_map(|(s, at)| point(v, Some(s), *at));
                let mut points: Vec<[f64; 2]> = points.collect();
                points.sort_by(|a, b| a[0].total_cmp(&b[0]));
                (v.label().to_owned(), points)
            };
            lines.iter().map(line).collect()
        };
        let axes = Axes::Points { x: panel.x_label.clone(), lines };
        return Chart { title, axes, y_label, log: panel.log };
    }
    let line = |variant: &Variant| {
        let name = job(variant, panel.setting.as_ref());
        let runs = done.results.views.iter().filter(|view| view.name == name).collect();
        Line { label: variant.label().to_owned(), runs }
    };
    let lines = lines.into_iter().map(line).collect();
    let key = panel.y.clone();
    let axes = match panel.x {
        Against::Bits => Axes::Bits { key, lines },
        Against::Epochs => Axes::Epochs { key, lines },
        Against::Rounds | Against::Final => Axes::Rounds { key, lines },
    };
    Chart { title, axes, y_label, log: panel.log }
}

/// A page of the documentation: the exhibits of one paper.
pub fn markdown(paper: &str, citation: &str, done: &[Done], scale: Scale) -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        "# {citation}\n\nPublished beside obtained values, at {scale} scale, by whimbrel {version}. `whimbrel \
         paper run {ALL} --scale {scale} --data DIR --markdown docs/papers` writes this page. Quick scale has \
         fewer rounds, seeds or clients and checks orders and signs; paper scale has the paper's settings and \
         checks values. Bounds come from the published values and their spread.\n"
    );
    for one in done.iter().filter(|one| one.study.paper() == paper) {
        let Study { name, title, exhibits, place, note, data, .. } = one.study;
        let _ = write!(page, "\n## {}: {title}\n\n{place}.\n", exhibits.join(", "));
        if let Some(note) = note {
            let _ = write!(page, "\n{note}\n");
        }
        let _ = write!(page, "\n```sh\n{}\n```\n", command(name, scale, data));
        let _ = write!(page, "\n| {} |\n|---|---|---|---|---|\n", Judged::COLUMNS.join(" | "));
        for judged in &one.judged {
            let _ = writeln!(page, "| {} |", judged.row().join(" | "));
        }
        for text in disagreements(one) {
            let _ = write!(page, "\n{text}\n");
        }
    }
    let missing = study::missing(paper)?;
    if !missing.is_empty() {
        let heads = MISSING.join(" | ");
        let _ = write!(page, "\n## Exhibits without a command\n\n| {heads} |\n|---|---|---|\n");
        for one in missing {
            let _ = writeln!(page, "| {} | {} | {} |", one.exhibit, one.title, one.why);
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::paper::judge::Results;
    use serde_json::json;

    #[test]
    fn an_analysis_is_shown_once_for_all_its_claims_at_both_scales() {
        let study = study::study("fedmix-table-2").unwrap();
        let jobs = study.jobs(Scale::Paper).unwrap();
        let summary = json!({ "test_accuracy": 0.7, "test_accuracy_p10": 0.6 });
        for scale in [Scale::Quick, Scale::Paper] {
            let summaries = jobs.iter().map(|job| (job.name.clone(), summary.clone())).collect();
            let results = Results { summaries, views: Vec::new() };
            let judged = study.claims.iter().map(|claim| Judged::new(claim, scale, &results));
            let judged = judged.collect::<Result<_>>().unwrap();
            let done = Done { study: &study, judged, results, seconds: 0.0, failed: false };
            let text = disagreements(&done).join("\n");
            let local = "*Local, average test accuracy* (explained: 0.657 ± 0.1); *FedAvg, ";
            assert!(text.contains(local), "{text}");
            assert_eq!(text.matches("The published generator is broken").count(), 1, "{text}");
        }
    }
}
