//! `whimbrel join`: takes part in a federation with the rows of a file.

use super::args::Join;
use super::consent::Screen;
use super::execute::{INTERRUPTED, degenerate, interrupt_flag};
use super::messages::{data, note, prompt, start_log, warning};
use super::privacy;
use super::roster;
use super::serve::{MODEL, TOLD};
use crate::run::execute::defect;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use whimbrel_core::method::Exposure;
use whimbrel_core::text::printable;
use whimbrel_core::{ClientData, Error};
use whimbrel_data::Input;
use whimbrel_engine::Consent;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::client::Participant;
use whimbrel_engine::versioned;
use whimbrel_families::Offer;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::job::{Federation, Job};
use whimbrel_families::offer::Minimum;
use whimbrel_families::plan::Plan;
use whimbrel_methods::masked::Trust;
use whimbrel_net::client::{
    Client, ClientStore, Ending, Proxy, Setup, read_invitation as read_invitation_of, read_ledger,
    read_offer,
};
use whimbrel_net::registry::check_name;
use whimbrel_net::tls::{Identity, fingerprint_of_file};
use whimbrel_net::{Invitation, JOB_FAILED};
use whimbrel_report::format;
use whimbrel_runs::RunDir;

/// Exit code of a client whose user declined.
const DECLINED: u8 = 5;

/// Folder of the clients of this machine.
const JOINED: &str = "joined";

/// File of the user's consent.
const CONSENT: &str = "consent";
/// The sentence on withheld cells and rows.
const WITHHELD: &str = "withheld";
/// The end of a line that counts withheld parts.
pub const WITHHELD_PARTS: &str = "parts of messages withheld: too few rows determine them";

/// Takes part until the job is over.
pub fn join_command(args: &Join) -> Result<u8> {
    start_log(args.log);
    let invitation = Invitation::decode(read_invitation(&args.invitation)?.trim())?;
    let rows = Input::named(&args.data, args.query.as_deref())?;
    if rows.file().is_some_and(|file| !file.is_file()) {
        let what = format!("--data: there is no file {rows}");
        return Err(Error::config(what).hint("give the path of your CSV or Parquet file").into());
    }
    args.name.as_deref().map(check_name).transpose()?;
    let name = args.name.as_ref().unwrap_or(&invitation.name);
    let folder = args.out.clone().unwrap_or_else(|| default_folder(JOINED, name));
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Some(Identity::bring(cert, key)?),
        _ => None,
    };
    let client = Client::new(Setup {
        invitation: invitation.clone(),
        name: args.name.clone(),
        folder: folder.clone(),
        identity,
        next_certificate: args.next_cert.as_deref().map(fingerprint_of_file).transpose()?,
        new_key: args.new_key,
        stop: interrupt_flag(),
        give_up: args.give_up,
        proxy: Proxy::of_environment()?,
        is_relay: false,
    })?;
    let runtime = runtime()?;
    let Some(enrolled) = runtime.block_on(client.enrol())? else { return Ok(INTERRUPTED) };
    let offer = Offer::from_json(&enrolled.offer)?;
    let agreed = agree(args, &invitation, &rows, &folder, (&enrolled.name, &offer));
    if !matches!(agreed, Ok(Some(_))) && !runtime.block_on(client.decline(&enrolled))? {
        warning("the coordinator was not reached, and does not know that this client declined");
    }
    let Some(agreed) = agreed? else { return Ok(DECLINED) };
    let job = offer.job()?;
    let Agreed { plan, data, limits, withheld } = agreed;
    let (seed, message_bytes) = (job.seed, offered_message_max(&job));
    let participant = Participant { chain: Box::new(plan), data, seed, consent: limits };
    let mut store = ClientStore::open(participant, message_bytes, &folder)?;
    keep_to_rows(&folder, &rows, store.standing() != (None, None))?;
    if let Some(sentence) = &withheld {
        versioned::write(&folder.join(WITHHELD), sentence.as_bytes())?;
    }
    if args.renew {
        privacy::keep_loss(&offer.plan()?, &read_ledger(&folder)?, &folder)?;
        store.renew()?;
    }
    note("taking part: waiting for the coordinator, which begins once enough clients have joined");
    let ending = runtime.block_on(client.take_part(&enrolled, store))?;
    concluded(ending, &folder, &offer, &job)
}

