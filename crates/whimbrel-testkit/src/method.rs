//! The laws of methods.
//!
//! [`laws`] drives a method through its erased twin, like every runner, and checks what runners
//! rely on:
//!
//! - the same inputs give the same bytes;
//! - a fold does not depend on the order of its uploads, on shards, on the tree of merges, or on saving
//!   and loading;
//! - an empty fold is legal;
//! - every state is restored from its bytes, and truncated bytes are refused;
//! - a truncated message is refused, random bytes never panic, also in the steps after a client took
//!   them, and a refused message changes nothing;
//! - only finite numbers enter a fold or, after `check`, a metric; an upload of another kind of
//!   exchange is refused;
//! - clients whose summaries start alone also start together, for all magnitudes;
//! - each message of a client is within its declared bytes, and an undeclared message is empty;
//! - NaN in the server's state makes its magnitude NaN or infinite, so that a run stops.

use std::borrow::Cow;
use whimbrel_core::method::{ClientGroup, MetricValue, Next};
use whimbrel_core::{
    Bound, ClientData, ClientId, DynDone, DynMethod, DynSender, DynTask, InTurn, Key, Message,
    Opaque, Result, StateKind, Stream,
};

/// The maximum of declared bytes: a larger declaration would not bound anything.
const DECLARED_MAX: usize = 1 << 24;
/// Random messages per kind and exchange.
const NONSENSE: u64 = 60;
/// The maximum of places at which a message is truncated.
const CUTS_MAX: usize = 200;

/// A method and its clients.
pub struct MethodUnderTest<'a> {
    /// The name in messages.
    pub name: &'a str,
    pub method: &'a dyn DynMethod,
    /// The data of at least three clients, so that there are orders to try.
    pub data: &'a [ClientData],
    /// Exchanges to run, openings included.
    pub exchanges: u64,
}

/// Checks all laws along a run with all clients.
pub fn laws(test: &MethodUnderTest) {
    assert!(test.data.len() >= 3, "{}: too few clients", test.name);
    let mut run = Run::start(test);
    for number in 0..test.exchanges {
        run.evaluation_is_declared_and_robust(number);
        if run.next().is_over() {
            break;
        }
        run.exchange(number);
    }
    run.states_survive_their_bytes(StateKind::Server, &run.server);
    run.nan_in_the_state_shows_in_its_magnitude();
    let artifact = run.method.artifact(&run.server);
    assert!(artifact.is_ok(), "{}: nothing to deliver: {artifact:?}", test.name);
}

/// A federation in one process that accepts every upload.
struct Run<'a> {
    name: &'a str,
    method: &'a dyn DynMethod,
    declared: Declared,
    data: Vec<Bound>,
    clients: Vec<Opaque>,
    peers: Vec<Opaque>,
    server: Opaque,
    /// The third client's last upload, with its kind of exchange.
    stale: Option<(Next, Vec<u8>)>,
}

/// One client's upload, and the states of both ends once it is accepted.
struct Upload {
    peer: Opaque,
    client: Opaque,
    bytes: Vec<u8>,
}

