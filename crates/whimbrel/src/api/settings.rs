//! Values of job keys as a program sets them. Defaults, checks and messages are the keys' own.

use super::by_setters;
use super::rows::Federation;
use std::collections::BTreeMap;
use whimbrel_core::Error;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::job::DataSource;
use whimbrel_job::{Errors, Origin, writer};

/// The value of a job key.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting(String);

impl Setting {
    /// Any TOML value, such as `{ every = 10 }`.
    pub fn toml(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

macro_rules! settings {
    ($($type:ty: |$value:ident| $text:expr;)+) => {
        $(impl From<$type> for Setting {
            fn from($value: $type) -> Self {
                Self($text)
            }
        })+
    };
}

settings! {
    f64: |x| writer::number(x);
    u32: |n| n.to_string();
    i32: |n| n.to_string();
    u64: |n| n.to_string();
    usize: |n| n.min(i64::MAX as usize).to_string();
    bool: |flag| flag.to_string();
    &str: |word| writer::text(word);
    Codec: |codec| codec.to_string();
    Vec<usize>: |all| writer::list(all.iter().map(usize::to_string));
    Vec<f64>: |all| writer::list(all.iter().map(|x| writer::number(*x)));
    Vec<&str>: |all| writer::list(all.iter().map(|name| writer::text(name)));
    Vec<String>: |all| writer::list(all.iter().map(|name| writer::text(name)));
}

/// A compression operator with its settings.
///
/// ```
/// use whimbrel::Codec;
/// let codec = Codec::dithering(8).with("bucket", 256);
/// assert_eq!(codec.to_string(), r#"{ kind = "dithering", levels = 8, bucket = 256 }"#);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Codec {
    kind: &'static str,
    settings: Vec<(&'static str, Setting)>,
}

impl Codec {
    const fn of(kind: &'static str) -> Self {
        Self { kind, settings: Vec::new() }
    }

    /// No compression: 64 bits per number, or 32 for learners.
    pub const fn exact() -> Self {
        Self::of("exact")
    }

    /// Numbers rounded to 32 bits.
    pub const fn exact_f32() -> Self {
        Self::of("exact-f32")
    }

    /// Random dithering with this many levels between zero and the norm.
    pub fn dithering(levels: u32) -> Self {
        Self::of("dithering").with("levels", levels)
    }

    /// Block quantisation with blocks of this many coordinates.
    pub fn block_p(size: usize) -> Self {
        Self::of("block-p").with("size", size)
    }

    /// Random sparsification: each coordinate is sent with probability `q`.
    pub fn sparse(q: f64) -> Self {
        Self::of("sparse").with("q", q)
    }

    /// Random rounding to powers of two.
    pub const fn natural() -> Self {
        Self::of("natural")
    }

    /// The `k` largest coordinates. The operator is biased and needs error feedback:
    /// `set("uplink.rule", "feedback")`.
    pub fn top_k(k: usize) -> Self {
        Self::of("top-k").with("k", k)
    }

    /// The signs of the coordinates, scaled. The operator is biased and needs error feedback.
    pub const fn sign() -> Self {
        Self::of("sign")
    }

    /// Integers of 16 or 32 bits on a grid that all clients share, as masked sums need them.
    pub fn grid(bits: u32) -> Self {
        Self::of("grid").with("bits", bits)
    }

    /// Adds a setting of the codec, by its key in a job file.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Setting>) -> Self {
        self.settings.push((key, value.into()));
        self
    }
}

/// Writes the codec as a job file does.
impl std::fmt::Display for Codec {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let settings = self.settings.iter().map(|(key, value)| (*key, value.0.clone()));
        let kind = std::iter::once(("kind", writer::text(self.kind)));
        to.write_str(&writer::inline(kind.chain(settings)))
    }
}

/// The keys that were set, by table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Draft {
    tables: BTreeMap<String, BTreeMap<String, Setting>>,
    /// The model's word under methods other than `newton`.
    pub gradient: Option<&'static str>,
}

impl Draft {
    pub fn new(method: &str) -> Self {
        let mut draft = Self::default();
        draft.set("method.kind", method);
        draft
    }

    /// Sets `table.key`, or a key above the tables.
    pub fn set(&mut self, key: &str, value: impl Into<Setting>) {
        let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
        self.tables.entry(table.into()).or_default().insert(key.into(), value.into());
    }

    /// Names the model, unless it was set: of a regression its gradient form under methods other than
    /// `newton`.
    fn settle(&mut self, model: &str) {
        let newton = Setting::from("newton");
        let method = self.tables.get("method").and_then(|keys| keys.get("kind"));
        let gradient = self.gradient.filter(|_| method.is_some_and(|kind| *kind != newton));
        let keys = self.tables.entry("model".into()).or_default();
        if gradient.is_some() {
            keys.remove("family");
        }
        keys.entry("kind".into()).or_insert_with(|| gradient.unwrap_or(model).into());
    }

    /// Refuses values that are not TOML, and values of tables whose keys are set as well.
    fn check(&self) -> Result<()> {
        let each =
            self.tables.iter().flat_map(|(table, keys)| keys.iter().map(move |of| (table, of)));
        for (table, (key, Setting(value))) in each {
            let path = if table.is_empty() { key.clone() } else { format!("{table}.{key}") };
            let below = format!("{path}.");
            let is_it = |table: &String| *table == path || table.starts_with(&below);
            let what = if !writer::is_value(value) {
                format!("`{path}` is set to `{value}`, which is not a TOML value")
            } else if !path.is_empty() && self.tables.keys().any(is_it) {
                format!("`{path}` is set as a whole, and keys of it as well")
            } else {
                continue;
            };
            return Err(Error::config(what).into());
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (table, keys) in &self.tables {
            if !table.is_empty() {
                let path: Vec<String> = table.split('.').map(writer::text).collect();
                text += &format!("[{}]\n", path.join("."));
            }
            for (key, Setting(value)) in keys {
                text += &format!("{} = {value}\n", writer::text(key));
            }
        }
        text
    }

    /// The job over these rows by this model, unless it was set; `pooled` drops the column of clients.
    pub fn job(mut self, rows: &Federation<'_>, model: &str, pooled: bool) -> Result<Job> {
        self.settle(model);
        let data = self.tables.get("data");
        let given = |key: &&&str| data.is_some_and(|keys| keys.contains_key(**key));
        if let Some(key) = ["source", "path", "columns", "client", "target"].iter().find(given) {
            let what = format!("`data.{key}` cannot be set: the rows determine it");
            return Err(Error::config(what).hint("use `Rows`, or a `Job` for files").into());
        }
        self.set("data.source", "csv");
        self.set("data.path", "memory");
        self.set("data.columns", rows.columns.clone());
        if !pooled {
            self.set("data.client", rows.names.client.as_str());
        }
        if rows.first.has_targets() {
            self.set("data.target", rows.names.target.as_str());
        }
        self.check()?;
        let mut job = Job::parse(&self.text(), "settings").map_err(by_key)?;
        // There is no file whose lines later errors could show.
        job.origin = Origin::default();
        if let DataSource::Csv(csv) = &mut job.data.source {
            csv.path = rows.input.clone();
        }
        Ok(job)
    }
}

/// Names each faulty setting by its key: there is no file whose lines could be shown.
fn by_key(mut errors: Errors) -> Failure {
    for error in &mut errors.errors {
        error.file = error.key.clone();
        error.place = None;
    }
    by_setters(errors.into())
}
