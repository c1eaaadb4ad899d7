//! Mixtures over tables of numbers, counts, binary and categorical columns, with missing cells.

mod keys;
mod predict;
mod tables;

pub use keys::MixedKeys;
pub(super) use keys::{KEYS, NUMERIC};

use super::mixture::{Candidates, MixtureKeys, MixtureUse};
use super::prepare::Preparing;
use super::start::InitFile;
use crate::failure::Result;
use crate::family::{Ended, ModelUse, Predicted, RunData};
use crate::job::{DataSource, Job};
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts};
use keys::NUMERICS;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error};
use whimbrel_data::{ColumnType, Input};
use whimbrel_job::reader::Source;
use whimbrel_job::writer::Writer;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::prepare::Affine;
use whimbrel_models::mixed::{ColumnKind, Mixed, MixedSettings};

impl MixedKeys {
    /// The kind of a column with these levels.
    fn kind(&self, name: &str, levels: &[String]) -> ColumnKind {
        let kind = self.types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind);
        match (kind, levels.len()) {
            (Some(ColumnType::Count), _) => ColumnKind::Count,
            (_, 0) => ColumnKind::Number,
            (_, levels) => ColumnKind::Levels(levels),
        }
    }

    /// The kinds of columns with these names and levels.
    fn kinds(&self, columns: &[String], levels: &[Vec<String>]) -> Vec<ColumnKind> {
        let each = columns.iter().zip(levels);
        each.map(|(name, levels)| self.kind(name, levels)).collect()
    }
}

/// The observed cells of a column.
fn observed(rows: &Loaded, column: usize) -> impl Iterator<Item = f64> {
    let cells = rows.training().filter_map(move |(_, (_, data))| match data {
        ClientData::Table(table) => Some((0..table.rows()).map(move |i| table.row(i)[column])),
        _ => None,
    });
    cells.flatten().filter(|x| !x.is_nan())
}

/// Whether the observed cells of a column differ.
fn varies(rows: &Loaded, column: usize) -> bool {
    let mut observed = observed(rows, column);
    let first = observed.next();
    observed.any(|x| Some(x) != first)
}

impl MixtureKeys for MixedKeys {
    type Model = Mixed;
    const SURROGATES: bool = false;

    fn candidates(&self) -> Candidates<'_> {
        Candidates { init: &self.init, components: &self.components, starts: self.starts }
    }

    fn init_path(&mut self) -> Option<&mut PathBuf> {
        None
    }

    fn with_components(&self, components: usize) -> Self {
        let settings = MixedSettings { components, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }

    fn take_types(&mut self, types: Vec<(String, ColumnType)>) {
        self.types = types;
    }

    fn over(&self, facts: &Facts) -> Result<Self> {
        if facts.levels.len() != facts.columns.len() {
            return Err(Error::internal("the columns of a mixed table have no types").into());
        }
        let columns = self.kinds(&facts.columns, &facts.levels);
        let settings = MixedSettings { columns, ..self.settings.clone() };
        Ok(Self { settings, ..self.clone() })
    }

    fn words(&self) -> (&'static str, &'static str) {
        ("mixture", NUMERICS.name(&self.settings.numeric))
    }

    fn title(&self) -> &'static str {
        "mixture of mixed columns"
    }

    fn write(&self, out: &mut Writer) {
        self.write_keys(out);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        if !matches!(job.data.source, DataSource::Csv(_)) {
            let what = "a mixture over a mixed table reads csv files";
            source.report_at(&["data", "source"], what, "use source = \"csv\" or kind = \"gmm\"");
        }
        for place in [&["data", "prepare"][..], &["data", "standardize"]] {
            if source.bool_at(place) != Some(false) && source.is_given(place) {
                let what = "mixed tables are fitted without preparation";
                let hint = "take it out: starts and compression scale every column";
                source.report_at(place, what, hint);
            }
        }
    }

    fn layout(&self) -> Layout {
        Layout::Mixed { types: self.types.clone(), response: None }
    }

    fn preparing(&self, _: &Common, facts: &Facts, rows: Option<&Loaded>) -> Result<Preparing> {
        for (at, name) in facts.columns.iter().enumerate() {
            if rows.is_some_and(|rows| observed(rows, at).next().is_none()) {
                let what = format!("column {name:?} has no value in any training row");
                let hint = "list the others with `columns` in [data]";
                return Err(Error::data(what).hint(hint).into());
            }
        }
        let numbers = self.settings.columns.iter().enumerate();
        for (at, _) in numbers.filter(|(_, kind)| **kind == ColumnKind::Number) {
            if rows.is_some_and(|rows| !varies(rows, at)) {
                let what = format!("the numbers in column {:?} do not vary", facts.columns[at]);
                let hint = "list the others with `columns` in [data]";
                return Err(Error::data(what).hint(hint).into());
            }
        }
        Ok(Preparing::nothing(facts.columns.len()))
    }

    fn model_and_start(
        &self,
        _: &Job,
        _: usize,
        _: Option<&(PathBuf, InitFile)>,
        _: Option<&Affine>,
    ) -> whimbrel_core::Result<(Mixed, MixtureStart)> {
        Ok((Mixed::new(self.settings.clone())?, MixtureStart::Moments))
    }
}

impl MixtureUse for MixedKeys {
    fn model_keys(&self, data: &RunData) -> Map<String, Value> {
        let kinds = self.kinds(&data.facts.columns, &data.facts.levels);
        let words = kinds.iter().map(|kind| match kind {
            ColumnKind::Number => "number",
            ColumnKind::Count => "count",
            ColumnKind::Levels(_) => "levels",
        });
        Map::from_iter([
            ("numeric".into(), NUMERICS.name(&self.settings.numeric).into()),
            ("column_kinds".into(), json!(words.collect::<Vec<_>>())),
            ("column_levels".into(), json!(data.facts.levels)),
        ])
    }

    fn section(&self, model: &Artifact, ended: &Ended<'_>) -> Option<Section> {
        let facts = &ended.data.facts;
        tables::section(model, &self.kinds(&facts.columns, &facts.levels), facts, ended)
    }

    fn predict(&self, run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
        predict::predict(self, run, file)
    }
}
