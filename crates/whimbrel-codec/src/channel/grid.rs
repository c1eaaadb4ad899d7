//! Uplinks on a [`SharedGrid`]: the server reads nothing but sums over the cohort.
//!
//! With `w_i = n_i/N` client `i` sends `q_i = Q((w_i/p_i)(g - h_i))`. The server's estimate is
//! `sum w_i h_i + sum_A q_i`. Memories follow one step size for all: `h_i += alpha (p_min/w_i) q_i` on
//! the client, `sum n_i h_i += alpha p_min N sum_A q_i` on the server. Without a memory `h_i` is zero.
//!
//! Opening values `w_i g` are sent as 64-bit integers of `2^-30`.

use super::uplink::{UpClient, UpFold, UpRule, UpServer, Uplink, sum_in};
use crate::grid::{self, Inclusion, Integers, SharedGrid};
use crate::{Codec, Packet, Scalar};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Frame, Key, Result, Segment, Wire, vector, wire};

/// The part of a message that an upload on the grid needs. A client derives its own share of the sum
/// from it, so that no client's part can be enlarged.
#[derive(Clone, Debug, PartialEq)]
pub struct GridNote {
    /// `N`.
    pub total: f64,
    /// The number of enrolled clients.
    pub enrolled: u32,
    /// `p_i`, if probabilities differ between clients.
    pub inclusion: Option<f64>,
    /// One per block; none for opening values.
    pub exponents: Vec<i32>,
}

/// A client's part of a sum on the grid.
#[derive(Clone, Debug)]
pub struct GridShare<'a> {
    /// `K`, or the largest magnitude of an opening integer.
    cap: u64,
    /// `w_i/p_i`; `w_i` for opening values.
    share: f64,
    /// `alpha p_min/w_i`; zero without a memory.
    pace: f64,
    exponents: &'a [i32],
}

/// The server's end of a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct GridServer {
    /// One per block; rounded up they are the exponents.
    pub levels: Vec<f64>,
    /// `sum n_i^2`.
    pub squares: f64,
}

/// The sum of the uploads of one exchange.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GridFold {
    cap: u64,
    /// `N`.
    total: f64,
    /// `p_min`.
    least: f64,
    count: u32,
    sum: Integers,
}

wire!(GridNote { total, enrolled, inclusion, exponents });
wire!(GridServer { levels, squares });
wire!(Integers { values, lanes });
wire!(GridFold { cap, total, least, count, sum });

impl GridFold {
    fn is_opening(&self) -> bool {
        self.sum.lanes.is_empty()
    }

    /// `sum_A n_i g_i`.
    pub(super) fn opening(&self) -> Vec<f64> {
        let mut sum = grid::decode_opening(&self.sum.values);
        vector::scale(&mut sum, self.total);
        sum
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.add(&other.sum, other.count);
    }

    fn add(&mut self, other: &Integers, count: u32) {
        let add = |sum: &mut [u64], other: &[u64]| {
            sum.iter_mut().zip(other).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        };
        add(&mut self.sum.values, &other.values);
        add(&mut self.sum.lanes, &other.lanes);
        self.count += count;
    }
}

impl GridServer {
    fn exponents(&self) -> Vec<i32> {
        self.levels.iter().map(|level| grid::exponent(*level)).collect()
    }
}

impl Uplink {
    /// The grid of the uploads, if there is one.
    pub fn grid(&self) -> Option<&SharedGrid> {
        match self.codec() {
            Codec::Grid(grid) => Some(grid),
            _ => None,
        }
    }

    fn known_grid(&self) -> Result<&SharedGrid> {
        self.grid().ok_or_else(|| Error::peer("a message has a grid, but the job has none"))
    }

    /// Checks that `enrolled` clients fit the grid.
    pub fn check_enrolled(&self, enrolled: u32) -> Result<()> {
        self.grid().map_or(Ok(()), |grid| grid.cap(enrolled).map(drop))
    }

    /// The words of an upload on the grid, to be summed modulo their widths.
    pub fn segments(&self, packet: &Packet, opening: bool) -> Result<Vec<Segment>> {
        grid::unpack(packet, &self.known_grid()?.shape(self.dimension(), opening))
    }

    /// The server's end of the grid at the start.
    pub(super) fn grid_server(&self) -> Option<GridServer> {
        let levels = self.grid()?.first_levels(self.dimension());
        Some(GridServer { levels, squares: 0.0 })
    }

