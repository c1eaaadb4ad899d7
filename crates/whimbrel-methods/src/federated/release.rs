//! Differential privacy: the server adds noise to each round's sum before the oracle or anybody else
//! sees it, or each client adds a share of the noise to its integers on a grid.
//!
//! The sum is bounded in one of two ways: the oracle bounds each row, or the loop
//! clips each client's value. Norms and noise are those of the value's frame, if it has one.

use super::{ExchangeKind, Federated, Framed, MaybeFrame, Oracle, Server};
use whimbrel_codec::grid::pack;
use whimbrel_codec::{Packet, Scalar};
use whimbrel_core::{Error, Key, Result, vector};
use whimbrel_privacy::accountant::Releases;
use whimbrel_privacy::noise::{NoiseShare, Source, add_noise};

/// Noise on the sum of every round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Release {
    pub unit: Unit,
    pub releases: Releases,
    /// The rounds that the guarantee covers; the run ends with them.
    pub rounds: u32,
    pub source: Source,
    /// The number of the stage; each stage has separate noise.
    pub stage: u32,
    /// The clients' shares of the noise; `None`: the server adds it.
    pub share: Option<NoiseShare>,
}

/// The unit that the noise hides.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unit {
    /// One row of a client: its part in the sum of the client's values has at most this norm in the
    /// frame. The oracle clips it.
    Row { bound: f64 },
    /// All rows of a client: the norm of its value is at most `bound`. Clients weigh one each.
    Client { bound: f64 },
}

impl<O: Oracle> Federated<O> {
    /// The largest change of the sum of weighted values by one unit, in the frame.
    /// A sampled row stands for `1/q` rows.
    fn sensitivity(&self, release: &Release) -> f64 {
        match release.unit {
            Unit::Client { bound } => bound,
            Unit::Row { bound } => bound / release.releases.rate,
        }
    }

    /// Adds a round's noise to the mean of the clients' values.
    pub(super) fn add_noise(
        &self,
        server: &Server<O::Global, O::Number>,
        mean: &mut [f64],
    ) -> Result<()> {
        let Some(release @ Release { share: None, .. }) = &self.terms.privacy.release else {
            return Ok(());
        };
        let sensitivity = self.sensitivity(release);
        let frame = match self.moments(&server.global) {
            Some(moments) => {
                let published = self.oracle.published(&server.global, ExchangeKind::Round);
                self.oracle.frame(Framed::Value, &published, moments)?
            }
            None => None,
        };
        vector::scale(mean, server.total);
        if let Some(frame) = &frame {
            frame.forward(mean);
        }
        let mut bits = release.source.bits(release.stage, server.round);
        add_noise(mean, sensitivity, release.releases.multiplier, &mut bits)?;
        if let Some(frame) = &frame {
            frame.inverse(mean);
        }
        vector::scale(mean, 1.0 / server.total);
        Ok(())
    }

    /// Adds a client's share of the noise to its upload on the grid. A value is clipped before its way into
    /// the frame: integers that rounding moved beyond the bound are refused.
    pub(super) fn add_share(&self, packet: Packet, key: Key) -> Result<Packet> {
        let Some(Release { share: Some(share), source, unit, .. }) = &self.terms.privacy.release
        else {
            return Ok(packet);
        };
        let mut segments = self.uplink().segments(&packet, false)?;
        if let Some(values) = segments.first_mut() {
            if let Unit::Client { bound } = unit
                && !share.covers(&values.words, *bound)
            {
                return Err(too_narrow());
            }
            share.add(&mut values.words, &mut source.bits_of_client(key));
        }
        Ok(pack(&segments))
    }

    /// Whether the loop clips the values of clients.
    pub(super) fn clips_clients(&self) -> bool {
        matches!(&self.terms.privacy.release, Some(Release { unit: Unit::Client { .. }, .. }))
    }

    /// Scales a client's value down to the bound of its norm in the frame.
    pub(super) fn clip(&self, value: &mut [O::Number], frame: &MaybeFrame) {
        let Some(Release { unit: Unit::Client { bound }, .. }) = &self.terms.privacy.release else {
            return;
        };
        let mut coordinates: Vec<f64> = value.iter().map(|x| x.wide()).collect();
        if let Some(frame) = frame {
            frame.forward(&mut coordinates);
        }
        let norm = vector::norm2_squared(&coordinates).sqrt();
        // A value that is not finite counts as zero.
        let share = if norm.is_finite() { (bound / norm).min(1.0) } else { 0.0 };
        if share < 1.0 {
            let scaled = |x: &O::Number| if share > 0.0 { share * x.wide() } else { 0.0 };
            value.iter_mut().for_each(|x| *x = O::Number::narrow(scaled(x)));
        }
    }
}

/// Parameters at which rounding errors could move what the noise hides.
pub(crate) fn too_narrow() -> Error {
    Error::peer(
        "parameters so narrow that the rounding of a part of the sum could exceed what the noise hides",
    )
    .hint("take fewer components or columns of a scale of about one")
}
