//! A completed table as a CSV file.

use super::Estimate;
use crate::files::quoted;
use std::io::{self, Write};

/// Digits of estimates and draws: more would be noise.
const DIGITS: usize = 6;

/// What can be written about a table, cell by cell.
pub trait Sheet {
    /// Labels of the rows.
    fn rows(&self) -> &[String];
    /// Labels of the columns.
    fn columns(&self) -> &[String];
    /// What is said about a cell.
    fn estimate(&self, row: usize, column: usize) -> Estimate;
    /// Whether it is known which cells were observed.
    fn is_seen(&self) -> bool;
    /// What was observed there.
    fn value(&self, row: usize, column: usize) -> Option<f64>;
    /// Whether it was observed and kept out of the fit.
    fn is_held_out(&self, row: usize, column: usize) -> bool;
    /// Its value in one imputation, counted from 1, where it was not observed.
    fn draw(&self, row: usize, column: usize, number: u32) -> f64;
}

/// One line for each cell; with `draws` imputations beside it.
pub fn write_long(sheet: &dyn Sheet, draws: u32, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "row,column,observed,value,estimate,se,lower,upper")?;
    (1..=draws).try_for_each(|k| write!(out, ",draw_{k}"))?;
    writeln!(out)?;
    let columns: Vec<String> = sheet.columns().iter().map(|name| quoted(name)).collect();
    let unseen = if sheet.is_seen() { "no" } else { "unknown" };
    for (row, name) in sheet.rows().iter().enumerate() {
        let name = quoted(name);
        for (column, label) in columns.iter().enumerate() {
            let Estimate { mean, sd, lower, upper } = sheet.estimate(row, column);
            let value = sheet.value(row, column);
            match value {
                Some(value) if sheet.is_held_out(row, column) => {
                    write!(out, "{name},{label},held-out,{value}")?;
                }
                Some(value) => write!(out, "{name},{label},yes,{value}")?,
                None => write!(out, "{name},{label},{unseen},")?,
            }
            for x in [mean, sd, lower, upper] {
                write!(out, ",{}", brief(x))?;
            }
            for k in 1..=draws {
                match value {
                    Some(value) => write!(out, ",{value}")?,
                    None => write!(out, ",{}", brief(sheet.draw(row, column, k)))?,
                }
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// The table itself: what was observed, and estimates where nothing was.
pub fn write_wide(sheet: &dyn Sheet, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "row")?;
    sheet.columns().iter().try_for_each(|name| write!(out, ",{}", quoted(name)))?;
    writeln!(out)?;
    for (row, name) in sheet.rows().iter().enumerate() {
        write!(out, "{}", quoted(name))?;
        for column in 0..sheet.columns().len() {
            match sheet.value(row, column) {
                Some(value) => write!(out, ",{value}")?,
                None => write!(out, ",{}", brief(sheet.estimate(row, column).mean))?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Six significant digits, the shortest way to write them.
fn brief(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    format!("{x:.*e}", DIGITS - 1).parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Small {
        rows: Vec<String>,
        columns: Vec<String>,
    }

    impl Sheet for Small {
        fn rows(&self) -> &[String] {
            &self.rows
        }
        fn columns(&self) -> &[String] {
            &self.columns
        }
        fn estimate(&self, row: usize, column: usize) -> Estimate {
            let mean = row as f64 + column as f64 / 3.0;
            Estimate { mean, sd: 0.5, lower: mean - 1.0, upper: mean + 1e-9 }
        }
        fn is_seen(&self) -> bool {
            true
        }
        fn value(&self, row: usize, column: usize) -> Option<f64> {
            (row == column).then_some(0.1 + 0.2)
        }
        fn is_held_out(&self, row: usize, column: usize) -> bool {
            (row, column) == (1, 1)
        }
        fn draw(&self, row: usize, column: usize, number: u32) -> f64 {
            (100 * number) as f64 + (10 * row + column) as f64
        }
    }

    fn text(write: impl Fn(&Small, &mut Vec<u8>) -> io::Result<()>) -> String {
        let names = |list: [&str; 2]| list.map(String::from).to_vec();
        let small = Small { rows: names(["a", "b,c"]), columns: names(["1", "2"]) };
        let mut out = Vec::new();
        write(&small, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_cell_has_a_line_and_observed_ones_stay_as_they_are() {
        let long = text(|small, out| write_long(small, 2, out));
        assert_eq!(
            long,
            "row,column,observed,value,estimate,se,lower,upper,draw_1,draw_2\n\
             a,1,yes,0.30000000000000004,0,0.5,-1,0.000000001,0.30000000000000004,\
             0.30000000000000004\n\
             a,2,no,,0.333333,0.5,-0.666667,0.333333,101,201\n\
             \"b,c\",1,no,,1,0.5,0,1,110,210\n\
             \"b,c\",2,held-out,0.30000000000000004,1.33333,0.5,0.333333,1.33333,0.30000000000000004,\
             0.30000000000000004\n"
        );
        let wide = text(|small, out| write_wide(small, out));
        assert_eq!(
            wide,
            "row,1,2\na,0.30000000000000004,0.333333\n\"b,c\",1,0.30000000000000004\n"
        );
    }
}
