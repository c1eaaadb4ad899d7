//! Integers on a grid that all clients share, so that uploads are terms of one sum.
//!
//! A client rounds each coordinate at random to a whole number of steps, one exponent `e` per block
//! of [`BLOCK`] coordinates:
//!
//! ```text
//! z = clamp(floor(x/2^e + u), -K, K),  u uniform in [0, 1),  K = floor((2^(bits - 1) - 1)/n)
//! ```
//!
//! It adds two *lanes* per block: the sum of `min((x/2^e)^2, (16 K)^2)` before clipping, and the
//! number of clips. Integers and lanes are words of fixed widths, added modulo their width: the sum
//! over a cohort of the `n` clients has the form of an upload and does not wrap around. The server
//! needs the sum alone.
//!
//! The steps of the next round (`follow`) are `C/K` root mean squares of the addends, with `C = 8`,
//! rounded up to a power of two. A step `s` rounds with variance at most `s^2/4`, so that
//! `sum E||Q(x_i) - x_i||^2 <= omega sum ||x_i||^2` with `omega = C^2/K^2`, up to clips.

use crate::norm::exp2;
use crate::{Packet, scalar};
use whimbrel_core::key::unit;
use whimbrel_core::wire::cut;
use whimbrel_core::{Error, Key, Result, Segment, kernel, math, vector};

/// Coordinates that share an exponent.
pub const BLOCK: usize = 1024;

/// `C`: the range in root mean squares of the addends.
const RANGE: f64 = 8.0;
/// The largest decrease of a level in one round.
const FALL: f64 = 0.5;
/// Magnitudes count up to this many `K` in the lanes.
const COUNTED: f64 = 16.0;
/// Binary digits of a lane of squares after the point, unless `K` is large.
const FRACTION: i32 = 10;
/// Exponents and levels lie within these bounds.
const EXPONENT_MAX: i32 = 1000;
/// The level of a grid before the first round. Levels rise by seven a round and fall by a half, so
/// that a fine start costs less than a coarse one.
const FIRST_LEVEL: f64 = -16.0;
/// Least `K`, and least `K` where clients are sampled.
const CAP_MIN: [u64; 2] = [7, 31];
/// Opening values are whole numbers of `2^-30`.
const OPENING: i32 = -30;
/// The largest mean over clients of equal weights that opening values hold, `2^33`.
pub const OPENING_MEAN_MAX: f64 = (1u64 << 33) as f64;

/// The settings of a grid.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedGrid {
    bits: u32,
    /// `n`; zero while it is unknown.
    clients: u32,
    inclusion: Inclusion,
    /// A public exponent of all rounds: steps do not follow the uploads, lanes are zero, and addends are
    /// `n_i x_i` instead of their shares.
    fixed: Option<i32>,
}

impl Default for SharedGrid {
    /// 16 bits.
    fn default() -> Self {
        Self { bits: 16, clients: 0, inclusion: Inclusion::Equal(1.0), fixed: None }
    }
}

/// The probabilities `p_i` of participation, by which clients divide.
#[derive(Clone, PartialEq, Debug)]
pub enum Inclusion {
    /// The same for all clients.
    Equal(f64),
    /// By client id; `others` are those that were invited later.
    Each { each: Vec<f64>, others: f64 },
    /// A cohort of this size.
    Fixed(u32),
}

impl Inclusion {
    /// `p_i`, among `enrolled` clients.
    pub fn of(&self, id: u32, enrolled: u32) -> f64 {
        match self {
            Self::Equal(p) => *p,
            Self::Each { each, others } => *each.get(id as usize).unwrap_or(others),
            Self::Fixed(size) => f64::from((*size).min(enrolled)) / f64::from(enrolled.max(1)),
        }
    }

    /// A lower bound of all `p_i`.
    pub fn least(&self, enrolled: u32) -> f64 {
        match self {
            Self::Each { each, others } => each.iter().copied().fold(*others, f64::min),
            _ => self.of(0, enrolled),
        }
    }
}

/// An upload or a sum of uploads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Integers {
    /// In two's complement, 64 bits each.
    pub values: Vec<u64>,
    /// Squares and clips of each block; empty for opening values.
    pub lanes: Vec<u64>,
}

