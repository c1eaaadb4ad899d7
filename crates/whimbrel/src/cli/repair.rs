//! `whimbrel verify` and `repair`: integrity of a served run, and its repair.

use super::federation::not_served;
use super::messages::{data, note};
use crate::run::execute::{read_job, shell_word};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_engine::machine::Machine;
use whimbrel_engine::{Chain, checkpoint::Checkpoint};
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_net::inspection::{Inspection, Kept};
use whimbrel_net::registry::Registry;
use whimbrel_net::repair::Repairable;

/// Reports damaged files of a served run, and files that disagree.
pub fn verify_command(run: &Path) -> Result<u8> {
    let found = inspect(run)?;
    match &found.kept {
        Some(Kept { stage, round, checkpoint_round, records, log_bytes, lines, .. }) => {
            data(&format!(
                "stage {stage}, round {round}: checkpoint at round {checkpoint_round}, log with {records} \
             records ({log_bytes} bytes), journal with {} lines, metrics with {} lines\n",
                lines.0, lines.1
            ))?
        }
        None if found.faults.is_empty() => data("no checkpoint yet\n")?,
        None => {}
    }
    let mut faults: Vec<String> = found.faults.iter().map(ToString::to_string).collect();
    if let Err(failure) = read_job(&run.join("job.toml")) {
        faults.push(format!("job.toml: {failure}"));
    }
    if faults.is_empty() {
        data("whole\n")?;
        return Ok(0);
    }
    data(&faults.iter().map(|fault| format!("damaged: {fault}\n")).collect::<String>())?;
    match found.repairable(run) {
        Err(_) => note("restore the folder from a copy"),
        Ok(()) => note(&format!("check the repair with: whimbrel repair {}", shell_word(run))),
    }
    Ok(1)
}

/// Reports the result and cost of a repair, and carries it out if asked. The checks are the same.
pub fn repair_command(run: &Path, keep_prefix: bool) -> Result<u8> {
    let found = inspect(run)?;
    found.faults.iter().for_each(|fault| note(&format!("damaged: {fault}")));
    found.repairable(run)?;
    let Some(kept) = &found.kept else {
        return Err(Failure::config(format!("there is no checkpoint yet in {}", run.display())));
    };
    let job = read_job(&run.join("job.toml"))?;
    if job.privacy.epsilon.is_some() {
        let what = "a repair repeats rounds, and the epsilon of this run counts each round once";
        return Err(Error::config(what)
            .hint("restore the folder from a copy, or begin a new run")
            .into());
    }
    let plan = Plan::on_network(&job, &Facts::on_network(&job)?)?;
    let leave = |checkpoint: &mut Checkpoint| {
        let stage = plan.build(checkpoint.stage as usize, &checkpoint.delivered)?;
        let method = stage.method.server()?;
        checkpoint.runner.state = Machine::without_clients(&**method, &checkpoint.runner.state)?;
        Ok(())
    };
    let repairable = Repairable::of(run, leave)?;
    if found.faults.is_empty() {
        note("the files are intact and agree");
    }
    note(&format!(
        "kept: stage {}, up to round {}{}",
        kept.stage,
        kept.round,
        kept.journal_round.map(|last| format!(" of {last}")).unwrap_or_default()
    ));
    note(
        "cost: later rounds are repeated, and every client restarts this stage: it enrols and resets",
    );
    note("its memory and its personal model; its user must agree with `whimbrel join --renew`");
    if repairable.begins_metrics() {
        note("metrics.jsonl starts empty; earlier evaluations are in the copied files");
    }
    if !keep_prefix {
        let run = shell_word(run);
        note(&format!("nothing was changed; repair with: whimbrel repair {run} --keep-prefix"));
        return Ok(0);
    }
    let repaired = repairable.repair()?;
    note(&format!(
        "repaired: resume from stage {}, round {} with `whimbrel serve JOB --out DIR --resume`; the \
         original files are in {}",
        repaired.stage,
        repaired.round,
        repaired.kept_aside.display()
    ));
    Ok(0)
}

fn inspect(run: &Path) -> Result<Inspection> {
    // Only served runs have either file.
    if !Registry::exists(run) && !run.join("checkpoint/log").exists() {
        return Err(not_served(run));
    }
    Ok(Inspection::of_all(run)?)
}
