//! Who may take part: invitations, and the certificates they were bound to.
//!
//! One file, `federation.json`, in the run's folder. `whimbrel invite` and `whimbrel revoke` change
//! it while the coordinator runs; every change is made under a lock on `federation.lock`, and the
//! coordinator looks at the file again before it answers a stranger. Tokens are kept as SHA-256
//! alone, so the file does not let its reader join. The file has a checksum, and counts on the
//! lines of `members.jsonl`, of which each change adds one: damage and older copies are refused.

use crate::invitation::{Fingerprint, Token};
use crate::members::{Fault, Happened, Members};
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
/// Names are shown in tables, logs and file names of a client's folder.
const NAME_BYTES_MAX: usize = 200;
/// A client that changes its certificate more often is refused: each change is kept for good.
const CERTIFICATES_MAX: u32 = 1000;
/// Longer than any file system's clock takes to show that time has passed.
const CLOCK_TICK_MAX: Duration = Duration::from_millis(100);

/// The file's content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Book {
    version: u32,
    /// A CRC-32 of the file with a zero here.
    sum: u32,
    /// The lines of `members.jsonl`.
    members: Members,
    /// The run, in hexadecimal: a client of another run is told so.
    pub run: String,
    /// Where clients reach the coordinator; part of every invitation.
    pub address: String,
    /// The coordinator's certificate, in hexadecimal.
    pub certificate: String,
    /// Whether it was brought (`--cert`), and not made by the run itself.
    pub brought: bool,
    /// SHA-256 of the authorities that clients' certificates must have (`--client-ca`), in
    /// hexadecimal.
    pub client_ca: Option<String>,
    /// Everyone ever invited, in the order of invitation.
    pub clients: Vec<Entry>,
}

/// One client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whether the client may bring a name of its own when it redeems the invitation.
    #[serde(default)]
    pub open: bool,
    /// Whether the job names it. Such clients are numbered before all others, as the job's settings
    /// for some of them count on.
    #[serde(default)]
    pub listed: bool,
    /// SHA-256 of its token, in hexadecimal.
    pub token: String,
    /// Until when the token can be redeemed, in seconds since 1970.
    pub expires: u64,
    /// The certificate that redeemed it, in hexadecimal.
    pub certificate: Option<String>,
    /// The certificate that it announced, in hexadecimal: both are good until it shows this one.
    #[serde(default)]
    pub next_certificate: Option<String>,
    /// How often it changed its certificate.
    #[serde(default)]
    certificates: u32,
    /// Its number, once it has one.
    pub id: Option<ClientId32>,
    /// Where it stands.
    pub standing: Standing,
    /// Whether it has fetched the model.
    #[serde(default)]
    pub finished: bool,
}

impl Entry {
    /// Whether a certificate is this client's, the one it announced included.
    fn shows(&self, certificate: &str) -> bool {
        [&self.certificate, &self.next_certificate]
            .iter()
            .any(|c| c.as_deref() == Some(certificate))
    }
}

/// A client's number as JSON has it.
pub type ClientId32 = u32;

/// Where a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Waited for.
    Expected,
    /// It is not waited for; what it contributed stays. It may come back.
    Dead,
    /// It is not waited for, and may not come back.
    Revoked,
}

impl Standing {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Dead => "dead",
            Self::Revoked => "revoked",
        }
    }
}

/// The file, and what it said when it was last read.
pub struct Registry {
    folder: PathBuf,
    book: Mutex<(Book, Option<Stamp>)>,
}

/// A file that is not written yet: invitations are handed over first, because nothing that is kept
/// could say them again. A process killed in between leaves no file, and the next one begins anew.
pub struct Draft {
    book: Book,
}

