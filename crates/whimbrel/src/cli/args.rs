//! Arguments of the command line.

pub use super::paper::args::PaperCommand;
use super::relay::RelayArgs;
use crate::run::Example;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Federated learning with small, measured messages.
///
/// Without a command, runs the built-in demonstration: a Gaussian mixture fitted to 100
/// heterogeneous clients with messages of a few bytes.
#[derive(Parser, Debug)]
#[command(name = "whimbrel", bin_name = "whimbrel", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Number of threads [default: all cores]; the result does not depend on it
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Print only warnings, errors and results
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Colour messages: auto, always or never; NO_COLOR turns "auto" off
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: Colour,
    /// Folder of the demonstration [default: runs/demo-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// The choices of `--color`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// If standard error is a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Colour {
    /// Whether messages are coloured.
    pub fn is_wanted(self) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                !refused && std::io::IsTerminal::is_terminal(&std::io::stderr())
            }
        }
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Write a commented job file, for a data file or for the built-in generator
    New {
        /// A CSV, .npy, LIBSVM or idx file to write the job for
        data: Option<PathBuf>,
        /// The column to predict
        #[arg(long, value_name = "COLUMN", requires = "data")]
        target: Option<String>,
        /// The kind of the model
        #[arg(long, value_name = "KIND")]
        model: Option<String>,
        /// The column that is 1 for an event, for a target of times
        #[arg(long, value_name = "COLUMN", requires = "target")]
        event: Option<String>,
        /// Output file; - is standard output [default: -]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Replace the file
        #[arg(long, requires = "out")]
        force: bool,
    },
    /// Check a job file and estimate its cost; nothing is written
    Check {
        /// The job file
        job: PathBuf,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Run a job on this machine
    Run(Run),
    /// Describe the rows of a job, by client and pooled; nothing is fitted
    Describe(Describe),
    /// Run several jobs and compare them in one report
    Compare(Compare),
    /// Pool regressions over completed data sets by Rubin's rules
    Pool(Pool),
    /// Make the HTML report of one run, or of several side by side
    Report(Report),
    /// Write a run's figures for TensorBoard or MLflow
    Export(Export),
    /// Coordinate a job whose clients are on a network; prints one invitation per client
    Serve(Serve),
    /// Join a federation with the rows of a file
    Join(Join),
    /// Invite one more client to a running federation
    Invite {
        /// The run's folder
        run: PathBuf,
        /// The client's name [default: client-N]
        name: Option<String>,
        /// Days for which the invitation can be redeemed
        #[arg(long, value_name = "DAYS", default_value_t = 30)]
        valid_days: u32,
        /// Reissue for a client that has joined, with the current address and certificate
        #[arg(long, requires = "name")]
        again: bool,
        /// Invite a relay instead of a client: the address at which its own clients reach it
        #[arg(long, value_name = "HOST:PORT", requires = "name", conflicts_with = "again")]
        relay: Option<String>,
        /// The relay through which the client or relay connects, which must have joined
        #[arg(long, value_name = "RELAY")]
        via: Option<String>,
        /// With --again: the client connects to the coordinator itself from now on
        #[arg(long, requires = "again", conflicts_with = "via")]
        direct: bool,
    },
    /// Carry the messages of a site's clients to the coordinator on one connection
    Relay(RelayArgs),
    /// Exclude a client from a running federation, or declare it dead
    Revoke {
        /// The run's folder
        run: PathBuf,
        /// The client's name
        name: String,
        /// The client is lost: rounds no longer wait for it, its contribution stays, and it may return
        #[arg(long)]
        dead: bool,
    },
    /// Show the status of a running federation
    Status {
        /// The run's folder
        run: PathBuf,
        /// Print everything as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Verify the files of a coordinator: checkpoint, log, journal and metrics
    Verify {
        /// The run's folder
        run: PathBuf,
    },
    /// Show what can be recovered of a damaged federation, and at what cost
    Repair {
        /// The run's folder
        run: PathBuf,
        /// Recover the readable part; all clients restart the current stage
        #[arg(long)]
        keep_prefix: bool,
    },
    /// Show what a client has answered so far, beside what its user agreed to
    Ledger {
        /// The client's folder [default: every folder in joined/]
        folder: Option<PathBuf>,
    },
    /// Show a client's identity under masks, a line for the rosters of the others
    Identity {
        /// The client's folder, which may be new
        folder: PathBuf,
    },
    /// Withdraw a client from its federation: it answers nothing more
    Leave {
        /// The client's folder
        folder: PathBuf,
        /// This client's certificate, PEM, if it joined with one
        #[arg(long, value_name = "FILE", requires = "key")]
        cert: Option<PathBuf>,
        /// Its private key, PEM
        #[arg(long, value_name = "FILE", requires = "cert")]
        key: Option<PathBuf>,
    },
    /// Predict new rows with a fitted model: components of a mixture, values or classes of a regression
    Predict(Predict),
    /// Complete the table of a low-rank run: estimates, intervals and imputations
    Impute(Impute),
    /// Adapt a run to a client it has not seen: complete its table, or fit its personal model
    Adapt(Adapt),
    /// Inspect data
    #[command(subcommand)]
    Data(DataCommand),
    /// Reproduce figures and tables of the papers
    #[command(subcommand)]
    Paper(PaperCommand),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all commands
    Man {
        /// The folder for all pages; it must exist [default: standard output, one page]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Replace pages
        #[arg(long, requires = "out")]
        force: bool,
    },
}

/// `whimbrel run`.
#[derive(clap::Args, Debug)]
pub struct Run {
    /// The job file
    pub job: PathBuf,
    /// The run's folder, new or empty [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Resume the unfinished run in --out
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Replace the run in --out
    #[arg(long)]
    pub force: bool,
    /// Replay the losses and joins of a journal instead of those of [simulation]
    #[arg(long, value_name = "JOURNAL")]
    pub replay: Option<PathBuf>,
    /// Add norms of the optimiser, tail means and the settings in use
    #[arg(long)]
    pub diagnostics: bool,
    /// Print the summary as one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel describe`.
#[derive(clap::Args, Debug)]
pub struct Describe {
    /// A job file with rows from a CSV file; its model and method are not run
    pub job: PathBuf,
    /// A column of categories: one survival curve each, and a log-rank test
    #[arg(long, value_name = "COLUMN")]
    pub by: Option<String>,
    /// The run's folder, new or empty [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the run in --out
    #[arg(long)]
    pub force: bool,
    /// Print the summary as one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel serve`.
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// The job file, with a [federation] table
    pub job: PathBuf,
    /// The run's folder, new or empty [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Resume the unfinished run in --out
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Replace the run in --out
    #[arg(long)]
    pub force: bool,
    /// Number of invitations without a name; such clients choose their own [default: `clients` of the job]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub open_enrolment: Option<u32>,
    /// Leave a client of the job out, such as one that has left an earlier run; may be repeated
    #[arg(long, value_name = "NAME")]
    pub without: Vec<String>,
    /// Address to listen on [default: `listen` of the job]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Address of the dashboard, or "off" [default: `dashboard` of the job]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub dashboard: Option<String>,
    /// Address that answers /healthz and /readyz alone, whatever the visitors of the dashboard
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub probes: Option<String>,
    /// Serve the dashboard without a token
    #[arg(long)]
    pub open_dashboard: bool,
    /// Address written into invitations [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The coordinator's certificate, PEM, with its chain [default: generated]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Accept only clients with certificates from these authorities, PEM
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Announce the next certificate: clients accept it beside the present one from then on
    #[arg(long, value_name = "FILE")]
    pub next_cert: Option<PathBuf>,
    /// Resume with another certificate, other authorities or another address
    #[arg(long, requires = "resume")]
    pub rotate: bool,
    /// Write the invitations to this new file, readable by its owner only, not to standard output
    /// [default with --json: DIR/invitations]
    #[arg(long, value_name = "FILE")]
    pub invitations: Option<PathBuf>,
    /// Days for which invitations can be redeemed
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub valid_days: u32,
    /// Format of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,
    /// Print the summary as one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

impl clap::ValueEnum for Example {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.name()).help(self.about()))
    }
}

