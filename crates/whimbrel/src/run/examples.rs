//! Simulated data of the guides, each with a job: `whimbrel data make`.

use std::fmt::Write as _;
use whimbrel_core::{Key, math};

/// A folder of simulated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// Counts of a bird by five groups of observers, with gaps.
    Birds,
    /// Patients of 24 wards, whose risks differ by ward.
    Visits,
    /// Laboratory values of three hospitals, a file each.
    Hospitals,
}

/// A file: its name and its text.
pub type File = (String, String);

impl Example {
    /// All examples.
    pub const ALL: [Self; 3] = [Self::Birds, Self::Visits, Self::Hospitals];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Birds => "birds",
            Self::Visits => "visits",
            Self::Hospitals => "hospitals",
        }
    }

    /// A description in one line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Birds => {
                "counts at 40 sites over 24 months by four observers, with gaps, and a fifth observer"
            }
            Self::Visits => "patients of 24 wards with an outcome, and a new ward",
            Self::Hospitals => "laboratory values of three hospitals, a file each",
        }
    }

    /// The files. Equal seeds give equal files.
    pub fn files(self, seed: u64) -> Vec<File> {
        let key = Key::root(seed).child(self as u64);
        let (job, mut files) = match self {
            Self::Birds => (include_str!("examples/birds.toml"), birds(key)),
            Self::Visits => (include_str!("examples/visits.toml"), visits(key)),
            Self::Hospitals => (include_str!("examples/hospitals.toml"), hospitals(key)),
        };
        files.push(("job.toml".into(), job.into()));
        files
    }
}

const SITES: usize = 40;
const MONTHS: usize = 24;
const OBSERVERS: [&str; 5] = ["anna", "ben", "carla", "dora", "emil"];

/// Counts with effects of sites and months, one seasonal factor that separates coast and inland, and
/// flocks (gamma-Poisson with shape 4). Each observer visits two fifths of the sites, each in half of
/// the months. The last observer is not in `counts.csv`.
fn birds(key: Key) -> Vec<File> {
    let mut effects = key.child(0).stream();
    let site: Vec<[f64; 2]> = (0..SITES)
        .map(|i| [2.0 + 0.8 * effects.normal(), if i.is_multiple_of(2) { 0.9 } else { -0.9 }])
        .collect();
    let month: Vec<[f64; 2]> = (0..MONTHS)
        .map(|t| {
            // The sine of the season from its values at quarters: no host library enters the files.
            let season =
                [0.0, 0.5, 0.866, 1.0, 0.866, 0.5][t % 6] * if t % 12 < 6 { 1.0 } else { -1.0 };
            [0.2 * effects.normal(), season]
        })
        .collect();
    let name =
        |i: usize| format!("{} {}", if i.is_multiple_of(2) { "bay" } else { "pond" }, i / 2 + 1);
    let head = "observer,site,month,count\n";
    let mut files: Vec<File> = Vec::new();
    let mut all = String::from(head);
    for (who, observer) in OBSERVERS.iter().enumerate() {
        let mut stream = key.child(1).child(who as u64).stream();
        let mut own = String::from(head);
        for i in (0..SITES).filter(|i| (i + 8 * who) % SITES < 16) {
            for (t, [level, season]) in month.iter().enumerate() {
                if stream.uniform() < 0.5 {
                    continue;
                }
                let mean = math::exp(site[i][0] + level + site[i][1] * season);
                let flock = stream.gamma(4.0) / 4.0;
                let count = stream.poisson(mean * flock);
                let _ = writeln!(own, "{observer},{},{},{count}", name(i), t + 1);
            }
        }
        if who + 1 < OBSERVERS.len() {
            all.push_str(&own[head.len()..]);
        }
        files.push((format!("{observer}.csv"), own));
    }
    let sites: String = (0..SITES).map(|i| name(i) + "\n").collect();
    files.push(("counts.csv".into(), all));
    files.push(("sites.txt".into(), sites));
    files
}

