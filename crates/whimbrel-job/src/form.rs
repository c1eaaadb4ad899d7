//! How values of a type stand in a job file: what a key takes, how it is read, how it is written.
//!
//! A [`Form`] is a constant that keys share ([`COUNT`], [`POSITIVE`], [`integer!`](crate::integer),
//! [`form!`](crate::form!)), and [`table!`](crate::table) sets keys, fields and forms side by side: one line
//! of it is the whole definition of a key.

use crate::key::{JobKey, Section, Word};
use crate::reader::{Read, Reader, Value};
use crate::writer::{self, Writer};
use std::path::PathBuf;

/// How values of a type stand in a job file.
pub struct Form<T: 'static> {
    /// What a key of this form takes, in words; empty: its words, or its table's keys.
    pub takes: &'static str,
    /// Words with a meaning of their own.
    pub words: &'static [Word],
    /// Inline tables.
    pub tables: &'static [&'static Section],
    read: fn(&Value<'_>) -> Read<T>,
    write: fn(&T) -> String,
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

    /// Reads a value, or reports what is wrong with it.
    pub fn read(&self, value: &Value<'_>) -> Read<T> {
        (self.read)(value)
    }

    /// Writes a value as TOML.
    pub fn write(&self, value: &T) -> String {
        (self.write)(value)
    }

    /// The word that stands for a value; empty where none does.
    pub fn name(&self, value: &T) -> &'static str {
        let written = self.write(value);
        self.words.iter().find(|word| writer::text(word.name) == written).map_or("", |w| w.name)
    }

    /// A key of this form that must be given.
    pub const fn required(&self, name: &'static str, doc: &'static str) -> JobKey {
        JobKey::required(name, self.takes, doc).words(self.words).tables(self.tables)
    }

    /// A key of this form with a default, written as TOML.
    pub const fn default(
        &self,
        name: &'static str,
        value: &'static str,
        doc: &'static str,
    ) -> JobKey {
        JobKey::default(name, self.takes, value, doc).words(self.words).tables(self.tables)
    }

    /// A key of this form whose default is that of its type, as this writes it.
    pub const fn default_of(
        &self,
        name: &'static str,
        value: fn() -> String,
        doc: &'static str,
    ) -> JobKey {
        JobKey::default_of(name, self.takes, value, doc).words(self.words).tables(self.tables)
    }

    /// A key of this form that may be left out, and what holds then.
    pub const fn unset(
        &self,
        name: &'static str,
        unset: &'static str,
        doc: &'static str,
    ) -> JobKey {
        JobKey::optional(name, self.takes, unset, doc).words(self.words).tables(self.tables)
    }
}

/// Keys of a job file that make up one value; made by [`table!`](crate::table).
pub struct Table<T: 'static> {
    /// The table as the reference shows it; its own keys come first, then those of the tables within.
    pub section: Section,
    /// Reads them; every fault is reported before the first ends the read.
    pub read: fn(&Reader<'_>) -> Read<T>,
    /// Writes them.
    pub write: fn(&T, &mut Writer),
}

impl<T> Table<T> {
    /// Reads the keys; every fault is reported before the first ends the read.
    pub fn read(&self, reader: &Reader<'_>) -> Read<T> {
        (self.read)(reader)
    }

    /// Writes the keys.
    pub fn write(&self, value: &T, out: &mut Writer) {
        (self.write)(value, out);
    }

    /// A value as an inline table.
    pub fn inline(&self, value: &T) -> String {
        let mut out = Writer::default();
        self.write(value, &mut out);
        out.finish_inline()
    }
}

/// The keys of several lists, of so many in all.
pub const fn join<const N: usize>(lists: &[&[&'static JobKey]]) -> [&'static JobKey; N] {
    static NONE: JobKey = JobKey::required("", "", "");
    let mut all = [&NONE; N];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            all[at] = lists[list][i];
            (i, at) = (i + 1, at + 1);
        }
        list += 1;
    }
    all
}