/// The plan, the rows and the limits that the user agreed to.
struct Agreed {
    plan: Plan,
    data: ClientData,
    limits: Consent,
    /// The sentence on withheld cells and rows.
    withheld: Option<String>,
}

/// Checks the offer against rows and options, and asks for consent; `None` if the user declines.
fn agree(
    args: &Join,
    invitation: &Invitation,
    rows: &Input,
    folder: &Path,
    (name, offer): (&str, &Offer),
) -> Result<Option<Agreed>> {
    let job = offer.job()?;
    check_min_group(&job, args.min_group)?;
    let minimum = minimum(args.min_rows, args.min_group, &job);
    let (data, withheld) = offer.read_withheld(rows.clone(), name)?;
    let withheld = job.privacy.groups().and_then(|group| withheld.sentence(group));
    let data = minimum.apply(data)?;
    minimum.check_columns(&data, &offer.schema().levels)?;
    if minimum.group > 1 {
        job.fit.check_client(&data)?;
    }
    let trust = roster::trust_of_client(args.roster.as_deref(), folder, &job, args.partial_rounds)?;
    let observations = observations(&data);
    let plan = offer.plan_of_client(trust, observations)?;
    check_groups(&plan, &minimum)?;
    roster::check_partial(&job, plan.clients(), args.partial_rounds)?;
    if let ClientData::Table(table) = &data
        && let Some(advice) = plan.few_rows(table.rows() as u64)
    {
        warning(&advice);
    }
    let limits = limits(&plan, args.max_rounds)?;
    let mut agreed = agreed_words(offer, &limits, &minimum, observations);
    invitation.relays.iter().for_each(|relay| agreed.push_str(&format!("\n{relay}")));
    let (has_roster, partial) = (roster::accepted(folder)?.is_some(), args.partial_rounds);
    let show = || {
        withheld.iter().for_each(|sentence| note(sentence));
        relays_sentence(&invitation.relays).iter().for_each(|sentence| note(sentence));
        let address = &invitation.address;
        let (plan, limits) = (&plan, &limits);
        Screen { offer, plan, limits, has_roster, partial, address }.show(&printable(name))
    };
    let consents = consents(args, folder, &agreed, show)?;
    Ok(consents.then_some(Agreed { plan, data, limits, withheld }))
}

/// Writes the delivered model, or reports why there is none.
fn concluded(ending: Ending, folder: &Path, offer: &Offer, job: &Job) -> Result<u8> {
    match ending {
        Ending::Delivered(files) => {
            write_model(folder, offer, &files)?;
            note(&format!("the job is over; the model is in {}", folder.display()));
            match RunDir::adopt(folder).ending().as_ref().and_then(defect) {
                Some(why) => degenerate(job, &printable(why)).map(|()| 0),
                None => Ok(0),
            }
        }
        Ending::Over(reason) if reason.starts_with(JOB_FAILED) => {
            Err(Error::numerical(reason).into())
        }
        Ending::Over(reason) => Err(Error::peer(reason).into()),
        Ending::Stopped => {
            note("interrupted; join again with the same folder to resume");
            Ok(INTERRUPTED)
        }
    }
}

