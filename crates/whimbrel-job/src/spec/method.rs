//! `[method]`: how the model is fitted.

use crate::key::{Key, Section, Word, choices};
use crate::reader::{Read, Reader, Shape, Value};
use crate::resolve::{Writer, inline, number, text};
use crate::spec::participation::{self, Participation};

/// `[method]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// The algorithm.
    pub kind: MethodKind,
    /// When it ends.
    pub length: Length,
    /// The rows behind one upload.
    pub batch: Batch,
    /// The step size.
    pub step: Step,
    /// Who takes part in a round.
    pub participation: Participation,
    /// How much each client counts.
    pub weights: Weights,
    /// What travels down and up.
    pub form: Form,
    /// How often metrics are computed, in rounds; `None`: about 100 times a run.
    pub evaluate_every: Option<u32>,
    /// What ends a run early.
    pub stop: Stop,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// After so many rounds.
    Rounds(u32),
    /// After so many passes over the data.
    Epochs(f64),
}

/// The rows behind one upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// All rows of the client.
    Full,
    /// Minibatches drawn at random.
    Mini {
        /// Rows of one minibatch.
        rows: u32,
        /// Whether a minibatch may draw a row twice.
        replacement: bool,
        /// Minibatches averaged into one upload.
        local_steps: u32,
    },
}

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
}

/// What ends a run early.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Stop {
    /// End once `||h||^2` is at or below this.
    pub field_norm2: Option<f64>,
    /// End once the objective stands still.
    pub patience: Option<Patience>,
}

/// When an objective stands still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// After so many evaluations without progress.
    pub evaluations: u32,
    /// A smaller relative decrease is no progress.
    pub tolerance: f64,
}

choices! {
    /// The word in `[method]`'s `kind`.
    pub enum MethodKind {
        Em = "em": "pooled EM: one client holds everything",
        Dem = "dem": "distributed EM without memories, the naive method",
        Fedem = "fedem": "FedEM: compressed differences to memories, partial participation",
    }
}

choices! {
    /// How much each client counts.
    pub enum Weights {
        Samples = "samples": "by its rows: the fit is that of the pooled rows",
        Equal = "equal": "all the same",
    }
}

choices! {
    /// What travels in a round.
    pub enum Form {
        Pair = "pair": "the statistic and the parameters go down, the compressed field comes \
         up, as in the paper",
    }
}

const FEDERATED: &[&str] = &["dem", "fedem"];
const ALONE: &str = "one client holds everything";

pub(crate) static KIND: Key = Key::required("kind", "", "the algorithm").words(MethodKind::WORDS);
pub(crate) static ROUNDS: Key = Key::optional(
    "rounds",
    "an integer from 1 to 4294967295",
    "`epochs` decides; one of the two is required",
    "how many rounds the run takes",
);
static EPOCHS: Key = Key::optional(
    "epochs",
    "a positive number",
    "`rounds` decides; one of the two is required",
    "how many passes over all rows the run takes",
);
pub(crate) static BATCH: Key = Key::default(
    "batch",
    "an integer of at least 1 or \"full\"",
    "\"full\"",
    "how many rows a client uses for one local step",
)
.words(&[Word { name: "full", doc: "all rows of the client" }]);
static REPLACEMENT: Key = Key::default(
    "replacement",
    "true or false",
    "true",
    "whether a minibatch may draw a row twice",
);
static LOCAL_STEPS: Key = Key::default(
    "local_steps",
    "an integer of at least 1",
    "1",
    "how many minibatches are averaged into one upload",
);
pub(crate) static STEP: Key = Key::default(
    "step",
    "a positive number, \"auto\", \"theory\" or { initial, power, delay }",
    "\"auto\"",
    "the step size",
)
.words(&[
    Word { name: "auto", doc: "the method's documented default" },
    Word {
        name: "theory",
        doc: "the paper's bound, from constants estimated on the data and printed",
    },
])
.tables(&[&STEP_SECTION]);
static WEIGHTS: Key = Key::default("weights", "", "\"samples\"", "how much each client counts")
    .words(Weights::WORDS)
    .only(FEDERATED, ALONE);
static FORM: Key = Key::default("form", "", "\"pair\"", "what travels in a round")
    .words(Form::WORDS)
    .only(FEDERATED, ALONE);
