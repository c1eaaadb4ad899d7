//! A job's server for clients in shards, over bytes.
//!
//! A [shard](crate::shard) receives a [`Batch`]: the fates of earlier answers, and questions whose common
//! parts are written once. It returns an answer per question, or the sum of all. The state of a shard is
//! its clients' records; questions repeated after a restart have the same answers.

use crate::background::{Reporter, in_background};
use crate::errors::detached;
use crate::jobs::JobText;
use crate::runs::{Ended, Place, ended};
use pyo3::prelude::*;
use rayon::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use whimbrel::parts::core::method::Artifact;
use whimbrel::parts::core::{ClientId, Error, Tail, Wire, wire};
use whimbrel::parts::engine::keeper::Folder;
use whimbrel::parts::engine::{
    Chain, Purpose, Question, Remote, Sender, Stage, StepId, Summed, Summing, Transport, run_with,
};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::{Failure, Result};
use whimbrel::parts::families::family::RunData;
use whimbrel::parts::families::load::load;
use whimbrel::parts::families::plan::{Facts, Plan};
use whimbrel::parts::runs::{RunDir, resolved};
use whimbrel::run::Listener;

/// Time between checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// A message to a shard.
pub struct Batch {
    pub fates: Vec<Fate>,
    /// Common ends of messages.
    pub tails: Vec<Vec<u8>>,
    pub questions: Vec<Asked>,
    /// An empty fold, if uploads are summed.
    pub fold: Option<Vec<u8>>,
}

/// Whether a client's upload was accepted.
pub struct Fate {
    pub client: ClientId,
    pub at: StepId,
    pub accepted: bool,
}

/// A question; `tail` is the index of a common end of messages.
pub struct Asked {
    pub purpose: Purpose,
    pub at: StepId,
    pub client: ClientId,
    pub head: Vec<u8>,
    pub tail: Option<u32>,
    /// The sender of the upload, if uploads are summed.
    pub sender: Option<Sender>,
}

wire!(Fate { client, at, accepted });
wire!(Asked { purpose, at, client, head, tail, sender });
wire!(Batch { fates, tails, questions, fold });

/// Clients in shards of consecutive numbers, reached through Python.
struct Shards<'a> {
    reporter: &'a Reporter,
    names: Vec<String>,
    /// Whether shards sum uploads.
    sums: bool,
    pending: Vec<(Batch, Option<Tail>)>,
}

/// The shard of a client. Shards have consecutive numbers, and their sizes differ by at most one.
pub fn shard_of(client: usize, clients: usize, shards: usize) -> usize {
    client * shards / clients.max(1)
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.fates.is_empty() && self.questions.is_empty()
    }
}

impl Shards<'_> {
    /// The batch of a client's shard, and its last common end.
    fn batch_of(&mut self, client: ClientId) -> &mut (Batch, Option<Tail>) {
        let at = shard_of(client.0 as usize, self.names.len(), self.pending.len());
        &mut self.pending[at]
    }

    fn push(&mut self, question: Question, sender: Option<Sender>) {
        let Question { purpose, at, client, message } = question;
        let (batch, last) = self.batch_of(client);
        let (head, tail) = message.parts();
        if let Some(tail) = &tail
            && !last.as_ref().is_some_and(|last| last.is(tail))
        {
            batch.tails.push(tail.bytes().to_vec());
            *last = Some(tail.clone());
        }
        let tail = tail.map(|_| batch.tails.len() as u32 - 1);
        batch.questions.push(Asked { purpose, at, client, head, tail, sender });
    }

    /// Sends the pending batches and returns the shards' answers.
    fn exchange(&mut self) -> whimbrel::parts::core::Result<Vec<Vec<u8>>> {
        let fresh = nothing(self.pending.len());
        let batches = std::mem::replace(&mut self.pending, fresh);
        let asked = batches.par_iter().enumerate().filter(|(_, (batch, _))| !batch.is_empty());
        let bytes = asked.map(|(shard, (batch, _))| (shard, batch.to_bytes())).collect();
        self.reporter.ask(bytes)
    }
}

/// Bytes before each answer: its client and its length, four each.
pub const ANSWER_HEAD: usize = 8;

/// An answer among those of its shard.
struct AnswerSlice {
    of: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl AsRef<[u8]> for AnswerSlice {
    fn as_ref(&self) -> &[u8] {
        &self.of[self.range.clone()]
    }
}

/// Splits the answers of a shard.
fn split(
    of: Arc<Vec<u8>>,
    into: &mut Vec<(ClientId, AnswerSlice)>,
) -> whimbrel::parts::core::Result<()> {
    let mut at = 0;
    while let Some(head) = of.get(at..at + ANSWER_HEAD) {
        let [client, length] = [0, 4].map(|at| u32::take(&mut &head[at..at + 4]));
        let range = at + ANSWER_HEAD..at + ANSWER_HEAD + length? as usize;
        if range.end > of.len() {
            break;
        }
        at = range.end;
        into.push((ClientId(client?), AnswerSlice { of: of.clone(), range }));
    }
    match of.len() - at {
        0 => Ok(()),
        left => Err(Error::peer(format!("{left} excess bytes in a shard's answers"))),
    }
}

/// An empty batch per shard.
fn nothing(shards: usize) -> Vec<(Batch, Option<Tail>)> {
    let empty =
        || Batch { fates: Vec::new(), tails: Vec::new(), questions: Vec::new(), fold: None };
    (0..shards).map(|_| (empty(), None)).collect()
}

impl Transport for Shards<'_> {
    type Answer = AnswerSlice;

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn ask(
        &mut self,
        questions: Vec<Question>,
    ) -> whimbrel::parts::core::Result<Vec<(ClientId, AnswerSlice)>> {
        questions.into_iter().for_each(|question| self.push(question, None));
        let mut all = Vec::new();
        self.exchange()?.into_iter().try_for_each(|shard| split(Arc::new(shard), &mut all))?;
        Ok(all)
    }

