//! Answers to an evaluation, computed as whoever concludes from them takes them.

use crate::metrics::Figure;
use crate::simulator::{Federation, first_failure, name};
use rayon::prelude::*;
use std::borrow::Cow;
use whimbrel_core::{ClientId, DynMethod, Error, Message, Opaque, Result};

/// Clients that answer at once: answers of a million clients do not fit into memory.
const ANSWERS_TOGETHER: usize = 8192;

/// The clients' answers in id order. The first failure ends them.
pub(crate) struct Answers<'a> {
    pub method: &'a dyn DynMethod,
    pub federation: &'a Federation,
    pub clients: &'a [Opaque],
    pub ask: &'a Message,
    pub round: u32,
    /// Who has not answered yet.
    pub left: &'a [ClientId],
    pub ready: std::vec::IntoIter<(ClientId, Vec<u8>)>,
    /// Each client's own figures, by id.
    pub own: &'a mut [Vec<Figure>],
    /// Bytes so far, both ways.
    pub bytes: u64,
    pub failure: Option<Error>,
}

impl Answers<'_> {
    /// Lets everyone answer whom nobody asked yet, and returns the bytes of all.
    pub fn finish(mut self) -> Result<u64> {
        self.by_ref().for_each(drop);
        self.failure.map_or(Ok(self.bytes), Err)
    }

    fn answer(&self, id: ClientId) -> Result<(Vec<u8>, Vec<Figure>)> {
        let i = id.0 as usize;
        let answer = self.method.answer(&self.clients[i], self.ask, &self.federation.data[i]);
        let answer =
            answer.map_err(|e| name(e, &self.federation.names, id).in_round(self.round))?;
        let own = self.method.own(&answer)?.into_iter().map(Into::into).collect();
        Ok((answer, own))
    }

    fn refill(&mut self) -> Result<()> {
        let (now, left) = self.left.split_at(self.left.len().min(ANSWERS_TOGETHER));
        self.left = left;
        let answers = first_failure(now.par_iter().map(|id| self.answer(*id)).collect())?;
        let mut ready = Vec::with_capacity(now.len());
        for (id, (answer, own)) in now.iter().zip(answers) {
            self.bytes += (self.ask.len() + answer.len()) as u64;
            self.own[id.0 as usize] = own;
            ready.push((*id, answer));
        }
        self.ready = ready.into_iter();
        Ok(())
    }
}

impl<'a> Iterator for Answers<'a> {
    type Item = (ClientId, Cow<'a, [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.len() == 0 && !self.left.is_empty() && self.failure.is_none() {
            self.failure = self.refill().err();
        }
        self.ready.next().map(|(id, answer)| (id, Cow::Owned(answer)))
    }
}
