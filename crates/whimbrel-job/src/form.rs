//! Forms of values in a job file, and tables of keys.
//!
//! A [`Form`] describes, reads and writes the values of a type; keys share forms such as [`COUNT`] and
//! [`POSITIVE`]. The macros [`integer!`](crate::integer), [`number!`](crate::number), [`list!`](crate::list),
//! [`inline!`](crate::inline) and [`form!`](crate::form!) make others. [`table!`](crate::table) maps the
//! fields of a struct to keys: one of its lines is the whole definition of a key.

use crate::key::{JobKey, Section, Word};
use crate::reader::{Read, Reader, Value};
use crate::writer::{self, Writer};
use std::path::PathBuf;

/// Description, reader and writer of values of a type.
pub struct Form<T: 'static> {
    /// Description of the values; empty: derived from the words or the table's keys.
    pub takes: &'static str,
    /// Words among the values.
    pub words: &'static [Word],
    /// Inline tables among the values.
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

    pub const fn words(mut self, words: &'static [Word]) -> Self {
        self.words = words;
        self
    }

    pub const fn tables(mut self, tables: &'static [&'static Section]) -> Self {
        self.tables = tables;
        self
    }

    /// The same form with another description.
    pub const fn takes(mut self, takes: &'static str) -> Self {
        self.takes = takes;
        self
    }

    /// Reads a value or reports its fault.
    pub fn read(&self, value: &Value<'_>) -> Read<T> {
        (self.read)(value)
    }

    /// Writes a value as TOML.
    pub fn write(&self, value: &T) -> String {
        (self.write)(value)
    }

    /// The word for a value; empty if there is none.
    pub fn name(&self, value: &T) -> &'static str {
        let written = self.write(value);
        self.words.iter().find(|word| writer::text(word.name) == written).map_or("", |w| w.name)
    }

    /// A required key of this form.
    pub const fn required(&self, name: &'static str, doc: &'static str) -> JobKey {
        JobKey::required(name, self.takes, doc).words(self.words).tables(self.tables)
    }

    /// A key of this form with a default as TOML.
    pub const fn default(
        &self,
        name: &'static str,
        value: fn() -> String,
        doc: &'static str,
    ) -> JobKey {
        JobKey::default(name, self.takes, value, doc).words(self.words).tables(self.tables)
    }

    /// An optional key of this form; `unset` describes the behaviour without it.
    pub const fn unset(
        &self,
        name: &'static str,
        unset: &'static str,
        doc: &'static str,
    ) -> JobKey {
        JobKey::optional(name, self.takes, unset, doc).words(self.words).tables(self.tables)
    }
}

/// Keys that make up one value; defined by [`table!`](crate::table).
pub struct Table<T: 'static> {
    /// Own keys first, then those of nested tables.
    pub section: Section,
    pub read: fn(&Reader<'_>) -> Read<T>,
    pub write: fn(&T, &mut Writer),
}

impl<T> Table<T> {
    /// Reads all keys, so that all faults are reported, then fails if one did.
    pub fn read(&self, reader: &Reader<'_>) -> Read<T> {
        (self.read)(reader)
    }

    pub fn write(&self, value: &T, out: &mut Writer) {
        (self.write)(value, out);
    }

    /// The value as an inline table.
    pub fn inline(&self, value: &T) -> String {
        let mut out = Writer::default();
        self.write(value, &mut out);
        out.finish_inline()
    }
}

/// The concatenation of lists of `N` keys in all.
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

