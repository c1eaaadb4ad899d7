//! The job: what the user asks for, as plain values, one file for each table of the job file.
//!
//! A file of this folder holds the values of its table, the definitions of its keys, and how one
//! is read from and written to the other.

pub mod channel;
pub mod codec;
pub mod data;
pub mod federation;
pub mod gmm;
pub mod low_rank;
pub mod method;
pub mod mixture;
pub mod model;
pub mod participation;
pub mod simulation;
pub mod toy;

pub(crate) mod preset;

mod together;

use std::path::{Path, PathBuf};
use toml::de::DeTable;
use whimbrel_job::error::Errors;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::reader::{Read, Reader, Source, Value, syntax_errors};
use whimbrel_job::writer::{Writer, text};

use channel::{downlink, uplink};
use preset::Asked;

pub use channel::{
    DownRule, DownRuleKind, Downlink, Feedback, Memories, MemoryStart, OwnCodec, Reset, UpRule,
    UpRuleKind, Uplink,
};
pub use codec::{Blocks, Codec, CodecKind, Kept, Norm};
pub use data::{
    Cells, ClusterBy, Csv, Data, Idx, Labels, Libsvm, Npy, Partition, Prepare, Source as DataSource,
};
pub use federation::{Clients, Federation, Quorum};
pub use gmm::{Covariance, Gmm, Init, InverseWishart, Penalty};
pub use low_rank::{Effects, Family, LowRank, Variance};
pub use method::{
    Average, Batch, Compat, Copies, Form, Length, Method, MethodKind, Patience, Step, Stop, Weights,
};
pub use mixture::{Heterogeneity, Mixture};
pub use model::{Model, Regression};
pub use participation::Participation;
pub use simulation::{Dropout, LateJoin, Simulation};
pub use toy::Toy;
pub use whimbrel_job::matrix::Matrix;

/// A job: what to fit, on what, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name, of which run directories are made.
    pub name: String,
    /// The seed of everything drawn.
    pub seed: u64,
    /// How many seeds are run, from `seed` on, on the same data; `None`: one, reported alone.
    pub seeds: Option<u32>,
    /// Where the rows come from and who holds them.
    pub data: Data,
    /// What is fitted.
    pub model: Model,
    /// How it is fitted.
    pub method: Method,
    /// How vectors travel to the server.
    pub uplink: Uplink,
    /// How the state travels to clients.
    pub downlink: Downlink,
    /// What goes wrong on purpose.
    pub simulation: Simulation,
    /// Who takes part on a network, and when a round closes there; `None`: the job is simulated.
    pub federation: Option<Federation>,
}

/// The longest name of a job: it becomes part of a directory's name.
const NAME_CHARS_MAX: usize = 100;

pub(crate) static NAME: Key = Key::optional(
    "name",
    "up to 100 letters, digits, `-`, `_` and `.`, the first a letter or digit",
    "the file's name without its ending",
    "the job's name, of which run directories are made",
);
pub(crate) static SEED: Key = Key::default(
    "seed",
    "an integer from 0 to 18446744073709551615",
    "1",
    "the seed of everything drawn: the same job, data and seed give the same bits",
);
static SEEDS: Key = Key::optional(
    "seeds",
    "an integer from 1 to 4294967295",
    "one run",
    "how many seeds are run, from `seed` on, on the same data and split",
);
static DATA: Key = Key::required("data", "a table", "where the rows come from");
static MODEL: Key = Key::required("model", "a table", "what is fitted");
static METHOD: Key = Key::required("method", "a table", "how the model is fitted");
static UPLINK: Key = Key::default("uplink", "a table", "{}", "how vectors travel to the server");
static DOWNLINK: Key =
    Key::default("downlink", "a table", "{}", "how the state travels to clients");
static SIMULATION: Key = Key::default("simulation", "a table", "{}", "what goes wrong on purpose");
static FEDERATION: Key = Key::optional(
    "federation",
    "a table",
    "the job can be simulated and not served",
    "who takes part on a network, and when a round closes there",
);

/// The top of the file.
static ROOT: Section = Section {
    name: "",
    doc: "Above the first table.",
    keys: &[
        &NAME,
        &SEED,
        &SEEDS,
        &DATA,
        &MODEL,
        &METHOD,
        &UPLINK,
        &DOWNLINK,
        &SIMULATION,
        &FEDERATION,
    ],
    example: "name = \"wards\"\nseed = 7\n",
};

/// The tables of a job file, in the order of the reference.
pub(crate) static SECTIONS: [&Section; 10] = [
    &ROOT,
    &data::SECTION,
    &data::split::SECTION,
    &data::prepare::SECTION,
    &model::SECTION,
    &method::SECTION,
    &channel::uplink::UPLINK,
    &channel::downlink::DOWNLINK,
    &simulation::SECTION,
    &federation::SECTION,
];

