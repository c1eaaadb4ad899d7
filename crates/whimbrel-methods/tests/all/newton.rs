//! Fisher scoring: laws, runners, independence of the split, and rows read from its sums.

use crate::attacks::normal;
use crate::federation::*;
use whimbrel_core::linalg::packed_index;
use whimbrel_core::{ClientData, Erased, Table, Wire};
use whimbrel_engine::Faults;
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::masked::{BindMasked, MaskSecret, Masked, Masks, Trust};
use whimbrel_methods::newton::Newton;
use whimbrel_methods::pooled::{ExactSums, Pooled};
use whimbrel_models::glm::{Asked, Design, Errors, Factor, Family, Model, Scaling, Term};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::runners::{runners_agree, runners_agree_under};

/// The regression of a table's first column on the others.
fn newton(family: Family, errors: Errors, tests: bool, table: &Table) -> Newton {
    let columns = table.columns.to_vec();
    let factor = |column| Factor { column, levels: Vec::new(), reference: 0 };
    let term =
        |column: usize| Term { name: columns[column].clone(), factors: vec![factor(column)] };
    let mut terms: Vec<Term> = (1..columns.len()).map(term).collect();
    // The test of the column leaves its square out.
    let square = || Term { name: "square".into(), factors: vec![factor(1), factor(1)] };
    terms.extend(tests.then(square));
    let intercept = family != Family::Cox;
    let design = Design { intercept, terms, columns, ..Design::default() };
    Newton {
        model: Model { family, design, by_client: false },
        ridge: 0.0,
        asked: Asked { errors, heterogeneity: tests, frequencies: false, min_group: 1 },
        tests,
        rounds: 30,
        min_group: None,
        baseline: false,
    }
}

/// Unequal clients, with a first column in the family's domain.
fn rows(clients: usize, family: Family) -> Vec<Table> {
    let mut tables = unequal(clients);
    for table in &mut tables {
        let width = table.width();
        for y in table.values.iter_mut().step_by(width) {
            *y = match family {
                Family::Gaussian => *y,
                Family::Binomial => f64::from(u8::from(*y > 0.3)),
                _ => 0.25 + y.abs(),
            };
        }
    }
    tables
}

#[test]
fn the_laws_hold_and_runners_agree() {
    let families = [
        (Family::Gaussian, Errors::Robust),
        (Family::Binomial, Errors::Clustered),
        (Family::Cox, Errors::Model),
    ];
    for (family, errors) in families {
        for tests in [false, true] {
            let tables = rows(8, family);
            let mut method = newton(family, errors, tests, &tables[0]);
            let data: Vec<ClientData> = tables.into_iter().map(ClientData::Table).collect();
            let name = format!("newton, {family:?}, tests: {tests}");
            let exact = |method: &Newton, masks| ExactSums { method: method.clone(), masks };
            let masks = Masks {
                least: 8,
                clients: 8,
                seed: 1,
                secret: MaskSecret::Simulated,
                trust: Trust::default(),
            };
            let masked = Masked::new(exact(&method, Some(masks)), &masks);
            method.baseline = family == Family::Cox;
            let erased = Erased(exact(&method, None), BindRows);
            laws(&MethodUnderTest { name: &name, method: &erased, data: &data, exchanges: 5 });
            runners_agree(&name, erased, &data);
            // A round without all clients is void.
            let faults = Faults { lost: 0.02, ..Faults::default() };
            let name = format!("{name}, under masks");
            runners_agree_under(&name, Erased(masked, BindMasked(BindRows)), &data, faults);
        }
    }
}

/// A step of a baseline hazard joins the events of successive times: enough of them, at their mean time, with
/// the exact hazard at the last one.
#[test]
fn a_step_of_a_baseline_hazard_rests_on_a_group_of_events() {
    let mut table = rows(8, Family::Cox).remove(0);
    rows(8, Family::Cox).iter().skip(1).for_each(|more| table.values.extend(&more.values));
    let mut method = newton(Family::Cox, Errors::Model, false, &table);
    let data = method.read(&ClientData::Table(table)).unwrap();
    let width = method.model.design.width();
    let scaling = Scaling { means: vec![0.3; width], scales: vec![2.0; width] };
    let hazard = |least, most| {
        method
            .model
            .baseline(&data, &scaling, &vec![0.2; width], least, most)
            .as_chunks::<2>()
            .0
            .to_vec()
    };
    let exact = hazard(1, 10_000);
    let events = |time: f64| data.y.iter().filter(|y| **y == time).count() as f64;
    assert_eq!(exact.iter().map(|step| events(step[0])).sum::<f64>(), data.len() as f64);
    for (least, most) in [(5, 10_000), (1, 7)] {
        let (mut own, group) = (exact.iter(), (data.len() as f64 / most as f64).max(least as f64));
        let steps = hazard(least, most);
        for [time, hazard] in &steps {
            let (mut count, mut sum) = (0.0, 0.0);
            for step in own.by_ref() {
                (count, sum) = (count + events(step[0]), sum + events(step[0]) * step[0]);
                if step[1] == *hazard {
                    break;
                }
            }
            assert!(count >= group && (sum / count - time).abs() < 1e-12 * time, "{count} {time}");
        }
        assert!(own.next().is_none() && steps.len() <= most && steps.len() > 2, "{steps:?}");
    }
    assert!(hazard(data.len() + 1, 10).is_empty());
    let told =
        |method: &Newton| method.declare().disclosures[1].meaning.contains("cumulative hazard");
    assert!(!told(&method));
    method.baseline = true;
    assert!(told(&method));
}

