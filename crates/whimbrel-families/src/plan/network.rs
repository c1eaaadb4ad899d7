//! Plans without rows: of the coordinator, and of a client that received an offer.

use super::{Basis, Common, Facts, Files, Plan, not_on_network, same_but_for_case};
use crate::failure::{AtKey, Result};
use crate::family::{Fit, refuse};
use crate::job::method::stop::{FIELD_NORM2, limit};
use crate::job::{DownRule, Job, Partition};
use whimbrel_core::method::Disclosure;
use whimbrel_engine::{Agreement, Chain, Consent, Faults, Stage};
use whimbrel_methods::masked::{MaskSecret, Trust};
use whimbrel_methods::settings::Budget;
use whimbrel_privacy::noise::random_bytes;

/// The messages that leave a client in one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageDisclosures {
    pub stage: &'static str,
    pub disclosures: Vec<Disclosure>,
}

/// Warning for a job that does not bound the messages of its clients.
const UNBOUNDED: &str = "`epochs` does not bound the rounds: clients agree to 10,000, or to their --max-rounds; \
                         with `rounds` in [method] they agree to that number";

impl Plan {
    /// The coordinator's plan: the methods of a simulation, built without rows.
    pub fn on_network(job: &Job, facts: &Facts) -> Result<Self> {
        Self::watched(job, facts, Trust::default())
    }

    /// The coordinator's plan, with a view of rosters under masks.
    pub fn watched(job: &Job, facts: &Facts, trust: Trust) -> Result<Self> {
        check_servable(job)?;
        let mut plan = Self::without_rows(job, facts, Files::Here, trust)?;
        if let Budget::Epochs(_) = job.method.length {
            plan.warnings.push(UNBOUNDED.into());
        }
        Ok(plan)
    }

    /// A client's plan from an offered job and its facts.
    pub(crate) fn on_client(
        job: &Job,
        facts: &Facts,
        memory: Option<&[f64]>,
        trust: Trust,
    ) -> Result<Self> {
        // An offer comes from a peer, who must not know the noise.
        check_private(job)?;
        Self::without_rows(job, facts, Files::Sent { memory }, trust)
    }

    fn without_rows(job: &Job, facts: &Facts, files: Files<'_>, trust: Trust) -> Result<Self> {
        let mut common = Common::new(job, facts)?;
        common.trust = trust;
        if job.privacy.is_masked() {
            common.secret = MaskSecret::Random(random_bytes()?);
        }
        // The losses of [simulation] do not apply to a network.
        common.faults = Faults::default();
        let fit = job.fit.plan(&Basis { common: &common, facts, rows: None, files })?;
        let mut plan = Self::checked(common, fit)?;
        plan.warnings.extend(same_but_for_case(&facts.names));
        Ok(plan)
    }

    /// Whether clients on a network are asked for evaluations: only if the job sets `evaluate`.
    pub fn evaluates(&self) -> bool {
        self.common.job.method.evaluate_every.is_some()
    }

    /// The first memory of every client, if a file gives it.
    pub(crate) fn memory(&self) -> Option<&[f64]> {
        self.fit.memory.as_deref()
    }

    /// The fit as clients receive it, if it differs from the job's.
    pub(crate) fn offered(&self) -> Option<&dyn Fit> {
        self.fit.offered.as_deref()
    }

    /// A client's limits on its answers, by stage.
    pub fn agreements(&self, consent: &Consent) -> Result<Vec<Agreement>> {
        let consent = Consent { evaluates: consent.evaluates && self.evaluates(), ..*consent };
        self.each_stage(|stage| Ok(Agreement::of(stage, &consent)?))
    }

    /// The contents of all messages that leave a client, by stage.
    pub fn disclosures(&self) -> Result<Vec<StageDisclosures>> {
        self.each_stage(|stage| {
            let mut disclosures = stage.method.declare().disclosures;
            if stage.evaluate_every.is_none() || !self.evaluates() {
                disclosures.retain(|d| d.message != "answer");
            }
            Ok(StageDisclosures { stage: stage.name, disclosures })
        })
    }

    /// Builds every stage as far as the job alone determines it.
    pub(super) fn each_stage<T>(&self, of: impl Fn(&Stage) -> Result<T>) -> Result<Vec<T>> {
        (0..self.len()).map(|index| of(&self.expected(index)?)).collect()
    }
}

/// Refuses settings that only a simulation supports.
fn check_servable(job: &Job) -> Result<()> {
    match job.data.partition() {
        None => return Err(not_on_network(&job.data.source)),
        Some(Partition::Column(_) | Partition::Pooled) => {}
        Some(_) => {
            return refuse(
                "[data.split] creates clients, but those of a network are real",
                "take [data.split] out",
            );
        }
    }
    if job.data.unseen > 0.0 {
        return refuse(
            "on a network all clients train, but `unseen` excludes some from training",
            "take `unseen` out; users of the model need no invitation (`predict`, `adapt`)",
        );
    }
    if job.seeds.is_some() {
        return refuse("a federation runs one seed", "take `seeds` out");
    }
    if job.downlink.rule == DownRule::Ghost {
        return refuse(
            "the ghost downlink needs the server's exact state on every client",
            "use another rule in [downlink]",
        );
    }
    job.fit.check_served(job)?;
    check_private(job)?;
    let stop = &job.method.stop;
    let stops = limit(stop, &FIELD_NORM2).is_some() || stop.patience.is_some();
    if stops && job.method.evaluate_every.is_none() {
        return refuse(
            "`stop` needs evaluations, which clients on a network answer only if the job asks for \
             them",
            "set evaluate = { every = .. } in [method], or take `stop` out",
        );
    }
    Ok(())
}

/// Refuses settings under differential privacy that reveal more on a network than in a simulation.
fn check_private(job: &Job) -> Result<()> {
    let privacy = &job.privacy;
    if privacy.epsilon.is_none() {
        return Ok(());
    }
    if privacy.noise_seed.is_some() {
        let what = "the job goes to all clients, who could remove noise with a known seed";
        return refuse(what, "take `noise_seed` out").at("privacy.noise_seed");
    }
    if job.method.evaluate_every.is_some() {
        let what = "answers to evaluations have no noise, and all clients receive their means";
        return refuse(what, "take `evaluate` out").at("method.evaluate");
    }
    Ok(())
}
