//! A coordinator that lies under masks: the shipped client refuses each lie over TLS, and no sum holds
//! a client that was told something else than the others.
//!
//! The coordinator is the real one with a method that alters messages. Lies that only the sum itself
//! reveals end with the others, who refuse a sum without a client of their roster.

use crate::federation::{Process, join_with, masked_wards, wait};
use crate::support::{Sandbox, one_line};
use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel::parts::core::erased::{
    Bound, DynMethod, DynSender, DynTask, Messages, Opaque, StateKind,
};
use whimbrel::parts::core::method::{Artifact, ClientGroup, Declaration, Metric, Place, Status};
use whimbrel::parts::core::{ClientData, ClientId, Key, Message, Result, Spread, Wire};
use whimbrel::parts::engine::run::Stage;
use whimbrel::parts::engine::{Chain, Observer};
use whimbrel::parts::families::plan::{Facts, Plan};
use whimbrel::parts::families::{Job, Offer};
use whimbrel::parts::methods::fedem;
use whimbrel::parts::methods::masked::{Asked, Down};
use whimbrel::parts::net::coordinator::{Coordinator, Rules, Setup};
use whimbrel::parts::net::registry::Registry;
use whimbrel::parts::net::status::Board;
use whimbrel::parts::net::tls::{Identity, server_config};
use whimbrel::parts::net::{Invitation, Limits};

/// The client that is lied to.
const VICTIM: ClientId = ClientId(1);

type Told = Down<fedem::Down, fedem::Ask>;
/// Alters a message of the fit to the victim.
type Lie = fn(&mut Told);

/// A method whose server lies to the victim.
struct Lying {
    honest: Arc<dyn DynMethod>,
    lie: Lie,
}

