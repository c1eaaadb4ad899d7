//! The HTML page: one file, nothing loaded from elsewhere.

use crate::exhibits;
use crate::format::{capital, count, escape};
use crate::group::{Group, groups};
use crate::headline::{Column, Detail, answer, columns};
use crate::plot::style::{palette_css, swatch};
use crate::sections;
use crate::settings;
use crate::view::RunView;
use whimbrel_core::text::counted;

/// The policy of the page: its own styles and script, pictures in the page, and nothing from outside.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      img-src data:; base-uri 'none'; form-action 'none'";

/// The report of one run, of several side by side, or of several seeds, as one HTML file.
///
/// Runs that share name, method and model and differ in seed are drawn as one line with a band. The
/// page works without scripts; all text from users is escaped.
pub fn html(title: &str, runs: &[RunView]) -> String {
    let groups = groups(runs);
    let course = [sections::course(&groups), sections::bits_to_reach(&groups)].concat();
    let details = exhibits::diagnostics(&groups) + &in_use(&groups) + &sections::numbers(&groups);
    // A comparison is about the curves; the report of one job is about its fit.
    let [curves, diagnostics] = match groups.len() {
        1 => [String::new(), folded("Diagnostics: curves over the rounds", &(course + &details))],
        _ => [course, folded("Diagnostics", &details)],
    };
    let body = [
        header(title, &groups),
        lead(runs),
        remarks(&groups),
        headline(&groups),
        settings::differing(&groups),
        curves,
        exhibits::sections(&groups),
        sections::clients(&groups),
        diagnostics,
        provenance(&groups),
        footer(runs),
    ]
    .concat();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"content-security-policy\" content=\"{POLICY}\">\n\
         <title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main class=\"wrap\">\n{body}\
         </main>\n<script>\n{}</script>\n</body>\n</html>\n",
        escape(title),
        palette_css(),
        include_str!("style.css"),
        include_str!("script.js"),
    )
}

/// The outcome of one job.
fn lead(runs: &[RunView]) -> String {
    match answer(runs) {
        text if text.is_empty() => text,
        // A number and its sign stay on one line.
        text => format!("<p class=\"answer\">{}</p>\n", escape(&text).replace(" %", "\u{a0}%")),
    }
}

/// Whether a run ended with its rounds alone, without a criterion that it missed.
fn is_planned(run: &RunView) -> bool {
    let rounds = counted(run.result("rounds").unwrap_or_default() as usize, "round");
    let rest = run.ending_detail.strip_prefix(&format!("after {rounds}"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", as many as the job asks for"))
}

/// Sections that open on demand.
fn folded(title: &str, sections: &str) -> String {
    if sections.is_empty() {
        return String::new();
    }
    format!("<details class=\"diagnostics\"><summary>{title}</summary>{sections}</details>\n")
}

fn header(title: &str, groups: &[Group]) -> String {
    // Seven short notes.
    let notes: String = (0..7)
        .map(|note| {
            let (x, y) = (6 * note, [6, 4, 2, 1, 2, 4, 6][note]);
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"3.4\" height=\"5\" rx=\"1.5\"/>")
        })
        .collect();
    let about = match groups {
        [] => "No runs.".to_string(),
        [group] => {
            let run = group.runs[0];
            let parts = [
                escape(&run.method),
                escape(&run.model),
                clients(run),
                format!("{} {}", seed_word(group), seeds(group)),
            ];
            let parts: Vec<String> = parts.into_iter().filter(|text| !text.is_empty()).collect();
            parts.join(" · ")
        }
        _ => format!("{} jobs side by side", groups.len()),
    };
    format!(
        "<header>\n<div class=\"brand\"><svg viewBox=\"0 0 40 12\" aria-hidden=\"true\">{notes}</svg>\
         whimbrel</div>\n<h1>{}</h1>\n<p class=\"quiet\">{about}</p>\n</header>\n",
        escape(title),
    )
}

