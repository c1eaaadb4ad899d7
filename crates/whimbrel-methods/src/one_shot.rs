//! Stages without rounds: what they deliver is a function of the summaries that clients send when
//! they enrol. Preparation and the start of a mixture are such stages.

use crate::federated::BindRows;
use crate::no_evaluation::no_evaluation;
use whimbrel_core::method::{Allowance, Artifact, Bind, Disclosure, Next, Sender};
use whimbrel_core::{ClientData, ClientId, Key, Method, Result, Wire, vector};

/// One message from everyone, and what the server makes of them.
pub trait OneShot: Send + Sync + 'static {
    /// What a client holds, as this stage reads it.
    type Data: Send + Sync + 'static;
    /// What it sends.
    type Summary: Wire;

    /// Checks and lays out one client's rows.
    fn read(&self, data: &ClientData) -> Result<Self::Data>;
    /// What a client tells about its rows.
    fn summarise(&self, data: &Self::Data, key: Key) -> Result<Self::Summary>;
    /// The result, from the summaries in id order.
    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Artifact>;
    /// What the summary is and can give away.
    fn disclosure(&self) -> Disclosure;
}

/// A stage without rounds as a method: it is over once everyone has enrolled.
pub struct Once<S>(pub S);

impl<S: OneShot> Bind<Once<S>> for BindRows {
    fn bind(&self, stage: &Once<S>, data: &ClientData) -> Result<S::Data> {
        stage.0.read(data)
    }
}

impl<S: OneShot> Method for Once<S> {
    type Data = S::Data;
    type Server = Artifact;
    type Peer = ();
    type Client = ();
    type Summary = S::Summary;
    type Down = ();
    type Up = ();
    type Broadcast = ();
    type Fold = ();
    const ENROLS_ONLY: bool = true;

    fn enroll(&self, data: &S::Data, key: Key) -> Result<((), S::Summary)> {
        Ok(((), self.0.summarise(data, key)?))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, S::Summary)>,
        key: Key,
    ) -> Result<Artifact> {
        self.0.pool(roster, key)
    }

    fn admit(&self, _: &mut Artifact, _: ClientId, _: &S::Summary) -> Result<()> {
        Ok(())
    }

    fn allowances(&self) -> Vec<Allowance> {
        Vec::new()
    }

    fn next(&self, _: &Artifact) -> Next {
        Next::Stop
    }

    fn broadcast(&self, _: &Artifact) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, _: &Artifact, (): &(), (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn local_step(&self, (): &(), (): &(), _: &S::Data, _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn fold(&self, _: &Artifact) {}

    fn absorb(&self, (): &mut (), _: Sender<'_, ()>, (): ()) -> Result<()> {
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<()> {
        Ok(())
    }

    fn server_step(&self, server: Artifact, (): (), _: Key) -> Result<Artifact> {
        Ok(server)
    }

    fn without_clients(&self, server: Artifact) -> Result<Artifact> {
        Ok(server)
    }

    fn magnitude(&self, server: &Artifact) -> f64 {
        server.tensors.iter().map(|t| vector::norm2_squared(&t.values)).sum::<f64>().sqrt()
    }

    fn artifact(&self, server: &Artifact) -> Result<Artifact> {
        Ok(server.clone())
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        vec![self.0.disclosure()]
    }
}

no_evaluation!([S: OneShot] Once<S>);
