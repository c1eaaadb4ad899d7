//! The reference pages of the job file, generated from the definitions.

use crate::family::{Family, MethodKind};
use crate::job::channel::uplink::{RULE, UP_RULES};
use crate::job::method::length::BATCH;
use crate::job::method::{WEIGHT_WORDS, WEIGHTS};
use crate::job::{data, sections};
use crate::registry::registry;
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::reference::{self, KeyList, Page, Row, rows};

const HEAD: &str = "A job file describes data, model and method. It is [TOML](https://toml.io). Unknown keys,
wrong types, impossible values and keys that do not apply to the chosen kind are errors with a line and a
hint. File names are relative to the job file. The Rust builders have the same defaults, and so have the
Python estimators, except for parameters that follow scikit-learn (`covariance_type`, `reg_covar`,
`random_state`).

These pages are generated from the definitions that the parser uses.
";

/// The smallest job around an example of one table.
const AROUND: [(&str, &str); 3] = [
    ("data", "[data]\nsource = \"mixture\"\n"),
    ("model", "[model]\nkind = \"gmm\"\ncomponents = 2\n"),
    ("method", "[method]\nkind = \"fedem\"\nrounds = 100\n"),
];

/// File name and title of the pages of built-in families.
const FAMILIES: [(&str, &str, &str); 7] = [
    ("em", "mixtures", "Mixtures"),
    ("table", "tables", "Tables with gaps"),
    ("regression", "inference", "Regressions with inference"),
    ("describe", "descriptions", "Descriptions"),
    ("gradient", "regressions", "Regressions"),
    ("personal", "learners", "Learners and personal models"),
    ("bayes", "posteriors", "Posteriors of personal models"),
];

/// The pages of the reference: path below `docs/reference` and text.
pub fn reference() -> Vec<(String, String)> {
    let pages = pages();
    let top = index(sections()[0], &pages);
    let mut all = vec![("job-file.md".to_owned(), reference::render(&[top], &unset).concat())];
    let texts = reference::render(&pages, &unset);
    all.extend(pages.iter().zip(texts).map(|(page, text)| (format!("job/{}.md", page.name), text)));
    all
}

/// The entry page: an example, links to the other pages, and the keys above the first table.
fn index(root: &'static Section, pages: &[Page]) -> Page {
    let whole = complete(root.example);
    let links = pages.iter().map(|page| format!("- [{}](job/{}.md)\n", page.title, page.name));
    let doc =
        format!("{HEAD}\nA whole job:\n\n```toml\n{whole}```\n\n{}", links.collect::<String>());
    let top = KeyList { heading: "Above the first table".into(), ..KeyList::of(root) };
    let parts = vec![KeyList { doc: doc.trim_end().to_owned(), ..KeyList::default() }, top];
    Page { name: "job-file".into(), title: "The job file".into(), parts }
}

fn pages() -> Vec<Page> {
    let registry = registry();
    let [
        _,
        data,
        split,
        prepare,
        schema,
        _,
        method,
        uplink,
        downlink,
        privacy,
        simulation,
        federation,
    ] = sections();
    let page =
        |name: &str, title: &str, parts| Page { name: name.into(), title: title.into(), parts };
    let of = |section: &'static Section| {
        page(
            &section.name.replace('.', "-"),
            &format!("`[{}]`", section.name),
            vec![KeyList::of(section)],
        )
    };
    let of_data = |name: &str, title: &str, doc: &str, keys| {
        let part = KeyList { doc: doc.into(), keys: rows(keys), ..KeyList::default() };
        page(name, &format!("`[data]`: {title}"), vec![part])
    };
    let mut pages = vec![
        page("data", "`[data]`", vec![KeyList { keys: rows(data::GENERAL), ..KeyList::of(data) }]),
        of_data(
            "data-cells",
            "tables with gaps",
            "Keys of [data] for kind = \"low-rank\" in [model].",
            data::CELLS,
        ),
        of_data(
            "data-samples",
            "images and texts",
            "Keys of [data] for samples of learners.",
            data::SAMPLES,
        ),
        of_data("data-drawn", "generated rows", "Keys of [data] for generators.", data::DRAWN),
        of(split),
        of(prepare),
        of(schema),
    ];
    pages.extend(registry.families().iter().rev().map(|family| family_page(family)));
    let all = registry.algorithms(|_| true);
    let shared = method.keys.iter().filter(|key| families_with(key) != 1);
    let shared = shared.map(|key| match &registry.limits(method, key)[..] {
        [] => Row::among(key, &all, &all),
        able => Row::among(key, able, &all),
    });
    let shared: Vec<Row> = shared.collect();
    pages.push(page("method", "`[method]`", vec![KeyList { keys: shared, ..KeyList::of(method) }]));
    pages.extend([uplink, downlink, privacy, simulation, federation].map(of));
    pages
}

