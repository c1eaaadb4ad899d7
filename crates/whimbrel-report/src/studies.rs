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
    /// One line through points.
    Points {
        x: String,
        points: Vec<[f64; 2]>,
    },
}

/// A line of a figure: the runs of all seeds.
pub struct Line<'a> {
    pub label: String,
    pub runs: Vec<&'a RunView>,
}

/// The studies as one HTML file.
pub fn html(title: &str, about: &str, studies: &[StudyView]) -> String {
    let links = studies.iter().map(|one| {
        let marked = if one.rows.iter().any(|(_, missed)| *missed) { " (misses)" } else { "" };
        format!("<li><a href=\"#{}\">{}</a>{marked}</li>\n", escape(&one.id), escape(&one.id))
    });
    let links: String = links.collect();
    let body: String = studies.iter().map(section).collect();
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
        texts.iter().map(|text| format!("<p class=\"{class}\">{}</p>\n", escape(text))).collect()
    };
    let heads: String = study
        .columns
        .iter()
        .map(|head| format!("<th scope=\"col\">{}</th>", escape(head)))
        .collect();
    let row = |(cells, missed): &(Vec<String>, bool)| {
        let cells: String = cells
            .iter()
            .zip(&study.columns)
            .map(|(cell, head)| {
                format!("<td data-label=\"{}\">{}</td>", escape(head), escape(cell))
            })
            .collect();
        let class = if *missed { " class=\"missed\"" } else { "" };
        format!("<tr{class}>{cells}</tr>\n")
    };
    let rows: String = study.rows.iter().map(row).collect();
    let charts: String = study.charts.iter().map(Chart::html).collect();
    format!(
        "<section id=\"{}\">\n<div class=\"head\"><h2>{}</h2></div>\n{}<table class=\"runs\"><thead><tr>\
         {heads}</tr></thead>\n<tbody>{rows}</tbody></table>\n{}<div class=\"grid\">{charts}</div>\n</section>\n",
        escape(&study.id),
        escape(&study.title),
        paragraphs(&study.facts, "quiet"),
        paragraphs(&study.remarks, "small"),
    )
}

impl Chart<'_> {
    fn html(&self) -> String {
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        let (series, x) = match &self.axes {
            Axes::Rounds { key, lines } => over(lines, key, Against::Round, scale),
            Axes::Epochs { key, lines } => over(lines, key, Against::Epoch, scale),
            Axes::Bits { key, lines } => over(lines, key, Against::BitsBoth, scale),
            Axes::Points { x, points } => {
                let series = Series { points: points.clone(), ..Series::default() };
                (vec![series], AxisSpec::new(x.clone(), Scale::Linear))
            }
        };
        let named = series.iter().filter(|one| !one.label.is_empty());
        let legend: String = named
            .map(|one| format!("<span>{} {}</span> ", swatch(one.style), escape(&one.label)))
            .collect();
        let y = AxisSpec::new(self.y_label.clone(), scale);
        let chart = LineChart::new(self.title.clone(), x, y, series);
        format!(
            "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>\n{}\n<p class=\"small\">{legend}</p>\
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
            Axes::Points { x: "alpha".into(), points: vec![[0.5, 1.0], [1.0, 0.5]] },
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
            facts: vec!["whimbrel paper run".into()],
            columns: vec!["claim".into(), "holds".into()],
            rows: vec![(vec!["one".into(), "NO".into()], true)],
            remarks: Vec::new(),
            charts: charts.into(),
        };
        let html = html("Papers", "about", &[study]);
        assert_eq!(html.matches("<svg").count(), 3, "two charts and a swatch");
        for part in ["a &lt; b", "MCM &lt;1&gt;", "class=\"missed\"", "href=\"#mcm-figure-1\""] {
            assert!(html.contains(part), "{part}");
        }
    }
}
