//! `[data]` with `source = "synthetic-representation"`: numbers predicted through a representation that
//! clients share.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::{RepresentationSpec, SmallClients};
use whimbrel_job::form::{COUNT, POSITIVE, SHARE};
use whimbrel_job::{inline, table};

table! {
    FEW: SmallClients = "small", "clients with few samples" {
        share: FEW_SHARE = "share", SHARE, default "0.9", "the share of clients with few samples";
        samples: FEW_SAMPLES = "samples", COUNT, default "5", "how many samples these have";
    }
}

table! {
    pub(super) REPRESENTATION: RepresentationSpec,
        only (&["synthetic-representation"], "only a drawn representation has it")
    {
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
