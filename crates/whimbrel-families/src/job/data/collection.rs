//! `[data]` with collections of samples for learners: LEAF, CIFAR, JPEG images, speeches.

use super::SourceKind;
use super::cells::NAMES;
use super::file::PATH;
use super::idx::LABELS;
use super::split::{Has, Partition, read_partition};
use std::path::PathBuf;
use whimbrel_data::{Alphabet, Cifar, SpeechOptions};
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT, Form, PATH as FILE};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::table;
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

const SPOKEN: &str = "only speeches are cut into windows";

/// `alphabet`.
pub(super) static ALPHABET: JobKey = ALPHABETS
    .unset(
        "alphabet",
        "LEAF's 80: line break, space, digits, letters and !\"&'(),-.:;>?[]}",
        "the characters that texts consist of; of speeches others are left out",
    )
    .only(&["leaf", "speeches"], "only texts have characters");
/// `coarse`.
pub(super) static COARSE: JobKey = BOOLEAN
    .default(
        "coarse",
        || BOOLEAN.write(&false),
        "whether the 20 coarse classes are predicted in place of the 100 fine ones",
    )
    .only(&["cifar100"], "only CIFAR-100 has coarse classes");
/// `offsets`.
pub(super) static OFFSETS: JobKey = FILE
    .unset(
        "offsets",
        "`path` is a folder with a folder of images for each class",
        "where each image of one file begins and where the last ends: 32 bits each, little-endian; \
         `labels` has their labels",
    )
    .only(&["jpeg"], "only JPEG images have different lengths");

table! {
    pub(super) LEAF: Format::Leaf,
        only (&["leaf"], "only LEAF has test samples in files of their own")
    {
        & alphabet: ALPHABET, ALPHABETS, unset or Alphabet::default();
        tests: TESTS = "tests", FILE.takes("a file or folder name"),
            unset "test samples are the share `test` of each user's",
            "files of the same form with the users' test samples; `test` is then 0";
    }
}

table! {
    pub(super) SPEECHES: SpeechOptions, only (&["speeches"], SPOKEN) {
        & alphabet: ALPHABET, ALPHABETS, unset or Alphabet::default();
        speaker: SPEAKER = "speaker", NAMES, default,
            "the columns that name the speaker, who is the client";
        text: TEXT = "text", COLUMN, default, "the column of what was said";
        speeches_min: SPEECHES_MIN = "speeches_min", COUNT, default,
            "speakers with fewer speeches are left out";
        window: WINDOW = "window", COUNT, default,
            "how many characters an input has; the target is the next one";
        stride: STRIDE = "stride", COUNT, default,
            "how many characters after one window the next begins; all of Shakespeare in windows of 80 takes \
             700 MB for stride 1";
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
                "`offsets` and `labels` go together".to_owned(),
                "images in one file have both; folders of images have neither",
            ))
        }
    }
}
