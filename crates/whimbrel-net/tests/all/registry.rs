//! Invitations, certificates, changes by other processes.

use std::fs;
use std::path::{Path, PathBuf};
use whimbrel_core::wire::hex;
use whimbrel_net::registry::*;
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::sha256;

fn path(folder: &Path) -> PathBuf {
    folder.join("federation.json")
}

fn registry() -> (tempfile::TempDir, Registry) {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::create(folder.path(), "localhost:1", &[7; 32]).unwrap();
    (folder, registry)
}

fn redeem(registry: &Registry, token: &[u8], certificate: u8, name: &str) -> Redeemed {
    redeem_at(registry, token, certificate, name, None, false)
}

fn redeem_at(
    registry: &Registry,
    token: &[u8],
    certificate: u8,
    name: &str,
    via: Option<&str>,
    is_relay: bool,
) -> Redeemed {
    let certificate = &[certificate; 32];
    let by = Redeemer { certificate, name, address: ADDRESS, via, is_relay };
    registry.redeem(token, &by).unwrap()
}

fn holder(registry: &Registry, certificate: u8) -> Option<(String, Standing)> {
    registry.holder(&[certificate; 32]).map(|entry| (entry.name, entry.standing))
}

const ADDRESS: &str = "203.0.113.7:1";

#[test]
fn a_token_is_valid_once_and_again_for_the_same_certificate() {
    let (_folder, registry) = registry();
    let (a, b) = (registry.invite("a", 1).unwrap(), registry.invite("b", 1).unwrap());
    assert_eq!(redeem(&registry, &a, 1, ""), Redeemed::Client("a".into()));
    assert_eq!(redeem(&registry, &a, 1, ""), Redeemed::Again("a".into()));
    for (token, certificate, why) in [
        (&a[..], 2, Refusal::Replayed),
        (&b, 1, Refusal::Replayed),
        (&[0; 16], 3, Refusal::WrongToken),
        (b"", 3, Refusal::WrongToken),
    ] {
        assert_eq!(redeem(&registry, token, certificate, ""), Redeemed::Refused(why));
    }
    registry.stand("b", Standing::Revoked).unwrap();
    assert_eq!(redeem(&registry, &b, 2, ""), Redeemed::Refused(Refusal::Revoked));
    assert_eq!(holder(&registry, 1), Some(("a".into(), Standing::Expected)));
    assert_eq!(holder(&registry, 2), None);
}

#[test]
fn a_client_may_choose_its_name_if_the_invitation_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut draft = Draft::new("localhost:1", &[7; 32]).unwrap();
    draft.invite("north", false, 1).unwrap();
    let (open, closed) =
        (draft.invite("1", true, 1).unwrap(), draft.invite("2", false, 1).unwrap());
    let registry = draft.create(folder.path()).unwrap();
    let refused = Redeemed::Refused(Refusal::Name);
    assert_eq!(redeem(&registry, &closed, 1, "west"), refused);
    assert_eq!(redeem(&registry, &open, 1, "north"), refused);
    assert_eq!(redeem(&registry, &open, 1, "a\nb"), refused);
    let west = Redeemed::Client("west".into());
    assert_eq!(redeem(&registry, &open, 1, "west"), west);
    let again = Redeemed::Again("west".into());
    assert_eq!(redeem(&registry, &open, 1, "west"), again);
}

#[test]
fn changes_by_other_processes_are_read_and_tokens_are_not_stored() {
    let (folder, registry) = registry();
    let elsewhere = Registry::open(folder.path()).unwrap();
    let token = elsewhere.invite("ward 7", 1).unwrap();
    assert!(matches!(redeem(&registry, &token, 1, ""), Redeemed::Client(_)));
    elsewhere.stand("ward 7", Standing::Revoked).unwrap();
    assert_eq!(holder(&registry, 1), Some(("ward 7".into(), Standing::Revoked)));
    let text = fs::read_to_string(path(folder.path())).unwrap();
    assert!(!text.contains(&hex(&token)));
}

#[test]
fn a_new_token_replaces_an_unused_one() {
    let (_folder, registry) = registry();
    let lost = registry.invite("a", 1).unwrap();
    let token = registry.invite("a", 1).unwrap();
    let refused = Redeemed::Refused(Refusal::WrongToken);
    assert_eq!(redeem(&registry, &lost, 1, ""), refused);
    assert_eq!(redeem(&registry, &token, 1, ""), Redeemed::Client("a".into()));
    assert!(registry.invite("a", 1).is_err());
    assert!(registry.invite("a\nb", 1).is_err());
    assert!(registry.stand("nobody", Standing::Dead).is_err());
}

