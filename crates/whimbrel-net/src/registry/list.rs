//! Content of the list of clients: entries, invitations, redemption of tokens.

use crate::invitation::Token;
use crate::members::{MemberEvent, Members};
use crate::relay::PATH_MAX;
use crate::status::{Refusal, now};
use crate::tls::{random, sha256};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::{HashMap, HashSet};
use whimbrel_core::text::{NAME_BYTES_MAX, is_name};
use whimbrel_core::wire::hex;
use whimbrel_core::{Error, Result};

pub(super) const VERSION: u32 = 3;

/// The content of `federation.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientList {
    pub(super) version: u32,
    /// CRC-32 of the file with zero in this field.
    #[serde(serialize_with = "zero")]
    pub(super) sum: u32,
    pub(super) members: Members,
    /// The run's identifier, in hexadecimal.
    pub run: String,
    /// The address in invitations.
    pub address: String,
    /// Fingerprint of the coordinator's certificate, in hexadecimal.
    pub certificate: String,
    /// Whether the certificate was supplied (`--cert`) rather than generated.
    pub brought: bool,
    /// SHA-256 of the file of client authorities (`--client-ca`), in hexadecimal.
    pub client_ca: Option<String>,
    /// All clients ever invited, in order of invitation.
    pub clients: Vec<ClientEntry>,
    /// Relays, which carry clients' messages and take no part themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<ClientEntry>,
}

fn zero<S: Serializer>(_: &u32, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_u32(0)
}

/// One client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientEntry {
    pub name: String,
    /// Whether the client may choose its name at enrolment.
    #[serde(default)]
    pub open: bool,
    /// Whether the job names the client. Such clients get the first ids, on which per-client settings
    /// of the job rely.
    #[serde(default)]
    pub listed: bool,
    /// SHA-256 of the token, in hexadecimal.
    pub token: String,
    /// Expiry of the token, in seconds since 1970.
    pub expires: u64,
    /// Fingerprint of the certificate that redeemed the token, in hexadecimal.
    pub certificate: Option<String>,
    /// An announced certificate, in hexadecimal; both are valid until this one is used.
    #[serde(default)]
    pub next_certificate: Option<String>,
    /// Number of certificate changes.
    #[serde(default)]
    pub(super) certificates: u32,
    pub id: Option<u32>,
    pub standing: Standing,
    /// Whether the client has fetched the model.
    #[serde(default)]
    pub finished: bool,
    /// The coordinator's announced certificate that it has received, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// The relay through which it connects; `None` for a direct connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Of a relay: the address at which its clients reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Place of a new client or relay in the federation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// The relay through which it connects.
    pub via: Option<&'a str>,
    /// Of a relay: the address at which its clients reach it.
    pub address: Option<&'a str>,
}

impl ClientEntry {
    pub fn is_relay(&self) -> bool {
        self.address.is_some()
    }

    /// Whether this is the client's certificate or its announced one.
    pub(super) fn has(&self, certificate: &str) -> bool {
        [&self.certificate, &self.next_certificate]
            .iter()
            .any(|c| c.as_deref() == Some(certificate))
    }

    /// Binds the entry to the certificate of a redemption. `is_foreign`: the certificate is another
    /// client's; `is_taken`: the chosen name is in use.
    fn redeem(&mut self, given: &Redemption, is_foreign: bool, is_taken: bool) -> Redeemed {
        let refused = Redeemed::Refused;
        if self.is_relay() != given.is_relay {
            return refused(Refusal::Role);
        }
        if self.via != given.via {
            return refused(Refusal::Path);
        }
        if is_foreign {
            return refused(Refusal::Replayed);
        }
        match &self.certificate {
            None if self.expires < now() as u64 => return refused(Refusal::Expired),
            None => {}
            Some(bound) if *bound == given.certificate => {
                return Redeemed::Again(self.name.clone());
            }
            Some(_) => return refused(Refusal::Replayed),
        }
        if !given.wanted.is_empty() && given.wanted != self.name {
            if !self.open || is_taken || check_name(&given.wanted).is_err() {
                return refused(Refusal::Name);
            }
            self.name = given.wanted.clone();
        }
        self.certificate = Some(given.certificate.clone());
        Redeemed::Client(self.name.clone())
    }
}

/// Membership of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Rounds wait for it.
    Expected,
    /// Rounds do not wait for it. Its contributions stay, and it may return.
    Dead,
    /// Rounds do not wait for it, and it may not return.
    Revoked,
}

impl Standing {
    pub fn word(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Dead => "dead",
            Self::Revoked => "revoked",
        }
    }
}

