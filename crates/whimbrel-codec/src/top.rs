//! Top-k: the k coordinates of largest magnitude as they are (the earlier of equals), the others
//! zero. Biased: `||C(x) - x||^2 <= (1 - k/d) ||x||^2`.

use whimbrel_core::{Error, Result};

use crate::kept::Kept;
use crate::scalar::check_finite;
use crate::{Packet, Scalar};

/// Keeps the `k` largest coordinates.
#[derive(Clone, PartialEq, Debug)]
pub struct TopK {
    k: usize,
}

impl TopK {
    /// Keeps the `k` largest coordinates, or all of a shorter vector.
    pub fn new(k: usize) -> Result<Self> {
        if k == 0 {
            return Err(Error::config("top-k with k = 0 sends nothing").hint("k is at least 1"));
        }
        Ok(Self { k })
    }

    /// Number of kept coordinates.
    pub fn count(&self) -> usize {
        self.k
    }

    pub(crate) fn contraction(&self, d: usize) -> f64 {
        if self.k < d { self.k as f64 / d as f64 } else { 1.0 }
    }

    pub(crate) fn encode<T: Scalar>(&self, x: &[T], decoded: Option<&mut [T]>) -> Result<Packet> {
        check_finite(x)?;
        let kept = Kept::of(x, self.select(x));
        if let Some(out) = decoded {
            kept.value(1.0, out);
        }
        Ok(kept.write())
    }

    pub(crate) fn decode<T: Scalar>(&self, packet: &Packet, out: &mut [T]) -> Result<()> {
        Kept::read(packet, out.len(), self.k, 1.0)?.value(1.0, out);
        Ok(())
    }

    fn select<T: Scalar>(&self, x: &[T]) -> Vec<i16> {
        if self.k >= x.len() {
            return vec![1; x.len()];
        }
        let mut order: Vec<u32> = (0..x.len() as u32).collect();
        order.select_nth_unstable_by(self.k - 1, |&a, &b| {
            let (u, v) = (x[a as usize].wide().abs(), x[b as usize].wide().abs());
            v.total_cmp(&u).then(a.cmp(&b))
        });
        let mut marks = vec![0; x.len()];
        for &i in &order[..self.k] {
            marks[i as usize] = 1;
        }
        marks
    }
}
