//! Descriptive statistics of the clients' rows: nothing is fitted.

pub mod keys;

mod results;
mod survival;

use crate::failure::{AtKey, Failure, Result};
use crate::family::{
    Family, Fit, FitUse, KeepsGroups, MethodKind, ModelKind, ModelUse, Predicted, Tables, refuse,
};
use crate::job::{DataSource, Job, Partition};
use crate::load::{Layout, Response};
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Basis, Built, Common, Facts, FitStages, Planned};
use crate::regression::RegressionFit;
use crate::template::{DataFacts, Suggestion};
use keys::{BINS, BY, COLUMNS, DescribeFit, EVENT, GRIDS, TIME, TIMES};
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, DynMethod, Erased, Error};
use whimbrel_data::Input;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::describe::{Bins, Blocks, Survival, Tally};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::guard::Withheld;
use whimbrel_methods::masked::Masks;
use whimbrel_methods::one_shot::{Once, OneShot};
use whimbrel_methods::pooled::{ExactSums, Stage, Totals};

pub static FAMILY: Family =
    Family { name: "describe", models: &MODELS, methods: &METHODS, read, suggest };

const SUMMARY: &str = "summary";

static MODELS: [ModelKind; 1] = [ModelKind::new(
    SUMMARY,
    "descriptive statistics of the columns; nothing is fitted",
    &[&TIME, &EVENT, &BY],
)];
static METHODS: [MethodKind; 1] = [MethodKind {
    converges: true,
    ..MethodKind::new(
        "describe",
        "counts, means, deviations, quantiles, categories and survival curves, by client and pooled",
        &[&BINS, &TIMES],
    )
}];

fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    facts.filter(|facts| facts.kind.is_table() && facts.table.is_none())?;
    let (raw, on_request) = (true, true);
    Some(Suggestion { model: SUMMARY, method: "describe", raw, on_request, ..Default::default() })
}

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let columns = COLUMNS.read(tables.model);
    let grids = GRIDS.read(tables.method);
    Ok(Box::new(DescribeFit { grids: grids?, ..columns? }))
}

/// The job that describes the data of another one: its columns with the target, all rows, its clients
/// and its smallest group.
pub fn described(job: &Job, by: Option<&str>) -> Result<Job> {
    let plain = "[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"client\"\n\
                 [model]\nkind = \"summary\"\n[method]\nkind = \"describe\"\n";
    let mut found = Job::parse(plain, &format!("the description of {}", job.name))?;
    let DataSource::Csv(csv) = &job.data.source else {
        return refuse("only csv files are described", "write source = \"csv\" in [data]")
            .at("data.source");
    };
    let mut csv = csv.clone();
    (csv.cells, csv.label, csv.standardize) = (Default::default(), None, false);
    if csv.partition == Partition::Pooled && job.federation.is_none() {
        csv.partition = Partition::Iid { clients: 1 };
    }
    let mut fit = match job.fit_as::<DescribeFit>() {
        Some(fit) => fit.clone(),
        None => DescribeFit::default(),
    };
    if let Some(cox) = job.fit_as::<RegressionFit>().filter(|fit| fit.cox) {
        (fit.time, fit.event) = (csv.target.clone(), cox.keys.event.clone());
    }
    if let Some(by) = by {
        if fit.time.is_none() {
            return refuse(
                "`--by` compares survival times, and the job has none",
                "describe a job of a Cox regression",
            );
        }
        fit.by = Some(by.into());
    }
    found.name.clone_from(&job.name);
    found.schema.clone_from(&job.schema);
    found.seed = job.seed;
    found.data.source = DataSource::Csv(csv);
    (found.data.subset, found.data.seed) = (job.data.subset, job.data.seed);
    found.privacy = job.privacy;
    found.federation.clone_from(&job.federation);
    found.fit = Box::new(fit);
    // Everything is checked as if it had been written.
    Ok(Job::parse(&found.to_toml(), &format!("the description of {}", job.name))?)
}

impl Fit for DescribeFit {
    fn describe(&self) -> String {
        match &self.time {
            None => "summary of the columns".into(),
            Some(time) => format!("summary of the columns, survival by {time}"),
        }
    }

    fn write_model(&self, out: &mut Writer) {
        COLUMNS.write(self, out);
    }

    fn write_method(&self, out: &mut Writer) {
        GRIDS.write(&self.grids, out);
    }

    fn resolve(&mut self, job: &mut Job, source: &Source<'_>) {
        self.types = job.column_types();
        self.grids.ranges = job.limits().map(|(name, limits)| (name.clone(), limits)).collect();
        job.uplink.refuse_frame(source);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let report = |place: &[&str], what: &str, hint: &str| source.report_at(place, what, hint);
        if !matches!(job.data.source, DataSource::Csv(_)) {
            report(&["data", "source"], "only csv files are described", "use source = \"csv\"");
        }
        let exact =
            [(&["uplink"], job.uplink.codec.is_exact()), (&["downlink"], job.downlink.is_exact())];
        for (place, _) in exact.into_iter().filter(|(_, exact)| !exact) {
            report(place, "describe sends counts and sums, without a codec", "take it out");
        }
        for place in [&["data", "prepare"][..], &["data", "standardize"]] {
            if source.bool_at(place) != Some(false) && source.is_given(place) {
                report(place, "columns are described in their own units", "take it out");
            }
        }
        if self.time.is_none() && (self.by.is_some() || self.event.is_some()) {
            let what = "`event` and `by` describe survival times";
            report(&["model", "time"], what, "name the column of times with `time`");
        }
    }

