//! The posterior `p(z | D_i, phi, beta)` of a client's personal part, as a chain sees it.

use super::exact::Gaussian;
use super::model::{Noise, Personalised};
use whimbrel_core::linalg::largest_eigenvalue;
use whimbrel_core::{Error, Key, Result, Samples, Stream, Targets};
use whimbrel_models::prior::Density;
use whimbrel_models::sampler::{Potential, curvature};
use whimbrel_nn::{Batch, Room};

/// `U(z) = sum_j loss_j(phi, z)/noise^2 - ln p(z | beta)`, up to a constant.
pub(super) struct Posterior<'a> {
    model: &'a Personalised,
    data: &'a Samples,
    density: Density,
    noise: f64,
    /// The learner's parameters, and their gradient over the minibatch where `at` is.
    w: Vec<f32>,
    gradient: Vec<f32>,
    losses: Vec<f32>,
    room: Room,
    /// Where the gradient was last taken, and the sum of losses there.
    at: Vec<f64>,
    loss: f64,
    batch: Option<Minibatch>,
    dropout: Key,
    /// Features on which the head is linear, one row for each sample; asked for once.
    features: Option<Vec<f64>>,
    /// Whether the prior is a Gaussian.
    gaussian: bool,
}

struct Minibatch {
    size: usize,
    stream: Stream,
    places: Vec<u32>,
}

impl<'a> Posterior<'a> {
    pub fn new(
        model: &'a Personalised,
        phi: &[f32],
        (density, gaussian): (Density, bool),
        noise: f64,
        data: &'a Samples,
    ) -> Result<Self> {
        let mut w = vec![0.0; model.learner.parameters()];
        model.put_shared(&mut w, phi);
        let noise = model.learned_noise(phi).unwrap_or(noise);
        if !(noise > 0.0 && noise.is_finite()) {
            return Err(Error::numerical(format!("a noise of {noise} is not a scale")));
        }
        // The head does not enter its own factors.
        let features = match model.personal() == w.len() {
            true => None,
            false => model.learner.linear_features(&w, data),
        };
        let (gradient, losses) = (vec![0.0; w.len()], vec![0.0; data.len()]);
        Ok(Self {
            model,
            data,
            density,
            noise,
            gradient,
            losses,
            room: Room::default(),
            at: vec![f64::NAN; model.personal()],
            loss: f64::NAN,
            batch: None,
            dropout: Key::root(0),
            w,
            features,
            gaussian,
        })
    }

    pub fn density(&self) -> &Density {
        &self.density
    }

    /// Gradients are over minibatches of this size from now on, drawn with this key.
    pub fn draw_minibatches(&mut self, size: Option<u32>, key: Key) {
        self.dropout = key.fold(1);
        self.at.fill(f64::NAN);
        self.batch = size
            .map(|size| size as usize)
            .filter(|size| *size < self.data.len())
            .map(|size| Minibatch { size, stream: key.fold(0).stream(), places: Vec::new() });
    }

    /// Evaluates losses and their gradient at `z`, unless that was the last place.
    fn evaluate(&mut self, z: &[f64]) {
        if self.at == z {
            return;
        }
        self.model.put_personal(&mut self.w, z.iter().map(|z| *z as f32));
        if let Some(batch) = &mut self.batch {
            batch.places.clear();
            let chosen = batch.stream.choose(self.data.len(), batch.size);
            batch.places.extend(chosen.into_iter().map(|place| place as u32));
        }
        let places = self.batch.as_ref().map(|batch| &batch.places[..]);
        let batch = Batch { samples: self.data, places };
        let losses = &mut self.losses[..batch.len()];
        let (gradient, room) = (&mut self.gradient[..], &mut self.room);
        self.model.learner.gradient(&self.w, batch, None, self.dropout, room, gradient, losses);
        let mean = losses.iter().map(|l| f64::from(*l)).sum::<f64>() / batch.len().max(1) as f64;
        self.loss = mean * self.data.len() as f64;
        self.at.copy_from_slice(z);
    }

    /// What the mean gradient is multiplied with to be that of the log-likelihood.
    fn scale(&self) -> f64 {
        self.data.len() as f64 / (self.noise * self.noise)
    }

    /// Adds `weight` times `-grad_phi ln p(D | z, phi)` and `-grad_beta ln p(z | beta)`.
    pub fn add_gradients(&mut self, z: &[f64], weight: f64, d_phi: &mut [f64], d_beta: &mut [f64]) {
        self.evaluate(z);
        self.model.add_shared(&self.gradient, weight * self.scale(), d_phi);
        if let (Noise::Learned(_), Some(log)) = (self.model.noise, d_phi.last_mut()) {
            // n ln s + sum of losses/s^2, in ln s
            let square = self.noise * self.noise;
            *log += weight * (self.data.len() as f64 - 2.0 * self.loss / square);
        }
        self.density.add_parameter_gradient(z, weight, d_beta);
    }

    /// The largest curvature, where the head is linear in known features: `H^T H/noise^2` and the
    /// prior's.
    pub fn exact_curvature(&self) -> Option<f64> {
        let gram = self.gram()?;
        let largest = largest_eigenvalue(&gram, self.model.personal()).ok()?;
        Some(largest / (self.noise * self.noise) + self.density.curvature())
    }

    /// The same by differences of gradients around `z`, over all samples.
    pub fn curvature(&mut self, z: &[f64]) -> f64 {
        let batch = self.batch.take();
        self.at.fill(f64::NAN);
        let found = curvature(self, z);
        self.batch = batch;
        self.at.fill(f64::NAN);
        found
    }

    /// A preconditioner: one over the curvature of each coordinate where it is known, else the
    /// variances of the prior, in units of the largest.
    pub fn diagonal(&self) -> Vec<f64> {
        let d = self.model.personal();
        let mut diagonal = self.density.variances();
        if let Some(gram) = self.gram() {
            let square = self.noise * self.noise;
            for (j, v) in diagonal.iter_mut().enumerate() {
                *v = 1.0 / (gram[j * d + j] / square + 1.0 / *v);
            }
        }
        let largest = diagonal.iter().fold(0.0, |most: f64, v| v.max(most));
        diagonal.iter_mut().for_each(|v| *v /= largest);
        diagonal
    }

    fn gram(&self) -> Option<Vec<f64>> {
        let (features, d) = (self.features.as_ref()?, self.model.personal());
        let mut gram = vec![0.0; d * d];
        for row in features.chunks_exact(d) {
            for (i, a) in row.iter().enumerate() {
                for (j, b) in row.iter().enumerate() {
                    gram[i * d + j] += a * b;
                }
            }
        }
        Some(gram)
    }

    /// The posterior in closed form: of a linear head with a Gaussian prior.
    pub fn exact(&self) -> Result<Gaussian> {
        let no_closed_form = || {
            Error::config("the posterior of this model has no closed form")
                .hint("take a kernel, such as \"ula\"; \"exact\" is for linear heads with Gaussian priors")
        };
        let features = self.features.as_ref().filter(|_| self.gaussian);
        let (Some(features), Targets::Values(y)) = (features, &self.data.targets) else {
            return Err(no_closed_form());
        };
        Gaussian::new(features, y, self.noise, &self.density)
    }
}

impl Potential for Posterior<'_> {
    fn len(&self) -> usize {
        self.model.personal()
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        self.evaluate(z);
        self.model.copy_personal(&self.gradient, self.scale(), gradient);
        let prior = self.density.potential_and_gradient(z, gradient);
        self.loss / (self.noise * self.noise) + prior
    }
}
