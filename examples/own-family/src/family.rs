//! The family: keys, stage, report and prediction.

use crate::heavy_em::{Heavy, HeavyEm};
use crate::location::Location;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use whimbrel::parts::codec::channel::{em_alpha, gradient_alpha};
use whimbrel::parts::core::Erased;
use whimbrel::parts::core::declare::{Exhibit, Rows, Section};
use whimbrel::parts::core::method::Artifact;
use whimbrel::parts::data::{Features, Input};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::Result;
use whimbrel::parts::families::family::{
    Ended, Family, Fit, FitReport, FitUse, MethodKind, ModelKind, ModelUse, Predicted, Predictions,
    Results, RunData, Tables,
};
use whimbrel::parts::families::job::Step;
use whimbrel::parts::families::job::channel::UpRule;
use whimbrel::parts::families::job::method::length::{EPOCHS, ROUNDS};
use whimbrel::parts::families::job::method::step::STEP;
use whimbrel::parts::families::job::method::stop::{EVALUATE, STOP};
use whimbrel::parts::families::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use whimbrel::parts::families::job::participation::PARTICIPATION;
use whimbrel::parts::families::load::{Layout, read_any};
use whimbrel::parts::families::plan::channels::{Channels, Vectors};
use whimbrel::parts::families::plan::{Basis, Built, Common, FitStages, Planned};
use whimbrel::parts::job::form::{BELOW_ONE, POSITIVE};
use whimbrel::parts::job::key::JobKey;
use whimbrel::parts::job::reader::{Read, Source};
use whimbrel::parts::job::writer::Writer;
use whimbrel::parts::methods::federated::BindRows;
use whimbrel::parts::methods::step::Schedule;
use whimbrel::parts::models::LatentModel;

static DEGREES: JobKey = POSITIVE.default(
    "degrees",
    || "4.0".into(),
    "degrees of freedom: the smaller, the less outliers count",
);
static MOMENTUM: JobKey = BELOW_ONE.default("momentum", || "0.0".into(), "heavy-ball momentum");

static MODELS: [ModelKind; 1] =
    [ModelKind::new("t-location", "the centre of rows with heavy tails", &[&DEGREES])];
static METHODS: [MethodKind; 1] = [MethodKind {
    up_rule: UpRule::Memory { alpha: None },
    ..MethodKind::new(
        "heavy-em",
        "EM with heavy-ball momentum on the mean field",
        whimbrel::parts::job::keys! {
            &[&CHANNELS, &ROUNDS, &EPOCHS, &STEP, &MOMENTUM, &PARTICIPATION, &WEIGHTS],
            &[&EVALUATE, &STOP, &ALLOW_DIVERGENCE, &MEMORY_MAX],
        },
    )
}];

/// Locations of heavy-tailed rows.
pub static LOCATION: Family =
    Family { name: "location", models: &MODELS, methods: &METHODS, read, suggest: |_| None };

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let degrees = tables.model.read_as(&DEGREES, &POSITIVE);
    let momentum = tables.method.read_as(&MOMENTUM, &BELOW_ONE);
    Ok(Box::new(LocationFit { degrees: degrees?, momentum: momentum? }))
}

/// The family's keys of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct LocationFit {
    degrees: f64,
    momentum: f64,
}

impl Fit for LocationFit {
    fn describe(&self) -> String {
        format!("t-location, {} degrees of freedom", self.degrees)
    }

    fn write_model(&self, out: &mut Writer) {
        out.put(&DEGREES, POSITIVE.write(&self.degrees));
    }

    fn write_method(&self, out: &mut Writer) {
        out.put(&MOMENTUM, BELOW_ONE.write(&self.momentum));
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        if !matches!(job.method.step, Step::Auto | Step::Constant(_) | Step::Decreasing { .. }) {
            let what = "heavy-em takes a number, a schedule or \"auto\"";
            source.report_at(&["method", "step"], what, "write step = 0.5");
        }
    }

    fn layout(&self) -> Layout {
        Layout::Rows
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        let Basis { common, facts, .. } = *on;
        let model = Location { degrees: self.degrees, columns: facts.columns.len() };
        let blocks = &[model.statistic_len()];
        let vectors = Vectors::new((blocks, em_alpha), (blocks, gradient_alpha));
        let channels = Channels::new(common, &vectors)?;
        let rounds = common.rounds(&common.work(), channels.opening());
        let plan =
            LocationPlan { model, momentum: self.momentum, channels: channels.clone(), rounds };
        Ok(Planned { rounds, ..Planned::new(common, &channels, plan) })
    }
}

impl FitReport for LocationFit {
    fn model_keys(&self, _: &RunData, _: &Artifact) -> Map<String, Value> {
        Map::from_iter([("degrees".into(), json!(self.degrees))])
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let Some(mu) = ended.outcome.delivered.last().and_then(|model| model.tensor("location"))
        else {
            return Ok(Results::default());
        };
        let row = |(name, m): (&String, &f64)| vec![name.clone(), format!("{m:.4}")];
        let table = Rows {
            heads: vec!["column".into(), "centre".into()],
            rows: ended.data.facts.columns.iter().zip(&mu.values).map(row).collect(),
            ..Rows::default()
        };
        let section = Section { title: "Location".into(), exhibits: vec![Exhibit::Table(table)] };
        Ok(Results { sections: vec![section], ..Results::default() })
    }
}

impl FitUse for LocationFit {
    /// The distance of each row from the centre.
    fn predict(&self, run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
        let centre = run.numbers("location")?;
        let columns = run.columns()?;
        let data = read_any(file, &run.csv_options())?;
        let table = data.table(&data.features(&Features::Listed(&columns))?)?;
        let distance = |i: usize| {
            let squares = table.row(i).iter().zip(&centre).map(|(y, m)| (y - m) * (y - m));
            squares.sum::<f64>().sqrt()
        };
        let distances = Predictions::Wide((0..table.rows()).map(distance).collect());
        let words = "distances from the centre".into();
        Ok(Predicted { columns: vec![("distance".into(), distances)], figures: Vec::new(), words })
    }
}

struct LocationPlan {
    model: Location,
    momentum: f64,
    channels: Channels,
    rounds: Option<u32>,
}

impl FitStages for LocationPlan {
    fn build(&self, common: &Common, _: usize, _: &[Artifact]) -> Built {
        let schedule = match common.job.method.step {
            Step::Constant(gamma) => Schedule::constant(gamma)?,
            Step::Decreasing { initial, power, delay } => {
                Schedule::decreasing(initial, power, delay)?
            }
            _ => Schedule::constant(0.5)?,
        };
        let oracle = Heavy { model: self.model.clone(), momentum: self.momentum, schedule };
        let method = HeavyEm { oracle, terms: self.channels.terms(common) };
        Ok(common.fit(Arc::new(Erased(method, BindRows)), self.rounds))
    }
}
