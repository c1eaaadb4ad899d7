//! Codecs as a job file names them.

use whimbrel_codec::{BlockP, Codec, Norm};
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{inline, list, number, text};

/// The most levels that the encoding of dithering has room for.
const LEVELS_MAX: u64 = 32_767;

const fn word(name: &'static str, doc: &'static str) -> Word {
    Word { name, doc }
}

/// The words of a codec's `kind`: the names that codecs have.
static CODECS: [Word; 8] = [
    word("exact", "every number in full, at 64 bits"),
    word("exact-f32", "every number in full, at 32 bits"),
    word(
        "dithering",
        "random dithering: a norm, and for each coordinate a sign and \
         one of a few levels",
    ),
    word(
        "block-p",
        "block-p-quantization: for each block a norm, and for each \
         coordinate a sign or zero",
    ),
    word("sparse", "random sparsification: some coordinates in full, the others not at all"),
    word("natural", "random rounding to powers of two"),
    word("top-k", "the k largest coordinates (biased: needs error feedback)"),
    word("sign", "signs and one scale (biased: needs error feedback)"),
];

/// `codec`, in either direction.
pub static CODEC: Key = Key::default(
    "codec",
    "a codec's name, or a table with its `kind` and settings",
    "\"exact\"",
    "how vectors are compressed and encoded",
)
.words(&CODECS)
.tables(&[&SECTION]);

static KIND: Key = Key::required("kind", "", "the codec").words(&CODECS);
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

/// Reads a codec.
pub(crate) fn read_codec(value: Value<'_>) -> Read<Codec> {
    let known = |v: &Value<'_>| {
        let name = v.text()?;
        let known = CODECS.iter().find(|word| word.name == name);
        known.map(|word| word.name).ok_or_else(|| v.unknown_word(&name))
    };
    let (kind, reader) = match value.shape() {
        Shape::Text => (known(&value)?, value.all_defaults(&SECTION)),
        _ => {
            let reader = value.table(&SECTION)?;
            (reader.read(&KIND, |v| known(&v))?, reader)
        }
    };
    reader.check_meaning(kind);
    // What a codec itself refuses is reported at the key.
    read_settings(kind, &reader)?.map_err(|error| value.fail(error.to_string(), ""))
}

fn read_settings(kind: &str, reader: &Reader<'_>) -> Read<whimbrel_core::Result<Codec>> {
    Ok(match kind {
        "exact-f32" => Ok(Codec::ExactF32),
        "natural" => Ok(Codec::Natural),
        "sign" => Ok(Codec::Sign),
        "dithering" => {
            let levels = reader.read(&LEVELS, |v| v.integer(1..=LEVELS_MAX));
            let norm = reader.read(&NORM, |v| read_norm(v, 2));
            let bucket = reader.optional(&BUCKET, |v| v.count());
            Codec::dithering(levels? as u32, norm?, bucket?)
        }
        "block-p" => {
            let both = reader.refuse_both(&SIZE, &SIZES);
            let p = reader.read(&P, |v| read_norm(v, u64::from(u32::MAX)));
            let size = reader.read(&SIZE, |v| v.count());
            let sizes = reader.optional(&SIZES, read_sizes);
            both?;
            match sizes? {
                Some(sizes) => BlockP::listed(sizes, p?).map(Codec::BlockP),
                None => Codec::block_p(size?, p?),
            }
        }
        "sparse" => {
            reader.refuse_both(&Q, &K)?;
            let q = reader.read(&Q, |v| v.number(|x| x > 0.0 && x <= 1.0));
            match reader.optional(&K, |v| v.count())? {
                Some(k) => Codec::sparse_exactly(k),
                None => Codec::sparse(q?),
            }
        }
        "top-k" => Codec::top_k(reader.read(&K, |v| v.count())?),
        _ => Ok(Codec::Exact),
    })
}

/// A codec as TOML.
pub(crate) fn write_codec(codec: &Codec) -> String {
    let name = text(codec.name());
    let mut settings = match codec {
        Codec::Exact | Codec::ExactF32 | Codec::Natural | Codec::Sign => return name,
        Codec::Dithering(dithering) => {
            let mut settings = vec![
                (LEVELS.name, dithering.levels().to_string()),
                (NORM.name, write_norm(dithering.norm())),
            ];
            settings.extend(dithering.bucket().map(|size| (BUCKET.name, size.to_string())));
            settings
        }
        Codec::BlockP(block) => {
            let sizes = match block.size() {
                Some(size) => (SIZE.name, size.to_string()),
                None => (SIZES.name, list(block.sizes().iter().map(usize::to_string))),
            };
            vec![(P.name, write_norm(block.norm())), sizes]
        }
        Codec::Sparse(sparse) => match sparse.count() {
            Some(k) => vec![(K.name, k.to_string())],
            None => vec![(Q.name, number(sparse.probability().unwrap_or(1.0)))],
        },
        Codec::TopK(top) => vec![(K.name, top.count().to_string())],
    };
    settings.insert(0, (KIND.name, name));
    inline(settings)
}

fn write_norm(norm: Norm) -> String {
    match norm {
        Norm::P(p) => p.to_string(),
        Norm::Infinity => text("inf"),
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
