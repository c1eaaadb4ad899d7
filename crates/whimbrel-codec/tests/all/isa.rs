//! The instruction set changes the speed, never the bytes.

use whimbrel_codec::channel::{GridNote, UpClient, UpRule, Uplink};
use whimbrel_codec::{Codec, Inclusion, Norm, SharedGrid};
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
    let grid = SharedGrid::new(16).unwrap().among(5, Inclusion::Equal(1.0));
    let uplink = Uplink::new(Codec::Grid(grid), UpRule::Plain, 10_007).unwrap();
    let note = GridNote { total: 5.0, enrolled: 5, inclusion: None, exponents: vec![-9; 10] };
    let note = uplink.grid_share(&note, 1.0, false).unwrap();
    let all = |level| {
        isa::pin(level);
        let mut packets = Vec::new();
        for codec in &codecs {
            for (_, x) in shapes(10_007, false) {
                packets.push(codec.encode(&x, Key::root(9)).unwrap());
            }
        }
        for (_, x) in shapes(10_007, false) {
            let (end, key) = (UpClient::default(), Key::root(9));
            packets.push(uplink.send_on_grid(&end, &x, None, &note, key).unwrap().1);
        }
        packets
    };
    let baseline = all(Isa::Baseline);
    assert_eq!(all(Isa::V3), baseline);
    assert_eq!(all(Isa::V4), baseline);
}
