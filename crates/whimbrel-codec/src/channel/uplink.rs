//! The uplink: from the clients to the server.
//!
//! Client `i` has weight `n_i`, was asked with probability `p_i` and holds an oracle value `g`;
//! `N` is the weight of all enrolled clients, `A` the set of accepted uploads.
//!
//! | rule | the client sends | the server uses | then |
//! |---|---|---|---|
//! | plain | `C(g)` | `sum_A (n_i/p_i) C_i / N` | |
//! | memory | `C(g - h_i)` | `(sum n_i h_i + sum_A (n_i/p_i) C_i) / N` | `h_i += alpha C_i` on both ends |
//! | feedback | `C(g + e_i)` | `sum_A (n_i/p_i) C_i / N` | `e_i = g + e_i - C_i` on the client |
//!
//! The server keeps the *undivided* `sum n_i h_i`, so a client that joins later (with `h_i = 0`)
//! changes no one else's share. An upload that is lost counts as not in `A`: `p_i` is not
//! re-estimated, the estimate leans towards the memories and the fixed point does not move.
//!
//! An upload may carry some coordinates only (`send_at`, [`Upload::coordinates`]): codec and rule then apply to
//! those, the others stay as they are on both ends, and `p_i` is the probability that a coordinate
//! was sent. The uplink's dimension is then that of an upload, and the ends are longer.
//!
//! An upload may be compressed in a [`Frame`] `F` that both ends know: `C(x)` is then
//! `F^-1 C(F x)`. What is kept stays in raw coordinates. Where the uploads of a fold share their
//! frame, the server sums them in it and inverts once (`collect`); else it inverts each
//! ([`Upload::frame`]).
//!
//! Uploads on a grid are sums of integers: `channel/grid.rs`.

use crate::channel::blocks::Blocks;
use crate::channel::grid::{GridFold, GridServer, put_grid, take_grid};
use crate::scratch::with_room;
use crate::{Codec, Packet, Scalar};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Frame, Key, Result, Wire, vector, wire};

/// A constant of a rule in a job; `None` stands for the value that suits the codec.
pub type Auto = Option<f64>;

/// The rule of an uplink: its state between rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpRule<C = f64> {
    /// No state.
    Plain,
    /// A memory on both ends, moved by `alpha` times the decoded message.
    Memory {
        /// The memory's step, in (0, 1].
        alpha: C,
    },
    /// The client's compression error, added to its next message.
    Feedback,
}

impl UpRule<Auto> {
    /// Fills in the memory step if it is automatic.
    pub fn settled(self, alpha: f64) -> UpRule {
        match self {
            Self::Plain => UpRule::Plain,
            Self::Memory { alpha: given } => UpRule::Memory { alpha: given.unwrap_or(alpha) },
            Self::Feedback => UpRule::Feedback,
        }
    }
}

/// `1/(1 + omega)`, the memory step of the EM methods (Theorems 1, 3 and 4 of FedEM).
pub fn em_alpha(omega: f64) -> f64 {
    1.0 / (1.0 + omega)
}

/// `1/(2(1 + omega))`, the memory step of the gradient family and of every downlink.
pub fn gradient_alpha(omega: f64) -> f64 {
    0.5 / (1.0 + omega)
}

/// A codec and a rule, for vectors of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    codec: Codec,
    rule: UpRule,
    dimension: usize,
    blocks: Blocks,
    /// Factor of a decoded packet: less than one if error feedback scales an unbiased codec to a
    /// contraction.
    shrink: f64,
}

/// The client's end: `h_i` (memory) or `e_i` (feedback); empty stands for zero.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpClient<T = f64> {
    /// `h_i` or `e_i`.
    pub kept: Vec<T>,
}

/// The server's end: `sum n_i h_i`, not divided by the total.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpServer {
    /// `sum n_i h_i`; empty without a memory.
    pub memory_sum: Vec<f64>,
    /// The grid of the uploads, if they share one.
    pub grid: Option<GridServer>,
}

