//! Samples of learners, and rows of generated samples.

use super::{Layout, Loaded, Truth};
use crate::failure::{AtKey, Failure, Result};
use whimbrel_core::{ClientData, HeldOut, Key, Labelled, Samples};
use whimbrel_data::{
    LogisticMixture, LogisticMixtureSpec, RepresentationSpec, hash_samples, labelled,
    number_classes, samples,
};

/// Converts clients' rows to samples; `classes` is the number of classes.
pub(super) fn of_rows(
    clients: Vec<(String, Labelled)>,
    classes: Option<usize>,
    hash: String,
) -> Result<Loaded> {
    let columns = clients.first().map_or_else(Vec::new, |(_, rows)| rows.columns.clone());
    let convert = |(name, rows): (String, Labelled)| Ok((name, samples(&rows, classes)?));
    let clients = clients.into_iter().map(convert).collect::<Result<_>>()?;
    Ok(Loaded { columns, ..Loaded::of(clients, ClientData::Samples, hash) })
}

/// Codes targets by class number, from 0, and returns the class names. `names` are the classes that
/// targets index, if the file names them.
pub(crate) fn settle_classes(targets: &mut [f64], names: &[String]) -> Result<Vec<String>> {
    let found = number_classes(targets)?;
    let name = |class: f64| names.get(class as usize).cloned().unwrap_or(class.to_string());
    match &found[..] {
        [only] => Err(Failure::config(format!("every target is {}: one class", name(*only)))),
        _ => Ok(found.into_iter().map(name).collect()),
    }
}

/// Gives every sample the job's shape.
pub(super) fn reshape(loaded: &mut Loaded, shape: Option<&[usize]>) -> Result<()> {
    let Some(shape) = shape else { return Ok(()) };
    let width: usize = shape.iter().product();
    for (_, data) in &mut loaded.clients {
        let ClientData::Samples(samples) = data else { continue };
        if samples.width() != width {
            let what = format!("shape = {shape:?}, but an input has {} numbers", samples.width());
            return Err(Failure::config(what)).at("data.shape");
        }
        let HeldOut { validation, test, .. } = &mut samples.held_out;
        for part in [validation, test].into_iter().flatten() {
            part.shape = shape.to_vec();
        }
        samples.shape = shape.to_vec();
    }
    Ok(())
}

pub(super) fn from_synthetic(spec: &LogisticMixtureSpec, key: Key) -> Result<Loaded> {
    let LogisticMixture { clients, tests, truth } = spec.draw(key)?;
    let columns = (1..=spec.dimension).map(|j| format!("x{j}")).collect();
    let hash = hash_samples(&clients);
    let loaded = Loaded::of(clients, ClientData::Samples, hash);
    let classes = vec!["0".into(), "1".into()];
    let truth = Some(Truth { law: truth, bayes_accuracy: Vec::new() });
    Ok(Loaded { columns, classes, truth, drawn_tests: tests, ..loaded })
}

pub(super) fn from_representation(spec: &RepresentationSpec, key: Key) -> Result<Loaded> {
    let (clients, truth) = spec.draw(key)?;
    let columns = (1..=spec.raw).map(|j| format!("x{j}")).collect();
    let hash = hash_samples(&clients);
    let loaded = Loaded::of(clients, ClientData::Samples, hash);
    Ok(Loaded { columns, representation: Some(truth), ..loaded })
}

/// Replaces held-out test rows by generated test samples, and evaluates the Bayes rule on them.
pub(super) fn settle_tests(loaded: &mut Loaded) {
    for ((_, data), test) in loaded.clients.iter_mut().zip(std::mem::take(&mut loaded.drawn_tests))
    {
        if let ClientData::Samples(samples) = data {
            samples.held_out.test = Some(Box::new(test));
        }
    }
    if let Some(truth) = &mut loaded.truth {
        let tests = loaded.clients.iter().map(|(_, data)| match data {
            ClientData::Samples(Samples { held_out, .. }) => held_out.test.as_deref(),
            _ => None,
        });
        truth.bayes_accuracy = truth.law.bayes_accuracies(&tests.collect::<Vec<_>>());
    }
}

/// Converts generated samples for models that are not learners.
pub(super) fn laid_out(mut loaded: Loaded, layout: &Layout) -> Result<Loaded> {
    if matches!(layout, Layout::Samples { .. }) {
        return Ok(loaded);
    }
    for (_, data) in &mut loaded.clients {
        if let ClientData::Samples(samples) = data {
            *data = ClientData::Labelled(labelled(samples, &loaded.columns)?);
        }
    }
    Ok(loaded)
}

/// Excludes clients without training rows from training.
pub(super) fn leave_out_empty(loaded: &mut Loaded) {
    let is_empty = |data: &ClientData| matches!(data, ClientData::Samples(_)) && data.rows() == 0;
    let empty: Vec<usize> =
        (0..loaded.clients.len()).filter(|i| is_empty(&loaded.clients[*i].1)).collect();
    for i in empty {
        loaded.unseen.resize(loaded.clients.len(), false);
        loaded.unseen[i] = true;
        let name = &loaded.clients[i].0;
        let what = format!("client {name:?} has no training rows: it is only evaluated");
        loaded.warnings.push(what);
    }
}
