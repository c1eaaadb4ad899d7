//! The family's keys of `[model]` and `[method]`.

use crate::predictions::OUTSIDE;
use std::path::PathBuf;
use whimbrel_job::form::{BOOLEAN, COUNT_U32, Form, NOT_NEGATIVE, PATH, POSITIVE, SHARE, Table};
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::writer::{number, text};
use whimbrel_job::{form, inline, integer, number, table};
use whimbrel_methods::bayes::{Chains, Decay, Part, Precision, Radius, Rate};
use whimbrel_models::prior::Shape;
use whimbrel_models::sampler::Kernel;

/// What a job asks of `fedsoul`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The chains; minibatches are those of `[method]`.
    pub chains: Chains,
    /// What is personal; none for the default.
    pub part: Option<Part>,
    /// The prior.
    pub prior: Shape,
    /// Its scale at the start.
    pub prior_scale: Option<f64>,
    /// Precisions of the priors of `phi` and `beta`.
    pub precision: Precision,
    /// How the server's steps fall.
    pub decay: Decay,
    /// Where parameters are projected.
    pub radius: Radius,
    /// Whether the mean iterate is delivered.
    pub average: Option<bool>,
    /// Whether the noise is annealed.
    pub anneal: Option<bool>,
    /// Images unlike the data, for the report.
    pub outside: Option<PathBuf>,
}

table! {
    pub(super) SETTINGS: Settings {
        + chains: CHAIN;
        & outside: OUTSIDE, PATH, unset;
        part: PERSONAL = "personal", PARTS,
            unset "\"head\" where there are layers below it, else \"all\"",
            "what each client has for itself";
        prior: PRIOR = "prior", PRIORS, default,
            "the prior of personal parts, whose parameters are learned";
        prior_scale: PRIOR_SCALE = "prior_scale", SCALE,
            unset "1/sqrt(latent) for linear-representation, else 0.1",
            "the scale at which the prior starts";
        precision: HYPERPRIOR = "hyperprior", inline!(PRECISION), default,
            "precisions of Gaussian priors of the shared parameters and of the prior's own; 0 is flat";
        decay: FALL = "fall", inline!(DECAY), default,
            "how the server's steps fall: as (1 + rounds/10)^-power, from this share of the rounds on";
        radius: RADIUS = "radius", inline!(BALLS), default,
            "the balls around zero onto which the parameters are projected; each by default a hundred times \
             the norm at the start, and a hundred";
        average: AVERAGE = "average", BOOLEAN, unset "true with step = \"theory\", else false",
            "whether the mean of all iterates is delivered, weighted by their steps";
        anneal: ANNEAL = "anneal", BOOLEAN, unset "true for linear-representation, else false",
            "whether a known noise falls from 1 to its value over the first half of the rounds; a linear \
             representation has twice its features in the first quarter";
    }
}

/// Of a prior in single precision, whose square and its inverse are numbers too.
const SCALE: Form<f64> = number!("a number from 1e-6 to 1e6", |x| (1e-6..=1e6).contains(&x));

table! {
    pub(super) CHAIN: Chains {
        + kernel: KERNELS;
        steps: STEPS = "steps", integer!(u32, 1 to 1000000), default,
            "M: steps of a chain in a round";
        burn_in: BURN_IN = "burn_in", integer!(u32, 0 to 1000000).takes("an integer below `steps`"),
            default, "the first steps of a round, which are left out of its means";
        count: CHAINS = "chains", integer!(u32, 1 to 100), default,
            "parallel chains of a client: with several, R-hat compares them";
        gamma: GAMMA = "gamma", RATES, default,
            "the step of a chain; \"auto\": one over the smoothness of the client's own posterior, or a \
             share of that; a number is for the noise's own value, and larger while that is annealed";
        kept: SAMPLES = "samples", integer!(u32, 2 to 100000), default,
            "samples that each chain keeps for predictions, at the end of training";
        thin: THIN = "thin", COUNT_U32,
            unset "a relaxation time of a head's chain, at most 100; `steps` with personal = \"all\"",
            "steps from one kept sample to the next";
        ..{ batch: None }
    }
}

/// The kernel, whose own number is a key beside it; none for means in closed form.
const KERNELS: Table<Option<Kernel>> = Table {
    section: MOVES.section,
    read: |reader| {
        let Moves { kernel, friction, leapfrog } = (MOVES.read)(reader)?;
        if !matches!(kernel, Some(Kernel::Underdamped { .. })) {
            reader.refuse_if_given(&FRICTION, "has a meaning for `kernel = \"underdamped\"` alone");
        }
        if !matches!(kernel, Some(Kernel::Hmc { .. })) {
            reader.refuse_if_given(&LEAPFROG, "has a meaning for `kernel = \"hmc\"` alone");
        }
        Ok(match kernel {
            Some(Kernel::Underdamped { .. }) => Some(Kernel::Underdamped { friction }),
            Some(Kernel::Hmc { .. }) => Some(Kernel::Hmc { leapfrog }),
            other => other,
        })
    },
    write: |kernel, out| {
        out.put(&KERNEL, KERNEL_FORM.write(kernel));
        match kernel {
            Some(Kernel::Underdamped { friction }) => out.put(&FRICTION, number(*friction)),
            Some(Kernel::Hmc { leapfrog }) => out.put(&LEAPFROG, leapfrog.to_string()),
            _ => {}
        }
    },
};

