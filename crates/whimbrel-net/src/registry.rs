//! The list of clients: invitations and the certificates bound to them.
//!
//! The list is `federation.json` in the run's folder. `whimbrel invite` and `whimbrel revoke` change
//! it while the coordinator runs, under a lock on `federation.lock`; the coordinator reads it again
//! before it authenticates a connection. Tokens are stored only as SHA-256 hashes, so a reader of
//! the file cannot join. The file has a checksum and covers the lines of `members.jsonl`, to which
//! each change adds one: damage and older copies are refused.

mod file;
mod list;

pub use list::{ClientEntry, ClientList, Place, Redeemed, Standing, check_name};

use crate::invitation::{Fingerprint, Token};
use crate::members::{MemberEvent, MemberFault, Members};
use crate::status::Refusal;
use crate::tls::{random, sha256};
use file::{ListFile, path, read, write};
use list::{Redemption, VERSION};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use whimbrel_core::wire::hex;
use whimbrel_core::{ClientId, Error, Result};
use whimbrel_engine::checkpoint::Store;

/// Pause before redeemed tokens are written, in durations of the last write, and its maximum.
const WRITES_APART: u32 = 4;
const WRITE_DELAY_MAX: Duration = Duration::from_millis(500);
/// Maximal changes of one client's certificate, since each is stored permanently.
const CERTIFICATES_MAX: u32 = 1000;

/// The list of clients and its cached content.
pub struct Registry {
    file: ListFile,
    /// Redemptions that wait for the next write of the list. Each write takes all of them, so that
    /// many clients who enrol at the same time cost few writes.
    waiting: Mutex<Vec<(Redemption, Sender<Result<Redeemed>>)>>,
    /// Duration of the last write, held during a write.
    writing: Mutex<Duration>,
}

/// The sender of a token.
pub struct Redeemer<'a> {
    pub certificate: &'a Fingerprint,
    /// The chosen name, or empty.
    pub name: &'a str,
    pub address: &'a str,
    /// The relay of the connection.
    pub via: Option<&'a str>,
    pub is_relay: bool,
}

/// A list that is not written yet. Invitations are printed before the list is written, since tokens
/// cannot be recovered from it; after a crash in between, the next process makes a new list.
pub struct Draft {
    list: ClientList,
}

impl Draft {
    /// A run without clients.
    pub fn new(address: &str, certificate: &Fingerprint) -> Result<Self> {
        let list = ClientList {
            version: VERSION,
            sum: 0,
            members: Members::default(),
            run: hex(&random::<16>()?),
            address: address.into(),
            certificate: hex(certificate),
            brought: false,
            client_ca: None,
            clients: Vec::new(),
            relays: Vec::new(),
        };
        Ok(Self { list })
    }

    /// Records the origin of the coordinator's certificate and the client authorities, which later
    /// processes must match.
    #[must_use]
    pub fn bound(mut self, brought: bool, client_ca: Option<String>) -> Self {
        (self.list.brought, self.list.client_ca) = (brought, client_ca);
        self
    }

    /// Invites a client of the job; `open` lets it choose its name.
    pub fn invite(&mut self, name: &str, open: bool, days: u32) -> Result<Token> {
        let token = self.list.invite(name, open, days, Place::default())?;
        if let Some(entry) = self.list.entry(name) {
            entry.listed = !open;
        }
        Ok(token)
    }

    /// Writes the list, which makes the invitations valid.
    pub fn create(self, folder: &Path) -> Result<Registry> {
        if Store::has_checkpoint(folder) {
            let what = "it is missing although a checkpoint exists: a run cannot resume without its \
                        list of clients; restore the folder from a copy";
            return Err(Error::storage(path(folder).display(), what));
        }
        let mut list = self.list;
        let invited = format!("{} clients invited", list.clients.len());
        list.members = list.members.with(&[MemberEvent::new("begun", "", invited)]);
        // Left by a process that died before it wrote the list.
        let stale = folder.join("members.jsonl");
        match fs::remove_file(&stale) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::storage(stale.display(), e));
            }
            _ => {}
        }
        write(folder, &list)?;
        list.members.complete(folder)?;
        Registry::open(folder)
    }
}

impl Registry {
    /// Creates a list without clients.
    pub fn create(folder: &Path, address: &str, certificate: &Fingerprint) -> Result<Self> {
        Draft::new(address, certificate)?.create(folder)
    }

    /// Opens the list of a run.
    pub fn open(folder: &Path) -> Result<Self> {
        let (list, fault) = Self::inspect(folder)?;
        if let Some(fault) = fault {
            return Err(fault.error(folder));
        }
        let file = ListFile::new(folder, list);
        Ok(Self { file, waiting: Mutex::default(), writing: Mutex::default() })
    }

