//! `whimbrel invite`, `revoke` and `status`: a run that is being served, from beside.

use super::messages::{data, note};
use crate::run::execute::defect;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_engine::lock::FolderLock;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_net::Invitation;
use whimbrel_net::registry::{Registry, Standing, unhex};
use whimbrel_net::status::VERSION as STATUS_VERSION;
use whimbrel_runs::RunDir;

/// Invites one more client, or one again that has not come yet.
pub fn invite_command(run: &Path, name: Option<&str>, valid_days: u32, again: bool) -> Result<u8> {
    let registry = open(run)?;
    if let Some(ending) = RunDir::adopt(run).ending() {
        let error = Error::config(format!("the run in {} is over: {ending}", run.display())).hint(
            "no client can join it any more; `whimbrel serve --resume` hands the model to those who \
             took part",
        );
        return Err(error.into());
    }
    let book = registry.book();
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("client-{}", book.clients.len() + 1),
    };
    let token = match again {
        // It was redeemed: only where and who the coordinator is matters.
        true if book.clients.iter().any(|c| c.name == name && c.certificate.is_some()) => [0; 16],
        true => return Err(Failure::config(format!("no client `{name}` has joined this run"))),
        false => registry.invite(&name, valid_days)?,
    };
    let invitation =
        Invitation { address: book.address, server: unhex(&book.certificate), name, token };
    note(&format!("for `{}`, to be handed over in private:", invitation.name));
    data(&format!("{}\n", invitation.encode()))?;
    Ok(0)
}

/// Shuts a client out, or declares it dead.
pub fn revoke_command(run: &Path, name: &str, dead: bool) -> Result<u8> {
    let standing = if dead { Standing::Dead } else { Standing::Revoked };
    open(run)?.stand(name, standing)?;
    match dead {
        true => note(&format!(
            "`{name}` is no longer waited for; what it contributed stays, and it may come back"
        )),
        false => note(&format!("`{name}` may not take part any more; what it contributed stays")),
    }
    Ok(0)
}

/// Says how a served run is going.
pub fn status_command(run: &Path, json: bool) -> Result<u8> {
    open(run)?;
    let path = run.join("status.json");
    let text = std::fs::read_to_string(&path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::config(format!(
            "the run in {} has no status yet: its coordinator did not begin to work",
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
    if let Some(why) = ending.as_deref().and_then(defect) {
        text = format!("the fit is degenerate: {why}\n{text}");
    }
    data(&text)?;
    if ending.is_none() && !FolderLock::is_held(run) {
        note("no coordinator is at work there: this is how the last one left it");
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
            _ => "away",
        };
        let count = |key: &str| client[key].as_u64().unwrap_or(0);
        let (rounds, missed, refused) = (count("rounds"), count("missed"), count("refused"));
        text.push_str(&format!(
            "{name:width$}  {there:>10}  {rounds:>8}  {missed:>7}  {refused:>7}\n"
        ));
    }
    for (why, times) in status["refused"].as_object().into_iter().flatten() {
        text.push_str(&format!("refused, {why}: {times}\n"));
    }
    text
}

fn open(run: &Path) -> Result<Registry> {
    if !Registry::exists(run) {
        let error = Error::config(format!("{} is no run that is served", run.display()))
            .hint("`whimbrel serve` makes such a folder, and says where");
        return Err(Failure::from(error));
    }
    Ok(Registry::open(run)?)
}
