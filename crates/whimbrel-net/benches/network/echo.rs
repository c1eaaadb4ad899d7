//! A method that computes nothing: a vector down, the same one up, for so many rounds.

use std::hint::black_box;
use std::sync::Arc;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Disclosure, Evaluate, Method, Metric, Next, Sender,
};
use whimbrel_core::{ClientData, ClientId, DynMethod, Erased, Error, Key, Result};
use whimbrel_engine::run::{Stage, Stopping};
use whimbrel_engine::{Chain, Faults, Participation};

/// The method; its server knows no more than the round.
#[derive(Clone)]
pub struct Echo {
    pub numbers: usize,
    pub rounds: u32,
}

impl Method for Echo {
    type Data = ();
    type Server = u32;
    type Peer = ();
    type Client = ();
    type Summary = ();
    type Down = Vec<f64>;
    type Up = Vec<f64>;
    type Broadcast = ();
    type Fold = u32;

    fn enroll(&self, (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn start(&self, _: &mut dyn Iterator<Item = (ClientId, ())>, _: Key) -> Result<u32> {
        Ok(0)
    }

    fn admit(&self, _: &mut u32, _: ClientId, (): &()) -> Result<()> {
        Ok(())
    }

    fn allowances(&self) -> Vec<Allowance> {
        vec![Allowance::rounds(Some(self.rounds))]
    }

    fn next(&self, server: &u32) -> Next {
        match *server < self.rounds {
            true => Next::Round(Cohort::Everyone),
            false => Next::Stop,
        }
    }

    fn broadcast(&self, _: &u32) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, server: &u32, (): &(), (): &(), _: Key) -> Result<((), Vec<f64>)> {
        Ok(((), vec![f64::from(*server); self.numbers]))
    }

    fn local_step(&self, (): &(), down: &Vec<f64>, (): &(), _: Key) -> Result<((), Vec<f64>)> {
        Ok(((), down.clone()))
    }

    fn fold(&self, _: &u32) -> u32 {
        0
    }

    fn absorb(&self, fold: &mut u32, _: Sender<'_, ()>, up: Vec<f64>) -> Result<()> {
        if black_box(&up).len() != self.numbers {
            return Err(Error::peer("an echo of another length"));
        }
        *fold += 1;
        Ok(())
    }

    fn merge(&self, fold: &mut u32, other: u32) -> Result<()> {
        *fold += other;
        Ok(())
    }

    fn server_step(&self, server: u32, _: u32, _: Key) -> Result<u32> {
        Ok(server + 1)
    }

    fn magnitude(&self, _: &u32) -> f64 {
        1.0
    }

    fn artifact(&self, _: &u32) -> Result<Artifact> {
        Ok(Artifact::default())
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        Vec::new()
    }
}

impl Evaluate for Echo {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &u32) -> Result<()> {
        Ok(())
    }

    fn answer(&self, (): &(), (): &(), (): &()) -> Result<()> {
        Ok(())
    }

    fn loss(&self, (): &()) -> Option<f64> {
        None
    }

    fn conclude(
        &self,
        _: &u32,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
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

impl Chain for Echo {
    fn len(&self) -> usize {
        1
    }

    fn build(&self, _: usize, _: &[Artifact]) -> Result<Stage> {
        let method: Arc<dyn DynMethod> = Arc::new(Erased(self.clone(), NoData));
        Ok(Stage {
            name: "echo",
            method: method.into(),
            participation: Participation::Everyone,
            faults: Faults::default(),
            evaluate_every: None,
            stopping: Stopping::default(),
        })
    }
}