/// Shows the job and asks for consent, unless it was given before; a restarted service is not asked
/// again.
fn consents(
    args: &Join,
    folder: &Path,
    agreed: &str,
    show: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let file = &folder.join(CONSENT);
    let given = versioned::read(file)?.is_some_and(|before| before == agreed.as_bytes());
    if given && !args.renew {
        return Ok(true);
    }
    show()?;
    if args.renew {
        note("--renew: these limits apply again, beyond the answers so far");
    }
    if !args.yes && !ask()? {
        note(&match read_ledger(folder)?.answers() {
            0 => "declined: no rows, and nothing computed from them, were sent; joining again asks again"
                .into(),
            answers => format!(
                "declined: nothing more was sent; the coordinator keeps the {answers} answers of this \
                 client so far, and joining again asks again"
            ),
        });
        return Ok(false);
    }
    versioned::write(file, agreed.as_bytes())?;
    Ok(true)
}

/// The number of observations of a client of a table with gaps.
fn observations(data: &ClientData) -> Option<usize> {
    let ClientData::Cells(cells) = data else { return None };
    Some(cells.observed.len().max(cells.held_out.len()))
}

/// The agreed offer and limits as words of the consent file.
fn agreed_words(
    offer: &Offer,
    limits: &Consent,
    minimum: &Minimum,
    observations: Option<usize>,
) -> String {
    let words = format!("{} {} {}", offer.hash(), limits.unbounded_max, minimum.group);
    observations.map_or(words.clone(), |count| format!("{words} {count}"))
}

/// A number in the first line of the consent file; further lines name relays.
fn agreed_number(words: &str, at: usize) -> Option<u32> {
    words.lines().next()?.split(' ').nth(at)?.parse().ok()
}

/// Fewest rows behind the figures of this client: its own number, else the job's or the default.
fn minimum(rows: usize, group: Option<u32>, job: &Job) -> Minimum {
    let of_job = job.privacy.groups().unwrap_or(1) as usize;
    let group = group.map_or(of_job.max(Minimum::default().group), |group| group as usize);
    Minimum { rows, group }
}

/// Refuses a job whose messages may rest on fewer rows than this client asks for.
fn check_min_group(job: &Job, asked: Option<u32>) -> Result<()> {
    let Some(asked) = asked.filter(|asked| *asked > job.privacy.groups().unwrap_or(1)) else {
        return Ok(());
    };
    let what = match (job.privacy.groups(), job.fit.keeps_groups(job)) {
        (Some(group), _) => format!("the job's min_group is {group}, and --min-group is {asked}"),
        (None, Ok(())) => format!("the job has no min_group, and --min-group is {asked}"),
        (None, Err(why)) => format!("the job has no min_group, and --min-group is {asked}: {why}"),
    };
    let hint = "ask the coordinator for a larger min_group in [privacy], or allow smaller groups \
                with --min-group";
    Err(Error::config(what).hint(hint).into())
}

/// Refuses messages with single rows unless `--min-group` is 1, and minibatches smaller than a group,
/// since the gradient of one row reveals it.
fn check_groups(plan: &Plan, minimum: &Minimum) -> Result<()> {
    for stage in plan.disclosures()? {
        let mut rows = stage.disclosures.iter().filter(|d| d.exposure == Exposure::Rows);
        if let Some(found) = rows.next().filter(|_| minimum.group > 1) {
            let what = format!(
                "the job's messages contain single rows, and --min-group is {}: {} ({})",
                minimum.group, found.meaning, stage.stage
            );
            return Err(Error::config(what)
                .hint("--min-group 1 allows messages with single rows")
                .into());
        }
    }
    match plan.batch_min() {
        Some(rows) if (rows as usize) < minimum.group => {
            let what = format!(
                "the job's minibatches have {rows} rows, fewer than --min-group {}",
                minimum.group
            );
            let hint = format!("--min-group {rows} allows such messages");
            Err(Error::config(what).hint(hint).into())
        }
        _ => Ok(()),
    }
}

