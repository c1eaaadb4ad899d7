//! Exhibits: the parts of a report that families fill and this module draws.

mod forest;
mod heat;
mod loess;
mod series;

use crate::curves::{self, Against};
use crate::figure::Figure;
use crate::format::escape;
use crate::group::Group;
use crate::plot::style::swatch;
use crate::plot::{AxisSpec, Histogram, LineChart, Scale, ScatterChart, Series};
use crate::sections::{part_name, points, section};
use crate::view::RunView;
use whimbrel_core::declare::{Exhibit, Lines, Rows, Section};

/// The sections of all runs.
pub(crate) fn sections(groups: &[Group]) -> String {
    drawn(groups, groups.iter().map(|group| group.shown().sections.clone()).collect())
}

/// The sections of all runs for the diagnostics.
pub(crate) fn diagnostics(groups: &[Group]) -> String {
    drawn(groups, groups.iter().map(|group| group.shown().diagnostic_parts()).collect())
}

/// Sections in order of first appearance, one part per job.
fn drawn(groups: &[Group], parts: Vec<Vec<Section>>) -> String {
    let mut titles: Vec<&str> = Vec::new();
    for part in parts.iter().flatten() {
        if !titles.contains(&part.title.as_str()) {
            titles.push(&part.title);
        }
    }
    let of_title = |title: &str| {
        let mut html = String::new();
        for (group, parts) in groups.iter().zip(&parts) {
            for part in parts.iter().filter(|part| part.title == title) {
                let body = exhibits(group.shown(), &part.exhibits);
                if !body.is_empty() {
                    let name = part_name(groups, group);
                    html += &format!("<div class=\"part\">\n{name}{body}</div>\n");
                }
            }
        }
        section(&escape(title), html)
    };
    titles.into_iter().map(of_title).collect()
}

/// Small figures are side by side, everything else has its own line.
fn exhibits(run: &RunView, all: &[Exhibit]) -> String {
    let (mut html, mut beside) = (String::new(), String::new());
    for exhibit in all {
        match exhibit {
            Exhibit::Text { text } => {
                close(&mut html, &mut beside);
                html += &format!("<p class=\"verdict\">{}</p>\n", escape(text));
            }
            // Labels without counts are terms, not places on an axis.
            Exhibit::Series(shown) if shown.counted.is_empty() => {
                close(&mut html, &mut beside);
                html += &forest::figure(shown);
            }
            Exhibit::Series(shown) => {
                close(&mut html, &mut beside);
                html += &series::figure(shown);
            }
            Exhibit::Table(rows) if rows.swatches => beside += &table(rows),
            Exhibit::Table(rows) => {
                close(&mut html, &mut beside);
                html += &table(rows);
            }
            Exhibit::Entries { key, order } => beside += &entries(run, key, order),
            Exhibit::Lines(lines) => beside += &line_figure(lines),
            Exhibit::Histogram { title, axis, counted, values } => {
                beside += &histogram(title, axis, counted, values.clone(), 0);
            }
            Exhibit::Heat(maps) => beside += &heat::figures(maps),
            Exhibit::Scatter(scatter) => {
                let svg = ScatterChart(scatter).svg();
                beside += &figure(&scatter.title, &scatter.caption, &svg);
            }
        }
    }
    close(&mut html, &mut beside);
    html
}

/// Ends a row of figures.
fn close(html: &mut String, beside: &mut String) {
    if !beside.is_empty() {
        *html += &format!("<div class=\"charts\">\n{beside}</div>\n");
        beside.clear();
    }
}

pub(crate) fn figure(title: &str, caption: &str, svg: &str) -> String {
    let caption = match caption {
        "" => String::new(),
        words => format!("<p>{}</p>", escape(words)),
    };
    let title = escape(title);
    format!("<figure><figcaption><h3>{title}</h3>{caption}</figcaption>{svg}</figure>\n")
}

/// A histogram of values; `kind` is 0 for a solid, 1 for an outlined one.
pub(crate) fn histogram(
    title: &str,
    axis: &str,
    counted: &str,
    values: Vec<f64>,
    kind: usize,
) -> String {
    let (label, counted) = (axis.into(), counted.into());
    let chart = Histogram { title: title.into(), label, counted, values, kind };
    figure(title, "", &chart.svg())
}

/// A cell with its column's name, which narrow screens show beside it.
pub(crate) fn labelled(head: &str, text: &str) -> String {
    format!("<td data-label=\"{}\"><span>{text}</span></td>", escape(head))
}

/// The head of a table.
pub(crate) fn heads<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect()
}

