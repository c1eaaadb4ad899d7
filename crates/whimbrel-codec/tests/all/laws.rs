//! The shared battery on every codec, at both widths.

use whimbrel_codec::{Codec, Norm};
use whimbrel_testkit::codec::laws;

use crate::subject::{block, dithering, with};

fn both_widths(codec: Codec) {
    with::<f64>(&codec, laws);
    with::<f32>(&codec, laws);
}

#[test]
fn exact_codecs_obey_the_laws() {
    both_widths(Codec::Exact);
    with::<f32>(&Codec::ExactF32, laws);
}

#[test]
fn dithering_with_one_level_obeys_the_laws() {
    both_widths(dithering(1, Norm::P(2), None));
}

#[test]
fn dithering_with_other_norms_obeys_the_laws() {
    both_widths(dithering(1, Norm::P(1), None));
    both_widths(dithering(3, Norm::Infinity, None));
}

#[test]
fn dithering_with_many_levels_obeys_the_laws() {
    both_widths(dithering(4, Norm::P(2), None));
    both_widths(dithering(1000, Norm::P(2), None));
    both_widths(dithering(32767, Norm::Infinity, Some(7)));
}

#[test]
fn dithering_in_buckets_obeys_the_laws() {
    both_widths(dithering(16, Norm::P(2), Some(256)));
    both_widths(dithering(2, Norm::P(1), Some(5)));
}

#[test]
fn block_quantization_obeys_the_laws() {
    both_widths(block(16, Norm::P(2)));
    both_widths(block(1000, Norm::Infinity));
    both_widths(block(10, Norm::P(1)));
    both_widths(block(30, Norm::P(3)));
}

#[test]
fn sparsification_obeys_the_laws() {
    both_widths(Codec::sparse(0.5).unwrap());
    both_widths(Codec::sparse(0.03).unwrap());
    both_widths(Codec::sparse_exactly(1).unwrap());
    both_widths(Codec::sparse_exactly(40).unwrap());
}

#[test]
fn natural_compression_obeys_the_laws() {
    both_widths(Codec::Natural);
}

#[test]
fn biased_codecs_obey_the_laws() {
    both_widths(Codec::top_k(1).unwrap());
    both_widths(Codec::top_k(25).unwrap());
    both_widths(Codec::Sign);
    assert!(!Codec::Sign.is_unbiased() && Codec::Sign.omega(5).is_none());
}

#[test]
fn rounding_to_f32_is_to_nearest_and_refuses_what_overflows() {
    let x = [1.0 + 1e-9, -0.1, 3e-50, 0.0];
    let mut out = [0.0; 4];
    let packet = Codec::ExactF32.encode(&x, whimbrel_core::Key::root(1)).unwrap();
    assert_eq!(packet.len(), 16);
    Codec::ExactF32.decode(&packet, &mut out).unwrap();
    assert_eq!(out, x.map(|v| f64::from(v as f32)));
    assert!(Codec::ExactF32.encode(&[1e39], whimbrel_core::Key::root(1)).is_err());
}
