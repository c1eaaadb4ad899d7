//! Answers to an evaluation, computed ahead of the conclusion.

use crate::machine::Machine;
use crate::metrics::Figure;
use crate::prefetch::prefetch;
use crate::runner::Protocol;
use crate::simulator::{Federation, first_failure, name};
use rayon::prelude::*;
use std::borrow::Cow;
use whimbrel_core::{ClientId, Error, Message, Opaque, Result};

/// An evaluation that these clients answer.
pub(crate) struct Evaluation<'a> {
    pub machine: &'a Machine,
    pub federation: &'a Federation,
    pub clients: &'a [Opaque],
    pub ask: &'a Message,
    pub ids: &'a [ClientId],
}

impl Evaluation<'_> {
    /// Passes the answers to `conclude` in id order and stores each client's own figures; returns
    /// the conclusion and the bytes of all messages, both ways.
    pub fn conclude<R>(
        &self,
        own: &mut [Vec<Figure>],
        conclude: impl FnOnce(&mut Answers<'_>) -> Result<R>,
    ) -> Result<(R, u64)> {
        let answers = |chunk| {
            let ids: &[ClientId] = &self.ids[chunk];
            first_failure(ids.par_iter().map(|id| self.answer(*id)).collect())
        };
        prefetch(self.ids.len(), answers, |chunks| {
            let ready = Vec::new().into_iter();
            let mut answers = Answers { chunks, ready, own, bytes: 0, failure: None };
            let concluded = conclude(&mut answers);
            // Every client is asked, also those not waited for.
            answers.by_ref().for_each(drop);
            let asked = (self.ask.len() * self.ids.len()) as u64;
            match answers.failure {
                Some(error) => Err(error),
                None => Ok((concluded?, asked + answers.bytes)),
            }
        })
    }

    fn answer(&self, id: ClientId) -> Result<Answer> {
        let i = id.0 as usize;
        let method = self.machine.method();
        let own = |answer: Vec<u8>| {
            let own = method.own(id, self.machine.peer(id), &answer)?;
            Ok(Answer { id, answer, own: own.into_iter().map(Into::into).collect() })
        };
        let answer = method.answer(&self.clients[i], self.ask, &self.federation.data[i]);
        let round = self.machine.round();
        answer.and_then(own).map_err(|e| name(e, &self.federation.names, id).in_round(round))
    }
}

struct Answer {
    id: ClientId,
    answer: Vec<u8>,
    own: Vec<Figure>,
}

/// The clients' answers in id order. The first failure ends them.
pub(crate) struct Answers<'a> {
    chunks: &'a mut dyn Iterator<Item = Result<Vec<Answer>>>,
    ready: std::vec::IntoIter<Answer>,
    /// Each client's own figures, by id.
    own: &'a mut [Vec<Figure>],
    /// Bytes so far.
    bytes: u64,
    failure: Option<Error>,
}

impl<'a> Iterator for Answers<'a> {
    type Item = (ClientId, Cow<'a, [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.len() == 0 && self.failure.is_none() {
            match self.chunks.next()? {
                Ok(chunk) => self.ready = chunk.into_iter(),
                Err(error) => self.failure = Some(error),
            }
        }
        let Answer { id, answer, own } = self.ready.next()?;
        self.bytes += answer.len() as u64;
        self.own[id.0 as usize] = own;
        Some((id, Cow::Owned(answer)))
    }
}
