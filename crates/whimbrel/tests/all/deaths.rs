//! Clients that die at each message of their enrolment, and of a change of certificates, and are started
//! again: they end enrolled once and with the simulation's bits, or are refused with a reason.
//!
//! Each client has a point of its own at which it is killed. A proxy that reads the heads of TLS records
//! counts those of both ways, over all connections of the client: before a record is passed on, so that
//! nobody heard it, or right behind it, while the client works on what it said.

use crate::federation::{Process, wait};
use crate::pki::Authority;
use crate::support::Sandbox;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use whimbrel::parts::net::Invitation;

/// A client is killed at this record of a way.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// From the client to the coordinator.
    up: bool,
    /// From zero.
    record: u32,
    /// Whether the record still gets through.
    passes: bool,
}

/// Every record of an enrolment and of the first rounds, both ways.
fn points(records: u32) -> Vec<Point> {
    let ways = [(true, false), (false, false), (false, true)];
    let all = (0..records).flat_map(|record| ways.map(|(up, passes)| Point { up, record, passes }));
    all.collect()
}

fn name(at: usize) -> String {
    format!("c{at:02}")
}

/// A job of so many clients, their files, and one of everybody's rows.
fn town(clients: usize) -> Sandbox {
    let names: Vec<String> = (0..clients).map(|at| format!("\"{}\"", name(at))).collect();
    let sandbox = Sandbox::with_job(&format!(
        "name = \"town\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"at\"\n\
         columns = [\"a\", \"b\"]\n\n[model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\n\
         rounds = 20\nevaluate = {{ every = 5 }}\n\n[uplink]\ncodec = {{ kind = \"dithering\", levels = 4 }}\n\n\
         [federation]\nclients = [{}]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n",
        names.join(", ")
    ));
    let mut all = String::from("a,b,at\n");
    for at in 0..clients {
        let mut own = String::from("a,b\n");
        for i in 0..24 {
            let group = f64::from((i * 7 + at) as u32 % 2);
            let wave = |step: usize| ((i * step + 13 * at) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (4.0 * group + wave(31), -3.0 * group + wave(57));
            writeln!(own, "{a},{b}").unwrap();
            writeln!(all, "{a},{b},{}", name(at)).unwrap();
        }
        sandbox.write(&format!("{}.csv", name(at)), &own);
    }
    sandbox.write("all.csv", &all);
    sandbox
}

fn serve(sandbox: &Sandbox, clients: usize) -> (Process, BTreeMap<String, String>) {
    let coordinator = Process::start(sandbox, "serve", &["serve", "job.toml", "--out", "served"]);
    let printed = || fs::read_to_string(sandbox.path("serve.out")).unwrap_or_default();
    wait("the invitations", || printed().matches('\n').count() == clients);
    let pair = |line: &str| line.split_once('\t').map(|(n, i)| (n.to_owned(), i.to_owned()));
    (coordinator, printed().lines().filter_map(pair).collect())
}

/// A client that is killed at its point, and what its folder held then.
#[derive(Clone, Default)]
struct Doomed(Arc<Mutex<(Option<Process>, Option<Kept>)>>);

/// How far a client's folder was when it died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kept {
    Key,
    Offer,
    Stage,
    State,
}

impl Doomed {
    /// Starts it behind its proxy.
    fn start(sandbox: &Sandbox, point: Point, name: &str, invitation: &str, more: &[&str]) -> Self {
        let doomed = Self::default();
        let invitation = Invitation::decode(invitation).unwrap();
        let (upstream, folder) =
            (invitation.address.clone(), sandbox.path(&format!("client-{name}")));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let behind = Invitation { address, ..invitation }.encode();
        let mut held = doomed.0.lock().unwrap();
        held.0 = Some(join(sandbox, name, &behind, more));
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
        // What a write that was cut short leaves beside its file.
        for file in ["offer.tmp", "consent.tmp", "pins.tmp", "stage-0.tmp"] {
            let _ = fs::write(folder.join(file), b"WHIM");
        }
    }

