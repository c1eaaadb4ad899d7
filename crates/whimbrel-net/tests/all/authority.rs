//! Certificates of institutions, and full disks.

use crate::pki::Authority;
use crate::support::{Joined, Town, Toys, wait};
use std::path::PathBuf;
use std::process::Command;
use whimbrel_core::wire::hex;
use whimbrel_net::registry::Standing;
use whimbrel_net::status::{Refusal, RunState};
use whimbrel_net::tls::Identity;

#[test]
fn clients_of_another_authority_are_refused() {
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

    // An invitation does not suffice with a self-signed certificate or one of another authority.
    for (other, times) in [(None, 1), (identity(&elsewhere, "other"), 2)] {
        let error = town.join_as(0, other).error().to_string();
        assert!(error.contains("does not know its authority"), "{error}");
        serving.shows_refused(Refusal::UnknownAuthority, times);
    }
    let named = ["north", "south"].iter().zip(0..);
    let join = |(name, i): (&&str, u32)| town.join_as(i, identity(&institution, name));
    serving.ends_as_simulated(named.map(join).collect(), &toys);
}

/// The error names the faulty file.
#[test]
fn unusable_certificates_are_refused_when_read() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("institution");
    let (good, key) = authority.sign(folder.path(), "good");
    let (old, old_key) = authority.sign_old(folder.path(), "old");
    assert!(Identity::bring(&good, &key).is_ok());
    for (chain, wanted) in [
        (&old, "old.pem is X.509 of version 1 or 2"),
        (&good, "old.key does not belong to the certificate in"),
    ] {
        let error = Identity::bring(chain, &old_key).err().unwrap().to_string();
        assert!(error.contains(wanted) && error.contains("\nhint: "), "{error}");
        assert!(!error.contains("Other("), "{error}");
    }
}

/// Both ends announce their next certificates and change to them during the job. Both certificates
/// are valid in between; afterwards a client's old one is void.
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
    let announced = hex(&bring(&new).fingerprint());
    let untold = |town: &Town| -> Vec<String> {
        town.registry().list().untold(&announced).iter().map(|name| name.to_string()).collect()
    };
    let serving = town.serve(false);
    town.next_of_clients = Some(bring(&north_next).fingerprint());
    let first = town.join_as(0, Some(bring(&north)));
    town.next_of_clients = None;
    let second = town.join_as(1, Some(bring(&south)));
    serving.shows("some exchanges", |s| s.strip.len() >= 3);
    // Both return with their next certificates.
    first.halt();
    let first = town.join_as(0, Some(bring(&north_next)));
    serving.shows("the changed client", |s| {
        s.clients["c00"].disconnects > 0 && s.clients["c00"].connected
    });
    serving.shows("who knows the announced certificate", |s| {
        s.clients.values().all(|client| client.told == Some(true))
    });
    let _ = serving.halt();
    assert!(untold(&town).is_empty(), "{:?}", untold(&town));
    // A client that is invited now, and has not joined, needs no announcement.
    town.invite("c02");
    town.registry().stand("c02", Standing::Revoked).unwrap();
    assert!(untold(&town).is_empty());
    let other = town.registry().list().untold("00").len();
    assert_eq!(other, 2, "another certificate was announced to nobody");
    (town.brought, town.next_certificate) = (Some(new), None);
    let serving = town.serve(true);
    serving.shows("an exchange", |s| !s.strip.is_empty());
    first.halt();
    let outdated = town.join_as(0, Some(bring(&north))).error().to_string();
    assert!(outdated.contains("belongs to no client"), "{outdated}");
    let first = town.join_as(0, Some(bring(&north_next)));
    serving.ends_as_simulated(vec![first, second], &toys);
    let members = std::fs::read_to_string(town.run_folder().join("members.jsonl")).unwrap();
    assert_eq!(members.matches("\"certificate-changed\"").count(), 1, "{members}");
}

/// A generated key is announced, bound and replaced; then the old one is void.
#[test]
fn a_client_replaces_its_generated_key() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 1500) };
    let mut town = Town::new(toys.clone(), 2);
    let folder = town.folder.path().join("c00");
    let old = Identity::keep(&folder, "c00").unwrap().fingerprint();
    let old_file = std::fs::read(Identity::path(&folder)).unwrap();
    let serving = town.serve(false);
    town.new_keys = true;
    let first = town.join(0);
    town.new_keys = false;
    let second = town.join(1);
    let kept = || Identity::kept(&folder).unwrap().unwrap().fingerprint();
    serving.shows("the new key", |_| kept() != old && !Identity::has_next(&folder));
    first.halt();
    let first = town.join(0);
    serving.shows("the client is back", |s| {
        s.clients["c00"].disconnects > 0 && s.clients["c00"].connected
    });
    first.halt();
    let new_file = std::fs::read(Identity::path(&folder)).unwrap();
    std::fs::write(Identity::path(&folder), old_file).unwrap();
    let outdated = town.join(0).error().to_string();
    assert!(outdated.contains("belongs to no client"), "{outdated}");
    std::fs::write(Identity::path(&folder), new_file).unwrap();
    let first = town.join(0);
    serving.ends_as_simulated(vec![first, second], &toys);
    let members = std::fs::read_to_string(town.run_folder().join("members.jsonl")).unwrap();
    assert_eq!(members.matches("\"certificate-changed\"").count(), 1, "{members}");
}

/// A mounted file system of a few blocks.
struct Small(PathBuf);

impl Small {
    /// `None` if this user may not mount.
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
fn a_full_disk_pauses_the_job_until_there_is_space() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 300) };
    let mut town = Town::new(toys.clone(), 2);
    let place = town.run_folder().join("checkpoint");
    std::fs::create_dir_all(&place).unwrap();
    let Some(_small) = Small::mount(place.clone()) else {
        return whimbrel_testkit::skipped("this user cannot mount a small file system");
    };
    // Leaves space for the first checkpoint and a few records.
    let ballast = place.join("ballast");
    std::fs::write(&ballast, vec![1; 232 << 10]).unwrap();
    let serving = town.serve(false);
    let clients: Vec<Joined> = town.join_all();
    serving.shows("a pause", |s| s.state.starts_with("paused, nothing is lost: "));
    let paused = serving.status();
    assert!(paused.state.contains("No space left on device"), "{}", paused.state);
    assert_eq!(paused.phase, RunState::Paused);
    let status = town.run_folder().join("status.json");
    let told = || std::fs::read_to_string(&status).is_ok_and(|text| text.contains("\"paused\""));
    wait(told, "paused in status.json", &serving.board);
    std::fs::remove_file(&ballast).unwrap();
    serving.ends_as_simulated(clients, &toys);
}
