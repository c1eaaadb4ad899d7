//! LEAF's JSON: users with their samples, numbers (FEMNIST) or windows of characters (Shakespeare).
//!
//! A file holds `users` and, in `user_data`, for each of them `x` and `y` of equal length. An `x` is a
//! list of numbers with a number for `y`, or a text with its next character.

use crate::hash::files_ending;
use crate::source::Source;
use crate::{Alphabet, Error, Result, number_classes};
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use whimbrel_core::{Inputs, Samples, Targets};

/// The users of LEAF's files, sorted by name, with their samples.
#[derive(Debug, Clone, PartialEq)]
pub struct LeafClients {
    /// The users' samples; test samples from separate files are held out.
    pub clients: Vec<(String, Samples)>,
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
}

/// Reads a file or all `.json` files of a folder, and the users' test samples likewise.
pub fn read_leaf(
    path: impl AsRef<Path>,
    tests: Option<&Path>,
    alphabet: &Alphabet,
) -> Result<LeafClients> {
    let mut users = Users { width: None, users: BTreeMap::new() };
    users.read(path.as_ref(), 0, alphabet)?;
    if let Some(tests) = tests {
        users.read(tests, 1, alphabet)?;
    }
    users.finish(alphabet)
}

/// A user's samples for training and for tests.
#[derive(Default)]
struct User([Raw; 2]);

/// Samples as read. Either the numbers or the symbols are empty.
#[derive(Default)]
struct Raw {
    numbers: Vec<f32>,
    symbols: Vec<u16>,
    labels: Vec<f64>,
}

struct Users {
    /// The length of an input, and whether it holds symbols.
    width: Option<(usize, bool)>,
    users: BTreeMap<String, User>,
}

impl Users {
    fn read(&mut self, path: &Path, part: usize, alphabet: &Alphabet) -> Result<()> {
        for file in files_ending(path, &[".json"])? {
            let source = Source::File(&file);
            let (name, bytes) = (source.name(), source.read()?);
            let content: File = serde_json::from_slice(&bytes).map_err(|e| {
                Error::format(&name, format!("this is not LEAF's JSON: {e}"))
                    .hint("a file holds `users`, and `x` and `y` of each in `user_data`")
            })?;
            if let Some(user) = content.users.iter().find(|u| !content.user_data.contains_key(*u)) {
                return Err(Error::format(&name, format!("user {user:?} has no `user_data`")));
            }
            for (user, data) in content.user_data {
                let place = format!("user {user:?}");
                let raw = self
                    .samples(data, alphabet)
                    .map_err(|what| Error::format(&name, format!("{place}: {what}")))?;
                let own = &mut self.users.entry(user).or_default().0[part];
                if !own.labels.is_empty() {
                    return Err(Error::format(&name, format!("{place} is in two files")));
                }
                *own = raw;
            }
        }
        Ok(())
    }

    fn samples(&mut self, data: UserData, alphabet: &Alphabet) -> Result<Raw, String> {
        if data.x.len() != data.y.len() {
            return Err(format!("{} inputs for {} labels", data.x.len(), data.y.len()));
        }
        let mut raw = Raw::default();
        for (at, (x, y)) in data.x.into_iter().zip(data.y).enumerate() {
            let refuse = |what: String| format!("sample {}: {what}", at + 1);
            let found = match &x {
                Value::Numbers(numbers) => (numbers.len(), false),
                Value::Text(text) => (text.chars().count(), true),
            };
            let wanted = *self.width.get_or_insert(found);
            if found != wanted {
                let words = |(n, symbols)| {
                    format!("{n} {}", if symbols { "characters" } else { "numbers" })
                };
                return Err(refuse(format!(
                    "{}, but the first has {}",
                    words(found),
                    words(wanted)
                )));
            }
            let symbol = |c: char| {
                alphabet.number(c).ok_or_else(|| refuse(format!("{c:?} is not in the alphabet")))
            };
            match (x, y) {
                (Value::Numbers(numbers), Value::Numbers(label)) if label.len() == 1 => {
                    raw.numbers.extend(numbers);
                    raw.labels.push(f64::from(label[0]));
                }
                (Value::Text(text), Value::Text(next)) if next.chars().count() == 1 => {
                    for c in text.chars() {
                        raw.symbols.push(symbol(c)?);
                    }
                    raw.labels.push(f64::from(symbol(next.chars().next().unwrap_or_default())?));
                }
                _ => {
                    let what =
                        "an input of numbers has a number for its label, a text one character";
                    return Err(refuse(what.into()));
                }
            }
        }
        Ok(raw)
    }