    /// Reads the list and compares it with `members.jsonl`, without changing either.
    pub fn inspect(folder: &Path) -> Result<(ClientList, Option<MemberFault>)> {
        let mut list = read(folder)?;
        loop {
            let fault = list.members.fault(folder)?;
            // Another process may have changed both in between.
            let now = read(folder)?;
            if now == list {
                return Ok((list, fault));
            }
            list = now;
        }
    }

    pub fn exists(folder: &Path) -> bool {
        path(folder).is_file()
    }

    /// The present list.
    pub fn list(&self) -> Arc<ClientList> {
        self.file.fresh()
    }

    /// Invites a client. The token is not stored.
    pub fn invite(&self, name: &str, days: u32) -> Result<Token> {
        self.invite_at(name, days, Place::default())
    }

    /// Invites a client or relay at its place.
    pub fn invite_at(&self, name: &str, days: u32, place: Place<'_>) -> Result<Token> {
        self.change(|list| {
            let token = list.invite(name, false, days, place)?;
            let via = place.via.map(|relay| format!("through {relay}")).unwrap_or_default();
            Ok((token, MemberEvent::new("invited", name, via)))
        })
    }

    /// Moves a client that has joined to another relay, or to a direct connection.
    pub fn move_to(&self, name: &str, via: Option<&str>) -> Result<()> {
        self.change(|list| {
            list.check_path(name, via)?;
            if let Some(entry) = list.entry(name) {
                entry.via = via.map(Into::into);
            }
            Ok(((), MemberEvent::new("moved", name, via.unwrap_or("direct"))))
        })
    }

    /// Changes the address and certificate in new invitations.
    pub fn moved(
        &self,
        address: &str,
        certificate: &Fingerprint,
        (brought, client_ca): (bool, Option<String>),
    ) -> Result<()> {
        self.change(|list| {
            (list.address, list.certificate) = (address.into(), hex(certificate));
            (list.brought, list.client_ca) = (brought, client_ca);
            Ok(((), MemberEvent::new("moved", "", address)))
        })
    }

    /// Sets a client's standing. Revocation is final.
    pub fn stand(&self, name: &str, standing: Standing) -> Result<()> {
        self.change(|list| match list.entry(name) {
            Some(entry) if entry.standing == Standing::Revoked && standing != Standing::Revoked => {
                Err(Error::config(format!("client `{name}` was revoked, which is final"))
                    .hint("rounds do not wait for it; invite it under another name to admit it"))
            }
            Some(entry) => {
                entry.standing = standing;
                Ok(((), MemberEvent::new(standing.word(), name, "")))
            }
            None => {
                let known: Vec<&str> = list.entries().map(|c| &c.name[..]).collect();
                Err(Error::config(format!("there is no client `{name}` in this run"))
                    .hint(format!("its clients are {}", known.join(", "))))
            }
        })
    }

    /// Records that clients have fetched the model.
    pub fn finish(&self, names: &[String]) -> Result<()> {
        self.file.change(|list| {
            list.for_each_of(names, |name| name, |entry, _| entry.finished = true);
            let event = |name: &String| MemberEvent::new("finished", name, "");
            Ok(((), names.iter().map(event).collect()))
        })
    }

    /// Records that clients have received the coordinator's announced certificate.
    pub fn tell(&self, names: &[String], certificate: &Fingerprint) -> Result<()> {
        let certificate = hex(certificate);
        self.file.change(|list| {
            let told: Vec<(&String, &String)> = names.iter().map(|n| (n, &certificate)).collect();
            let tell = |entry: &mut ClientEntry, (_, certificate): &(&String, &String)| {
                entry.told = Some((*certificate).clone());
            };
            list.for_each_of(&told, |(name, _)| name, tell);
            // No line: after a restored copy, clients receive it again.
            Ok(((), Vec::new()))
        })
    }

    /// Records clients' ids.
    pub fn number(&self, ids: &[(String, ClientId)]) -> Result<()> {
        self.change(|list| {
            list.for_each_of(ids, |(name, _)| name, |entry, (_, id)| entry.id = Some(id.0));
            let first = ids.first().map_or(0, |(_, id)| id.0);
            let detail = format!("{} clients from {first} on", ids.len());
            Ok(((), MemberEvent::new("numbered", "", detail)))
        })
    }

    /// Redeems a token: binds it to a certificate and returns its client or relay.
    pub fn redeem(&self, token: &[u8], by: &Redeemer<'_>) -> Result<Redeemed> {
        let redemption = Redemption {
            token: hex(&sha256(token)),
            certificate: hex(by.certificate),
            wanted: by.name.into(),
            address: by.address.into(),
            via: by.via.map(Into::into),
            is_relay: by.is_relay,
        };
        let (answer, answered) = channel();
        self.waiting().push((redemption, answer));
        self.redeem_waiting(&answered)
    }

