//! `[data]` with `source = "synthetic-representation"`: numbers predicted through a representation that
//! clients share.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::RepresentationSpec;
use whimbrel_job::form::{COUNT, POSITIVE, SHARE, Table};
use whimbrel_job::{inline, table};

struct Few {
    share: f64,
    samples: usize,
}

table! {
    FEW: Few = "small", "clients with few samples" {
        share: FEW_SHARE = "share", SHARE, default "0.9", "the share of clients with few samples";
        samples: FEW_SAMPLES = "samples", COUNT, default "5", "how many samples these have";
    }
}

struct Sizes {
    clients: usize,
    noise: f64,
    raw: usize,
    latent: usize,
    small: Few,
    large: usize,
}

table! {
    pub(super) SIZES: Sizes, only (&["synthetic-representation"], "only a drawn representation has it") {
        & clients: CLIENTS, COUNT, unset or RepresentationSpec::default().clients;
        & noise: NOISE, POSITIVE, unset or RepresentationSpec::default().noise;
        raw: RAW = "raw", COUNT, default "20", "the length of an input";
        latent: LATENT = "latent", COUNT.takes("an integer from 1 to `raw`"), default "2",
            "how many latent features the targets depend on";
        small: SMALL = "small", inline!(FEW).takes("{ share = 0.9, samples = 5 }"),
            default "{ share = 0.9, samples = 5 }",
            "the share of clients with few samples, and how many they have";
        large: LARGE = "large", COUNT, default "10", "how many samples the other clients have";
    }
}

/// The specification, whose clients with few samples are two fields.
pub(super) const REPRESENTATION: Table<RepresentationSpec> = Table {
    section: SIZES.section,
    read: |reader| {
        let Sizes { clients, noise, raw, latent, small, large } = SIZES.read(reader)?;
        let Few { share: small_share, samples: small } = small;
        Ok(RepresentationSpec { clients, raw, latent, small_share, small, large, noise })
    },
    write: |spec, out| {
        let RepresentationSpec { clients, raw, latent, small_share: share, small, large, noise } =
            *spec;
        let small = Few { share, samples: small };
        SIZES.write(&Sizes { clients, noise, raw, latent, small, large }, out);
    },
};
