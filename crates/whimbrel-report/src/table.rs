//! Aligned plain-text tables for a terminal.

use unicode_width::UnicodeWidthStr;

/// A table with a header line and a rule; columns of numbers are right-aligned.
///
/// Short rows are padded, long rows cut. Control characters are replaced, so that a job's name cannot
/// move the cursor.
pub fn text_table(headers: &[&str], rows: &[Vec<String>]) -> String {
    let clean = |text: &str| -> String {
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    };
    let cell = |row: &[String], column: usize| clean(row.get(column).map_or("", String::as_str));
    let columns: Vec<(usize, bool)> = headers
        .iter()
        .enumerate()
        .map(|(column, header)| {
            let cells = || rows.iter().map(|row| cell(row, column));
            let widest = cells().map(|text| text.width()).max().unwrap_or(0);
            let numeric = column > 0 && cells().all(|text| looks_numeric(&text));
            (widest.max(clean(header).width()), numeric)
        })
        .collect();

    let line = |cells: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for (column, &(wide, right)) in columns.iter().enumerate() {
            let text = cells(column);
            let pad = " ".repeat(wide - text.width());
            let gap = if column == 0 { "" } else { "  " };
            let (before, after) = if right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.push_str(&format!("{gap}{before}{text}{after}"));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    };

    let mut table = line(&|column| clean(headers[column]));
    table.push_str(&line(&|column| "-".repeat(columns[column].0)));
    for row in rows {
        table.push_str(&line(&|column| cell(row, column)));
    }
    table
}

fn looks_numeric(text: &str) -> bool {
    let text = text.trim_start_matches("log10: ").trim_start_matches(['-', '+', '−', '<', '~']);
    text.is_empty()
        || text == "never"
        || text.starts_with(|c: char| c.is_ascii_digit() || c == '–' || c == '∞')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
        cells.iter().map(|row| row.iter().map(|text| text.to_string()).collect()).collect()
    }

    #[test]
    fn columns_align() {
        let rows = rows(&[
            &["em", "0", "4.2e-16", "pooled"],
            &["fedem, 1 level", "-1.3e-12", "–", "達"],
            &["dem", "12"],
        ]);
        insta::assert_snapshot!(text_table(&["job", "gap", "‖h‖²", "note"], &rows), @r"
        job                  gap     ‖h‖²  note
        --------------  --------  -------  ------
        em                     0  4.2e-16  pooled
        fedem, 1 level  -1.3e-12        –  達
        dem                   12
        ");
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let table = text_table(&["job"], &rows(&[&["\u{1b}[2Jx\ny"]]));
        assert!(!table.contains('\u{1b}'));
        assert_eq!(table.lines().count(), 3);
    }

    #[test]
    fn no_rows_and_no_columns() {
        assert_eq!(text_table(&["a"], &[]), "a\n-\n");
        assert_eq!(text_table(&[], &[]), "\n\n");
    }
}
