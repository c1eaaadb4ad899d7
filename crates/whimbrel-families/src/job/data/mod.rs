//! `[data]`: rows and the clients that hold them.

pub mod cells;
pub mod collection;
pub mod file;
pub mod held_out;
pub mod idx;
pub mod mixture;
pub mod prepare;
pub mod representation;
pub mod split;
pub mod subset;
pub mod synthetic;
pub mod toy;

pub use cells::{Cells, Labels};
pub use collection::{Collection, Concatenated, Format};
pub use file::{Csv, Libsvm, Npy};
pub use held_out::HeldOut;
pub use idx::Idx;
pub use prepare::Prepare;
pub use split::Partition;
pub use subset::{KeptClients, Subset};

use mixture::MixtureSource;
use std::path::PathBuf;
use whimbrel_data::{LeastSquaresSpec, LogisticMixtureSpec, RepresentationSpec, Spelling};
use whimbrel_job::form::{BELOW_ONE, COUNT, Form, SEED as SEED_FORM};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{choices, define_keys, form, keys, list};

/// `[data]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    pub source: Source,
    /// `[data.prepare]` as written.
    pub prepare: Prepare,
    pub held_out: HeldOut,
    /// Share of the clients that are only evaluated.
    pub unseen: f64,
    /// Training rows that each of these adapts with; `None`: all.
    pub unseen_samples: Option<usize>,
    pub subset: Subset,
    /// Lengths of one input of a learner; `None`: those of the source.
    pub shape: Option<Vec<usize>>,
    /// Seed of splits and generators.
    pub seed: u64,
    /// Whether it is that of each run.
    pub fresh: bool,
}

/// A source of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    Csv(Csv),
    Npy(Npy),
    Libsvm(Libsvm),
    /// Images in the layout of MNIST.
    Idx(Idx),
    /// Other files of samples for learners.
    Collection(Collection),
    /// Rows of a Gaussian mixture.
    Mixture(MixtureSource),
    /// Rows around a linear predictor.
    Toy(LeastSquaresSpec),
    /// Labels of a mixture of logistic models.
    SyntheticMixture(LogisticMixtureSpec),
    /// Numbers behind a shared representation.
    SyntheticRepresentation(RepresentationSpec),
}

choices! {
    /// The word of `source`.
    pub enum SourceKind {
        /// a CSV file with a header line
        Csv = "csv",
        /// Parquet or Arrow files with typed columns, one or a folder of them (feature `parquet`)
        Parquet = "parquet",
        /// rows of a query of PostgreSQL or SQLite (feature `sql`)
        Sql = "sql",
        /// a two-dimensional NumPy array of numbers
        Npy = "npy",
        /// LIBSVM's text, plain or gzipped: a target and sparse features per line
        Libsvm = "libsvm",
        /// images in the layout of MNIST, plain or gzipped: one row per image, with columns `p0`,
        /// `p1`, ... for its bytes
        Idx = "idx",
        /// LEAF's JSON, such as FEMNIST and Shakespeare: samples by user
        Leaf = "leaf",
        /// CIFAR-10 in its binary layout, plain or gzipped
        Cifar10 = "cifar10",
        /// CIFAR-100 in its binary layout, plain or gzipped
        Cifar100 = "cifar100",
        /// JPEG images of one size: a folder per class, or one file with offsets
        Jpeg = "jpeg",
        /// speeches by speaker, tab-separated without quotes, plain or gzipped: windows of
        /// characters, each with the next character as target
        Speeches = "speeches",
        /// rows of a Gaussian mixture, with a dial for the differences between clients
        Mixture = "mixture",
        /// rows and targets of a linear predictor: the least-squares toy sets of the MCM paper
        Toy = "toy",
        /// features with labels of a mixture of logistic models, whose weights differ by client:
        /// the synthetic data of the fedmix paper
        SyntheticMixture = "synthetic-mixture",
        /// features with numeric targets behind a shared linear representation and a personal head:
        /// the synthetic data of the fedsoul paper
        SyntheticRepresentation = "synthetic-representation",
    }
}

