//! Methods whose uploads are sums over rows and whose server needs only their sums over clients.
//!
//! Sums are exact, so that they hide nothing and lose nothing: a method ends in the same bits
//! with and without masks, without a codec.

mod lanes;
mod totals;

pub use lanes::{LANES, Lanes, MAGNITUDE_MAX, TERMS_MAX, words};
pub use totals::{Stage, Totals};

use crate::federated::BindRows;
use crate::masked::{BindMasked, Masked, Masks, Sums};
use crate::no_evaluation::asks_nothing;
use crate::settings::ROWS_MAX;
use std::sync::Arc;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Declaration, Done, Evaluate, Metric, Next, Place,
    Sender, Status,
};
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Error, Key, Method, Result, Segment, State, Wire, wire,
};

/// Exchanges of sums, between which the server computes the next question.
pub trait Pooled: Send + Sync + 'static {
    /// A client's rows.
    type Data: Send + Sync + 'static;
    /// The server's state.
    type State: State;
    /// The question to all clients.
    type Ask: State;

    /// Limits, disclosures and figures. An upload has 8 bytes per number.
    fn declare(&self) -> Declaration;
    /// Checks and lays out one client's rows.
    fn read(&self, data: &ClientData) -> Result<Self::Data>;
    fn rows(&self, data: &Self::Data) -> u64;
    fn start(&self, key: Key) -> Result<Self::State>;
    /// The next exchange and the norm of the state.
    fn status(&self, state: &Self::State) -> Status;
    /// The question of the next exchange.
    fn ask(&self, state: &Self::State) -> Result<Self::Ask>;
    /// The kind of exchange: an index into [`Declaration::exchanges`].
    fn kind(&self, _ask: &Self::Ask) -> usize {
        0
    }
    /// The number of sums that answer a question.
    fn length(&self, ask: &Self::Ask) -> usize;
    /// Most numbers that may follow a client's sums: its own, which are not summed and have no masks.
    fn own_max(&self, _: &Self::Ask) -> usize {
        0
    }
    /// A client's sums, and its own numbers after them.
    fn sums(&self, ask: &Self::Ask, data: &Self::Data) -> Result<Vec<f64>>;
    /// Moves the state by the sums over clients; `None` if nobody answered.
    fn step(&self, state: &mut Self::State, sums: Option<Answered<'_>>) -> Result<()>;
    /// Takes note of a client that joined after the first exchange. Under masks, a question that is
    /// asked again of more clients would reveal the difference, and the client is refused.
    fn joined(&self, _: &mut Self::State, _masked: bool) -> Result<()> {
        Ok(())
    }
    /// The figures of an evaluation, from the server's state alone.
    fn figures(&self, _: &Self::State) -> Vec<Metric> {
        Vec::new()
    }
    fn artifact(&self, state: &Self::State) -> Result<Artifact>;
}

/// Sums over the clients that answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    pub sums: &'a [f64],
    /// The clients' own numbers, by id.
    pub own: &'a [(u32, Vec<f64>)],
    /// Whether all enrolled clients answered.
    pub complete: bool,
}

/// The most repetitions of an exchange before the rounds: one without answers is asked again.
pub(crate) const OPENINGS_MAX: u32 = 10;

/// One kind of exchange before the rounds.
pub(crate) fn opening(name: &'static str, rank: u8) -> Allowance {
    Allowance { name, rank, most: Some(OPENINGS_MAX) }
}

/// The method.
pub struct ExactSums<P> {
    pub method: P,
    pub masks: Option<Masks>,
}

/// The server's state.
#[derive(Clone, Debug)]
pub struct Server<S> {
    pub own: S,
    clients: u32,
    exchanges: u32,
}

wire!(Server<S: Wire> { own, clients, exchanges });

/// The answers to a question.
#[derive(Clone, Debug)]
pub struct Gathered {
    sums: Lanes,
    own_max: u32,
    own: Vec<(u32, Vec<f64>)>,
}

wire!(Gathered { sums, own_max, own });

impl<P: Pooled> ExactSums<P> {
    /// The method for the engine, under masks if it has them.
    pub fn erased(self, bind: impl Bind<Self>) -> Arc<dyn DynMethod> {
        match self.masks {
            Some(masks) => Arc::new(Erased(Masked::new(self, &masks), BindMasked(bind))),
            None => Arc::new(Erased(self, bind)),
        }
    }
}

impl<P: Pooled> Bind<ExactSums<P>> for BindRows {
    fn bind(&self, exact: &ExactSums<P>, data: &ClientData) -> Result<P::Data> {
        exact.method.read(data)
    }
}

impl<P: Pooled> Method for ExactSums<P> {
    type Data = P::Data;
    type Server = Server<P::State>;
    /// The number of rows.
    type Peer = u64;
    type Client = ();
    type Summary = u64;
    type Down = P::Ask;
    type Up = Vec<f64>;
    type Broadcast = Option<P::Ask>;
    type Fold = Gathered;

    fn declare(&self) -> Declaration {
        let mut declared = self.method.declare();
        if self.masks.is_some() {
            let up = declared.disclosures.iter_mut().filter(|d| d.message == "up");
            up.for_each(|d| d.bytes_max *= LANES);
        }
        declared
    }

