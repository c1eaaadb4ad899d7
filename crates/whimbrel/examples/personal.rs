//! Personal models, and the model of a client unseen in training:
//! `cargo run --release --example personal`.

use whimbrel::{MixtureOfLearners, Rows};

fn main() -> Result<(), whimbrel::Error> {
    let clients: Vec<Rows> = (0..12).map(|at| client(at, 80).named(format!("ward-{at}"))).collect();
    let fit = MixtureOfLearners::new(2, 40)
        .learner("logistic")
        .batch(16)
        .held_out(0.0, 0.25)
        .fit(&clients)?;
    println!("test accuracy {:?}", fit.run().figure("test_accuracy"));
    for name in ["ward-0", "ward-1"] {
        println!("{name}: weights {:.3?}", fit.client(name)?.weights());
    }
    let late = client(13, 20);
    let own = fit.adapt(&late)?;
    println!("adapted: weights {:.3?}", own.weights());
    println!("{:?}", own.classes(&Rows::from_rows([[1.0, 0.2], [-1.0, 0.3]]))?);
    let saved = std::env::temp_dir().join(format!("whimbrel-personal-{}", std::process::id()));
    fit.run().save(&saved)?;
    let again = whimbrel::Run::open(&saved)?;
    println!("read back: {:?} of {} clients", again.figure("test_accuracy"), again.clients().len());
    std::fs::remove_dir_all(&saved).ok();
    Ok(())
}

/// Rows whose class follows the first column, or its opposite: two kinds of clients.
fn client(at: u32, rows: u32) -> Rows {
    let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24) - 0.5;
    let row = |i: u32| [0, 1].map(|j| 4.0 * noise(104_729 * at + 31 * i + j));
    let flipped = at % 2 == 1;
    let class = |i: u32| if (row(i)[0] > 0.0) != flipped { "yes" } else { "no" };
    Rows::from_rows((0..rows).map(row)).classes((0..rows).map(class))
}
