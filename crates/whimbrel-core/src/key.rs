//! Addressed random streams.
//!
//! A [`Key`] addresses one random stream: it is derived from the run's seed by children for round,
//! client and purpose. Equal addresses give equal numbers on every machine, independent of earlier
//! draws. The generator is Threefry-2x64 (Salmon et al., 2011): counter based, a few additions and
//! rotations, so opening a stream costs nanoseconds and eight counters are computed at a time in
//! vector registers.

use crate::kernel;

/// The address of a random stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key([u64; 2]);

const ROTATIONS: [u32; 8] = [16, 42, 12, 31, 16, 32, 24, 21];
const PARITY: u64 = 0x1BD1_1BDA_A9FC_1A22;
/// Children use counters that no stream reaches.
const CHILD: u64 = u64::MAX;
/// Rounds for deriving keys (the authors' conservative choice) and for bulk numbers (the fewest
/// that pass every statistical battery).
const KEY_ROUNDS: usize = 20;
const BULK_ROUNDS: usize = 13;
const LANES: usize = 8;
const BLOCK: usize = 2 * LANES;

impl Key {
    /// The root of all keys of one seed.
    pub fn root(seed: u64) -> Self {
        Self([seed, 0x5768_696D_6272_656C]).child(0)
    }

    /// A child key.
    #[must_use]
    pub fn child(self, tag: u64) -> Self {
        Self(threefry(self.0, [tag, CHILD], KEY_ROUNDS))
    }

    /// One uniform number in [0, 1), without opening a stream.
    pub fn uniform(self) -> f64 {
        unit(threefry(self.0, [0, CHILD - 1], KEY_ROUNDS)[0])
    }

    /// The key as two words, for storing it.
    pub fn words(self) -> [u64; 2] {
        self.0
    }

