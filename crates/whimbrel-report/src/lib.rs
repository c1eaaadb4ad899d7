//! Tables, plots and the HTML report.
//!
//! Pure functions from plain values to strings: nothing here reads a file, a clock or the network,
//! so the same values always give the same page. The caller fills one [`RunView`] per run from the
//! run's directory; one function, [`html`], renders one run, several side by side, or several seeds
//! of one job: on a log axis geometric means with the standard deviation of log10, elsewhere means
//! with the standard deviation.
//!
//! | module | holds |
//! |---|---|
//! | [`view`] | what a caller fills in |
//! | [`format`](mod@format) | numbers, bits and durations written for people; escaping |
//! | [`table`] | aligned plain-text tables for a terminal |
//! | [`plot`] | SVG: axes, line charts, ellipses, bars and histograms, the standalone picture |
//! | [`dashboard`] | the live dashboard's files, what it shows, figures for Prometheus |
//! | `exhibits` | what families fill: tables, heat maps, series with intervals, ellipses |
//! | `declared`, `group`, `curves`, `headline`, `reach` | from runs to the lines and figures that are shown |
//! | `page`, `sections`, `figure` | the HTML |
//!
//! Coordinates use the host's `log10`: a picture may differ in its last digit between machines,
//! which is outside the promise of identical bits (that is about `model/` and `checkpoint/`).

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
pub mod table;
pub mod view;

pub use bits_to_target::{BitsToReach, LEVELS, Reached, bits_to_reach};
pub use format::measure_text;
pub use headline::closing_table;
pub use page::html;
pub use plot::hero::{HeroAxis, hero};
pub use table::text_table;
pub use view::{ClientView, RunView};
