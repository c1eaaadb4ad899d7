//! The command line: arguments, messages, exit codes. One file per command.

mod args;
mod check;
mod compare;
mod consent;
mod demo;
mod execute;
mod export;
mod federation;
mod inspect;
mod join;
mod listener;
mod manual;
mod messages;
mod new;
mod output;
mod paper;
mod pool;
mod predict;
mod privacy;
mod registration;
mod relay;
mod repair;
mod report;
mod roster;
mod serve;
mod sources;

use crate::run::{Wishes, threads_of};
use args::{Args, Command, DataCommand, PaperCommand};
use clap::{CommandFactory, Parser};
use paper::study::Scale;
use std::process::ExitCode;
use whimbrel_core::{Error, isa};
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::family::Family;
use whimbrel_families::registry;
use whimbrel_job::suggest::nearest;

/// Runs the command line with additional families beside the built-in ones.
pub fn main(families: &[&'static Family]) -> ExitCode {
    let args = Args::try_parse().unwrap_or_else(|e| suggest_command(e).exit());
    let installed = registry::install(families).map_err(Failure::config);
    match installed.and_then(|()| dispatch(&args)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            messages::set_manner(args.color.is_wanted(), args.quiet);
            messages::failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Names of other programs for `run`.
const FITTING: [&str; 4] = ["train", "fit", "start", "simulate"];

/// Suggests `run` for a command that other programs call differently and for a job without command,
/// the job's key for an option of that name, and after `help`, for which clap suggests nothing, the
/// command with the nearest name.
fn suggest_command(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let tip = |text: String| ContextValue::StyledStrs(vec![text.into()]);
    if let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && let name = option.trim_start_matches('-').replace('-', "_")
        && let Some(place) = Job::place_of(&name)
    {
        let text = format!("`{name}` is a key of the job file, {place}");
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, tip(text));
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if word.ends_with(".toml") {
        let text = format!("to run a job: whimbrel run {word}");
        error.insert(ContextKind::Suggested, tip(text));
        return error;
    }
    let has_one = error.get(ContextKind::SuggestedSubcommand).is_some();
    let command = Args::command();
    let fits = FITTING.contains(&word.as_str()) || (!has_one && nearest(word, FITTING).is_some());
    let suggested = if fits {
        Some("run")
    } else if has_one {
        None
    } else {
        nearest(word, command.get_subcommands().map(clap::Command::get_name))
    };
    if let Some(name) = suggested {
        let name = ContextValue::Strings(vec![name.into()]);
        error.insert(ContextKind::SuggestedSubcommand, name);
    }
    error
}

/// Runs the command and returns its exit code: success, or interrupted.
fn dispatch(args: &Args) -> Result<u8> {
    if args.out.is_some() && args.command.is_some() {
        let error = Error::config("--out before a command belongs to the demonstration")
            .hint("write it after the command");
        return Err(error.into());
    }
    messages::set_manner(args.color.is_wanted(), args.quiet);
    check_isa()?;
    set_threads(args.threads)?;
    match &args.command {
        None => demo::demo(args.out.as_deref()),
        Some(Command::Run(run)) => execute::run_command(run),
        Some(Command::Describe(describe)) => execute::describe_command(describe),
        Some(Command::Compare(compare)) => compare::compare_command(compare),
        Some(Command::Check { job, json }) => check::check_command(job, *json),
        Some(Command::New { data, target, model, event, out, force }) => {
            let [target, model, event] = [target, model, event].map(Option::as_deref);
            let wishes = Wishes { target, model, event };
            new::new_command(data.as_deref(), out.as_deref(), *force, wishes)
        }
        Some(Command::Report(report)) => report::report_command(report),
        Some(Command::Export(export)) => export::export_command(export),
        Some(Command::Serve(serve)) => serve::serve_command(serve),
        Some(Command::Join(join)) => join::join_command(join),
        Some(Command::Invite { run, name, valid_days, again, relay, via, direct }) => {
            let (relay, via) = (relay.as_deref(), via.as_deref());
            let wish = federation::Wish { again: *again, relay, via, direct: *direct };
            federation::invite_command(run, name.as_deref(), *valid_days, wish)
        }
        Some(Command::Relay(relay)) => relay::relay_command(relay),
        Some(Command::Revoke { run, name, dead }) => federation::revoke_command(run, name, *dead),
        Some(Command::Status { run, json }) => federation::status_command(run, *json),
        Some(Command::Verify { run }) => repair::verify_command(run),
        Some(Command::Repair { run, keep_prefix }) => repair::repair_command(run, *keep_prefix),
        Some(Command::Ledger { folder }) => join::ledger_command(folder.as_deref()),
        Some(Command::Identity { folder }) => roster::identity_command(folder),
        Some(Command::Leave { folder, cert, key }) => {
            join::leave_command(folder, cert.as_deref().zip(key.as_deref()))
        }
        Some(Command::Predict(predict)) => predict::predict_command(predict),
        Some(Command::Impute(impute)) => predict::impute_command(impute),
        Some(Command::Pool(pool)) => pool::pool_command(pool),
        Some(Command::Adapt(adapt)) => predict::adapt_command(adapt),
        Some(Command::Data(DataCommand::List { json })) => sources::list_command(*json),
        Some(Command::Data(DataCommand::Make { name, out, seed })) => {
            sources::make_command(*name, out.as_deref(), *seed)
        }
        Some(Command::Data(DataCommand::Inspect { file, json, .. }))
            if file.extension().is_some_and(|ending| ending == "toml") =>
        {
            sources::inspect_job(file, *json)
        }
        Some(Command::Data(DataCommand::Inspect { file, client, json })) => {
            inspect::inspect_command(file, client.as_deref(), *json)
        }
        Some(Command::Paper(PaperCommand::List { json })) => paper::list_command(*json),
        Some(Command::Paper(PaperCommand::Run { names, with })) => {
            paper::run_command(names, with, Scale::Paper)
        }
        Some(Command::Paper(PaperCommand::Check { names, with })) => {
            paper::run_command(names, with, Scale::Quick)
        }
        Some(Command::Completions { shell }) => manual::completions_command(*shell),
        Some(Command::Man { out, force }) => manual::man_command(out.as_deref(), *force),
    }
}

/// Refuses a pinned instruction-set level that the machine lacks.
fn check_isa() -> Result<()> {
    let Some(wanted) = std::env::var_os("WHIMBREL_ISA") else { return Ok(()) };
    if wanted.to_str().map(str::trim) == Some(isa::level().name()) {
        return Ok(());
    }
    let what = format!("WHIMBREL_ISA is {wanted:?}, which this machine does not support");
    let hint =
        "supported values are x86-64, x86-64-v3 and x86-64-v4, as far as the machine has them";
    Err(Error::config(what).hint(hint).into())
}

/// `--threads`, else `RAYON_NUM_THREADS` (which rayon reads itself), else all cores.
fn set_threads(threads: Option<usize>) -> Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    let pool = threads_of(threads)?.build_global();
    pool.map_err(|e| Failure::config(format!("--threads {threads}: {e}")))
}
