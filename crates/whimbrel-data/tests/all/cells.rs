//! Tables with gaps: long and wide files, labels, splits, hold-out.

use whimbrel_core::{Cell, Key};
use whimbrel_data::{
    CellLayout, CellOptions, CellTable, Entries, Result, Source, hold_out, read_cells,
};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| name.to_string()).collect()
}

fn long(entries: Entries) -> CellOptions {
    CellOptions {
        client: Some("who".into()),
        row: names(&["site"]),
        layout: CellLayout::Long { column: names(&["month"]), value: "count".into() },
        entries,
        ..CellOptions::default()
    }
}

fn read(text: &str, options: &CellOptions) -> Result<CellTable> {
    read_cells(Source::bytes("counts.csv", text.as_bytes()), options)
}

fn refused(text: &str, options: &CellOptions) -> String {
    read(text, options).unwrap_err().to_string()
}

fn triples(cells: &[Cell]) -> Vec<(u32, u32, f64)> {
    cells.iter().map(|c| (c.row, c.column, c.value)).collect()
}

const LONG: &str = "who,site,month,count\nbob,10,2,3\nann,2,10,0\nann,10,10,NA\nbob,2,2,\n\
                    ann,2,1,7\n";

#[test]
fn a_long_file_gives_sorted_labels_and_the_cells_of_each_client() {
    let mut table = read(LONG, &long(Entries::Counts)).unwrap();
    assert_eq!(*table.rows, names(&["2", "10"]));
    assert_eq!(*table.columns, names(&["1", "2", "10"]));
    assert!(table.warnings.is_empty());
    let clients = table.by_client().unwrap();
    let of = |name: &str| triples(&clients.iter().find(|c| c.name == name).unwrap().cells);
    assert_eq!(of("ann"), [(0, 2, 0.0), (0, 0, 7.0)]);
    assert_eq!(of("bob"), [(1, 1, 3.0)]);
}

/// Numbers by value, months as in the calendar, and numbers within text as numbers.
#[test]
fn labels_come_in_their_natural_order() {
    let sorted = |labels: &[&str]| {
        let lines = labels.iter().map(|label| format!("o,{label},1,2\n"));
        let text = format!("who,site,month,count\n{}", lines.collect::<String>());
        read(&text, &long(Entries::Counts)).unwrap().rows.to_vec()
    };
    assert_eq!(sorted(&["10", "2", "-1", "2.5"]), ["-1", "2", "2.5", "10"]);
    assert_eq!(sorted(&["Nov", "feb", "August"]), ["feb", "August", "Nov"]);
    assert_eq!(sorted(&["w10-2", "w2-10", "w2-9"]), ["w2-9", "w2-10", "w10-2"]);
    assert_eq!(sorted(&["b", "a10", "a", "a9", "a09"]), ["a", "a09", "a9", "a10", "b"]);
}

#[test]
fn a_line_without_a_value_may_stand_for_zero() {
    let options = CellOptions { missing_as_zero: true, ..long(Entries::Counts) };
    let table = read(LONG, &options).unwrap();
    assert_eq!(table.cells.len(), 5);
    assert!(triples(&table.cells).contains(&(1, 2, 0.0)));
}

#[test]
fn labels_may_be_put_together_from_several_columns() {
    let text = "site,winter,period,birds\na,2,1,5\na,10,1,6\nb,2,10,7\n";
    let options = CellOptions {
        row: names(&["site"]),
        layout: CellLayout::Long { column: names(&["winter", "period"]), value: "birds".into() },
        ..CellOptions::default()
    };
    let table = read(text, &options).unwrap();
    assert_eq!(*table.columns, names(&["2-1", "2-10", "10-1"]));
    assert_eq!(triples(&table.cells), [(0, 0, 5.0), (0, 2, 6.0), (1, 1, 7.0)]);
}

