//! `whimbrel check`: what a job will do and cost, without running it.

use super::execute::read_job;
use super::join::show_disclosures;
use super::messages::{data, note, warning};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use whimbrel::core::ClientData;
use whimbrel::core::method::Artifact;
use whimbrel::engine::keys::StageKeys;
use whimbrel::engine::runner::{Start, Step};
use whimbrel::engine::{Carrier, Chain, Runner, Simulation};
use whimbrel::families::failure::Result;
use whimbrel::families::load::{Loaded, load};
use whimbrel::families::plan::{Facts, Plan};
use whimbrel::families::{Job, Offer};
use whimbrel::report::format;
use whimbrel::runs::resolved;

/// Rounds of the trial from which bytes and time are estimated, at most; fewer where they are slow.
const TRIAL_ROUNDS: u32 = 40;
/// Seconds after which the trial ends.
const TRIAL_SECONDS: f64 = 2.0;
/// Rounds that are run first: fresh memories make the first messages shorter than the others.
const SETTLING_ROUNDS: u32 = 10;

/// Validates a job and prints what it resolves to, its memory, bytes per round and expected time.
pub fn check_command(path: &Path, json: bool) -> Result<u8> {
    let job = read_job(path)?;
    let loaded = match load(&job) {
        Err(_) if job.federation.is_some() => return check_served(&job, json),
        loaded => loaded?,
    };
    let text = resolved(&job, &loaded.files);
    // Minima are kept by runs: a check writes nothing.
    let plan = Plan::with_cache(&job, &loaded, None)?;
    plan.warnings().iter().for_each(|w| warning(w));
    plan.notes().iter().for_each(|n| note(n));
    let (clients, rows) = (loaded.clients.len(), loaded.total_rows());
    let memory = memory_bytes(&loaded, &plan);
    let trial = Trial::run(&plan, loaded, job.seed)?;
    let rounds = plan.rounds();
    let runs = job.seeds.map_or(1, |_| job.each_seed().len());
    let one = |r| trial.before + f64::from(r) * trial.seconds;
    let seconds = rounds.map(|r| runs as f64 * one(r));
    if json {
        let report = json!({
            "name": job.name, "clients": clients, "rows": rows,
            "statistic": plan.vector_len(), "omega": plan.uplink().omega(),
            "rounds": rounds, "memory_bytes": memory,
            "bits_up_per_round": 8.0 * trial.up, "bits_down_per_round": 8.0 * trial.down,
            "seconds": seconds, "seconds_before_fit": trial.before,
            "stages_cut_short": trial.cut_short, "job": text,
        });
        data(&format!("{report}\n"))?;
        return Ok(0);
    }
    let time = |s| match trial.cut_short {
        true => format!("more than {}", format::duration(s)),
        false => format::duration(s),
    };
    let mut page = format!("{text}\n");
    let figures: Vec<(&str, Value)> = vec![
        ("clients", clients.into()),
        ("rows", rows.map_or("a stream".into(), |n| n.into())),
        ("numbers in a message", plan.vector_len().into()),
        (
            "omega of the uplink",
            plan.uplink().omega().map_or("biased".into(), |w| format::number(w, 4).into()),
        ),
        ("rounds", rounds.map_or("until it stops".into(), |r| r.into())),
        ("memory", format!("about {}", bytes(memory)).into()),
        ("up per round", format::bits(8.0 * trial.up).into()),
        ("down per round", format::bits(8.0 * trial.down).into()),
        ("stages before the fit", time(trial.before).into()),
        ("seeds", runs.into()),
        ("expected time", seconds.map_or("unknown".into(), |s| time(s).into())),
    ];
    for (name, value) in figures {
        let value = value.as_str().map_or(value.to_string(), String::from);
        let _ = writeln!(page, "{name:>24}  {value}");
    }
    data(&page)?;
    if trial.cut_short {
        note(
            "the stages before the fit take longer than was tried; an automatic rank is costed as 1",
        );
    }
    note("bits and time come from some trial rounds, kept nowhere");
    Ok(0)
}

/// A job whose rows are the clients': what it would be served as, and what it would ask of them.
fn check_served(job: &Job, json: bool) -> Result<u8> {
    let facts = Facts::on_network(job)?;
    let plan = Plan::on_network(job, &facts)?;
    let offer = Offer::of(job, &facts)?;
    plan.warnings().iter().for_each(|w| warning(w));
    let (text, rounds) = (resolved(job, &[]), plan.rounds());
    if json {
        let report = json!({
            "name": job.name, "clients": facts.clients, "columns": facts.columns,
            "statistic": plan.vector_len(), "omega": plan.uplink().omega(), "rounds": rounds,
            "job": text,
        });
        data(&format!("{report}\n"))?;
        return Ok(0);
    }
    data(&format!("{text}\n"))?;
    note("the rows are the clients', so nothing is tried; what `whimbrel join` will show them:");
    show_disclosures(&offer.plan()?)?;
    Ok(0)
}

fn bytes(count: u64) -> String {
    let count = count as f64;
    let (size, unit) = match count {
        ..1e6 => (count / 1e3, "kB"),
        ..1e9 => (count / 1e6, "MB"),
        _ => (count / 1e9, "GB"),
    };
    format!("{} {unit}", format::number(size, 3))
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

/// Seconds after which a stage that the fit can be tried without is left.
const STAGE_SECONDS: f64 = 10.0;

/// Means over a few rounds.
#[derive(Default)]
struct Trial {
    /// Seconds of the stages before the fit.
    before: f64,
    /// Whether one of them was left before its end.
    cut_short: bool,
    up: f64,
    down: f64,
    seconds: f64,
}

impl Trial {
    fn run(plan: &Plan, loaded: Loaded, seed: u64) -> Result<Self> {
        let mut delivered = Vec::new();
        let mut simulation = Simulation::new(loaded.clients).with_duties(plan.duties());
        let (clock, mut cut_short) = (Instant::now(), false);
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
                    Artifact::default()
                } else {
                    runner.artifact()?
                };
                drop(runner);
                delivered.push(artifact);
                continue;
            }
            let before = clock.elapsed().as_secs_f64();
            let runner = &mut *runner;
            skip_openings(runner)?;
            // The first round of EM sends everything exactly: a job of one round has no other.
            let first = Self::measure(runner, 1)?;
            skip_openings(runner)?;
            let settling = Self::measure(runner, SETTLING_ROUNDS)?;
            let usual = Self::measure(runner, TRIAL_ROUNDS)?.or(settling);
            let found = usual.or(first).unwrap_or_default();
            return Ok(Self { before, cut_short, ..found });
        }
        Ok(Self::default())
    }

    /// Means over the next rounds; none where the run is over.
    fn measure(runner: &mut dyn Runner, rounds: u32) -> Result<Option<Self>> {
        let (before, clock) = (runner.traffic(), Instant::now());
        let mut done = 0;
        while done < rounds
            && clock.elapsed().as_secs_f64() < TRIAL_SECONDS
            && let Step::Exchanged(_) = runner.step()?
        {
            done += 1;
        }
        let (after, n) = (runner.traffic(), f64::from(done));
        Ok((done > 0).then(|| Self {
            up: (after.up - before.up) as f64 / n,
            down: (after.down - before.down) as f64 / n,
            seconds: clock.elapsed().as_secs_f64() / n,
            ..Self::default()
        }))
    }
}

/// Exchanges before the next round.
fn skip_openings(runner: &mut dyn Runner) -> Result<()> {
    while runner.next_is_round()? == Some(false) {
        runner.step()?;
    }
    Ok(())
}