impl<'a> Run<'a> {
    fn start(test: &MethodUnderTest<'a>) -> Self {
        let (name, method) = (test.name, test.method);
        let declared = Declared::of(method, name);
        let data: Vec<Bound> =
            test.data.iter().map(|d| method.bind(d).expect("the data can be bound")).collect();
        let (mut clients, mut summaries) = (Vec::new(), Vec::new());
        for (i, data) in data.iter().enumerate() {
            let key = root().child(1).child(i as u64);
            let (client, summary) = method.enroll(data, key).expect("a client enrols");
            let (_, again) = method.enroll(data, key).expect("a client enrols");
            assert!(summary == again, "{name}: two summaries of client {i}");
            declared.check(name, "summary", &summary);
            clients.push(client);
            summaries.push(summary);
        }
        let roster = || ids(summaries.len()).zip(summaries.iter().map(|s| &s[..]));
        let start = |roster: &mut dyn Iterator<Item = (ClientId, &[u8])>| {
            let mut roster = roster.map(|(id, summary)| (id, summary.into()));
            method.start(&mut roster, root().child(2))
        };
        let mut server = start(&mut roster()).expect("the roster starts");
        let nobody = start(&mut std::iter::empty());
        assert!(nobody.is_err(), "{name}: a start without clients");
        hostile(&summaries[0], "summary", name, |bytes| {
            let others = summaries[1..].iter().map(|s| &s[..]);
            start(&mut ids(summaries.len()).zip(std::iter::once(bytes).chain(others))).map(|_| ())
        });
        let empty = server.save();
        hostile(&summaries[0], "summary", name, |bytes| {
            let mut server = method.load(StateKind::Server, &empty)?;
            let admitted = method.admit(&mut server, ClientId(0), bytes).map(|_| ());
            if admitted.is_err() {
                assert!(server.save() == empty, "{name}: a refused summary moved the server");
            }
            admitted
        });
        for bytes in poisoned(&summaries[0]) {
            let alone = start(&mut std::iter::once((ClientId(0), &bytes[..])));
            let twice = [&bytes, &bytes, &summaries[2]].into_iter().map(|s| &s[..]);
            if alone.is_ok()
                && let Err(error) = start(&mut ids(3).zip(twice))
            {
                panic!("{name}: a summary starts alone, and not beside others: {error}");
            }
        }
        let mut peers = Vec::new();
        for (id, summary) in roster() {
            peers.push(method.admit(&mut server, id, summary).expect("a client is admitted"));
        }
        Self { name, method, declared, data, clients, peers, server, stale: None }
    }

    fn next(&self) -> Next {
        self.method.status(&self.server).expect("its own server").next
    }

    /// Checks all laws in one exchange with all clients.
    fn exchange(&mut self, number: u64) {
        let key = root().child(3).child(number);
        let uploads: Vec<Upload> = (0..self.clients.len()).map(|i| self.upload(i, key)).collect();
        self.messages_down_are_robust(key);
        self.messages_up_are_robust(&uploads);
        self.poison_leaves_no_trace(&uploads, key);
        let fold = self.folds_agree(&uploads, number);
        self.states_survive_their_bytes(StateKind::Server, &self.server);
        self.states_survive_their_bytes(StateKind::Fold, &fold);
        for upload in &uploads {
            self.states_survive_their_bytes(StateKind::Peer, &upload.peer);
            self.states_survive_their_bytes(StateKind::Client, &upload.client);
        }
        self.an_empty_fold_is_legal(key);
        let copies = [(); 2].map(|()| (self.server.copy(), fold.copy()));
        let [first, second] = copies.map(|(server, fold)| {
            self.method.server_step(server, fold, key.child(4)).expect("a server step")
        });
        assert!(first.save() == second.save(), "{}: two results of one server step", self.name);
        self.stale = Some((self.next(), uploads[2].bytes.clone()));
        self.server = first;
        (self.peers, self.clients) =
            uploads.into_iter().map(|upload| (upload.peer, upload.client)).unzip();
    }

    fn upload(&self, i: usize, key: Key) -> Upload {
        let (peer, down) = self.down(i, key);
        let local = key.child(3).child(i as u64);
        let up = self.method.local_step(&self.clients[i], &down, &self.data[i], local);
        let DynDone { client, up: bytes, .. } = up.expect("a local step");
        let whole = self.down(i, key).1.to_bytes().into();
        let task =
            |down| DynTask { client: &self.clients[i], down, data: &self.data[i], key: local };
        for done in self.method.local_steps(&[task(&down), task(&whole)], &InTurn) {
            let again = done.expect("a local step among several").up;
            assert!(bytes == again, "{}: two uploads of one local step", self.name);
        }
        self.declared.check(self.name, "up", &bytes);
        Upload { peer, client, bytes }
    }

    fn down(&self, i: usize, key: Key) -> (Opaque, Message) {
        let (broadcast, _) = self.method.open(&self.server, &[]).expect("its own server");
        let down = self.method.downlink(&self.server, &broadcast, &self.peers[i], key.child(2));
        down.expect("a message down")
    }

    fn absorb(&self, fold: &mut Opaque, i: usize, upload: &Upload, bytes: &[u8]) -> Result<()> {
        // Unequal probabilities, as a sampled cohort may have.
        let inclusion = [1.0, 0.3, 0.75][i % 3];
        let id = ClientId(i as u32);
        self.method.absorb(fold, DynSender { id, inclusion, peer: &upload.peer }, bytes)
    }