impl Draft {
    /// A run without clients.
    pub fn new(address: &str, certificate: &Fingerprint) -> Result<Self> {
        let book = Book {
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
        Ok(Self { book })
    }

    /// Says where the coordinator's certificate and its clients' authorities come from: a later
    /// process must bring the same.
    #[must_use]
    pub fn bound(mut self, brought: bool, client_ca: Option<String>) -> Self {
        (self.book.brought, self.book.client_ca) = (brought, client_ca);
        self
    }

    /// Invites a client of the job; `open` lets it bring a name of its own.
    pub fn invite(&mut self, name: &str, open: bool, days: u32) -> Result<Token> {
        let token = self.book.invite(name, open, days)?;
        if let Some(entry) = self.book.clients.iter_mut().find(|c| c.name == name) {
            entry.listed = !open;
        }
        Ok(token)
    }

    /// Writes the file: from now on the invitations are good.
    pub fn create(self, folder: &Path) -> Result<Registry> {
        if Store::has_checkpoint(folder) {
            let what = "it is gone, and a checkpoint is beside it: without the list of the clients the \
                        run cannot resume; restore the folder from a copy";
            return Err(Error::storage(path(folder).display(), what));
        }
        let mut book = self.book;
        let invited = format!("{} clients invited", book.clients.len());
        book.members = book.members.and(&Happened::new("begun", "", invited));
        // Of a process that died before the list was there.
        let stale = folder.join("members.jsonl");
        match fs::remove_file(&stale) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::storage(stale.display(), e));
            }
            _ => {}
        }
        write(folder, &book)?;
        book.members.complete(folder)?;
        Registry::open(folder)
    }
}

