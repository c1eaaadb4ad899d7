//! A shard of clients: their rows, states and answers.

use crate::errors::detached;
use crate::jobs::JobText;
use crate::machines::{ANSWER_HEAD, Asked, Batch, shard_of};
use crate::roster::trust;
use crate::rows::Source;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use whimbrel::parts::core::method::Artifact;
use whimbrel::parts::core::{
    ClientData, ClientId, DynMethod, Error, Message, StateKind, Tail, Wire,
};
use whimbrel::parts::engine::client::sha256;
use whimbrel::parts::engine::{
    Chain, ClientMachine, Consent, Participant, Question, Reply, Sender, Stage, Summed, sum_upload,
};
use whimbrel::parts::families::Offer;
use whimbrel::parts::families::failure::{Failure, Result};
use whimbrel::parts::families::load::load;
use whimbrel::parts::families::plan::{Facts, Plan};

/// Concatenated answers, each preceded by its client and its length, in a Python array.
fn joined<'py>(py: Python<'py>, answers: &[Answered<'_>]) -> PyResult<Bound<'py, PyByteArray>> {
    let length = answers.iter().map(|answer| ANSWER_HEAD + answer.length).sum();
    PyByteArray::new_with(py, length, |mut out| {
        for Answered { of, length, bytes, .. } in answers {
            let (to, rest) = out.split_at_mut(ANSWER_HEAD + length);
            to[..4].copy_from_slice(&of.id.0.to_le_bytes());
            to[4..ANSWER_HEAD].copy_from_slice(&(*length as u32).to_le_bytes());
            match bytes {
                Some(bytes) => to[ANSWER_HEAD..].copy_from_slice(bytes),
                None => {
                    let machine = of.machine();
                    let staged = machine.staged().map(|record| &record.upload[..]);
                    to[ANSWER_HEAD..].copy_from_slice(staged.unwrap_or_default());
                }
            }
            out = rest;
        }
        Ok(())
    })
}

/// A client's answer: its bytes, or `None` for the staged upload.
struct Answered<'a> {
    of: &'a ShardClient,
    sender: Option<Sender>,
    length: usize,
    bytes: Option<Vec<u8>>,
}

/// Clients of a job with their rows and states.
#[pyclass(frozen, module = "whimbrel._whimbrel")]
pub struct Shard {
    plan: Arc<SharedPlan>,
    clients: Vec<ShardClient>,
    /// The place of each client's number.
    places: HashMap<u32, usize>,
}

struct ShardClient {
    name: String,
    id: ClientId,
    machine: Mutex<ClientMachine>,
}

impl ShardClient {
    fn machine(&self) -> std::sync::MutexGuard<'_, ClientMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Shard {
    /// Shard `index` of `of` of a job's clients; `saved` is the result of [`Shard::save`].
    #[new]
    #[pyo3(signature = (job, index, of, saved=None))]
    fn new(
        py: Python<'_>,
        job: JobText,
        index: usize,
        of: usize,
        saved: Option<&[u8]>,
    ) -> PyResult<Self> {
        detached(py, || {
            let job = job.parse()?;
            let loaded = load(&job)?;
            let plan = Plan::new(&job, &loaded)?;
            let clients = loaded.clients.len();
            let own = loaded.clients.into_iter().enumerate();
            let own = own.filter(|(id, _)| shard_of(*id, clients, of) == index);
            let own = own.map(|(id, (name, data))| (ClientId(id as u32), name, data)).collect();
            Self::of(plan, job.seed, true, own, saved)
        })
    }

