//! Keys of `fedsoul`.

use crate::predictions::OUTSIDE;
use std::path::PathBuf;
use whimbrel_job::form::{BOOLEAN, COUNT_U32, Form, NOT_NEGATIVE, PATH, POSITIVE, SHARE, Table};
use whimbrel_job::key::Word;
use whimbrel_job::writer::{number, text};
use whimbrel_job::{define_keys, form, inline, integer, number, table};
use whimbrel_methods::bayes::{Chains, Decay, Part, Precision, Radius, Rate};
use whimbrel_models::prior::Shape;
use whimbrel_models::sampler::Kernel;

/// Settings of `fedsoul`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Without minibatches, which are those of `[method]`.
    pub chains: Chains,
    /// The personal part; `None`: by model.
    pub part: Option<Part>,
    /// Shape of the prior of personal parts.
    pub prior: Shape,
    /// Initial scale of the prior.
    pub prior_scale: Option<f64>,
    /// Of the priors of `phi` and `beta`.
    pub precision: Precision,
    /// Of the server's steps.
    pub decay: Decay,
    /// Of the projections.
    pub radius: Radius,
    /// Whether the mean iterate is the result.
    pub average: Option<bool>,
    /// Whether the noise is annealed.
    pub anneal: Option<bool>,
    /// Out-of-distribution images for the report.
    pub outside: Option<PathBuf>,
}

table! {
    pub(super) SETTINGS: Settings {
        + chains: CHAIN;
        & outside: OUTSIDE, PATH, unset;
        /// the personal part of the model
        part: PERSONAL = "personal", PARTS,
            unset "\"head\" where there are layers below it, else \"all\"";
        /// prior of the personal parts, whose parameters are learned
        prior: PRIOR = "prior", PRIORS, default;
        /// initial scale of the prior
        prior_scale: PRIOR_SCALE = "prior_scale", SCALE,
            unset "1/sqrt(latent) for linear-representation, else 0.1";
        /// precisions of Gaussian priors of the shared parameters and of the prior's parameters; 0:
        /// flat
        precision: HYPERPRIOR = "hyperprior", inline!(PRECISION), default;
        /// decay of the server's steps by (1 + rounds/10)^-power, after a share of the rounds
        decay: FALL = "fall", inline!(DECAY), default;
        /// radii of the balls around zero onto which parameters are projected; by default a hundred
        /// times the initial norm, and at least a hundred
        radius: RADIUS = "radius", inline!(BALLS), default;
        /// whether the result is the mean of the iterates, weighted by their steps
        average: AVERAGE = "average", BOOLEAN, unset "true with step = \"theory\", else false";
        /// whether a known noise is annealed from 1 to its value over the first half of the rounds;
        /// a linear representation has twice its features in the first quarter
        anneal: ANNEAL = "anneal", BOOLEAN, unset "true for linear-representation, else false";
    }
}

/// Scales whose square and its inverse are finite in single precision.
const SCALE: Form<f64> = number!("a number from 1e-6 to 1e6", |x| (1e-6..=1e6).contains(&x));

table! {
    pub(super) CHAIN: Chains {
        + kernel: KERNELS;
        /// steps of a chain per round (M)
        steps: STEPS = "steps", integer!(u32, 1 to 1000000), default;
        /// first steps of a round, which its means exclude
        burn_in: BURN_IN = "burn_in", integer!(u32, 0 to 1000000).takes("an integer below `steps`"),
            default;
        /// parallel chains of a client; several give R-hat
        count: CHAINS = "chains", integer!(u32, 1 to 100), default;
        /// step of a chain, as a number or in units of 1/L, with L the smoothness of the client's
        /// posterior; a number is for the final noise, and grows with the annealed one
        gamma: GAMMA = "gamma", RATES, default;
        /// samples that each chain keeps for predictions at the end of training
        kept: SAMPLES = "samples", integer!(u32, 2 to 100000), default;
        /// steps between kept samples
        thin: THIN = "thin", COUNT_U32,
            unset "the relaxation time of a head's chain, at most 100; `steps` with personal = \"all\"";
        ..{ batch: None }
    }
}

