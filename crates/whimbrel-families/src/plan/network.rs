//! Plans without rows: the coordinator's, and a client's from what it was offered.

use super::{Common, Facts, Files, Plan};
use crate::failure::Result;
use crate::job::method::stop::{FIELD_NORM2, limit};
use crate::job::{DownRule, Job, Partition};
use whimbrel_core::Error;
use whimbrel_core::method::Disclosure;
use whimbrel_engine::{Agreement, Chain, Consent, Faults};
use whimbrel_methods::kmeans::ROWS_MIN;

/// What leaves a client in one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageDisclosures {
    /// The stage's name.
    pub stage: &'static str,
    /// Each message's content.
    pub disclosures: Vec<Disclosure>,
}

impl Plan {
    /// The coordinator's plan: the same methods as a simulation's, built without a row.
    pub fn on_network(job: &Job, facts: &Facts) -> Result<Self> {
        check_servable(job)?;
        Self::without_rows(job, facts, Files::Here, ROWS_MIN)
    }

    /// A client's plan, from a job and facts that it was sent, with the fewest rows that it lets a
    /// figure rest on.
    pub(crate) fn on_client(
        job: &Job,
        facts: &Facts,
        memory: Option<&[f64]>,
        group_min: usize,
    ) -> Result<Self> {
        Self::without_rows(job, facts, Files::Sent { memory }, group_min.max(ROWS_MIN))
    }

    fn without_rows(job: &Job, facts: &Facts, files: Files<'_>, group_min: usize) -> Result<Self> {
        let mut common = Common::new(job, facts)?;
        common.group_min = group_min;
        // Losses are real on a network; those of [simulation] are for simulations.
        common.faults = Faults::default();
        let stages = job.fit.plan(&common, facts, None, files)?;
        Self::of_stages(common, stages)
    }

    /// Whether clients are asked for evaluations on a network: only where the job says so.
    pub fn evaluates(&self) -> bool {
        self.common.job.method.evaluate_every.is_some()
    }

    /// The first memory of every client, where a file gives it.
    pub(crate) fn memory(&self) -> Option<&[f64]> {
        self.stages.memory()
    }

    /// The family's plan.
    pub(crate) fn stages(&self) -> &dyn crate::family::StagePlan {
        &*self.stages
    }

    /// The most that a client answers, stage by stage.
    pub fn agreements(&self, consent: &Consent) -> Result<Vec<Agreement>> {
        let consent = Consent { evaluates: consent.evaluates && self.evaluates(), ..*consent };
        let mut delivered = Vec::new();
        let mut all = Vec::new();
        for index in 0..self.len() {
            all.push(Agreement::of(&self.build(index, &delivered)?, &consent)?);
            delivered.push(self.stages.stand_in(&self.common, index));
        }
        Ok(all)
    }

    /// Everything that leaves a client, stage by stage. Stages that wait for what earlier ones
    /// deliver are built on stand-ins of the same sizes.
    pub fn disclosures(&self) -> Result<Vec<StageDisclosures>> {
        let mut delivered = Vec::new();
        let mut all = Vec::new();
        for index in 0..self.len() {
            let stage = self.build(index, &delivered)?;
            let mut disclosures = stage.method.declare().disclosures;
            if stage.evaluate_every.is_none() || !self.evaluates() {
                disclosures.retain(|d| d.message != "answer");
            }
            all.push(StageDisclosures { stage: stage.name, disclosures });
            delivered.push(self.stages.stand_in(&self.common, index));
        }
        Ok(all)
    }
}

/// Refuses what only a simulation can do.
fn check_servable(job: &Job) -> Result<()> {
    let refuse = |what: &str, hint: &str| Err(Error::config(what).hint(hint).into());
    match job.data.partition() {
        None => {
            return refuse(
                "drawn rows are in no file that clients could hold",
                "set source = \"csv\" in [data]",
            );
        }
        Some(Partition::Column(_) | Partition::Pooled) => {}
        Some(_) => {
            return refuse(
                "[data.split] makes clients up, and on a network they are real",
                "take [data.split] out",
            );
        }
    }
    if job.data.unseen > 0.0 {
        return refuse(
            "on a network every client trains, and `unseen` sets some apart that do not",
            "take `unseen` out; who only uses the model needs no invitation (`predict`, `adapt`)",
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
    let stop = &job.method.stop;
    let stops = limit(stop, &FIELD_NORM2).is_some() || stop.patience.is_some();
    if stops && job.method.evaluate_every.is_none() {
        return refuse(
            "`stop` looks at evaluations, and on a network clients answer them only where the job \
             says so",
            "set evaluate = { every = .. } in [method], or take `stop` out",
        );
    }
    Ok(())
}
