//! What a coordinator offers to a client: the job without paths, and the form its file must have.
//!
//! From an offer a client builds the same methods as the server, reads its own file, and shows what
//! would leave the machine. An offer comes from a peer: its text is bounded and read strictly.

mod groups;
mod schema;

pub use groups::Minimum;
pub use schema::{Schema, SourceForm, TargetForm};

use crate::failure::Result;
use crate::job::federation::is_client_name;
use crate::job::{DataSource, Federation, Job, MemoryStart, Simulation};
use crate::load::{Layout, rows_of_client};
use crate::plan::{Facts, Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use whimbrel_core::{ClientData, Error};
use whimbrel_data::{Input, Sha256};
use whimbrel_engine::OFFER_BYTES_MAX;

/// Changes when an older program would misread an offer.
const VERSION: u32 = 1;
/// Stands where the job named a file: a client has its own, or needs none.
const ELSEWHERE: &str = "elsewhere";

/// An invitation to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    version: u32,
    /// The job, resolved, as TOML.
    job: String,
    /// The form of a client's file.
    schema: Schema,
    /// How many clients there are.
    clients: u32,
    /// Their names by id, without those who are invited later; empty where clients bring names of
    /// their own.
    names: Vec<String>,
    /// Every client's first memory, where the job gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Vec<f64>>,
    /// SHA-256 of all the above.
    hash: String,
}

impl Offer {
    /// What a job offers to clients, checked as [`Plan::on_network`] checks it.
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
        // What a client would refuse is better refused here.
        offer.check()?;
        let bytes = offer.to_json().len();
        if bytes > OFFER_BYTES_MAX {
            let what = format!(
                "what clients are told of this job has {bytes} bytes, and {OFFER_BYTES_MAX} are \
                 possible"
            );
            return Err(Error::config(what).into());
        }
        Ok(offer)
    }

    /// The offer as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an offer is plain data")
    }

    /// Reads an offer that came over the wire.
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
            return refuse("is not the one that its hash names".into());
        }
        let named = self.names.is_empty() || self.names.len() == self.clients as usize;
        if !named || self.clients == 0 || !self.names.iter().all(|name| is_client_name(name)) {
            return refuse("names its clients wrongly".into());
        }
        self.schema.check()?;
        let job = self.job()?;
        if matches!(job.fit.layout(), Layout::Targets { .. }) && self.schema.classes().len() > 2 {
            return refuse("has more than two classes, which its model cannot take".into());
        }
        if (job.fit.layout() == Layout::Mixed) == self.schema.levels.is_empty() {
            return refuse("lists levels for another model, or lacks them".into());
        }
        if is_table(&job) == self.schema.rows.is_empty() {
            return refuse("lists a table's rows for another model, or lacks them".into());
        }
        Ok(())
    }

    /// Its identity: equal hashes are equal offers.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The form of a client's file.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The names of the clients by id; empty where they bring their own.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The job, without the paths that it had.
    pub fn job(&self) -> Result<Job> {
        let job = Job::parse(&self.job, "the offered job")
            .map_err(|e| Error::peer(format!("the offered job cannot be read: {e}")))?;
        Ok(job)
    }

    /// The stages, as a client runs its part of them.
    pub fn plan(&self) -> Result<Plan> {
        self.plan_with(&Minimum::default())
    }

    /// The same for a client that keeps to itself what rests on few rows.
    pub fn plan_with(&self, minimum: &Minimum) -> Result<Plan> {
        let facts = Facts {
            clients: self.clients as usize,
            names: self.names.clone(),
            columns: self.schema.columns.clone(),
            rows: self.schema.rows.clone(),
            classes: self.schema.classes().to_vec(),
            levels: self.schema.levels.clone(),
            attributes: self.schema.attributes.clone(),
            total_rows: None,
            unseen: Vec::new(),
        };
        Plan::on_client(&self.job()?, &facts, self.memory.as_deref(), minimum.group)
    }

    /// Reads a client's rows and checks them against the schema. The client need not be one of
    /// [`Offer::names`]: who was invited while the job ran takes part as clients do for whom the job
    /// sets nothing apart.
    pub fn read(&self, rows: impl Into<Input>, client_name: &str) -> Result<ClientData> {
        let rows = &rows.into();
        let job = self.job()?;
        match job.fit.layout() {
            Layout::Cells(entries) => {
                let cells = self.schema.read_cells(rows, client_name, &job, entries)?;
                Ok(ClientData::Cells(cells))
            }
            Layout::Mixed => {
                let rows = self.schema.read_mixed(rows, client_name, job.fit.types())?;
                rows_of_client(rows, &job.data.held_out, job.data.seed, client_name)
            }
            layout @ (Layout::Rows | Layout::Targets { .. } | Layout::Samples { .. }) => {
                let rows = self.schema.read(rows, client_name, layout)?;
                rows_of_client(rows, &job.data.held_out, job.data.seed, client_name)
            }
        }
    }

    fn digest(&self) -> String {
        let bare = Self { hash: String::new(), ..self.clone() };
        let mut hash = Sha256::new();
        hash.update(bare.to_json().as_bytes());
        hash.hex()
    }
}

/// The job as a client may see it: nothing that is a path, a simulation's, or the coordinator's.
fn without_paths(job: &Job, plan: &Plan, schema: &Schema, clients: u32) -> Job {
    let mut federation = Federation::of(clients);
    if let Some(set) = &job.federation {
        // What a client takes is bounded by it too.
        federation.message_max = set.message_max;
    }
    let mut job =
        Job { federation: Some(federation), simulation: Simulation::default(), ..job.clone() };
    // What clients keep out of a fit is drawn from it; splits are a simulation's.
    let cells = is_table(&job);
    if !cells && !job.data.held_out.is_something() {
        job.data.seed = job.seed;
    }
    let elsewhere = |ending: &str| PathBuf::from(format!("{ELSEWHERE}.{ending}"));
    match &mut job.data.source {
        DataSource::Csv(csv) => {
            csv.path = elsewhere("csv").into();
            match cells {
                // The schema has them.
                true => (csv.cells.row_labels, csv.cells.column_labels) = (None, None),
                false => csv.columns = Some(schema.columns.clone()),
            }
        }
        DataSource::Npy(npy) => npy.path = elsewhere("npy"),
        DataSource::Libsvm(_)
        | DataSource::Idx(_)
        | DataSource::Collection(_)
        | DataSource::Mixture(_)
        | DataSource::Toy(_)
        | DataSource::SyntheticMixture(_)
        | DataSource::SyntheticRepresentation(_) => {}
    }
    job.fit.hide_paths(plan.stages(), &elsewhere);
    if let MemoryStart::File(path) = &mut job.uplink.start {
        *path = elsewhere("json");
    }
    job
}

/// A job with the files of `[data]` where another one has them: a coordinator has no rows, and its
/// folder may be restored on another machine.
pub fn with_data_paths_of(job: &Job, other: &Job) -> Job {
    let (mut job, mut other) = (job.clone(), other.clone());
    let (own, others) = (job.data.paths_mut(), other.data.paths_mut());
    if own.len() == others.len() {
        own.into_iter().zip(others).for_each(|(own, other)| own.clone_from(other));
    }
    job
}

fn is_table(job: &Job) -> bool {
    matches!(job.fit.layout(), Layout::Cells(_))
}
