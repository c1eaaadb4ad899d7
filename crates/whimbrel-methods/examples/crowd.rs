//! FedEM over 100,000 clients: seconds per round and the most memory the process ever held.
//!
//! `cargo run --release -p whimbrel-methods --example crowd [CLIENTS] [ROUNDS]`

#[path = "../benches/crowd/federation.rs"]
mod federation;

use std::time::Instant;
use whimbrel_core::Result;
use whimbrel_testkit::resident_mb;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map_while(|text| text.parse::<usize>().ok());
    let clients = arguments.next().unwrap_or(100_000);
    let rounds = arguments.next().unwrap_or(20);

    let clock = Instant::now();
    let mut simulator = federation::open(clients)?;
    println!(
        "{clients} clients generated, enrolled and opened in {:.2} s",
        clock.elapsed().as_secs_f64()
    );

    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let clock = Instant::now();
        simulator.step()?;
        seconds.push(clock.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let traffic = simulator.traffic();
    println!("threads: {}", rayon::current_num_threads());
    if let (Some(least), Some(most)) = (seconds.first(), seconds.last()) {
        let median = seconds[seconds.len() / 2];
        println!("seconds per round: median {median:.4}, least {least:.4}, most {most:.4}");
    }
    println!("bytes up {}, down {}", traffic.up, traffic.down);
    println!("peak resident memory: {:.0} MB", resident_mb("VmHWM"));
    Ok(())
}