    /// Answers a batch.
    fn answer<'py>(&self, py: Python<'py>, batch: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
        let (answers, summed) = detached(py, || {
            let batch = Batch::from_bytes(batch)?;
            for fate in &batch.fates {
                self.find(fate.client)?.machine().acknowledge(fate.at, fate.accepted);
            }
            let tails: Vec<(Tail, [u8; 32])> = batch
                .tails
                .into_par_iter()
                .map(|bytes| (sha256(&bytes), bytes))
                .map(|(hash, bytes)| (Tail::new(bytes), hash))
                .collect();
            let answer = |asked: Asked| -> Result<Answered<'_>> {
                let Asked { purpose, at, client, head, tail, sender } = asked;
                let missing = || Error::peer("a question without its message");
                let tail = tail.map(|tail| tails.get(tail as usize).ok_or_else(missing));
                let (tail, hash) = match tail.transpose()? {
                    None => (None, sha256(&head)),
                    Some((tail, hash)) if head.is_empty() => (Some(tail.clone()), *hash),
                    Some((tail, hash)) => {
                        (Some(tail.clone()), sha256(&[&head[..], &hash[..]].concat()))
                    }
                };
                let message = Message::from_parts(head, tail);
                let question = Question { purpose, at, client, message };
                let of = self.find(client)?;
                let (length, bytes) = match of.machine().reply(&question, &hash)? {
                    Reply::Staged(record) => (record.upload.len(), None),
                    Reply::Told(told) => (told.len(), Some(told)),
                };
                Ok(Answered { of, sender, length, bytes })
            };
            let answers: Vec<_> =
                batch.questions.into_par_iter().map(answer).collect::<Result<_>>()?;
            let summed = batch.fold.map(|empty| self.sum(&empty, &answers)).transpose()?;
            Ok((answers, summed))
        })?;
        match summed {
            Some(summed) => Ok(PyByteArray::new(py, &summed.to_bytes())),
            None => joined(py, &answers),
        }
    }

    /// The state of all clients.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let saved = detached(py, || {
            let each = self.clients.par_iter().map(|client| client.machine().save());
            Ok(each.collect::<Vec<_>>().to_bytes())
        })?;
        Ok(PyBytes::new(py, &saved))
    }

    /// The clients' personal artifacts by name.
    fn own<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let found = detached(py, || {
            let own = |client: &ShardClient| -> Result<Option<(String, Vec<u8>)>> {
                let artifact = client.machine().artifact()?;
                Ok(artifact.map(|own| (client.name.clone(), own.to_bytes())))
            };
            self.clients
                .par_iter()
                .filter_map(|client| own(client).transpose())
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(found.into_iter().map(|(name, own)| (name, PyBytes::new(py, &own))).collect())
    }

    /// The clients' names.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.clients.iter().map(|client| client.name.clone()).collect()
    }
}

