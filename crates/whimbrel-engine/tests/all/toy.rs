//! A mean estimator with memories on both ends.
//!
//! Client `i` knows a mean `m_i`. In each exchange it sends `c = m_i + noise - h_i` and, once that
//! is accepted, moves `h_i += c / 2`; the server adds `n_i c / 2` to the sum of memories and moves
//! its estimate towards them. Means, noise and memories are small multiples of powers of two, so
//! sums of memories are exact and the invariant can be checked with `==`.
//!
//! Both ends count the accepted uploads. Each message down says how many the server knows of, and a
//! client that knows another number refuses: a breach of the commit rule is an error at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use whimbrel_core::declare::{Measure, OverClients};
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Cohort, Declaration, Disclosure, Done, Evaluate,
    Exposure, Method, Metric, Next, Sender, Status, Task,
};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Error, Key, Opaque, Result, Spread, Table, wire,
};
use whimbrel_engine::{Federation, Simulator, Stage};

pub struct Toy {
    pub rounds: u32,
    /// Whether a first exchange with everyone opens the estimate.
    pub opening: bool,
    /// The estimate is multiplied with this after every round.
    pub growth: f64,
    /// Clients from this one on fail in a round.
    pub fails: Option<(ClientId, u32)>,
    /// So many clients are taken together.
    pub batch: usize,
    /// The longest upload that it declares; zero where it declares none.
    pub up_bytes: usize,
}

/// The most clients that were handed over together.
pub static TOGETHER: AtomicUsize = AtomicUsize::new(0);

pub const SOUND: Toy =
    Toy { rounds: 12, opening: true, growth: 1.0, fails: None, batch: 1, up_bytes: 0 };

#[derive(Clone, Debug)]
pub struct Server {
    pub open: bool,
    pub round: u32,
    pub estimate: f64,
    pub memory_sum: f64,
    pub total: f64,
}

#[derive(Clone, Debug)]
pub struct Peer {
    pub weight: f64,
    pub accepted: u32,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub memory: f64,
    pub accepted: u32,
}

#[derive(Clone, Debug)]
pub struct Down {
    round: u32,
    known: u32,
}

#[derive(Clone, Debug)]
pub struct Fold {
    estimate: ExactSum,
    memory: ExactSum,
}

wire!(Server { open, round, estimate, memory_sum, total });
wire!(Peer { weight, accepted });
wire!(Client { memory, accepted });
wire!(Down { round, known });
wire!(Fold { estimate, memory });

pub struct Means;

impl Bind<Toy> for Means {
    fn bind(&self, _: &Toy, data: &ClientData) -> Result<Vec<f64>> {
        match data {
            ClientData::Table(table) if table.rows() > 0 => Ok(table.values.clone()),
            _ => Err(Error::data("there are no rows")),
        }
    }
}