    /// An empty sum of uploads or of opening values; `None` without a grid.
    pub fn grid_fold(&self, total: f64, enrolled: u32, opening: bool) -> Result<Option<UpFold>> {
        let Some(grid) = self.grid() else { return Ok(None) };
        let zeros = |(_, count): &(u32, usize)| vec![0; *count];
        let shape = grid.shape(self.dimension(), opening);
        let mut parts = shape.iter().map(zeros);
        let mut next = || parts.next().unwrap_or_default();
        let sum = Integers { values: next(), lanes: next() };
        let cap = if opening { grid.opening_cap(enrolled) } else { grid.cap(enrolled)? };
        let least = grid.inclusion().least(enrolled);
        let fold = GridFold { cap, total, least, count: 0, sum };
        let none = || ExactSum::new(0);
        Ok(Some(UpFold { estimate: none(), memory: none(), weight: 0.0, grid: Some(fold) }))
    }

    /// The grid's part of a message to client `id`; `None` without a grid.
    pub fn grid_note(
        &self,
        end: &UpServer,
        id: u32,
        (total, enrolled): (f64, u32),
        opening: bool,
    ) -> Result<Option<GridNote>> {
        let (Some(grid), Some(state)) = (self.grid(), &end.grid) else { return Ok(None) };
        let inclusion = match grid.inclusion() {
            each @ Inclusion::Each { .. } if !opening => Some(each.of(id, enrolled)),
            _ => None,
        };
        let exponents = if opening { Vec::new() } else { state.exponents() };
        Ok(Some(GridNote { total, enrolled, inclusion, exponents }))
    }