impl SharedGrid {
    /// Words of this many bits, from 8 to 32.
    pub fn new(bits: u32) -> Result<Self> {
        if !(8..=32).contains(&bits) {
            return Err(Error::config(format!("a grid of {bits} bits is not supported"))
                .hint("bits must be an integer from 8 to 32"));
        }
        Ok(Self { bits, ..Self::default() })
    }

    /// The same for this number of clients and these probabilities of participation.
    pub fn among(self, clients: u32, inclusion: Inclusion) -> Self {
        Self { clients, inclusion, ..self }
    }

    /// The same with one exponent for all rounds.
    pub fn at_step(self, exponent: i32) -> Self {
        Self { fixed: Some(exponent), ..self }
    }

    /// The exponent of a grid that does not follow the uploads.
    pub fn fixed(&self) -> Option<i32> {
        self.fixed
    }

    pub fn bits(&self) -> u32 {
        self.bits
    }

    pub fn inclusion(&self) -> &Inclusion {
        &self.inclusion
    }

    /// `K` for the planned clients, or for more if more are enrolled; refused if it is too small.
    pub fn cap(&self, enrolled: u32) -> Result<u64> {
        let n = self.clients.max(enrolled);
        let (cap, sampled) = (self.cap_of(n), self.inclusion.least(n) < 1.0);
        if n == 0 {
            return Err(Error::config("a grid needs the number of clients"));
        }
        let least = CAP_MIN[usize::from(sampled)];
        if cap >= least {
            return Ok(cap);
        }
        let bits = 65 - (least * u64::from(n)).leading_zeros();
        Err(Error::config(format!(
            "a grid of {} bits leaves {cap} levels on each side of zero to each of {n} clients; \
             at least {least} are needed{}",
            self.bits,
            if sampled { " with partial participation" } else { "" }
        ))
        .hint(format!("write bits = {bits} or more in [uplink], at most 32")))
    }

    fn cap_of(&self, clients: u32) -> u64 {
        ((1u64 << (self.bits - 1)) - 1) / u64::from(clients.max(1))
    }

    /// The largest magnitude of an opening value, so that no sum over clients overflows.
    pub(crate) fn opening_cap(&self, enrolled: u32) -> u64 {
        i64::MAX as u64 / u64::from(self.clients.max(enrolled).max(1))
    }

    /// `C^2/K^2`, of the sum over the cohort.
    pub fn omega(&self) -> f64 {
        let k = self.cap_of(self.clients) as f64;
        RANGE * RANGE / (k * k)
    }

    /// Widths and numbers of words of an upload of `d` coordinates, or of opening values.
    pub fn shape(&self, d: usize, opening: bool) -> Vec<(u32, usize)> {
        if opening {
            return vec![(64, d)];
        }
        vec![(self.bits, d), (64, 2 * d.div_ceil(BLOCK))]
    }

    /// Digits after the point of a lane of squares: as many as keep the lane of `n` clients below
    /// `2^61`, since `n K < 2^(bits - 1)`.
    fn fraction(&self, cap: u64) -> i32 {
        FRACTION.min(44 - self.bits as i32 - (64 - cap.leading_zeros() as i32))
    }

    /// Rounds `x` to integers within `±cap`.
    pub(crate) fn encode(
        &self,
        x: &[f64],
        exponents: &[i32],
        cap: u64,
        key: Key,
    ) -> Result<Integers> {
        scalar::check_finite(x)?;
        let (unit_of_squares, largest) = (exp2(self.fraction(cap)), cap as f64);
        let counted = COUNTED * largest;
        let mut stream = key.stream();
        let mut words = [0; BLOCK];
        let mut out = Integers { values: vec![0; x.len()], lanes: Vec::new() };
        for ((x, values), e) in
            x.chunks(BLOCK).zip(out.values.chunks_mut(BLOCK)).zip(check_exponents(exponents)?)
        {
            stream.fill(&mut words[..x.len()]);
            let (squares, clips) = round(x, &words, exp2(-e), largest, counted * counted, values);
            let lane = [(squares * unit_of_squares).ceil() as u64, clips];
            out.lanes.extend(if self.fixed.is_some() { [0; 2] } else { lane });
        }
        Ok(out)
    }

