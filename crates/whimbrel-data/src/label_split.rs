//! Splits by label: the share of each class that each client holds.

use crate::dataset::Dataset;
use crate::samples::CLASSES_MAX;
use crate::split::{classes, enough_rows, named, spread, value_classes};
use crate::{ClientRows, Error, Result};
use whimbrel_core::{Key, Stream};

/// A rule that shares classes out among clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LabelSplit {
    /// Each class is shared out in proportions drawn from a symmetric Dirichlet law: nearly one
    /// class per client for small `alpha`, similar clients for large `alpha`. Proportions are rounded
    /// to rows by largest remainders; a client without rows receives one from the largest client.
    Dirichlet {
        /// The concentration.
        alpha: f64,
        /// The number of random groups of classes, each shared out as one class; `None`: every class
        /// separately.
        clusters: Option<usize>,
    },
    /// Rows sorted by class are cut into equal shards, which are dealt to the clients (McMahan et al.
    /// 2017).
    Shards {
        /// Shards of each client.
        per_client: usize,
    },
    /// Each client has rows of `per_client` classes; the clients of a class share it equally.
    Classes {
        /// Classes of each client.
        per_client: usize,
    },
    /// Pachinko allocation (Reddi et al. 2021, App. F): each client draws weights of the coarse
    /// classes and of the fine classes within each, then its rows without replacement. All clients
    /// have equally many rows.
    Pachinko {
        /// The concentration over coarse classes.
        alpha: f64,
        /// The concentration over the fine classes of a coarse one.
        beta: f64,
    },
}

impl LabelSplit {
    /// The default number of shards or classes of each client.
    pub const PER_CLIENT: usize = 2;
    /// The default concentration over fine classes.
    pub const BETA: f64 = 10.0;
}

/// The rows of each class; the classes are sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    name: String,
    rows: Vec<Vec<usize>>,
}

impl Classes {
    /// By the values of a column, sorted by name in byte order.
    pub fn of_column(data: &Dataset, column: &str) -> Result<Self> {
        let rows = classes(data, column)?.into_iter().map(|(_, rows)| rows).collect();
        Ok(Self { name: data.name().into(), rows })
    }

    /// By one value per row, ascending.
    pub fn of_values(values: impl Iterator<Item = f64>) -> Result<Self> {
        let mut classes = value_classes(values, CLASSES_MAX + 1);
        if classes.len() > CLASSES_MAX {
            let what = format!(
                "the targets take more than {CLASSES_MAX} values, too many to be classes for a \
                 split by label"
            );
            let hint = "for numeric targets, split by iid or clusters";
            return Err(Error::config(what).hint(hint));
        }
        classes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rows = classes.into_iter().map(|(_, rows)| rows).collect();
        Ok(Self { name: "the data set".into(), rows })
    }

    /// The number of rows.
    fn count(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }

    /// The coarse class of each class.
    fn within(&self, coarse: &Self) -> Result<Vec<usize>> {
        let rows = self.rows.iter().chain(&coarse.rows).flatten().max().map_or(0, |row| row + 1);
        let mut coarse_of = vec![usize::MAX; rows];
        for (class, rows) in coarse.rows.iter().enumerate() {
            rows.iter().for_each(|row| coarse_of[*row] = class);
        }
        let one = |rows: &Vec<usize>| {
            let class = coarse_of[rows[0]];
            match rows.iter().find(|row| coarse_of[**row] != class) {
                None if class != usize::MAX => Ok(class),
                other => {
                    let what = format!(
                        "rows {} and {} have one label but different coarse classes",
                        rows[0] + 1,
                        other.unwrap_or(&rows[0]) + 1
                    );
                    Err(Error::config(what).hint("every label must lie in one coarse class"))
                }
            }
        };
        self.rows.iter().map(one).collect()
    }
}

