//! The job as plain values, one file for each table of the job file.
//!
//! A file of this folder has the values of its table, the definitions of its keys, and the functions that
//! read and write them. `[model]` and the keys of `[method]` that belong to one [family](crate::family) are
//! read by that family.

pub mod channel;
pub mod codec;
pub mod data;
pub mod federation;
mod masks;
pub mod method;
pub mod participation;
pub mod privacy;
pub(crate) mod schema;
pub mod simulation;

pub(crate) mod preset;

mod checks;
mod noise;

use crate::failure::remedy;
use crate::family::{Fit, Tables};
use crate::load::Layout;
use crate::registry::{Registry, registry};
use std::path::{Path, PathBuf};
use toml::de::DeTable;
use whimbrel_core::Error;
use whimbrel_data::{Declared, Input};
use whimbrel_engine::SMALLER_STEP;
use whimbrel_job::Origin;
use whimbrel_job::error::Errors;
use whimbrel_job::form::{COUNT_U32, Form, SEED as SEEDS_FORM};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader, Source, syntax_errors};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, integer};

use channel::{downlink, uplink};
use preset::Asked;

pub use channel::{
    DownRule, Downlink, Feedback, Memories, MemoryStart, OwnCodec, Reset, UpRule, Uplink,
};
pub use data::mixture::MixtureSource;
pub use data::{
    Cells, Collection, Concatenated, Csv, Data, Format, HeldOut, Idx, KeptClients, Labels, Libsvm,
    Npy, Partition, Prepare, Source as DataSource, Subset,
};
pub use federation::{Clients, Federation};
pub use method::{Method, Step};
pub use participation::Participation;
pub use privacy::{Privacy, PrivacyUnit};
pub use simulation::{Dropout, LateJoin, Simulation};
pub use whimbrel_engine::Quorum;
pub use whimbrel_job::matrix::Matrix;
pub use whimbrel_methods::settings::{Batch, Budget};

/// A job: data, model and method.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Prefix of run directories.
    pub name: String,
    /// Seed of all random draws.
    pub seed: u64,
    /// Number of runs with consecutive seeds on the same data; `None`: a single run.
    pub seeds: Option<u32>,
    pub data: Data,
    /// `[schema]`: declared columns.
    pub schema: Vec<Declared>,
    /// The `kind` of `[model]`.
    pub model: &'static str,
    /// The model, and the family's part of `[method]`.
    pub fit: Box<dyn Fit>,
    pub method: Method,
    pub uplink: Uplink,
    pub downlink: Downlink,
    pub privacy: Privacy,
    pub simulation: Simulation,
    /// `None`: the job is only simulated.
    pub federation: Option<Federation>,
    pub origin: Origin,
}

/// Maximal length of a name, which becomes part of a directory's name.
const NAME_CHARS_MAX: usize = 100;

define_keys! {
    /// name of the job, the prefix of its run directories
    pub(crate) NAME = "name", NAMES, unset "the file's name without its extension";
    /// seed of all random draws; equal jobs, data and seeds give equal bits
    pub(crate) SEED = "seed", SEEDS_FORM, default(Job::SEED);
    /// number of runs with consecutive seeds from `seed` on, on the same data and split (unless `seed = "run"` in [data])
    SEEDS = "seeds", integer!(u32, 1 to 4294967295), unset "one run";
}
static DATA: JobKey = JobKey::required("data", "a table", "rows and clients");
static SCHEMA: JobKey = JobKey::optional(
    "schema",
    "tables by column, `[schema.COLUMN]`",
    "columns are not declared",
    "types, levels and limits of columns",
);
static MODEL: JobKey = JobKey::required("model", "a table", "the model");
static METHOD: JobKey = JobKey::required("method", "a table", "the algorithm");
static UPLINK: JobKey =
    JobKey::default("uplink", "a table", || "{}".into(), "messages to the server");
static DOWNLINK: JobKey =
    JobKey::default("downlink", "a table", || "{}".into(), "messages to clients");
