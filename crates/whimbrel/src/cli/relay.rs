//! `whimbrel relay`: carries the messages of a site's clients on one connection.

use super::args::{LogForm, seconds};
use super::execute::{INTERRUPTED, interrupt_flag};
use super::federation::listen_on;
use super::join::{default_folder, read_invitation};
use super::messages::{note, start_log};
use std::path::PathBuf;
use std::time::Duration;
use whimbrel_core::Error;
use whimbrel_core::text::printable;
use whimbrel_families::failure::Result;
use whimbrel_net::client::{Proxy, Setup as Enrolment};
use whimbrel_net::relay::{Relay, Setup};
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, Limits};

/// Folder of the relays of this machine.
const RELAYS: &str = "relays";

/// Arguments of `whimbrel relay`.
#[derive(clap::Args, Debug)]
pub struct RelayArgs {
    /// The relay's invitation; @FILE reads it from a file, - from standard input
    pub invitation: String,
    /// Address to listen on for clients
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7443")]
    pub listen: String,
    /// The relay's own folder, with its key [default: relays/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The relay's certificate for both ends, PEM, with its chain [default: generated]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Accept only clients with certificates from these authorities, PEM
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Give up enrolling after this many seconds without the coordinator [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub give_up: Option<Duration>,
    /// Format of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,
}

/// Relays messages until it is interrupted.
pub fn relay_command(args: &RelayArgs) -> Result<u8> {
    start_log(args.log);
    let invitation = Invitation::decode(read_invitation(&args.invitation)?.trim())?;
    let name = invitation.name.clone();
    let folder = args.out.clone().unwrap_or_else(|| default_folder(RELAYS, &name));
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(Identity::bring(cert, key)?),
        _ => None,
    };
    let listener = listen_on(&args.listen, "--listen")?;
    let bound = listener.local_addr().map_err(|e| Error::internal(e.to_string()))?;
    let setup = Setup {
        client: Enrolment {
            invitation,
            name: None,
            folder: folder.clone(),
            identity,
            next_certificate: None,
            new_key: false,
            stop: interrupt_flag(),
            give_up: args.give_up,
            proxy: Proxy::of_environment()?,
            is_relay: true,
        },
        limits: Limits::default(),
        client_ca: args.client_ca.clone(),
    };
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = built.map_err(|e| Error::internal(format!("no runtime: {e}")))?;
    let Some(relay) = runtime.block_on(Relay::start(setup))? else { return Ok(INTERRUPTED) };
    let name = printable(&name);
    note(&format!("relay `{name}` listens on {bound}; its key is in {}", folder.display()));
    note(&format!("invite its clients with: whimbrel invite RUN NAME --via {name}"));
    runtime.block_on(relay.run(listener))?;
    note("stopped; clients wait until the relay is back: start it again with the same folder");
    Ok(INTERRUPTED)
}
