//! Fisher scoring: laws, runners, and independence of the split.

use crate::federation::*;
use whimbrel_core::{ClientData, Erased, Table};
use whimbrel_engine::Faults;
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::masked::{BindMasked, MaskSecret, Masked, Masks, Trust};
use whimbrel_methods::newton::Newton;
use whimbrel_methods::pooled::ExactSums;
use whimbrel_models::glm::{Asked, Design, Errors, Factor, Family, Model, Term};
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
            let method = newton(family, errors, tests, &tables[0]);
            let data: Vec<ClientData> = tables.into_iter().map(ClientData::Table).collect();
            let name = format!("newton, {family:?}, tests: {tests}");
            let exact = |masks| ExactSums { method: method.clone(), masks };
            let erased = Erased(exact(None), BindRows);
            laws(&MethodUnderTest { name: &name, method: &erased, data: &data, exchanges: 5 });
            runners_agree(&name, erased, &data);
            let masks = Masks {
                least: 8,
                clients: 8,
                seed: 1,
                secret: MaskSecret::Simulated,
                trust: Trust::default(),
            };
            let masked = Masked::new(exact(Some(masks)), &masks);
            // A round without all clients is void.
            let faults = Faults { lost: 0.02, ..Faults::default() };
            let name = format!("{name}, under masks");
            runners_agree_under(&name, Erased(masked, BindMasked(BindRows)), &data, faults);
        }
    }
}