static PRIVACY: JobKey =
    JobKey::default("privacy", "a table", || "{}".into(), "what messages may reveal");
static SIMULATION: JobKey =
    JobKey::default("simulation", "a table", || "{}".into(), "simulated faults");
static FEDERATION: JobKey = JobKey::optional(
    "federation",
    "a table",
    "the job cannot be served on a network",
    "clients on a network, and when rounds close",
);

/// Keys above the first table.
static ROOT: Section = Section {
    name: "",
    doc: "These stand above the first table.",
    keys: &[
        &NAME,
        &SEED,
        &SEEDS,
        &DATA,
        &SCHEMA,
        &MODEL,
        &METHOD,
        &UPLINK,
        &DOWNLINK,
        &PRIVACY,
        &SIMULATION,
        &FEDERATION,
    ],
    example: "name = \"wards\"\nseed = 7\n",
};

/// The tables of a job file, in the order of the reference.
pub(crate) fn sections() -> [&'static Section; 12] {
    let registry = registry();
    [
        &ROOT,
        &data::SECTION,
        &data::split::SECTION,
        &data::prepare::SECTION,
        &schema::SECTION,
        &registry.model,
        &registry.method,
        &channel::uplink::UPLINK,
        &channel::downlink::DOWNLINK,
        &privacy::SECTION,
        &simulation::SECTION,
        &federation::SECTION,
    ]
}

impl Job {
    /// The default seed.
    pub const SEED: u64 = 1;

    /// The place of a key in job files, in words: `in [method]`; `None` if there is no such key.
    pub fn place_of(key: &str) -> Option<String> {
        let mut all = sections().into_iter();
        let section = all.find(|section| section.keys.iter().any(|known| known.name == key))?;
        Some(match section.name {
            "" => "above the first table".into(),
            name => format!("in [{name}]"),
        })
    }

