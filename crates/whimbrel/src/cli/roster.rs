//! Rosters of masked sums on the command line: identities, fingerprints, and the check of `join --roster`.

use super::messages::{data, note, warning};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use whimbrel_core::text::printable;
use whimbrel_core::{ClientId, Error};
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::versioned;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::job::{Job, Participation};
use whimbrel_methods::masked::{Accepted, Roster, ShortHash, Trust, Watch};
use whimbrel_net::client::{mask_identity, read_offer};
use whimbrel_net::status::Board;

/// File of the accepted roster in a client's folder.
const ACCEPTED: &str = "accepted-roster";
/// File of the roster under which a client answers, in the form that `--roster @FILE` reads.
const ROSTER: &str = "roster.txt";

/// Prints the line of a client for the rosters of the others.
pub fn identity_command(folder: &Path) -> Result<u8> {
    let name = match read_offer(folder)? {
        Some(enrolled) => enrolled.name,
        None => folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let identity = ShortHash::of_secret(&mask_identity(folder)?);
    data(&format!("{} {identity}\n", printable(&name)))?;
    Ok(0)
}

/// The identity of a client, and the check of rosters that its user asked for. Without `partial` the client
/// answers only for sums over its whole roster, which never changes.
pub fn trust_of_client(
    given: Option<&str>,
    folder: &Path,
    job: &Job,
    partial: bool,
) -> Result<Trust> {
    if !job.privacy.is_masked() {
        return match given {
            None => Ok(Trust::default()),
            Some(_) => Err(Failure::config("--roster has no meaning: the job has no masks")),
        };
    }
    if let Some(given) = given {
        let text = match given.strip_prefix('@') {
            Some(file) => std::fs::read_to_string(file).map_err(|e| Error::storage(file, e))?,
            None => given.to_owned(),
        };
        Accepted::parse(&text)?;
        versioned::write(&folder.join(ACCEPTED), text.as_bytes())?;
    }
    let (accepted, identity) = (accepted(folder)?, mask_identity(folder)?);
    note(&format!("this client's identity: {}", ShortHash::of_secret(&identity)));
    let watch = ClientWatch { accepted, partial, folder: folder.into(), shown: Mutex::default() };
    let watch: Option<&'static dyn Watch> = Some(Box::leak(Box::new(watch)));
    Ok(Trust { identity: Some(identity), watch, whole: !partial })
}

/// The roster that the user of a folder's client accepted.
pub fn accepted(folder: &Path) -> Result<Option<Accepted>> {
    let kept = versioned::read(&folder.join(ACCEPTED))?;
    Ok(kept.map(|text| Accepted::parse(&String::from_utf8_lossy(&text))).transpose()?)
}

/// The line of a client's ledger about its roster.
pub fn ledger_line(folder: &Path) -> Result<Option<String>> {
    let Ok(text) = std::fs::read_to_string(folder.join(ROSTER)) else { return Ok(None) };
    let how = if accepted(folder)?.is_some() { "accepted" } else { "not compared" };
    let line = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
    Ok(Some(format!("{line} ({how})\n")))
}

/// Refuses masked rounds without some of the clients, unless the user allows them.
pub fn check_partial(job: &Job, clients: usize, allowed: bool) -> Result<()> {
    match partial(job, clients) {
        Some(why) if !allowed => Err(Error::config(format!("{why}: {RETURNS}"))
            .hint("--partial-rounds takes part nevertheless")
            .into()),
        _ => Ok(()),
    }
}

/// The risk of rounds without some of the clients.
pub const RETURNS: &str = "a client that returns after missed rounds can be read off the masked sum, \
                           because its message is far larger than the others'";

/// The reason why rounds may leave clients out, if the job has one.
fn partial(job: &Job, clients: usize) -> Option<String> {
    let sampled = match &job.method.participation {
        Participation::Probability(p) => *p < 1.0,
        Participation::Size(size) => *size < clients,
        Participation::PerClient { .. } => true,
    };
    let deadline = job.federation.as_ref().and_then(|federation| federation.deadline_s);
    match (job.privacy.is_masked(), sampled, deadline) {
        (true, true, _) => Some("the job samples the clients of a round".into()),
        (true, false, Some(s)) => Some(format!("rounds close {s} s after they began")),
        _ => None,
    }
}

/// The view of a client on rosters.
struct ClientWatch {
    accepted: Option<Accepted>,
    /// Whether rosters may change.
    partial: bool,
    folder: PathBuf,
    /// The fingerprint of the roster in the folder.
    shown: Mutex<Option<ShortHash>>,
}

impl Watch for ClientWatch {
    fn roster(&self, roster: &Roster) -> whimbrel_core::Result<()> {
        if let Some(accepted) = &self.accepted {
            accepted.check(roster)?;
            if !self.partial {
                accepted.check_same(roster)?;
            }
        }
        let fingerprint = roster.fingerprint();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if *shown == Some(fingerprint) {
            return Ok(());
        }
        let file = self.folder.join(ROSTER);
        if !self.partial
            && let Ok(text) = std::fs::read_to_string(&file)
        {
            Accepted::parse(&text)?.check_same(roster)?;
        }
        let line = format!("roster of {} clients: {fingerprint}", roster.members().len());
        let mut text = format!("# {line}\n");
        for (id, member) in roster.members() {
            let identity = ShortHash::of_identity(&member.identity);
            let known = self.accepted.as_ref().and_then(|accepted| accepted.name(identity));
            let name = known.map_or_else(|| format!("client-{id}"), str::to_owned);
            text.push_str(&format!("{name} {identity}\n"));
        }
        write_atomically(&file, text.as_bytes())?;
        match &self.accepted {
            Some(_) => note(&format!("{line}, as accepted")),
            None => note(&format!("{line}; compare it with the other clients")),
        }
        *shown = Some(fingerprint);
        Ok(())
    }

    fn unopened(&self, from: ClientId, _: Option<ClientId>) {
        warning(&format!(
            "sealed shares of client {from} do not open: it or the coordinator falsified them"
        ));
    }
}

/// The view of the coordinator on rosters, which its status shows.
pub fn trust_of_coordinator(board: &Board, names: &[String]) -> Trust {
    let watch = CoordinatorWatch { board: board.clone(), names: names.to_vec() };
    Trust { watch: Some(Box::leak(Box::new(watch))), ..Trust::default() }
}

struct CoordinatorWatch {
    board: Board,
    /// By id; empty if clients choose their names.
    names: Vec<String>,
}

impl CoordinatorWatch {
    fn name(&self, id: ClientId) -> String {
        self.names.get(id.0 as usize).map_or_else(|| format!("client {id}"), |n| format!("`{n}`"))
    }
}

impl Watch for CoordinatorWatch {
    fn roster(&self, roster: &Roster) -> whimbrel_core::Result<()> {
        let shown = format!("{} clients: {}", roster.members().len(), roster.fingerprint());
        if self.board.watch().borrow().roster.as_ref() != Some(&shown) {
            note(&format!("roster of {shown}"));
            self.board.change(|status| status.roster = Some(shown));
        }
        Ok(())
    }

    fn unopened(&self, from: ClientId, to: Option<ClientId>) {
        let to = to.map(|to| self.name(to)).unwrap_or_default();
        let from = self.name(from);
        self.board.warn(&format!(
            "{to} cannot open the sealed shares of {from}: one of the two falsified them"
        ));
    }
}