    /// `z 2^e`.
    pub(crate) fn decode(&self, values: &[u64], exponents: &[i32]) -> Vec<f64> {
        let blocks = values.chunks(BLOCK).zip(exponents);
        let decoded = blocks.flat_map(|(values, e)| {
            let step = exp2(*e);
            values.iter().map(move |z| *z as i64 as f64 * step)
        });
        decoded.collect()
    }

    /// Writes an upload.
    pub(crate) fn write(&self, integers: &Integers, opening: bool) -> Packet {
        let shape = self.shape(integers.values.len(), opening);
        let parts = shape.iter().zip([&integers.values, &integers.lanes]);
        let cut = |((width, _), words): (&(u32, usize), &Vec<u64>)| Segment {
            width: *width,
            words: words.iter().map(|word| word & mask(*width)).collect(),
        };
        pack(&parts.map(cut).collect::<Vec<_>>())
    }

    /// Reads a sum of `count` uploads, each within `±cap`; others are refused as a fault of the peer.
    pub(crate) fn read(
        &self,
        packet: &Packet,
        d: usize,
        opening: bool,
        cap: u64,
        count: u32,
    ) -> Result<Integers> {
        let mut segments = unpack(packet, &self.shape(d, opening))?.into_iter();
        let mut words = || segments.next().map_or_else(Vec::new, |segment| segment.words);
        let mut read = Integers { values: words(), lanes: words() };
        let count = u64::from(count);
        if !opening {
            let unused = 64 - self.bits;
            let extend = |word: &mut u64| *word = (((*word << unused) as i64) >> unused) as u64;
            read.values.iter_mut().for_each(extend);
        }
        let largest = cap.saturating_mul(count);
        let within = read.values.iter().all(|word| (*word as i64).unsigned_abs() <= largest);
        let counted = COUNTED * cap as f64;
        let sizes = (0..d).step_by(BLOCK).map(|from| BLOCK.min(d - from));
        let fits = read.lanes.chunks(2).zip(sizes).all(|(lane, size)| {
            let squares = size as f64 * counted * counted * exp2(self.fraction(cap));
            lane[0] as f64 <= (squares.ceil() + 1.0) * count as f64
                && lane[1] <= size as u64 * count
        });
        if within && fits {
            return Ok(read);
        }
        Err(Error::peer("an upload holds integers outside of the grid"))
    }

    /// The levels before the first round.
    pub(crate) fn first_levels(&self, d: usize) -> Vec<f64> {
        vec![self.fixed.map_or(FIRST_LEVEL, f64::from); d.div_ceil(BLOCK)]
    }

    /// The levels of the next round, from the lanes of `count` uploads within `±cap` and from the
    /// expected growth `moved` of a client's addend, as long as the vectors. No level is below `floor`.
    ///
    /// ```text
    /// want  = (C/K) max(r, m)     r, m: root mean squares per coordinate, of addends and growth
    /// level = max(log2 want, level - 1/2, e + 1 if clipped, floor),  e = ceil(level)
    /// ```
    pub(crate) fn follow(
        &self,
        levels: &mut [f64],
        (lanes, count, cap): (&[u64], u32, u64),
        moved: &[f64],
        floor: f64,
    ) {
        if self.fixed.is_some() {
            return;
        }
        let fraction = self.fraction(cap);
        for ((level, lane), moved) in
            levels.iter_mut().zip(lanes.chunks(2)).zip(moved.chunks(BLOCK))
        {
            let e = exponent(*level);
            let size = moved.len() as f64;
            let squares = lane[0] as f64 * exp2(-fraction) / (size * f64::from(count.max(1)));
            let r = exp2(e) * squares.sqrt();
            let m = (vector::norm2_squared(moved) / size).sqrt();
            let want = RANGE / cap as f64 * r.max(m);
            let clipped = if lane[1] > 0 { f64::from(e + 1) } else { f64::NEG_INFINITY };
            let next = log2(want).max(*level - FALL).max(clipped).max(floor);
            let bound = f64::from(EXPONENT_MAX);
            *level = next.clamp(-bound, bound);
        }
    }
}

/// `log2 |x|`, minus infinity at zero.
pub(crate) fn log2(x: f64) -> f64 {
    if x > 0.0 { math::ln(x) / std::f64::consts::LN_2 } else { f64::NEG_INFINITY }
}

