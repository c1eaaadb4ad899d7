//! `[data]` with `source = "mixture"`: rows drawn from a Gaussian mixture.

use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::matrix::{
    Matrix, read_all, read_covariance, read_numbers, read_rows, write_matrix,
};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};

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

const DRAWN: &str = "only a drawn mixture has it";
const MIXTURE: &[&str] = &["mixture"];
const GENERATED: &[&str] = &["mixture", "toy"];
const FEDERATIONS: &[&str] = &["mixture", "toy", "synthetic-mixture", "synthetic-representation"];
/// Clients, and rows of each, of a federation that does not say how many it has.
const CLIENTS_DEFAULT: usize = 100;
const ROWS_DEFAULT: usize = 100;

pub(crate) static CLIENTS: Key = Key::optional(
    "clients",
    "an integer of at least 1",
    "100 for mixture and synthetic-representation, 20 for toy, 300 for synthetic-mixture",
    "how many clients are drawn",
)
.only(FEDERATIONS, "the clients come from `client` or [data.split]");
pub(crate) static ROWS: Key = Key::optional(
    "rows",
    "an integer of at least 1",
    "100 for mixture, 200 for toy",
    "how many rows each client holds",
)
.only(GENERATED, "the rows are those of the file");
pub(crate) static MEANS: Key = Key::default(
    "means",
    "a list of lists of numbers",
    "[[-1.5, 0.0], [1.5, 1.0]]",
    "the mean of each component",
)
.only(MIXTURE, DRAWN);
pub(crate) static COVARIANCE: Key = Key::default(
    "covariance",
    "a square matrix or a list of square matrices",
    "[[1.0, 0.3], [0.3, 0.8]]",
    "one covariance for all components, or a list with one for each",
)
.only(MIXTURE, DRAWN);
pub(crate) static WEIGHTS: Key = Key::optional(
    "weights",
    "a list of positive numbers that sum to 1",
    "equal weights",
    "the weight of each component, for identical clients",
)
.only(MIXTURE, DRAWN);
pub(crate) static HETEROGENEITY: Key = Key::default(
    "heterogeneity",
    "\"identical\", \"one-component\" or { dirichlet = 0.2 }",
    "{ dirichlet = 0.2 }",
    "how much clients differ",
)
.words(&[
    Word { name: "identical", doc: "every client draws from the same mixture" },
    Word { name: "one-component", doc: "every client draws from one component only" },
])
.tables(&[&DIRICHLET_SECTION])
.only(MIXTURE, DRAWN);
pub(crate) static STREAM: Key = Key::default(
    "stream",
    "true or false",
    "false",
    "whether clients draw fresh rows for every minibatch instead of keeping a table",
)
.only(MIXTURE, DRAWN);

static DIRICHLET: Key = Key::required(
    "dirichlet",
    "a positive number or a list of them",
    "every client's weights are drawn with this concentration, one for all components or one \
     for each",
);
static DIRICHLET_SECTION: Section = Section {
    name: "heterogeneity",
    doc: "weights drawn for each client",
    keys: &[&DIRICHLET],
    example: "[data]\nsource = \"mixture\"\nclients = 20\n\
             heterogeneity = { dirichlet = [0.2, 1.0] }\n",
};