/// An invitation given as text, in a file (`@FILE`), or on standard input (`-`). Other users of the
/// machine can see command lines.
pub fn read_invitation(given: &str) -> Result<String> {
    if given == "-" {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        read.map_err(|e| Error::storage("standard input", e))?;
        return Ok(line);
    }
    let Some(file) = given.strip_prefix('@') else { return Ok(given.to_owned()) };
    let text = std::fs::read_to_string(file).map_err(|e| {
        let hint = "`@FILE` names the file that holds the invitation";
        Error::config(format!("{file}: {e}")).hint(hint)
    })?;
    match text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>()[..] {
        // A line of `serve --invitations` begins with the client's name.
        [line] => Ok(line.split_once('\t').map_or(line, |(_, invitation)| invitation).to_owned()),
        ref lines => {
            let what = format!("{file} has {} lines, and an invitation is one", lines.len());
            let hint = format!("keep the client's own line: grep NAME {file} > NAME.invitation");
            Err(Error::config(what).hint(hint).into())
        }
    }
}

/// The maximum of bytes of a message from the coordinator.
fn offered_message_max(job: &Job) -> u64 {
    let federation = job.federation.clone().unwrap_or_else(|| Federation::of(1));
    federation.message_max
}

/// Refuses rows other than those of the folder's state.
fn keep_to_rows(folder: &Path, rows: &Input, has_state: bool) -> Result<()> {
    let (known, hash) = (folder.join("data.sha256"), rows.hash()?);
    match versioned::read(&known)? {
        Some(before) if before == hash.as_bytes() => Ok(()),
        Some(_) if has_state => {
            let what = format!("{rows} differs from the rows that this client used so far");
            let hint = "give the same rows in the same order again (ORDER BY in a query); other rows \
                        need a new invitation and folder";
            Err(Error::config(what).hint(hint).into())
        }
        None if has_state => {
            let what = "it is missing, so the rows of this client's state are unknown\n\
                        hint: restore the folder from a copy; without one, a new invitation and \
                        another folder are needed";
            Err(Error::storage(known.display(), what).into())
        }
        _ => Ok(versioned::write(&known, hash.as_bytes())?),
    }
}

/// A folder per client or relay; other characters than letters, digits, - and _ are replaced.
pub fn default_folder(above: &str, name: &str) -> PathBuf {
    let plain = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '_' };
    Path::new(above).join(name.chars().map(plain).collect::<String>())
}

/// The relays of an invitation in one sentence.
fn relays_sentence(relays: &[String]) -> Option<String> {
    let names: Vec<String> = relays.iter().map(|name| format!("`{}`", printable(name))).collect();
    let (word, which) = match names.len() {
        0 => return None,
        1 => ("relay", "It reads them as the coordinator does, and could alter them."),
        _ => ("relays", "They read them as the coordinator does, and could alter them."),
    };
    let path = names.join(", then ");
    Some(format!("all messages pass through the {word} {path}. {which}"))
}

/// The limits of the consent; the bytes cover all messages.
fn limits(plan: &Plan, max_rounds: Option<u32>) -> Result<Consent> {
    let default = Consent::default();
    let unbounded_max = max_rounds.unwrap_or(default.unbounded_max);
    let limits = Consent { evaluates: plan.evaluates(), unbounded_max, ..default };
    let each = plan.agreements(&limits)?;
    let bytes_max = each.iter().fold(0u64, |sum, stage| sum.saturating_add(stage.bytes()));
    Ok(Consent { bytes_max, ..limits })
}

/// Prints the ledger of a client, or those of all clients in `joined/`.
pub fn ledger_command(folder: Option<&Path>) -> Result<u8> {
    if let Some(folder) = folder {
        return print_ledger(folder);
    }
    let joined = Path::new(JOINED);
    let entries = std::fs::read_dir(joined).map_err(|e| Error::storage(JOINED, e))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders.iter().try_fold(0, |_, folder| print_ledger(folder))
}

