//! The family's keys of `[model]` and `[method]`.

use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::named;
use whimbrel_job::reader::{Read, Reader, Shape as Form, Value};
use whimbrel_job::writer::{Writer, inline, number, text};
use whimbrel_methods::bayes::{Chains, Decay, Part, Radius, Rate};
use whimbrel_models::prior::Shape;
use whimbrel_models::sampler::Kernel;

named! {
    /// What is personal.
    pub(super) PARTS: Part {
        Part::Head => "head": "the last layer; what is below it is shared",
        Part::All => "all": "the whole model; clients share its prior alone",
    }
}

/// The word of means in closed form.
const EXACT: &str = "exact";

static KERNELS: [Word; 6] = [
    Word { name: "ula", doc: "unadjusted Langevin: FedSOUL; with `batch` stochastic gradients" },
    Word { name: "preconditioned-ula", doc: "the same with a diagonal preconditioner" },
    Word { name: "underdamped", doc: "underdamped Langevin, with momentum and friction" },
    Word { name: "mala", doc: "Metropolis-adjusted Langevin" },
    Word { name: "hmc", doc: "Hamiltonian Monte Carlo" },
    Word {
        name: EXACT,
        doc: "no chain: means over the posterior in closed form, of a linear head with a Gaussian prior",
    },
];

pub(super) static NOISE: Key = Key::default(
    "noise",
    "a positive number, \"auto\" or \"learned\"",
    "\"auto\"",
    "the standard deviation of targets that are numbers; \"auto\": that of drawn data, else learned",
);
pub(super) static KERNEL: Key =
    Key::default("kernel", "", "\"ula\"", "how chains move").words(&KERNELS);
pub(super) static FRICTION: Key = Key::default(
    "friction",
    "a positive number",
    "1.0",
    "underdamped: the friction, in units of one over the square root of the step",
);
pub(super) static LEAPFROG: Key = Key::default(
    "leapfrog",
    "an integer from 1 to 1000",
    "10",
    "hmc: the most leapfrog steps of a move",
);
pub(super) static STEPS: Key =
    Key::default("steps", "an integer from 1 to 1000000", "10", "M: steps of a chain in a round");
pub(super) static BURN_IN: Key = Key::default(
    "burn_in",
    "an integer below `steps`",
    "0",
    "the first steps of a round, which are left out of its means",
);
pub(super) static CHAINS: Key = Key::default(
    "chains",
    "an integer from 1 to 100",
    "1",
    "parallel chains of a client: with several, R-hat compares them",
);
pub(super) static GAMMA: Key = Key::default(
    "gamma",
    "a positive number, \"auto\" or { share = 0.5 }",
    "\"auto\"",
    "the step of a chain; \"auto\": one over the smoothness of the client's own posterior, or a share of \
     that",
)
.tables(&[&GAMMA_SECTION]);
static SHARE: Key =
    Key::required("share", "a positive number below 2", "times one over the smoothness");
static GAMMA_SECTION: Section =
    Section { name: "gamma", doc: "the step of a chain", keys: &[&SHARE], example: "" };
pub(super) static SAMPLES: Key = Key::default(
    "samples",
    "an integer from 2 to 100000",
    "100",
    "samples that each chain keeps for predictions, at the end of training",
);
pub(super) static THIN: Key = Key::optional(
    "thin",
    "an integer of at least 1",
    "a quarter of the chain's relaxation time, at most 100, where that is known; else `steps`",
    "steps from one kept sample to the next",
);
pub(super) static PERSONAL: Key = Key::optional(
    "personal",
    "",
    "\"head\" where there are layers below it, else \"all\"",
    "what each client has for itself",
)
.words(PARTS.words);
pub(super) static PRIOR: Key = Key::default(
    "prior",
    "\"diagonal\", \"full\" or { mixture = 3 }",
    "\"diagonal\"",
    "the prior of personal parts, whose parameters are learned",
)
.words(&[
    Word { name: "diagonal", doc: "a Gaussian with independent coordinates" },
    Word { name: "full", doc: "a Gaussian with any covariance" },
])
.tables(&[&PRIOR_SECTION]);
static MIXTURE: Key = Key::required(
    "mixture",
    "an integer from 1 to 1000",
    "Gaussians with independent coordinates that are mixed",
);
static PRIOR_SECTION: Section =
    Section { name: "prior", doc: "a mixture of Gaussians", keys: &[&MIXTURE], example: "" };