    /// Reads a job file. The file's name appears in errors and is the default of the job's name.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Errors> {
        let (root, faults) = DeTable::parse_recoverable(text);
        if !faults.is_empty() {
            return Err(syntax_errors(file_name, text, &faults));
        }
        let sections = sections();
        let source = Source::new(file_name, text, root.get_ref(), &sections);
        let job = Self::read(&source, file_name, registry());
        let job = source.finish(job)?;
        Ok(Self { origin: Origin::new(file_name, text), ..job })
    }

    fn read(source: &Source<'_>, file_name: &str, registry: &'static Registry) -> Read<Self> {
        let root = Reader::root(source, &ROOT);
        let name = root.optional_as(&NAME, &NAMES);
        let seed = root.read_as(&SEED, &SEEDS_FORM);
        let seeds = root.optional_as(&SEEDS, &COUNT_U32);
        // Other tables are read by the kind even if [method] has faults; checks that depend on an unknown
        // kind are skipped.
        let asked = Asked::peek(source, registry);
        let kind = |table| source.text_at(&[table, "kind"]);
        if let (Some(method), Some(model)) = (kind("method"), kind("model")) {
            source.narrow(registry.model.name, registry.model_keys(method, model));
        }
        let method_table = root.table(&METHOD, &registry.method);
        let model_table = root.table(&MODEL, &registry.model);
        let method =
            method_table.as_ref().map_err(|e| *e).and_then(|t| Method::read(t, asked, registry));
        let fit = match (&model_table, &method_table) {
            (Ok(model), Ok(method)) => read_fit(model, method, asked, registry),
            (Err(reported), _) | (_, Err(reported)) => Err(*reported),
        };
        let length = method.as_ref().ok().map(|method| method.length);
        let pooled = asked.kind.is_none_or(|kind| kind.pooled);
        let served = root.has(&FEDERATION);
        let job_seed = seed.unwrap_or_default();
        let data =
            root.read(&DATA, |v| Data::read(&v.table(&data::SECTION)?, job_seed, pooled, served));
        let uplink = root.read(&UPLINK, |v| Uplink::read(&v.table(&uplink::UPLINK)?, asked));
        let downlink =
            root.read(&DOWNLINK, |v| Downlink::read(&v.table(&downlink::DOWNLINK)?, asked));
        let simulation = root.read(&SIMULATION, |v| {
            Simulation::read(&v.table(&simulation::SECTION)?, asked.kind, length)
        });
        let privacy = root.read(&PRIVACY, |v| Privacy::read(&v.table(&privacy::SECTION)?));
        let federation =
            root.optional(&FEDERATION, |v| Federation::read(&v.table(&federation::SECTION)?));
        let schema = root.optional(&SCHEMA, |v| schema::read(&v));
        let (model, fit) = fit?;
        let mut job = Self {
            name: name?.unwrap_or_else(|| name_of_file(file_name)),
            seed: seed?,
            seeds: seeds?,
            data: data?,
            schema: schema?.unwrap_or_default(),
            model,
            fit,
            method: method?,
            uplink: uplink?,
            downlink: downlink?,
            privacy: privacy?,
            simulation: simulation?,
            federation: federation?,
            origin: Origin::default(),
        };
        job.settle_privacy(source);
        let mut fit = job.fit.clone();
        fit.resolve(&mut job, source);
        job.fit = fit;
        job.check_tables(source);
        job.check_schema(source);
        job.check_masks(source);
        job.fit.check(&job, source);
        job.privacy.check(job.fit.keeps_groups(&job), source);
        Ok(job)
    }

    /// The family's part, if it has this type.
    pub fn fit_as<T: Fit>(&self) -> Option<&T> {
        (&*self.fit as &dyn std::any::Any).downcast_ref()
    }

    /// The same job with each of its seeds; without `seeds` the job itself.
    pub fn each_seed(&self) -> Vec<Self> {
        let seeds = u64::from(self.seeds.unwrap_or(1));
        let one = |n| {
            let mut job = Self { seed: self.seed + n, seeds: None, ..self.clone() };
            if job.data.fresh {
                job.data.seed = job.seed;
            }
            job
        };
        (0..seeds).map(one).collect()
    }

    /// Files of the job as written; the program that runs it resolves them against the job's folder.
    pub fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let mut paths = self.data.paths_mut();
        paths.extend(self.fit.paths_mut());
        if let MemoryStart::File(path) = &mut self.uplink.start {
            paths.push(path);
        }
        paths
    }

    /// The job file with all defaults, which parses to an equal job.
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
        match &self.data.source {
            DataSource::Csv(Csv { path: Input::Rows(_), .. }) => {
                "# The rows were in memory: name a file with them as `path` to run this job.\n"
                    .to_owned()
                    + &out.finish()
            }
            _ => out.finish(),
        }
    }

    /// Completes the remedy of a diverged run by the settings that the job left out.
    pub fn remedied(&self, error: Error) -> Error {
        let columns = matches!(self.data.source, DataSource::Csv(_) | DataSource::Libsvm(_))
            && matches!(self.fit.layout(), Layout::Targets { .. } | Layout::Samples { .. });
        let exact = self.uplink.codec.is_exact() && self.downlink.is_exact();
        error.map_hint(|mut hint| {
            if hint == SMALLER_STEP {
                if columns && !self.data.standardize() {
                    hint += &format!(", or {}", remedy::STANDARDIZE);
                }
                hint += if exact { "" } else { ", or take a finer codec" };
            }
            hint
        })
    }

    fn write(&self, out: &mut Writer) {
        out.put(&NAME, text(&self.name));
        out.put(&SEED, self.seed.to_string());
        if let Some(seeds) = self.seeds {
            out.put(&SEEDS, seeds.to_string());
        }
        self.data.write(out);
        self.write_schema(out);
        let registry = registry();
        out.table(&registry.model);
        out.put(registry.model_kind, text(self.model));
        out.only(registry.model_keys(self.method.kind.algorithm, self.model));
        self.fit.write_model(out);
        self.method.write(out, &*self.fit, registry);
        self.uplink.write(out);
        self.downlink.write(out);
        self.privacy.write(out);
        self.simulation.write(out, self.method.kind.pooled);
        if let Some(federation) = &self.federation {
            federation.write(out);
        }
    }
}

