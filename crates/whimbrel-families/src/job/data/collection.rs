//! `[data]` with collections of samples for learners: LEAF, CIFAR, JPEG images, speeches.

use super::SourceKind;
use super::cells::{read_names, write_names};
use super::file::PATH;
use super::idx::LABELS;
use super::split::{Has, Partition, read_partition};
use std::path::PathBuf;
use whimbrel_data::{Alphabet, Cifar, SpeechOptions};
use whimbrel_job::key::Key;
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};

/// Samples of learners in files.
#[derive(Clone, Debug, PartialEq)]
pub struct Collection {
    /// The file or the folder, as written in the job.
    pub path: PathBuf,
    /// How the files hold them.
    pub format: Format,
    /// Who holds which sample.
    pub partition: Partition,
}

/// How files hold samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// LEAF's JSON.
    Leaf {
        /// Files with the users' test samples.
        tests: Option<PathBuf>,
        /// The symbols of texts.
        alphabet: Alphabet,
    },
    /// CIFAR's records.
    Cifar(Cifar),
    /// JPEG images: a folder for each class, or one file with offsets and labels.
    Jpeg(Option<Concatenated>),
    /// Speeches by speaker.
    Speeches(SpeechOptions),
}

/// What says where the images of one file are.
#[derive(Clone, Debug, PartialEq)]
pub struct Concatenated {
    /// Where each image begins, and where the last ends.
    pub offsets: PathBuf,
    /// An idx file with a label for each.
    pub labels: PathBuf,
}

const LEAF: &[&str] = &["leaf"];
const SPEECHES: &[&str] = &["speeches"];
const SPOKEN: &str = "only speeches are cut into windows";

pub(super) static TESTS: Key = Key::optional(
    "tests",
    "a file or folder name",
    "test samples are the share `test` of each user's",
    "files of the same form with the users' test samples; `test` is then 0",
)
.only(LEAF, "only LEAF has test samples in files of their own");
pub(super) static ALPHABET: Key = Key::optional(
    "alphabet",
    "a text of different characters",
    "LEAF's 80: line break, space, digits, letters and !\"&'(),-.:;>?[]}",
    "the characters that texts consist of; of speeches others are left out",
)
.only(&["leaf", "speeches"], "only texts have characters");
pub(super) static COARSE: Key = Key::default(
    "coarse",
    "true or false",
    "false",
    "whether the 20 coarse classes are predicted in place of the 100 fine ones",
)
.only(&["cifar100"], "only CIFAR-100 has coarse classes");
pub(super) static OFFSETS: Key = Key::optional(
    "offsets",
    "a file name",
    "`path` is a folder with a folder of images for each class",
    "where each image of one file begins and where the last ends: 32 bits each, little-endian; \
     `labels` has their labels",
)
.only(&["jpeg"], "only JPEG images have different lengths");
pub(super) static SPEAKER: Key = Key::default(
    "speaker",
    "a column name, or a list of them whose values are joined by `-`",
    "[\"play\", \"role\"]",
    "the columns that name the speaker, who is the client",
)
.only(SPEECHES, SPOKEN);
pub(super) static TEXT: Key =
    Key::default("text", "a column name", "\"text\"", "the column of what was said")
        .only(SPEECHES, SPOKEN);
pub(super) static SPEECHES_MIN: Key = Key::default(
    "speeches_min",
    "an integer of at least 1",
    "2",
    "speakers with fewer speeches are left out",
)
.only(SPEECHES, SPOKEN);
pub(super) static WINDOW: Key = Key::default(
    "window",
    "an integer of at least 1",
    "80",
    "how many characters an input has; the target is the next one",
)
.only(SPEECHES, SPOKEN);
pub(super) static STRIDE: Key = Key::default(
    "stride",
    "an integer of at least 1",
    "1",
    "how many characters after one window the next begins; all of Shakespeare in windows of 80 takes \
     700 MB for stride 1",
)
.only(SPEECHES, SPOKEN);