    fn acknowledge(
        &mut self,
        client: ClientId,
        at: StepId,
        accepted: bool,
    ) -> whimbrel::parts::core::Result<()> {
        self.batch_of(client).0.fates.push(Fate { client, at, accepted });
        Ok(())
    }

    fn summing(&mut self) -> Option<&mut dyn Summing> {
        if self.sums { Some(self) } else { None }
    }
}

impl Summing for Shards<'_> {
    fn ask_sums(
        &mut self,
        empty: Vec<u8>,
        questions: Vec<(Question, Sender)>,
    ) -> whimbrel::parts::core::Result<Vec<Summed>> {
        for (question, sender) in questions {
            self.push(question, Some(sender));
        }
        for (batch, _) in self.pending.iter_mut().filter(|(batch, _)| !batch.questions.is_empty()) {
            batch.fold = Some(empty.clone());
        }
        let answers = self.exchange()?;
        answers.iter().filter(|one| !one.is_empty()).map(|one| Summed::from_bytes(one)).collect()
    }
}

/// Runs a job over clients in shards. `listener("ask", batches)` returns the answers, one per batch. With
/// `rows`, the job's data are local and the plan is that of a simulation; otherwise it is that of a
/// coordinator.
#[pyfunction]
pub fn serve(
    py: Python<'_>,
    job: JobText,
    place: Place,
    shards: usize,
    rows: bool,
    listener: &Bound<'_, PyAny>,
) -> PyResult<Ended> {
    in_background(py, listener, move |reporter| {
        let job = job.parse()?;
        refuse_simulations(&job)?;
        let (plan, data, names, hashes) = if rows {
            let loaded = load(&job)?;
            let plan = Plan::new(&job, &loaded)?;
            let names: Vec<String> = loaded.clients.iter().map(|(n, _)| n.clone()).collect();
            (plan, RunData::of(&loaded), names, loaded.files.clone())
        } else {
            let facts = Facts::on_network(&job)?;
            let plan = Plan::on_network(&job, &facts)?;
            let names = facts.names.clone();
            (plan, RunData::unseen(&facts, vec![None; names.len()]), names, Vec::new())
        };
        if !(1..=names.len()).contains(&shards) {
            let what = format!("{shards} shards of {} clients", names.len());
            return Err(Failure::config(what));
        }
        let dir = place.open(&job.name)?;
        dir.record_job(&resolved(&job, &hashes), false)?;
        plan.warnings().iter().for_each(|text| reporter.warning(text));
        plan.notes().iter().for_each(|text| reporter.note(text));
        let mut carrier = Remote(Shards { reporter, names, sums: rows, pending: nothing(shards) });
        let mut keeper = Folder::create(dir.path(), CHECKPOINT_EVERY)?;
        let mut watch = reporter.watch(&job.name, plan.rounds(), true);
        let chain = Served { plan: &plan, evaluates: rows || plan.evaluates() };
        let outcome =
            run_with(&chain, &mut carrier, &mut keeper, job.seed, reporter.stop(), &mut *watch)?;
        // The last fates.
        carrier.0.exchange()?;
        dir.finish(&job, &data, &outcome, &plan)?;
        ended(dir.path(), &outcome.ending, &job, reporter)
    })
}

/// A plan whose clients may refuse evaluations.
struct Served<'a> {
    plan: &'a Plan,
    evaluates: bool,
}

impl Chain for Served<'_> {
    fn len(&self) -> usize {
        self.plan.len()
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel::parts::core::Result<Stage> {
        let stage = self.plan.build(index, delivered)?;
        let evaluate_every = stage.evaluate_every.filter(|_| self.evaluates);
        Ok(Stage { evaluate_every, ..stage })
    }
}

/// Refuses jobs that only the simulator runs.
fn refuse_simulations(job: &Job) -> Result<()> {
    let simulated = &job.simulation;
    let loses = simulated.lost > 0.0 || !simulated.drops.is_empty() || !simulated.late.is_empty();
    let what = if job.seeds.is_some() {
        "`seeds` needs several runs"
    } else if !job.method.search.is_empty() {
        "`search` needs several runs"
    } else if job.data.unseen > 0.0 {
        "clients that are only evaluated exist only in simulations"
    } else if loses {
        "losses and late joins of [simulation] exist only in simulations"
    } else {
        return Ok(());
    };
    Err(Error::config(what).hint("run it with whimbrel.run").into())
}

/// Writes a client's personal artifact into a run's folder.
#[pyfunction]
pub fn keep_own(py: Python<'_>, folder: PathBuf, client: &str, artifact: &[u8]) -> PyResult<()> {
    detached(py, || RunDir::adopt(&folder).write_client(client, &Artifact::from_bytes(artifact)?))
}
