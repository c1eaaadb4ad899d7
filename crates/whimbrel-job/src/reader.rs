//! Reads TOML with line numbers by the definitions of its keys.
//!
//! A failed read adds an [`Error`] to the [`Source`] and returns [`Reported`]. Callers read all keys before
//! they use `?`, so that every fault of a file is reported at once.

use crate::error::{Error, Errors, Place, masked, one_of};
use crate::form::Form;
use crate::key::{Fallback, JobKey, Section};
use crate::suggest::nearest;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::LazyLock;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The fault has been added to the source's errors.
#[derive(Clone, Copy, Debug)]
pub struct Reported;

pub type Read<T> = Result<T, Reported>;

/// A job file and the faults found so far.
pub struct Source<'a> {
    file: &'a str,
    text: &'a str,
    root: &'a DeTable<'a>,
    /// The tables of a job, for hints about misplaced keys.
    sections: &'a [&'static Section],
    errors: RefCell<Vec<Error>>,
    /// Keys of the chosen kind, by table.
    narrowed: RefCell<Vec<(&'static str, &'static [&'static JobKey])>>,
}

impl<'a> Source<'a> {
    pub fn new(
        file: &'a str,
        text: &'a str,
        root: &'a DeTable<'a>,
        sections: &'a [&'static Section],
    ) -> Self {
        let (errors, narrowed) = Default::default();
        Self { file, text, root, sections, errors, narrowed }
    }

    /// The result of a whole read.
    pub fn finish<T>(self, read: Read<T>) -> Result<T, Errors> {
        let errors = self.errors.into_inner();
        match read {
            Ok(value) if errors.is_empty() => Ok(value),
            _ => Err(in_order(errors)),
        }
    }

    /// Adds an error.
    pub fn report(
        &self,
        span: Option<Range<usize>>,
        key: impl Into<String>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Reported {
        let error = Error {
            file: self.file.to_owned(),
            place: span.map(|span| Place::locate(self.text, span)),
            key: key.into(),
            message: message.into(),
            hint,
        };
        // A table may be read twice.
        let mut errors = self.errors.borrow_mut();
        if !errors.contains(&error) {
            errors.push(error);
        }
        Reported
    }

    /// Reports a fault between tables, at the value of `path`, else at its innermost table in the file.
    pub fn report_at(&self, path: &[&str], message: impl Into<String>, hint: &str) -> Reported {
        let mut table = Some(self.root);
        let mut span = None;
        for name in path {
            let Some(item) = table.and_then(|table| table.get(*name)) else { break };
            span = Some(item.span());
            table = item.get_ref().as_table();
        }
        self.report(span, path.join("."), message, Some(hint.to_owned()))
    }

    /// Limits the known keys of a table, for the advice on unknown ones.
    pub fn narrow(&self, table: &'static str, keys: &'static [&'static JobKey]) {
        self.narrowed.borrow_mut().push((table, keys));
    }

    /// The string at a path, before any check.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.value_at(path)?.as_str()
    }

    /// The boolean at a path, before any check.
    pub fn bool_at(&self, path: &[&str]) -> Option<bool> {
        self.value_at(path)?.as_bool()
    }

    pub fn is_given(&self, path: &[&str]) -> bool {
        self.value_at(path).is_some()
    }

    fn value_at(&self, path: &[&str]) -> Option<&DeValue<'a>> {
        let (last, tables) = path.split_last()?;
        let table = tables
            .iter()
            .try_fold(self.root, |table, name| table.get(*name)?.get_ref().as_table())?;
        Some(table.get(*last)?.get_ref())
    }

    /// The name of a table in messages.
    fn table_name(&self, path: &str) -> String {
        match path {
            "" => "the job".to_owned(),
            path if self.section(path).is_some() => format!("[{path}]"),
            path => format!("`{path}`"),
        }
    }

    fn section(&self, name: &str) -> Option<&'static Section> {
        self.sections.iter().copied().find(|section| section.name == name)
    }
}

/// TOML syntax errors as errors of the job, one per line: the parser recovers and may repeat itself.
pub fn syntax_errors(file: &str, text: &str, faults: &[toml::de::Error]) -> Errors {
    let mut errors: Vec<Error> = Vec::new();
    for fault in faults {
        let place = fault.span().map(|span| Place::locate(text, span));
        let line = |place: &Option<Place>| place.as_ref().map(|place| place.line);
        if errors.iter().all(|known| line(&known.place) != line(&place)) {
            let (message, hint) = explain(text, fault);
            let message = format!("not valid TOML: {message}");
            errors.push(Error { file: file.to_owned(), place, key: String::new(), message, hint });
        }
    }
    in_order(errors)
}

