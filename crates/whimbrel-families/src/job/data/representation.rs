//! `[data]` with `source = "synthetic-representation"`: a shared linear representation.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::{RepresentationSpec, SmallClients};
use whimbrel_job::form::{COUNT, POSITIVE, SHARE};
use whimbrel_job::{inline, table};

table! {
    FEW: SmallClients = "small", "clients with few samples" {
        share: FEW_SHARE = "share", SHARE, default, "share of clients with few samples";
        samples: FEW_SAMPLES = "samples", COUNT, default, "samples of these clients";
    }
}

table! {
    pub(super) REPRESENTATION: RepresentationSpec,
        only (&["synthetic-representation"], "only a drawn representation has it")
    {
        & clients: CLIENTS, COUNT, unset or RepresentationSpec::default().clients;
        & noise: NOISE, POSITIVE, unset or RepresentationSpec::default().noise;
        raw: RAW = "raw", COUNT, default, "length of an input";
        latent: LATENT = "latent", COUNT.takes("an integer from 1 to `raw`"), default,
            "number of latent features behind the targets";
        small: SMALL = "small", inline!(FEW).takes("{ share = 0.9, samples = 5 }"),
            default,
            "clients with few samples: their share, and their number of samples";
        large: LARGE = "large", COUNT, default, "samples of the other clients";
    }
}