    fn fold_of(&self, uploads: &[Upload], order: &[usize]) -> Opaque {
        let mut fold = self.empty_fold();
        for &i in order {
            self.absorb(&mut fold, i, &uploads[i], &uploads[i].bytes).expect("a sound upload");
        }
        fold
    }

    /// Every order, sharding and tree of merges gives the same bytes.
    fn folds_agree(&self, uploads: &[Upload], number: u64) -> Opaque {
        let mut order: Vec<usize> = (0..uploads.len()).collect();
        let fold = self.fold_of(uploads, &order);
        let wanted = fold.save();
        let mut random = root().child(5).child(number).stream();
        for attempt in 0..6 {
            shuffle(&mut order, &mut random);
            let shards = 1 + random.below(uploads.len() as u64) as usize;
            let mut parts: Vec<Opaque> = order
                .chunks(order.len().div_ceil(shards))
                .map(|part| self.fold_of(uploads, part))
                .collect();
            // An empty shard, and one that was saved on the way.
            parts.push(self.empty_fold());
            parts[0] = self.load(StateKind::Fold, &parts[0].save());
            while parts.len() > 1 {
                let other = parts.swap_remove(random.below(parts.len() as u64) as usize);
                let into = random.below(parts.len() as u64) as usize;
                self.method.merge(&mut parts[into], other).expect("folds of one exchange");
            }
            assert!(
                parts[0].save() == wanted,
                "{}: exchange {number}, sharding {attempt}: order {order:?} in {shards} shards \
                 gives another fold",
                self.name
            );
        }
        fold
    }

    fn an_empty_fold_is_legal(&self, key: Key) {
        let stepped = self.method.server_step(self.server.copy(), self.empty_fold(), key.child(4));
        let stepped = stepped.unwrap_or_else(|e| panic!("{}: an empty fold: {e}", self.name));
        let magnitude = self.method.status(&stepped).expect("its own server").magnitude;
        assert!(magnitude.is_finite(), "{}: an empty fold left {magnitude}", self.name);
    }

    fn states_survive_their_bytes(&self, kind: StateKind, state: &Opaque) {
        let bytes = state.save();
        let again = self.load(kind, &bytes);
        assert!(again.save() == bytes, "{}: {kind:?} changed when saved", self.name);
        assert!(state.copy().save() == bytes, "{}: {kind:?} changed when copied", self.name);
        hostile(&bytes, &format!("{kind:?}"), self.name, |bytes| {
            self.method.load(kind, bytes).map(|_| ())
        });
    }

    fn nan_in_the_state_shows_in_its_magnitude(&self) {
        let bytes = self.server.save();
        let shows = |at: usize| {
            let mut poisoned = bytes.clone();
            poisoned[at..at + 8].copy_from_slice(&f64::NAN.to_le_bytes());
            let server = self.method.load(StateKind::Server, &poisoned);
            let status = |server| self.method.status(&server).expect("its own server");
            server.is_ok_and(|server| !status(server).magnitude.is_finite())
        };
        let seen = (0..bytes.len().saturating_sub(7)).any(shows);
        assert!(seen, "{}: no NaN in the server's state shows in its magnitude", self.name);
    }

    fn messages_down_are_robust(&self, key: Key) {
        let sound = self.down(0, key).1;
        hostile(&sound.to_bytes(), "down", self.name, |bytes| {
            let message = bytes.to_vec().into();
            let step = |client, down| self.method.local_step(client, down, &self.data[0], key);
            let client = step(&self.clients[0], &message)?.client;
            // Its coordinator accepted the answer: the client goes on, or refuses the next message.
            let _ = step(&client, &sound);
            let _ = step(&client, &message);
            let _ = self.method.client_artifact(&client, &self.data[0]);
            Ok(())
        });
    }

    /// A refused upload leaves the fold unchanged, and nothing panics.
    fn messages_up_are_robust(&self, uploads: &[Upload]) {
        let before = self.fold_of(uploads, &[0, 1]);
        let saved = before.save();
        hostile(&uploads[2].bytes, "up", self.name, |bytes| {
            let mut fold = self.load(StateKind::Fold, &saved);
            let result = self.absorb(&mut fold, 2, &uploads[2], bytes);
            assert!(
                result.is_ok() || fold.save() == saved,
                "{}: a refused upload changed the fold",
                self.name
            );
            result
        });
    }

