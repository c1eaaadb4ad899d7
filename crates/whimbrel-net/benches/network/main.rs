//! What a federation costs beyond its method: a method that computes nothing, over TLS on loopback.
//!
//! `cargo xtask bench network [rounds|crowd|enrol|large|soak|strangers]` measures all, or one:
//!
//! | name | clients | messages, each way | gives |
//! |---|---|---|---|
//! | `rounds` | 2, as `whimbrel join` runs them | 8 kB | milliseconds per round |
//! | `crowd` | 1,000 connections of one process | 8 kB | uploads per second, memory |
//! | `enrol` | 1,000, 3,500 and 10,000, 32 at a time, and 1,000 one after another | 1 kB | processor time of the coordinator |
//! | `large` | 2 connections | 50 MB | MB per second of one core |
//! | `soak` | 2 connections, 20,000 rounds | 8 kB | memory over time |
//! | `strangers` | 500 unauthenticated connections | 1 kB, not finished | memory of each |
//!
//! The coordinator is a process of its own; what is written durably goes to the system's folder
//! for temporary files.

mod crowd;
mod echo;
mod served;
mod strangers;

use echo::Echo;
use served::{Figures, Load, Served};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use whimbrel_core::{ClientData, Table};
use whimbrel_engine::Consent;
use whimbrel_engine::client::Participant;
use whimbrel_net::Invitation;
use whimbrel_net::client::{Client, ClientStore, Setup};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let Some((served::WORD, rest)) = arguments.split_first().map(|(a, b)| (a.as_str(), b)) {
        return served::serve(rest);
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|a| a == name);
    if chosen("rounds") {
        let figures = measure(Load { clients: 2, numbers: 1000, rounds: 500 }, joined);
        let ms = 1000.0 * figures.seconds / f64::from(figures.rounds);
        println!("rounds: {ms:.2} ms per round over {} rounds; aim 10", figures.rounds);
    }
    if chosen("crowd") {
        let load = Load { clients: 1000, numbers: 1000, rounds: 60 };
        let figures = measure(load, crowd);
        let uploads = f64::from(figures.rounds) * load.clients as f64 / figures.seconds;
        let peak = figures.peak_kb as f64 / 1000.0;
        println!("crowd: {uploads:.0} uploads per second; aim 2000");
        println!("crowd: coordinator's peak memory {peak:.0} MB; aim 500");
        println!("crowd: coordinator's cores {:.2}", figures.cpu_seconds / figures.seconds);
    }
    if chosen("enrol") {
        for (clients, at_once) in [(1000, 1), (1000, 32), (3500, 32), (10_000, 32)] {
            let seconds = enrolment(clients, at_once);
            println!(
                "enrol: {clients} clients, {at_once} at a time: {seconds:.2} s of processor time"
            );
        }
    }
    if chosen("large") {
        let load = Load { clients: 2, numbers: 6_250_000, rounds: 20 };
        let figures = measure(load, crowd);
        let both_ways = 2.0 * load.clients as f64 * f64::from(figures.rounds);
        let mb = both_ways * 8.0 * load.numbers as f64 / 1e6;
        let (core, wall) = (mb / figures.cpu_seconds, mb / figures.seconds);
        println!("large: {core:.0} MB per second and core; aim 200");
        println!("large: {wall:.0} MB per second, both ways together");
        println!("large: coordinator's peak memory {:.0} MB", figures.peak_kb as f64 / 1000.0);
    }
    if chosen("strangers") {
        let kb = strangers::measure();
        println!("strangers: {kb:.1} kB of the coordinator's memory for each");
    }
    if chosen("soak") {
        let figures = measure(Load { clients: 2, numbers: 1000, rounds: 20_000 }, crowd);
        let samples: Vec<f64> = figures.resident_kb.iter().map(|kb| *kb as f64).collect();
        // The first half fills what is bounded: the log's buffer, the strip, the allocator.
        let (slope, error) = slope(&samples[samples.len() / 2..]);
        let step = f64::from(figures.rounds) / (samples.len() - 1) as f64 / 1000.0;
        println!("soak: resident memory in kB: {:?}", figures.resident_kb);
        println!(
            "soak: slope of the second half {:.1} +- {:.1} kB per 1,000 rounds",
            slope / step,
            error / step
        );
    }
}

/// One coordinator and its clients.
fn measure(load: Load, clients: fn(&Path, Load, Vec<Invitation>)) -> Figures {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    std::fs::create_dir(&run).expect("a folder");
    let mut served = Served::start(&run, load);
    let invitations = std::mem::take(&mut served.invitations);
    clients(folder.path(), load, invitations);
    served.figures()
}

/// Processor time of the coordinator while clients enrol, this many at a time, and leave.
fn enrolment(clients: usize, at_once: usize) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut served = Served::start(folder.path(), Load { clients, numbers: 1, rounds: 1 });
    let invitations = std::mem::take(&mut served.invitations);
    let before = served.cpu_seconds();
    runtime(2).block_on(crowd::enrol_all(invitations, at_once));
    let spent = served.cpu_seconds() - before;
    served.kill();
    spent
}

/// Connections that answer and keep nothing.
fn crowd(_: &Path, _: Load, invitations: Vec<Invitation>) {
    let runtime = runtime(2);
    runtime.block_on(crowd::take_part(invitations));
}

/// Clients as `whimbrel join` runs them, with durable state of their own.
fn joined(folder: &Path, load: Load, invitations: Vec<Invitation>) {
    let start = |(i, invitation): (usize, Invitation)| {
        let folder: PathBuf = folder.join(i.to_string());
        std::thread::spawn(move || join(folder, load, invitation))
    };
    let threads: Vec<_> = invitations.into_iter().enumerate().map(start).collect();
    for thread in threads {
        thread.join().expect("a client ends in order");
    }
}

fn join(folder: PathBuf, load: Load, invitation: Invitation) {
    let client = Client::new(Setup {
        invitation,
        name: None,
        folder: folder.clone(),
        identity: None,
        next_certificate: None,
        new_key: false,
        stop: Arc::new(AtomicBool::new(false)),
        give_up: None,
        proxy: None,
        is_relay: false,
    })
    .expect("a folder");
    let chain = Box::new(Echo { numbers: load.numbers, rounds: load.rounds });
    let table = Table::new(vec!["x".into()], vec![0.0]).expect("a table");
    let data = ClientData::Table(table);
    let participant = Participant { chain, data, seed: 1, consent: Consent::default() };
    let store = ClientStore::open(participant, 1 << 30, &folder).expect("a folder");
    let runtime = runtime(1);
    runtime.block_on(async {
        let enrolled = client.enrol().await.expect("an invitation").expect("nobody stops it");
        client.take_part(&enrolled, store).await.expect("the job ends");
    });
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().expect("a runtime")
}

/// Slope of equally spaced values by least squares, and its standard error.
fn slope(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let middle = (n - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / n;
    let at = |i: usize| i as f64 - middle;
    let spread: f64 = (0..values.len()).map(|i| at(i) * at(i)).sum();
    let slope = values.iter().enumerate().map(|(i, v)| at(i) * (v - mean)).sum::<f64>() / spread;
    let left = values.iter().enumerate().map(|(i, v)| (v - mean - slope * at(i)).powi(2));
    (slope, (left.sum::<f64>() / (n - 2.0) / spread).sqrt())
}
