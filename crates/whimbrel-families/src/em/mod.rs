//! Mixtures by EM: `em`, `dem`, `fedem`, `vr-fedem`.

pub mod keys;
pub mod mixed;
pub mod mixture;
pub mod start;

mod exhibits;
mod gmm;
mod outer_loops;
mod plan;
mod predict;
pub(crate) mod prepare;
mod tables;

use crate::failure::Result;
use crate::family::{
    Ended, Family, Fit, FitReport, KeepsGroups, MethodKind, ModelKind, Results, RunData, Tables,
    refuse,
};
use crate::files::figure;
use crate::job::channel::{Auto, Memories};
use crate::job::method::length::{BATCH, BY_MINIBATCHES};
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, EXCESS_LOSS, STOP, limit};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use crate::job::participation::{PARTICIPATION, Participation};
use crate::job::{Batch, DataSource, DownRule, Job, PrivacyUnit, Step, UpRule, codec};
use crate::load::Layout;
use crate::plan::{Basis, Planned, THEORY};
use crate::template::{DataFacts, Suggestion};
use keys::{ALLOW_DEGENERATE, EM_KEYS, EmKeys, FORM, GMM, GMM_KEYS, GmmKeys, INNER, Init};
use mixed::MixedKeys;
use mixture::MixtureKeys;
use plan::EmPlan;
use serde_json::{Map, Value};
use std::path::PathBuf;
use whimbrel_codec::grid::OPENING_MEAN_MAX;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_engine::metrics::number;
use whimbrel_job::key::JobKey;
use whimbrel_job::keys;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::{self, Writer};
use whimbrel_methods::choice::Choice;
use whimbrel_methods::fedem::{Form, FrameKind};
use whimbrel_models::MixtureModel;

pub static FAMILY: Family =
    Family { name: "em", models: &MODELS, methods: &METHODS, read, suggest };

static ALONE: &[&JobKey] = keys! { BY_MINIBATCHES, &[&STEP, &EVALUATE, &STOP, &ALLOW_DEGENERATE] };
const SHARED: &[&JobKey] = keys! {
    &[&PARTICIPATION, &WEIGHTS, &FORM, &EVALUATE, &STOP, &ALLOW_DIVERGENCE, &ALLOW_DEGENERATE],
    &[&MEMORY_MAX],
};
static FEDERATED: &[&JobKey] = keys! { &[&CHANNELS], BY_MINIBATCHES, &[&STEP], SHARED };
static REDUCED: &[&JobKey] = keys! { &[&CHANNELS], BY_MINIBATCHES, &[&INNER, &STEP], SHARED };

/// Rows per column from which a draft has one full covariance.
const TIED_ROWS: usize = 10;
/// `reg_covar` of drafts, as in scikit-learn: columns that depend on each other linearly, or hold one value
/// often, have no bounded likelihood without it.
const REG_COVAR: f64 = 1e-6;
/// The same where one value fills a large share of a column.
const REG_COVAR_OF_SPIKES: f64 = 0.01;
/// Starts in drafts: of 23 simulated mixtures one start ended more than 0.1 nats per row above the best
/// known fit four times, five starts once.
const STARTS_OF_DRAFTS: &str = "5";

const MIXTURE: &str = "mixture";
static MODELS: [ModelKind; 2] = [
    ModelKind::new("gmm", "a Gaussian mixture", &GMM_KEYS),
    ModelKind::new(
        MIXTURE,
        "a mixture over columns of numbers, counts, yes or no, and categories, with gaps",
        &mixed::KEYS,
    ),
];
static METHODS: [MethodKind; 4] = [
    MethodKind {
        pooled: true,
        ..method("em", "pooled EM: one client holds everything", ALONE, UpRule::Plain)
    },
    method("dem", "distributed EM without memories, the naive method", FEDERATED, UpRule::Plain),
    MethodKind {
        auto_levels: true,
        private: &[PrivacyUnit::Row, PrivacyUnit::Client],
        ..method(
            "fedem",
            "FedEM: compressed differences to memories, partial participation",
            FEDERATED,
            UpRule::Memory { alpha: None },
        )
    },
    MethodKind {
        auto_batch: true,
        auto_levels: true,
        ..method(
            "vr-fedem",
            "FedEM with variance reduction: minibatches correct a full pass that each client makes now \
             and then",
            REDUCED,
            UpRule::Memory { alpha: None },
        )
    },
];

const EM: &str = "em";
const DEM: &str = "dem";
const VR_FEDEM: &str = "vr-fedem";

