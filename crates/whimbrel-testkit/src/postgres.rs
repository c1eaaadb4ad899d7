//! A PostgreSQL server for one test.

use crate::skipped;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The user of the server's process if the tests run as root, which PostgreSQL refuses.
const NOBODY: u32 = 65_534;

/// A running server; it ends with the value.
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    pub port: u16,
}

impl Postgres {
    /// The only user, who must give [`PASSWORD`](Self::PASSWORD).
    pub const USER: &str = "ada";
    pub const PASSWORD: &str = "s3cret: of\\ada";

    /// Starts a server in a folder, with a certificate and its key (PEM) if given. `None` without
    /// PostgreSQL: the test is [`skipped`] and must return.
    pub fn start(folder: &Path, certificate: Option<(&str, &str)>) -> Option<Self> {
        if std::env::var_os("WHIMBREL_NO_POSTGRES").is_some() {
            // tidy: allow(print): a skipped test is visible in its output
            eprintln!("skipped: WHIMBREL_NO_POSTGRES is set");
            return None;
        }
        let Some(programs) = programs() else {
            skipped("PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        };
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = free.expect("a free port").port();
        let server = Self { programs, folder: folder.into(), port };
        own(folder);
        server.write("password", Self::PASSWORD);
        let data = folder.join("data").display().to_string();
        let password = format!("--pwfile={}", folder.join("password").display());
        server.done(
            "initdb",
            &["-D", &data, "-U", Self::USER, "-A", "scram-sha-256", "-N", "-E", "UTF8", &password],
        );
        let mut settings = format!(
            "\nport = {port}\nlisten_addresses = '127.0.0.1'\nfsync = off\nunix_socket_directories = '{}'\n",
            folder.display()
        );
        if let Some((certificate, key)) = certificate {
            server.write("data/server.crt", certificate);
            server.write("data/server.key", key);
            settings += "ssl = on\n";
        }
        let file = folder.join("data/postgresql.conf");
        let given = std::fs::read_to_string(&file).expect("the settings of a new server");
        std::fs::write(&file, given + &settings).expect("a writable folder");
        let log = folder.join("log").display().to_string();
        server.done("pg_ctl", &["-D", &data, "-l", &log, "-w", "start"]);
        Some(server)
    }

    /// The URL without a password.
    pub fn url(&self) -> String {
        format!("postgres://{}@127.0.0.1:{}/postgres", Self::USER, self.port)
    }

    /// Runs statements.
    pub fn run(&self, statements: &str) {
        let port = self.port.to_string();
        self.done(
            "psql",
            &[
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                Self::USER,
                "-c",
                statements,
                "postgres",
            ],
        );
    }

    /// Ends all connections but the one that asks for it.
    pub fn stop(&self) {
        let data = self.folder.join("data").display().to_string();
        self.command("pg_ctl", &["-D", &data, "-m", "immediate", "stop"]).status().ok();
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a writable folder");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("the file's owner");
        }
        own(&path);
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).current_dir(&self.folder).env("PGPASSWORD", Self::PASSWORD);
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        #[cfg(unix)]
        if is_root() {
            use std::os::unix::process::CommandExt;
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn done(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program, arguments).status().expect("the program starts");
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The folder of the programs: on the search path, or that of Debian's newest version.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    debian.sort();
    debian.reverse();
    let all = ["initdb", "pg_ctl", "psql"];
    let has_all = |folder: &PathBuf| all.iter().all(|name| folder.join(name).is_file());
    std::env::split_paths(&path).chain(debian).find(has_all)
}

/// Gives a file to the server's user.
fn own(path: &Path) {
    #[cfg(unix)]
    if is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may do this");
    }
    let _ = path;
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}