pub(super) static PRIOR_SCALE: Key = Key::optional(
    "prior_scale",
    "a positive number",
    "1/sqrt(latent) for linear-representation, else 0.1",
    "the scale at which the prior starts",
);
pub(super) static HYPERPRIOR: Key = Key::default(
    "hyperprior",
    "a table { phi, beta }",
    "{ phi = 0.0, beta = 0.0 }",
    "precisions of Gaussian priors of the shared parameters and of the prior's own; 0 is flat",
)
.tables(&[&HYPERPRIOR_SECTION]);
static PHI: Key =
    Key::default("phi", "a number of at least 0", "0.0", "that of the shared parameters");
static BETA: Key = Key::default("beta", "a number of at least 0", "0.0", "that of the prior's");
static HYPERPRIOR_SECTION: Section = Section {
    name: "hyperprior",
    doc: "precisions of Gaussian priors",
    keys: &[&PHI, &BETA],
    example: "",
};
pub(super) static FALL: Key = Key::default(
    "fall",
    "a table { power, from }",
    "{ power = 0.6, from = 0.5 }",
    "how the server's steps fall: as (1 + rounds/10)^-power, from this share of the rounds on",
)
.tables(&[&FALL_SECTION]);
static POWER: Key = Key::default("power", "a number from 0 to 1", "0.6", "how fast; 0 for never");
static FROM: Key =
    Key::default("from", "a number from 0 to 1", "0.5", "from which share of the rounds on");
static FALL_SECTION: Section = Section {
    name: "fall",
    doc: "how the server's steps fall",
    keys: &[&POWER, &FROM],
    example: "",
};
pub(super) static RADIUS: Key = Key::default(
    "radius",
    "a table { phi, beta }",
    "{}",
    "the balls around zero onto which the parameters are projected; each by default a hundred times the norm \
     at the start, and a hundred",
)
.tables(&[&RADIUS_SECTION]);
static RADIUS_PHI: Key = Key::optional(
    "phi",
    "a positive number",
    "a hundred times the start",
    "of the shared parameters",
);
static RADIUS_BETA: Key =
    Key::optional("beta", "a positive number", "a hundred times the start", "of the prior's");
static RADIUS_SECTION: Section = Section {
    name: "radius",
    doc: "where parameters are projected",
    keys: &[&RADIUS_PHI, &RADIUS_BETA],
    example: "",
};
pub(super) static AVERAGE: Key = Key::optional(
    "average",
    "true or false",
    "true with step = \"theory\", else false",
    "whether the mean of all iterates is delivered, weighted by their steps",
);
pub(super) static ANNEAL: Key = Key::optional(
    "anneal",
    "true or false",
    "true for linear-representation, else false",
    "whether a known noise falls from 1 to its value over the first half of the rounds",
);

pub(super) static OUTSIDE: Key = Key::optional(
    "outside",
    "a path",
    "none",
    "images in the layout of MNIST that are unlike the data: the report sets their predictive entropies \
     beside those of test rows",
);

/// What a job asks of `fedsoul`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The noise; none for that of drawn data, or a learned one.
    pub noise: AskedNoise,
    /// The chains; minibatches are those of `[method]`.
    pub chains: Chains,
    /// What is personal; none for the default.
    pub part: Option<Part>,
    /// The prior.
    pub prior: Shape,
    /// Its scale at the start.
    pub prior_scale: Option<f64>,
    /// Precisions of the priors of `phi` and `beta`.
    pub precision: [f64; 2],
    /// How the server's steps fall.
    pub decay: Decay,
    /// Where parameters are projected.
    pub radius: Radius,
    /// Whether the mean iterate is delivered.
    pub average: Option<bool>,
    /// Whether the noise is annealed.
    pub anneal: Option<bool>,
}

