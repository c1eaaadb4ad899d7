//! Lloyd's k-means over pooled counts and sums: the start of a mixture where sums hide their terms.
//!
//! Centres begin at draws from a normal distribution with the pooled means and variances. In each exchange
//! clients assign their rows to the nearest centres and send counts, sums and squared distances; a centre
//! without rows moves next to the one with the largest squared distances. Several starts run in the
//! same exchanges, and the one with the smallest squared distances is delivered.
//!
//! A client assigns whole [groups](crate::microaggregation) of at least `rows_min` rows, by their
//! means. Whatever the centres, and however many answers are combined, a coordinator therefore
//! determines at most the count, the sum and the squared distances of each group.

use crate::federated::aggregate;
use crate::kmeans::{Points, distance2};
use crate::microaggregation::Groups;
use crate::pooled::{Answered, OPENINGS_MAX, Pooled, opening};
use whimbrel_core::method::{Artifact, Declaration, Next, Status};
use whimbrel_core::{ClientData, Error, Key, Result, vector, wire};
use whimbrel_models::MixtureModel;

/// Starts, of which the best is delivered.
const STARTS: usize = 10;
/// Rounds of Lloyd's algorithm.
const ROUNDS: u32 = 15;

/// The stage.
pub struct Clustering<M> {
    pub model: M,
    pub moments: Vec<f64>,
    /// Fewest rows of a group.
    pub rows_min: usize,
}

/// The server's state.
#[derive(Clone, Debug)]
pub struct Server {
    key: Key,
    /// The centres of all starts; empty before the first exchange.
    centres: Vec<f64>,
    /// Rows by centre.
    counts: Vec<f64>,
    /// Squared distances by centre.
    squares: Vec<f64>,
    round: u32,
    /// Exchanges without answers.
    missed: u32,
}

wire!(Server { key, centres, counts, squares, round, missed });

impl<M: MixtureModel> Clustering<M> {
    fn centres(&self) -> usize {
        STARTS * self.model.components()
    }

    /// First centres, from `(rows, Σ x, Σ x²)`.
    fn draw(&self, server: &mut Server, sums: &[f64]) {
        let d = self.model.point_len();
        let (means, squares) = sums[1..].split_at(d);
        let n = sums[0];
        server.centres = vec![0.0; self.centres() * d];
        server.key.stream().fill_normal(&mut server.centres);
        for centre in server.centres.chunks_exact_mut(d) {
            for ((c, sum), square) in centre.iter_mut().zip(means).zip(squares) {
                let mean = sum / n;
                *c = mean + (square / n - mean * mean).max(0.0).sqrt() * *c;
            }
        }
    }

    /// Moves the centres to the means of their rows.
    fn advance(&self, server: &mut Server, sums: &[f64]) {
        let (d, k) = (self.model.point_len(), self.model.components());
        let (counts, rest) = sums.split_at(self.centres());
        let (squares, sums) = rest.split_at(self.centres());
        server.counts = counts.to_vec();
        server.squares = squares.to_vec();
        let places = server.centres.chunks_exact_mut(d).zip(sums.chunks_exact(d)).zip(counts);
        for ((centre, sum), count) in places.filter(|(_, count)| **count > 0.0) {
            centre.iter_mut().zip(sum).for_each(|(c, sum)| *c = sum / count);
        }
        server.round += 1;
        if server.round == ROUNDS {
            return;
        }
        let mut stream = server.key.child(u64::from(server.round)).stream();
        for start in 0..STARTS {
            let own = start * k..(start + 1) * k;
            let mut squares = squares[own.clone()].to_vec();
            for empty in own.filter(|at| counts[*at] == 0.0) {
                let wide = (0..k).max_by(|a, b| squares[*a].total_cmp(&squares[*b])).unwrap_or(0);
                let from = start * k + wide;
                let scale = (squares[wide] / (d as f64 * counts[from].max(1.0))).sqrt();
                squares[wide] *= 0.5;
                let mut shift = vec![0.0; d];
                stream.fill_normal(&mut shift);
                vector::scale(&mut shift, 0.5 * scale);
                let mut moved = server.centres[from * d..][..d].to_vec();
                vector::axpy(&mut moved, 1.0, &shift);
                server.centres[empty * d..][..d].copy_from_slice(&moved);
                vector::axpy(&mut server.centres[from * d..][..d], -1.0, &shift);
            }
        }
    }

    /// Counts, squared distances and sums of the rows at the centres of one start.
    fn assign(&self, groups: &Groups, centres: &[f64], out: [&mut [f64]; 3]) {
        let d = self.model.point_len();
        let [counts, squares, sums] = out;
        for (mean, (count, within)) in groups.each() {
            let (at, square) = nearest(mean, centres);
            counts[at] += count;
            squares[at] += count * square + within;
            vector::axpy(&mut sums[at * d..][..d], count, mean);
        }
    }
}

