//! `[data]`: where the rows come from and who holds them.

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

use mixture::Mixture;
use std::path::PathBuf;
use whimbrel_data::{LeastSquaresSpec, LogisticMixtureSpec, RepresentationSpec};
use whimbrel_job::form::{BELOW_ONE, COUNT, Form, SEED as SEEDS};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{choices, keys, list};

/// `[data]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Where the rows come from.
    pub source: Source,
    /// What is done to the columns, as written in `[data.prepare]`.
    pub prepare: Prepare,
    /// Which rows are kept out of the fit.
    pub held_out: HeldOut,
    /// The share of the clients that are only evaluated.
    pub unseen: f64,
    /// The part of the data that is used.
    pub subset: Subset,
    /// The lengths of one input of a learner; `None`: as the source has them.
    pub shape: Option<Vec<usize>>,
    /// The seed of splits and generators.
    pub seed: u64,
}

/// Where the rows come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A CSV file.
    Csv(Csv),
    /// A `.npy` file.
    Npy(Npy),
    /// LIBSVM's text.
    Libsvm(Libsvm),
    /// Images in the layout of MNIST.
    Idx(Idx),
    /// Samples of learners in other files.
    Collection(Collection),
    /// Rows drawn from a Gaussian mixture.
    Mixture(Mixture),
    /// Rows drawn around a linear predictor.
    Toy(LeastSquaresSpec),
    /// Labels drawn from a mixture of logistic models.
    SyntheticMixture(LogisticMixtureSpec),
    /// Numbers predicted by a representation that clients share.
    SyntheticRepresentation(RepresentationSpec),
}

choices! {
    /// The word in `source`.
    pub enum SourceKind {
        Csv = "csv": "a CSV file with a header line",
        Npy = "npy": "a two-dimensional NumPy array of numbers",
        Libsvm = "libsvm": "LIBSVM's text, plain or gzipped: a target and sparse features on each \
         line",
        Idx = "idx": "images in the layout of MNIST, plain or gzipped: a row for each, a column \
         `p0`, `p1`, ... for each byte",
        Leaf = "leaf": "LEAF's JSON, such as FEMNIST and Shakespeare: users with their samples",
        Cifar10 = "cifar10": "CIFAR-10 in its binary layout, plain or gzipped",
        Cifar100 = "cifar100": "CIFAR-100 in its binary layout, plain or gzipped",
        Jpeg = "jpeg": "JPEG images of one size: a folder for each class, or one file with offsets",
        Speeches = "speeches": "speeches by speaker, tab-separated without quotes, plain or gzipped: \
         windows of characters and the next one",
        Mixture = "mixture": "rows drawn from a Gaussian mixture, with a dial for how much \
         clients differ",
        Toy = "toy": "rows and targets drawn around a linear predictor: the least-squares toy sets \
         of the MCM paper",
        SyntheticMixture = "synthetic-mixture": "features with labels drawn from a mixture of \
         logistic models, whose weights each client has for itself: the synthetic set of \
         personalised models",
        SyntheticRepresentation = "synthetic-representation": "features with numbers to predict, \
         through a linear representation that clients share and a head of each client's own: the \
         synthetic set of Bayesian personal models",
    }
}

/// `source`.
pub(crate) static SOURCE: JobKey = SourceKind::FORM.required("source", "where the rows come from");
/// `shape`.
static SHAPE: JobKey = SHAPES
    .unset(
        "shape",
        "[features], [channels, rows, columns] of images, [characters] of texts",
        "the lengths of one input of a learner, where the source has it as a list of numbers: \
         [1, 28, 28] for FEMNIST",
    )
    .only(
        &["csv", "libsvm", "idx", "leaf", "synthetic-mixture"],
        "the source has its own, or no learner reads it",
    );
static UNSEEN: JobKey = BELOW_ONE.default(
    "unseen",
    || BELOW_ONE.write(&0.0),
    "the share of the clients that take no part in training and are only evaluated",
);
static SEED: JobKey = SEEDS.unset(
    "seed",
    "the job's `seed`",
    "the seed of splits and generators, so that several runs can share their data",
);

const SHAPES: Form<Vec<usize>> = list!(COUNT, "a list of integers of at least 1");

