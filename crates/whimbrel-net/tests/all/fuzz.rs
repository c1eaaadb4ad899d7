//! Decoders on corrupted bytes: an error or a value, never a panic or invented content.

use whimbrel_core::{ClientId, Key, Stream, Wire};
use whimbrel_engine::client::{Record, StepId};
use whimbrel_net::Invitation;
use whimbrel_net::client::Enrolled;
use whimbrel_net::client::slots::Slots;
use whimbrel_net::coordinator::{files_from_bytes, files_to_bytes};
use whimbrel_net::wal::Wal;

/// Valid bytes with random changes, cuts and additions.
fn spoil(bytes: &[u8], stream: &mut Stream) -> Vec<u8> {
    let mut spoiled = bytes.to_vec();
    for _ in 0..=stream.below(4) {
        let at = stream.below(spoiled.len().max(1) as u64) as usize;
        match stream.below(4) {
            0 => spoiled.truncate(at),
            1 => spoiled.insert(at.min(spoiled.len()), stream.below(256) as u8),
            2 => spoiled.extend((0..stream.below(9)).map(|_| stream.below(256) as u8)),
            _ => {
                if let Some(byte) = spoiled.get_mut(at) {
                    *byte ^= 1 << stream.below(8);
                }
            }
        }
    }
    spoiled
}

#[test]
fn corrupted_messages_are_errors_or_values() {
    let mut stream = Key::root(21).stream();
    let files = files_to_bytes(&[("model.json".into(), vec![1; 40]), ("b".into(), vec![])]);
    let (run, name, offer) = (vec![1; 32], "ward".to_owned(), vec![2; 99]);
    let enrolled = Enrolled { run, name, offer }.to_bytes();
    let invitation = Invitation {
        address: "h:1".into(),
        server: [7; 32],
        name: "a".into(),
        token: [9; 16],
        relays: Vec::new(),
    };
    let text = invitation.encode();
    for _ in 0..20_000 {
        if let Ok(files) = files_from_bytes(&spoil(&files, &mut stream)) {
            assert!(files.iter().all(|(name, _)| !name.contains('/') && name != ".."));
        }
        let _ = Enrolled::from_bytes(&spoil(&enrolled, &mut stream));
        let spoiled = spoil(text.as_bytes(), &mut stream);
        if let Ok(spoiled) = String::from_utf8(spoiled)
            && let Ok(read) = Invitation::decode(&spoiled)
        {
            assert_eq!(read, invitation, "{spoiled} decodes as {text}");
        }
    }
}

#[test]
fn corrupted_files_hold_written_content_or_nothing() {
    let mut stream = Key::root(22).stream();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut wal = Wal::create(&path).unwrap();
    let records: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 10 + 7 * usize::from(n)]).collect();
    records.iter().for_each(|record| wal.append(record).unwrap());
    let whole = std::fs::read(&path).unwrap();

    let own = tempfile::tempdir().unwrap();
    let at = StepId { stage: 1, step: 3 };
    let slot = Record {
        at,
        base: None,
        client: ClientId(1),
        asked: vec![5; 32],
        state: vec![3; 50],
        upload: vec![4; 20],
        ledger: Default::default(),
    };
    Slots::open(own.path()).unwrap().0.write(&slot, None).unwrap();
    let slot_path = own.path().join("slot-a");
    let slot_bytes = std::fs::read(&slot_path).unwrap();
    for _ in 0..500 {
        std::fs::write(&path, spoil(&whole, &mut stream)).unwrap();
        let mut found = Vec::new();
        let opened = Wal::open(&path, |record| {
            found.push(record.to_vec());
            Ok(())
        });
        if opened.is_ok() {
            assert!(records.starts_with(&found), "{found:?}");
        }
        std::fs::write(&slot_path, spoil(&slot_bytes, &mut stream)).unwrap();
        if let Ok((_, found)) = Slots::open(own.path()) {
            assert!(found.iter().all(|found| *found == slot));
        }
    }
}
