//! Tables, plots and the HTML report.
//!
//! Pure functions from plain values to strings, without files, clock or network: equal values give
//! equal pages. The caller fills one [`RunView`] per run from the run's directory; [`html`] renders one
//! run, several side by side, or several seeds of one job (geometric means and standard deviations of
//! log10 on log axes, means and standard deviations elsewhere).
//!
//! | module | holds |
//! |---|---|
//! | [`view`] | the input |
//! | [`format`](mod@format) | formatted numbers, bits and durations; escaping |
//! | [`table`] | aligned plain-text tables for a terminal |
//! | [`plot`] | SVG: axes, line charts, ellipses, bars and histograms, the standalone picture |
//! | [`dashboard`] | the live dashboard's files and status, metrics for Prometheus |
//! | `exhibits` | exhibits of families: tables, heat maps, series with intervals, ellipses |
//! | `declared`, `group`, `curves`, `headline`, `bits_to_target` | lines and figures of runs |
//! | [`studies`] | the page of a paper's figures and tables |
//! | `page`, `sections`, `settings`, `figure` | the HTML |
//!
//! Coordinates use the host's `log10`, so pictures may differ in the last digit between machines; the
//! promise of identical bits covers `model/` and `checkpoint/`.

mod bits_to_target;
mod curves;
pub mod dashboard;
mod declared;
mod exhibits;
mod figure;
pub mod format;
mod group;
mod headline;
mod page;
pub mod plot;
mod quantiles;
mod sections;
mod settings;
pub mod studies;
pub mod table;
pub mod view;

pub use bits_to_target::{BitsToReach, LEVELS, Reached, bits_to_reach};
pub use format::measure_text;
pub use headline::{Detail, answer, closing_table, section_tables};
pub use page::html;
pub use plot::hero::{hero, standalone_lines};
pub use table::text_table;
pub use view::{ClientView, RunView};
