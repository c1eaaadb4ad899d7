//! Methods without a server: the graph and its keys.

use crate::failure::Result;
use crate::job::{Job, UpRule};
use crate::plan::Common;
use std::path::{Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::topology::{ROUNDING, unreached};
use whimbrel_engine::{Graphs, Topology, Weighting};
use whimbrel_job::form::{ABOVE_ZERO, BOOLEAN, Form, PATH as FILE};
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Source, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};
use whimbrel_job::{define_keys, form};
use whimbrel_methods::personal::Scaling;

form! {
    MIXINGS: Weighting {
        /// 1/(1 + the larger degree of both)
        "metropolis" => Weighting::Metropolis,
        /// 1/(1 + the largest degree of all)
        "maximum-degree" => Weighting::MaximumDegree,
        /// the largest spectral gap, by convex optimisation
        "fastest-mixing" => Weighting::FastestMixing,
        /// the weights of the edge list
        "given" => Weighting::Given,
    }
}

form! {
    SCALINGS: Scaling {
        /// the local change times T n_t/n: equal to the method with a server on the complete graph
        /// with uniform weights
        "samples" => Scaling::Samples,
        /// the local step times n_t/n, as Algorithm 4 prints it
        "paper" => Scaling::Paper,
    }
}

/// `topology`.
pub(super) static TOPOLOGY: JobKey = JobKey::default(
    "topology",
    "a word, or a table { kind, p, redraw, edges, path }",
    || inline([(KIND.name, text(ERDOS_RENYI)), (P.name, number(EDGE_PROBABILITY))]),
    "graph of the training clients",
)
.words(&SHAPES)
.tables(&[&TOPOLOGY_SECTION]);
define_keys! {
    /// weights of the mixing matrix; the rest of each row is the client's own weight
    pub(super) MIXING = "mixing", MIXINGS, default(Weighting::default());
    /// effect of a client's number of samples
    pub(super) SCALING = "scaling", SCALINGS, default(Scaling::default());
}

const COMPLETE: &str = "complete";
const RING: &str = "ring";
const TORUS: &str = "torus";
const ERDOS_RENYI: &str = "erdos-renyi";
/// The default of `p`.
const EDGE_PROBABILITY: f64 = 0.5;
const EDGES: &str = "edges";

static SHAPES: [Word; 5] = [
    Word { name: COMPLETE, doc: "all pairs" },
    Word { name: RING, doc: "each client with the next by name" },
    Word { name: TORUS, doc: "a periodic grid, as square as possible" },
    Word {
        name: ERDOS_RENYI,
        doc: "each pair with probability `p`, drawn until the graph is connected",
    },
    Word { name: EDGES, doc: "the pairs of `edges`, or of the file `path`" },
];
static KIND: JobKey = JobKey::default("kind", "", || text(ERDOS_RENYI), "the shape").words(&SHAPES);
define_keys! {
    /// probability of an edge
    P = "p", ABOVE_ZERO, default(EDGE_PROBABILITY), only (&[ERDOS_RENYI], "its edges are not drawn");
    /// whether the graph changes every round: erdos-renyi is redrawn, connected or not; ring and
    /// torus permute the clients
    REDRAW = "redraw", BOOLEAN, default(false), only (&[ERDOS_RENYI, RING, TORUS], "it is fixed");
    /// pairs such as ["a", "b"] or ["a", "b", 0.25]; with mixing = "given" a pair of a client with
    /// itself has its own weight
    PAIRS = "edges", PAIR_LIST, unset "`path` names a file",
        only (&[EDGES], "its edges follow from the number of clients");
    /// a text file with two names and optionally a weight per line, separated by commas or blanks
    PATH = "path", FILE, unset "`edges` lists the pairs",
        only (&[EDGES], "its edges follow from the number of clients");
}
static TOPOLOGY_SECTION: Section = Section {
    name: "topology",
    doc: "graph of the clients",
    keys: &[&KIND, &P, &REDRAW, &PAIRS, &PATH],
    example: "",
};

/// The graph of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbours {
    pub shape: GraphShape,
    /// Whether every round has a new graph.
    pub redraw: bool,
    /// The weights of the mixing matrix.
    pub mixing: Weighting,
    /// The role of a client's number of samples.
    pub scaling: Scaling,
}

