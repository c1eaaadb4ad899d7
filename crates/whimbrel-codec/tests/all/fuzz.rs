//! Decoders on arbitrary bytes.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use whimbrel_codec::{Codec, Norm, Packet};
use whimbrel_core::Error;

use crate::subject::{block, dithering};

fn codecs() -> Vec<Codec> {
    vec![
        Codec::Exact,
        Codec::ExactF32,
        dithering(1, Norm::P(2), None),
        dithering(1000, Norm::Infinity, Some(50)),
        block(7, Norm::P(1)),
        Codec::sparse(0.1).unwrap(),
        Codec::sparse_exactly(3).unwrap(),
        Codec::Natural,
        Codec::top_k(4).unwrap(),
        Codec::Sign,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn arbitrary_bytes_are_refused_or_finite(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        d in prop_oneof![0usize..20, 100usize..300, Just(4096usize), Just(8192usize)],
    ) {
        for codec in codecs() {
            let packet = Packet::from_bytes(bytes.clone());
            let mut wide = vec![f64::NAN; d];
            match codec.decode(&packet, &mut wide) {
                Ok(()) => prop_assert!(wide.iter().all(|v| v.is_finite()), "{codec:?}"),
                Err(error) => prop_assert!(matches!(error, Error::Peer { .. }), "{codec:?}: {error}"),
            }
            let mut narrow = vec![f32::NAN; d];
            match codec.decode(&packet, &mut narrow) {
                Ok(()) => prop_assert!(narrow.iter().all(|v| v.is_finite()), "{codec:?}"),
                Err(error) => prop_assert!(matches!(error, Error::Peer { .. }), "{codec:?}: {error}"),
            }
        }
    }
}