/// Reads the model by the family of the method.
fn read_fit(
    model: &Reader<'_>,
    method: &Reader<'_>,
    asked: Asked,
    registry: &'static Registry,
) -> Read<(&'static str, Box<dyn Fit>)> {
    let families = model.read(registry.model_kind, |v| {
        let word = v.text()?;
        let families = registry.models(&word);
        if !families.is_empty() {
            return Ok(families);
        }
        let fitting = asked.kind.map_or_else(Vec::new, |kind| registry.fitted_by(kind.word.name));
        Err(v.unknown_among(&word, &fitting))
    })?;
    let Some((family, method_kind)) = asked.family.zip(asked.kind) else {
        // An unknown kind is reported by `Method::read`.
        return Err(whimbrel_job::reader::Reported);
    };
    let own = families.iter().find(|(known, _)| known.name == family.name);
    let Some((_, model_kind)) = own else {
        return Err(refuse_method(method, registry, families[0].1.word.name, asked));
    };
    let model_kind: &'static crate::family::ModelKind = model_kind;
    refuse_others(model, model_kind.keys, model_kind.word.name, registry, true);
    let tables = Tables { model_kind: model_kind.word.name, method_kind, model, method };
    Ok((model_kind.word.name, (family.read)(&tables)?))
}

/// Most methods listed in an error.
const METHODS_SHOWN: usize = 4;

/// Reports a method that cannot fit the model, with some that can.
fn refuse_method(
    method: &Reader<'_>,
    registry: &'static Registry,
    model: &str,
    asked: Asked,
) -> whimbrel_job::reader::Reported {
    let name = asked.kind.map_or("the method", |kind| kind.word.name);
    let able = registry.models(model);
    let methods: Vec<String> = able
        .iter()
        .flat_map(|(family, _)| family.methods)
        .map(|kind| format!("\"{}\"", kind.word.name))
        .collect();
    let shown = methods.len().min(METHODS_SHOWN);
    let more = if methods.len() > shown { " and others" } else { "" };
    let models: Vec<String> = asked
        .family
        .iter()
        .flat_map(|family| family.models)
        .map(|kind| format!("\"{}\"", kind.word.name))
        .collect();
    let result: Read<()> = method.read(registry.method_kind, |v| {
        Err(v.fail(
            format!("{name} fits {}, not kind = \"{model}\" in [model]", models.join(", ")),
            format!("\"{model}\" is fitted by {}{more}", methods[..shown].join(", ")),
        ))
    });
    result.err().unwrap_or(whimbrel_job::reader::Reported)
}

/// Refuses keys of a table that do not apply to the kind.
fn refuse_others(
    reader: &Reader<'_>,
    keys: &'static [&'static JobKey],
    kind: &str,
    registry: &'static Registry,
    of_models: bool,
) {
    let section = if of_models { &registry.model } else { &registry.method };
    for key in section.keys.iter().skip(1) {
        if keys.iter().all(|own| own.name != key.name) {
            let kinds = registry.kinds_with(key, of_models);
            // Another family may have a method of this name.
            let why = if kinds.contains(&kind) {
                let models = registry.models_with(key, kind).join(", ");
                format!("has no meaning for {kind} with this model: it is for {models}")
            } else {
                format!("has no meaning for {kind}: it is for {}", kinds.join(", "))
            };
            reader.refuse_if_given(key, &why);
        }
    }
}

const NAMES: Form<String> = Form::new(
    "up to 100 letters, digits, `-`, `_` and `.`, the first a letter or digit",
    |v| {
        let name = v.text()?;
        let fits = name.len() <= NAME_CHARS_MAX
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(is_name_char);
        if fits { Ok(name) } else { Err(v.refuse()) }
    },
    |name| text(name),
);

/// The stem of the file, with characters that a name cannot have replaced.
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
