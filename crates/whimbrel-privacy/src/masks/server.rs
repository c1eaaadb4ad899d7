//! The server's half of the protocol.

use super::graph::Graph;
use super::keys::{BOX_OVERHEAD, Hash, Signature, between, fingerprint, is_signed, stream_key};
use super::message::{
    MaskTask, MaskedUpload, Shares, Survivors, Vouch, Vouches, dealers, revealed, told,
};
use super::roster::{Enrolment, Roster};
use super::words::{add_packed, apply, packed_bytes, unpack};
use super::{has, is_ascending, refuse, two_thirds};
use crate::shamir::{Element, combine, weights};
use whimbrel_core::{ClientId, Error, Result, Segment, wire};

/// The server of masked sums, one exchange after another. Its state holds no secret.
#[derive(Clone)]
pub struct MaskServer {
    roster: Roster,
    /// The smallest number that the next exchange may have.
    next: u32,
    open: Option<Open>,
}

/// An exchange under way.
#[derive(Clone)]
struct Open {
    task: MaskTask,
    hash: Hash,
    graph: Graph,
    /// The packed sum of all bodies.
    sum: Vec<u8>,
    /// The uploads without their bodies, ascending by client.
    uploads: Vec<(ClientId, Dealt)>,
    uploads_closed: bool,
    vouches: Vec<(ClientId, Signature)>,
    vouches_closed: bool,
    shares: Vec<(ClientId, Shared)>,
}

/// A holder's shares, and the clients whose boxes did not open for it.
type Shared = (Vec<Element>, Vec<ClientId>);

/// The part of an upload that concerns seeds.
#[derive(Clone)]
struct Dealt {
    fingerprints: Vec<[u8; 16]>,
    boxes: Vec<Vec<u8>>,
}

wire!(MaskServer { roster, next, open });
wire!(Open { task, hash, graph, sum, uploads, uploads_closed, vouches, vouches_closed, shares });
wire!(Dealt { fingerprints, boxes });

/// The result of an exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The sum modulo 2^w over these clients.
    Sum { segments: Vec<Segment>, survivors: Vec<ClientId> },
    /// Nothing is known of any upload: the exchange counts as one with an empty cohort.
    Void { reason: String },
}

impl MaskServer {
    pub fn new(roster: Roster) -> Self {
        Self { roster, next: 0, open: None }
    }

    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Adds a client for the exchanges to come. Its keys were checked ([`Roster::check`]).
    pub fn admit(&mut self, id: ClientId, keys: Enrolment) {
        self.roster.push(id, keys);
    }

