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
    /// Raised when a stored state changes: version 1 lacked evaluations, and the mark.
    const VERSION: u8 = 2;
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
    /// The exchanges without a sum.
    pub(super) voids: Vec<u32>,
    /// Whether the masked exchange under way is an evaluation.
    pub(super) evaluates: bool,
    /// Evaluations so far.
    pub(super) evaluations: u32,
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
    /// An exchange, and the state after it unless it is void.
    pub(super) pending: Option<(u32, C)>,
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
    voids,
    evaluates,
    evaluations,
    judged
});
wire!(Peer<P: Wire> { id, own, pending, known, content });
wire!(Client<C: Wire> { format, own, pending, masks, key, evaluations });
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

/// Consecutive void exchanges after which a run fails: its model would not be a fit.
const VOIDS_MAX: u32 = 10;

impl<S, F> Server<S, F> {
    /// The number of the next masked exchange: the method's and the evaluations so far.
    pub(super) fn number(&self) -> u32 {
        self.exchange + self.evaluations
    }

    /// Refuses to go on after too many void exchanges in a row.
    pub(super) fn check_voids(&self) -> Result<()> {
        let last = (0..VOIDS_MAX).map(|back| self.exchange.checked_sub(back));
        if last.into_iter().all(|exchange| exchange.is_some_and(|e| self.voids.contains(&e))) {
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
        settled(&self.own, &self.pending, voids)
    }
}

impl<C> Client<C> {
    /// The state, given the void exchanges.
    pub(super) fn settled(&self, voids: &[u32]) -> &C {
        settled(&self.own, &self.pending, voids)
    }
}

fn settled<'a, T>(own: &'a T, pending: &'a Option<(u32, T)>, voids: &[u32]) -> &'a T {
    match pending {
        Some((exchange, state)) if !voids.contains(exchange) => state,
        _ => own,
    }
}
