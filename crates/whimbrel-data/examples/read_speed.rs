//! Reading speed of CSV (70,000 x 20 with short and with full decimals) and of LIBSVM text (50,000
//! rows of 60 features, ones and decimals), in memory, best of five.

use std::fmt::Write;
use std::time::Instant;
use whimbrel_core::Key;
use whimbrel_data::{CsvOptions, Sha256, Source, read_csv, read_libsvm};

fn main() -> Result<(), whimbrel_data::Error> {
    println!("{:<28} {:>8} {:>9} {:>8}", "text", "MB", "ms", "MB/s");
    for (name, digits) in [("6 decimals", Some(6)), ("shortest round-trip", None)] {
        let text = text(70_000, 20, digits);
        let ms = best(|| {
            let data =
                read_csv(Source::bytes("bench.csv", text.as_bytes()), &CsvOptions::default())?;
            assert_eq!(data.rows(), 70_000);
            Ok(())
        })?;
        report(name, text.len(), ms);
    }
    for (name, ones) in [("libsvm, ones", true), ("libsvm, 6 decimals", false)] {
        let text = libsvm(50_000, 60, ones);
        let ms = best(|| {
            let data = read_libsvm(Source::bytes("bench.txt", text.as_bytes()), None)?;
            assert_eq!(data.len(), 50_000);
            Ok(())
        })?;
        report(name, text.len(), ms);
    }
    let bytes = vec![7u8; 32 << 20];
    let ms = best(|| {
        let mut hash = Sha256::new();
        hash.update(&bytes);
        std::hint::black_box(hash.hex());
        Ok(())
    })?;
    report("sha-256", bytes.len(), ms);
    Ok(())
}

fn text(rows: usize, width: usize, digits: Option<usize>) -> String {
    let mut stream = Key::root(1).stream();
    let mut text = (1..=width).map(|j| format!("x{j}")).collect::<Vec<_>>().join(",") + "\n";
    for _ in 0..rows {
        for j in 0..width {
            let x = (stream.uniform() - 0.5) * 20.0;
            match digits {
                Some(n) => write!(text, "{x:.n$}").expect("a string grows"),
                None => write!(text, "{x}").expect("a string grows"),
            }
            text.push(if j + 1 < width { ',' } else { '\n' });
        }
    }
    text
}

fn libsvm(rows: usize, filled: usize, ones: bool) -> String {
    let mut stream = Key::root(2).stream();
    let mut text = String::new();
    for _ in 0..rows {
        text.push_str(if stream.uniform() < 0.5 { "-1" } else { "+1" });
        let mut index = 0;
        for _ in 0..filled {
            index += 1 + stream.below(9);
            let x = if ones { 1.0 } else { stream.uniform() };
            let digits = if ones { 0 } else { 6 };
            write!(text, " {index}:{x:.digits$}").expect("a string grows");
        }
        text.push('\n');
    }
    text
}

fn best(
    mut work: impl FnMut() -> Result<(), whimbrel_data::Error>,
) -> Result<f64, whimbrel_data::Error> {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

fn report(name: &str, bytes: usize, ms: f64) {
    let mb = bytes as f64 / 1e6;
    println!("{name:<28} {mb:>8.1} {ms:>9.1} {:>8.0}", mb / (ms / 1e3));
}
