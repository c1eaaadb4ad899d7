//! `[data]` with `source = "mixture"`: rows drawn from a Gaussian mixture.

use whimbrel_job::form::{BOOLEAN, COUNT, Form, POSITIVE};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::matrix::{
    Matrix, read_all, read_covariance, read_numbers, read_rows, write_matrix,
};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, list, number};
use whimbrel_job::{form, inline, table};

/// How far the weights' sum may be from one.
const SUM_TOLERANCE: f64 = 1e-6;

/// A federation drawn from a Gaussian mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// How many clients.
    pub clients: usize,
    /// Rows of each client.
    pub rows: usize,
    /// The weights over all clients, one per component; under Dirichlet heterogeneity their mean,
    /// with one component per client equal.
    pub weights: Vec<f64>,
    /// The mean of each component.
    pub means: Matrix,
    /// One covariance for all components, or one for each.
    pub covariances: Vec<Matrix>,
    /// How clients differ.
    pub heterogeneity: Heterogeneity,
    /// Whether clients draw fresh rows as they go, instead of a fixed table.
    pub stream: bool,
}

/// How the clients of a drawn federation differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Heterogeneity {
    /// Every client draws from the same mixture.
    Identical,
    /// Client `i` draws from component `i mod K` only.
    OneComponent,
    /// Every client draws its own weights from a Dirichlet distribution: one concentration for
    /// each component.
    Dirichlet(Vec<f64>),
}

const GENERATED: &[&str] = &["mixture", "toy"];
const FEDERATIONS: &[&str] = &["mixture", "toy", "synthetic-mixture", "synthetic-representation"];
/// `clients`.
pub(crate) static CLIENTS: JobKey = COUNT
    .unset(
        "clients",
        "100 for mixture and synthetic-representation, 20 for toy, 300 for synthetic-mixture",
        "how many clients are drawn",
    )
    .only(FEDERATIONS, "the clients come from `client` or [data.split]");
/// `rows`.
pub(crate) static ROWS: JobKey = COUNT
    .unset("rows", "100 for mixture, 200 for toy", "how many rows each client holds")
    .only(GENERATED, "the rows are those of the file");

table! {
    pub(crate) DRAWN: Mixture, only (&["mixture"], "only a drawn mixture has it"), then check {
        & clients: CLIENTS, COUNT, unset or 100;
        & rows: ROWS, COUNT, unset or 100;
        means: MEANS = "means", Form::new("a list of lists of numbers", |v| read_rows(v.clone()), write_matrix),
            default "[[-1.5, 0.0], [1.5, 1.0]]", "the mean of each component";
        covariances: COVARIANCE = "covariance", COVARIANCES, default "[[1.0, 0.3], [0.3, 0.8]]",
            "one covariance for all components, or a list with one for each";
        heterogeneity: HETEROGENEITY = "heterogeneity", HETEROGENEITIES, default "{ dirichlet = 0.2 }",
            "how much clients differ";
        weights: WEIGHTS = "weights", WEIGHT_LIST, unset "equal weights" or Vec::new(),
            "the weight of each component, for identical clients";
        stream: STREAM = "stream", BOOLEAN, default "false",
            "whether clients draw fresh rows for every minibatch instead of keeping a table";
    }
}

form! {
    HETEROGENEITIES: Heterogeneity, "\"identical\", \"one-component\" or { dirichlet = 0.2 }" {
        Heterogeneity::Identical => "identical": "every client draws from the same mixture",
        Heterogeneity::OneComponent => "one-component": "every client draws from one component only",
    }
    table inline!(DIRICHLET_TABLE).tables(const { &[&DIRICHLET_SECTION] }) => Heterogeneity::Dirichlet;
}

table! {
    DIRICHLET_TABLE: Vec<f64> = "heterogeneity", "weights drawn for each client" {
        DIRICHLET = "dirichlet", CONCENTRATIONS, required,
            "every client's weights are drawn with this concentration, one for all components or one \
             for each";
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
    |all| list(all.iter().map(|x| number(*x))),
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

const COVARIANCES: Form<Vec<Matrix>> = Form::new(
    "a square matrix or a list of square matrices",
    |v| match is_several(v) {
        true => read_all(v.list()?, read_covariance),
        false => Ok(vec![read_covariance(v.clone())?]),
    },
    |all| match &all[..] {
        [shared] => write_matrix(shared),
        several => list(several.iter().map(write_matrix)),
    },
);

/// Whether it is a list of matrices.
fn is_several(value: &Value<'_>) -> bool {
    let cell = value.first().and_then(|row| row.first());
    cell.is_some_and(|cell| matches!(cell.shape(), Shape::List))
}

fn check(reader: &Reader<'_>, mut mixture: Mixture) -> Read<Mixture> {
    let (components, width) = (mixture.means.len(), mixture.means[0].len());
    let several = mixture.covariances.len();
    if several != components {
        reader.read(&COVARIANCE, |v| match is_several(&v) {
            true => Err(v.fail(
                format!("{several} covariances for {components} components"),
                "give one matrix for all components, or one for each row of `means`",
            )),
            false => Ok(()),
        })?;
    }
    if let Some(odd) = mixture.covariances.iter().find(|matrix| matrix.len() != width) {
        let hint = match reader.has(&COVARIANCE) {
            true => "a covariance has one row and one column for each number of a mean",
            false => "give `covariance` as well: the default is for two columns",
        };
        let what = format!("a covariance of size {} for means of {width} numbers", odd.len());
        return Err(reader.fault(&COVARIANCE, what, hint));
    }
    if mixture.heterogeneity != Heterogeneity::Identical {
        let why = "has a meaning for identical clients only: others have weights of their own";
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

impl Mixture {
    pub(super) fn write(&self, out: &mut Writer) {
        if self.heterogeneity != Heterogeneity::Identical {
            out.skip(&[&WEIGHTS]);
        }
        DRAWN.write(self, out);
    }
}