/// Replaces the parser's guess that any unreadable value is an unquoted string.
fn explain(text: &str, fault: &toml::de::Error) -> (String, Option<String>) {
    if let Some(number) = fault.span().and_then(|span| decimal_comma(text, span.start)) {
        let hint = format!("numbers have a decimal point: {}", number.replace(',', "."));
        return (format!("`{number}` is not a number"), Some(hint));
    }
    if !fault.message().starts_with("string values must be quoted") {
        return (fault.message().to_owned(), None);
    }
    let written = fault.span().and_then(|span| text.get(span)).unwrap_or_default().trim();
    if written.is_empty() {
        return ("a value is missing".to_owned(), None);
    }
    let shown: String = masked(written).chars().take(40).flat_map(char::escape_debug).collect();
    let hint = "strings are written in quotes, and a key has one value";
    (format!("`{shown}` is not a value"), Some(hint.to_owned()))
}

/// The number whose decimal comma is at this place.
fn decimal_comma(text: &str, at: usize) -> Option<&str> {
    let (before, after) = (text.get(..at)?, text.get(at..)?.strip_prefix(',')?);
    let whole = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let part = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    // Lists separate numbers by commas; a value of a key stands behind `=`.
    let is_value = before[..at - whole].trim_end_matches(['-', ' ']).ends_with('=');
    (whole > 0 && part > 0 && is_value).then(|| &text[at - whole..=at + part])
}

/// Errors by line. Those of whole tables, such as missing keys, may follow from the others and are last.
fn in_order(mut errors: Vec<Error>) -> Errors {
    errors.sort_by_key(|error| {
        let place = error.place.as_ref();
        place.map(|place| (place.text.trim_start().starts_with('['), place.line, place.column))
    });
    Errors { errors }
}

/// A table of the file with the definition of its keys.
pub struct Reader<'a> {
    source: &'a Source<'a>,
    section: &'static Section,
    /// Position of the table; `None` for the root.
    span: Option<Range<usize>>,
    path: String,
    table: &'a DeTable<'a>,
    /// A default, whose spans do not refer to the file.
    is_default: bool,
}

impl<'a> Reader<'a> {
    pub fn root(source: &'a Source<'a>, section: &'static Section) -> Self {
        let (path, table) = (String::new(), source.root);
        Self { source, section, span: None, path, table, is_default: false }.open()
    }

    /// Reports unknown keys.
    fn open(self) -> Self {
        for (name, item) in self.table.iter() {
            if !self.section.keys.iter().any(|key| key.name == name.get_ref().as_ref()) {
                self.unknown_key(name.span(), name.get_ref(), item.get_ref().is_table());
            }
        }
        self
    }

    pub fn has(&self, key: &JobKey) -> bool {
        self.table.contains_key(key.name)
    }

    /// Reads a key or its default.
    pub fn read<T>(
        &self,
        key: &'static JobKey,
        read: impl FnOnce(Value<'_>) -> Read<T>,
    ) -> Read<T> {
        match (self.value(key), key.fallback) {
            (Some(value), _) => read(value),
            (None, Fallback::Default(write)) => {
                let text = write();
                let item = DeValue::parse(&text).expect("a default is valid TOML");
                let (path, home) = (self.path_of(key), self.span.clone());
                read(Value { source: self.source, key, path, item: &item, home, is_default: true })
            }
            (None, Fallback::Required | Fallback::Unset(_)) => Err(self.missing(key)),
        }
    }

    /// A required table.
    pub fn table(&self, key: &'static JobKey, section: &'static Section) -> Read<Reader<'a>> {
        self.value(key).ok_or_else(|| self.missing(key))?.table(section)
    }

