//! Codecs in a job file.

use toml::de::DeTable;
use whimbrel_codec::{BlockP, Codec, Dithering, Norm, SharedGrid, Sparse};
use whimbrel_job::Errors;
use whimbrel_job::form::{ABOVE_ZERO, COUNT, COUNT_U32, Form};
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Source, Value, syntax_errors};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, form, integer, list};

const fn word(name: &'static str, doc: &'static str) -> Word {
    Word { name, doc }
}

/// Names of the codecs.
static KINDS: [Word; 9] = [
    word("exact", "64 bits per number"),
    word("exact-f32", "32 bits per number"),
    word("dithering", "random dithering: a norm, and a sign and a level per coordinate"),
    word("block-p", "block-p-quantization: a norm per block, and a sign or zero per coordinate"),
    word("sparse", "random sparsification: some coordinates in full"),
    word("natural", "random rounding to powers of two"),
    word("top-k", "the k largest coordinates (biased: needs error feedback)"),
    word("sign", "signs and one scale (biased: needs error feedback)"),
    word(
        "grid",
        "integers on a grid that all clients share, of which the server uses the sum (uplink only)",
    ),
];

define_keys! {
    /// compression and encoding of vectors
    pub CODEC = "codec", CODECS, default(Codec::default());
}

pub(crate) const CODECS: Form<Codec> =
    Form::new("a codec's name, or a table with its `kind` and settings", read_codec, write_codec)
        .words(&KINDS)
        .tables(const { &[&SECTION] });

static KIND: JobKey = JobKey::required("kind", "", "the codec").words(&KINDS);
define_keys! {
    /// levels between zero and the norm
    LEVELS = "levels", AUTO_LEVELS, default(None), only (&["dithering"], "only dithering has levels");
    /// the norm, sent in full
    NORM = "norm", NORMS, default(Dithering::default().norm()),
        only (&["dithering"], "only dithering has a choice of `norm`; block-p has `p`");
    /// coordinates that share a norm
    BUCKET = "bucket", COUNT, unset "one norm for all",
        only (&["dithering"], "only dithering has buckets; block-p has `size`");
    /// the norm of a block, sent in full
    P = "p", BLOCK_NORMS, default(BlockP::default().norm()), only (&["block-p"], "only block-p has it");
    /// coordinates in a block; the last may be shorter
    SIZE = "size", COUNT, default(BlockP::default().size().unwrap_or(1)),
        only (&["block-p"], "only block-p has blocks");
    /// sizes of the blocks, in place of `size`; they sum to the vector's length
    SIZES = "sizes", SIZE_LISTS, unset "equal blocks of `size`",
        only (&["block-p"], "only block-p has blocks");
    /// probability that a coordinate is sent
    Q = "q", ABOVE_ZERO, default(Sparse::default().probability().unwrap_or(1.0)), only (&["sparse"], "only sparse has it");
    /// number of coordinates that are sent
    K = "k", COUNT, unset "set by `q`; required for top-k",
        only (&["sparse", "top-k"], "only sparse and top-k select coordinates");
    /// bits of a coordinate; the sum over all clients must fit
    BITS = "bits", BIT_COUNTS, default(SharedGrid::default().bits()), only (&["grid"], "only a grid has bits");
}

/// Limited by the encoding of dithering.
const LEVEL_COUNTS: Form<u32> = integer!(u32, 1 to 32767);

form! {
    /// `None` for "auto".
    AUTO_LEVELS: Option<u32>, "an integer from 1 to 32767 or \"auto\"" {
        /// the fewest at which compression takes at most three tenths of the automatic step, whatever
        /// the shares of the clients (uplinks of fedem and vr-fedem); otherwise 1
        "auto" => None,
    }
    number LEVEL_COUNTS => Some;
}

const BIT_COUNTS: Form<u32> = integer!(u32, 8 to 32);
const SIZE_LISTS: Form<Vec<usize>> = list!(some COUNT, "a list of integers of at least 1");

form! {
    NORMS: Norm, "1, 2 or \"inf\"" {
        /// the largest absolute value
        "inf" => Norm::Infinity,
    }
    number integer!(u32, 1 to 2) => Norm::P;
}

form! {
    BLOCK_NORMS: Norm, "an integer of at least 1 or \"inf\"" {
        /// the largest absolute value
        "inf" => Norm::Infinity,
    }
    number COUNT_U32 => Norm::P;
}

static SECTION: Section = Section {
    name: "codec",
    doc: "a codec and its settings; its name alone selects all defaults",
    keys: &[&KIND, &LEVELS, &NORM, &BUCKET, &P, &SIZE, &SIZES, &Q, &K, &BITS],
    example: "[uplink]\ncodec = { kind = \"dithering\", levels = 4, norm = 2, bucket = 256 }\n",
};