/// The shape of a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum GraphShape {
    /// A shape determined by the number of clients.
    Of(Topology),
    /// Pairs by name.
    Edges(Vec<Edge>),
    /// Pairs in a file.
    File(PathBuf),
}

/// An edge between two clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    pub ends: [String; 2],
    pub weight: Option<f64>,
}

impl Neighbours {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let graph = reader.read(&TOPOLOGY, |v| match v.shape() {
            Shape::Text => {
                let word = v.text()?;
                match shape_of(&word, EDGE_PROBABILITY).filter(|_| word != EDGES) {
                    Some(shape) => Ok((shape, false)),
                    None if word == EDGES => Err(v.fail(
                        "an edge list needs edges",
                        "write topology = { kind = \"edges\", edges = [[\"a\", \"b\"], ..] }",
                    )),
                    None => Err(v.unknown_word(&word)),
                }
            }
            _ => read_graph(&v.table(&TOPOLOGY_SECTION)?),
        });
        let mixing = reader.read(&MIXING, |v| {
            let mixing = MIXINGS.read(&v)?;
            let listed = matches!(&graph, Ok((GraphShape::Edges(_) | GraphShape::File(_), _)));
            match (mixing, &graph) {
                (Weighting::Given, Ok(_)) if !listed => Err(v.fail(
                    "only an edge list has weights",
                    "write mixing = \"metropolis\", or kind = \"edges\" in `topology`",
                )),
                (Weighting::FastestMixing, Ok((_, true))) => Err(v.fail(
                    "fastest-mixing weights are computed for a fixed graph",
                    "write mixing = \"metropolis\", or take `redraw` out",
                )),
                _ => Ok(mixing),
            }
        });
        let scaling = reader.read_as(&SCALING, &SCALINGS);
        let (shape, redraw) = graph?;
        Ok(Self { shape, redraw, mixing: mixing?, scaling: scaling? })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let mut graph = Writer::default();
        let word = match &self.shape {
            GraphShape::Of(Topology::ErdosRenyi { .. }) => ERDOS_RENYI,
            GraphShape::Of(Topology::Ring) => RING,
            GraphShape::Of(Topology::Torus) => TORUS,
            GraphShape::Of(_) => COMPLETE,
            GraphShape::Edges(_) | GraphShape::File(_) => EDGES,
        };
        graph.only_for(word);
        graph.put(&KIND, text(word));
        match &self.shape {
            GraphShape::Of(Topology::ErdosRenyi { p }) => graph.put(&P, ABOVE_ZERO.write(p)),
            GraphShape::Of(_) => {}
            GraphShape::Edges(edges) => graph.put(&PAIRS, PAIR_LIST.write(edges)),
            GraphShape::File(path) => graph.put(&PATH, FILE.write(path)),
        }
        graph.put(&REDRAW, BOOLEAN.write(&self.redraw));
        out.put(&TOPOLOGY, graph.finish_inline());
        out.put(&MIXING, MIXINGS.write(&self.mixing));
        out.put(&SCALING, SCALINGS.write(&self.scaling));
    }

    /// Reports settings that a method without a server does not support.
    pub(super) fn check(&self, method: &str, job: &Job, source: &Source<'_>) {
        let (up, down) = (&job.uplink, &job.downlink);
        let plain = up.rule == UpRule::Plain && up.codec.is_exact() && up.own.is_empty();
        let tables = [("uplink", plain), ("downlink", down.is_exact() && down.own.is_empty())];
        for (table, _) in tables.iter().filter(|(_, fine)| !fine) {
            let what = format!("{method} has no server and therefore no [{table}]");
            let hint = "take the table out: neighbours exchange exact vectors";
            source.report_at(&[table], what, hint);
        }
        let faults = &job.simulation;
        let given = [
            ("lost", faults.lost > 0.0),
            ("drops", !faults.drops.is_empty()),
            ("late", !faults.late.is_empty()),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            let what = format!(
                "`{key}` has no meaning for {method}: all clients take part in every round"
            );
            source.report_at(&["simulation", key], what, "take it out");
        }
    }

    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match &mut self.shape {
            GraphShape::File(path) => vec![path],
            _ => Vec::new(),
        }
    }

    /// The graphs of the rounds, over the clients that train.
    pub(super) fn graphs(&self, common: &Common) -> Result<Graphs> {
        let clients = common.clients as u32;
        let topology = match &self.shape {
            GraphShape::Of(topology) => topology.clone(),
            GraphShape::Edges(edges) => self.listed(edges, common)?,
            GraphShape::File(path) => self.listed(&read_edges(path)?, common)?,
        };
        if self.redraw {
            return Ok(Graphs::redrawn(topology, self.mixing, clients)?);
        }
        // The fit is the job's first stage.
        let key = StageKeys::new(common.job.seed, 0).graph();
        Ok(Graphs::fixed(&topology, self.mixing, clients, key)?)
    }

    /// The topology of a list of edges; refuses edges that do not match `mixing`.
    fn listed(&self, edges: &[Edge], common: &Common) -> Result<Topology> {
        let given = self.mixing == Weighting::Given;
        for Edge { ends: [a, b], weight } in edges {
            let (what, hint) = match weight {
                None if given => ("no weight", "give every edge one, or mixing = \"metropolis\""),
                Some(_) if !given => ("a weight", "write mixing = \"given\", or take weights out"),
                Some(w) if *w == 0.0 && a != b => ("the weight 0", "take the edge out"),
                _ if a == b && !given => ("only one end", "an edge joins two clients"),
                _ => continue,
            };
            let what = format!("`topology`: the edge between `{a}` and `{b}` has {what}");
            return Err(Error::config(what).hint(hint).into());
        }
        Ok(Topology::Edges(places(edges, common)?))
    }

    /// A description of the graph.
    pub(super) fn describe(&self, graphs: &Graphs, common: &Common) -> Result<String> {
        let graph = graphs.graph(&StageKeys::new(common.job.seed, 0))?;
        let gap =
            graph.spectral_gap.map_or(String::new(), |gap| format!(", spectral gap {gap:.4}"));
        let each = if self.redraw { " in the first round" } else { "" };
        Ok(format!(
            "{} pairs of neighbours among {} clients{each}{gap}",
            graph.edges, graph.clients
        ))
    }
}