define_keys! {
    /// the source of the rows
    pub(crate) SOURCE = "source", SourceKind::FORM, required;
    /// lengths of one input of a learner, if the source has a flat list: [1, 28, 28] for FEMNIST
    SHAPE = "shape", SHAPES,
        unset "[features], [channels, rows, columns] of images, [characters] of texts",
        only (&["csv", "parquet", "sql", "libsvm", "idx", "leaf", "synthetic-mixture"], "the source defines it, or is not for learners");
    /// share of the clients that are evaluated but not trained on
    UNSEEN = "unseen", BELOW_ONE, default(0.0);
    /// training rows with which each of these clients adapts, a random subset
    UNSEEN_SAMPLES = "unseen_samples", COUNT, unset "all";
    /// seed of splits and generators, so that runs with different seeds can share their data
    SEED = "seed", SEEDS, unset "the job's `seed`";
}

form! {
    SEEDS: Option<u64>, "an integer from 0 to 2^64 - 1, or \"run\"" {
        /// that of each run, so that the runs of `seeds` have different data
        "run" => None,
    }
    number SEED_FORM => Some;
}

const SHAPES: Form<Vec<usize>> = list!(COUNT, "a list of integers of at least 1");

/// Keys of most sources.
pub(crate) const GENERAL: &[&JobKey] = keys! {
    &[&SOURCE, &file::PATH, &file::URL, &file::QUERY, &file::CLIENT, &file::COLUMNS, &file::COLUMNS_COUNT, &file::LABEL],
    &[&file::TARGET, &file::CLASSES, &file::STANDARDIZE, &file::DELIMITER, &file::NA],
    &[&file::THOUSANDS, &split::SPLIT],
    subset::SUBSET.section.keys,
    &[&held_out::VALIDATION, &held_out::TEST, &held_out::ROLE, &UNSEEN, &UNSEEN_SAMPLES, &prepare::PREPARE, &SEED],
};
/// Keys of tables with gaps.
pub(crate) const CELLS: &[&JobKey] = cells::CELLS.section.keys;
/// Keys of images and texts.
pub(crate) const SAMPLES: &[&JobKey] = keys! {
    &[&idx::LABELS], idx::IDX.section.keys, collection::LEAF.section.keys,
    &[&collection::COARSE, &collection::OFFSETS], collection::SPEECHES.section.keys,
    &[&collection::ALPHABET, &SHAPE],
};
/// Keys of generators.
pub(crate) const DRAWN: &[&JobKey] = keys! {
    &[&mixture::CLIENTS, &mixture::ROWS], mixture::DRAWN.section.keys, toy::TOY.section.keys,
    synthetic::SYNTHETIC.section.keys, representation::REPRESENTATION.section.keys,
};

/// `[data]`.
pub(crate) static SECTION: Section = Section {
    name: "data",
    doc: "Rows and the clients that hold them.",
    keys: keys! { GENERAL, CELLS, SAMPLES, DRAWN },
    example: "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\
             label = \"outcome\"\n",
};

impl Data {
    /// The spelling of numbers and gaps in text files.
    pub(crate) fn spelling(&self) -> Spelling {
        match &self.source {
            Source::Csv(csv) => csv.spelling(),
            _ => Spelling::default(),
        }
    }

    /// Reads `[data]`; with `pooled` or `served`, rows need no client.
    pub(crate) fn read(
        reader: &Reader<'_>,
        job_seed: u64,
        pooled: bool,
        served: bool,
    ) -> Read<Self> {
        let seed = reader.optional_as(&SEED, &SEEDS);
        let kind = reader.read_as(&SOURCE, &SourceKind::FORM)?;
        reader.check_meaning(kind.name());
        let prepare = reader.optional(&prepare::PREPARE, |v| {
            prepare::PREPARATION.read(&v.table(&prepare::SECTION)?)
        });
        let source = Source::read(reader, kind, pooled, served);
        let tests = source.as_ref().is_ok_and(Source::has_tests);
        let held_out = HeldOut::read(reader, kind.usual_share(), tests);
        let subset = subset::SUBSET.read(reader);
        let shape = reader.optional_as(&SHAPE, &SHAPES);
        let unseen = reader.read_as(&UNSEEN, &BELOW_ONE);
        let unseen_samples = reader.optional_as(&UNSEEN_SAMPLES, &COUNT);
        let data = Self {
            source: source?,
            held_out: held_out?,
            unseen: unseen?,
            unseen_samples: unseen_samples?,
            subset: subset?,
            shape: shape?,
            prepare: prepare?.unwrap_or_default(),
            seed: seed.as_ref().ok().copied().flatten().flatten().unwrap_or(job_seed),
            fresh: seed? == Some(None),
        };
        if data.unseen_samples.is_some() && data.unseen == 0.0 {
            let what = "`unseen_samples` is for clients that are only evaluated";
            return Err(reader.fault(&UNSEEN_SAMPLES, what, "set `unseen`, or take it out"));
        }
        if data.prepare.is_something() && data.source.facts().standardize {
            let what = "`standardize` in [data] and [data.prepare] cannot both be given";
            let hint = "write standardize = true in [data.prepare] only";
            return Err(reader.fault(&file::STANDARDIZE, what, hint));
        }
        let Prepare { drop_constant, standardize, pca, limits } = data.prepare;
        if limits && (drop_constant || standardize || pca.is_some()) {
            let what = "`limits` scales the columns without the rows, and the other keys of [data.prepare] \
                        with them";
            return Err(reader.fault(&prepare::PREPARE, what, "write `limits` alone"));
        }
        Ok(data)
    }