#[test]
fn both_certificates_are_valid_during_a_change() {
    let (_folder, registry) = registry();
    let (a, b) = (registry.invite("a", 1).unwrap(), registry.invite("b", 1).unwrap());
    redeem(&registry, &a, 1, "");
    redeem(&registry, &b, 2, "");
    assert!(registry.announce("a", &[2; 32]).is_err(), "it is b's");
    assert!(registry.announce("a", &[3; 32]).unwrap());
    assert!(!registry.announce("a", &[3; 32]).unwrap());
    let holder = |certificate| registry.holder(&certificate).map(|entry| entry.name);
    assert_eq!((holder([1; 32]), holder([3; 32])), (Some("a".into()), Some("a".into())));
    assert!(!registry.changed("a", &[1; 32], ADDRESS).unwrap(), "the old one changes nothing");
    assert!(registry.changed("a", &[3; 32], ADDRESS).unwrap());
    assert!(!registry.changed("a", &[3; 32], ADDRESS).unwrap());
    assert_eq!((holder([1; 32]), holder([3; 32])), (None, Some("a".into())));
}

#[test]
fn revocation_is_final() {
    let (_folder, registry) = registry();
    let token = registry.invite("west", 1).unwrap();
    redeem(&registry, &token, 1, "");
    for standing in [Standing::Dead, Standing::Revoked, Standing::Revoked] {
        registry.stand("west", standing).unwrap();
    }
    for standing in [Standing::Dead, Standing::Expected] {
        let error = registry.stand("west", standing).unwrap_err().to_string();
        assert!(error.contains("was revoked, which is final"), "{error}");
    }
    assert_eq!(holder(&registry, 1), Some(("west".into(), Standing::Revoked)));
}

/// The order of invitations does not matter: `a`, invited first, connects through `b`, and `b` through `c`.
#[test]
fn a_revoked_relay_bars_everyone_behind_it() {
    let (_folder, registry) = registry();
    for (name, certificate) in [("a", 1), ("b", 2), ("c", 3)] {
        let place = Place { via: None, address: Some("h:1") };
        let token = registry.invite_at(name, 1, place).unwrap();
        redeem_at(&registry, &token, certificate, "", None, true);
    }
    let behind = |via| Place { via: Some(via), address: None };
    let token = registry.invite_at("ward", 1, behind("a")).unwrap();
    registry.move_to("a", Some("b")).unwrap();
    registry.move_to("b", Some("c")).unwrap();
    for (relay, via) in [("a", "a"), ("c", "c"), ("c", "a"), ("b", "a")] {
        let error = registry.move_to(relay, Some(via)).unwrap_err().to_string();
        assert!(error.contains(&format!("leads back to `{relay}`")), "{error}");
    }
    let barred = |name: &str| {
        let list = registry.list();
        let entry =
            list.clients.iter().chain(&list.relays).find(|entry| entry.name == name).unwrap();
        (list.barred(entry), list.revoked_relay(entry.via.as_deref()).map(str::to_owned))
    };
    assert_eq!(barred("ward"), (None, None));
    registry.stand("c", Standing::Revoked).unwrap();
    let behind_c = (Some(Refusal::RelayRevoked), Some("c".to_owned()));
    assert_eq!([barred("ward"), barred("a"), barred("b")], [(); 3].map(|()| behind_c.clone()));
    assert_eq!(barred("c"), (Some(Refusal::Revoked), None));
    let redeemed = redeem_at(&registry, &token, 4, "", Some("a"), false);
    assert_eq!(redeemed, Redeemed::Refused(Refusal::RelayRevoked));
    let error = registry.invite_at("other", 1, behind("a")).unwrap_err().to_string();
    assert!(error.contains("relay `c` was revoked"), "{error}");
}

#[test]
fn paths_have_at_most_eight_relays() {
    let (_folder, registry) = registry();
    let mut via = None;
    for n in 1..=9u8 {
        let name = format!("r{n}");
        let place = Place { via: via.as_deref(), address: Some("h:1") };
        let token = registry.invite_at(&name, 1, place).unwrap();
        redeem_at(&registry, &token, n, "", via.as_deref(), true);
        via = Some(name);
    }
    let place = |via| Place { via: Some(via), address: None };
    assert!(registry.invite_at("ward", 1, place("r8")).is_ok());
    let error = registry.invite_at("ward", 1, place("r9")).unwrap_err().to_string();
    assert!(error.contains("at most 8 may be in a row"), "{error}");
}

