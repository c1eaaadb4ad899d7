//! What a user can type.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Federated learning that says as little as possible over the wire.
///
/// Without a command: the built-in demonstration, a Gaussian mixture fitted by 100 clients that
/// differ, with messages of a few bytes.
#[derive(Parser, Debug)]
#[command(name = "whimbrel", bin_name = "whimbrel", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How many threads to use [default: all cores]; the result does not depend on it
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Say nothing but warnings, errors and what was asked for on standard output
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Whether messages are coloured; NO_COLOR turns "auto" off
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: Colour,
    /// Where the demonstration goes [default: runs/demo-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// When messages are coloured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Where standard error is a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Colour {
    /// Whether standard error gets colours.
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
        /// Where to write it; - is standard output [default: -]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Replace the file
        #[arg(long, requires = "out")]
        force: bool,
    },
    /// Check a job file and say what it will cost; nothing is written
    Check {
        /// The job file
        job: PathBuf,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Run a job on this machine
    Run(Run),
    /// Run several jobs and put them into one report
    Compare(Compare),
    /// Make the HTML report of one run, or of several side by side
    Report(Report),
    /// Coordinate a job whose clients are on a network; prints one invitation per client
    Serve(Serve),
    /// Take part in a served job with the rows of a file
    Join(Join),
    /// Invite one more client to a run that is served
    Invite {
        /// The run's folder
        run: PathBuf,
        /// The client's name [default: client-N]
        name: Option<String>,
        /// Days for which the invitation can be redeemed
        #[arg(long, value_name = "DAYS", default_value_t = 30)]
        valid_days: u32,
        /// For a client that has joined: the address and certificate as they are now
        #[arg(long, requires = "name")]
        again: bool,
    },
    /// Shut a client out of a run that is served, or declare it dead
    Revoke {
        /// The run's folder
        run: PathBuf,
        /// The client's name
        name: String,
        /// It is lost: it is not waited for, its contribution stays, and it may come back
        #[arg(long)]
        dead: bool,
    },
    /// Say how a run that is served is going
    Status {
        /// The run's folder
        run: PathBuf,
        /// Print everything as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say whether what a coordinator kept is whole: checkpoint, log, journal and metrics
    Verify {
        /// The run's folder
        run: PathBuf,
    },
    /// Say what can be kept of a damaged served run, and at what cost
    Repair {
        /// The run's folder
        run: PathBuf,
        /// Keep what can be read, and let every client begin the stage anew
        #[arg(long)]
        keep_prefix: bool,
    },
    /// Say what a client has answered so far, of what its user agreed to
    Ledger {
        /// The client's folder
        folder: PathBuf,
    },
    /// Predict new rows with a fitted model: components of a mixture, values or classes of a regression
    Predict(Predict),
    /// Complete the table of a low-rank run: estimates, intervals and imputations
    Impute(Impute),
    /// Adapt a run to a client it has not seen: complete its table, or fit its personal model
    Adapt(Adapt),
    /// Look at data
    #[command(subcommand)]
    Data(DataCommand),
    /// Reproduce figures and tables of the papers
    #[command(subcommand)]
    Paper(PaperCommand),
    /// Print a script with which a shell completes whimbrel's commands and options
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of whimbrel, or write those of all its commands
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
    /// Go on with the unfinished run in --out
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Replace the run in --out
    #[arg(long)]
    pub force: bool,
    /// Lose the uploads and let in the clients that a run's journal says, in place of [simulation]
    #[arg(long, value_name = "JOURNAL")]
    pub replay: Option<PathBuf>,
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
    /// Go on with the unfinished run in --out
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Replace the run in --out
    #[arg(long)]
    pub force: bool,
    /// Number of clients to invite that bring their own names [default: `clients` of the job]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub open_enrolment: Option<u32>,
    /// Where to listen [default: `listen` of the job]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Where to show the dashboard, or "off" [default: `dashboard` of the job]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub dashboard: Option<String>,
    /// Show it to anybody who can reach it, without a token
    #[arg(long)]
    pub open_dashboard: bool,
    /// What invitations say [default: where it listens]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The coordinator's certificate, PEM, with its chain [default: one is made]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Take only clients with certificates from these authorities, PEM
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Announce this certificate to clients: they take it beside the present one from then on
    #[arg(long, value_name = "FILE")]
    pub next_cert: Option<PathBuf>,
    /// Go on with another certificate, other authorities or another address than before
    #[arg(long, requires = "resume")]
    pub rotate: bool,
    /// Write the invitations to this new file, for its owner alone, in place of standard output
    /// [default with --json: DIR/invitations]
    #[arg(long, value_name = "FILE")]
    pub invitations: Option<PathBuf>,
    /// Days for which invitations can be redeemed
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub valid_days: u32,
    /// The form of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,
    /// Print the summary as one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// The form of log lines.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// `whimbrel join`.
#[derive(clap::Args, Debug)]
pub struct Join {
    /// The invitation; @FILE reads it from a file, - from standard input
    pub invitation: String,
    /// The rows: a file with the job's columns
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// This client's own folder: key, state, and the model at the end [default: joined/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A name of your own, where the invitation leaves it to you
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Agree to what will leave this machine without being asked
    #[arg(long)]
    pub yes: bool,
    /// Agree to as much again as was agreed to before: more evaluations, or the same rounds with a
    /// coordinator that was repaired
    #[arg(long)]
    pub renew: bool,
    /// Fewest training rows with which to take part
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub min_rows: usize,
    /// Keep figures over fewer rows than this to oneself
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub min_group: usize,
    /// Most rounds to answer where the job does not limit them [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_rounds: Option<u32>,
    /// Give up when the coordinator cannot be reached for so long [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub give_up: Option<f64>,
    /// This client's certificate, PEM, where the coordinator asks for one [default: one is made]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Announce this certificate to the coordinator: it takes it beside the present one, until it is
    /// shown with --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub next_cert: Option<PathBuf>,
    /// The form of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,
}

/// `whimbrel compare`.
#[derive(clap::Args, Debug)]
pub struct Compare {
    /// Job files with different names; an `em` job is the reference of the others
    #[arg(required = true)]
    pub jobs: Vec<PathBuf>,
    /// The folder of all runs, new or empty [default: runs/compare-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the runs in --out
    #[arg(long)]
    pub force: bool,
    /// Print the summaries as one JSON object, keyed by job name, to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel report`.
#[derive(clap::Args, Debug)]
pub struct Report {
    /// Folders of runs
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// Where to write it, or - [default: report.html in the run's folder; for several, here]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel predict`.
#[derive(clap::Args, Debug)]
pub struct Predict {
    /// The run's folder
    pub run: PathBuf,
    /// New rows: a CSV file with the run's columns
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The new rows are a LIBSVM file (regressions only); its labels are not read
    #[arg(long)]
    pub libsvm: bool,
    /// Use this client's own model, where the run has personal ones
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Where to write the predictions, a CSV file; - is standard output
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
    /// Where to write the table, a CSV file with a line for each cell; - is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// How many imputations to draw from the fitted model
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub draws: u32,
    /// Write the table itself: observed values, and estimates where nothing was observed
    #[arg(long)]
    pub wide: bool,
    /// What was observed, a CSV file like the job's [default: the job's own]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Complete the table of one client: its own observations and, in a run with personal effects,
    /// its own effect
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
    /// The client's cells or rows: a CSV file like the job's; for learners also LIBSVM's text, or images
    /// (idx) with --labels
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The labels of images, an idx file
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Where to write the completed table and what was fitted, a new folder
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How many imputations to draw from the fitted model
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub draws: u32,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel data`.
#[derive(Subcommand, Debug)]
pub enum DataCommand {
    /// The sources and splits that a job can name
    List {
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Shape, types, missing cells and clients of a file; or what the clients of a job hold
    Inspect {
        /// A CSV, .npy, LIBSVM or idx file, or a job file
        file: PathBuf,
        /// The column that says who holds the row [default: `client`, where there is one]
        #[arg(long, value_name = "COLUMN")]
        client: Option<String>,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
}

/// `whimbrel paper`.
#[derive(Subcommand, Debug)]
pub enum PaperCommand {
    /// What can be reproduced, from which data
    List {
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Run the jobs of a figure or table; what the paper says beside what is obtained
    Run {
        /// A name of `paper list`
        #[arg(value_parser = super::studies::names(), hide_possible_values = true)]
        name: String,
        /// The folder of published data, for those that read some
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// The folder of all runs, new or empty [default: runs/paper-NAME-TIME]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print claims and summaries as one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
}
