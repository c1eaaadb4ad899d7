//! Clients behind relays: the bits of direct connections, through restarts, and only for the clients
//! that were invited through them.

use crate::raw_session::{frame, reach, runtime};
use crate::support::{PATIENCE, Town, Toys, bind};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use whimbrel_core::Result;
use whimbrel_core::wire::hex;
use whimbrel_net::client::link::Connection;
use whimbrel_net::invitation::Fingerprint;
use whimbrel_net::proto::{self, client_frame};
use whimbrel_net::registry::{Place, Standing, unhex};
use whimbrel_net::relay::{PATH, Relay, Setup};
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, PROTOCOL, client};

/// A running relay.
struct Running {
    invitation: Invitation,
    address: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Running {
    /// Invites a relay, starts it, and waits until it has joined.
    fn start(town: &Town, name: &str, via: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let place = Place { via, address: Some(&address) };
        let token = town.registry().invite_at(name, 1, place).unwrap();
        let invitation = through(town, name, token, via);
        let running = Self::spawn(town, invitation, listener, address);
        let begun = Instant::now();
        while town.registry().list().relay(name).is_err() {
            assert!(begun.elapsed() < PATIENCE, "relay {name} does not join");
            std::thread::yield_now();
        }
        running
    }

    fn spawn(town: &Town, invitation: Invitation, listener: TcpListener, address: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = client::Setup {
            folder: town.folder.path().join(&invitation.name),
            invitation: invitation.clone(),
            name: None,
            identity: None,
            next_certificate: None,
            new_key: false,
            stop: stop.clone(),
            give_up: Some(PATIENCE),
            proxy: None,
            is_relay: true,
        };
        let setup = Setup { client, limits: town.limits.clone(), client_ca: None };
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                match Relay::start(setup).await? {
                    Some(relay) => relay.run(listener).await,
                    None => Ok(()),
                }
            })
        });
        Self { invitation, address, stop, thread }
    }

    fn halt(self) -> (Invitation, String) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap();
        (self.invitation, self.address)
    }

    fn restart(self, town: &Town) -> Self {
        let (invitation, address) = self.halt();
        let listener = bind(&address);
        Self::spawn(town, invitation, listener, address)
    }
}

/// The invitation of a client or relay behind a relay.
fn through(town: &Town, name: &str, token: [u8; 16], via: Option<&str>) -> Invitation {
    let list = town.registry().list();
    let relays = list.path(via);
    let direct = Invitation { name: name.into(), token, relays, ..town.invitations[0].clone() };
    let Some(relay) = via.map(|via| list.relay(via).unwrap()) else { return direct };
    let address = relay.address.clone().unwrap();
    Invitation { address, server: unhex(relay.certificate.as_deref().unwrap()), ..direct }
}

/// Invites client `i` through a relay instead.
fn move_behind(town: &mut Town, i: usize, via: &str) {
    let name = format!("c{i:02}");
    let place = Place { via: Some(via), address: None };
    let token = town.registry().invite_at(&name, 1, place).unwrap();
    town.invitations[i] = through(town, &name, token, Some(via));
}

#[test]
fn a_tree_of_relays_ends_in_the_bits_of_the_star() {
    let toys = Toys::new(2, 5);
    let mut town = Town::new(toys.clone(), 6);
    let direct = town.invitations[0].clone();
    let serving = town.serve(false);
    let north = Running::start(&town, "north", None);
    let south = Running::start(&town, "south", None);
    // A third level.
    let town_south = Running::start(&town, "south town", Some("south"));
    for (i, relay) in
        [(1, "north"), (2, "north"), (3, "south"), (4, "south town"), (5, "south town")]
    {
        move_behind(&mut town, i, relay);
    }
    assert_eq!(town.invitations[0], direct);
    assert_eq!(town.invitations[5].relays, ["south town", "south"]);
    let clients = town.join_all();
    for i in 0..6 {
        serving.shows_connected(&format!("c{i:02}"));
    }
    let status = serving.status();
    let address = |client: &str| status.clients[client].address.clone();
    assert!(address("c02").ends_with(" via north"), "{}", address("c02"));
    assert!(address("c05").ends_with(" via south town"), "{}", address("c05"));
    serving.ends_as_simulated(clients, &toys);
    for relay in [north, south, town_south] {
        relay.halt();
    }
}

