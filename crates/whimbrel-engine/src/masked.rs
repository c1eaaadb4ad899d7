//! Exchanges whose uploads are summed under masks: the server learns the sum over the survivors and
//! no single upload. The protocol is that of [`whimbrel_privacy::masks`], against a lying server.
//!
//! Enrolment messages and evaluations are not masked.

use crate::client::sha256;
use crate::machine::{Exchange, Machine};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use whimbrel_core::{ClientId, DynMethod, Error, Message, Result, Wire};
use whimbrel_privacy::masks::{
    Adversary, Hash, MaskClient, MaskServer, MaskTask, MaskedUpload, Outcome, Roster, Rules,
    Shares, Span, Survivors, Vouch, Vouches,
};

/// The rules of a stage's masks; `None` if its uploads are not masked.
fn rules(method: &dyn DynMethod, run: Hash) -> Option<Rules> {
    let min_cohort = method.declare().masks?;
    Some(Rules { run, min_cohort, server: Adversary::Lying })
}

/// Refuses a method with masks, for a runner that does not carry them.
pub fn check_unmasked(method: &dyn DynMethod) -> Result<()> {
    if method.declare().masks.is_none() {
        return Ok(());
    }
    Err(Error::config("masked sums are only simulated so far: clients elsewhere are not masked")
        .hint("run the job with `whimbrel run`, or take `masks` out of [privacy]"))
}

/// The terms of an exchange, which each side derives from the message.
fn task(
    method: &dyn DynMethod,
    (exchange, cohort): (u32, Vec<ClientId>),
    layout: Vec<Span>,
    down: &Message,
) -> Result<MaskTask> {
    Ok(MaskTask { exchange, cohort, layout, content: sha256(&method.common(down)?) })
}

/// Masks the words of an upload.
fn mask(
    client: &mut MaskClient,
    method: &dyn DynMethod,
    at: (u32, Vec<ClientId>),
    down: &Message,
    up: &[u8],
) -> Result<MaskedUpload> {
    let segments = method.segments(up)?;
    let layout = segments.iter().map(Span::of).collect::<Result<_>>()?;
    client.upload(&task(method, at, layout, down)?, &segments)
}

/// Opens an exchange; `false` if its cohort is too small for a sum.
fn open(
    server: &mut MaskServer,
    machine: &Machine,
    exchange: &Exchange,
    down: &Message,
) -> Result<bool> {
    let cohort: Vec<ClientId> = exchange.cohort.iter().map(|invited| invited.id).collect();
    if cohort.len() < server.roster().rules().min_cohort as usize {
        return Ok(false);
    }
    let method = &**machine.method();
    let shape = machine.shape(exchange)?;
    let shape = shape.ok_or_else(|| Error::internal("masks of uploads that are not words"))?;
    let layout = shape.into_iter().map(|(bits, words)| Span::new(bits, words));
    let layout = layout.collect::<Result<_>>()?;
    server.open(task(method, (exchange.number, cohort), layout, down)?)?;
    Ok(true)
}

/// Questions to clients, or their answers.
type Letters = Vec<(ClientId, Vec<u8>)>;

/// The carrier of the steps after the uploads.
trait Survivor {
    /// Survivors to vouches.
    fn vouch(&mut self, questions: Letters) -> Result<Letters>;
    /// Vouches to shares.
    fn share(&mut self, questions: Letters) -> Result<Letters>;
}

/// Runs the steps after the uploads.
fn unmask(server: &mut MaskServer, clients: &mut dyn Survivor) -> Result<Outcome> {
    let survivors = server.close_uploads()?;
    if survivors.is_empty() {
        return server.finish();
    }
    let told = survivors.into_iter().map(|id| Ok((id, server.survivors(id)?.to_bytes())));
    for (id, vouch) in clients.vouch(told.collect::<Result<_>>()?)? {
        server.absorb_vouch(id, &Vouch::from_bytes(&vouch)?)?;
    }
    if let Some(vouches) = server.close_vouches()? {
        let bytes = vouches.to_bytes();
        let questions = vouches.signatures.iter().map(|(id, _)| (*id, bytes.clone())).collect();
        for (id, shares) in clients.share(questions)? {
            server.absorb_shares(id, Shares::from_bytes(&shares)?)?;
        }
    }
    server.finish()
}

