//! The list of clients: invitations and the certificates bound to them.
//!
//! The list is `federation.json` in the run's folder. `whimbrel invite` and `whimbrel revoke` change
//! it while the coordinator runs, under a lock on `federation.lock`; the coordinator reads it again
//! before it authenticates a connection. Tokens are stored only as SHA-256 hashes, so a reader of
//! the file cannot join. The file has a checksum and covers the lines of `members.jsonl`, to which
//! each change adds one: damage and older copies are refused.

use crate::invitation::{Fingerprint, Token};
use crate::members::{MemberEvent, MemberFault, Members};
use crate::status::{Refusal, now};
use crate::tls::{random, sha256};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use whimbrel_core::text::is_shown;
use whimbrel_core::wire::hex;
use whimbrel_core::{ClientId, Error, Result};
use whimbrel_engine::checkpoint::{Store, private_file, write_privately};

const VERSION: u32 = 3;
/// Names appear in tables, logs and names of clients' folders.
const NAME_BYTES_MAX: usize = 200;
/// Maximal changes of one client's certificate, since each is stored permanently.
const CERTIFICATES_MAX: u32 = 1000;
/// More than the clock resolution of any file system.
const CLOCK_TICK_MAX: Duration = Duration::from_millis(100);

/// The content of `federation.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientList {
    version: u32,
    /// CRC-32 of the file with zero in this field.
    sum: u32,
    members: Members,
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
    certificates: u32,
    pub id: Option<u32>,
    pub standing: Standing,
    /// Whether the client has fetched the model.
    #[serde(default)]
    pub finished: bool,
}

impl ClientEntry {
    /// Whether this is the client's certificate or its announced one.
    fn has(&self, certificate: &str) -> bool {
        [&self.certificate, &self.next_certificate]
            .iter()
            .any(|c| c.as_deref() == Some(certificate))
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

/// The list of clients and its cached content.
pub struct Registry {
    folder: PathBuf,
    list: Mutex<(ClientList, Option<Stamp>)>,
}

/// A list that is not written yet. Invitations are printed before the list is written, since tokens
/// cannot be recovered from it; after a crash in between, the next process begins anew.
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
        let token = self.list.invite(name, open, days)?;
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
        list.members = list.members.with(&MemberEvent::new("begun", "", invited));
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

impl ClientList {
    fn entry(&mut self, name: &str) -> Option<&mut ClientEntry> {
        self.clients.iter_mut().find(|c| c.name == name)
    }

    fn invite(&mut self, name: &str, open: bool, days: u32) -> Result<Token> {
        check_name(name)?;
        let expires = (now() as u64).saturating_add(u64::from(days) * 86_400);
        let token: Token = random()?;
        let hash = hex(&sha256(&token));
        match self.entry(name) {
            Some(entry) if entry.certificate.is_some() => {
                let what = format!("client `{name}` has already joined and keeps its own state");
                return Err(Error::config(what)
                    .hint(
                        "`--again` prints its invitation once more; if that state is lost, revoke it and \
                         invite it under another name",
                    ));
            }
            Some(entry) => {
                entry.token = hash;
                entry.expires = expires;
                entry.standing = Standing::Expected;
            }
            None => self.clients.push(ClientEntry {
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
            }),
        }
        Ok(token)
    }

    fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a registry is plain data") + "\n"
    }

    fn with_sum(&self) -> Self {
        let plain = Self { sum: 0, ..self.clone() };
        Self { sum: crc32fast::hash(plain.to_text().as_bytes()), ..plain }
    }

    /// Names of expected clients that have not redeemed their invitations.
    pub fn unused(&self) -> Vec<&str> {
        let unused = |c: &&ClientEntry| c.standing == Standing::Expected && c.certificate.is_none();
        self.clients.iter().filter(unused).map(|c| &c.name[..]).collect()
    }
}

impl Registry {
    /// Creates a list without clients.
    pub fn create(folder: &Path, address: &str, certificate: &Fingerprint) -> Result<Self> {
        Draft::new(address, certificate)?.create(folder)
    }

