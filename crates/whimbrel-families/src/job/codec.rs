//! Codecs as a job file names them.

use whimbrel_job::choices;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{inline, list, number, text};

/// The most levels that the encoding of dithering has room for.
const LEVELS_MAX: u64 = 32_767;

/// A compression operator and its encoding.
#[derive(Clone, Debug, PartialEq)]
pub enum Codec {
    /// Every number in full, at 64 bits.
    Exact,
    /// Every number in full, at 32 bits.
    ExactF32,
    /// Random dithering.
    Dithering {
        /// Levels between zero and the norm.
        levels: u32,
        /// Which norm.
        norm: Norm,
        /// Coordinates that share a norm; `None`: all.
        bucket: Option<usize>,
    },
    /// Block-p-quantization.
    BlockP {
        /// Which norm.
        p: Norm,
        /// The blocks.
        blocks: Blocks,
    },
    /// Random sparsification.
    Sparse(Kept),
    /// Natural compression: random rounding to powers of two.
    Natural,
    /// The k coordinates of largest magnitude (biased).
    TopK {
        /// How many.
        k: usize,
    },
    /// Signs and one scale (biased).
    Sign,
}

/// A vector norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// The p-norm.
    P(u32),
    /// The largest magnitude.
    Infinity,
}

/// Blocks of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Equal blocks of this size; the last may be shorter.
    Size(usize),
    /// Blocks of these sizes, which sum to the vector's length.
    Sizes(Vec<usize>),
}

/// Which coordinates random sparsification keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// Each with this probability.
    Probability(f64),
    /// Exactly so many.
    Count(usize),
}

choices! {
    /// The word in a codec's `kind`.
    pub enum CodecKind {
        Exact = "exact": "every number in full, at 64 bits",
        ExactF32 = "exact-f32": "every number in full, at 32 bits",
        Dithering = "dithering": "random dithering: a norm, and for each coordinate a sign and \
         one of a few levels",
        BlockP = "block-p": "block-p-quantization: for each block a norm, and for each \
         coordinate a sign or zero",
        Sparse = "sparse": "random sparsification: some coordinates in full, the others not at all",
        Natural = "natural": "random rounding to powers of two",
        TopK = "top-k": "the k largest coordinates (biased: needs error feedback)",
        Sign = "sign": "signs and one scale (biased: needs error feedback)",
    }
}

pub(crate) static CODEC: Key = Key::default(
    "codec",
    "a codec's name, or a table with its `kind` and settings",
    "\"exact\"",
    "how vectors are compressed and encoded",
)
.words(CodecKind::WORDS)
.tables(&[&SECTION]);

static KIND: Key = Key::required("kind", "", "the codec").words(CodecKind::WORDS);
static LEVELS: Key =
    Key::default("levels", "an integer from 1 to 32767", "1", "levels between zero and the norm")
        .only(&["dithering"], "only dithering has levels");
static NORM: Key = Key::default("norm", "1, 2 or \"inf\"", "2", "the norm that is sent in full")
    .only(&["dithering"], "only dithering has a choice of `norm`; block-p has `p`");
static BUCKET: Key = Key::optional(
    "bucket",
    "an integer of at least 1",
    "one norm for all",
    "how many coordinates share a norm",
)
.only(&["dithering"], "only dithering has buckets; block-p has `size`");
static P: Key = Key::default(
    "p",
    "an integer of at least 1 or \"inf\"",
    "2",
    "the norm of a block that is sent in full",
)
.only(&["block-p"], "only block-p has it");
static SIZE: Key = Key::default(
    "size",
    "an integer of at least 1",
    "64",
    "coordinates in a block; the last may be shorter",
)
.only(&["block-p"], "only block-p has blocks");
static SIZES: Key = Key::optional(
    "sizes",
    "a list of integers of at least 1",
    "equal blocks of `size`",
    "the size of each block, in place of `size`; they sum to the vector's length",
)
.only(&["block-p"], "only block-p has blocks");
static Q: Key = Key::default(
    "q",
    "a number above 0 and at most 1",
    "0.5",
    "the probability that a coordinate is sent",
)
.only(&["sparse"], "only sparse has it");
static K: Key = Key::optional(
    "k",
    "an integer of at least 1",
    "for sparse, `q` decides; top-k needs it",
    "exactly how many coordinates are sent",
)
.only(&["sparse", "top-k"], "only sparse and top-k choose coordinates");

static SECTION: Section = Section {
    name: "codec",
    doc: "a codec and its settings; a bare name stands for a table with all defaults",
    keys: &[&KIND, &LEVELS, &NORM, &BUCKET, &P, &SIZE, &SIZES, &Q, &K],
    example: "[uplink]\ncodec = { kind = \"dithering\", levels = 4, norm = 2, bucket = 256 }\n",
};