/// The kernel with its setting, which is a separate key; `None`: means in closed form.
const KERNELS: Table<Option<Kernel>> = Table {
    section: MOVES.section,
    read: |reader| {
        let Moves { kernel, friction, leapfrog } = (MOVES.read)(reader)?;
        if !matches!(kernel, Some(Kernel::Underdamped { .. })) {
            reader.refuse_if_given(&FRICTION, "applies to kernel = \"underdamped\" only");
        }
        if !matches!(kernel, Some(Kernel::Hmc { .. })) {
            reader.refuse_if_given(&LEAPFROG, "applies to kernel = \"hmc\" only");
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
        /// Markov kernel of the chains
        kernel: KERNEL = "kernel", KERNEL_FORM, default(Chains::default().kernel);
        /// friction of underdamped chains, in units of the critical friction 2/s of the prior's
        /// widest coordinate
        friction: FRICTION = "friction", POSITIVE, default(Kernel::FRICTION);
        /// largest number of leapfrog steps of hmc
        leapfrog: LEAPFROG = "leapfrog", integer!(u32, 1 to 1000), default(Kernel::LEAPFROG);
    }
}

/// The word for means in closed form.
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
    Word {
        name: "ula",
        doc: "unadjusted Langevin, as in FedSOUL; with `batch` stochastic gradients",
    },
    Word { name: "preconditioned-ula", doc: "the same with a diagonal preconditioner" },
    Word { name: "underdamped", doc: "underdamped Langevin, with momentum and friction" },
    Word { name: "mala", doc: "Metropolis-adjusted Langevin" },
    Word { name: "hmc", doc: "Hamiltonian Monte Carlo" },
    Word {
        name: EXACT,
        doc: "posterior means in closed form, for a linear head with a Gaussian prior",
    },
]);

form! {
    RATES: Rate, "a positive number, \"auto\" or { share = 0.5 }" {
        /// 1/L, or 1/(5L) with kernel = "preconditioned-ula"
        "auto" => Rate::Auto,
    }
    number POSITIVE => Rate::Fixed;
    table inline!(STABLE) => Rate::Share;
}

table! {
    STABLE: f64 = "gamma", "step of a chain" {
        /// in units of 1/L
        STABLE_SHARE = "share", number!("a positive number below 2", |x| x > 0.0 && x < 2.0), required;
    }
}

form! {
    pub(super) PARTS: Part {
        /// the last layer; the layers below are shared
        "head" => Part::Head,
        /// the whole model; clients share only its prior
        "all" => Part::All,
    }
}

form! {
    PRIORS: Shape, "\"diagonal\", \"full\" or { mixture = 3 }" {
        /// a Gaussian with independent coordinates
        "diagonal" => Shape::Diagonal,
        /// a Gaussian with any covariance
        "full" => Shape::Full,
    }
    table inline!(MIXED);
}

table! {
    MIXED: Shape::Mixture = "prior", "a mixture of Gaussians" {
        /// number of Gaussians, each with independent coordinates
        components: MIXTURE = "mixture", integer!(usize, 1 to 1000), required;
    }
}

table! {
    PRECISION: Precision = "hyperprior", "precisions of Gaussian priors" {
        /// of the shared parameters
        phi: PHI = "phi", NOT_NEGATIVE, default;
        /// of the prior's parameters
        beta: BETA = "beta", NOT_NEGATIVE, default;
    }
}

table! {
    DECAY: Decay = "fall", "decay of the server's steps" {
        /// exponent of the decay; 0: constant
        exponent: POWER = "power", SHARE, default;
        /// share of the rounds before the decay
        from: FROM = "from", SHARE, default;
    }
}

table! {
    BALLS: Radius = "radius", "radii of projections" {
        /// of the shared parameters
        phi: RADIUS_PHI = "phi", POSITIVE, unset "a hundred times the initial norm";
        /// of the prior's parameters
        beta: RADIUS_BETA = "beta", POSITIVE, unset "a hundred times the initial norm";
    }
}

/// `noise`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AskedNoise {
    /// That of generated data, else learned.
    #[default]
    Auto,
    Known(f64),
    /// A parameter of the model.
    Learned,
}

define_keys! {
    /// standard deviation of numeric targets
    pub(super) NOISE = "noise", NOISES, default(AskedNoise::default());
}

form! {
    pub(super) NOISES: AskedNoise, "a positive number, \"auto\" or \"learned\"" {
        /// that of generated data, else "learned"
        "auto" => AskedNoise::Auto,
        /// a parameter of the model
        "learned" => AskedNoise::Learned,
    }
    number POSITIVE => AskedNoise::Known;
}
