//! Splits of rows over clients. Every row goes to exactly one client, and every client has at least
//! one.

use crate::dataset::Kind;
use crate::{Dataset, Error, Features, Result, parse_number};
use std::cmp::Ordering;
use std::collections::HashMap;
use whimbrel_core::{FeatureRows, Key, Labelled, Table};

/// A client and its rows (counted from 0, ascending).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRows {
    pub name: String,
    pub rows: Vec<usize>,
}

/// One table per value of the client column, sorted by name in byte order (`10` before `9`). The
/// client column is not a feature. One error lists all rows with missing features or clients.
pub fn by_client(
    data: &Dataset,
    client_column: &str,
    features: &Features<'_>,
) -> Result<Vec<(String, Table)>> {
    let (_, chosen) = data.features_beside(client_column, "names the client", features)?;
    data.tables(&chosen, &by_column(data, client_column)?)
}

/// One client per value of a column, sorted by name in byte order.
pub fn by_column(data: &Dataset, column: &str) -> Result<Vec<ClientRows>> {
    let classes = classes(data, column)?;
    Ok(classes.into_iter().map(|(name, rows)| ClientRows { name, rows }).collect())
}

/// One client per value of a feature, sorted by name in byte order.
pub fn by_feature(data: &Labelled, column: &str) -> Result<Vec<ClientRows>> {
    let Some(at) = data.columns.iter().position(|name| name == column) else {
        let what = format!("the data have no column {column:?}");
        let names = match &data.columns[..] {
            [first, .., last] => format!("the columns are {first:?} to {last:?}"),
            others => format!("the columns are {others:?}"),
        };
        return Err(Error::config(what).hint(names));
    };
    let value = |row: usize| match &data.rows {
        FeatureRows::Dense(values) => values[row * data.width() + at],
        FeatureRows::Sparse { starts, columns, values } => {
            let span = starts[row]..starts[row + 1];
            let place = columns[span.clone()].binary_search(&(at as u32));
            place.map_or(0.0, |i| values[span.start + i])
        }
    };
    let classes = value_classes((0..data.len()).map(value), usize::MAX);
    let mut clients: Vec<ClientRows> =
        classes.into_iter().map(|(x, rows)| ClientRows { name: x.to_string(), rows }).collect();
    clients.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(clients)
}

/// Deals rows `0..rows` at random; sizes differ by at most one.
pub fn iid_rows(rows: usize, clients: usize, key: Key) -> Result<Vec<ClientRows>> {
    enough_rows("the data set", rows, clients)?;
    let mut order: Vec<usize> = (0..rows).collect();
    key.stream().shuffle(&mut order);
    let bound = |i: usize| (i as u128 * rows as u128 / clients as u128) as usize;
    let parts = (0..clients).map(|i| order[bound(i)..bound(i + 1)].to_vec());
    Ok(named(parts.collect()))
}

/// Spreads the rows of each class over the clients in Dirichlet proportions.
pub(crate) fn spread(
    classes: Vec<Vec<usize>>,
    clients: usize,
    alpha: f64,
    key: Key,
) -> Result<Vec<ClientRows>> {
    if !(alpha > 0.0 && alpha.is_finite()) {
        let what = format!("alpha = {alpha} cannot spread classes over clients");
        return Err(Error::config(what).hint("give a positive number, such as 0.3"));
    }
    let mut parts = vec![Vec::new(); clients];
    for (class, mut rows) in classes.into_iter().enumerate() {
        let mut stream = key.child(class as u64).stream();
        stream.shuffle(&mut rows);
        let shares = stream.dirichlet(&vec![alpha; clients]);
        let mut rows = rows.into_iter();
        for (part, count) in parts.iter_mut().zip(apportion(rows.len(), &shares)) {
            part.extend(rows.by_ref().take(count));
        }
    }
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let most = parts.iter().map(Vec::len).max().unwrap_or(0);
        let giver = parts.iter().position(|p| p.len() == most).unwrap_or(0);
        let given = parts[giver].pop();
        parts[empty].extend(given);
    }
    Ok(named(parts))
}

/// The values of a column without missing cells and the rows of each, in byte order.
pub(crate) fn classes(data: &Dataset, column: &str) -> Result<Vec<(String, Vec<usize>)>> {
    let column = data.column(column)?;
    data.require_complete(&[column])?;
    Ok(classes_present(data, column))
}

