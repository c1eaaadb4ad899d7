//! Broken, slow and duplicate connections, by a proxy between clients and coordinator.

use crate::support::{Joined, Left, Serving, Town, Toys, replay, simulate};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use whimbrel_core::{Key, Stream};
use whimbrel_net::Invitation;
use whimbrel_net::coordinator::{Quorum, Rules};

/// A fault of a connection after some bytes.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Both ends see it break.
    Cut,
    /// Only the client sees it break: when it reconnects, the coordinator has two connections.
    HalfOpen,
    /// Every piece is delayed.
    Slow,
}

/// Forwards connections and disturbs the first ones.
struct Proxy {
    address: String,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    fn new(upstream: &str, seed: u64, faults: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let (ending, upstream) = (stop.clone(), upstream.to_owned());
        let accepting = std::thread::spawn(move || {
            let stream = Mutex::new(Key::root(seed).stream());
            let served = AtomicU64::new(0);
            let held: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                while !ending.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((client, _)) => {
                            client.set_nonblocking(false).unwrap();
                            let Ok(server) = TcpStream::connect(&upstream) else { continue };
                            let fault = (served.fetch_add(1, Ordering::Relaxed) < faults)
                                .then(|| draw(&mut stream.lock().unwrap()));
                            let (ending, held) = (&ending, &held);
                            scope.spawn(move || forward(client, server, fault, ending, held));
                        }
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                held.lock().unwrap().clear();
            });
        });
        Self { address, stop, accepting: Some(accepting) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// A fault and the bytes from the client that precede it. A handshake takes about a thousand, an
/// exchange of the toy a few hundred.
fn draw(stream: &mut Stream) -> (Fault, u64) {
    let fault = match stream.below(3) {
        0 => Fault::Cut,
        1 => Fault::HalfOpen,
        _ => Fault::Slow,
    };
    (fault, stream.below(4000))
}

fn forward(
    client: TcpStream,
    server: TcpStream,
    fault: Option<(Fault, u64)>,
    stop: &AtomicBool,
    held: &Mutex<Vec<TcpStream>>,
) {
    for end in [&client, &server] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    std::thread::scope(|scope| {
        let (c, s) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let slow = matches!(fault, Some((Fault::Slow, _)));
        scope.spawn(move || pump(s, c, None, slow, stop));
        let limit = fault.filter(|(f, _)| !matches!(f, Fault::Slow)).map(|(_, bytes)| bytes);
        pump(client.try_clone().unwrap(), server.try_clone().unwrap(), limit, slow, stop);
        let _ = client.shutdown(Shutdown::Both);
        if let Some((Fault::HalfOpen, _)) = fault {
            held.lock().unwrap().push(server.try_clone().unwrap());
        } else {
            let _ = server.shutdown(Shutdown::Both);
        }
    });
}

/// Copies until an end closes, the limit is reached, or the proxy stops.
fn pump(mut from: TcpStream, mut to: TcpStream, limit: Option<u64>, slow: bool, stop: &AtomicBool) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    while !stop.load(Ordering::Relaxed) {
        let count = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => return,
        };
        let room = limit.map_or(count as u64, |limit| limit - passed).min(count as u64);
        if slow {
            std::thread::sleep(Duration::from_millis(3));
        }
        if to.write_all(&buffer[..room as usize]).is_err() {
            return;
        }
        passed += room;
        if limit == Some(passed) {
            return;
        }
    }
}

/// Runs three clients through the proxy to the end of the job.
fn ends(proxy: Proxy, town: &Town, serving: Serving) -> Left {
    let join = |i: u32| {
        let address = proxy.address.clone();
        town.join_with(i, Invitation { address, ..town.invitations[i as usize].clone() })
    };
    let clients: Vec<Joined> = (0..3).map(join).collect();
    let (left, _) = serving.end_with([]);
    drop(proxy);
    // A client whose connection broke during the delivery may lack the model.
    clients.into_iter().for_each(|client| client.stop.store(true, Ordering::Relaxed));
    left
}

#[test]
fn broken_slow_and_duplicate_connections_end_in_the_simulators_bits() {
    for seed in [1, 2, 3] {
        let toys = Toys::new(2, 10);
        let mut town = Town::new(toys.clone(), 3);
        let proxy = Proxy::new(&town.address, seed, 30);
        let serving = town.serve(false);
        let left = ends(proxy, &town, serving);
        assert_eq!(left, simulate(&toys, 3).0, "seed {seed}");
    }
}

#[test]
fn with_a_deadline_broken_connections_end_as_the_journal_replays() {
    let toys = Toys::new(1, 25);
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Share(0.3), deadline: Some(Duration::from_millis(30)) };
    town.limits.linger = Duration::from_secs(2);
    let proxy = Proxy::new(&town.address, 4, 20);
    let serving = town.serve(false);
    let left = ends(proxy, &town, serving);
    assert_eq!(left, replay(&toys, 3, &left.journal));
}
