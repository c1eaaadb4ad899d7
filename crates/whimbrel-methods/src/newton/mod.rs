//! Federated Fisher scoring: clients send sums, the server takes Newton steps.
//!
//! Log-likelihood, score and information of a regression are sums over rows, so sums over clients are
//! those of the pooled rows, and the fit is the pooled fit: iteratively reweighted least squares
//! (McCullagh and Nelder, *Generalized Linear Models*, 1989, section 2.5) without moving rows.
//!
//! | notation | here | meaning |
//! |---|---|---|
//! | `β` | `beta` | coefficients of standardised columns |
//! | `ℓ_i(β), U_i(β), I_i(β)` | [`Sums`] | a client's log-likelihood, score, information |
//! | `λ² = U' I⁻¹ U` | `decrement` | squared Newton decrement |
//!
//! Exchanges of [exact sums](crate::pooled), each with all clients; a round without all answers is repeated:
//! 1. two openings: sums of target and columns, then squared deviations from the pooled means;
//! 2. rounds: `β` goes down, `(ℓ_i, U_i, I_i)` up; the server moves to `β + t I⁻¹ U`, with `t = 1` halved while
//!    the log-likelihood falls, until `λ² ≤ 1e-16`;
//! 3. for likelihood-ratio tests, the same for the models without some terms, all in the same rounds;
//! 4. one exchange at the estimate, which is not a round: deviance, Pearson's statistic, products of scores.
//!
//! Everything that the server needs is a sum over clients, standard errors by client and tests of
//! heterogeneity included, so masks change no bit. Two sums at the same `β` would reveal the clients that
//! only one of them has: under masks a round without all clients is void.
//!
//! *Reduces to* the pooled fit for any split of the rows; with the Gaussian family one step is exact.

mod baseline;
mod path;
mod result;

use path::DECREMENT_MAX;
pub use path::{End, Path};
pub use result::KIND;

use crate::federated::aggregate;
use crate::guard;
use crate::measures;
use crate::pooled::{Answered, MAGNITUDE_MAX, OPENINGS_MAX, Pooled, everyone, opening};
use whimbrel_core::declare::{Better, Role};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::method::{Allowance, Artifact, Declaration, Metric, Next, Status};
use whimbrel_core::{ClientData, Error, Key, Measure, Result, vector, wire};
use whimbrel_models::glm::{Asked, Errors, Family, Groups, Model, Rows, Scaling, Sums};

/// Halvings of a point whose sums may not leave; the last is practically zero.
const HALVINGS_MAX: u32 = 40;

/// The method.
#[derive(Clone, Debug)]
pub struct Newton {
    pub model: Model,
    /// Factor of half the squared norm of the coefficients in data units, beside the mean
    /// log-likelihood; intercepts are free.
    pub ridge: f64,
    pub asked: Asked,
    /// Whether each term has a likelihood-ratio test.
    pub tests: bool,
    /// Most rounds.
    pub rounds: u32,
    /// Fewest rows behind a client's sums.
    pub min_group: Option<u32>,
    /// Whether clients send the baseline hazards of their strata.
    pub baseline: bool,
}

/// The server's state.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Means and standard deviations of the columns; `None` before their opening.
    means: Option<Vec<f64>>,
    scales: Option<Vec<f64>>,
    /// The counts of the last complete round.
    counts: Counts,
    /// Openings, repeated ones included.
    openings: u32,
    rounds: u32,
    /// The fit, then the fits without some terms.
    paths: Vec<Path>,
    /// Sums at the estimate; empty until the last exchange.
    last: Vec<f64>,
    /// Baseline hazards of clients, by id: times and cumulative hazards.
    baselines: Vec<(u32, Vec<f64>)>,
}

/// Points at which clients compute, in the standardised columns. Without scales it is an opening.
#[derive(Clone, Debug)]
pub struct Down {
    means: Option<Vec<f64>>,
    scales: Option<Vec<f64>>,
    points: Vec<Vec<f64>>,
    /// Whether this is the exchange at the estimate.
    last: bool,
}

