//! `whimbrel verify` and `repair`: whether what a coordinator left is whole, and what can be kept.

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

/// Says which files of a served run are damaged, and whether those that count on each other agree.
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
        None if found.faults.is_empty() => data("nothing was kept yet\n")?,
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
        Ok(()) => note(&format!("see what can be kept with: whimbrel repair {}", shell_word(run))),
    }
    Ok(1)
}

/// Says what a repair would keep and cost, and does it where that was asked for. Both make the same
/// checks: what is promised can be done.
pub fn repair_command(run: &Path, keep_prefix: bool) -> Result<u8> {
    let found = inspect(run)?;
    found.faults.iter().for_each(|fault| note(&format!("damaged: {fault}")));
    found.repairable(run)?;
    let Some(kept) = &found.kept else {
        return Err(Failure::config(format!("nothing was kept yet in {}", run.display())));
    };
    let job = read_job(&run.join("job.toml"))?;
    let plan = Plan::on_network(&job, &Facts::on_network(&job)?)?;
    let leave = |checkpoint: &mut Checkpoint| {
        let stage = plan.build(checkpoint.stage as usize, &checkpoint.delivered)?;
        let method = stage.method.server()?;
        checkpoint.runner.state = Machine::without_clients(&**method, &checkpoint.runner.state)?;
        Ok(())
    };
    let repairable = Repairable::of(run, leave)?;
    if found.faults.is_empty() {
        note("the files are whole and agree");
    }
    note(&format!(
        "kept: stage {}, up to round {}{}",
        kept.stage,
        kept.round,
        kept.journal_round.map(|last| format!(" of {last}")).unwrap_or_default()
    ));
    note(
        "cost: rounds after it are made again, and every client begins this stage anew: it enrols,",
    );
    note("opens its memory and, where it has a model of its own, starts that from the beginning;");
    note("each client's user must agree to that with `whimbrel join --renew`");
    if repairable.begins_metrics() {
        note(
            "metrics.jsonl begins anew: figures of earlier evaluations are in the files kept aside",
        );
    }
    if !keep_prefix {
        let run = shell_word(run);
        note(&format!("nothing was changed; do it with: whimbrel repair {run} --keep-prefix"));
        return Ok(0);
    }
    let repaired = repairable.repair()?;
    note(&format!(
        "repaired: resume from stage {}, round {} with `whimbrel serve JOB --out DIR --resume`; the \
         files as they were are in {}",
        repaired.stage,
        repaired.round,
        repaired.kept_aside.display()
    ));
    Ok(0)
}

fn inspect(run: &Path) -> Result<Inspection> {
    // Either of them is of a run that is served alone.
    if !Registry::exists(run) && !run.join("checkpoint/log").exists() {
        let error = Error::config(format!("{} is no run that is served", run.display()))
            .hint("`whimbrel serve` makes such a folder, and says where");
        return Err(error.into());
    }
    Ok(Inspection::of_all(run)?)
}
