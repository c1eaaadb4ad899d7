//! The commented job file that `whimbrel new` writes.

use crate::failure::Result;
use crate::family::refuse;
use crate::job::data::{self, cells, file, held_out, mixture, prepare, split};
use crate::job::{NAME, SEED, schema};
use crate::load::FileKind;
use crate::registry::registry;
use whimbrel_data::{ColumnType, Declared, Entries, Spelling};
use whimbrel_job::key::JobKey;
use whimbrel_job::suggest::nearest;
use whimbrel_job::writer::{self, list, text};

/// A family's tables for a data file: keys with values as TOML.
#[derive(Debug, Default)]
pub struct Suggestion {
    /// `kind` of `[model]`.
    pub model: &'static str,
    /// Other keys of `[model]`.
    pub model_keys: Vec<(&'static JobKey, String)>,
    /// `kind` of `[method]`.
    pub method: &'static str,
    /// Other keys of `[method]`.
    pub method_keys: Vec<(&'static JobKey, String)>,
    /// Keys of `[uplink]`.
    pub uplink_keys: Vec<(&'static JobKey, String)>,
    /// Whether the fit uses all rows, in the units of the data.
    pub raw: bool,
    /// Whether it is for users who ask for the model by name.
    pub on_request: bool,
}

/// Facts about a data file.
#[derive(Clone, Debug, Default)]
pub struct DataFacts {
    /// The file's name in the job.
    pub path: String,
    pub kind: FileKind,
    /// The likely target column.
    pub target: Option<String>,
    /// Number of distinct targets, if there are few.
    pub classes: usize,
    /// Numeric columns.
    pub columns: Vec<String>,
    /// The likely client column.
    pub client: Option<String>,
    pub rows: usize,
    /// Whether one value fills a large share of a column of numbers.
    pub has_spikes: bool,
    /// Likely column types of a mixed table: some columns are not numeric or have gaps.
    pub types: Option<Vec<(String, ColumnType)>>,
    /// The likely layout of a table with gaps.
    pub table: Option<TableFacts>,
    /// Marks of gaps and of thousands.
    pub spelling: Spelling,
    /// Sentences on cells that may mark gaps.
    pub doubts: Vec<String>,
    /// Columns that are not features, with the reasons.
    pub left_out: Vec<(String, &'static str)>,
    /// The family of a regression on the target.
    pub regression: Option<&'static str>,
    /// The column of events, if the target is a time.
    pub event: Option<String>,
}

/// The layout of a table: one observation per line, or one row per line (`column` and `value` are
/// empty).
#[derive(Clone, Debug)]
pub struct TableFacts {
    /// The column of row labels.
    pub row: String,
    /// The columns of column labels.
    pub column: Vec<String>,
    /// The column of values.
    pub value: String,
    pub entries: Entries,
}

/// Most clients of a split of a file without a client column.
const CLIENTS_MAX: usize = 10;
/// Principal components of images.
const COMPONENTS: usize = 20;
/// Longest line of a comment.
const LINE_BYTES_MAX: usize = 100;

/// A commented job file for a data file, or for the built-in generator, with a model of this kind.
pub fn template(facts: Option<&DataFacts>, model: Option<&str>) -> Result<String> {
    let suggestion = suggested(facts, model)?;
    let mut out = Template::default();
    out.say("A job for `whimbrel run`; `whimbrel check` explains it.");
    let stem = facts.map_or("mixture", |facts| facts.path.as_str());
    out.key(&NAME, &text(&crate::job::name_of_file(stem)));
    out.key(&SEED, "1");
    match facts {
        Some(facts) => out.file(facts, suggestion.raw),
        None => out.generator(),
    }
    if let Some(facts) = facts.filter(|facts| facts.kind.is_table() && facts.table.is_none()) {
        out.schema(facts);
    }
    let registry = registry();
    out.table("model");
    out.key(registry.model_kind, &text(suggestion.model));
    suggestion.model_keys.iter().for_each(|(key, value)| out.key(key, value));
    out.table("method");
    out.key(registry.method_kind, &text(suggestion.method));
    suggestion.method_keys.iter().for_each(|(key, value)| out.key(key, value));
    if !suggestion.uplink_keys.is_empty() {
        out.table("uplink");
        suggestion.uplink_keys.iter().for_each(|(key, value)| out.key(key, value));
    }
    Ok(out.text)
}

/// The first family's suggestion, or the one for a model that the user asks for, also by its method.
fn suggested(facts: Option<&DataFacts>, model: Option<&str>) -> Result<Suggestion> {
    let registry = registry();
    let all = registry.families().iter().filter_map(|family| (family.suggest)(facts));
    let is_it = |one: &Suggestion| {
        model.map_or(!one.on_request, |kind| one.model == kind || one.method == kind)
    };
    if let Some(suggestion) = all.clone().find(is_it) {
        return Ok(suggestion);
    }
    let kind = model.unwrap_or_default();
    if registry.models(kind).is_empty() {
        let known = registry.model_kind.words.iter().map(|word| word.name);
        let hint = match nearest(kind, known.clone()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("models: {}", known.collect::<Vec<_>>().join(", ")),
        };
        return refuse(format!("there is no model {kind:?}"), hint);
    }
    let kinds: Vec<&str> = all.map(|one| one.model).collect();
    let is_open = facts.is_some_and(|facts| facts.target.is_none());
    let more = "; for others name the column to predict with --target COLUMN";
    let hint = format!("those that can: {}{}", kinds.join(", "), if is_open { more } else { "" });
    refuse(format!("no job for a model {kind:?} can be guessed from this file"), hint)
}

#[derive(Default)]
struct Template {
    text: String,
}

impl Template {
    fn table(&mut self, name: &str) {
        self.text += &format!("\n[{name}]\n");
    }

    /// Writes a comment, wrapped.
    fn say(&mut self, comment: &str) {
        let mut line = String::from("#");
        for word in comment.split(' ') {
            if line.len() > 1 && line.len() + 1 + word.len() > LINE_BYTES_MAX {
                self.text += &format!("{line}\n");
                line = String::from("#");
            }
            line += &format!(" {word}");
        }
        self.text += &format!("{line}\n");
    }

    /// Writes a key below its description and its possible values.
    fn key(&mut self, key: &JobKey, value: &str) {
        self.say(key.doc);
        if key.words.len() > 1 {
            self.say(&format!("({})", key.takes()));
        }
        self.text += &format!("{} = {value}\n", key.name);
    }

    fn file(&mut self, facts: &DataFacts, raw: bool) {
        self.table("data");
        self.key(&data::SOURCE, &text(facts.kind.source()));
        self.key(&file::PATH, &text(&facts.path));
        if !facts.spelling.na.is_empty() {
            self.key(&file::NA, &list(facts.spelling.na.iter().map(|mark| text(mark))));
        }
        if let Some(mark) = facts.spelling.thousands {
            self.key(&file::THOUSANDS, &text(&char::from(mark).to_string()));
        }
        facts.doubts.iter().for_each(|doubt| self.say(doubt));
        if let Some(table) = &facts.table {
            self.cells(facts, table);
            return;
        }
        if facts.kind == FileKind::Idx {
            self.split(facts.rows);
            self.table("data.prepare");
            self.key(&prepare::DROP_CONSTANT, "true");
            self.key(&prepare::PCA, &facts.columns.len().min(COMPONENTS).to_string());
            return;
        }
        if facts.types.is_none() && !raw {
            self.key(&file::STANDARDIZE, "true");
        }
        if !facts.kind.is_table() {
            self.split(facts.rows);
            return;
        }
        if let Some(client) = &facts.client {
            self.key(&file::CLIENT, &text(client));
        }
        if let Some(target) = &facts.target {
            self.key(&file::TARGET, &text(target));
            if !raw {
                self.key(&held_out::TEST, "0.2");
            }
        }
        let columns: Vec<String> = facts.columns.iter().map(|name| text(name)).collect();
        self.say(file::COLUMNS.doc);
        // Not wrapped: names may contain spaces.
        let hides = if facts.left_out.is_empty() { "# " } else { "" };
        self.text += &format!("{hides}{} = [{}]\n", file::COLUMNS.name, columns.join(", "));
        for (name, why) in &facts.left_out {
            self.say(&format!("left out: {}, since {why}", text(name)));
        }
        if facts.client.is_none() {
            self.say("no column looks like a client's name: rows are split at random");
            self.split(facts.rows);
        }
    }

    /// Types and levels as found; limits are for the user, since those of the rows are not public.
    fn schema(&mut self, facts: &DataFacts) {
        self.table("schema");
        self.say(
            "types, levels and limits of columns, which every client's file must keep. Limits come from \
             knowledge: those of the rows reveal two of them, also under `epsilon`. Such as:",
        );
        let types = facts.types.iter().flatten();
        let plain = |name: &&String| types.clone().all(|(known, _)| known != *name);
        if let Some(name) = facts.columns.iter().find(plain) {
            self.text +=
                &format!("# {} = {{ unit = \"years\", min = 0, max = 120 }}\n", writer::key(name));
        }
        for (name, kind) in types.clone() {
            let (name, kind) = (name.clone(), kind.clone());
            let column = Declared { name, kind, unit: None, min: None, max: None };
            self.text += &format!("{} = {}\n", writer::key(&column.name), schema::inline(&column));
        }
    }

    fn cells(&mut self, facts: &DataFacts, table: &TableFacts) {
        if let Some(client) = &facts.client {
            self.key(&file::CLIENT, &text(client));
        }
        let columns = match &table.column[..] {
            [one] => text(one),
            many => list(many.iter().map(|name| text(name))),
        };
        self.key(&cells::ROW, &text(&table.row));
        if !table.value.is_empty() {
            self.key(&cells::COLUMN, &columns);
            self.key(&cells::VALUE, &text(&table.value));
        }
        self.key(&cells::HOLDOUT, "0.1");
        if facts.client.is_none() {
            self.say("no column looks like a client's name: whole rows are split at random");
            self.table("data.split");
            self.key(&split::BY, "\"rows\"");
            self.key(&split::CLIENTS, &CLIENTS_MAX.to_string());
        }
    }

    fn split(&mut self, rows: usize) {
        self.table("data.split");
        self.key(&split::BY, "\"iid\"");
        self.key(&split::CLIENTS, &rows.clamp(1, CLIENTS_MAX).to_string());
    }

    fn generator(&mut self) {
        self.table("data");
        self.key(&data::SOURCE, "\"mixture\"");
        self.key(&mixture::CLIENTS, "100");
        self.key(&mixture::ROWS, "100");
        self.key(&mixture::HETEROGENEITY, "{ dirichlet = 0.2 }");
    }
}
