//! Splits of a client's rows into training, validation and test rows.

use crate::cells::named_key;
use crate::take_rows;
use whimbrel_core::{ClientData, Error, HeldOut, Key, Labelled, Samples, Table};

/// Key tag of the draw.
const PARTS: u64 = 0x9A27;

/// Indices of a client's rows by role, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub train: Vec<usize>,
    pub validation: Vec<usize>,
    pub test: Vec<usize>,
}

impl Parts {
    /// Draws shares of `rows` rows without replacement. The draw depends on the key, the client's name
    /// and the number of its rows only, so a client draws the same in a simulation and on a network. At
    /// least one row stays for training.
    ///
    /// Shares hold on average: a fraction of a row is rounded up with that probability.
    pub fn draw(rows: usize, validation: f64, test: f64, key: Key, client: &str) -> Self {
        let mut stream = named_key(key.child(PARTS), client).stream();
        let mut wanted = |share: f64| (share * rows as f64 + stream.uniform()) as usize;
        let tests = wanted(test).min(rows.saturating_sub(1));
        let validations = wanted(validation).min(rows.saturating_sub(1 + tests));
        let drawn = stream.choose(rows, tests + validations);
        let mut parts = Self::default();
        let mut part = vec![0u8; rows];
        for (place, row) in drawn.into_iter().enumerate() {
            part[row] = if place < tests { 2 } else { 1 };
        }
        for (row, part) in part.into_iter().enumerate() {
            match part {
                0 => &mut parts.train,
                1 => &mut parts.validation,
                _ => &mut parts.test,
            }
            .push(row);
        }
        parts
    }

    /// The names of the roles.
    pub const ROLES: [&str; 3] = ["train", "validation", "test"];

    /// The parts by a role for each row: `train`, `validation` or `test`.
    pub fn by_name<'a>(roles: impl Iterator<Item = &'a str>) -> crate::Result<Self> {
        let mut parts = Self::default();
        for (row, role) in roles.enumerate() {
            match role.trim() {
                "train" => &mut parts.train,
                "validation" => &mut parts.validation,
                "test" => &mut parts.test,
                other => {
                    return Err(Error::data(format!(
                        "row {}: {other:?} is not a role; roles are train, validation and test",
                        row + 1
                    ))
                    .into());
                }
            }
            .push(row);
        }
        Ok(parts)
    }

    /// The training rows with the others held out.
    pub fn apply(&self, data: &ClientData) -> crate::Result<ClientData> {
        fn split<T>(
            parts: &Parts,
            at: impl Fn(&[usize]) -> crate::Result<T>,
        ) -> crate::Result<(T, HeldOut<T>)> {
            let part = |rows: &[usize]| match rows {
                [] => Ok(None),
                rows => at(rows).map(|rows| Some(Box::new(rows))),
            };
            let (validation, test) = (part(&parts.validation)?, part(&parts.test)?);
            Ok((at(&parts.train)?, HeldOut { validation, test, asked: true }))
        }
        match data {
            ClientData::Table(table) => {
                let (train, held_out) = split(self, |rows| Ok(table.at(rows)))?;
                Ok(ClientData::Table(Table { held_out, ..train }))
            }
            ClientData::Labelled(rows) => {
                let (train, held_out) = split(self, |places| take_rows(rows, places))?;
                Ok(ClientData::Labelled(Labelled { held_out, ..train }))
            }
            ClientData::Samples(samples) => {
                let (train, held_out) = split(self, |places| Ok(samples.at(places)))?;
                Ok(ClientData::Samples(Samples { held_out, ..train }))
            }
            ClientData::Stream(_) => {
                Err(Error::config("the rows of a stream cannot be held out").into())
            }
            ClientData::Cells(_) => {
                let what = "`validation` and `test` hold out whole rows, and a row of a table with \
                            gaps has no factors unless it is fitted";
                Err(Error::config(what).hint("`holdout` in [data] holds out single cells").into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_one_part_and_one_stays_for_training() {
        for (rows, validation, test) in
            [(1, 0.4, 0.5), (2, 0.45, 0.45), (100, 0.2, 0.1), (7, 0.0, 0.3)]
        {
            let parts = Parts::draw(rows, validation, test, Key::root(3), "north");
            assert!(!parts.train.is_empty());
            let mut all =
                [parts.train.clone(), parts.validation.clone(), parts.test.clone()].concat();
            all.sort_unstable();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
            let near = |count: usize, share: f64| (count as f64 - share * rows as f64).abs() < 1.0;
            assert!(near(parts.test.len(), test), "{parts:?}");
            assert!(rows < 3 || near(parts.validation.len(), validation), "{parts:?}");
        }
    }

    #[test]
    fn rows_are_set_apart_and_none_is_lost() {
        let table = Table::new(vec!["x".into()], (0..6).map(f64::from).collect()).unwrap();
        let roles = ["test", "train", "train", " validation", "test", "train"];
        let parts = Parts::by_name(roles.into_iter()).unwrap();
        let ClientData::Table(train) = parts.apply(&ClientData::Table(table)).unwrap() else {
            panic!("a table stays a table");
        };
        assert_eq!(train.values, [1.0, 2.0, 5.0]);
        assert_eq!(train.held_out.test.unwrap().values, [0.0, 4.0]);
        assert_eq!(train.held_out.validation.unwrap().values, [3.0]);
        assert!(Parts::by_name(["train", "tset"].into_iter()).is_err());
    }

    #[test]
    fn a_name_and_a_key_address_the_draw() {
        let draw = |key, name| Parts::draw(50, 0.2, 0.2, Key::root(key), name);
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }
}