    /// Non-finite or huge numbers at any place of an upload are refused without a trace, or read as
    /// finite ones. An upload of another kind of exchange is refused as well.
    fn poison_leaves_no_trace(&self, uploads: &[Upload], key: Key) {
        let saved = self.fold_of(uploads, &[0, 1]).save();
        let bytes = &uploads[2].bytes;
        for poisoned in poisoned(bytes) {
            let mut fold = self.load(StateKind::Fold, &saved);
            if self.absorb(&mut fold, 2, &uploads[2], &poisoned).is_err() {
                assert!(fold.save() == saved, "{}: a refused upload changed the fold", self.name);
                continue;
            }
            let server = self.server.copy();
            // A step may fail on numbers that are merely huge; it may not go on with a NaN.
            if let Ok(server) = self.method.server_step(server, fold, key.child(4)) {
                let magnitude = self.method.status(&server).expect("its own server").magnitude;
                assert!(!magnitude.is_nan(), "{}: a poisoned upload was taken", self.name);
            }
        }
        if let Some((next, stale)) = self.stale.as_ref().filter(|(next, _)| *next != self.next()) {
            let mut fold = self.load(StateKind::Fold, &saved);
            let refused = self.absorb(&mut fold, 2, &uploads[2], stale).is_err();
            assert!(
                refused && fold.save() == saved,
                "{}: an upload of {next:?} was taken or left a trace",
                self.name
            );
        }
    }

    fn evaluation_is_declared_and_robust(&self, number: u64) {
        let method = self.method;
        let ask = method.ask(&self.server).expect("a question");
        let answer = |i: usize| method.answer(&self.clients[i], &ask, &self.data[i]);
        let answers: Vec<Vec<u8>> =
            (0..self.clients.len()).map(|i| answer(i).expect("an answer")).collect();
        answers.iter().for_each(|bytes| self.declared.check(self.name, "answer", bytes));
        let conclude = |answers: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>| {
            method.conclude(&self.server, answers, ClientGroup::Trained).map(|_| ())
        };
        let mut all = ids(answers.len()).zip(answers.iter().map(Cow::from));
        let concluded = conclude(&mut all);
        assert!(concluded.is_ok(), "{}: exchange {number}: {concluded:?}", self.name);
        hostile(&ask.to_bytes(), "ask", self.name, |bytes| {
            method.answer(&self.clients[0], &bytes.to_vec().into(), &self.data[0]).map(|_| ())
        });
        // Where there is nothing to answer, answers are not read.
        if !answers[0].is_empty() {
            hostile(&answers[0], "answer", self.name, |bytes| {
                conclude(&mut std::iter::once((ClientId(0), Cow::from(bytes))))
            });
        }
        let own = |i: usize, bytes: &[u8]| {
            method.own(ClientId(i as u32), Some(&self.peers[i]), bytes).map(|_| ())
        };
        hostile(&answers[0], "answer", self.name, |bytes| own(0, bytes));
        for (i, sound) in answers.iter().enumerate() {
            let checked = own(i, sound);
            assert!(checked.is_ok(), "{}: a sound answer: {checked:?}", self.name);
        }
        for bytes in poisoned(&answers[0]) {
            if own(0, &bytes).is_ok() {
                let all = std::iter::once(&bytes).chain(&answers[1..]).map(Cow::from);
                let mut all = ids(answers.len()).zip(all);
                let metrics = method.conclude(&self.server, &mut all, ClientGroup::Trained);
                let metrics = metrics.expect("checked answers");
                let spoilt = metrics.iter().find(|metric| match &metric.value {
                    MetricValue::Number(x) => !x.is_finite(),
                    MetricValue::List(xs) => xs.iter().any(|x| !x.is_finite()),
                    MetricValue::Missing => false,
                });
                assert!(spoilt.is_none(), "{}: one answer makes {spoilt:?}", self.name);
            }
        }
    }

    fn empty_fold(&self) -> Opaque {
        self.method.open(&self.server, &[]).expect("its own server").1
    }

