//! Laws of random jobs, which shrink to few lines, and of damaged ones.

use crate::parse;
use proptest::collection::vec;
use proptest::prelude::*;
use whimbrel_families::registry::registry;
use whimbrel_families::{Errors, Job, examples, template};
use whimbrel_job::key::{Fallback, JobKey};

/// Alternatives for some lines of a job, the simplest first.
type Slot = &'static [&'static str];

/// Jobs as sequences of slots whose alternatives can be combined freely.
const JOBS: &[&[&[Slot]]] = &[
    &[TOP, DRAWN, GMM, FEDEM, PARTICIPATION, UPLINK_MEMORY, DOWNLINK, FAULTS, FEDERATION],
    &[TOP, CSV, CLIENTS, GMM, FEDEM, PARTICIPATION, UPLINK_MEMORY, FAULTS],
    &[TOP, NPY, CLIENTS, GMM, DEM, PARTICIPATION, UPLINK_PLAIN, DOWNLINK, FAULTS],
    &[TOP, CSV, GMM, EM, CHECKPOINTS],
    &[CELLS, CELL_CLIENTS, LOW_RANK, FEDMISS],
    &[TOP, REGRESSION, SGD, DESCENT],
    &[TOP, REGRESSION, DIANA, DESCENT, UP_CODEC],
    &[TOP, REGRESSION, ARTEMIS, DESCENT, UP_CODEC, DOWN_CODEC],
    &[TOP, REGRESSION, MCM, DESCENT, UP_CODEC, DOWN_CODEC, MEMORIES],
    &[TOP, REGRESSION, DORE, DESCENT, UP_CODEC, DOWN_CODEC, FEEDBACK],
    &[TOP, LEARNERS, FEDMIX, TRAINING],
    &[TOP, LEARNERS, PERSONAL, TRAINING, SAMPLING],
    &[TOP, POSTERIORS],
];

const TOP: &[Slot] = &[
    &["", "name = \"a.b-c_1\""],
    &["", "seed = 0", "seed = 18446744073709551615", "seed = 0x1F", "seed = 3\nseeds = 5"],
];
const DRAWN: &[Slot] = &[
    &["[data]\nsource = \"mixture\""],
    &["", "seed = 12"],
    &["", "clients = 7\nrows = 3"],
    &["", "covariance = [[[1, 0], [0, 2]], [[3, 0.1], [0.1, 4.5]]]"],
    &[
        "",
        "heterogeneity = \"identical\"",
        "heterogeneity = \"identical\"\nweights = [0.3, 0.7]",
        "heterogeneity = \"one-component\"",
        "heterogeneity = { dirichlet = 3 }",
        "heterogeneity = { dirichlet = [0.1, 0.7] }",
    ],
];
const CSV: &[Slot] = &[
    &["[data]\nsource = \"csv\"\npath = 'a\\b.csv'"],
    &["", "seed = 12"],
    &["", "columns = [\"x\", \"z \\\"q\\\"\"]", "label = \"y\""],
    &["", "delimiter = \"\\t\"", "delimiter = \";\""],
    &["", "keep_rows = 0.5"],
];
const NPY: &[Slot] = &[&["[data]\nsource = \"npy\"\npath = \"x.npy\""], &["", "seed = 12"]];
const CLIENTS: &[Slot] = &[&["[data.split]\nby = \"iid\"\nclients = 7"]];
const GMM: &[Slot] = &[
    &["[model]\nkind = \"gmm\"\ncomponents = 3"],
    &[
        "",
        "covariance = \"full\"\nreg_covar = 1e-6",
        "covariance = \"diagonal\"\ncovariance_floor = 1e-3",
        "covariance = \"known\"\nknown_covariance = [[1.0, 0.25], [0.25, 2]]",
        "penalty = { dirichlet = 0.1, inverse_wishart = { nu = 3 } }",
    ],
    &["", "init = \"federated-kmeans\"", "init = \"examples\"", "init = \"../init.json\""],
    &["", "weight_floor = 1e-4"],
];
const FEDEM: &[Slot] = &[
    &[
        "[method]\nkind = \"fedem\"",
        "[method]\nkind = \"vr-fedem\"",
        "[method]\nkind = \"vr-fedem\"\ninner = 20",
    ],
    LENGTH,
    BATCH,
    STEP,
    EVALUATE,
    STOP,
];
const DEM: &[Slot] = &[&["[method]\nkind = \"dem\""], LENGTH, BATCH, STEP, EVALUATE, STOP];
const EM: &[Slot] = &[&["[method]\nkind = \"em\""], LENGTH, BATCH, STEP, EVALUATE, STOP];
const LENGTH: Slot = &["", "rounds = 50", "rounds = 4294967295", "epochs = 2.5"];
const BATCH: Slot =
    &["", "batch = 20", "batch = 20\nreplacement = false\nlocal_steps = 3", "batch = \"full\""];