    /// The part of a client with weight `n_i`, if the note suits the job.
    pub fn grid_share<'a>(
        &self,
        note: &'a GridNote,
        weight: f64,
        opening: bool,
    ) -> Result<GridShare<'a>> {
        let grid = self.known_grid()?;
        let GridNote { total, enrolled, inclusion, ref exponents } = *note;
        let blocks = if opening { 0 } else { self.dimension().div_ceil(grid::BLOCK) };
        let each = matches!(grid.inclusion(), Inclusion::Each { .. }) && !opening;
        let p = inclusion.unwrap_or_else(|| grid.inclusion().of(0, enrolled));
        let fits = exponents.len() == blocks
            && inclusion.is_some() == each
            && total >= weight
            && total.is_finite()
            && enrolled > 0
            && p > 0.0
            && p <= 1.0
            && grid.fixed().is_none_or(|e| exponents.iter().all(|given| *given == e));
        if !fits {
            return Err(Error::peer("the server's grid does not suit the job"));
        }
        let share = weight / if grid.fixed().is_some() { 1.0 } else { total };
        if opening {
            let cap = grid.opening_cap(enrolled);
            return Ok(GridShare { cap, share, pace: 0.0, exponents });
        }
        let pace = match self.rule() {
            UpRule::Memory { alpha } => alpha * grid.inclusion().least(enrolled) / share,
            UpRule::Plain | UpRule::Feedback => 0.0,
        };
        Ok(GridShare { cap: grid.cap(enrolled)?, share: share / p, pace, exponents })
    }

    /// Rounds `(w_i/p_i)(g - h_i)` to the grid, in a frame if there is one. Returns the client's end once
    /// the upload is accepted, and the packet.
    pub fn send_on_grid<T: Scalar>(
        &self,
        end: &UpClient<T>,
        g: &[T],
        frame: Option<&dyn Frame>,
        note: &GridShare<'_>,
        key: Key,
    ) -> Result<(UpClient<T>, Packet)> {
        let grid = self.known_grid()?;
        let h_i = self.kept(end)?;
        self.check(g.len())?;
        let mut x: Vec<f64> = g.iter().map(|g| g.wide()).collect();
        if let Some(h_i) = h_i {
            x.iter_mut().zip(h_i).for_each(|(x, h)| *x -= h.wide());
        }
        if let Some(frame) = frame {
            frame.forward(&mut x);
        }
        vector::scale(&mut x, note.share);
        let integers = grid.encode(&x, note.exponents, note.cap, key)?;
        let packet = grid.write(&integers, false);
        if !self.has_memory() {
            return Ok((UpClient::default(), packet));
        }
        // h_i += alpha (p_min/w_i) q_i
        let mut kept = grid.decode(&integers.values, note.exponents);
        if let Some(frame) = frame {
            frame.inverse(&mut kept);
        }
        vector::scale(&mut kept, note.pace);
        if let Some(h_i) = h_i {
            kept.iter_mut().zip(h_i).for_each(|(kept, h)| *kept += h.wide());
        }
        Ok((UpClient { kept: kept.into_iter().map(T::narrow).collect() }, packet))
    }

    /// Sends `w_i g` as integers of `2^-30`, and opens the memory at the value that they stand for.
    pub fn open_on_grid<T: Scalar>(
        &self,
        g: &[T],
        note: &GridShare<'_>,
    ) -> Result<(UpClient<T>, Packet)> {
        let grid = self.known_grid()?;
        self.check(g.len())?;
        let mut x: Vec<f64> = g.iter().map(|g| g.wide()).collect();
        vector::scale(&mut x, note.share);
        let integers = grid::encode_opening(&x, note.cap)?;
        let packet = grid.write(&integers, true);
        if !self.has_memory() {
            return Ok((UpClient::default(), packet));
        }
        let mut kept = grid::decode_opening(&integers.values);
        vector::scale(&mut kept, 1.0 / note.share);
        Ok((UpClient { kept: kept.into_iter().map(T::narrow).collect() }, packet))
    }

    /// Adds the upload of a client with weight `n_i`.
    pub fn absorb_on_grid(&self, fold: &mut UpFold, packet: &Packet, weight: f64) -> Result<()> {
        let sum = grid_sum(fold)?;
        let opening = sum.is_opening();
        let read = self.known_grid()?.read(packet, self.dimension(), opening, sum.cap, 1)?;
        sum.add(&read, 1);
        fold.weight += weight;
        Ok(())
    }

    /// Counts a client whose words arrive in a sum.
    pub fn absorb_sender(&self, fold: &mut UpFold, weight: f64) -> Result<()> {
        grid_sum(fold)?.count += 1;
        fold.weight += weight;
        Ok(())
    }

    /// Adds the sum of the uploads of all counted clients.
    pub fn absorb_words(&self, fold: &mut UpFold, packet: &Packet) -> Result<()> {
        let sum = grid_sum(fold)?;
        let (opening, count) = (sum.is_opening(), sum.count);
        let read = self.known_grid()?.read(packet, self.dimension(), opening, sum.cap, count)?;
        sum.add(&read, 0);
        Ok(())
    }

    /// The estimate of `sum (n_i/N) g_i`; moves the server's memory.
    pub(super) fn collect_on_grid(
        &self,
        grid: &SharedGrid,
        end: &mut UpServer,
        folds: &[(&UpFold, Option<&dyn Frame>)],
        total: f64,
    ) -> Vec<f64> {
        let exponents = end.grid.as_ref().map_or_else(Vec::new, GridServer::exponents);
        let sums = || folds.iter().filter_map(|(fold, _)| fold.grid.as_ref());
        let mut estimate = sum_in(folds, |fold| {
            fold.grid.as_ref().map_or_else(Vec::new, |sum| grid.decode(&sum.sum.values, &exponents))
        });
        if grid.fixed().is_some() {
            vector::scale(&mut estimate, 1.0 / total);
        }
        if let UpRule::Memory { alpha } = self.rule() {
            let least = sums().map(|sum| sum.least).fold(1.0, f64::min);
            let before = end.memory_sum.clone();
            vector::axpy(&mut end.memory_sum, alpha * least * total, &estimate);
            vector::axpy(&mut estimate, 1.0 / total, &before);
        }
        estimate
    }

    /// Moves the grid after a round: `moved` is the growth of the clients' values that the server's own
    /// move explains, and `memory` the mean memory, both in the frame of the next round.
    pub fn follow(
        &self,
        end: &mut UpServer,
        folds: &[UpFold],
        enrolled: u32,
        mut moved: Vec<f64>,
        memory: &[f64],
    ) {
        let (Some(grid), Some(state)) = (self.grid(), &mut end.grid) else { return };
        let mut folds = folds.iter().filter_map(|fold| fold.grid.as_ref());
        let Some(mut sum) = folds.next().cloned() else { return };
        folds.for_each(|other| sum.merge(other));
        // sqrt(mean w_i²)
        let share = (state.squares / f64::from(enrolled.max(1))).sqrt() / sum.total;
        vector::scale(&mut moved, share);
        // Finer steps would be lost in the rounding of memories.
        let floor = grid::log2(vector::norm_inf(memory).max(1e-3)) - 60.0;
        grid.follow(&mut state.levels, (&sum.sum.lanes, sum.count, sum.cap), &moved, floor);
    }
}

fn grid_sum(fold: &mut UpFold) -> Result<&mut GridFold> {
    let missing = || Error::internal("an upload on a grid for a fold without one");
    fold.grid.as_mut().ok_or_else(missing)
}

/// Starts the byte form of an end or a fold on a grid. Without a grid both start with a count, which is
/// never this long.
const MARK: [u8; 10] = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];

pub(super) fn put_grid<T: Wire>(grid: &Option<T>, out: &mut Vec<u8>) {
    if let Some(grid) = grid {
        out.extend(MARK);
        grid.put(out);
    }
}

pub(super) fn take_grid<T: Wire>(from: &mut &[u8]) -> Result<Option<T>> {
    let Some(rest) = from.strip_prefix(&MARK) else { return Ok(None) };
    *from = rest;
    T::take(from).map(Some)
}