impl Collection {
    pub(super) fn read(reader: &Reader<'_>, kind: SourceKind) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let has = |natural, coarse| {
            let has = Has { targets: true, natural, coarse, ..Has::default() };
            read_partition(reader, &has)
        };
        let (format, partition) = match kind {
            SourceKind::Cifar10 => (Ok(Format::Cifar(Cifar::Ten)), has(false, false)),
            SourceKind::Cifar100 => {
                let coarse = reader.read(&COARSE, |v| v.boolean());
                let set = coarse.map(|coarse| Cifar::Hundred { coarse });
                (set.map(Format::Cifar), has(false, true))
            }
            SourceKind::Jpeg => (read_jpeg(reader), has(false, false)),
            SourceKind::Speeches => (read_speeches(reader), Ok(Partition::Natural)),
            _ => (read_leaf(reader), Ok(Partition::Natural)),
        };
        Ok(Self { path: path?, format: format?, partition: partition? })
    }

    /// Whether parts of a client's rows are cut where they are read.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.format, Format::Speeches(_))
    }

    /// Whether test samples are in files of their own.
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
        out.put(&PATH, write_path(&self.path));
        match &self.format {
            Format::Leaf { tests, alphabet } => {
                if let Some(tests) = tests {
                    out.put(&TESTS, write_path(tests));
                }
                write_alphabet(alphabet, out);
            }
            Format::Cifar(Cifar::Ten) => {}
            Format::Cifar(Cifar::Hundred { coarse }) => out.put(&COARSE, coarse.to_string()),
            Format::Jpeg(None) => {}
            Format::Jpeg(Some(files)) => {
                out.put(&OFFSETS, write_path(&files.offsets));
                out.put(&LABELS, write_path(&files.labels));
            }
            Format::Speeches(options) => {
                out.put(&SPEAKER, write_names(&options.speaker));
                out.put(&TEXT, text(&options.text));
                out.put(&SPEECHES_MIN, options.speeches_min.to_string());
                out.put(&WINDOW, options.window.to_string());
                out.put(&STRIDE, options.stride.to_string());
                write_alphabet(&options.alphabet, out);
            }
        }
    }
}

fn read_leaf(reader: &Reader<'_>) -> Read<Format> {
    let tests = reader.optional(&TESTS, read_path);
    let alphabet = read_alphabet(reader);
    Ok(Format::Leaf { tests: tests?, alphabet: alphabet? })
}

fn read_jpeg(reader: &Reader<'_>) -> Read<Format> {
    let offsets = reader.optional(&OFFSETS, read_path);
    let labels = reader.optional(&LABELS, read_path);
    match (offsets?, labels?) {
        (Some(offsets), Some(labels)) => Ok(Format::Jpeg(Some(Concatenated { offsets, labels }))),
        (None, None) => Ok(Format::Jpeg(None)),
        (given, _) => {
            let lacking = if given.is_some() { &LABELS } else { &OFFSETS };
            Err(reader.lacking(
                lacking,
                "`offsets` and `labels` go together".to_owned(),
                "images in one file have both; folders of images have neither",
            ))
        }
    }
}

fn read_speeches(reader: &Reader<'_>) -> Read<Format> {
    let speaker = reader.read(&SPEAKER, read_names);
    let spoken = reader.read(&TEXT, |v| v.text());
    let speeches_min = reader.read(&SPEECHES_MIN, |v| v.count());
    let window = reader.read(&WINDOW, |v| v.count());
    let stride = reader.read(&STRIDE, |v| v.count());
    let alphabet = read_alphabet(reader);
    Ok(Format::Speeches(SpeechOptions {
        speaker: speaker?,
        text: spoken?,
        speeches_min: speeches_min?,
        alphabet: alphabet?,
        window: window?,
        stride: stride?,
    }))
}

fn read_alphabet(reader: &Reader<'_>) -> Read<Alphabet> {
    let given = reader.optional(&ALPHABET, |v| Alphabet::new(&v.text()?).map_err(|_| v.refuse()));
    Ok(given?.unwrap_or_default())
}

fn write_alphabet(alphabet: &Alphabet, out: &mut Writer) {
    if *alphabet != Alphabet::default() {
        out.put(&ALPHABET, text(&alphabet.symbols()));
    }
}