const STEP: Slot = &[
    "",
    "step = 0.1",
    "step = 1e-300",
    "step = { initial = 0.3, power = 1, delay = 0.5 }",
    "step = {}",
];
const EVALUATE: Slot = &["", "evaluate = { every = 3 }", "evaluate = {}"];
const STOP: Slot = &[
    "",
    "stop = { field_norm2 = 1e-12 }",
    "stop = { patience = 5 }",
    "stop = { field_norm2 = 1, patience = 5, tolerance = 0 }",
];
const PARTICIPATION: &[Slot] = &[
    &[
        "",
        "participation = 0.75",
        "participation = { size = 7 }",
        "participation = { default = 0.5, clients = { \"a b\" = 0.1, c = 1 } }",
        "participation = { clients = { c = 1 } }",
    ],
    &["", "weights = \"equal\""],
    &["", "form = \"pair\""],
];
const UPLINK_MEMORY: &[Slot] = &[
    &["[uplink]"],
    CODEC,
    &[
        "",
        "rule = \"plain\"",
        "alpha = 0.3",
        "rule = \"memory\"\nalpha = 1\nstart = \"zero\"",
        "start = \"memories.json\"",
        "memory = \"off\"",
        "rule = \"feedback\"",
    ],
    OWN_CODEC,
];
const UPLINK_PLAIN: &[Slot] =
    &[&["[uplink]"], CODEC, &["", "rule = \"plain\"", "rule = \"feedback\""], OWN_CODEC];