/// The number of families with a method that takes a key.
fn families_with(key: &JobKey) -> usize {
    let takes = |family: &&&'static Family| {
        family.methods.iter().any(|kind| kind.keys.iter().any(|own| std::ptr::eq(*own, key)))
    };
    registry().families().iter().filter(takes).count()
}

/// Models and methods of a family, with the keys of `[method]` that no other family has.
fn family_page(family: &'static Family) -> Page {
    let known = FAMILIES.iter().find(|(known, ..)| *known == family.name);
    let (name, title) = known.map_or((family.name, family.name), |(_, name, title)| (name, title));
    let models: Vec<_> = family.models.iter().map(|kind| (kind.word, kind.keys)).collect();
    let methods: Vec<_> = family.methods.iter().map(|kind| (kind.word, kind.keys)).collect();
    let sample = registry().model.example;
    let is_sampled = |word: &Word| sample.contains(&format!("kind = \"{}\"", word.name));
    let example = if models.iter().any(|(word, _)| is_sampled(word)) { sample } else { "" };
    let own = |key: &JobKey| families_with(key) == 1;
    let parts = vec![
        part("model", "Models and their keys.", &models, &|_| true, example),
        part(
            "method",
            "Methods and the keys that only they have; [the others](method.md).",
            &methods,
            &own,
            "",
        ),
    ];
    Page { name: name.into(), title: title.into(), parts }
}

type Kind = (Word, &'static [&'static JobKey]);

/// The kinds of a family in `[model]` or `[method]`, with those of their keys that pass.
fn part(
    table: &str,
    doc: &str,
    kinds: &[Kind],
    passes: &dyn Fn(&JobKey) -> bool,
    example: &'static str,
) -> KeyList {
    let mut keys: Vec<Row> = Vec::new();
    for key in kinds.iter().flat_map(|(_, keys)| *keys).filter(|key| passes(key)) {
        if !keys.iter().any(|row| std::ptr::eq(row.key, *key)) {
            let with = |(_, keys): &&Kind| keys.iter().any(|own| std::ptr::eq(*own, *key));
            let able: Vec<&str> = kinds.iter().filter(with).map(|(word, _)| word.name).collect();
            let all: Vec<&str> = kinds.iter().map(|(word, _)| word.name).collect();
            keys.push(Row::among(key, &able, &all));
        }
    }
    let (heading, doc) = (format!("`[{table}]`"), doc.to_owned());
    KeyList { heading, doc, keys, kinds: kinds.iter().map(|(word, _)| *word).collect(), example }
}

/// The behaviour without a key whose default is the method's.
fn unset(key: &JobKey) -> Option<String> {
    let is = |known: &JobKey| std::ptr::eq(key, known);
    let takes = |kind: &MethodKind| kind.keys.iter().any(|own| is(own));
    let registry = registry();
    if is(&WEIGHTS) {
        Some(registry.usual(takes, |kind| WEIGHT_WORDS.name(&kind.weights)))
    } else if is(&BATCH) {
        Some(registry.usual(takes, |kind| if kind.auto_batch { "auto" } else { "full" }))
    } else if is(&RULE) {
        let usual = registry.usual(|_| true, |kind| UP_RULES.name(&kind.up_rule));
        Some(format!("that of `channels`; else {usual}"))
    } else {
        None
    }
}

/// Every example of the pages as a whole job.
pub fn examples() -> Vec<String> {
    reference::examples(&sections()).into_iter().map(complete).collect()
}

/// An example with the tables that it omits.
fn complete(example: &str) -> String {
    let mut out = example.to_owned();
    for (name, table) in AROUND {
        if !example.contains(&format!("[{name}]")) {
            out += &format!("\n{table}");
        }
    }
    out
}
