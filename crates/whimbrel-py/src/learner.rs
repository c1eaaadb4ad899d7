//! Learners written in Python.
//!
//! A [`PyLearner`] passes batches to `whimbrel._learner.Bridge`, which converts them to arrays, calls
//! the user's learner and checks the results. A learner's methods cannot fail, so an exception unwinds
//! to the thread that waits for the work ([`panicked`](crate::errors::panicked)); the current exchange
//! is not committed.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use std::panic::resume_unwind;
use std::sync::Arc;
use whimbrel::parts::core::{Error, Inputs, Key, Result, Samples, Targets};
use whimbrel::parts::families::personal::own_learner::{OwnLearner as Offered, Replace};
use whimbrel::parts::nn::{
    Architecture, Batch, Learner, Optimiser, Role, Room, Tensor, Trainee, Training,
};

use crate::errors::{detached, exception};
use crate::runs::bytes;

/// A Python learner, registered under its name while the object lives.
#[pyclass(frozen, module = "whimbrel._whimbrel")]
pub struct OwnLearner {
    _held: Offered,
}

#[pymethods]
impl OwnLearner {
    /// Registers `build(shape, classes)`, which returns a `Bridge`, under a name.
    #[new]
    fn new(name: &str, build: Py<PyAny>) -> PyResult<Self> {
        let build = move |shape: &[usize], classes: usize| -> Result<Arc<dyn Learner>> {
            Ok(Arc::new(or_unwind(|py| PyLearner::new(&build, py, shape, classes))))
        };
        let held = Offered::new(name, Arc::new(build));
        Ok(Self { _held: held.map_err(|error| exception(&error.into()))? })
    }
}

/// Replaces built-in networks by `build(kind, tensors, shape, classes)`, which returns a `Bridge`;
/// `tensors` are names, shapes, and whether each is a running statistic.
pub fn on_device(build: Py<PyAny>) -> Box<Replace> {
    Box::new(move |architecture, network| {
        let Architecture { kind, shape, classes, .. } = architecture;
        let tensor = |t: &Tensor| (t.name.clone(), t.shape.clone(), t.role == Role::Statistic);
        let tensors: Vec<_> = network.tensors().iter().map(tensor).collect();
        let learner = or_unwind(|py| {
            let bridge = build.call1(py, (kind, tensors, PyTuple::new(py, shape)?, *classes))?;
            PyLearner::on(py, bridge, shape, *classes, Some(network))
        });
        Ok(Arc::new(learner))
    })
}

/// The losses and the gradient of a built-in network without dropout, and the network's tensors;
/// `inputs` are numbers, or symbols as integers.
#[pyfunction]
#[pyo3(signature = (kind, shape, classes, params, inputs, targets, hidden=Vec::new()))]
#[allow(clippy::too_many_arguments)]
pub fn network_gradient<'py>(
    py: Python<'py>,
    kind: &str,
    shape: Vec<usize>,
    classes: usize,
    params: PyBuffer<f32>,
    inputs: &Bound<'py, PyAny>,
    targets: Vec<u16>,
    hidden: Vec<usize>,
) -> PyResult<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
    let inputs = match inputs.extract::<PyBuffer<u16>>() {
        Ok(symbols) => Inputs::Symbols(symbols.to_vec(py)?),
        Err(_) => Inputs::Real(inputs.extract::<PyBuffer<f32>>()?.to_vec(py)?),
    };
    let w = params.to_vec(py)?;
    let (losses, gradient) = detached(py, || {
        let architecture =
            Architecture { hidden, dropout: false, ..Architecture::new(kind, &shape, classes) };
        let network = architecture.build()?;
        let count = targets.len();
        let of_targets = Targets::Classes { of: targets, count: classes };
        let samples = Samples::new(shape, inputs, of_targets)?;
        network.check(&samples)?;
        if w.len() != network.parameters() {
            let (found, wanted) = (w.len(), network.parameters());
            return Err(Error::data(format!("{found} parameters, expected {wanted}")).into());
        }
        let (mut losses, mut gradient) = (vec![0.0; count], vec![0.0; w.len()]);
        let (batch, key) = (Batch::all(&samples), Key::root(0));
        network.gradient(&w, batch, None, key, &mut Room::default(), &mut gradient, &mut losses);
        Ok((losses, gradient))
    })?;
    Ok((floats(py, &losses)?, floats(py, &gradient)?))
}

struct PyLearner {
    bridge: Py<PyAny>,
    /// The built-in network that Python computes.
    network: Option<Arc<dyn Learner>>,
    shape: Vec<usize>,
    classes: usize,
    tensors: Vec<Tensor>,
    clients_at_once: usize,
}

/// Calls `work` with the interpreter; an exception unwinds.
fn or_unwind<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> T {
    Python::attach(work).unwrap_or_else(|error| resume_unwind(Box::new(error)))
}

