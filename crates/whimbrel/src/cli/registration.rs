//! The coordinator's certificate, its list of clients and their invitations.

use super::args::Serve;
use super::messages::{data, note, warning};
use crate::run::execute::shell_word;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_core::wire::hex;
use whimbrel_data::hash_file;
use whimbrel_engine::checkpoint::write_privately;
use whimbrel_families::failure::Result;
use whimbrel_families::job::{Clients, Federation};
use whimbrel_net::Invitation;
use whimbrel_net::inspection::LOST_IDENTITY;
use whimbrel_net::registry::{Draft, Registry, unhex};
use whimbrel_net::tls::{Identity, server_config};

/// File of the invitations if standard output is not available for them.
const INVITATIONS: &str = "invitations";

/// Refuses to resume without the certificate or authorities of the run, or at another address:
/// omitted by mistake, they would change the coordinator's identity or admit other certificates.
pub fn check_bound(args: &Serve, run: &Path) -> Result<()> {
    if !args.resume || !Registry::exists(run) {
        return Ok(());
    }
    let list = Registry::open(run)?.list();
    let refuse = |what: &str, hint: &str| Err(Error::config(what).hint(hint).into());
    if args.address.as_ref().is_some_and(|address| *address != list.address) && !args.rotate {
        return refuse(
            &format!("invitations of this run contain the address {}", list.address),
            "--rotate changes it: clients that have joined then need an invitation from `whimbrel \
             invite RUN NAME --again`",
        );
    }
    if list.brought && args.cert.is_none() {
        return refuse(
            "this run was served with a supplied certificate",
            "give --cert and --key again",
        );
    }
    match (&list.client_ca, authorities(args)?) {
        (Some(_), None) => refuse(
            "this run accepts only client certificates of the authorities in --client-ca",
            "give --client-ca again",
        ),
        (Some(before), Some(now)) if *before != now && !args.rotate => {
            refuse("--client-ca has other authorities than before", "--rotate changes them")
        }
        (None, Some(_)) if !args.rotate => refuse(
            "this run was begun without --client-ca",
            "--rotate adds it: clients without such a certificate are then refused",
        ),
        _ => Ok(()),
    }
}

/// SHA-256 of the file with the authorities, in hexadecimal.
fn authorities(args: &Serve) -> Result<Option<String>> {
    Ok(args.client_ca.as_deref().map(hash_file).transpose()?)
}

/// The supplied certificate, checked with the authorities before anything is written.
pub fn brought(args: &Serve) -> Result<Option<Identity>> {
    let brought = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(Identity::bring(cert, key)?),
        _ => None,
    };
    if args.client_ca.is_some() {
        let made = brought.is_none().then(|| Identity::make("check")).transpose()?;
        if let Some(identity) = brought.as_ref().or(made.as_ref()) {
            server_config(identity, args.client_ca.as_deref())?;
        }
    }
    Ok(brought)
}

/// The coordinator's generated certificate, in the run's folder.
pub fn identity(args: &Serve, run: &Path) -> Result<Identity> {
    let folder = run.join("tls");
    if args.resume && Registry::exists(run) && !args.rotate && Identity::kept(&folder)?.is_none() {
        let what = format!(
            "{LOST_IDENTITY}\nhint: restore tls/ from a copy; without one, --rotate makes a new \
             identity, and each client needs an invitation from `whimbrel invite RUN NAME --again`"
        );
        return Err(Error::storage(folder.join("identity").display(), what).into());
    }
    Ok(Identity::keep(&folder, "whimbrel coordinator")?)
}

/// The list of clients of a resumed run, with the present address and certificate.
pub fn reopen_registry(args: &Serve, run: &Path, identity: &Identity) -> Result<Registry> {
    let registry = Registry::open(run)?;
    let list = registry.list();
    let fingerprint = identity.fingerprint();
    let changed = unhex(&list.certificate) != fingerprint;
    if changed && !args.rotate {
        let error = Error::config("the certificate differs from that in this run's invitations")
            .hint(
                "clients refuse it unless it was announced: give --next-cert first, then --cert, \
                 --key and --rotate",
            );
        return Err(error.into());
    }
    let address = args.address.clone().unwrap_or_else(|| list.address.clone());
    let client_ca = authorities(args)?;
    if changed || address != list.address || client_ca != list.client_ca {
        registry.moved(&address, &fingerprint, (args.cert.is_some(), client_ca))?;
        let untold = list.untold(&hex(&fingerprint));
        if changed && !untold.is_empty() {
            warning(&format!("this certificate was not announced to {}", untold.join(", ")));
        }
        note(
            "new invitations contain this address and certificate; `whimbrel invite --again` makes \
             one for a client that has joined",
        );
    }
    let list = registry.list();
    if let Some(first) = list.unused().first() {
        note(&format!(
            "unused invitations: {}; `whimbrel invite {} {}` replaces one",
            list.unused().join(", "),
            shell_word(run),
            shell_word(Path::new(first))
        ));
    }
    Ok(registry)
}

/// The list of clients of a new run; prints or writes one invitation per client.
pub fn create_registry(
    args: &Serve,
    run: &Path,
    federation: &Federation,
    local: SocketAddr,
    identity: &Identity,
) -> Result<Registry> {
    let address = args.address.clone().unwrap_or_else(|| local.to_string());
    if args.address.is_none() && local.ip().is_unspecified() {
        warning(&format!(
            "invitations contain {address}, which other machines cannot reach; give --address \
             HOST:PORT"
        ));
    }
    let server = identity.fingerprint();
    let draft = Draft::new(&address, &server)?;
    let mut draft = draft.bound(args.cert.is_some(), authorities(args)?);
    let (names, open) = match &federation.clients {
        Clients::Named(names) => (names.clone(), false),
        Clients::Number(count) => {
            let digits = count.to_string().len();
            ((1..=*count).map(|n| format!("client-{n:0digits$}")).collect(), true)
        }
    };
    let mut lines = String::new();
    for name in names {
        let token = draft.invite(&name, open, args.valid_days)?;
        let invitation =
            Invitation { address: address.clone(), server, name, token, relays: Vec::new() };
        lines.push_str(&format!("{}\t{}\n", invitation.name, invitation.encode()));
    }
    // With --json, standard output holds the summary; standard error may be a service's log.
    let file = args.invitations.clone().or_else(|| args.json.then(|| run.join(INVITATIONS)));
    match file {
        Some(file) => {
            check_invitations(&file)?;
            write_privately(&file, lines.as_bytes())?;
            note(&format!("one invitation per client is in {}", file.display()));
        }
        None => {
            note("one invitation per client, to be sent over a private channel:");
            data(&lines)?;
        }
    }
    // Printed before they are valid: after a crash here, the next process makes new ones.
    Ok(draft.create(run)?)
}

/// Refuses to overwrite a file, unless it holds void invitations of a process that died early.
pub fn check_invitations(file: &Path) -> Result<()> {
    let is_invitation =
        |line: &str| line.split_once('\t').is_some_and(|(_, i)| Invitation::decode(i).is_ok());
    let is_free = match std::fs::read_to_string(file) {
        Ok(before) => before.lines().all(is_invitation),
        Err(e) => e.kind() == ErrorKind::NotFound,
    };
    if is_free {
        return Ok(());
    }
    let what = format!("{} exists and does not hold invitations", file.display());
    Err(Error::config(what).hint("name a new file with --invitations").into())
}