/// Patients whose risk rises with age and lactate in some wards, and with glucose in the others; most
/// wards have both kinds.
fn visits(key: Key) -> Vec<File> {
    let head = "ward,age,glucose,lactate,outcome\n";
    let rows = |ward: &str, key: Key, count: usize| {
        let mut stream = key.stream();
        let share = stream.dirichlet(&[0.3, 0.3])[0];
        let mut text = String::new();
        for _ in 0..count {
            let [age, glucose, lactate] = [stream.normal(), stream.normal(), stream.normal()];
            let logit = if stream.uniform() < share {
                2.5 * age + 2.5 * lactate
            } else {
                3.5 * glucose - 1.5 * age
            };
            let sick = stream.uniform() < 1.0 / (1.0 + math::exp(-logit));
            let _ = writeln!(
                text,
                "{ward},{:.0},{:.1},{:.1},{}",
                55.0 + 12.0 * age,
                6.5 + 1.2 * glucose,
                2.0 + 0.5 * lactate,
                if sick { "yes" } else { "no" }
            );
        }
        text
    };
    let all: String = (1..=24)
        .map(|t| rows(&format!("ward-{t:02}"), key.child(t), 60 + 10 * (t as usize % 6)))
        .collect();
    let new = rows("ward-25", key.child(25), 120);
    let (known, later) = new.split_at(new.match_indices('\n').nth(79).map_or(0, |(at, _)| at + 1));
    let file = |name: &str, text: &str| (name.to_owned(), format!("{head}{text}"));
    vec![file("visits.csv", &all), file("new-ward.csv", known), file("later.csv", later)]
}

/// Three overlapping groups of patients, in shares that differ by hospital.
fn hospitals(key: Key) -> Vec<File> {
    const GROUPS: [[f64; 4]; 3] =
        [[42.0, 140.0, 4.2, 80.0], [68.0, 136.0, 4.6, 105.0], [74.0, 131.0, 5.2, 160.0]];
    const SPREADS: [f64; 4] = [10.0, 3.0, 0.45, 22.0];
    let shares =
        [("north", [0.7, 0.2, 0.1]), ("south", [0.3, 0.5, 0.2]), ("west", [0.1, 0.4, 0.5])];
    let file = |(at, (name, shares)): (u64, (&str, [f64; 3]))| {
        let mut stream = key.child(at).stream();
        let mut text = String::from("age,sodium,potassium,creatinine\n");
        for _ in 0..200 + 100 * at {
            let group = GROUPS[stream.categorical(&shares)];
            let mut draw = |j: usize| group[j] + SPREADS[j] * stream.normal();
            let [age, sodium, potassium, creatinine] = [draw(0), draw(1), draw(2), draw(3)];
            let _ = writeln!(text, "{age:.0},{sodium:.0},{potassium:.1},{creatinine:.0}");
        }
        (format!("{name}.csv"), text)
    };
    (0..).zip(shares).map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_files_and_others_do_not() {
        for example in Example::ALL {
            let files = example.files(1);
            assert_eq!(files, example.files(1), "{example:?}");
            assert_ne!(files, example.files(2), "{example:?}");
            assert!(files.iter().all(|(_, text)| text.lines().count() > 10), "{example:?}");
        }
    }

    #[test]
    fn a_new_observer_and_a_new_ward_are_not_among_the_rows() {
        let text = |example: Example, name: &str| {
            let files = example.files(1);
            files.into_iter().find(|(file, _)| file == name).expect("a file").1
        };
        assert!(!text(Example::Birds, "counts.csv").contains("emil"));
        assert!(!text(Example::Visits, "visits.csv").contains("ward-25"));
        assert_eq!(text(Example::Visits, "new-ward.csv").lines().count(), 81);
        assert_eq!(text(Example::Visits, "later.csv").lines().count(), 41);
    }
}
