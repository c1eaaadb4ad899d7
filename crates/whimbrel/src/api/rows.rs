//! The rows of clients, in memory.

use whimbrel_core::text::counted;
use whimbrel_core::{Error, Table};
use whimbrel_data::{BadRow, Dataset, Error as Unusable, Features, Input};
use whimbrel_families::failure::{Failure, Result};

/// The rows of one client, with one target per row for supervised models.
///
/// Building rows never fails: `fit` and `predict` check them and name the client in the error.
///
/// ```
/// use whimbrel::Rows;
/// let ward = Rows::new(2, [61.0, 0.5, 47.0, 1.25]).named("ward-1").columns(["age", "dose"]);
/// assert_eq!(ward.len(), 2);
/// let labelled = Rows::from_rows([[0.1, 2.0], [0.3, 1.0]]).classes(["yes", "no"]);
/// assert_eq!(labelled.width(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    name: Option<String>,
    columns: Vec<String>,
    width: usize,
    values: Vec<f64>,
    targets: Targets,
    /// The first row whose length differs from the first one, with its length.
    ragged: Option<(usize, usize)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Targets {
    #[default]
    None,
    Numbers(Vec<f64>),
    Classes(Vec<String>),
}

/// The job's names for the columns of clients and targets.
pub(super) struct Names {
    pub client: String,
    pub target: String,
}

impl Rows {
    /// Rows of `width` numbers each, row-major. NaN marks a missing cell.
    pub fn new(width: usize, values: impl Into<Vec<f64>>) -> Self {
        Self { width, values: values.into(), ..Self::default() }
    }

    /// Rows from an iterator of slices or arrays of equal length.
    pub fn from_rows<R: AsRef<[f64]>>(rows: impl IntoIterator<Item = R>) -> Self {
        let mut all = Self::default();
        for (at, row) in rows.into_iter().enumerate() {
            let row = row.as_ref();
            if at == 0 {
                all.width = row.len();
            }
            if row.len() != all.width && all.ragged.is_none() {
                all.ragged = Some((at, row.len()));
            }
            all.values.extend(row);
        }
        all
    }

    /// The client's name; by default its position with leading zeros: `0` to `7` for eight clients, `00`
    /// to `11` for twelve.
    #[must_use]
    pub fn named(mut self, client: impl Into<String>) -> Self {
        self.name = Some(client.into());
        self
    }