static EVALUATE: Key = Key::default(
    "evaluate",
    "a table { every }",
    "{ every = \"auto\" }",
    "when metrics are computed",
)
.tables(&[&EVALUATE_SECTION]);
static STOP: Key = Key::default(
    "stop",
    "a table { field_norm2, patience, tolerance }",
    "{}",
    "what ends the run early; by default nothing does",
)
.tables(&[&STOP_SECTION]);

/// `[method]`.
pub(crate) static SECTION: Section = Section {
    name: "method",
    doc: "How the model is fitted.",
    keys: &[
        &KIND,
        &ROUNDS,
        &EPOCHS,
        &BATCH,
        &REPLACEMENT,
        &LOCAL_STEPS,
        &STEP,
        &participation::PARTICIPATION,
        &WEIGHTS,
        &FORM,
        &EVALUATE,
        &STOP,
    ],
    example: "[method]\nkind = \"fedem\"\nrounds = 500\nbatch = 20\nlocal_steps = 4\n\
              step = { initial = 0.5, power = 0.6, delay = 100 }\nparticipation = 0.75\n\
              evaluate = { every = 10 }\nstop = { field_norm2 = 1e-12, patience = 20 }\n",
};

static INITIAL: Key =
    Key::default("initial", "a positive number", "1.0", "the step of the first round");
static POWER: Key = Key::default("power", "a number from 0 to 1", "0.6", "how fast it falls");
static DELAY: Key = Key::default(
    "delay",
    "a positive number",
    "10.0",
    "the rounds after which it has visibly fallen",
);
static STEP_SECTION: Section = Section {
    name: "step",
    doc: "a step that decreases: `initial (1 + k/delay)^-power` in round `k`, from 0",
    keys: &[&INITIAL, &POWER, &DELAY],
    example: "",
};

static EVERY: Key = Key::default(
    "every",
    "an integer of at least 1 or \"auto\"",
    "\"auto\"",
    "rounds from one evaluation to the next",
)
.words(&[Word { name: "auto", doc: "so that a run has about 100 evaluations" }]);
static EVALUATE_SECTION: Section =
    Section { name: "evaluate", doc: "when metrics are computed", keys: &[&EVERY], example: "" };

static FIELD_NORM2: Key = Key::optional(
    "field_norm2",
    "a positive number",
    "never",
    "end once the squared norm of the field is at or below this",
);
static PATIENCE: Key = Key::optional(
    "patience",
    "an integer of at least 1",
    "never",
    "end after so many evaluations in which the objective made no progress",
);
static TOLERANCE: Key = Key::default(
    "tolerance",
    "a number from 0 to below 1",
    "1e-9",
    "a smaller relative decrease of the objective is no progress",
);
static STOP_SECTION: Section = Section {
    name: "stop",
    doc: "what ends a run early",
    keys: &[&FIELD_NORM2, &PATIENCE, &TOLERANCE],
    example: "",
};

