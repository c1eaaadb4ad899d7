//! The same rows as CSV, Parquet and in databases (`tests/peers/sources.py` wrote them).

use crate::support::Sandbox;
use std::path::Path;

/// The job over a source.
fn job(data: &str) -> String {
    format!(
        "name = \"wards\"\nseed = 5\n\n[data]\n{data}\nclient = \"ward\"\ncolumns = [\"a\", \"b\"]\n\
         target = \"y\"\n\n[model]\nkind = \"logistic\"\n\n[method]\nkind = \"sgd\"\nrounds = 10\nbatch = 10\n\
         \n[schema]\na = {{ type = \"number\", min = -2.0, max = 2.0 }}\n"
    )
}

/// The fixtures, and a query of all rows.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/sources"), &sandbox.path(""));
    sandbox.write("rows.sql", "SELECT a, b, y, ward FROM patients ORDER BY rowid\n");
    sandbox
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

const CSV: &str = "source = \"csv\"\npath = \"rows.csv\"";

/// Without the features, jobs and files are refused with the way to build them in.
#[cfg(not(all(feature = "parquet", feature = "sql")))]
#[test]
fn programs_without_the_features_say_how_to_get_them() {
    let sandbox = sandbox();
    for data in [
        "source = \"parquet\"\npath = \"rows\"",
        "source = \"sql\"\nurl = \"sqlite:rows.db\"\nquery = \"rows.sql\"",
    ] {
        sandbox.write("job.toml", &job(data));
        sandbox.fails(&["run", "job.toml", "--out", "r"], 2, "--features full");
    }
    sandbox.fails(&["data", "inspect", "rows"], 2, "--features full");
}

#[test]
fn passwords_in_a_job_are_refused_and_not_shown() {
    let sandbox = sandbox();
    let url = "url = \"postgres://ada:s3cret@db/wards\"";
    let sql = format!("source = \"sql\"\n{url}\nquery = \"rows.sql\"");
    let inline =
        job(&sql).replace("[data]\n", "data = { ").replace("target = \"y\"", "target = \"y\" }");
    let (at, end) = (inline.find("data").unwrap(), inline.find("\n\n[model]").unwrap());
    let inline = inline[..at].to_owned() + &inline[at..end].replace('\n', ", ") + &inline[end..];
    for (job, why) in [
        (job(&sql), "`url` has a password"),
        (inline, "`url` has a password"),
        (job(&sql.replace("wards\"", "wards")), "not valid TOML"),
        (job(&sql.replace("://", ":/")), "`url` is not the URL of a database"),
        (job(&format!("{CSV}\n{url}")), "only databases are queried"),
    ] {
        sandbox.write("job.toml", &job);
        let ran = sandbox.fails(&["check", "job.toml"], 2, why);
        assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{}", ran.stderr);
    }
    sandbox.write("job.toml", &job("source = \"sql\"\nurl = \"rows.csv\"\nquery = \"rows.sql\""));
    sandbox.fails(&["check", "job.toml"], 2, "`url` is not the URL of a database");
    sandbox.write("job.toml", &job("source = \"sql\"\nurl = \"sqlite:rows.db\""));
    sandbox.fails(&["check", "job.toml"], 2, "query");
    sandbox.write("job.toml", &job(&format!("{CSV}\nurl = \"sqlite:rows.db\"")));
    sandbox.fails(&["check", "job.toml"], 2, "only databases are queried");
}

#[cfg(all(feature = "parquet", feature = "sql"))]
mod built_in {
    use super::*;
    use crate::federation::{Process, invitations_of, serve};
    use crate::support::fixture;
    use whimbrel_testkit::Postgres;

    const PARQUET: &str = "source = \"parquet\"\npath = \"rows\"";
    const SQLITE: &str = "source = \"sql\"\nurl = \"sqlite:rows.db\"\nquery = \"rows.sql\"";

    fn model(sandbox: &Sandbox, run: &str) -> Vec<u8> {
        std::fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap()
    }

    fn run(sandbox: &Sandbox, data: &str, out: &str) -> Vec<u8> {
        sandbox.write("job.toml", &job(data));
        sandbox.ok(&["run", "job.toml", "--out", out]);
        // The resolved job in the run's folder is a job again.
        let resolved = format!("{out}/job.toml");
        sandbox.ok(&["check", &resolved]);
        model(sandbox, out)
    }