macro_rules! honestly {
    ($($step:ident($($value:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $step(&self, $($value: $type),*) -> $out {
            self.honest.$step($($value),*)
        })*
    };
}

impl DynMethod for Lying {
    fn downlink(
        &self,
        server: &Opaque,
        broadcast: &Bound,
        peer: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Message)> {
        let (staged, message) = self.honest.downlink(server, broadcast, peer, key)?;
        // A record under masks begins with the client's id.
        if ClientId::take(&mut &peer.save()[..])? != VICTIM {
            return Ok((staged, message));
        }
        let mut told = Told::from_bytes(&message.to_bytes())?;
        (self.lie)(&mut told);
        Ok((staged, told.to_bytes().into()))
    }

    honestly! {
        declare() -> Declaration;
        bind(data: &ClientData) -> Result<Bound>;
        enroll(data: &Bound, key: Key) -> Result<(Opaque, Vec<u8>)>;
        start(roster: Messages<'_, '_>, key: Key) -> Result<Opaque>;
        admit(server: &mut Opaque, id: ClientId, summary: &[u8]) -> Result<Opaque>;
        rows(peer: &Opaque) -> Result<Option<u64>>;
        status(server: &Opaque) -> Result<Status>;
        open(server: &Opaque, cohort: &[ClientId]) -> Result<(Bound, Opaque)>;
        place(client: &Opaque, down: &Message) -> Result<Place>;
        local_steps(tasks: &[DynTask<'_>], threads: &dyn Spread) -> Vec<Result<(Opaque, Vec<u8>)>>;
        absorb(fold: &mut Opaque, from: DynSender<'_>, up: &[u8]) -> Result<()>;
        merge(fold: &mut Opaque, other: Opaque) -> Result<()>;
        server_step(server: Opaque, fold: Opaque, key: Key) -> Result<Opaque>;
        without_clients(server: Opaque) -> Result<Opaque>;
        artifact(server: &Opaque) -> Result<Artifact>;
        client_artifact(client: &Opaque, data: &Bound) -> Result<Option<Artifact>>;
        begin(server: &Opaque) -> Result<Option<Opaque>>;
        ask(server: &Opaque) -> Result<Message>;
        answer(client: &Opaque, ask: &Message, data: &Bound) -> Result<Vec<u8>>;
        own(id: ClientId, peer: Option<&Opaque>, answer: &[u8]) -> Result<Vec<Metric>>;
        conclude(server: &Opaque, answers: Messages<'_, '_>, group: ClientGroup) -> Result<Vec<Metric>>;
        load(kind: StateKind, bytes: &[u8]) -> Result<Opaque>;
    }
}

/// The job's stages; the last one lies.
struct LyingPlan {
    plan: Plan,
    lie: Lie,
}

impl Chain for LyingPlan {
    fn len(&self) -> usize {
        self.plan.len()
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage> {
        let stage = self.plan.build(index, delivered)?;
        if index + 1 < self.len() {
            return Ok(stage);
        }
        let lying: Arc<dyn DynMethod> =
            Arc::new(Lying { honest: stage.method.server()?.clone(), lie: self.lie });
        Ok(Stage { method: lying.into(), ..stage })
    }
}

struct Quiet;
impl Observer for Quiet {}

/// A federation with a lying coordinator, until a client ends. The logs of the victim and of another
/// client.
fn told(lie: Lie, more: &[&str]) -> [String; 2] {
    let sandbox = masked_wards(8, true);
    let job = Job::parse(&sandbox.read("job.toml"), "job.toml").unwrap();
    let facts = Facts::on_network(&job).unwrap();
    let offer = Offer::of(&job, &facts).unwrap();
    let plan = Plan::on_network(&job, &facts).unwrap();
    let run = sandbox.path("served");
    fs::create_dir(&run).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let identity = Identity::keep(&run.join("tls"), "coordinator").unwrap();
    let registry = Registry::create(&run, &address, &identity.fingerprint()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let setup = Setup {
        folder: run,
        resume: false,
        offer: offer.to_json().into_bytes(),
        seed: job.seed,
        rules: Rules::default(),
        evaluates: plan.evaluates(),
        limits: Limits { heartbeat: Duration::from_secs(1), ..Limits::default() },
        tls: server_config(&identity, None).unwrap(),
        next_certificate: None,
        board: Board::new("lies"),
        stop: stop.clone(),
    };
    let serving = std::thread::spawn(move || {
        let mut coordinator = Coordinator::start(setup, listener).unwrap();
        // It fails, or is told to stop.
        let _ = coordinator.run(&LyingPlan { plan, lie }, &mut Quiet);
    });
    let names: Vec<String> = offer.names().to_vec();
    let join = |name: &String| {
        let token = registry.invite(name, 1).unwrap();
        let (address, server) = (address.clone(), identity.fingerprint());
        let invitation =
            Invitation { address, server, name: name.clone(), token, relays: Vec::new() };
        join_with(&sandbox, name, &invitation.encode(), more)
    };
    let mut clients: Vec<Process> = names.iter().map(join).collect();
    wait("refusal", || clients.iter_mut().any(Process::is_over));
    for client in clients.iter_mut().filter_map(Process::code) {
        assert_eq!(client, 4, "{}", logs(&sandbox, &names).join("\n"));
    }
    stop.store(true, Ordering::Relaxed);
    drop(clients);
    serving.join().unwrap();
    assert!(!sandbox.path("served/model").exists(), "the lie gave a model");
    [VICTIM.0 as usize, 0].map(|at| logs(&sandbox, &names).swap_remove(at))
}

fn logs(sandbox: &Sandbox, names: &[String]) -> Vec<String> {
    names.iter().map(|name| one_line(&sandbox.read(&format!("{name}.log")))).collect()
}

/// The victim refuses.
#[test]
fn the_client_refuses_lies_over_the_network() {
    type Case = (&'static str, Lie, &'static [&'static str], &'static str);
    let cases: [Case; 6] = [
        (
            "cohort of one",
            |m| change(m, |a| a.cohort = vec![VICTIM]),
            &[],
            "a sum of 1 clients of a roster of 3",
        ),
        (
            "cohort of one, where some may be missing",
            |m| change(m, |a| a.cohort = vec![VICTIM]),
            &["--partial-rounds"],
            "a cohort of 1",
        ),
        (
            "replayed task",
            |m| {
                change(m, |a| {
                    if a.exchange > 1 {
                        a.exchange = 1
                    }
                })
            },
            &[],
            "exchange 1 is over",
        ),
        (
            "grid that does not suit the job",
            |m| change(m, |a| a.message.grid.iter_mut().for_each(|grid| grid.total = 0.5)),
            &[],
            "the server's grid does not suit the job",
        ),
        ("survivors", leave_one_out, &[], "a sum of 2 clients of a roster of 3"),
        (
            "survivors, where some may be missing",
            leave_one_out,
            &["--partial-rounds"],
            "2 survivors: at least 3 were agreed",
        ),
    ];
    for (name, lie, more, why) in cases {
        let [victim, _] = told(lie, more);
        assert!(victim.contains(why), "{name}: {victim}");
    }
}

/// A model or a grid that only the victim has: the words of the victim do not fit the others', and
/// the others refuse a sum without it.
#[test]
fn the_other_clients_refuse_split_views_over_the_network() {
    let cases: [(&str, Lie); 2] = [
        ("model", |m| {
            if matches!(m, Down::Upload(asked) if asked.exchange > 1) {
                // The last number of the model, in its last bit but a few.
                let mut bytes = m.to_bytes();
                let last = bytes.len() - 8;
                bytes[last] ^= 16;
                *m = Told::from_bytes(&bytes).unwrap();
            }
        }),
        ("grid", |m| {
            change(m, |a| a.message.grid.iter_mut().for_each(|grid| grid.total += 1.0));
        }),
    ];
    for (name, lie) in cases {
        let [victim, other] = told(lie, &[]);
        assert!(victim.contains("answers another task"), "{name}: {victim}");
        assert!(other.contains("a sum of 2 clients of a roster of 3"), "{name}: {other}");
    }
}

/// Changes the question for an upload.
fn change(message: &mut Told, how: impl FnOnce(&mut Asked<fedem::Down>)) {
    if let Down::Upload(asked) = message {
        how(asked);
    }
}

fn leave_one_out(message: &mut Told) {
    if let Down::Survivors(told) = message {
        told.survivors.pop();
        told.boxes.pop();
    }
}
