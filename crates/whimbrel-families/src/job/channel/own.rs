//! `[[uplink.for]]` and `[[downlink.for]]`: clients with codecs of their own.

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
    /// The names of the clients.
    pub clients: Vec<String>,
    /// What they use in place of everyone's codec.
    pub codec: Codec,
}

table! {
    OWN: OwnCodec = "for",
        "a codec that some clients use in place of everyone's; written \
         `[[uplink.for]]` or `for = [{ ... }]`"
    {
        & codec: CODEC, CODECS, default;
        clients: CLIENTS = "clients", NAMES, required, "who uses it";
    }
}

/// One entry.
static SECTION: Section = Section {
    keys: &[&CLIENTS, &CODEC],
    example: "[data]\nsource = \"toy\"\n\n[model]\nkind = \"linear\"\n\n\
              [method]\nkind = \"diana\"\nrounds = 100\n\n\
              [uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n\
              [[uplink.for]]\nclients = [\"client-00\", \"client-07\"]\n\
              codec = { kind = \"dithering\", levels = 1 }\n",
    ..OWN.section
};

/// Entries in which no client is named twice.
pub(crate) const OWN_CODECS: Form<Vec<OwnCodec>> = Form::new(
    "a list of tables { clients, codec }",
    |v| {
        let entry = Form::new("", |v| OWN.read(&v.table(&SECTION)?), |own| OWN.inline(own));
        read_entries(v, &entry, |own| &own.clients, "two codecs")
    },
    |entries| list(entries.iter().map(|entry| OWN.inline(entry))),
)
.tables(const { &[&SECTION] });

/// A list of tables in which no client is named twice.
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
                let what = format!("client {} has {what} of its own", text(name));
                return Err(item.fail(what, "name each client once"));
            }
            seen.push(name);
        }
    }
    Ok(entries)
}