/// A token to be redeemed.
pub(super) struct Redemption {
    /// SHA-256 of the token, in hexadecimal.
    pub(super) token: String,
    /// Fingerprint of the client's certificate, in hexadecimal.
    pub(super) certificate: String,
    /// The name that the client chooses, or empty.
    pub(super) wanted: String,
    pub(super) address: String,
    /// The relay of the connection.
    pub(super) via: Option<String>,
    pub(super) is_relay: bool,
}

impl ClientList {
    /// Clients, then relays.
    pub(super) fn entries(&self) -> impl Iterator<Item = &ClientEntry> {
        self.clients.iter().chain(&self.relays)
    }

    /// The entry at a place of [`ClientList::entries`].
    fn entry_at(&mut self, at: usize) -> Option<&mut ClientEntry> {
        self.clients.iter_mut().chain(&mut self.relays).nth(at)
    }

    pub(super) fn entry(&mut self, name: &str) -> Option<&mut ClientEntry> {
        self.clients.iter_mut().chain(&mut self.relays).find(|c| c.name == name)
    }

    /// Changes the clients of these names.
    pub(super) fn for_each_of<T>(
        &mut self,
        named: &[T],
        name: fn(&T) -> &str,
        change: fn(&mut ClientEntry, &T),
    ) {
        let named: HashMap<&str, &T> = named.iter().map(|item| (name(item), item)).collect();
        for entry in &mut self.clients {
            if let Some(item) = named.get(&entry.name[..]) {
                change(entry, item);
            }
        }
    }

    /// Redeems tokens in order. A token is found by its hash, which reveals nothing about it.
    pub(super) fn redeem_all(
        &mut self,
        redemptions: &[Redemption],
    ) -> (Vec<Redeemed>, Vec<MemberEvent>) {
        // Places of the entries that the redemptions name, by one of their texts.
        type Text<T> = fn(&T) -> Option<&String>;
        let index = |of_entry: Text<ClientEntry>, of_given: Text<Redemption>| {
            let sought: HashSet<&String> = redemptions.iter().filter_map(of_given).collect();
            let found = self.entries().enumerate().filter_map(|(at, c)| Some((of_entry(c)?, at)));
            let found = found.filter(|(text, _)| sought.contains(text));
            found.map(|(text, at)| (text.clone(), at)).collect::<HashMap<String, usize>>()
        };
        let tokens = index(|c| Some(&c.token), |given| Some(&given.token));
        let mut names = index(|c| Some(&c.name), |given| Some(&given.wanted));
        let mut certificates = index(|c| c.certificate.as_ref(), |given| Some(&given.certificate));
        certificates
            .extend(index(|c| c.next_certificate.as_ref(), |given| Some(&given.certificate)));
        let mut events = Vec::new();
        let redeem = |given: &Redemption| {
            let Some(at) = tokens.get(&given.token).copied() else {
                return Redeemed::Refused(Refusal::WrongToken);
            };
            let holder = certificates.get(&given.certificate).copied();
            let is_taken = names.contains_key(&given.wanted);
            if let Some(why) = self.entries().nth(at).and_then(|entry| self.barred(entry)) {
                return Redeemed::Refused(why);
            }
            let Some(entry) = self.entry_at(at) else {
                return Redeemed::Refused(Refusal::WrongToken);
            };
            let redeemed = entry.redeem(given, holder.is_some_and(|holder| holder != at), is_taken);
            if let Redeemed::Client(name) = &redeemed {
                names.insert(name.clone(), at);
                certificates.insert(given.certificate.clone(), at);
                events.push(MemberEvent::new("enrolled", name, &*given.address));
            }
            redeemed
        };
        let redeemed = redemptions.iter().map(redeem).collect();
        (redeemed, events)
    }

    pub(super) fn invite(
        &mut self,
        name: &str,
        open: bool,
        days: u32,
        place: Place<'_>,
    ) -> Result<Token> {
        check_name(name)?;
        self.check_path(name, place.via)?;
        let expires = (now() as u64).saturating_add(u64::from(days) * 86_400);
        let token: Token = random()?;
        let hash = hex(&sha256(&token));
        let (via, address) = (place.via.map(Into::into), place.address.map(Into::into));
        match self.entry(name) {
            Some(entry) if entry.certificate.is_some() => {
                let what = format!("`{name}` has already joined and keeps its own state");
                return Err(Error::config(what)
                    .hint(
                        "`--again` prints its invitation once more; if that state is lost, revoke it and \
                         invite it under another name",
                    ));
            }
            Some(entry) if entry.address.is_some() != address.is_some() => {
                let what = format!("`{name}` is invited as a client or relay, and this differs");
                return Err(Error::config(what).hint("take another name"));
            }
            Some(entry) => {
                entry.token = hash;
                entry.expires = expires;
                entry.standing = Standing::Expected;
                (entry.via, entry.address) = (via, address);
            }
            None => {
                let is_relay = address.is_some();
                let entry = ClientEntry {
                    name: name.into(),
                    open,
                    listed: false,
                    token: hash,
                    expires,
                    certificate: None,
                    next_certificate: None,
                    certificates: 0,
                    id: None,
                    standing: Standing::Expected,
                    finished: false,
                    told: None,
                    via,
                    address,
                };
                let list = if is_relay { &mut self.relays } else { &mut self.clients };
                list.push(entry);
            }
        }
        Ok(token)
    }

