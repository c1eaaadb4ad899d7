//! Messages of the protocol around those of the method.

use super::state::{History, Link};
use whimbrel_core::shared::Tail;
use whimbrel_core::{ClientId, Error, Result, Shared, Wire, wire};
use whimbrel_privacy::masks::{Enrolment, Hash, MaskedUpload, Shares, Survivors, Vouch, Vouches};

/// A client's message at enrolment.
#[derive(Clone)]
pub struct Summary<S> {
    pub keys: Enrolment,
    /// The method's summary.
    pub summary: S,
}

wire!(Summary<S: Wire> { keys, summary });

/// The shared part of an exchange's messages.
pub enum Broadcast<B, A> {
    Upload { message: B, cohort: Vec<ClientId> },
    Evaluate { ask: Shared<A>, cohort: Vec<ClientId>, content: Hash },
    None,
}

/// The message to a client: `D` is the method's, `A` that of its evaluations.
#[derive(Clone)]
pub enum Down<D, A> {
    Upload(Asked<D>),
    Evaluate(Asked<Shared<A>>),
    Survivors(Survivors),
    Vouches(Vouches),
}

/// The question for an upload.
#[derive(Clone)]
pub struct Asked<D> {
    /// The masked exchange: the method's, and the evaluations before it.
    pub exchange: u32,
    /// The clients that are asked, ascending.
    pub cohort: Vec<ClientId>,
    /// Keys that the receiver does not have yet.
    pub newcomers: Vec<(ClientId, Enrolment)>,
    pub history: History,
    /// The method's message, or the question of an evaluation.
    pub message: D,
}

impl<D> Asked<D> {
    /// The method's exchange: this one, or the next one after an evaluation.
    pub fn of_method(&self) -> Result<u32> {
        let counted = self.exchange.checked_sub(self.history.evaluations);
        counted.ok_or_else(|| Error::peer("a message counts more evaluations than exchanges"))
    }

    /// The method's last exchange with a sum.
    pub(super) fn last(&self) -> Result<Option<Link>> {
        Ok(self.history.last(self.of_method()?))
    }
}

impl<D: Wire> Asked<D> {
    fn put_parts(&self, head: &mut Vec<u8>) -> Option<Tail> {
        (self.exchange, (self.cohort.clone(), self.newcomers.clone())).put(head);
        self.history.put(head);
        self.message.put_parts(head)
    }

    fn take_parts(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        let (exchange, (cohort, newcomers)) = Wire::take(head)?;
        let history = Wire::take(head)?;
        let message = D::take_parts(head, tail)?;
        Ok(Self { exchange, cohort, newcomers, history, message })
    }
}

/// The message from a client.
#[derive(Clone)]
pub enum Up {
    Words(MaskedUpload),
    Vouch(Vouch),
    Shares(Shares),
}

/// The common end of the method's messages stays common.
impl<D: Wire, A: Wire + Send + Sync + 'static> Wire for Down<D, A> {
    fn put(&self, out: &mut Vec<u8>) {
        if let Some(tail) = self.put_parts(out) {
            out.extend_from_slice(tail.bytes());
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Self::take_parts(from, None)
    }
    fn put_parts(&self, head: &mut Vec<u8>) -> Option<Tail> {
        match self {
            Self::Upload(asked) => {
                head.push(0);
                return asked.put_parts(head);
            }
            Self::Evaluate(asked) => {
                head.push(3);
                return asked.put_parts(head);
            }
            Self::Survivors(survivors) => {
                head.push(1);
                survivors.put(head);
            }
            Self::Vouches(vouches) => {
                head.push(2);
                vouches.put(head);
            }
        }
        None
    }
    fn take_parts(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        match u8::take(head)? {
            0 => Ok(Self::Upload(Asked::take_parts(head, tail)?)),
            1 => Ok(Self::Survivors(Wire::take(head)?)),
            2 => Ok(Self::Vouches(Wire::take(head)?)),
            3 => Ok(Self::Evaluate(Asked::take_parts(head, tail)?)),
            other => Err(Error::peer(format!("{other} is not a step of a masked exchange"))),
        }
    }
}

impl Wire for Up {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Words(words) => {
                out.push(0);
                words.put(out);
            }
            Self::Vouch(vouch) => {
                out.push(1);
                vouch.put(out);
            }
            Self::Shares(shares) => {
                out.push(2);
                shares.put(out);
            }
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        match u8::take(from)? {
            0 => Ok(Self::Words(Wire::take(from)?)),
            1 => Ok(Self::Vouch(Wire::take(from)?)),
            2 => Ok(Self::Shares(Wire::take(from)?)),
            other => Err(Error::peer(format!("{other} is not a step of a masked exchange"))),
        }
    }
}