const fn method(
    name: &'static str,
    doc: &'static str,
    keys: &'static [&'static JobKey],
    up_rule: UpRule<Auto>,
) -> MethodKind {
    MethodKind { converges: true, up_rule, ..MethodKind::new(name, doc, keys) }
}

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    match tables.model_kind {
        MIXTURE => read_fit(tables, MixedKeys::read(tables.model)),
        _ => read_fit(tables, GMM.read(tables.model)),
    }
}

fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    let codec = "{ kind = \"dithering\", levels = \"auto\", bucket = 64 }";
    let mixed = facts.and_then(|facts| facts.types.as_ref());
    let init = (&keys::INIT, "\"federated-kmeans\"".into());
    let is_wide = |facts: &DataFacts| facts.rows < TIED_ROWS * facts.columns.len();
    let covariance = if facts.is_some_and(is_wide) { "\"diagonal\"" } else { "\"tied\"" };
    // A component on one value has no variance but this.
    let is_spiked =
        facts.is_some_and(|facts| facts.has_spikes && (mixed.is_some() || is_wide(facts)));
    let reg = if is_spiked { REG_COVAR_OF_SPIKES } else { REG_COVAR };
    let reg = (&keys::REG_COVAR, writer::number(reg));
    let numeric = (&mixed::NUMERIC, "\"diagonal\"".into());
    let components = (&keys::COMPONENTS, "2".into());
    let starts = (&keys::STARTS, STARTS_OF_DRAFTS.into());
    Some(Suggestion {
        model: if mixed.is_some() { MIXTURE } else { "gmm" },
        model_keys: match mixed {
            Some(_) => vec![components, starts, numeric, reg, init],
            None if facts.is_some() => {
                let covariance = (&keys::COVARIANCE, covariance.into());
                vec![components, starts, covariance, reg, init]
            }
            None => vec![components, (&keys::COVARIANCE, covariance.into()), init],
        },
        method: "fedem",
        method_keys: vec![
            (&BATCH, "\"full\"".into()),
            (&STEP, "\"auto\"".into()),
            (&PARTICIPATION, "1.0".into()),
        ],
        uplink_keys: vec![(&codec::CODEC, codec.into())],
        ..Suggestion::default()
    })
}

/// Reads the keys common to all kinds of mixtures.
fn read_fit<K: MixtureKeys>(tables: &Tables<'_>, mixture: Read<K>) -> Read<Box<dyn Fit>> {
    let keys = EM_KEYS.read(tables.method);
    let method = tables.method_kind.algorithm;
    Ok(Box::new(EmFit { method, mixture: mixture?, keys: keys? }))
}

/// A mixture and the settings of EM.
#[derive(Clone, Debug, PartialEq)]
pub struct EmFit<K: MixtureKeys = GmmKeys> {
    pub method: &'static str,
    /// The mixture and its start.
    pub mixture: K,
    /// Settings of EM; the form is `None` for pooled EM and until the downlink is known.
    pub keys: EmKeys,
}

impl<K: MixtureKeys> EmFit<K> {
    /// Whether one client holds all rows.
    pub(crate) fn is_pooled(&self) -> bool {
        self.method == EM
    }

    /// Whether the method is `vr-fedem`.
    pub(crate) fn reduces_variance(&self) -> bool {
        self.method == VR_FEDEM
    }
}

impl<K: MixtureKeys> Fit for EmFit<K> {
    fn describe(&self) -> String {
        let (title, (_, assumed)) = (self.mixture.title(), self.mixture.words());
        let components = match self.mixture.candidates().components {
            [1] => "1 component".into(),
            [one] => format!("{one} components"),
            [first, .., last] => format!("{first} to {last} components"),
            [] => String::new(),
        };
        format!("{title}, {components}, {assumed} covariance")
    }

    fn write_model(&self, out: &mut Writer) {
        self.mixture.write(out);
    }

    fn write_method(&self, out: &mut Writer) {
        EM_KEYS.write(&self.keys, out);
    }

    /// Sets the default form and frame. Form: `pair`, the paper's, over an exact downlink; `lean` over a
    /// preserved one, since a noisy statistic may leave its domain; `state` over others. Frame: raw coordinates for `dem`, for `step = "theory"` and for memories that the
    /// server does not know.
    fn resolve(&mut self, job: &mut Job, source: &Source<'_>) {
        self.mixture.take_types(job.column_types());
        if self.is_pooled() {
            job.uplink.refuse_frame(source);
            return;
        }
        let form = match job.downlink.rule {
            _ if job.downlink.is_exact() => Form::Pair,
            DownRule::Preserved { .. } => Form::Lean,
            _ => Form::State,
        };
        self.keys.form.get_or_insert(form);
        let raw = self.method == DEM && !job.uplink.is_on_grid()
            || job.method.step == Step::Theory
            || has_single_memories(job);
        let frame = if raw { FrameKind::Raw } else { FrameKind::Fisher };
        job.uplink.frame.get_or_insert(frame);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        self.check_step(job, source);
        self.check_frame(job, source);
        self.check_memories(job, source);
        self.mixture.check(job, source);
        self.check_stream(job, source);
        self.check_downlink(job, source);
        self.check_private(job, source);
        self.check_masks(job, source);
        check_squares(job, source);
    }

