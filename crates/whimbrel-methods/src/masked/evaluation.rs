//! Evaluations under masks: a masked exchange with all clients that moves no state of the method.
//!
//! Its words are exact sums ([`crate::pooled`]), so that its figures are those of the method without
//! masks on the same grid, to the bit. Figures of single clients do not exist: nobody has them.

use super::message::Broadcast;
use super::state::{History, Step};
use super::{Asked, Client, Fold, Masked, Peer, Server, Sums, Up};
use crate::no_evaluation::asks_nothing;
use crate::pooled::{LANES, Lanes, words};
use whimbrel_core::method::{ClientGroup, Done, Evaluate, Method, Metric};
use whimbrel_core::{ClientId, Key, Result, Segment, Shared, Wire};
use whimbrel_privacy::masks::{Hash, Outcome, hash_bytes};

impl<M: Sums> Masked<M> {
    /// The number of words of an evaluation; zero if the server's state gives its figures.
    pub(super) fn judged_words(&self) -> usize {
        LANES * self.method.judged_len()
    }

    /// The shared part of an evaluation's messages, and an empty fold.
    pub(super) fn open_evaluation(
        &self,
        server: &Server<M::Server, M::Fold>,
        cohort: &[ClientId],
    ) -> Result<(<Self as Method>::Broadcast, <Self as Method>::Fold)> {
        let ask = Shared::new(&self.method.ask(&server.own)?);
        let content = self.evaluated_content(&ask, &server.history);
        let (exchange, cohort, masks) = (server.number(), cohort.to_vec(), server.masks.clone());
        let judged = Some(self.judged_words() as u32);
        let broadcast = Broadcast::Evaluate { ask, cohort: cohort.clone(), content };
        Ok((broadcast, Fold { exchange, cohort, masks, own: None, judged }))
    }

    /// The hash of everything that all clients of the sum must have received alike.
    fn evaluated_content(&self, ask: &Shared<M::Ask>, history: &History) -> Hash {
        let asked = ("evaluation".to_owned(), hash_bytes(ask.tail().bytes()));
        hash_bytes(&(asked, history.clone()).to_bytes())
    }

    /// A client's masked answer; its state in the method does not change.
    pub(super) fn evaluate(
        &self,
        client: &Client<M::Client>,
        asked: &Asked<Shared<M::Ask>>,
        data: &M::Data,
        key: Key,
    ) -> Result<Done<Self>> {
        let own = client.settled(&asked.history.voids);
        let sums = self.method.judge(own, &*asked.message.get()?, data)?;
        let words = vec![Segment { width: 64, words: words(&sums)? }];
        let content = self.evaluated_content(&asked.message, &asked.history);
        let (masks, upload) = self.mask(client, asked, &words, content)?;
        let (key, evaluations) = (Some(key), asked.history.evaluations);
        let client = Client { masks, key, evaluations, ..client.clone() };
        Ok(Done::new(client, Up::Words(upload)))
    }

    /// Takes the sums of an evaluation, or none if it is void.
    pub(super) fn close_evaluation(
        &self,
        server: &mut Server<M::Server, M::Fold>,
        outcome: Option<Outcome>,
    ) {
        let mut sums = Vec::new();
        if let Some(Outcome::Sum { segments, survivors }) = outcome {
            let mut lanes = Lanes::new(self.method.judged_len());
            let words = segments.first().map_or(&[][..], |segment| &segment.words);
            // A client's false words spoil the evaluation, not the run.
            if lanes.add(words, survivors.len() as u32).is_ok() {
                sums = lanes.values();
            }
        }
        server.judged = Some(sums);
        server.history.evaluations += 1;
        server.evaluates = false;
    }

    /// The record of a client that is asked, with the hash of its message.
    pub(super) fn staged_for_evaluation(
        &self,
        server: &Server<M::Server, M::Fold>,
        peer: &Peer<M::Peer>,
        content: Hash,
    ) -> Peer<M::Peer> {
        Peer { known: server.admitted.len() as u32, content, ..peer.clone() }
    }
}

/// Clients are asked for nothing beside the masked exchange.
impl<M: Sums> Evaluate for Masked<M> {
    asks_nothing!();

    fn begin(&self, server: &Self::Server) -> Result<Option<Self::Server>> {
        let few = server.admitted.len() < self.rules.min_cohort as usize;
        let at_rest = server.step == Step::Upload && !server.evaluates;
        if self.judged_words() == 0 || few || !at_rest || server.judged.is_some() {
            return Ok(None);
        }
        let mut asked = server.admitted.clone();
        asked.sort_unstable();
        Ok(Some(Server { evaluates: true, asked, ..server.clone() }))
    }

    fn conclude(
        &self,
        server: &Self::Server,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        if group == ClientGroup::Unseen {
            return Ok(Vec::new());
        }
        match &server.judged {
            _ if self.judged_words() == 0 => self.method.judged(&server.own, &[]),
            Some(sums) if !sums.is_empty() => self.method.judged(&server.own, sums),
            _ => Ok(Vec::new()),
        }
    }
}
