//! A Gaussian mixture over rows in memory: `cargo run --release --example mixture`.

use std::ops::ControlFlow;
use whimbrel::{Codec, Covariance, GaussianMixture, Rows};

fn main() -> Result<(), whimbrel::Error> {
    let clients: Vec<Rows> = (0..20).map(client).collect();
    let mixture = GaussianMixture::new(3)
        .covariance(Covariance::Full)
        .uplink(Codec::dithering(8))
        .participation(0.5)
        .seed(7);
    let fit = mixture.fit_with(&clients, |progress| {
        if let Some(objective) = progress.metric("objective")
            && progress.round % 50 == 0
        {
            eprintln!("{} round {}: {objective:.4}", progress.stage, progress.round);
        }
        ControlFlow::Continue(())
    })?;
    println!("weights {:.3?} after {} rounds", fit.weights(), fit.run().rounds());
    println!("means {:.2?}", fit.means());
    println!("{} bits up, objective {:?}", fit.bits_up(), fit.run().figure("objective"));
    let pooled = GaussianMixture::new(3).covariance(Covariance::Full).pooled().fit(&clients)?;
    println!("pooled EM: objective {:?}", pooled.run().figure("objective"));
    let rows = Rows::from_rows([[0.0, 0.0], [5.0, 5.0], [-4.0, 6.0]]);
    println!("labels {:?}", fit.predict(&rows)?);
    let refused = mixture.set("model.reg_covar", -1.0).fit(&clients).err();
    println!("{}", refused.map_or_else(String::new, |error| error.to_string()));
    Ok(())
}

/// 60 rows around three centres, in shares that differ from client to client.
fn client(at: u32) -> Rows {
    let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24) - 0.5;
    let centres = [[0.0, 0.0], [5.0, 5.0], [-4.0, 6.0]];
    let row = |i: u32| {
        let centre = centres[((i + at * i) % 3) as usize];
        [0, 1].map(|j| centre[j] + 2.0 * noise(7919 * at + 31 * i + j as u32))
    };
    Rows::from_rows((0..60).map(row)).columns(["x", "y"])
}