/// Formats of log lines.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// A duration in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds that is not negative is required".into())
}

/// `whimbrel join`.
#[derive(clap::Args, Debug)]
pub struct Join {
    /// The invitation; @FILE reads it from a file, - from standard input
    pub invitation: String,
    /// The rows with the job's columns: a CSV, Parquet or Arrow file or a folder of the latter; with
    /// --query a database (postgres://USER@HOST/NAME, sqlite:FILE, @FILE with the URL)
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// File with the query whose result are the rows, one SELECT
    #[arg(long, value_name = "FILE")]
    pub query: Option<PathBuf>,
    /// This client's own folder: key, state, and the model at the end [default: joined/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The client's name, if the invitation leaves it open
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Consent to what leaves this machine without being asked
    #[arg(long)]
    pub yes: bool,
    /// Consent to the same amount once more: further evaluations, or the same rounds with a
    /// repaired coordinator
    #[arg(long)]
    pub renew: bool,
    /// Smallest number of training rows to take part with
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub min_rows: usize,
    /// Take part only if the job's messages rest on at least this many rows each; 1 allows messages
    /// about single rows [default: the job's `min_group`]
    #[arg(long, value_name = "N")]
    pub min_group: Option<u32>,
    /// Send masked messages only to these clients: the fingerprint of their roster, or @FILE with
    /// their lines of `whimbrel identity` [default: those that the coordinator names]
    #[arg(long, value_name = "FINGERPRINT")]
    pub roster: Option<String>,
    /// Take part in masked rounds that may leave clients out
    #[arg(long)]
    pub partial_rounds: bool,
    /// Largest number of rounds to answer if the job sets no limit [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_rounds: Option<u32>,
    /// Give up after this many seconds without the coordinator [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub give_up: Option<Duration>,
    /// This client's certificate, PEM, if the coordinator requires one [default: generated]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Replace this client's generated key: the coordinator accepts the new one beside the old one until
    /// it is used
    #[arg(long, conflicts_with = "cert")]
    pub new_key: bool,
    /// Announce the next certificate: the coordinator accepts it beside the present one until it is
    /// used with --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub next_cert: Option<PathBuf>,
    /// Format of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,
}