impl Mixture {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let clients = reader.optional(&CLIENTS, |v| v.count());
        let rows = reader.optional(&ROWS, |v| v.count());
        let stream = reader.read(&STREAM, |v| v.boolean());
        let means = reader.read(&MEANS, read_rows)?;
        let components = means.len();
        let width = means[0].len();
        let covariances = reader.read(&COVARIANCE, |v| read_covariances(v, components, width));
        let heterogeneity = reader.read(&HETEROGENEITY, |v| read_heterogeneity(v, components));
        let weights = reader.optional(&WEIGHTS, |v| read_weights(v, components));
        let heterogeneity = heterogeneity?;
        if heterogeneity != Heterogeneity::Identical {
            let why = "has a meaning for identical clients only: others have weights of their own";
            reader.refuse_if_given(&WEIGHTS, why);
        }
        let weights = match &heterogeneity {
            Heterogeneity::Dirichlet(concentration) => {
                let total: f64 = concentration.iter().sum();
                concentration.iter().map(|c| c / total).collect()
            }
            Heterogeneity::Identical | Heterogeneity::OneComponent => {
                weights?.unwrap_or_else(|| vec![1.0 / components as f64; components])
            }
        };
        Ok(Self {
            clients: clients?.unwrap_or(CLIENTS_DEFAULT),
            rows: rows?.unwrap_or(ROWS_DEFAULT),
            weights,
            means,
            covariances: covariances?,
            heterogeneity,
            stream: stream?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.put(&CLIENTS, self.clients.to_string());
        out.put(&ROWS, self.rows.to_string());
        out.put(&MEANS, write_matrix(&self.means));
        out.put(
            &COVARIANCE,
            match self.covariances.as_slice() {
                [shared] => write_matrix(shared),
                several => list(several.iter().map(write_matrix)),
            },
        );
        match &self.heterogeneity {
            Heterogeneity::Identical => {
                out.put(&HETEROGENEITY, text("identical"));
                out.put(&WEIGHTS, list(self.weights.iter().map(|w| number(*w))));
            }
            Heterogeneity::OneComponent => out.put(&HETEROGENEITY, text("one-component")),
            Heterogeneity::Dirichlet(concentration) => {
                let numbers = list(concentration.iter().map(|c| number(*c)));
                out.put(&HETEROGENEITY, inline([(DIRICHLET.name, numbers)]));
            }
        }
        out.put(&STREAM, self.stream.to_string());
    }
}

fn read_covariances(value: Value<'_>, components: usize, width: usize) -> Read<Vec<Matrix>> {
    let cell = value.first().and_then(|row| row.first());
    let several = cell.is_some_and(|cell| matches!(cell.shape(), Shape::List));
    let matrices = if several {
        read_all(value.list()?, read_covariance)?
    } else {
        vec![read_covariance(value.clone())?]
    };
    if several && matrices.len() != components {
        return Err(value.fail(
            format!("{} covariances for {components} components", matrices.len()),
            "give one matrix for all components, or one for each row of `means`",
        ));
    }
    match matrices.iter().find(|matrix| matrix.len() != width) {
        None => Ok(matrices),
        Some(odd) => Err(value.fail(
            format!("a covariance of size {} for means of {width} numbers", odd.len()),
            if value.is_default() {
                "give `covariance` as well: the default is for two columns"
            } else {
                "a covariance has one row and one column for each number of a mean"
            },
        )),
    }
}

fn read_heterogeneity(value: Value<'_>, components: usize) -> Read<Heterogeneity> {
    if matches!(value.shape(), Shape::Text) {
        return match value.text()?.as_str() {
            "identical" => Ok(Heterogeneity::Identical),
            "one-component" => Ok(Heterogeneity::OneComponent),
            other => Err(value.unknown_word(other)),
        };
    }
    value
        .table(&DIRICHLET_SECTION)?
        .read(&DIRICHLET, |v| match v.shape() {
            Shape::List => {
                let numbers = read_numbers(v.clone(), |x| x > 0.0)?;
                if numbers.len() == components {
                    return Ok(numbers);
                }
                Err(v.fail(
                    format!("{} concentrations for {components} components", numbers.len()),
                    "give one number for all components, or one for each row of `means`",
                ))
            }
            _ => Ok(vec![v.number(|x| x > 0.0)?; components]),
        })
        .map(Heterogeneity::Dirichlet)
}

fn read_weights(value: Value<'_>, components: usize) -> Read<Vec<f64>> {
    let weights = read_numbers(value.clone(), |x| x > 0.0)?;
    if weights.len() != components {
        return Err(value.fail(
            format!("{} weights for {components} components", weights.len()),
            "give one weight for each row of `means`",
        ));
    }
    let sum: f64 = weights.iter().sum();
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(value.fail(format!("the weights sum to {sum}"), "they must sum to 1"));
    }
    Ok(weights)
}
