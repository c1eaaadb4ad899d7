//! The settings and the cost of a job, without running it.

use super::Listener;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;
use whimbrel_core::ClientData;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::{Start, Step, Traffic};
use whimbrel_engine::{Carrier, Chain, Runner, Simulation};
use whimbrel_families::failure::Result;
use whimbrel_families::load::{Loaded, load};
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_report::format;
use whimbrel_runs::resolved;

/// Largest number of trial rounds for the estimates of bytes and time.
const TRIAL_ROUNDS: u32 = 40;

/// Time limit of the trial in seconds.
const TRIAL_SECONDS: f64 = 2.0;

/// Largest product of rows and numbers in a message of a trial round, some seconds of a network; beyond
/// it the trial uses some of the rows, and its time is scaled to all.
const TRIAL_WORK: f64 = 2e9;

/// Rounds before the trial: with fresh memories the first messages are shorter than later ones.
const SETTLING_ROUNDS: u32 = 10;

/// A job that was checked.
pub struct Checked {
    name: String,
    /// The job with every key set.
    pub text: String,
    clients: usize,
    statistic: usize,
    omega: Option<f64>,
    rounds: Option<u32>,
    /// The cost, or the offer to clients.
    pub found: Findings,
}

/// The result of a check.
pub enum Findings {
    /// The cost of a job whose rows are available.
    Tried(Costs),
    /// The offer to clients, for a job whose rows are theirs.
    Served {
        /// The plan that a client is offered.
        offered: Box<Plan>,
        /// The columns that its rows must have.
        columns: Vec<String>,
    },
}

/// The cost of a job.
pub struct Costs {
    rows: Option<u64>,
    memory: u64,
    seeds: usize,
    trial: Trial,
}

impl Costs {
    /// Whether the trial left a stage before its end.
    pub fn is_cut_short(&self) -> bool {
        self.trial.cut_short
    }
}

impl Checked {
    /// Checks a job against its data and runs some trial rounds, which are not saved.
    pub fn of(job: &Job, to: &dyn Listener) -> Result<Self> {
        let loaded = match load(job) {
            Err(_) if job.federation.is_some() => return Self::served(job, to),
            loaded => loaded?,
        };
        // No cache of minima: a check writes nothing.
        let plan = Plan::with_cache(job, &loaded, None)?;
        plan.warnings().iter().for_each(|w| to.warning(w));
        plan.notes().iter().chain(&plan.settings()).for_each(|n| to.note(n));
        let (clients, text) = (loaded.clients.len(), resolved(job, &loaded.files));
        let (rows, memory) = (loaded.total_rows(), memory_bytes(&loaded, &plan));
        let seeds = job.seeds.map_or(1, |_| job.each_seed().len());
        let trial = Trial::run(&plan, loaded, job.seed)?;
        let found = Findings::Tried(Costs { rows, memory, seeds, trial });
        Ok(Self::new(job, &plan, text, clients, found))
    }

    /// Checks a job whose rows are with clients.
    fn served(job: &Job, to: &dyn Listener) -> Result<Self> {
        let facts = Facts::on_network(job)?;
        let served = job.served();
        let plan = Plan::on_network(&served, &facts)?;
        let offered = Box::new(Offer::of(&served, &facts)?.plan()?);
        plan.warnings().iter().for_each(|w| to.warning(w));
        let found = Findings::Served { offered, columns: facts.columns.clone() };
        Ok(Self::new(job, &plan, resolved(job, &[]), facts.clients, found))
    }

    fn new(job: &Job, plan: &Plan, text: String, clients: usize, found: Findings) -> Self {
        let (name, omega) = (job.name.clone(), plan.uplink().omega());
        Self {
            name,
            text,
            clients,
            statistic: plan.vector_len(),
            omega,
            rounds: plan.rounds(),
            found,
        }
    }

