//! `step` in `[method]`.

use whimbrel_job::form::{POSITIVE, SHARE, Table};
use whimbrel_job::key::Section;
use whimbrel_job::{define_keys, form, inline, table};
use whimbrel_methods::step::Schedule;

/// The step size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Step {
    /// The method's default.
    #[default]
    Auto,
    /// The paper's bound.
    Theory,
    /// Constant.
    Constant(f64),
    /// `initial (1 + k/delay)^-power` in round `k`.
    Decreasing {
        /// The first step.
        initial: f64,
        power: f64,
        /// In rounds.
        delay: f64,
    },
    /// A multiple of `1/L`, with `L` the mean of the clients' smoothness constants.
    OverL(f64),
    /// `1/(L sqrt(k))` in round `k`, from 1.
    OverLRoot,
    /// Steps of `fedsoul`; `None`: its default.
    Parts {
        /// Of the shared parameters.
        phi: Option<f64>,
        /// Of the prior of personal parameters.
        beta: Option<f64>,
    },
}

define_keys! {
    /// the step size
    pub STEP = "step", STEPS, default(Step::default());
}

form! {
    pub(crate) STEPS: Step,
        "a positive number, \"auto\", \"theory\", \"1/L\", \"1/(2L)\", \"1/(L sqrt(k))\", \
         { over_L }, { initial, power, delay } or { phi, beta }"
    {
        /// the method's default: for the EM methods a bound that needs no constants, for
        /// regressions 1/L
        "auto" => Step::Auto,
        /// the paper's bound, from constants that are estimated on the data and printed
        "theory" => Step::Theory,
        /// with L the mean of the clients' smoothness constants (regressions, as the next two)
        "1/L" => Step::OverL(1.0),
        /// the same as { over_L = 0.5 }
        "1/(2L)" => Step::OverL(0.5),
        /// in round k, from 1
        "1/(L sqrt(k))" => Step::OverLRoot,
    }
    number POSITIVE => Step::Constant;
    table inline!(STEP_TABLE);
}

table! {
    DECREASING: Step::Decreasing {
        /// the step of the first round
        initial: INITIAL = "initial", POSITIVE, default(Schedule::INITIAL);
        /// exponent of the decay
        power: POWER = "power", SHARE, default(Schedule::POWER);
        /// time scale of the decay in rounds
        delay: DELAY = "delay", POSITIVE, default(Schedule::DELAY);
    }
}

table! {
    PARTS: Step::Parts {
        /// fedsoul: step of the shared parameters, for the sum over clients
        phi: PHI = "phi", POSITIVE, unset "fedsoul's rule";
        /// fedsoul: step of the prior's parameters, for the sum over clients
        beta: BETA = "beta", POSITIVE, unset "fedsoul's rule";
    }
}

define_keys! {
    /// a constant step: this multiple of 1/L (regressions)
    OVER = "over_L", POSITIVE, unset "a decreasing step";
}

const STEP_TABLE: Table<Step> = Table {
    section: Section {
        name: "step",
        doc: "a decreasing step `initial (1 + k/delay)^-power` in round `k`, from 0; a multiple of 1/L; or \
              the two steps of `fedsoul`",
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
