//! A client's rows, as a program has them.

use whimbrel::core::{Error, Table};
use whimbrel::data::{Dataset, Features, Input};
use whimbrel::families::failure::Result;

/// The rows of one client: numbers, row after row, with a target each where something is predicted.
///
/// What is wrong with them is said by the call that uses them, so that they can be written in one go.
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
    /// Whether rows of other lengths were given.
    ragged: bool,
}

/// What is predicted.
#[derive(Clone, Debug, Default, PartialEq)]
enum Targets {
    #[default]
    None,
    Numbers(Vec<f64>),
    Classes(Vec<String>),
}

/// What a job calls the columns that are no features.
pub(crate) struct Names {
    pub client: String,
    pub target: String,
}

impl Rows {
    /// Rows of this many numbers, one after the other. NaN stands for a missing cell.
    pub fn new(width: usize, values: impl Into<Vec<f64>>) -> Self {
        Self { width, values: values.into(), ..Self::default() }
    }

    /// Rows one by one.
    pub fn from_rows<R: AsRef<[f64]>>(rows: impl IntoIterator<Item = R>) -> Self {
        let mut all = Self::default();
        for (at, row) in rows.into_iter().enumerate() {
            let row = row.as_ref();
            if at == 0 {
                all.width = row.len();
            }
            all.ragged |= row.len() != all.width;
            all.values.extend(row);
        }
        all
    }

    /// Who holds them; by default the place among all clients.
    #[must_use]
    pub fn named(mut self, client: impl Into<String>) -> Self {
        self.name = Some(client.into());
        self
    }

    /// What the columns are called; by default `x1`, `x2` and so on.
    #[must_use]
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.columns = names.into_iter().map(Into::into).collect();
        self
    }

    /// A number to predict for each row.
    #[must_use]
    pub fn targets(mut self, values: impl Into<Vec<f64>>) -> Self {
        self.targets = Targets::Numbers(values.into());
        self
    }

    /// A class to predict for each row.
    #[must_use]
    pub fn classes<S: ToString>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.targets = Targets::Classes(names.into_iter().map(|name| name.to_string()).collect());
        self
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The numbers, row after row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// With numbers in place of gaps.
    pub(crate) fn filled(mut self, at: impl Fn(usize, usize) -> f64) -> Self {
        let width = self.width;
        let gaps = self.values.iter_mut().enumerate().filter(|(_, x)| x.is_nan());
        gaps.for_each(|(i, x)| *x = at(i / width, i % width));
        self
    }

    fn column_names(&self) -> Vec<String> {
        match self.columns.is_empty() {
            true => (1..=self.width).map(|j| format!("x{j}")).collect(),
            false => self.columns.clone(),
        }
    }

    fn check(&self, of: &str) -> Result<()> {
        let rows = self.len();
        let targets = match &self.targets {
            Targets::None => rows,
            Targets::Numbers(all) => all.len(),
            Targets::Classes(all) => all.len(),
        };
        let what = if self.width == 0 || self.ragged || rows * self.width != self.values.len() {
            format!("{} numbers are no rows of {}", self.values.len(), self.width)
        } else if !self.columns.is_empty() && self.columns.len() != self.width {
            format!("{} columns and {} names", self.width, self.columns.len())
        } else if targets != rows {
            format!("{targets} targets for {rows} rows")
        } else {
            return Ok(());
        };
        Err(Error::data(format!("{of}: {what}")).into())
    }

    /// New rows for a model that was fitted to these columns: by name, or by place where they have no
    /// names. Targets go along where there are any.
    pub(crate) fn input(&self, fitted: &[String]) -> Result<Input> {
        self.check("the new rows")?;
        let columns = match self.columns.is_empty() && self.width == fitted.len() {
            true => fitted.to_vec(),
            false => self.column_names(),
        };
        let names = Names::beside(&columns);
        Ok(Input::rows(join(&[self], &columns, &names, None)?))
    }
}

impl Names {
    /// Names that no column has.
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

/// The rows of all clients, as a job reads them.
pub(crate) struct Federation {
    pub input: Input,
    pub columns: Vec<String>,
    pub names: Names,
    pub has_targets: bool,
}

impl Federation {
    pub fn new(clients: &[Rows]) -> Result<Self> {
        let (who, columns, first) = agree(clients)?;
        let names = Names::beside(&columns);
        let all: Vec<&Rows> = clients.iter().collect();
        let data = join(&all, &columns, &names, Some(&who))?;
        let has_targets = first.targets != Targets::None;
        Ok(Self { input: Input::rows(data), columns, names, has_targets })
    }
}

/// Who the clients are and what their columns are called, once they agree.
fn agree(clients: &[Rows]) -> Result<(Vec<String>, Vec<String>, &Rows)> {
    let Some(first) = clients.first() else {
        let error = Error::data("there are no clients").hint("give rows of at least one");
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
    let columns = first.column_names();
    for (rows, name) in clients.iter().zip(&who) {
        rows.check(&format!("client `{name}`"))?;
        if rows.column_names() != columns {
            let (own, known) = (rows.column_names().join(", "), columns.join(", "));
            let what = format!("client `{name}` has columns {own}, and `{}` {known}", who[0]);
            return Err(Error::data(what).into());
        }
        let same = std::mem::discriminant(&rows.targets) == std::mem::discriminant(&first.targets);
        if !same {
            let what = format!("client `{name}` has other targets than `{}`", who[0]);
            return Err(Error::data(what).into());
        }
    }
    Ok((who, columns, first))
}

/// Each client's rows as a table of its own, a numeric target as the last column.
pub(crate) fn tables(clients: &[Rows]) -> Result<Vec<(String, Table)>> {
    let (who, columns, _) = agree(clients)?;
    let names = Names::beside(&columns);
    let table = |rows: &Rows| -> Result<Table> {
        let data = join(&[rows], &columns, &names, None)?;
        let all: Vec<String> = data.columns().iter().map(|column| column.name.clone()).collect();
        Ok(data.table(&data.features(&Features::Listed(&all))?)?)
    };
    let each = who.into_iter().zip(clients);
    let mut all: Vec<(String, Table)> =
        each.map(|(name, rows)| Ok((name, table(rows)?))).collect::<Result<_>>()?;
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
