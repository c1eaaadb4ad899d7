//! How values of a type stand in a job file: what a key takes, how it is read, how it is written.
//!
//! A [`Form`] is a constant that keys share ([`COUNT`], [`POSITIVE`], [`integer!`](crate::integer)), and
//! [`table!`](crate::table) sets keys, fields and forms side by side: one line of it is the whole definition
//! of a key.

use crate::key::{Key, Section, Word};
use crate::reader::{Read, Reader, Value};
use crate::writer::{self, Writer};
use std::path::PathBuf;

/// How values of a type stand in a job file.
pub struct Form<T: 'static> {
    /// What a key of this form takes, in words.
    pub takes: &'static str,
    /// Words with a meaning of their own.
    pub words: &'static [Word],
    /// Inline tables.
    pub tables: &'static [&'static Section],
    /// Reads a value, or reports what is wrong with it.
    pub read: fn(&Value<'_>) -> Read<T>,
    /// Writes a value as TOML.
    pub write: fn(&T) -> String,
}

impl<T> Form<T> {
    /// A form without words and tables.
    pub const fn new(
        takes: &'static str,
        read: fn(&Value<'_>) -> Read<T>,
        write: fn(&T) -> String,
    ) -> Self {
        Self { takes, words: &[], tables: &[], read, write }
    }

    /// Gives it words.
    pub const fn words(mut self, words: &'static [Word]) -> Self {
        self.words = words;
        self
    }

    /// Gives it inline tables.
    pub const fn tables(mut self, tables: &'static [&'static Section]) -> Self {
        self.tables = tables;
        self
    }

    /// The same, described in other words.
    pub const fn takes(mut self, takes: &'static str) -> Self {
        self.takes = takes;
        self
    }
}

/// Keys of a job file that make up one value; made by [`table!`](crate::table).
pub struct Table<T: 'static> {
    /// The keys, in the order of the reference; not those of tables within.
    pub keys: &'static [&'static Key],
    /// Reads them; every fault is reported before the first ends the read.
    pub read: fn(&Reader<'_>) -> Read<T>,
    /// Writes them.
    pub write: fn(&T, &mut Writer),
}

impl<T> Table<T> {
    /// The table as the reference shows it.
    pub const fn section(&self, name: &'static str, doc: &'static str) -> Section {
        Section { name, doc, keys: self.keys, example: "" }
    }

    /// A value as an inline table.
    pub fn inline(&self, value: &T) -> String {
        let mut out = Writer::default();
        (self.write)(value, &mut out);
        out.finish_inline()
    }
}

/// `true` or `false`.
pub const BOOLEAN: Form<bool> =
    Form::new("true or false", |v| v.boolean(), |flag| flag.to_string());
/// A string that is not empty.
pub const TEXT: Form<String> = Form::new("a string", |v| v.text(), |text| writer::text(text));
/// A path.
pub const PATH: Form<PathBuf> = Form::new(
    "a path",
    |v| v.text().map(PathBuf::from),
    |path| writer::text(&path.to_string_lossy()),
);
/// A number of things.
pub const COUNT: Form<usize> =
    Form::new("an integer of at least 1", |v| v.count(), |n| n.to_string());
/// The same in 32 bits.
pub const COUNT_U32: Form<u32> =
    Form::new("an integer of at least 1", |v| v.count_u32(), |n| n.to_string());
/// A number above zero.
pub const POSITIVE: Form<f64> =
    Form::new("a positive number", |v| v.number(|x| x > 0.0), |x| writer::number(*x));
/// A number that is not negative.
pub const NOT_NEGATIVE: Form<f64> =
    Form::new("a number of at least 0", |v| v.number(|x| x >= 0.0), |x| writer::number(*x));
/// A share.
pub const SHARE: Form<f64> = Form::new(
    "a number from 0 to 1",
    |v| v.number(|x| (0.0..=1.0).contains(&x)),
    |x| writer::number(*x),
);

/// The form of integers in a range: `integer!(u32, 1 to 1000)`.
#[macro_export]
macro_rules! integer {
    ($type:ty, $from:literal to $to:literal) => {
        $crate::form::Form::<$type>::new(
            concat!("an integer from ", $from, " to ", $to),
            |v| v.integer($from..=$to).map(|n| n as $type),
            |n| n.to_string(),
        )
    };
}

/// The form of a [`Table`] as an inline table: `inline!(FALL: Decay, "a table { power, from }", &SECTION)`.
#[macro_export]
macro_rules! inline {
    ($table:ident: $type:ty, $takes:literal, $section:expr) => {
        $crate::form::Form::<$type>::new(
            $takes,
            |v| ($table.read)(&v.table($section)?),
            |value| $table.inline(value),
        )
        .tables(const { &[$section] })
    };
}

