//! Clients killed at each message of their enrolment, or of a change of certificates, and restarted:
//! they enrol once and end in the simulation's bits, or are refused with a reason.
//!
//! Each client has its own point of death. A proxy counts the TLS records of both directions over all
//! connections of the client, and kills it before a record is forwarded, or right afterwards.

use crate::federation::{Process, invitations_of, join_with, serve, wait, write_two_groups};
use crate::pki::Authority;
use crate::support::Sandbox;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use whimbrel::parts::net::Invitation;

/// The record at which a client is killed.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// From the client to the coordinator.
    up: bool,
    /// From zero.
    record: u32,
    /// Whether the record is forwarded.
    passes: bool,
}

/// Every record of an enrolment and of the first rounds, in both directions.
fn points(records: u32) -> Vec<Point> {
    let ways = [(true, false), (false, false), (false, true)];
    let all = (0..records).flat_map(|record| ways.map(|(up, passes)| Point { up, record, passes }));
    all.collect()
}

fn name(at: usize) -> String {
    format!("c{at:02}")
}

/// A job of many clients, and its data.
fn town(clients: usize) -> Sandbox {
    let names: Vec<String> = (0..clients).map(name).collect();
    let sandbox = Sandbox::with_job(&format!(
        "name = \"town\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\n\n[model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\n\
         rounds = 20\nevaluate = {{ every = 5 }}\n\n[uplink]\ncodec = {{ kind = \"dithering\", levels = 4 }}\n\n\
         [privacy]\nmin_group = 5\n\n[federation]\nclients = [{}]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n",
        names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
    ));
    write_two_groups(&sandbox, &names, |_| 24);
    sandbox
}

/// A coordinator and its invitations by name.
fn start(sandbox: &Sandbox, clients: usize) -> (Process, BTreeMap<String, String>) {
    let coordinator = serve(sandbox, false);
    (coordinator, invitations_of(sandbox, clients).into_iter().collect())
}

/// A client that is killed at its point, and the state of its folder then.
#[derive(Clone, Default)]
struct Doomed(Arc<Mutex<(Option<Process>, Option<Kept>)>>);

/// Progress of a client's folder at its death.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kept {
    Key,
    Offer,
    Stage,
    State,
}

