//! Checks between the tables of a job that are common to all families.

use super::{DownRule, Job, Memories, Participation, Partition};
use crate::job::DataSource;
use crate::load::Layout;
use whimbrel_job::reader::Source;

impl Job {
    pub(super) fn check_tables(&self, source: &Source<'_>) {
        self.check_counts(source);
        let learner = matches!(self.fit.layout(), Layout::Samples { .. });
        if matches!(self.data.source, DataSource::Collection(_)) && !learner {
            let what = format!(
                "this source has samples for learners, and {} is not a learner",
                self.model
            );
            let hint = "use a csv, npy, libsvm or idx file";
            source.report_at(&["data", "source"], what, hint);
            return;
        }
        if self.data.shape.is_some() && !learner {
            let what = format!("`shape` is for learners, and {} is not a learner", self.model);
            source.report_at(&["data", "shape"], what, "take it out");
        }
        match self.fit.layout() {
            Layout::Cells { .. } => self.check_cells(source),
            Layout::Rows | Layout::Mixed { .. } => {
                self.check_no_cells(source);
                let response = match self.fit.layout() {
                    Layout::Mixed { response, .. } => response,
                    _ => None,
                };
                let predicts = response.is_some();
                if response.is_some_and(|it| !it.optional) && !self.data.has_targets() {
                    let what = format!("{} predicts a target, and the data have none", self.model);
                    source.report_at(
                        &["data", "source"],
                        what,
                        "give a column of a csv file as `target`",
                    );
                }
                if self.data.has_targets() && !predicts {
                    let what =
                        format!("{} fits rows without targets, and these have targets", self.model);
                    let hint = "use a csv file without `target` (a `label` is not a feature)";
                    source.report_at(&["data", "source"], what, hint);
                }
            }
            Layout::Targets { .. } | Layout::Samples { .. } => {
                self.check_no_cells(source);
                if self.data.prepare.is_something() {
                    let what = format!(
                        "[data.prepare] is for rows without targets, and {} predicts one",
                        self.model
                    );
                    let hint = "take it out; standardize = true in [data] scales the columns";
                    source.report_at(&["data", "prepare"], what, hint);
                }
                if !(self.data.has_targets() || learner && self.data.has_labels()) {
                    let what = format!("{} predicts a target, and the data have none", self.model);
                    let hint = if learner {
                        "give the column of a csv file as `target`, or the `labels` of images"
                    } else {
                        "give the column of a csv file as `target`, or use source = \"libsvm\""
                    };
                    source.report_at(&["data", "source"], what, hint);
                }
                if learner {
                    self.check_bytes(source);
                }
            }
        }
        self.check_subset(source);
        if matches!(
            self.downlink.rule,
            DownRule::Preserved { memories: Memories::PerClient | Memories::Single { .. }, .. }
        ) && !self.downlink.is_exact()
        {
            let what = "on a grid all clients compute at one state, but every client has a downlink \
                        memory of its own";
            self.uplink.refuse_grid(source, what);
        }
    }

    /// Refuses scaling of images for learners, which read bytes.
    fn check_bytes(&self, source: &Source<'_>) {
        let DataSource::Idx(idx) = &self.data.source else { return };
        for (key, given) in [("scale", idx.scale != 255.0), ("standardize", idx.standardize)] {
            if given {
                let what = format!("`{key}` has no meaning for {}", self.model);
                let hint = "take it out: learners divide each byte by 255";
                source.report_at(&["data", key], what, hint);
            }
        }
    }

