//! The status of a run: consistent figures across restarts, and the count of attacks.

use crate::raw_session::runtime;
use crate::support::{Town, Toys, simulate};
use std::net::TcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::{Identity, client_config};

#[test]
fn figures_add_up_and_outlive_a_restart() {
    let toys = Toys::new(1, 60);
    let mut town = Town::new(toys.clone(), 3);
    let serving = town.serve(false);
    let mut clients = town.join_all();
    serving.shows("some rounds", |s| s.round >= 10);
    // Without one client the job waits, and its figures stay.
    clients.pop().unwrap().halt();
    serving.shows("a wait", |s| s.state.contains("(not connected)"));
    let before = serving.status();
    assert!(serving.halt().unwrap().is_none());

    let serving = town.serve(true);
    serving
        .shows("the start", |s| s.stage == "toy" && s.clients.values().all(|c| c.rows.is_some()));
    let after = serving.status();
    assert!(before.rows.len() >= 4 && before.rows[0]["round"] == 0, "{:?}", before.rows);
    assert_eq!(after.rows, before.rows, "the curves include earlier processes");
    assert_eq!((after.bytes_up, after.bytes_down), (before.bytes_up, before.bytes_down));
    assert_eq!((after.round, after.strip.len()), (before.round, 0), "no exchange was closed since");

    clients.push(town.join(2));
    serving.shows("the end", |s| s.finished);
    let end = serving.status();
    let (left, outcome) = serving.end_with(clients);
    let (wanted, simulated) = simulate(&toys, 3);
    assert_eq!(left, wanted);
    assert_eq!(outcome.traffic, simulated.traffic);
    let sum = |of: fn(&whimbrel_net::status::ClientStatus) -> u64| {
        end.clients.values().map(of).sum::<u64>()
    };
    assert_eq!((sum(|c| c.bytes_up), sum(|c| c.bytes_down)), (end.bytes_up, end.bytes_down));
    let total = outcome.traffic;
    assert_eq!((end.bytes_up, end.bytes_down, end.bytes_eval), (total.up, total.down, total.eval));
    for (i, (name, client)) in end.clients.iter().enumerate() {
        assert_eq!(client.rows, Some(1 << (i % 3)), "{name}");
        assert!(client.latency_s.is_some_and(|s| s >= 0.0), "{name}");
    }
}

/// A probe that connects and leaves is not an attack. Bytes other than HTTP/2 are one, also within
/// TLS with a self-signed certificate.
#[test]
fn garbage_within_tls_is_counted_and_audited_and_a_probe_is_not() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    let serving = town.serve(false);
    for _ in 0..5 {
        drop(TcpStream::connect(&town.address).unwrap());
    }
    let identity = Identity::make("stranger").unwrap();
    let config = client_config(&identity, &[town.invitations[0].server]).unwrap();
    let send = async |bytes: &[u8], waits: bool| {
        let stream = tokio::net::TcpStream::connect(&town.address).await.unwrap();
        let own = stream.local_addr().unwrap().to_string();
        let name = "whimbrel.invalid".try_into().unwrap();
        let mut tls = TlsConnector::from(config.clone()).connect(name, stream).await.unwrap();
        tls.write_all(bytes).await.unwrap();
        if !waits {
            tls.shutdown().await.unwrap();
        }
        let _ = tls.read_to_end(&mut Vec::new()).await;
        own
    };
    let own = runtime().block_on(send(&[0x5a; 200], true));
    serving.shows_refused(Refusal::Malformed, 1);
    // Shorter than the preface, with wrong first bytes.
    runtime().block_on(send(b"GET / HTTP/1.1", false));
    serving.shows_refused(Refusal::Malformed, 2);
    // A connection that breaks within the preface is not an attack.
    runtime().block_on(send(b"PRI * HTT", false));
    runtime().block_on(send(b"", false));
    runtime().block_on(send(b"\x16\x03", false));
    serving.shows_refused(Refusal::Malformed, 3);
    assert_eq!(serving.status().refused, [(Refusal::Malformed, 3)].into());
    let audit = std::fs::read_to_string(town.run_folder().join("audit.jsonl")).unwrap();
    let line = audit.lines().find(|line| line.contains(&Refusal::Malformed.to_string())).unwrap();
    assert!(line.contains(&own), "{line}");
    assert!(serving.halt().is_err());
}
