//! FedEM over 100,000 clients: seconds per round and the most memory the process ever held.
//!
//! `cargo run --release -p whimbrel-methods --example crowd [CLIENTS] [ROUNDS]`

#[path = "../benches/crowd/federation.rs"]
mod federation;

use std::time::Instant;
use whimbrel_core::Result;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map_while(|text| text.parse::<usize>().ok());
    let clients = arguments.next().unwrap_or(100_000);
    let rounds = arguments.next().unwrap_or(20);

    let clock = Instant::now();
    let method = federation::method()?;
    let federation = federation::federation(&*method, clients)?;
    println!("{clients} clients generated in {:.2} s", clock.elapsed().as_secs_f64());
    let clock = Instant::now();
    let mut simulator = federation::open(method, federation)?;
    println!("enrolment and openings took {:.2} s", clock.elapsed().as_secs_f64());

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
    match peak_resident_kb() {
        Some(kb) => println!("peak resident memory: {:.0} MB", kb as f64 / 1000.0),
        None => println!("peak resident memory: not known on this system"),
    }
    Ok(())
}

/// `VmHWM`, where the system has it.
fn peak_resident_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