/// `[data]`.
pub(crate) static SECTION: Section = Section {
    name: "data",
    doc: "Where the rows come from and who holds them.",
    keys: keys! {
        &[&SOURCE, &file::PATH, &file::CLIENT, &file::COLUMNS, &file::COLUMNS_COUNT],
        &[&file::LABEL, &file::TARGET, &file::CLASSES],
        cells::CELLS.section.keys,
        &[&file::STANDARDIZE, &file::DELIMITER, &idx::LABELS],
        idx::IDX.section.keys,
        collection::LEAF.section.keys,
        &[&collection::COARSE, &collection::OFFSETS],
        collection::SPEECHES.section.keys,
        &[&collection::ALPHABET, &SHAPE, &split::SPLIT],
        subset::SUBSET.section.keys,
        &[&held_out::VALIDATION, &held_out::TEST, &held_out::ROLE, &UNSEEN, &prepare::PREPARE],
        &[&mixture::CLIENTS, &mixture::ROWS],
        mixture::DRAWN.section.keys,
        toy::TOY.section.keys,
        synthetic::SYNTHETIC.section.keys,
        representation::REPRESENTATION.section.keys,
        &[&SEED],
    },
    example: "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\
             label = \"outcome\"\n",
};

impl Data {
    /// Reads `[data]`; with `pooled`, rows need no client.
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
        let source = match kind {
            SourceKind::Csv => Csv::read(reader, pooled, served).map(Source::Csv),
            SourceKind::Npy => Npy::read(reader, pooled || served).map(Source::Npy),
            SourceKind::Libsvm => Libsvm::read(reader).map(Source::Libsvm),
            SourceKind::Idx => Idx::read(reader, pooled || served).map(Source::Idx),
            SourceKind::Leaf
            | SourceKind::Cifar10
            | SourceKind::Cifar100
            | SourceKind::Jpeg
            | SourceKind::Speeches => Collection::read(reader, kind).map(Source::Collection),
            SourceKind::Mixture => mixture::DRAWN.read(reader).map(Source::Mixture),
            SourceKind::Toy => toy::TOY.read(reader).map(Source::Toy),
            SourceKind::SyntheticMixture => {
                synthetic::SYNTHETIC.read(reader).map(Source::SyntheticMixture)
            }
            SourceKind::SyntheticRepresentation => {
                representation::REPRESENTATION.read(reader).map(Source::SyntheticRepresentation)
            }
        };
        let tests = matches!(&source, Ok(Source::Collection(files)) if files.has_tests());
        let held_out = HeldOut::read(reader, kind.usual_share(), tests);
        let subset = subset::SUBSET.read(reader);
        let shape = reader.optional_as(&SHAPE, &SHAPES);
        let unseen = reader.read_as(&UNSEEN, &BELOW_ONE);
        let data = Self {
            source: source?,
            held_out: held_out?,
            unseen: unseen?,
            subset: subset?,
            shape: shape?,
            prepare: prepare?.unwrap_or_default(),
            seed: seed?.unwrap_or(job_seed),
        };
        if data.prepare.is_something() && data.source.standardize() {
            let what = "[data.prepare] says what is done to the columns, and so does this";
            let hint = "write standardize = true in [data.prepare] only";
            return Err(reader.fault(&file::STANDARDIZE, what, hint));
        }
        Ok(data)
    }

    /// How many clients there will be, where the job alone tells.
    pub fn clients(&self) -> Option<usize> {
        match &self.source {
            Source::Mixture(mixture) => Some(mixture.spec.clients),
            Source::Toy(toy) => Some(toy.clients),
            Source::SyntheticMixture(spec) => Some(spec.clients),
            Source::SyntheticRepresentation(spec) => Some(spec.clients),
            _ => match (self.subset.clients, self.partition()?.clients()) {
                (None, clients) => clients,
                (Some(KeptClients::Number(kept)), clients) => Some(kept.min(clients?)),
                (Some(KeptClients::Share(_)), _) => None,
            },
        }
    }

    /// Who holds which row of a file; none for rows that are drawn.
    pub fn partition(&self) -> Option<&Partition> {
        match &self.source {
            Source::Csv(csv) => Some(&csv.partition),
            Source::Npy(npy) => Some(&npy.partition),
            Source::Libsvm(libsvm) => Some(&libsvm.partition),
            Source::Idx(idx) => Some(&idx.partition),
            Source::Collection(files) => Some(&files.partition),
            Source::Mixture(_)
            | Source::Toy(_)
            | Source::SyntheticMixture(_)
            | Source::SyntheticRepresentation(_) => None,
        }
    }

    /// The share of a table's cells that clients keep out of the fit.
    pub fn holdout(&self) -> f64 {
        match &self.source {
            Source::Csv(csv) => csv.cells.holdout,
            _ => 0.0,
        }
    }

    /// Whether the rows have targets.
    pub fn has_targets(&self) -> bool {
        match &self.source {
            Source::Csv(csv) => csv.target.is_some(),
            Source::Libsvm(_)
            | Source::Collection(_)
            | Source::Toy(_)
            | Source::SyntheticMixture(_)
            | Source::SyntheticRepresentation(_) => true,
            Source::Npy(_) | Source::Idx(_) | Source::Mixture(_) => false,
        }
    }

    /// Whether a learner has something to predict: targets, or labels of images.
    pub fn has_labels(&self) -> bool {
        match &self.source {
            Source::Idx(idx) => idx.labels.is_some() || idx.label.is_some(),
            _ => self.has_targets(),
        }
    }

    /// What is done to the columns, `standardize` in `[data]` included.
    pub fn preparation(&self) -> Prepare {
        let standardize = self.prepare.standardize || self.source.standardize();
        Prepare { standardize, ..self.prepare }
    }

    /// Whether columns are scaled to mean 0 and variance 1.
    pub fn standardize(&self) -> bool {
        self.preparation().standardize
    }

    pub(crate) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let (path, partition, cells) = match &mut self.source {
            Source::Csv(csv) => (csv.path.file_mut(), &mut csv.partition, Some(&mut csv.cells)),
            Source::Npy(npy) => (Some(&mut npy.path), &mut npy.partition, None),
            Source::Libsvm(libsvm) => (Some(&mut libsvm.path), &mut libsvm.partition, None),
            Source::Idx(idx) => return idx.paths_mut(),
            Source::Collection(files) => return files.paths_mut(),
            Source::Mixture(_)
            | Source::Toy(_)
            | Source::SyntheticMixture(_)
            | Source::SyntheticRepresentation(_) => return Vec::new(),
        };
        let embedding = match partition {
            Partition::Clusters { embedding, .. } => embedding.as_mut(),
            _ => None,
        };
        let labels = cells.into_iter().flat_map(Cells::paths_mut);
        path.into_iter().chain(embedding).chain(labels).collect()
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        let kind = self.source.kind();
        out.put(&SOURCE, text(kind.name()));
        out.only_for(kind.name());
        match &self.source {
            Source::Csv(csv) => csv.write(out),
            Source::Npy(npy) => file::NPY.write(npy, out),
            Source::Libsvm(libsvm) => file::LIBSVM.write(libsvm, out),
            Source::Idx(idx) => idx.write(out),
            Source::Collection(files) => files.write(out),
            Source::Mixture(mixture) => mixture::DRAWN.write(mixture, out),
            Source::Toy(toy) => toy::TOY.write(toy, out),
            Source::SyntheticMixture(spec) => synthetic::SYNTHETIC.write(spec, out),
            Source::SyntheticRepresentation(spec) => {
                representation::REPRESENTATION.write(spec, out)
            }
        }
        if let Some(shape) = &self.shape {
            out.put(&SHAPE, SHAPES.write(shape));
        }
        subset::SUBSET.write(&self.subset, out);
        let tests = matches!(&self.source, Source::Collection(files) if files.has_tests());
        self.held_out.write(out, kind.usual_share(), tests);
        out.put(&UNSEEN, BELOW_ONE.write(&self.unseen));
        out.put(&SEED, self.seed.to_string());
        let client = match &self.source {
            Source::Csv(_) => true,
            Source::Idx(idx) => idx.table.is_some(),
            _ => false,
        };
        if let Some(partition) = self.partition() {
            partition.write(out, client);
        }
        self.prepare.write(out);
    }
}