    /// A key that was stored.
    pub fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Opens the stream.
    pub fn stream(self) -> Stream {
        Stream { key: self, counter: 0, used: BLOCK, block: [0; BLOCK] }
    }
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Stream {
    key: Key,
    counter: u64,
    used: usize,
    block: [u64; BLOCK],
}

impl Stream {
    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        if self.used == BLOCK {
            blocks(self.key.0, self.counter, &mut self.block);
            self.counter += LANES as u64;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// Fills `out` with the same numbers as calls of [`next_u64`](Self::next_u64), faster.
    pub fn fill(&mut self, out: &mut [u64]) {
        let buffered = (BLOCK - self.used).min(out.len());
        let (head, rest) = out.split_at_mut(buffered);
        head.copy_from_slice(&self.block[self.used..self.used + buffered]);
        self.used += buffered;
        let whole = rest.len() / BLOCK * BLOCK;
        let (body, tail) = rest.split_at_mut(whole);
        blocks(self.key.0, self.counter, body);
        self.counter += (whole / 2) as u64;
        if !tail.is_empty() {
            blocks(self.key.0, self.counter, &mut self.block);
            self.counter += LANES as u64;
            self.used = tail.len();
            tail.copy_from_slice(&self.block[..tail.len()]);
        }
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// Uniform in the open interval (0, 1).
    #[inline]
    pub fn uniform_open(&mut self) -> f64 {
        ((self.next_u64() >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
    }

    /// Uniform over `0..n` without bias (`n` must be positive).
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "an empty range has nothing to draw from");
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            let low = wide as u64;
            if low >= n || low >= n.wrapping_neg() % n {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// The first `k` of a random order of `0..n` (`k <= n`), in the order drawn.
    pub fn choose(&mut self, n: usize, k: usize) -> Vec<usize> {
        assert!(k <= n, "cannot draw {k} distinct numbers below {n}");
        let mut moved = std::collections::HashMap::with_capacity(2 * k);
        (0..k)
            .map(|i| {
                let j = i + self.below((n - i) as u64) as usize;
                let at_i = *moved.get(&i).unwrap_or(&i);
                moved.insert(j, at_i).unwrap_or(j)
            })
            .collect()
    }
}

/// The top 53 bits as a number in [0, 1).
#[inline(always)]
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn threefry(key: [u64; 2], counter: [u64; 2], rounds: usize) -> [u64; 2] {
    let schedule = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(schedule[0]), counter[1].wrapping_add(schedule[1])];
    for r in 0..rounds {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(ROTATIONS[r % 8]) ^ x[0];
        if r % 4 == 3 {
            let s = r / 4 + 1;
            x[0] = x[0].wrapping_add(schedule[s % 3]);
            x[1] = x[1].wrapping_add(schedule[(s + 1) % 3].wrapping_add(s as u64));
        }
    }
    x
}

kernel! {
    /// Eight counters at a time; each chunk of 16 words is the eight first outputs, then the
    /// eight second ones.
    fn blocks(key: [u64; 2], first: u64, out: &mut [u64]) {
        let schedule = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
        for (n, chunk) in out.chunks_exact_mut(BLOCK).enumerate() {
            let base = first.wrapping_add((n * LANES) as u64);
            let mut a: [u64; LANES] =
                std::array::from_fn(|l| base.wrapping_add(l as u64).wrapping_add(schedule[0]));
            let mut b = [schedule[1]; LANES];
            for r in 0..BULK_ROUNDS {
                for l in 0..LANES {
                    a[l] = a[l].wrapping_add(b[l]);
                    b[l] = b[l].rotate_left(ROTATIONS[r % 8]) ^ a[l];
                }
                if r % 4 == 3 {
                    let s = r / 4 + 1;
                    for l in 0..LANES {
                        a[l] = a[l].wrapping_add(schedule[s % 3]);
                        b[l] = b[l].wrapping_add(schedule[(s + 1) % 3].wrapping_add(s as u64));
                    }
                }
            }
            chunk[..LANES].copy_from_slice(&a);
            chunk[LANES..].copy_from_slice(&b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_gives_the_published_vectors() {
        // Random123's known-answer tests for threefry2x64.
        let zero = threefry([0; 2], [0; 2], 20);
        assert_eq!(zero, [0xc2b6_e3a8_c2c6_9865, 0x6f81_ed42_f350_084d]);
        let ones = threefry([u64::MAX; 2], [u64::MAX; 2], 20);
        assert_eq!(ones, [0xe02c_b7c4_d95d_277a, 0xd066_33d0_893b_8b68]);
        let short = threefry([0; 2], [0; 2], 13);
        assert_eq!(short, [0xf167_b032_c3b4_80bd, 0xe91f_9fee_4b7a_6fb5]);
    }

    #[test]
    fn bulk_numbers_are_threefry_and_fill_equals_one_by_one() {
        let key = Key::root(3).child(5);
        let mut whole = vec![0; 1000];
        key.stream().fill(&mut whole);
        for (i, word) in whole.iter().enumerate() {
            let (chunk, l) = (i / BLOCK, i % BLOCK);
            let counter = (chunk * LANES + l % LANES) as u64;
            assert_eq!(*word, threefry(key.0, [counter, 0], BULK_ROUNDS)[l / LANES]);
        }
        let mut stream = key.stream();
        let mut pieces = Vec::new();
        for n in [1, 7, 16, 40, 3, 0, 933] {
            let mut piece = vec![0; n];
            stream.fill(&mut piece);
            pieces.extend(piece);
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn choose_draws_every_subset_equally_often() {
        // 10 subsets of size 2 out of 5; chi-square with 9 degrees of freedom, 0.9999 quantile 33.7.
        let mut counts = [[0u32; 5]; 5];
        let mut stream = Key::root(9).stream();
        for _ in 0..20_000 {
            let pair = stream.choose(5, 2);
            counts[pair[0].min(pair[1])][pair[0].max(pair[1])] += 1;
        }
        let chi: f64 = (0..5)
            .flat_map(|i| (i + 1..5).map(move |j| (i, j)))
            .map(|(i, j)| (f64::from(counts[i][j]) - 2000.0).powi(2) / 2000.0)
            .sum();
        assert!(chi < 33.7, "chi-square {chi}");
    }

    #[test]
    fn below_is_in_range_and_keys_differ() {
        let mut stream = Key::root(1).stream();
        assert!((0..1000).all(|_| stream.below(7) < 7));
        assert_ne!(Key::root(1), Key::root(2));
        assert_ne!(Key::root(1).child(1), Key::root(1).child(2));
        assert_ne!(Key::root(1).child(1).child(2), Key::root(1).child(2).child(1));
    }
}
