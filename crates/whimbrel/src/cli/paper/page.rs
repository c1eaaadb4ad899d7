//! The pages of studies that have run: one HTML page for all, and pages of the documentation.

use super::judge::{Judged, Verdict};
use super::study::{self, Against, Claim, Panel, Scale, Study, Variant};
use super::{ALL, Done};
use std::fmt::Write as _;
use whimbrel_core::Result;
use whimbrel_report::studies::{Axes, Chart, Line, StudyView, html as page};

/// The page of all studies.
pub fn html(done: &[Done], scale: Scale) -> String {
    let views: Vec<StudyView> = done.iter().map(|one| view(one, scale)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let about = format!(
        "Published beside obtained, at {scale} scale, by whimbrel {version}. Quick scale checks orders and \
         signs, paper scale values; bounds come from the published values."
    );
    page("Figures and tables of the papers", &about, &views)
}

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
        remarks: disagreements(done).map(|(says, why)| format!("{says}: {why}")).collect(),
        charts: done.study.figures.iter().map(|panel| chart(panel, done)).collect(),
    }
}

fn command(name: &str, scale: Scale, data: &[String]) -> String {
    let data = if data.is_empty() { "" } else { " --data DIR" };
    format!("whimbrel paper run {name} --scale {scale}{data}")
}

/// Claims that do not hold, with their analyses and the ranges that these explain.
fn disagreements<'a>(done: &'a Done) -> impl Iterator<Item = (&'a str, String)> {
    let known = done.judged.iter().filter(|one| one.verdict == Verdict::Known);
    known.filter_map(|one| {
        let Claim { says, known_disagreement, known_range, .. } = one.claim;
        let (why, range) = (known_disagreement.as_ref()?, known_range.as_ref()?);
        Some((&**says, format!("{why} Explained range: {range}.")))
    })
}

/// A figure in the paper's layout: its axes, and its lines in the order of its legend.
fn chart<'a>(panel: &Panel, done: &'a Done) -> Chart<'a> {
    let variants = &done.study.variants;
    let named = |name: &String| variants.iter().find(|variant| variant.name == *name);
    let lines: Vec<&Variant> = match &panel.lines[..] {
        [] => variants.iter().collect(),
        lines => lines.iter().filter_map(named).collect(),
    };
    let job = |variant: &Variant| match &panel.setting {
        Some(setting) => format!("{}-{setting}", variant.name),
        None => variant.name.clone(),
    };
    let (title, y_label) = (panel.title.clone(), panel.y_label.clone());
    if panel.x == Against::Final {
        let point = |variant: &&Variant| {
            Some([variant.at?, done.results.last(&job(variant), &panel.y, panel.log)?])
        };
        let points = lines.iter().filter_map(point).collect();
        let axes = Axes::Points { x: panel.x_label.clone(), points };
        return Chart { title, axes, y_label, log: panel.log };
    }
    let line = |variant: &Variant| {
        let name = job(variant);
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
        for (says, why) in disagreements(one) {
            let _ = write!(page, "\n*{says}*: {why}\n");
        }
    }
    let missing = study::missing(paper)?;
    if !missing.is_empty() {
        page +=
            "\n## Exhibits without a command\n\n| exhibit | content | reason |\n|---|---|---|\n";
        for one in missing {
            let _ = writeln!(page, "| {} | {} | {} |", one.exhibit, one.title, one.why);
        }
    }
    Ok(page)
}
