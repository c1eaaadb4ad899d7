//! `[uplink]` and `[downlink]`: how vectors travel.

pub mod downlink;
pub mod own;
pub mod uplink;

pub use downlink::{DownRule, DownRuleKind, Downlink, Feedback, Memories, Reset};
pub use own::OwnCodec;
pub use uplink::{MemoryStart, UpRule, Uplink};
pub use whimbrel_methods::sgd::preset::UpKind;