    /// Adds what another one gathered in the same step of the same exchange.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        let Some(theirs) = other.open else { return Ok(()) };
        let Some(open) = &mut self.open else {
            self.open = Some(theirs);
            return Ok(());
        };
        if open.hash != theirs.hash {
            return Err(Error::internal("uploads of two tasks are merged"));
        }
        if !open.uploads_closed {
            add_packed(&open.task.layout, &mut open.sum, &theirs.sum);
            merge_by_id(&mut open.uploads, theirs.uploads);
        } else if !open.vouches_closed {
            merge_by_id(&mut open.vouches, theirs.vouches);
        } else {
            merge_by_id(&mut open.shares, theirs.shares);
        }
        Ok(())
    }

    /// Reports of boxes that did not open: sender and receiver, one of whom lies.
    pub fn unopened(&self) -> Vec<(ClientId, ClientId)> {
        let shares = self.open.iter().flat_map(|open| &open.shares);
        shares.flat_map(|(to, (_, from))| from.iter().map(|from| (*from, *to))).collect()
    }

    /// The hash of the task of the exchange under way.
    pub fn task(&self) -> Option<Hash> {
        self.open.as_ref().map(|open| open.hash)
    }

    /// Whether an exchange is under way.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens an exchange. Numbers increase, so none is repeated.
    pub fn open(&mut self, task: MaskTask) -> Result<()> {
        task.check(&self.roster)?;
        if self.open.is_some() || task.exchange < self.next {
            return refuse(format!("exchange {} is over or another one is open", task.exchange));
        }
        self.open = Some(Open {
            hash: task.hash(&self.roster),
            graph: task.graph(&self.roster.rules().run),
            sum: vec![0; packed_bytes(&task.layout)],
            task,
            uploads: Vec::new(),
            uploads_closed: false,
            vouches: Vec::new(),
            vouches_closed: false,
            shares: Vec::new(),
        });
        Ok(())
    }

    /// Adds an upload. A refused one changes nothing.
    pub fn absorb(&mut self, from: ClientId, upload: MaskedUpload) -> Result<()> {
        let open = self.open.as_mut().ok_or_else(none_open)?;
        if open.uploads_closed || !has(&open.task.cohort, from) {
            return refuse(format!("an upload of client {from} is not expected"));
        }
        let Err(place) = open.uploads.binary_search_by_key(&from, |(id, _)| *id) else {
            return refuse(format!("client {from} uploaded twice"));
        };
        if upload.exchange != open.task.exchange || upload.task != open.hash {
            return refuse(format!("client {from} answers another task"));
        }
        let degree = open.graph.degree();
        let box_bytes = 16 * (degree + 1) + BOX_OVERHEAD;
        let fits = upload.body.len() == open.sum.len()
            && upload.fingerprints.len() == degree + 1
            && upload.boxes.len() == degree
            && upload.boxes.iter().all(|sealed| sealed.len() == box_bytes);
        if !fits {
            return refuse(format!("a part of client {from}'s upload has the wrong length"));
        }
        add_packed(&open.task.layout, &mut open.sum, &upload.body);
        let dealt = Dealt { fingerprints: upload.fingerprints, boxes: upload.boxes };
        open.uploads.insert(place, (from, dealt));
        Ok(())
    }

    /// Ends the uploads and returns the survivors; none if they are too few for a sum. The state
    /// must be durable before a [`Survivors`] message is sent.
    pub fn close_uploads(&mut self) -> Result<Vec<ClientId>> {
        let rules = self.roster.rules();
        let open = self.open.as_mut().ok_or_else(none_open)?;
        open.uploads_closed = true;
        let least = two_thirds(open.task.cohort.len()).max(rules.min_cohort as usize);
        let enough = open.uploads.len() >= least;
        Ok(if enough { open.survivors() } else { Vec::new() })
    }

    /// The message to a survivor, after [`MaskServer::close_uploads`].
    pub fn survivors(&self, to: ClientId) -> Result<Survivors> {
        let open = self.open.as_ref().ok_or_else(none_open)?;
        let survivors = open.survivors();
        if !open.uploads_closed || !has(&survivors, to) {
            return Err(Error::internal(format!("client {to} is sent the survivors out of order")));
        }
        let mut boxes = Vec::new();
        for from in open.graph.neighbours(to) {
            if let Some(dealt) = open.dealt(from) {
                let place = open.graph.neighbours(from).iter().position(|&id| id == to);
                boxes.push(dealt.boxes[place.expect("the graph is symmetric")].clone());
            }
        }
        Ok(Survivors { exchange: open.task.exchange, task: open.hash, survivors, boxes })
    }

    /// Takes a vouch. A refused one changes nothing.
    pub fn absorb_vouch(&mut self, from: ClientId, vouch: &Vouch) -> Result<()> {
        let open = self.open.as_mut().ok_or_else(none_open)?;
        if !open.uploads_closed || open.vouches_closed || open.dealt(from).is_none() {
            return refuse(format!("a vouch of client {from} is not expected"));
        }
        let Err(place) = open.vouches.binary_search_by_key(&from, |(id, _)| *id) else {
            return refuse(format!("client {from} vouched twice"));
        };
        let identity = &self.roster.member(from)?.identity;
        let signed = is_signed(identity, &open.told(), &vouch.signature);
        if vouch.exchange != open.task.exchange || !signed {
            return refuse(format!("client {from} did not vouch for the survivors"));
        }
        open.vouches.insert(place, (from, vouch.signature));
        Ok(())
    }

    /// Ends the vouches and returns the message to all clients that vouched; `None` if they are too
    /// few. It has as many signatures as a client must see: each costs it 50 microseconds.
    pub fn close_vouches(&mut self) -> Result<Option<Vouches>> {
        let open = self.open.as_mut().ok_or_else(none_open)?;
        open.vouches_closed = true;
        let needed = open.vouches.get(..two_thirds(open.task.cohort.len()));
        let exchange = open.task.exchange;
        Ok(needed.map(|signatures| Vouches { exchange, signatures: signatures.to_vec() }))
    }

    /// The clients that vouched, ascending.
    pub fn vouched(&self) -> Vec<ClientId> {
        let vouches = self.open.iter().flat_map(|open| &open.vouches);
        vouches.map(|(id, _)| *id).collect()
    }

    /// Takes a holder's shares. Refused ones change nothing.
    pub fn absorb_shares(&mut self, from: ClientId, shares: Shares) -> Result<()> {
        let open = self.open.as_mut().ok_or_else(none_open)?;
        if !open.vouches_closed || open.vouches.iter().all(|(id, _)| *id != from) {
            return refuse(format!("shares of client {from} are not expected"));
        }
        if open.shares.iter().any(|(id, _)| *id == from) {
            return refuse(format!("client {from} sent shares twice"));
        }
        if shares.exchange != open.task.exchange || shares.told != open.told() {
            return refuse(format!("the shares of client {from} are for other survivors"));
        }
        let survivors = open.survivors();
        let mut dealers = dealers(&open.graph, &survivors, from);
        if !is_ascending(&shares.unopened)
            || !shares.unopened.iter().all(|&i| i != from && has(&dealers, i))
        {
            return refuse(format!("client {from} reports boxes that it did not receive"));
        }
        dealers.retain(|&i| !has(&shares.unopened, i));
        let count: usize =
            dealers.iter().map(|&i| revealed(&open.graph, &survivors, i).len()).sum();
        if shares.shares.len() != count {
            return refuse(format!("client {from} sent {} of {count} shares", shares.shares.len()));
        }
        merge_by_id(&mut open.shares, vec![(from, (shares.shares, shares.unopened))]);
        Ok(())
    }

    /// Ends the exchange, for good: with the sum if enough shares came, otherwise void.
    pub fn finish(&mut self) -> Result<Outcome> {
        let open = self.open.take().ok_or_else(none_open)?;
        self.next = open.task.exchange + 1;
        let (survivors, least) = (open.survivors(), self.roster.rules().min_cohort as usize);
        if !open.uploads_closed || survivors.len() < least {
            let reason = format!("{} uploads: a sum takes at least {least}", survivors.len());
            return Ok(Outcome::Void { reason });
        }
        let threshold = two_thirds(open.graph.degree() + 1);
        let masks = match open.masks(&survivors, threshold) {
            Ok(masks) => masks,
            Err(reason) => return Ok(Outcome::Void { reason }),
        };
        let mut sum = open.sum;
        apply(&open.task.layout, &mut sum, &masks);
        Ok(Outcome::Sum { segments: unpack(&open.task.layout, &sum), survivors })
    }
}

