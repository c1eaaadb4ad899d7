//! A method under masks: the server learns the sum of the uploads of an exchange and no single one.
//!
//! The protocol is that of [`whimbrel_privacy::masks`], against a lying server. Each exchange of the
//! method takes three, of which the method sees one:
//!
//! | step | down | up |
//! |---|---|---|
//! | upload | the method's message, the cohort, keys of clients new to the receiver | masked words, sealed shares of the masks' seeds |
//! | vouch | the survivors, shares sealed for the receiver | a signature on the survivors |
//! | share | the signatures | shares of the seeds to remove |
//!
//! Everything is state of the server or of a client, so runners carry, store and repeat the steps as
//! those of any method. A client's own state moves when the next message says that its last exchange
//! was not void, and names the task of the last exchange with a sum: tasks form a chain, so that a
//! client with another past contributes noise. The key of a later step is a child of the upload's
//! key: a client answers each step of an exchange once, whatever the server sends.
//!
//! Enrolment messages are not masked: stages of [exact sums](crate::pooled) replace them. An evaluation
//! is a masked exchange of such sums (`evaluation.rs`).
//!
//! Reduces to the method itself, to the bit, if no exchange is void.

mod evaluation;
mod message;
mod state;
mod trust;

pub use message::{Asked, Down, Summary, Up};
pub use state::{Client, Fold, History, Peer, Server};
pub use trust::{Trust, Watch};
pub use whimbrel_privacy::masks::{Accepted, Roster, ShortHash};

use message::Broadcast;
use state::{Format, Step};
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Declaration, Disclosure, Done, Evaluate, Exposure, Method, Metric,
    Next, Place, Sender, Status, Task,
};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, Segment, Spread, Wire};
use whimbrel_privacy::masks::{
    Hash, MaskClient, MaskServer, MaskTask, MaskedUpload, Outcome, Rules, Span, hash_bytes,
};

/// A method whose uploads are words: the sum of their words is an upload of many clients.
pub trait Sums: Evaluate<Down: Clone> {
    /// The widths and numbers of words of the uploads that a fold takes.
    fn shape(&self, fold: &Self::Fold) -> Result<Vec<(u32, usize)>>;
    /// The words of an upload.
    fn words(&self, up: &Self::Up) -> Result<Vec<Segment>>;
    /// The part of a message that all clients of a sum must have received alike.
    fn common(&self, down: &Self::Down) -> Result<Vec<u8>>;
    /// Counts a sender whose words arrive in a sum.
    fn absorb_sender(&self, fold: &mut Self::Fold, from: Sender<'_, Self::Peer>) -> Result<()>;
    /// Adds the sum of the words of all senders.
    fn absorb_words(&self, fold: &mut Self::Fold, sum: &[Segment]) -> Result<()>;
    /// The number of sums of an evaluation; zero if its figures come from the server's state alone.
    fn judged_len(&self) -> usize;
    /// A client's part of these sums.
    fn judge(&self, client: &Self::Client, ask: &Self::Ask, data: &Self::Data) -> Result<Vec<f64>>;
    /// The figures of an evaluation, from the sums over clients.
    fn judged(&self, server: &Self::Server, sums: &[f64]) -> Result<Vec<Metric>>;
}

/// The most repetitions of an opening: one that is void is asked again.
const OPENINGS_MAX: u32 = 10;
/// Exchanges for each exchange of the method.
const STEPS: u32 = 3;

/// A method whose uploads are summed under masks.
pub struct Masked<M> {
    method: M,
    rules: Rules,
    secret: MaskSecret,
    trust: Trust,
    /// The number of the method's kinds of exchange.
    kinds: usize,
    /// The most clients of a cohort, as far as the job knows them.
    clients: usize,
}

/// The settings of masks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Masks {
    /// The fewest clients in a sum.
    pub least: u32,
    /// The clients that the job plans.
    pub clients: usize,
    /// The seed of the run.
    pub seed: u64,
    pub secret: MaskSecret,
    pub trust: Trust,
}

/// The secret of a client's process. A client derives its own at enrolment and keeps it in its state.
#[derive(Clone, Copy, PartialEq)]
pub enum MaskSecret {
    /// Random bytes that no one else knows.
    Random(Hash),
    /// None: clients of a simulation hide nothing from it.
    Simulated,
}

/// The secret is not shown.
impl std::fmt::Debug for MaskSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Simulated { "Simulated" } else { "Random" })
    }
}

