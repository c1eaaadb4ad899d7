//! x
use std::time::Instant;
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;
fn main() {
    let d = 1_000_000;
    let mut x = vec![0.0; d];
    Key::root(1).stream().fill_normal(&mut x);
    let c = Codec::dithering(16, Norm::P(2), Some(256)).unwrap();
    let mut best = f64::MAX;
    for _ in 0..300 {
        let t = Instant::now();
        let p = c.encode(&x, Key::root(1)).unwrap();
        std::hint::black_box(p);
        best = best.min(t.elapsed().as_secs_f64());
    }
    println!("{best:?}");
}
