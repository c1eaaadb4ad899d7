//! The instruction set changes the speed, never the bytes.

use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;
use whimbrel_core::isa::{self, Isa};
use whimbrel_testkit::codec::shapes;

use crate::subject::dithering;

#[test]
fn bytes_do_not_depend_on_the_instruction_set() {
    let codecs = [
        dithering(1, Norm::P(2), None),
        dithering(16, Norm::P(2), Some(250)),
        dithering(5, Norm::P(1), None),
        dithering(100, Norm::Infinity, None),
        Codec::Natural,
        Codec::Sign,
    ];
    let all = |level| {
        isa::pin(level);
        let mut packets = Vec::new();
        for codec in &codecs {
            for (_, x) in shapes(10_007, false) {
                packets.push(codec.encode(&x, Key::root(9)).unwrap());
            }
        }
        packets
    };
    let baseline = all(Isa::Baseline);
    assert_eq!(all(Isa::V3), baseline);
    assert_eq!(all(Isa::V4), baseline);
}