/// Constants and settings in use.
fn in_use(groups: &[Group]) -> String {
    let list = |group: &Group| {
        let lines = group.shown().settings.iter().map(|line| format!("<li>{}</li>", escape(line)));
        match lines.collect::<String>() {
            text if text.is_empty() => text,
            text => {
                format!("{}<ul class=\"notes\">{text}</ul>\n", sections::part_name(groups, group))
            }
        }
    };
    sections::section("Settings in use", groups.iter().map(list).collect())
}

/// The most notes shown without unfolding.
const NOTES_OPEN: usize = 6;

/// Failures of runs, then notes.
fn remarks(groups: &[Group]) -> String {
    let named = |group: &Group, run: Option<&RunView>| {
        let seed = run.filter(|_| group.runs.len() > 1).map(|run| format!(", seed {}", run.seed));
        match (groups.len(), seed) {
            (1, None) => String::new(),
            (_, seed) => format!("{}{}: ", escape(&group.label), seed.unwrap_or_default()),
        }
    };
    let mut html = String::new();
    for group in groups {
        for run in &group.runs {
            let (class, role) = match run.ending.as_str() {
                // The answer, or the table, says so.
                "" | "converged" => continue,
                // A method without a criterion that has done its rounds.
                "stopped" if is_planned(run) => continue,
                "stopped" => ("banner", "status"),
                _ => ("banner error", "alert"),
            };
            html += &format!(
                "<div class=\"{class}\" role=\"{role}\">{}<strong>{}</strong>{} {}</div>\n",
                named(group, Some(run)),
                escape(&capital(&run.ending)),
                if run.ending == "stopped" { "" } else { ":" },
                escape(&run.ending_detail)
            );
        }
    }
    let (mut notes, mut count) = (String::new(), 0);
    for group in groups {
        let everywhere = |note: &String| group.runs.iter().all(|run| run.notes.contains(note));
        for (place, run) in group.runs.iter().enumerate() {
            for note in &run.notes {
                let shared = everywhere(note);
                // A note of all seeds is shown once.
                if shared && place > 0 {
                    continue;
                }
                let name = named(group, (!shared).then_some(run));
                notes += &format!("<li>{name}{}</li>\n", escape(note));
                count += 1;
            }
        }
    }
    let list = format!("<ul class=\"notes\">{notes}</ul>\n");
    match count {
        0 => {}
        1..=NOTES_OPEN => html += &list,
        // Many notes would push the figures off the first screen.
        _ => {
            html += &format!(
                "<details class=\"notes\"><summary>{count} notes</summary>{list}</details>\n"
            );
        }
    }
    html
}

fn headline(groups: &[Group]) -> String {
    let columns = columns(groups, Detail::Results);
    if let [group] = groups {
        let tile = |(name, text): (&str, &str)| {
            let (name, text) = (escape(&capital(name)), escape(text));
            format!("<div><dt>{name}</dt><dd>{text}</dd></div>")
        };
        // Figures of one run; the objective is shown if nothing else is.
        let own = if group.runs.len() == 1 { &group.runs[0].tiles[..] } else { &[] };
        let is_result = |c: &&Column| c.is_result && !c.is_objective;
        let has_results = !own.is_empty() || columns.iter().any(|c| is_result(&c));
        let shown = columns.iter().filter(|column| !(has_results && column.is_objective));
        let texts: Vec<(&str, String)> = shown.map(|c| (&*c.name, c.text(group))).collect();
        let own = own.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let all = own.chain(texts.iter().map(|(name, text)| (*name, text.as_str())));
        return format!("<dl class=\"tiles\">{}</dl>\n", all.map(tile).collect::<String>());
    }
    let heads = exhibits::heads(columns.iter().map(|column| column.name.as_str()));
    let best: Vec<Vec<usize>> = columns.iter().map(|column| column.best(groups)).collect();
    let rows: String = groups
        .iter()
        .enumerate()
        .map(|(style, group)| {
            let tag = match group.ending() {
                "" => String::new(),
                word => {
                    let word = escape(word);
                    format!("<span class=\"tag {word}\">{word}</span>")
                }
            };
            let cells: String = columns
                .iter()
                .zip(&best)
                .map(|(column, best)| {
                    let (name, text) = (escape(&column.name), escape(&column.text(group)));
                    let class = if best.contains(&style) { " class=\"best\"" } else { "" };
                    format!("<td data-label=\"{name}\"{class}>{text}</td>")
                })
                .collect();
            let name = escape(&group.label);
            format!("<tr><th scope=\"row\">{}{name}{tag}</th>{cells}</tr>\n", swatch(style))
        })
        .collect();
    let seeds = if groups.iter().any(|group| group.runs.len() > 1) {
        "<p class=\"quiet small\">± one standard deviation over seeds (of log10 after \"log10\"); counts and times \
         are means.</p>\n"
    } else {
        ""
    };
    format!(
        "<table class=\"runs\"><thead><tr><th scope=\"col\">run</th>{heads}</tr></thead>\n\
         <tbody>{rows}</tbody></table>\n{seeds}"
    )
}