    /// The reason for which a client or relay may not take part: it is revoked, or a relay on its path.
    pub fn barred(&self, entry: &ClientEntry) -> Option<Refusal> {
        if entry.standing == Standing::Revoked {
            return Some(Refusal::Revoked);
        }
        self.revoked_relay(entry.via.as_deref()).map(|_| Refusal::RelayRevoked)
    }

    /// The first revoked relay from `via` to the coordinator.
    pub fn revoked_relay(&self, via: Option<&str>) -> Option<&str> {
        self.relays_from(via)
            .find(|relay| relay.standing == Standing::Revoked)
            .map(|relay| &relay.name[..])
    }

    /// Refuses a relay that has not joined or leads back to `name`, and paths that are too long or hold a
    /// revoked relay.
    pub fn check_path(&self, name: &str, via: Option<&str>) -> Result<()> {
        let Some(relay) = via else { return Ok(()) };
        self.relay(relay)?;
        let path = self.path(via);
        if path.iter().any(|relay| relay == name) {
            return Err(Error::config(format!(
                "the path through `{relay}` leads back to `{name}`"
            ))
            .hint("name a relay that does not connect through this one"));
        }
        if path.len() > PATH_MAX {
            let what = format!("the path through `{relay}` has {} relays", path.len());
            return Err(Error::config(what).hint(format!("at most {PATH_MAX} may be in a row")));
        }
        match self.revoked_relay(via) {
            Some(revoked) => Err(Error::config(format!("relay `{revoked}` was revoked"))),
            None => Ok(()),
        }
    }

    /// Names of the relays from `via` to the coordinator.
    pub fn path(&self, via: Option<&str>) -> Vec<String> {
        self.relays_from(via).map(|relay| relay.name.clone()).collect()
    }

    fn relays_from(&self, via: Option<&str>) -> impl Iterator<Item = &ClientEntry> {
        let relay = |name: &str| self.relays.iter().find(|relay| relay.name == name);
        let next = move |entry: &&ClientEntry| relay(entry.via.as_deref()?);
        std::iter::successors(via.and_then(relay), next).take(self.relays.len())
    }

    /// Names of those that have joined, connect to the coordinator itself, still take part, and have
    /// not received this certificate. Relays receive no announcements.
    pub fn untold(&self, certificate: &str) -> Vec<&str> {
        let is_untold = |c: &&ClientEntry| {
            let takes_part = c.standing == Standing::Expected && !c.finished;
            let is_bound = c.certificate.is_some() && c.via.is_none();
            takes_part && is_bound && c.told.as_deref() != Some(certificate)
        };
        self.entries().filter(is_untold).map(|c| &c.name[..]).collect()
    }

    /// A relay that has joined.
    pub fn relay(&self, name: &str) -> Result<&ClientEntry> {
        match self.relays.iter().find(|relay| relay.name == name) {
            Some(relay) if relay.certificate.is_none() => {
                Err(Error::config(format!("relay `{name}` has not joined yet"))
                    .hint("start it with `whimbrel relay` and its invitation first"))
            }
            Some(relay) => Ok(relay),
            None => Err(Error::config(format!("there is no relay `{name}` in this run"))
                .hint("`whimbrel invite RUN NAME --relay HOST:PORT` invites one")),
        }
    }

    /// Names of expected clients that have not redeemed their invitations.
    pub fn unused(&self) -> Vec<&str> {
        let unused = |c: &&ClientEntry| c.standing == Standing::Expected && c.certificate.is_none();
        self.clients.iter().filter(unused).map(|c| &c.name[..]).collect()
    }
}

/// The result of redeeming a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Redeemed {
    /// This client redeems it now.
    Client(String),
    /// This client redeemed it before.
    Again(String),
    Refused(Refusal),
}

/// Refuses names that cannot be displayed.
pub fn check_name(name: &str) -> Result<()> {
    if !is_name(name) {
        let hint = format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, without control or invisible characters"
        );
        let what = format!("`{}` is not a valid client name", name.escape_debug());
        return Err(Error::config(what).hint(hint));
    }
    Ok(())
}
