//! Noise of releases: the exact discrete Gaussian on a grid, from a secret or from a seed.
//!
//! A sum of sensitivity `C` is rounded to a grid of step `C/(1024 sqrt(dim))` or a little less, so that
//! the sensitivity grows to `C + step sqrt(dim)`. A discrete Gaussian of variance `s^2 + 4` (in steps)
//! is as private as a continuous one of variance `s^2`: up to a factor `1 + 1e-33` in each
//! probability it *is* the continuous one after a randomised rounding to the grid (Peikert 2010,
//! Theorem 3.1, whose smoothing parameter 2 has this error). The exact formula of the
//! [accountant](crate::accountant) therefore applies.

use crate::gaussian::{Bits, VARIANCE_MAX, discrete_gaussian};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use whimbrel_core::{Error, Key, Result, Stream};

/// Grid steps in the sensitivity, over the root of the dimension.
const STEPS: f64 = 1024.0;
/// The variance of the rounding that the guarantee leaves out, in steps.
const ROUNDING: f64 = 4.0;

/// The origin of the noise.
#[derive(Clone, Copy, PartialEq)]
pub enum Source {
    /// A ChaCha20 key, which only the party that adds the noise has.
    Secret([u8; 32]),
    /// A seed, which repeats the noise; anyone who knows it can remove the noise.
    Seed(u64),
}

impl Source {
    /// A new secret from the operating system.
    pub fn secret() -> Result<Self> {
        Ok(Self::Secret(random_bytes()?))
    }

    /// The random bits of one client's share. On a network each client has its own secret; `key`
    /// separates clients, stages and exchanges.
    pub fn bits_of_client(&self, key: Key) -> Words {
        let words = key.words();
        match self {
            Self::Secret(secret) => {
                let mut context = Context::new(&SHA256);
                context.update(secret);
                words.iter().for_each(|word| context.update(&word.to_le_bytes()));
                let mut own = [0; 32];
                own.copy_from_slice(context.finish().as_ref());
                Self::Secret(own).bits(0, 0)
            }
            Self::Seed(seed) => {
                let key = words.iter().fold(Key::root(*seed), |key, word| key.child(*word));
                Words::Stream(Box::new(key.stream()))
            }
        }
    }

    /// The random bits of one release; `purpose` separates the stages of a run.
    pub fn bits(&self, purpose: u32, release: u32) -> Words {
        match self {
            Self::Secret(key) => Words::Cipher(Box::new(Cipher::new(key, purpose, release))),
            Self::Seed(seed) => {
                let key = Key::root(*seed).child(purpose.into()).child(release.into());
                Words::Stream(Box::new(key.stream()))
            }
        }
    }
}

/// Random bytes from the operating system.
pub fn random_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let failed = |_| Error::internal("the operating system gave no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// One client's share of a distributed release: integers on a public grid, to which each client adds
/// discrete Gaussian noise before masks hide them. The noise of the sum has the standard deviation `z`
/// times the sensitivity, without the shares of colluding clients. It is not exactly discrete Gaussian: with a deviation of at least 3 in
/// each of `n` shares of length `d`, `mu` of the sum grows by less than `n sqrt(d) 1e-37` (Kairouz, Liu
/// and Steinke 2021, Theorem 1), which the accountant leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoiseShare {
    /// The exponent of the grid's step, at most `C/(32 sqrt(dim))`.
    pub exponent: i32,
    /// In steps.
    pub variance: u64,
}

/// Least grid steps in the sensitivity of a distributed release, over the root of the dimension.
const SHARED_STEPS: f64 = 32.0;
/// Least variance of a share.
const SHARE_MIN: f64 = 9.0;

impl NoiseShare {
    /// The share if at least `honest` clients add theirs. Rounding to the grid adds at most
    /// `sqrt(dim)` steps to the sensitivity.
    pub fn new(sensitivity: f64, dimension: usize, multiplier: f64, honest: u32) -> Result<Self> {
        let root = (dimension.max(1) as f64).sqrt();
        let step = power_of_two_below(sensitivity / (SHARED_STEPS * root));
        let deviation = multiplier * (sensitivity / step + root);
        let variance = (deviation * deviation / f64::from(honest)).max(SHARE_MIN).ceil();
        if !(step.is_normal() && honest > 0 && variance <= VARIANCE_MAX as f64) {
            return Err(Error::config(format!(
                "noise of {multiplier} times a sensitivity of {sensitivity} cannot be shared among \
                 {honest} clients"
            )));
        }
        let exponent = ((step.to_bits() >> 52) as i32) - 1023;
        Ok(Self { exponent, variance: variance as u64 })
    }