/// Reads a codec as in a job file.
pub fn parse_codec(written: &str) -> Result<Codec, Errors> {
    static ALONE: Section = Section::of(&[&CODEC]);
    let line = format!("codec = {written}");
    let (root, faults) = DeTable::parse_recoverable(&line);
    if !faults.is_empty() {
        return Err(syntax_errors("codec", &line, &faults));
    }
    let source = Source::new("codec", &line, root.get_ref(), &[]);
    let read = Reader::root(&source, &ALONE).read_as(&CODEC, &CODECS);
    source.finish(read.map(|codec| codec.settled(LEVELS_USUAL)))
}

/// The levels of automatic dithering where nothing chooses them.
pub(crate) const LEVELS_USUAL: u16 = 1;

fn read_codec(value: &Value<'_>) -> Read<Codec> {
    let known = |v: &Value<'_>| {
        let name = v.text()?;
        let known = KINDS.iter().find(|word| word.name == name);
        known.map(|word| word.name).ok_or_else(|| v.unknown_word(&name))
    };
    let (kind, reader) = match value.shape() {
        Shape::Text => (known(value)?, value.all_defaults(&SECTION)),
        _ => {
            let reader = value.table(&SECTION)?;
            (reader.read(&KIND, |v| known(&v))?, reader)
        }
    };
    reader.check_meaning(kind);
    // Faults that the codec itself finds are reported at the key.
    read_settings(kind, &reader)?.map_err(|error| value.fail(error.to_string(), ""))
}

fn read_settings(kind: &str, reader: &Reader<'_>) -> Read<whimbrel_core::Result<Codec>> {
    Ok(match kind {
        "exact-f32" => Ok(Codec::ExactF32),
        "natural" => Ok(Codec::Natural),
        "sign" => Ok(Codec::Sign),
        "dithering" => {
            let levels = reader.read_as(&LEVELS, &AUTO_LEVELS);
            let norm = reader.read_as(&NORM, &NORMS);
            let bucket = reader.optional_as(&BUCKET, &COUNT);
            let levels = levels?;
            let given = Dithering::new(levels.unwrap_or(1), norm?, bucket?);
            let settle = |d: Dithering| if levels.is_none() { d.automatic() } else { d };
            given.map(|dithering| Codec::Dithering(settle(dithering)))
        }
        "block-p" => {
            let both = reader.refuse_both(&SIZE, &SIZES);
            let p = reader.read_as(&P, &BLOCK_NORMS);
            let size = reader.read_as(&SIZE, &COUNT);
            let sizes = reader.optional_as(&SIZES, &SIZE_LISTS);
            both?;
            match sizes? {
                Some(sizes) => BlockP::listed(sizes, p?).map(Codec::BlockP),
                None => Codec::block_p(size?, p?),
            }
        }
        "sparse" => {
            reader.refuse_both(&Q, &K)?;
            let q = reader.read_as(&Q, &ABOVE_ZERO);
            match reader.optional_as(&K, &COUNT)? {
                Some(k) => Codec::sparse_exactly(k),
                None => Codec::sparse(q?),
            }
        }
        "top-k" => Codec::top_k(reader.read_as(&K, &COUNT)?),
        "grid" => SharedGrid::new(reader.read_as(&BITS, &BIT_COUNTS)?).map(Codec::Grid),
        _ => Ok(Codec::Exact),
    })
}

fn write_codec(codec: &Codec) -> String {
    let mut out = Writer::default();
    out.put(&KIND, text(codec.name()));
    match codec {
        Codec::Exact | Codec::ExactF32 | Codec::Natural | Codec::Sign => return text(codec.name()),
        Codec::Dithering(dithering) => {
            let levels = Some(u32::from(dithering.levels())).filter(|_| !dithering.is_automatic());
            out.put(&LEVELS, AUTO_LEVELS.write(&levels));
            out.put(&NORM, NORMS.write(&dithering.norm()));
            if let Some(bucket) = dithering.bucket() {
                out.put(&BUCKET, bucket.to_string());
            }
        }
        Codec::BlockP(block) => {
            out.put(&P, BLOCK_NORMS.write(&block.norm()));
            match block.size() {
                Some(size) => out.put(&SIZE, size.to_string()),
                None => out.put(&SIZES, SIZE_LISTS.write(&block.sizes().to_vec())),
            }
        }
        Codec::Sparse(sparse) => match sparse.count() {
            Some(k) => out.put(&K, k.to_string()),
            None => out.put(&Q, ABOVE_ZERO.write(&sparse.probability().unwrap_or(1.0))),
        },
        Codec::TopK(top) => out.put(&K, top.count().to_string()),
        Codec::Grid(grid) => out.put(&BITS, grid.bits().to_string()),
    }
    out.finish_inline()
}
