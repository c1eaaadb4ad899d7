//! Arguments of `whimbrel paper`.

use clap::Subcommand;
use std::path::PathBuf;

/// `whimbrel paper`.
#[derive(Subcommand, Debug)]
pub enum PaperCommand {
    /// List the figures and tables, with the data they need
    List {
        /// Print one JSON object to standard output
        #[arg(long)]
        json: bool,
    },
    /// Run studies, and show published beside obtained values
    Run {
        /// Names of `paper list`, or `all`
        #[arg(value_parser = super::names(), hide_possible_values = true, required = true)]
        names: Vec<String>,
        #[command(flatten)]
        with: PaperOptions,
    },
    /// The same for all studies, at quick scale unless told otherwise
    ///
    /// Exits with 1 on a miss that is not a known disagreement. Among all studies, those without data are
    /// left out and named at the end; this does not change the exit code.
    Check {
        /// Names of `paper list`, or `all`
        #[arg(value_parser = super::names(), hide_possible_values = true)]
        #[arg(default_value = super::ALL)]
        names: Vec<String>,
        #[command(flatten)]
        with: PaperOptions,
    },
}

/// Options of `whimbrel paper run` and `check`.
#[derive(clap::Args, Debug)]
pub struct PaperOptions {
    /// The extent of the runs [default: paper for `run`, quick for `check`]
    #[arg(long)]
    pub scale: Option<super::study::Scale>,
    /// The folder of published data [default: WHIMBREL_DATA, jobs/data or ../shared/data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The folder of all runs, new or empty [default: runs/paper-NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write one Markdown page per paper into this folder
    #[arg(long, value_name = "DIR")]
    pub markdown: Option<PathBuf>,
    /// Print claims and summaries as one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}