const CODEC: Slot = &[
    "",
    "codec = \"exact-f32\"",
    "codec = \"dithering\"",
    "codec = { kind = \"dithering\", levels = 16, norm = \"inf\", bucket = 256 }",
    "codec = { kind = \"block-p\", p = 3, sizes = [1, 2, 3] }",
    "codec = { kind = \"sparse\", k = 2 }",
    "codec = { kind = \"sparse\", q = 0.1 }",
    "codec = \"natural\"",
];
const OWN_CODEC: Slot = &["", "for = [{ clients = [\"a\"], codec = \"natural\" }]"];
const DOWNLINK: &[Slot] = &[&["", "[downlink]", "[downlink]\nrule = \"exact\"\ncodec = \"exact\""]];
const CHECKPOINTS: &[Slot] = &[&["", "[simulation]\ncheckpoint_seconds = 0.5"]];
const FAULTS: &[Slot] = &[
    &["[simulation]"],
    &["", "lost = 0.25"],
    &[
        "",
        "drops = [{ round = 3, clients = [\"a\", \"b\"] }, { round = 4, clients = [] }]",
        "late = [{ client = \"b\", round = 40 }]",
    ],
];
const FEDERATION: &[Slot] = &[&[
    "",
    "[federation]\nclients = 3\nquorum = 0.25\nlisten = \"[::]:1\"\nmessage_max = 2048",
    "[federation]\nclients = [\"b \\\"q\\\"\", \"a\"]\nquorum = 1\ndeadline_s = 0.5\n\
     dashboard = false\nheartbeat_s = 0.25",
]];
const CELLS: &[Slot] = &[
    &[
        "[data]\nsource = \"csv\"\npath = \"a.csv\"",
        "[data]\nsource = \"csv\"\npath = \"a.csv\"\nrow = \"site\"\ncolumns = [\"1990\", \"1991\"]",
        "[data]\nsource = \"csv\"\npath = \"a.csv\"\nrow = \"site\"\ncolumn = \"month\"\n\
         value = \"count\"\nmissing_as_zero = true",
        "[data]\nsource = \"csv\"\npath = \"a.csv\"\nrow = [\"site\", \"species\"]\n\
         column = [\"winter\", \"period\"]\nvalue = \"n\"",
    ],
    &["", "holdout = 0.1", "holdout = 0.25"],
    &["", "row_labels = \"rows.txt\"", "row_labels = [\"a\", \"b\"]"],
    &["", "column_labels = \"columns.txt\""],
];
const CELL_CLIENTS: &[Slot] = &[&[
    "client = \"observer\"",
    "split = { by = \"rows\", clients = 10 }",
    "split = { by = \"iid\", clients = 3 }",
]];
const LOW_RANK: &[Slot] = &[
    &[
        "[model]\nkind = \"low-rank\"\nfamily = \"gaussian\"",
        "[model]\nkind = \"low-rank\"\nfamily = \"gaussian\"\nvariance = \"unit\"",
        "[model]\nkind = \"low-rank\"\nfamily = \"poisson\"",
        "[model]\nkind = \"low-rank\"\nfamily = \"bernoulli\"",
    ],
    &["", "rank = 3", "rank = \"auto\""],
    &["", "lambda = 0.1", "lambda = \"auto\""],
    &["", "effects = \"row+column\"\nlambda_effects = 0.01", "effects = \"row\""],
    &["", "personal = true"],
];
const FEDMISS: &[Slot] = &[
    &["[method]\nkind = \"fedmiss\"\nrounds = 20", "[method]\nkind = \"fedmiss\"\nepochs = 150"],
    &["", "batch = 100", "batch = \"full\""],
    &["", "step = 0.3", "step = { initial = 0.5 }"],
    &["", "copies = \"fewest\"", "copies = \"clients\""],
    &["", "participation = 0.5", "stop = { patience = 3 }"],
    &["[uplink]"],
    &["", "codec = { kind = \"dithering\", levels = 4 }", "codec = \"natural\""],
    &["", "alpha = 0.1", "start = \"zero\"", "memory = \"off\""],
];
const REGRESSION: &[Slot] = &[
    &[
        "[data]\nsource = \"toy\"\nnoise = 0.4\nclients = 9",
        "[data]\nsource = \"libsvm\"\npath = \"a.gz\"\nstandardize = true\n\
         split = { by = \"clusters\", clients = 9, embedding = \"e.npy\" }",
        "[data]\nsource = \"libsvm\"\npath = \"a.gz\"\ncolumns_count = 3\n\
         split = { by = \"dirichlet\", clients = 9, alpha = 0.5 }",
        "[data]\nsource = \"csv\"\npath = \"a.csv\"\ntarget = \"y\"\nclient = \"c\"",
    ],
    &[
        "[model]\nkind = \"linear\"",
        "[model]\nkind = \"logistic\"\nridge = 1e-3\nintercept = false",
    ],
];
const SGD: &[Slot] = &[&["[method]\nkind = \"sgd\"\nrounds = 50"]];
const DIANA: &[Slot] = &[&[
    "[method]\nkind = \"diana\"\nrounds = 50",
    "[method]\nkind = \"qsgd\"\nrounds = 50",
    "[method]\nkind = \"ecq-sgd\"\nrounds = 50",
]];
const ARTEMIS: &[Slot] = &[&[
    "[method]\nkind = \"artemis\"\nrounds = 50",
    "[method]\nkind = \"artemis-nd\"\nrounds = 50",
    "[method]\nkind = \"dist-ef-sgd\"\nrounds = 50",
    "[method]\nkind = \"ghost\"\nrounds = 50",
]];
const MCM: &[Slot] =
    &[&["[method]\nkind = \"mcm\"\nrounds = 50", "[method]\nkind = \"rand-mcm\"\nrounds = 50"]];
