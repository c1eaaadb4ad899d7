//! Pages of hostile numbers and names: all coordinates are numbers, nothing is loaded, and text of users
//! is never markup.

use serde_json::{Map, Value, json};
use whimbrel_core::Measure;
use whimbrel_core::declare::{
    self, Ellipse, Exhibit, Heat, HeatMap, Lines, Role, Rows, Scatter, Section, SeriesPoint,
};
use whimbrel_report::plot::{AxisSpec, Bars, Histogram, LineChart, Scale, ScatterChart, Series};
use whimbrel_report::{ClientView, Detail, RunView, closing_table, hero, html};

/// Lists of values that break naive plots.
fn lists() -> Vec<Vec<f64>> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    vec![
        vec![],
        vec![0.0],
        vec![5.0],
        vec![nan],
        vec![inf, -inf, nan],
        vec![3.0; 6],
        vec![0.0; 6],
        vec![-1.0, -2.0, -1.5],
        vec![1.0, nan, 2.0, 0.0, inf, 4.0, -3.0],
        vec![f64::MAX, f64::MIN, 0.0],
        vec![f64::MIN_POSITIVE, 5e-324, 1e-310],
        vec![1e-300, 1e300],
        vec![1.0, 1.0 + f64::EPSILON],
        vec![2.941_234_567_8, 2.941_234_567_9],
    ]
}

/// Fails if an attribute with coordinates has anything but plain numbers.
fn assert_sound(svg: &str) {
    for name in ["d", "x", "y", "cx", "cy", "rx", "ry", "width", "height", "viewBox", "transform"] {
        for piece in svg.split(&format!(" {name}=\"")).skip(1) {
            let value = piece.split('"').next().unwrap_or("");
            assert!(!value.contains("NaN") && !value.contains("inf"), "{name}=\"{value}\"");
            let numbers = value.split(|c: char| !(c.is_ascii_digit() || ".-e".contains(c)));
            for number in numbers.filter(|text| text.contains(|c: char| c.is_ascii_digit())) {
                let parsed: f64 = number.parse().unwrap_or_else(|_| panic!("{name}: {number}"));
                assert!(parsed.abs() < 1e5, "{name}=\"{value}\" is far outside the picture");
            }
            if ["width", "height", "rx", "ry"].contains(&name) {
                assert!(!value.starts_with('-'), "{name}=\"{value}\"");
            }
        }
    }
    assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
}

#[test]
fn every_chart_draws_every_list() {
    for xs in lists() {
        for ys in lists() {
            let points: Vec<[f64; 2]> = xs.iter().zip(&ys).map(|(&x, &y)| [x, y]).collect();
            let band = ys.iter().map(|&y| [y - 1.0, y * 2.0]).collect();
            let (label, points_drawn) = ("a".into(), points.clone());
            let series = Series { label, style: 9, points: points_drawn, band, left_out: None };
            for (x, y) in [(Scale::Linear, Scale::Log), (Scale::Log, Scale::Linear)] {
                let series = vec![series.clone(), Series::default()];
                let (x, y) = (AxisSpec::new("x", x), AxisSpec::new("y", y));
                let mut chart = LineChart::new("t", x, y, series);
                chart.name_ends = true;
                chart.reference = ys.first().map(|&value| (value, "reference".into()));
                assert_sound(&chart.svg());
            }
            let ellipse = |&[a, b]: &[f64; 2]| Ellipse {
                mean: [a, b],
                covariance: [[a, b], [b, a]],
                ..Ellipse::default()
            };
            let ellipses = points.iter().map(ellipse).collect();
            let scatter = Scatter { ellipses, points, ..Scatter::default() };
            assert_sound(&ScatterChart(&scatter).svg());
        }
    }
}

