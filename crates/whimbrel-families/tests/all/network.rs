//! A federation without a network: server and clients share nothing but bytes. Clients build their
//! plans from the offer's text and read their own files; every job ends in the simulation's bits, and
//! where uploads came too late or clients joined late, in those of the journal's replay.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, Key, Opaque, Result, Wire};
use whimbrel_engine::checkpoint::Checkpoint;
use whimbrel_engine::journal::{Line, Naming};
use whimbrel_engine::keeper::{Keeper, Snapshot};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::{Done, Evaluated, Start, Step};
use whimbrel_engine::{
    Carrier, Chain, Limits, Machine, Outcome, Protocol, Runner, Stage, StageState, run, run_with,
};
use whimbrel_families::load::load;
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};

/// Writes the journal.
#[derive(Default)]
struct Scribe {
    journal: String,
    naming: Naming,
}

impl Keeper for Scribe {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        Ok(None)
    }

    fn seconds_before(&self) -> f64 {
        0.0
    }

    fn opened(&mut self, _: bool, snapshot: &Snapshot<'_>) -> Result<()> {
        self.journal += &snapshot.stage_line(&mut self.naming).to_text();
        Ok(())
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        self.journal += &snapshot.exchange_line(done, &mut self.naming).to_text();
        Ok(())
    }

    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        if let Some(latest) = snapshot.latest {
            self.journal += &Line::evaluation(snapshot.stage, latest.row.round, answered).to_text();
        }
        Ok(())
    }

    fn left(&mut self, _: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One client's process: what it was offered, and what it holds.
struct Remote {
    name: String,
    plan: Plan,
    data: ClientData,
}

/// Its part of a stage.
struct Part {
    stage: Stage,
    data: Opaque,
    client: Opaque,
    keys: StageKeys,
    id: ClientId,
    staged: Option<Opaque>,
}

impl Remote {
    fn new(offer: &str, name: &str, file: &Path) -> Self {
        let offer = Offer::from_json(offer.as_bytes()).unwrap();
        let data = offer.read(file, name).unwrap();
        Self { name: name.into(), plan: offer.plan().unwrap(), data }
    }

    /// Builds the stage from what came down and enrols; returns the summary's bytes.
    fn enrol(
        &self,
        index: u32,
        delivered: &[u8],
        keys: StageKeys,
        id: ClientId,
    ) -> (Part, Vec<u8>) {
        let delivered = Vec::<Artifact>::from_bytes(delivered).unwrap();
        let stage = self.plan.build(index as usize, &delivered).unwrap();
        let method = stage.method.server().unwrap();
        let data = method.bind(&self.data).unwrap();
        let (client, summary) = method.enroll(&data, keys.enrol(id)).unwrap();
        (Part { stage, data, client, keys, id, staged: None }, summary)
    }
}

impl Part {
    fn work(&mut self, exchange: u32, down: &[u8]) -> Vec<u8> {
        let key = self.keys.exchange(exchange).local(self.id);
        let method = self.stage.method.server().unwrap();
        let (client, up) =
            method.local_step(&self.client, &down.to_vec().into(), &self.data, key).unwrap();
        self.staged = Some(client);
        up
    }

    fn commit(&mut self) {
        self.client = self.staged.take().expect("only work can be acknowledged");
    }
}

/// Carries messages as bytes, in the reverse of the order in which clients were asked.
struct Post {
    clients: Vec<Remote>,
    trouble: bool,
}

/// In trouble, who comes only to the last stage, and before which exchange of it.
const LATE: (ClientId, u32) = (ClientId(1), 3);

struct Mail {
    state: StageState<Machine>,
    names: Vec<String>,
    parts: Vec<Part>,
    /// The summary of a client that is still to come.
    late: Option<Vec<u8>>,
    trouble: bool,
    accepted: Vec<ClientId>,
}

impl Carrier for Post {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let Start { index, keys, delivered, last, .. } = *start;
        let sent = delivered.to_vec().to_bytes();
        let (mut parts, mut roster, mut late) = (Vec::new(), Vec::new(), None);
        for (i, client) in self.clients.iter().enumerate() {
            let id = ClientId(i as u32);
            let (part, summary) = client.enrol(index, &sent, keys, id);
            parts.push(part);
            if self.trouble && id == LATE.0 {
                late = last.then_some(summary);
            } else {
                roster.push((id, summary));
            }
        }
        let roster: Vec<(ClientId, &[u8])> = roster.iter().map(|(id, s)| (*id, &s[..])).collect();
        let (method, participation) = (stage.method.server()?.clone(), stage.participation.clone());
        let machine = Machine::start(method, keys, participation, &roster)?;
        let mut state = StageState::new(machine, parts.len());
        roster.iter().for_each(|(id, summary)| state.count_up(*id, summary.len() as u64));
        let names = self.clients.iter().map(|client| client.name.clone()).collect();
        let (trouble, accepted) = (self.trouble, Vec::new());
        Ok(Box::new(Mail { state, names, parts, late, trouble, accepted }))
    }
}

