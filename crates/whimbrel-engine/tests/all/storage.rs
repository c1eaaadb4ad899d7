//! Checkpoints that are damaged, and files that cannot be written.

use crate::toy::{SOUND, clients, stage};
use std::fs;
use std::path::Path;
use std::time::Duration;
use whimbrel_core::Error;
use whimbrel_engine::checkpoint::{Store, write_atomically};
use whimbrel_engine::{Limits, Stage, run};

fn one() -> Vec<Stage> {
    vec![Stage { evaluate_every: Some(3), ..stage(SOUND) }]
}

/// A folder with a checkpoint after every exchange.
fn limits(folder: &Path, resume: bool) -> Limits<'_> {
    let (folder, checkpoint_every) = (Some(folder), Duration::ZERO);
    Limits { folder, resume, checkpoint_every, ..Limits::default() }
}

/// A finished run of three clients.
fn finished() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let limits = limits(folder.path(), false);
    run(&one(), clients(3), 5, &limits, &mut ()).unwrap();
    folder
}

fn resume_error(folder: &Path) -> Error {
    Store::resume(folder).map(|_| ()).expect_err("a damaged run was resumed")
}

#[test]
fn a_checkpoint_cut_at_any_byte_is_refused() {
    let folder = finished();
    let path = folder.path().join("checkpoint/state");
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = resume_error(folder.path());
        assert!(matches!(error, Error::Storage { .. }), "{length} bytes: {error}");
        assert!(error.to_string().contains("the checkpoint cannot be used: "), "{error}");
    }
    fs::write(&path, &whole).unwrap();
    Store::resume(folder.path()).unwrap();
}

#[test]
fn a_checkpoint_with_any_bit_flipped_is_refused() {
    let folder = finished();
    let path = folder.path().join("checkpoint/state");
    let whole = fs::read(&path).unwrap();
    for byte in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1 << bit;
            fs::write(&path, damaged).unwrap();
            let error = resume_error(folder.path());
            assert!(matches!(error, Error::Storage { .. }), "byte {byte}, bit {bit}: {error}");
        }
    }
}

#[test]
fn a_checkpoint_with_bytes_behind_it_is_refused() {
    let folder = finished();
    let path = folder.path().join("checkpoint/state");
    let longer = [fs::read(&path).unwrap(), vec![0; 8]].concat();
    fs::write(&path, longer).unwrap();
    resume_error(folder.path());
}

#[test]
fn a_journal_shorter_than_its_checkpoint_is_refused() {
    for name in ["journal", "metrics.jsonl"] {
        let folder = finished();
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        fs::write(&path, &text[..text.len() - 1]).unwrap();
        let error = resume_error(folder.path()).to_string();
        let wanted =
            format!("it has {} lines, and the checkpoint was made after {lines}", lines - 1);
        assert!(error.ends_with(&wanted), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(matches!(resume_error(folder.path()), Error::Storage { .. }));
    }
}

#[test]
fn a_checkpoint_of_other_data_is_refused() {
    let folder = finished();
    let limits = limits(folder.path(), true);
    let error = run(&one(), clients(4), 5, &limits, &mut ()).err().unwrap();
    assert_eq!(error.to_string(), "checkpoint: it holds 3 clients, the data have 4");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write_atomically(&path, b"old").unwrap();
    // The file beside it is a device that is always full.
    let beside = folder.path().join("file.tmp");
    std::os::unix::fs::symlink("/dev/full", &beside).unwrap();
    let error = write_atomically(&path, b"new").unwrap_err();
    assert!(matches!(&error, Error::Storage { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert!(fs::symlink_metadata(&beside).is_err(), "the useless file is gone");
    write_atomically(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(write_atomically(&folder.path().join("no/folder"), b"x").is_err());
}