#[test]
fn two_pairs_that_make_one_label_are_refused() {
    let options = CellOptions {
        client: None,
        row: names(&["site", "plot"]),
        layout: CellLayout::Long { column: names(&["month"]), value: "count".into() },
        ..long(Entries::Counts)
    };
    let text = "site,plot,month,count\nN-1,2,5,1\nN,3,5,2\nN,1-2,5,3\n";
    let why = refused(text, &options);
    assert!(
        why.contains(r#"["N-1", "2"] and ["N", "1-2"] both make the row label "N-1-2""#),
        "{why}"
    );
    assert!(why.contains("line 4") && !why.contains("line 3"), "{why}");
    let known = CellOptions { row_labels: Some(names(&["N-1-2", "N-3"])), ..options };
    assert!(refused(text, &known).contains("both make"));
}

#[test]
fn a_wide_file_is_the_table_itself() {
    let text = "site,1991,1990,note\nb,1,NA,x\na,,4,y\n";
    let wide = |columns: Option<&[&str]>| CellOptions {
        row: names(&["site"]),
        layout: CellLayout::Wide { columns: columns.map(names) },
        ..CellOptions::default()
    };
    let table = read(text, &wide(Some(&["1991", "1990"]))).unwrap();
    assert_eq!(*table.rows, names(&["a", "b"]));
    assert_eq!(*table.columns, names(&["1991", "1990"]));
    assert_eq!(triples(&table.cells), [(1, 0, 1.0), (0, 1, 4.0)]);
    assert_eq!(
        refused(text, &wide(None)),
        "column \"note\" of counts.csv holds text, not numbers\nhint: list the columns of the \
         table in `columns`; for one observation per line, name `column` and `value`"
    );
    let unnamed = CellOptions::default();
    let table = read("y1,y2\n3,\n,5\n", &unnamed).unwrap();
    assert_eq!(*table.rows, names(&["1", "2"]));
    assert_eq!(triples(&table.cells), [(0, 0, 3.0), (1, 1, 5.0)]);
}

#[test]
fn given_labels_keep_their_order_and_refuse_others() {
    let options = CellOptions {
        row_labels: Some(names(&["10", "3", "2"])),
        column_labels: Some(names(&["1", "2", "10"])),
        ..long(Entries::Counts)
    };
    let table = read(LONG, &options).unwrap();
    assert_eq!(*table.rows, names(&["10", "3", "2"]));
    assert_eq!(triples(&table.cells)[0], (0, 1, 3.0));
    let options = CellOptions { row_labels: Some(names(&["10"])), ..options };
    assert_eq!(
        refused(LONG, &options),
        "counts.csv: 3 rows cannot be used
  line 3 (row 2), column \"site\": \"2\" is not in the list of row labels
  line 5 (row 4), column \"site\": \"2\" is not in the list of row labels
  line 6 (row 5), column \"site\": \"2\" is not in the list of row labels
hint: an unobserved cell is empty, NA, or not in the file"
    );
    let twice = CellOptions { row_labels: Some(names(&["a", "a"])), ..long(Entries::Counts) };
    assert_eq!(refused(LONG, &twice), "row label \"a\" is listed twice");
}

#[test]
fn values_that_the_family_cannot_have_are_named_with_their_line() {
    let text = "who,site,month,count\na,1,1,-2\nb,1,2,1.5\nc,1,3,4\nd,,3,1\ne,1,3,inf\nf,1,x\n\
                ,1,3,1\n";
    assert_eq!(
        refused(text, &long(Entries::Counts)),
        "counts.csv: 6 rows cannot be used
  line 2 (row 1), column \"count\": -2 is negative; counts are not
  line 3 (row 2), column \"count\": 1.5 is not whole; counts are
  line 5 (row 4), column \"site\": the value is missing
  line 6 (row 5), column \"count\": \"inf\" is not a finite number
  line 7 (row 6): 3 cells where the header names 4 columns
  line 8 (row 7), column \"who\": the value is missing
hint: correct these cells, or fit other numbers with family = \"gaussian\""
    );
    let message = refused("who,site,month,count\na,1,1,2\n", &long(Entries::Binary));
    assert!(
        message.contains("line 2 (row 1), column \"count\": 2 is neither 0 nor 1"),
        "{message}"
    );
    let message = refused("who,site,month,count\na,1,1,\n", &long(Entries::Counts));
    assert!(message.contains("no cell of the table is observed"), "{message}");
}

#[test]
fn repeated_cells_stay_and_are_counted() {
    let text = "who,site,month,count\na,x,1,2\nb,x,1,3\na,x,1,4\na,x,2,4\na,x,1,9\n";
    let table = read(text, &long(Entries::Counts)).unwrap();
    assert_eq!(table.cells.len(), 5);
    assert_eq!(
        table.warnings,
        ["counts.csv: 2 repeated cells, each counted as a separate observation; the first, row \
          \"x\" and column \"1\", is on line 2 (row 1) and again on line 4 (row 3)"]
    );
}

#[test]
fn a_client_without_observations_is_left_out_and_named() {
    let text = "who,site,month,count\na,x,1,2\nbob,x,1,\nbob,x,2,NA\n";
    let mut table = read(text, &long(Entries::Counts)).unwrap();
    let clients = table.by_client().unwrap();
    assert_eq!(clients.len(), 1);
    assert_eq!(
        table.warnings,
        [
            "counts.csv: client \"bob\" has no observation and is left out; its first line is line 3 \
          (row 2)"
        ]
    );
}

fn grid(rows: u32, columns: u32) -> CellTable {
    let mut text = String::from("site,month,count\n");
    for row in 0..rows {
        (0..columns).for_each(|column| text += &format!("{row},{column},{}\n", row * column));
    }
    let options = CellOptions { client: None, ..long(Entries::Counts) };
    read(&text, &options).unwrap()
}

#[test]
fn splits_deal_out_every_cell_once() {
    let table = grid(23, 4);
    let key = Key::root(3);
    let all = |clients: &[whimbrel_data::CellsOf]| {
        let mut cells: Vec<_> = clients.iter().flat_map(|c| triples(&c.cells)).collect();
        cells.sort_by(f64_last);
        cells
    };
    let mut whole = triples(&table.cells);
    whole.sort_by(f64_last);
    let scattered = table.scattered(5, key).unwrap();
    assert_eq!(all(&scattered), whole);
    assert!(scattered.iter().all(|c| (18..=19).contains(&c.cells.len())));
    let by_rows = table.by_rows(5, key).unwrap();
    assert_eq!(all(&by_rows), whole);
    for client in &by_rows {
        // Whole rows: each row of a client has all of its columns.
        assert!((4 * 4..=5 * 4).contains(&client.cells.len()));
        let mut rows: Vec<u32> = client.cells.iter().map(|c| c.row).collect();
        rows.dedup();
        assert_eq!(4 * rows.len(), client.cells.len());
    }
    assert_ne!(by_rows, table.by_rows(5, Key::root(4)).unwrap());
    assert!(table.by_rows(24, key).unwrap_err().to_string().contains("23 rows"));
}

fn f64_last(a: &(u32, u32, f64), b: &(u32, u32, f64)) -> std::cmp::Ordering {
    (a.0, a.1).cmp(&(b.0, b.1))
}

#[test]
fn observations_of_one_cell_are_held_out_together() {
    let mut cells = grid(10, 8).cells;
    let again: Vec<Cell> = cells.iter().map(|c| Cell { value: c.value + 1.0, ..*c }).collect();
    cells.extend(again);
    let (kept, hidden) = hold_out(cells, 0.3, Key::root(7), "ann");
    let places = |cells: &[Cell]| -> Vec<(u32, u32)> {
        let mut places: Vec<_> = cells.iter().map(|c| (c.row, c.column)).collect();
        places.dedup();
        places
    };
    assert_eq!((kept.len(), hidden.len()), (112, 48), "0.3 of 80 cells, each observed twice");
    assert_eq!((places(&kept).len(), places(&hidden).len()), (56, 24));
    assert!(places(&hidden).iter().all(|place| !places(&kept).contains(place)));
}

#[test]
fn the_hold_out_depends_on_the_name_and_the_cells_alone() {
    let cells = grid(20, 5).cells;
    let key = Key::root(9);
    let (kept, hidden) = hold_out(cells.clone(), 0.25, key, "ann");
    assert_eq!(hidden.len(), 25);
    assert_eq!(kept.len(), 75);
    let mut shuffled = cells.clone();
    Key::root(1).stream().shuffle(&mut shuffled);
    assert_eq!(hold_out(shuffled, 0.25, key, "ann"), (kept, hidden.clone()));
    assert_ne!(hold_out(cells.clone(), 0.25, key, "bob").1, hidden);
    assert_ne!(hold_out(cells.clone(), 0.25, Key::root(8), "ann").1, hidden);
    // One cell always stays; without a share nothing is hidden.
    assert_eq!(hold_out(cells[..1].to_vec(), 0.99, key, "ann").0.len(), 1);
    assert_eq!(hold_out(cells.clone(), 0.0, key, "ann").1, []);
    // A client of few cells hides its share on average: 400 clients of 5 cells hide 200 of 2000
    // within five standard deviations (sqrt(400 * 0.5 * 0.5) = 10).
    let hidden: usize =
        (0..400).map(|i| hold_out(cells[..5].to_vec(), 0.1, key, &format!("c{i}")).1.len()).sum();
    assert!((150..=250).contains(&hidden), "{hidden}");
}