    fn finish(self, alphabet: &Alphabet) -> Result<LeafClients> {
        let Some((width, symbols)) = self.width else {
            return Err(Error::config("LEAF's files hold no samples"));
        };
        let mut users = self.users;
        let classes = if symbols { alphabet.names() } else { number_labels(&mut users)? };
        let bytes = !symbols && users.values().flat_map(|user| &user.0).all(is_bytes);
        let samples = |raw: Raw| -> Result<Samples> {
            let inputs = match (symbols, bytes) {
                (true, _) => Inputs::Symbols(raw.symbols),
                (_, true) => Inputs::Bytes(raw.numbers.iter().map(|x| to_byte(*x)).collect()),
                _ => Inputs::Real(raw.numbers),
            };
            let of = raw.labels.into_iter().map(|label| label as u16).collect();
            let targets = Targets::Classes { of, count: classes.len() };
            Ok(Samples::new(vec![width], inputs, targets)?)
        };
        let client = |(name, User([train, test])): (String, User)| -> Result<(String, Samples)> {
            let mut own = samples(train)?;
            if !test.labels.is_empty() {
                own.held_out.test = Some(Box::new(samples(test)?));
            }
            Ok((name, own))
        };
        let clients = users.into_iter().map(client).collect::<Result<_>>()?;
        Ok(LeafClients { clients, classes })
    }
}

/// Numbers the labels of all users together.
fn number_labels(users: &mut BTreeMap<String, User>) -> Result<Vec<String>> {
    let parts = || users.values().flat_map(|user| &user.0);
    let mut all: Vec<f64> = parts().flat_map(|raw| &raw.labels).copied().collect();
    let classes = number_classes(&mut all)?;
    let mut all = all.into_iter();
    let labels = users.values_mut().flat_map(|user| &mut user.0).flat_map(|raw| &mut raw.labels);
    labels.zip(&mut all).for_each(|(label, class)| *label = class);
    Ok(classes.into_iter().map(|class| class.to_string()).collect())
}

/// Whether all numbers are bytes divided by 255, as the pixels of FEMNIST are: bytes take a quarter of
/// the memory.
fn is_bytes(raw: &Raw) -> bool {
    let near = |x: &f32| (0.0..=1.0).contains(x) && (x * 255.0 - (x * 255.0).round()).abs() < 1e-3;
    raw.numbers.iter().all(near)
}

fn to_byte(x: f32) -> u8 {
    (x * 255.0).round() as u8
}

#[derive(serde::Deserialize)]
struct File {
    users: Vec<String>,
    user_data: BTreeMap<String, UserData>,
}

#[derive(serde::Deserialize)]
struct UserData {
    x: Vec<Value>,
    y: Vec<Value>,
}

/// A number, a list of numbers or a text.
enum Value {
    Numbers(Vec<f32>),
    Text(String),
}

impl<'de> serde::Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a list of numbers or a text")
            }

            fn visit_str<E>(self, text: &str) -> std::result::Result<Value, E> {
                Ok(Value::Text(text.into()))
            }

            fn visit_f64<E>(self, x: f64) -> std::result::Result<Value, E> {
                Ok(Value::Numbers(vec![x as f32]))
            }

            fn visit_u64<E>(self, x: u64) -> std::result::Result<Value, E> {
                Ok(Value::Numbers(vec![x as f32]))
            }

            fn visit_i64<E>(self, x: i64) -> std::result::Result<Value, E> {
                Ok(Value::Numbers(vec![x as f32]))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Value, A::Error> {
                let mut numbers = Vec::new();
                while let Some(x) = list.next_element()? {
                    numbers.push(x);
                }
                Ok(Value::Numbers(numbers))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