impl Open {
    /// The clients with uploads; final once uploads are closed.
    fn survivors(&self) -> Vec<ClientId> {
        self.uploads.iter().map(|(id, _)| *id).collect()
    }

    fn dealt(&self, id: ClientId) -> Option<&Dealt> {
        let place = self.uploads.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.uploads[place].1)
    }

    fn told(&self) -> Hash {
        told(&self.hash, &self.survivors())
    }

    /// The masks left in the sum, with the signs that remove them, or the reason why they are not
    /// known.
    fn masks(&self, survivors: &[ClientId], threshold: usize) -> Result<Vec<Mask>, String> {
        let places = survivors.iter().map(|&i| revealed(&self.graph, survivors, i));
        let places: Vec<Vec<usize>> = places.collect();
        let mut known: Vec<Vec<(u32, &[Element])>> = vec![Vec::new(); survivors.len()];
        for (holder, (shares, unopened)) in &self.shares {
            let mut rest = &shares[..];
            let dealers = dealers(&self.graph, survivors, *holder).into_iter();
            for dealer in dealers.filter(|&dealer| !has(unopened, dealer)) {
                let at = survivors.binary_search(&dealer).expect("a survivor");
                let (part, after) = rest.split_at(places[at].len());
                rest = after;
                known[at].push((holder.0, part));
            }
        }
        let mut masks = Vec::new();
        for ((dealer, dealt), (places, known)) in self.uploads.iter().zip(places.iter().zip(&known))
        {
            let Some(known) = known.get(..threshold) else {
                let count = known.len();
                return Err(format!("{count} of {threshold} shares of client {dealer}'s seeds"));
            };
            let holders: Vec<u32> = known.iter().map(|(holder, _)| *holder).collect();
            let weights = weights(&holders);
            let neighbours = self.graph.neighbours(*dealer);
            for (nth, &place) in places.iter().enumerate() {
                let seed = combine(&weights, known.iter().map(|(_, shares)| shares[nth]));
                let other = if place == 0 { *dealer } else { neighbours[place - 1] };
                let (at, sign) = between(self.hash, *dealer, other);
                if fingerprint(seed, &at) != dealt.fingerprints[place] {
                    return Err(format!("the shares of client {dealer}'s seeds do not fit"));
                }
                masks.push((stream_key(seed, &at), sign.opposite()));
            }
        }
        Ok(masks)
    }
}

fn merge_by_id<T>(list: &mut Vec<(ClientId, T)>, other: Vec<(ClientId, T)>) {
    list.extend(other);
    list.sort_by_key(|(id, _)| *id);
}

type Mask = ([u8; 32], super::words::Sign);

fn none_open() -> Error {
    Error::peer("no exchange is open")
}
