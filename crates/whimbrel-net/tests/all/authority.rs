//! Certificates that institutions bring, and disks that are really full.

use crate::pki::Authority;
use crate::support::{Joined, PATIENCE, Town, Toys, simulate, wait};
use std::path::PathBuf;
use std::process::Command;
use whimbrel_net::status::{Refusal, RunState};
use whimbrel_net::tls::Identity;

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
            s.refused.get(&Refusal::UnknownAuthority).copied().unwrap_or(0)
        };
        let before = refused(&serving.board.watch().borrow());
        let outside = town.join_as(0, stranger, PATIENCE);
        let error = outside.error().to_string();
        assert!(error.contains("an authority that the coordinator does not know"), "{error}");
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

/// What TLS cannot use is refused when it is read, in words that say which file is wrong.
#[test]
fn certificates_that_cannot_be_used_are_refused_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("institution");
    let (good, key) = authority.sign(folder.path(), "good");
    let (old, old_key) = authority.sign_old(folder.path(), "old");
    assert!(Identity::bring(&good, &key).is_ok());
    let said = |chain: &PathBuf, key: &PathBuf| {
        let error = Identity::bring(chain, key).err().expect("it was taken").to_string();
        assert!(!error.contains("Other(") && error.contains("\nhint: "), "{error}");
        error
    };
    let error = said(&old, &old_key);
    assert!(error.contains("old.pem is X.509 of version 1 or 2"), "{error}");
    let error = said(&good, &old_key);
    assert!(error.contains("old.key is not that of the certificate in"), "{error}");
}

/// Both ends announce their next certificates, and change to them while the job runs: both are good
/// in between, and afterwards a client's old one is not.
#[test]
fn certificates_of_both_ends_change_while_the_job_runs() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 1500) };
    let mut town = Town::new(toys.clone(), 2);
    let folder = town.folder.path().to_path_buf();
    let institution = Authority::new("institution");
    let sign = |name: &str| institution.sign(&folder, name);
    let bring = |paths: &(PathBuf, PathBuf)| Identity::bring(&paths.0, &paths.1).unwrap();
    let (old, new) = (sign("coordinator"), sign("renewed"));
    let (north, north_next, south) = (sign("north"), sign("north-next"), sign("south"));
    town.invitations.iter_mut().for_each(|i| i.server = bring(&old).fingerprint());
    town.brought = Some(old);
    town.next_certificate = Some(bring(&new).fingerprint());
    let serving = town.serve(false);
    town.next_of_clients = Some(bring(&north_next).fingerprint());
    let first = town.join_as(0, Some(bring(&north)), PATIENCE);
    town.next_of_clients = None;
    let second = town.join_as(1, Some(bring(&south)), PATIENCE);
    serving.shows("some exchanges", |s| s.strip.len() >= 3);
    // The client comes back with its next certificate, the coordinator with its own.
    first.halt();
    let first = town.join_as(0, Some(bring(&north_next)), PATIENCE);
    serving.shows("the changed client", |s| {
        s.clients["c00"].disconnects > 0 && s.clients["c00"].connected
    });
    let _ = serving.halt();
    (town.brought, town.next_certificate) = (Some(new), None);
    let serving = town.serve(true);
    serving.shows("an exchange", |s| !s.strip.is_empty());
    first.halt();
    let outdated = town.join_as(0, Some(bring(&north)), PATIENCE).error().to_string();
    assert!(outdated.contains("belongs to no client"), "{outdated}");
    let first = town.join_as(0, Some(bring(&north_next)), PATIENCE);
    let (left, _) = serving.end();
    [first, second].into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
    let members = std::fs::read_to_string(town.run_folder().join("members.jsonl")).unwrap();
    assert_eq!(members.matches("\"certificate-changed\"").count(), 1, "{members}");
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
        return whimbrel_testkit::skipped("this user cannot mount a small file system");
    };
    // All of it but what the first checkpoint and a few records need.
    let ballast = place.join("ballast");
    std::fs::write(&ballast, vec![1; 232 << 10]).unwrap();
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("a pause", |s| s.state.starts_with("paused, nothing is lost: "));
    let state = serving.board.watch().borrow().state.clone();
    assert!(state.contains("No space left on device"), "{state}");
    assert_eq!(serving.board.watch().borrow().phase, RunState::Paused);
    // And the file beside says the same.
    let status = town.run_folder().join("status.json");
    let told = || std::fs::read_to_string(&status).is_ok_and(|text| text.contains("\"paused\""));
    wait(told, "status.json says so", &serving.board);
    std::fs::remove_file(&ballast).unwrap();
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}
