//! The schema of a client's file.

use crate::failure::Result;
use crate::job::{DataSource, Job, Partition};
use crate::load::mixed::leveled;
use crate::load::{Layout, cell_options, number_declared, of_client};
use crate::plan::{Facts, not_on_network};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use whimbrel_core::{Cells, ClientData, Error};
use whimbrel_data::{
    Attribute, CellOptions, ColumnType, CsvOptions, Dataset, Declared, Described, Entries,
    Features, Input, MixedColumn, Parts, by_column, read_npy, samples,
};

/// Most columns of a file, and most rows of a table with gaps.
const COLUMNS_MAX: usize = 1 << 20;

/// Columns and their types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    pub source: SourceForm,
    /// The used columns in order, or the column labels of a table with gaps.
    pub columns: Vec<String>,
    /// Row labels of a table with gaps; empty for other data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<String>,
    /// Levels of each column of a mixed table by number, empty for numbers and counts; empty for other
    /// data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Vec<String>>,
    /// Descriptions of the rows and columns of a table with gaps, if the model uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    pub target: Option<TargetForm>,
    /// The column of client names; optional in the file.
    pub client: Option<String>,
    /// An unused column of text.
    pub label: Option<String>,
    /// The column that assigns rows to training, validation and tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The delimiter; `None`: detected from the header.
    pub delimiter: Option<char>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceForm {
    /// Text with a header line.
    Csv,
    /// A NumPy array with columns `c1`, `c2` and so on.
    Npy,
}

/// The target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetForm {
    pub column: String,
    /// Classes by number; the first of two is coded as -1. Empty for numeric targets.
    pub classes: Vec<String>,
}

/// The roles of the rows of a client's file.
fn roles(data: &Dataset, role: &str) -> Result<Parts> {
    let column = data.column(role)?;
    let roles = (0..data.rows()).map(|row| data.text(row, column).unwrap_or_default());
    let parts = Parts::by_name(roles)?;
    if parts.train.is_empty() {
        return Err(Error::data("no row is for training").into());
    }
    Ok(parts)
}

impl Schema {
    /// The schema of a job's files.
    pub fn of(job: &Job, facts: &Facts) -> Result<Self> {
        let plain = |source| Self {
            source,
            columns: facts.columns.clone(),
            rows: facts.rows.clone(),
            levels: facts.levels.clone(),
            attributes: facts.attributes.clone(),
            target: None,
            client: None,
            label: None,
            role: None,
            delimiter: None,
        };
        let csv = match &job.data.source {
            DataSource::Csv(csv) => csv,
            DataSource::Npy(_) => return Ok(plain(SourceForm::Npy)),
            other => return Err(not_on_network(other)),
        };
        let classes = facts.classes.clone();
        Ok(Self {
            target: csv.target.clone().map(|column| TargetForm { column, classes }),
            client: match &csv.partition {
                Partition::Column(column) => Some(column.clone()),
                _ => None,
            },
            label: csv.label.clone(),
            role: job.data.held_out.role.clone(),
            delimiter: csv.delimiter,
            ..plain(SourceForm::Csv)
        })
    }

    /// The classes of the target; empty for numeric targets.
    pub fn classes(&self) -> &[String] {
        self.target.as_ref().map_or(&[], |target| &target.classes)
    }

    pub(super) fn check(&self) -> Result<()> {
        let distinct = are_distinct(&self.columns) && are_distinct(&self.rows);
        let classes = self.classes().len() != 1 && are_distinct(self.classes());
        let delimiter = self.delimiter.is_none_or(|c| c.is_ascii());
        let levels = (self.levels.is_empty() || self.levels.len() == self.columns.len())
            && self.levels.iter().all(|levels| levels.len() != 1 && are_distinct(levels));
        let columns = (1..=COLUMNS_MAX).contains(&self.columns.len());
        if !distinct
            || !classes
            || !levels
            || !delimiter
            || !columns
            || self.rows.len() > COLUMNS_MAX
        {
            return Err(Error::peer("the offer's schema is invalid").into());
        }
        Ok(())
    }