/// The resolved job, versions, and the command to rerun it.
fn provenance(groups: &[Group]) -> String {
    let mut html = String::from("<section>\n<div class=\"head\"><h2>Reproduce</h2></div>\n");
    for group in groups {
        let run = group.runs[0];
        html += "<div class=\"part\">\n";
        if groups.len() > 1 {
            html += &format!("<h3>{}</h3>\n", escape(&group.label));
        }
        if !run.command.is_empty() {
            html += &format!("<pre>{}</pre>\n", escape(&run.command));
        }
        let facts = [
            ("method", escape(&run.method)),
            ("model", escape(&run.model)),
            (seed_word(group), seeds(group)),
            ("whimbrel", escape(&run.version)),
            ("instruction set", escape(&run.isa)),
            ("data", format!("<code>{}</code>", escape(&run.data_hash))),
        ];
        let facts: String = facts
            .iter()
            .filter(|(_, text)| !text.is_empty() && text != "<code></code>")
            .map(|(name, text)| format!("<dt>{name}</dt><dd>{text}</dd>"))
            .collect();
        html += &format!(
            "<details open><summary>Facts</summary><dl class=\"facts\">{facts}</dl></details>\n"
        );
        if !run.job_toml.is_empty() {
            let open = if groups.len() == 1 { " open" } else { "" };
            html += &format!(
                "<details{open}><summary>Resolved job</summary><pre>{}</pre></details>\n",
                escape(&run.job_toml)
            );
        }
        html += "</div>\n";
    }
    html + "</section>\n"
}

fn footer(runs: &[RunView]) -> String {
    let version = runs.iter().map(|run| run.version.as_str()).find(|text| !text.is_empty());
    format!(
        "<footer>Bits and bytes are those of the encoded messages. Written by whimbrel{}.</footer>\n",
        version.map_or(String::new(), |version| format!(" {}", escape(version))),
    )
}

fn seeds(group: &Group) -> String {
    let seeds: Vec<String> = group.runs.iter().map(|run| run.seed.to_string()).collect();
    seeds.join(", ")
}

fn seed_word(group: &Group) -> &'static str {
    if group.runs.len() > 1 { "seeds" } else { "seed" }
}

fn clients(run: &RunView) -> String {
    match run.clients.len() {
        0 => String::new(),
        1 => "1 client".into(),
        many => format!("{} clients", count(many as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_said_once() {
        let run = |name: &str, seed: u64, notes: &[&str]| RunView {
            name: name.into(),
            seed,
            notes: notes.iter().map(|note| note.to_string()).collect(),
            ..RunView::default()
        };
        let runs = [
            run("mcm", 1, &["preserved"]),
            run("mcm", 2, &["preserved", "stopped early"]),
            run("sgd", 1, &["exact"]),
        ];
        let html = remarks(&groups(&runs));
        let items: Vec<&str> =
            html.split("<li>").skip(1).map(|item| &item[..item.find("</li>").unwrap()]).collect();
        assert_eq!(items, ["mcm: preserved", "mcm, seed 2: stopped early", "sgd: exact"]);
        assert!(!html.contains("banner"));
        assert!(remarks(&groups(&runs[..1])).contains("<li>preserved</li>"));
    }
}
