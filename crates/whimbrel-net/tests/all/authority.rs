//! Certificates that institutions bring, and disks that are really full.

use crate::support::{Joined, PATIENCE, Town, Toys, simulate};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::Identity;

/// An authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = named(name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = pem("CERTIFICATE", parameters.self_signed(&key).unwrap().der());
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    /// Writes a certificate with its chain, and its key.
    fn sign(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = named(name).signed_by(&key, &self.issuer).unwrap();
        let paths = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        let chain = pem("CERTIFICATE", certificate.der()) + &self.pem;
        std::fs::write(&paths.0, chain).unwrap();
        std::fs::write(&paths.1, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        paths
    }
}

fn named(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

/// The text form of keys and certificates: base64 between two lines.
fn pem(label: &str, der: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let word = three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            let word = word << (8 * (3 - three.len()));
            let letter = |at: usize| match at <= three.len() {
                true => char::from(LETTERS[(word >> (18 - 6 * at)) as usize & 63]),
                false => '=',
            };
            text.extend((0..4).map(letter));
        }
        text.push('\n');
    }
    writeln!(text, "-----END {label}-----").unwrap();
    text
}

#[test]
fn both_ends_bring_certificates_and_a_client_of_another_authority_stays_outside() {
    let toys = Toys::new(1, 5);
    let mut town = Town::new(toys.clone(), 2);
    let folder = town.folder.path().to_path_buf();
    let (institution, elsewhere) = (Authority::new("institution"), Authority::new("elsewhere"));
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, &institution.pem).unwrap();
    let brought = institution.sign(&folder, "coordinator");
    let server = Identity::bring(&brought.0, &brought.1).unwrap().fingerprint();
    town.invitations.iter_mut().for_each(|invitation| invitation.server = server);
    (town.brought, town.client_ca) = (Some(brought), Some(ca));
    let identity = |authority: &Authority, name: &str| {
        let (chain, key) = authority.sign(&folder, name);
        Some(Identity::bring(&chain, &key).unwrap())
    };
    let serving = town.serve(false);

    // With a certificate of its own making, or of another authority: an invitation is not enough.
    for stranger in [None, identity(&elsewhere, "stranger")] {
        let refused = |s: &whimbrel_net::status::Status| {
            s.refused.get(&Refusal::Handshake).copied().unwrap_or(0)
        };
        let before = refused(&serving.board.watch().borrow());
        let outside = town.join_as(0, stranger, Duration::ZERO);
        let error = outside.error().to_string();
        assert!(error.contains("could not be reached"), "{error}");
        serving.shows("a refused handshake", |s| refused(s) > before);
    }
    let clients: Vec<Joined> = ["north", "south"]
        .iter()
        .zip(0..)
        .map(|(name, i)| town.join_as(i, identity(&institution, name), PATIENCE))
        .collect();
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}

/// A file system of a few blocks, for as long as it lives.
struct Small(PathBuf);

impl Small {
    /// None where this user may not mount one.
    fn mount(at: PathBuf) -> Option<Self> {
        let arguments = ["-t", "tmpfs", "-o", "size=256k", "small"];
        let mounted = Command::new("mount").args(arguments).arg(&at).output();
        mounted.is_ok_and(|ran| ran.status.success()).then_some(Self(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_pauses_the_job_and_space_lets_it_go_on() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 300) };
    let mut town = Town::new(toys.clone(), 2);
    let place = town.run_folder().join("checkpoint");
    std::fs::create_dir_all(&place).unwrap();
    let Some(_small) = Small::mount(place.clone()) else {
        eprintln!("skipped: this user cannot mount a small file system");
        return;
    };
    // All of it but what the first checkpoint and a few records need.
    let ballast = place.join("ballast");
    std::fs::write(&ballast, vec![1; 232 << 10]).unwrap();
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("a pause", |s| s.state.starts_with("paused, nothing is lost: "));
    let state = serving.board.watch().borrow().state.clone();
    assert!(state.contains("No space left on device"), "{state}");
    std::fs::remove_file(&ballast).unwrap();
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}