impl Method {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let kind: Read<MethodKind> = reader.read(&KIND, |v| v.choice());
        if let Ok(kind) = kind {
            reader.check_meaning(kind.name());
        }
        let length = read_length(reader);
        let batch = read_batch(reader);
        let step = reader.read(&STEP, |v| read_step(v, kind.ok()));
        let participation = reader.read(&participation::PARTICIPATION, Participation::read);
        let weights = reader.read(&WEIGHTS, |v| v.choice());
        let form = reader.read(&FORM, |v| v.choice());
        let evaluate_every = reader.read(&EVALUATE, |v| {
            v.table(&EVALUATE_SECTION)?.read(&EVERY, |v| match v.shape() {
                Shape::Text => match v.text()?.as_str() {
                    "auto" => Ok(None),
                    other => Err(v.unknown_word(other)),
                },
                _ => v.count_u32().map(Some),
            })
        });
        let stop = reader.read(&STOP, |v| read_stop(&v.table(&STOP_SECTION)?));
        Ok(Self {
            kind: kind?,
            length: length?,
            batch: batch?,
            step: step?,
            participation: participation?,
            weights: weights?,
            form: form?,
            evaluate_every: evaluate_every?,
            stop: stop?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        out.put(&KIND, text(self.kind.name()));
        match self.length {
            Length::Rounds(rounds) => out.put(&ROUNDS, rounds.to_string()),
            Length::Epochs(epochs) => out.put(&EPOCHS, number(epochs)),
        }
        match self.batch {
            Batch::Full => out.put(&BATCH, text("full")),
            Batch::Mini { rows, replacement, local_steps } => {
                out.put(&BATCH, rows.to_string());
                out.put(&REPLACEMENT, replacement.to_string());
                out.put(&LOCAL_STEPS, local_steps.to_string());
            }
        }
        out.put(&STEP, self.step.write());
        if self.kind != MethodKind::Em {
            out.put(&participation::PARTICIPATION, self.participation.write());
            out.put(&WEIGHTS, text(self.weights.name()));
            out.put(&FORM, text(self.form.name()));
        }
        let every = self.evaluate_every.map_or_else(|| text("auto"), |every| every.to_string());
        out.put(&EVALUATE, inline([(EVERY.name, every)]));
        let mut stop = Vec::new();
        stop.extend(self.stop.field_norm2.map(|x| (FIELD_NORM2.name, number(x))));
        if let Some(Patience { evaluations, tolerance }) = self.stop.patience {
            stop.push((PATIENCE.name, evaluations.to_string()));
            stop.push((TOLERANCE.name, number(tolerance)));
        }
        out.put(&STOP, inline(stop));
    }
}

impl Step {
    fn write(&self) -> String {
        match *self {
            Self::Auto => text("auto"),
            Self::Theory => text("theory"),
            Self::Constant(gamma) => number(gamma),
            Self::Decreasing { initial, power, delay } => inline([
                (INITIAL.name, number(initial)),
                (POWER.name, number(power)),
                (DELAY.name, number(delay)),
            ]),
        }
    }
}

fn read_length(reader: &Reader<'_>) -> Read<Length> {
    reader.refuse_both(&ROUNDS, &EPOCHS)?;
    if let Some(rounds) = reader.optional(&ROUNDS, |v| v.count_u32())? {
        return Ok(Length::Rounds(rounds));
    }
    match reader.optional(&EPOCHS, |v| v.number(|x| x > 0.0))? {
        Some(epochs) => Ok(Length::Epochs(epochs)),
        None => Err(reader.lacking(
            &ROUNDS,
            "nothing in [method] says when the run ends",
            "give `rounds` or `epochs`",
        )),
    }
}

fn read_batch(reader: &Reader<'_>) -> Read<Batch> {
    let rows = reader.read(&BATCH, |v| match v.shape() {
        Shape::Text if v.text()? == "full" => Ok(None),
        _ => v.count_u32().map(Some),
    });
    if matches!(rows, Ok(None)) {
        let why = "has no meaning for full batches, which are all the same";
        reader.refuse_if_given(&REPLACEMENT, why);
        reader.refuse_if_given(&LOCAL_STEPS, why);
        return Ok(Batch::Full);
    }
    let replacement = reader.read(&REPLACEMENT, |v| v.boolean());
    let local_steps = reader.read(&LOCAL_STEPS, |v| v.count_u32());
    match rows? {
        None => Ok(Batch::Full),
        Some(rows) => {
            Ok(Batch::Mini { rows, replacement: replacement?, local_steps: local_steps? })
        }
    }
}

fn read_step(value: Value<'_>, kind: Option<MethodKind>) -> Read<Step> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(Step::Auto),
            "theory" if kind == Some(MethodKind::Dem) => Err(value.fail(
                "no theorem bounds the step of dem: with compression or partial participation it \
                 need not converge",
                "give a number, or use kind = \"fedem\"",
            )),
            "theory" => Ok(Step::Theory),
            other => Err(value.unknown_word(other)),
        },
        Shape::Table => {
            let reader = value.table(&STEP_SECTION)?;
            let initial = reader.read(&INITIAL, |v| v.number(|x| x > 0.0));
            let power = reader.read(&POWER, |v| v.number(|x| (0.0..=1.0).contains(&x)));
            let delay = reader.read(&DELAY, |v| v.number(|x| x > 0.0));
            Ok(Step::Decreasing { initial: initial?, power: power?, delay: delay? })
        }
        _ => value.number(|x| x > 0.0).map(Step::Constant),
    }
}

fn read_stop(reader: &Reader<'_>) -> Read<Stop> {
    let field_norm2 = reader.optional(&FIELD_NORM2, |v| v.number(|x| x > 0.0));
    let evaluations = reader.optional(&PATIENCE, |v| v.count_u32());
    let tolerance = reader.read(&TOLERANCE, |v| v.number(|x| (0.0..1.0).contains(&x)));
    if !reader.has(&PATIENCE) {
        reader.refuse_if_given(&TOLERANCE, "has no meaning without `patience`");
    }
    let tolerance = tolerance?;
    let patience = evaluations?.map(|evaluations| Patience { evaluations, tolerance });
    Ok(Stop { field_norm2: field_norm2?, patience })
}