    /// Everything as one object.
    pub fn figures(&self) -> Value {
        let mut all = json!({
            "name": self.name, "clients": self.clients, "statistic": self.statistic,
            "omega": self.omega, "rounds": self.rounds, "job": self.text,
        });
        let more = match &self.found {
            Findings::Served { columns, .. } => json!({ "columns": columns }),
            Findings::Tried(costs @ Costs { rows, memory, trial, seeds }) => json!({
                "rows": rows, "memory_bytes": memory,
                "bits_up_per_round": 8.0 * trial.up, "bits_down_per_round": 8.0 * trial.down,
                "bits_up_before_rounds": 8 * trial.sent_before.up,
                "bits_down_before_rounds": 8 * trial.sent_before.down,
                "seconds": self.seconds(costs), "seconds_before_fit": trial.before,
                "seconds_per_round": trial.seconds, "seeds": seeds,
                "stages_cut_short": trial.cut_short,
            }),
        };
        if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
            all.extend(more);
        }
        all
    }

    /// Expected time of all seeds.
    fn seconds(&self, costs: &Costs) -> Option<f64> {
        let one = |rounds| costs.trial.before + f64::from(rounds) * costs.trial.seconds;
        self.rounds.map(|rounds| costs.seeds as f64 * one(rounds))
    }

    /// The cost as a table.
    pub fn page(&self, costs: &Costs) -> String {
        let Costs { rows, memory, seeds, trial } = costs;
        let more = if trial.cut_short { "more than " } else { "" };
        let time = |s| format!("{more}{}", format::duration(s));
        let figures: [(&str, String); 13] = [
            ("clients", self.clients.to_string()),
            ("rows", rows.map_or("a stream".into(), |n| n.to_string())),
            ("numbers in a message", self.statistic.to_string()),
            ("omega of the uplink", self.omega.map_or("biased".into(), |w| format::number(w, 4))),
            ("rounds", self.rounds.map_or("until it stops".into(), |r| r.to_string())),
            ("memory", format!("about {}", format::bytes(8.0 * *memory as f64))),
            ("up before the rounds", format::bytes(8.0 * trial.sent_before.up as f64)),
            ("down before the rounds", format::bytes(8.0 * trial.sent_before.down as f64)),
            ("up per round", format::bytes(8.0 * trial.up)),
            ("down per round", format::bytes(8.0 * trial.down)),
            ("stages before the fit", time(trial.before)),
            ("seeds", seeds.to_string()),
            ("expected time", self.seconds(costs).map_or("unknown".into(), time)),
        ];
        let mut page = String::new();
        for (name, value) in figures {
            let _ = writeln!(page, "{name:>24}  {value}");
        }
        page
    }
}

/// Rows, memories and folds.
fn memory_bytes(loaded: &Loaded, plan: &Plan) -> u64 {
    let q = plan.vector_len() as u64;
    let rows = loaded.clients.iter().map(|(_, data)| match data {
        ClientData::Table(table) => table.values.len() as u64,
        ClientData::Labelled(l) => (l.len() * (l.width() + 1)) as u64,
        ClientData::Samples(s) => (s.len() * (s.width() + 1)) as u64,
        ClientData::Stream(_) => 0,
        ClientData::Cells(c) => 2 * (c.observed.len() + c.held_out.len()) as u64,
    });
    let memories = if plan.uplink().has_memory() { loaded.clients.len() as u64 * q } else { 0 };
    8 * (rows.sum::<u64>() + memories + 16 * q)
}

/// Time limit in seconds of a stage that the trial does not need.
const STAGE_SECONDS: f64 = 10.0;

/// Means over the trial rounds.
#[derive(Default)]
pub(crate) struct Trial {
    /// Seconds of the stages before the fit.
    before: f64,
    /// Whether one of them was cut short.
    pub(crate) cut_short: bool,
    /// Bytes before the first round of the fit.
    sent_before: Traffic,
    up: f64,
    down: f64,
    seconds: f64,
}

