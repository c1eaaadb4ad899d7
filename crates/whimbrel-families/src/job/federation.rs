//! `[federation]`: clients and round closing of a job on a network.

use whimbrel_core::text::{NAME_BYTES_MAX, is_name};
use whimbrel_engine::Quorum;
use whimbrel_job::form::{CLIENTS as CLIENT_NAMES, COUNT_U32, Form, POSITIVE};
use whimbrel_job::key::Section;
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{form, integer, number, table};

/// `[federation]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Federation {
    pub clients: Clients,
    /// Number of uploads that close a round.
    pub quorum: Quorum,
    /// Seconds after which a round with its quorum closes; `None`: never before the whole cohort answered.
    pub deadline_s: Option<f64>,
    /// Address of the coordinator.
    pub listen: String,
    /// Address of the dashboard.
    pub dashboard: Option<String>,
    /// Seconds between heartbeats.
    pub heartbeat_s: f64,
    /// Seconds that a finished coordinator waits for clients to fetch the model.
    pub linger_s: f64,
    /// Largest accepted message in bytes.
    pub message_max: u64,
}

/// Clients that may join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Sorted names; a client's id is its rank.
    Named(Vec<String>),
    /// This number of clients under any names.
    Number(u32),
}

impl Clients {
    pub fn count(&self) -> usize {
        match self {
            Self::Named(names) => names.len(),
            Self::Number(count) => *count as usize,
        }
    }
}

table! {
    FEDERATION: Federation = "federation",
        "Clients of a job on a network, and when its rounds close. `whimbrel run`, which simulates the job, \
         ignores this table.",
        example "[federation]\nclients = [\"north\", \"south\", \"west\"]\nquorum = 2\n\
                 deadline_s = 600\nlisten = \"0.0.0.0:7443\"\n",
        then check
    {
        /// names of the clients that may join, or their number
        clients: CLIENTS = "clients", CLIENTS_FORM, required;
        /// uploads that close a round: a number, or a share of the cohort
        quorum: QUORUM = "quorum", QUORUMS, default;
        /// seconds after which a round with its quorum closes; without a quorum it stays open
        deadline_s: DEADLINE = "deadline_s",
            number!("a number above 0 and at most 31536000", |x| x > 0.0 && x <= 31_536_000.0),
            unset "rounds wait for the whole cohort";
        /// address of the coordinator
        listen: LISTEN = "listen", ADDRESS, default;
        /// address of the dashboard
        dashboard: DASHBOARD = "dashboard", ADDRESS_OR_FALSE, default;
        /// seconds between heartbeats; a client is away after three missed ones
        heartbeat_s: HEARTBEAT = "heartbeat_s",
            number!("a number from 0.1 to 3600", |x| (0.1..=3600.0).contains(&x)), default;
        /// seconds that a finished coordinator waits for clients to fetch the model
        linger_s: LINGER = "linger_s",
            number!("a number from 0 to 604800", |x| (0.0..=604_800.0).contains(&x)), default;
        /// largest message in bytes that coordinator and clients accept
        message_max: MESSAGE_MAX = "message_max", integer!(u64, 1024 to 17179869184), default;
    }
}

pub(crate) static SECTION: Section = FEDERATION.section;

form! {
    CLIENTS_FORM: Clients, "a list of client names or an integer of at least 1" {}
    number COUNT_U32 => Clients::Number;
    list Form::new("", read_names, |names| CLIENT_NAMES.write(names)) => Clients::Named;
}

form! {
    QUORUMS: Quorum, "\"all\", an integer of at least 1, or a number above 0 and below 1" {
        /// the whole cohort
        "all" => Quorum::All,
    }
    number Form::new("", read_quorum, |quorum| match quorum {
        Quorum::Share(share) => POSITIVE.write(share),
        Quorum::Number(n) => n.to_string(),
        Quorum::All => String::new(),
    });
}

const ADDRESS: Form<String> = Form::new(
    "an address and a port, such as \"0.0.0.0:7443\"",
    |v| {
        let written = v.text()?;
        let fits = written.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok()
        });
        if fits { Ok(written) } else { Err(v.refuse()) }
    },
    |address| text(address),
);

const ADDRESS_OR_FALSE: Form<Option<String>> = Form::new(
    "an address and a port, or false",
    |v| match v.shape() {
        Shape::Flag if !v.boolean()? => Ok(None),
        _ => ADDRESS.read(v).map(Some),
    },
    |address| address.as_ref().map_or("false".into(), |address| text(address)),
);

impl Default for Federation {
    /// One client under any name.
    fn default() -> Self {
        Self {
            clients: Clients::Number(1),
            quorum: Quorum::All,
            deadline_s: None,
            listen: "127.0.0.1:7443".into(),
            dashboard: Some("127.0.0.1:7480".into()),
            heartbeat_s: 10.0,
            linger_s: 60.0,
            message_max: 1 << 30,
        }
    }
}

impl Federation {
    /// This number of clients, with defaults for all other keys.
    pub fn of(clients: u32) -> Self {
        Self { clients: Clients::Number(clients), ..Self::default() }
    }

    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        FEDERATION.read(reader)
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        FEDERATION.write(self, out);
    }
}

fn check(reader: &Reader<'_>, asked: Federation) -> Read<Federation> {
    match (&asked.clients, asked.quorum) {
        (Clients::Named(names), Quorum::Number(quorum)) if quorum as usize > names.len() => {
            let what = format!("a quorum of {quorum} out of {} clients", names.len());
            Err(reader.fault(&QUORUM, what, "a quorum is at most the number of clients"))
        }
        _ => Ok(asked),
    }
}

fn read_names(value: &Value<'_>) -> Read<Vec<String>> {
    let items = value.list()?;
    let mut names = read_all(items.clone(), |item| {
        let name = item.text()?;
        if is_name(&name) {
            return Ok(name);
        }
        Err(item.fail(
            format!("{} is not a valid client name", text(&name)),
            format!(
                "a name has 1 to {NAME_BYTES_MAX} bytes, without control or invisible characters"
            ),
        ))
    })?;
    if names.is_empty() {
        return Err(value.fail("`clients` is empty", "name at least one client"));
    }
    if let Some(i) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        let what = format!("client {} is listed twice", text(&names[i]));
        return Err(items[i].fail(what, "names of clients are unique"));
    }
    names.sort();
    Ok(names)
}

fn read_quorum(value: &Value<'_>) -> Read<Quorum> {
    match value.number(|x| x > 0.0)? {
        share if share < 1.0 => Ok(Quorum::Share(share)),
        _ => value.count_u32().map(Quorum::Number),
    }
}
