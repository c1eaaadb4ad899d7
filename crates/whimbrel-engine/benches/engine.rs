//! What the engine itself costs: a method that computes nothing, with messages of 1,000 numbers
//! down (the same to everyone) and up, all of them encoded and decoded.
//!
//! `RAYON_NUM_THREADS=1 cargo bench -p whimbrel-engine` measures one core.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Cohort, Declaration, Done, Evaluate, Method, Metric,
    Next, Sender, Status,
};
use whimbrel_core::{Bound, ClientData, ClientId, Erased, Error, Key, Probability, Result, Shared};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};

/// 8 kB.
const NUMBERS: usize = 1000;

/// Sends a vector down and the same one up.
struct Echo;

impl Method for Echo {
    type Data = ();
    type Server = Vec<f64>;
    type Peer = ();
    type Client = ();
    type Summary = ();
    type Down = Shared<Vec<f64>>;
    type Up = Vec<f64>;
    type Broadcast = Shared<Vec<f64>>;
    type Fold = u32;

    fn declare(&self) -> Declaration {
        Declaration { exchanges: vec![Allowance::rounds(None)], ..Declaration::default() }
    }

    fn enroll(&self, (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn start(&self, _: &mut dyn Iterator<Item = (ClientId, ())>, key: Key) -> Result<Self::Server> {
        let mut state = vec![0.0; NUMBERS];
        key.stream().fill_normal(&mut state);
        Ok(state)
    }

    fn admit(&self, _: &mut Vec<f64>, _: ClientId, (): &()) -> Result<()> {
        Ok(())
    }

    fn status(&self, _: &Vec<f64>) -> Status {
        Status::new(Next::Round(Cohort::Sampled), 1.0)
    }

    fn open(&self, server: &Vec<f64>, _: &[ClientId]) -> Result<(Shared<Vec<f64>>, u32)> {
        Ok((Shared::new(server), 0))
    }

    fn downlink(
        &self,
        _: &Vec<f64>,
        broadcast: &Shared<Vec<f64>>,
        (): &(),
        _: Key,
    ) -> Result<((), Shared<Vec<f64>>)> {
        Ok(((), broadcast.clone()))
    }

    fn local_step(&self, (): &(), down: &Shared<Vec<f64>>, (): &(), _: Key) -> Result<Done<Self>> {
        Ok(Done::new((), down.get()?.to_vec()))
    }

    fn absorb(&self, fold: &mut u32, _: Sender<'_, ()>, up: Vec<f64>) -> Result<()> {
        if black_box(&up).len() != NUMBERS {
            return Err(Error::peer("an echo of another length"));
        }
        *fold += 1;
        Ok(())
    }

    fn merge(&self, fold: &mut u32, other: u32) -> Result<()> {
        *fold += other;
        Ok(())
    }

    fn server_step(&self, server: Vec<f64>, _: u32, _: Key) -> Result<Vec<f64>> {
        Ok(server)
    }

    fn artifact(&self, _: &Vec<f64>) -> Result<Artifact> {
        Ok(Artifact::default())
    }
}

impl Evaluate for Echo {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Vec<f64>) -> Result<()> {
        Ok(())
    }

    fn answer(&self, (): &(), (): &(), (): &()) -> Result<()> {
        Ok(())
    }

    fn conclude(
        &self,
        _: &Vec<f64>,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
        _: ClientGroup,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

struct NoData;

impl Bind<Echo> for NoData {
    fn bind(&self, _: &Echo, _: &ClientData) -> Result<()> {
        Ok(())
    }
}

fn client_rounds(c: &mut Criterion) {
    let mut group = c.benchmark_group("client-round of a no-op method, 8 kB each way");
    let method = Arc::new(Erased(Echo, NoData));
    for clients in [100, 10_000] {
        let federation = Arc::new(Federation::new(
            (0..clients).map(|i| i.to_string()).collect(),
            (0..clients).map(|_| Box::new(()) as Bound).collect(),
        ));
        let everyone = ("everyone", Participation::Everyone, clients as u64);
        let tenth = Participation::Bernoulli(Probability::new(0.1).expect("a probability"));
        let tenth = ("a tenth", tenth, clients as u64 / 10);
        for (who, participation, asked) in [everyone, tenth] {
            let keys = StageKeys::new(1, 0);
            let start = Simulator::start(
                method.clone(),
                federation.clone(),
                keys,
                participation,
                Faults::default(),
            );
            let mut simulator = start.expect("an echo starts");
            group.throughput(Throughput::Elements(asked));
            group.bench_function(BenchmarkId::new(who, clients), |b| {
                b.iter(|| simulator.step().expect("an echo steps"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, client_rounds);
criterion_main!(benches);