#[test]
fn clients_wait_for_a_relay_that_restarts() {
    let toys = Toys { evaluate: Some(50), ..Toys::new(1, 400) };
    let mut town = Town::new(toys.clone(), 3);
    let serving = town.serve(false);
    let mut relay = Running::start(&town, "north", None);
    move_behind(&mut town, 1, "north");
    move_behind(&mut town, 2, "north");
    let clients = town.join_all();
    for round in [1, 100, 200] {
        serving.shows("a round", |s| s.round >= round);
        relay = relay.restart(&town);
    }
    // A relay that lost its folder's list of admitted clients learns them again.
    let list = town.folder.path().join("north").join("admitted");
    assert_eq!(std::fs::read_to_string(&list).unwrap().lines().count(), 2);
    let (invitation, address) = relay.halt();
    std::fs::remove_file(&list).unwrap();
    let relay = Running::spawn(&town, invitation, bind(&address), address);
    serving.ends_as_simulated(clients, &toys);
    relay.halt();
}

#[test]
fn a_revoked_relay_carries_nothing_and_its_client_moves() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 600) };
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let relay = Running::start(&town, "north", None);
    let direct = town.invitations[1].clone();
    move_behind(&mut town, 1, "north");
    let (first, second) = (town.join(0), town.join(1));
    serving.shows("a round", |s| s.round >= 1);
    town.registry().stand("north", Standing::Revoked).unwrap();
    let error = second.error().to_string();
    assert!(error.contains("the relay `north` was revoked"), "{error}");
    serving.shows("the client is away", |s| !s.clients["c01"].connected);
    relay.halt();
    // Its certificate is refused on another path until the list names that path.
    let error = town.join_with(1, direct.clone()).error().to_string();
    assert!(error.contains(&Refusal::Path.to_string()), "{error}");
    assert!(town.registry().move_to("c01", Some("north")).is_err(), "it is revoked");
    town.registry().move_to("c01", None).unwrap();
    let second = town.join_with(1, direct);
    serving.ends_as_simulated(vec![first, second], &toys);
}

fn fingerprint_of(town: &Town, relay: &str) -> Fingerprint {
    unhex(town.registry().list().relay(relay).unwrap().certificate.as_deref().unwrap())
}

/// Opens a session with this path of certificates; the status of its refusal.
async fn vouch(connection: &mut Connection, path: Option<&str>) -> Result<(), Status> {
    let (frames, outgoing) = mpsc::channel(1);
    let hello = proto::Hello { version: PROTOCOL, ..Default::default() };
    frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
    let mut request = Request::new(ReceiverStream::new(outgoing));
    if let Some(path) = path {
        request.metadata_mut().insert(PATH, path.parse().unwrap());
    }
    let mut incoming = connection.client.session(request).await?.into_inner();
    incoming.message().await.map(drop)
}

async fn enrol_as(
    connection: &mut Connection,
    token: &[u8],
    path: Option<&Fingerprint>,
    relay: bool,
) -> Result<Vec<u8>, Status> {
    let (token, name) = (token.to_vec().into(), String::new());
    let mut request = Request::new(proto::EnrolRequest { version: PROTOCOL, token, name, relay });
    if let Some(path) = path {
        request.metadata_mut().insert(PATH, hex(path).parse().unwrap());
    }
    Ok(connection.client.enrol(request).await?.into_inner().run.into())
}

/// A relay connects again when a client calls: without calls its connection ends.
#[test]
fn an_idle_connection_of_a_relay_is_closed() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.first_frame = Duration::from_secs(2);
    let serving = town.serve(false);
    let identity = Identity::make("idle").unwrap();
    let place = Place { via: None, address: Some("127.0.0.1:1") };
    let token = town.registry().invite_at("idle", 1, place).unwrap();
    runtime().block_on(async {
        let coordinator = Invitation { token, ..town.invitations[0].clone() };
        let mut connection = reach(&coordinator, &identity).await;
        enrol_as(&mut connection, &token, None, true).await.unwrap();
        drop(connection);
        let connection = reach(&coordinator, &identity).await;
        let begun = Instant::now();
        while !connection.sender.is_closed() {
            assert!(begun.elapsed() < PATIENCE, "the connection stays");
            tokio::task::yield_now().await;
        }
    });
    assert!(!serving.status().refused.contains_key(&Refusal::Silent));
    assert!(serving.halt().is_err());
}

/// Two relays with fifty clients each, in one process.
#[test]
fn two_relays_with_fifty_clients_each_end_in_the_bits_of_the_star() {
    let toys = Toys::new(1, 3);
    let mut town = Town::new(toys.clone(), 100);
    let serving = town.serve(false);
    let relays = ["north", "south"].map(|name| Running::start(&town, name, None));
    for i in 0..100 {
        move_behind(&mut town, i, ["north", "south"][i % 2]);
    }
    let clients = town.join_all();
    serving.ends_as_simulated(clients, &toys);
    relays.into_iter().for_each(|relay| drop(relay.halt()));
}