    fn layout(&self) -> Layout {
        let columns = [&self.time, &self.event, &self.by].into_iter().flatten().cloned().collect();
        let response = Some(Response { classes: false, columns, optional: true });
        Layout::Mixed { types: self.types.clone(), response }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        let Basis { common, facts, .. } = *on;
        let stages = self.stages(facts, common)?;
        let channels = Channels::new(common, &Vectors::gradients(&[1]))?;
        Ok(Planned { rounds: Some(0), ..Planned::new(common, &channels, stages) })
    }

    fn keeps_groups(&self, _: &Job) -> KeepsGroups {
        Ok(())
    }

    fn sends_exact_sums(&self) -> bool {
        true
    }

    /// Counts are merged and columns left out instead.
    fn withhold(
        &self,
        _: &Job,
        _: &mut ClientData,
        _: (&[String], &[Vec<String>]),
    ) -> Result<Withheld> {
        Ok(Withheld::default())
    }
}

impl FitUse for DescribeFit {
    fn predict(&self, run: &ModelUse<'_>, _: &Input) -> Result<Predicted> {
        Err(run.unsupported("describes rows and predicts nothing"))
    }
}

/// The two stages.
struct DescribePlan {
    tally: Tally,
    ranges: Vec<Option<[f64; 2]>>,
    bins: usize,
    survival: Option<Survival>,
    masks: Option<Masks>,
}

impl DescribeFit {
    fn stages(&self, facts: &Facts, common: &Common) -> Result<DescribePlan> {
        let blocks = blocks(facts);
        let at = |name: &String| {
            let found = facts.columns.iter().position(|known| known == name);
            found.ok_or_else(|| Failure::config(format!("there is no column {name:?}")))
        };
        let placed = |name: &Option<String>, key, is_category: bool| -> Result<Option<usize>> {
            let Some(name) = name else { return Ok(None) };
            let column = at(name).at(key)?;
            if (blocks.levels[column] > 0) == is_category {
                return Ok(Some(column));
            }
            let holds = if is_category { "numbers" } else { "categories" };
            let hint = if is_category {
                format!("write {name} = {{ type = \"category\" }} in [schema]")
            } else {
                "times are numbers, and events 1 or 0".into()
            };
            refuse(format!("column {name:?} holds {holds}"), hint).at(key)
        };
        let mut ranges = vec![None; facts.columns.len()];
        for (name, ends) in &self.grids.ranges {
            if let Some(column) = facts.columns.iter().position(|known| known == name) {
                ranges[column] = Some(*ends);
            }
        }
        let event = placed(&self.event, "model.event", false)?;
        let by = placed(&self.by, "model.by", true)?;
        let edges = self.grids.times.clone().unwrap_or_default();
        let survival = placed(&self.time, "model.time", false)?.map(|time| Survival {
            time,
            event,
            by,
            edges,
        });
        let tally = Tally { blocks, group: common.job.privacy.groups().map_or(1, least_group) };
        let (bins, masks) = (self.grids.bins as usize, common.masks_of_all()?);
        Ok(DescribePlan { tally, ranges, bins, survival, masks })
    }
}

/// The smallest group of a description: of two merged counts that sum to 2, each would be 1.
fn least_group(group: u32) -> u64 {
    u64::from(group.max(3))
}

/// The figures of the columns.
fn blocks(facts: &Facts) -> Blocks {
    let levels = |column: usize| facts.levels.get(column).map_or(&[][..], Vec::as_slice);
    let columns = || (0..facts.columns.len()).map(levels);
    let place = |all: &[String], own: &String| all.iter().filter(|level| *level < own).count();
    let places = |all: &[String]| all.iter().map(|own| place(all, own)).collect();
    Blocks {
        levels: columns().map(<[String]>::len).collect(),
        places: columns().map(places).collect(),
    }
}

impl DescribePlan {
    /// A stage: messages of single clients, or sums over them under masks.
    fn method(&self, stage: impl OneShot + Totals) -> Arc<dyn DynMethod> {
        match self.masks {
            None => Arc::new(Erased(Once(stage), BindRows)),
            masks => ExactSums { method: Stage(stage), masks }.erased(BindRows),
        }
    }
}

impl FitStages for DescribePlan {
    fn count(&self) -> usize {
        2
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        let Some(first) = delivered.first().filter(|_| index > 0) else {
            return Ok(common.quiet("tally", self.method(self.tally.clone())));
        };
        if first.kind != Tally::KIND {
            return Err(Error::peer("figures of another stage"));
        }
        let survival = self.survival.as_ref();
        let bins = Bins::after(&self.tally, first, &self.ranges, self.bins, survival)?;
        Ok(common.quiet("bins", self.method(bins)))
    }

    fn stand_in(&self, index: usize) -> Artifact {
        match index {
            0 => Tally::stand_in(&self.tally.blocks),
            _ => Artifact::new(Bins::KIND),
        }
    }
}