/// The nearest centre, and the squared distance to it.
fn nearest(point: &[f64], centres: &[f64]) -> (usize, f64) {
    let all = centres.chunks_exact(point.len()).map(|centre| distance2(centre, point));
    all.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap_or((0, 0.0))
}

impl<M: MixtureModel> Pooled for Clustering<M> {
    type Data = Groups;
    type State = Server;
    /// The centres of all starts; empty in the first exchange.
    type Ask = Vec<f64>;

    fn declare(&self) -> Declaration {
        let mut exchanges = vec![opening("column sums", 0), opening("clusters", 1)];
        exchanges[1].most = Some(ROUNDS + OPENINGS_MAX);
        let up = format!(
            "sums and squares of columns, then {ROUNDS} times, for {STARTS} sets of cluster centres, the \
             number, the sum and the squared distances of the rows in each cluster{}",
            match self.rows_min {
                1 => String::new(),
                rows => format!(" of whole groups of at least {rows} neighbouring rows"),
            }
        );
        let most = self.length(&vec![0.0; 1]).max(1 + 2 * self.model.point_len());
        let disclosures = vec![
            aggregate("summary", "the number of rows", 32),
            aggregate("up", &up, 8 * most + 10),
        ];
        Declaration { exchanges, disclosures, ..Declaration::default() }
    }

    fn read(&self, data: &ClientData) -> Result<Groups> {
        let data = self.model.bind(data)?;
        let window = self.model.window(&data, 0, self.model.rows(&data))?;
        let points = Points::pooled(&self.model, window.as_ref().unwrap_or(&data), &self.moments)?;
        Ok(Groups::new(points.into_values(), self.model.point_len(), self.rows_min))
    }

    fn rows(&self, groups: &Groups) -> u64 {
        groups.totals()[0] as u64
    }

    fn start(&self, key: Key) -> Result<Server> {
        let (centres, counts, squares) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Server { key, centres, counts, squares, round: 0, missed: 0 })
    }

    fn status(&self, server: &Server) -> Status {
        let next = if server.round < ROUNDS { Next::Uncounted } else { Next::Stop };
        Status::new(next, 1.0)
    }

    fn ask(&self, server: &Server) -> Result<Vec<f64>> {
        Ok(server.centres.clone())
    }

    fn kind(&self, centres: &Vec<f64>) -> usize {
        usize::from(!centres.is_empty())
    }

    fn length(&self, centres: &Vec<f64>) -> usize {
        let d = self.model.point_len();
        if centres.is_empty() { 1 + 2 * d } else { self.centres() * (2 + d) }
    }

    fn sums(&self, centres: &Vec<f64>, groups: &Groups) -> Result<Vec<f64>> {
        let (d, k) = (self.model.point_len(), self.model.components());
        if centres.is_empty() {
            return Ok(groups.totals().to_vec());
        }
        if centres.len() != self.centres() * d || !vector::all_finite(centres) {
            return Err(Error::peer("centres that do not fit the job"));
        }
        let mut out = vec![0.0; self.length(centres)];
        let (counts, rest) = out.split_at_mut(self.centres());
        let (squares, sums) = rest.split_at_mut(self.centres());
        let parts = counts.chunks_exact_mut(k).zip(squares.chunks_exact_mut(k));
        let parts = parts.zip(sums.chunks_exact_mut(k * d)).zip(centres.chunks_exact(k * d));
        for (((counts, squares), sums), centres) in parts {
            self.assign(groups, centres, [counts, squares, sums]);
        }
        Ok(out)
    }

    fn step(&self, server: &mut Server, answered: Option<Answered<'_>>) -> Result<()> {
        match answered {
            Some(answered) if server.centres.is_empty() => self.draw(server, answered.sums),
            Some(answered) => self.advance(server, answered.sums),
            None => server.missed += 1,
        }
        if server.missed >= OPENINGS_MAX {
            return Err(Error::peer("too few clients sent the sums of their clusters"));
        }
        Ok(())
    }

    /// The start at the centres of the best start.
    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let (d, k) = (self.model.point_len(), self.model.components());
        let inertia = |start: &usize| server.squares[start * k..][..k].iter().sum::<f64>();
        let starts = (0..STARTS).filter(|_| server.round == ROUNDS);
        let Some(best) = starts.min_by(|a, b| inertia(a).total_cmp(&inertia(b))) else {
            return Err(Error::peer("too few clients sent the sums of their clusters"));
        };
        let mut centres = server.centres[best * k * d..][..k * d].to_vec();
        if let Some(scales) = self.model.point_scales(&self.moments) {
            let each = centres.iter_mut().zip(scales.iter().cycle());
            each.for_each(|(x, scale)| *x *= scale);
        }
        let counts = &server.counts[best * k..][..k];
        let theta = self.model.initial_from_centres(&centres, counts, &self.moments)?;
        let theta = self.model.to_vector(&theta);
        Ok(Artifact::new("start").with("theta", &[theta.len()], theta))
    }
}