    fn allows_degenerate(&self) -> bool {
        self.keys.allow_degenerate
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        self.mixture.init_path().into_iter().collect()
    }

    fn layout(&self) -> Layout {
        self.mixture.layout()
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        EmPlan::new(self, on)?.planned(on.common)
    }

    fn takes_surrogates(&self) -> bool {
        K::SURROGATES
    }

    fn keeps_groups(&self, job: &Job) -> KeepsGroups {
        if matches!(&job.data.source, DataSource::Mixture(mixture) if mixture.stream) {
            return Err("a stream has new rows in each round, and so no lasting groups of rows");
        }
        if K::SURROGATES {
            return Ok(());
        }
        if self.reduces_variance() {
            return Err("vr-fedem sends changes of statistics, which can rest on a single row");
        }
        if job.method.step == Step::Theory {
            return Err("the constants of step = \"theory\" are maxima over single rows");
        }
        if *self.mixture.candidates().init == Init::Examples {
            return Err("init = \"examples\" sends rows of the clients");
        }
        let components = self.mixture.candidates().components.iter().max();
        job.privacy.keeps_in_batches(&job.method.batch, components.copied().unwrap_or(1))
    }

    fn check_served(&self, _: &Job) -> Result<()> {
        if self.is_pooled() {
            return refuse("em pools all rows in one place", "use kind = \"fedem\" in [method]");
        }
        if *self.mixture.candidates().init == Init::Examples {
            return refuse(
                "init = \"examples\" sends rows of the clients to the server",
                "use init = \"federated-kmeans\" or \"moments\" in [model]",
            );
        }
        Ok(())
    }
}

/// Refuses limits in `[schema]` whose squares do not fit the first upload on a grid.
fn check_squares(job: &Job, source: &Source<'_>) {
    let prepare = job.data.preparation();
    let scaled = prepare.limits || prepare.standardize || prepare.pca.is_some();
    if !job.uplink.is_on_grid() || scaled || job.privacy.epsilon.is_some() {
        return;
    }
    let most = |[min, max]: [f64; 2]| (min * min).max(max * max);
    for (name, limits) in job.limits().filter(|(_, limits)| most(*limits) > OPENING_MEAN_MAX) {
        let what = format!(
            "squares of column {name:?} may be {:.1e}, and the first upload on a grid holds {OPENING_MEAN_MAX:.1e}",
            most(limits)
        );
        let hint =
            "write standardize = true in [data], or declare narrower limits in a larger unit";
        source.report_at(&["schema", name], what, hint);
    }
}

impl<K: MixtureKeys> FitReport for EmFit<K> {
    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        self.mixture.model_keys(data)
    }

    fn chosen(&self, delivered: &[Artifact]) -> Map<String, Value> {
        let choice = Choice::of(delivered);
        let Some(chosen) = choice.as_ref().and_then(|choice| choice.chosen().ok()) else {
            return Map::new();
        };
        let mut keys = Map::new();
        keys.insert("components".into(), chosen.components.into());
        keys.insert("start".into(), chosen.start.into());
        if chosen.compared {
            keys.insert("bic".into(), number(chosen.bic));
            keys.extend(choice.as_ref().map(|all| ("choice".into(), tables::compared(all))));
        }
        keys
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let model = ended.outcome.delivered.last();
        let choice = Choice::of(&ended.outcome.delivered);
        let mut diagnostics: Vec<Section> = choice.iter().map(tables::of_choice).collect();
        let mut section = model.and_then(|model| self.mixture.section(model, ended));
        let exhibits = section.as_mut().map_or_else(Vec::new, tables::take_curves);
        let order = tables::order(&exhibits);
        if !exhibits.is_empty() {
            diagnostics.push(Section { title: "Course of the weights".into(), exhibits });
        }
        let warnings = choice.as_ref().and_then(tables::edge).into_iter().collect();
        let mut summary = Map::new();
        if let Some(model) = model.filter(|_| ended.outcome.ending.is_over()) {
            let shape = self.free_parameters(model, ended);
            let weights = tables::in_order(model, &order);
            summary.extend(tables::answer(&weights, ended, shape));
            section.iter_mut().for_each(|section| tables::add_rows(section, &weights, ended));
        }
        let tiles = tables::tiles(&mut summary, choice.as_ref());
        let sections = section.into_iter().collect();
        Ok(Results { sections, diagnostics, warnings, summary, tiles, ..Results::default() })
    }

    /// Several seeds of a mixture are several starts.
    fn delivers_best_seed(&self) -> bool {
        true
    }

    fn findings(&self, delivered: &[Artifact]) -> Vec<String> {
        let theory = delivered.iter().find(|artifact| artifact.kind == THEORY).map(|found| {
            let each = found.numbers().map(|(name, x)| format!("{name} = {}", figure(x, 4)));
            let each = each.collect::<Vec<_>>().join(", ");
            format!("theory, with constants estimated near the start: {each}")
        });
        let choice = Choice::of(delivered).as_ref().and_then(tables::choice_note);
        theory.into_iter().chain(choice).collect()
    }
}

