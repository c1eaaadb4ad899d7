//! A folder of its own for each test, and the program in it.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A temporary folder in which commands run.
pub struct Sandbox {
    folder: TempDir,
}

/// What a command left.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Sandbox {
    /// An empty folder.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// A folder with one job.
    pub fn with_job(text: &str) -> Self {
        let sandbox = Self::new();
        sandbox.write("job.toml", text);
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a writable folder");
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The program, not started: no terminal, no setting from outside.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_whimbrel"));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("WHIMBREL_CACHE", self.folder.path().join(".cache"));
        for name in [
            "WHIMBREL_ISA",
            "RAYON_NUM_THREADS",
            "COLUMNS",
            "RUST_BACKTRACE",
            "HTTPS_PROXY",
            "WHIMBREL_DATA",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the program to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        let output = self.command(args).output().expect("the program starts");
        Ran {
            code: output.status.code().expect("an exit code"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Runs the program, which must succeed.
    pub fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran
    }

    /// Runs the program, which must fail with this code and message.
    #[track_caller]
    pub fn fails<S: AsRef<OsStr> + Debug>(&self, args: &[S], code: i32, why: &str) -> Ran {
        let ran = self.run(args);
        let said = ran.stderr.contains(why);
        assert!(ran.code == code && said, "{args:?}: {}: {}", ran.code, ran.stderr);
        ran
    }

    /// Runs `job.toml` into `out`, which must succeed; its summary.
    pub fn run_job(&self, out: &str) -> Map<String, Value> {
        self.ok(&["run", "job.toml", "--out", out, "--json"]).json()
    }

    /// Starts the program and leaves it running.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    /// Standard error with this folder's name taken out.
    pub fn redact(&self, text: &str) -> String {
        let folder = self.folder.path();
        let real = folder.canonicalize().expect("the folder exists");
        let text = text.replace(&*real.to_string_lossy(), "[DIR]");
        text.replace(&*folder.to_string_lossy(), "[DIR]")
    }

    /// The lines of a run's `metrics.jsonl`.
    pub fn metrics(&self, run: &str) -> Vec<Map<String, Value>> {
        objects(&self.read(&format!("{run}/metrics.jsonl")))
    }

    /// The metrics of a run without their times.
    pub fn timeless_metrics(&self, run: &str) -> Vec<Map<String, Value>> {
        let mut rows = self.metrics(run);
        rows.iter_mut().for_each(|row| drop(row.remove("seconds")));
        rows
    }

    /// The lines of a run's journal.
    pub fn journal(&self, run: &str) -> Vec<Map<String, Value>> {
        objects(&self.read(&format!("{run}/journal")))
    }

    pub fn object(&self, name: &str) -> Map<String, Value> {
        serde_json::from_str(&self.read(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// What the promise of equal bits is about: every file of `model/` and `checkpoint/`.
    pub fn result_bytes(&self, run: &str) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for part in ["model", "checkpoint"] {
            let folder = self.path(run).join(part);
            for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{part}: {e}")) {
                let path = entry.expect("an entry").path();
                let name = format!("{part}/{}", path.file_name().unwrap().to_string_lossy());
                files.insert(name, fs::read(&path).expect("a readable file"));
            }
        }
        assert!(files.len() >= 3, "model.json, model.safetensors and the checkpoint");
        files
    }
}

impl Ran {
    /// Standard output, which must be one JSON object on one line.
    pub fn json(&self) -> Map<String, Value> {
        assert_eq!(self.stdout.matches('\n').count(), 1, "one line: {:?}", self.stdout);
        assert!(self.stdout.ends_with('\n'));
        serde_json::from_str(&self.stdout).expect("a JSON object")
    }
}

fn objects(lines: &str) -> Vec<Map<String, Value>> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

/// A file kept beside the tests.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The numbers of nested lists, last index fastest.
pub fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().expect("a number")],
    }
}

/// A text without its line breaks and indentations.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A number of an object.
pub fn number(object: &Map<String, Value>, key: &str) -> f64 {
    object.get(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("{key} in {object:?}"))
}

/// A small generated federation in the plane; `method` and what follows it are the caller's.
pub fn mixture_job(model: &str, method: &str) -> String {
    format!(
        "name = \"small\"\nseed = 3\n\n[data]\nsource = \"mixture\"\nclients = 6\nrows = 40\n\
         heterogeneity = {{ dirichlet = 0.5 }}\n\n[model]\nkind = \"gmm\"\ncomponents = 2\n{model}\n\
         \n[method]\n{method}\n"
    )
}

/// The program of an example, which is built beside the tests.
pub fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(Path::parent).unwrap();
    let program = built.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "{} is not built: cargo build --examples", program.display());
    program
}

/// The first line of a figure in a run's exhibits.
pub fn lines(sandbox: &Sandbox, run: &str, title: &str) -> Vec<[f64; 2]> {
    let stored = sandbox.object(&format!("{run}/exhibits.json"));
    let sections = stored["sections"].as_array().expect("sections");
    let exhibits = sections.iter().flat_map(|section| section["exhibits"].as_array().unwrap());
    let figure = exhibits.into_iter().find(|exhibit| exhibit["title"] == title).expect(title);
    serde_json::from_value(figure["lines"][0][1].clone()).expect("points")
}
