//! A client's half of the protocol.

use super::graph::Graph;
use super::keys::{
    AgreementKey, Hash, between, fingerprint, hash_bytes, identity, is_signed, open, polynomials,
    prf, public_identity, seal, seed, sign, stream_key,
};
use super::message::{
    MaskTask, MaskedUpload, Shares, Survivors, Vouch, Vouches, dealers, revealed, told,
};
use super::roster::{Enrolment, Roster};
use super::words::{Span, apply, pack};
use super::{has, is_ascending, refuse, two_thirds};
use crate::shamir::{Element, share};
use whimbrel_core::{ClientId, Error, Result, Segment, Wire, wire};

/// A client of masked sums. Its byte form contains its secret.
#[derive(Clone)]
pub struct MaskClient {
    secret: Hash,
    /// The secret of the identity, which outlives the stage.
    identity: Hash,
    run: Hash,
    /// The roster, and this client's place on it.
    agreed: Option<(ClientId, Roster)>,
    /// Secrets shared with other clients, in the order in which they were first needed.
    pairs: Vec<(ClientId, Hash)>,
    last: Option<Answered>,
}

/// The latest exchange in which the client took part.
#[derive(Clone)]
struct Answered {
    task: MaskTask,
    /// The hash of the unmasked words.
    words: Hash,
    told: Option<Told>,
}

/// The one set of survivors that the client answers for, with the shares it gives.
#[derive(Clone)]
struct Told {
    survivors: Vec<ClientId>,
    shares: Vec<Element>,
    /// The clients whose boxes did not open.
    unopened: Vec<ClientId>,
}

wire!(MaskClient { secret, identity, run, agreed, pairs, last });
wire!(Answered { task, words, told });
wire!(Told { survivors, shares, unopened });

/// Derived values of one client in one exchange.
struct Own {
    id: ClientId,
    task: Hash,
    neighbours: Vec<ClientId>,
    /// `b_i`, then `k_ij` for each neighbour j.
    seeds: Vec<Element>,
    /// The polynomials that share them.
    polynomials: Vec<Vec<Element>>,
}

impl MaskClient {
    /// A client of a run; `secret` has 32 random bytes, known to the client only. A client that lost
    /// its state must not enter the same run again with the same secret: masks would repeat.
    pub fn new(secret: Hash, run: Hash) -> Self {
        Self { secret, identity: secret, run, agreed: None, pairs: Vec::new(), last: None }
    }

    /// The client with an identity that it has in other stages and runs, too.
    pub fn with_identity(self, identity: Hash) -> Self {
        Self { identity, ..self }
    }

    /// The public keys to enrol with.
    pub fn enrol(&self) -> Enrolment {
        let (identity, key) = (identity(&self.identity), self.agreement_key().public());
        let signature = sign(&identity, &Enrolment::statement(&self.run, &key));
        Enrolment { identity: public_identity(&identity), key, signature }
    }

    /// The latest exchange with an upload.
    pub fn last_exchange(&self) -> Option<u32> {
        self.last.as_ref().map(|last| last.task.exchange)
    }

    /// The agreed roster, if there is one.
    pub fn roster(&self) -> Option<&Roster> {
        self.agreed.as_ref().map(|(_, roster)| roster)
    }

    /// Takes a roster, after the user's check ([`super::Accepted`]). A later one may only add clients.
    /// The state must be durable before the first upload.
    pub fn agree(&mut self, roster: Roster) -> Result<()> {
        if roster.rules().run != self.run {
            return refuse("the roster belongs to another run");
        }
        let own = self.enrol();
        let Some(&(id, _)) = roster.members().iter().find(|(_, member)| *member == own) else {
            return refuse("the roster lacks this client's keys");
        };
        if let Some((_, old)) = &self.agreed {
            roster.check_extends(old)?;
        }
        self.agreed = Some((id, roster));
        Ok(())
    }

