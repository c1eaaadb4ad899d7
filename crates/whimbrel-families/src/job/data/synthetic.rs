//! `[data]` with `source = "synthetic-mixture"`: labels of a mixture of logistic models.

use super::mixture::CLIENTS;
use whimbrel_data::LogisticMixtureSpec;
use whimbrel_job::key::Key;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};

const SYNTHETIC: &[&str] = &["synthetic-mixture"];
const ONLY: &str = "only a drawn mixture of logistic models has it";

pub(super) static COMPONENTS: Key = Key::default(
    "components",
    "an integer of at least 1",
    "3",
    "how many logistic models labels are drawn from",
)
.only(SYNTHETIC, ONLY);
pub(super) static DIMENSION: Key =
    Key::default("dimension", "an integer of at least 1", "150", "how many features are drawn")
        .only(SYNTHETIC, ONLY);
pub(super) static ALPHA: Key = Key::default(
    "alpha",
    "a number of at least 0",
    "0.4",
    "the concentration of the Dirichlet law of the clients' weights over the components; 0 gives \
     each client one component",
)
.only(SYNTHETIC, ONLY);
pub(super) static TEST_SAMPLES: Key = Key::optional(
    "test_samples",
    "an integer of at least 1",
    "the share `test` of its own samples",
    "how many test samples are drawn for each client, in place of the share `test` of its own; the \
     training samples are the same either way",
)
.only(SYNTHETIC, ONLY);

pub(super) fn read(reader: &Reader<'_>) -> Read<LogisticMixtureSpec> {
    let usual = LogisticMixtureSpec::default();
    let clients = reader.optional(&CLIENTS, |v| v.count());
    let components = reader.read(&COMPONENTS, |v| v.count());
    let dimension = reader.read(&DIMENSION, |v| v.count());
    let alpha = reader.read(&ALPHA, |v| v.number(|x| x >= 0.0));
    let test_samples = reader.optional(&TEST_SAMPLES, |v| v.count());
    Ok(LogisticMixtureSpec {
        clients: clients?.unwrap_or(usual.clients),
        components: components?,
        dimension: dimension?,
        alpha: alpha?,
        test_samples: test_samples?.unwrap_or(0),
    })
}

pub(super) fn write(spec: &LogisticMixtureSpec, out: &mut Writer) {
    out.put(&CLIENTS, spec.clients.to_string());
    out.put(&COMPONENTS, spec.components.to_string());
    out.put(&DIMENSION, spec.dimension.to_string());
    out.put(&ALPHA, number(spec.alpha));
    if spec.test_samples > 0 {
        out.put(&TEST_SAMPLES, spec.test_samples.to_string());
    }
}