impl Codec {
    pub(crate) fn read(value: Value<'_>) -> Read<Self> {
        let (kind, reader) = match value.shape() {
            Shape::Text => (value.choice()?, value.all_defaults(&SECTION)),
            _ => {
                let reader = value.table(&SECTION)?;
                (reader.read(&KIND, |v| v.choice())?, reader)
            }
        };
        Self::read_settings(kind, &reader)
    }

    fn read_settings(kind: CodecKind, reader: &Reader<'_>) -> Read<Self> {
        reader.check_meaning(kind.name());
        match kind {
            CodecKind::Exact => Ok(Self::Exact),
            CodecKind::ExactF32 => Ok(Self::ExactF32),
            CodecKind::Natural => Ok(Self::Natural),
            CodecKind::Sign => Ok(Self::Sign),
            CodecKind::Dithering => {
                let levels = reader.read(&LEVELS, |v| v.integer(1..=LEVELS_MAX));
                let norm = reader.read(&NORM, |v| read_norm(v, 2));
                let bucket = reader.optional(&BUCKET, |v| v.count());
                Ok(Self::Dithering { levels: levels? as u32, norm: norm?, bucket: bucket? })
            }
            CodecKind::BlockP => {
                let both = reader.refuse_both(&SIZE, &SIZES);
                let p = reader.read(&P, |v| read_norm(v, u64::from(u32::MAX)));
                let size = reader.read(&SIZE, |v| v.count());
                let sizes = reader.optional(&SIZES, read_sizes);
                both?;
                let blocks = sizes?.map_or(size.map(Blocks::Size), |s| Ok(Blocks::Sizes(s)));
                Ok(Self::BlockP { p: p?, blocks: blocks? })
            }
            CodecKind::Sparse => {
                reader.refuse_both(&Q, &K)?;
                let q = reader.read(&Q, |v| v.number(|x| x > 0.0 && x <= 1.0));
                let k = reader.optional(&K, |v| v.count());
                Ok(Self::Sparse(match k? {
                    Some(k) => Kept::Count(k),
                    None => Kept::Probability(q?),
                }))
            }
            CodecKind::TopK => Ok(Self::TopK { k: reader.read(&K, |v| v.count())? }),
        }
    }

    /// What a job file calls it.
    pub fn kind(&self) -> CodecKind {
        match self {
            Self::Exact => CodecKind::Exact,
            Self::ExactF32 => CodecKind::ExactF32,
            Self::Dithering { .. } => CodecKind::Dithering,
            Self::BlockP { .. } => CodecKind::BlockP,
            Self::Sparse(_) => CodecKind::Sparse,
            Self::Natural => CodecKind::Natural,
            Self::TopK { .. } => CodecKind::TopK,
            Self::Sign => CodecKind::Sign,
        }
    }

    /// Whether its mean is not the vector it was given.
    pub fn is_biased(&self) -> bool {
        matches!(self, Self::TopK { .. } | Self::Sign)
    }

    /// Whether it sends every number in full.
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Exact | Self::ExactF32)
    }

    pub(crate) fn write(&self) -> String {
        let name = text(self.kind().name());
        let mut settings = match self {
            Self::Exact | Self::ExactF32 | Self::Natural | Self::Sign => return name,
            Self::Dithering { levels, norm, bucket } => {
                let mut settings =
                    vec![(LEVELS.name, levels.to_string()), (NORM.name, norm.write())];
                settings.extend(bucket.map(|size| (BUCKET.name, size.to_string())));
                settings
            }
            Self::BlockP { p, blocks } => {
                let blocks = match blocks {
                    Blocks::Size(size) => (SIZE.name, size.to_string()),
                    Blocks::Sizes(sizes) => (SIZES.name, list(sizes.iter().map(usize::to_string))),
                };
                vec![(P.name, p.write()), blocks]
            }
            Self::Sparse(Kept::Probability(q)) => vec![(Q.name, number(*q))],
            Self::Sparse(Kept::Count(k)) | Self::TopK { k } => vec![(K.name, k.to_string())],
        };
        settings.insert(0, (KIND.name, name));
        inline(settings)
    }
}

impl Norm {
    fn write(self) -> String {
        match self {
            Self::P(p) => p.to_string(),
            Self::Infinity => text("inf"),
        }
    }
}

fn read_norm(value: Value<'_>, largest: u64) -> Read<Norm> {
    match value.shape() {
        Shape::Text if value.text()? == "inf" => Ok(Norm::Infinity),
        _ => value.integer(1..=largest).map(|p| Norm::P(p as u32)),
    }
}

fn read_sizes(value: Value<'_>) -> Read<Vec<usize>> {
    let sizes = read_all(value.list()?, |item| item.count())?;
    if sizes.is_empty() { Err(value.refuse()) } else { Ok(sizes) }
}
