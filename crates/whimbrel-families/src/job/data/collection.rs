//! `[data]` with collections of samples for learners: LEAF, CIFAR, JPEG images, speeches.

use super::SourceKind;
use super::cells::NAMES;
use super::file::PATH;
use super::idx::LABELS;
use super::split::{Has, Partition, read_partition};
use std::path::PathBuf;
use whimbrel_data::{Alphabet, Cifar, SpeechOptions};
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT, Form, PATH as FILE};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, table};

/// Samples for learners in files.
#[derive(Clone, Debug, PartialEq)]
pub struct Collection {
    /// File or folder, as written in the job.
    pub path: PathBuf,
    pub format: Format,
    pub partition: Partition,
}

/// File formats of samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// LEAF's JSON.
    Leaf {
        /// Files of test samples.
        tests: Option<PathBuf>,
        /// Symbols of texts.
        alphabet: Alphabet,
    },
    /// CIFAR's records.
    Cifar(Cifar),
    /// JPEG images: a folder for each class, or one file with offsets and labels.
    Jpeg(Option<Concatenated>),
    /// Speeches by speaker.
    Speeches(SpeechOptions),
}

/// Positions and labels of images in one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Concatenated {
    /// Start of each image, and end of the last.
    pub offsets: PathBuf,
    /// An idx file with a label per image.
    pub labels: PathBuf,
}

const SPOKEN: &str = "only speeches are cut into windows";

define_keys! {
    /// the characters of texts; others are dropped from speeches
    pub(super) ALPHABET = "alphabet", ALPHABETS,
        unset "LEAF's 80: line break, space, digits, letters and !\"&'(),-.:;>?[]}",
        only (&["leaf", "speeches"], "only texts have characters");
    /// whether the 20 coarse classes are predicted instead of the 100 fine ones
    pub(super) COARSE = "coarse", BOOLEAN, default(false),
        only (&["cifar100"], "only CIFAR-100 has coarse classes");
    /// start of each image in one file, and end of the last: little-endian 32-bit integers;
    /// requires `labels`
    pub(super) OFFSETS = "offsets", FILE,
        unset "`path` is a folder with one folder of images per class", only (&["jpeg"], "only JPEG images have different lengths");
}

table! {
    pub(super) LEAF: Format::Leaf,
        only (&["leaf"], "only LEAF has separate test files")
    {
        & alphabet: ALPHABET, ALPHABETS, unset or Alphabet::default();
        /// files of the same format with the users' test samples; `test` is then 0
        tests: TESTS = "tests", FILE.takes("a file or folder name"),
            unset "the share `test` of each user's samples";
    }
}

table! {
    pub(super) SPEECHES: SpeechOptions, only (&["speeches"], SPOKEN) {
        & alphabet: ALPHABET, ALPHABETS, unset or Alphabet::default();
        /// columns with the name of the speaker, who is the client
        speaker: SPEAKER = "speaker", NAMES, default;
        /// column of the speech
        text: TEXT = "text", COLUMN, default;
        /// speakers with fewer speeches are dropped
        speeches_min: SPEECHES_MIN = "speeches_min", COUNT, default;
        /// characters of an input; the target is the next one
        window: WINDOW = "window", COUNT, default;
        /// characters between the starts of two windows; all of Shakespeare in windows of 80 takes
        /// 700 MB at stride 1
        stride: STRIDE = "stride", COUNT, default;
    }
}

const ALPHABETS: Form<Alphabet> = Form::new(
    "a text of different characters",
    |v| Alphabet::new(&v.text()?).map_err(|_| v.refuse()),
    |alphabet| text(&alphabet.symbols()),
);

impl Collection {
    pub(super) fn read(reader: &Reader<'_>, kind: SourceKind) -> Read<Self> {
        let path = reader.read_as(&PATH, &FILE);
        let has = |natural, coarse| {
            let has = Has { targets: true, natural, coarse, ..Has::default() };
            read_partition(reader, &has)
        };
        let (format, partition) = match kind {
            SourceKind::Cifar10 => (Ok(Format::Cifar(Cifar::Ten)), has(false, false)),
            SourceKind::Cifar100 => {
                let coarse = reader.read_as(&COARSE, &BOOLEAN);
                let set = coarse.map(|coarse| Cifar::Hundred { coarse });
                (set.map(Format::Cifar), has(false, true))
            }
            SourceKind::Jpeg => (read_jpeg(reader), has(false, false)),
            SourceKind::Speeches => {
                (SPEECHES.read(reader).map(Format::Speeches), Ok(Partition::Natural))
            }
            _ => (LEAF.read(reader), Ok(Partition::Natural)),
        };
        Ok(Self { path: path?, format: format?, partition: partition? })
    }

    /// Whether held-out parts are cut while reading.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.format, Format::Speeches(_))
    }

    /// Whether there are separate test files.
    pub(super) fn has_tests(&self) -> bool {
        matches!(&self.format, Format::Leaf { tests: Some(_), .. })
    }

    pub(super) fn kind(&self) -> SourceKind {
        match &self.format {
            Format::Leaf { .. } => SourceKind::Leaf,
            Format::Cifar(Cifar::Ten) => SourceKind::Cifar10,
            Format::Cifar(Cifar::Hundred { .. }) => SourceKind::Cifar100,
            Format::Jpeg(_) => SourceKind::Jpeg,
            Format::Speeches(_) => SourceKind::Speeches,
        }
    }

    pub(crate) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let beside = match &mut self.format {
            Format::Leaf { tests, .. } => [tests.as_mut(), None],
            Format::Jpeg(Some(files)) => [Some(&mut files.offsets), Some(&mut files.labels)],
            Format::Jpeg(None) | Format::Cifar(_) | Format::Speeches(_) => [None, None],
        };
        std::iter::once(&mut self.path).chain(beside.into_iter().flatten()).collect()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, FILE.write(&self.path));
        match &self.format {
            Format::Leaf { .. } => LEAF.write(&self.format, out),
            Format::Cifar(Cifar::Hundred { coarse }) => out.put(&COARSE, coarse.to_string()),
            Format::Cifar(Cifar::Ten) | Format::Jpeg(None) => {}
            Format::Jpeg(Some(files)) => {
                out.put(&OFFSETS, FILE.write(&files.offsets));
                out.put(&LABELS, FILE.write(&files.labels));
            }
            Format::Speeches(options) => SPEECHES.write(options, out),
        }
    }
}

fn read_jpeg(reader: &Reader<'_>) -> Read<Format> {
    let offsets = reader.optional_as(&OFFSETS, &FILE);
    let labels = reader.optional_as(&LABELS, &FILE);
    match (offsets?, labels?) {
        (Some(offsets), Some(labels)) => Ok(Format::Jpeg(Some(Concatenated { offsets, labels }))),
        (None, None) => Ok(Format::Jpeg(None)),
        (given, _) => {
            let lacking = if given.is_some() { &LABELS } else { &OFFSETS };
            Err(reader.lacking(
                lacking,
                "`offsets` and `labels` go together",
                "images in one file have both; folders of images have neither",
            ))
        }
    }
}
