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
    /// Where the demonstration goes [default: runs/demo-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Write a commented job file, for a data file or for the built-in generator
    New {
        /// A CSV or .npy file to write the job for
        data: Option<PathBuf>,
        /// Where to write it [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
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
    Report {
        /// Folders of runs
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// Where to write it [default: report.html in the run's folder; for several, here]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Predict new rows with a fitted model: components of a mixture, values or classes of a regression
    Predict(Predict),
    /// Look at data
    #[command(subcommand)]
    Data(DataCommand),
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
    /// Where to write the predictions, a CSV file
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}

/// `whimbrel data`.
#[derive(Subcommand, Debug)]
pub enum DataCommand {
    /// Shape, types, missing cells and clients of a file
    Inspect {
        /// A CSV or .npy file
        file: PathBuf,
        /// The column that says who holds the row [default: `client`, where there is one]
        #[arg(long, value_name = "COLUMN")]
        client: Option<String>,
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
}
