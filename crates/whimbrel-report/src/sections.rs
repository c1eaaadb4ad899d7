//! The sections of the page: plots and tables.

use crate::bits_to_target;
use crate::curves::{self, Against, Curve, Point};
use crate::declared;
use crate::exhibits;
use crate::figure::Figure;
use crate::format::{
    MISSING, bit_unit, bits, byte_unit, bytes, count, duration, escape, measured, number, shorten,
};
use crate::group::Group;
use crate::plot::style::swatch;
use crate::plot::{Bars, Scale};
use crate::quantiles;
use crate::view::{self, ClientView, RunView};
use whimbrel_core::Measure;
use whimbrel_core::declare::{self, Role, Unit};

/// The switches and one figure per metric.
pub(crate) fn course(groups: &[Group]) -> String {
    let declared = declared::measures(groups);
    let metrics: Vec<(&Measure, Vec<Curve>)> = declared
        .iter()
        .filter(|measure| measure.curve && !matches!(measure.role, Role::Axis | Role::List))
        .map(|metric| (metric, curves::metric(groups, metric)))
        .filter(|(metric, curves)| worth_drawing(metric, curves))
        .collect();
    let panels = panels(groups, metrics);
    let metrics = &panels;
    if metrics.is_empty() {
        return "<section>\n<div class=\"head\"><h2>Progress over time</h2></div>\n<p \
                class=\"quiet\">No round was evaluated.</p>\n</section>\n"
            .into();
    }
    let known = |against: &Against| {
        let mut all = metrics.iter().flat_map(|panel| points(&panel.curves));
        all.any(|point| point.x[*against as usize].is_finite())
    };
    let against: Vec<Against> = Against::ALL.into_iter().filter(known).collect();
    let xs: Vec<(String, &str)> = against.iter().map(|a| (a.key().into(), a.words())).collect();
    // A figure without small values keeps its linear axis.
    let ys = [("log".to_string(), "auto"), ("linear".to_string(), "linear")];
    let mut html = format!(
        "<section>\n<div class=\"head\"><h2>Progress over time</h2>{}{}</div>\n",
        switch("x", "against", &xs),
        switch("y", "scale", &ys),
    );
    if groups.len() > 1 {
        let items = groups
            .iter()
            .enumerate()
            .map(|(style, group)| format!("<li>{}{}</li>", swatch(style), escape(&group.label)));
        html += &format!("<ul class=\"legend\">{}</ul>\n", items.collect::<String>());
    }
    if groups.iter().any(|group| group.runs.len() > 1) {
        html += "<p class=\"quiet small\">Lines are means over seeds, bands ± 1 standard deviation; on a \
                 log axis, geometric means ± 1 standard deviation of log10.</p>\n";
    }
    html += "<div class=\"charts\">\n";
    // Longer names would take a third of each plot; they are in the legend above.
    let short = groups.iter().all(|group| group.label.chars().count() <= 12);
    let name_ends = (2..=5).contains(&groups.len()) && short;
    let mut multiples = String::new();
    for (place, Panel { metric, title, curves }) in metrics.iter().enumerate() {
        let reference = groups.iter().find_map(|group| group.runs[0].reference_objective);
        let pooled = metric.over_clients.words();
        let parts = [&*metric.caption, &pooled];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let figure = Figure {
            title,
            caption: &parts.join("; "),
            seeds: groups.iter().any(|group| group.runs.len() > 1),
            log: metric.scale == declare::Scale::Log
                && points(curves).any(|point| !point.on(Scale::Log).y.is_nan()),
            bounds: None,
            reference: reference.filter(|_| metric.role == Role::Objective),
            name_ends,
        };
        html += &figure.html(curves, &against);
        if place == 0 && (MULTIPLES_MIN..=MULTIPLES_MAX).contains(&curves.len()) {
            multiples = figure.multiples(curves, &against);
        }
    }
    html + "</div>\n" + &multiples + "</section>\n"
}

/// The numbers of lines for which the first figure is also drawn line by line: fewer are readable in
/// one picture, more would fill the page.
const MULTIPLES_MIN: usize = 3;
const MULTIPLES_MAX: usize = 24;

/// One figure of the course.
struct Panel<'a> {
    metric: &'a Measure,
    title: String,
    curves: Vec<Curve>,
}