fn shape_of(word: &str, p: f64) -> Option<GraphShape> {
    Some(GraphShape::Of(match word {
        COMPLETE => Topology::Complete,
        RING => Topology::Ring,
        TORUS => Topology::Torus,
        ERDOS_RENYI => Topology::ErdosRenyi { p },
        _ => return None,
    }))
}

fn read_graph(table: &Reader<'_>) -> Read<(GraphShape, bool)> {
    let kind = table.read(&KIND, |v| {
        let word = v.text()?;
        SHAPES
            .iter()
            .find(|known| known.name == word)
            .map_or_else(|| Err(v.unknown_word(&word)), |known| Ok(known.name))
    })?;
    table.check_meaning(kind);
    let (p, redraw) = (table.read_as(&P, &ABOVE_ZERO), table.read_as(&REDRAW, &BOOLEAN));
    table.refuse_both(&PAIRS, &PATH)?;
    let (edges, path) = (table.optional_as(&PAIRS, &PAIR_LIST), table.optional_as(&PATH, &FILE));
    let shape = match (shape_of(kind, p?), edges?, path?) {
        (Some(shape), ..) => shape,
        (None, Some(edges), _) => GraphShape::Edges(edges),
        (None, None, Some(path)) => GraphShape::File(path),
        (None, None, None) => return Err(table.missing(&PAIRS)),
    };
    Ok((shape, redraw?))
}

const PAIR_LIST: Form<Vec<Edge>> = Form::new(
    "a list of pairs of client names, each with a weight or without",
    |v| v.list()?.iter().map(read_edge).collect(),
    |edges| {
        list(edges.iter().map(|Edge { ends, weight }| {
            list(ends.iter().map(|name| text(name)).chain(weight.map(number)))
        }))
    },
);