/// Both halves of the protocol in one process.
pub(crate) struct SimulatedMasks {
    server: Mutex<MaskServer>,
    clients: BTreeMap<ClientId, Mutex<MaskClient>>,
    /// The bytes of one client's keys, and of the roster.
    pub(crate) agreed_bytes: (u64, u64),
}

/// Bytes that a client sent and received.
pub(crate) type Carried = (ClientId, u64, u64);

impl SimulatedMasks {
    /// Agrees on keys among these clients; `None` if the method is not masked. Nobody looks at a
    /// simulated client from outside, so its secret is a hash of its id.
    pub(crate) fn agree(method: &dyn DynMethod, ids: &[ClientId]) -> Result<Option<Self>> {
        let run = sha256(b"a simulated run");
        let Some(rules) = rules(method, run) else { return Ok(None) };
        let secret = |id: &ClientId| sha256(format!("simulated client {id}").as_bytes());
        let mut clients: BTreeMap<ClientId, MaskClient> =
            ids.par_iter().map(|id| (*id, MaskClient::new(secret(id), run))).collect();
        let keys: Vec<_> = clients.par_iter().map(|(id, client)| (*id, client.enrol())).collect();
        let bytes_up = keys.first().map_or(0, |(_, keys)| keys.to_bytes().len() as u64);
        let roster = Roster::new(rules, keys)?;
        let agreed_bytes = (bytes_up, roster.to_bytes().len() as u64);
        clients.values_mut().try_for_each(|client| client.agree(roster.clone()))?;
        let clients = clients.into_iter().map(|(id, client)| (id, Mutex::new(client))).collect();
        Ok(Some(Self { server: Mutex::new(MaskServer::new(roster)), clients, agreed_bytes }))
    }

    fn client(&self, id: ClientId) -> Result<MutexGuard<'_, MaskClient>> {
        let client = self.clients.get(&id);
        let client = client.ok_or_else(|| Error::internal(format!("client {id} has no keys")))?;
        Ok(lock(client))
    }

    pub(crate) fn open(&self, machine: &Machine, at: &Exchange, down: &Message) -> Result<bool> {
        open(&mut lock(&self.server), machine, at, down)
    }

    /// A client's masked upload, as bytes.
    pub(crate) fn upload(
        &self,
        method: &dyn DynMethod,
        (exchange, id): (&Exchange, ClientId),
        down: &Message,
        up: &[u8],
    ) -> Result<Vec<u8>> {
        let cohort = exchange.cohort.iter().map(|invited| invited.id).collect();
        let at = (exchange.number, cohort);
        Ok(mask(&mut *self.client(id)?, method, at, down, up)?.to_bytes())
    }

    pub(crate) fn absorb(&self, from: ClientId, upload: &[u8]) -> Result<()> {
        lock(&self.server).absorb(from, MaskedUpload::from_bytes(upload)?)
    }

    /// The sum of the uploads, and the bytes of the steps after them.
    pub(crate) fn unmask(&self) -> Result<(Outcome, Vec<Carried>)> {
        let mut clients = Asked { masks: self, carried: Vec::new() };
        let outcome = unmask(&mut lock(&self.server), &mut clients)?;
        Ok((outcome, clients.carried))
    }
}

struct Asked<'a> {
    masks: &'a SimulatedMasks,
    carried: Vec<Carried>,
}

impl Asked<'_> {
    fn ask(
        &mut self,
        questions: Letters,
        answer: impl Fn(&mut MaskClient, &[u8]) -> Result<Vec<u8>> + Sync,
    ) -> Result<Letters> {
        let one = |(id, question): &(ClientId, Vec<u8>)| {
            Ok((*id, answer(&mut *self.masks.client(*id)?, question)?))
        };
        let answers: Letters = questions.par_iter().map(one).collect::<Result<_>>()?;
        let bytes = questions.iter().zip(&answers);
        self.carried.extend(bytes.map(|((id, q), (_, a))| (*id, a.len() as u64, q.len() as u64)));
        Ok(answers)
    }
}

impl Survivor for Asked<'_> {
    fn vouch(&mut self, questions: Letters) -> Result<Letters> {
        self.ask(questions, |client, told| {
            Ok(client.vouch(&Survivors::from_bytes(told)?)?.to_bytes())
        })
    }

    fn share(&mut self, questions: Letters) -> Result<Letters> {
        self.ask(questions, |client, all| Ok(client.shares(&Vouches::from_bytes(all)?)?.to_bytes()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