impl Trial {
    fn run(plan: &Plan, mut loaded: Loaded, seed: u64) -> Result<Self> {
        let mut delivered = Vec::new();
        let share = thin(&mut loaded.clients, plan.vector_len());
        let mut simulation = Simulation::new(loaded.clients).with_duties(plan.duties());
        let (clock, mut cut_short) = (Instant::now(), false);
        let mut sent_before = Traffic::default();
        for index in 0..plan.len() {
            let stage = plan.build(index, &delivered)?;
            let start = Start {
                index: index as u32,
                last: index + 1 == plan.len(),
                keys: StageKeys::new(seed, index as u32),
                delivered: &delivered,
                saved: None,
            };
            let mut runner = simulation.open(&stage, &start)?;
            if !start.last {
                let stage_clock = Instant::now();
                let over = |clock: &Instant| clock.elapsed().as_secs_f64() > STAGE_SECONDS;
                let can_skip = plan.can_skip(index);
                while !(can_skip && over(&stage_clock))
                    && let Step::Exchanged(_) = runner.step()?
                {}
                let artifact = if can_skip && over(&stage_clock) {
                    cut_short = true;
                    plan.stand_in(index)
                } else {
                    runner.state().machine.artifact()?
                };
                let sent = runner.state().traffic;
                sent_before.up += sent.up;
                sent_before.down += sent.down;
                drop(runner);
                delivered.push(artifact);
                continue;
            }
            let before = clock.elapsed().as_secs_f64();
            let runner = &mut *runner;
            skip_openings(runner)?;
            let sent = runner.state().traffic;
            sent_before.up += sent.up;
            sent_before.down += sent.down;
            // The first round of EM sends everything exactly: a job of one round has no other.
            let first = Self::measure(runner, 1)?;
            // A round of a large network may take minutes: one has to do.
            let is_slow = first.as_ref().is_some_and(|first| first.seconds > TRIAL_SECONDS);
            let usual = if is_slow {
                None
            } else {
                skip_openings(runner)?;
                let settling = Self::measure(runner, SETTLING_ROUNDS)?;
                Self::measure(runner, TRIAL_ROUNDS)?.or(settling)
            };
            let found = usual.or(first).unwrap_or_default();
            let seconds = found.seconds / share;
            return Ok(Self { before, cut_short, sent_before, seconds, ..found });
        }
        Ok(Self::default())
    }

    /// Means over the next rounds; `None` at the end of the run.
    fn measure(runner: &mut dyn Runner, rounds: u32) -> Result<Option<Self>> {
        let (before, clock) = (runner.state().traffic, Instant::now());
        let mut done = 0;
        while done < rounds
            && clock.elapsed().as_secs_f64() < TRIAL_SECONDS
            && let Step::Exchanged(_) = runner.step()?
        {
            done += 1;
        }
        let (after, n) = (runner.state().traffic, f64::from(done));
        Ok((done > 0).then(|| Self {
            up: (after.up - before.up) as f64 / n,
            down: (after.down - before.down) as f64 / n,
            seconds: clock.elapsed().as_secs_f64() / n,
            ..Self::default()
        }))
    }
}

/// Keeps as many samples of each client as a trial can afford; the share that is kept.
fn thin(clients: &mut [(String, ClientData)], parameters: usize) -> f64 {
    let rows = |data: &ClientData| match data {
        ClientData::Samples(samples) => samples.len(),
        _ => 0,
    };
    let all: usize = clients.iter().map(|(_, data)| rows(data)).sum();
    let affordable = TRIAL_WORK / (all as f64 * parameters as f64);
    if all == 0 || affordable >= 1.0 {
        return 1.0;
    }
    let mut kept = 0;
    for (_, data) in clients.iter_mut() {
        if let ClientData::Samples(samples) = data {
            let some = ((samples.len() as f64 * affordable).ceil() as usize).min(samples.len());
            *samples = samples.at(&(0..some).collect::<Vec<_>>());
            kept += some;
        }
    }
    kept as f64 / all as f64
}

/// Exchanges before the next round.
fn skip_openings(runner: &mut dyn Runner) -> Result<()> {
    while runner.state().machine.next_is_round()? == Some(false) {
        runner.step()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::{Inputs, Samples, Targets};

    #[test]
    fn a_trial_of_a_large_network_uses_some_of_the_rows() {
        let client = |rows: usize| {
            let targets = Targets::Values(vec![0.0; rows]);
            let samples = Samples::new(vec![1], Inputs::Real(vec![0.0; rows]), targets).unwrap();
            (rows.to_string(), ClientData::Samples(samples))
        };
        let mut clients = [client(1000), client(3000)];
        assert_eq!(thin(&mut clients, 1000), 1.0);
        // 4,000 rows of 5 million numbers: a tenth of them.
        assert_eq!(thin(&mut clients, 5_000_000), 0.1);
        let rows = clients.each_ref().map(|(_, data)| match data {
            ClientData::Samples(samples) => samples.len(),
            _ => 0,
        });
        assert_eq!(rows, [100, 300]);
    }
}
