//! The first look at a file.

use crate::read;
use whimbrel_data::{ColumnSummary, inspect};

#[test]
fn the_text_shows_shape_columns_gaps_and_clients() {
    let mut text = String::from("ward,age,dose,note,constant\n");
    for i in 0..60usize {
        let ward = ["east", "north", "north", "west", "west", "west"][i % 6];
        let dose = if i % 20 == 3 { "NA".into() } else { format!("{:.3}", i as f64 * 1e-3) };
        let age = if i == 7 { "old".into() } else { (20 + i).to_string() };
        text.push_str(&format!("{ward},{age},{dose},free text {i},1e12\n"));
    }
    let data = read(&text).unwrap();
    let look = inspect(&data, Some("ward")).unwrap();
    assert_eq!(
        look.to_string(),
        "data.csv: 60 rows, 5 columns (3 of numbers, 2 of text), 4 missing cells

  column    type     missing          min         mean          max
  ward      text           0  3 values: west (30), north (20), east (10)
  age       number         1           20      49.8814           79
  dose      number         3            0    0.0298421        0.059
  note      text           0  60 values: free text 0 (1), free text 1 (1), free text 10 (1), ...
  constant  number         0     1.000e12     1.000e12     1.000e12

3 clients (column \"ward\"), 10 to 30 rows each, median 20

         rows  clients
    10 -   12  ████████████████████████████████████████ 1
    13 -   15  0
    16 -   18  0
    19 -   21  ████████████████████████████████████████ 1
    22 -   24  0
    25 -   27  0
    28 -   30  ████████████████████████████████████████ 1

1 unreadable cell; the first rows:
  line 9 (row 8), column \"age\": \"old\" is not a number
"
    );
    assert_eq!(look.clients.unwrap().sizes[1], ("north".into(), 20));
    assert_eq!(look.unreadable_cells, 1);
    let ColumnSummary::Number { missing, range: Some((low, _, high)), .. } = &look.columns[1]
    else {
        panic!("age is a column of numbers")
    };
    assert_eq!((*missing, *low, *high), (1, 20.0, 79.0));
}

#[test]
fn clients_alike_fill_one_bin_and_empty_columns_say_so() {
    let data = read("client,x,gap\na,1,\nb,2,\n").unwrap();
    let text = inspect(&data, Some("client")).unwrap().to_string();
    assert!(text.contains("  gap     number         2  no values\n"), "{text}");
    assert!(
        text.ends_with(
            "       rows  clients\n     1 -    1  ████████████████████████████████████████ 2\n"
        ),
        "{text}"
    );
}

#[test]
fn damage_is_shown_instead_of_failing() {
    let data = read("client,x\na,1\n,2\nb\na,no\nb,4\n").unwrap();
    let text = inspect(&data, Some("client")).unwrap().to_string();
    assert!(
        text.contains(
            "2 clients (column \"client\"), 1 to 2 rows each, median 1.5\n\n  2 rows without a client\n"
        ),
        "{text}"
    );
    assert!(
        text.ends_with(
            "
1 unreadable cell, 1 row of the wrong length; the first rows:
  line 4 (row 3): 1 cell where the header names 2 columns
  line 5 (row 4), column \"x\": \"no\" is not a number
"
        ),
        "{text}"
    );
}

#[test]
fn means_do_not_overflow() {
    let data = read("x\n1e308\n1e308\n1e308\n").unwrap();
    let look = inspect(&data, None).unwrap();
    let ColumnSummary::Number { range: Some((_, mean, _)), .. } = look.columns[0] else {
        panic!("x is a column of numbers")
    };
    assert!((mean / 1e308 - 1.0).abs() < 1e-15);
}