/// How many keys several lists have.
pub const fn count(lists: &[&[&'static JobKey]]) -> usize {
    let (mut list, mut count) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

/// The keys of several lists as one: `keys! { RUN_KEYS, &[&STEP, &MOMENTUM] }`.
#[macro_export]
macro_rules! keys {
    ($($list:expr),+ $(,)?) => {
        const {
            const LISTS: &[&[&$crate::key::JobKey]] = &[$($list),+];
            &$crate::form::join::<{ $crate::form::count(LISTS) }>(LISTS)
        }
    };
}

/// `true` or `false`.
pub const BOOLEAN: Form<bool> =
    Form::new("true or false", |v| v.boolean(), |flag| flag.to_string());
/// A string that is not empty.
pub const TEXT: Form<String> = Form::new("a string", |v| v.text(), |text| writer::text(text));
/// A column's name.
pub const COLUMN: Form<String> = TEXT.takes("a column name");
/// Names of clients.
pub const CLIENTS: Form<Vec<String>> = crate::list!(TEXT, "a list of client names");
/// A file name, kept as written: whoever runs the job resolves it against the job's folder.
pub const PATH: Form<PathBuf> = Form::new(
    "a file name",
    |v| v.text().map(PathBuf::from),
    |path| writer::text(&path.to_string_lossy()),
);
/// A number of things.
pub const COUNT: Form<usize> =
    Form::new("an integer of at least 1", |v| v.count(), |n| n.to_string());
/// The same in 32 bits.
pub const COUNT_U32: Form<u32> =
    Form::new("an integer of at least 1", |v| v.count_u32(), |n| n.to_string());
/// A seed.
pub const SEED: Form<u64> = crate::integer!(u64, 0 to 18446744073709551615);
/// A number above zero.
pub const POSITIVE: Form<f64> = crate::number!("a positive number", |x| x > 0.0);
/// A number that is not negative.
pub const NOT_NEGATIVE: Form<f64> = crate::number!("a number of at least 0", |x| x >= 0.0);
/// A share.
pub const SHARE: Form<f64> = crate::number!("a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
/// A share that leaves something.
pub const BELOW_ONE: Form<f64> =
    crate::number!("a number from 0 to below 1", |x| (0.0..1.0).contains(&x));
/// A share of something.
pub const ABOVE_ZERO: Form<f64> =
    crate::number!("a number above 0 and at most 1", |x| x > 0.0 && x <= 1.0);

/// The form of numbers that pass a test: `number!("a positive number", |x| x > 0.0)`.
#[macro_export]
macro_rules! number {
    ($takes:expr, |$x:ident| $test:expr) => {
        $crate::form::Form::<f64>::new(
            $takes,
            |v| v.number(|$x| $test),
            |x| $crate::writer::number(*x),
        )
    };
}

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

/// The form of lists of values of a form: `list!(COUNT, "a list of integers of at least 1")`; `some` before
/// the form refuses the empty list.
#[macro_export]
macro_rules! list {
    (some $form:expr, $takes:expr) => {
        $crate::form::Form::<Vec<_>>::new(
            $takes,
            |v| match $crate::list!($form, "").read(v)? {
                all if all.is_empty() => Err(v.refuse()),
                all => Ok(all),
            },
            |all| $crate::list!($form, "").write(all),
        )
        .tables($form.tables)
    };
    ($form:expr, $takes:expr) => {
        $crate::form::Form::<Vec<_>>::new(
            $takes,
            |v| $crate::matrix::read_all(v.list()?, |item| $form.read(&item)),
            |all| $crate::writer::list(all.iter().map(|one| $form.write(one))),
        )
        .tables($form.tables)
    };
}

/// The form of a [`Table`] as an inline table: `inline!(FALL)`.
#[macro_export]
macro_rules! inline {
    ($table:expr) => {
        $crate::form::Form::new(
            "",
            |v| $table.read(&v.table(const { &$table.section })?),
            |value| $table.inline(value),
        )
        .tables(const { &[&$table.section] })
    };
}

/// Defines a form by the words for some values, and what a key of it takes besides.
///
/// ```
/// use whimbrel_job::form::{COUNT_U32, Form};
///
/// #[derive(Clone, PartialEq)]
/// enum Reset { Auto, Never, Every(u32) }
///
/// whimbrel_job::form! {
///     RESET: Reset, "\"auto\", \"never\" or an integer of at least 1" {
///         Reset::Auto => "auto": "every 100 rounds",
///         Reset::Never => "never": "not at all",
///     }
///     number COUNT_U32 => Reset::Every;
/// }
/// assert_eq!(RESET.write(&Reset::Every(3)), "3");
/// assert_eq!(RESET.name(&Reset::Never), "never");
/// ```
///
/// After the words: the shape of a value (`number`, `list`, `table`, `flag`, `text`, or `path` for a text that
/// looks like one), its form, and what makes the value of it; without `=>`, the form is one of the type itself.
/// `any` before a word: it is written for every value of that variant, whose other keys say the rest.
#[macro_export]
macro_rules! form {
    (@is number $v:ident) => { matches!($v.shape(), $crate::reader::Shape::Number) };
    (@is list $v:ident) => { matches!($v.shape(), $crate::reader::Shape::List) };
    (@is table $v:ident) => { matches!($v.shape(), $crate::reader::Shape::Table) };
    (@is flag $v:ident) => { matches!($v.shape(), $crate::reader::Shape::Flag) };
    (@is text $v:ident) => { matches!($v.shape(), $crate::reader::Shape::Text) };
    (@is path $v:ident) => { $v.is_path() };
    (@read $v:ident $form:expr) => { $form.read($v) };
    (@read $v:ident $form:expr, $($make:ident)::+) => { $form.read($v).map($($make)::+) };
    (@write $value:ident $form:expr) => { Some($form.write($value)) };
    (@write $value:ident $form:expr, $($make:ident)::+) => {
        match $value {
            $($make)::+(inner) => Some($form.write(inner)),
            _ => None,
        }
    };
    (@same $value:ident, $named:expr) => { *$value == $named };
    (@same any $value:ident, $named:expr) => {
        std::mem::discriminant($value) == std::mem::discriminant(&$named)
    };
    (@tables) => { &[] };
    (@tables table $form:expr; $($rest:tt)*) => { $form.tables };
    (@tables $shape:ident $form:expr; $($rest:tt)*) => { $crate::form!(@tables $($rest)*) };
    ($(#[$meta:meta])* $vis:vis $name:ident: $type:ty $(, $takes:literal)? {
        $($value:expr => $($any:ident)? $word:literal: $doc:literal,)*
    } $($shape:ident $form:expr $(=> $($make:ident)::+)?;)*) => {
        $(#[$meta])*
        $vis const $name: $crate::form::Form<$type> = $crate::form::Form::new(
            concat!($($takes)?),
            |v| {
                $(if $crate::form!(@is $shape v) {
                    return $crate::form!(@read v $form $(, $($make)::+)?);
                })*
                let word = v.text()?;
                $(if word == $word {
                    return Ok($value);
                })*
                Err(v.unknown_word(&word))
            },
            |value| {
                let written = None::<String>;
                $(let written = written.or_else(|| {
                    $crate::form!(@same $($any)? value, $value).then(|| $crate::writer::text($word))
                });)*
                $(let written = written.or_else(|| $crate::form!(@write value $form $(, $($make)::+)?));)*
                written.unwrap_or_default()
            },
        )
        .words(&[$($crate::key::Word { name: $word, doc: $doc },)*])
        .tables($crate::form!(@tables $($shape $form;)*));
    };
}

/// An enum of words: the type, what the job file calls each value, and what it means.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $name:ident { $($variant:ident = $word:literal: $doc:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $doc] $variant,)+
        }

        impl $name {
            $crate::form! {
                /// How it stands in a job file.
                pub FORM: $name { $($name::$variant => $word: $doc,)+ }
            }

            /// What a job file calls it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
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
/// (`required`; `default`, which is that of the type's `Default`, or `default` and a TOML value; `unset` and what holds then, for an `Option`; `unset`, what
/// holds then, `or` and that value) and what the key stands for; `, only (KINDS, WHY)` limits it to some
/// kinds. The same after the type limits all keys. The type may be a variant of an enum; writing another
/// one writes nothing. `= "name", "doc"` after the type is for tables with a name of their own. `then CHECK`
/// before the lines gives what was read to a function `(&Reader, T) -> Read<T>`.
///
/// Fields with several keys stand first, with a table of their own whose keys come after these: `+ chains:
/// CHAINS;`. Keys that several tables have are defined by one, or outside, and come next: `& clients:
/// CLIENTS, COUNT, unset or 100;`. Fields that no key sets follow the lines: `..{ batch: None }`, or
/// `..from Chains::default()`.
/// A table whose value is that of its one key has a line without a field: `SHARES: f64 = "gamma", "the step"
/// { SHARE = "share", POSITIVE, required, "times one over the smoothness"; }`.
#[macro_export]
macro_rules! table {
    (@all $vis:vis, $table:ident: $type:ident $(:: $variant:ident)?, $section:tt, $only:tt, $check:tt,
        $(+ $within:ident: $inner:ident;)*
        $(& $shared:ident: $known:ident, $known_form:expr, $known_how:ident $(or $known_or:expr)?;)*
        $($field:ident: $key:ident = $name:literal, $form:expr, $how:ident $($fallback:literal)? $(or $or:expr)?,
            $doc:literal $(, only $limits:tt)?;)*
        $(..{ $($other:ident: $value:expr),+ $(,)? })?
        $(..from $base:expr)?
    ) => {
        $(#[doc = $doc] $vis static $key: $crate::key::JobKey = $crate::table!(@only [$($limits)?]
            $crate::table!(@only $only
                $crate::table!(@key ($type, $field) $name, $form, $how $($fallback)?, $doc)));)*

        #[doc = concat!("Reads and writes `", stringify!($type), "`.")]
        $vis const $table: $crate::form::Table<$type> = $crate::form::Table {
            section: $crate::table!(@section $section, $crate::keys!(&[$(&$key),*] $(, $inner.section.keys)*)),
            read: |reader| {
                $(let $within = $inner.read(reader);)*
                $(let $shared = $crate::table!(@read reader, $known, $known_form, $known_how $(or $known_or)?);)*
                $(let $field = $crate::table!(@read reader, $key, $form, $how $(or $or)?);)*
                let value = $type $(:: $variant)? {
                    $($within: $within?,)*
                    $($shared: $shared?,)*
                    $($field: $field?,)*
                    $($($other: $value,)+)?
                    $(..$base)?
                };
                $crate::table!(@check $check reader, value)
            },
            write: |value, out| {
                #[allow(irrefutable_let_patterns, reason = "refutable for a variant")]
                let $type $(:: $variant)? { $($within,)* $($shared,)* $($field,)* .. } = value else {
                    return;
                };
                $($crate::table!(@write $shared, out, $known, $known_form, $known_how $(or $known_or)?);)*
                $($crate::table!(@write $field, out, $key, $form, $how $(or $or)?);)*
                $($inner.write($within, out);)*
            },
        };
    };
    (@section [$($name:literal, $doc:literal)?], $keys:expr) => {
        $crate::key::Section { name: concat!($($name)?), doc: concat!($($doc)?), keys: $keys, example: "" }
    };
    (@key $of:tt $name:literal, $form:expr, required, $doc:literal) => { $form.required($name, $doc) };
    (@key $of:tt $name:literal, $form:expr, default $value:literal, $doc:literal) => {
        $form.default($name, $value, $doc)
    };
    (@key ($type:ty, $field:ident) $name:literal, $form:expr, default, $doc:literal) => {
        $form.default_of($name, || $form.write(&<$type>::default().$field), $doc)
    };
    (@key $of:tt $name:literal, $form:expr, unset $unset:literal, $doc:literal) => {
        $form.unset($name, $unset, $doc)
    };
    (@only [] $key:expr) => { $key };
    (@only [($kinds:expr, $why:expr)] $key:expr) => { $key.only($kinds, $why) };
    (@check [] $reader:ident, $value:ident) => { Ok($value) };
    (@check [$check:ident] $reader:ident, $value:ident) => { $check($reader, $value) };
    (@read $reader:ident, $key:ident, $form:expr, unset) => { $reader.optional_as(&$key, &$form) };
    (@read $reader:ident, $key:ident, $form:expr, unset or $or:expr) => {
        $reader.optional_as(&$key, &$form).map(|given| given.unwrap_or_else(|| $or))
    };
    (@read $reader:ident, $key:ident, $form:expr, $how:ident) => { $reader.read_as(&$key, &$form) };
    (@write $value:ident, $out:ident, $key:ident, $form:expr, unset) => {
        if let Some(value) = $value {
            $out.put(&$key, $form.write(value));
        }
    };
    (@write $value:ident, $out:ident, $key:ident, $form:expr, $how:ident $(or $or:expr)?) => {
        $out.put(&$key, $form.write($value))
    };
    ($vis:vis $table:ident: $type:ty = $name:literal, $doc:literal {
        $key:ident = $key_name:literal, $form:expr, $how:ident $($fallback:literal)?, $key_doc:literal;
    }) => {
        #[doc = $key_doc]
        $vis static $key: $crate::key::JobKey =
            $crate::table!(@key () $key_name, $form, $how $($fallback)?, $key_doc);

        #[doc = concat!("Reads and writes `", stringify!($type), "`.")]
        $vis const $table: $crate::form::Table<$type> = $crate::form::Table {
            section: $crate::table!(@section [$name, $doc], &[&$key]),
            read: |reader| $crate::table!(@read reader, $key, $form, $how),
            write: |value, out| $crate::table!(@write value, out, $key, $form, $how),
        };
    };
    ($vis:vis $table:ident: $type:ident $(:: $variant:ident)? $(= $name:literal, $doc:literal)?
        $(, only $only:tt)? $(, then $check:ident)? { $($lines:tt)+ }) => {
        $crate::table! {
            @all $vis, $table: $type $(:: $variant)?, [$($name, $doc)?], [$($only)?], [$($check)?],
            $($lines)+
        }
    };
}
