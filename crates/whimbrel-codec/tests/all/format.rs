//! Golden bytes: a change here is a change of the format.

use whimbrel_codec::{Codec, Norm, Packet};
use whimbrel_core::Key;
use whimbrel_testkit::codec::shapes;

use crate::subject::{block, dithering};

const X: [f64; 8] = [0.5, -1.25, 0.0, 3.0, -0.001, 0.75, 2.0, -0.3];

fn hex(packet: &Packet) -> String {
    whimbrel_core::wire::hex(packet.bytes())
}

fn golden(codec: Codec, bytes: &str) {
    assert_eq!(hex(&codec.encode(&X, Key::root(1)).unwrap()), bytes, "{codec:?}");
}

#[test]
fn formats_are_frozen() {
    golden(
        Codec::Exact,
        "000000000000e03f000000000000f4bf00000000000000000000000000000840fca9f1d24d6250bf000000000000e83f0000000000000040333333333333d3bf",
    );
    golden(Codec::ExactF32, "0000003f0000a0bf00000000000040406f1283ba0000403f000000409a9999be");
    golden(dithering(1, Norm::P(2), None), "407baf0200");
    golden(dithering(5, Norm::P(1), Some(4)), "3f7333343f1c361265e0a72e");
    golden(dithering(100, Norm::Infinity, None), "3cf5c290f0bc26a82d22d6e004");
    golden(block(3, Norm::P(2)), "3fac53464045e8ba40016e977524");
    golden(Codec::sparse(0.5).unwrap(), "3ffca9f1d24d6250bf");
    golden(Codec::sparse_exactly(2).unwrap(), "425afca9f1d24d6250bf333333333333d3bf");
    golden(Codec::Natural, "3404c171114cfdaf");
    golden(Codec::top_k(2).unwrap(), "4a2000000000000008400000000000000040");
    golden(Codec::Sign, "3f79a1cb67c6");
}

/// Long vectors use the other forms of levels; their bytes are pinned by a checksum.
#[test]
fn long_formats_are_frozen() {
    let sums: Vec<u64> = [
        (dithering(1, Norm::P(2), None), 20_000),
        (dithering(4, Norm::P(2), None), 600),
        (dithering(16, Norm::P(2), Some(256)), 20_000),
        (dithering(9000, Norm::Infinity, None), 20_000),
    ]
    .iter()
    .map(|(codec, d)| {
        let (_, x) = &shapes(*d, false)[0];
        checksum(&codec.encode(x, Key::root(1)).unwrap())
    })
    .collect();
    assert_eq!(
        sums,
        [
            0xdf6b_3e8a_4372_ee22,
            0x82f6_8db0_ef0f_e6be,
            0xc30a_3c77_8318_b853,
            0xbe36_fe59_9690_3ee4
        ]
    );
}

/// Fowler, Noll and Vo's 64-bit hash, variant 1a.
fn checksum(packet: &Packet) -> u64 {
    packet.bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A zero vector costs nothing, and a packet for another length is refused.
#[test]
fn lengths_must_agree() {
    let codec = dithering(1, Norm::P(2), None);
    assert!(codec.encode(&[0.0; 40], Key::root(1)).unwrap().is_empty());
    let packet = Codec::Exact.encode(&X, Key::root(1)).unwrap();
    assert!(Codec::Exact.decode(&packet, &mut [0.0f64; 7]).is_err());
    assert!(Codec::Exact.decode(&packet, &mut [0.0f32; 8]).is_err());
    let listed = crate::subject::listed(&[3, 4], Norm::P(2));
    assert!(listed.encode(&X, Key::root(1)).is_err());
}

#[test]
fn parameters_are_checked_with_a_hint() {
    let refused = [
        Codec::dithering(0, Norm::P(2), None),
        Codec::dithering(40_000, Norm::P(2), None),
        Codec::dithering(1, Norm::P(3), None),
        Codec::dithering(1, Norm::P(2), Some(0)),
        Codec::block_p(0, Norm::P(2)),
        Codec::block_p(4, Norm::P(0)),
        Codec::sparse_exactly(0),
        Codec::top_k(0),
    ];
    for codec in refused {
        let message = codec.unwrap_err().to_string();
        assert!(message.contains("\nhint: "), "{message}");
    }
    assert!(Codec::sparse(0.0).is_err() && Codec::sparse(1.5).is_err());
}
