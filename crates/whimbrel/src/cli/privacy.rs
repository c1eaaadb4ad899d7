//! The privacy loss so far, of a coordinator and of a client.

use std::path::Path;
use std::time::{Duration, Instant};
use whimbrel_core::Wire;
use whimbrel_engine::agreement::Ledger;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{Chain, Consent, Observer, StageRules, versioned};
use whimbrel_families::failure::Result;
use whimbrel_families::job::{Job, PrivacyUnit};
use whimbrel_families::plan::{Charge, Plan};
use whimbrel_net::status::Board;
use whimbrel_report::format;

/// File of a client's loss before its consent was renewed.
const LOSS_BEFORE: &str = "loss";

/// Shows the privacy loss of a served run on its status board, and its progress in the log.
pub struct Spending<'a> {
    plan: &'a Plan,
    charges: Vec<Charge>,
    /// The stage under way.
    stage: usize,
    board: Board,
    /// The first round of this process in this stage, and its time.
    first: Option<(u32, Instant)>,
    said: Instant,
}

/// Time between two lines of progress.
const PACE: Duration = Duration::from_secs(5);

impl<'a> Spending<'a> {
    pub fn new(plan: &'a Plan, board: &Board) -> Result<Self> {
        let (charges, board) = (plan.charges()?, board.clone());
        Ok(Self { plan, charges, stage: 0, board, first: None, said: Instant::now() })
    }

    /// Logs the round, the time left at the pace of this process, and the bytes received.
    fn say(&mut self, round: u32) {
        let (first, begun) = *self.first.get_or_insert((round, Instant::now()));
        if self.said.elapsed() < PACE || round == first {
            return;
        }
        self.said = Instant::now();
        let last = self.plan.rounds().filter(|_| self.stage + 1 == self.plan.len());
        let each = begun.elapsed().as_secs_f64() / f64::from(round - first);
        let of = last.map_or(String::new(), |last| {
            let left = format::duration(each * f64::from(last.saturating_sub(round)));
            format!(" of {}, about {left} left", format::count(last.into()))
        });
        let received = format::bytes(8.0 * self.board.watch().borrow().bytes_up as f64);
        tracing::info!("round {}{of}, {received} received", format::count(round.into()));
    }

    /// The loss after this number of rounds of the stage.
    fn show(&self, rounds: u32) {
        let Some(private) = self.plan.private() else { return };
        let (before, now) = self.charges.split_at(self.stage.min(self.charges.len()));
        let before: f64 = before.iter().map(Charge::all).sum();
        let now = now.first().map_or(0.0, |charge| charge.each * f64::from(rounds));
        let (epsilon, delta) = (private.epsilon(before + now), private.guarantee.delta);
        self.board.change(|s| (s.epsilon_spent, s.delta) = (Some(epsilon), Some(delta)));
    }
}

impl Observer for Spending<'_> {
    fn stage(&mut self, _: &StageRules, index: usize, _: usize) {
        self.stage = index;
        self.first = None;
        let shown = self.board.watch().borrow().clone();
        self.show(if shown.stage_index == index as u32 { shown.round } else { 0 });
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round {
            self.show(round);
            self.say(round);
        }
    }
}

/// The content of the clients' messages and their protection, for the dashboard.
pub fn line(job: &Job, plan: &Plan) -> Result<String> {
    let stages = plan.disclosures()?;
    let last = stages.last().map_or(&[][..], |stage| &stage.disclosures);
    let up = last.iter().filter(|d| d.message == "up");
    let mut meanings: Vec<&str> = up.map(|d| &*d.meaning).collect();
    if meanings.is_empty() {
        meanings.extend(last.first().map(|d| &*d.meaning));
    }
    let leaves = if meanings.is_empty() { "nothing".into() } else { meanings.join("; ") };
    let masks = job
        .privacy
        .least_masked(plan.clients())
        .map(|least| format!("masks: the coordinator sees sums over at least {least} clients"));
    let noise = plan.private().map(|private| {
        let guarantee = private.guarantee;
        format!("differential privacy with epsilon {}", guarantee.epsilon)
    });
    let groups = job
        .privacy
        .groups()
        .map(|group| format!("each number rests on at least {group} rows of a client"));
    let modes: Vec<String> = [masks, noise, groups].into_iter().flatten().collect();
    let mode = match &modes[..] {
        [] => "plain: the coordinator sees each client's messages".to_owned(),
        modes => modes.join(", "),
    };
    Ok(format!("Leaves a client: {leaves}. Protection: {mode}"))
}