/// Prints a client's answers and the agreed limits.
fn print_ledger(folder: &Path) -> Result<u8> {
    let Some(enrolled) = read_offer(folder)? else {
        return Err(Failure::config(format!("{} is not a client's folder", folder.display())));
    };
    let offer = Offer::from_json(&enrolled.offer)?;
    let agreed = versioned::read(&folder.join(CONSENT))?;
    let words = agreed.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let observations = agreed_number(&words, 3).map(|count| count as usize);
    let plan = offer.plan_of_client(Trust::default(), observations)?;
    let limits = limits(&plan, agreed_number(&words, 1))?;
    let ledger = read_ledger(folder)?;
    let mut text = match (&agreed, ledger.renewals) {
        (None, _) => "no consent, and no answers; the job asks for\n".into(),
        (Some(_), 0) => "answers, of the agreed maximum\n".into(),
        (Some(_), times) => {
            let times = format!("{times} time{}", if times == 1 { "" } else { "s" });
            format!("consent renewed {times}; answers since then, of the agreed maximum\n")
        }
    };
    text.insert_str(0, &format!("{}: ", printable(&enrolled.name)));
    let line = |name: &str, count: u64, most: u64| match agreed {
        None => format!("  {name:<14}{:>14}\n", format::count(most)),
        Some(_) => {
            format!("  {name:<14}{:>14} of {:>14}\n", format::count(count), format::count(most))
        }
    };
    for (index, agreement) in plan.agreements(&limits)?.iter().enumerate() {
        let answered = ledger.stages.iter().find(|answered| answered.stage as usize == index);
        let is_over = ledger.stages.first().is_some_and(|first| first.stage as usize > index);
        if is_over {
            let since = match ledger.renewals {
                0 => "this client joined",
                _ => "the consent was renewed",
            };
            text.push_str(&format!("{}: over before {since}\n", agreement.stage));
            continue;
        }
        text.push_str(&format!("{}\n", agreement.stage));
        text.push_str(&line("enrolments", u64::from(answered.is_some()), 1));
        for (at, kind) in agreement.kinds.iter().enumerate().filter(|(_, kind)| kind.most > 0) {
            let count = answered.map_or(0, |answered| answered.of_kind(at));
            text.push_str(&line(kind.name, u64::from(count), u64::from(kind.most)));
        }
        let evaluations = answered.map_or(0, |answered| answered.evaluations);
        let most = u64::from(agreement.evaluations);
        text.push_str(&line("evaluations", u64::from(evaluations), most));
        let bytes = answered.map_or(0, |answered| answered.bytes);
        text.push_str(&line("bytes", bytes, agreement.bytes()));
        match answered.map_or(0, |answered| answered.withheld) {
            0 => {}
            parts => text.push_str(&format!("  {parts} {WITHHELD_PARTS}\n")),
        }
    }
    text.push_str(&format!("in total\n{}", line("bytes", ledger.bytes(), limits.bytes_max)));
    text.extend(roster::ledger_line(folder)?);
    if let Some(sentence) = versioned::read(&folder.join(WITHHELD))? {
        text.push_str(&format!("{}\n", String::from_utf8_lossy(&sentence)));
    }
    text.extend(privacy::ledger_lines(&offer.job()?, &plan, &ledger, folder)?);
    if ledger.renewals > 0 {
        text.push_str(&format!(
            "before the last renewal: {} answers, {} bytes\n",
            format::count(ledger.before),
            format::count(ledger.bytes_before)
        ));
    }
    data(&text)?;
    Ok(0)
}

