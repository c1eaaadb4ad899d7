//! What was read is said: columns, formats, and cells that are not what they seem.

use crate::support::{Sandbox, mixture_job};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

const JOB: &str = "name = \"read\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"data.csv\"\n\
    client = \"ward\"\n[model]\nkind = \"gmm\"\ncomponents = 1\ninit = \"moments\"\n[method]\n\
    kind = \"fedem\"\nrounds = 2\n";

/// Two clients' rows under these names; `cells` gives those of row `i`.
fn table(header: &str, cells: impl Fn(usize) -> String) -> String {
    let mut text = format!("{header}\n");
    for i in 0..12 {
        let _ = writeln!(text, "{}", cells(i));
    }
    text
}

fn plain(i: usize) -> String {
    format!("{},w{},{},{},note {i}", i + 100, i % 2, i as f64 / 4.0, (i * i) as f64 / 8.0)
}

#[test]
fn columns_used_and_left_out_are_said_with_the_reason() {
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("data.csv", &table("patient_id,ward,a,b,remark", plain));
    let said = "columns used: \"a\", \"b\"; left out: \"patient_id\" (looks like an identifier: \
                distinct whole numbers), \"ward\" (the client), \"remark\" (text)";
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    let check = sandbox.ok(&["check", "job.toml"]);
    assert!(check.stderr.contains(said), "{}", check.stderr);
    let notes = sandbox.object("out/summary.json")["notes"].to_string();
    assert!(notes.contains("columns used: "), "{notes}");
    assert!(sandbox.read("out/report.html").contains("looks like an identifier"));
    let model = sandbox.object("out/model/model.json");
    assert_eq!(model["columns"], serde_json::json!(["a", "b"]));
}

#[test]
fn an_identifier_is_used_where_it_is_asked_for_and_warned_of_where_it_repeats() {
    // Numbers in a row are no mixture.
    let job = JOB.replace("[model]", "columns = [\"id\", \"a\"]\n[model]");
    let job = job.replace("[method]", "[method]\nallow_degenerate = true");
    let sandbox = Sandbox::with_job(&job);
    sandbox.write("data.csv", &table("id,ward,a,b,remark", plain));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("columns used: \"id\", \"a\"; left out: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("\"b\" (not in `columns`)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("look like identifiers: \"id\""), "{}", ran.stderr);
    sandbox.write("job.toml", JOB);
    let repeated = |i: usize| plain(i).replacen(&(i + 100).to_string(), &(i / 3).to_string(), 1);
    sandbox.write("data.csv", &table("siteID,ward,a,b,remark", repeated));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "two"]);
    assert!(ran.stderr.contains("columns used: \"siteID\", \"a\""), "{}", ran.stderr);
    assert!(ran.stderr.contains("look like identifiers: \"siteID\""), "{}", ran.stderr);
}

/// The same fit whether decimals are written with points or, between semicolons, with commas.
#[test]
fn decimal_commas_are_read_in_semicolon_files_and_refused_elsewhere() {
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("data.csv", &table("id,ward,a,b,remark", plain));
    sandbox.run_job("points");
    let european = |i: usize| plain(i).replace(',', ";").replace('.', ",");
    sandbox.write("data.csv", &table("id;ward;a;b;remark", european));
    sandbox.run_job("commas");
    assert_eq!(sandbox.result_bytes("points"), sandbox.result_bytes("commas"));

    let both = |i: usize| if i == 7 { plain(i).replace(',', ";") } else { european(i) };
    sandbox.write("data.csv", &table("id;ward;a;b;remark", both));
    sandbox.fails(
        &["run", "job.toml", "--out", "x"],
        3,
        "decimal commas (line 3) and decimal points (line 9)",
    );

    let quoted = |i: usize| format!("{i},w{},{i},\"{i},5\",x", i % 2);
    sandbox.write("data.csv", &table("id,ward,a,b,remark", quoted));
    sandbox.fails(
        &["run", "job.toml", "--out", "x"],
        3,
        "column \"b\" holds numbers with decimal commas",
    );
}