impl Runner for Mail {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn step(&mut self) -> Result<Step> {
        let (state, mut joined) = (&mut self.state, Vec::new());
        if state.machine.exchanges() >= LATE.1
            && let Some(summary) = self.late.take()
        {
            state.machine.admit(LATE.0, &summary)?;
            state.count_up(LATE.0, summary.len() as u64);
            joined.push(LATE.0);
        }
        let Some(exchange) = state.machine.open()? else { return Ok(Step::Over) };
        let mut shard = state.machine.shard()?;
        for invited in exchange.cohort.iter().rev() {
            let (id, i) = (invited.id, invited.id.0 as usize);
            let (peer, down) = state.machine.message(&exchange, id)?;
            let up = self.parts[i].work(exchange.number, &down.to_bytes());
            let too_late = self.trouble && (exchange.number + id.0) % 4 == 3;
            if !too_late {
                shard.accept(*invited, peer, &up)?;
                state.tallies[i].rounds += u32::from(exchange.round.is_some());
            }
            state.count_up(id, up.len() as u64);
            state.count_down(id, down.len() as u64);
        }
        let (number, round) = (exchange.number, exchange.round);
        let cohort = exchange.cohort.iter().map(|invited| invited.id).collect();
        self.accepted = state.machine.close(exchange, vec![shard])?;
        let accepted = self.accepted.clone();
        let done = Done { exchange: number, round, joined, cohort, accepted, ..Done::default() };
        Ok(Step::Exchanged(done))
    }

    fn acknowledge(&mut self) -> Result<()> {
        for id in self.accepted.drain(..) {
            self.parts[id.0 as usize].commit();
        }
        self.parts.iter_mut().for_each(|part| part.staged = None);
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        Ok(None)
    }
}

/// Rows of four wards of unequal size: in one file for the simulation, and each ward's own.
pub(crate) struct Wards {
    pub folder: tempfile::TempDir,
    pub files: Vec<(String, PathBuf)>,
}

impl Wards {
    fn new() -> Self {
        Self::with("", "")
    }

    /// The same with another column, one value in every row.
    fn with(column: &str, value: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut all = format!("age,ward,dose,ill,pulse{column}\n");
        let mut files = Vec::new();
        for (w, name) in ["east", "north", "south", "west"].into_iter().enumerate() {
            // Some clients keep the column with their name, some never had it.
            let keeps = w % 2 == 0;
            let ward = if keeps { ",ward" } else { "" };
            let mut own = format!("pulse,ill{ward},dose,age{column}\n");
            let mut stream = Key::root(70 + w as u64).stream();
            for _ in 0..30 + 11 * w {
                let group = stream.below(2) as f64;
                let age = 4.0 * group + stream.normal();
                let dose = 1.0 - 2.0 * group + 0.7 * stream.normal() + 0.1 * w as f64;
                let pulse = 60.0 + 8.0 * stream.normal();
                let ill = if age + stream.normal() > 2.0 { "yes" } else { "no" };
                let ward = if keeps { format!(",{name}") } else { String::new() };
                writeln!(all, "{age},{name},{dose},{ill},{pulse}{value}").unwrap();
                writeln!(own, "{pulse},{ill}{ward},{dose},{age}{value}").unwrap();
            }
            let path = folder.path().join(format!("{name}.csv"));
            fs::write(&path, own).unwrap();
            files.push((name.to_owned(), path));
        }
        fs::write(folder.path().join("all.csv"), all).unwrap();
        Self { folder, files }
    }

