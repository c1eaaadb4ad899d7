//! The fitted model in the units of the data.

use super::path::{penalised, select};
use super::{End, Newton, Path, Server};
use whimbrel_core::linalg::{packed_len, unpack};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result, math};
use whimbrel_models::glm::inference::{Factored, congruent};
use whimbrel_models::glm::{Errors, Family, Misfit, Scaling};

/// Share of the variation of an exact fit's residuals: 1e-10 of the target's deviations.
const EXACT: f64 = 1e-20;

/// Relative difference of steps towards infinity that are equal in the limit.
const TOGETHER: f64 = 0.1;

/// The kind of the fitted model.
pub const KIND: &str = "glm";

impl Newton {
    /// Coefficients and covariance in data units, and the figures of the fit; without covariance and
    /// figures before the last exchange.
    pub(super) fn result(&self, server: &Server) -> Result<Artifact> {
        let p = self.model.parameters();
        let (Some(fit), Some(_)) = (server.paths.first(), &server.scales) else {
            return Err(Error::peer("no client sent the sums of its columns"));
        };
        let (scaling, counts) = (server.scaling(), server.counts);
        let (coefficients, map) = self.model.in_data_units(&scaling, &fit.beta);
        let mut model = Artifact::new(KIND).with("coefficients", &[p], coefficients);
        if server.last.is_empty() {
            return Ok(model);
        }
        let [misfit, bins, own_fits, _] = self.parts(server);
        let misfit = Misfit::of(misfit);
        let weighted =
            !self.model.design.class_weights.is_empty() || self.model.design.weights.is_some();
        let count = if weighted && self.asked.frequencies { counts.weight } else { counts.rows };
        let own = if self.model.by_client { counts.clients } else { 0.0 };
        let degrees = count - fit.free().len() as f64 - own;
        let has_dispersion = self.model.family.has_dispersion();
        let dispersion = match self.model.family {
            // Without residuals there is no variance to estimate: below this they are rounding errors.
            _ if has_dispersion && degrees <= 0.0 => f64::NAN,
            Family::Gaussian if fit.log_likelihood >= EXACT * fit.first => f64::NAN,
            Family::Gamma if misfit.pearson <= EXACT * degrees => f64::NAN,
            _ if has_dispersion => misfit.pearson / degrees,
            _ => 1.0,
        };
        let covariance = self.covariance(server, &scaling, dispersion);
        model.add("covariance", &[p, p], congruent(&map, &covariance, p));
        let log_likelihood = self.log_likelihood(server, &misfit, dispersion, count, weighted);
        let numbers = [
            ("log_likelihood", log_likelihood),
            ("null_log_likelihood", self.null(server, &misfit, count)),
            ("deviance", misfit.deviance),
            ("pearson", misfit.pearson),
            ("dispersion", dispersion),
            ("rows", counts.rows),
            ("dropped", counts.dropped),
            ("clients", counts.clients),
            ("degrees", degrees),
            ("parameters", fit.free().len() as f64 + own),
            ("decrement", fit.decrement),
            ("ended", f64::from(fit.end as u8)),
        ];
        numbers.into_iter().for_each(|(name, x)| model.add(name, &[], vec![x]));
        let separated: Vec<f64> = self.separated(server).into_iter().map(|at| at as f64).collect();
        model.add("separated", &[separated.len()], separated);
        let fixed = fit.fixed.iter().map(|at| f64::from(*at)).collect();
        model.add("fixed", &[fit.fixed.len()], fixed);
        for (name, width, part) in [("bins", 3, bins), ("own_fits", 4, own_fits)] {
            if !part.is_empty() {
                model.add(name, &[part.len() / width, width], part.to_vec());
            }
        }
        for (id, steps) in &server.baselines {
            model.add(&format!("baseline.{id}"), &[steps.len() / 2, 2], steps.clone());
        }
        let tests = self.tests(server, dispersion, count);
        if !tests.is_empty() {
            model.add("tests", &[tests.len() / 2, 2], tests);
        }
        Ok(model)
    }

    /// The infinite parameters, and in place of all levels of a factor the reference level, by the number
    /// of its label, if the last step moves them together against the intercept.
    pub(super) fn separated(&self, server: &Server) -> Vec<usize> {
        let Some(fit) = server.paths.first() else { return Vec::new() };
        let mut found: Vec<usize> = fit.separated.iter().map(|at| *at as usize).collect();
        let (step, _) = self.model.in_data_units(&server.scaling(), &fit.direction);
        let (free, p) = (fit.free(), self.model.parameters());
        for (at, (_, intercept, levels)) in self.model.references().into_iter().enumerate() {
            let own: Vec<usize> = levels.into_iter().filter(|level| free.contains(level)).collect();
            let Some(first) = own.first().map(|level| step[*level]) else { continue };
            let is_same = |x: f64| (x - first).abs() < TOGETHER * first.abs();
            let opposite = intercept.map_or(own.len() > 1, |at| is_same(-step[at]));
            if opposite && own.iter().all(|level| found.contains(level) && is_same(step[*level])) {
                found.retain(|level| !own.contains(level));
                found.push(p + at);
            }
        }
        found
    }

