//! `[data]` with `source = "synthetic-representation"`: a shared linear representation.

use super::mixture::CLIENTS;
use super::toy::NOISE;
use whimbrel_data::{RepresentationSpec, SmallClients};
use whimbrel_job::form::{COUNT, POSITIVE, SHARE};
use whimbrel_job::{inline, table};

table! {
    FEW: SmallClients = "small", "clients with few samples" {
        /// share of clients with few samples
        share: FEW_SHARE = "share", SHARE, default;
        /// samples of these clients
        samples: FEW_SAMPLES = "samples", COUNT, default;
    }
}

table! {
    pub(super) REPRESENTATION: RepresentationSpec,
        only (&["synthetic-representation"], "only a drawn representation has it")
    {
        & clients: CLIENTS, COUNT, unset or RepresentationSpec::default().clients;
        & noise: NOISE, POSITIVE, unset or RepresentationSpec::default().noise;
        /// length of an input
        raw: RAW = "raw", COUNT, default;
        /// number of latent features behind the targets
        latent: LATENT = "latent", COUNT.takes("an integer from 1 to `raw`"), default;
        /// clients with few samples: their share, and their number of samples
        small: SMALL = "small", inline!(FEW).takes("{ share = 0.9, samples = 5 }"), default;
        /// samples of the other clients
        large: LARGE = "large", COUNT, default;
    }
}