    fn job(&self, data: &str, rest: &str) -> Job {
        let text = format!(
            "seed = 9\n[federation]\nclients = [\"north\", \"east\", \"west\", \"south\"]\n\
             [data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n{data}\n{rest}"
        );
        let mut job = crate::parse(&text);
        for path in job.paths_mut() {
            *path = self.folder.path().join(&*path);
        }
        job
    }

    /// The simulation of a job, or of what a journal says.
    fn simulated(&self, job: &Job, journal: Option<String>) -> Outcome {
        let loaded = load(job).unwrap();
        let mut plan = Plan::with_cache(job, &loaded, None).unwrap();
        if let Some(journal) = journal {
            plan = plan.replaying(journal);
        }
        run(&plan, loaded.clients, job.seed, &Limits::default(), &mut ()).unwrap()
    }

    fn federated(&self, job: &Job, trouble: bool) -> (Outcome, String) {
        let facts = Facts::on_network(job).unwrap();
        let offer = Offer::of(job, &facts).unwrap().to_json();
        let path = self.folder.path().display().to_string();
        assert!(!offer.contains(&path), "a path of the coordinator leaves it");
        let plan = Plan::on_network(job, &facts).unwrap();
        let remote = |(name, file): &(String, PathBuf)| Remote::new(&offer, name, file);
        let mut post = Post { clients: self.files.iter().map(remote).collect(), trouble };
        let (calm, mut scribe) = (AtomicBool::new(false), Scribe::default());
        let outcome = run_with(&plan, &mut post, &mut scribe, job.seed, &calm, &mut ());
        (outcome.unwrap(), scribe.journal)
    }

    pub fn same(&self, job: &Job) {
        let (there, _) = self.federated(job, false);
        equal(&there, &self.simulated(job, None), job);
        let (there, journal) = self.federated(job, true);
        assert!(journal.contains("\"joined\":\"1\""), "{journal}");
        equal(&there, &self.simulated(job, Some(journal)), job);
    }
}

fn equal(there: &Outcome, here: &Outcome, job: &Job) {
    let name = job.method.name();
    assert_eq!(there.names, here.names);
    assert!(there.delivered == here.delivered, "{name}: another model");
    assert_eq!(there.tallies, here.tallies, "{name}: other bytes");
    assert_eq!((there.traffic.up, there.traffic.down), (here.traffic.up, here.traffic.down));
    assert!(here.rounds > 3 && there.rounds == here.rounds);
}

const MIXTURE: &str = "label = \"ill\"\n";
const TARGET: &str = "target = \"ill\"\n";

#[test]
fn mixtures_end_in_the_bits_of_the_simulation() {
    let wards = Wards::new();
    let start = r#"{"weights": [0.4, 0.6], "means": [[0, 1, 60], [4, -1, 60]],
                    "covariance": [[1, 0, 0], [0, 0.5, 0], [0, 0, 64]]}"#;
    fs::write(wards.folder.path().join("start.json"), start).unwrap();
    let memory = "[0.1, -0.2, 0.3, 0.05, 0, 0.7, 1e-3, 0.333333333333333]";
    fs::write(wards.folder.path().join("memory.json"), memory).unwrap();
    let gmm = |model: &str| format!("[model]\nkind = \"gmm\"\ncomponents = 2\n{model}\n");
    let standard = format!("{MIXTURE}standardize = true\n");
    for (data, model, rest) in [
        // Standardisation, federated k-means and the constants of the theory, then the fit.
        (
            standard.as_str(),
            "",
            "[method]\nkind = \"fedem\"\nrounds = 12\nstep = \"theory\"\n\
          [uplink]\ncodec = { kind = \"dithering\", levels = 4 }",
        ),
        (
            MIXTURE,
            "covariance = \"full\"\nreg_covar = 1e-3",
            "[method]\nkind = \"fedem\"\nepochs = 9\nbatch = 8\n\
          participation = { default = 0.6, clients = { west = 0.9 } }\n\
          [uplink]\ncodec = { kind = \"sparse\", q = 0.5 }",
        ),
        (
            standard.as_str(),
            "init = \"moments\"\ncovariance = \"diagonal\"",
            "[method]\nkind = \"dem\"\nrounds = 8",
        ),
        (MIXTURE, "init = \"start.json\"", "[method]\nkind = \"fedem\"\nrounds = 8\nstep = 0.5"),
        (
            standard.as_str(),
            "init = \"start.json\"\ncovariance = \"known\"",
            "[method]\nkind = \"fedem\"\nrounds = 8\nstep = 0.5\nchannels = \"mcm\"\n\
          [uplink]\ncodec = \"natural\"\n[downlink]\ncodec = \"natural\"",
        ),
        (
            MIXTURE,
            "init = \"moments\"",
            "[method]\nkind = \"fedem\"\nrounds = 8\nstep = 0.5\n\
             [uplink]\ncodec = \"natural\"\nstart = \"memory.json\"",
        ),
        (
            MIXTURE,
            "",
            "[method]\nkind = \"fedem\"\nrounds = 8\nform = \"lean\"\nstep = 0.5\nparticipation = { size = 2 }",
        ),
    ] {
        wards.same(&wards.job(data, &(gmm(model) + rest)));
    }
}