impl<M: Sums> Masked<M> {
    pub fn new(method: M, masks: &Masks) -> Self {
        let Masks { least, clients, seed, secret, trust } = *masks;
        let run = hash_bytes(&("whimbrel masks".to_owned(), seed).to_bytes());
        let rules = Rules { run, min_cohort: least };
        let kinds = method.declare().exchanges.len();
        Self { method, rules, secret, trust, kinds, clients }
    }

    /// A new client. The key of its enrolment, which others know, separates stages and clients.
    fn client(&self, key: Key) -> MaskClient {
        let secret = match self.secret {
            MaskSecret::Random(secret) => secret,
            MaskSecret::Simulated => [0; 32],
        };
        let client = MaskClient::new(hash_bytes(&(secret, key).to_bytes()), self.rules.run);
        match self.trust.identity {
            Some(identity) => client.with_identity(identity),
            None => client,
        }
    }

    /// The clients' half of the first step: masks words, after all checks of the question.
    fn mask<D>(
        &self,
        client: &Client<M::Client>,
        asked: &Asked<D>,
        words: &[Segment],
        content: Hash,
    ) -> Result<(MaskClient, MaskedUpload)> {
        let mut masks = client.masks.clone();
        // A repeated question is answered by the stored upload.
        if masks.last_exchange().is_some_and(|last| asked.exchange <= last) {
            return Err(Error::peer(format!("exchange {} is over", asked.exchange)));
        }
        if !asked.newcomers.is_empty() {
            let known = match masks.roster() {
                Some(roster) => roster.clone(),
                None => Roster::new(self.rules.clone(), Vec::new())?,
            };
            masks.agree(known.with(asked.newcomers.clone())?)?;
        }
        if let Some(roster) = masks.roster() {
            self.trust.check(roster)?;
        }
        self.trust.check_sum(&asked.cohort, masks.roster())?;
        self.trust.check_history(client.settled_at(&asked.history.voids).1, asked.last()?)?;
        let layout = words.iter().map(Span::of).collect::<Result<_>>()?;
        let (exchange, cohort) = (asked.exchange, asked.cohort.clone());
        let upload = masks.upload(&MaskTask { exchange, cohort, layout, content }, words)?;
        Ok((masks, upload))
    }

    /// A client's masked upload, and its state unless the exchange is void.
    fn upload(
        &self,
        client: &Client<M::Client>,
        asked: &Asked<M::Down>,
        Done { client: state, up, withheld }: Done<M>,
        key: Key,
    ) -> Result<Done<Self>> {
        let words = self.method.words(&up)?;
        let history = &asked.history;
        let content = self.content(&asked.message, history)?;
        let (masks, upload) = self.mask(client, asked, &words, content)?;
        let (own, held) = client.settled_at(&history.voids);
        let pending = Some(((asked.of_method()?, upload.task), state));
        let (own, key, evaluations) = (own.clone(), Some(key), history.evaluations);
        let client = Client { format: Format, own, held, pending, masks, key, evaluations };
        Ok(Done { client, up: Up::Words(upload), withheld })
    }

    /// The hash of the message's common part and of the history.
    fn content(&self, message: &M::Down, history: &History) -> Result<Hash> {
        let common = hash_bytes(&self.method.common(message)?);
        Ok(hash_bytes(&(common, history.clone()).to_bytes()))
    }

    /// The question to a client.
    fn asked<D>(
        &self,
        server: &Server<M::Server, M::Fold>,
        peer: &Peer<M::Peer>,
        cohort: &[ClientId],
        message: D,
    ) -> Result<Asked<D>> {
        let newcomers = server.admitted.iter().skip(peer.known as usize);
        let newcomers = newcomers.map(|id| Ok((*id, server.masks.roster().member(*id)?.clone())));
        Ok(Asked {
            exchange: server.number(),
            cohort: cohort.to_vec(),
            newcomers: newcomers.collect::<Result<_>>()?,
            history: server.history.clone(),
            message,
        })
    }