#[test]
fn no_new_list_is_created_beside_a_checkpoint() {
    let (folder, _registry) = registry();
    fs::remove_file(path(folder.path())).unwrap();
    fs::create_dir(folder.path().join("checkpoint")).unwrap();
    fs::write(folder.path().join("checkpoint").join("state"), b"kept").unwrap();
    let made = Draft::new("localhost:1", &[7; 32]).unwrap().create(folder.path());
    let error = made.err().unwrap().to_string();
    assert!(error.contains("it is missing although a checkpoint exists"), "{error}");
    assert!(!Registry::exists(folder.path()));
}

/// An older copy of the list does not let a revoked client in again.
#[test]
fn an_older_list_of_clients_is_refused() {
    let (folder, registry) = registry();
    let (list, lines) = (path(folder.path()), folder.path().join("members.jsonl"));
    registry.invite("a", 1).unwrap();
    let (older, older_lines) = (fs::read(&list).unwrap(), fs::read(&lines).unwrap());
    registry.stand("a", Standing::Revoked).unwrap();
    let (newer, newer_lines) = (fs::read(&list).unwrap(), fs::read(&lines).unwrap());
    let told = String::from_utf8(newer_lines.clone()).unwrap();
    assert_eq!(told.matches("\"revoked\"").count(), 1, "{told}");

    let refused = |why: &str| {
        let error = Registry::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    fs::write(&list, &older).unwrap();
    refused("federation.json: it is an older copy: members.jsonl has 3 lines");
    refused("without `a` being revoked");
    assert!(registry.stand("a", Standing::Dead).is_err(), "a change is refused");
    assert_eq!(fs::read(&list).unwrap(), older);
    // The lines are lost, older or damaged.
    fs::write(&list, &newer).unwrap();
    fs::remove_file(&lines).unwrap();
    refused("members.jsonl: it is missing");
    let first = older_lines.iter().position(|b| *b == b'\n').unwrap() + 1;
    fs::write(&lines, &older_lines[..first]).unwrap();
    refused("members.jsonl: it has 1 lines, and the list of clients covers 3");
    for at in 0..newer_lines.len() {
        let mut damaged = newer_lines.clone();
        damaged[at] ^= 1;
        fs::write(&lines, &damaged).unwrap();
        refused("members.jsonl: it is damaged");
    }
    // After a crash between the two writes, the line is appended.
    for length in older_lines.len()..newer_lines.len() {
        fs::write(&lines, &newer_lines[..length]).unwrap();
        Registry::open(folder.path()).unwrap().invite("b", 1).unwrap();
        let told = fs::read(&lines).unwrap();
        assert!(
            told.starts_with(&newer_lines) && told.len() > newer_lines.len(),
            "cut to {length}"
        );
        fs::write(&list, &newer).unwrap();
    }
}

#[test]
fn a_list_that_is_damaged_anywhere_is_refused() {
    let (folder, registry) = registry();
    registry.invite("ward 7", 1).unwrap();
    let list = path(folder.path());
    let whole = fs::read(&list).unwrap();
    for at in 0..whole.len() {
        for bytes in [&whole[..at], &[&whole[..at], &[whole[at] ^ 1], &whole[at + 1..]].concat()] {
            fs::write(&list, bytes).unwrap();
            let error = Registry::open(folder.path()).map(drop).unwrap_err().to_string();
            let named = error.contains("it is damaged") || error.contains("it has version");
            assert!(named, "at {at}: {error}");
        }
    }
}

#[test]
fn changes_of_a_certificate_are_limited() {
    const MOST: u32 = 1000;
    let (folder, registry) = registry();
    let token = registry.invite("a", 1).unwrap();
    redeem(&registry, &token, 0, "");
    for n in 1..=MOST {
        let next = sha256(&n.to_le_bytes());
        assert!(registry.announce("a", &next).unwrap());
        assert!(registry.changed("a", &next, ADDRESS).unwrap());
    }
    let error = registry.announce("a", &[9; 32]).unwrap_err().to_string();
    assert!(error.contains("too often"), "{error}");
    let told = fs::read_to_string(folder.path().join("members.jsonl")).unwrap();
    assert_eq!(told.lines().count() as u32, 3 + MOST);
}