/// The uploads of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct UpFold {
    /// `sum_A (n_i/p_i) C_i`.
    pub(super) estimate: ExactSum,
    /// `sum_A n_i alpha_i C_i` (memory), or `sum_A n_i g_i` while memories open.
    pub(super) memory: ExactSum,
    /// `sum_A n_i`; weights are whole numbers, so this sum is exact too.
    pub(super) weight: f64,
    /// In place of both sums, on a grid.
    pub(super) grid: Option<GridFold>,
}

impl UpFold {
    /// Of uploads that carry some or all of `length` coordinates.
    pub fn new(length: usize, memory: bool) -> Self {
        Self {
            estimate: ExactSum::new(length),
            memory: ExactSum::new(if memory { length } else { 0 }),
            weight: 0.0,
            grid: None,
        }
    }
}

/// An upload at the server.
#[derive(Clone, Copy)]
pub struct Upload<'a> {
    pub packet: &'a Packet,
    /// `n_i`.
    pub weight: f64,
    /// The coordinates of the fold that the packet holds, possibly with repeats; `None` for all.
    pub coordinates: Option<&'a [u32]>,
    /// The frame of this upload alone; `None` for raw coordinates or a frame that the fold shares.
    pub frame: Option<&'a dyn Frame>,
}

impl<'a> Upload<'a> {
    /// An upload of all coordinates, without a frame.
    pub fn whole(packet: &'a Packet, weight: f64) -> Self {
        Self { packet, weight, coordinates: None, frame: None }
    }

    fn add<T: Scalar>(&self, sum: &mut ExactSum, sent: &[T], factor: f64) -> Result<()> {
        let Some(coordinates) = self.coordinates else { return T::add_to(sum, sent, factor) };
        let wide: Vec<f64> = sent.iter().map(|x| x.wide()).collect();
        sum.add_at(coordinates, &wide, factor)
    }
}

wire!(UpClient<T: Scalar> { kept });

impl Wire for UpServer {
    fn put(&self, out: &mut Vec<u8>) {
        put_grid(&self.grid, out);
        self.memory_sum.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(Self { grid: take_grid(from)?, memory_sum: Wire::take(from)? })
    }
}

impl Wire for UpFold {
    fn put(&self, out: &mut Vec<u8>) {
        put_grid(&self.grid, out);
        self.estimate.put(out);
        self.memory.put(out);
        self.weight.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let grid = take_grid(from)?;
        let (estimate, memory) = (Wire::take(from)?, Wire::take(from)?);
        Ok(Self { estimate, memory, weight: Wire::take(from)?, grid })
    }
}

impl Uplink {
    /// The same on a grid of one exponent for all rounds.
    #[must_use]
    pub fn at_step(mut self, exponent: i32) -> Self {
        if let Codec::Grid(grid) = self.codec {
            self.codec = Codec::Grid(grid.at_step(exponent));
        }
        self
    }

    /// Checks that the rule can work with the codec.
    pub fn new(codec: Codec, rule: UpRule, dimension: usize) -> Result<Self> {
        if let Codec::Grid(grid) = &codec {
            grid.cap(0)?;
            if rule == UpRule::Feedback {
                return Err(Error::config("uploads on a grid have no error feedback")
                    .hint("set rule = \"memory\" or \"plain\" in [uplink]"));
            }
        }
        let omega = codec.omega(dimension);
        if omega.is_none() && rule != UpRule::Feedback {
            return Err(Error::config(format!(
                "{} is biased, so without error feedback the fixed point moves",
                codec.name()
            ))
            .hint("set rule = \"feedback\" in [uplink], or choose an unbiased codec"));
        }
        if let UpRule::Memory { alpha } = rule
            && !(alpha > 0.0 && alpha <= 1.0)
        {
            return Err(Error::config(format!("alpha = {alpha} is not in (0, 1]"))
                .hint("alpha = \"auto\" is 1/(1 + omega) of the codec"));
        }
        // An unbiased codec is no contraction; scaled by 1/(1 + omega) it is one.
        let shrink = match (&rule, omega) {
            (UpRule::Feedback, Some(omega)) => 1.0 / (1.0 + omega),
            _ => 1.0,
        };
        Ok(Self { codec, rule, blocks: Blocks::whole(dimension), dimension, shrink })
    }