    /// Clients and rows that only a simulation can omit.
    fn check_subset(&self, source: &Source<'_>) {
        let pooled = self.method.kind.pooled;
        let subset = &self.data.subset;
        let simulated = [
            ("unseen", self.data.unseen > 0.0, pooled),
            ("keep_clients", subset.clients.is_some(), false),
            ("keep_rows", subset.rows < 1.0, false),
        ];
        for (key, given, in_vain) in simulated {
            let why = match (in_vain, self.federation.is_some()) {
                _ if !given => continue,
                (true, _) => "one client holds all rows",
                (_, true) => "clients of a served job take part with all rows",
                _ => continue,
            };
            let what = format!("`{key}` has no meaning here: {why}");
            source.report_at(&["data", key], what, "take it out");
        }
    }

    /// Refuses keys of tables with gaps.
    fn check_no_cells(&self, source: &Source<'_>) {
        if let DataSource::Csv(csv) = &self.data.source
            && let Some(key) = csv.cells.first_given()
        {
            let what = format!("`{key}` is for tables with gaps, and {} has none", self.model);
            let hint = "take it out, or write kind = \"low-rank\" in [model]";
            source.report_at(&["data", key], what, hint);
        }
        if matches!(self.data.partition(), Some(Partition::Rows { .. })) {
            let what = "by = \"rows\" is for tables with gaps";
            let hint = "write by = \"iid\"";
            source.report_at(&["data", "split"], what, hint);
        }
    }

    /// Checks `[data]` of a table with gaps.
    fn check_cells(&self, source: &Source<'_>) {
        let report = |key: &str, what: String, hint: &str| {
            source.report_at(&["data", key], what, hint);
        };
        let DataSource::Csv(csv) = &self.data.source else {
            let what = "a low-rank table is read from csv, parquet or sql".to_owned();
            return report("source", what, "write source = \"csv\"");
        };
        let without_meaning = [
            ("target", csv.target.is_some(), "cells are predicted, not a column"),
            ("label", csv.label.is_some(), "its rows have no classes"),
            ("standardize", csv.standardize, "cells keep their units, and counts cannot be scaled"),
            ("prepare", self.data.prepare.is_something(), "cells keep their units"),
            ("role", self.data.held_out.role.is_some(), "`holdout` sets cells apart, not rows"),
            ("keep_rows", self.data.subset.rows < 1.0, "its rows are part of the model"),
        ];
        for (key, _, why) in without_meaning.iter().filter(|(_, given, _)| *given) {
            let what = format!("`{key}` has no meaning for a table with gaps: {why}");
            report(key, what, "take it out");
        }
        match &csv.partition {
            Partition::Pooled
            | Partition::Column(_)
            | Partition::Iid { .. }
            | Partition::Rows { .. } => {}
            Partition::Labels { .. } | Partition::Natural | Partition::Clusters { .. } => report(
                "split",
                "cells of a table have no classes and no clusters to split by".to_owned(),
                "write by = \"rows\" (whole rows) or by = \"iid\" (single cells)",
            ),
        }
        if csv.cells.value.is_some() && csv.columns.is_some() {
            let what = "`columns` is for a wide table, and `value` for a long one";
            report("columns", what.to_owned(), "keep one of the two");
        }
    }

    fn check_counts(&self, source: &Source<'_>) {
        let clients = self.data.clients();
        if let (Participation::Size(size), Some(clients)) = (&self.method.participation, clients)
            && *size > clients
        {
            source.report_at(
                &["method", "participation", "size"],
                format!("a cohort of {size} out of {clients} clients"),
                "a cohort has at most as many clients as the federation",
            );
        }
        if let (DownRule::Preserved { memories: Memories::Groups(groups), .. }, Some(clients)) =
            (&self.downlink.rule, clients)
            && *groups as usize > clients
        {
            source.report_at(
                &["downlink", "memories"],
                format!("{groups} groups of {clients} clients"),
                "there are at most as many groups as clients",
            );
        }
        if let Some(seeds) = self.seeds
            && self.seed.checked_add(u64::from(seeds)).is_none()
        {
            source.report_at(
                &["seeds"],
                format!("{seeds} seeds from {} on are too many", self.seed),
                "the last seed is at most 18446744073709551614",
            );
        }
    }
}