/// A list-valued metric, one line per entry.
fn entries(run: &RunView, key: &str, order: &[usize]) -> String {
    let Some(measure) = run.measures.iter().find(|measure| measure.key == key) else {
        return String::new();
    };
    let lines = curves::entries(run, key, order);
    if lines.is_empty() {
        return String::new();
    }
    let known = |a: &Against| points(&lines).any(|point| point.x[*a as usize].is_finite());
    let against: Vec<Against> = Against::ALL.into_iter().filter(known).collect();
    let values = points(&lines).map(|point| point.on(Scale::Linear).y);
    let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    let figure = Figure {
        title: &measure.title,
        caption: &measure.caption,
        seeds: false,
        log: false,
        bounds: Some([0.0, if most > 0.6 { most.max(1.0) } else { most * 1.15 }]),
        reference: None,
        name_ends: true,
    };
    figure.html(&lines, &against)
}

fn line_figure(lines: &Lines) -> String {
    let within = |value: f64| lines.bounds.is_none_or(|[low, high]| (low..=high).contains(&value));
    let drawn = |points: &[[f64; 2]]| -> Vec<[f64; 2]> {
        points.iter().copied().filter(|[x, y]| within(*x) && within(*y)).collect()
    };
    // The second line is a reference, in a quiet style.
    let style = |place: usize| [0, 6].get(place).copied().unwrap_or(place);
    let series: Vec<Series> = lines
        .lines
        .iter()
        .enumerate()
        .map(|(place, (label, points))| Series {
            label: label.clone(),
            points: drawn(points),
            style: style(place),
            ..Series::default()
        })
        .collect();
    if series.first().is_none_or(|first| first.points.is_empty()) {
        return String::new();
    }
    let axis =
        |label: &str| AxisSpec { label: label.into(), scale: Scale::Linear, bounds: lines.bounds };
    let key: Vec<String> = series
        .iter()
        .map(|line| format!("{} {}", swatch(line.style), escape(&line.label)))
        .collect();
    let chart = LineChart::new(lines.title.as_str(), axis(&lines.axis), axis(""), series);
    format!(
        "<figure><figcaption><h3>{}</h3><p>{}. {}</p></figcaption>{}</figure>\n",
        escape(&lines.title),
        key.join(", "),
        escape(&lines.caption),
        chart.svg(),
    )
}

fn table(rows: &Rows) -> String {
    let heads = heads(rows.heads.iter().map(String::as_str));
    let line = |(place, row): (usize, &Vec<String>)| {
        let mark = if rows.swatches { swatch(place) } else { String::new() };
        let cell = |(column, text): (usize, &String)| {
            let text = escape(text).replace('\n', "<br>");
            match (column, rows.heads.get(column)) {
                // Narrow screens hide the head, without which a number says nothing.
                (0, Some(head)) if text.parse::<f64>().is_ok() => {
                    let head = escape(head);
                    format!("<th scope=\"row\" data-label=\"{head}\">{mark}{text}</th>")
                }
                (0, _) => format!("<th scope=\"row\">{mark}{text}</th>"),
                (_, head) => labelled(head.map_or("", String::as_str), &text),
            }
        };
        format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
    };
    let body: String = rows.rows.iter().enumerate().map(line).collect();
    let class = if rows.swatches { "components" } else { "contenders" };
    let table = format!(
        "<div class=\"scroll\"><table class=\"stacked {class}\"><thead><tr>{heads}</tr></thead><tbody>{body}\
         </tbody></table></div>"
    );
    match (rows.collapsed, rows.title.as_str()) {
        (true, title) => {
            format!("<details><summary>{}</summary>{table}</details>\n", escape(title))
        }
        (false, "") => format!("<div>{table}</div>\n"),
        (false, title) => {
            format!("<div class=\"titled\"><h3>{}</h3>{table}</div>\n", escape(title))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_side_by_side_between_lines() {
        let text = |text: &str| Exhibit::Text { text: text.into() };
        let histogram = || Exhibit::Histogram {
            title: "h".into(),
            axis: "x".into(),
            counted: "clients".into(),
            values: vec![1.0, 2.0],
        };
        let all = [text("<first>"), histogram(), histogram(), text("last")];
        let html = exhibits(&RunView::default(), &all);
        assert_eq!(html.matches("class=\"charts\"").count(), 1);
        assert_eq!(html.matches("<figure>").count(), 2);
        assert!(html.starts_with("<p class=\"verdict\">&lt;first&gt;</p>"));
        assert!(html.ends_with("<p class=\"verdict\">last</p>\n"));
    }

    #[test]
    fn folded_tables_open_on_demand() {
        let rows = Rows {
            title: "Candidates".into(),
            heads: vec!["rank".into(), "deviance".into()],
            rows: vec![vec!["1".into(), "2.5".into()]],
            collapsed: true,
            swatches: false,
        };
        let html = table(&rows);
        assert!(html.starts_with("<details><summary>Candidates</summary>"));
        let cells = "<th scope=\"row\" data-label=\"rank\">1</th>\
                     <td data-label=\"deviance\"><span>2.5</span></td>";
        assert!(html.contains(cells), "{html}");
    }
}