    /// The same for vectors of several blocks, one per tensor, compressed one by one.
    pub fn with_blocks(mut self, blocks: &[usize]) -> Result<Self> {
        self.blocks = Blocks::new(blocks, self.dimension)?;
        self.shrink_again();
        Ok(self)
    }

    /// The same, with the last block sent exactly.
    pub fn with_exact_last(mut self) -> Self {
        self.blocks = self.blocks.exact_last();
        self.shrink_again();
        self
    }

    fn shrink_again(&mut self) {
        if let (UpRule::Feedback, Some(omega)) = (&self.rule, self.omega()) {
            self.shrink = 1.0 / (1.0 + omega);
        }
    }

    /// The codec.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The rule.
    pub fn rule(&self) -> &UpRule {
        &self.rule
    }

    /// The length of the vectors it carries.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The codec's variance constant on this channel; none for a biased codec.
    pub fn omega(&self) -> Option<f64> {
        self.blocks.omega(&self.codec)
    }

    /// Whether both ends keep a memory.
    pub fn has_memory(&self) -> bool {
        matches!(self.rule, UpRule::Memory { .. })
    }

    /// The client's end at enrolment: zero.
    pub fn client<T: Scalar>(&self) -> UpClient<T> {
        UpClient::default()
    }

    /// The server's end before anyone joined: zero.
    pub fn server(&self) -> UpServer {
        let memory_sum = vec![0.0; if self.has_memory() { self.dimension } else { 0 }];
        UpServer { memory_sum, grid: self.grid_server() }
    }

    /// An empty fold.
    pub fn fold(&self) -> UpFold {
        UpFold::new(self.dimension, self.has_memory())
    }

    /// Compresses the oracle value `g` against the client's end, in a frame if there is one. Returns the
    /// end once the upload is accepted, and the packet.
    pub fn send<T: Scalar>(
        &self,
        end: &UpClient<T>,
        g: &[T],
        frame: Option<&dyn Frame>,
        key: Key,
    ) -> Result<(UpClient<T>, Packet)> {
        self.check(g.len())?;
        let encode = |x: &[T], sent: &mut [T]| self.encode_in(x, frame, key, sent);
        match self.rule {
            UpRule::Plain => match frame {
                None if self.blocks.is_whole() => {
                    Ok((UpClient::default(), self.codec.encode(g, key)?))
                }
                _ => with_room(g.len(), |sent| {
                    encode(g, sent).map(|packet| (UpClient::default(), packet))
                }),
            },
            UpRule::Memory { alpha } => {
                // C(g - h_i), then h_i += alpha C(.)
                let h_i = self.kept(end)?;
                let mut sent = T::zeros(g.len());
                let packet = match h_i {
                    None => encode(g, &mut sent),
                    Some(h_i) => with_room(g.len(), |delta| {
                        T::sub_into(delta, g, h_i);
                        encode(delta, &mut sent)
                    }),
                }?;
                let mut kept = sent;
                match h_i {
                    None => T::scale_add(&mut kept, alpha, &T::zeros(g.len())),
                    Some(h_i) => T::scale_add(&mut kept, alpha, h_i),
                }
                Ok((UpClient { kept }, packet))
            }
            UpRule::Feedback => {
                // C(g + e_i), then e_i = g + e_i - C(.)
                let mut kept = g.to_vec();
                if let Some(e_i) = self.kept(end)? {
                    T::axpy(&mut kept, 1.0, e_i);
                }
                let packet = with_room(g.len(), |sent| {
                    let packet = encode(&kept, sent);
                    T::axpy(&mut kept, -self.shrink, sent);
                    packet
                })?;
                Ok((UpClient { kept }, packet))
            }
        }
    }