/// A relay speaks for its own clients only, and a client for itself.
#[test]
fn a_hostile_relay_speaks_for_no_other_client() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 3) };
    let mut town = Town::new(toys.clone(), 3);
    town.limits.enrolments_per_minute = 9;
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows_connected("c00");
    let direct = unhex(town.registry().list().clients[0].certificate.as_deref().unwrap());

    let hostile = Identity::make("hostile").unwrap();
    let place = Place { via: None, address: Some("127.0.0.1:1") };
    let token = town.registry().invite_at("hostile", 1, place).unwrap();
    let honest = Running::start(&town, "honest", None);
    move_behind(&mut town, 1, "honest");
    let (behind, free) = (town.invitations[1].clone(), town.invitations[2].clone());
    let clients = [first, town.join(1)];
    serving.shows_connected("c01");
    let other = unhex(town.registry().list().clients[1].certificate.as_deref().unwrap());

    runtime().block_on(async {
        let denied = |result: Result<_, Status>, why: Refusal| {
            let status: Status = match result {
                Err(status) => status,
                Ok(()) => panic!("admitted, and {why:?} was expected"),
            };
            assert!(status.message().contains(&why.to_string()), "{why:?}: {status}");
        };
        let coordinator = Invitation { token, ..free.clone() };
        let mut connection = reach(&coordinator, &hostile).await;
        // An invitation of a relay is no client's, and the reverse.
        denied(enrol_as(&mut connection, &token, None, false).await.map(drop), Refusal::Role);
        denied(enrol_as(&mut connection, &free.token, None, true).await.map(drop), Refusal::Role);
        enrol_as(&mut connection, &token, None, true).await.unwrap();
        let mut connection = reach(&coordinator, &hostile).await;
        // It takes no part itself, and speaks neither for a direct client nor for another relay's.
        denied(vouch(&mut connection, None).await, Refusal::Role);
        denied(vouch(&mut connection, Some(&hex(&direct))).await, Refusal::Path);
        denied(vouch(&mut connection, Some(&hex(&other))).await, Refusal::Path);
        let honest = fingerprint_of(&town, "honest");
        let nested = format!("{},{}", hex(&other), hex(&honest));
        denied(vouch(&mut connection, Some(&nested)).await, Refusal::Path);
        denied(vouch(&mut connection, Some(&hex(&honest))).await, Refusal::Role);
        denied(vouch(&mut connection, Some(&hex(&[9; 32]))).await, Refusal::UnknownCertificate);
        // Tokens of direct clients and of other relays' clients are void behind it.
        for token in [&free.token, &behind.token] {
            let redeemed = enrol_as(&mut connection, token, Some(&[8; 32]), false).await;
            denied(redeemed.map(drop), Refusal::Path);
        }
        // Wrong tokens are counted by the certificate that sends them, not by the relay's host.
        let own = Place { via: Some("hostile"), address: None };
        let own = town.registry().invite_at("own", 1, own).unwrap();
        for _ in 0..9 {
            let redeemed = enrol_as(&mut connection, &[1; 16], Some(&[7; 32]), false).await;
            denied(redeemed.map(drop), Refusal::WrongToken);
        }
        let redeemed = enrol_as(&mut connection, &own, Some(&[7; 32]), false).await;
        denied(redeemed.map(drop), Refusal::TooManyEnrolments);
        enrol_as(&mut connection, &own, Some(&[6; 32]), false).await.unwrap();
        town.registry().stand("own", Standing::Revoked).unwrap();
        for malformed in ["", "00", &hex(&other)[1..], &[hex(&other).as_str(); 9].join(",")] {
            let status = vouch(&mut connection, Some(malformed)).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{malformed:?}: {status}");
        }
        // A client is not a relay.
        let client = Identity::make("client").unwrap();
        let mut connection = reach(&free, &client).await;
        enrol_as(&mut connection, &free.token, None, false).await.unwrap();
        let mut connection = reach(&free, &client).await;
        denied(vouch(&mut connection, Some(&hex(&direct))).await, Refusal::UnknownCertificate);
    });
    town.registry().stand("c02", Standing::Revoked).unwrap();
    let (left, _) = serving.end_with(clients);
    assert_eq!(left.rounds, [3, 3, 0]);
    honest.halt();
}