    /// The clients' half of the later steps.
    fn answer_step(
        &self,
        client: &Client<M::Client>,
        down: &Down<M::Down, M::Ask>,
        key: Key,
    ) -> Result<Done<Self>> {
        let mut client = client.clone();
        let step = if matches!(down, Down::Survivors(_)) { 1 } else { 2 };
        if client.key.map(|upload| upload.child(step)) != Some(key) {
            return Err(Error::peer("a step of another exchange, or out of its order"));
        }
        let up = match down {
            Down::Survivors(survivors) => {
                self.trust.check_sum(&survivors.survivors, client.masks.roster())?;
                Up::Vouch(client.masks.vouch(survivors)?)
            }
            Down::Vouches(vouches) => {
                let shares = client.masks.shares(vouches)?;
                self.trust.report(shares.unopened.iter().map(|from| (*from, None)));
                Up::Shares(shares)
            }
            _ => return Err(Error::internal("an upload is not a later step")),
        };
        Ok(Done::new(client, up))
    }

    /// The bytes of vouch, shares and boxes beside the words of an upload.
    fn overhead(&self) -> usize {
        let holders = self.clients.clamp(3, 97);
        300 + holders * (16 * (holders + 1) + 64)
    }
}

impl<M: Sums> Method for Masked<M> {
    type Data = M::Data;
    type Server = Server<M::Server, M::Fold>;
    type Peer = Peer<M::Peer>;
    type Client = Client<M::Client>;
    type Summary = Summary<M::Summary>;
    type Down = Down<M::Down, M::Ask>;
    type Up = Up;
    type Broadcast = Broadcast<M::Broadcast, M::Ask>;
    type Fold = Fold<M::Fold>;

