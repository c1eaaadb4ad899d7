//! Tables with gaps in a federation: each observer reads its own file against the labels that were
//! offered, keeps the same cells out as in the simulation, and the fit ends in the same bits.

use crate::network::Wards;
use crate::{has, parse};
use std::fmt::Write as _;
use std::fs;
use whimbrel_core::math::exp;
use whimbrel_core::{ClientData, Key};
use whimbrel_families::load::load;
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_testkit::pairs;

const OBSERVERS: [&str; 4] = ["ana", "ben", "cleo", "dora"];
const SITES: usize = 12;
const MONTHS: usize = 8;

/// What one observer counted at a site in each month.
type Line = [Option<u64>; MONTHS];

/// Counts by site and observer. The last site is seen by nobody, and one cell by two observers.
fn counts() -> Vec<[Line; OBSERVERS.len()]> {
    let mut stream = Key::root(5).stream();
    let mut sites = Vec::new();
    for site in 0..SITES {
        let mut lines = [[None; MONTHS]; OBSERVERS.len()];
        let size = 1.0 + stream.normal() / 2.0;
        (0..MONTHS).for_each(|month| {
            let mean = exp(size + 0.1 * month as f64);
            let (observer, count) = (stream.below(4) as usize, stream.poisson(mean));
            if stream.uniform() < 0.8 && site + 1 < SITES {
                lines[observer][month] = Some(count);
            }
        });
        sites.push(lines);
    }
    sites[0][0][0] = Some(3);
    sites[0][1][0] = Some(5);
    sites
}

/// Observers with their own files and one file of everybody, long or wide.
fn observers(wide: bool) -> Wards {
    let folder = tempfile::tempdir().unwrap();
    let months: Vec<String> = (1..=MONTHS).map(|month| format!("m{month}")).collect();
    let header =
        if wide { format!("site,{}", months.join(",")) } else { "site,month,count".into() };
    let mut all = format!("observer,{header}\n");
    let mut files = Vec::new();
    for (o, name) in OBSERVERS.into_iter().enumerate() {
        // Some keep the column with their name, some never had it.
        let keeps = o % 2 == 0;
        let mut own = if keeps { format!("observer,{header}\n") } else { format!("{header}\n") };
        let mut put = |line: &str| {
            writeln!(all, "{name},{line}").unwrap();
            own += &if keeps { format!("{name},{line}\n") } else { format!("{line}\n") };
        };
        for (site, lines) in counts().iter().enumerate() {
            let text = |count: &Option<u64>| count.map_or(String::new(), |count| count.to_string());
            let cells: Vec<String> = lines[o].iter().map(text).collect();
            if wide {
                put(&format!("s{},{}", site + 1, cells.join(",")));
                continue;
            }
            for (month, count) in months.iter().zip(cells).filter(|(_, count)| !count.is_empty()) {
                put(&format!("s{},{month},{count}", site + 1));
            }
        }
        let path = folder.path().join(format!("{name}.csv"));
        fs::write(&path, own).unwrap();
        files.push((name.to_owned(), path));
    }
    fs::write(folder.path().join("all.csv"), all).unwrap();
    let sites: String = (1..=SITES).map(|site| format!("s{site}\n")).collect();
    fs::write(folder.path().join("sites.txt"), sites).unwrap();
    Wards { folder, files }
}

const MONTH_LABELS: &str = "[\"m1\", \"m2\", \"m3\", \"m4\", \"m5\", \"m6\", \"m7\", \"m8\"]";

fn text(data: &str, model: &str, method: &str) -> String {
    format!(
        "seed = 9\n[federation]\nclients = [\"dora\", \"ana\", \"ben\", \"cleo\"]\n\
         [data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"observer\"\nrow = \"site\"\n\
         row_labels = \"sites.txt\"\n{data}\n[model]\nkind = \"low-rank\"\n{model}\n\
         [method]\nkind = \"fedmiss\"\n{method}\n"
    )
}

fn long(rest: &str) -> String {
    format!("column = \"month\"\nvalue = \"count\"\ncolumn_labels = {MONTH_LABELS}\n{rest}")
}

fn job(wards: &Wards, text: &str) -> Job {
    let mut job = parse(text);
    for path in job.paths_mut() {
        *path = wards.folder.path().join(&*path);
    }
    job
}

#[test]
fn tables_end_in_the_bits_of_the_simulation() {
    let dithered = "[uplink]\ncodec = { kind = \"dithering\", levels = 4, norm = 2 }";
    let poisson = "family = \"poisson\"\nrank = 2\nlambda = 0.1";
    let wards = observers(false);
    for (data, model, method) in [
        ("", poisson, format!("rounds = 12\nbatch = 8\n{dithered}")),
        (
            "seed = 77\nholdout = 0.2",
            poisson,
            format!("epochs = 6\nbatch = 5\nstep = 0.3\n{dithered}"),
        ),
        (
            "seed = 77\nholdout = 0.2",
            "family = \"poisson\"\nrank = \"auto\"\nlambda = \"auto\"",
            "rounds = 8".into(),
        ),
        (
            "holdout = 0.1",
            "family = \"gaussian\"\nrank = 1\nlambda = 0.5\neffects = \"row+column\"\npersonal = true",
            format!("rounds = 10\nparticipation = 0.6\ncopies = \"clients\"\n{dithered}"),
        ),
    ] {
        wards.same(&job(&wards, &text(&long(data), model, &method)));
    }
    let wards = observers(true);
    // Labels in a list of their own, and those of the file's header.
    for data in [format!("column_labels = {MONTH_LABELS}"), format!("columns = {MONTH_LABELS}")] {
        let data = format!("{data}\nholdout = 0.1");
        wards.same(&job(
            &wards,
            &text(&data, poisson, &format!("rounds = 8\nbatch = 8\n{dithered}")),
        ));
    }
}

