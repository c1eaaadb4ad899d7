//! What a caller sets: words and numbers by the keys of a job, and nothing that was not set. Defaults,
//! checks and messages are those of the keys.

use super::rows::Federation;
use std::collections::BTreeMap;
use whimbrel::families::Job as Asked;
use whimbrel::families::failure::{Failure, Result};
use whimbrel::families::job::DataSource;
use whimbrel::job::{Errors, writer};

/// The value of a job's key.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting(String);

impl Setting {
    /// Anything that a job file may say, such as `{ every = 10 }`.
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
    usize: |n| n.to_string();
    bool: |flag| flag.to_string();
    &str: |word| writer::text(word);
    Codec: |codec| codec.text();
    Vec<usize>: |all| writer::list(all.iter().map(usize::to_string));
    Vec<String>: |all| writer::list(all.iter().map(|name| writer::text(name)));
}

/// How vectors are compressed on their way: a codec, and those of its settings that are not the usual.
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
    /// Every number in full, at 64 bits.
    pub const fn exact() -> Self {
        Self { kind: "exact", settings: Vec::new() }
    }

    /// Every number in full, at 32 bits.
    pub const fn exact_f32() -> Self {
        Self { kind: "exact-f32", settings: Vec::new() }
    }

    /// Random dithering with this many levels between zero and the norm.
    pub fn dithering(levels: u32) -> Self {
        Self { kind: "dithering", settings: Vec::new() }.with("levels", levels)
    }

    /// Quantisation in blocks of this many coordinates.
    pub fn block_p(size: usize) -> Self {
        Self { kind: "block-p", settings: Vec::new() }.with("size", size)
    }

    /// Random sparsification: each coordinate is sent with this probability.
    pub fn sparse(q: f64) -> Self {
        Self { kind: "sparse", settings: Vec::new() }.with("q", q)
    }

    /// Random rounding to powers of two.
    pub const fn natural() -> Self {
        Self { kind: "natural", settings: Vec::new() }
    }

    /// The `k` largest coordinates; biased, so that a channel of it needs error feedback.
    pub fn top_k(k: usize) -> Self {
        Self { kind: "top-k", settings: Vec::new() }.with("k", k)
    }

    /// With a further setting of the codec.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Setting>) -> Self {
        self.settings.push((name, value.into()));
        self
    }

    fn text(&self) -> String {
        let kind = [("kind", writer::text(self.kind))].into_iter();
        writer::inline(
            kind.chain(self.settings.iter().map(|(name, value)| (*name, value.0.clone()))),
        )
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.text())
    }
}

/// The keys that were set, by table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    tables: BTreeMap<String, BTreeMap<String, Setting>>,
}

impl Draft {
    pub fn new(model: &str, method: &str) -> Self {
        let mut draft = Self::default();
        draft.set("model.kind", model);
        draft.set("method.kind", method);
        draft
    }

    /// Sets `table.key`, or a key above the tables.
    pub fn set(&mut self, key: &str, value: impl Into<Setting>) {
        let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
        self.tables.entry(table.into()).or_default().insert(key.into(), value.into());
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (table, keys) in &self.tables {
            if !table.is_empty() {
                text += &format!("[{table}]\n");
            }
            for (key, Setting(value)) in keys {
                text += &format!("{key} = {value}\n");
            }
        }
        text
    }

    /// The job over these rows.
    pub fn job(mut self, rows: &Federation, pooled: bool) -> Result<Asked> {
        self.set("data.source", "csv");
        self.set("data.path", "memory");
        self.set("data.columns", rows.columns.clone());
        if !pooled {
            self.set("data.client", rows.names.client.as_str());
        }
        if rows.has_targets {
            self.set("data.target", rows.names.target.as_str());
        }
        let mut job = Asked::parse(&self.text(), "settings").map_err(without_places)?;
        if let DataSource::Csv(csv) = &mut job.data.source {
            csv.path = rows.input.clone();
        }
        Ok(job)
    }
}

/// There is no file whose lines could be shown: what is wrong is named by its key.
fn without_places(mut errors: Errors) -> Failure {
    for error in &mut errors.errors {
        error.file = error.key.clone();
        error.place = None;
    }
    errors.into()
}
