//! A method that computes nothing: a vector down, the same one up, for so many rounds.

use std::hint::black_box;
use std::sync::Arc;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Cohort, Declaration, Done, Evaluate, Method, Metric,
    Next, Sender, Status,
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

    fn declare(&self) -> Declaration {
        Declaration {
            exchanges: vec![Allowance::rounds(Some(self.rounds))],
            ..Declaration::default()
        }
    }

    fn enroll(&self, (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn start(&self, _: &mut dyn Iterator<Item = (ClientId, ())>, _: Key) -> Result<u32> {
        Ok(0)
    }

    fn admit(&self, _: &mut u32, _: ClientId, (): &()) -> Result<()> {
        Ok(())
    }

    fn status(&self, server: &u32) -> Status {
        let more = *server < self.rounds;
        let next = if more { Next::Round(Cohort::Everyone) } else { Next::Stop };
        Status::new(next, 1.0)
    }

    fn open(&self, _: &u32, _: &[ClientId]) -> Result<((), u32)> {
        Ok(((), 0))
    }

    fn downlink(&self, server: &u32, (): &(), (): &(), _: Key) -> Result<((), Vec<f64>)> {
        Ok(((), vec![f64::from(*server); self.numbers]))
    }

    fn local_step(&self, (): &(), down: &Vec<f64>, (): &(), _: Key) -> Result<Done<Self>> {
        Ok(Done::new((), down.clone()))
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

    fn artifact(&self, _: &u32) -> Result<Artifact> {
        Ok(Artifact::default())
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

    fn conclude(
        &self,
        _: &u32,
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
