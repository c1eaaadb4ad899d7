//! Methods whose server handles each client's upload by itself instead of their mean: `clustered` and
//! `mocha`.
//!
//! Weights, enrolment, folds, counts and evaluations are written once, for every [`PerClientRule`]. Uploads
//! are exact. The server keeps a round's uploads until the round ends: cohort times model.

use super::evaluate::{self, Told};
use super::{Ensemble, Own, Personal};
use crate::federated::{BindRows, Oracle, Split, aggregate, optional};
use crate::settings::{Budget, Weights, check_rows, check_sums};
use whimbrel_codec::Scalar;
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Cohort, Declaration, Done, Evaluate, Method, Metric,
    Next, Sender, Status,
};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, Samples, State, Wire, wire};

/// The whole method around a rule.
pub struct PerClient<R> {
    pub rule: R,
    pub weights: Weights,
    pub budget: Budget,
}

/// The part of a method that its paper defines. Methods in call order.
pub trait PerClientRule: Send + Sync + 'static {
    /// The layout of a client's training rows.
    type Rows: Send + Sync + 'static;
    type Global: State;
    /// The unit in which growth is measured.
    type Scale: State;
    type Client: State;
    type Down: Wire;
    /// The width of uploads.
    type Number: Scalar;
    type Ask: Wire + Send + Sync + 'static;

    /// Whether an exchange after the rounds delivers the result to the clients.
    const DELIVERS: bool = false;

    /// The learner and its local training.
    fn training(&self) -> &Personal;
    fn lay_out(&self, train: &Samples) -> Result<Self::Rows>;
    fn enroll(&self, train: &Samples) -> Self::Client;
    fn start(&self, key: Key) -> Result<(Self::Global, Self::Scale)>;
    /// Adds a client; returns its place among the uploads.
    fn admit(&self, to: &mut Self::Global, id: ClientId, weight: f64) -> u32;
    /// The message of a round, or of the exchange that delivers the result (`None`).
    fn message(&self, global: &Self::Global, place: u32, round: Option<u32>) -> Self::Down;
    /// The client's next state and its upload.
    fn local(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &(Split<Samples>, Self::Rows),
        key: Key,
    ) -> Result<(Self::Client, Vec<Self::Number>)>;
    /// Rows behind one upload.
    fn rows_used(&self, rows: u64) -> u64 {
        self.training().solver.rows_used(rows)
    }
    /// Moves the global state by the uploads, in order of places; returns the squared norm of the move.
    fn step(&self, to: &mut Self::Global, from: &[Upload<Self::Number>], round: u32)
    -> Result<f64>;
    /// Whether the clients have the result.
    fn delivered(&self, _: &Self::Global) -> bool {
        true
    }
    /// Notes that the clients have the result.
    fn deliver(&self, _: &mut Self::Global) {}
    fn magnitude(&self, global: &Self::Global, scale: &Self::Scale) -> f64;
    /// Adds the global state to the run's result.
    fn artifact(&self, global: &Self::Global, to: Artifact) -> Artifact;
    fn own(client: &Self::Client) -> Own;
    /// The figures of a client's predictor.
    fn answer(&self, own: &Ensemble, parts: &Split<Samples>) -> Result<Told> {
        self.training().answer_with(own, parts)
    }
    fn ask(&self, global: &Self::Global) -> Self::Ask;
    /// The shared vector in the form of [`LocalRule::personal`](super::LocalRule::personal).
    fn shared(&self, ask: &Self::Ask) -> Vec<f32>;
    /// The declaration of [`figure`](Self::figure).
    fn measure() -> Option<Measure> {
        None
    }
    /// A figure of the global state.
    fn figure(_: &Self::Global) -> f64 {
        0.0
    }
}

/// A client's place and its vector.
pub type Upload<T> = (u32, Vec<T>);

/// The global state, and counts.
#[derive(Clone, Debug)]
pub struct Server<G, S> {
    round: u32,
    global: G,
    rows: u64,
    rows_used: u64,
    update_norm2: Option<f64>,
    /// The largest of the run.
    update_norm2_max: f64,
    scale: S,
}