impl Method for Toy {
    type Data = Vec<f64>;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = u32;
    type Down = Down;
    type Up = f64;
    type Broadcast = ();
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        let (meaning, exposure) = ("a step".to_owned(), Exposure::Aggregate);
        let up = Disclosure { message: "up", meaning, bytes_max: self.up_bytes, exposure };
        Declaration {
            exchanges: vec![Allowance::rounds(Some(self.rounds + u32::from(self.opening)))],
            disclosures: (self.up_bytes > 0).then_some(up).into_iter().collect(),
            measures: vec![
                Measure::objective("Sum of distances").clients(OverClients::Sum),
                Measure::new("unseen", "Unseen", "unseen", "Losses of unseen clients"),
            ],
            batch: self.batch,
            enrols_only: false,
            ..Declaration::default()
        }
    }

    fn enroll(&self, data: &Vec<f64>, _: Key) -> Result<(Client, u32)> {
        Ok((Client { memory: 0.0, accepted: 0 }, data.len() as u32))
    }

    fn start(&self, roster: &mut dyn Iterator<Item = (ClientId, u32)>, _: Key) -> Result<Server> {
        if roster.count() == 0 {
            return Err(Error::data("there is no client"));
        }
        let open = !self.opening;
        Ok(Server { open, round: 0, estimate: 1.0, memory_sum: 0.0, total: 0.0 })
    }

    fn admit(&self, server: &mut Server, _: ClientId, rows: &u32) -> Result<Peer> {
        let weight = f64::from(*rows);
        server.total += weight;
        Ok(Peer { weight, accepted: 0 })
    }

    fn rows(&self, peer: &Peer) -> Option<u64> {
        Some(peer.weight as u64)
    }

    fn status(&self, server: &Server) -> Status {
        let next = if !server.open {
            Next::Uncounted
        } else if server.round < self.rounds {
            Next::Round(Cohort::Sampled)
        } else {
            Next::Stop
        };
        Status::new(next, server.estimate.abs())
    }

    fn open(&self, _: &Server, _: &[ClientId]) -> Result<((), Fold)> {
        Ok(((), Fold { estimate: ExactSum::new(1), memory: ExactSum::new(1) }))
    }

    fn downlink(&self, server: &Server, (): &(), peer: &Peer, _: Key) -> Result<(Peer, Down)> {
        let down = Down { round: server.round, known: peer.accepted };
        Ok((Peer { accepted: peer.accepted + 1, ..peer.clone() }, down))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Vec<f64>,
        key: Key,
    ) -> Result<Done<Self>> {
        if down.known != client.accepted {
            return Err(Error::internal(format!(
                "the server knows {} accepted uploads, the client {}",
                down.known, client.accepted
            )));
        }
        if let Some((id, round)) = self.fails
            && data[0] >= f64::from(id.0)
            && down.round + 1 == round
        {
            // The first of them takes longest: where there are threads, others fail before it.
            if data[0] == f64::from(id.0) {
                (0..2000).for_each(|_| std::thread::yield_now());
            }
            return Err(Error::numerical(format!("the numbers of client {} failed", data[0])));
        }
        let noise = key.stream().below(16) as f64 / 16.0;
        let sent = data[0] + noise - client.memory;
        let memory = client.memory + sent / 2.0;
        Ok(Done::new(Client { memory, accepted: client.accepted + 1 }, sent))
    }

    fn local_steps(&self, tasks: &[Task<'_, Self>], _: &dyn Spread) -> Vec<Result<Done<Self>>> {
        TOGETHER.fetch_max(tasks.len(), Ordering::Relaxed);
        let step = |t: &Task<'_, Self>| self.local_step(t.client, &t.down, t.data, t.key);
        tasks.iter().map(step).collect()
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: f64) -> Result<()> {
        fold.estimate.add(&[up], from.peer.weight / from.inclusion)?;
        fold.memory.add(&[up], from.peer.weight / 2.0)
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.estimate.merge(&other.estimate)?;
        fold.memory.merge(&other.memory)
    }

    fn server_step(&self, mut server: Server, fold: Fold, _: Key) -> Result<Server> {
        let heard = fold.memory.count() > 0;
        let mean = (server.memory_sum + fold.estimate.value()[0]) / server.total;
        server.memory_sum += fold.memory.value()[0];
        if server.open {
            server.round += 1;
            server.estimate += 0.25 * (mean - server.estimate);
            server.estimate *= self.growth;
        } else {
            server.open = heard;
        }
        Ok(server)
    }

    fn without_clients(&self, server: Server) -> Result<Server> {
        Ok(Server { open: !self.opening, memory_sum: 0.0, total: 0.0, ..server })
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        if !server.open {
            return Err(Error::numerical("there is no estimate yet"));
        }
        let artifact = Artifact::new("mean");
        Ok(artifact.with("mean", &[], vec![server.estimate]))
    }

    /// Its memory and its mean.
    fn client_artifact(&self, client: &Client, data: &Vec<f64>) -> Result<Option<Artifact>> {
        let artifact = Artifact::new("own");
        Ok(Some(artifact.with("memory", &[2], vec![client.memory, data[0]])))
    }
}