    fn enroll(&self, data: &P::Data, _: Key) -> Result<((), u64)> {
        Ok(((), self.method.rows(data)))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, u64)>,
        key: Key,
    ) -> Result<Self::Server> {
        let mut roster = roster.peekable();
        if roster.peek().is_none() {
            return Err(Error::data("there is no client"));
        }
        roster.try_for_each(|(id, rows)| check_rows(id, rows))?;
        Ok(Server { own: self.method.start(key)?, clients: 0, exchanges: 0 })
    }

    fn admit(&self, server: &mut Self::Server, id: ClientId, rows: &u64) -> Result<u64> {
        check_rows(id, *rows)?;
        if server.exchanges > 0 {
            self.method.joined(&mut server.own, self.masks.is_some())?;
        }
        server.clients += 1;
        Ok(*rows)
    }

    fn rows(&self, peer: &u64) -> Option<u64> {
        Some(*peer)
    }

    fn status(&self, server: &Self::Server) -> Status {
        self.method.status(&server.own)
    }

    fn open(&self, server: &Self::Server, _: &[ClientId]) -> Result<(Self::Broadcast, Gathered)> {
        let fold = |length, own_max| Gathered {
            sums: Lanes::new(length),
            own_max: own_max as u32,
            own: Vec::new(),
        };
        if self.method.status(&server.own).next.is_over() {
            return Ok((None, fold(0, 0)));
        }
        let ask = self.method.ask(&server.own)?;
        let fold = fold(self.method.length(&ask), self.method.own_max(&ask));
        Ok((Some(ask), fold))
    }

    fn downlink(
        &self,
        _: &Self::Server,
        ask: &Self::Broadcast,
        peer: &u64,
        _: Key,
    ) -> Result<(u64, P::Ask)> {
        let over = || Error::internal("a message after the last exchange");
        Ok((*peer, ask.clone().ok_or_else(over)?))
    }

    fn place(&self, (): &(), ask: &P::Ask) -> Result<Place> {
        Ok(self.method.kind(ask).into())
    }

    fn local_step(&self, (): &(), ask: &P::Ask, data: &P::Data, _: Key) -> Result<Done<Self>> {
        let sums = self.method.sums(ask, data)?;
        lanes::words(&sums)?;
        Ok(Done::new((), sums))
    }

    fn absorb(&self, fold: &mut Gathered, from: Sender<'_, u64>, up: Vec<f64>) -> Result<()> {
        let other = || Error::peer(format!("client {} sent sums that were not asked for", from.id));
        let (sums, own) = up.split_at_checked(fold.sums.words.len() / LANES).ok_or_else(other)?;
        let words = lanes::words(&up).ok().filter(|_| own.len() <= fold.own_max as usize);
        fold.sums.add(&words.ok_or_else(other)?[..LANES * sums.len()], 1)?;
        if !own.is_empty() {
            fold.own.push((from.id.0, own.to_vec()));
        }
        Ok(())
    }

    fn merge(&self, fold: &mut Gathered, other: Gathered) -> Result<()> {
        fold.own.extend(other.own);
        fold.sums.add(&other.sums.words, other.sums.count)
    }

    fn server_step(
        &self,
        mut server: Self::Server,
        mut fold: Gathered,
        _: Key,
    ) -> Result<Self::Server> {
        server.exchanges += 1;
        fold.own.sort_by_key(|(id, _)| *id);
        let (sums, own) = (fold.sums.values(), &fold.own[..]);
        let (count, complete) = (fold.sums.count, fold.sums.count == server.clients);
        let answered = (count > 0).then_some(Answered { sums: &sums, own, complete });
        self.method.step(&mut server.own, answered)?;
        Ok(server)
    }

    fn without_clients(&self, server: Self::Server) -> Result<Self::Server> {
        Ok(Server { clients: 0, ..server })
    }

    fn artifact(&self, server: &Self::Server) -> Result<Artifact> {
        self.method.artifact(&server.own)
    }
}

fn check_rows(id: ClientId, rows: u64) -> Result<()> {
    if rows <= ROWS_MAX {
        return Ok(());
    }
    Err(Error::peer(format!("client {id} states {rows} rows, more than {ROWS_MAX}")))
}

/// No client is asked for more than it sends in rounds.
impl<P: Pooled> Evaluate for ExactSums<P> {
    asks_nothing!();

    fn conclude(
        &self,
        server: &Self::Server,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        Ok(match group {
            ClientGroup::Trained => self.method.figures(&server.own),
            ClientGroup::Unseen => Vec::new(),
        })
    }
}

impl<P: Pooled> Sums for ExactSums<P> {
    fn shape(&self, fold: &Gathered) -> Result<Vec<(u32, usize)>> {
        Ok(vec![(64, fold.sums.words.len())])
    }

    fn words(&self, up: &Vec<f64>) -> Result<Vec<Segment>> {
        Ok(vec![Segment { width: 64, words: lanes::words(up)? }])
    }

    fn common(&self, ask: &P::Ask) -> Result<Vec<u8>> {
        Ok(ask.to_bytes())
    }

    fn absorb_sender(&self, fold: &mut Gathered, _: Sender<'_, u64>) -> Result<()> {
        fold.sums.count += 1;
        Ok(())
    }

    fn absorb_words(&self, fold: &mut Gathered, sum: &[Segment]) -> Result<()> {
        let [segment] = sum else {
            return Err(Error::peer("a sum in an unexpected number of segments"));
        };
        let count = std::mem::take(&mut fold.sums.count);
        fold.sums.add(&segment.words, count)
    }

    fn judged_len(&self) -> usize {
        0
    }

    fn judge(&self, (): &(), (): &(), _: &P::Data) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }

    fn judged(&self, server: &Self::Server, _: &[f64]) -> Result<Vec<Metric>> {
        Ok(self.method.figures(&server.own))
    }
}

/// The next exchange of a method that is not over.
pub(crate) fn everyone(uncounted: bool) -> Next {
    if uncounted { Next::Uncounted } else { Next::Round(whimbrel_core::method::Cohort::Everyone) }
}