#[test]
fn bars_and_histograms_draw_every_list() {
    for values in lists() {
        let rows = values.iter().map(|&value| (value.to_string(), vec![value, value])).collect();
        let kinds = vec!["up".into(), "down".into()];
        let bars = Bars { title: "t".into(), label: "bit".into(), kinds, rows };
        assert_sound(&bars.svg());
        for kind in [0, 1] {
            let histogram = Histogram {
                title: "t".into(),
                label: "bit".into(),
                counted: "clients".into(),
                values: values.clone(),
                kind,
            };
            assert_sound(&histogram.svg());
        }
    }
}

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror='a'>\"&\u{1b}[2J";

/// A run in which every text is hostile and every metric takes every value.
fn run(name: &str, clients: u64) -> RunView {
    let values = [json!(0), json!(-1.5), Value::Null, json!("NaN"), json!(1e308), json!(1e-320)];
    let row = |round: usize| -> Map<String, Value> {
        let value = |shift: usize| values[(round + shift) % values.len()].clone();
        json!({
            "round": round, "epoch": value(0), "objective": value(1), "field_norm2": value(2),
            "update_norm2": value(3), "memory_gap2": value(4), "repairs": value(5),
            "weights": [value(0), value(1)], "bits_up": value(2), "bits_down": value(3),
            "seconds": value(4), "excess_loss": value(5), "distance2": value(0),
            "local_variance": value(1), "down_memory_gap2": value(2), "bits_down_ghost": value(3),
        })
        .as_object()
        .cloned()
        .unwrap()
    };
    // Every figure in every place that a report has.
    let declared = |key: &String| {
        let role = match key.as_str() {
            "objective" => Role::Objective,
            "excess_loss" => Role::Excess,
            "weights" => Role::List,
            "epoch" => Role::Axis,
            _ => Role::Shown,
        };
        let hostile = Measure::new(key.clone(), HOSTILE, HOSTILE, HOSTILE).role(role);
        let hostile = if key.len().is_multiple_of(2) { hostile.log() } else { hostile };
        hostile.result(3).per_client()
    };
    let measures = row(0).keys().filter(|key| *key != "round").map(declared).collect();
    let client = |id: u64| ClientView {
        name: HOSTILE.into(),
        rows: id,
        bits_up: u64::MAX,
        bits_down: id,
        figures: [(HOSTILE.to_string(), f64::NAN), ("objective".into(), 1e308)].into(),
        ..ClientView::default()
    };
    RunView {
        name: name.into(),
        method: HOSTILE.into(),
        model: HOSTILE.into(),
        version: HOSTILE.into(),
        isa: HOSTILE.into(),
        data_hash: HOSTILE.into(),
        job_toml: HOSTILE.into(),
        command: HOSTILE.into(),
        notes: vec![HOSTILE.into()],
        ending: HOSTILE.into(),
        ending_detail: HOSTILE.into(),
        measures,
        rows: (0..30).map(row).collect(),
        clients: (0..clients).map(client).collect(),
        reference_objective: Some(f64::NAN),
        sections: vec![Section { title: HOSTILE.into(), exhibits: exhibits() }],
        ..RunView::default()
    }
}