    #[test]
    fn every_source_gives_the_same_model() {
        let sandbox = sandbox();
        let csv = run(&sandbox, CSV, "csv");
        assert!(run(&sandbox, PARQUET, "parquet") == csv, "parquet");
        assert!(run(&sandbox, SQLITE, "sqlite") == csv, "sqlite");
        // Files of one kind are not read as another.
        sandbox
            .write("job.toml", &job("source = \"csv\"\npath = \"rows/ward=west/part-0.parquet\""));
        sandbox.fails(&["run", "job.toml", "--out", "x"], 3, "source = \"parquet\"");
        sandbox.write("job.toml", &job("source = \"parquet\"\npath = \"rows.csv\""));
        sandbox.fails(&["run", "job.toml", "--out", "x"], 3, "neither a Parquet nor an Arrow");
        let west = "rows/ward=west/part-0.parquet";
        let predicted = |data: &str, out: &str| {
            sandbox.ok(&["predict", "csv", "--data", data, "--out", out]);
            sandbox.read(out)
        };
        let lines: Vec<String> = fixture("sources/rows.csv").lines().map(String::from).collect();
        let own = lines.iter().filter(|line| !line.ends_with("east") && !line.ends_with("north"));
        sandbox.write("west.csv", &own.map(|line| format!("{line}\n")).collect::<String>());
        assert_eq!(predicted(west, "p.csv"), predicted("west.csv", "q.csv"));
        let seen = sandbox.ok(&["data", "inspect", "rows", "--client", "ward"]).stdout;
        assert!(seen.contains("180 rows, 5 columns") && seen.contains("3 clients"), "{seen}");
        sandbox.ok(&["new", "rows", "--out", "new.toml"]);
        assert!(sandbox.read("new.toml").contains("source = \"parquet\""));
        sandbox.ok(&["check", "new.toml"]);
    }

    #[test]
    fn cells_outside_the_schema_are_listed_by_row() {
        let sandbox = sandbox();
        for data in [PARQUET, SQLITE] {
            let strict = job(data).replace("max = 2.0", "max = 1.4");
            sandbox.write("job.toml", &strict);
            let ran = sandbox.run(&["run", "job.toml", "--out", "x"]);
            assert_eq!(ran.code, 3, "{}", ran.stderr);
            assert!(
                ran.stderr.contains("row ") && ran.stderr.contains("above `max`, 1.4"),
                "{}",
                ran.stderr
            );
        }
        sandbox.write("rows.sql", "SELECT note AS a, b, y, ward FROM patients\n");
        sandbox.write("job.toml", &job(SQLITE));
        sandbox.fails(
            &["run", "job.toml", "--out", "x"],
            3,
            "row 1, column \"a\": \"note 0\" is not a number",
        );
        sandbox.write("rows.sql", "SELECT a, b, y, ward FROM patients WHERE a > 9\n");
        sandbox.fails(&["run", "job.toml", "--out", "x"], 3, "there are no rows");
    }

    /// Serves the job over CSV to clients with these arguments of `--data`, and compares the models of
    /// the federation and of the simulation.
    fn joined(sandbox: &Sandbox, data: impl Fn(&str) -> Vec<String>) {
        let network = "\n[federation]\nclients = [\"east\", \"north\", \"west\"]\n\
                       listen = \"127.0.0.1:0\"\ndashboard = false\nheartbeat_s = 1\n";
        sandbox.write("job.toml", &(job(CSV) + network));
        let coordinator = serve(sandbox, false);
        let mut clients = Vec::new();
        for (name, invitation) in invitations_of(sandbox, 3) {
            let (out, data) = (format!("client-{name}"), data(&name));
            let mut args = vec!["join", &invitation, "--out", &out, "--yes"];
            args.extend(["--give-up", "120", "--min-group", "1", "--data"]);
            args.extend(data.iter().map(String::as_str));
            let mut command = sandbox.command(&args);
            command.env("PGPASSWORD", Postgres::PASSWORD);
            clients.push((name.clone(), Process::spawn(sandbox, &name, command)));
        }
        coordinator.ends(sandbox, "serve");
        for (name, client) in clients {
            client.ends(sandbox, &name);
        }
        sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
        assert!(model(sandbox, "served") == model(sandbox, "simulated"));
    }

    /// A file with the rows of one ward.
    fn ward_csv(sandbox: &Sandbox, ward: &str) {
        let lines = fixture("sources/rows.csv");
        let own = lines.lines().enumerate().filter(|(i, line)| *i == 0 || line.ends_with(ward));
        let own: String = own.map(|(_, line)| format!("{line}\n")).collect();
        sandbox.write(&format!("{ward}.csv"), &own);
    }

