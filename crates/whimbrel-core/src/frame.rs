//! Linear changes of coordinates for compression.

/// An invertible linear map that both ends of a channel know in advance. An unbiased codec keeps
/// its `omega` in these coordinates and their norm.
pub trait Frame: Send + Sync {
    /// Into the frame, in place.
    fn forward(&self, x: &mut [f64]);
    /// Back from the frame, in place.
    fn inverse(&self, x: &mut [f64]);
}

/// Frames of consecutive parts of a vector, each with the part's length.
pub struct Blocks(pub Vec<(usize, Box<dyn Frame>)>);

impl Blocks {
    fn each(&self, x: &mut [f64], apply: impl Fn(&dyn Frame, &mut [f64])) {
        let mut rest = x;
        for (length, frame) in &self.0 {
            let (part, after) = rest.split_at_mut(*length);
            apply(&**frame, part);
            rest = after;
        }
    }
}

impl Frame for Blocks {
    fn forward(&self, x: &mut [f64]) {
        self.each(x, |frame, part| frame.forward(part));
    }
    fn inverse(&self, x: &mut [f64]) {
        self.each(x, |frame, part| frame.inverse(part));
    }
}
