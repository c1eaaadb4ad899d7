//! Speeches by speaker, as windows of characters with the next character as target.
//!
//! The file is a tab-separated table with a header and without quotes; in the text, the two characters
//! `\n` are a line break.

use crate::source::Source;
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use whimbrel_core::{HeldOut, Inputs, Samples, Targets};

/// Characters and their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alphabet {
    symbols: Vec<char>,
    numbers: HashMap<char, u16>,
}

/// LEAF's 80 symbols.
const LEAF: &str =
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}";

impl Default for Alphabet {
    fn default() -> Self {
        Self::numbered(LEAF)
    }
}

impl Alphabet {
    /// These characters, numbered in their order from 0.
    pub fn new(symbols: &str) -> Result<Self> {
        let alphabet = Self::numbered(symbols);
        let (all, distinct) = (alphabet.symbols.len(), alphabet.numbers.len());
        if distinct < all || !(2..=usize::from(u16::MAX)).contains(&all) {
            let what = format!("an alphabet of {all} characters, {distinct} of them different");
            return Err(Error::config(what).hint("list each of two or more characters once"));
        }
        Ok(alphabet)
    }

    fn numbered(symbols: &str) -> Self {
        let symbols: Vec<char> = symbols.chars().collect();
        let numbers = symbols.iter().enumerate().map(|(i, c)| (*c, i as u16)).collect();
        Self { symbols, numbers }
    }

    pub fn number(&self, c: char) -> Option<u16> {
        self.numbers.get(&c).copied()
    }

    /// The characters in order.
    pub fn symbols(&self) -> String {
        self.symbols.iter().collect()
    }

    /// The symbols as names of classes.
    pub fn names(&self) -> Vec<String> {
        self.symbols.iter().map(char::to_string).collect()
    }
}

/// Options of [`read_speeches`] and of the windows.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechOptions {
    /// The columns that name the speaker, whose values are joined by `-`.
    pub speaker: Vec<String>,
    /// The column of the speech.
    pub text: String,
    /// Speakers with fewer speeches are left out.
    pub speeches_min: usize,
    /// The symbols; other characters are dropped.
    pub alphabet: Alphabet,
    /// The length of an input in characters.
    pub window: usize,
    /// The distance between the starts of consecutive inputs.
    pub stride: usize,
}

impl Default for SpeechOptions {
    fn default() -> Self {
        Self {
            speaker: vec!["play".into(), "role".into()],
            text: "text".into(),
            speeches_min: 2,
            alphabet: Alphabet::default(),
            window: 80,
            stride: 1,
        }
    }
}

/// The speakers' texts, as numbers of symbols.
#[derive(Debug, Clone, PartialEq)]
pub struct Speeches {
    /// Speakers by name, with all speeches in the order of the file, joined by line breaks.
    pub speakers: Vec<(String, Vec<u16>)>,
    /// The number of speakers left out because they have too few speeches.
    pub left_out: usize,
    /// The number of dropped characters.
    pub unknown: usize,
}

/// Reads a table of speeches, plain or gzipped.
pub fn read_speeches(path: impl AsRef<Path>, options: &SpeechOptions) -> Result<Speeches> {
    let source = Source::File(path.as_ref());
    let (name, bytes) = (source.name(), source.read()?);
    let text = String::from_utf8(bytes).map_err(|e| {
        Error::format(&name, format!("byte {} is not UTF-8", e.utf8_error().valid_up_to() + 1))
    })?;
    let mut lines = (1..).zip(text.lines());
    let header: Vec<&str> = lines.next().map_or("", |(_, line)| line).split('\t').collect();
    let column = |wanted: &String| {
        header.iter().position(|column| column == wanted).ok_or_else(|| {
            let what = format!("{name} has no column {wanted:?}");
            Error::config(what).hint(format!("its columns are {}", header.join(", ")))
        })
    };
    let speaker: Vec<usize> = options.speaker.iter().map(column).collect::<Result<_>>()?;
    let spoken = column(&options.text)?;
    let mut by_speaker = BTreeMap::<String, Vec<&str>>::new();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
        let cells: Vec<&str> = text.split('\t').collect();
        if cells.len() != header.len() {
            let what = format!("{} cells, but the header has {}", cells.len(), header.len());
            return Err(Error::format(&name, what).at_line(line));
        }
        let who: Vec<&str> = speaker.iter().map(|at| cells[*at]).collect();
        by_speaker.entry(who.join("-")).or_default().push(cells[spoken]);
    }
    let all = by_speaker.len();
    by_speaker.retain(|_, speeches| speeches.len() >= options.speeches_min);
    let left_out = all - by_speaker.len();
    let mut unknown = 0;
    let mut numbered = |speeches: Vec<&str>| {
        let text = speeches.join("\n").replace("\\n", "\n");
        let numbers: Vec<u16> = text.chars().filter_map(|c| options.alphabet.number(c)).collect();
        unknown += text.chars().count() - numbers.len();
        numbers
    };
    let speakers = by_speaker.into_iter().map(|(name, own)| (name, numbered(own))).collect();
    Ok(Speeches { speakers, left_out, unknown })
}

impl SpeechOptions {
    /// A speaker's windows. The last characters are for testing and those before them for validation,
    /// as shares of all. No window crosses parts, so that training never sees test characters.
    pub fn windows(&self, text: &[u16], validation: f64, test: f64) -> Result<Samples> {
        let asked = validation > 0.0 || test > 0.0;
        let share = |share: f64| (share * text.len() as f64).round() as usize;
        let (validation, test) = (share(validation), share(test));
        let (train, rest) = text.split_at(text.len().saturating_sub(validation + test));
        let (validation, test) = rest.split_at(rest.len().saturating_sub(test));
        let part = |text: &[u16]| -> Result<Option<Box<Samples>>> {
            let samples = self.cut(text)?;
            Ok((!samples.is_empty()).then(|| Box::new(samples)))
        };
        let held_out = HeldOut { validation: part(validation)?, test: part(test)?, asked };
        Ok(Samples { held_out, ..self.cut(train)? })
    }

    fn cut(&self, text: &[u16]) -> Result<Samples> {
        let starts = (0..text.len().saturating_sub(self.window)).step_by(self.stride);
        let of = starts.clone().map(|at| text[at + self.window]).collect();
        let inputs = starts.flat_map(|at| &text[at..at + self.window]).copied().collect();
        let targets = Targets::Classes { of, count: self.alphabet.symbols.len() };
        Ok(Samples::new(vec![self.window], Inputs::Symbols(inputs), targets)?)
    }
}