    /// One client has Parquet files, one SQLite and one CSV: the model of the simulation. The target is a
    /// boolean, which each file spells in its own way.
    #[test]
    fn clients_join_with_any_source() {
        let sandbox = sandbox();
        ward_csv(&sandbox, "east");
        for (file, no, yes) in [("east.csv", "no", "YES"), ("rows.csv", "False", "True")] {
            let text = sandbox.read(file).replace(",0,", &format!(",{no},"));
            sandbox.write(file, &text.replace(",1,", &format!(",{yes},")));
        }
        sandbox
            .write("west.sql", "SELECT b, a, y FROM patients WHERE ward = 'west' ORDER BY rowid");
        joined(&sandbox, |name| match name {
            "east" => vec!["east.csv".into()],
            "north" => vec!["rows/ward=north".into()],
            _ => ["rows.db", "--query", "west.sql"].map(String::from).to_vec(),
        });
    }

    /// Two clients query PostgreSQL; no file of theirs has the password.
    #[test]
    fn clients_join_with_queries_of_postgres() {
        let sandbox = sandbox();
        let folder = tempfile::tempdir().unwrap();
        let Some(server) = Postgres::start(folder.path(), None) else { return };
        fill(&server);
        ward_csv(&sandbox, "east");
        for ward in ["north", "west"] {
            let query =
                format!("SELECT b, a, y FROM patients WHERE ward = '{ward}' ORDER BY rowid");
            sandbox.write(&format!("{ward}.sql"), &query);
        }
        joined(&sandbox, |name| match name {
            "east" => vec!["east.csv".into()],
            ward => vec![server.url(), "--query".into(), format!("{ward}.sql")],
        });
        assert_no_password(&sandbox.path(""));
    }

    fn assert_no_password(folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                assert_no_password(&path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let shown = bytes.windows(6).any(|window| window == b"s3cret");
            assert!(!shown, "{} has the password", path.display());
        }
    }

    /// The rows of the fixture as a table.
    fn fill(server: &Postgres) {
        let rows: Vec<String> = fixture("sources/rows.csv")
            .lines()
            .skip(1)
            .map(|line| {
                let cells: Vec<&str> = line.split(',').collect();
                format!("({}, {}, {}, '{}')", cells[0], cells[1], cells[2] == "1", cells[4])
            })
            .collect();
        server
            .run("CREATE TABLE patients (rowid serial, a float8, b float8, y boolean, ward text)");
        server.run(&format!("INSERT INTO patients (a, b, y, ward) VALUES {}", rows.join(", ")));
    }

    #[test]
    fn postgres_takes_its_password_from_the_environment() {
        let sandbox = sandbox();
        let csv = run(&sandbox, CSV, "csv");
        let folder = tempfile::tempdir().unwrap();
        let Some(server) = Postgres::start(folder.path(), None) else { return };
        fill(&server);
        let data = format!("source = \"sql\"\nurl = \"{}\"\nquery = \"rows.sql\"", server.url());
        sandbox.write("job.toml", &job(&data));
        let line = format!("127.0.0.1:{}:*:ada:{}\n", server.port, r"s3cret\: of\\ada");
        sandbox.write("passwords", &line);
        let ran = |name: &str, value: &str| {
            let mut command = sandbox.command(&["run", "job.toml", "--force", "--out", "postgres"]);
            command.env_remove("PGPASSWORD").env("HOME", sandbox.path("")).env(name, value);
            let output = command.output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, said) = ran("PGPASSFILE", "passwords");
        assert!(code == Some(2) && said.contains("chmod 600"), "{said}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(sandbox.path("passwords"), private).unwrap();
        }
        for (name, value) in [("PGPASSFILE", "passwords"), ("PGPASSWORD", Postgres::PASSWORD)] {
            let (code, said) = ran(name, value);
            assert_eq!(code, Some(0), "{said}");
            assert!(!said.contains("s3cret"), "{said}");
            assert!(model(&sandbox, "postgres") == csv, "another model by {name}");
        }
        assert!(!sandbox.read("postgres/job.toml").contains("s3cret"));
        let (code, said) = ran("PGPASSWORD", "wrong");
        assert!(code == Some(3) && said.contains("password authentication failed"), "{said}");
    }
}
