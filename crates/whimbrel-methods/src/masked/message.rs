//! Messages of the protocol around those of the method.

use whimbrel_core::shared::Tail;
use whimbrel_core::{ClientId, Error, Result, Wire, wire};
use whimbrel_privacy::masks::{Enrolment, MaskedUpload, Shares, Survivors, Vouch, Vouches};

/// A client's message at enrolment.
#[derive(Clone)]
pub struct Summary<S> {
    pub keys: Enrolment,
    /// The method's summary.
    pub summary: S,
}

wire!(Summary<S: Wire> { keys, summary });

/// The shared part of an exchange's messages.
pub enum Broadcast<B> {
    Upload { message: B, cohort: Vec<ClientId> },
    None,
}

/// The message to a client.
#[derive(Clone)]
pub enum Down<D> {
    Upload(Asked<D>),
    Survivors(Survivors),
    Vouches(Vouches),
}

/// The question for an upload.
#[derive(Clone)]
pub struct Asked<D> {
    /// The method's exchange.
    pub exchange: u32,
    /// The clients that are asked, ascending.
    pub cohort: Vec<ClientId>,
    /// Keys that the receiver does not have yet.
    pub newcomers: Vec<(ClientId, Enrolment)>,
    /// The exchanges without a sum so far.
    pub voids: Vec<u32>,
    /// The method's message.
    pub message: D,
}

/// The message from a client.
#[derive(Clone)]
pub enum Up {
    Words(MaskedUpload),
    Vouch(Vouch),
    Shares(Shares),
}

/// The common end of the method's messages stays common.
impl<D: Wire> Wire for Down<D> {
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
                (asked.exchange, (asked.cohort.clone(), asked.newcomers.clone())).put(head);
                asked.voids.put(head);
                return asked.message.put_parts(head);
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
            0 => {
                let (exchange, (cohort, newcomers)) = Wire::take(head)?;
                let voids = Wire::take(head)?;
                let message = D::take_parts(head, tail)?;
                Ok(Self::Upload(Asked { exchange, cohort, newcomers, voids, message }))
            }
            1 => Ok(Self::Survivors(Wire::take(head)?)),
            2 => Ok(Self::Vouches(Wire::take(head)?)),
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