/// `e` of a level.
pub(crate) fn exponent(level: f64) -> i32 {
    level.ceil() as i32
}

fn check_exponents(exponents: &[i32]) -> Result<impl Iterator<Item = i32>> {
    if exponents.iter().all(|e| e.abs() <= EXPONENT_MAX) {
        return Ok(exponents.iter().copied());
    }
    Err(Error::peer("an exponent of the grid is out of range"))
}

/// Rounds to whole numbers of `2^-30`; refuses values beyond `cap`.
pub(crate) fn encode_opening(x: &[f64], cap: u64) -> Result<Integers> {
    scalar::check_finite(x)?;
    let fixed = |(i, x): (usize, &f64)| {
        let z = (x * exp2(-OPENING)).round();
        if z.abs() <= cap as f64 && z.abs() < i64::MAX as f64 {
            return Ok(z as i64 as u64);
        }
        Err(Error::numerical(format!(
            "coordinate {i} of the first upload, times the client's weight, is {x:.3e}; on a grid at \
             most {:.3e} can be summed",
            cap as f64 * exp2(OPENING)
        ))
        .hint("standardise the columns, or use a codec without a grid"))
    };
    let values = x.iter().enumerate().map(fixed).collect::<Result<_>>()?;
    Ok(Integers { values, lanes: Vec::new() })
}

/// The value of opening integers.
pub(crate) fn decode_opening(values: &[u64]) -> Vec<f64> {
    values.iter().map(|z| *z as i64 as f64 * exp2(OPENING)).collect()
}

/// Writes words one after the other, lowest bits first; each segment fills its last byte with zeros.
pub fn pack(segments: &[Segment]) -> Packet {
    let bytes = segments.iter().map(|segment| bytes_of(segment.width, segment.words.len()));
    let mut out = Vec::with_capacity(bytes.sum());
    for Segment { width, words } in segments {
        let (mut held, mut count) = (0u128, 0);
        for word in words {
            held |= u128::from(word & mask(*width)) << count;
            count += width;
            while count >= 8 {
                out.push(held as u8);
                (held, count) = (held >> 8, count - 8);
            }
        }
        if count > 0 {
            out.push(held as u8);
        }
    }
    Packet::from_bytes(out)
}

/// Reads segments of these widths and numbers of words.
pub fn unpack(packet: &Packet, shape: &[(u32, usize)]) -> Result<Vec<Segment>> {
    let wanted: usize = shape.iter().map(|(width, count)| bytes_of(*width, *count)).sum();
    let mut bytes = packet.bytes();
    if bytes.len() != wanted {
        return Err(Error::peer(format!(
            "an upload on the grid has {} bytes, not {wanted}",
            bytes.len()
        )));
    }
    let mut segment = |(width, count): &(u32, usize)| {
        let (width, mut words) = (*width, Vec::with_capacity(*count));
        let (mut held, mut bits) = (0u128, 0);
        for byte in cut(&mut bytes, bytes_of(width, *count))? {
            held |= u128::from(*byte) << bits;
            bits += 8;
            if bits >= width && words.len() < *count {
                words.push(held as u64 & mask(width));
                (held, bits) = (held >> width, bits - width);
            }
        }
        if held != 0 {
            return Err(Error::peer("an upload on the grid does not end in zeros"));
        }
        Ok(Segment { width, words })
    };
    shape.iter().map(&mut segment).collect()
}

fn bytes_of(width: u32, count: usize) -> usize {
    (width as usize * count).div_ceil(8)
}

fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

kernel! {
    /// Rounds at random to whole numbers of steps within `±largest`; returns the sum of squares, each
    /// at most `square_max`, and the number of clips.
    fn round(
        x: &[f64], words: &[u64], inverse: f64, largest: f64, square_max: f64, out: &mut [u64],
    ) -> (f64, u64) {
        let (mut squares, mut clips) = (0.0, 0);
        for ((v, word), out) in x.iter().zip(words).zip(out) {
            let y = v * inverse;
            let down = y.floor();
            let z = if unit(*word) < y - down { down + 1.0 } else { down };
            let kept = z.clamp(-largest, largest);
            squares += (y * y).min(square_max);
            clips += u64::from(kept != z);
            *out = kept as i64 as u64;
        }
        (squares, clips)
    }
}
