//! A federation without a network: server and clients exchange bytes only. Clients build their plans
//! from the offer's text and read their own files. Every job ends in the bits of the simulation, and
//! with lost uploads in those of the journal's replay.

use crate::run_clients;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel_core::{ClientId, Key, Result, Wire};
use whimbrel_engine::keeper::Folder;
use whimbrel_engine::{
    ClientMachine, Consent, Outcome, Participant, Purpose, Question, Remote, StepId, Transport,
    run_with,
};
use whimbrel_families::load::load;
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};

/// Clients by id. Answers come in reverse order; with `losses` some uploads never arrive.
struct Post {
    clients: Vec<(String, ClientMachine)>,
    losses: bool,
}

impl Transport for Post {
    type Answer = Vec<u8>;

    fn names(&self) -> Vec<String> {
        self.clients.iter().map(|(name, _)| name.clone()).collect()
    }

    fn ask(&mut self, questions: Vec<Question>) -> Result<Vec<(ClientId, Vec<u8>)>> {
        let mut answers = Vec::new();
        for question in questions.iter().rev() {
            let question = Question::from_bytes(&question.to_bytes())?;
            let id = question.client;
            let answer = self.clients[id.0 as usize].1.answer(&question)?;
            let number = question.at.number().unwrap_or_default();
            let exchange = question.purpose == Purpose::Exchange;
            if !(self.losses && exchange && (number + id.0) % 4 == 3) {
                answers.push((id, answer));
            }
        }
        Ok(answers)
    }

    fn acknowledge(&mut self, id: ClientId, at: StepId, accepted: bool) -> Result<()> {
        self.clients[id.0 as usize].1.acknowledge(at, accepted);
        Ok(())
    }
}

/// A client that knows the offer's text and its own file.
pub(crate) fn client(offer: &str, name: &str, file: &PathBuf, seed: u64) -> ClientMachine {
    let offer = Offer::from_json(offer.as_bytes()).unwrap();
    let (data, chain) = (offer.read(file, name).unwrap(), Box::new(offer.plan().unwrap()));
    ClientMachine::new(Participant { chain, data, seed, consent: Consent::default() })
}

/// Rows of four wards of unequal size: one file for the simulation, and one per ward.
pub(crate) struct Wards {
    pub folder: tempfile::TempDir,
    pub files: Vec<(String, PathBuf)>,
}

impl Wards {
    pub(crate) fn new() -> Self {
        Self::with("", "")
    }

    /// The wards with another, constant column.
    pub(crate) fn with(column: &str, value: &str) -> Self {
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

    pub(crate) fn job(&self, data: &str, rest: &str) -> Job {
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

    /// The simulation of a job, or the replay of a journal.
    pub(crate) fn simulated(&self, job: &Job, journal: Option<String>) -> Outcome {
        let loaded = load(job).unwrap();
        let mut plan = Plan::with_cache(job, &loaded, None).unwrap();
        if let Some(journal) = journal {
            plan = plan.replaying(journal);
        }
        run_clients(&plan, loaded.clients, job.seed, &mut ()).unwrap()
    }

    fn federated(&self, job: &Job, losses: bool) -> (Outcome, String) {
        let facts = Facts::on_network(job).unwrap();
        let offer = Offer::of(job, &facts).unwrap().to_json();
        let path = self.folder.path().display().to_string();
        assert!(!offer.contains(&path), "a path of the coordinator leaves it");
        let plan = Plan::on_network(job, &facts).unwrap();
        let of =
            |(name, file): &(String, PathBuf)| (name.clone(), client(&offer, name, file, job.seed));
        let mut post = Remote(Post { clients: self.files.iter().map(of).collect(), losses });
        let (calm, kept) = (AtomicBool::new(false), tempfile::tempdir().unwrap());
        let mut keeper = Folder::create(kept.path(), Duration::MAX).unwrap();
        let outcome = run_with(&plan, &mut post, &mut keeper, job.seed, &calm, &mut ());
        (outcome.unwrap(), fs::read_to_string(kept.path().join("journal")).unwrap())
    }

    pub fn same(&self, job: &Job) {
        let (there, _) = self.federated(job, false);
        equal(&there, &self.simulated(job, None), job);
        let (there, journal) = self.federated(job, true);
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

pub(crate) const MIXTURE: &str = "label = \"ill\"\n";
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
            "covariance = \"full\"\nreg_covar = 1e-3",
            "[method]\nkind = \"fedem\"\nrounds = 12\n\
          participation = { default = 0.6, clients = { west = 0.9 } }\n\
          [uplink]\ncodec = \"grid\"",
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

/// The number of remaining columns is unknown before clients have sent their sums.
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
    let wards = Wards::new();
    let limits = "[data.prepare]\nlimits = true\n[schema]\nage = { min = -20, max = 30 }\n\
                  dose = { min = -9, max = 9 }\npulse = { min = 0, max = 150 }\n";
    wards.same(&wards.job(&format!("{MIXTURE}{limits}"), rest));
}

#[test]
fn regressions_end_in_the_bits_of_the_simulation() {
    let wards = Wards::new();
    let logistic = "[model]\nkind = \"logistic\"\nridge = 0.05\npenalize_intercept = true\n";
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