/// How many columns are left is known to nobody before the clients have sent their sums.
#[test]
fn prepared_mixtures_end_in_the_bits_of_the_simulation() {
    let wards = Wards::with(",beds", ",12");
    let rest = "[model]\nkind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"\nrounds = 8\n\
                step = 0.5\n[uplink]\ncodec = { kind = \"dithering\", levels = 4 }";
    for prepare in ["", "standardize = true", "pca = 2", "standardize = true\npca = 3"] {
        let data = format!("{MIXTURE}[data.prepare]\ndrop_constant = true\n{prepare}\n");
        let job = wards.job(&data, rest);
        wards.same(&job);
        let facts = Facts::on_network(&job).unwrap();
        let stages = Plan::on_network(&job, &facts).unwrap().disclosures().unwrap();
        // Sums of products of each pair of four columns.
        let pairs = stages.iter().flat_map(|stage| &stage.disclosures);
        let declared = pairs.filter(|d| d.meaning.contains("pair of columns: 10 numbers")).count();
        assert_eq!(declared, usize::from(prepare.contains("pca")));
    }
}

#[test]
fn regressions_end_in_the_bits_of_the_simulation() {
    let wards = Wards::new();
    let logistic = "[model]\nkind = \"logistic\"\nridge = 0.05\n";
    let natural = "[uplink]\ncodec = \"natural\"\n[downlink]\ncodec = \"natural\"\n";
    let up = "[uplink]\ncodec = { kind = \"dithering\", levels = 2 }\n";
    for (method, channels) in [
        ("kind = \"sgd\"", ""),
        ("kind = \"qsgd\"\nbatch = 5\nstep = 0.02", up),
        ("kind = \"diana\"\nparticipation = 0.6\nstep = 0.02", up),
        ("kind = \"artemis\"\nstep = 0.02", natural),
        ("kind = \"dore\"\nstep = 0.02", natural),
        ("kind = \"double-squeeze\"\nstep = 0.02", natural),
        ("kind = \"mcm\"\nstep = \"theory\"\nbatch = 4", natural),
        ("kind = \"rand-mcm\"\nstep = 0.02\nparticipation = 0.6", natural),
        (
            "kind = \"rand-mcm-g\"\nstep = 0.02",
            "[uplink]\ncodec = \"natural\"\n\
          [downlink]\ncodec = \"natural\"\nmemories = 2\n",
        ),
        (
            "kind = \"mcm\"\nstep = 0.02",
            "[uplink]\ncodec = \"natural\"\n\
          [[uplink.for]]\nclients = [\"south\", \"east\"]\ncodec = { kind = \"sparse\", q = 0.5 }\n\
          [downlink]\ncodec = \"natural\"\n",
        ),
    ] {
        let rest = format!("{logistic}[method]\n{method}\nrounds = 8\n{channels}");
        wards.same(&wards.job(TARGET, &rest));
    }
    let linear = "[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\nepochs = 9\nbatch = 7\nstep = \"1/L\"\n";
    wards.same(&wards.job("target = \"pulse\"\ncolumns = [\"dose\", \"age\"]\n", linear));
}