impl PyLearner {
    fn new(build: &Py<PyAny>, py: Python<'_>, shape: &[usize], classes: usize) -> PyResult<Self> {
        let of_shape = PyTuple::new(py, shape)?;
        let bridge = build.call1(py, (of_shape, classes))?;
        Self::on(py, bridge, shape, classes, None)
    }

    fn on(
        py: Python<'_>,
        bridge: Py<PyAny>,
        shape: &[usize],
        classes: usize,
        network: Option<Arc<dyn Learner>>,
    ) -> PyResult<Self> {
        let (body, head): (usize, usize) = bridge.getattr(py, "sizes")?.extract(py)?;
        let clients_at_once = bridge.getattr(py, "clients_at_once")?.extract(py)?;
        let tensors =
            [Tensor::new("body", &[body], Role::Weight), Tensor::new("head", &[head], Role::Head)];
        let tensors = tensors.into_iter().filter(|tensor| !tensor.is_empty()).collect();
        let tensors = network.as_ref().map_or(tensors, |network| network.tensors().to_vec());
        Ok(Self { bridge, network, shape: shape.to_vec(), classes, tensors, clients_at_once })
    }

    fn arrays<'py>(&self, py: Python<'py>, batch: Batch<'_>, key: Key) -> PyResult<Arrays<'py>> {
        let Samples { inputs, targets, .. } = batch.samples;
        let width = batch.samples.width();
        let of_inputs = match inputs {
            Inputs::Real(all) => ("f4", at(py, all, batch, width, f32::to_le_bytes)?),
            Inputs::Bytes(all) => ("u1", at(py, all, batch, width, u8::to_le_bytes)?),
            Inputs::Symbols(all) => ("u2", at(py, all, batch, width, u16::to_le_bytes)?),
        };
        let of_targets = match targets {
            Targets::Classes { of, .. } => ("u2", at(py, of, batch, 1, u16::to_le_bytes)?),
            Targets::Values(all) => ("f4", at(py, all, batch, 1, f32::to_le_bytes)?),
        };
        Ok((of_inputs, of_targets, key.words()[0] >> 1))
    }

    fn call<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
        &self,
        py: Python<'py>,
        method: &str,
        arguments: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<T> {
        self.bridge.bind(py).call_method1(method, arguments)?.extract()
    }
}

/// Inputs and targets, each with its type, and a seed.
type Arrays<'py> =
    ((&'static str, Bound<'py, PyByteArray>), (&'static str, Bound<'py, PyByteArray>), u64);

/// The numbers of a batch's samples, `width` of each, as bytes.
fn at<'py, T: Copy, const N: usize>(
    py: Python<'py>,
    all: &[T],
    batch: Batch<'_>,
    width: usize,
    bytes: impl Fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, batch.len() * width * N, |out| {
        for (i, to) in out.chunks_exact_mut((width * N).max(1)).enumerate() {
            let sample = &all[batch.place(i) * width..][..width];
            let each = to.chunks_exact_mut(N).zip(sample);
            each.for_each(|(to, x)| to.copy_from_slice(&bytes(*x)));
        }
        Ok(())
    })
}

fn floats<'py>(py: Python<'py>, values: &[f32]) -> PyResult<Bound<'py, PyByteArray>> {
    bytes(py, values, |x| x.to_le_bytes())
}

fn copy<T: Element>(py: Python<'_>, from: &PyBuffer<T>, to: &mut [T]) -> PyResult<()> {
    from.copy_to_slice(py, to)
}

