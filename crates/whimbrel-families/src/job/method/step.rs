//! `step` in `[method]`.

use whimbrel_job::form::{POSITIVE, SHARE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::{form, inline, table};

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

/// `step`.
pub static STEP: JobKey = STEPS.default("step", || STEPS.write(&Step::Auto), "the step size");

form! {
    pub(crate) STEPS: Step,
        "a positive number, \"auto\", \"theory\", \"1/L\", \"1/(2L)\", \"1/(L sqrt(k))\", \
         { over_L }, { initial, power, delay } or { phi, beta }"
    {
        Step::Auto => "auto": "the method's documented default: for the EM methods a bound that needs no \
         constants, for the gradient family 1/L",
        Step::Theory => "theory": "the paper's bound, from constants estimated on the data and printed",
        Step::OverL(1.0) => "1/L": "one over L, the mean of the clients' smoothness constants (the \
         gradient family, as the two below)",
        Step::OverL(0.5) => "1/(2L)": "the same as { over_L = 0.5 }",
        Step::OverLRoot => "1/(L sqrt(k))": "that, falling with the round k, from 1",
    }
    number POSITIVE => Step::Constant;
    table inline!(STEP_TABLE);
}

table! {
    DECREASING: Step::Decreasing {
        initial: INITIAL = "initial", POSITIVE, default(1.0), "the step of the first round";
        power: POWER = "power", SHARE, default(0.6), "how fast it falls";
        delay: DELAY = "delay", POSITIVE, default(10.0), "the rounds after which it has visibly fallen";
    }
}

table! {
    PARTS: Step::Parts {
        phi: PHI = "phi", POSITIVE, unset "fedsoul's rule",
            "fedsoul: the step of the shared parameters, for the sum over clients";
        beta: BETA = "beta", POSITIVE, unset "fedsoul's rule",
            "fedsoul: the step of the prior's parameters, for the sum over clients";
    }
}

static OVER: JobKey = POSITIVE.unset(
    "over_L",
    "the other three decide",
    "a constant step: this over L (the gradient family)",
);

/// A step that is given by a table.
const STEP_TABLE: Table<Step> = Table {
    section: Section {
        name: "step",
        doc: "a step that decreases, `initial (1 + k/delay)^-power` in round `k`, from 0; one over L; or \
              one for each part of the parameters",
        keys: &[&INITIAL, &POWER, &DELAY, &OVER, &PHI, &BETA],
        example: "",
    },
    read: |reader| {
        let falling = [&INITIAL, &POWER, &DELAY];
        let parts = [&PHI, &BETA];
        falling.iter().try_for_each(|key| reader.refuse_both(key, &OVER))?;
        for part in parts {
            reader.refuse_both(part, &OVER)?;
            falling.iter().try_for_each(|key| reader.refuse_both(key, part))?;
        }
        if parts.iter().any(|key| reader.has(key)) {
            return PARTS.read(reader);
        }
        match reader.optional_as(&OVER, &POSITIVE)? {
            Some(factor) => Ok(Step::OverL(factor)),
            None => DECREASING.read(reader),
        }
    },
    write: |step, out| {
        if let Step::OverL(factor) = step {
            out.put(&OVER, POSITIVE.write(factor));
        }
        DECREASING.write(step, out);
        PARTS.write(step, out);
    },
};
