//! `[uplink]` and `[downlink]`: how vectors travel.

pub mod downlink;
pub mod own;
pub mod uplink;

pub use downlink::{DownRule, DownRuleKind, Downlink, Feedback, Memories, Reset};
pub use own::OwnCodec;
pub use uplink::{MemoryStart, UpRule, UpRuleKind, Uplink};

use whimbrel_job::key::Word;
use whimbrel_job::reader::{Read, Shape, Value};

/// `alpha = "auto"`, which both directions have.
const fn auto(doc: &'static str) -> Word {
    Word { name: "auto", doc }
}

/// `"auto"` (none) or a number that passes a test.
fn read_alpha(value: &Value<'_>, test: impl FnOnce(f64) -> bool) -> Read<Option<f64>> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(None),
            other => Err(value.unknown_word(other)),
        },
        _ => value.number(test).map(Some),
    }
}
