//! `[federation]`: who takes part on a network, and when a round closes there.

use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, list, number, text};

/// `[federation]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Federation {
    /// Who may take part.
    pub clients: Clients,
    /// How many uploads close a round.
    pub quorum: Quorum,
    /// Seconds after which a round with its quorum closes; `None`: it waits for its whole cohort.
    pub deadline_s: Option<f64>,
    /// Where clients reach the coordinator.
    pub listen: String,
    /// Where the dashboard is; `None`: there is none.
    pub dashboard: Option<String>,
    /// Seconds between signs of life.
    pub heartbeat_s: f64,
    /// Seconds for which a finished coordinator waits for clients that have not fetched the model.
    pub linger_s: f64,
    /// The longest message that is taken.
    pub message_max: u64,
}

/// Who may take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// These, sorted; a client's id is its rank.
    Named(Vec<String>),
    /// So many, under names that they bring.
    Number(u32),
}

impl Clients {
    /// How many are expected.
    pub fn count(&self) -> usize {
        match self {
            Self::Named(names) => names.len(),
            Self::Number(count) => *count as usize,
        }
    }
}

/// How many uploads close a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quorum {
    /// Everyone's who was asked.
    All,
    /// So many, or everyone's where fewer were asked.
    Number(u32),
    /// This share of those asked, rounded up.
    Share(f64),
}

/// The longest name of a client.
const NAME_BYTES_MAX: usize = 200;

static CLIENTS: Key = Key::required(
    "clients",
    "a list of client names or an integer of at least 1",
    "who may take part: names, or how many clients there are under names of their own",
);
static QUORUM: Key = Key::default(
    "quorum",
    "\"all\", an integer of at least 1, or a number above 0 and below 1",
    "\"all\"",
    "how many uploads let a round close: so many, or a share of those asked",
)
.words(&[Word { name: "all", doc: "a round waits for everyone whom it asked" }]);
static DEADLINE: Key = Key::optional(
    "deadline_s",
    "a positive number",
    "a round waits for its whole cohort",
    "seconds after which a round closes once it has its quorum; without its quorum it waits on",
);
static LISTEN: Key = Key::default(
    "listen",
    "an address and a port, such as \"0.0.0.0:7443\"",
    "\"127.0.0.1:7443\"",
    "where clients reach the coordinator",
);
static DASHBOARD: Key = Key::default(
    "dashboard",
    "an address and a port, or false",
    "\"127.0.0.1:7480\"",
    "where the dashboard is",
);
static HEARTBEAT: Key = Key::default(
    "heartbeat_s",
    "a number from 0.1 to 3600",
    "10.0",
    "seconds between signs of life; a client silent for three times as long counts as away",
);
static LINGER: Key = Key::default(
    "linger_s",
    "a number from 0 to 604800",
    "60.0",
    "seconds for which a finished coordinator waits for clients that are to fetch the model",
);
static MESSAGE_MAX: Key = Key::default(
    "message_max",
    "an integer from 1024 to 17179869184",
    "1073741824",
    "bytes of the longest message that the coordinator or a client takes",
);

/// `[federation]`.
pub(crate) static SECTION: Section = Section {
    name: "federation",
    doc: "Who takes part on a network, and when a round closes there. `whimbrel run` simulates the \
          job without looking at it.",
    keys: &[&CLIENTS, &QUORUM, &DEADLINE, &LISTEN, &DASHBOARD, &HEARTBEAT, &LINGER, &MESSAGE_MAX],
    example: "[federation]\nclients = [\"north\", \"south\", \"west\"]\nquorum = 2\n\
              deadline_s = 600\nlisten = \"0.0.0.0:7443\"\n",
};