/// One panel per metric. The objective has one per kind of model, since objectives of different
/// models are not comparable; without a distance to the optimum on a log axis, a second panel shows
/// the second half of the rounds.
fn panels<'a>(groups: &[Group], metrics: Vec<(&'a Measure, Vec<Curve>)>) -> Vec<Panel<'a>> {
    let kind = |style: usize| groups.get(style).map_or("", |group| group.runs[0].model_kind());
    let mut kinds: Vec<&str> = (0..groups.len()).map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let on_log_axis = metrics.iter().any(|(metric, _)| metric.role == Role::Excess);
    let mut panels = Vec::new();
    for (metric, mut curves) in metrics {
        let title = metric.title.to_string();
        if metric.role != Role::Objective {
            panels.push(Panel { metric, title, curves });
            continue;
        }
        for model in &kinds {
            let (own, others): (Vec<Curve>, Vec<Curve>) =
                curves.into_iter().partition(|curve| kind(curve.style) == *model);
            curves = others;
            if own.is_empty() {
                continue;
            }
            let title = if kinds.len() > 1 { format!("{title}: {model}") } else { title.clone() };
            let zoom = (own.len() > 1 && !on_log_axis).then(|| curves::second_half(&own));
            panels.push(Panel { metric, title: title.clone(), curves: own });
            if let Some(zoom) = zoom.filter(|zoom| worth_drawing(metric, zoom)) {
                let title = format!("{title}, second half of the rounds");
                panels.push(Panel { metric, title, curves: zoom });
            }
        }
    }
    panels
}

/// Bits to reach given distances from the optimum.
pub(crate) fn bits_to_reach(groups: &[Group]) -> String {
    let Some(table) = bits_to_target::of_groups(groups, &bits_to_target::LEVELS) else {
        return String::new();
    };
    let mean = if groups.iter().any(|group| group.runs.len() > 1) {
        " (geometric mean over seeds)"
    } else {
        ""
    };
    let body = format!(
        "<p class=\"quiet small\">Bits up and down until the first evaluated round whose {}{mean} is \
         at or below the level; beside it, the ratio to the best run.</p>\n{}",
        escape(&table.quantity),
        table.html(groups.len() > 1),
    );
    section("Bits to reach", body)
}

/// Bits per client, and the clients themselves.
pub(crate) fn clients(groups: &[Group]) -> String {
    let mut html = quantiles::over_clients(groups);
    for group in groups.iter().filter(|group| !group.shown().clients.is_empty()) {
        html += "<div class=\"part\">\n";
        html += &part_name(groups, group);
        let own = own_figures(group.shown());
        let (unseen, clients): (Vec<&ClientView>, Vec<&ClientView>) =
            group.shown().clients.iter().partition(|client| group.shown().is_unseen(&client.name));
        // A wide table takes the full width.
        let fits = clients.len() <= BARS && own.len() <= 2;
        let beside = if fits { " class=\"beside\"" } else { "" };
        let traffic = Traffic::of(groups);
        let table = client_table(&clients, &own, Some(traffic));
        html += &format!("<div{beside}>{}{table}</div>\n", client_charts(&clients, traffic));
        html += &spread_over_clients(&clients, &own);
        if !unseen.is_empty() {
            html += "<h3>Clients that took no part in training</h3>\n";
            html += &client_table(&unseen, &own, None);
        }
        html += "</div>\n";
    }
    section("Clients", html)
}

/// The plotted numbers: some rounds of each run.
pub(crate) fn numbers(groups: &[Group]) -> String {
    const ROWS: usize = 24;
    let runs = groups.iter().flat_map(|group| group.runs.iter().map(move |run| (group, *run)));
    let mut html = String::new();
    for (group, run) in runs.filter(|(_, run)| !run.rows.is_empty()) {
        let shown: Vec<usize> = spread(run.rows.len(), ROWS).collect();
        let mut columns = number_columns(run);
        columns.retain(|column| {
            let values = run.rows.iter().filter_map(|row| view::number(row, &column.key));
            // Bits for evaluation are shown if there are any.
            values.into_iter().any(|value| column.key != "bits_eval" || value != 0.0)
        });
        let heads = exhibits::heads(columns.iter().map(|column| column.name.as_str()));
        let rows: String = shown
            .iter()
            .map(|&place| {
                let cell = |column: &NumberColumn| {
                    let value = view::number(&run.rows[place], &column.key);
                    format!("<td>{}</td>", value.map_or(MISSING.into(), &column.show))
                };
                format!("<tr>{}</tr>\n", columns.iter().map(cell).collect::<String>())
            })
            .collect();
        let seed =
            if group.runs.len() > 1 { format!(", seed {}", run.seed) } else { String::new() };
        let some = if shown.len() < run.rows.len() {
            format!("{} of {} evaluated rounds", shown.len(), count(run.rows.len() as u64))
        } else {
            format!("{} evaluated rounds", shown.len())
        };
        html += &format!(
            "<details><summary>{}{seed}: {some}</summary><div class=\"scroll\" tabindex=\"0\" \
             role=\"region\" aria-label=\"numbers of {}\"><table><thead><tr>{heads}</tr></thead>\
             <tbody>{rows}</tbody></table></div></details>\n",
            escape(&group.label),
            escape(&group.label),
        );
    }
    section("Numbers", html)
}

