//! A client's upload and the server's removal of masks, by cohort and number of 16-bit words, with
//! 5 % of the cohort lost; and the key stream alone.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use whimbrel_core::{ClientId, Segment};
use whimbrel_privacy::masks::{MaskClient, MaskServer, MaskTask, Roster, Rules, Span};

const SIZES: [(usize, usize); 7] = [
    (10, 1_000),
    (10, 100_000),
    (10, 10_000_000),
    (100, 1_000),
    (100, 100_000),
    (1_000, 1_000),
    (1_000, 100_000),
];

/// Clients with a roster.
fn federation(n: usize) -> (MaskServer, Vec<MaskClient>) {
    let secret = |i: usize| {
        let mut secret = [1; 32];
        secret[..8].copy_from_slice(&i.to_le_bytes());
        secret
    };
    let mut clients: Vec<_> = (0..n).map(|i| MaskClient::new(secret(i), [0; 32])).collect();
    let rules = Rules { run: [0; 32], min_cohort: 3 };
    let members = clients.iter().enumerate().map(|(i, c)| (ClientId(i as u32), c.enrol()));
    let roster = Roster::new(rules, members.collect()).expect("valid keys");
    for client in &mut clients {
        client.agree(roster.clone()).expect("a roster with this client");
    }
    (MaskServer::new(roster), clients)
}

fn rounds(c: &mut Criterion) {
    let mut group = c.benchmark_group("masks");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    for (n, d) in SIZES {
        let (mut server, mut clients) = federation(n);
        let words = [Segment { width: 16, words: (0..d as u64).collect() }];
        let layout = vec![Span::of(&words[0]).expect("few words")];
        let cohort = (0..n as u32).map(ClientId).collect();
        let task = MaskTask { exchange: 0, cohort, layout, content: [0; 32] };
        server.open(task.clone()).expect("a first task");
        for (i, client) in clients.iter_mut().enumerate().skip(n / 20) {
            let upload = client.upload(&task, &words).expect("a first upload");
            server.absorb(ClientId(i as u32), upload).expect("an upload of this task");
        }
        let survivors = server.close_uploads().expect("an open exchange");
        for &id in &survivors {
            let message = server.survivors(id).expect("a survivor");
            let vouch = clients[id.0 as usize].vouch(&message).expect("true survivors");
            server.absorb_vouch(id, &vouch).expect("a vouch of a survivor");
        }
        let vouches = server.close_vouches().expect("an open exchange").expect("enough vouches");
        for &id in &survivors {
            let shares = clients[id.0 as usize].shares(&vouches).expect("enough vouches");
            server.absorb_shares(id, shares).expect("shares of a survivor");
        }
        let client = &mut clients[n - 1];
        group.bench_function(format!("upload/n={n}/d={d}"), |b| {
            b.iter(|| client.upload(&task, &words).expect("the same upload"))
        });
        group.bench_function(format!("unmask/n={n}/d={d}"), |b| {
            let finish = |mut server: MaskServer| server.finish().expect("an open exchange");
            b.iter_batched(|| server.clone(), finish, BatchSize::PerIteration)
        });
    }
    group.finish();
}

/// Bytes of key stream per second in an upload: one stream per neighbour and the client's own.
fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("mask-streams");
    let (n, d) = (30, 1_000_000);
    let (_, mut clients) = federation(n);
    let words = [Segment { width: 16, words: (0..d as u64).collect() }];
    let layout = vec![Span::of(&words[0]).expect("few words")];
    let cohort = (0..n as u32).map(ClientId).collect();
    let task = MaskTask { exchange: 0, cohort, layout, content: [0; 32] };
    group.sample_size(10).throughput(Throughput::Bytes(2 * n as u64 * d as u64));
    group.bench_function("30 streams", |b| {
        b.iter(|| clients[0].upload(&task, &words).expect("the same upload"))
    });
    group.finish();
}

criterion_group!(benches, rounds, streams);
criterion_main!(benches);
