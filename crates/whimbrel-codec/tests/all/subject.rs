//! Codecs dressed for the battery.

use whimbrel_codec::{BlockP, Codec, Norm, Packet, Scalar};
use whimbrel_core::{Key, Result};
use whimbrel_testkit::codec::CodecUnderTest;

/// Runs `test` on the codec over vectors of `T`.
pub fn with<T: Convert>(codec: &Codec, test: impl FnOnce(&CodecUnderTest)) {
    let encode = |x: &[f64], key: Key| -> Result<Vec<u8>> {
        Ok(codec.encode(&T::vector(x), key)?.bytes().to_vec())
    };
    let encode_decoded = |x: &[f64], key: Key| {
        let x = T::vector(x);
        let mut decoded = vec![T::default(); x.len()];
        let packet = codec.encode_decoded(&x, key, &mut decoded)?;
        Ok((packet.bytes().to_vec(), T::doubles(&decoded)))
    };
    let decode = |bytes: &[u8], d: usize| {
        let mut out = vec![T::default(); d];
        codec.decode(&Packet::from_bytes(bytes.to_vec()), &mut out)?;
        Ok(T::doubles(&out))
    };
    test(&CodecUnderTest {
        name: format!("{codec:?}"),
        narrow: T::NARROW,
        omega: &|d| codec.omega(d),
        contraction: &|d| codec.contraction(d),
        encode: &encode,
        encode_decoded: &encode_decoded,
        decode: &decode,
    });
}

/// Vectors of `f64` and of `f32` from the battery's `f64`.
pub trait Convert: Scalar {
    const NARROW: bool;
    fn vector(x: &[f64]) -> Vec<Self>;
    fn doubles(x: &[Self]) -> Vec<f64>;
}

impl Convert for f64 {
    const NARROW: bool = false;
    fn vector(x: &[f64]) -> Vec<f64> {
        x.to_vec()
    }
    fn doubles(x: &[f64]) -> Vec<f64> {
        x.to_vec()
    }
}

impl Convert for f32 {
    const NARROW: bool = true;
    fn vector(x: &[f64]) -> Vec<f32> {
        x.iter().map(|&v| v as f32).collect()
    }
    fn doubles(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&v| f64::from(v)).collect()
    }
}

pub fn dithering(levels: u32, norm: Norm, bucket: Option<usize>) -> Codec {
    Codec::dithering(levels, norm, bucket).unwrap()
}

pub fn block(size: usize, norm: Norm) -> Codec {
    Codec::block_p(size, norm).unwrap()
}

pub fn listed(sizes: &[usize], norm: Norm) -> Codec {
    Codec::BlockP(BlockP::listed(sizes.to_vec(), norm).unwrap())
}
