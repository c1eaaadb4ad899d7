//! Fisher scoring: laws, runners, and independence of the split.

use crate::federation::*;
use whimbrel_core::{ClientData, Erased, Table};
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
    let term = |column: usize| Term {
        name: columns[column].clone(),
        factors: vec![Factor { column, levels: Vec::new(), reference: 0 }],
    };
    let terms = (1..columns.len()).map(term).collect();
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