    /// Reads an optional key.
    pub fn optional<T>(
        &self,
        key: &'static JobKey,
        read: impl FnOnce(Value<'_>) -> Read<T>,
    ) -> Read<Option<T>> {
        self.value(key).map(read).transpose()
    }

    /// Reads a key or its default by a form.
    pub fn read_as<T>(&self, key: &'static JobKey, form: &Form<T>) -> Read<T> {
        self.read(key, |v| form.read(&v))
    }

    /// Reads an optional key by a form.
    pub fn optional_as<T>(&self, key: &'static JobKey, form: &Form<T>) -> Read<Option<T>> {
        self.optional(key, |v| form.read(&v))
    }

    /// Reports keys that do not apply to a kind.
    pub fn check_meaning(&self, kind: &str) {
        let all = self.section.keys.iter().filter(|key| !key.applies_to(kind));
        all.for_each(|key| self.refuse_for(key, kind));
    }

    fn refuse_for(&self, key: &JobKey, kind: &str) {
        let why = key.only.map_or("", |only| only.why);
        self.refuse_if_given(key, &format!("has no meaning for {kind}: {why}"));
    }

    /// Reports a key if it is given; `why` follows its name in the message.
    pub fn refuse_if_given(&self, key: &JobKey, why: &str) {
        if let Some((name, _)) = self.table.get_key_value(key.name) {
            let message = format!("`{}` {why}", key.name);
            let hint = Some(format!("take `{}` out", key.name));
            self.source.report(Some(name.span()), self.path_of(key), message, hint);
        }
    }

    /// Reports two exclusive keys if both are given.
    pub fn refuse_both(&self, first: &JobKey, second: &JobKey) -> Read<()> {
        let given = |key: &JobKey| self.table.get_key_value(key.name).map(|(name, _)| name.span());
        let (Some(a), Some(b)) = (given(first), given(second)) else { return Ok(()) };
        let later = if a.start < b.start { (second, b) } else { (first, a) };
        let message = format!(
            "`{}` and `{}` in {} cannot both be given",
            first.name,
            second.name,
            self.name()
        );
        let hint = Some(format!("keep one of `{}` and `{}`", first.name, second.name));
        Err(self.source.report(Some(later.1), self.path_of(later.0), message, hint))
    }

    /// Reports a missing key or table.
    pub fn missing(&self, key: &JobKey) -> Reported {
        if let Some(section) = self.source.section(key.name).filter(|_| self.path.is_empty()) {
            let needs: Vec<String> = section
                .keys
                .iter()
                .filter(|key| matches!(key.fallback, Fallback::Required) && key.only.is_none())
                // Other required keys depend on the kind.
                .take(if section.keys[0].name == "kind" { 1 } else { usize::MAX })
                .map(|key| format!("`{}`", key.name))
                .collect();
            let message = format!("the job has no [{}] table", key.name);
            let hint =
                format!("[{}] describes {}; it needs {}", key.name, key.doc, needs.join(", "));
            return self.lacking(key, message, hint);
        }
        let known = || self.section.keys.iter().map(|key| key.name);
        // An unknown key that was meant as this one is reported.
        if self.table.keys().any(|written| nearest(written.get_ref(), known()) == Some(key.name)) {
            return Reported;
        }
        let message = format!("missing key `{}` in {}", key.name, self.name());
        self.lacking(key, message, format!("`{}` takes {}: {}", key.name, key.takes(), key.doc))
    }

    /// Reports something missing in this table.
    pub fn lacking(
        &self,
        key: &JobKey,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Reported {
        self.source.report(self.span.clone(), self.path_of(key), message, Some(hint.into()))
    }

    /// Reports a fault of a key, at its value if it is given.
    pub fn fault(
        &self,
        key: &'static JobKey,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Reported {
        match self.value(key) {
            Some(value) => value.fail(message, hint),
            None => self.lacking(key, message, hint),
        }
    }

    fn value(&self, key: &'static JobKey) -> Option<Value<'a>> {
        debug_assert!(self.section.keys.iter().any(|known| known.name == key.name));
        let item = self.table.get(key.name)?;
        let (path, home) = (self.path_of(key), self.span.clone());
        Some(Value { source: self.source, key, path, item, home, is_default: self.is_default })
    }

    fn path_of(&self, key: &JobKey) -> String {
        if self.path.is_empty() {
            key.name.to_owned()
        } else {
            format!("{}.{}", self.path, key.name)
        }
    }

    fn name(&self) -> String {
        self.source.table_name(&self.path)
    }

    fn unknown_key(&self, span: Range<usize>, written: &str, is_table: bool) {
        let quote = |name: &str| {
            if is_table && self.path.is_empty() { format!("[{name}]") } else { format!("`{name}`") }
        };
        let narrowed = self.source.narrowed.borrow();
        let narrowed = narrowed.iter().find(|(name, keys)| *name == self.path && !keys.is_empty());
        let keys = narrowed.map_or(self.section.keys, |(_, keys)| keys);
        let known = || keys.iter().map(|key| key.name);
        let elsewhere = self.source.sections.iter().filter(|section| {
            section.name != self.path && section.keys.iter().any(|key| key.name == written)
        });
        let elsewhere: Vec<&str> = elsewhere.map(|section| section.name).collect();
        let hint = match (nearest(written, known()), &elsewhere[..]) {
            (Some(near), _) => format!("did you mean {}?", quote(near)),
            (None, ["", ..]) => {
                format!("`{written}` belongs at the top of the file, above the first table")
            }
            (None, tables @ [_, ..]) => {
                let tables: Vec<String> = tables.iter().map(|name| format!("[{name}]")).collect();
                format!("`{written}` belongs in {}", one_of(&tables))
            }
            (None, []) => {
                let known: Vec<String> = known().map(|name| format!("`{name}`")).collect();
                format!("known here: {}", known.join(", "))
            }
        };
        let path = format!("{}.{written}", self.path).trim_start_matches('.').to_owned();
        let shown: String = written.chars().take(60).flat_map(char::escape_debug).collect();
        let message = if is_table && self.path.is_empty() {
            format!("unknown table [{shown}]")
        } else {
            format!("unknown key `{shown}` in {}", self.name())
        };
        self.source.report(Some(span), path, message, Some(hint));
    }
}

/// A value of the file or an element of one, with its key.
#[derive(Clone)]
pub struct Value<'a> {
    source: &'a Source<'a>,
    key: &'static JobKey,
    path: String,
    item: &'a Spanned<DeValue<'a>>,
    /// Position of its table, which stands for the place of a default.
    home: Option<Range<usize>>,
    is_default: bool,
}

/// The TOML type of a value.
pub enum Shape {
    Number,
    Text,
    List,
    Table,
    Flag,
    Date,
}

impl<'a> Value<'a> {
    pub fn shape(&self) -> Shape {
        match self.item.get_ref() {
            DeValue::Integer(_) | DeValue::Float(_) => Shape::Number,
            DeValue::String(_) => Shape::Text,
            DeValue::Array(_) => Shape::List,
            DeValue::Table(_) => Shape::Table,
            DeValue::Boolean(_) => Shape::Flag,
            DeValue::Datetime(_) => Shape::Date,
        }
    }

    /// Whether the key is absent.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    fn span(&self) -> Option<Range<usize>> {
        if self.is_default { self.home.clone() } else { Some(self.item.span()) }
    }

    /// An integer in a range, which the key's definition describes.
    pub fn integer(&self, range: std::ops::RangeInclusive<u64>) -> Read<u64> {
        self.item
            .get_ref()
            .as_integer()
            .and_then(|digits| i128::from_str_radix(digits.as_str(), digits.radix()).ok())
            .and_then(|n| u64::try_from(n).ok())
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.refuse())
    }

