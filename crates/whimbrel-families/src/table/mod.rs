//! Tables with gaps by low rank: `fedmiss`.

pub mod completed;
pub mod keys;

mod adapt;
mod exhibits;
mod impute;
pub mod observed;
mod plan;
mod results;
pub mod sheet;
mod terms;
mod totals;

use crate::failure::{Result, remedy};
use crate::family::{
    AdaptOptions, Adapted, Family, Fit, FitUse, FittedClient, ImputeOptions, Imputed, MethodKind,
    ModelKind, ModelUse, Predicted, Tables, refuse,
};
use crate::job::channel::UpRule;
use crate::job::method::length::{BATCH, EPOCHS, ROUNDS};
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, EXCESS_LOSS, STOP, limit};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX};
use crate::job::participation::PARTICIPATION;
use crate::job::{Job, Step, codec};
use crate::load::Layout;
use crate::plan::{Basis, Planned};
use crate::template::{DataFacts, Suggestion, TableFacts};
use keys::{
    COPIES, COPIES_WORDS, EFFECTS, EXACT, FAMILIES, FAMILY as ENTRIES, LAMBDA, LOW_RANK,
    LowRankKeys, RANK, STARTS,
};
use std::io::Write;
use std::path::Path;
use whimbrel_data::{Entries, Input};
use whimbrel_job::form::{BOOLEAN, COUNT_U32};
use whimbrel_job::key::JobKey;
use whimbrel_job::keys;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::{Writer, list, text};
use whimbrel_methods::fedmiss::Copies;
use whimbrel_methods::settings::Weights;
use whimbrel_models::lowrank;

pub static FAMILY: Family =
    Family { name: "table", models: &MODELS, methods: &METHODS, read, suggest };

static MODELS: [ModelKind; 1] = [ModelKind::new(
    "low-rank",
    "a table of low rank with gaps, to be filled in",
    LOW_RANK.section.keys,
)];
static KEYS: &[&JobKey] = keys! {
    &[&CHANNELS, &ROUNDS, &EPOCHS, &BATCH, &STEP, &COPIES, &STARTS, &EXACT, &PARTICIPATION, &EVALUATE, &STOP],
    &[&ALLOW_DIVERGENCE, &MEMORY_MAX],
};
static METHODS: [MethodKind; 1] = [MethodKind {
    up_rule: UpRule::Memory { alpha: None },
    weights: Weights::Equal,
    ..MethodKind::new(
        "fedmiss",
        "FedMissEM: a low-rank table from what each client observed of it",
        KEYS,
    )
}];

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let table = LOW_RANK.read(tables.model);
    let copies = tables.method.read_as(&COPIES, &COPIES_WORDS);
    let starts = tables.method.read_as(&STARTS, &COUNT_U32);
    let exact = tables.method.read_as(&EXACT, &BOOLEAN);
    let fit = TableFit { table: table?, copies: copies?, starts: starts?, exact: exact? };
    Ok(Box::new(fit))
}

fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    let table = facts?.table.as_ref()?;
    let codec = "{ kind = \"dithering\", levels = 8, bucket = 64 }";
    Some(Suggestion {
        model: "low-rank",
        model_keys: vec![
            (&ENTRIES, FAMILIES.write(&family_of(table.entries))),
            (&RANK, "\"auto\"".into()),
            (&LAMBDA, "\"auto\"".into()),
            (&EFFECTS, effects_of(table)),
        ],
        method: "fedmiss",
        method_keys: vec![
            (&EPOCHS, "100".into()),
            (&BATCH, "\"full\"".into()),
            (&STEP, "\"auto\"".into()),
        ],
        uplink_keys: vec![(&codec::CODEC, codec.into())],
        ..Suggestion::default()
    })
}

/// Effects of a row and of each column that labels the table's columns, such as year and month.
fn effects_of(table: &TableFacts) -> String {
    match &table.column[..] {
        [] | [_] => "\"row+column\"".into(),
        several => list([&table.row].into_iter().chain(several).map(|name| text(name))),
    }
}