    /// Masks words. The state must be durable before the upload is sent. Repeating the call gives
    /// the same bytes; other words or another task in the same exchange are refused.
    pub fn upload(&mut self, task: &MaskTask, segments: &[Segment]) -> Result<MaskedUpload> {
        let (id, roster) = self.agreed()?;
        task.check(roster)?;
        if !has(&task.cohort, id) {
            return refuse("the cohort lacks this client");
        }
        let layout = segments.iter().map(Span::of).collect::<Result<Vec<Span>>>()?;
        if layout != task.layout {
            return refuse("the words to upload do not have the form of the task");
        }
        let mut body = pack(segments);
        let words = hash_bytes(&body);
        match &self.last {
            Some(last) if task.exchange < last.task.exchange => {
                return refuse(format!("exchange {} is over", task.exchange));
            }
            Some(last) if task.exchange == last.task.exchange => {
                if *task != last.task || words != last.words {
                    return refuse(format!("exchange {} has another upload", task.exchange));
                }
            }
            _ => self.last = Some(Answered { task: task.clone(), words, told: None }),
        }
        let own = self.own()?;
        let mut masks = Vec::new();
        let mut fingerprints = Vec::new();
        let others = std::iter::once(&own.id).chain(&own.neighbours);
        for (&other, &seed) in others.zip(&own.seeds) {
            let (at, sign) = between(own.task, own.id, other);
            masks.push((stream_key(seed, &at), sign));
            fingerprints.push(fingerprint(seed, &at));
        }
        apply(&layout, &mut body, &masks);
        let boxes = own.neighbours.iter().map(|&to| self.seal_for(to, &own, &words));
        let boxes = boxes.collect::<Result<_>>()?;
        Ok(MaskedUpload { exchange: task.exchange, task: own.task, body, fingerprints, boxes })
    }

    /// Vouches for the survivors. The state must be durable before the
    /// vouch is sent. A second, different set in the same exchange is refused.
    pub fn vouch(&mut self, message: &Survivors) -> Result<Vouch> {
        let told = self.settle(message)?;
        let signature = sign(&identity(&self.identity), &told);
        Ok(Vouch { exchange: message.exchange, signature })
    }

    /// The shares for the server, once two thirds of the cohort vouched for this client's set.
    pub fn shares(&self, message: &Vouches) -> Result<Shares> {
        let (answered, told) = self.settled(message.exchange)?;
        let ((_, roster), cohort) = (self.agreed()?, &answered.task.cohort);
        if !message.signatures.is_sorted_by(|a, b| a.0 < b.0) {
            return refuse("vouches are not in ascending order of clients");
        }
        for (id, signature) in &message.signatures {
            if !has(cohort, *id) || !is_signed(&roster.member(*id)?.identity, &told, signature) {
                return refuse(format!("client {id} did not vouch for the same survivors"));
            }
        }
        let (count, least) = (message.signatures.len(), two_thirds(cohort.len()));
        if count < least {
            return refuse(format!("{count} clients vouched for the survivors: {least} must"));
        }
        self.shares_of(message.exchange)
    }

    /// Checks the survivors, opens the boxes and fixes the set. Returns the hash to sign.
    fn settle(&mut self, message: &Survivors) -> Result<Hash> {
        let (id, roster) = self.agreed()?;
        let least = roster.rules().min_cohort as usize;
        let last = self.answered(message.exchange)?;
        if message.task != last.task.hash(roster) {
            return refuse("the survivors belong to another task");
        }
        let (survivors, cohort) = (&message.survivors, &last.task.cohort);
        if !is_ascending(survivors) || !survivors.iter().all(|&i| has(cohort, i)) {
            return refuse("the survivors are not a subset of the cohort, ascending");
        }
        if survivors.len() < least || !has(survivors, id) {
            return refuse(format!(
                "{} survivors: at least {least} were agreed, this client among them",
                survivors.len()
            ));
        }
        if let Some(told) = &last.told {
            if told.survivors != *survivors {
                return refuse("other survivors were answered for in this exchange");
            }
            return Ok(self::told(&message.task, survivors));
        }
        let (shares, unopened) = self.open_boxes(message)?;
        let told = Told { survivors: message.survivors.clone(), shares, unopened };
        if let Some(last) = &mut self.last {
            last.told = Some(told);
        }
        Ok(self::told(&message.task, &message.survivors))
    }

