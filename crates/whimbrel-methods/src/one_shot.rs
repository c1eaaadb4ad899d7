//! Stages without rounds: their result is a function of the clients' messages at enrolment, as in
//! preparation and the start of a mixture.

use crate::federated::BindRows;
use crate::no_evaluation::no_evaluation;
use whimbrel_core::method::{Artifact, Bind, Declaration, Disclosure, Done, Next, Sender, Status};
use whimbrel_core::{ClientData, ClientId, Key, Method, Result, Wire, vector};

/// One message from every client, and the pooled result.
pub trait OneShot: Send + Sync + 'static {
    /// A client's rows.
    type Data: Send + Sync + 'static;
    /// A client's message.
    type Summary: Wire;

    /// Checks and lays out one client's rows.
    fn read(&self, data: &ClientData) -> Result<Self::Data>;
    /// A client's message about its rows.
    fn summarise(&self, data: &Self::Data, key: Key) -> Result<Self::Summary>;
    /// The result, from the summaries in id order.
    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Artifact>;
    /// The disclosure of the message.
    fn disclosure(&self) -> Disclosure;
}

/// A stage without rounds as a method: it ends with the enrolment.
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

    fn declare(&self) -> Declaration {
        let disclosures = vec![self.0.disclosure()];
        Declaration { disclosures, enrols_only: true, ..Declaration::default() }
    }

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

    fn status(&self, server: &Artifact) -> Status {
        let norms2 = server.tensors.iter().map(|t| vector::norm2_squared(&t.values));
        Status::new(Next::Converged, norms2.sum::<f64>().sqrt())
    }

    fn open(&self, _: &Artifact, _: &[ClientId]) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn downlink(&self, _: &Artifact, (): &(), (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn local_step(&self, (): &(), (): &(), _: &S::Data, _: Key) -> Result<Done<Self>> {
        Ok(Done::new((), ()))
    }

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

    fn artifact(&self, server: &Artifact) -> Result<Artifact> {
        Ok(server.clone())
    }
}

no_evaluation!([S: OneShot] Once<S>);
