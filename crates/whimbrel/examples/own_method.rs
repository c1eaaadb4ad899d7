//! A new federated method over compressed channels: `cargo run --release --example own_method`.

use whimbrel::{Codec, Key, Rows, Simple, Simulate, Table};

/// The geometric median by Weiszfeld's steps: clients send gradients of mean distances.
struct Median {
    step: f64,
}

impl Simple for Median {
    fn start(&self, columns: usize) -> Vec<f64> {
        vec![0.0; columns]
    }

    fn value(&self, at: &[f64], rows: &Table, _: Key) -> Vec<f64> {
        let mut sum = vec![0.0; at.len()];
        for i in 0..rows.rows() {
            let distance = distance(at, rows.row(i)).max(1e-9);
            for ((sum, m), x) in sum.iter_mut().zip(at).zip(rows.row(i)) {
                *sum += (m - x) / (distance * rows.rows() as f64);
            }
        }
        sum
    }

    fn step(&self, at: &mut [f64], mean: &[f64], round: u32) {
        let step = self.step / (1.0 + 0.05 * f64::from(round));
        at.iter_mut().zip(mean).for_each(|(m, g)| *m -= step * g);
    }

    fn loss(&self, at: &[f64], rows: &Table) -> f64 {
        (0..rows.rows()).map(|i| distance(at, rows.row(i))).sum::<f64>() / rows.rows() as f64
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

fn main() -> whimbrel::Result<()> {
    let row = |c: u32, i: u32| [2.0 + f64::from((i * 7 + c) % 5), -1.0 + f64::from(i % 3)];
    let clients: Vec<Rows> = (0..10).map(|c| Rows::from_rows((0..30).map(|i| row(c, i)))).collect();
    let run = Simulate::new(Median { step: 0.5 }, 300)
        .uplink(Codec::dithering(2))
        .participation(0.5)
        .run(&clients)?;
    println!("median {:.3?}, {} bits up", run.parameters, run.bits_up);
    println!("mean distance {:?} to {:?}", run.losses.first(), run.losses.last());
    Ok(())
}
