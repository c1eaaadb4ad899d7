//! `whimbrel verify` and `repair`: whether what a coordinator left is whole, and what can be kept.

use super::execute::read_job;
use super::messages::{data, note};
use std::path::Path;
use whimbrel::core::Error;
use whimbrel::engine::machine::Machine;
use whimbrel::engine::{Chain, checkpoint::Checkpoint};
use whimbrel::families::failure::{Failure, Result};
use whimbrel::families::plan::{Facts, Plan};
use whimbrel::net::inspection::{Inspection, repair};
use whimbrel::net::registry::Registry;

/// Says whether checkpoint, log, journal and metrics of a served run are whole and agree.
pub fn verify_command(run: &Path) -> Result<u8> {
    let Some(found) = inspect(run)? else {
        data("nothing was kept yet\n")?;
        return Ok(0);
    };
    let Inspection { stage, round, checkpoint_round, records, log_bytes, lines, .. } = &found;
    data(&format!(
        "stage {stage}, round {round}: checkpoint at round {checkpoint_round}, log with {records} \
         records ({log_bytes} bytes), journal with {} lines, metrics with {} lines\n",
        lines.0, lines.1
    ))?;
    match found.faults.is_empty() {
        true => data("whole\n")?,
        false => {
            let faults: Vec<String> =
                found.faults.iter().map(|f| format!("damaged: {f}\n")).collect();
            data(&faults.concat())?;
            note("see what can be kept with: whimbrel repair RUN");
        }
    }
    Ok(u8::from(!found.faults.is_empty()))
}

/// Says what a repair would keep and cost, and does it where that was asked for.
pub fn repair_command(run: &Path, keep_prefix: bool) -> Result<u8> {
    let Some(found) = inspect(run)? else {
        return Err(Failure::config(format!("nothing was kept yet in {}", run.display())));
    };
    found.faults.iter().for_each(|fault| note(&format!("damaged: {fault}")));
    if found.faults.is_empty() {
        note("the files are whole and agree");
    }
    note(&format!(
        "kept: stage {}, up to round {}{}",
        found.stage,
        found.round,
        found.journal_round.map(|last| format!(" of {last}")).unwrap_or_default()
    ));
    note(
        "cost: rounds after it are made again, and every client begins this stage anew: it enrols,",
    );
    note("opens its memory and, where it has a model of its own, starts that from the beginning;");
    note("each client's user must agree to that with `whimbrel join --renew`");
    if !keep_prefix {
        note("nothing was changed; do it with: whimbrel repair RUN --keep-prefix");
        return Ok(0);
    }
    let job = read_job(&run.join("job.toml"))?;
    let plan = Plan::on_network(&job, &Facts::on_network(&job)?)?;
    let leave = |checkpoint: &mut Checkpoint| {
        let stage = plan.build(checkpoint.stage as usize, &checkpoint.delivered)?;
        let method = stage.method.server()?;
        checkpoint.runner.state = Machine::without_clients(&**method, &checkpoint.runner.state)?;
        Ok(())
    };
    let repaired = repair(run, leave)?;
    note(&format!(
        "repaired: go on from stage {}, round {} with `whimbrel serve JOB --out DIR --resume`; the \
         files as they were are in {}",
        repaired.stage,
        repaired.round,
        repaired.kept_aside.display()
    ));
    Ok(0)
}

fn inspect(run: &Path) -> Result<Option<Inspection>> {
    if !Registry::exists(run) {
        let error = Error::config(format!("{} is no run that is served", run.display()))
            .hint("`whimbrel serve` makes such a folder, and says where");
        return Err(error.into());
    }
    Ok(Inspection::of(run)?)
}
