//! `[federation]`: who takes part on a network, and when a round closes there.

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
    /// This number of clients, under names that they bring.
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

/// The longest name of a client.
const NAME_BYTES_MAX: usize = 200;

table! {
    FEDERATION: Federation = "federation",
        "Who takes part on a network, and when a round closes there. `whimbrel run` simulates the \
         job without looking at it.", then check
    {
        clients: CLIENTS = "clients", CLIENTS_FORM, required,
            "who may take part: names, or how many clients there are under names of their own";
        quorum: QUORUM = "quorum", QUORUMS, default,
            "how many uploads let a round close: a number, or a share of those asked";
        deadline_s: DEADLINE = "deadline_s", POSITIVE, unset "a round waits for its whole cohort",
            "seconds after which a round closes once it has its quorum; without its quorum it waits on";
        listen: LISTEN = "listen", ADDRESS, default,
            "where clients reach the coordinator";
        dashboard: DASHBOARD = "dashboard", ADDRESS_OR_FALSE, default,
            "where the dashboard is";
        heartbeat_s: HEARTBEAT = "heartbeat_s",
            number!("a number from 0.1 to 3600", |x| (0.1..=3600.0).contains(&x)), default,
            "seconds between signs of life; a client silent for three times as long counts as away";
        linger_s: LINGER = "linger_s",
            number!("a number from 0 to 604800", |x| (0.0..=604_800.0).contains(&x)), default,
            "seconds for which a finished coordinator waits for clients that are to fetch the model";
        message_max: MESSAGE_MAX = "message_max", integer!(u64, 1024 to 17179869184), default,
            "bytes of the longest message that the coordinator or a client takes";
    }
}

/// `[federation]`.
pub(crate) static SECTION: Section = Section {
    example: "[federation]\nclients = [\"north\", \"south\", \"west\"]\nquorum = 2\n\
              deadline_s = 600\nlisten = \"0.0.0.0:7443\"\n",
    ..FEDERATION.section
};

form! {
    CLIENTS_FORM: Clients, "a list of client names or an integer of at least 1" {}
    number COUNT_U32 => Clients::Number;
    list Form::new("", read_names, |names| CLIENT_NAMES.write(names)) => Clients::Named;
}

form! {
    QUORUMS: Quorum, "\"all\", an integer of at least 1, or a number above 0 and below 1" {
        Quorum::All => "all": "a round waits for everyone whom it asked",
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
    /// This number of clients, and every other key left out.
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
            Err(reader.fault(&QUORUM, what, "a round closes with at most everyone"))
        }
        _ => Ok(asked),
    }
}

fn read_names(value: &Value<'_>) -> Read<Vec<String>> {
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
    Ok(names)
}

/// Whether a client may be called so.
pub fn is_client_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

fn read_quorum(value: &Value<'_>) -> Read<Quorum> {
    match value.number(|x| x > 0.0)? {
        share if share < 1.0 => Ok(Quorum::Share(share)),
        _ => value.count_u32().map(Quorum::Number),
    }
}