    fn declare(&self) -> Declaration {
        let mut declared = self.method.declare();
        for kind in &mut declared.exchanges {
            let repeats = kind.rank < Allowance::ROUNDS && kind.most == Some(1);
            kind.most = if repeats { Some(OPENINGS_MAX) } else { kind.most };
        }
        if self.judged_words() > 0 {
            let (name, rank) = ("evaluations", Allowance::EVALUATIONS);
            declared.exchanges.push(Allowance { name, rank, most: None });
            declared.measures.iter_mut().for_each(|measure| measure.per_client = false);
        }
        let (name, rank) = ("steps that remove masks", Allowance::BETWEEN);
        declared.exchanges.push(Allowance { name, rank, most: None });
        for sent in declared.disclosures.iter_mut().filter(|d| d.message != "summary") {
            if sent.message == "answer" {
                sent.bytes_max = 8 * self.judged_words();
            }
            sent.bytes_max += self.overhead();
            sent.exposure = Exposure::Sum(self.rules.min_cohort);
        }
        let keys = Disclosure {
            message: "summary",
            meaning: "public keys, made for this run".into(),
            bytes_max: 128,
            exposure: Exposure::Aggregate,
        };
        declared.disclosures.insert(0, keys);
        (declared.cohort_min, declared.steps) = (self.rules.min_cohort as usize, STEPS);
        declared
    }

    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Client, Self::Summary)> {
        let (own, summary) = self.method.enroll(data, key)?;
        let masks = self.client(key);
        let keys = masks.enrol();
        let (format, held, pending) = (Format, None, None);
        let client = Client { format, own, held, pending, masks, key: None, evaluations: 0 };
        Ok((client, Summary { keys, summary }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Self::Server> {
        let own = self.method.start(&mut roster.map(|(id, s)| (id, s.summary)), key)?;
        let masks = MaskServer::new(Roster::new(self.rules.clone(), Vec::new())?);
        Ok(Server {
            format: Format,
            own,
            masks,
            admitted: Vec::new(),
            exchange: 0,
            step: Step::Upload,
            asked: Vec::new(),
            vouches: None,
            fold: None,
            history: History { voids: Vec::new(), evaluations: 0, base: [0; 32] },
            evaluates: false,
            judged: None,
        })
    }

    fn admit(
        &self,
        server: &mut Self::Server,
        id: ClientId,
        Summary { keys, summary }: &Self::Summary,
    ) -> Result<Self::Peer> {
        server.masks.roster().check(id, keys)?;
        let own = self.method.admit(&mut server.own, id, summary)?;
        server.masks.admit(id, keys.clone());
        server.admitted.push(id);
        Ok(Peer { id, own, pending: None, known: 0, content: [0; 32] })
    }

    fn rows(&self, peer: &Self::Peer) -> Option<u64> {
        self.method.rows(&peer.own)
    }

    fn status(&self, server: &Self::Server) -> Status {
        let asides = STEPS * server.history.evaluations;
        let status = Status { asides, ..self.method.status(&server.own) };
        match server.step {
            _ if server.evaluates => {
                Status { next: Next::Evaluation(server.asked.clone()), ..status }
            }
            Step::Upload => status,
            _ => Status { next: Next::Continued(server.asked.clone()), ..status },
        }
    }

    fn open(
        &self,
        server: &Self::Server,
        cohort: &[ClientId],
    ) -> Result<(Self::Broadcast, Self::Fold)> {
        let masks = server.masks.clone();
        if server.step != Step::Upload {
            return Ok((
                Broadcast::None,
                Fold { exchange: 0, cohort: Vec::new(), masks, own: None, judged: None },
            ));
        }
        self.trust.check(masks.roster())?;
        if server.evaluates {
            return self.open_evaluation(server, cohort);
        }
        let (message, own) = self.method.open(&server.own, cohort)?;
        let (exchange, cohort) = (server.number(), cohort.to_vec());
        let broadcast = Broadcast::Upload { message, cohort: cohort.clone() };
        Ok((broadcast, Fold { exchange, cohort, masks, own: Some(own), judged: None }))
    }

    fn downlink(
        &self,
        server: &Self::Server,
        broadcast: &Self::Broadcast,
        peer: &Self::Peer,
        key: Key,
    ) -> Result<(Self::Peer, Self::Down)> {
        let (message, cohort) = match broadcast {
            Broadcast::Upload { message, cohort } => (message, cohort),
            Broadcast::Evaluate { ask, cohort, content } => {
                let staged = self.staged_for_evaluation(server, peer, *content);
                let asked = self.asked(server, peer, cohort, ask.clone())?;
                return Ok((staged, Down::Evaluate(asked)));
            }
            Broadcast::None => {
                let down = match &server.vouches {
                    Some(vouches) => Down::Vouches(vouches.clone()),
                    None => Down::Survivors(server.masks.survivors(peer.id)?),
                };
                return Ok((peer.clone(), down));
            }
        };
        let own = peer.settled(&server.history.voids);
        let (staged, message) = self.method.downlink(&server.own, message, own, key)?;
        let staged = Peer {
            id: peer.id,
            own: own.clone(),
            pending: Some((server.exchange, staged)),
            known: server.admitted.len() as u32,
            content: self.content(&message, &server.history)?,
        };
        Ok((staged, Down::Upload(self.asked(server, peer, cohort, message)?)))
    }

    fn place(&self, client: &Self::Client, down: &Self::Down) -> Result<Place> {
        let (kind, evaluations) = match down {
            Down::Upload(asked) => {
                let own = client.settled(&asked.history.voids);
                (self.method.place(own, &asked.message)?.kind, asked.history.evaluations)
            }
            Down::Evaluate(asked) if self.judged_words() > 0 => {
                (self.kinds, asked.history.evaluations)
            }
            Down::Evaluate(_) => {
                return Err(Error::peer("an evaluation, and the method has none"));
            }
            _ => (self.kinds + usize::from(self.judged_words() > 0), client.evaluations),
        };
        Ok(Place { kind, asides: STEPS.saturating_mul(evaluations) })
    }

    fn local_step(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<Done<Self>> {
        let asked = match down {
            Down::Upload(asked) => asked,
            Down::Evaluate(asked) => return self.evaluate(client, asked, data, key),
            _ => return self.answer_step(client, down, key),
        };
        let own = client.settled(&asked.history.voids);
        let done = self.method.local_step(own, &asked.message, data, key)?;
        self.upload(client, asked, done, key)
    }

    fn local_steps(
        &self,
        tasks: &[Task<'_, Self>],
        threads: &dyn Spread,
    ) -> Vec<Result<Done<Self>>> {
        let mut own = Vec::new();
        for task in tasks {
            if let Down::Upload(asked) = &task.down {
                let client = task.client.settled(&asked.history.voids);
                let down = asked.message.clone();
                own.push(Task { client, down, data: task.data, key: task.key });
            }
        }
        let mut done = self.method.local_steps(&own, threads).into_iter();
        let step = |task: &Task<'_, Self>| match &task.down {
            Down::Upload(asked) => {
                let left_out = || Error::internal("a client's local step was left out");
                self.upload(task.client, asked, done.next().ok_or_else(left_out)??, task.key)
            }
            Down::Evaluate(asked) => self.evaluate(task.client, asked, task.data, task.key),
            down => self.answer_step(task.client, down, task.key),
        };
        tasks.iter().map(step).collect()
    }

    fn absorb(&self, fold: &mut Self::Fold, from: Sender<'_, Self::Peer>, up: Up) -> Result<()> {
        let Sender { id, inclusion, peer } = from;
        let is_first = fold.own.is_some() || fold.judged.is_some();
        match up {
            Up::Words(words) if is_first => {
                if !fold.masks.is_open() {
                    let shape = match (&fold.own, fold.judged) {
                        (Some(own), _) => self.method.shape(own)?,
                        (None, words) => vec![(64, words.unwrap_or(0) as usize)],
                    };
                    let layout = shape.into_iter().map(|(bits, words)| Span::new(bits, words));
                    let layout = layout.collect::<Result<_>>()?;
                    let (exchange, cohort) = (fold.exchange, fold.cohort.clone());
                    let content = peer.content;
                    fold.masks.open(MaskTask { exchange, cohort, layout, content })?;
                }
                fold.masks.absorb(id, words)?;
                let Some(own) = &mut fold.own else { return Ok(()) };
                let (_, peer) = peer.pending.as_ref().ok_or_else(unasked)?;
                self.method.absorb_sender(own, Sender { id, inclusion, peer })
            }
            Up::Vouch(vouch) if !is_first => fold.masks.absorb_vouch(id, &vouch),
            Up::Shares(shares) if !is_first => fold.masks.absorb_shares(id, shares),
            _ => Err(Error::peer(format!("client {id} answers another step of the exchange"))),
        }
    }

    fn merge(&self, fold: &mut Self::Fold, other: Self::Fold) -> Result<()> {
        fold.masks.merge(other.masks)?;
        match (&mut fold.own, other.own) {
            (Some(own), Some(other)) => self.method.merge(own, other),
            _ => Ok(()),
        }
    }

    fn server_step(
        &self,
        mut server: Self::Server,
        fold: Self::Fold,
        key: Key,
    ) -> Result<Self::Server> {
        server.masks = fold.masks;
        let open = server.masks.is_open();
        match server.step {
            Step::Upload => {
                server.asked = if open { server.masks.close_uploads()? } else { Vec::new() };
                (server.fold, server.step) = (fold.own, Step::Vouch);
                server.judged = None;
            }
            Step::Vouch => {
                server.vouches = if open { server.masks.close_vouches()? } else { None };
                let enough = server.vouches.is_some();
                server.asked = if enough { server.masks.vouched() } else { Vec::new() };
                server.step = Step::Share;
            }
            Step::Share => {
                let unopened = server.masks.unopened().into_iter();
                self.trust.report(unopened.map(|(from, to)| (from, Some(to))));
                let task = server.masks.task();
                let outcome = if open { Some(server.masks.finish()?) } else { None };
                (server.asked, server.vouches) = (Vec::new(), None);
                server.step = Step::Upload;
                if server.evaluates {
                    self.close_evaluation(&mut server, outcome);
                    return Ok(server);
                }
                let mut sum = server.fold.take();
                if let (Some(Outcome::Sum { segments, .. }), Some(own)) = (outcome, &mut sum) {
                    // A client's false words spoil the exchange, not the run.
                    match self.method.absorb_words(own, &segments) {
                        Err(Error::Peer { .. }) => sum = None,
                        done => done?,
                    }
                } else {
                    sum = None;
                }
                let own = match (sum, task) {
                    (Some(own), Some(task)) => {
                        server.history.base = task;
                        own
                    }
                    _ => {
                        server.history.voids.push(server.exchange);
                        server.check_voids()?;
                        self.method.open(&server.own, &[])?.1
                    }
                };
                server.own = self.method.server_step(server.own, own, key)?;
                server.exchange += 1;
            }
        }
        Ok(server)
    }

    fn artifact(&self, server: &Self::Server) -> Result<Artifact> {
        self.method.artifact(&server.own)
    }

    fn client_artifact(
        &self,
        client: &Self::Client,
        data: &Self::Data,
    ) -> Result<Option<Artifact>> {
        self.method.client_artifact(client.settled(&[]), data)
    }
}

/// Binds rows as the method does.
pub struct BindMasked<B>(pub B);

impl<M: Sums, B: Bind<M>> Bind<Masked<M>> for BindMasked<B> {
    fn bind(&self, masked: &Masked<M>, data: &ClientData) -> Result<M::Data> {
        self.0.bind(&masked.method, data)
    }
}

fn unasked() -> Error {
    Error::internal("an upload of a client that was not asked")
}
