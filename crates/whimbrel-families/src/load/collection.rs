//! Samples of learners in special formats: LEAF, CIFAR, JPEG images, speeches.

use super::split::{Unsplit, split};
use super::{Loaded, hash_all, subset};
use crate::failure::{Failure, Result};
use crate::job::{Collection, Concatenated, Data, Format, Partition};
use whimbrel_core::text::counted;
use whimbrel_core::{ClientData, Key, Samples, Targets};
use whimbrel_data::{
    Classes, ClientRows, LabelledImages, LeafClients, SpeechOptions, Speeches, read_cifar,
    read_jpeg_folder, read_jpegs, read_leaf, read_speeches,
};

const ONLY_BY_CLASS: &str = "images are split at random or by their classes";

pub(super) fn load(files: &Collection, data: &Data, key: Key) -> Result<Loaded> {
    let of_images = |images| share_out(images, &files.partition, key);
    let loaded = match &files.format {
        Format::Leaf { tests, alphabet } => {
            let LeafClients { clients, classes } =
                read_leaf(&files.path, tests.as_deref(), alphabet)?;
            Loaded { classes, ..of_clients(clients, String::new()) }
        }
        Format::Speeches(options) => {
            from_speeches(read_speeches(&files.path, options)?, options, data, key)?
        }
        Format::Cifar(set) => of_images(read_cifar(&files.path, *set)?)?,
        Format::Jpeg(None) => of_images(read_jpeg_folder(&files.path)?)?,
        Format::Jpeg(Some(Concatenated { offsets, labels })) => {
            of_images(read_jpegs(&files.path, offsets, labels)?)?
        }
    };
    Ok(Loaded {
        hash: hash_all(files.clone().paths_mut().into_iter().map(|path| &*path))?,
        ..loaded
    })
}

/// Named samples with numbered columns.
pub(super) fn of_clients(clients: Vec<(String, Samples)>, hash: String) -> Loaded {
    let width = clients.first().map_or(0, |(_, samples)| samples.width());
    let columns = (0..width).map(|j| format!("p{j}")).collect();
    Loaded { columns, ..Loaded::of(clients, ClientData::Samples, hash) }
}

fn share_out(images: LabelledImages, partition: &Partition, key: Key) -> Result<Loaded> {
    let (clients, _) = split(partition, &images, key)?;
    let LabelledImages { samples, classes, .. } = images;
    let clients = clients.into_iter().map(|c| (c.name, samples.at(&c.rows))).collect();
    Ok(Loaded { classes, ..of_clients(clients, String::new()) })
}

impl Unsplit for LabelledImages {
    fn rows(&self) -> usize {
        self.samples.len()
    }

    fn by_column(&self, _: &str) -> Result<Vec<ClientRows>> {
        Err(Failure::config(ONLY_BY_CLASS))
    }

    fn classes(&self, _: Option<&str>, coarse: bool) -> Result<Classes> {
        let of = match &self.samples.targets {
            Targets::Classes { of, .. } if !coarse => of,
            _ => &self.coarse,
        };
        Ok(Classes::of_values(of.iter().map(|class| f64::from(*class)))?)
    }

    fn features(&self) -> Result<(Vec<f64>, usize)> {
        Err(Failure::config(ONLY_BY_CLASS))
    }
}

/// Windows of the chosen speakers; training and held-out windows do not overlap.
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
        (all - clients.len(), "speaker", format!("with too little text for a window of {window}")),
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
        return Err(Failure::config("no speaker has enough text for a window"));
    }
    let classes = options.alphabet.names();
    Ok(Loaded { classes, notes, ..of_clients(clients, String::new()) })
}