    /// Number of clients, if the job alone determines it.
    pub fn clients(&self) -> Option<usize> {
        let SourceFacts { drawn, partition, .. } = self.source.facts();
        match (self.subset.clients, partition) {
            (_, None) => drawn,
            (None, Some(partition)) => partition.clients(),
            (Some(KeptClients::Number(kept)), Some(partition)) => {
                Some(kept.min(partition.clients()?))
            }
            (Some(KeptClients::Share(_)), Some(_)) => None,
        }
    }

    /// The assignment of a file's rows to clients; `None` for generated rows.
    pub fn partition(&self) -> Option<&Partition> {
        self.source.facts().partition
    }

    /// Share of a table's cells that are held out.
    pub fn holdout(&self) -> f64 {
        match &self.source {
            Source::Csv(csv) => csv.cells.holdout,
            _ => 0.0,
        }
    }

    pub fn has_targets(&self) -> bool {
        self.source.facts().targets
    }

    /// Whether a learner has something to predict: targets, or labels of images.
    pub fn has_labels(&self) -> bool {
        match &self.source {
            Source::Idx(idx) => idx.labels.is_some() || idx.label.is_some(),
            _ => self.has_targets(),
        }
    }

    /// `[data.prepare]`, with `standardize` of `[data]`.
    pub fn preparation(&self) -> Prepare {
        let standardize = self.prepare.standardize || self.source.facts().standardize;
        Prepare { standardize, ..self.prepare.clone() }
    }

    /// Whether columns are scaled to mean 0 and variance 1.
    pub fn standardize(&self) -> bool {
        self.preparation().standardize
    }

    pub(crate) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let (paths, partition, cells) = match &mut self.source {
            Source::Csv(csv) => (csv.path.files_mut(), &mut csv.partition, Some(&mut csv.cells)),
            Source::Npy(npy) => (vec![&mut npy.path], &mut npy.partition, None),
            Source::Libsvm(libsvm) => (vec![&mut libsvm.path], &mut libsvm.partition, None),
            Source::Idx(idx) => return idx.paths_mut(),
            Source::Collection(files) => return files.paths_mut(),
            _ => return Vec::new(),
        };
        let embedding = match partition {
            Partition::Clusters { embedding, .. } => embedding.as_mut(),
            _ => None,
        };
        let labels = cells.into_iter().flat_map(Cells::paths_mut);
        paths.into_iter().chain(embedding).chain(labels).collect()
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        let SourceFacts { kind, partition, .. } = self.source.facts();
        out.put(&SOURCE, text(kind.name()));
        out.only_for(kind.name());
        self.source.write(out);
        if let Some(shape) = &self.shape {
            out.put(&SHAPE, SHAPES.write(shape));
        }
        subset::SUBSET.write(&self.subset, out);
        self.held_out.write(out, kind.usual_share(), self.source.has_tests());
        out.put(&UNSEEN, BELOW_ONE.write(&self.unseen));
        if let Some(rows) = self.unseen_samples {
            out.put(&UNSEEN_SAMPLES, rows.to_string());
        }
        out.put(&SEED, SEEDS.write(&(!self.fresh).then_some(self.seed)));
        let client = match &self.source {
            Source::Csv(_) => true,
            Source::Idx(idx) => idx.table.is_some(),
            _ => false,
        };
        if let Some(partition) = partition {
            partition.write(out, client);
        }
        self.prepare.write(out);
    }
}