/// `noise`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AskedNoise {
    /// That of drawn data, else learned.
    Auto,
    /// This.
    Known(f64),
    /// A parameter.
    Learned,
}

impl Settings {
    pub(super) fn read(model: &Reader<'_>, method: &Reader<'_>) -> Read<Self> {
        let noise = model.read(&NOISE, |v| match v.shape() {
            Form::Text => match v.text()?.as_str() {
                "auto" => Ok(AskedNoise::Auto),
                "learned" => Ok(AskedNoise::Learned),
                other => Err(v.unknown_word(other)),
            },
            _ => v.number(|x| x > 0.0).map(AskedNoise::Known),
        });
        let friction = method.read(&FRICTION, |v| v.number(|x| x > 0.0));
        let leapfrog = method.read(&LEAPFROG, |v| v.integer(1..=1000)).map(|n| n as u32);
        let kernel = method.read(&KERNEL, |v| {
            let word = v.text()?;
            match Kernel::named(&word) {
                _ if word == EXACT => Ok(None),
                None => Err(v.unknown_word(&word)),
                Some(kernel) => Ok(Some(kernel)),
            }
        });
        let steps = method.read(&STEPS, |v| v.integer(1..=1_000_000)).map(|n| n as u32);
        let known_steps = steps.as_ref().ok().copied();
        let burn_in = method.read(&BURN_IN, |v| {
            let burn_in = v.integer(0..=1_000_000)? as u32;
            match known_steps {
                Some(steps) if burn_in >= steps => Err(v.fail(
                    format!("burn_in = {burn_in} leaves nothing of steps = {steps}"),
                    "burn_in is per round and below steps",
                )),
                _ => Ok(burn_in),
            }
        });
        let count = method.read(&CHAINS, |v| v.integer(1..=100)).map(|n| n as u32);
        let gamma = method.read(&GAMMA, read_gamma);
        let kept = method.read(&SAMPLES, |v| v.integer(2..=100_000)).map(|n| n as u32);
        let thin = method.optional(&THIN, |v| v.count_u32());
        let part = method.optional(&PERSONAL, |v| v.named(&PARTS));
        let prior = method.read(&PRIOR, read_prior);
        let prior_scale = method.optional(&PRIOR_SCALE, |v| v.number(|x| x > 0.0));
        let precision = method.read(&HYPERPRIOR, |v| {
            let table = v.table(&HYPERPRIOR_SECTION)?;
            let phi = table.read(&PHI, |v| v.number(|x| x >= 0.0));
            let beta = table.read(&BETA, |v| v.number(|x| x >= 0.0));
            Ok([phi?, beta?])
        });
        let decay = method.read(&FALL, |v| {
            let table = v.table(&FALL_SECTION)?;
            let exponent = table.read(&POWER, |v| v.number(|x| (0.0..=1.0).contains(&x)));
            let from = table.read(&FROM, |v| v.number(|x| (0.0..=1.0).contains(&x)));
            Ok(Decay { exponent: exponent?, from: from? })
        });
        let radius = method.read(&RADIUS, |v| {
            let table = v.table(&RADIUS_SECTION)?;
            let phi = table.optional(&RADIUS_PHI, |v| v.number(|x| x > 0.0));
            let beta = table.optional(&RADIUS_BETA, |v| v.number(|x| x > 0.0));
            Ok(Radius { phi: phi?, beta: beta? })
        });
        let average = method.optional(&AVERAGE, |v| v.boolean());
        let anneal = method.optional(&ANNEAL, |v| v.boolean());
        let kernel = match kernel? {
            Some(Kernel::Underdamped { .. }) => Some(Kernel::Underdamped { friction: friction? }),
            Some(Kernel::Hmc { .. }) => Some(Kernel::Hmc { leapfrog: leapfrog? }),
            other => other,
        };
        Ok(Self {
            noise: noise?,
            chains: Chains {
                kernel,
                steps: steps?,
                burn_in: burn_in?,
                count: count?,
                batch: None,
                gamma: gamma?,
                kept: kept?,
                thin: thin?,
            },
            part: part?,
            prior: prior?,
            prior_scale: prior_scale?,
            precision: precision?,
            decay: decay?,
            radius: radius?,
            average: average?,
            anneal: anneal?,
        })
    }