    /// The magnitude that a client's integers exceed with probability below `1e-20` each.
    pub fn magnitude(&self, sensitivity: f64, dimension: usize) -> f64 {
        let steps = sensitivity / f64::from(self.exponent).exp2() + (dimension as f64).sqrt();
        steps + 10.0 * (self.variance as f64).sqrt()
    }

    /// Whether a vector in words of 32 bits has the sensitivity for which the shares were made.
    pub fn covers(&self, words: &[u64], sensitivity: f64) -> bool {
        let squares: f64 = words.iter().map(|word| f64::from(*word as i32).powi(2)).sum();
        let steps = sensitivity / f64::from(self.exponent).exp2();
        squares.sqrt() <= steps + (words.len() as f64).sqrt()
    }

    /// Adds the share of one client and exchange to words modulo their width.
    pub fn add(&self, words: &mut [u64], bits: &mut impl Bits) {
        for word in words {
            *word = word.wrapping_add(discrete_gaussian(self.variance, bits) as u64);
        }
    }
}

/// The secret is not shown.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(_) => f.write_str("Secret"),
            Self::Seed(seed) => write!(f, "Seed({seed})"),
        }
    }
}

/// Rounds a sum to the grid of its sensitivity and adds discrete Gaussian noise of `multiplier`
/// times that sensitivity.
pub fn add_noise(
    sum: &mut [f64],
    sensitivity: f64,
    multiplier: f64,
    bits: &mut impl Bits,
) -> Result<()> {
    let root = (sum.len() as f64).sqrt();
    let step = power_of_two_below(sensitivity / (STEPS * root));
    let deviation = multiplier * (sensitivity / step + root);
    let variance = (deviation * deviation + ROUNDING).ceil();
    if !(step.is_normal() && variance <= VARIANCE_MAX as f64) {
        return Err(Error::config(format!(
            "noise of {multiplier} times a sensitivity of {sensitivity} cannot be drawn for {} numbers",
            sum.len()
        )));
    }
    for x in sum {
        let steps = (*x / step).round();
        // Beyond 2^52 steps a sum has no digits on the grid.
        if steps.abs() >= (1u64 << 52) as f64 || steps.is_nan() {
            return Err(Error::numerical("a sum is too large for noise on its grid"));
        }
        *x = (steps + discrete_gaussian(variance as u64, bits) as f64) * step;
    }
    Ok(())
}

/// The largest power of two that is at most `x`, for a positive normal `x`.
fn power_of_two_below(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & !((1 << 52) - 1))
}

/// The random bits of one release.
pub enum Words {
    Cipher(Box<Cipher>),
    Stream(Box<Stream>),
}

impl Bits for Words {
    fn word(&mut self) -> u64 {
        match self {
            Self::Cipher(cipher) => cipher.word(),
            Self::Stream(stream) => stream.next_u64(),
        }
    }
}

/// The key stream of ChaCha20.
pub struct Cipher {
    key: LessSafeKey,
    /// Purpose, release and block.
    address: [u32; 3],
    block: Vec<u8>,
    used: usize,
}

/// Bytes of the key stream under one nonce.
const BLOCK_BYTES: usize = 4096;

impl Cipher {
    fn new(key: &[u8; 32], purpose: u32, release: u32) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key of 32 bytes");
        let (address, block) = ([purpose, release, 0], vec![0; BLOCK_BYTES]);
        Self { key: LessSafeKey::new(key), address, block, used: BLOCK_BYTES }
    }
}