    /// An integer from 1 to 2^32 - 1.
    pub fn count(&self) -> Read<usize> {
        self.integer(1..=u64::from(u32::MAX)).map(|n| n as usize)
    }

    /// An integer from 1 to 2^32 - 1.
    pub fn count_u32(&self) -> Read<u32> {
        self.integer(1..=u64::from(u32::MAX)).map(|n| n as u32)
    }

    /// A finite number that passes a test, which the key's definition describes.
    pub fn number(&self, test: impl FnOnce(f64) -> bool) -> Read<f64> {
        let number = match self.item.get_ref() {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(digits) => {
                i128::from_str_radix(digits.as_str(), digits.radix()).ok().map(|n| n as f64)
            }
            _ => None,
        };
        number.filter(|x| x.is_finite() && test(*x)).ok_or_else(|| self.refuse())
    }

    /// Whether the value looks like a file name: a string with a dot or a separator.
    pub fn is_path(&self) -> bool {
        self.item.get_ref().as_str().is_some_and(|text| text.contains(['.', '/', '\\']))
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Read<bool> {
        self.item.get_ref().as_bool().ok_or_else(|| self.refuse())
    }

    /// A non-empty string.
    pub fn text(&self) -> Read<String> {
        self.item
            .get_ref()
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| self.refuse())
    }