/// The number of keys in several lists.
pub const fn count(lists: &[&[&'static JobKey]]) -> usize {
    let (mut list, mut count) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

/// Concatenates lists of keys: `keys! { RUN_KEYS, &[&STEP, &MOMENTUM] }`.
#[macro_export]
macro_rules! keys {
    ($($list:expr),+ $(,)?) => {
        const {
            const LISTS: &[&[&$crate::key::JobKey]] = &[$($list),+];
            &$crate::form::join::<{ $crate::form::count(LISTS) }>(LISTS)
        }
    };
}

pub const BOOLEAN: Form<bool> =
    Form::new("true or false", |v| v.boolean(), |flag| flag.to_string());
/// Non-empty strings.
pub const TEXT: Form<String> = Form::new("a string", |v| v.text(), |text| writer::text(text));
/// Names of columns.
pub const COLUMN: Form<String> = TEXT.takes("a column name");
/// Names of clients.
pub const CLIENTS: Form<Vec<String>> = crate::list!(TEXT, "a list of client names");
/// File names as written; the program that runs the job resolves them against the job's folder.
pub const PATH: Form<PathBuf> = Form::new(
    "a file name",
    |v| v.text().map(PathBuf::from),
    |path| writer::text(&path.to_string_lossy()),
);
/// Integers of at least 1.
pub const COUNT: Form<usize> =
    Form::new("an integer of at least 1", |v| v.count(), |n| n.to_string());
/// 32-bit integers of at least 1.
pub const COUNT_U32: Form<u32> =
    Form::new("an integer of at least 1", |v| v.count_u32(), |n| n.to_string());
/// Seeds.
pub const SEED: Form<u64> = crate::integer!(u64, 0 to 18446744073709551615);
/// Numbers above 0.
pub const POSITIVE: Form<f64> = crate::number!("a positive number", |x| x > 0.0);
/// Non-negative numbers.
pub const NOT_NEGATIVE: Form<f64> = crate::number!("a number of at least 0", |x| x >= 0.0);
/// Numbers in [0, 1].
pub const SHARE: Form<f64> = crate::number!("a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
/// Numbers in [0, 1).
pub const BELOW_ONE: Form<f64> =
    crate::number!("a number from 0 to below 1", |x| (0.0..1.0).contains(&x));
/// Numbers in (0, 1].
pub const ABOVE_ZERO: Form<f64> =
    crate::number!("a number above 0 and at most 1", |x| x > 0.0 && x <= 1.0);

/// Numbers that pass a test: `number!("a positive number", |x| x > 0.0)`.
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

/// Integers in a range: `integer!(u32, 1 to 1000)`.
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

/// Lists of values of a form: `list!(COUNT, "a list of integers of at least 1")`; `some` before the form
/// refuses the empty list.
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

/// A [`Table`] as an inline table: `inline!(DECAY)`.
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

/// Defines a form by words for some values and forms for the others.
///
/// ```
/// use whimbrel_job::form::{COUNT_U32, Form};
///
/// #[derive(Clone, PartialEq)]
/// enum Reset { Auto, Never, Every(u32) }
///
/// whimbrel_job::form! {
///     RESET: Reset, "\"auto\", \"never\" or an integer of at least 1" {
///         /// every 100 rounds
///         "auto" => Reset::Auto,
///         /// not at all
///         "never" => Reset::Never,
///     }
///     number COUNT_U32 => Reset::Every;
/// }
/// assert_eq!(RESET.write(&Reset::Every(3)), "3");
/// assert_eq!(RESET.name(&Reset::Never), "never");
/// ```
///
/// A line after the words has the shape of a value (`number`, `list`, `table`, `flag`, `text`, or `path` for a
/// string that looks like a file name), its form, and the constructor that wraps it; without `=>` the form
/// yields the type itself. `any` before a word: it stands for all values of that variant, whose fields are
/// other keys. The doc comment of a word is its meaning in the reference.
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
        $($(#[doc = $doc:literal])+ $($any:ident)? $word:literal => $value:expr,)*
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
        .words(&[$($crate::key::Word { name: $word, doc: $crate::meaning!($($doc)+) },)*])
        .tables($crate::form!(@tables $($shape $form;)*));
    };
}

/// The lines of a doc comment as one text.
#[doc(hidden)]
#[macro_export]
macro_rules! meaning {
    ($($line:literal)+) => { concat!($($line),+).trim_ascii_start() };
}

/// Defines an enum, the word for each variant in a job file, and its meaning.
#[macro_export]
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $name {
            $crate::form! {
                /// The words in a job file.
                pub FORM: $name { $($(#[doc = $doc])+ $word => $name::$variant,)+ }
            }

            /// The word in a job file.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

/// Defines keys outside of tables, by lines as in [`table!`](crate::table) without a field.
///
/// ```
/// use whimbrel_job::form::{BOOLEAN, COUNT};
///
/// whimbrel_job::define_keys! {
///     /// number of rounds
///     pub ROUNDS = "rounds", COUNT, required;
///     /// whether rows are drawn with replacement
///     pub REPLACEMENT = "replacement", BOOLEAN, default(true);
/// }
/// assert_eq!(ROUNDS.name, "rounds");
/// ```
#[macro_export]
macro_rules! define_keys {
    ($($(#[doc = $doc:literal])+ $vis:vis $key:ident = $name:literal, $form:expr,
        $how:ident $(($default:expr))? $($unset:literal)? $(, only $limits:tt)?;)+) => {
        $($(#[doc = $doc])+ $vis static $key: $crate::key::JobKey = $crate::table!(@only [$($limits)?]
            $crate::table!(@key () $name, $form, $how $(($default))? $($unset)?,
                $crate::meaning!($($doc)+)));)+
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
///         /// fraction of clients with few samples
///         share: SMALL_SHARE = "share", SHARE, default(0.9);
///         /// number of samples of these
///         samples: SAMPLES = "samples", COUNT, required;
///         /// number of clients
///         clients: CLIENTS = "clients", COUNT, unset "all";
///     }
/// }
/// assert_eq!(SMALL.inline(&Small { share: 0.5, samples: 3, clients: None }), "{ share = 0.5, samples = 3 }");
/// ```
///
/// A line has the field, the key's constant and name, the form, and the rule for an absent key. Its doc comment is
/// the meaning of the key in the reference.
/// The rules are
///
/// - `required`;
/// - `default`: the value of the field in the type's `Default`; `default(VALUE)`: this value;
/// - `unset "text"`: the field is an `Option`; `unset "text" or VALUE`: this value, which the text explains.
///
/// `, only (KINDS, WHY)` after the rule restricts the key to some kinds, after the type all keys. The type
/// may be a variant of an enum; other variants write nothing. `= "name", "doc"` after the type, and `example
/// "text"` after those, describe a table of the reference. `then CHECK` passes the value read to a function
/// `(&Reader, T) -> Read<T>`.
///
/// Before these lines come fields that have a table (`+ chains: CHAINS;`, its keys are listed last) and fields
/// with a key defined elsewhere (`& clients: CLIENTS, COUNT, unset or 100;`). After them come fields without
/// a key: `..{ batch: None }` or `..from Chains::default()`. A table of one key has a line without a field:
/// `/// in units of 1/L` above `SHARE = "share", POSITIVE, required;` in `SHARES: f64 = "gamma", "the step" { ... }`.
#[macro_export]
macro_rules! table {
    (@all $vis:vis, $table:ident: $type:ident $(:: $variant:ident)?, $section:tt, $only:tt, $check:tt,
        $(+ $within:ident: $inner:ident;)*
        $(& $shared:ident: $known:ident, $known_form:expr, $known_how:ident $(or $known_or:expr)?;)*
        $($(#[doc = $doc:literal])+ $field:ident: $key:ident = $name:literal, $form:expr,
            $how:ident $(($default:expr))? $($unset:literal)? $(or $or:expr)? $(, only $limits:tt)?;)*
        $(..{ $($other:ident: $value:expr),+ $(,)? })?
        $(..from $base:expr)?
    ) => {
        $($(#[doc = $doc])+ $vis static $key: $crate::key::JobKey = $crate::table!(@only [$($limits)?]
            $crate::table!(@only $only
                $crate::table!(@key (<$type>::default().$field) $name, $form, $how $(($default))? $($unset)?,
                    $crate::meaning!($($doc)+))));)*

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
    (@section [$($name:literal, $doc:literal $(, $example:literal)?)?], $keys:expr) => {
        $crate::key::Section {
            name: concat!($($name)?),
            doc: concat!($($doc)?),
            keys: $keys,
            example: concat!($($($example)?)?),
        }
    };
    (@key $of:tt $name:literal, $form:expr, required, $doc:expr) => { $form.required($name, $doc) };
    (@key ($of:expr) $name:literal, $form:expr, default, $doc:expr) => {
        $form.default($name, || $form.write(&$of), $doc)
    };
    (@key $of:tt $name:literal, $form:expr, default ($value:expr), $doc:expr) => {
        $form.default($name, || $form.write(&$value), $doc)
    };
    (@key $of:tt $name:literal, $form:expr, unset $unset:literal, $doc:expr) => {
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
        $(#[doc = $key_doc:literal])+ $key:ident = $key_name:literal, $form:expr, $how:ident;
    }) => {
        $(#[doc = $key_doc])+
        $vis static $key: $crate::key::JobKey =
            $crate::table!(@key (<$type>::default()) $key_name, $form, $how, $crate::meaning!($($key_doc)+));

        #[doc = concat!("Reads and writes `", stringify!($type), "`.")]
        $vis const $table: $crate::form::Table<$type> = $crate::form::Table {
            section: $crate::table!(@section [$name, $doc], &[&$key]),
            read: |reader| $crate::table!(@read reader, $key, $form, $how),
            write: |value, out| $crate::table!(@write value, out, $key, $form, $how),
        };
    };
    ($vis:vis $table:ident: $type:ident $(:: $variant:ident)?
        $(= $name:literal, $doc:literal $(, example $example:literal)?)?
        $(, only $only:tt)? $(, then $check:ident)? { $($lines:tt)+ }) => {
        $crate::table! {
            @all $vis, $table: $type $(:: $variant)?, [$($name, $doc $(, $example)?)?], [$($only)?], [$($check)?],
            $($lines)+
        }
    };
}
