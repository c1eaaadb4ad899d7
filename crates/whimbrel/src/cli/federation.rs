//! `whimbrel invite`, `revoke` and `status`: commands on a served run.

use super::join::WITHHELD_PARTS;
use super::messages::{data, note};
use crate::run::execute::defect;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_engine::lock::FolderLock;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::plan::NO_FIGURES;
use whimbrel_net::Invitation;
use whimbrel_net::invitation::is_address;
use whimbrel_net::registry::{Place, Registry, Standing, unhex};
use whimbrel_net::status::VERSION as STATUS_VERSION;
use whimbrel_runs::RunDir;

/// Options of an invitation.
pub struct Wish<'a> {
    /// For a client that has joined.
    pub again: bool,
    /// Address of a relay, if one is invited.
    pub relay: Option<&'a str>,
    /// The relay through which the client connects.
    pub via: Option<&'a str>,
    /// The client that has joined leaves its relay.
    pub direct: bool,
}

/// Invites a new client or relay, or renews an unused invitation.
pub fn invite_command(
    run: &Path,
    name: Option<&str>,
    valid_days: u32,
    wish: Wish<'_>,
) -> Result<u8> {
    let registry = open(run)?;
    check_address(wish.relay, "--relay")?;
    if let Some(ending) = RunDir::adopt(run).ending() {
        let error = Error::config(format!(
            "the run in {} is over: {}",
            run.display(),
            ending[0]
        ))
        .hint(
            "no client can join it any more; `whimbrel serve --resume` delivers the model to those \
             that took part",
        );
        return Err(error.into());
    }
    let list = registry.list();
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("client-{}", list.clients.len() + 1),
    };
    let mut known = list.clients.iter().chain(&list.relays);
    let joined = known.find(|c| c.name == name && c.certificate.is_some());
    let mut via = wish.via;
    let token = match (wish.again, joined) {
        (false, _) => {
            let place = Place { via, address: wish.relay };
            registry.invite_at(&name, valid_days, place)?
        }
        // The token was redeemed: only address and certificate matter.
        (true, Some(client)) => {
            if via.is_some() || wish.direct {
                registry.move_to(&name, via)?;
            } else {
                via = client.via.as_deref();
            }
            [0; 16]
        }
        (true, None) => {
            return Err(Failure::config(format!("no client `{name}` has joined this run")));
        }
    };
    list.check_path(&name, via)?;
    let (mut address, mut server) = (list.address.clone(), unhex(&list.certificate));
    if let Some(relay) = via.map(|relay| list.relay(relay)).transpose()? {
        address = relay.address.clone().unwrap_or_default();
        server = unhex(relay.certificate.as_deref().unwrap_or_default());
    }
    let relays = list.path(via);
    let invitation = Invitation { address, server, name, token, relays };
    note(&format!("for `{}`, to be sent over a private channel:", invitation.name));
    data(&format!("{}\n", invitation.encode()))?;
    Ok(0)
}

/// Refuses an address that invitations cannot contain.
pub fn check_address(address: Option<&str>, option: &str) -> Result<()> {
    match address.filter(|address| !is_address(address)) {
        None => Ok(()),
        Some(address) => Err(Error::config(format!("{option}: `{address}` is not an address"))
            .hint("give host and port as clients reach them, as in site.example:7443")
            .into()),
    }
}

/// Revokes a client, or declares it dead.
pub fn revoke_command(run: &Path, name: &str, dead: bool) -> Result<u8> {
    let standing = if dead { Standing::Dead } else { Standing::Revoked };
    open(run)?.stand(name, standing)?;
    let effect = if dead { "rounds no longer wait for it, and it may return" } else { "revoked" };
    note(&format!("`{name}`: {effect}; its contributions stay"));
    Ok(0)
}