    /// Reads a client's file.
    pub(super) fn read(
        &self,
        rows: &Input,
        client_name: &str,
        job: &Job,
        layout: &Layout,
    ) -> Result<ClientData> {
        if let Layout::Mixed { types, .. } = layout {
            return self.read_mixed(rows, client_name, job, types);
        }
        let types = job.column_types();
        let data = match (self.source, rows.file()) {
            (SourceForm::Npy, Some(file)) => Arc::new(read_npy(file)?),
            _ => rows.read(&self.csv_options(job, leveled(&types)))?,
        };
        self.check_client(&data, client_name)?;
        self.check_cells(&data, job)?;
        let features = Features::Listed(&self.columns);
        let Some(target) = &self.target else {
            let table = data.table(&data.features(&features)?)?;
            return self.held_out(&data, ClientData::Table(table));
        };
        let mut rows = data.labelled(&target.column, &features)?;
        if !target.classes.is_empty() {
            number_declared(&mut rows, &data, &target.column, &target.classes, layout)?;
        } else if !data.class_names(&target.column)?.is_empty() {
            let what = format!("column {:?} holds text, not numbers", target.column);
            return Err(Error::data(what).into());
        }
        let rows = match layout {
            Layout::Samples { classes } => {
                ClientData::Samples(samples(&rows, classes.then_some(target.classes.len()))?)
            }
            _ => ClientData::Labelled(rows),
        };
        self.held_out(&data, rows)
    }

    /// The options of a csv file, with `more` columns of text.
    fn csv_options<'a>(
        &'a self,
        job: &Job,
        more: impl IntoIterator<Item = &'a String>,
    ) -> CsvOptions {
        let text = self.client.iter().chain(&self.label).chain(&self.role).chain(more);
        let text: Vec<String> = text.cloned().collect();
        let target = self.target.iter().map(|target| &target.column);
        let only = Some(self.columns.iter().chain(target).chain(&text).cloned().collect());
        let delimiter = self.delimiter.map(|c| c as u8);
        CsvOptions { delimiter, text, only, spelling: job.data.spelling() }
    }

    /// Holds out rows by the column of roles.
    fn held_out(&self, data: &Dataset, rows: ClientData) -> Result<ClientData> {
        match &self.role {
            Some(role) => Ok(roles(data, role)?.apply(&rows)?),
            None => Ok(rows),
        }
    }

    fn read_mixed(
        &self,
        rows: &Input,
        client_name: &str,
        job: &Job,
        types: &[(String, ColumnType)],
    ) -> Result<ClientData> {
        let column = |(name, levels): (&String, &Vec<String>)| {
            let kind = types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind);
            MixedColumn::of(name, kind.unwrap_or(&ColumnType::Number), levels.clone())
        };
        let columns: Vec<MixedColumn> = self.columns.iter().zip(&self.levels).map(column).collect();
        let leveled = columns.iter().filter(|column| !column.levels.is_empty());
        let data = rows.read(&self.csv_options(job, leveled.map(|column| &column.name)))?;
        self.check_client(&data, client_name)?;
        self.check_cells(&data, job)?;
        self.held_out(&data, ClientData::Table(data.mixed_table(&columns)?))
    }

    /// Reads a client's cells of a table with gaps.
    pub(super) fn read_cells(
        &self,
        rows: &Input,
        client_name: &str,
        job: &Job,
        entries: Entries,
        described: Described,
    ) -> Result<Cells> {
        let data = &job.data;
        let DataSource::Csv(csv) = &data.source else {
            return Err(Error::peer("the offered table is not a csv file").into());
        };
        let mut options = CellOptions {
            row_labels: Some(self.rows.clone()),
            column_labels: Some(self.columns.clone()),
            ..cell_options(csv, entries, described)?
        };
        if let Some(column) = options.client.take() {
            let (delimiter, text) = (options.delimiter, vec![column.clone()]);
            let only = Some(text.clone());
            let spelling = csv.spelling();
            let lines = rows.read(&CsvOptions { delimiter, text, only, spelling })?;
            self.check_client(&lines, client_name)?;
            options.client = lines.columns().iter().any(|c| c.name == column).then_some(column);
        }
        of_client(rows, &options, csv.cells.holdout, data.seed, client_name)
    }

    /// Refuses cells of used columns that the job's schema excludes.
    fn check_cells(&self, data: &Dataset, job: &Job) -> Result<()> {
        let target = self.target.as_ref().map(|target| &target.column);
        let is_used =
            |one: &&Declared| self.columns.contains(&one.name) || target == Some(&one.name);
        let used: Vec<Declared> = job.schema.iter().filter(is_used).cloned().collect();
        Ok(data.check_declared(&used, job.clips())?)
    }

    /// Refuses rows of other clients.
    fn check_client(&self, data: &Dataset, client_name: &str) -> Result<()> {
        let named = |column: &&String| data.columns().iter().any(|known| known.name == **column);
        let Some(column) = self.client.as_ref().filter(named) else { return Ok(()) };
        let other = by_column(data, column)?.into_iter().find(|c| c.name != client_name);
        match other {
            None => Ok(()),
            Some(other) => {
                let what = format!(
                    "{}: row {} has {:?} in column {column:?}, but this client is {client_name:?}",
                    data.name(),
                    other.rows.first().map_or(0, |row| row + 1),
                    other.name
                );
                Err(Error::data(what).into())
            }
        }
    }
}

fn are_distinct(names: &[String]) -> bool {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}