/// A column of the table of numbers.
struct NumberColumn {
    key: String,
    name: String,
    show: Box<dyn Fn(f64) -> String>,
}

impl NumberColumn {
    fn new(key: &str, name: &str, show: impl Fn(f64) -> String + 'static) -> Self {
        Self { key: key.into(), name: name.into(), show: Box::new(show) }
    }

    fn declared(measure: &Measure) -> Self {
        let (of, digits) = (measure.clone(), usize::from(measure.digits) + 1);
        Self::new(&measure.key, &measure.name, move |value| measured(&of, value, digits))
    }
}

/// The round, the run's declared figures, and the counts of all runs.
fn number_columns(run: &RunView) -> Vec<NumberColumn> {
    let shown = |measure: &&Measure| measure.role != Role::List;
    let (in_bits, plain): (Vec<&Measure>, Vec<&Measure>) =
        run.measures.iter().filter(shown).partition(|measure| measure.unit == Unit::Bits);
    let mut columns = vec![NumberColumn::new("round", "round", |v| number(v, 9))];
    columns.extend(plain.into_iter().map(NumberColumn::declared));
    columns.push(NumberColumn::new("bits_up", "up", bits));
    columns.push(NumberColumn::new("bits_down", "down", bits));
    columns.extend(in_bits.into_iter().map(NumberColumn::declared));
    columns.push(NumberColumn::new("bits_eval", "evaluation", bits));
    columns.push(NumberColumn::new("seconds", "time", duration));
    columns
}

/// Metrics that are always zero are not drawn, except the objective.
fn worth_drawing(metric: &Measure, curves: &[Curve]) -> bool {
    let shown = || points(curves).map(|point| point.on(Scale::Linear).y);
    !curves.is_empty() && (metric.role == Role::Objective || shown().any(|y| y != 0.0))
}

pub(crate) fn points(curves: &[Curve]) -> impl Iterator<Item = &Point> {
    curves.iter().flat_map(|curve| &curve.points)
}

fn switch(name: &str, legend: &str, choices: &[(String, &str)]) -> String {
    let labels: String = choices
        .iter()
        .enumerate()
        .map(|(place, (key, words))| {
            let checked = if place == 0 { " checked" } else { "" };
            format!(
                "<label><input type=\"radio\" name=\"{name}\" id=\"{name}-{key}\"{checked}>\
                 <span>{words}</span></label>"
            )
        })
        .collect();
    format!("<fieldset><legend>{legend}</legend>{labels}</fieldset>")
}

pub(crate) fn section(title: &str, body: String) -> String {
    if body.is_empty() {
        return body;
    }
    format!("<section>\n<div class=\"head\"><h2>{title}</h2></div>\n{body}</section>\n")
}

/// The group's name if there are several groups, and the seed if there are several.
pub(crate) fn part_name(groups: &[Group], group: &Group) -> String {
    let run = group.shown();
    let delivered = if run.delivered { ", whose model is delivered" } else { "" };
    let seed = format!("seed {}{delivered}", run.seed);
    match (groups.len() > 1, group.runs.len() > 1) {
        (false, false) => String::new(),
        (false, true) => format!("<h3>{seed}</h3>\n"),
        (true, false) => format!("<h3>{}</h3>\n", escape(&group.label)),
        (true, true) => format!("<h3>{}, {seed}</h3>\n", escape(&group.label)),
    }
}

/// The most clients with one bar each.
const BARS: usize = 40;

/// The unit of traffic: bytes for the readers of one job, bits for comparisons of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    Bytes,
    Bits,
}

impl Traffic {
    pub fn of(groups: &[Group]) -> Self {
        if groups.len() == 1 { Self::Bytes } else { Self::Bits }
    }

    fn name(self) -> &'static str {
        ["Bytes", "Bits"][self as usize]
    }

    /// An amount of bits as text.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes(value),
            Self::Bits => bits(value),
        }
    }

    /// The number of bits in a unit for amounts up to `most` bits, and its name.
    fn unit(self, most: f64) -> (f64, &'static str) {
        match self {
            Self::Bits => bit_unit(most),
            Self::Bytes => {
                let (divisor, unit) = byte_unit(most / 8.0);
                (8.0 * divisor, unit)
            }
        }
    }
}