/// Whether each client's downlink memory is known to that client only.
fn has_single_memories(job: &Job) -> bool {
    let single =
        matches!(job.downlink.rule, DownRule::Preserved { memories: Memories::Single { .. }, .. });
    single && !job.downlink.is_exact()
}

impl<K: MixtureKeys> EmFit<K> {
    /// The degrees of freedom of the fitted mixture; `None` if its start is a file.
    fn free_parameters(&self, model: &Artifact, ended: &Ended<'_>) -> Option<usize> {
        let components = model.tensor("weights")?.values.len();
        let columns = match model.tensor("prepare.axes") {
            Some(_) => model.tensor("means")?.values.len() / components.max(1),
            None => ended.data.used_columns(model).len(),
        };
        let mixture = self.mixture.with_components(components).over(&ended.data.facts).ok()?;
        let (fitted, _) = mixture.model_and_start(ended.job, columns, None, None).ok()?;
        Some(fitted.free_parameters())
    }

    fn check_step(&self, job: &Job, source: &Source<'_>) {
        let report = |what: &str, hint: &str| {
            source.report_at(&["method", "step"], what, hint);
        };
        let everyone = job.method.participation == Participation::default();
        match job.method.step {
            Step::Parts { .. } => report(
                "the EM methods have one step",
                "write step = \"auto\", \"theory\" or a number",
            ),
            Step::OverL(_) | Step::OverLRoot => report(
                "the EM methods have no smoothness constant L",
                "write step = \"auto\", \"theory\" or a number",
            ),
            Step::Theory if self.method == DEM => report(
                "no theorem bounds the step of dem: with compression or partial participation it \
                 need not converge",
                "give a number, or use kind = \"fedem\"",
            ),
            Step::Theory if self.keys.form == Some(Form::Lean) => report(
                "the theorems assume memories of the field; in the lean form they are memories of \
                 the statistic, which has another Lipschitz constant",
                "give a number, or write form = \"pair\"",
            ),
            Step::Theory if self.reduces_variance() && !everyone => report(
                "the theorems about vr-fedem assume full participation",
                "give a number, write \"auto\", or take `participation` out",
            ),
            Step::Theory if !job.downlink.is_exact() => report(
                &format!(
                    "no theorem bounds the step of {} over a compressed downlink",
                    self.method
                ),
                "give a number, or send the state exactly",
            ),
            _ => {}
        }
        if limit(&job.method.stop, &EXCESS_LOSS).is_some() {
            source.report_at(
                &["method", "stop", "excess_loss"],
                "the EM methods have no `excess_loss`: their minimum is unknown",
                "take `excess_loss` out",
            );
        }
    }

    fn check_frame(&self, job: &Job, source: &Source<'_>) {
        if job.uplink.frame != Some(FrameKind::Fisher) {
            let what =
                "a grid has one step for coordinates of all scales, so it needs frame = \"fisher\"";
            return job.uplink.refuse_grid(source, what);
        }
        let what = match job.method.step {
            Step::Theory => {
                "the theorems behind step = \"theory\" assume a fixed norm, but a frame moves with \
                 the parameters"
            }
            _ if has_single_memories(job) => {
                "with memories = \"single\" the server does not know the parameters at which a client \
                 computes"
            }
            _ => return,
        };
        source.report_at(&["uplink", "frame"], what, "write frame = \"raw\"");
    }