    /// The parts of the sums at the estimate.
    fn parts<'a>(&self, server: &'a Server) -> [&'a [f64]; 4] {
        let mut rest = &server.last[self.point_len()..];
        self.model.misfit_parts(&self.asked).map(|length| {
            let (part, others) = rest.split_at(length);
            rest = others;
            part
        })
    }

    /// The covariance of the standardised coefficients; zero for fixed ones, NaN if singular.
    fn covariance(&self, server: &Server, scaling: &Scaling, dispersion: f64) -> Vec<f64> {
        let (p, free) = (self.model.parameters(), server.paths[0].free());
        let (d, information) = (free.len(), &server.last[2 + p..][..packed_len(p)]);
        let mut out = vec![0.0; p * p];
        let penalty = self.penalty(scaling, self.ridge * server.counts.weight);
        let information_of_free = select(&penalised(information, &penalty), &free);
        let factored = Factored::new(&information_of_free, d).ok();
        let Some(factored) = factored.filter(|_| !dispersion.is_nan()) else {
            return vec![f64::NAN; p * p];
        };
        let bread = factored.inverse();
        let [.., products] = self.parts(server);
        // Model: φ I⁻¹; sandwiches: I⁻¹ M I⁻¹.
        let (meat, factor) = match self.asked.errors {
            Errors::Model => (information, dispersion),
            Errors::Robust => (products, 1.0),
            // As R and lifelines have it.
            Errors::Clustered if self.model.family == Family::Cox => (products, 1.0),
            Errors::Clustered => {
                let m = server.counts.clients;
                let d = d as f64 + if self.model.by_client { m } else { 0.0 };
                // As statsmodels has it: lines of the file, whatever their frequencies.
                let n = server.counts.rows;
                (products, m / (m - 1.0) * (n - 1.0) / (n - d))
            }
        };
        let own = match self.asked.errors {
            Errors::Model if self.ridge == 0.0 => bread,
            _ => congruent(&bread, &unpack(&select(meat, &free), d), d),
        };
        for (i, a) in free.iter().enumerate() {
            for (j, b) in free.iter().enumerate() {
                out[a * p + b] = factor * own[i * d + j];
            }
        }
        out
    }

    /// The log-likelihood with all its constants; NaN where they need sums that clients do not send.
    fn log_likelihood(
        &self,
        server: &Server,
        misfit: &Misfit,
        dispersion: f64,
        count: f64,
        weighted: bool,
    ) -> f64 {
        match self.model.family {
            _ if dispersion.is_nan() => f64::NAN,
            Family::Gaussian => self.gaussian(misfit, misfit.deviance, count),
            Family::Gamma if weighted && !self.asked.frequencies => f64::NAN,
            Family::Gamma => {
                let shape = 1.0 / dispersion;
                shape * (-0.5 * misfit.deviance - count - count * math::ln(dispersion))
                    - count * math::ln_gamma(shape)
                    - misfit.log_y
            }
            _ => server.last[0],
        }
    }

    /// The Gaussian log-likelihood at the variance that maximises it.
    fn gaussian(&self, misfit: &Misfit, deviance: f64, count: f64) -> f64 {
        let log_w = if self.asked.frequencies { 0.0 } else { misfit.log_w };
        let log_variance = math::ln(std::f64::consts::TAU * deviance / count);
        0.5 * log_w - 0.5 * count * (log_variance + 1.0)
    }

    /// The log-likelihood without covariates, where the first point is its maximum.
    fn null(&self, server: &Server, misfit: &Misfit, count: f64) -> f64 {
        let (design, first) = (&self.model.design, server.paths[0].first);
        let at_start = design.offset.is_none() && design.intercept && self.ridge == 0.0;
        match self.model.family {
            Family::Binomial | Family::Poisson if at_start => first,
            Family::Gaussian if at_start => self.gaussian(misfit, -2.0 * first, count),
            Family::Cox if self.ridge == 0.0 => first,
            _ => f64::NAN,
        }
    }

    /// The terms left out of the two fits that test each term, by type II: neither has the terms that contain it.
    fn compared(&self) -> impl Iterator<Item = [Vec<usize>; 2]> {
        let design = &self.model.design;
        (0..design.terms.len()).map(|term| {
            let with = design.containing(term);
            let mut without = [&with[..], &[term]].concat();
            without.sort_unstable();
            [with, without]
        })
    }

    /// The terms left out of each fit, first of that of all terms.
    pub(super) fn left_out(&self) -> Vec<Vec<usize>> {
        self.compared().flatten().fold(vec![Vec::new()], |mut all, terms| {
            if !all.contains(&terms) {
                all.push(terms);
            }
            all
        })
    }

    /// The fits without some terms, from that of all terms.
    pub(super) fn reduced(&self, fit: &Path) -> Vec<Path> {
        let (all, absent) = (self.model.terms(), fit.absent(&self.model));
        let without = |terms: &Vec<usize>| {
            let mut places: Vec<usize> = terms.iter().flat_map(|at| all[*at].1.clone()).collect();
            places.extend(&absent);
            Path::new(fit.beta.clone(), &places)
        };
        self.left_out().iter().skip(1).map(without).collect()
    }

    /// Statistic and degrees of freedom of each term's likelihood-ratio test.
    fn tests(&self, server: &Server, dispersion: f64, count: f64) -> Vec<f64> {
        let [fit, _, ..] = &server.paths[..] else { return Vec::new() };
        let (all, absent, left_out) =
            (self.model.terms(), fit.absent(&self.model), self.left_out());
        let path = |terms: Vec<usize>| {
            &server.paths[left_out.iter().position(|known| *known == terms).unwrap_or_default()]
        };
        let each = self.compared().zip(&all).flat_map(|(pair, (_, places))| {
            let [with, without] = pair.map(path);
            let statistic = match self.model.family {
                _ if [with, without].iter().any(|path| path.end != End::Converged) => f64::NAN,
                // Profiled over the variance: n ln(RSS_0 / RSS_1).
                Family::Gaussian => count * math::ln(without.log_likelihood / with.log_likelihood),
                _ => 2.0 * (with.log_likelihood - without.log_likelihood) / dispersion,
            };
            [statistic, places.iter().filter(|at| !absent.contains(at)).count() as f64]
        });
        each.collect()
    }
}