const DORE: &[Slot] = &[&["[method]\nkind = \"dore\"\nrounds = 50"]];
const DESCENT: &[Slot] = &[
    &["", "batch = 5", "batch = \"full\""],
    &[
        "",
        "step = \"1/L\"",
        "step = \"1/(2L)\"",
        "step = \"1/(L sqrt(k))\"",
        "step = { over_L = 0.3 }",
        "step = \"theory\"",
    ],
    &["", "momentum = 0.5", "average = \"weighted\"", "weights = \"samples\""],
    &["", "memory_max = \"12kB\"", "stop = { excess_loss = 1e-3 }"],
];
const UP_CODEC: &[Slot] = &[
    &["[uplink]"],
    &["", "codec = \"dithering\"", "codec = \"natural\""],
    &["", "for = [{ clients = [\"a\"], codec = { kind = \"sparse\", k = 2 } }]"],
];
const DOWN_CODEC: &[Slot] =
    &[&["[downlink]"], &["", "codec = \"dithering\"", "codec = { kind = \"sparse\", q = 0.3 }"]];
const MEMORIES: &[Slot] = &[&["", "alpha = 0.1", "memories = \"single\"\nreset = 7"]];
const FEEDBACK: &[Slot] = &[&["", "feedback = true", "feedback = \"dore\""]];
const LEARNERS: &[Slot] = &[
    &[
        "[data]\nsource = \"synthetic-mixture\"\nclients = 9",
        "[data]\nsource = \"cifar10\"\npath = \"cifar\"\nsplit = { by = \"shards\", clients = 9 }",
    ],
    &["", "unseen = 0.2"],
    &["", "validation = 0.1\ntest = 0.3"],
    &["[model]\nkind = \"softmax\"", "[model]\nkind = \"mlp\"\nhidden = [5, 7]"],
];
const FEDMIX: &[Slot] = &[
    &["[method]\nkind = \"fedmix\"\nrounds = 5"],
    &["", "components = 2"],
    &["", "send_above = 0.1"],
    &["", "unseen_weights = \"one-step\""],
];
const PERSONAL: &[Slot] = &[&[
    "[method]\nkind = \"fedavg\"\nrounds = 5",
    "[method]\nkind = \"fedprox\"\nrounds = 5\nmu = 0.5",
    "[method]\nkind = \"pfedme\"\nrounds = 5\nlambda = 3.0\ninner_step = 0.01",
    "[method]\nkind = \"apfl\"\nrounds = 5\nadaptive = false",
    "[method]\nkind = \"ditto\"\nrounds = 5",
    "[method]\nkind = \"fedopt\"\nrounds = 5\nserver = { kind = \"yogi\" }",
]];
const TRAINING: &[Slot] = &[
    &["", "batch = 32"],
    &["", "local_epochs = 2", "minibatches = 7"],
    &["", "step = 0.1", "decay = { at = [0.5, 0.75] }"],
    &["", "optimiser = { momentum = 0.9 }", "optimiser = { kind = \"adam\", weight_decay = 0.1 }"],
];
const SAMPLING: &[Slot] = &[&["", "sampling = \"unbiased\"", "participation = 0.5"]];
const POSTERIORS: &[Slot] = &[
    &["[data]\nsource = \"synthetic-representation\"\nclients = 9"],
    &["", "small = { share = 0.5 }"],
    &["[privacy]\nmin_group = 1\n[model]\nkind = \"linear-representation\""],
    &["", "noise = \"learned\"", "noise = 0.3"],
    &["[method]\nkind = \"fedsoul\"\nrounds = 5"],
    &["", "steps = 20\nburn_in = 3"],
    &["", "kernel = \"mala\"", "kernel = \"hmc\"\nleapfrog = 3", "kernel = \"underdamped\""],
    &["", "gamma = 0.1", "gamma = { share = 0.5 }"],
    &["", "prior = \"full\"", "prior = { mixture = 2 }"],
    &["", "fall = { power = 0.5 }", "radius = { phi = 3.0 }", "step = { phi = 0.1 }"],
];