/// The server's record of a client.
#[derive(Clone, Debug)]
pub struct Peer {
    place: u32,
    rows: u64,
}

/// The uploads of a round, in order of places.
#[derive(Clone, Debug)]
pub struct Fold<T> {
    uploads: Vec<Upload<T>>,
    rows_used: u64,
}

wire!(Server<G: Wire, S: Wire> { round, global, rows, rows_used, update_norm2, update_norm2_max, scale });
wire!(Peer { place, rows });
wire!(Fold<T: Wire> { uploads, rows_used });

impl<G, S> Server<G, S> {
    fn epoch(&self) -> f64 {
        self.rows_used as f64 / self.rows.max(1) as f64
    }
}

impl<R: PerClientRule> PerClient<R> {
    fn training(&self) -> &Personal {
        self.rule.training()
    }

    fn is_spent(&self, server: &Server<R::Global, R::Scale>) -> bool {
        self.budget.is_spent(server.round, server.epoch())
    }
}

impl<R: PerClientRule> Method for PerClient<R> {
    type Data = (Split<Samples>, R::Rows);
    type Server = Server<R::Global, R::Scale>;
    type Peer = Peer;
    type Client = R::Client;
    type Summary = u64;
    type Down = R::Down;
    type Up = Vec<R::Number>;
    type Broadcast = ();
    type Fold = Fold<R::Number>;

    fn declare(&self) -> Declaration {
        let whole = size_of::<R::Number>() * self.training().learner.parameters() + 32;
        let disclosures = vec![
            aggregate("summary", "the number of samples", 16),
            aggregate("up", self.training().rule.sent(), whole),
            evaluate::disclosure(),
        ];
        // A delivery counts among the rounds that a client answers.
        let delivery = u32::from(R::DELIVERS);
        let most = self.budget.rounds_max().map(|most| most.saturating_add(delivery));
        let exchanges = vec![Allowance::rounds(most)];
        let measures = self.training().told_measures(R::measure());
        Declaration { exchanges, disclosures, measures, ..Declaration::default() }
    }

    fn enroll(&self, (parts, _): &Self::Data, _: Key) -> Result<(R::Client, u64)> {
        Ok((self.rule.enroll(&parts.train), parts.rows[0]))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, u64)>,
        key: Key,
    ) -> Result<Self::Server> {
        if roster.next().is_none() {
            return Err(Error::data("there is no client to start with"));
        }
        let (global, scale) = self.rule.start(key)?;
        Ok(Server {
            round: 0,
            global,
            rows: 0,
            rows_used: 0,
            update_norm2: None,
            update_norm2_max: 0.0,
            scale,
        })
    }

    fn admit(&self, server: &mut Self::Server, id: ClientId, rows: &u64) -> Result<Peer> {
        let weight = self.weights.of(id, *rows)?;
        let place = self.rule.admit(&mut server.global, id, weight);
        server.rows += rows;
        Ok(Peer { place, rows: *rows })
    }

    fn rows(&self, peer: &Peer) -> Option<u64> {
        Some(peer.rows)
    }

    fn status(&self, server: &Self::Server) -> Status {
        let next = if !self.is_spent(server) {
            Next::Round(Cohort::Sampled)
        } else if !self.rule.delivered(&server.global) {
            Next::Uncounted
        } else {
            Next::Stop
        };
        Status::new(next, self.rule.magnitude(&server.global, &server.scale))
    }

    fn open(&self, _: &Self::Server, _: &[ClientId]) -> Result<((), Self::Fold)> {
        Ok(((), Fold { uploads: Vec::new(), rows_used: 0 }))
    }

    fn downlink(
        &self,
        server: &Self::Server,
        (): &(),
        peer: &Peer,
        _: Key,
    ) -> Result<(Peer, R::Down)> {
        let round = (!self.is_spent(server)).then_some(server.round);
        Ok((peer.clone(), self.rule.message(&server.global, peer.place, round)))
    }

    fn local_step(
        &self,
        client: &R::Client,
        down: &R::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<Done<Self>> {
        let (client, up) = self.rule.local(client, down, data, key)?;
        Ok(Done::new(client, up))
    }

    fn absorb(
        &self,
        fold: &mut Self::Fold,
        from: Sender<'_, Peer>,
        up: Vec<R::Number>,
    ) -> Result<()> {
        if up.len() != self.training().learner.parameters() {
            return Err(Error::peer(format!("client {} sent a vector of another length", from.id)));
        }
        check_sums(from.id, &up.iter().map(|x| x.wide()).collect::<Vec<_>>())?;
        let Peer { place, rows } = *from.peer;
        fold.rows_used += self.rule.rows_used(rows);
        let at = fold.uploads.partition_point(|(other, _)| *other < place);
        fold.uploads.insert(at, (place, up));
        Ok(())
    }

    fn merge(&self, fold: &mut Self::Fold, other: Self::Fold) -> Result<()> {
        fold.uploads.extend(other.uploads);
        fold.uploads.sort_by_key(|(place, _)| *place);
        fold.rows_used += other.rows_used;
        Ok(())
    }

    fn server_step(
        &self,
        mut server: Self::Server,
        fold: Self::Fold,
        _: Key,
    ) -> Result<Self::Server> {
        if self.is_spent(&server) {
            self.rule.deliver(&mut server.global);
            return Ok(server);
        }
        server.rows_used += fold.rows_used;
        server.round += 1;
        let norm2 = self.rule.step(&mut server.global, &fold.uploads, server.round)?;
        server.update_norm2 = Some(norm2);
        server.update_norm2_max = server.update_norm2_max.max(norm2);
        Ok(server)
    }

    fn artifact(&self, server: &Self::Server) -> Result<Artifact> {
        let artifact = Artifact::new(self.training().learner.name());
        Ok(self.rule.artifact(&server.global, artifact))
    }

    fn client_artifact(&self, client: &R::Client, _: &Self::Data) -> Result<Option<Artifact>> {
        let own = R::own(client);
        Ok((!own.is_empty()).then(|| own.artifact(self.training().learner.name())))
    }
}