    fn check_memories(&self, job: &Job, source: &Source<'_>) {
        let has_memory = matches!(job.uplink.rule, UpRule::Memory { .. }) || job.uplink.memory_off;
        if self.method == DEM && has_memory {
            let (place, what) = match job.method.channels {
                Some(preset) => (
                    ["method", "channels"],
                    format!("dem has no memories, but the uplink of {} has one", preset.name()),
                ),
                None => (["uplink", "rule"], "dem has no memories".into()),
            };
            source.report_at(&place, what, "use kind = \"fedem\" in [method]");
        }
    }

    fn check_stream(&self, job: &Job, source: &Source<'_>) {
        if !matches!(&job.data.source, DataSource::Mixture(mixture) if mixture.stream) {
            return;
        }
        let hint = "write stream = false, or use kind = \"fedem\" in [method]";
        if self.reduces_variance() {
            source.report_at(
                &["data", "stream"],
                "vr-fedem starts each outer loop with a pass over all rows, but a stream is infinite",
                hint,
            );
        } else if self.is_pooled() {
            source.report_at(
                &["data", "stream"],
                "em pools the rows of all clients, but a stream is infinite",
                hint,
            );
        } else if job.method.batch == Batch::Full {
            source.report_at(
                &["method", "batch"],
                "a stream has no full batch",
                "give `batch` as a number of rows",
            );
        }
    }

    /// Refuses starts that are made from the rows or the uploads of single clients.
    fn check_masks(&self, job: &Job, source: &Source<'_>) {
        let init = self.mixture.candidates().init;
        if !job.privacy.is_masked() {
            return;
        }
        if *init == Init::Examples {
            let what = "this start needs rows of each client";
            let hint = "write init = \"federated-kmeans\" or \"moments\", or give a file";
            source.report_at(&["model", "init"], what, hint);
        }
        if self.keys.form == Some(Form::State) {
            let what =
                "this form sends moments to single clients, and masks need one message to all";
            source.report_at(&["method", "form"], what, "take `form` out");
        }
        if self.mixture.candidates().are_several() {
            let what = "the choice among several fits is not masked";
            let hint = "give one number of components, and starts = 1";
            source.report_at(&["model", "components"], what, hint);
        }
    }

    /// Settings of a mixture that differential privacy forbids.
    fn check_private(&self, job: &Job, source: &Source<'_>) {
        if job.privacy.epsilon.is_none() {
            return;
        }
        let (kind, assumed) = self.mixture.words();
        let candidates = self.mixture.candidates();
        let by_clients = job.privacy.unit == PrivacyUnit::Client;
        let from_rows = !matches!(candidates.init, Init::File(_));
        let refused: [(bool, &[&str], &str, &str); 6] = [
            (
                kind != "gmm",
                &["model", "kind"],
                "the norm of a row is known for Gaussian mixtures only",
                "write kind = \"gmm\"",
            ),
            (
                assumed == "tied",
                &["model", "covariance"],
                "a tied covariance needs exact second moments of all rows, which `epsilon` rules out",
                "write covariance = \"diagonal\" or \"full\"",
            ),
            (
                candidates.are_several(),
                &["model", "components"],
                "each candidate of a choice would spend the budget",
                "give one number of components, and starts = 1",
            ),
            (
                matches!(candidates.init, Init::Examples)
                    || *candidates.init == Init::Moments && source.is_given(&["model", "init"]),
                &["model", "init"],
                "this start is made from exact sums or rows of the clients",
                "take `init` out (noisy k-means), or give a file",
            ),
            (
                by_clients && from_rows,
                &["model", "init"],
                "with unit = \"client\" the start is not estimated",
                "give a file with public parameters as `init`",
            ),
            (
                self.keys.form.is_some_and(|form| form != Form::Pair),
                &["method", "form"],
                "the noise is that of the pair's frame",
                "take `form` out",
            ),
        ];
        for (_, path, what, hint) in refused.iter().filter(|(applies, ..)| *applies) {
            source.report_at(path, *what, hint);
        }
    }

    fn check_downlink(&self, job: &Job, source: &Source<'_>) {
        let degraded = matches!(job.downlink.rule, DownRule::Degraded { .. });
        let published = match self.keys.form {
            Some(Form::Pair) => "the pair (S, theta)",
            Some(Form::Lean) => "theta",
            Some(Form::State) | None => return,
        };
        if degraded && !job.downlink.is_exact() {
            source.report_at(
                &["method", "form"],
                format!(
                    "a degraded downlink replaces the server's state by the decoded message, but \
                     {published} is not that state"
                ),
                "write form = \"state\"",
            );
        }
    }
}