    /// The shares to reveal: of `b_i` and, for lost j, of `k_ij`; never of `k_ij` for two survivors
    /// and nothing of lost clients. A box that does not open, which its sender or the server
    /// falsified, is reported instead: it costs the sender one holder of its seeds.
    fn open_boxes(&mut self, message: &Survivors) -> Result<(Vec<Element>, Vec<ClientId>)> {
        let own = self.own()?;
        let graph = self.graph()?;
        let mut boxes = message.boxes.iter();
        let (mut shares, mut unopened) = (Vec::new(), Vec::new());
        for from in dealers(&graph, &message.survivors, own.id) {
            let dealt = if from == own.id {
                own.shares_for(own.id)
            } else {
                let sealed = boxes.next().ok_or_else(|| Error::peer("a sealed box is missing"))?;
                let (key, about) = self.box_key(from, from, own.id, &own.task)?;
                let bytes = 16 * (graph.degree() + 1);
                let content = open(&key, &about, sealed).ok().filter(|c| c.len() == bytes);
                let take = |c: Vec<u8>| Element::take_all(graph.degree() + 1, &mut &c[..]).ok();
                let Some(dealt) = content.and_then(take) else {
                    unopened.push(from);
                    continue;
                };
                dealt
            };
            let places = revealed(&graph, &message.survivors, from);
            shares.extend(places.into_iter().map(|place| dealt[place]));
        }
        if boxes.next().is_some() {
            return refuse("more sealed boxes than clients");
        }
        Ok((shares, unopened))
    }

    fn shares_of(&self, exchange: u32) -> Result<Shares> {
        let (answered, told) = self.settled(exchange)?;
        let known = answered.told.as_ref().map(|told| (told.shares.clone(), told.unopened.clone()));
        let (shares, unopened) = known.unwrap_or_default();
        Ok(Shares { exchange, told, shares, unopened })
    }

    /// Seeds and shares, derived again from the secret and the record of the exchange.
    fn own(&mut self) -> Result<Own> {
        let (id, graph) = (self.agreed()?.0, self.graph()?);
        let last = self.last.as_ref().ok_or_else(no_upload)?;
        let (t, task, words) = (last.task.exchange, last.task.hash(self.agreed()?.1), last.words);
        let neighbours = graph.neighbours(id);
        let mut seeds = vec![seed(&self.secret, "mask own", &(t, (task, words)))];
        for &other in &neighbours {
            seeds.push(seed(&self.pair(other)?, "mask pair", &(t, task)));
        }
        let coins = prf(&self.secret, "mask coins", &(t, (task, words)));
        let threshold = two_thirds(neighbours.len() + 1);
        let polynomials = polynomials(&seeds, threshold, coins);
        Ok(Own { id, task, neighbours, seeds, polynomials })
    }

    fn seal_for(&mut self, to: ClientId, own: &Own, words: &Hash) -> Result<Vec<u8>> {
        let (key, about) = self.box_key(to, own.id, to, &own.task)?;
        let nonce = prf(&self.secret, "mask nonce", &(own.task, (*words, to)));
        let mut content = Vec::new();
        Element::put_all(&own.shares_for(to), &mut content);
        Ok(seal(&key, nonce[..12].try_into().expect("12 bytes"), &about, &content))
    }

    /// The key of the box between two clients, one of them `other`, and its associated data.
    fn box_key(
        &mut self,
        other: ClientId,
        from: ClientId,
        to: ClientId,
        task: &Hash,
    ) -> Result<(Hash, Vec<u8>)> {
        let about = (*task, (from, to));
        Ok((prf(&self.pair(other)?, "mask box", &about), about.to_bytes()))
    }

    /// The secret shared with another client, agreed once per run.
    fn pair(&mut self, other: ClientId) -> Result<Hash> {
        if let Some((_, known)) = self.pairs.iter().find(|(id, _)| *id == other) {
            return Ok(*known);
        }
        let (id, roster) = self.agreed()?;
        let keys = (&roster.member(id)?.key, &roster.member(other)?.key);
        let secret = self.agreement_key().pair(keys, &self.run)?;
        self.pairs.push((other, secret));
        Ok(secret)
    }

    fn agreement_key(&self) -> AgreementKey {
        AgreementKey::new(&self.secret, &self.run)
    }

    fn graph(&self) -> Result<Graph> {
        Ok(self.last.as_ref().ok_or_else(no_upload)?.task.graph(&self.run))
    }

    fn agreed(&self) -> Result<(ClientId, &Roster)> {
        let agreed = self.agreed.as_ref().map(|(id, roster)| (*id, roster));
        agreed.ok_or_else(|| Error::peer("no roster was agreed"))
    }