impl Learner for PyLearner {
    fn name(&self) -> &'static str {
        self.network.as_ref().map_or("own", |network| network.name())
    }

    fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    fn outputs(&self) -> usize {
        self.classes.max(1)
    }

    fn classifies(&self) -> bool {
        self.classes > 0
    }

    fn check(&self, samples: &Samples) -> Result<()> {
        if let Some(network) = &self.network {
            return network.check(samples);
        }
        if samples.shape != self.shape {
            let what = format!("inputs of {:?} for a learner of {:?}", samples.shape, self.shape);
            return Err(Error::data(what));
        }
        match (&samples.targets, self.classes) {
            (Targets::Values(_), 0) => Ok(()),
            (Targets::Classes { count, .. }, classes) if *count == classes => Ok(()),
            _ => Err(Error::data("the targets do not fit the learner")),
        }
    }

    fn start(&self, key: Key) -> Vec<f32> {
        if let Some(network) = &self.network {
            return network.start(key);
        }
        or_unwind(|py| {
            let found: PyBuffer<f32> = self.call(py, "start", (key.words()[0] >> 1,))?;
            found.to_vec(py)
        })
    }

    fn head_on(&self, w: &[f32], samples: &Samples) -> Option<(Box<dyn Learner>, Samples)> {
        self.network.as_ref()?.head_on(w, samples)
    }

    fn losses(&self, w: &[f32], batch: Batch<'_>, _: &mut Room, losses: &mut [f32]) {
        or_unwind(|py| {
            let batch = self.arrays(py, batch, Key::root(0))?;
            let found: PyBuffer<f32> = self.call(py, "losses", (floats(py, w)?, batch))?;
            copy(py, &found, losses)
        });
    }

    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        key: Key,
        _: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        or_unwind(|py| {
            let batch = self.arrays(py, batch, key)?;
            let weights = weights.map(|weights| floats(py, weights)).transpose()?;
            let (of_samples, of_parameters): (PyBuffer<f32>, PyBuffer<f32>) =
                self.call(py, "loss_and_grad", (floats(py, w)?, batch, weights))?;
            copy(py, &of_samples, losses)?;
            copy(py, &of_parameters, gradient)
        });
    }

    fn predict(&self, w: &[f32], batch: Batch<'_>, _: &mut Room, predictions: &mut [f32]) {
        or_unwind(|py| {
            let batch = self.arrays(py, batch, Key::root(0))?;
            let found: PyBuffer<f32> = self.call(py, "predict", (floats(py, w)?, batch))?;
            copy(py, &found, predictions)
        });
    }

    fn local_steps(&self, all: &mut [Training<'_>], room: &mut Room) -> Result<()> {
        if self.clients_at_once == 0 {
            return all.iter_mut().try_for_each(|training| training.run(self, room));
        }
        or_unwind(|py| {
            let mut last = Last::default();
            let clients: Vec<_> =
                all.iter().map(|one| self.client(py, one, &mut last)).collect::<PyResult<_>>()?;
            let trained: Vec<Vec<PyBuffer<f32>>> = self.call(py, "train", (clients,))?;
            for (client, trained) in all.iter_mut().zip(&trained) {
                for (model, trained) in client.models.iter_mut().zip(trained) {
                    copy(py, trained, model.w)?;
                }
            }
            Ok(())
        });
        Ok(())
    }

    fn clients_at_once(&self) -> usize {
        self.clients_at_once.max(1)
    }
}

impl PyLearner {
    /// A client's training for `Bridge.train`.
    fn client<'py>(
        &self,
        py: Python<'py>,
        training: &Training<'_>,
        last: &mut Last<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (mut places, mut lengths) = (Vec::new(), Vec::new());
        let (mut minibatches, everyone) = (training.minibatches(), training.samples.len() as u32);
        while let Some(batch) = minibatches.next() {
            let before = places.len();
            match batch {
                Some(batch) => places.extend_from_slice(batch),
                None => places.extend(0..everyone),
            }
            lengths.push(places.len() - before);
        }
        let places: Vec<u8> = places.iter().flat_map(|place: &u32| place.to_le_bytes()).collect();
        let optimiser = match training.solver.optimiser {
            Optimiser::Sgd { momentum, weight_decay } => ("sgd", vec![momentum, weight_decay]),
            Optimiser::Adam { beta1, beta2, epsilon, weight_decay } => {
                ("adam", vec![beta1, beta2, epsilon, weight_decay])
            }
        };
        let models = training.models.iter().map(|model| trainee(py, model, last));
        let models = models.collect::<PyResult<Vec<_>>>()?;
        let samples = self.arrays(py, Batch::all(training.samples), training.key)?;
        let batches = (PyByteArray::new(py, &places), lengths);
        let client = (samples, batches, training.rate, optimiser, models);
        Ok(client.into_pyobject(py)?.into_any())
    }
}

/// The last parameters and the last centre passed to Python: clients that start from the same values
/// share one array.
#[derive(Default)]
struct Last<'py> {
    w: Option<(Vec<f32>, Bound<'py, PyAny>)>,
    centre: Option<(Vec<f32>, Bound<'py, PyAny>)>,
}

/// An array of these numbers; the last one if equal.
fn shared<'py>(
    py: Python<'py>,
    values: &[f32],
    last: &mut Option<(Vec<f32>, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some((same, array)) = last
        && same == values
    {
        return Ok(array.clone());
    }
    let array = floats(py, values)?.into_any();
    *last = Some((values.to_vec(), array.clone()));
    Ok(array)
}

fn trainee<'py>(
    py: Python<'py>,
    model: &Trainee<'_>,
    last: &mut Last<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let some = |values: Option<&[f32]>| values.map(|values| floats(py, values)).transpose();
    let (mu, centre) = model.proximal.map_or((0.0, None), |term| (term.mu, Some(term.centre)));
    let centre = centre.map(|centre| shared(py, centre, &mut last.centre)).transpose()?;
    let frozen: Vec<_> = model.frozen.iter().map(|range| (range.start, range.end)).collect();
    let w = shared(py, model.w, &mut last.w)?;
    let all = (w, some(model.weights)?, mu, centre, some(model.shift)?, frozen);
    Ok(all.into_pyobject(py)?.into_any())
}
