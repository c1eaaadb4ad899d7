//! The posterior `p(z | D_i, phi, beta)` of a client's personal part, for its chains.

use super::exact::Gaussian;
use super::model::{Noise, Part, Personalised};
use whimbrel_core::linalg::{self, largest_eigenvalue};
use whimbrel_core::{Error, Inputs, Key, Result, Samples, Stream, Targets, vector};
use whimbrel_models::prior::Density;
use whimbrel_models::sampler::{Potential, curvature};
use whimbrel_nn::{Batch, Learner, Room};

/// Of the smoothness through a preconditioner.
const POWER_ITERATIONS: usize = 20;

/// `U(z) = sum_j loss_j(phi, z)/noise^2 - ln p(z | beta)`, up to a constant.
pub(super) struct Posterior<'a> {
    model: &'a Personalised,
    data: &'a Samples,
    density: Density,
    noise: f64,
    /// The learner's parameters, and their gradient over the minibatch at `at`.
    w: Vec<f32>,
    gradient: Vec<f32>,
    losses: Vec<f32>,
    room: Room,
    /// The point of the last gradient, and the sum of losses there.
    at: Vec<f64>,
    loss: f64,
    batch: Option<Minibatch>,
    /// The minibatches, set aside while gradients are over all samples.
    aside: Option<Minibatch>,
    head: Head,
    /// Whether the prior is a Gaussian.
    gaussian: bool,
}

/// The computation of the gradient in `z`.
enum Head {
    /// Predictions are linear in `z`: their factors, one row for each sample.
    Linear(Vec<f64>),
    /// `z` is a layer on shared features: that layer, its inputs, its parameters and their gradient.
    Layer { learner: Box<dyn Learner>, inputs: Samples, w: Vec<f32>, gradient: Vec<f32> },
    /// Part of the gradient of all parameters.
    Inside,
}

struct Minibatch {
    size: usize,
    stream: Stream,
    /// All indices, those of the minibatch first.
    order: Vec<u32>,
}

impl Minibatch {
    /// The first indices of another random order.
    fn draw(&mut self) {
        let n = self.order.len();
        for i in 0..self.size {
            let j = i + self.stream.below((n - i) as u64) as usize;
            self.order.swap(i, j);
        }
    }