    /// The names of the columns; by default `x1`, `x2`, ...
    #[must_use]
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.columns = names.into_iter().map(Into::into).collect();
        self
    }

    /// The number to predict, for each row; NaN marks a missing one ([`classes`](Self::classes) are for
    /// classifiers).
    #[must_use]
    pub fn targets(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        self.targets = Targets::Numbers(values.into_iter().collect());
        self
    }

    /// The class to predict, for each row.
    #[must_use]
    pub fn classes<S: ToString>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.targets = Targets::Classes(names.into_iter().map(|name| name.to_string()).collect());
        self
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// A row.
    ///
    /// # Panics
    ///
    /// Panics if there are not that many rows.
    pub fn row(&self, at: usize) -> &[f64] {
        &self.values[at * self.width..][..self.width]
    }

    /// The numbers, row-major.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    pub(super) fn has_targets(&self) -> bool {
        self.targets != Targets::None
    }

    pub(super) fn has_numbers(&self) -> bool {
        matches!(self.targets, Targets::Numbers(_))
    }

    /// Refuses rows without targets.
    pub(super) fn need_targets(&self) -> Result<()> {
        if self.has_targets() {
            return Ok(());
        }
        let error = Error::data("this model predicts a target, and the rows have none");
        Err(error.hint("`Rows::targets` or `Rows::classes` gives them").into())
    }

    /// A copy with every missing cell replaced.
    pub(super) fn filled(&self, at: impl Fn(usize, usize) -> f64) -> Self {
        let mut filled = self.clone();
        let gaps = filled.values.iter_mut().enumerate().filter(|(_, x)| x.is_nan());
        gaps.for_each(|(i, x)| *x = at(i / self.width, i % self.width));
        filled
    }

    fn column_names(&self) -> Vec<String> {
        if self.columns.is_empty() {
            return (1..=self.width).map(|j| format!("x{j}")).collect();
        }
        self.columns.clone()
    }

    fn check(&self, of: &str) -> Result<()> {
        let rows = self.len();
        let targets = match &self.targets {
            Targets::None => rows,
            Targets::Numbers(all) => all.len(),
            Targets::Classes(all) => all.len(),
        };
        let what = if let Some((at, length)) = self.ragged {
            let (row, width) = (at + 1, self.width);
            format!("row 1 has {}, row {row} has {length}", counted(width, "number"))
        } else if self.values.is_empty() {
            "there are no rows".into()
        } else if self.width == 0 || rows * self.width != self.values.len() {
            let numbers = counted(self.values.len(), "number");
            format!("rows of {} cannot be made of {numbers}", counted(self.width, "number"))
        } else if !self.columns.is_empty() && self.columns.len() != self.width {
            let names = counted(self.columns.len(), "name");
            format!("{names} for {}", counted(self.width, "column"))
        } else if targets != rows {
            format!("{} for {}", counted(targets, "target"), counted(rows, "row"))
        } else {
            return Ok(());
        };
        Err(Error::data(format!("{of}: {what}")).into())
    }

    /// New rows for a model fitted to these columns, matched by name, or by position where they have
    /// no names.
    pub(super) fn input(&self, fitted: &[String]) -> Result<Input> {
        self.check("the new rows")?;
        let columns = match &self.columns[..] {
            [] if self.width == fitted.len() => fitted.to_vec(),
            [] => {
                let (own, known) = (counted(self.width, "column"), counted(fitted.len(), "column"));
                let what = format!("the new rows have {own}, the fit has {known}");
                let hint =
                    format!("{} are expected, or name them by `Rows::columns`", fitted.join(", "));
                return Err(Error::data(what).hint(hint).into());
            }
            names => names.to_vec(),
        };
        let names = Names::beside(&columns);
        Ok(Input::rows(join(&[self], &columns, &names, None)?))
    }
}

impl Names {
    /// Names that differ from every column.
    pub fn beside(columns: &[String]) -> Self {
        let free = |name: &str| {
            let mut name = name.to_owned();
            while columns.contains(&name) {
                name.insert(0, '_');
            }
            name
        };
        Self { client: free("client"), target: free("target") }
    }
}

/// The rows of all clients as the input of a job.
pub(super) struct Federation<'a> {
    pub input: Input,
    pub columns: Vec<String>,
    pub names: Names,
    /// The rows of the first client.
    pub first: &'a Rows,
    /// Each client's name and first row.
    firsts: Vec<(String, usize)>,
}

impl<'a> Federation<'a> {
    pub fn new(clients: &'a [Rows]) -> Result<Self> {
        let (who, columns, first) = agree(clients)?;
        let names = Names::beside(&columns);
        let all: Vec<&Rows> = clients.iter().collect();
        let data = join(&all, &columns, &names, Some(&who))?;
        let mut next = 0;
        let firsts = who.into_iter().zip(clients).map(|(name, rows)| {
            next += rows.len();
            (name, next - rows.len())
        });
        Ok(Self { firsts: firsts.collect(), input: Input::rows(data), columns, names, first })
    }

    /// Names the clients of unusable rows, and numbers these within their client.
    pub fn by_client(&self, failure: Failure) -> Failure {
        by_client(failure, &self.firsts)
    }
}

fn by_client(failure: Failure, firsts: &[(String, usize)]) -> Failure {
    let Failure::Data(Unusable::Rows { listed, count, hint, .. }) = failure else { return failure };
    let mut what = format!("{} cannot be used", counted(count, "row"));
    let left = count - listed.len();
    for bad in listed {
        let after = firsts.partition_point(|(_, first)| *first < bad.row);
        let (client, first) = &firsts[after - 1];
        let bad = BadRow { row: bad.row - first, ..bad };
        what += &format!("\n  client `{client}`, {bad}");
    }
    if left > 0 {
        what += &format!("\n  and {left} more");
    }
    let error = Error::data(what);
    hint.into_iter().fold(error, Error::hint).into()
}