    fn answered(&self, exchange: u32) -> Result<&Answered> {
        let last = self.last.as_ref().filter(|last| last.task.exchange == exchange);
        last.ok_or_else(|| Error::peer(format!("exchange {exchange} has no upload of this client")))
    }

    /// The exchange with its survivors, and their hash.
    fn settled(&self, exchange: u32) -> Result<(&Answered, Hash)> {
        let answered = self.answered(exchange)?;
        let Some(told) = &answered.told else {
            return refuse("shares are asked for before the survivors are known");
        };
        Ok((answered, self::told(&answered.task.hash(self.agreed()?.1), &told.survivors)))
    }
}

impl Own {
    fn shares_for(&self, holder: ClientId) -> Vec<Element> {
        self.polynomials.iter().map(|coefficients| share(coefficients, holder.0)).collect()
    }
}

fn no_upload() -> Error {
    Error::peer("this client has uploaded nothing")
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::super::words::{Sign, Width, add_packed, packed_bytes, unpack};
    use super::*;

    const RUN: Hash = [3; 32];
    const LAYOUT: [Span; 1] = [Span { width: Width::W16, words: 1000 }];

    fn clients() -> Vec<MaskClient> {
        let mut clients: Vec<_> = (1..4).map(|i| MaskClient::new([i; 32], RUN)).collect();
        let rules = Rules { run: RUN, min_cohort: 3 };
        let members = clients.iter().enumerate().map(|(i, c)| (ClientId(i as u32), c.enrol()));
        let roster = Roster::new(rules, members.collect()).unwrap();
        clients.iter_mut().for_each(|client| client.agree(roster.clone()).unwrap());
        clients
    }

    /// An upload of 1,000 fives for a model, and the masks in it: its own, then its pairs'.
    fn upload(client: &mut MaskClient, content: Hash) -> (Vec<u8>, Vec<(Hash, Sign)>) {
        let cohort = (0..3).map(ClientId).collect();
        let task = MaskTask { exchange: 0, cohort, layout: LAYOUT.to_vec(), content };
        let words = [Segment { width: 16, words: vec![5; 1000] }];
        let body = client.upload(&task, &words).unwrap().body;
        let own = client.own().unwrap();
        let others = std::iter::once(&own.id).chain(&own.neighbours).zip(&own.seeds);
        let mask = |(&other, &seed)| {
            let (at, sign) = between(own.task, own.id, other);
            (stream_key(seed, &at), sign.opposite())
        };
        (body, others.map(mask).collect())
    }

    fn words(body: &[u8]) -> Vec<u64> {
        unpack(&LAYOUT, body).remove(0).words
    }

    /// Uniform words hit a given value with probability 2^-16: more than two of 1,000 once in a
    /// million draws. Their mean is within five standard errors.
    fn is_noise(words: &[u64], value: u64) -> bool {
        let mean = words.iter().sum::<u64>() as f64 / 1000.0;
        let hits = words.iter().filter(|&&word| word == value).count();
        hits <= 2 && (mean - 32767.5).abs() < 5.0 * 18919.0 / 1000f64.sqrt()
    }

    #[test]
    fn every_single_mask_hides_the_words() {
        let (body, masks) = upload(&mut clients()[1], [0; 32]);
        let without = |removed: &[(Hash, Sign)]| {
            let mut body = body.clone();
            apply(&LAYOUT, &mut body, removed);
            words(&body)
        };
        assert_eq!(without(&masks), [5; 1000]);
        for left in 0..masks.len() {
            assert!(is_noise(&without(&[&masks[..left], &masks[left + 1..]].concat()), 5));
        }
    }

    /// The sum of three uploads less the clients' own masks, where the last client may have another
    /// model: the most that a server learns that gets every share of `b_i`.
    #[test]
    fn another_task_turns_the_sum_into_noise() {
        let sum_with = |last: Hash| {
            let mut sum = vec![0; packed_bytes(&LAYOUT)];
            for (client, content) in clients().iter_mut().zip([[0; 32], [0; 32], last]) {
                let (mut body, masks) = upload(client, content);
                apply(&LAYOUT, &mut body, &masks[..1]);
                add_packed(&LAYOUT, &mut sum, &body);
            }
            words(&sum)
        };
        assert_eq!(sum_with([0; 32]), [15; 1000]);
        assert!(is_noise(&sum_with([1; 32]), 15));
    }
}