    fn places(&self) -> &[u32] {
        &self.order[..self.size]
    }
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
            return Err(Error::numerical(format!("the noise {noise} is not a positive number")));
        }
        let head = match model.part {
            Part::All => Head::Inside,
            // The head does not enter its own factors.
            Part::Head => match model.learner.linear_features(&w, data) {
                Some(features) => Head::Linear(features),
                None => {
                    model.learner.head_on(&w, data).map_or(Head::Inside, |(learner, inputs)| {
                        let zeros = vec![0.0; learner.parameters()];
                        Head::Layer { learner, inputs, w: zeros.clone(), gradient: zeros }
                    })
                }
            },
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
            aside: None,
            w,
            head,
            gaussian,
        })
    }

    pub fn noise(&self) -> f64 {
        self.noise
    }

    pub fn density(&self) -> &Density {
        &self.density
    }

    /// Switches to gradients over minibatches of this size, drawn with this key.
    pub fn draw_minibatches(&mut self, size: Option<u32>, key: Key) {
        self.at.fill(f64::NAN);
        let n = self.data.len();
        let order = || (0..n as u32).collect();
        self.batch = size
            .map(|size| size as usize)
            .filter(|size| *size < n)
            .map(|size| Minibatch { size, stream: key.child(0).stream(), order: order() });
    }

    fn draw(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.draw();
        }
    }

    /// Evaluates losses and their gradient at `z`, unless `z` was the last point.
    fn evaluate(&mut self, z: &[f64]) {
        if self.at == z {
            return;
        }
        self.draw();
        self.model.put_personal(&mut self.w, z.iter().map(|z| *z as f32));
        let places = self.batch.as_ref().map(Minibatch::places);
        let batch = Batch { samples: self.data, places };
        let losses = &mut self.losses[..batch.len()];
        let (gradient, room) = (&mut self.gradient[..], &mut self.room);
        self.model.learner.gradient(&self.w, batch, None, no_dropout(), room, gradient, losses);
        self.loss = scaled_sum(losses, self.data.len());
        self.at.copy_from_slice(z);
    }

    /// The gradient in `z` alone, times the squared noise; returns the sum of losses. `None` if the head
    /// cannot compute it.
    fn evaluate_head(&mut self, z: &[f64], out: &mut [f64]) -> Option<f64> {
        let rows = self.data.len();
        if matches!(self.head, Head::Inside) {
            return None;
        }
        self.draw();
        let places = self.batch.as_ref().map(Minibatch::places);
        match (&mut self.head, &self.data.targets) {
            (Head::Linear(features), Targets::Values(y)) => {
                let (batch, d) = (Batch { samples: self.data, places }, z.len());
                let share = rows as f64 / batch.len().max(1) as f64;
                let mut loss = 0.0;
                out.fill(0.0);
                for place in (0..batch.len()).map(|i| batch.place(i)) {
                    let h = &features[place * d..][..d];
                    let error = vector::dot(h, z) - f64::from(y[place]);
                    loss += 0.5 * share * error * error;
                    out.iter_mut().zip(h).for_each(|(out, h)| *out += share * error * h);
                }
                Some(loss)
            }
            (Head::Layer { learner, inputs, w, gradient }, _) => {
                let batch = Batch { samples: inputs, places };
                w.iter_mut().zip(z).for_each(|(w, z)| *w = *z as f32);
                let losses = &mut self.losses[..batch.len()];
                learner.gradient(w, batch, None, no_dropout(), &mut self.room, gradient, losses);
                out.iter_mut().zip(gradient).for_each(|(o, g)| *o = rows as f64 * f64::from(*g));
                Some(scaled_sum(losses, rows))
            }
            _ => None,
        }
    }

    /// The factor from the mean gradient to that of the log-likelihood.
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

    /// A global bound of a head's curvature under a diagonal preconditioner `D`: that of the prior, plus
    /// `H^T H/noise^2` for a linear head, or at most `H^T H/2` for each class under a softmax (Boehning
    /// 1992), with a column of ones in `H`. A minibatch of `b` of `n` rows has weight `n/b`, and at most
    /// `n/b` times the curvature of the losses.
    pub fn smoothness(&self, diagonal: Option<&[f64]>, batch: Option<u32>) -> Option<f64> {
        let losses = match &self.head {
            Head::Linear(features) => {
                let d = self.model.personal();
                let gram = gram(features.iter().copied(), d);
                let largest = match diagonal {
                    Some(diagonal) => {
                        let scaled = |at: usize| (diagonal[at / d] * diagonal[at % d]).sqrt();
                        let through: Vec<f64> =
                            gram.iter().enumerate().map(|(at, g)| g * scaled(at)).collect();
                        largest_eigenvalue(&through, d).ok()?
                    }
                    None => largest_eigenvalue(&gram, d).ok()?,
                };
                largest / (self.noise * self.noise)
            }
            Head::Layer { inputs, .. } => {
                let (Inputs::Real(h), width) = (&inputs.inputs, inputs.width()) else {
                    return None;
                };
                let rows = h.chunks_exact(width);
                let rows = rows.flat_map(|h| h.iter().map(|h| f64::from(*h)).chain([1.0]));
                let gram = gram(rows, width + 1);
                let classes = self.model.personal() / (width + 1);
                let of_class = |diagonal: &[f64], c: usize| {
                    // Weights class by class, then biases.
                    let place = |j| if j < width { c * width + j } else { classes * width + c };
                    eigenvalue_through(&gram, |j| diagonal[place(j)], width + 1)
                };
                0.5 * match diagonal {
                    Some(d) => (0..classes).map(|c| of_class(d, c)).fold(0.0, f64::max),
                    None => largest_eigenvalue(&gram, width + 1).ok()?,
                }
            }
            Head::Inside => return None,
        };
        Some(self.weight(batch) * losses + self.density.curvature_through(diagonal))
    }

    /// The curvature without a preconditioner, for losses of this curvature at a noise of one.
    pub fn curvature(&self, of_losses: f64, batch: Option<u32>) -> f64 {
        let losses = of_losses / (self.noise * self.noise);
        self.weight(batch) * losses + self.density.curvature_through(None)
    }

    /// The weight of a row in a minibatch of this size.
    fn weight(&self, batch: Option<u32>) -> f64 {
        let n = self.data.len().max(1) as f64;
        batch.map_or(1.0, |size| (n / f64::from(size)).max(1.0))
    }

    /// The curvature of the losses at a noise of one: the learner's global bound, else an estimate by
    /// differences of gradients around `z`, over all samples.
    pub fn curvature_of_losses(&mut self, z: &[f64]) -> f64 {
        if let Some(known) = self.model.learner.largest_curvature(self.data) {
            return known;
        }
        self.take_all(true);
        let found = curvature(&mut Losses(self), z) * self.noise * self.noise;
        self.take_all(false);
        found
    }

    /// A preconditioner: the inverse curvature of each coordinate if it is known, else the variances of
    /// the prior, in units of the largest.
    pub fn diagonal(&self) -> Vec<f64> {
        let d = self.model.personal();
        let mut diagonal = self.density.variances();
        if let Head::Linear(features) = &self.head {
            let gram = gram(features.iter().copied(), d);
            let square = self.noise * self.noise;
            for (j, v) in diagonal.iter_mut().enumerate() {
                *v = 1.0 / (gram[j * d + j] / square + 1.0 / *v);
            }
        }
        let largest = diagonal.iter().fold(0.0, |most: f64, v| v.max(most));
        diagonal.iter_mut().for_each(|v| *v /= largest);
        diagonal
    }

    /// The closed-form posterior of a linear head with a Gaussian prior.
    pub fn exact(&self) -> Result<Gaussian> {
        let no_closed_form = || {
            Error::config("the posterior of this model has no closed form")
                .hint("take a kernel, such as \"ula\"; \"exact\" is for linear heads with Gaussian priors")
        };
        let (Head::Linear(features), Targets::Values(y), true) =
            (&self.head, &self.data.targets, self.gaussian)
        else {
            return Err(no_closed_form());
        };
        Gaussian::new(features, y, self.noise, &self.density)
    }

    /// The likelihood's part of the potential, and its gradient.
    fn losses_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        let square = self.noise * self.noise;
        let known = self.at == z;
        let loss = match (!known).then(|| self.evaluate_head(z, gradient)).flatten() {
            Some(loss) => {
                gradient.iter_mut().for_each(|g| *g /= square);
                loss
            }
            None => {
                self.evaluate(z);
                self.model.copy_personal(&self.gradient, self.scale(), gradient);
                self.loss
            }
        };
        loss / square
    }
}