fn read_edge(value: &Value<'_>) -> Read<Edge> {
    let parts = value.list()?;
    let (a, b, weight) = match &parts[..] {
        [a, b] => (a.text()?, b.text()?, None),
        [a, b, weight] => {
            (a.text()?, b.text()?, Some(weight.number(|w| (0.0..=1.0).contains(&w))?))
        }
        _ => return Err(value.refuse()),
    };
    Ok(Edge { ends: [a, b], weight })
}

/// Reads edges from a file.
fn read_edges(path: &Path) -> Result<Vec<Edge>> {
    let content = std::fs::read_to_string(path)
        .map_err(|e| Error::data(format!("{}: {e}", path.display())))?;
    let mut edges = Vec::new();
    for (at, line) in content.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let parts: Vec<&str> = if line.contains(',') {
            line.split(',').map(str::trim).collect()
        } else {
            line.split_whitespace().collect()
        };
        let edge = match parts[..] {
            [a, b] => Some((a, b, None)),
            [a, b, w] => {
                w.parse().ok().filter(|w| (0.0..=1.0).contains(w)).map(|w| (a, b, Some(w)))
            }
            _ => None,
        };
        let Some((a, b, weight)) = edge else {
            let what = format!(
                "{}, line {}: an edge is two client names and at most a weight from 0 to 1",
                path.display(),
                at + 1
            );
            return Err(Error::data(what).into());
        };
        edges.push(Edge { ends: [a.into(), b.into()], weight });
    }
    Ok(edges)
}

/// Edges by the indices of their ends among the clients that train; an edge listed in both directions
/// with the same weight counts once.
fn places(edges: &[Edge], common: &Common) -> Result<Vec<(u32, u32, Option<f64>)>> {
    let roster = common.roster();
    let is_unseen = |at: usize| common.unseen.get(at).copied().unwrap_or_default();
    let place = |name: &String| -> Result<u32> {
        let at = roster.id_of(name, "topology.edges")?.0 as usize;
        if is_unseen(at) {
            let what = format!("`topology.edges` names client `{name}`, which does not train");
            return Err(Error::config(what).hint("list the clients that train").into());
        }
        Ok((0..at).filter(|before| !is_unseen(*before)).count() as u32)
    };
    let mut found: Vec<(u32, u32, Option<f64>)> = Vec::new();
    for Edge { ends: [a, b], weight } in edges {
        let (i, j) = (place(a)?, place(b)?);
        let (i, j) = (i.min(j), i.max(j));
        match found.iter().find(|(k, l, _)| (*k, *l) == (i, j)) {
            None => found.push((i, j, *weight)),
            Some((_, _, known)) if known == weight => {}
            Some(_) => {
                let what =
                    format!("the mixing matrix is not symmetric: `{a}` and `{b}` have two weights");
                return Err(Error::config(what).into());
            }
        }
    }
    check_edges(&found, common)?;
    Ok(found)
}

/// Refuses a graph that is not connected, and weights that are not doubly stochastic.
fn check_edges(edges: &[(u32, u32, Option<f64>)], common: &Common) -> Result<()> {
    let trains = |at: &usize| !common.unseen.get(*at).copied().unwrap_or_default();
    let names: Vec<&String> =
        (0..common.names.len()).filter(trains).map(|at| &common.names[at]).collect();
    if let Some(alone) = unreached(names.len() as u32, edges) {
        let (first, alone) = (names[0], names[alone as usize]);
        let what = format!("the graph is not connected: no path joins `{alone}` to `{first}`");
        return Err(Error::config(what).hint("add an edge to `topology`").into());
    }
    for (place, name) in names.iter().enumerate() {
        let of = edges.iter().filter(|(i, j, _)| [*i, *j].contains(&(place as u32)));
        let sum: f64 = of.clone().filter_map(|(_, _, weight)| *weight).sum();
        let has_own = of.clone().any(|(i, j, weight)| i == j && weight.is_some());
        if sum > 1.0 + ROUNDING || has_own && sum < 1.0 - ROUNDING {
            let what = format!(
                "the mixing matrix is not doubly stochastic: the weights of `{name}` sum to {sum}"
            );
            let hint = if has_own {
                "with its own weight they must sum to one"
            } else {
                "they must sum to at most one"
            };
            return Err(Error::config(what).hint(hint).into());
        }
    }
    Ok(())
}