    pub fn list(&self) -> Read<Vec<Value<'a>>> {
        let items = self.item.get_ref().as_array().ok_or_else(|| self.refuse())?;
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, item)| Value { path: format!("{}[{i}]", self.path), item, ..self.clone() })
            .collect())
    }

    /// The first element, if the value is a list.
    pub fn first(&self) -> Option<Value<'a>> {
        let item = self.item.get_ref().as_array()?.first()?;
        Some(Value { item, ..self.clone() })
    }

    /// A table of known keys.
    pub fn table(&self, section: &'static Section) -> Read<Reader<'a>> {
        let table = self.item.get_ref().as_table().ok_or_else(|| self.refuse())?;
        Ok(self.reader(section, table, self.is_default))
    }

    /// An empty table of known keys.
    pub fn all_defaults(&self, section: &'static Section) -> Reader<'a> {
        static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);
        self.reader(section, &EMPTY, true)
    }

    fn reader(
        &self,
        section: &'static Section,
        table: &'a DeTable<'a>,
        is_default: bool,
    ) -> Reader<'a> {
        let (span, path) = (self.span(), self.path.clone());
        Reader { source: self.source, section, span, path, table, is_default }.open()
    }

    /// A table with arbitrary keys.
    pub fn entries(&self) -> Read<Vec<(String, Value<'a>)>> {
        let table = self.item.get_ref().as_table().ok_or_else(|| self.refuse())?;
        Ok(table
            .iter()
            .map(|(name, item)| {
                let path = format!("{}.{}", self.path, name.get_ref());
                (name.get_ref().to_string(), Value { path, item, ..self.clone() })
            })
            .collect())
    }

    /// Reports a value that the key does not accept.
    pub fn refuse(&self) -> Reported {
        let message =
            format!("`{}` takes {}, not {}", self.key.name, self.key.takes(), self.found());
        let quoted_number = self.item.get_ref().as_str().is_some_and(|text| {
            text.parse::<f64>().is_ok() && !matches!(self.key.takes().chars().next(), Some('"'))
        });
        let hint = quoted_number.then(|| "numbers are written without quotes".to_owned());
        self.source.report(self.span(), &self.path, message, hint)
    }

    /// Reports a fault of the value.
    pub fn fail(&self, message: impl Into<String>, hint: impl Into<String>) -> Reported {
        self.source.report(self.span(), &self.path, message, Some(hint.into()))
    }

    /// Reports an unknown word.
    pub fn unknown_word(&self, written: &str) -> Reported {
        self.unknown_among(written, &[])
    }

    /// Reports an unknown word where only some words fit the other keys; none stands for all.
    pub fn unknown_among(&self, written: &str, fitting: &[&str]) -> Reported {
        if self.key.words.is_empty() {
            return self.refuse();
        }
        let words = self.key.words.iter().map(|word| word.name);
        // A name that other programs use may be in the description of a word.
        let described = || {
            let asked = written.to_lowercase();
            let is_it = |doc: &str| doc.split(|c: char| !c.is_alphanumeric()).any(|w| w == asked);
            self.key.words.iter().find(|word| is_it(word.doc)).map(|word| word.name)
        };
        let table = self.path.rsplit_once('.').map_or("", |(table, _)| table);
        let table = self.source.table_name(table);
        let message = format!("unknown `{}` in {table}: {}", self.key.name, self.found());
        let quoted: Vec<String> = fitting.iter().map(|word| format!("\"{word}\"")).collect();
        let takes = if fitting.is_empty() { self.key.takes() } else { one_of(&quoted) };
        let near = nearest(written, fitting.iter().copied()).or_else(|| nearest(written, words));
        let near = near.or_else(described).map(|near| format!("did you mean \"{near}\"? "));
        self.fail(message, format!("{}`{}` takes {takes}", near.unwrap_or_default(), self.key.name))
    }

    /// The value as messages show it.
    fn found(&self) -> String {
        match self.item.get_ref() {
            DeValue::String(text) if text.is_empty() => "an empty string".to_owned(),
            DeValue::String(text) => {
                let shown: String =
                    masked(text).chars().take(40).flat_map(char::escape_debug).collect();
                format!("\"{shown}{}\"", if text.chars().count() > 40 { "..." } else { "" })
            }
            DeValue::Integer(digits) => digits.to_string(),
            DeValue::Float(float) => float.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        }
    }
}
