//! `[[uplink.for]]` and `[[downlink.for]]`: codecs of single clients.

use crate::job::codec::{CODEC, CODECS};
use whimbrel_codec::Codec;
use whimbrel_job::form::{CLIENTS as NAMES, Form};
use whimbrel_job::key::Section;
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::table;
use whimbrel_job::writer::{list, text};

/// A codec for some clients.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnCodec {
    /// By name.
    pub clients: Vec<String>,
    pub codec: Codec,
}

table! {
    OWN: OwnCodec = "for",
        "a codec for some clients, written `[[uplink.for]]` or `for = [{ ... }]`"
    {
        & codec: CODEC, CODECS, default;
        /// the clients
        clients: CLIENTS = "clients", NAMES, required;
    }
}

static SECTION: Section = Section {
    keys: &[&CLIENTS, &CODEC],
    example: "[data]\nsource = \"toy\"\n\n[model]\nkind = \"linear\"\n\n\
              [method]\nkind = \"diana\"\nrounds = 100\n\n\
              [uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n\
              [[uplink.for]]\nclients = [\"client-00\", \"client-07\"]\n\
              codec = { kind = \"dithering\", levels = 1 }\n",
    ..OWN.section
};

/// Entries that name each client at most once.
pub(crate) const OWN_CODECS: Form<Vec<OwnCodec>> = Form::new(
    "a list of tables { clients, codec }",
    |v| {
        let entry = Form::new("", |v| OWN.read(&v.table(&SECTION)?), |own| OWN.inline(own));
        read_entries(v, &entry, |own| &own.clients, "two codecs")
    },
    |entries| list(entries.iter().map(|entry| OWN.inline(entry))),
)
.tables(const { &[&SECTION] });

/// A list of tables that name each client at most once.
pub(crate) fn read_entries<T>(
    value: &Value<'_>,
    form: &Form<T>,
    clients: fn(&T) -> &[String],
    what: &str,
) -> Read<Vec<T>> {
    let items = value.list()?;
    let entries = read_all(items.clone(), |item| form.read(&item))?;
    let mut seen: Vec<&String> = Vec::new();
    for (item, entry) in items.iter().zip(&entries) {
        for name in clients(entry) {
            if seen.contains(&name) {
                let what = format!("client {} has {what}", text(name));
                return Err(item.fail(what, "name each client once"));
            }
            seen.push(name);
        }
    }
    Ok(entries)
}