/// Prints the status of a served run.
pub fn status_command(run: &Path, json: bool) -> Result<u8> {
    open(run)?;
    let path = run.join("status.json");
    let text = std::fs::read_to_string(&path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::config(format!(
            "the run in {} has no status yet: its coordinator has not started",
            run.display()
        )),
        _ => Error::storage(path.display(), e),
    })?;
    if json {
        data(&format!("{}\n", text.trim_end()))?;
        return Ok(0);
    }
    let status: Value =
        serde_json::from_str(&text).map_err(|e| Error::storage(path.display(), e))?;
    let version = status["version"].as_u64().unwrap_or(0);
    if version != u64::from(STATUS_VERSION) {
        let what = format!("it has version {version}, this program reads {STATUS_VERSION}");
        return Err(Error::storage(path.display(), what).into());
    }
    let ending = RunDir::adopt(run).ending();
    let mut text = table(&status);
    if let Some(why) = ending.as_ref().and_then(defect) {
        text = format!("the fit is degenerate: {why}\n{text}");
    }
    data(&text)?;
    if ending.is_none() && !FolderLock::is_held(run) {
        note("no coordinator is running: this is the last known status");
        note("resume with: whimbrel serve JOB --out DIR --resume");
    }
    Ok(0)
}

fn table(status: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let mut text = format!("{}: {}\n", word(&status["job"]), word(&status["state"]));
    let total = status["rounds_total"].as_u64().map(|n| format!(" of {n}")).unwrap_or_default();
    text.push_str(&format!("{}, round {}{total}\n", word(&status["stage"]), status["round"]));
    if let Some(seconds) = status["eta_s"].as_f64() {
        text.push_str(&format!("about {seconds:.0} s left\n"));
    }
    if let (Some(spent), Some(delta)) = (status["epsilon_spent"].as_f64(), status["delta"].as_f64())
    {
        text.push_str(&format!("epsilon spent: {spent:.3} at delta {delta:.2e}\n"));
    }
    if let Some(count) = status["withheld"].as_u64() {
        text.push_str(&format!("{count} {WITHHELD_PARTS}\n"));
    }
    if let Some(roster) = status["roster"].as_str() {
        text.push_str(&format!("roster of {roster}\n{NO_FIGURES}\n"));
    }
    let clients = status["clients"].as_object().cloned().unwrap_or_default();
    let width = clients.keys().map(|name| name.chars().count()).max().unwrap_or(0).max(6);
    text.push_str(&format!(
        "\n{:width$}  {:>10}  {:>8}  {:>7}  {:>7}\n",
        "client", "", "rounds", "missed", "refused"
    ));
    for (name, client) in &clients {
        let there = match (client["connected"].as_bool(), client["standing"].as_str()) {
            (_, Some("revoked")) => "revoked",
            (Some(true), _) => "connected",
            (_, Some("dead")) => "dead",
            _ if client["finished"].as_bool() == Some(true) => "finished",
            _ if client["last_seen"].is_null() => "invited",
            _ => "away",
        };
        let count = |key: &str| client[key].as_u64().unwrap_or(0);
        let (rounds, missed, refused) = (count("rounds"), count("missed"), count("refused"));
        text.push_str(&format!(
            "{name:width$}  {there:>10}  {rounds:>8}  {missed:>7}  {refused:>7}\n"
        ));
    }
    let is_untold = |client: &Value| client["told"].as_bool() == Some(false);
    let untold: Vec<&str> =
        clients.iter().filter(|(_, c)| is_untold(c)).map(|(name, _)| &name[..]).collect();
    if !untold.is_empty() {
        let names = untold.join(", ");
        text.push_str(&format!("the next certificate has not been announced to {names}\n"));
    }
    for (why, times) in status["refused"].as_object().into_iter().flatten() {
        text.push_str(&format!("refused, {why}: {times}\n"));
    }
    text
}

fn open(run: &Path) -> Result<Registry> {
    if !Registry::exists(run) {
        return Err(not_served(run));
    }
    Ok(Registry::open(run)?)
}

/// The error about a folder without a served run.
pub fn not_served(run: &Path) -> Failure {
    let error = Error::config(format!("{} is not a served run", run.display()))
        .hint("`whimbrel serve` creates such a folder and prints its path");
    error.into()
}

/// Binds an address that `option` sets; an error has the remedy.
pub fn listen_on(address: &str, option: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|e| {
        let hint = match e.kind() {
            ErrorKind::AddrInUse => {
                format!(
                    "another program uses this port: name another one with {option} ADDRESS:PORT"
                )
            }
            ErrorKind::PermissionDenied => format!("ports below 1024 need privileges: {option}"),
            _ => format!("{option} takes an address of this machine, such as 0.0.0.0:7443"),
        };
        Error::config(format!("cannot listen on {address}: {e}")).hint(hint).into()
    })
}