impl Bits for Cipher {
    fn word(&mut self) -> u64 {
        if self.used == BLOCK_BYTES {
            let mut nonce = [0; 12];
            for (bytes, part) in nonce.chunks_exact_mut(4).zip(self.address) {
                bytes.copy_from_slice(&part.to_le_bytes());
            }
            // Encrypted zeros are the key stream.
            self.block.fill(0);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut self.block);
            assert!(sealed.is_ok(), "a block of 4096 bytes");
            self.address[2] = self.address[2].checked_add(1).expect("less than 16 TB of noise");
            self.used = 0;
        }
        let word = self.block[self.used..].first_chunk().expect("whole words");
        self.used += 8;
        u64::from_le_bytes(*word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(source: &Source, purpose: u32, release: u32) -> Vec<f64> {
        let mut sum = vec![0.0; 400];
        add_noise(&mut sum, 2.0, 3.0, &mut source.bits(purpose, release)).unwrap();
        sum
    }

    #[test]
    fn releases_and_secrets_have_their_own_noise_and_seeds_repeat_it() {
        let secret = Source::secret().unwrap();
        for source in [&secret, &Source::Seed(5)] {
            assert_eq!(noise(source, 1, 2), noise(source, 1, 2));
            assert_ne!(noise(source, 1, 2), noise(source, 1, 3));
            assert_ne!(noise(source, 1, 2), noise(source, 2, 2));
        }
        assert_ne!(noise(&secret, 1, 2), noise(&Source::secret().unwrap(), 1, 2));
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    /// 40,000 draws: mean and variance within five standard errors (a false alarm in less than one
    /// of 10^5 seeds).
    #[test]
    fn noise_has_the_multiple_of_the_sensitivity() {
        let mut sum = vec![100.0; 40_000];
        add_noise(&mut sum, 2.0, 3.0, &mut Source::Seed(9).bits(0, 0)).unwrap();
        let n = sum.len() as f64;
        let mean = sum.iter().sum::<f64>() / n;
        let variance = sum.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        // Between z C and z C (1 + 1/1024).
        assert!((mean - 100.0).abs() < 5.0 * 6.0 / n.sqrt());
        assert!((variance / 36.0 - 1.0).abs() < 5.0 * (2.0 / n).sqrt() + 0.002);
    }

    /// 40 clients with 1,000 coordinates: the sum's variance is that of `z C'` within five standard
    /// errors (a false alarm in one of 10^6 seeds), and shares of clients and exchanges differ.
    #[test]
    fn shares_add_up_to_the_noise_of_the_sum() {
        let (sensitivity, dimension, clients) = (2.0, 1000, 40);
        let share = NoiseShare::new(sensitivity, dimension, 3.0, clients).unwrap();
        let step = f64::from(share.exponent).exp2();
        assert!(step <= sensitivity / (32.0 * 1000f64.sqrt()) && step > sensitivity / 2048.0);
        let mut sum = vec![0u64; dimension];
        for source in [Source::Seed(4), Source::secret().unwrap()] {
            let one = |client: u64| {
                let mut words = vec![0u64; dimension];
                share.add(&mut words, &mut source.bits_of_client(Key::root(1).child(client)));
                words
            };
            assert_eq!(one(0), one(0));
            assert_ne!(one(0), one(1));
            sum.fill(0);
            for client in 0..clients {
                let words = one(client.into());
                sum.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
            }
            let deviation = 3.0 * (sensitivity / step + 1000f64.sqrt());
            let squares = sum.iter().map(|z| (*z as i64 as f64 / deviation).powi(2)).sum::<f64>();
            let variance = squares / dimension as f64;
            assert!((variance - 1.0).abs() < 5.0 * (2.0 / dimension as f64).sqrt(), "{variance}");
        }
        // Fewer honest clients: larger shares. A tiny noise is raised to a deviation of 3.
        let fewer = NoiseShare::new(sensitivity, dimension, 3.0, clients / 2).unwrap();
        assert!(fewer.variance.abs_diff(2 * share.variance) <= 2);
        assert_eq!(NoiseShare::new(sensitivity, 1, 1e-9, clients).unwrap().variance, 9);
        assert!(NoiseShare::new(sensitivity, dimension, 1e9, 1).is_err());
        assert!(NoiseShare::new(sensitivity, dimension, 1.0, 0).is_err());
    }

    #[test]
    fn sums_that_cannot_be_released_are_errors() {
        let mut bits = Source::Seed(1).bits(0, 0);
        assert!(add_noise(&mut [f64::NAN], 1.0, 1.0, &mut bits).is_err());
        assert!(add_noise(&mut [1e300], 1.0, 1.0, &mut bits).is_err());
        assert!(add_noise(&mut [1.0; 9], 1.0, 1e9, &mut bits).is_err());
        assert!(add_noise(&mut [1.0], 0.0, 1.0, &mut bits).is_err());
    }
}
