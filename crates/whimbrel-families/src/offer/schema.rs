//! The form that a client's file must have.

use crate::failure::Result;
use crate::job::{DataSource, Job, Partition};
use crate::load::{Layout, cell_options, number_declared, of_client};
use crate::plan::Facts;
use serde::{Deserialize, Serialize};
use whimbrel_core::{Cells, ClientData, Error};
use whimbrel_data::{
    Attribute, CellOptions, ColumnType, CsvOptions, Dataset, Entries, Features, Input, MixedColumn,
    Parts, by_column, read_npy, samples,
};

/// The most columns a file may be asked for, and the most rows of a table with gaps.
const COLUMNS_MAX: usize = 1 << 20;

/// Columns and their types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// The file's format.
    pub source: SourceForm,
    /// The columns of numbers that are used, in order; of a table with gaps, the labels of its
    /// columns.
    pub columns: Vec<String>,
    /// The labels of the rows of a table with gaps; empty where rows are examples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<String>,
    /// The levels of each column of a mixed table, in the order of their numbers; none for numbers and
    /// counts. Empty for other models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Vec<String>>,
    /// What describes the rows and columns of a table with gaps, where the model needs it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// The column that is predicted.
    pub target: Option<TargetForm>,
    /// A column that, where the file has it, names the client in every row.
    pub client: Option<String>,
    /// A column that is kept as text and not used.
    pub label: Option<String>,
    /// A column that says of each row whether it is for training, validation or tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What separates cells; none: told from the header.
    pub delimiter: Option<char>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceForm {
    /// Text with a header line.
    Csv,
    /// A NumPy array; its columns are called `c1`, `c2` and so on.
    Npy,
}

/// What is predicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetForm {
    /// The column.
    pub column: String,
    /// Its classes in the order of their numbers, or the one that becomes -1 first; empty where it
    /// holds numbers.
    pub classes: Vec<String>,
}

/// What the rows of a client's file are for.
fn roles(data: &Dataset, role: &str) -> Result<Parts> {
    let column = data.column(role)?;
    let roles = (0..data.rows()).map(|row| data.text(row, column).unwrap_or_default());
    let parts = Parts::by_name(roles)?;
    if parts.train.is_empty() {
        return Err(Error::data("there is no row for training").into());
    }
    Ok(parts)
}

impl Schema {
    /// The form of the files of a job.
    pub fn of(job: &Job, facts: &Facts) -> Result<Self> {
        let columns = facts.columns.clone();
        let plain = |source| Self {
            source,
            columns,
            rows: facts.rows.clone(),
            levels: facts.levels.clone(),
            attributes: facts.attributes.clone(),
            target: None,
            client: None,
            label: None,
            role: None,
            delimiter: None,
        };
        Ok(match &job.data.source {
            DataSource::Csv(csv) => Self {
                target: csv.target.as_ref().map(|column| TargetForm {
                    column: column.clone(),
                    classes: facts.classes.clone(),
                }),
                client: match &csv.partition {
                    Partition::Column(column) => Some(column.clone()),
                    _ => None,
                },
                label: csv.label.clone(),
                role: job.data.held_out.role.clone(),
                delimiter: csv.delimiter,
                ..plain(SourceForm::Csv)
            },
            DataSource::Npy(_) => plain(SourceForm::Npy),
            DataSource::Libsvm(_)
            | DataSource::Idx(_)
            | DataSource::Collection(_)
            | DataSource::Mixture(_)
            | DataSource::Toy(_)
            | DataSource::SyntheticMixture(_)
            | DataSource::SyntheticRepresentation(_) => {
                return Err(Error::config("clients on a network hold csv or npy files").into());
            }
        })
    }

