//! Missing counts of a survey, filled in with prediction intervals:
//! `cargo run --release --example survey`.

use whimbrel::{LowRank, Rows};

const SITES: u32 = 25;
const YEARS: usize = 6;

fn main() -> Result<(), whimbrel::Error> {
    let observers: Vec<Rows> = (0..4).map(|c| survey(c).named(format!("observer-{c}"))).collect();
    let fit = LowRank::poisson(60.0).rank(1).fit(&observers)?;
    println!("{} bits sent by observers", fit.run().bits_up());
    let filled = fit.impute(&observers)?;
    for (year, count) in observers[0].values()[..YEARS].iter().enumerate() {
        let estimate = fit.cell(0, year);
        let (low, high) = (estimate.lower, estimate.upper);
        if count.is_nan() {
            println!("year {year}: {:.1} (90 %: {low:.0} to {high:.0})", estimate.mean);
        } else {
            println!("year {year}: {count} observed");
        }
    }
    let total = |rows: &Rows| rows.values().iter().filter(|x| x.is_finite()).sum::<f64>();
    let (observed, all) = (observers.iter().map(total), filled.iter().map(total));
    println!("observed {:.0}, with imputed counts {:.0}", observed.sum::<f64>(), all.sum::<f64>());
    Ok(())
}

/// Counts of one observer's sites over the years, a third of them missing.
fn survey(observer: u32) -> Rows {
    let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
    let row = |site: u32| {
        let size = 2.0 + 30.0 * noise(97 * observer + site);
        std::array::from_fn::<f64, YEARS, _>(|year| {
            let n = 7919 * observer + 31 * site + year as u32;
            let expected = size * (1.0 + 0.2 * year as f64);
            if noise(3 * n + 1) < 0.33 {
                f64::NAN
            } else {
                (expected * (0.8 + 0.4 * noise(n))).round()
            }
        })
    };
    Rows::from_rows((0..SITES).map(row)).columns((2019..2025).map(|year| year.to_string()))
}
