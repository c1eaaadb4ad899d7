//! States of the protocol around those of the method.

use whimbrel_core::wire::take_varint;
use whimbrel_core::{ClientId, Error, Key, Result, Wire, wire};
use whimbrel_privacy::masks::{Hash, MaskClient, MaskServer, Vouches};

/// The steps of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Upload,
    Vouch,
    Share,
}

/// The format of stored states, which precedes them.
#[derive(Clone, Copy, Default)]
pub(super) struct Format;

impl Format {
    const MARK: [u8; 4] = *b"MASK";
    /// Raised when a stored state changes: version 1 lacked evaluations, history and the mark, version 2 the
    /// word with the number of withheld parts.
    const VERSION: u8 = 3;
}

impl Wire for Format {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(Self::MARK);
        out.push(Self::VERSION);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let version = match from.strip_prefix(&Self::MARK).and_then(<[u8]>::split_first) {
            Some((version, rest)) => {
                *from = rest;
                *version
            }
            None => 1,
        };
        if version == Self::VERSION {
            return Ok(Self);
        }
        let what = format!(
            "it has version {version}, this program reads {}\nhint: finish the run with the program that \
             began it, or begin a new one",
            Self::VERSION
        );
        Err(Error::storage("the stored state of masked sums", what))
    }
}

/// The past of an exchange, the same for all of its clients.
#[derive(Clone)]
pub struct History {
    /// The method's exchanges without a sum.
    pub voids: Vec<u32>,
    pub evaluations: u32,
    /// The hash of the task of the method's last exchange with a sum, which covers the history
    /// before it; zeros before the first.
    pub base: Hash,
}

/// An exchange of the method and the hash of its task.
pub(super) type Link = (u32, Hash);

impl History {
    /// The last exchange with a sum before this exchange of the method.
    pub(super) fn last(&self, exchange: u32) -> Option<Link> {
        let last = (0..exchange).rev().find(|e| !self.voids.contains(e));
        last.map(|exchange| (exchange, self.base))
    }
}

/// The global state.
#[derive(Clone)]
pub struct Server<S, F> {
    pub(super) format: Format,
    /// The method's.
    pub own: S,
    pub(super) masks: MaskServer,
    /// The clients in the order of their admission.
    pub(super) admitted: Vec<ClientId>,
    /// The method's exchange.
    pub(super) exchange: u32,
    /// Its next step.
    pub(super) step: Step,
    /// The clients of that step, if it is not the first.
    pub(super) asked: Vec<ClientId>,
    /// The vouches, in the last step.
    pub(super) vouches: Option<Vouches>,
    /// The senders of the sum, until its words are known.
    pub(super) fold: Option<F>,
    pub(super) history: History,
    /// Whether the masked exchange under way is an evaluation.
    pub(super) evaluates: bool,
    /// The sums of the evaluation since the last exchange of the method, empty if it is void.
    pub(super) judged: Option<Vec<f64>>,
}

/// The server's record of one client.
#[derive(Clone)]
pub struct Peer<P> {
    pub(super) id: ClientId,
    /// The method's record.
    pub own: P,
    /// An exchange, and the record after it unless it is void.
    pub(super) pending: Option<(u32, P)>,
    /// The number of clients whose keys it has, in the order of their admission.
    pub(super) known: u32,
    /// The hash of the last message's common part.
    pub(super) content: Hash,
}

/// A client's state.
#[derive(Clone)]
pub struct Client<C> {
    pub(super) format: Format,
    /// The method's.
    pub own: C,
    /// The last exchange in it.
    pub(super) held: Option<Link>,
    /// An exchange, and the state after it unless it is void.
    pub(super) pending: Option<(Link, C)>,
    pub(super) masks: MaskClient,
    /// The key of the last upload.
    pub(super) key: Option<Key>,
    /// The evaluations before it.
    pub(super) evaluations: u32,
}

/// The messages of one step.
#[derive(Clone)]
pub struct Fold<F> {
    pub(super) exchange: u32,
    pub(super) cohort: Vec<ClientId>,
    pub(super) masks: MaskServer,
    /// The method's fold, in the first step.
    pub(super) own: Option<F>,
    /// The number of words of an evaluation, in its first step.
    pub(super) judged: Option<u32>,
}

wire!(History { voids, evaluations, base });
wire!(Server<S: Wire, F: Wire> {
    format,
    own,
    masks,
    admitted,
    exchange,
    step,
    asked,
    vouches,
    fold,
    history,
    evaluates,
    judged
});
wire!(Peer<P: Wire> { id, own, pending, known, content });
wire!(Client<C: Wire> { format, own, held, pending, masks, key, evaluations });
wire!(Fold<F: Wire> { exchange, cohort, masks, own, judged });

impl Wire for Step {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let all = [Self::Upload, Self::Vouch, Self::Share];
        let number = take_varint(from)? as usize;
        all.get(number).copied().ok_or_else(|| Error::peer("an unknown step of an exchange"))
    }
}

/// The run fails after this many void exchanges in a row.
const VOIDS_MAX: u32 = 10;

impl<S, F> Server<S, F> {
    /// The number of the next masked exchange: the method's and the evaluations so far.
    pub(super) fn number(&self) -> u32 {
        self.exchange + self.history.evaluations
    }

    /// Fails after too many void exchanges in a row.
    pub(super) fn check_voids(&self) -> Result<()> {
        let last = (0..VOIDS_MAX).map(|back| self.exchange.checked_sub(back));
        if last
            .into_iter()
            .all(|exchange| exchange.is_some_and(|e| self.history.voids.contains(&e)))
        {
            return Err(Error::peer(format!(
                "{VOIDS_MAX} consecutive rounds were void: fewer clients answered than a masked sum takes"
            ))
            .hint("wait until more clients are connected, and resume; or begin without the others"));
        }
        Ok(())
    }
}

impl<P> Peer<P> {
    /// The record, given the void exchanges.
    pub(super) fn settled(&self, voids: &[u32]) -> &P {
        match &self.pending {
            Some((exchange, record)) if !voids.contains(exchange) => record,
            _ => &self.own,
        }
    }
}

impl<C> Client<C> {
    /// The state, given the void exchanges.
    pub(super) fn settled(&self, voids: &[u32]) -> &C {
        self.settled_at(voids).0
    }

    /// The state and the last exchange in it, given the void exchanges.
    pub(super) fn settled_at(&self, voids: &[u32]) -> (&C, Option<Link>) {
        match &self.pending {
            Some((link, state)) if !voids.contains(&link.0) => (state, Some(*link)),
            _ => (&self.own, self.held),
        }
    }
}
