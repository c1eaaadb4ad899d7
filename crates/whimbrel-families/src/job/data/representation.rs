//! `[data]` with `source = "synthetic-representation"`: numbers predicted through a representation that
//! clients share.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::RepresentationSpec;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, inline, number};

const DRAWN: &[&str] = &["synthetic-representation"];
const ONLY: &str = "only a drawn representation has it";

pub(super) static RAW: Key =
    Key::default("raw", "an integer of at least 1", "20", "the length of an input")
        .only(DRAWN, ONLY);
pub(super) static LATENT: Key = Key::default(
    "latent",
    "an integer from 1 to `raw`",
    "2",
    "how many latent features the targets depend on",
)
.only(DRAWN, ONLY);
pub(super) static SMALL: Key = Key::default(
    "small",
    "{ share = 0.9, samples = 5 }",
    "{ share = 0.9, samples = 5 }",
    "the share of clients with few samples, and how many they have",
)
.tables(&[&SMALL_SECTION])
.only(DRAWN, ONLY);
pub(super) static LARGE: Key = Key::default(
    "large",
    "an integer of at least 1",
    "10",
    "how many samples the other clients have",
)
.only(DRAWN, ONLY);

static SHARE: Key =
    Key::default("share", "a number from 0 to 1", "0.9", "the share of clients with few samples");
static SAMPLES: Key =
    Key::default("samples", "an integer of at least 1", "5", "how many samples these have");
static SMALL_SECTION: Section = Section {
    name: "small",
    doc: "clients with few samples",
    keys: &[&SHARE, &SAMPLES],
    example: "",
};

pub(super) fn read(reader: &Reader<'_>) -> Read<RepresentationSpec> {
    let usual = RepresentationSpec::default();
    let clients = reader.optional(&CLIENTS, |v| v.count());
    let raw = reader.read(&RAW, |v| v.count());
    let latent = reader.read(&LATENT, |v| v.count());
    let small = reader.read(&SMALL, |v| {
        let table = v.table(&SMALL_SECTION)?;
        let share = table.read(&SHARE, |v| v.number(|x| (0.0..=1.0).contains(&x)));
        let samples = table.read(&SAMPLES, |v| v.count());
        Ok((share?, samples?))
    });
    let large = reader.read(&LARGE, |v| v.count());
    let noise = reader.optional(&NOISE, |v| v.number(|x| x > 0.0));
    let (small_share, small) = small?;
    Ok(RepresentationSpec {
        clients: clients?.unwrap_or(usual.clients),
        raw: raw?,
        latent: latent?,
        small_share,
        small,
        large: large?,
        noise: noise?.unwrap_or(usual.noise),
    })
}

pub(super) fn write(spec: &RepresentationSpec, out: &mut Writer) {
    out.put(&CLIENTS, spec.clients.to_string());
    out.put(&RAW, spec.raw.to_string());
    out.put(&LATENT, spec.latent.to_string());
    let small = [("share", number(spec.small_share)), ("samples", spec.small.to_string())];
    out.put(&SMALL, inline(small));
    out.put(&LARGE, spec.large.to_string());
    out.put(&NOISE, number(spec.noise));
}