/// The names of clients and columns, after checking that all clients agree.
fn agree(clients: &[Rows]) -> Result<(Vec<String>, Vec<String>, &Rows)> {
    let Some(first) = clients.first() else {
        let error = Error::data("there are no clients").hint("give the rows of at least one");
        return Err(error.into());
    };
    let digits = (clients.len() - 1).to_string().len();
    let who: Vec<String> = clients
        .iter()
        .enumerate()
        .map(|(at, rows)| rows.name.clone().unwrap_or_else(|| format!("{at:0digits$}")))
        .collect();
    let mut sorted: Vec<&String> = who.iter().collect();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::data(format!("two clients are called `{}`", twice[0])).into());
    }
    if let Some(at) = who.iter().position(String::is_empty) {
        return Err(Error::data(format!("the name of client {} is empty", at + 1)).into());
    }
    let columns = first.column_names();
    for (rows, name) in clients.iter().zip(&who) {
        rows.check(&format!("client `{name}`"))?;
        if rows.column_names() != columns {
            let (own, known) = (rows.column_names().join(", "), columns.join(", "));
            let what =
                format!("client `{name}` has columns {own}, client `{}` has {known}", who[0]);
            let hint = "give the rows of all clients the same columns in the same order";
            return Err(Error::data(what).hint(hint).into());
        }
        let what = match (&first.targets, &rows.targets) {
            (Targets::None, Targets::None)
            | (Targets::Numbers(_), Targets::Numbers(_))
            | (Targets::Classes(_), Targets::Classes(_)) => continue,
            (Targets::None, _) => format!("client `{}` has no targets, `{name}` has", who[0]),
            (_, Targets::None) => format!("client `{name}` has no targets, `{}` has", who[0]),
            _ => format!(
                "one of the clients `{}` and `{name}` has numbers as targets, the other classes",
                who[0]
            ),
        };
        return Err(Error::data(what).into());
    }
    Ok((who, columns, first))
}

/// One table per client, in the order of their names, with a numeric target as the last column.
pub(super) fn tables(clients: &[Rows]) -> Result<Vec<(String, Table)>> {
    let (who, columns, first) = agree(clients)?;
    if let Targets::Classes(_) = first.targets {
        let error = Error::data(format!("client `{}`: the targets are classes", who[0]));
        return Err(error.hint("a simulation takes numbers, by `Rows::targets`").into());
    }
    let names = Names::beside(&columns);
    let table = |rows: &Rows| -> Result<Table> {
        let data = join(&[rows], &columns, &names, None)?;
        let all: Vec<String> = data.columns().iter().map(|column| column.name.clone()).collect();
        Ok(data.table(&data.features(&Features::Listed(&all))?)?)
    };
    let each = who.into_iter().zip(clients).map(|(name, rows)| match table(rows) {
        Ok(table) => Ok((name, table)),
        Err(failure) => Err(by_client(failure, &[(name, 0)])),
    });
    let mut all: Vec<(String, Table)> = each.collect::<Result<_>>()?;
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

fn join(
    all: &[&Rows],
    columns: &[String],
    names: &Names,
    who: Option<&[String]>,
) -> Result<Dataset> {
    let numbers = |rows: &Rows| match &rows.targets {
        Targets::Numbers(values) => Some(values.clone()),
        _ => None,
    };
    let wide = all.first().is_some_and(|rows| numbers(rows).is_some());
    let mut heads = columns.to_vec();
    heads.extend(wide.then(|| names.target.clone()));
    let mut values = Vec::with_capacity(all.iter().map(|rows| rows.values.len()).sum());
    for rows in all {
        let targets = numbers(rows);
        for (i, row) in rows.values.chunks_exact(rows.width).enumerate() {
            values.extend(row);
            values.extend(targets.as_ref().map(|targets| targets[i]));
        }
    }
    let mut data = Dataset::from_table("rows", Table::new(heads, values)?);
    let classes: Vec<&str> = all
        .iter()
        .flat_map(|rows| match &rows.targets {
            Targets::Classes(classes) => classes.as_slice(),
            _ => &[],
        })
        .map(String::as_str)
        .collect();
    if !classes.is_empty() {
        data = data.with_text(&names.target, classes.into_iter());
    }
    if let Some(who) = who {
        let each = all.iter().zip(who);
        let each = each.flat_map(|(rows, name)| std::iter::repeat_n(name.as_str(), rows.len()));
        data = data.with_text(&names.client, each);
    }
    Ok(data)
}