/// Numbers of clients and rows behind sums.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    clients: f64,
    rows: f64,
    /// `Σ w`.
    weight: f64,
    /// Incomplete rows.
    dropped: f64,
}

impl Counts {
    const LEN: usize = 4;

    fn of_client(rows: &Rows) -> [f64; Self::LEN] {
        let [count, weight, ..] = rows.totals();
        [1.0, count, weight, rows.dropped as f64]
    }

    fn of(sums: &[f64]) -> Self {
        Self { clients: sums[0], rows: sums[1], weight: sums[2], dropped: sums[3] }
    }
}

wire!(Counts { clients, rows, weight, dropped });
wire!(Server { means, scales, counts, openings, rounds, paths, last, baselines });
wire!(Down { means, scales, points, last });

impl Newton {
    /// Length of the sums at one point: log-likelihood, invalid rows, score, information.
    fn point_len(&self) -> usize {
        let p = self.model.parameters();
        2 + p + packed_len(p)
    }

    fn misfit_len(&self) -> usize {
        self.model.misfit_parts(&self.asked).iter().sum()
    }

    /// The most exchanges at coefficients: the rounds, and the sums at the estimate, which are repeated if clients
    /// were missing.
    fn rounds_max(&self) -> u32 {
        self.rounds.saturating_add(OPENINGS_MAX)
    }

    /// The points of the next exchange; `None` once the fit is complete.
    fn points(&self, server: &Server) -> Option<(Vec<Vec<f64>>, bool)> {
        let open = server.paths.iter().filter(|path| path.end == End::None);
        let points: Vec<Vec<f64>> = open.map(|path| path.trial.clone()).collect();
        match (points.is_empty(), server.last.is_empty()) {
            (false, _) => Some((points, false)),
            (true, true) => Some((vec![server.paths[0].beta.clone()], true)),
            (true, false) => None,
        }
    }

    fn upload_len(&self, points: usize, last: bool) -> usize {
        Counts::LEN + points * self.point_len() + if last { self.misfit_len() } else { 0 }
    }

    /// The most points of a round.
    fn points_max(&self) -> usize {
        if self.tests { (self.left_out().len() - 1).max(1) } else { 1 }
    }
}

impl Pooled for Newton {
    type Data = Rows;
    type State = Server;
    type Ask = Down;

    fn declare(&self) -> Declaration {
        let (p, k) = (self.model.parameters(), self.model.design.width());
        let up = format!(
            "before the rounds: sums and sums of squares of the target and of each column of the design, \
             the sum of the offsets; \
             then, at the coefficients of the round, the log-likelihood of the rows, its gradient ({p} numbers) and \
             the information matrix; once also the deviance, for binomial targets counts by bins of the \
             predicted probability{}{}{}",
            if self.asked.heterogeneity {
                ", the coefficients fitted to these rows alone"
            } else {
                ""
            },
            match self.asked.errors {
                Errors::Model => "",
                Errors::Robust => " and the sum of the outer products of the rows' scores",
                Errors::Clustered => " and the outer product of their score",
            },
            if self.baseline {
                "; and the cumulative hazard of the rows with the times of its steps, which all \
                 parties get with the model"
            } else {
                ""
            }
        );
        let most =
            self.upload_len(self.points_max(), true).max(Counts::LEN + k + 1) + self.hazard_max();
        let disclosures = vec![
            aggregate("summary", "the number of complete rows", 32),
            aggregate("up", &up, 8 * most + 10),
        ];
        let decrement = Measure::new(
            "decrement",
            "Next step in standard errors",
            "next step in standard errors",
            "Newton decrement: length of the next step in standard errors",
        );
        let separated =
            Measure::new("separated", "Separation", "separated", "Infinite coefficients");
        Declaration {
            exchanges: vec![
                opening("sums of columns", 0),
                opening("squares of columns", 1),
                Allowance::rounds(Some(self.rounds_max())),
                // Repeated if clients were missing; all exchanges together are at most these.
                Allowance { name: "sums at the estimate", ..Allowance::rounds(Some(self.rounds_max())) },
            ],
            disclosures,
            measures: vec![
                Measure::objective("Mean negative log-likelihood"),
                measures::epoch(),
                decrement
                    .log()
                    .better(Better::Down)
                    .summary()
                    .goal(DECREMENT_MAX.sqrt(), path::remedy(self.min_group)),
                separated.without_curve().role(Role::List).labels(self.model.labels()).defect(
                    "separation: the estimate of {} is infinite; merge levels, drop the term or set a ridge",
                ),
            ],
            ..Declaration::default()
        }
    }