impl Book {
    fn invite(&mut self, name: &str, open: bool, days: u32) -> Result<Token> {
        check_name(name)?;
        let expires = (now() as u64).saturating_add(u64::from(days) * 86_400);
        let token: Token = random()?;
        let hash = hex(&sha256(&token));
        match self.clients.iter_mut().find(|c| c.name == name) {
            Some(entry) if entry.certificate.is_some() => {
                return Err(Error::config(format!(
                    "client `{name}` has already joined, and its state is on its own machine"
                ))
                .hint("revoke it and invite it under another name if that state is lost"));
            }
            Some(entry) => {
                entry.token = hash;
                entry.expires = expires;
                entry.standing = Standing::Expected;
            }
            None => self.clients.push(Entry {
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

    /// Who is waited for and has not redeemed its invitation.
    pub fn unused(&self) -> Vec<&str> {
        let unused = |c: &&Entry| c.standing == Standing::Expected && c.certificate.is_none();
        self.clients.iter().filter(unused).map(|c| &c.name[..]).collect()
    }
}

impl Registry {
    /// Begins a run's file without clients.
    pub fn create(folder: &Path, address: &str, certificate: &Fingerprint) -> Result<Self> {
        Draft::new(address, certificate)?.create(folder)
    }

    /// The file of a run's folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let stamp = Stamp::of(folder);
        let (book, fault) = Self::inspect(folder)?;
        if let Some(fault) = fault {
            return Err(fault.error(folder));
        }
        Ok(Self { folder: folder.to_path_buf(), book: Mutex::new((book, stamp)) })
    }

    /// What the file says, and what is wrong with it beside `members.jsonl`; changes nothing.
    pub fn inspect(folder: &Path) -> Result<(Book, Option<Fault>)> {
        let mut book = read(folder)?;
        loop {
            let fault = book.members.fault(folder)?;
            // Another process may have changed both in between.
            let now = read(folder)?;
            if now == book {
                return Ok((book, fault));
            }
            book = now;
        }
    }

    /// Whether the folder has one.
    pub fn exists(folder: &Path) -> bool {
        path(folder).is_file()
    }

    /// What the file says now.
    pub fn book(&self) -> Book {
        self.fresh().0.clone()
    }

    /// Invites a client; the token is nowhere else.
    pub fn invite(&self, name: &str, days: u32) -> Result<Token> {
        self.change(|book| {
            let token = book.invite(name, false, days)?;
            Ok((token, Happened::new("invited", name, "")))
        })
    }

    /// The coordinator is reached elsewhere from now on, or has another certificate: new invitations
    /// say so.
    pub fn moved(
        &self,
        address: &str,
        certificate: &Fingerprint,
        (brought, client_ca): (bool, Option<String>),
    ) -> Result<()> {
        self.change(|book| {
            (book.address, book.certificate) = (address.into(), hex(certificate));
            (book.brought, book.client_ca) = (brought, client_ca);
            Ok(((), Happened::new("moved", "", address)))
        })
    }

    /// Sets where a client stands. One that was shut out stays so: the dead may come back.
    pub fn stand(&self, name: &str, standing: Standing) -> Result<()> {
        self.change(|book| match book.clients.iter_mut().find(|c| c.name == name) {
            Some(Entry { standing: Standing::Revoked, .. }) if standing != Standing::Revoked => {
                Err(Error::config(format!("client `{name}` was revoked, and stays so")).hint(
                    "it is not waited for already; invite it under another name to let it in",
                ))
            }
            Some(entry) => {
                entry.standing = standing;
                Ok(((), Happened::new(standing.word(), name, "")))
            }
            None => {
                let known: Vec<&str> = book.clients.iter().map(|c| &c.name[..]).collect();
                Err(Error::config(format!("there is no client `{name}` in this run"))
                    .hint(format!("it has {}", known.join(", "))))
            }
        })
    }

    /// A client has fetched the model.
    pub fn finish(&self, name: &str) -> Result<()> {
        self.change(|book| {
            if let Some(entry) = book.clients.iter_mut().find(|c| c.name == name) {
                entry.finished = true;
            }
            Ok(((), Happened::new("finished", name, "")))
        })
    }

    /// Gives clients their numbers.
    pub fn number(&self, ids: &[(String, ClientId)]) -> Result<()> {
        self.change(|book| {
            for (name, id) in ids {
                if let Some(entry) = book.clients.iter_mut().find(|c| c.name == *name) {
                    entry.id = Some(id.0);
                }
            }
            let first = ids.first().map_or(0, |(_, id)| id.0);
            Ok((
                (),
                Happened::new("numbered", "", format!("{} clients from {first} on", ids.len())),
            ))
        })
    }

    /// Redeems a token: binds it to a certificate, and says whose it is. Every hash is compared,
    /// each in constant time. `address` is where it came from.
    pub fn redeem(
        &self,
        token: &[u8],
        certificate: &Fingerprint,
        wanted: &str,
        address: &str,
    ) -> Result<Redeemed> {
        let given = sha256(token);
        let certificate = hex(certificate);
        self.change_if(|book| {
            let refused = |why| Ok((Redeemed::Refused(why), None));
            let mut found = u32::MAX;
            for (at, entry) in book.clients.iter().enumerate() {
                let same = unhex(&entry.token).ct_eq(&given);
                found.conditional_assign(&(at as u32), same);
            }
            let other = book
                .clients
                .iter()
                .position(|c| c.shows(&certificate))
                .is_some_and(|at| at != found as usize);
            let taken = book.clients.iter().any(|c| c.name == wanted);
            let Some(entry) = book.clients.get_mut(found as usize) else {
                return refused(Refusal::WrongToken);
            };
            if entry.standing == Standing::Revoked {
                return refused(Refusal::Revoked);
            }
            if other {
                return refused(Refusal::Replayed);
            }
            match &entry.certificate {
                None if entry.expires < now() as u64 => {
                    return refused(Refusal::Expired);
                }
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
            let happened = Happened::new("enrolled", &entry.name, address);
            Ok((Redeemed::Client(entry.name.clone()), Some(happened)))
        })
    }

    /// The client that a certificate belongs to.
    pub fn holder(&self, certificate: &Fingerprint) -> Option<(String, Standing)> {
        let certificate = hex(certificate);
        let book = self.fresh();
        let entry = book.0.clients.iter().find(|c| c.shows(&certificate))?;
        Some((entry.name.clone(), entry.standing))
    }

    /// A client will show another certificate later; whether that is news. Refused where it is
    /// somebody else's.
    pub fn announce(&self, name: &str, next: &Fingerprint) -> Result<bool> {
        let next = hex(next);
        self.change_if(|book| {
            if book.clients.iter().any(|c| c.name != name && c.shows(&next)) {
                return Err(Error::peer("this certificate belongs to another client"));
            }
            let Some(entry) = book.clients.iter_mut().find(|c| c.name == name) else {
                return Err(Error::peer("there is no such client"));
            };
            if entry.certificates >= CERTIFICATES_MAX {
                return Err(Error::peer("this client changes its certificate too often"));
            }
            let is_new = !entry.shows(&next);
            if is_new {
                entry.next_certificate = Some(next);
            }
            // It is announced again: what is lost with an older copy comes back.
            Ok((is_new, None))
        })
    }

    /// A client has shown the certificate that it announced: the one before is good no more.
    pub fn changed(&self, name: &str, certificate: &Fingerprint, address: &str) -> Result<bool> {
        let certificate = hex(certificate);
        let waits = |c: &Entry| c.name == name && c.next_certificate.as_ref() == Some(&certificate);
        if !self.fresh().0.clients.iter().any(waits) {
            return Ok(false);
        }
        self.change(|book| {
            if let Some(entry) = book.clients.iter_mut().find(|c| waits(c)) {
                entry.certificate = entry.next_certificate.take();
                entry.certificates += 1;
            }
            Ok((true, Happened::new("certificate-changed", name, address)))
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Book) -> Result<(T, Happened)>) -> Result<T> {
        self.change_if(|book| change(book).map(|(result, happened)| (result, Some(happened))))
    }

    /// Changes the file under its lock, and tells what happened, where it changed.
    fn change_if<T>(
        &self,
        change: impl FnOnce(&mut Book) -> Result<(T, Option<Happened>)>,
    ) -> Result<T> {
        let lock_path = self.folder.join("federation.lock");
        let lock = private_file().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(|e| Error::storage(lock_path.display(), e))?;
        lock.lock().map_err(|e| Error::storage(lock_path.display(), e))?;
        let before = read(&self.folder)?;
        before.members.complete(&self.folder)?;
        let mut after = before.clone();
        let (result, happened) = change(&mut after)?;
        if after != before {
            if let Some(happened) = happened {
                after.members = after.members.and(&happened);
            }
            write(&self.folder, &after)?;
            // The list holds the line: where there is no space for it now, the next change adds it.
            if let Err(error) = after.members.complete(&self.folder) {
                tracing::warn!(%error, "written later");
            }
        }
        *self.held() = (after, Stamp::of(&self.folder));
        Ok(result)
    }

    /// The content, read again if the file has changed; what is unreadable changes nothing.
    fn fresh(&self) -> MutexGuard<'_, (Book, Option<Stamp>)> {
        let stamp = Stamp::of(&self.folder);
        let mut held = self.held();
        let is_same = stamp == held.1 && stamp.is_none_or(Stamp::is_settled);
        if !is_same && let Ok(book) = read(&self.folder) {
            *held = (book, stamp);
        }
        held
    }

    fn held(&self) -> MutexGuard<'_, (Book, Option<Stamp>)> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Redeemed {
    /// It is this client's, which redeems it now.
    Client(String),
    /// It is this client's, which had redeemed it before.
    Again(String),
    /// It opens nothing.
    Refused(Refusal),
}

fn path(folder: &Path) -> PathBuf {
    folder.join("federation.json")
}

/// Tells one writing of the file from another. Its time alone does not: a clock tick is long enough
/// for two writings. Each of them renames a new file into place, though, so that two in a row have
/// different inodes; and a stamp so young that a third writing could still repeat it is not trusted.
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

    /// Whether the clock has moved on since; a time in the future never counts as settled.
    fn is_settled(self) -> bool {
        let age = self.modified.and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age > CLOCK_TICK_MAX)
    }
}

fn read(folder: &Path) -> Result<Book> {
    let path = path(folder);
    let text = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
    let refuse = |what: String| Err(Error::storage(path.display(), what));
    // Other versions have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if let Ok(Versioned { version }) = serde_json::from_slice(&text)
        && version != VERSION
    {
        return refuse(format!("it has version {version}, this program reads {VERSION}"));
    }
    match serde_json::from_slice::<Book>(&text) {
        // As it was written, to the byte.
        Ok(book) if book.with_sum().to_text().as_bytes() == text => Ok(book),
        Ok(_) => refuse(format!("it is damaged (its checksum does not match){FROM_COPY}")),
        Err(error) => refuse(format!("it is damaged or cut short ({error}){FROM_COPY}")),
    }
}

const FROM_COPY: &str = "\nhint: restore the folder from a copy";

fn write(folder: &Path, book: &Book) -> Result<()> {
    write_privately(&path(folder), book.with_sum().to_text().as_bytes())
}

/// Refuses what cannot be shown as a name.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_shown) {
        return Err(Error::config(format!("`{}` is no name for a client", name.escape_debug()))
            .hint(format!(
                "a name has 1 to {NAME_BYTES_MAX} bytes and no control or invisible characters"
            )));
    }
    Ok(())
}

/// The bytes of a hash; zeros for what is none, which no SHA-256 of a token is.
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
