//! Gaussian mixtures.

use super::keys::{GmmKeys, Init, covariance_name};
use super::mixture::{Candidates, MixtureKeys, MixtureUse};
use super::prepare::Preparing;
use super::start::InitFile;
use super::{exhibits, predict, tables};
use crate::failure::Result;
use crate::family::{Ended, ModelUse, Predicted, RunData};
use crate::job::{DataSource, Job};
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts};
use serde_json::{Map, Value};
use std::path::PathBuf;
use whimbrel_core::Error;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_data::Input;
use whimbrel_job::reader::Source;
use whimbrel_job::writer::Writer;
use whimbrel_methods::fedem::FrameKind;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::prepare::Affine;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

impl MixtureKeys for GmmKeys {
    type Model = Gmm;
    const SURROGATES: bool = true;

    fn candidates(&self) -> Candidates<'_> {
        Candidates { init: &self.init, components: &self.components, starts: self.starts }
    }

    fn init_path(&mut self) -> Option<&mut PathBuf> {
        match &mut self.init {
            Init::File(path) => Some(path),
            Init::Moments | Init::FederatedKmeans | Init::Examples => None,
        }
    }

    fn with_components(&self, components: usize) -> Self {
        let settings = GmmSettings { components, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }

    fn words(&self) -> (&'static str, &'static str) {
        ("gmm", covariance_name(&self.settings.covariance))
    }

    fn title(&self) -> &'static str {
        "Gaussian mixture"
    }

    fn write(&self, out: &mut Writer) {
        GmmKeys::write(self, out);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let width = match &job.data.source {
            DataSource::Mixture(mixture) => Some(mixture.spec.means[0].len()),
            DataSource::Csv(csv) => csv.columns.as_ref().map(Vec::len),
            _ => None,
        };
        let width = job.data.prepare.pca.or(width);
        if let (Covariance::Known(values), Some(width)) = (&self.settings.covariance, width)
            && !values.is_empty()
            && values.len() != width * width
        {
            let size = values.len().isqrt();
            source.report_at(
                &["model", "known_covariance"],
                format!("a covariance of size {size} for rows of {width} numbers"),
                "it needs one row and one column for each column of the data or principal component",
            );
        }
    }

    fn layout(&self) -> Layout {
        Layout::Rows
    }

    fn preparing(
        &self,
        common: &Common,
        facts: &Facts,
        rows: Option<&Loaded>,
    ) -> Result<Preparing> {
        match rows {
            Some(loaded) => Preparing::seen(common, loaded, self.settings.is_regularised()),
            None => Preparing::unseen(common, &self.init, &facts.columns),
        }
    }

    fn model_and_start(
        &self,
        job: &Job,
        columns: usize,
        file: Option<&(PathBuf, InitFile)>,
        affine: Option<&Affine>,
    ) -> whimbrel_core::Result<(Gmm, MixtureStart)> {
        let mut settings = self.settings.clone();
        settings.columns = columns;
        if let Covariance::Known(given) = &settings.covariance {
            let known = known_covariance(given, file.map(|(_, init)| init), affine)?;
            settings.covariance = Covariance::Known(known);
        }
        let private = job.privacy.epsilon.is_some();
        settings.want_moments = !(private || matches!(self.init, Init::File(_)));
        settings.centred = job.uplink.frame == Some(FrameKind::Fisher) && compresses(job);
        let model = Gmm::new(settings)?;
        let start = match file {
            Some((path, init)) => given(&model, init, affine).map_err(|e| match e {
                Error::Config { .. } => e.within(path.display()),
                other => other,
            })?,
            None if self.init == Init::Examples => MixtureStart::Examples,
            None => MixtureStart::Moments,
        };
        Ok((model, start))
    }

    /// Clients whiten their rows by a known covariance, which the file may hold.
    fn keep_of_file(&mut self, model: &Gmm) {
        if let known @ Covariance::Known(_) = &model.settings().covariance {
            self.settings.covariance = known.clone();
        }
    }
}

impl MixtureUse for GmmKeys {
    fn model_keys(&self, _: &RunData) -> Map<String, Value> {
        let kind = covariance_name(&self.settings.covariance);
        Map::from_iter([("covariance_kind".into(), kind.into())])
    }

    fn section(&self, model: &Artifact, ended: &Ended<'_>) -> Option<Section> {
        // Rows of the data cannot be plotted among principal components.
        let drawn = model.tensor("prepare.axes").is_none().then_some(model);
        let columns = ended.data.used_columns(model);
        let plane = drawn.and_then(|model| exhibits::section(model, &columns, &ended.data.preview));
        tables::section(model, &columns, plane, ended.outcome)
    }

    fn predict(&self, run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
        predict::predict(run, file)
    }
}

/// Whether any channel is lossy.
fn compresses(job: &Job) -> bool {
    let own = job.uplink.own.iter().map(|own| &own.codec);
    let lossy = std::iter::once(&job.uplink.codec).chain(own).any(|codec| !codec.is_exact());
    lossy || !job.downlink.is_exact()
}

/// The known covariance, from the job or from the init file.
fn known_covariance(
    given: &[f64],
    init: Option<&InitFile>,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<Vec<f64>> {
    let mut known = match init {
        _ if !given.is_empty() => given.to_vec(),
        Some(init) if !init.covariance.is_empty() => init.covariance.clone(),
        _ => {
            return Err(Error::config("covariance = \"known\" needs the covariance").hint(
                "give known_covariance = [[..], ..] in [model], or a `covariance` in the init file",
            ));
        }
    };
    if let Some(affine) = affine {
        affine.covariances_forward(&mut known);
    }
    Ok(known)
}

/// The start from a file, checked against the model.
fn given(
    model: &Gmm,
    init: &InitFile,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<MixtureStart> {
    if init.weights.len() != model.components() || init.columns != model.columns() {
        return Err(Error::config(format!(
            "the file has {} components of {} columns, the job {} components of {} columns",
            init.weights.len(),
            init.columns,
            model.components(),
            model.columns()
        )));
    }
    let known = matches!(model.settings().covariance, Covariance::Known(_));
    let mut covariance =
        if known { Vec::new() } else { init.covariances_as(&model.settings().covariance)? };
    let mut means = init.means.clone();
    if let Some(affine) = affine {
        affine.forward(&mut means);
        if covariance.len() == means.len() && model.settings().covariance.is_diagonal() {
            affine.variances(&mut covariance, true);
        } else {
            affine.covariances_forward(&mut covariance);
        }
    }
    let theta = model.parameters(&init.weights, &means, &covariance)?;
    Ok(MixtureStart::Given(model.to_vector(&theta)))
}