    /// Compresses `x` in the frame; writes the decoded value to `sent`.
    fn encode_in<T: Scalar>(
        &self,
        x: &[T],
        frame: Option<&dyn Frame>,
        key: Key,
        sent: &mut [T],
    ) -> Result<Packet> {
        let encode =
            |x: &[T], sent: &mut [T]| self.blocks.encode_decoded(&self.codec, x, key, sent);
        let Some(frame) = frame else { return encode(x, sent) };
        let mut framed = x.to_vec();
        mapped(&mut framed, |x| frame.forward(x));
        let packet = encode(&framed, sent)?;
        mapped(sent, |x| frame.inverse(x));
        Ok(packet)
    }

    /// Sends some coordinates only: `g` holds each of them once, of the `length` of the client's end.
    pub fn send_at(
        &self,
        end: &UpClient,
        coordinates: &[usize],
        length: usize,
        g: &[f64],
        key: Key,
    ) -> Result<(UpClient, Packet)> {
        let fits = end.kept.is_empty() || end.kept.len() == length;
        if !fits || coordinates.iter().any(|i| *i >= length) || coordinates.len() != g.len() {
            return Err(Error::internal("an upload of coordinates outside of the vector"));
        }
        let held = coordinates.iter().filter(|_| !end.kept.is_empty());
        let kept = held.map(|i| end.kept[*i]).collect();
        let (part, packet) = self.send(&UpClient { kept }, g, None, key)?;
        let mut next = end.clone();
        if !part.kept.is_empty() {
            next.kept.resize(length, 0.0);
            coordinates.iter().zip(part.kept).for_each(|(i, kept)| next.kept[*i] = kept);
        }
        Ok((next, packet))
    }

    /// Adds one upload of numbers of this width to a fold; `inclusion` is `p_i`.
    pub fn absorb<T: Scalar>(
        &self,
        fold: &mut UpFold,
        upload: &Upload<'_>,
        inclusion: f64,
    ) -> Result<()> {
        let weight = upload.weight;
        with_room(self.dimension, |sent: &mut [T]| {
            self.blocks.decode(&self.codec, upload.packet, sent)?;
            if let Some(frame) = upload.frame {
                mapped(sent, |x| frame.inverse(x));
            }
            check_size(sent, weight / inclusion)?;
            upload.add(&mut fold.estimate, sent, self.shrink * weight / inclusion)?;
            if let UpRule::Memory { alpha } = self.rule {
                upload.add(&mut fold.memory, sent, weight * alpha)?;
            }
            fold.weight += weight;
            Ok(())
        })
    }

    /// Adds another fold.
    pub fn merge(&self, fold: &mut UpFold, other: &UpFold) -> Result<()> {
        fold.estimate.merge(&other.estimate)?;
        fold.memory.merge(&other.memory)?;
        fold.weight += other.weight;
        if let (Some(sum), Some(other)) = (&mut fold.grid, &other.grid) {
            sum.merge(other);
        }
        Ok(())
    }

    /// The estimate of `sum (n_i/N) g_i`, from folds of uploads that share a frame each; moves the
    /// server's end.
    pub fn collect(
        &self,
        end: &mut UpServer,
        folds: &[(&UpFold, Option<&dyn Frame>)],
        total: f64,
    ) -> Vec<f64> {
        if let Some(grid) = self.grid() {
            return self.collect_on_grid(grid, end, folds, total);
        }
        let mut estimate = sum_in(folds, |fold| fold.estimate.value());
        if self.has_memory() {
            vector::axpy(&mut estimate, 1.0, &end.memory_sum);
            vector::axpy(&mut end.memory_sum, 1.0, &sum_in(folds, |fold| fold.memory.value()));
        }
        vector::scale(&mut estimate, 1.0 / total);
        estimate
    }