    fn kept(&self) -> Option<Kept> {
        self.0.lock().unwrap().1
    }
}

/// Passes TLS records on, each as `record` does it.
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

fn join(sandbox: &Sandbox, name: &str, invitation: &str, more: &[&str]) -> Process {
    let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
    let args = ["join", invitation, "--data", &data, "--out", &out, "--yes", "--give-up", "120"];
    Process::start(sandbox, name, &[&args[..], more].concat())
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
fn clients_that_die_at_any_message_of_their_enrolment_enrol_once_and_end_in_the_same_bits() {
    let points = points(22);
    let sandbox = town(points.len());
    let (coordinator, invitations) = serve(&sandbox, points.len());
    let doomed: Vec<Doomed> = (points.iter().enumerate())
        .map(|(at, point)| Doomed::start(&sandbox, *point, &name(at), &invitations[&name(at)], &[]))
        .collect();
    let mut clients: Vec<Option<Process>> = points.iter().map(|_| None).collect();
    wait("everyone's death", || {
        for (at, client) in clients.iter_mut().enumerate() {
            if client.is_none() && doomed[at].kept().is_some() {
                *client = Some(join(&sandbox, &name(at), &invitations[&name(at)], &[]));
            }
        }
        clients.iter().all(Option::is_some)
    });
    // Some died before each thing that is stored, and some behind the last.
    let mut died = BTreeMap::<Kept, u32>::new();
    doomed.iter().for_each(|client| *died.entry(client.kept().unwrap()).or_default() += 1);
    assert!(died.contains_key(&Kept::Key) && died.contains_key(&Kept::Offer), "{died:?}");
    assert!(died.contains_key(&Kept::State), "{died:?}");
    ends(&sandbox, coordinator, clients.into_iter().flatten().collect());
}

/// Each client announces its next certificate, dies on the way, and comes back with that one. Where the
/// coordinator had not heard of it, it is refused with a reason, and comes back with the first one.
#[test]
fn clients_that_die_while_they_change_certificates_are_known_by_one_or_the_other() {
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
    let start = |at: usize, number: u32, invitation: &str| {
        let [cert, key] = files(at, number);
        join(&sandbox, &name(at), invitation, &["--cert", &cert, "--key", &key])
    };
    let (coordinator, invitations) = serve(&sandbox, points.len());
    let doomed: Vec<Doomed> = (points.iter().enumerate())
        .map(|(at, point)| {
            let ([cert, key], [next, _]) = (files(at, 0), files(at, 1));
            let brought = ["--cert", &cert, "--key", &key, "--next-cert", &next];
            Doomed::start(&sandbox, *point, &name(at), &invitations[&name(at)], &brought)
        })
        .collect();
    // The certificate that a client has come back with.
    let mut clients: Vec<Option<(u32, Process)>> = points.iter().map(|_| None).collect();
    let mut refused = 0;
    let done = || sandbox.path("served/summary.json").exists();
    wait("everyone's return", || {
        for (at, client) in clients.iter_mut().enumerate() {
            let invitation = &invitations[&name(at)];
            let ended =
                client.as_mut().and_then(|(number, process)| Some((*number, process.code()?)));
            match ended {
                None if client.is_none() && doomed[at].kept().is_some() => {
                    *client = Some((1, start(at, 1, invitation)));
                }
                Some((1, code)) if code != 0 => {
                    let said = sandbox.read(&format!("{}.log", name(at)));
                    assert_eq!(code, 4, "{:?}: {said}", points[at]);
                    assert!(said.contains("the coordinator refused: "), "{said}");
                    refused += 1;
                    *client = Some((0, start(at, 0, invitation)));
                }
                _ => {}
            }
        }
        done()
    });
    assert!(refused > 0, "nobody died between its enrolment and its announcement");
    let second = clients.iter().flatten().filter(|(number, _)| *number == 1).count();
    assert!(second > 0, "nobody was known by its second certificate");
    let clients = clients.into_iter().flatten().map(|(_, process)| process).collect();
    ends(&sandbox, coordinator, clients);
}
