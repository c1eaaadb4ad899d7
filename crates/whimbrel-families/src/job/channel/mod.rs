//! `[uplink]` and `[downlink]`: compression of messages.

pub mod downlink;
pub mod own;
pub mod uplink;

use crate::job::preset::Asked;
use whimbrel_codec::channel::Preset;
use whimbrel_job::form::Form;
use whimbrel_job::reader::{Read, Value};

pub use downlink::Downlink;
pub use own::OwnCodec;
pub use uplink::{MemoryStart, Uplink};
pub use whimbrel_codec::channel::{Auto, DownRule, Feedback, Memories, Reset, UpRule};

/// Reads a channel's rule; refuses one that contradicts a preset, and any but `idle` for pooled methods.
fn read_rule<T>(
    value: &Value<'_>,
    asked: Asked,
    rules: &Form<T>,
    of_preset: fn(Preset) -> T,
    [channel, idle]: [&str; 2],
) -> Read<T> {
    let rule = rules.read(value)?;
    let name = rules.name(&rule);
    if let Some(preset) = asked.preset {
        let its = rules.name(&of_preset(preset));
        if its != name {
            let preset = preset.name();
            return Err(value.fail(
                format!("rule = \"{name}\" contradicts \"{preset}\", whose {channel} is \"{its}\""),
                "take `rule` out, or choose other channels in [method]",
            ));
        }
    }
    if asked.is_pooled() && name != idle {
        let method = asked.method();
        return Err(value.fail(
            format!("{method} has no use for {name}: one client holds all rows"),
            "take `rule` out",
        ));
    }
    Ok(rule)
}
