//! Clients behind an HTTP proxy (tinyproxy).

use crate::federation::{
    Process, all_end, free_address, invitations, same_model, serve, wait, wards,
};
use crate::support::Sandbox;
use std::net::TcpStream;
use std::process::Command;
use whimbrel_testkit::skipped;

/// A running proxy that asks for user `ward` with the password `pw`; `None` without tinyproxy, or if
/// `WHIMBREL_NO_TINYPROXY` is set.
struct Tinyproxy {
    address: String,
    process: Process,
}

impl Tinyproxy {
    fn start(sandbox: &Sandbox) -> Option<Self> {
        if std::env::var_os("WHIMBREL_NO_TINYPROXY").is_some() {
            eprintln!("skipped: WHIMBREL_NO_TINYPROXY is set");
            return None;
        }
        if Command::new("tinyproxy").arg("-v").output().is_err() {
            skipped("clients behind a proxy: tinyproxy is not installed");
            return None;
        }
        let address = free_address();
        let process = Self::run(sandbox, &address);
        Some(Self { address, process })
    }

    fn run(sandbox: &Sandbox, address: &str) -> Process {
        let (host, port) = address.rsplit_once(':').unwrap();
        sandbox.write(
            "proxy.conf",
            &format!(
                "Port {port}\nListen {host}\nTimeout 600\nMaxClients 20\nLogLevel Info\n\
                 Allow 127.0.0.1\nBasicAuth ward pw\n"
            ),
        );
        let mut command = Command::new("tinyproxy");
        command.args(["-d", "-c"]).arg(sandbox.path("proxy.conf"));
        let process = Process::spawn(sandbox, "proxy", command);
        wait("proxy", || TcpStream::connect(address).is_ok());
        process
    }

    /// Ends all tunnels and starts again.
    fn restart(&mut self, sandbox: &Sandbox) {
        self.process.kill();
        self.process = Self::run(sandbox, &self.address);
    }
}

fn join(sandbox: &Sandbox, name: &str, invitation: &str, proxy: &str) -> Process {
    let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
    let mut command = sandbox.command(&[
        "join",
        invitation,
        "--data",
        &data,
        "--out",
        &out,
        "--yes",
        "--give-up",
        "120",
        "--min-group",
        "1",
    ]);
    command.env("HTTPS_PROXY", proxy).env_remove("NO_PROXY").env_remove("no_proxy");
    Process::spawn(sandbox, name, command)
}

/// Tunnels through a proxy end in the simulation's bits, also if the proxy drops them.
#[test]
fn clients_take_part_through_a_proxy() {
    let sandbox = wards(60, "");
    let Some(mut proxy) = Tinyproxy::start(&sandbox) else { return };
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let url = format!("http://ward:p%77@{}", proxy.address);
    let clients =
        invitations.iter().map(|(name, invitation)| join(&sandbox, name, invitation, &url));
    let clients: Vec<Process> = clients.collect();
    let begun = || std::fs::read_to_string(sandbox.path("served/journal")).unwrap_or_default();
    wait("rounds", || begun().lines().count() > 3);
    proxy.restart(&sandbox);
    all_end(&sandbox, coordinator, &invitations, clients);
    assert!(sandbox.read("proxy.out").matches("CONNECT").count() >= 3, "no tunnel was asked for");
    same_model(&sandbox);
}

#[test]
fn a_proxy_that_asks_for_credentials_is_named() {
    let sandbox = wards(2, "");
    let Some(proxy) = Tinyproxy::start(&sandbox) else { return };
    let _coordinator = serve(&sandbox, false);
    let (name, invitation) = invitations(&sandbox).swap_remove(0);
    for (user, why) in [("", "asks for a user and a password\n"), ("ward:x@", ", not these")] {
        let url = format!("http://{user}{}", proxy.address);
        let mut client = join(&sandbox, &name, &invitation, &url);
        wait("end", || client.is_over());
        let told = sandbox.read(&format!("{name}.log"));
        assert_eq!(client.code(), Some(4), "{told}");
        assert!(told.contains(&format!("proxy {} asks", proxy.address)), "{told}");
        assert!(told.contains(why), "{told}");
    }
    let wrong = "socks5://ward:secret@127.0.0.1:1";
    let mut client = join(&sandbox, &name, &invitation, wrong);
    wait("end", || client.is_over());
    let told = sandbox.read(&format!("{name}.log"));
    assert!(told.contains("HTTPS_PROXY: a proxy of scheme `socks5`"), "{told}");
    assert!(!told.contains("secret"), "{told}");
}