impl Doomed {
    /// Starts the client behind its proxy.
    fn start(sandbox: &Sandbox, point: Point, name: &str, invitation: &str, more: &[&str]) -> Self {
        let doomed = Self::default();
        let invitation = Invitation::decode(invitation).unwrap();
        let (upstream, folder) =
            (invitation.address.clone(), sandbox.path(&format!("client-{name}")));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let behind = Invitation { address, ..invitation }.encode();
        let mut held = doomed.0.lock().unwrap();
        held.0 = Some(join_with(sandbox, name, &behind, more));
        drop(held);
        let dying = doomed.clone();
        std::thread::spawn(move || {
            let counts = Arc::new([Mutex::new(0u32), Mutex::new(0u32)]);
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&upstream).unwrap());
                for up in [true, false] {
                    let (client, server) =
                        (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let (from, to) = if up { (client, server) } else { (server, client) };
                    let (dying, counts, folder) = (dying.clone(), counts.clone(), folder.clone());
                    std::thread::spawn(move || {
                        let count = &counts[usize::from(up)];
                        let _ = pump(from.try_clone().unwrap(), to.try_clone().unwrap(), |pass| {
                            let mut count = count.lock().unwrap();
                            let here = up == point.up && *count == point.record;
                            *count += 1;
                            if !here || point.passes {
                                pass()?;
                            }
                            if here {
                                dying.die(&folder);
                            }
                            Ok(())
                        });
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        doomed
    }

    fn die(&self, folder: &std::path::Path) {
        let mut held = self.0.lock().unwrap();
        held.0.take().expect("it is killed once").kill();
        let is_there = |file: &str| fs::metadata(folder.join(file)).is_ok_and(|m| m.len() > 0);
        held.1 = Some(match () {
            () if is_there("slot-a") => Kept::State,
            () if is_there("stage-0") => Kept::Stage,
            () if is_there("offer") => Kept::Offer,
            () => Kept::Key,
        });
        // The remains of interrupted writes.
        for file in ["offer.tmp", "consent.tmp", "pins.tmp", "stage-0.tmp"] {
            let _ = fs::write(folder.join(file), b"WHIM");
        }
    }

    fn kept(&self) -> Option<Kept> {
        self.0.lock().unwrap().1
    }
}

/// Forwards TLS records by `record`.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    mut record: impl FnMut(&mut dyn FnMut() -> std::io::Result<()>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 5];
    loop {
        bytes.resize(5, 0);
        from.read_exact(&mut bytes)?;
        let length = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        bytes.resize(5 + length, 0);
        from.read_exact(&mut bytes[5..])?;
        record(&mut || to.write_all(&bytes))?;
    }
}

fn ends(sandbox: &Sandbox, coordinator: Process, clients: Vec<Process>) {
    coordinator.ends(sandbox, "serve");
    sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
    let bytes = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(bytes("served") == bytes("simulated"), "another model than the simulation's");
    assert_eq!(sandbox.read("served/journal"), sandbox.read("simulated/journal"));
    let members = sandbox.read("served/members.jsonl");
    for (at, client) in clients.into_iter().enumerate() {
        client.ends(sandbox, &name(at));
        assert!(bytes(&format!("client-{}", name(at))) == bytes("served"), "{}", name(at));
        let enrolled = |line: &&str| {
            line.contains("\"enrolled\"") && line.contains(&format!("\"{}\"", name(at)))
        };
        assert_eq!(members.lines().filter(enrolled).count(), 1, "{}: {members}", name(at));
    }
}

#[test]
fn clients_killed_at_any_message_of_their_enrolment_enrol_once() {
    let points = points(22);
    let sandbox = town(points.len());
    let (coordinator, invitations) = start(&sandbox, points.len());
    let doomed: Vec<Doomed> = (points.iter().enumerate())
        .map(|(at, point)| Doomed::start(&sandbox, *point, &name(at), &invitations[&name(at)], &[]))
        .collect();
    let mut clients: Vec<Option<Process>> = points.iter().map(|_| None).collect();
    wait("restart of all clients", || {
        for (at, client) in clients.iter_mut().enumerate() {
            if client.is_none() && doomed[at].kept().is_some() {
                *client = Some(join_with(&sandbox, &name(at), &invitations[&name(at)], &[]));
            }
        }
        clients.iter().all(Option::is_some)
    });
    // The deaths cover every stored file.
    let mut died = BTreeMap::<Kept, u32>::new();
    doomed.iter().for_each(|client| *died.entry(client.kept().unwrap()).or_default() += 1);
    assert!(died.contains_key(&Kept::Key) && died.contains_key(&Kept::Offer), "{died:?}");
    assert!(died.contains_key(&Kept::State), "{died:?}");
    ends(&sandbox, coordinator, clients.into_iter().flatten().collect());
}

/// Each client announces its next certificate, is killed, and returns with that one. If the coordinator
/// does not know it, the client is refused with a reason and returns with the first one.
#[test]
fn clients_killed_during_a_change_of_certificates_keep_one_of_them() {
    let points = points(16);
    let sandbox = town(points.len());
    let authority = Authority::new("institution");
    for at in 0..points.len() {
        for number in 0..2 {
            authority.sign(&sandbox.path(""), &format!("{}-{number}", name(at)));
        }
    }
    let files = |at: usize, number: u32| {
        let file = |end: &str| format!("{}-{number}.{end}", name(at));
        [file("pem"), file("key")]
    };
    let rejoin = |at: usize, number: u32, invitation: &str| {
        let [cert, key] = files(at, number);
        join_with(&sandbox, &name(at), invitation, &["--cert", &cert, "--key", &key])
    };
    let (coordinator, invitations) = start(&sandbox, points.len());
    let doomed: Vec<Doomed> = (points.iter().enumerate())
        .map(|(at, point)| {
            let ([cert, key], [next, _]) = (files(at, 0), files(at, 1));
            let brought = ["--cert", &cert, "--key", &key, "--next-cert", &next];
            Doomed::start(&sandbox, *point, &name(at), &invitations[&name(at)], &brought)
        })
        .collect();
    // The certificate with which each client returned.
    let mut clients: Vec<Option<(u32, Process)>> = points.iter().map(|_| None).collect();
    let mut refused = 0;
    let done = || sandbox.path("served/summary.json").exists();
    wait("end of the job", || {
        for (at, client) in clients.iter_mut().enumerate() {
            let invitation = &invitations[&name(at)];
            let ended =
                client.as_mut().and_then(|(number, process)| Some((*number, process.code()?)));
            match ended {
                None if client.is_none() && doomed[at].kept().is_some() => {
                    *client = Some((1, rejoin(at, 1, invitation)));
                }
                Some((1, code)) if code != 0 => {
                    let said = sandbox.read(&format!("{}.log", name(at)));
                    assert_eq!(code, 4, "{:?}: {said}", points[at]);
                    assert!(said.contains("the coordinator refused: "), "{said}");
                    refused += 1;
                    *client = Some((0, rejoin(at, 0, invitation)));
                }
                _ => {}
            }
        }
        done()
    });
    assert!(refused > 0, "no client died between enrolment and announcement");
    let second = clients.iter().flatten().filter(|(number, _)| *number == 1).count();
    assert!(second > 0, "no client used its second certificate");
    let clients = clients.into_iter().flatten().map(|(_, process)| process).collect();
    ends(&sandbox, coordinator, clients);
}
