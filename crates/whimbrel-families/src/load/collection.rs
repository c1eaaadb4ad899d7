//! Samples of learners in files of their own: LEAF, CIFAR, JPEG images, speeches.

use super::{FileHashes, Loaded, by_label, everyone, subset};
use crate::failure::{Failure, Result};
use crate::family::counted;
use crate::job::{Collection, Concatenated, Data, Format, Partition};
use whimbrel_core::{Key, Samples, Targets};
use whimbrel_data::{
    Classes, LabelledImages, LeafClients, Sha256, SpeechOptions, Speeches, iid_rows, read_cifar,
    read_jpeg_folder, read_jpegs, read_leaf, read_speeches,
};

pub(super) fn load(
    files: &Collection,
    data: &Data,
    hashes: &FileHashes,
    key: Key,
) -> Result<Loaded> {
    let hash = hash(files, hashes);
    match &files.format {
        Format::Leaf { tests, alphabet } => {
            let LeafClients { clients, classes } =
                read_leaf(&files.path, tests.as_deref(), alphabet)?;
            Ok(Loaded { classes, ..of_clients(clients, hash) })
        }
        Format::Speeches(options) => {
            let speeches = read_speeches(&files.path, options)?;
            Ok(Loaded { hash, ..from_speeches(speeches, options, data, key)? })
        }
        Format::Cifar(set) => {
            share_out(read_cifar(&files.path, *set)?, &files.partition, hash, key)
        }
        Format::Jpeg(None) => {
            share_out(read_jpeg_folder(&files.path)?, &files.partition, hash, key)
        }
        Format::Jpeg(Some(Concatenated { offsets, labels })) => {
            let images = read_jpegs(&files.path, offsets, labels)?;
            share_out(images, &files.partition, hash, key)
        }
    }
}

/// Named samples; columns are numbered.
pub(super) fn of_clients(clients: Vec<(String, Samples)>, hash: String) -> Loaded {
    let width = clients.first().map_or(0, |(_, samples)| samples.width());
    let columns = (0..width).map(|j| format!("p{j}")).collect();
    Loaded::of_samples(clients, columns, hash)
}

fn share_out(
    images: LabelledImages,
    partition: &Partition,
    hash: String,
    key: Key,
) -> Result<Loaded> {
    let LabelledImages { samples, classes, coarse } = images;
    let numbers = |of: &[u16]| Classes::of_values(of.iter().map(|class| f64::from(*class)));
    let class = |_: Option<&str>, of_coarse: bool| match (&samples.targets, of_coarse) {
        (Targets::Classes { of, .. }, false) => Ok(numbers(of)?),
        _ => Ok(numbers(&coarse)?),
    };
    let clients = match by_label(partition, class, key)? {
        Some(clients) => clients,
        None => match partition {
            Partition::Iid { clients } => iid_rows(samples.len(), *clients, key)?,
            Partition::Pooled => everyone(samples.len()),
            _ => return Err(Failure::config("images are split at random or by their classes")),
        },
    };
    let clients = clients.into_iter().map(|c| (c.name, samples.at(&c.rows))).collect();
    Ok(Loaded { classes, ..of_clients(clients, hash) })
}

/// Speakers' windows, of which no two parts overlap; only speakers that are kept are cut.
fn from_speeches(
    speeches: Speeches,
    options: &SpeechOptions,
    data: &Data,
    key: Key,
) -> Result<Loaded> {
    let Speeches { mut speakers, left_out, unknown } = speeches;
    subset::keep(&mut speakers, data.subset.clients, key);
    let held_out = &data.held_out;
    let all = speakers.len();
    let mut clients = Vec::with_capacity(all);
    for (name, text) in speakers {
        let samples = options.windows(&text, held_out.validation, held_out.test)?;
        if !samples.is_empty() {
            clients.push((name, samples));
        }
    }
    let window = options.window;
    let left_out = [
        (left_out, "speaker", format!("with fewer than {} speeches", options.speeches_min)),
        (all - clients.len(), "speaker", format!("with too little for a window of {window}")),
        (unknown, "character", "outside the alphabet".to_owned()),
    ];
    let left_out: Vec<String> = left_out
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, noun, which)| format!("{} {which}", counted(*count, noun)))
        .collect();
    let mut notes = Vec::new();
    if !left_out.is_empty() {
        notes.push(format!("left out: {}", left_out.join(", ")));
    }
    if clients.is_empty() {
        return Err(Failure::config("no speaker has said enough for a window"));
    }
    let classes = options.alphabet.names();
    Ok(Loaded { classes, notes, ..of_clients(clients, String::new()) })
}

/// Of all files that say what is fitted.
fn hash(files: &Collection, hashes: &FileHashes) -> String {
    let mut files = files.clone();
    let parts: Vec<String> = files.paths_mut().into_iter().map(|path| hashes.get(path)).collect();
    match &parts[..] {
        [only] => only.clone(),
        many => {
            let mut all = Sha256::new();
            many.iter().for_each(|part| all.update(part.as_bytes()));
            all.hex()
        }
    }
}