    fn load(&self, kind: StateKind, bytes: &[u8]) -> Opaque {
        let loaded = self.method.load(kind, bytes);
        loaded.unwrap_or_else(|e| panic!("{}: {kind:?} cannot be loaded: {e}", self.name))
    }
}

/// The declared maximum of bytes of each message.
struct Declared(Vec<(&'static str, usize)>);

impl Declared {
    fn of(method: &dyn DynMethod, name: &str) -> Self {
        let kinds = ["summary", "up", "answer"];
        let all = method.declare().disclosures;
        for one in &all {
            let (message, most) = (one.message, one.bytes_max);
            assert!(kinds.contains(&message), "{name}: `{message}` is not a message of a client");
            assert!(most <= DECLARED_MAX, "{name}: {message} of {most} bytes is not a bound");
            assert!(!one.meaning.is_empty(), "{name}: {message} has no meaning");
        }
        // A message may carry several of the things declared for it.
        let most = |kind: &str| all.iter().filter(|d| d.message == kind).map(|d| d.bytes_max).sum();
        Self(kinds.map(|kind| (kind, most(kind))).into())
    }

    fn check(&self, name: &str, kind: &str, bytes: &[u8]) {
        let most = self.0.iter().find(|(k, _)| *k == kind).map_or(0, |(_, most)| *most);
        let length = bytes.len();
        assert!(length <= most, "{name}: {kind} of {length} bytes where {most} are declared");
    }
}

/// Passes truncated messages to `receive`, which must refuse them, and random ones, which must not
/// panic.
fn hostile(message: &[u8], what: &str, name: &str, mut receive: impl FnMut(&[u8]) -> Result<()>) {
    let every = message.len().div_ceil(CUTS_MAX).max(1);
    for length in (0..message.len()).step_by(every) {
        let refused = receive(&message[..length]).is_err();
        assert!(refused, "{name}: {what}: {length} of {} bytes were enough", message.len());
    }
    let longer = [message, &[0]].concat();
    assert!(receive(&longer).is_err(), "{name}: {what}: a byte too many was taken");
    let mut random = root().child(6).stream();
    for _ in 0..NONSENSE {
        let _ = receive(&nonsense(message, &mut random));
    }
}

/// The message with numbers, fields or bytes replaced or moved, or random bytes.
fn nonsense(message: &[u8], random: &mut Stream) -> Vec<u8> {
    let mut bytes = message.to_vec();
    let length = message.len() as u64;
    match random.below(5) {
        0 => bytes = (0..random.below(2 * length + 8)).map(|_| random.next_u64() as u8).collect(),
        1 if length > 0 => bytes.rotate_left(random.below(length) as usize),
        2 if length > 8 => {
            // One number is nothing a client computes.
            let at = random.below(length - 7) as usize;
            let odd = [f64::NAN, f64::INFINITY, -1e308, f64::MIN_POSITIVE / 4.0, 0.0];
            let number = odd[random.below(5) as usize].to_le_bytes();
            bytes[at..at + 8].copy_from_slice(&number);
        }
        3 if length > 4 => {
            // A count or an index at the edge of what is valid.
            let at = random.below(length - 3) as usize;
            let field = u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
            let edge = [0, 1, u32::MAX, 1 << 31, field.wrapping_add(1), field.wrapping_sub(1)];
            bytes[at..at + 4].copy_from_slice(&edge[random.below(6) as usize].to_le_bytes());
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                if length > 0 {
                    bytes[random.below(length) as usize] = random.next_u64() as u8;
                }
            }
        }
    }
    bytes
}

/// The message with NaN, infinity or a huge number at each place.
fn poisoned(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let places = message.len().saturating_sub(7);
    let every = places.div_ceil(CUTS_MAX).max(1);
    (0..places).step_by(every).flat_map(move |at| {
        [f64::NAN, f64::NEG_INFINITY, 1e300].into_iter().map(move |odd| {
            let mut bytes = message.to_vec();
            bytes[at..at + 8].copy_from_slice(&odd.to_le_bytes());
            bytes
        })
    })
}

fn shuffle(order: &mut [usize], random: &mut Stream) {
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
}

fn ids(count: usize) -> impl Iterator<Item = ClientId> {
    (0..count as u32).map(ClientId)
}

fn root() -> Key {
    Key::root(0x1A35)
}
