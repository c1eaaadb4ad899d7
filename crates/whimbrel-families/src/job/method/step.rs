//! `step` in `[method]`.

use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::reader::{Read, Shape, Value};
use whimbrel_job::writer::{inline, number, text};

/// The step size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The method's documented default.
    Auto,
    /// The bound of the paper.
    Theory,
    /// The same in every round.
    Constant(f64),
    /// `initial (1 + k/delay)^-power` in round `k`.
    Decreasing {
        /// The first step.
        initial: f64,
        /// How fast it falls.
        power: f64,
        /// When it starts to fall, in rounds.
        delay: f64,
    },
    /// This over `L`, the mean of the clients' smoothness constants.
    OverL(f64),
    /// `1/(L sqrt(k))` in round `k`, from 1.
    OverLRoot,
    /// One for each part of the parameters; none for the documented default.
    Parts {
        /// What clients share.
        phi: Option<f64>,
        /// The prior of what is their own.
        beta: Option<f64>,
    },
}

const OVER_L: &str = "1/L";
const HALF_OVER_L: &str = "1/(2L)";
const OVER_L_ROOT: &str = "1/(L sqrt(k))";

/// `step`.
pub static STEP: Key = Key::default(
    "step",
    "a positive number, \"auto\", \"theory\", \"1/L\", \"1/(2L)\", \"1/(L sqrt(k))\", \
     { over_L }, { initial, power, delay } or { phi, beta }",
    "\"auto\"",
    "the step size",
)
.words(&[
    Word {
        name: "auto",
        doc: "the method's documented default: for the EM methods a bound that needs no constants, \
              for the gradient family 1/L",
    },
    Word {
        name: "theory",
        doc: "the paper's bound, from constants estimated on the data and printed",
    },
    Word {
        name: OVER_L,
        doc: "one over L, the mean of the clients' smoothness constants (the gradient family, as \
              the two below)",
    },
    Word { name: HALF_OVER_L, doc: "the same as { over_L = 0.5 }" },
    Word { name: OVER_L_ROOT, doc: "that, falling with the round k, from 1" },
])
.tables(&[&SECTION]);

static INITIAL: Key =
    Key::default("initial", "a positive number", "1.0", "the step of the first round");
static POWER: Key = Key::default("power", "a number from 0 to 1", "0.6", "how fast it falls");
static DELAY: Key = Key::default(
    "delay",
    "a positive number",
    "10.0",
    "the rounds after which it has visibly fallen",
);
static OVER: Key = Key::optional(
    "over_L",
    "a positive number",
    "the other three decide",
    "a constant step: this over L (the gradient family)",
);
static PHI: Key = Key::optional(
    "phi",
    "a positive number",
    "fedsoul's rule",
    "fedsoul: the step of the shared parameters, for the sum over clients",
);
static BETA: Key = Key::optional(
    "beta",
    "a positive number",
    "fedsoul's rule",
    "fedsoul: the step of the prior's parameters, for the sum over clients",
);
static SECTION: Section = Section {
    name: "step",
    doc: "a step that decreases, `initial (1 + k/delay)^-power` in round `k`, from 0; one over L; or one \
          for each part of the parameters",
    keys: &[&INITIAL, &POWER, &DELAY, &OVER, &PHI, &BETA],
    example: "",
};

impl Step {
    pub(super) fn write(&self) -> String {
        match *self {
            Self::Auto => text("auto"),
            Self::Theory => text("theory"),
            Self::Constant(gamma) => number(gamma),
            Self::OverL(1.0) => text(OVER_L),
            Self::OverL(factor) => inline([(OVER.name, number(factor))]),
            Self::OverLRoot => text(OVER_L_ROOT),
            Self::Parts { phi, beta } => {
                let parts = [(PHI.name, phi), (BETA.name, beta)];
                inline(parts.into_iter().filter_map(|(name, x)| x.map(|x| (name, number(x)))))
            }
            Self::Decreasing { initial, power, delay } => inline([
                (INITIAL.name, number(initial)),
                (POWER.name, number(power)),
                (DELAY.name, number(delay)),
            ]),
        }
    }
}

pub(super) fn read_step(value: Value<'_>) -> Read<Step> {
    Ok(match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Step::Auto,
            "theory" => Step::Theory,
            OVER_L => Step::OverL(1.0),
            HALF_OVER_L => Step::OverL(0.5),
            OVER_L_ROOT => Step::OverLRoot,
            other => return Err(value.unknown_word(other)),
        },
        Shape::Table => {
            let reader = value.table(&SECTION)?;
            [&INITIAL, &POWER, &DELAY].iter().try_for_each(|key| reader.refuse_both(key, &OVER))?;
            let initial = reader.read(&INITIAL, |v| v.number(|x| x > 0.0));
            let power = reader.read(&POWER, |v| v.number(|x| (0.0..=1.0).contains(&x)));
            let delay = reader.read(&DELAY, |v| v.number(|x| x > 0.0));
            let phi = reader.optional(&PHI, |v| v.number(|x| x > 0.0))?;
            let beta = reader.optional(&BETA, |v| v.number(|x| x > 0.0))?;
            if phi.is_some() || beta.is_some() {
                let others = [&INITIAL, &POWER, &DELAY, &OVER];
                let given = if phi.is_some() { &PHI } else { &BETA };
                others.iter().try_for_each(|key| reader.refuse_both(key, given))?;
                return Ok(Step::Parts { phi, beta });
            }
            match reader.optional(&OVER, |v| v.number(|x| x > 0.0))? {
                Some(factor) => Step::OverL(factor),
                None => Step::Decreasing { initial: initial?, power: power?, delay: delay? },
            }
        }
        _ => Step::Constant(value.number(|x| x > 0.0)?),
    })
}