    /// Opens the memory at `g` itself: sent exactly, and kept where there is a memory.
    pub fn open<T: Scalar>(&self, g: &[T]) -> Result<(UpClient<T>, Packet)> {
        self.check(g.len())?;
        let packet = Codec::Exact.encode(g, Key::root(0))?;
        let kept = if self.has_memory() { g.to_vec() } else { Vec::new() };
        Ok((UpClient { kept }, packet))
    }

    /// Adds one opening upload of numbers of this width to a fold.
    pub fn absorb_opening<T: Scalar>(&self, fold: &mut UpFold, upload: &Upload<'_>) -> Result<()> {
        let mut sent = T::zeros(self.dimension);
        Codec::Exact.decode(upload.packet, &mut sent)?;
        check_size(&sent, upload.weight)?;
        let sum = if self.has_memory() { &mut fold.memory } else { &mut fold.estimate };
        upload.add(sum, &sent, upload.weight)?;
        fold.weight += upload.weight;
        Ok(())
    }

    /// The server's end after an opening exchange: clients whose upload was lost stay at zero.
    pub fn collect_opening(&self, end: &mut UpServer, fold: &UpFold) {
        if self.has_memory() {
            end.memory_sum = self.opening_sum(fold);
        }
    }

    /// The mean opening value over the accepted uploads; `None` without uploads.
    pub fn mean_opening(&self, fold: &UpFold) -> Option<Vec<f64>> {
        (fold.weight > 0.0).then(|| {
            let mut mean = self.opening_sum(fold);
            vector::scale(&mut mean, 1.0 / fold.weight);
            mean
        })
    }

    /// `sum_A n_i g_i` of opening values.
    fn opening_sum(&self, fold: &UpFold) -> Vec<f64> {
        match &fold.grid {
            Some(sum) => sum.opening(),
            None if self.has_memory() => fold.memory.value(),
            None => fold.estimate.value(),
        }
    }

    /// The memory or error of the client's end; `None` stands for zero.
    pub(super) fn kept<'a, T: Scalar>(&self, end: &'a UpClient<T>) -> Result<Option<&'a [T]>> {
        if end.kept.is_empty() {
            return Ok(None);
        }
        self.check(end.kept.len())?;
        Ok(Some(&end.kept))
    }

    pub(super) fn check(&self, len: usize) -> Result<()> {
        if len == self.dimension {
            return Ok(());
        }
        Err(Error::internal(format!(
            "an uplink for vectors of length {} was handed one of length {len}",
            self.dimension
        )))
    }
}

/// Applies a map of wide vectors.
pub(super) fn mapped<T: Scalar>(x: &mut [T], map: impl FnOnce(&mut [f64])) {
    let mut wide: Vec<f64> = x.iter().map(|x| x.wide()).collect();
    map(&mut wide);
    x.iter_mut().zip(wide).for_each(|(x, wide)| *x = T::narrow(wide));
}

/// The sum over folds, in raw coordinates.
pub(super) fn sum_in(
    folds: &[(&UpFold, Option<&dyn Frame>)],
    part: impl Fn(&UpFold) -> Vec<f64>,
) -> Vec<f64> {
    let mut values = folds.iter().map(|(fold, frame)| {
        let mut value = part(fold);
        if let Some(frame) = frame {
            frame.inverse(&mut value);
        }
        value
    });
    let first = values.next().unwrap_or_default();
    values.fold(first, |mut sum, value| {
        vector::axpy(&mut sum, 1.0, &value);
        sum
    })
}

/// The largest number that an upload may hold, times its weight: squares of larger ones, summed,
/// could overflow.
const VALUE_MAX: f64 = 1e100;

/// A finite upload can still be too large to be summed: that is its sender's fault, not the run's.
fn check_size<T: Scalar>(sent: &[T], weight: f64) -> Result<()> {
    let largest = T::norm_inf(sent) * weight;
    if largest <= VALUE_MAX {
        return Ok(());
    }
    Err(Error::peer(format!(
        "an upload holds a value of size {largest:.1e}, which no sum can take"
    )))
}
