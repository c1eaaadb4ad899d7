//! The channels of a job: codecs, rules and their constants.

use super::{Common, Roster};
use crate::failure::{AtKey, Result};
use crate::family::refuse;
use crate::job::{Job, MemoryStart};
use std::collections::BTreeMap;
use std::path::Path;
use whimbrel_codec::channel::{
    DownRule, Downlink, Feedback, Memories, UpRule, Uplink, blocks_omega, em_alpha, gradient_alpha,
};
use whimbrel_codec::{Codec, Inclusion, SharedGrid};
use whimbrel_core::Error;
use whimbrel_engine::Participation;
use whimbrel_methods::federated::{FirstMemories, Release, Terms};
use whimbrel_methods::settings::Privacy;
use whimbrel_methods::step::auto_levels;

/// The memory step of `auto`, as a function of the codec's `omega`.
pub type Alpha = fn(f64) -> f64;

/// Reads a memory from a file.
type ReadMemory<'a> = dyn Fn(&Path) -> Result<Vec<f64>> + 'a;

/// The vectors that a star-shaped method sends.
pub struct Vectors<'a> {
    /// The blocks of an upload, and the default step of its memories.
    pub up: (&'a [usize], Alpha),
    /// The blocks of the state, and the default step of its memories.
    pub down: (&'a [usize], Alpha),
    /// Dore's share of the error; `None`: the published one.
    pub share: Option<f64>,
    /// Reads the first memory of every client; `None` if the method takes no file.
    pub read_memory: Option<&'a ReadMemory<'a>>,
}

impl<'a> Vectors<'a> {
    pub fn new(up: (&'a [usize], Alpha), down: (&'a [usize], Alpha)) -> Self {
        Self { up, down, share: None, read_memory: None }
    }

    /// Gradients or changes of a model.
    pub fn gradients(blocks: &'a [usize]) -> Self {
        Self::new((blocks, gradient_alpha), (blocks, gradient_alpha))
    }
}

/// The channels of a star-shaped method.
#[derive(Clone)]
pub struct Channels {
    /// The common uplink, then those of clients with own codecs.
    pub uplinks: Vec<Uplink>,
    own_uplinks: BTreeMap<u32, u8>,
    pub downlink: Downlink,
    /// The start of the uplinks' memories.
    pub memories: FirstMemories,
}

impl Channels {
    /// The job's channels for these vectors.
    pub fn new(common: &Common, vectors: &Vectors<'_>) -> Result<Self> {
        let (job, roster) = (&common.job, common.roster());
        let (uplinks, own_uplinks) = uplinks(common, vectors.up.0, vectors.up.1)?;
        let downlink = downlink(job, &roster, vectors.down.0, vectors.share, vectors.down.1)?;
        let memories = match (&job.uplink.start, vectors.read_memory) {
            (MemoryStart::Oracle, _) => FirstMemories::Oracle,
            (MemoryStart::Zero, _) => FirstMemories::Zero,
            (MemoryStart::File(path), Some(read)) => FirstMemories::Given(read(path)?),
            (MemoryStart::File(_), None) => {
                return refuse(
                    format!("memories of {} cannot start in a file", job.method.name()),
                    "write start = \"oracle\" or \"zero\" in [uplink]",
                );
            }
        };
        Ok(Self { uplinks, own_uplinks, downlink, memories })
    }

    /// Rounds and passes over the rows before the first sampled cohort of an EM method: a round of all
    /// clients for the first statistic, and a pass for memories that start at the field.
    pub fn opening(&self) -> (u32, f64) {
        (1, if self.memories == FirstMemories::Oracle { 2.0 } else { 1.0 })
    }

    /// The terms of a fit with noise on its sums, if there is any.
    pub fn private_terms(&self, common: &Common, release: Option<Release>) -> Terms {
        let mut terms = self.terms(common);
        if let Some(Release { share: Some(share), .. }) = release {
            terms.uplinks =
                terms.uplinks.into_iter().map(|up| up.at_step(share.exponent)).collect();
        }
        Terms { privacy: Privacy { release, ..terms.privacy }, ..terms }
    }

    /// The terms of a fit over these channels.
    pub fn terms(&self, common: &Common) -> Terms {
        Terms {
            budget: common.budget(),
            weights: common.weights(),
            memories: self.memories.clone(),
            uplinks: self.uplinks.clone(),
            own_uplinks: self.own_uplinks.clone(),
            downlink: self.downlink.clone(),
            privacy: common.privacy(),
        }
    }
}

/// The uplinks for vectors of these blocks: the common one, then those of clients with own codecs,
/// with the index of each such client's uplink.
pub fn uplinks(
    common: &Common,
    blocks: &[usize],
    auto: Alpha,
) -> Result<(Vec<Uplink>, BTreeMap<u32, u8>)> {
    let (job, roster) = (&common.job, common.roster());
    let first = match &job.uplink.codec {
        // 1/(1 + omega) for every family.
        Codec::Grid(grid) => {
            uplink_with(common, &on_grid(common, grid), blocks, em_alpha).at("uplink.codec")?
        }
        codec => uplink_with(common, codec, blocks, auto)?,
    };
    let mut uplinks = vec![first];
    let mut own = BTreeMap::new();
    for entry in &job.uplink.own {
        let uplink = uplink_with(common, &entry.codec, blocks, auto)?;
        let known = uplinks.iter().position(|known| *known == uplink);
        let at = known.unwrap_or_else(|| {
            uplinks.push(uplink);
            uplinks.len() - 1
        });
        let at = u8::try_from(at).map_err(|_| Error::config("more than 255 different codecs"))?;
        for name in &entry.clients {
            own.insert(roster.id_of(name, "uplink.for")?.0, at);
        }
    }
    Ok((uplinks, own))
}

/// The grid of the job's clients.
fn on_grid(common: &Common, grid: &SharedGrid) -> Codec {
    let inclusion = match &common.participation {
        Participation::Everyone => Inclusion::Equal(1.0),
        Participation::Bernoulli(p) => Inclusion::Equal(p.value()),
        Participation::PerClient { each, others } => Inclusion::Each {
            each: each.iter().map(|p| p.value()).collect(),
            others: others.value(),
        },
        Participation::Fixed(size) => Inclusion::Fixed(*size),
    };
    Codec::Grid(grid.clone().among(common.clients as u32, inclusion))
}

fn uplink_with(common: &Common, codec: &Codec, blocks: &[usize], auto: Alpha) -> Result<Uplink> {
    let omega = |levels| blocks_omega(&codec.settled(levels), blocks).unwrap_or(0.0);
    let codec = if codec.is_automatic() {
        &codec.settled(auto_levels(omega, common.participation_mean()))
    } else {
        codec
    };
    let rule = common.job.uplink.rule.settled(auto(blocks_omega(codec, blocks).unwrap_or(0.0)));
    Ok(Uplink::new(codec.clone(), rule, blocks.iter().sum())?.with_blocks(blocks)?)
}

/// The downlink for states of these blocks; `share` is Dore's share of the error, if not the
/// published one.
pub fn downlink(
    job: &Job,
    roster: &Roster<'_>,
    blocks: &[usize],
    share: Option<f64>,
    auto: Alpha,
) -> Result<Downlink> {
    let d = blocks.iter().sum();
    let codec = job.downlink.codec.clone();
    let omega = blocks_omega(&codec, blocks).unwrap_or(0.0);
    let rule = job.downlink.rule.settled(auto(omega), share.unwrap_or(1.0 / (1.0 + omega)));
    if let DownRule::Preserved { memories: Memories::Groups(groups), .. } = rule
        && groups as usize > roster.clients
    {
        return refuse(
            format!("{groups} groups of {} clients", roster.clients),
            "memories in [downlink] is at most the number of clients",
        );
    }
    let mut downlink =
        Downlink::new(codec, rule, d, job.method.allow_divergence)?.with_blocks(blocks)?;
    for entry in &job.downlink.own {
        for name in &entry.clients {
            let id = roster.id_of(name, "downlink.for")?;
            let own = entry.codec.clone();
            let alpha = match job.downlink.rule {
                DownRule::Preserved { alpha: Some(alpha), .. } => alpha,
                _ => auto(blocks_omega(&own, blocks).unwrap_or(0.0)),
            };
            downlink = downlink.with_own(id, own, alpha)?;
        }
    }
    Ok(downlink)
}

/// Refuses per-client memories that exceed `memory_max`.
pub fn check_memory(job: &Job, downlink: &Downlink, clients: usize) -> Result<()> {
    let bytes = memory_bytes(downlink, clients);
    if bytes <= job.method.memory_max {
        return Ok(());
    }
    refuse(
        format!(
            "downlink memories of {clients} clients take {} on the server; memory_max is {}",
            size(bytes),
            size(job.method.memory_max)
        ),
        "memories = \"single\" or a number of groups in [downlink] need no vector per client; or \
         raise memory_max in [method]",
    )
}

/// The size of per-client memories, if there are any.
pub fn memory_note(downlink: &Downlink, clients: usize) -> Option<String> {
    let bytes = memory_bytes(downlink, clients);
    (bytes > 0)
        .then(|| format!("downlink memories of {clients} clients: {} on the server", size(bytes)))
}

fn memory_bytes(downlink: &Downlink, clients: usize) -> u64 {
    8 * clients as u64 * downlink.numbers_per_client() as u64
        + 16 * downlink.numbers_per_group() as u64
}

fn size(bytes: u64) -> String {
    let (value, unit) = match bytes as f64 {
        b if b < 1e6 => (b / 1e3, "kB"),
        b if b < 1e9 => (b / 1e6, "MB"),
        b => (b / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

/// The warning about exact codecs of a preset that compresses.
pub fn uncompressed(job: &Job) -> Option<String> {
    let preset = job.method.channels?;
    let (up, down) = preset.compresses();
    let up = up && job.uplink.codec.is_exact() && job.uplink.own.is_empty();
    let down = down && job.downlink.codec.is_exact() && job.downlink.own.is_empty();
    let tables = match (up, down) {
        (true, true) => "[uplink] and [downlink]",
        (true, false) => "[uplink]",
        (false, true) => "[downlink]",
        (false, false) => return None,
    };
    Some(format!(
        "{} compresses nothing with exact codecs; write codec = {{ kind = \"dithering\", levels = 1 }} \
         in {tables}",
        preset.name()
    ))
}

/// The constants of codecs and memories in words.
pub fn describe(up: Option<&Uplink>, down: &Downlink) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(up) = up.filter(|up| !up.codec().is_exact()) {
        if let Codec::Dithering(dithering) = up.codec() {
            parts.push(format!("levels {}", dithering.levels()));
        }
        parts.extend(up.omega().map(|omega| format!("omega_up {omega:.4}")));
        if let UpRule::Memory { alpha } = up.rule() {
            parts.push(format!("alpha_up {alpha:.4}"));
        }
    }
    if !down.is_exact() {
        parts.extend(down.omega().map(|omega| format!("omega_down {omega:.4}")));
        match down.rule() {
            DownRule::Preserved { alpha, .. } => {
                parts.push(format!("alpha_down {alpha:.4}"));
                let every = down.reset_rounds();
                parts.extend(every.map(|every| format!("reset every {every} rounds")));
            }
            DownRule::Degraded { feedback: Feedback::Share(share) } => {
                parts.push(format!("share of the error fed back {share:.4}"));
            }
            _ => {}
        }
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}
