//! `[data]` with `source = "synthetic-representation"`: numbers predicted through a representation that
//! clients share.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::RepresentationSpec;
use whimbrel_job::form::{COUNT, Form, SHARE};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};
use whimbrel_job::{inline, table};

table! {
    SIZES: Sizes, only (&["synthetic-representation"], "only a drawn representation has it") {
        raw: RAW = "raw", COUNT, default "20", "the length of an input";
        latent: LATENT = "latent", COUNT.takes("an integer from 1 to `raw`"), default "2",
            "how many latent features the targets depend on";
        small: SMALL = "small", FEW_FORM, default "{ share = 0.9, samples = 5 }",
            "the share of clients with few samples, and how many they have";
        large: LARGE = "large", COUNT, default "10", "how many samples the other clients have";
    }
}

table! {
    FEW: Few {
        share: FEW_SHARE = "share", SHARE, default "0.9", "the share of clients with few samples";
        samples: FEW_SAMPLES = "samples", COUNT, default "5", "how many samples these have";
    }
}

static FEW_SECTION: Section = FEW.section("small", "clients with few samples");
const FEW_FORM: Form<Few> = inline!(FEW: Few, "{ share = 0.9, samples = 5 }", &FEW_SECTION);

struct Sizes {
    raw: usize,
    latent: usize,
    small: Few,
    large: usize,
}

struct Few {
    share: f64,
    samples: usize,
}

pub(super) fn read(reader: &Reader<'_>) -> Read<RepresentationSpec> {
    let usual = RepresentationSpec::default();
    let clients = reader.optional(&CLIENTS, |v| v.count());
    let noise = reader.optional(&NOISE, |v| v.number(|x| x > 0.0));
    let Sizes { raw, latent, small, large } = (SIZES.read)(reader)?;
    Ok(RepresentationSpec {
        clients: clients?.unwrap_or(usual.clients),
        raw,
        latent,
        small_share: small.share,
        small: small.samples,
        large,
        noise: noise?.unwrap_or(usual.noise),
    })
}

pub(super) fn write(spec: &RepresentationSpec, out: &mut Writer) {
    let RepresentationSpec { raw, latent, large, .. } = *spec;
    let small = Few { share: spec.small_share, samples: spec.small };
    out.put(&CLIENTS, spec.clients.to_string());
    (SIZES.write)(&Sizes { raw, latent, small, large }, out);
    out.put(&NOISE, number(spec.noise));
}