/// `whimbrel compare`.
#[derive(clap::Args, Debug)]
pub struct Compare {
    /// Job files with different names; an `em` job among them is the reference
    #[arg(required = true)]
    pub jobs: Vec<PathBuf>,
    /// The folder of all runs, new or empty [default: runs/compare-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the runs in --out
    #[arg(long)]
    pub force: bool,
    /// Title of the report [default: the folder of the jobs]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Add norms of the optimiser, tail means and the settings in use
    #[arg(long)]
    pub diagnostics: bool,
    /// Print the summaries as one JSON object, keyed by job name, to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel pool`.
#[derive(clap::Args, Debug)]
pub struct Pool {
    /// Folders of the runs, one for each completed data set
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel report`.
#[derive(clap::Args, Debug)]
pub struct Report {
    /// Folders of runs
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// Title [default: the names of the runs]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Output file, or - [default: report.html in the run's folder; for several runs, here]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel export`.
#[derive(clap::Args, Debug)]
pub struct Export {
    /// The run's folder
    pub run: PathBuf,
    #[command(flatten)]
    pub to: Trackers,
}

/// Destinations of `whimbrel export`.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = true)]
pub struct Trackers {
    /// Folder for an event file, which `tensorboard --logdir DIR` shows
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Folder of runs, which `mlflow ui --backend-store-uri DIR` shows
    #[arg(long, value_name = "DIR")]
    pub mlflow: Option<PathBuf>,
}

/// `whimbrel predict`.
#[derive(clap::Args, Debug)]
pub struct Predict {
    /// The run's folder
    pub run: PathBuf,
    /// New rows: a CSV or Parquet file with the run's columns
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The new rows are a LIBSVM file (regressions only); its labels are not read
    #[arg(long)]
    pub libsvm: bool,
    /// Use this client's personal model
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Output file, CSV; - is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel impute`.
#[derive(clap::Args, Debug)]
pub struct Impute {
    /// The run's folder
    pub run: PathBuf,
    /// Output file, CSV with one line per cell; - is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// Number of imputations to draw from the fitted model
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub draws: u32,
    /// Write the table itself: observed values, and estimates of missing cells; with --draws K files,
    /// FILE-1 to FILE-K, with imputations of them
    #[arg(long)]
    pub wide: bool,
    /// The observations, a CSV file like the job's [default: the job's own]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Complete the table of one client: its rows, or its observations with its personal effect
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel adapt`.
#[derive(clap::Args, Debug)]
pub struct Adapt {
    /// The run's folder
    pub run: PathBuf,
    /// The client's cells or rows: a CSV file like the job's; for learners also a LIBSVM file, or
    /// images (idx) with --labels
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The labels of images, an idx file
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Output folder, new: the completed table or the personal model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number of imputations to draw from the fitted model
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub draws: u32,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel data`.
#[derive(Subcommand, Debug)]
pub enum DataCommand {
    /// List the data sources and splits of job files
    List {
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Write simulated example data with a job
    Make {
        /// The example
        name: Example,
        /// The folder, new or empty [default: the example's name]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Seed of the simulation
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Show shape, types, missing cells and clients of a file, or the clients of a job
    Inspect {
        /// A CSV, .npy, LIBSVM or idx file, or a job file
        file: PathBuf,
        /// The column with the client of each row [default: `client`, if present]
        #[arg(long, value_name = "COLUMN")]
        client: Option<String>,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
}