/// A low-rank table and the settings of EM.
#[derive(Clone, Debug, PartialEq)]
pub struct TableFit {
    pub table: LowRankKeys,
    /// Number of completed-data copies.
    pub copies: Copies,
    /// Random starts of a fit with given rank and lambda.
    pub starts: u32,
    /// Whether to compute exactly the paper's iterates.
    pub exact: bool,
}

impl TableFit {
    /// The values of the family.
    pub(crate) fn entries(&self) -> Entries {
        match self.table.family {
            lowrank::Family::Gaussian => Entries::Numbers,
            lowrank::Family::Poisson => Entries::Counts,
            lowrank::Family::Bernoulli => Entries::Binary,
        }
    }

    fn family_name(&self) -> &'static str {
        FAMILIES.name(&self.table.family)
    }
}

/// The narrowest family of such values.
fn family_of(entries: Entries) -> lowrank::Family {
    match entries {
        Entries::Numbers => lowrank::Family::Gaussian,
        Entries::Counts => lowrank::Family::Poisson,
        Entries::Binary => lowrank::Family::Bernoulli,
    }
}

impl Fit for TableFit {
    fn describe(&self) -> String {
        self.table.describe()
    }

    fn write_model(&self, out: &mut Writer) {
        self.table.write(out);
    }

    fn write_method(&self, out: &mut Writer) {
        out.put(&COPIES, COPIES_WORDS.write(&self.copies));
        out.put(&STARTS, COUNT_U32.write(&self.starts));
        out.put(&EXACT, BOOLEAN.write(&self.exact));
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let grid = "a grid is for sums, and most cells of a table have one observer";
        job.uplink.refuse_grid(source, grid);
        let hint = "write step = \"auto\", or give a number";
        if !matches!(job.method.step, Step::Auto | Step::Constant(_) | Step::Decreasing { .. }) {
            let what = "fedmiss has one step, without a smoothness constant or a theorem";
            source.report_at(&["method", "step"], what, hint);
        }
        let chosen = self.table.rank.is_none() || self.table.lambda.is_none();
        if self.starts > 1 && chosen {
            source.report_at(
                &["method", "starts"],
                "`starts` needs a given rank and lambda; a chosen model is fitted from four starts",
                "take it out, or give `rank` and `lambda` as numbers",
            );
        }
        if self.exact && self.copies == Copies::Fewest {
            source.report_at(
                &["method", "copies"],
                "the paper's iterates need one copy per client",
                "take `copies` out, or `exact`",
            );
        }
        if limit(&job.method.stop, &EXCESS_LOSS).is_some() {
            source.report_at(
                &["method", "stop", "excess_loss"],
                "fedmiss has no `excess_loss`: its minimum is unknown",
                "take `excess_loss` out",
            );
        }
    }

    fn layout(&self) -> Layout {
        Layout::Cells { entries: self.entries(), described: terms::described(&self.table) }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        plan::planned(self, on)
    }
}

impl FitUse for TableFit {
    fn predict(&self, _: &ModelUse<'_>, _: &Input) -> Result<Predicted> {
        refuse(
            "a low-rank table is completed, not predicted row by row",
            format!("{}, or {}", remedy::COMPLETE, remedy::ADD_ROWS),
        )
    }

    fn impute(
        &self,
        run: &ModelUse<'_>,
        options: &ImputeOptions<'_>,
        out: &mut dyn Write,
    ) -> Result<Imputed> {
        impute::impute(self, run, options, out)
    }

    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        rows: &Input,
        _: Option<&Path>,
    ) -> Result<FittedClient> {
        adapt::adapt_rows(self, run, rows)
    }

    fn adapt(&self, run: &ModelUse<'_>, options: &AdaptOptions<'_>) -> Result<Adapted> {
        adapt::adapt(self, run, options)
    }
}