/// Withdraws the client of a folder, and lists the files that stay.
pub fn leave_command(folder: &Path, identity: Option<(&Path, &Path)>) -> Result<u8> {
    let (Some(enrolled), Some(invitation)) = (read_offer(folder)?, read_invitation_of(folder)?)
    else {
        return Err(Failure::config(format!("{} is not a client's folder", folder.display())));
    };
    let offer = Offer::from_json(&enrolled.offer)?;
    let (job, plan, ledger) = (offer.job()?, offer.plan()?, read_ledger(folder)?);
    let client = Client::new(Setup {
        invitation,
        name: None,
        folder: folder.to_path_buf(),
        identity: identity.map(|(cert, key)| Identity::bring(cert, key)).transpose()?,
        next_certificate: None,
        new_key: false,
        stop: interrupt_flag(),
        give_up: None,
        proxy: Proxy::of_environment()?,
        is_relay: false,
    })?;
    let knows = runtime()?.block_on(client.leave(&enrolled))?;
    let own = printable(&enrolled.name);
    note(&format!("`{own}` has left `{}`: this folder answers nothing more", printable(&job.name)));
    note(&format!(
        "what stays: the model keeps the effect of {} answers, and the coordinator its copies of them",
        format::count(ledger.answers())
    ));
    if plan.uplink().has_memory() {
        let why = if job.privacy.is_masked() {
            "under masks nobody else knows it"
        } else {
            "the coordinator keeps the sum over clients and not their parts"
        };
        note(&format!(
            "  the values that its compressed messages refer to stay in the coordinator's sums until a run \
             without it begins: {why}"
        ));
    }
    if job.privacy.is_masked() {
        note("  the other clients end, too, unless they joined with --partial-rounds");
    }
    if let Some(lines) = privacy::ledger_lines(&job, &plan, &ledger, folder)? {
        data(&lines)?;
    }
    note(&format!("a refit without it, by the coordinator: whimbrel serve JOB --without {own}"));
    if !knows {
        warning(
            "the coordinator was not reached: repeat this command, or ask it to revoke the client",
        );
    }
    Ok(0)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(1).enable_all().build();
    Ok(built.map_err(|e| Error::internal(format!("no runtime: {e}")))?)
}

fn ask() -> Result<bool> {
    prompt("take part? [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.map_err(|e| Error::storage("standard input", e))? == 0 {
        note("there is no answer on standard input; --yes consents without a prompt");
    }
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Writes the delivered files as a run's folder, for `predict`.
fn write_model(folder: &Path, offer: &Offer, files: &[(String, Vec<u8>)]) -> Result<()> {
    let model = folder.join("model");
    std::fs::create_dir_all(&model).map_err(|e| Error::storage(model.display(), e))?;
    write_atomically(&folder.join("job.toml"), offer.job()?.to_toml().as_bytes())?;
    for (name, bytes) in files {
        let Some(place) = place(folder, name) else {
            let what = format!("the coordinator sent an unexpected file `{}`", name.escape_debug());
            return Err(Error::peer(what).into());
        };
        write_atomically(&place, bytes)?;
    }
    Ok(())
}

/// The path of a delivered file. The coordinator chooses the name and must not write other files.
fn place(folder: &Path, name: &str) -> Option<PathBuf> {
    match name {
        name if MODEL.contains(&name) => Some(folder.join("model").join(name)),
        name if TOLD.contains(&name) => Some(folder.join(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_do_not_change_the_agreed_numbers() {
        let numbers = |words: &str| [1, 2, 3].map(|at| agreed_number(words, at));
        for relays in ["", "\nsite", "\nsite 7 9\nregion 3"] {
            assert_eq!(numbers(&format!("ab 40 5{relays}")), [Some(40), Some(5), None]);
            assert_eq!(numbers(&format!("ab 40 5 61{relays}")), [Some(40), Some(5), Some(61)]);
        }
        assert_eq!(numbers(""), [None; 3]);
    }

    #[test]
    fn a_coordinator_writes_only_delivered_files() {
        let folder = Path::new("joined");
        assert_eq!(place(folder, "model.json"), Some("joined/model/model.json".into()));
        assert_eq!(place(folder, "metrics.jsonl"), Some("joined/metrics.jsonl".into()));
        let strange =
            ["identity", "slot-a", "offer", "job.toml", "../model.json", "/etc/passwd", ""];
        for name in strange {
            assert_eq!(place(folder, name), None, "{name}");
        }
    }
}