    fn read(&self, data: &ClientData) -> Result<Rows> {
        match data {
            ClientData::Table(table) => {
                let mut rows = self.model.design.rows(table, self.model.family, true)?;
                if let Some(least) = self.min_group.filter(|least| *least > 1) {
                    if rows.len() < least as usize {
                        let dropped = rows.dropped + rows.len() as u64;
                        rows = Rows { width: rows.width, dropped, ..Rows::default() };
                    }
                    let exposed = guard::exposed(table, &self.model.design, &rows, least);
                    rows.groups = Groups { least, exposed };
                }
                Ok(rows)
            }
            _ => Err(Error::data("a regression reads tables")),
        }
    }

    fn rows(&self, rows: &Rows) -> u64 {
        rows.len() as u64
    }

    fn start(&self, _: Key) -> Result<Server> {
        Ok(Server::default())
    }

    fn status(&self, server: &Server) -> Status {
        let Some(fit) = server.paths.first().filter(|_| server.scales.is_some()) else {
            return Status::new(Next::Uncounted, 1.0);
        };
        let next = match self.points(server) {
            Some((_, last)) => everyone(last),
            None if fit.end == End::Converged => Next::Converged,
            None => Next::Stop,
        };
        // Steps are halved while the likelihood falls; the size of coefficients is a matter of units.
        Status::new(next, if vector::all_finite(&fit.beta) { 1.0 } else { f64::INFINITY })
    }

    fn ask(&self, server: &Server) -> Result<Down> {
        let (means, scales) = (server.means.clone(), server.scales.clone());
        let (points, last) = match scales {
            Some(_) => self.points(server).unwrap_or_default(),
            None => Default::default(),
        };
        Ok(Down { means, scales, points, last })
    }

    fn kind(&self, down: &Down) -> usize {
        let opened = usize::from(down.means.is_some()) + usize::from(down.scales.is_some());
        opened + usize::from(opened == 2 && down.last)
    }

    fn length(&self, down: &Down) -> usize {
        let k = self.model.design.width();
        match (&down.means, &down.scales) {
            (None, _) => 4 + k + usize::from(self.model.design.offset.is_some()),
            (_, None) => 1 + k,
            _ => self.upload_len(down.points.len(), down.last),
        }
    }

    fn own_max(&self, down: &Down) -> usize {
        if down.last { self.hazard_max() } else { 0 }
    }

    fn sums(&self, down: &Down, rows: &Rows) -> Result<Vec<f64>> {
        let k = self.model.design.width();
        let given = [&down.means, &down.scales].into_iter().flatten();
        let most = if down.last { 1 } else { self.points_max() };
        if given.into_iter().any(|list| list.len() != k) || down.points.len() > most {
            return Err(Error::peer("the server asks for the sums of another model"));
        }
        let (Some(means), Some(scales)) = (&down.means, &down.scales) else {
            let mut sums = opening_sums(rows, down.means.as_deref());
            let first = down.means.is_none();
            sums.extend(self.model.design.offset.filter(|_| first).map(|_| rows.offsets()));
            return Ok(sums);
        };
        let scaling = Scaling { means: means.clone(), scales: scales.clone() };
        let mut up = Counts::of_client(rows).to_vec();
        for point in &down.points {
            let Evaluated { sums, few, refused } =
                self.evaluate(&scaling, point, rows, down.last)?;
            if few {
                return Err(Error::data(format!(
                    "its sums rest on {:.1} rows, fewer than min_group = {}",
                    sums.support,
                    self.min_group.unwrap_or(1)
                ))
                .hint("leave this client out, or write min_group = 1 in [privacy]"));
            }
            let invalid = if refused { rows.y.len() as f64 } else { sums.invalid };
            up.extend([sums.log_likelihood, invalid]);
            up.extend(&sums.score);
            up.extend(&sums.information);
            if down.last {
                // At infinite coefficients some sums do not exist.
                let misfit = self.model.misfit(rows, &scaling, point, &self.asked, &sums.score)?;
                let defined = |x: f64| if x.abs() < MAGNITUDE_MAX { x } else { 0.0 };
                up.extend(misfit.into_iter().map(defined));
                up.extend(self.hazard(rows, &scaling, point));
            }
        }
        Ok(up)
    }

