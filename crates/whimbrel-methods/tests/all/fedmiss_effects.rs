//! Main effects of classes of rows and columns.

use crate::fedmiss::{COLUMNS, ROWS, Setup, clients, setups};
use whimbrel_core::Key;
use whimbrel_models::lowrank::{Classes, Effects, Lines, Settings, Term};
use whimbrel_testkit::method::{MethodUnderTest, laws};

/// Effects of classes of rows and columns, with a slope: the same bits in every runner.
#[test]
fn battery_with_effects_of_classes() {
    let classes = |count: usize, lines: usize| {
        let of = (0..lines).map(|line| (line % count) as u32).collect();
        Lines::of(Classes::Of { count, of })
    };
    let slope = Lines {
        classes: Classes::All,
        weights: (0..ROWS).map(|row| row as f64 / ROWS as f64 - 0.5).collect(),
    };
    let all = || Lines::of(Classes::All);
    let term = |name: &str, sides| Term { name: name.into(), sides };
    let effects = Effects::of(vec![
        term("kind", [classes(3, ROWS), all()]),
        term("row:season", [Lines::of(Classes::Each), classes(2, COLUMNS)]),
        term("slope", [slope, all()]),
        Term::column(),
    ]);
    for setup in setups() {
        let family = setup.settings.family;
        let data = clients(family, 4, 25, Key::root(22));
        let name = format!("fedmiss with effects, {}, {}", family.name(), setup.codec.name());
        let ridges = vec![0.01, 0.1, 0.2, 0.05];
        let base = setup.settings.clone();
        let settings = Settings { effects: effects.clone(), term_ridges: ridges, ..base };
        let setup = Setup { rounds: 3, settings, ..setup };
        laws(&MethodUnderTest { name: &name, method: &*setup.method(), data: &data, exchanges: 6 });
    }
}
