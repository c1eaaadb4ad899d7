//! `[data]` with `source = "mixture"`: rows of a Gaussian mixture.

use whimbrel_data::{Covariance, Heterogeneity, MixtureSpec, Sizes};
use whimbrel_job::form::{BOOLEAN, COUNT, Form, POSITIVE, Table};
use whimbrel_job::key::Section;
use whimbrel_job::matrix::{read_all, read_covariance, read_numbers, read_rows, write_matrix};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{list, number};
use whimbrel_job::{define_keys, form, inline, keys, table};

/// Largest deviation of the weights' sum from one.
const SUM_TOLERANCE: f64 = 1e-6;

/// A federation drawn from a Gaussian mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureSource {
    pub spec: MixtureSpec,
    /// Whether clients draw fresh rows for every minibatch.
    pub stream: bool,
}

const GENERATED: &[&str] = &["mixture", "toy"];
const FEDERATIONS: &[&str] = &["mixture", "toy", "synthetic-mixture", "synthetic-representation"];
define_keys! {
    /// number of clients
    pub(crate) CLIENTS = "clients", COUNT,
        unset "100 for mixture and synthetic-representation, 20 for toy, 300 for synthetic-mixture", only (FEDERATIONS, "the clients come from `client` or [data.split]");
    /// rows of each client
    pub(crate) ROWS = "rows", COUNT, unset "100 for mixture, 200 for toy", only (GENERATED, "the rows are those of the file");
}

const ONLY: &str = "only a drawn mixture has it";

define_keys! {
    /// whether clients draw fresh rows for every minibatch instead of a fixed table
    STREAM = "stream", BOOLEAN, default(false), only (&["mixture"], ONLY);
}

/// The mixture, and whether it is streamed.
pub(crate) const DRAWN: Table<MixtureSource> = Table {
    section: Section::of(keys! { SPEC.section.keys, &[&STREAM] }),
    read: |reader| {
        let (spec, stream) = (SPEC.read(reader), reader.read_as(&STREAM, &BOOLEAN));
        Ok(MixtureSource { spec: spec?, stream: stream? })
    },
    write: |mixture, out| {
        if mixture.spec.heterogeneity != Heterogeneity::Identical {
            out.skip(&[&WEIGHTS]);
        }
        SPEC.write(&mixture.spec, out);
        out.put(&STREAM, BOOLEAN.write(&mixture.stream));
    },
};

table! {
    pub(crate) SPEC: MixtureSpec, only (&["mixture"], ONLY), then check {
        & clients: CLIENTS, COUNT, unset or MixtureSpec::default().clients;
        & rows: ROWS, EQUAL, unset or MixtureSpec::default().rows;
        /// the mean of each component
        means: MEANS = "means", Form::new("a list of lists of numbers", |v| read_rows(v.clone()), write_matrix),
            default;
        /// one covariance for all components, or a list with one for each
        covariance: COVARIANCE = "covariance", COVARIANCES, default;
        /// differences between clients
        heterogeneity: HETEROGENEITY = "heterogeneity", HETEROGENEITIES,
            default(Heterogeneity::dirichlet(Heterogeneity::CONCENTRATION, 1));
        /// weights of the components, for identical clients
        weights: WEIGHTS = "weights", WEIGHT_LIST, unset "equal weights" or Vec::new();
    }
}

form! {
    HETEROGENEITIES: Heterogeneity, "\"identical\", \"one-component\" or { dirichlet = 0.2 }" {
        /// all clients draw from the same mixture
        "identical" => Heterogeneity::Identical,
        /// each client draws from one component
        "one-component" => Heterogeneity::OneComponent,
    }
    table inline!(DIRICHLET_TABLE).tables(const { &[&DIRICHLET_SECTION] }) => Heterogeneity::Dirichlet;
}

table! {
    DIRICHLET_TABLE: Vec<f64> = "heterogeneity", "random weights of each client" {
        /// concentration of the Dirichlet distribution of each client's weights, for all components
        /// or for each
        DIRICHLET = "dirichlet", CONCENTRATIONS, required;
    }
}

static DIRICHLET_SECTION: Section = Section {
    example: "[data]\nsource = \"mixture\"\nclients = 20\n\
             heterogeneity = { dirichlet = [0.2, 1.0] }\n",
    ..DIRICHLET_TABLE.section
};