impl SourceKind {
    /// Default of `validation` and of `test`.
    fn usual_share(self) -> f64 {
        match self {
            Self::Leaf
            | Self::Cifar10
            | Self::Cifar100
            | Self::Jpeg
            | Self::Speeches
            | Self::SyntheticMixture => 0.2,
            _ => 0.0,
        }
    }
}

/// Properties that all sources have.
struct SourceFacts<'a> {
    kind: SourceKind,
    /// `None` for generated rows.
    partition: Option<&'a Partition>,
    /// Number of clients with generated rows.
    drawn: Option<usize>,
    targets: bool,
    /// `standardize` as written in `[data]`.
    standardize: bool,
}

impl Source {
    fn read(reader: &Reader<'_>, kind: SourceKind, pooled: bool, served: bool) -> Read<Self> {
        match kind {
            SourceKind::Csv | SourceKind::Parquet | SourceKind::Sql => {
                Csv::read(reader, kind, pooled, served).map(Self::Csv)
            }
            SourceKind::Npy => Npy::read(reader, pooled || served).map(Self::Npy),
            SourceKind::Libsvm => Libsvm::read(reader).map(Self::Libsvm),
            SourceKind::Idx => Idx::read(reader, pooled || served).map(Self::Idx),
            SourceKind::Mixture => mixture::DRAWN.read(reader).map(Self::Mixture),
            SourceKind::Toy => toy::TOY.read(reader).map(Self::Toy),
            SourceKind::SyntheticMixture => {
                synthetic::SYNTHETIC.read(reader).map(Self::SyntheticMixture)
            }
            SourceKind::SyntheticRepresentation => {
                representation::REPRESENTATION.read(reader).map(Self::SyntheticRepresentation)
            }
            kind => Collection::read(reader, kind).map(Self::Collection),
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Self::Csv(csv) => csv.write(out),
            Self::Npy(npy) => file::NPY.write(npy, out),
            Self::Libsvm(libsvm) => file::LIBSVM.write(libsvm, out),
            Self::Idx(idx) => idx.write(out),
            Self::Collection(files) => files.write(out),
            Self::Mixture(mixture) => mixture::DRAWN.write(mixture, out),
            Self::Toy(toy) => toy::TOY.write(toy, out),
            Self::SyntheticMixture(spec) => synthetic::SYNTHETIC.write(spec, out),
            Self::SyntheticRepresentation(spec) => representation::REPRESENTATION.write(spec, out),
        }
    }

    fn facts(&self) -> SourceFacts<'_> {
        let file = |kind, partition, targets, standardize| SourceFacts {
            kind,
            partition: Some(partition),
            drawn: None,
            targets,
            standardize,
        };
        let drawn = |kind, clients, targets| SourceFacts {
            kind,
            partition: None,
            drawn: Some(clients),
            targets,
            standardize: false,
        };
        match self {
            Self::Csv(csv) => {
                file(csv.kind(), &csv.partition, csv.target.is_some(), csv.standardize)
            }
            Self::Npy(npy) => file(SourceKind::Npy, &npy.partition, false, npy.standardize),
            Self::Libsvm(libsvm) => {
                file(SourceKind::Libsvm, &libsvm.partition, true, libsvm.standardize)
            }
            Self::Idx(idx) => file(SourceKind::Idx, &idx.partition, false, idx.standardize),
            Self::Collection(files) => file(files.kind(), &files.partition, true, false),
            Self::Mixture(mixture) => drawn(SourceKind::Mixture, mixture.spec.clients, false),
            Self::Toy(toy) => drawn(SourceKind::Toy, toy.clients, true),
            Self::SyntheticMixture(spec) => drawn(SourceKind::SyntheticMixture, spec.clients, true),
            Self::SyntheticRepresentation(spec) => {
                drawn(SourceKind::SyntheticRepresentation, spec.clients, true)
            }
        }
    }

    /// Whether there are separate test files.
    fn has_tests(&self) -> bool {
        matches!(self, Self::Collection(files) if files.has_tests())
    }
}