impl<R: PerClientRule> Evaluate for PerClient<R> {
    type Ask = R::Ask;
    type Answer = Told;

    fn ask(&self, server: &Self::Server) -> Result<R::Ask> {
        Ok(self.rule.ask(&server.global))
    }

    fn answer(&self, client: &R::Client, ask: &R::Ask, (parts, _): &Self::Data) -> Result<Told> {
        let (training, shared) = (self.training(), self.rule.shared(ask));
        let (rate, own) = (training.rates.initial, R::own(client));
        self.rule.answer(&training.predictor(&shared, rate, &own, &parts.train)?, parts)
    }

    fn own(&self, id: ClientId, peer: Option<&Peer>, told: &Told) -> Result<Vec<Metric>> {
        peer.map_or(Ok(()), |peer| check_rows(id, told.rows, peer.rows))?;
        self.training().check_told(id, told)?;
        Ok(self.training().own_figures(told.answer, &told.parts))
    }

    fn conclude(
        &self,
        server: &Self::Server,
        answers: &mut dyn Iterator<Item = (ClientId, Told)>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        if group == ClientGroup::Unseen {
            return self.training().pool_unseen(answers);
        }
        let mut metrics = vec![Metric::number("epoch", server.epoch())];
        let figure = R::measure().map(|m| Metric::number(m.key, R::figure(&server.global)));
        metrics.extend(figure);
        metrics.extend(self.training().pool_told(self.weights, answers)?);
        let most = server.update_norm2_max;
        let relative =
            server.update_norm2.filter(|_| most > 0.0).map(|norm2| (norm2 / most).sqrt());
        metrics.push(optional("update_norm2", server.update_norm2));
        metrics.push(optional("update_relative", relative));
        Ok(metrics)
    }
}

impl<R: PerClientRule> Bind<PerClient<R>> for BindRows {
    fn bind(&self, method: &PerClient<R>, data: &ClientData) -> Result<(Split<Samples>, R::Rows)> {
        let parts = Split::bind(data, |rows| method.training().bind(rows))?;
        let rows = method.rule.lay_out(&parts.train)?;
        Ok((parts, rows))
    }
}