#[test]
fn a_client_keeps_out_what_it_would_in_the_simulation() {
    let wards = observers(false);
    let data = long("seed = 77\nholdout = 0.3");
    let job =
        job(&wards, &text(&data, "family = \"poisson\"\nrank = 1\nlambda = 0.1", "rounds = 5"));
    let offer = Offer::of(&job, &Facts::on_network(&job).unwrap()).unwrap();
    assert_eq!(offer.schema().rows.len(), SITES);
    let loaded = load(&job).unwrap();
    for ((name, file), (named, data)) in pairs(&wards.files, &loaded.clients) {
        assert_eq!(name, named);
        let ClientData::Cells(there) = offer.read(file, name).unwrap() else { panic!("no cells") };
        let ClientData::Cells(here) = data else { panic!("no cells") };
        assert!(!here.held_out.is_empty());
        assert_eq!(&there, here);
    }
}

#[test]
fn epochs_do_not_bound_what_clients_agree_to() {
    let wards = observers(false);
    let warnings = |method| {
        let model = "family = \"poisson\"\nrank = 1\nlambda = 0.1";
        let job = job(&wards, &text(&long(""), model, method));
        let plan = Plan::on_network(&job, &Facts::on_network(&job).unwrap()).unwrap();
        plan.warnings().join("\n")
    };
    has(&warnings("epochs = 5"), "with `rounds` in [method] they agree to that number");
    assert_eq!(warnings("rounds = 5"), "");
}

#[test]
fn a_file_that_is_not_of_the_table_is_refused_with_its_place() {
    let wards = observers(false);
    let job =
        job(&wards, &text(&long(""), "family = \"poisson\"\nrank = 1\nlambda = 0.1", "rounds = 5"));
    let offer = Offer::of(&job, &Facts::on_network(&job).unwrap()).unwrap();
    let refused = |text: &str| {
        let file = wards.folder.path().join("own.csv");
        fs::write(&file, text).unwrap();
        let failure = offer.read(&file, "ana").err().expect("the file is refused");
        assert_eq!(failure.exit_code(), 3, "{failure}");
        let text = failure.to_string();
        assert!(text.contains("own.csv"), "{text}");
        text
    };
    let said = refused("site,month,count\ns1,m1,3\ns99,m1,4\n");
    assert!(said.contains("\"s99\" is not in the list of row labels"), "{said}");
    assert!(said.contains("row 2"), "{said}");
    assert!(refused("site,month,count\ns1,m9,3\n").contains("list of column labels"));
    assert!(refused("site,month,count\ns1,m1,2.5\n").contains("is not whole; counts are"));
    has(
        &refused("observer,site,month,count\nana,s1,m1,3\nben,s1,m2,3\n"),
        "row 2 has \"ben\" in column \"observer\"",
    );
}

#[test]
fn a_table_without_labels_is_not_served() {
    let wards = observers(false);
    let model = "family = \"poisson\"\nrank = 1\nlambda = 0.1";
    let whole = text(&long(""), model, "rounds = 5");
    let without = |line: &str| {
        assert!(whole.contains(line), "{line}");
        let job = job(&wards, &whole.replace(line, ""));
        Facts::on_network(&job).unwrap_err().to_string()
    };
    assert!(without("row_labels = \"sites.txt\"\n").contains("does not list the table's rows"));
    let columns = format!("column_labels = {MONTH_LABELS}\n");
    assert!(without(&columns).contains("does not list the table's columns"));
    let wide = text(&format!("column_labels = {MONTH_LABELS}"), model, "rounds = 5");
    let numbered = job(&wards, &wide.replace("row = \"site\"\n", ""));
    has(&Facts::on_network(&numbered).unwrap_err().to_string(), "are line numbers");
    let twice = job(&wards, &whole.replace("\"m2\"", "\"m1\""));
    has(&Facts::on_network(&twice).unwrap_err().to_string(), "column label \"m1\" is listed twice");
    // Simulated clients are no real ones.
    let split = whole.replace("client = \"observer\"", "split = { by = \"rows\", clients = 3 }");
    let job = job(&wards, &split);
    has(
        &match Plan::on_network(&job, &Facts::on_network(&job).unwrap()) {
            Ok(_) => panic!("a split is served"),
            Err(failure) => failure.to_string(),
        },
        "those of a network are real",
    );
}