    /// Opens the list of a run.
    pub fn open(folder: &Path) -> Result<Self> {
        let stamp = Stamp::of(folder);
        let (list, fault) = Self::inspect(folder)?;
        if let Some(fault) = fault {
            return Err(fault.error(folder));
        }
        Ok(Self { folder: folder.to_path_buf(), list: Mutex::new((list, stamp)) })
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
    pub fn list(&self) -> ClientList {
        self.fresh().0.clone()
    }

    /// Invites a client. The token is not stored.
    pub fn invite(&self, name: &str, days: u32) -> Result<Token> {
        self.change(|list| {
            let token = list.invite(name, false, days)?;
            Ok((token, MemberEvent::new("invited", name, "")))
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
                let known: Vec<&str> = list.clients.iter().map(|c| &c.name[..]).collect();
                Err(Error::config(format!("there is no client `{name}` in this run"))
                    .hint(format!("its clients are {}", known.join(", "))))
            }
        })
    }

    /// Records that a client has fetched the model.
    pub fn finish(&self, name: &str) -> Result<()> {
        self.change(|list| {
            if let Some(entry) = list.entry(name) {
                entry.finished = true;
            }
            Ok(((), MemberEvent::new("finished", name, "")))
        })
    }

    /// Records clients' ids.
    pub fn number(&self, ids: &[(String, ClientId)]) -> Result<()> {
        self.change(|list| {
            for (name, id) in ids {
                if let Some(entry) = list.entry(name) {
                    entry.id = Some(id.0);
                }
            }
            let first = ids.first().map_or(0, |(_, id)| id.0);
            let detail = format!("{} clients from {first} on", ids.len());
            Ok(((), MemberEvent::new("numbered", "", detail)))
        })
    }

    /// Redeems a token: binds it to a certificate and returns its client. All hashes are compared,
    /// each in constant time. `address` is the client's.
    pub fn redeem(
        &self,
        token: &[u8],
        certificate: &Fingerprint,
        wanted: &str,
        address: &str,
    ) -> Result<Redeemed> {
        let given = sha256(token);
        let certificate = hex(certificate);
        self.change_if(|list| {
            let refused = |why| Ok((Redeemed::Refused(why), None));
            let mut found = u32::MAX;
            for (at, entry) in list.clients.iter().enumerate() {
                let same = unhex(&entry.token).ct_eq(&given);
                found.conditional_assign(&(at as u32), same);
            }
            let holder = list.clients.iter().position(|c| c.has(&certificate));
            let taken = list.clients.iter().any(|c| c.name == wanted);
            let Some(entry) = list.clients.get_mut(found as usize) else {
                return refused(Refusal::WrongToken);
            };
            if entry.standing == Standing::Revoked {
                return refused(Refusal::Revoked);
            }
            if holder.is_some_and(|at| at != found as usize) {
                return refused(Refusal::Replayed);
            }
            match &entry.certificate {
                None if entry.expires < now() as u64 => return refused(Refusal::Expired),
                None => {
                    if !wanted.is_empty() && wanted != entry.name {
                        if !entry.open || taken || check_name(wanted).is_err() {
                            return refused(Refusal::Name);
                        }
                        entry.name = wanted.into();
                    }
                    entry.certificate = Some(certificate.clone());
                }
                Some(bound) if *bound == certificate => {
                    return Ok((Redeemed::Again(entry.name.clone()), None));
                }
                Some(_) => return refused(Refusal::Replayed),
            }
            let event = MemberEvent::new("enrolled", &entry.name, address);
            Ok((Redeemed::Client(entry.name.clone()), Some(event)))
        })
    }

    /// The client that a certificate belongs to.
    pub fn holder(&self, certificate: &Fingerprint) -> Option<(String, Standing)> {
        let certificate = hex(certificate);
        let list = self.fresh();
        let entry = list.0.clients.iter().find(|c| c.has(&certificate))?;
        Some((entry.name.clone(), entry.standing))
    }