    fn step(&self, server: &mut Server, answered: Option<Answered<'_>>) -> Result<()> {
        if server.scales.is_none() {
            server.openings += 1;
            if server.openings > 2 * OPENINGS_MAX {
                return Err(Error::peer("no client sent the sums of its columns"));
            }
            return answered.map_or(Ok(()), |answered| self.open(server, answered.sums));
        }
        server.rounds += 1;
        if let Some(Answered { sums, own, complete: true }) = answered {
            server.baselines = baseline::checked(own)?;
            let (counts, sums) = sums.split_at(Counts::LEN);
            server.counts = Counts::of(counts);
            self.advance(server, sums)?;
        }
        if server.rounds >= self.rounds {
            server.paths.iter_mut().for_each(Path::give_up);
        }
        if server.rounds >= self.rounds_max() && self.points(server).is_some() {
            return Err(Error::peer(format!(
                "clients were missing in too many of {} rounds: each round of newton needs them all",
                server.rounds
            )));
        }
        Ok(())
    }

    /// The likelihood of a late joiner's rows was not in the sums so far.
    fn joined(&self, server: &mut Server, masked: bool) -> Result<()> {
        if masked {
            let what = "newton under masks takes no client after its first exchange";
            return Err(Error::peer(format!("{what}: two sums would differ by its upload")));
        }
        server.paths.truncate(1);
        server.paths.iter_mut().for_each(Path::reopen);
        server.last.clear();
        Ok(())
    }

    fn figures(&self, server: &Server) -> Vec<Metric> {
        let fit = server.paths.first().filter(|fit| fit.log_likelihood.is_finite());
        let Some(fit) = fit else { return Vec::new() };
        let separated = self.separated(server).into_iter().map(|at| at as f64 + 1.0);
        vec![
            Metric::number("objective", -fit.log_likelihood / server.counts.weight),
            Metric::number("epoch", f64::from(server.rounds)),
            Metric::number("decrement", fit.decrement.max(0.0).sqrt()),
            Metric::list("separated", separated.collect()),
        ]
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        self.result(server)
    }
}

/// A client's sums at a point.
struct Evaluated {
    sums: Sums,
    /// Whether fewer rows than `min_group` determine them.
    few: bool,
    /// Whether they belong to a nearer point: the server discards them and takes a shorter step.
    refused: bool,
}

impl Newton {
    /// Sums at a point. Far from the estimate few rows may determine the sums, or overflow them: such a
    /// point counts as one without a likelihood. The client then sends its sums at a nearer point, because a
    /// masked sum in which all others send zeros is one client's own.
    fn evaluate(
        &self,
        scaling: &Scaling,
        point: &[f64],
        rows: &Rows,
        last: bool,
    ) -> Result<Evaluated> {
        let (mut point, mut refused) = (point.to_vec(), false);
        for _ in 0..HALVINGS_MAX {
            let sums = self.model.evaluate(rows, scaling, &point)?;
            let least = self.min_group.map_or(0.0, f64::from);
            let all = || sums.score.iter().chain(&sums.information).chain([&sums.log_likelihood]);
            let finite = all().all(|x| x.abs() < MAGNITUDE_MAX);
            // Sums without any row, or any event, tell nothing of one.
            let few = sums.support < least && all().any(|x| *x != 0.0);
            if last || finite && !few {
                return Ok(Evaluated { sums, few, refused });
            }
            refused = true;
            point.iter_mut().for_each(|x| *x *= 0.5);
        }
        let p = point.len();
        let (score, information) = (vec![0.0; p], vec![0.0; packed_len(p)]);
        Ok(Evaluated { sums: Sums { score, information, ..Sums::default() }, few: false, refused })
    }