impl SourceKind {
    /// The share of each client's rows that is for validation, and that for tests, where the job
    /// does not say.
    fn usual_share(self) -> f64 {
        match self {
            Self::Leaf
            | Self::Cifar10
            | Self::Cifar100
            | Self::Jpeg
            | Self::Speeches
            | Self::SyntheticMixture => 0.2,
            Self::Csv
            | Self::Npy
            | Self::Libsvm
            | Self::Idx
            | Self::Mixture
            | Self::Toy
            | Self::SyntheticRepresentation => 0.0,
        }
    }
}

impl Source {
    fn kind(&self) -> SourceKind {
        match self {
            Self::Csv(_) => SourceKind::Csv,
            Self::Npy(_) => SourceKind::Npy,
            Self::Libsvm(_) => SourceKind::Libsvm,
            Self::Idx(_) => SourceKind::Idx,
            Self::Collection(files) => files.kind(),
            Self::Mixture(_) => SourceKind::Mixture,
            Self::Toy(_) => SourceKind::Toy,
            Self::SyntheticMixture(_) => SourceKind::SyntheticMixture,
            Self::SyntheticRepresentation(_) => SourceKind::SyntheticRepresentation,
        }
    }

    /// `standardize`, as written in `[data]`.
    fn standardize(&self) -> bool {
        match self {
            Self::Csv(csv) => csv.standardize,
            Self::Npy(npy) => npy.standardize,
            Self::Libsvm(libsvm) => libsvm.standardize,
            Self::Idx(idx) => idx.standardize,
            Self::Collection(_)
            | Self::Mixture(_)
            | Self::Toy(_)
            | Self::SyntheticMixture(_)
            | Self::SyntheticRepresentation(_) => false,
        }
    }
}