/// The values that occur in a column and the rows of each, in byte order. Rows without a value are
/// left out.
pub(crate) fn classes_present(data: &Dataset, column: usize) -> Vec<(String, Vec<usize>)> {
    let mut classes = match data.columns()[column].kind {
        Kind::Text => {
            let text = &data.texts[data.slots[column]];
            let mut classes: Vec<(String, Vec<usize>)> =
                text.names.iter().map(|name| (name.clone(), Vec::new())).collect();
            for (row, &code) in text.codes.iter().enumerate() {
                if let Some((_, rows)) = classes.get_mut(code as usize) {
                    rows.push(row);
                }
            }
            classes
        }
        Kind::Number => {
            let values = (0..data.rows()).map(|row| data.number(row, column).unwrap_or(f64::NAN));
            let classes = value_classes(values, usize::MAX);
            classes.into_iter().map(|(x, rows)| (x.to_string(), rows)).collect()
        }
    };
    classes.retain(|(_, rows)| !rows.is_empty());
    classes.sort_by(|a, b| a.0.cmp(&b.0));
    classes
}

/// The levels of a category and the rows of each: ascending if all are numbers, else in byte order.
pub(crate) fn levels_present(data: &Dataset, column: usize) -> Vec<(String, Vec<usize>)> {
    let mut levels = classes_present(data, column);
    let number = |level: &(String, Vec<usize>)| parse_number(level.0.as_bytes());
    if levels.iter().all(|level| number(level).is_some()) {
        levels.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
    }
    levels
}

/// The distinct values and the rows of each, in order of first appearance; NaN is left out. Stops
/// once `most` distinct values are found.
pub(crate) fn value_classes(
    values: impl Iterator<Item = f64>,
    most: usize,
) -> Vec<(f64, Vec<usize>)> {
    let mut codes = HashMap::new();
    let mut classes: Vec<(f64, Vec<usize>)> = Vec::new();
    for (row, x) in values.enumerate().filter(|(_, x)| !x.is_nan()) {
        // Makes -0 and 0 one value.
        let x = x + 0.0;
        let code = *codes.entry(x.to_bits()).or_insert_with(|| {
            classes.push((x, Vec::new()));
            classes.len() - 1
        });
        classes[code].1.push(row);
        if classes.len() == most {
            break;
        }
    }
    classes
}

pub(crate) fn enough_rows(name: &str, rows: usize, clients: usize) -> Result<()> {
    if clients == 0 || clients > rows {
        let what = format!("{name} has {rows} rows, which cannot be split over {clients} clients");
        let hint = format!("give a number of clients from 1 to {rows}");
        return Err(Error::config(what).hint(hint));
    }
    Ok(())
}

/// Whole numbers that sum to `total`, rounded from `total * shares` by largest remainders (ties go
/// to the first client).
fn apportion(total: usize, shares: &[f64]) -> Vec<usize> {
    let exact: Vec<f64> = shares.iter().map(|s| s * total as f64).collect();
    let mut counts: Vec<usize> = exact.iter().map(|x| x.floor() as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| (exact[b] - exact[b].floor()).total_cmp(&(exact[a] - exact[a].floor())));
    let mut given: usize = counts.iter().sum();
    for &i in order.iter().cycle() {
        match given.cmp(&total) {
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Less => {
                counts[i] += 1;
                given += 1;
            }
            // Shares that sum to a rounding error above one can floor to one row too many.
            std::cmp::Ordering::Greater if counts[i] > 0 => {
                counts[i] -= 1;
                given -= 1;
            }
            std::cmp::Ordering::Greater => {}
        }
    }
    counts
}

pub(crate) fn named(parts: Vec<Vec<usize>>) -> Vec<ClientRows> {
    let clients = parts.len();
    let client = |(i, mut rows): (usize, Vec<usize>)| {
        rows.sort_unstable();
        ClientRows { name: client_name(i, clients), rows }
    };
    parts.into_iter().enumerate().map(client).collect()
}

/// `client-007`: zero-padded, so that byte order is numeric order.
pub(crate) fn client_name(i: usize, clients: usize) -> String {
    let digits = clients.saturating_sub(1).max(1).to_string().len();
    format!("client-{i:0digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apportionment_sums_to_the_total_and_stays_within_one_row() {
        let mut stream = Key::root(5).stream();
        for total in 0..200 {
            let raw: Vec<f64> = (0..7).map(|_| stream.uniform_open()).collect();
            let sum: f64 = raw.iter().sum();
            let shares: Vec<f64> = raw.iter().map(|x| x / sum).collect();
            let counts = apportion(total, &shares);
            assert_eq!(counts.iter().sum::<usize>(), total);
            for (count, share) in whimbrel_testkit::pairs(&counts, &shares) {
                assert!((*count as f64 - share * total as f64).abs() < 1.0 + 1e-9);
            }
        }
    }

    #[test]
    fn names_sort_as_numbers_do() {
        for clients in [1, 2, 10, 11, 100, 1001] {
            let names: Vec<String> = (0..clients).map(|i| client_name(i, clients)).collect();
            assert!(names.is_sorted(), "{clients}");
        }
    }
}
