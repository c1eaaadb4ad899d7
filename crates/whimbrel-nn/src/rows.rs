//! Products with inputs in rows, one sample after the other: the scores of some samples, and the weighted
//! sums of rows that make up a gradient. Nothing is copied or packed.

use crate::lanes::{Lanes, lanes_kernel};

/// Some rows of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// All rows, one after the other.
    pub values: &'a [f32],
    /// The length of a row.
    pub width: usize,
    /// Row numbers; `None` for consecutive rows from `first` on.
    pub places: Option<&'a [u32]>,
    /// The first row, if there are no places.
    pub first: usize,
    pub count: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        let place = self.places.map_or(self.first + i, |places| places[i] as usize);
        &self.values[place * self.width..][..self.width]
    }
}

/// Affine maps. Each vector holds `outputs` weight vectors as long as a row and, with an intercept,
/// `outputs` intercepts after them.
#[derive(Clone, Copy)]
pub(crate) struct Maps<'a> {
    pub all: &'a [&'a [f32]],
    pub outputs: usize,
    pub intercept: bool,
}

impl<'a> Maps<'a> {
    #[inline(always)]
    fn weight(&self, o: usize, width: usize) -> &'a [f32] {
        &self.all[o / self.outputs][o % self.outputs * width..][..width]
    }

    #[inline(always)]
    fn bias(&self, o: usize, width: usize) -> f32 {
        if !self.intercept {
            return 0.0;
        }
        self.all[o / self.outputs][self.outputs * width + o % self.outputs]
    }
}

lanes_kernel! {
    /// Sets `scores[(m |rows| + j) outputs + c]` to map m's score of row j for output c.
    pub(crate) fn scores(rows: Rows<'_>, maps: Maps<'_>, scores: &mut [f32]) = scores_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn scores_of<L: Lanes>(rows: Rows<'_>, maps: Maps<'_>, scores: &mut [f32]) {
    let all = maps.all.len() * maps.outputs;
    let mut j = 0;
    while j < rows.count {
        let r = if rows.count - j >= 4 { 4 } else { 1 };
        let mut o = 0;
        while o < all {
            // Three outputs use the tile of four, which has the fastest horizontal sums.
            let c = [3, 2, 1].into_iter().find(|c| all - o >= *c).unwrap_or(1);
            let c = if all - o >= 4 { 4 } else { c };
            // SAFETY: the instructions of `L`, by this function's contract.
            unsafe {
                match (r, c) {
                    (4, 3..) => tile::<L, 4, 4>(rows, maps, j, o, scores),
                    (4, 2) => tile::<L, 4, 2>(rows, maps, j, o, scores),
                    (4, _) => tile::<L, 4, 1>(rows, maps, j, o, scores),
                    (_, 4) => tile::<L, 1, 4>(rows, maps, j, o, scores),
                    (_, 3) => tile::<L, 1, 3>(rows, maps, j, o, scores),
                    (_, 2) => tile::<L, 1, 2>(rows, maps, j, o, scores),
                    _ => tile::<L, 1, 1>(rows, maps, j, o, scores),
                }
            }
            o += c;
        }
        j += r;
    }
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const C: usize>(
    rows: Rows<'_>,
    maps: Maps<'_>,
    j: usize,
    o: usize,
    scores: &mut [f32],
) {
    let width = rows.width;
    let wanted = C.min(maps.all.len() * maps.outputs - o);
    let x: [&[f32]; R] = std::array::from_fn(|i| rows.row(j + i));
    let w: [&[f32]; C] = std::array::from_fn(|i| maps.weight(o + i.min(wanted - 1), width));
    // SAFETY: `Rows::row` and `Maps::weight` return slices of `width` numbers; instructions by contract.
    let dots = unsafe { dots::<L, R, C>(x.map(<[f32]>::as_ptr), w.map(<[f32]>::as_ptr), width) };
    for (i, dots) in dots.iter().enumerate() {
        for (l, dot) in dots.iter().enumerate().take(wanted) {
            let (m, c) = ((o + l) / maps.outputs, (o + l) % maps.outputs);
            let at = (m * rows.count + j + i) * maps.outputs + c;
            scores[at] = dot + maps.bias(o + l, width);
        }
    }
}

/// The products `<a_i, b_j>` of vectors of length `n`: element k goes to partial sum `k % 16`.
///
/// # Safety
/// The instructions of `L` must be available, and all pointers valid for `n` numbers.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes, const R: usize, const C: usize>(
    a: [*const f32; R],
    b: [*const f32; C],
    n: usize,
) -> [[f32; C]; R] {
    // SAFETY: every load reads at most `n` numbers from its pointer; instructions by contract.
    unsafe {
        let mut sums = [[L::zero(); C]; R];
        let whole = n / 16 * 16;
        let mut k = 0;
        while k < whole {
            let mut vectors = [L::zero(); C];
            for (vector, b) in vectors.iter_mut().zip(b) {
                *vector = L::load(b.add(k));
            }
            for i in 0..R {
                let a = L::load(a[i].add(k));
                for j in 0..C {
                    sums[i][j] = a.fma(vectors[j], sums[i][j]);
                }
            }
            k += 16;
        }
        if whole < n {
            let rest = n - whole;
            let mut vectors = [L::zero(); C];
            for (vector, b) in vectors.iter_mut().zip(b) {
                *vector = L::load_part(b.add(whole), rest);
            }
            for i in 0..R {
                let a = L::load_part(a[i].add(whole), rest);
                for j in 0..C {
                    sums[i][j] = a.fma(vectors[j], sums[i][j]);
                }
            }
        }
        let mut out = [[0.0; C]; R];
        if R == 4 && C == 4 {
            let mut square = [[L::zero(); 4]; 4];
            for (square, sums) in square.iter_mut().zip(&sums) {
                square.copy_from_slice(sums);
            }
            for (out, sums) in out.iter_mut().zip(L::sums(square)) {
                out.copy_from_slice(&sums);
            }
        } else {
            for (out, sums) in out.iter_mut().zip(sums) {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum.sum();
                }
            }
        }
        out
    }
}

