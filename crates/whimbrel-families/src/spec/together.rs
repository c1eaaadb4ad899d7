//! What only shows when several tables of a job are seen together.

use super::{
    Batch, DataSource, DownRule, Feedback, Form, Job, Memories, MethodKind, Model, Participation,
    Step,
};
use whimbrel_job::reader::Source;

impl Job {
    pub(super) fn check_together(&self, source: &Source<'_>) {
        self.check_model(source);
        self.check_table(source);
        self.check_counts(source);
        self.check_width(source);
        self.check_stream(source);
        self.check_downlink(source);
        self.check_theory(source);
    }

    /// Which methods fit which models, and which models need targets.
    fn check_model(&self, source: &Source<'_>) {
        let (method, model) = (self.method.kind.name(), self.model.name());
        let fedmiss = self.method.kind == MethodKind::Fedmiss;
        if fedmiss != matches!(self.model, Model::LowRank(_)) {
            let (what, hint) = match fedmiss {
                true => (
                    format!("fedmiss fills in tables of low rank, and kind = \"{model}\" is none"),
                    "write kind = \"low-rank\" in [model], or another kind here, such as \"fedem\"",
                ),
                false => (
                    format!("{} cannot fit a low-rank table", self.method.name()),
                    "write kind = \"fedmiss\"",
                ),
            };
            source.report_at(&["method", "kind"], what, hint);
            return;
        }
        if fedmiss {
            return;
        }
        let gradient = self.method.kind == MethodKind::Sgd;
        if gradient != self.model.is_supervised() {
            let (what, hint) = if gradient {
                let what = format!(
                    "{} descends gradients of a loss; a mixture (kind = \"{model}\") is fitted by EM",
                    self.method.name()
                );
                (
                    what,
                    "write kind = \"fedem\" here, or kind = \"linear\" or \"logistic\" in [model]",
                )
            } else {
                let what = format!(
                    "{method} fits latent-variable models; kind = \"{model}\" in [model] wants sgd"
                );
                (what, "write kind = \"sgd\" or one of its presets, such as \"mcm\"")
            };
            source.report_at(&["method", "kind"], what, hint);
            return;
        }
        if let Model::Logistic(regression) = &self.model
            && regression.ridge > 0.0
            && regression.nonconvex > 0.0
        {
            let what = "a ridge and a penalty that is not convex exclude each other".to_string();
            source.report_at(&["model", "nonconvex"], what, "take one of them out");
        }
        if gradient && self.data.prepare.is_something() {
            let what = format!("[data.prepare] is for mixtures, and {model} predicts a target");
            let hint = "take it out; standardize = true in [data] scales the columns";
            source.report_at(&["data", "prepare"], what, hint);
        }
        match (self.model.is_supervised(), self.data.has_targets()) {
            (true, false) => {
                let what = format!("{model} predicts a target, and the data have none");
                let hint = "name a csv file's column with `target`, or use source = \"libsvm\"";
                source.report_at(&["data", "source"], what, hint);
            }
            (false, true) => {
                let what = format!("{model} fits rows without targets, and the data have one each");
                let hint = "use a csv file without `target` (a `label` is left out of the fit)";
                source.report_at(&["data", "source"], what, hint);
            }
            _ => {}
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
                "a cohort is at most as large as the federation",
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

    fn check_width(&self, source: &Source<'_>) {
        let width = match &self.data.source {
            DataSource::Mixture(mixture) => Some(mixture.means[0].len()),
            DataSource::Csv(csv) => csv.columns.as_ref().map(Vec::len),
            DataSource::Npy(_)
            | DataSource::Libsvm(_)
            | DataSource::Idx(_)
            | DataSource::Toy(_) => None,
        };
        // Principal components have a covariance of their own.
        let width = self.data.prepare.pca.or(width);
        let Model::Gmm(gmm) = &self.model else { return };
        if let (Some(matrix), Some(width)) = (&gmm.known_covariance, width)
            && matrix.len() != width
        {
            source.report_at(
                &["model", "known_covariance"],
                format!("a covariance of size {} for rows of {width} numbers", matrix.len()),
                "it has one row and one column for each column of the data, or principal component",
            );
        }
    }

    fn check_stream(&self, source: &Source<'_>) {
        if !matches!(&self.data.source, DataSource::Mixture(mixture) if mixture.stream) {
            return;
        }
        if self.method.kind == MethodKind::VrFedem {
            source.report_at(
                &["data", "stream"],
                "vr-fedem starts each outer loop with a pass over all rows: a stream has no end",
                "write stream = false, or use kind = \"fedem\" in [method]",
            );
        } else if self.method.kind == MethodKind::Em {
            source.report_at(
                &["data", "stream"],
                "em pools the rows of all clients: a stream has no end to pool",
                "write stream = false, or use kind = \"fedem\" in [method]",
            );
        } else if self.method.batch == Batch::Full {
            source.report_at(
                &["method", "batch"],
                "a stream of rows has no full batch",
                "give `batch` as a number of rows",
            );
        }
    }

    /// What the theorems about vr-fedem rule out.
    fn check_theory(&self, source: &Source<'_>) {
        let reduces = self.method.kind == MethodKind::VrFedem;
        let everyone = Participation::Probability(1.0);
        if reduces && self.method.step == Step::Theory && self.method.participation != everyone {
            source.report_at(
                &["method", "step"],
                "the theorems about vr-fedem are for everyone taking part in every round",
                "give a number, write \"auto\", or take `participation` out",
            );
        }
    }

    /// What a compressed downlink rules out.
    fn check_downlink(&self, source: &Source<'_>) {
        if self.downlink.is_exact() {
            return;
        }
        let degraded = matches!(self.downlink.rule, DownRule::Degraded { .. });
        let published = match self.method.form {
            Some(Form::Pair) => Some("the pair (S, theta)"),
            Some(Form::Lean) => Some("theta"),
            Some(Form::State) | None => None,
        };
        if let (true, Some(published)) = (degraded, published) {
            source.report_at(
                &["method", "form"],
                format!(
                    "a degraded downlink replaces the server's state by what clients decode, and \
                     {published} is not that state"
                ),
                "write form = \"state\"",
            );
        }
        let em = self.method.kind != MethodKind::Sgd;
        if em && self.method.step == Step::Theory {
            source.report_at(
                &["method", "step"],
                format!(
                    "no theorem bounds the step of {} over a compressed downlink",
                    self.method.kind.name()
                ),
                "give a number, or send the state exactly",
            );
        }
        let dore = self.downlink.rule == DownRule::Degraded { feedback: Feedback::Dore };
        let constant = matches!(self.method.step, Step::Auto | Step::Constant(_) | Step::OverL(_));
        if self.method.compat.is_some() && dore && !constant {
            source.report_at(
                &["method", "compat"],
                "this takes the step for Dore's share of the error, and the step is not constant",
                "give a constant step, such as \"1/L\"",
            );
        }
    }
}