    /// Means and the first coefficients from the first opening, scales from the second.
    fn open(&self, server: &mut Server, sums: &[f64]) -> Result<()> {
        let Some(means) = &mut server.means else {
            let (totals, columns) = sums.split_at(4);
            let (columns, offsets) = columns.split_at(self.model.design.width());
            if totals[0] == 0.0 {
                return Err(Error::data("no client has a complete row"));
            }
            server.means = Some(columns.iter().map(|sum| sum / totals[0]).collect());
            let offset = offsets.iter().sum::<f64>() / totals[1];
            let mut beta = self.model.start(totals[1], totals[2], totals[3], offset)?;
            if self.model.by_client {
                beta.fill(0.0);
            }
            server.paths = vec![Path::new(beta, &[])];
            return Ok(());
        };
        let mut scales: Vec<f64> =
            sums[1..].iter().map(|square| (square / sums[0]).sqrt()).collect();
        let absent = self.model.design.absent(means, &scales)?;
        absent.iter().for_each(|column| scales[*column] = 1.0);
        let places: Vec<usize> =
            absent.iter().flat_map(|column| self.model.places(*column)).collect();
        let beta = std::mem::take(&mut server.paths[0].beta);
        server.paths = vec![Path::new(beta, &places)];
        // An intercept, of the model or of each client, or a baseline hazard takes up the means.
        let takes_means = self.model.by_client || self.model.family == Family::Cox;
        if !self.model.design.intercept && !takes_means {
            means.fill(0.0);
        }
        server.scales = Some(scales);
        Ok(())
    }

    /// One step of every open path, or the sums at the estimate.
    fn advance(&self, server: &mut Server, sums: &[f64]) -> Result<()> {
        let points = sums.chunks_exact(self.point_len());
        let is_last = server.paths.iter().all(|path| path.end != End::None);
        if is_last {
            server.last = sums.to_vec();
            return Ok(());
        }
        let (scaling, weight) = (server.scaling(), server.counts.weight);
        let ridge = self.ridge * weight;
        for (path, point) in server.paths.iter_mut().filter(|p| p.end == End::None).zip(points) {
            path.step(&self.model, &self.penalty(&scaling, ridge), point, weight)?;
        }
        if self.tests && server.paths.len() == 1 && server.paths[0].end == End::Converged {
            let reduced = self.reduced(&server.paths[0]);
            server.paths.extend(reduced);
        }
        Ok(())
    }

    /// The ridge of each parameter, in standardised columns.
    fn penalty(&self, scaling: &Scaling, ridge: f64) -> Vec<f64> {
        let each = (0..self.model.parameters()).map(|at| self.model.scale(scaling, at));
        each.map(|scale| scale.map_or(0.0, |scale| ridge / (scale * scale))).collect()
    }
}

impl Server {
    fn scaling(&self) -> Scaling {
        let list = |given: &Option<Vec<f64>>| given.clone().unwrap_or_default();
        Scaling { means: list(&self.means), scales: list(&self.scales) }
    }
}