impl Job {
    /// Reads a job file; the file's name appears in errors and names a job that does not name
    /// itself.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Errors> {
        let (root, faults) = DeTable::parse_recoverable(text);
        if !faults.is_empty() {
            return Err(syntax_errors(file_name, text, &faults));
        }
        let source = Source::new(file_name, text, root.get_ref(), &SECTIONS);
        let job = Self::read(&source, file_name);
        source.finish(job)
    }

    fn read(source: &Source<'_>, file_name: &str) -> Read<Self> {
        let root = Reader::root(source, &ROOT);
        let name = root.optional(&NAME, read_name);
        let seed = root.read(&SEED, |v| v.integer(0..=u64::MAX));
        let seeds = root.optional(&SEEDS, |v| v.count_u32());
        let method = root.read(&METHOD, |v| Method::read(&v.table(&method::SECTION)?));
        let length = method.as_ref().ok().map(|method| method.length);
        // The other tables are read by the kind even where [method] has faults; where the kind
        // itself is in doubt, what only it would settle is not reported as well.
        let asked = Asked::peek(source);
        let pooled = asked.kind.is_none_or(|kind| kind == MethodKind::Em);
        let served = root.has(&FEDERATION);
        let job_seed = seed.unwrap_or_default();
        let data =
            root.read(&DATA, |v| Data::read(&v.table(&data::SECTION)?, job_seed, pooled, served));
        let model = root.read(&MODEL, |v| Model::read(&v.table(&model::SECTION)?));
        let uplink = root.read(&UPLINK, |v| Uplink::read(&v.table(&uplink::UPLINK)?, asked));
        let downlink =
            root.read(&DOWNLINK, |v| Downlink::read(&v.table(&downlink::DOWNLINK)?, asked));
        let simulation = root.read(&SIMULATION, |v| {
            Simulation::read(&v.table(&simulation::SECTION)?, asked.kind, length)
        });
        let federation =
            root.optional(&FEDERATION, |v| Federation::read(&v.table(&federation::SECTION)?));
        let mut job = Self {
            name: name?.unwrap_or_else(|| name_of_file(file_name)),
            seed: seed?,
            seeds: seeds?,
            data: data?,
            model: model?,
            method: method?,
            uplink: uplink?,
            downlink: downlink?,
            simulation: simulation?,
            federation: federation?,
        };
        job.settle_form();
        job.check_together(source);
        Ok(job)
    }

    /// FedEM's form where the job does not say: the paper's over an exact downlink; over others
    /// the one that every downlink can carry.
    fn settle_form(&mut self) {
        let kind = self.method.kind;
        if matches!(kind, MethodKind::Dem | MethodKind::Fedem | MethodKind::VrFedem) {
            let usual = if self.downlink.is_exact() { Form::Pair } else { Form::State };
            self.method.form.get_or_insert(usual);
        }
    }

    /// The runs that `seeds` asks for: the same job on the same data, one for each seed; without
    /// `seeds` the job itself.
    pub fn each_seed(&self) -> Vec<Self> {
        let seeds = u64::from(self.seeds.unwrap_or(1));
        (0..seeds).map(|n| Self { seed: self.seed + n, seeds: None, ..self.clone() }).collect()
    }

    /// The files that the job names, as written; whoever runs it resolves them against the
    /// folder of the job file.
    pub fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let mut paths = self.data.paths_mut();
        if let Model::Gmm(gmm) = &mut self.model
            && let Init::File(path) = &mut gmm.init
        {
            paths.push(path);
        }
        if let UpRule::Memory { start: MemoryStart::File(path), .. } = &mut self.uplink.rule {
            paths.push(path);
        }
        paths
    }

    /// The job as a file with every default written out; it parses back to an equal job.
    ///
    /// ```
    /// let text = "[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
    ///             [method]\nkind = \"fedem\"\nrounds = 10\n";
    /// let job = whimbrel_families::Job::parse(text, "job.toml").unwrap();
    /// assert_eq!(whimbrel_families::Job::parse(&job.to_toml(), "other.toml").unwrap(), job);
    /// ```
    pub fn to_toml(&self) -> String {
        let mut out = Writer::default();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut Writer) {
        out.put(&NAME, text(&self.name));
        out.put(&SEED, self.seed.to_string());
        if let Some(seeds) = self.seeds {
            out.put(&SEEDS, seeds.to_string());
        }
        self.data.write(out);
        self.model.write(out);
        self.method.write(out);
        self.uplink.write(out);
        self.downlink.write(out);
        self.simulation.write(out, self.method.kind);
        if let Some(federation) = &self.federation {
            federation.write(out);
        }
    }
}

fn read_name(value: Value<'_>) -> Read<String> {
    let name = value.text()?;
    let fits = name.len() <= NAME_CHARS_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_name_char);
    if fits { Ok(name) } else { Err(value.refuse()) }
}

/// The stem of the file, with what a name cannot have replaced.
pub(crate) fn name_of_file(file_name: &str) -> String {
    let stem = Path::new(file_name).file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem
        .chars()
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .map(|c| if is_name_char(c) { c } else { '-' })
        .take(NAME_CHARS_MAX)
        .collect();
    if name.is_empty() { "job".to_owned() } else { name }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}