struct Moves {
    kernel: Option<Kernel>,
    friction: f64,
    leapfrog: u32,
}

table! {
    pub(super) MOVES: Moves {
        kernel: KERNEL = "kernel", KERNEL_FORM, default(Chains::default().kernel), "how chains move";
        friction: FRICTION = "friction", POSITIVE, default(Kernel::FRICTION),
            "underdamped: the friction, in units of the critical one of the prior's widest coordinate, 2/s";
        leapfrog: LEAPFROG = "leapfrog", integer!(u32, 1 to 1000), default(Kernel::LEAPFROG),
            "hmc: the most leapfrog steps of a move";
    }
}

/// The word of means in closed form.
const EXACT: &str = "exact";

const KERNEL_FORM: Form<Option<Kernel>> = Form::new(
    "",
    |v| match v.text()?.as_str() {
        EXACT => Ok(None),
        word => Kernel::named(word).map(Some).ok_or_else(|| v.unknown_word(word)),
    },
    |kernel| text(kernel.map_or(EXACT, Kernel::name)),
)
.words(&[
    Word { name: "ula", doc: "unadjusted Langevin: FedSOUL; with `batch` stochastic gradients" },
    Word { name: "preconditioned-ula", doc: "the same with a diagonal preconditioner" },
    Word { name: "underdamped", doc: "underdamped Langevin, with momentum and friction" },
    Word { name: "mala", doc: "Metropolis-adjusted Langevin" },
    Word { name: "hmc", doc: "Hamiltonian Monte Carlo" },
    Word {
        name: EXACT,
        doc: "no chain: means over the posterior in closed form, of a linear head with a Gaussian prior",
    },
]);

form! {
    RATES: Rate, "a positive number, \"auto\" or { share = 0.5 }" {
        Rate::Auto => "auto": "the whole of it, as { share = 1.0 }; a fifth with kernel = \"preconditioned-ula\"",
    }
    number POSITIVE => Rate::Fixed;
    table inline!(STABLE) => Rate::Share;
}

table! {
    STABLE: f64 = "gamma", "the step of a chain" {
        STABLE_SHARE = "share", number!("a positive number below 2", |x| x > 0.0 && x < 2.0), required,
            "times one over the smoothness";
    }
}

form! {
    /// What is personal.
    pub(super) PARTS: Part {
        Part::Head => "head": "the last layer; what is below it is shared",
        Part::All => "all": "the whole model; clients share its prior alone",
    }
}

form! {
    PRIORS: Shape, "\"diagonal\", \"full\" or { mixture = 3 }" {
        Shape::Diagonal => "diagonal": "a Gaussian with independent coordinates",
        Shape::Full => "full": "a Gaussian with any covariance",
    }
    table inline!(MIXED);
}

table! {
    MIXED: Shape::Mixture = "prior", "a mixture of Gaussians" {
        components: MIXTURE = "mixture", integer!(usize, 1 to 1000), required,
            "Gaussians with independent coordinates that are mixed";
    }
}

table! {
    PRECISION: Precision = "hyperprior", "precisions of Gaussian priors" {
        phi: PHI = "phi", NOT_NEGATIVE, default, "that of the shared parameters";
        beta: BETA = "beta", NOT_NEGATIVE, default, "that of the prior's";
    }
}

table! {
    DECAY: Decay = "fall", "how the server's steps fall" {
        exponent: POWER = "power", SHARE, default, "how fast; 0 for never";
        from: FROM = "from", SHARE, default, "from which share of the rounds on";
    }
}

table! {
    BALLS: Radius = "radius", "where parameters are projected" {
        phi: RADIUS_PHI = "phi", POSITIVE, unset "a hundred times the start", "of the shared parameters";
        beta: RADIUS_BETA = "beta", POSITIVE, unset "a hundred times the start", "of the prior's";
    }
}

/// `noise`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AskedNoise {
    /// That of drawn data, else learned.
    #[default]
    Auto,
    /// This.
    Known(f64),
    /// A parameter.
    Learned,
}

/// `[model]`'s key of the family.
pub(super) static NOISE: JobKey = NOISES.default(
    "noise",
    || NOISES.write(&AskedNoise::default()),
    "the standard deviation of targets that are numbers; \"auto\": that of drawn data, else learned",
);

form! {
    pub(super) NOISES: AskedNoise, "a positive number, \"auto\" or \"learned\"" {
        AskedNoise::Auto => "auto": "that of drawn data, else \"learned\"",
        AskedNoise::Learned => "learned": "a parameter of the model",
    }
    number POSITIVE => AskedNoise::Known;
}