    /// Records a client's future certificate; returns whether it is new. A certificate of another
    /// client is refused.
    pub fn announce(&self, name: &str, next: &Fingerprint) -> Result<bool> {
        let next = hex(next);
        self.change_if(|list| {
            if list.clients.iter().any(|c| c.name != name && c.has(&next)) {
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
            Ok((is_new, None))
        })
    }

    /// Completes a change of certificate once the announced one is used; the old one is void.
    pub fn changed(&self, name: &str, certificate: &Fingerprint, address: &str) -> Result<bool> {
        let certificate = hex(certificate);
        let waits =
            |c: &ClientEntry| c.name == name && c.next_certificate.as_ref() == Some(&certificate);
        if !self.fresh().0.clients.iter().any(waits) {
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
        self.change_if(|list| change(list).map(|(result, event)| (result, Some(event))))
    }

    /// Changes the list under its lock, and records the event if the list differs.
    fn change_if<T>(
        &self,
        change: impl FnOnce(&mut ClientList) -> Result<(T, Option<MemberEvent>)>,
    ) -> Result<T> {
        let lock_path = self.folder.join("federation.lock");
        let lock = private_file().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(|e| Error::storage(lock_path.display(), e))?;
        lock.lock().map_err(|e| Error::storage(lock_path.display(), e))?;
        let before = read(&self.folder)?;
        before.members.complete(&self.folder)?;
        let mut after = before.clone();
        let (result, event) = change(&mut after)?;
        if after != before {
            if let Some(event) = event {
                after.members = after.members.with(&event);
            }
            write(&self.folder, &after)?;
            // The list holds the line: on a full disk, the next change appends it.
            if let Err(error) = after.members.complete(&self.folder) {
                tracing::warn!(%error, "to be written later");
            }
        }
        *self.held() = (after, Stamp::of(&self.folder));
        Ok(result)
    }

    /// The list, read again if the file has changed; an unreadable file is ignored.
    fn fresh(&self) -> MutexGuard<'_, (ClientList, Option<Stamp>)> {
        let stamp = Stamp::of(&self.folder);
        let mut held = self.held();
        let is_same = stamp == held.1 && stamp.is_none_or(Stamp::is_settled);
        if !is_same && let Ok(list) = read(&self.folder) {
            *held = (list, stamp);
        }
        held
    }

    fn held(&self) -> MutexGuard<'_, (ClientList, Option<Stamp>)> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
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

fn path(folder: &Path) -> PathBuf {
    folder.join("federation.json")
}

/// Distinguishes versions of the file. The modification time does not suffice, since two writes may
/// fall into one clock tick. Each write renames a new file into place, so consecutive versions have
/// different inodes; a stamp so young that a third write could repeat it is not trusted.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(folder: &Path) -> Option<Self> {
        let file = fs::metadata(path(folder)).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&file);
        #[cfg(not(unix))]
        let inode = 0;
        Some(Self { modified: file.modified().ok(), length: file.len(), inode })
    }

    /// Whether a clock tick has passed; a time in the future never counts.
    fn is_settled(self) -> bool {
        let age = self.modified.and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age > CLOCK_TICK_MAX)
    }
}

fn read(folder: &Path) -> Result<ClientList> {
    let path = path(folder);
    let text = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
    let refuse = |what: String| Err(Error::storage(path.display(), what));
    // Other versions may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if let Ok(Versioned { version }) = serde_json::from_slice(&text)
        && version != VERSION
    {
        return refuse(format!("it has version {version}, this program reads {VERSION}"));
    }
    match serde_json::from_slice::<ClientList>(&text) {
        // Equal to the byte.
        Ok(list) if list.with_sum().to_text().as_bytes() == text => Ok(list),
        Ok(_) => refuse(format!("it is damaged (its checksum does not match){FROM_COPY}")),
        Err(error) => refuse(format!("it is damaged or cut short ({error}){FROM_COPY}")),
    }
}

const FROM_COPY: &str = "\nhint: restore the folder from a copy";

fn write(folder: &Path, list: &ClientList) -> Result<()> {
    write_privately(&path(folder), list.with_sum().to_text().as_bytes())
}

/// Refuses names that cannot be displayed.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_shown) {
        let hint = format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, without control or invisible characters"
        );
        let what = format!("`{}` is not a valid client name", name.escape_debug());
        return Err(Error::config(what).hint(hint));
    }
    Ok(())
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
mod tests;