    /// Redeems all waiting tokens in one change of the list, unless another thread has done so.
    fn redeem_waiting(&self, answered: &Receiver<Result<Redeemed>>) -> Result<Redeemed> {
        let mut last = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(result) = answered.try_recv() {
            return result;
        }
        // A write takes as long as the list: pauses in proportion bound its share of the time.
        std::thread::sleep((WRITES_APART * *last).min(WRITE_DELAY_MAX));
        let begun = Instant::now();
        let (redemptions, answers): (Vec<Redemption>, Vec<_>) =
            std::mem::take(&mut *self.waiting()).into_iter().unzip();
        let redeemed = self.file.change(|list| Ok(list.redeem_all(&redemptions)));
        *last = begun.elapsed();
        let mut results = redeemed.map(Vec::into_iter);
        for answer in answers {
            let result = match &mut results {
                Ok(results) => results.next().ok_or_else(|| Error::internal("no result")),
                Err(error) => Err(Error::peer(error.to_string())),
            };
            // A thread that has ended needs no answer.
            let _ = answer.send(result);
        }
        answered.try_recv().map_err(|_| Error::internal("a token has no answer"))?
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<(Redemption, Sender<Result<Redeemed>>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name on the invitation with this token.
    pub fn invited(&self, token: &[u8]) -> Option<String> {
        let token = hex(&sha256(token));
        self.file.fresh().entries().find(|c| c.token == token).map(|c| c.name.clone())
    }

    /// The client or relay that a certificate belongs to.
    pub fn holder(&self, certificate: &Fingerprint) -> Option<ClientEntry> {
        let certificate = hex(certificate);
        self.file.fresh().entries().find(|c| c.has(&certificate)).cloned()
    }

    /// The relay at the inner end of a path of relays, of which the first is connected to the
    /// coordinator; `None` for an empty path. Revoked relays are found by [`ClientList::barred`].
    pub fn relay_of(&self, path: &[Fingerprint]) -> std::result::Result<Option<String>, Refusal> {
        let mut via = None;
        for certificate in path {
            let relay = self.holder(certificate).filter(ClientEntry::is_relay);
            let relay = relay.ok_or(Refusal::UnknownCertificate)?;
            match relay {
                relay if relay.via != via => return Err(Refusal::Path),
                relay => via = Some(relay.name),
            }
        }
        Ok(via)
    }

    /// Records a client's future certificate; returns whether it is new. A certificate of another
    /// client is refused.
    pub fn announce(&self, name: &str, next: &Fingerprint) -> Result<bool> {
        let next = hex(next);
        self.file.change(|list| {
            if list.entries().any(|c| c.name != name && c.has(&next)) {
                return Err(Error::peer("this certificate belongs to another client"));
            }
            let Some(entry) = list.entry(name) else {
                return Err(Error::peer("there is no such client"));
            };
            if entry.certificates >= CERTIFICATES_MAX {
                return Err(Error::peer("this client changes its certificate too often"));
            }
            let is_new = !entry.has(&next);
            if is_new {
                entry.next_certificate = Some(next);
            }
            // No line: clients announce it in every session, so a restored copy learns it again.
            Ok((is_new, Vec::new()))
        })
    }

    /// Completes a change of certificate once the announced one is used; the old one is void.
    pub fn changed(&self, name: &str, certificate: &Fingerprint, address: &str) -> Result<bool> {
        let certificate = hex(certificate);
        let waits =
            |c: &ClientEntry| c.name == name && c.next_certificate.as_ref() == Some(&certificate);
        if !self.file.fresh().clients.iter().any(waits) {
            return Ok(false);
        }
        self.change(|list| {
            if let Some(entry) = list.clients.iter_mut().find(|c| waits(c)) {
                entry.certificate = entry.next_certificate.take();
                entry.certificates += 1;
            }
            Ok((true, MemberEvent::new("certificate-changed", name, address)))
        })
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut ClientList) -> Result<(T, MemberEvent)>,
    ) -> Result<T> {
        self.file.change(|list| change(list).map(|(result, event)| (result, vec![event])))
    }
}

/// The bytes of a hexadecimal hash; zeros, which match no token, for an invalid text.
pub fn unhex(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    if text.len() == 64 && text.is_ascii() {
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).unwrap_or(0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_expires_unless_it_was_redeemed() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::create(folder.path(), "localhost:1", &[7; 32]).unwrap();
        let (used, unused) = (registry.invite("a", 1).unwrap(), registry.invite("b", 1).unwrap());
        let redeem = |token: &[u8], certificate| {
            let certificate = &[certificate; 32];
            let by = Redeemer { certificate, name: "", address: "", via: None, is_relay: false };
            registry.redeem(token, &by).unwrap()
        };
        redeem(&used, 1);
        let past = |list: &mut ClientList| {
            list.clients.iter_mut().for_each(|c| c.expires = 1);
            Ok(((), MemberEvent::new("aged", "", "")))
        };
        registry.change(past).unwrap();
        let refused = Redeemed::Refused(Refusal::Expired);
        assert_eq!(redeem(&unused, 2), refused);
        let again = Redeemed::Again("a".into());
        assert_eq!(redeem(&used, 1), again);
    }
}