impl LabelSplit {
    /// Shares the rows out. Pachinko allocation needs the `coarse` classes.
    pub fn deal(
        &self,
        classes: Classes,
        coarse: Option<&Classes>,
        clients: usize,
        key: Key,
    ) -> Result<Vec<ClientRows>> {
        enough_rows(&classes.name, classes.count(), clients)?;
        match *self {
            Self::Dirichlet { alpha, clusters } => {
                let classes = match clusters {
                    Some(count) => grouped(classes.rows, count, key)?,
                    None => classes.rows,
                };
                spread(classes, clients, alpha, key)
            }
            Self::Shards { per_client } => shards(&classes, clients, per_client, key),
            Self::Classes { per_client } => by_classes(classes.rows, clients, per_client, key),
            Self::Pachinko { alpha, beta } => {
                let coarse = coarse.ok_or_else(|| {
                    Error::config("pachinko allocation needs a coarse class for each label")
                })?;
                let within = classes.within(coarse)?;
                pachinko(classes.rows, &within, coarse.rows.len(), clients, [alpha, beta], key)
            }
        }
    }
}

/// Deals classes into groups at random, sizes differing by at most one class.
fn grouped(mut classes: Vec<Vec<usize>>, count: usize, key: Key) -> Result<Vec<Vec<usize>>> {
    if count == 0 || count > classes.len() {
        let what = format!("{} classes cannot be dealt into {count} groups", classes.len());
        return Err(Error::config(what).hint("give at most as many groups as there are classes"));
    }
    key.child(tag::GROUPS).stream().shuffle(&mut classes);
    let mut groups = vec![Vec::new(); count];
    for (at, class) in classes.into_iter().enumerate() {
        groups[at % count].extend(class);
    }
    Ok(groups)
}

fn shards(
    classes: &Classes,
    clients: usize,
    per_client: usize,
    key: Key,
) -> Result<Vec<ClientRows>> {
    let rows = classes.count();
    let count = clients.saturating_mul(per_client);
    if count == 0 || count > rows {
        let what = format!("{rows} rows cannot be cut into {clients} x {per_client} shards");
        return Err(Error::config(what).hint("every shard has at least one row"));
    }
    let mut stream = key.child(tag::SHARDS).stream();
    let mut ordered = Vec::with_capacity(rows);
    for class in &classes.rows {
        let start = ordered.len();
        ordered.extend(class);
        stream.shuffle(&mut ordered[start..]);
    }
    let mut shards: Vec<usize> = (0..count).collect();
    stream.shuffle(&mut shards);
    let bound = |i: usize| (i as u128 * rows as u128 / count as u128) as usize;
    let part = |own: &[usize]| {
        own.iter().flat_map(|shard| &ordered[bound(*shard)..bound(shard + 1)]).copied().collect()
    };
    Ok(named(shards.chunks(per_client).map(part).collect()))
}

fn by_classes(
    classes: Vec<Vec<usize>>,
    clients: usize,
    per_client: usize,
    key: Key,
) -> Result<Vec<ClientRows>> {
    let count = classes.len();
    if per_client == 0 || per_client > count {
        let what = format!("{per_client} classes for each client, but there are {count}");
        return Err(Error::config(what).hint("give a number from 1 to the number of classes"));
    }
    if clients * per_client < count {
        let what =
            format!("{clients} clients with {per_client} classes each leave some of {count} out");
        return Err(Error::config(what).hint("give more clients, or more classes per client"));
    }
    let mut stream = key.child(tag::CLASSES).stream();
    let holders = holders(count, clients, per_client, &mut stream);
    let mut parts = vec![Vec::new(); clients];
    for (class, (mut rows, holders)) in classes.into_iter().zip(holders).enumerate() {
        if rows.len() < holders.len() {
            let what =
                format!("class {} has {} rows for {} clients", class, rows.len(), holders.len());
            return Err(Error::config(what).hint("give fewer clients, or fewer classes per client"));
        }
        stream.shuffle(&mut rows);
        let bound = |i: usize| (i as u128 * rows.len() as u128 / holders.len() as u128) as usize;
        for (i, holder) in holders.iter().enumerate() {
            parts[*holder].extend(&rows[bound(i)..bound(i + 1)]);
        }
    }
    Ok(named(parts))
}