/// A client's sums of an opening: `(rows, Σ w, Σ w y, Σ w y², Σ x)`, or `(rows, Σ (x − mean)²)`.
fn opening_sums(rows: &Rows, means: Option<&[f64]>) -> Vec<f64> {
    let (totals, moments) = (rows.totals(), rows.moments());
    let (own, squares) = moments.split_at(moments.len() / 2);
    let n = totals[0];
    let Some(means) = means else {
        return totals.into_iter().chain(own.iter().map(|mean| n * mean)).collect();
    };
    // Σ (x − m)² = Σ (x − m_i)² + n_i (m_i − m)²
    let gaps = own.iter().zip(means).map(|(own, mean)| (own - mean) * (own - mean));
    [n].into_iter().chain(squares.iter().zip(gaps).map(|(square, gap)| square + n * gap)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Table;
    use whimbrel_models::glm::{Design, Factor, Term};

    /// A regression of the first of three columns on the others, and 200 rows.
    fn regression(family: Family) -> (Newton, Rows) {
        let columns: Vec<String> = ["y", "a", "b"].map(String::from).into();
        let term = |column: usize| Term {
            name: columns[column].clone(),
            factors: vec![Factor { column, levels: Vec::new(), reference: 0 }],
        };
        let (terms, intercept) = ((1..3).map(term).collect(), family != Family::Cox);
        let design = Design { intercept, terms, columns: columns.clone(), ..Design::default() };
        let mut stream = Key::root(1).stream();
        let row = |_| {
            let (a, b) = (stream.normal(), stream.normal());
            [1.0 + (a + stream.normal()).abs().floor(), a, b]
        };
        let values = (0..200).flat_map(row).collect();
        let method = Newton {
            model: Model { family, design, by_client: false },
            ridge: 0.0,
            asked: Asked {
                errors: Errors::Model,
                heterogeneity: false,
                frequencies: false,
                min_group: 5,
            },
            tests: false,
            rounds: 30,
            min_group: Some(5),
            baseline: false,
        };
        let rows = method.read(&ClientData::Table(Table::new(columns, values).unwrap())).unwrap();
        (method, rows)
    }

    fn at(method: &Newton, rows: &Rows, point: Vec<f64>, last: bool) -> Result<Vec<f64>> {
        let (means, scales) = (Some(vec![0.0; 2]), Some(vec![1.0; 2]));
        method.sums(&Down { means, scales, points: vec![point], last }, rows)
    }

    /// Far from the estimate sums overflow, or rest on few rows: the client refuses the point, and its answer
    /// is not a vector of zeros.
    #[test]
    fn refused_points_are_answered_at_a_nearer_one() {
        for (family, near, far) in [
            (Family::Poisson, vec![0.0, 0.1, 0.0], vec![0.0, 400.0, 0.0]),
            (Family::Cox, vec![0.1, 0.0], vec![120.0, 90.0]),
        ] {
            let (method, rows) = regression(family);
            let kept = at(&method, &rows, near, false).unwrap();
            assert_eq!(kept[Counts::LEN + 1], 0.0, "{family:?}: an honest point was refused");
            let sums = at(&method, &rows, far.clone(), false).unwrap();
            let (invalid, rest) = (sums[Counts::LEN + 1], &sums[Counts::LEN + 2..]);
            assert_eq!(invalid, 200.0, "{family:?}");
            assert!(rest.iter().any(|x| *x != 0.0) && rest.iter().all(|x| x.is_finite()));
            let nearer = far.iter().map(|x| x * 0.5f64.powi(40)).collect();
            let zero = at(&method, &rows, nearer, false).unwrap();
            assert_eq!(rest.len(), zero.len() - Counts::LEN - 2);
        }
    }

    #[test]
    fn the_sums_at_the_estimate_are_asked_for_one_point_and_counted() {
        let (method, rows) = regression(Family::Poisson);
        let (means, scales) = (Some(vec![0.0; 2]), Some(vec![1.0; 2]));
        let down = |points: usize, last| Down {
            means: means.clone(),
            scales: scales.clone(),
            points: vec![vec![0.0; 3]; points],
            last,
        };
        let exchanges = method.declare().exchanges;
        for (last, name) in [(true, "sums at the estimate"), (false, "rounds")] {
            let allowed = &exchanges[method.kind(&down(1, last))];
            assert_eq!((allowed.name, allowed.most), (name, Some(method.rounds_max())));
        }
        assert!(method.sums(&down(1, true), &rows).is_ok());
        assert!(method.sums(&down(2, true), &rows).is_err());
    }
}
