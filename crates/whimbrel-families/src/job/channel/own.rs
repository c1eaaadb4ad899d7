//! `[[uplink.for]]` and `[[downlink.for]]`: clients with codecs of their own.

use crate::job::codec::{CODEC, read_codec, write_codec};
use whimbrel_codec::Codec;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::writer::{inline, list, text};

/// A codec for some clients.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnCodec {
    /// The names of the clients.
    pub clients: Vec<String>,
    /// What they use in place of everyone's codec.
    pub codec: Codec,
}

static CLIENTS: Key = Key::required("clients", "a list of client names", "who uses it");

/// One entry.
pub(crate) static SECTION: Section = Section {
    name: "for",
    doc: "a codec that some clients use in place of everyone's; written \
          `[[uplink.for]]` or `for = [{ ... }]`",
    keys: &[&CLIENTS, &CODEC],
    example: "[data]\nsource = \"toy\"\n\n[model]\nkind = \"linear\"\n\n\
              [method]\nkind = \"diana\"\nrounds = 100\n\n\
              [uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n\
              [[uplink.for]]\nclients = [\"client-00\", \"client-07\"]\n\
              codec = { kind = \"dithering\", levels = 1 }\n",
};

/// A list of entries in which no client is named twice.
pub(crate) fn read_own(value: Value<'_>) -> Read<Vec<OwnCodec>> {
    let items = value.list()?;
    let entries = read_all(items.clone(), |item| {
        let reader = item.table(&SECTION)?;
        let clients = reader.read(&CLIENTS, |v| read_all(v.list()?, |name| name.text()));
        let codec = reader.read(&CODEC, read_codec);
        Ok(OwnCodec { clients: clients?, codec: codec? })
    })?;
    let mut seen: Vec<&String> = Vec::new();
    for (item, entry) in items.iter().zip(&entries) {
        for name in &entry.clients {
            if seen.contains(&name) {
                let what = format!("client {} has two codecs of its own", text(name));
                return Err(item.fail(what, "name each client once"));
            }
            seen.push(name);
        }
    }
    Ok(entries)
}

pub(crate) fn write_own(entries: &[OwnCodec]) -> String {
    list(entries.iter().map(|entry| {
        let clients = list(entry.clients.iter().map(|name| text(name)));
        inline([(CLIENTS.name, clients), (CODEC.name, write_codec(&entry.codec))])
    }))
}