/// Job files that parse.
fn job() -> impl Strategy<Value = String> {
    (0..JOBS.len()).prop_flat_map(|at| {
        let slots: Vec<Slot> = JOBS[at].concat();
        let choices: Vec<_> = slots.iter().map(|slot| 0..slot.len()).collect();
        choices.prop_map(move |chosen| {
            let lines = chosen.iter().zip(&slots).map(|(at, slot)| slot[*at]);
            lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_resolved_job_parses_to_an_equal_one(text in job()) {
        let job = parse(&text);
        let resolved = job.to_toml();
        // Under another file name: the resolved job has its own.
        let again = Job::parse(&resolved, "other.toml");
        let again = again.map_err(|errors| TestCaseError::fail(format!("{errors}\n{resolved}")))?;
        prop_assert_eq!(&again, &job);
        prop_assert_eq!(again.to_toml(), resolved);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line(text in job(), at in any::<prop::sample::Index>()) {
        let mut lines: Vec<&str> = text.lines().collect();
        let at = at.index(lines.len() + 1);
        lines.insert(at, "zygote = 1");
        let errors = Job::parse(&lines.join("\n"), "job.toml").unwrap_err().errors;
        prop_assert_eq!(errors.len(), 1);
        prop_assert!(errors[0].message.contains("`zygote`"), "{}", errors[0].message);
        prop_assert_eq!(errors[0].place.as_ref().map(|place| place.line), Some(at + 1));
    }

    #[test]
    fn a_default_may_be_omitted(text in job()) {
        let job = parse(&text);
        let resolved = job.to_toml();
        let is_default = |line: &str, keys: &[&JobKey]| {
            keys.iter().any(|key| match key.fallback {
                Fallback::Default(value) => line == format!("{} = {}", key.name, value()),
                Fallback::Required | Fallback::Unset(_) => false,
            })
        };
        let line_of = |header: &str| resolved.lines().position(|line| line == header).unwrap();
        let (model, method, uplink) = (line_of("[model]"), line_of("[method]"), line_of("[uplink]"));
        let kept = resolved.lines().enumerate().filter(|(at, line)| {
            let mut models = registry().models(job.model).into_iter();
            !((model..method).contains(at) && models.any(|(_, kind)| is_default(line, kind.keys))
                || (method..uplink).contains(at) && is_default(line, job.method.kind.keys))
        });
        let short: String = kept.map(|(_, line)| format!("{line}\n")).collect();
        let again = Job::parse(&short, "other.toml");
        let again = again.map_err(|errors| TestCaseError::fail(format!("{errors}\n{short}")))?;
        prop_assert_eq!(again, job);
    }

    #[test]
    fn damaged_jobs_are_refused_or_accepted(
        text in prop_oneof![job(), prop::sample::select(examples()), Just(template(None, None).unwrap())],
        damage in vec((any::<prop::sample::Index>(), 0usize..12, edit()), 1..5),
    ) {
        let mut bytes = text.into_bytes();
        for (at, length, edit) in damage {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            match edit {
                Edit::Cut => drop(bytes.drain(at..end)),
                Edit::Insert(byte) => bytes.insert(at, byte),
                Edit::Word(word) => drop(bytes.splice(at..end, word.bytes())),
                Edit::Copy(to) => {
                    let (copy, to) = (bytes[at..end].to_vec(), to.index(bytes.len() + 1));
                    bytes.splice(to..to, copy);
                }
            }
        }
        check(Job::parse(&String::from_utf8_lossy(&bytes), "job.toml"));
    }

    #[test]
    fn random_text_is_refused(bytes in vec(prop::sample::select(NOISE), 0..200)) {
        let read = Job::parse(&String::from_utf8_lossy(&bytes), "job.toml");
        prop_assert!(read.is_err());
        check(read);
    }
}

/// The bytes of TOML's syntax, and a letter of two bytes that may be torn.
const NOISE: &[u8] = b"[]{}\"'=.,#\n\t a1-_\\\xc3\xa9";

#[derive(Clone, Debug)]
enum Edit {
    Cut,
    Insert(u8),
    Word(&'static str),
    Copy(prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let words: Vec<&'static str> =
        JOBS.concat().concat().concat().iter().flat_map(|lines| lines.split_whitespace()).collect();
    prop_oneof![
        Just(Edit::Cut),
        any::<u8>().prop_map(Edit::Insert),
        prop::sample::select(words).prop_map(Edit::Word),
        any::<prop::sample::Index>().prop_map(Edit::Copy),
    ]
}

fn check(read: Result<Job, Errors>) {
    if let Err(errors) = read {
        assert!(!errors.errors.is_empty());
        assert!(errors.to_string().starts_with("error: "));
    }
}