/// Bars for a few clients, histograms for many.
fn client_charts(clients: &[&ClientView], traffic: Traffic) -> String {
    let most = clients.iter().map(|client| client.bits_up.max(client.bits_down)).max();
    let name = traffic.name();
    if clients.len() <= BARS {
        let (divisor, unit) = traffic.unit(most.unwrap_or(0) as f64);
        let scaled = |bits: u64| bits as f64 / divisor;
        let row = |c: &&ClientView| (c.name.clone(), vec![scaled(c.bits_up), scaled(c.bits_down)]);
        let title = format!("{name} per client");
        let bars = Bars {
            title: title.clone(),
            label: unit.into(),
            kinds: vec!["up".into(), "down".into()],
            rows: clients.iter().map(row).collect(),
        };
        return format!(
            "<figure class=\"bars\"><figcaption><h3>{title}</h3></figcaption>{}</figure>\n",
            bars.svg()
        );
    }
    let histogram = |title: &str, kind: usize, read: fn(&ClientView) -> u64| {
        let most = clients.iter().map(|client| read(client)).max().unwrap_or(0);
        let (divisor, unit) = traffic.unit(most as f64);
        let values = clients.iter().map(|client| read(client) as f64 / divisor).collect();
        exhibits::histogram(&format!("{name} {title} per client"), unit, "clients", values, kind)
    };
    format!(
        "<div class=\"charts\">{}{}</div>\n",
        histogram("sent", 0, |client| client.bits_up),
        histogram("received", 1, |client| client.bits_down),
    )
}

/// The per-client figures of a run; an undeclared one is named by its key, and omitted if it repeats a
/// declared one.
fn own_figures(run: &RunView) -> Vec<Measure> {
    let mut keys: Vec<&String> = run.clients.iter().flat_map(|c| c.figures.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let declared = run.measures.iter().filter(|m| m.per_client);
    let known = declared.filter(|m| keys.iter().any(|key| **key == m.key)).cloned();
    let mut own: Vec<Measure> = known.collect();
    let repeats = |m: &Measure, key: &str| {
        m.key == key || run.clients.iter().all(|c| c.figures.get(key) == c.figures.get(&*m.key))
    };
    let other = |key: &&&String| !own.iter().any(|m| repeats(m, key));
    let bare: Vec<Measure> = keys
        .iter()
        .filter(other)
        .map(|key| Measure::new((*key).clone(), (*key).clone(), (*key).clone(), ""))
        .collect();
    own.splice(0..0, bare);
    own
}

/// Histograms of the declared per-client figures.
fn spread_over_clients(clients: &[&ClientView], own: &[Measure]) -> String {
    if clients.len() < 2 {
        return String::new();
    }
    let figure = |measure: &Measure| {
        let of = |client: &&ClientView| client.figures.get(&*measure.key).copied();
        let values = clients.iter().filter_map(of).collect();
        let title = format!("{} over clients", measure.title);
        exhibits::histogram(&title, &measure.name, "clients", values, 0)
    };
    let figures: String = own.iter().filter(|m| m.per_client).map(figure).collect();
    side_by_side(figures)
}

/// Figures over clients in a row; nothing without figures.
pub(crate) fn side_by_side(figures: String) -> String {
    if figures.is_empty() {
        return figures;
    }
    format!("<div class=\"charts over-clients\">{figures}</div>\n")
}

/// The table of clients; without traffic for those that took no part in training.
fn client_table(clients: &[&ClientView], own: &[Measure], traffic: Option<Traffic>) -> String {
    const SHOWN: usize = 50;
    let row = |client: &&ClientView| {
        let cell = |measure: &Measure| {
            let value = client.figures.get(&*measure.key);
            let text = value.map_or(MISSING.into(), |v| measured(measure, *v, 4));
            exhibits::labelled(&measure.name, &text)
        };
        let counts = traffic.map_or(String::new(), |unit| {
            let [up, down] = [client.bits_up, client.bits_down].map(|bits| unit.text(bits as f64));
            [("rounds", count(client.rounds)), ("up", up), ("down", down)]
                .map(|(head, text)| exhibits::labelled(head, &text))
                .concat()
        });
        format!(
            "<tr><th scope=\"row\">{}</th>{}{counts}{}</tr>\n",
            escape(&shorten(&client.name, 60)),
            exhibits::labelled("rows", &count(client.rows)),
            own.iter().map(cell).collect::<String>(),
        )
    };
    let rows: String = clients.iter().take(SHOWN).map(row).collect();
    let more = match clients.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("<p class=\"quiet small\">{} more</p>", count(more as u64)),
    };
    let open = if clients.len() <= BARS { " open" } else { "" };
    let counts: &[&str] = if traffic.is_some() { &["rounds", "up", "down"] } else { &[] };
    let common = ["client", "rows"].iter().chain(counts).copied();
    let heads = exhibits::heads(common.chain(own.iter().map(|m| &*m.name)));
    format!(
        "<details{open}><summary>Table of clients</summary><div class=\"scroll\"><table \
         class=\"stacked clients\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>\
         </details>\n",
    )
}

/// At most `limit` of `count` places, evenly spaced, including the first and the last.
pub(crate) fn spread(count: usize, limit: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(limit);
    (0..shown).map(move |place| if shown < 2 { 0 } else { place * (count - 1) / (shown - 1) })
}