#[test]
fn numbers_at_the_ends_of_the_range_are_named_by_their_line() {
    let sandbox = Sandbox::with_job(JOB);
    for (number, why) in [
        ("1e999", "line 7 (row 6), column \"b\": \"1e999\" is not a finite number"),
        ("-1.7e308", "line 7 (row 6), column \"b\": -1.7e308 is too large"),
    ] {
        let cells = |i: usize| match i {
            5 => format!("{i},w1,0.5,{number},x"),
            i => plain(i),
        };
        sandbox.write("data.csv", &table("id,ward,a,b,remark", cells));
        for standardize in ["", "standardize = true\n"] {
            let job = JOB.replace("[model]", &format!("{standardize}[model]"));
            sandbox.write("job.toml", &job);
            sandbox.fails(&["run", "job.toml", "--out", "x"], 3, why);
        }
    }
}

#[test]
fn latin_1_asks_for_utf_8() {
    let sandbox = Sandbox::with_job(JOB);
    let text = table("id,ward,a,b,remark", plain).replace("w1", "M\u{fc}nchen");
    let latin: Vec<u8> = text.chars().map(|c| c as u8).collect();
    fs::write(sandbox.path("data.csv"), latin).unwrap();
    let ran =
        sandbox.fails(&["run", "job.toml", "--out", "x"], 3, "line 3 (row 2), column \"ward\"");
    assert!(ran.stderr.contains("hint: save the file as UTF-8"), "{}", ran.stderr);
}

#[test]
fn a_wrong_role_is_named_by_its_line() {
    let sandbox = Sandbox::with_job(&JOB.replace("[model]", "role = \"use\"\n[model]"));
    let role = |i: usize| {
        let role = if i == 8 {
            "trian"
        } else if i % 4 == 3 {
            "test"
        } else {
            "train"
        };
        format!("{},{role}", plain(i))
    };
    sandbox.write("data.csv", &table("id,ward,a,b,remark,use", role));
    let ran = sandbox.run(&["run", "job.toml", "--out", "x"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let said = "line 10 (row 9), column \"use\": \"trian\" is not a role";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("hint: the roles are train, validation and test"),
        "{}",
        ran.stderr
    );
}

/// `.npy`, format 1.0, little-endian doubles.
fn npy(shape: &str, values: &[f64]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

#[test]
fn arrays_need_two_dimensions_and_their_gaps_no_list_of_columns() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("flat.npy"), npy("(4,)", &[1.0, 2.0, 3.0, 4.0])).unwrap();
    sandbox.fails(
        &["data", "inspect", "flat.npy"],
        3,
        "the array has 1 dimension\nhint: save it as rows by columns",
    );
    fs::write(sandbox.path("gap.npy"), npy("(2, 2)", &[1.0, f64::NAN, 3.0, 4.0])).unwrap();
    let job = JOB.replace("\"csv\"", "\"npy\"").replace("data.csv", "gap.npy");
    let split = "split = { by = \"iid\", clients = 2 }\n";
    sandbox.write("job.toml", &job.replace("client = \"ward\"\n", split));
    let ran = sandbox.fails(
        &["run", "job.toml", "--out", "x"],
        3,
        "row 1, column \"c2\": the value is missing",
    );
    assert!(!ran.stderr.contains("`columns`"), "{}", ran.stderr);
}