/// Rows that a coordinator reads exactly from sums over clients of 200 rows, which it may choose coefficients for.
/// Steep ones leave each level of a factor one row with a working weight, whose cells are quotients of the level's
/// entries of the information. It knows one of three columns up to 0.001, and aims at rows of all clients, since
/// clients in which fewer than `min_group` rows have weight answer at another point.
fn read_by_levels(clients: usize, levels: usize, questions: usize) -> usize {
    let (n, steep) = (200, 2e3);
    let cells = normal(3 * n * clients, 31);
    let cells: Vec<&[f64]> = cells.chunks_exact(3).collect();
    let flips = normal(2 * n * clients, 32);
    let level = |row: usize| row % n % levels;
    let columns: Vec<String> = ["y", "g", "a", "b", "c"].map(String::from).into();
    let names = (0..levels).map(|k| format!("{k:02}")).collect::<Vec<_>>();
    let term = |column: usize| {
        let levels = if column == 1 { names.clone() } else { Vec::new() };
        Term {
            name: columns[column].clone(),
            factors: vec![Factor { column, levels, reference: 0 }],
        }
    };
    let terms = (1..columns.len()).map(term).collect();
    let table = |client: usize| {
        let row = |at: usize| {
            let y = f64::from(u8::from(0.5 * cells[at][0] + flips[at] > 0.0));
            [y, level(at) as f64, cells[at][0], cells[at][1], cells[at][2]]
        };
        let values = (client * n..(client + 1) * n).flat_map(row).collect();
        Table::new(columns.clone(), values).unwrap()
    };
    let tables: Vec<Table> = (0..clients).map(table).collect();
    let mut method = newton(Family::Binomial, Errors::Model, false, &tables[0]);
    method.model.design = Design { terms, ..method.model.design };
    method.min_group = Some(5);
    let data: Vec<_> =
        tables.into_iter().map(|table| method.read(&ClientData::Table(table)).unwrap()).collect();
    let (width, a) = (method.model.design.width(), levels);
    let scaling = (Some(vec![0.0; width]), Some(vec![1.0; width]));
    let mut read = vec![false; n * clients];
    for question in 0..questions {
        let aim = |k: usize| {
            let client = (k + question) % clients;
            let own = client * n + k + levels * (question / clients);
            let row = if own < (client + 1) * n { own } else { client * n + k };
            steep * (cells[row][0] + 1e-3 * flips[n * clients + row])
        };
        let mut point = vec![-aim(0)];
        point.extend((1..levels).map(|k| aim(0) - aim(k)));
        point.extend([steep, 0.0, 0.0]);
        let down = (scaling.clone(), (vec![point], false)).to_bytes();
        let down = <Newton as Pooled>::Ask::from_bytes(&down).unwrap();
        let answers: Vec<Vec<f64>> =
            data.iter().map(|rows| method.sums(&down, rows).unwrap()).collect();
        let length = answers[0].len();
        let pooled: Vec<f64> =
            (0..length).map(|at| answers.iter().map(|up| up[at]).sum()).collect();
        // After the counts: log-likelihood, rows without one, score, information.
        let information = &pooled[4 + 2 + width + 1..];
        let entries = |i: usize| [i, a, a + 1, a + 2].map(|j| information[packed_index(i, j)]);
        let mut sums: Vec<[f64; 4]> = (1..levels).map(entries).collect();
        let all = [0, a, a + 1, a + 2].map(|j| information[packed_index(0, j)]);
        sums.push(std::array::from_fn(|j| all[j] - sums.iter().map(|own| own[j]).sum::<f64>()));
        for own in sums.iter().filter(|own| own[0] > 1e-9) {
            let near = |row: &&[f64]| (0..3).all(|j| (row[j] - own[1 + j] / own[0]).abs() < 1e-6);
            cells.iter().position(near).into_iter().for_each(|at| read[at] = true);
        }
    }
    read.into_iter().filter(|read| *read).count()
}

/// Masks leave the coordinator sums over all clients. Of them it can read rows if factors have many levels.
#[test]
fn rows_within_levels_of_a_factor() {
    let alone = read_by_levels(1, 20, 10);
    let pooled = [4, 20, 40].map(|levels| read_by_levels(5, levels, 50));
    println!("20 levels, 10 questions: {alone} of 200 rows of one client");
    println!("4, 20, 40 levels, 50 questions: {pooled:?} of 1,000 rows of five clients");
    assert!(alone > 150 && pooled[0] == 0, "{alone} {pooled:?}");
}
