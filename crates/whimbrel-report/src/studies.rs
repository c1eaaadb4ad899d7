//! The page of several studies: claims as tables, and figures in a paper's layout.

use crate::curves::{self, Against};
use crate::format::escape;
use crate::group::Group;
use crate::plot::style::{palette_css, swatch};
use crate::plot::{AxisSpec, LineChart, Scale, Series};
use crate::view::RunView;

/// One study.
pub struct StudyView<'a> {
    /// The anchor in the page.
    pub id: String,
    pub title: String,
    /// Paragraphs above the table.
    pub facts: Vec<String>,
    pub columns: Vec<String>,
    /// The cells of each row, and whether it is marked as a miss.
    pub rows: Vec<(Vec<String>, bool)>,
    /// Paragraphs below the table.
    pub remarks: Vec<String>,
    pub charts: Vec<Chart<'a>>,
}

/// A table below the studies.
pub struct TableView {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// A figure of a study.
pub struct Chart<'a> {
    pub title: String,
    pub axes: Axes<'a>,
    pub y_label: String,
    /// Whether the vertical axis is logarithmic.
    pub log: bool,
}

/// The content of a figure, by its horizontal axis.
pub enum Axes<'a> {
    Rounds {
        key: String,
        lines: Vec<Line<'a>>,
    },
    Epochs {
        key: String,
        lines: Vec<Line<'a>>,
    },
    /// Bits both ways.
    Bits {
        key: String,
        lines: Vec<Line<'a>>,
    },
    /// Lines through points, with their labels.
    Points {
        x: String,
        lines: Vec<(String, Vec<[f64; 2]>)>,
    },
}

/// A line of a figure: the runs of all seeds.
pub struct Line<'a> {
    pub label: String,
    pub runs: Vec<&'a RunView>,
}

/// The studies as one HTML file.
pub fn html(title: &str, about: &str, studies: &[StudyView], below: &[TableView]) -> String {
    let links = studies.iter().map(|one| {
        let marked = if one.rows.iter().any(|(_, missed)| *missed) { " (misses)" } else { "" };
        format!("<li><a href=\"#{}\">{}</a>{marked}</li>\n", escape(&one.id), escape(&one.id))
    });
    let links: String = links.collect();
    let tables = below.iter().map(|one| {
        let rows: Vec<_> = one.rows.iter().map(|row| (row.clone(), false)).collect();
        let (title, table) = (escape(&one.title), table("settings", &one.columns, &rows));
        format!("<section>\n<div class=\"head\"><h2>{title}</h2></div>\n{table}</section>\n")
    });
    let body: String = studies.iter().map(section).chain(tables).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main class=\"wrap\">\n\
         <header>\n<h1>{title}</h1>\n<p class=\"quiet\">{}</p>\n</header>\n<ul>\n{links}</ul>\n{body}\
         </main>\n</body>\n</html>\n",
        palette_css(),
        include_str!("style.css"),
        escape(about),
        title = escape(title),
    )
}

fn section(study: &StudyView) -> String {
    let paragraphs = |texts: &[String], class: &str| -> String {
        texts.iter().map(|text| format!("<p class=\"{class}\">{}</p>\n", inline(text))).collect()
    };
    let charts: String = study.charts.iter().map(Chart::html).collect();
    format!(
        "<section id=\"{}\">\n<div class=\"head\"><h2>{}</h2></div>\n{}{}{}<div class=\"charts titled\">{charts}</div>\n\
         </section>\n",
        escape(&study.id),
        escape(&study.title),
        paragraphs(&study.facts, "quiet"),
        table("runs", &study.columns, &study.rows),
        paragraphs(&study.remarks, "small"),
    )
}

fn table(class: &str, columns: &[String], rows: &[(Vec<String>, bool)]) -> String {
    let heads = columns.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head)));
    let heads: String = heads.collect();
    let row = |(cells, missed): &(Vec<String>, bool)| {
        let cells = cells.iter().zip(columns).map(|(cell, head)| {
            format!("<td data-label=\"{}\">{}</td>", escape(head), inline(cell))
        });
        let cells: String = cells.collect();
        let class = if *missed { " class=\"missed\"" } else { "" };
        format!("<tr{class}>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<table class=\"{class}\"><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table>\n"
    )
}