/// Whatever a file holds, `inspect` knows it and `new` writes a job for it that runs.
#[test]
fn files_are_known_by_their_content() {
    let sandbox = Sandbox::new();
    let sparse = table("# sparse", |i| {
        format!("{} 1:{} 3:{}", if i % 3 == 0 { 1 } else { -1 }, i as f64 / 2.0, i * i % 5)
    });
    sandbox.write("sparse", &sparse);
    let cells: Vec<f64> = (0..24).map(|i| (i * i % 7) as f64).collect();
    fs::write(sandbox.path("array"), npy("(12, 2)", &cells)).unwrap();
    let mut images = vec![0, 0, 8, 3];
    images.extend([12u32, 2, 2].iter().flat_map(|n| n.to_be_bytes()));
    images.extend((0..48u32).map(|i| (i * i % 251) as u8));
    fs::write(sandbox.path("images"), images).unwrap();
    for (file, format) in [("sparse", "libsvm"), ("array", "npy"), ("images", "idx")] {
        let seen = sandbox.ok(&["data", "inspect", file, "--json"]).json();
        assert_eq!((&seen["format"], &seen["rows"]), (&Value::from(format), &Value::from(12)));
        let job = format!("{file}.toml");
        sandbox.ok(&["new", file, "--out", &job]);
        assert!(sandbox.read(&job).contains(&format!("source = \"{format}\"")));
        let said = sandbox.ok(&["check", &job]).stderr;
        assert!(said.contains("columns used: all "), "{said}");
        sandbox.ok(&["run", &job, "--out", &format!("{file}-run")]);
    }
    let page = sandbox.ok(&["data", "inspect", "sparse"]).stdout;
    assert!(page.contains("LIBSVM text, 12 rows, 3 columns"), "{page}");
    assert!(page.contains("targets: 2 values: -1 (8), 1 (4)"), "{page}");
}

/// With as many components as columns a shared matrix has the shape of the variances.
#[test]
fn a_shared_covariance_is_not_read_as_variances() {
    let init =
        |keys: &str| format!("{{\"weights\": [0.5, 0.5], \"means\": [[0, 0], [1, 1]], {keys}}}\n");
    let sandbox = Sandbox::new();
    let model = "covariance = \"diagonal\"\ninit = \"init.json\"";
    sandbox.write("job.toml", &mixture_job(model, "kind = \"fedem\"\nrounds = 1\nstep = 1.0"));
    let theta = |keys: &str, out: &str| {
        sandbox.write("init.json", &init(keys));
        sandbox.run_job(out);
        sandbox.object(&format!("{out}/model/model.json"))["covariances"].clone()
    };
    let shared = theta("\"covariance\": [[2, 0], [0, 3]]", "shared");
    assert_eq!(shared, theta("\"covariances\": [[2, 3], [2, 3]]", "own"));
    assert_ne!(shared, theta("\"covariances\": [[2, 0.5], [0.5, 3]]", "other"));
    for (keys, why) in [
        ("\"covariance\": [[2, 0.5], [0.5, 3]]", "must be a diagonal matrix for this mixture"),
        ("\"covariance\": [[2, 0], [0, 3]], \"covariances\": [[2, 3], [2, 3]]", "both given"),
        ("\"covariance\": [[2, 3]]", "must be one matrix of 2 x 2 numbers"),
    ] {
        sandbox.write("init.json", &init(keys));
        let ran = sandbox.run(&["run", "job.toml", "--out", "x"]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("init.json") && ran.stderr.contains(why), "{}", ran.stderr);
    }
    let tied =
        mixture_job("covariance = \"tied\"\ninit = \"init.json\"", "kind = \"em\"\nrounds = 1");
    sandbox.write("job.toml", &tied);
    sandbox.write("init.json", &init("\"covariances\": [[2, 3], [2, 3]]"));
    let ran = sandbox.run(&["run", "job.toml", "--out", "x"]);
    assert!(ran.stderr.contains("one per component, but the mixture shares one"), "{}", ran.stderr);
}

#[test]
fn columns_of_a_table_with_gaps_are_said() {
    let job = "[data]\nsource = \"csv\"\npath = \"long.csv\"\nclient = \"who\"\nrow = \"site\"\n\
               column = \"year\"\nvalue = \"count\"\n[model]\nkind = \"low-rank\"\nfamily = \"poisson\"\n\
               rank = 1\nlambda = 1.0\n[method]\nkind = \"fedmiss\"\nrounds = 2\n";
    let sandbox = Sandbox::with_job(job);
    let lines = (0..24).map(|i| format!("w{},s{},{},{},x\n", i % 2, i / 4, i % 4, i % 5));
    sandbox
        .write("long.csv", &format!("who,site,year,count,remark\n{}", lines.collect::<String>()));
    let said = sandbox.ok(&["check", "job.toml"]).stderr;
    let expected = "columns used: \"who\" (client), \"site\" (row), \"year\" (column), \
                    \"count\" (value); left out: \"remark\" (neither row, column nor value)";
    assert!(said.contains(expected), "{said}");
}