/// One number for all components, or one for each.
const CONCENTRATIONS: Form<Vec<f64>> = Form::new(
    "a positive number or a list of them",
    |v| match v.shape() {
        Shape::List => read_numbers(v.clone(), |x| x > 0.0),
        _ => Ok(vec![POSITIVE.read(v)?]),
    },
    |all| match all[..] {
        [one] => number(one),
        _ => list(all.iter().map(|x| number(*x))),
    },
);

const WEIGHT_LIST: Form<Vec<f64>> = Form::new(
    "a list of positive numbers that sum to 1",
    |v| {
        let weights = read_numbers(v.clone(), |x| x > 0.0)?;
        let sum: f64 = weights.iter().sum();
        if (sum - 1.0).abs() > SUM_TOLERANCE {
            return Err(v.fail(format!("the weights sum to {sum}"), "they must sum to 1"));
        }
        Ok(weights)
    },
    |weights| list(weights.iter().map(|w| number(*w))),
);

/// The same number of rows for all clients.
const EQUAL: Form<Sizes> = Form::new(
    COUNT.takes,
    |v| COUNT.read(v).map(Sizes::Equal),
    |rows| match rows {
        Sizes::Equal(rows) => rows.to_string(),
        Sizes::Given(all) => list(all.iter().map(usize::to_string)),
    },
);

const COVARIANCES: Form<Covariance> = Form::new(
    "a square matrix or a list of square matrices",
    |v| {
        if is_several(v) {
            return Ok(Covariance::PerComponent(read_all(v.list()?, read_covariance)?));
        }
        read_covariance(v.clone()).map(Covariance::Shared)
    },
    |covariance| match covariance {
        Covariance::Shared(shared) => write_matrix(shared),
        Covariance::PerComponent(several) => list(several.iter().map(write_matrix)),
    },
);

/// Whether the value is a list of matrices.
fn is_several(value: &Value<'_>) -> bool {
    let cell = value.first().and_then(|row| row.first());
    cell.is_some_and(|cell| matches!(cell.shape(), Shape::List))
}

fn check(reader: &Reader<'_>, mut mixture: MixtureSpec) -> Read<MixtureSpec> {
    let (components, width) = (mixture.means.len(), mixture.means[0].len());
    let covariances = match &mixture.covariance {
        Covariance::Shared(shared) => std::slice::from_ref(shared),
        Covariance::PerComponent(all) if all.len() == components => all,
        Covariance::PerComponent(all) => {
            let what = format!("{} covariances for {components} components", all.len());
            let hint = "give one matrix for all components, or one for each row of `means`";
            return Err(reader.fault(&COVARIANCE, what, hint));
        }
    };
    if let Some(odd) = covariances.iter().find(|matrix| matrix.len() != width) {
        let hint = if reader.has(&COVARIANCE) {
            "a covariance has one row and one column for each number of a mean"
        } else {
            "give `covariance` as well: the default has two columns"
        };
        let what = format!("a covariance of size {} for means of {width} numbers", odd.len());
        return Err(reader.fault(&COVARIANCE, what, hint));
    }
    if mixture.heterogeneity != Heterogeneity::Identical {
        let why = "applies to identical clients only";
        reader.refuse_if_given(&WEIGHTS, why);
    }
    if let Heterogeneity::Dirichlet(all) = &mut mixture.heterogeneity {
        if all.len() != components {
            let what = format!("{} concentrations for {components} components", all.len());
            let hint = "give one number for all components, or one for each row of `means`";
            reader.read(&HETEROGENEITY, |v| {
                v.table(&DIRICHLET_SECTION)?.read(&DIRICHLET, |v| match v.shape() {
                    Shape::List => Err(v.fail(what, hint)),
                    _ => Ok(()),
                })
            })?;
            *all = vec![all[0]; components];
        }
        let total: f64 = all.iter().sum();
        mixture.weights = all.iter().map(|c| c / total).collect();
    } else if mixture.weights.is_empty() {
        mixture.weights = vec![1.0 / components as f64; components];
    } else if mixture.weights.len() != components {
        return Err(reader.fault(
            &WEIGHTS,
            format!("{} weights for {components} components", mixture.weights.len()),
            "give one weight for each row of `means`",
        ));
    }
    Ok(mixture)
}