impl Potential for Posterior<'_> {
    fn len(&self) -> usize {
        self.model.personal()
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        let losses = self.losses_and_gradient(z, gradient);
        losses + self.density.potential_and_gradient(z, gradient)
    }

    fn take_all(&mut self, all: bool) {
        self.at.fill(f64::NAN);
        if all {
            self.aside = self.batch.take();
        } else {
            self.batch = self.aside.take();
        }
    }
}

/// A posterior without its prior.
struct Losses<'p, 'a>(&'p mut Posterior<'a>);

impl Potential for Losses<'_, '_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        self.0.losses_and_gradient(z, gradient)
    }
}

/// An unused key: learners with posteriors have no dropout.
fn no_dropout() -> Key {
    Key::root(0)
}

/// The sum of products of rows of `d` numbers.
fn gram(numbers: impl Iterator<Item = f64>, d: usize) -> Vec<f64> {
    let (mut gram, mut row) = (vec![0.0; d * d], Vec::with_capacity(d));
    for x in numbers {
        row.push(x);
        if row.len() == d {
            for (sums, a) in gram.chunks_exact_mut(d).zip(&row) {
                vector::axpy(sums, *a, &row);
            }
            row.clear();
        }
    }
    gram
}

/// The largest eigenvalue of `D^(1/2) G D^(1/2)` by power iteration from `D^(1/2) 1`. It converges from below; a
/// step of one over it is stable while it is more than half of the true one.
fn eigenvalue_through(gram: &[f64], diagonal: impl Fn(usize) -> f64, d: usize) -> f64 {
    let roots: Vec<f64> = (0..d).map(|j| diagonal(j).sqrt()).collect();
    let (mut v, mut product, mut found) = (roots.clone(), vec![0.0; d], 0.0);
    for _ in 0..POWER_ITERATIONS {
        let norm = vector::norm2_squared(&v).sqrt();
        if norm == 0.0 {
            break;
        }
        v.iter_mut().zip(&roots).for_each(|(v, root)| *v *= root / norm);
        linalg::matvec(&mut product, gram, &v);
        product.iter_mut().zip(&roots).for_each(|(product, root)| *product *= root);
        found = vector::norm2_squared(&product).sqrt();
        std::mem::swap(&mut v, &mut product);
    }
    found
}

/// The mean of these losses times all rows.
fn scaled_sum(losses: &[f32], rows: usize) -> f64 {
    let sum: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
    sum / losses.len().max(1) as f64 * rows as f64
}