/// The guarantee in one sentence for the consent screen.
pub fn sentence(job: &Job, plan: &Plan) -> Option<String> {
    let guarantee = plan.private()?.guarantee;
    let (what, factor) = (unit(job), guarantee.epsilon.exp());
    let used = match job.privacy.unit {
        PrivacyUnit::Row => "a row was",
        PrivacyUnit::Client => "your rows were",
    };
    let times = format::count((1.0 / guarantee.delta) as u64);
    let noise = if job.privacy.is_masked() {
        "Each client adds its share of the noise before its messages are hidden in a sum."
    } else {
        "The coordinator adds the noise and is trusted for it: it sees your messages without noise."
    };
    Some(format!(
        "Random noise hides {what} of yours from readers of the model: whoever guesses from it whether {used} \
         used says a correct \"yes\" at most {factor:.2} times as often as a false one (epsilon {}), and once in \
         {times} guesses beside that (delta {:.1e}). {noise}",
        guarantee.epsilon, guarantee.delta
    ))
}

fn unit(job: &Job) -> &'static str {
    match job.privacy.unit {
        PrivacyUnit::Row => "any one row",
        PrivacyUnit::Client => "all rows",
    }
}

/// A client's uploads and their `1/z^2`, the loss before renewals included.
fn spent(plan: &Plan, ledger: &Ledger, folder: &Path) -> Result<(u64, f64)> {
    let (charges, agreed) = (plan.charges()?, plan.agreements(&Consent::default())?);
    let (mut uploads, mut mu2) = (0, loss_before(folder)?);
    for answered in &ledger.stages {
        let stage = answered.stage as usize;
        let count = agreed.get(stage).map_or(0, |agreed| answered.uploads(agreed));
        uploads += count;
        mu2 += charges.get(stage).map_or(0.0, |charge| charge.each) * count as f64;
    }
    Ok((uploads, mu2))
}

fn loss_before(folder: &Path) -> Result<f64> {
    let kept = versioned::read(&folder.join(LOSS_BEFORE))?;
    Ok(kept.map_or(Ok(0.0), |bytes| f64::from_bytes(&bytes))?)
}

/// Stores the loss so far: a renewed consent counts uploads from zero.
pub fn keep_loss(plan: &Plan, ledger: &Ledger, folder: &Path) -> Result<()> {
    if plan.private().is_some() {
        let (_, mu2) = spent(plan, ledger, folder)?;
        versioned::write(&folder.join(LOSS_BEFORE), &mu2.to_bytes())?;
    }
    Ok(())
}

/// The lines of a client's ledger about its privacy loss. Every upload counts, also those of rounds
/// that did not.
pub fn ledger_lines(
    job: &Job,
    plan: &Plan,
    ledger: &Ledger,
    folder: &Path,
) -> Result<Option<String>> {
    let Some(private) = plan.private() else { return Ok(None) };
    let (uploads, mu2) = spent(plan, ledger, folder)?;
    let charges = plan.charges()?;
    let all: f64 = charges.iter().map(Charge::all).sum();
    let most: u64 = charges.iter().map(|charge| u64::from(charge.uploads)).sum();
    let agreed = private.epsilon(loss_before(folder)? + all);
    Ok(Some(format!(
        "privacy loss of {} in `{}`\n  epsilon       {:>14.4} of {agreed:>14.4}\n  delta         \
         {:>14.2e}\n  uploads       {:>14} of {:>14}\n",
        unit(job),
        whimbrel_core::text::printable(&job.name),
        private.epsilon(mu2),
        private.guarantee.delta,
        format::count(uploads),
        format::count(most)
    )))
}