impl Shard {
    /// The staged uploads in one fold, equal for any number of threads.
    fn sum(&self, empty: &[u8], answers: &[Answered<'_>]) -> Result<Summed> {
        let method = self.plan.method()?;
        let share = answers.len().div_ceil(rayon::current_num_threads()).max(1);
        let of_share = |share: &[Answered<'_>]| {
            let mut fold = method.load(StateKind::Fold, empty)?;
            for Answered { of, sender, .. } in share {
                let machine = of.machine();
                let staged = machine.staged().zip(sender.as_ref());
                let (record, sender) =
                    staged.ok_or_else(|| Error::peer("an upload without its sender"))?;
                sum_upload(&*method, &mut fold, (of.id, sender), &record.upload)?;
            }
            Ok(fold)
        };
        let folds: Vec<whimbrel::parts::core::Result<_>> =
            answers.par_chunks(share).map(of_share).collect();
        let mut total = method.load(StateKind::Fold, empty)?;
        for fold in folds {
            method.merge(&mut total, fold?)?;
        }
        let uploads = answers.iter().map(|one| (one.of.id, one.length as u64)).collect();
        Ok(Summed { fold: total.save(), uploads })
    }

    fn of(
        plan: Plan,
        seed: u64,
        evaluates: bool,
        clients: Vec<(ClientId, String, ClientData)>,
        saved: Option<&[u8]>,
    ) -> Result<Self> {
        let (stage, expected) = (Mutex::new(None), Mutex::new(None));
        let plan = Arc::new(SharedPlan { plan, stage, expected });
        let saved = saved.map(Vec::<Vec<u8>>::from_bytes).transpose()?;
        if saved.as_ref().is_some_and(|saved| saved.len() != clients.len()) {
            return Err(Error::data("the saved state belongs to another shard").into());
        }
        let mut built = Vec::with_capacity(clients.len());
        for (at, (id, name, data)) in clients.into_iter().enumerate() {
            let consent = Consent { evaluates, ..Consent::default() };
            let chain = Box::new(Shared(plan.clone()));
            let participant = Participant { chain, data, seed, consent };
            let machine = match &saved {
                Some(saved) => ClientMachine::load(participant, &saved[at])?,
                None => ClientMachine::new(participant),
            };
            built.push(ShardClient { name, id, machine: Mutex::new(machine) });
        }
        let places = built.iter().enumerate().map(|(at, client)| (client.id.0, at)).collect();
        Ok(Self { plan, clients: built, places })
    }

    fn find(&self, client: ClientId) -> Result<&ShardClient> {
        let place = self.places.get(&client.0).map(|at| &self.clients[*at]);
        place.ok_or_else(|| Error::peer(format!("client {client} is not in this shard")).into())
    }
}

/// A built stage for clients, and the artifacts it was built from.
struct Built {
    index: usize,
    delivered: Vec<Artifact>,
    stage: Stage,
}

/// A plan whose stages are built once per shard.
struct SharedPlan {
    plan: Plan,
    stage: Mutex<Option<Built>>,
    /// The same as far as the job alone determines it.
    expected: Mutex<Option<Built>>,
}

impl SharedPlan {
    /// The method of the current stage.
    fn method(&self) -> whimbrel::parts::core::Result<Arc<dyn DynMethod>> {
        let last = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let built = last.as_ref().ok_or_else(|| Error::peer("uploads before an enrolment"))?;
        built.stage.method.server().cloned()
    }
}

struct Shared(Arc<SharedPlan>);

impl Chain for Shared {
    fn len(&self) -> usize {
        self.0.plan.len()
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel::parts::core::Result<Stage> {
        let SharedPlan { plan, stage, .. } = &*self.0;
        built_once(stage, index, delivered, || plan.build(index, delivered))
    }

    fn expected(&self, index: usize) -> whimbrel::parts::core::Result<Stage> {
        let SharedPlan { plan, expected, .. } = &*self.0;
        built_once(expected, index, &[], || plan.expected(index))
    }
}

/// The stage of the cache, if it is this one; otherwise builds and keeps it.
fn built_once(
    cache: &Mutex<Option<Built>>,
    index: usize,
    delivered: &[Artifact],
    build: impl FnOnce() -> whimbrel::parts::core::Result<Stage>,
) -> whimbrel::parts::core::Result<Stage> {
    let mut last = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if !last.as_ref().is_some_and(|at| at.index == index && at.delivered == delivered) {
        *last = Some(Built { index, delivered: delivered.to_vec(), stage: build()? });
    }
    let built = last.as_ref().ok_or_else(|| Error::internal("a stage was not built"))?;
    Ok(built.stage.clone())
}

/// The offer of a job to clients with their own rows: text for [`Offered`], and the clients' names.
#[pyfunction]
pub fn offer(py: Python<'_>, job: JobText) -> PyResult<(String, Vec<String>)> {
    detached(py, || {
        let job = job.parse()?;
        let offer = Offer::of(&job, &Facts::on_network(&job)?)?;
        Ok((offer.to_json(), offer.names().to_vec()))
    })
}

/// An offer, read by a client.
#[pyclass(frozen, module = "whimbrel._whimbrel")]
pub struct Offered {
    offer: Offer,
}

#[pymethods]
impl Offered {
    /// Reads an offer.
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        detached(py, || Ok(Self { offer: Offer::from_json(text.as_bytes())? }))
    }

    /// The names of the clients, by number.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.offer.names().to_vec()
    }

    /// The columns of a client's rows.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.offer.schema().columns.clone()
    }

    /// The target column, if any.
    #[getter]
    fn target(&self) -> Option<String> {
        self.offer.schema().target.as_ref().map(|target| target.column.clone())
    }

    /// The client of this number with its own rows; under masks possibly with the folder of its identity
    /// and the accepted roster.
    #[pyo3(signature = (client, data, saved=None, roster=None))]
    fn join(
        &self,
        py: Python<'_>,
        client: u32,
        data: Source,
        saved: Option<&[u8]>,
        roster: Option<(PathBuf, String)>,
    ) -> PyResult<Shard> {
        detached(py, || {
            let unknown = || Failure::config(format!("the job has no client number {client}"));
            let name = self.offer.names().get(client as usize).ok_or_else(unknown)?.clone();
            let job = self.offer.job()?;
            let trust = roster.map(|(folder, accepted)| trust(&job, &folder, &accepted));
            let plan = self.offer.plan_of_client(trust.transpose()?.unwrap_or_default(), None)?;
            let (seed, evaluates) = (job.seed, plan.evaluates());
            let rows = self.offer.read(data.input(), &name)?;
            Shard::of(plan, seed, evaluates, vec![(ClientId(client), name, rows)], saved)
        })
    }
}