    /// The classes of the target; empty where there are none.
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
            return Err(Error::peer("the offer's schema is no table's").into());
        }
        Ok(())
    }

    /// Reads a client's file.
    pub(super) fn read(
        &self,
        rows: &Input,
        client_name: &str,
        layout: Layout,
    ) -> Result<ClientData> {
        let data = match (&self.source, rows.file()) {
            (SourceForm::Npy, Some(file)) => read_npy(file)?,
            _ => {
                let text = self.client.iter().chain(&self.label).chain(&self.role);
                let text = text.cloned().collect();
                let delimiter = self.delimiter.map(|c| c as u8);
                rows.read_csv(&CsvOptions { delimiter, text })?
            }
        };
        self.check_client(&data, client_name)?;
        let features = Features::Listed(&self.columns);
        let parts = self.role.as_deref().map(|role| roles(&data, role)).transpose()?;
        let apart = |rows: ClientData| match &parts {
            Some(parts) => Ok(parts.apply(&rows)?),
            None => Ok(rows),
        };
        let Some(target) = &self.target else {
            return apart(ClientData::Table(data.table(&data.features(&features)?)?));
        };
        let mut rows = data.labelled(&target.column, &features)?;
        if !target.classes.is_empty() {
            number_declared(&mut rows, &data, &target.column, &target.classes, layout)?;
        } else if !data.class_names(&target.column)?.is_empty() {
            let what = format!("column {:?} holds text, not numbers", target.column);
            return Err(Error::data(what).into());
        }
        apart(match layout {
            Layout::Samples { classes } => {
                ClientData::Samples(samples(&rows, classes.then_some(target.classes.len()))?)
            }
            _ => ClientData::Labelled(rows),
        })
    }

    /// Reads a client's rows of a mixed table.
    pub(super) fn read_mixed(
        &self,
        rows: &Input,
        client_name: &str,
        types: &[(String, ColumnType)],
    ) -> Result<ClientData> {
        let column = |(name, levels): (&String, &Vec<String>)| {
            let kind = types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind);
            MixedColumn::of(name, kind.unwrap_or(&ColumnType::Number), levels.clone())
        };
        let columns: Vec<MixedColumn> = self.columns.iter().zip(&self.levels).map(column).collect();
        let leveled = columns.iter().filter(|column| !column.levels.is_empty());
        let text = self.client.iter().chain(&self.label).chain(&self.role).cloned();
        let text = text.chain(leveled.map(|column| column.name.clone())).collect();
        let delimiter = self.delimiter.map(|c| c as u8);
        let data = rows.read_csv(&CsvOptions { delimiter, text })?;
        self.check_client(&data, client_name)?;
        let rows = ClientData::Table(data.mixed_table(&columns)?);
        match &self.role {
            Some(role) => Ok(roles(&data, role)?.apply(&rows)?),
            None => Ok(rows),
        }
    }

    /// Reads a client's cells of a table with gaps.
    pub(super) fn read_cells(
        &self,
        rows: &Input,
        client_name: &str,
        job: &Job,
        entries: Entries,
    ) -> Result<Cells> {
        let data = &job.data;
        let DataSource::Csv(csv) = &data.source else {
            return Err(Error::peer("the offered table is in no csv file").into());
        };
        let mut options = CellOptions {
            row_labels: Some(self.rows.clone()),
            column_labels: Some(self.columns.clone()),
            ..cell_options(csv, entries, job.fit.described())?
        };
        if let Some(column) = options.client.take() {
            let text = vec![column.clone()];
            let delimiter = options.delimiter;
            let lines = rows.read_csv(&CsvOptions { delimiter, text })?;
            self.check_client(&lines, client_name)?;
            options.client = lines.columns().iter().any(|c| c.name == column).then_some(column);
        }
        of_client(rows, &options, csv.cells.holdout, data.seed, client_name)
    }

    /// Rows of somebody else are somebody else's.
    fn check_client(&self, data: &Dataset, client_name: &str) -> Result<()> {
        let named = |column: &&String| data.columns().iter().any(|known| known.name == **column);
        let Some(column) = self.client.as_ref().filter(named) else { return Ok(()) };
        let other = by_column(data, column)?.into_iter().find(|c| c.name != client_name);
        match other {
            None => Ok(()),
            Some(other) => {
                let what = format!(
                    "{}: row {} has {:?} in column {column:?}, and this client is {client_name:?}",
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