/// Exhibits in which every text is hostile.
fn exhibits() -> Vec<Exhibit> {
    let text = || HOSTILE.to_string();
    let ellipse = |mean, covariance| Ellipse { label: text(), mean, covariance };
    vec![
        Exhibit::Text { text: text() },
        Exhibit::Scatter(Scatter {
            title: text(),
            caption: text(),
            axes: [text(), text()],
            points: vec![[0.0, 1.0], [f64::NAN, 2.0]],
            ellipses: vec![
                ellipse([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),
                ellipse([f64::INFINITY, 1.0], [[1.0, 0.0], [0.0, 1.0]]),
            ],
        }),
        Exhibit::Entries { key: "weights".into(), order: vec![7] },
        Exhibit::Histogram {
            title: text(),
            axis: text(),
            counted: text(),
            values: vec![1.0, f64::NAN],
        },
        Exhibit::Table(Rows {
            title: text(),
            heads: vec![text()],
            rows: vec![vec![text(), text()]],
            collapsed: true,
            swatches: false,
        }),
    ]
}

/// The page without its style sheet and script, which are ours.
fn body(page: &str) -> &str {
    let start = page.find("<main").unwrap();
    &page[start..page.find("</main>").unwrap()]
}

#[test]
fn pages_load_nothing_and_trust_nobody() {
    let empty = RunView::default();
    let pages = [
        html(HOSTILE, &[]),
        html(HOSTILE, std::slice::from_ref(&empty)),
        html(HOSTILE, &[run(HOSTILE, 5)]),
        html(HOSTILE, &[run(HOSTILE, 60), run("b", 1), run("b", 2), empty]),
    ];
    for page in &pages {
        // A reference within the page loads nothing.
        let outward = page.replace(" href=\"#all-", "");
        for loads in ["http:", "https:", "src=\"", "url(", "@import", "<link", "<img", "href="] {
            assert!(!outward.contains(loads), "{loads}");
        }
        assert!(!page.contains('\u{1b}') && !page.contains("<script>alert"));
        let body = body(page);
        assert_sound(body);
        let data = body.matches("<script type=\"application/json\">").count();
        assert_eq!(body.matches("<script").count(), data);
        assert_eq!(body.matches("</script").count(), data);
        for text in body.split("<script type=\"application/json\">").skip(1) {
            let text = text.split("</script>").next().unwrap();
            serde_json::from_str::<Value>(text).expect("data that a browser can read");
        }
    }
    assert!(pages[2].contains("role=\"alert\"") && pages[2].contains("<ul class=\"notes\">"));
    assert!(pages[3].contains("10 more"));
}

#[test]
fn pictures_for_a_readme_stand_alone() {
    let runs = [run(HOSTILE, 0), run("b", 0)];
    let svg = hero(HOSTILE, HOSTILE, &runs, &runs[0].measures[2]);
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(!svg.contains("<script") && !svg.contains("<img") && !svg.contains("var(--"));
    assert_sound(&svg);
}

#[test]
fn closing_tables_keep_their_lines() {
    let table = closing_table(&[run(HOSTILE, 1), run("b\nc", 1)], Detail::Diagnostics);
    assert_eq!(table.lines().count(), 4);
    assert!(!table.contains('\u{1b}'));
}

#[test]
fn exhibits_of_any_numbers_and_names_are_whole() {
    let hostile = "<img src=x onerror=alert(1)>";
    for values in lists() {
        let points = values.iter().enumerate().map(|(i, &value)| SeriesPoint {
            label: hostile.into(),
            value,
            interval: (i % 2 == 0).then_some([value, value * 2.0]),
            note: hostile.into(),
            count: i as u64,
        });
        let map = HeatMap {
            title: hostile.into(),
            caption: hostile.into(),
            values: values.iter().copied().map(Some).collect(),
        };
        let exhibits = vec![
            Exhibit::Series(declare::Series {
                title: hostile.into(),
                caption: hostile.into(),
                counted: hostile.into(),
                points: points.collect(),
            }),
            Exhibit::Heat(Heat {
                rows: 1,
                columns: values.len(),
                shape: [7, 9],
                names: [vec!["<i>".into()], Vec::new()],
                maps: vec![map],
            }),
            Exhibit::Lines(Lines {
                title: hostile.into(),
                caption: hostile.into(),
                axis: hostile.into(),
                bounds: Some([0.4, 1.0]),
                lines: vec![(hostile.into(), values.iter().map(|&v| [v, v]).collect())],
            }),
        ];
        let sections = vec![Section { title: hostile.into(), exhibits }];
        let page = html("t", &[RunView { sections, ..RunView::default() }]);
        assert_sound(&page);
        assert!(!page.contains("<img src=x"), "{values:?}");
    }
}
