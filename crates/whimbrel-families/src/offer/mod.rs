//! The coordinator's offer to a client: the job without paths, and the schema of the client's file.
//!
//! From an offer a client builds the server's methods, reads its own file, and shows which messages
//! would leave the machine. An offer comes from a peer: its text is bounded and parsed strictly.

mod groups;
mod schema;

pub use groups::Minimum;
pub use schema::{Schema, SourceForm, TargetForm};

use crate::failure::{Failure, Result};
use crate::job::{DataSource, Federation, Job, MemoryStart, Simulation};
use crate::load::{Layout, rows_of_client};
use crate::plan::{Facts, Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use whimbrel_core::text::is_name;
use whimbrel_core::{ClientData, Error};
use whimbrel_data::{Input, Sha256};
use whimbrel_engine::OFFER_BYTES_MAX;
use whimbrel_methods::guard::Withheld;
use whimbrel_methods::masked::Trust;

/// Changes when older programs would misread an offer.
const VERSION: u32 = 1;
/// Replaces a path of the coordinator: a client has its own file, or needs none.
pub(crate) fn elsewhere(ending: &str) -> PathBuf {
    PathBuf::from(format!("elsewhere.{ending}"))
}

/// An invitation to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    version: u32,
    /// The resolved job as TOML.
    job: String,
    schema: Schema,
    clients: u32,
    /// Names by id, without clients invited later; empty if clients choose their names.
    names: Vec<String>,
    /// The first memory of every client, if the job gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Vec<f64>>,
    /// SHA-256 of the other fields.
    hash: String,
}

impl Offer {
    /// The offer of a job, checked like [`Plan::on_network`].
    pub fn of(job: &Job, facts: &Facts) -> Result<Self> {
        let plan = Plan::on_network(job, facts)?;
        let schema = Schema::of(job, facts)?;
        let clients = facts.clients as u32;
        let mut offer = Self {
            version: VERSION,
            job: without_paths(job, &plan, &schema, clients).to_toml(),
            schema,
            clients,
            names: facts.names.clone(),
            memory: plan.memory().map(<[f64]>::to_vec),
            hash: String::new(),
        };
        offer.hash = offer.digest();
        // Refuse here what clients would refuse.
        offer.check()?;
        let bytes = offer.to_json().len();
        if bytes > OFFER_BYTES_MAX {
            return Err(Failure::config(format!(
                "the offer of this job has {bytes} bytes; at most {OFFER_BYTES_MAX} are possible"
            )));
        }
        Ok(offer)
    }