    pub(super) fn write_noise(&self, out: &mut Writer) {
        out.put(
            &NOISE,
            match self.noise {
                AskedNoise::Auto => text("auto"),
                AskedNoise::Learned => text("learned"),
                AskedNoise::Known(noise) => number(noise),
            },
        );
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let chains = &self.chains;
        out.put(&KERNEL, text(chains.kernel.map_or(EXACT, Kernel::name)));
        match chains.kernel {
            Some(Kernel::Underdamped { friction }) => out.put(&FRICTION, number(friction)),
            Some(Kernel::Hmc { leapfrog }) => out.put(&LEAPFROG, leapfrog.to_string()),
            _ => {}
        }
        out.put(&STEPS, chains.steps.to_string());
        out.put(&BURN_IN, chains.burn_in.to_string());
        out.put(&CHAINS, chains.count.to_string());
        out.put(
            &GAMMA,
            match chains.gamma {
                Rate::Fixed(gamma) => number(gamma),
                Rate::Share(1.0) => text("auto"),
                Rate::Share(share) => inline([(SHARE.name, number(share))]),
            },
        );
        out.put(&SAMPLES, chains.kept.to_string());
        if let Some(thin) = chains.thin {
            out.put(&THIN, thin.to_string());
        }
        if let Some(part) = self.part {
            out.put(&PERSONAL, text(PARTS.name(part)));
        }
        out.put(
            &PRIOR,
            match self.prior {
                Shape::Diagonal => text("diagonal"),
                Shape::Full => text("full"),
                Shape::Mixture { components } => inline([(MIXTURE.name, components.to_string())]),
            },
        );
        if let Some(scale) = self.prior_scale {
            out.put(&PRIOR_SCALE, number(scale));
        }
        let [phi, beta] = self.precision.map(number);
        out.put(&HYPERPRIOR, inline([(PHI.name, phi), (BETA.name, beta)]));
        let fall = [(POWER.name, self.decay.exponent), (FROM.name, self.decay.from)];
        out.put(&FALL, inline(fall.map(|(name, x)| (name, number(x)))));
        let radii = [(RADIUS_PHI.name, self.radius.phi), (RADIUS_BETA.name, self.radius.beta)];
        let radii = radii.into_iter().filter_map(|(name, x)| x.map(|x| (name, number(x))));
        out.put(&RADIUS, inline(radii));
        for (key, value) in [(&AVERAGE, self.average), (&ANNEAL, self.anneal)] {
            if let Some(value) = value {
                out.put(key, value.to_string());
            }
        }
    }
}

fn read_gamma(value: Value<'_>) -> Read<Rate> {
    match value.shape() {
        Form::Text => match value.text()?.as_str() {
            "auto" => Ok(Rate::Share(1.0)),
            other => Err(value.unknown_word(other)),
        },
        Form::Table => {
            let table = value.table(&GAMMA_SECTION)?;
            Ok(Rate::Share(table.read(&SHARE, |v| v.number(|x| x > 0.0 && x < 2.0))?))
        }
        _ => Ok(Rate::Fixed(value.number(|x| x > 0.0)?)),
    }
}

fn read_prior(value: Value<'_>) -> Read<Shape> {
    match value.shape() {
        Form::Table => {
            let table = value.table(&PRIOR_SECTION)?;
            let components = table.read(&MIXTURE, |v| v.integer(1..=1000))? as usize;
            Ok(Shape::Mixture { components })
        }
        _ => match value.text()?.as_str() {
            "diagonal" => Ok(Shape::Diagonal),
            "full" => Ok(Shape::Full),
            other => Err(value.unknown_word(other)),
        },
    }
}