impl Evaluate for Toy {
    type Ask = f64;
    type Answer = f64;

    fn ask(&self, server: &Server) -> Result<f64> {
        Ok(server.estimate)
    }

    fn answer(&self, _: &Client, ask: &f64, data: &Vec<f64>) -> Result<f64> {
        Ok((ask - data[0]).abs())
    }

    fn own(&self, _: ClientId, _: Option<&Peer>, answer: &f64) -> Result<Vec<Metric>> {
        Ok(vec![Metric::loss(*answer)])
    }

    fn conclude(
        &self,
        _: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, f64)>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let gaps: Vec<f64> = answers.map(|(_, gap)| gap).collect();
        Ok(vec![match group {
            ClientGroup::Trained => Metric::number("objective", gaps.iter().sum()),
            ClientGroup::Unseen => Metric::list("unseen", gaps),
        }])
    }
}

pub fn erased(toy: Toy) -> Arc<dyn DynMethod> {
    Arc::new(Erased(toy, Means))
}

/// Client `i` has `2^(i % 3)` rows that all hold `i`.
pub fn clients(count: u32) -> Vec<(String, ClientData)> {
    (0..count)
        .map(|i| {
            let table = Table::new(vec!["x".into()], vec![f64::from(i); 1 << (i % 3)]).unwrap();
            (format!("c{i:02}"), ClientData::Table(table))
        })
        .collect()
}

pub fn federation(method: &dyn DynMethod, count: u32) -> Arc<Federation> {
    let bound = clients(count).into_iter().map(|(name, data)| (name, method.bind(&data).unwrap()));
    let (names, data) = bound.unzip();
    Arc::new(Federation::new(names, data))
}

/// A stage of the toy: all clients take part, nothing is lost, and nothing is evaluated.
pub fn stage(toy: Toy) -> Stage {
    Stage::new("fit", erased(toy))
}

pub fn view<T: 'static>(state: &Opaque) -> &T {
    state.downcast_ref().unwrap()
}

/// What holds after every exchange, whatever was lost and whoever joined.
pub fn invariants(simulator: &Simulator) -> Result<(), String> {
    let machine = simulator.machine();
    let server: &Server = view(machine.server());
    let (mut total, mut memory_sum) = (0.0, 0.0);
    for (i, client) in simulator.clients().iter().enumerate() {
        let client: &Client = view(client);
        let Some(peer) = machine.peer(ClientId(i as u32)) else {
            let untouched = client.accepted == 0 && simulator.tallies()[i] == Default::default();
            if untouched {
                continue;
            }
            return Err(format!("client {i} took part before it joined"));
        };
        let peer: &Peer = view(peer);
        if peer.accepted != client.accepted {
            return Err(format!(
                "client {i}: {} uploads accepted here, {} there",
                peer.accepted, client.accepted
            ));
        }
        let rounds = simulator.tallies()[i].rounds;
        if !(client.accepted..=client.accepted + 1).contains(&(rounds + 1)) {
            return Err(format!("client {i}: {rounds} rounds counted of {}", client.accepted));
        }
        total += peer.weight;
        memory_sum += peer.weight * client.memory;
    }
    if (total, memory_sum) != (server.total, server.memory_sum) {
        return Err(format!(
            "weights {total}, memories {memory_sum}; the server has {}, {}",
            server.total, server.memory_sum
        ));
    }
    let traffic = simulator.traffic();
    let each = simulator.tallies();
    let (up, down) =
        (each.iter().map(|t| t.bytes_up).sum(), each.iter().map(|t| t.bytes_down).sum());
    if (traffic.up, traffic.down) != (up, down) {
        return Err(format!("clients sent {up} and got {down} bytes, {traffic:?} was counted"));
    }
    Ok(())
}