    /// The offer as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an offer is plain data")
    }

    /// Parses an offer from the wire.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        if text.len() > OFFER_BYTES_MAX {
            let what = format!("an offer of {} bytes is too long", text.len());
            return Err(Error::peer(what).into());
        }
        let offer: Self = serde_json::from_slice(text)
            .map_err(|e| Error::peer(format!("the offer cannot be read: {e}")))?;
        offer.check()?;
        Ok(offer)
    }

    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::peer(format!("the offer {what}")).into());
        if self.version != VERSION {
            return refuse(format!("has version {}, this program reads {VERSION}", self.version));
        }
        if self.hash != self.digest() {
            return refuse("does not match its hash".into());
        }
        let named = self.names.is_empty() || self.names.len() == self.clients as usize;
        if !named || self.clients == 0 || !self.names.iter().all(|name| is_name(name)) {
            return refuse("has invalid client names".into());
        }
        self.schema.check()?;
        let job = self.job()?;
        if matches!(job.fit.layout(), Layout::Targets { .. }) && self.schema.classes().len() > 2 {
            return refuse("has more than two classes: its model takes two".into());
        }
        let is_mixed = matches!(job.fit.layout(), Layout::Mixed { .. });
        if is_mixed == self.schema.levels.is_empty() {
            return refuse("has levels for another model, or lacks them".into());
        }
        if is_table(&job) == self.schema.rows.is_empty() {
            return refuse("has row labels for another model, or lacks them".into());
        }
        Ok(())
    }

    /// SHA-256 of the offer.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Names of the clients by id; empty if clients choose their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The job without the coordinator's paths.
    pub fn job(&self) -> Result<Job> {
        let job = Job::parse(&self.job, "the offered job")
            .map_err(|e| Error::peer(format!("the offered job cannot be read: {e}")))?;
        Ok(job)
    }

    /// The stages, as a client runs its part of them.
    pub fn plan(&self) -> Result<Plan> {
        self.plan_of_client(Trust::default(), None)
    }

    /// [`Offer::plan`] of a client with its identity and view of rosters under masks. The number of its
    /// observations in a table with gaps bounds its messages.
    pub fn plan_of_client(&self, trust: Trust, observations: Option<usize>) -> Result<Plan> {
        let facts = Facts {
            clients: self.clients as usize,
            names: self.names.clone(),
            columns: self.schema.columns.clone(),
            rows: self.schema.rows.clone(),
            classes: self.schema.classes().to_vec(),
            levels: self.schema.levels.clone(),
            attributes: self.schema.attributes.clone(),
            total_rows: None,
            observations,
            unseen: Vec::new(),
        };
        Plan::on_client(&self.job()?, &facts, self.memory.as_deref(), trust)
    }

    /// Reads a client's rows and checks them against the schema, and withholds cells and rows as the job
    /// asks. Clients invited later need not be in [`Offer::names`].
    pub fn read(&self, rows: impl Into<Input>, client_name: &str) -> Result<ClientData> {
        Ok(self.read_withheld(rows, client_name)?.0)
    }

    /// [`Offer::read`], with the counts of withheld cells and rows.
    pub fn read_withheld(
        &self,
        rows: impl Into<Input>,
        client_name: &str,
    ) -> Result<(ClientData, Withheld)> {
        let job = self.job()?;
        let mut data = self.read_whole(&rows.into(), client_name, &job)?;
        let schema = (&self.schema.columns[..], &self.schema.levels[..]);
        let withheld = job.fit.withhold(&job, &mut data, schema)?;
        Ok((data, withheld))
    }

    fn read_whole(&self, rows: &Input, client_name: &str, job: &Job) -> Result<ClientData> {
        let read = match job.fit.layout() {
            Layout::Cells { entries, described } => self
                .schema
                .read_cells(rows, client_name, job, entries, described)
                .map(ClientData::Cells),
            layout => self.schema.read(rows, client_name, job, &layout).and_then(|rows| {
                rows_of_client(rows, &job.data.held_out, job.data.seed, client_name)
            }),
        };
        let of_job = |hint| format!("{hint}; only the coordinator can change the job");
        read.map_err(|failure| failure.map_hint(of_job))
    }

    fn digest(&self) -> String {
        let bare = Self { hash: String::new(), ..self.clone() };
        let mut hash = Sha256::new();
        hash.update(bare.to_json().as_bytes());
        hash.hex()
    }
}

/// The job for clients: without paths and without the settings of simulations and the coordinator.
fn without_paths(job: &Job, plan: &Plan, schema: &Schema, clients: u32) -> Job {
    let mut federation = Federation::of(clients);
    if let Some(set) = &job.federation {
        // The limit also applies to messages that a client receives.
        federation.message_max = set.message_max;
        // Users consent to masked rounds that may close without some clients.
        if job.privacy.is_masked() {
            (federation.quorum, federation.deadline_s) = (set.quorum, set.deadline_s);
        }
    }
    let mut job =
        Job { federation: Some(federation), simulation: Simulation::default(), ..job.clone() };
    // The data seed draws held-out rows; without them, only simulations use it.
    let cells = is_table(&job);
    if !cells && !job.data.held_out.is_something() {
        job.data.seed = job.seed;
    }
    match &mut job.data.source {
        DataSource::Csv(csv) => {
            csv.path = Input::File(elsewhere("csv"));
            if cells {
                // The schema has the labels.
                (csv.cells.row_labels, csv.cells.column_labels) = (None, None);
            } else {
                let mut columns = schema.columns.clone();
                columns.retain(|name| Some(name) != csv.target.as_ref());
                csv.columns = Some(columns);
            }
        }
        DataSource::Npy(npy) => npy.path = elsewhere("npy"),
        _ => {}
    }
    if let Some(offered) = plan.offered() {
        job.fit = offered.boxed();
    }
    if let MemoryStart::File(path) = &mut job.uplink.start {
        *path = elsewhere("json");
    }
    job
}

/// A job with the data paths of another one, for comparison: a coordinator's folder may be restored
/// on another machine.
pub fn with_data_paths_of(job: &Job, other: &Job) -> Job {
    let (mut job, mut other) = (job.clone(), other.clone());
    let (own, others) = (job.data.paths_mut(), other.data.paths_mut());
    if own.len() == others.len() {
        own.into_iter().zip(others).for_each(|(own, other)| own.clone_from(other));
    }
    job
}

fn is_table(job: &Job) -> bool {
    matches!(job.fit.layout(), Layout::Cells { .. })
}
