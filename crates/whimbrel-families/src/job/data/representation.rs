//! `[data]` with `source = "synthetic-representation"`: numbers predicted through a representation that
//! clients share.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::{RepresentationSpec, SmallClients};
use whimbrel_job::form::{COUNT, POSITIVE, SHARE};
use whimbrel_job::{inline, table};

table! {
    FEW: SmallClients = "small", "clients with few samples" {
        share: FEW_SHARE = "share", SHARE, default, "the share of clients with few samples";
        samples: FEW_SAMPLES = "samples", COUNT, default, "how many samples these have";
    }
}

table! {
    pub(super) REPRESENTATION: RepresentationSpec,
        only (&["synthetic-representation"], "only a drawn representation has it")
    {
        & clients: CLIENTS, COUNT, unset or RepresentationSpec::default().clients;
        & noise: NOISE, POSITIVE, unset or RepresentationSpec::default().noise;
        raw: RAW = "raw", COUNT, default, "the length of an input";
        latent: LATENT = "latent", COUNT.takes("an integer from 1 to `raw`"), default,
            "how many latent features the targets depend on";
        small: SMALL = "small", inline!(FEW).takes("{ share = 0.9, samples = 5 }"),
            default,
            "the share of clients with few samples, and how many they have";
        large: LARGE = "large", COUNT, default, "how many samples the other clients have";
    }
}