/// The clients of each class. Every client has `per_client` different classes; the classes' numbers
/// of clients differ by at most one.
fn holders(
    classes: usize,
    clients: usize,
    per_client: usize,
    stream: &mut Stream,
) -> Vec<Vec<usize>> {
    let mut holders = vec![Vec::new(); classes];
    for client in 0..clients {
        // The classes with the fewest clients so far, ties broken at random.
        let mut order: Vec<usize> = (0..classes).collect();
        stream.shuffle(&mut order);
        order.sort_by_key(|class| holders[*class].len());
        order[..per_client].iter().for_each(|class| holders[*class].push(client));
    }
    holders
}

/// `within` is the coarse class, below `coarse`, of each fine class.
fn pachinko(
    mut classes: Vec<Vec<usize>>,
    within: &[usize],
    coarse: usize,
    clients: usize,
    concentrations: [f64; 2],
    key: Key,
) -> Result<Vec<ClientRows>> {
    for (name, value) in ["alpha", "beta"].iter().zip(concentrations) {
        if !(value > 0.0 && value.is_finite()) {
            let what = format!("{name} = {value} is not the concentration of a Dirichlet law");
            return Err(Error::config(what).hint("give a positive number"));
        }
    }
    let mut order = key.child(tag::ROWS).stream();
    classes.iter_mut().for_each(|rows| order.shuffle(rows));
    let rows: usize = classes.iter().map(Vec::len).sum();
    let mut left: Vec<usize> = vec![0; coarse];
    within.iter().zip(&classes).for_each(|(c, rows)| left[*c] += rows.len());
    let bound = |i: usize| (i as u128 * rows as u128 / clients as u128) as usize;
    let client = |i: usize| {
        let mut stream = key.child(tag::CLIENTS).child(i as u64).stream();
        let root = stream.dirichlet(&vec![concentrations[0]; coarse]);
        let fine = fine_weights(within, coarse, concentrations[1], &mut stream);
        let mut own = Vec::with_capacity(bound(i + 1) - bound(i));
        for _ in bound(i)..bound(i + 1) {
            let c = drawn(&root, |c| left[c] > 0, &mut stream);
            let class = drawn(&fine, |f| within[f] == c && !classes[f].is_empty(), &mut stream);
            left[c] -= 1;
            own.extend(classes[class].pop());
        }
        own
    };
    Ok(named((0..clients).map(client).collect()))
}

/// Draws an open place by weight; uniformly if all weights vanish.
fn drawn(weights: &[f64], open: impl Fn(usize) -> bool, stream: &mut Stream) -> usize {
    let weight = |(at, w): (usize, &f64)| if open(at) { *w } else { 0.0 };
    let mut masked: Vec<f64> = weights.iter().enumerate().map(weight).collect();
    if masked.iter().sum::<f64>() <= 0.0 {
        masked = (0..weights.len()).map(|at| f64::from(u8::from(open(at)))).collect();
    }
    stream.categorical(&masked)
}

/// Weights of the fine classes: Dirichlet within each coarse class.
fn fine_weights(within: &[usize], coarse: usize, beta: f64, stream: &mut Stream) -> Vec<f64> {
    let mut weights = vec![0.0; within.len()];
    for c in 0..coarse {
        let members: Vec<usize> = (0..within.len()).filter(|f| within[*f] == c).collect();
        let own = stream.dirichlet(&vec![beta; members.len()]);
        members.into_iter().zip(own).for_each(|(f, weight)| weights[f] = weight);
    }
    weights
}

/// Key tags, distinct from the classes' numbers.
mod tag {
    pub const GROUPS: u64 = 0x6_0001;
    pub const SHARDS: u64 = 0x6_0002;
    pub const CLASSES: u64 = 0x6_0003;
    pub const ROWS: u64 = 0x6_0004;
    pub const CLIENTS: u64 = 0x6_0005;
}