lanes_kernel! {
    /// Adds to `sums`, for every map m a vector of `stride` numbers that starts with a row for every output
    /// c, the sums over rows j of `factors[(m |rows| + j) outputs + c]` times the row.
    pub(crate) fn add_weighted_rows(
        rows: Rows<'_>,
        factors: &[f32],
        outputs: usize,
        stride: usize,
        sums: &mut [f32],
    ) = add_weighted_rows_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn add_weighted_rows_of<L: Lanes>(
    rows: Rows<'_>,
    factors: &[f32],
    outputs: usize,
    stride: usize,
    sums: &mut [f32],
) {
    if rows.count == 0 {
        return;
    }
    let all = factors.len() / rows.count;
    assert!(factors.len() == rows.count * all && stride >= outputs * rows.width);
    assert!(all.is_multiple_of(outputs) && sums.len() >= all / outputs * stride);
    let wanted = Sums { factors, outputs, stride };
    let mut from = 0;
    while from < rows.width {
        let vectors = (rows.width - from).div_ceil(16).min(4);
        let mut o = 0;
        while o < all {
            let c = (all - o).min(4);
            // SAFETY: the instructions of `L`, by this function's contract.
            unsafe {
                match (c, vectors) {
                    (4, 4) => sums_tile::<L, 4, 4>(rows, wanted, o, from, sums),
                    (3, 4) => sums_tile::<L, 3, 4>(rows, wanted, o, from, sums),
                    (2, 4) => sums_tile::<L, 2, 4>(rows, wanted, o, from, sums),
                    (1, 4) => sums_tile::<L, 1, 4>(rows, wanted, o, from, sums),
                    (4, 2..) => sums_tile::<L, 4, 2>(rows, wanted, o, from, sums),
                    (3, 2..) => sums_tile::<L, 3, 2>(rows, wanted, o, from, sums),
                    (2, 2..) => sums_tile::<L, 2, 2>(rows, wanted, o, from, sums),
                    (1, 2..) => sums_tile::<L, 1, 2>(rows, wanted, o, from, sums),
                    (4, _) => sums_tile::<L, 4, 1>(rows, wanted, o, from, sums),
                    (3, _) => sums_tile::<L, 3, 1>(rows, wanted, o, from, sums),
                    (2, _) => sums_tile::<L, 2, 1>(rows, wanted, o, from, sums),
                    _ => sums_tile::<L, 1, 1>(rows, wanted, o, from, sums),
                }
            }
            o += c;
        }
        from += 16 * if vectors == 3 { 2 } else { vectors };
    }
}

/// Factors and layout of the weighted sums.
#[derive(Clone, Copy)]
struct Sums<'a> {
    factors: &'a [f32],
    outputs: usize,
    stride: usize,
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn sums_tile<L: Lanes, const C: usize, const V: usize>(
    rows: Rows<'_>,
    wanted: Sums<'_>,
    o: usize,
    from: usize,
    sums: &mut [f32],
) {
    let n = (rows.width - from).min(16 * V);
    let Sums { outputs, stride, .. } = wanted;
    let map = |c: usize| ((o + c) / outputs, (o + c) % outputs);
    let starts: [usize; C] = std::array::from_fn(|c| {
        let (m, c) = map(c);
        m * stride + c * rows.width + from
    });
    let factors: [&[f32]; C] = std::array::from_fn(|c| {
        let (m, c) = map(c);
        &wanted.factors[m * rows.count * outputs + c..][..(rows.count - 1) * outputs + 1]
    });
    // SAFETY: every pointer comes from a slice of exactly `n` numbers, which V vectors cover, the last in
    // part; instructions by contract.
    unsafe {
        let last = n - 16 * (V - 1);
        let mut all = [[L::zero(); V]; C];
        for (all, start) in all.iter_mut().zip(starts) {
            *all = load_all(sums[start..][..n].as_ptr(), last);
        }
        for j in 0..rows.count {
            let x: [L; V] = load_all(rows.row(j)[from..][..n].as_ptr(), last);
            for (all, factors) in all.iter_mut().zip(factors) {
                let factor = L::splat(factors[j * outputs]);
                for (sum, x) in all.iter_mut().zip(x) {
                    *sum = factor.fma(x, *sum);
                }
            }
        }
        for (all, start) in all.iter().zip(starts) {
            let to = sums[start..][..n].as_mut_ptr();
            for (v, sum) in all.iter().enumerate() {
                let to = to.add(16 * v);
                if v + 1 < V { sum.store(to) } else { sum.store_part(to, last) }
            }
        }
    }
}

/// Loads V vectors, of the last one the first `last` numbers.
///
/// # Safety
/// The instructions of `L` must be available, and `from` valid for `16 (V - 1) + last` numbers.
#[inline(always)]
unsafe fn load_all<L: Lanes, const V: usize>(from: *const f32, last: usize) -> [L; V] {
    // SAFETY: whole vectors lie before the last one, which is read in part; instructions by contract.
    unsafe {
        let mut all = [L::zero(); V];
        for (v, x) in all.iter_mut().enumerate() {
            let from = from.add(16 * v);
            *x = if v + 1 < V { L::load(from) } else { L::load_part(from, last) };
        }
        all
    }
}