/// The form of values that [`named!`](crate::named) gives words: `words!(PARTS: Part)`.
#[macro_export]
macro_rules! words {
    ($named:ident: $type:ty) => {
        $crate::form::Form::<$type>::new(
            "",
            |v| v.named(&$named),
            |value| $crate::writer::text($named.name(value.clone())),
        )
        .words($named.words)
    };
}

/// Defines keys, and reads and writes a struct by them.
///
/// ```
/// use whimbrel_job::form::{COUNT, SHARE};
///
/// struct Small {
///     share: f64,
///     samples: usize,
///     clients: Option<usize>,
/// }
///
/// whimbrel_job::table! {
///     SMALL: Small {
///         share: SMALL_SHARE = "share", SHARE, default "0.9", "the share of clients with few samples";
///         samples: SAMPLES = "samples", COUNT, required, "how many samples these have";
///         clients: CLIENTS = "clients", COUNT, unset "all", "how many clients there are";
///     }
/// }
/// assert_eq!(SMALL.inline(&Small { share: 0.5, samples: 3, clients: None }), "{ share = 0.5, samples = 3 }");
/// ```
///
/// A line has the field, the key's constant and name, the form, what holds when the key is left out
/// (`required`; `default` and a TOML value; `unset` and what holds then, for an `Option`) and what the key
/// stands for. `, only (KINDS, WHY)` after the type limits the keys to some kinds. Fields with several keys
/// stand first, with a table of their own whose keys stand beside these: `+ chains: CHAINS;`. Fields that no
/// key sets follow the lines: `..{ batch: None }`.
#[macro_export]
macro_rules! table {
    (@all $table:ident: $type:ident, $only:tt,
        $(+ $within:ident: $inner:ident;)*
        $($field:ident: $key:ident = $name:literal, $form:expr, $how:ident $($fallback:literal)?, $doc:expr;)+
        $(..{ $($other:ident: $value:expr),+ $(,)? })?
    ) => {
        $(pub(crate) static $key: $crate::key::Key = $crate::table!(@only $only
            $crate::table!(@key $name, $form, $how $($fallback)?, $doc)
                .words($form.words)
                .tables($form.tables));)+

        pub(crate) const $table: $crate::form::Table<$type> = $crate::form::Table {
            keys: &[$(&$key),+],
            read: |reader| {
                $(let $within = ($inner.read)(reader);)*
                $(let $field = $crate::table!(@read reader, $key, $form, $how);)+
                Ok($type { $($within: $within?,)* $($field: $field?,)+ $($($other: $value,)+)? })
            },
            write: |value, out| {
                $(($inner.write)(&value.$within, out);)*
                $($crate::table!(@write value.$field, out, $key, $form, $how);)+
            },
        };
    };
    (@key $name:literal, $form:expr, required, $doc:expr) => {
        $crate::key::Key::required($name, $form.takes, $doc)
    };
    (@key $name:literal, $form:expr, default $value:literal, $doc:expr) => {
        $crate::key::Key::default($name, $form.takes, $value, $doc)
    };
    (@key $name:literal, $form:expr, unset $unset:literal, $doc:expr) => {
        $crate::key::Key::optional($name, $form.takes, $unset, $doc)
    };
    (@only () $key:expr) => { $key };
    (@only ($kinds:expr, $why:expr) $key:expr) => { $key.only($kinds, $why) };
    (@read $reader:ident, $key:ident, $form:expr, unset) => {
        $reader.optional(&$key, |v| ($form.read)(&v))
    };
    (@read $reader:ident, $key:ident, $form:expr, $how:ident) => {
        $reader.read(&$key, |v| ($form.read)(&v))
    };
    (@write $value:expr, $out:ident, $key:ident, $form:expr, unset) => {
        if let Some(value) = &$value {
            $out.put(&$key, ($form.write)(value));
        }
    };
    (@write $value:expr, $out:ident, $key:ident, $form:expr, $how:ident) => {
        $out.put(&$key, ($form.write)(&$value))
    };
    ($table:ident: $type:ident, only $only:tt { $($lines:tt)+ }) => {
        $crate::table! { @all $table: $type, $only, $($lines)+ }
    };
    ($table:ident: $type:ident { $($lines:tt)+ }) => {
        $crate::table! { @all $table: $type, (), $($lines)+ }
    };
}