/// Markdown's code and emphasis as HTML: every second piece between backticks, and outside of these
/// between paired asterisks.
fn inline(text: &str) -> String {
    let tagged = |pieces: &[String], tag: &str| -> String {
        let tag = |(at, piece): (usize, &String)| match at % 2 {
            1 => format!("<{tag}>{piece}</{tag}>"),
            _ => piece.clone(),
        };
        pieces.iter().enumerate().map(tag).collect()
    };
    let emphasis = |text: &str| {
        let pieces: Vec<String> = text.split('*').map(str::to_owned).collect();
        if pieces.len() % 2 == 1 { tagged(&pieces, "em") } else { text.to_owned() }
    };
    let text = escape(text);
    let pieces = text.split('`').enumerate();
    let pieces = pieces.map(|(at, piece)| if at % 2 == 1 { piece.into() } else { emphasis(piece) });
    tagged(&pieces.collect::<Vec<_>>(), "code")
}

impl Chart<'_> {
    fn html(&self) -> String {
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        let (series, x) = match &self.axes {
            Axes::Rounds { key, lines } => over(lines, key, Against::Round, scale),
            Axes::Epochs { key, lines } => over(lines, key, Against::Epoch, scale),
            Axes::Bits { key, lines } => over(lines, key, Against::BitsBoth, scale),
            Axes::Points { x, lines } => {
                let line = |(style, (label, points)): (usize, &(String, Vec<[f64; 2]>))| Series {
                    label: label.clone(),
                    style,
                    points: points.clone(),
                    ..Series::default()
                };
                let series = lines.iter().enumerate().map(line).collect();
                (series, AxisSpec::new(x.clone(), Scale::Linear))
            }
        };
        if series.iter().all(|one| one.points.is_empty()) {
            return String::new();
        }
        let named = series.iter().filter(|one| !one.label.is_empty());
        let item = |one: &Series| format!("<li>{}{}</li>", swatch(one.style), escape(&one.label));
        let legend: String = named.map(item).collect();
        let y = AxisSpec::new(self.y_label.clone(), scale);
        let chart = LineChart::new(self.title.clone(), x, y, series);
        format!(
            "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>\n{}\n<ul class=\"legend\">{legend}</ul>\
             </figure>\n",
            escape(&self.title),
            escape(&self.y_label),
            chart.svg()
        )
    }
}

/// Lines of a metric, means over seeds with a band of one standard deviation.
fn over(lines: &[Line], key: &str, against: Against, scale: Scale) -> (Vec<Series>, AxisSpec) {
    let groups: Vec<Group> = lines
        .iter()
        .filter(|line| !line.runs.is_empty())
        .map(|line| Group { label: line.label.clone(), runs: line.runs.clone() })
        .collect();
    curves::series(&curves::of_key(&groups, key, scale), against, scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_has_every_table_line_and_legend_and_escapes_text() {
        let rows = [(0, 1.0), (10, 0.1), (20, 0.01)];
        let rows = rows.map(|(k, y)| json!({ "round": k, "loss": y }).as_object().unwrap().clone());
        let run = RunView { name: "mcm".into(), rows: rows.into(), ..RunView::default() };
        let lines = || vec![Line { label: "MCM <1>".into(), runs: vec![&run] }];
        let axes = [
            Axes::Rounds { key: "loss".into(), lines: lines() },
            Axes::Points {
                x: "alpha".into(),
                lines: vec![(String::new(), vec![[0.5, 1.0], [1.0, 0.5]])],
            },
            Axes::Rounds { key: "loss".into(), lines: Vec::new() },
        ];
        let charts = axes.map(|axes| Chart {
            title: "Figure".into(),
            axes,
            y_label: "loss".into(),
            log: true,
        });
        let study = StudyView {
            id: "mcm-figure-1".into(),
            title: "a < b".into(),
            facts: vec!["section 5, *Setup*: `run --scale *`, F* < 1".into()],
            columns: vec!["claim".into(), "holds".into()],
            rows: vec![(vec!["one".into(), "NO".into()], true)],
            remarks: Vec::new(),
            charts: charts.into(),
        };
        let below = TableView {
            title: "Not run".into(),
            columns: vec!["exhibit".into()],
            rows: vec![vec!["Figure 9".into()]],
        };
        let html = html("Papers", "about", &[study], &[below]);
        assert_eq!(html.matches("<svg").count(), 3, "two charts and a swatch; none without lines");
        for part in [
            "a &lt; b",
            "MCM &lt;1&gt;",
            "class=\"missed\"",
            "href=\"#mcm-figure-1\"",
            "<em>Setup</em>: <code>run --scale *</code>, F* &lt; 1",
            "<div class=\"charts titled\">",
            "<td data-label=\"exhibit\">Figure 9</td>",
        ] {
            assert!(html.contains(part), "{part}");
        }
    }
}