impl Federation {
    /// So many clients, and every other key left out.
    pub fn of(clients: u32) -> Self {
        Self {
            clients: Clients::Number(clients),
            quorum: Quorum::All,
            deadline_s: None,
            listen: "127.0.0.1:7443".into(),
            dashboard: Some("127.0.0.1:7480".into()),
            heartbeat_s: 10.0,
            linger_s: 60.0,
            message_max: 1 << 30,
        }
    }

    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let clients = reader.read(&CLIENTS, read_clients);
        let quorum = reader.read(&QUORUM, read_quorum);
        let deadline_s = reader.optional(&DEADLINE, |v| v.number(|x| x > 0.0));
        let listen = reader.read(&LISTEN, read_address);
        let dashboard = reader.read(&DASHBOARD, |v| match v.shape() {
            Shape::Text => read_address(v).map(Some),
            _ if v.boolean()? => Err(v.refuse()),
            _ => Ok(None),
        });
        let heartbeat_s = reader.read(&HEARTBEAT, |v| v.number(|x| (0.1..=3600.0).contains(&x)));
        let linger_s = reader.read(&LINGER, |v| v.number(|x| (0.0..=604_800.0).contains(&x)));
        let message_max = reader.read(&MESSAGE_MAX, |v| v.integer(1024..=1 << 34));
        let clients = clients?;
        if let (Clients::Named(names), Ok(Quorum::Number(quorum))) = (&clients, quorum)
            && quorum as usize > names.len()
        {
            reader.read(&QUORUM, |v| {
                Err::<(), _>(v.fail(
                    format!("a quorum of {quorum} out of {} clients", names.len()),
                    "a round closes with at most everyone",
                ))
            })?;
        }
        Ok(Self {
            clients,
            quorum: quorum?,
            deadline_s: deadline_s?,
            listen: listen?,
            dashboard: dashboard?,
            heartbeat_s: heartbeat_s?,
            linger_s: linger_s?,
            message_max: message_max?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        let clients = match &self.clients {
            Clients::Named(names) => list(names.iter().map(|name| text(name))),
            Clients::Number(count) => count.to_string(),
        };
        out.put(&CLIENTS, clients);
        let quorum = match self.quorum {
            Quorum::All => text("all"),
            Quorum::Number(n) => n.to_string(),
            Quorum::Share(share) => number(share),
        };
        out.put(&QUORUM, quorum);
        if let Some(seconds) = self.deadline_s {
            out.put(&DEADLINE, number(seconds));
        }
        out.put(&LISTEN, text(&self.listen));
        out.put(&DASHBOARD, self.dashboard.as_ref().map_or("false".into(), |at| text(at)));
        out.put(&HEARTBEAT, number(self.heartbeat_s));
        out.put(&LINGER, number(self.linger_s));
        out.put(&MESSAGE_MAX, self.message_max.to_string());
    }
}

fn read_clients(value: Value<'_>) -> Read<Clients> {
    if !matches!(value.shape(), Shape::List) {
        return value.count_u32().map(Clients::Number);
    }
    let items = value.list()?;
    let mut names = read_all(items.clone(), |item| {
        let name = item.text()?;
        if is_client_name(&name) {
            return Ok(name);
        }
        Err(item.fail(
            format!("{} is no name for a client", text(&name)),
            format!("a name has no line breaks and at most {NAME_BYTES_MAX} bytes"),
        ))
    })?;
    if names.is_empty() {
        return Err(value.fail("`clients` is empty", "name at least one client"));
    }
    if let Some(i) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        let what = format!("client {} is listed twice", text(&names[i]));
        return Err(items[i].fail(what, "each client has a name of its own"));
    }
    names.sort();
    Ok(Clients::Named(names))
}

/// Whether a client may be called so.
pub fn is_client_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

fn read_quorum(value: Value<'_>) -> Read<Quorum> {
    match value.shape() {
        Shape::Text if value.text()? == "all" => Ok(Quorum::All),
        Shape::Text => Err(value.unknown_word(&value.text()?)),
        _ => {
            let x = value.number(|x| x > 0.0)?;
            if x < 1.0 {
                return Ok(Quorum::Share(x));
            }
            value.count_u32().map(Quorum::Number)
        }
    }
}

fn read_address(value: Value<'_>) -> Read<String> {
    let written = value.text()?;
    let fits = written.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok()
    });
    if fits { Ok(written) } else { Err(value.refuse()) }
}
