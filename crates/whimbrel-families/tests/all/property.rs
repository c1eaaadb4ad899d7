//! Random jobs go through the resolved form unchanged; random damage never panics.

use crate::{PLAIN, parse};
use whimbrel_core::{Key, Stream};
use whimbrel_families::{Job, examples, template};
use whimbrel_methods::sgd::preset::from_name;

#[test]
fn a_resolved_job_parses_back_to_an_equal_one() {
    for seed in 0..2_000 {
        let mut draw = Draw(Key::root(seed).stream());
        let text = draw.job();
        let job = parse(&text);
        let resolved = job.to_toml();
        // Another file name: the resolved job names itself.
        let again = Job::parse(&resolved, "other.toml")
            .unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{text}\n---\n{resolved}"));
        assert_eq!(again, job, "seed {seed}\n{text}\n---\n{resolved}");
        assert_eq!(again.to_toml(), resolved, "seed {seed}");
    }
}

#[test]
fn damaged_jobs_are_refused_or_accepted_but_never_panic() {
    let mut seeds = examples();
    seeds.extend([PLAIN.to_owned(), template(None)]);
    seeds.extend((0..20).map(|seed| Draw(Key::root(seed).stream()).job()));
    let words = seeds.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut stream = Key::root(77).stream();
    let mut refused = 0;
    for trial in 0..20_000 {
        let mut bytes = seeds[trial % seeds.len()].clone().into_bytes();
        for _ in 0..=stream.below(4) {
            damage(&mut bytes, &words, &mut stream);
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(errors) = Job::parse(&text, "job.toml") {
            assert!(!errors.errors.is_empty());
            assert!(errors.to_string().starts_with("error: "));
            refused += 1;
        }
    }
    assert!(refused > 5_000, "{refused} refused: the damage is too mild to test anything");
}

/// What TOML is made of, and a letter of two bytes that may be torn.
const NOISE: &[u8] = b"[]{}\"'=.,#\n\t a1-_\\\xc3\xa9";

#[test]
fn random_text_is_refused_without_a_panic() {
    let mut stream = Key::root(5).stream();
    for _ in 0..5_000 {
        let length = stream.below(200);
        let bytes: Vec<u8> =
            (0..length).map(|_| NOISE[stream.below(NOISE.len() as u64) as usize]).collect();
        let text = String::from_utf8_lossy(&bytes);
        let errors = Job::parse(&text, "job.toml").expect_err("noise is no job");
        assert!(errors.to_string().starts_with("error: "));
    }
}

fn damage(bytes: &mut Vec<u8>, words: &[String], stream: &mut Stream) {
    let at = stream.below(bytes.len() as u64 + 1) as usize;
    let end = (at + stream.below(12) as usize).min(bytes.len());
    match stream.below(4) {
        0 => drop(bytes.drain(at..end)),
        1 => bytes.insert(at, stream.below(256) as u8),
        2 => {
            let word = &words[stream.below(words.len() as u64) as usize];
            bytes.splice(at..end, word.bytes());
        }
        _ => {
            let copy = bytes[at..end].to_vec();
            let to = stream.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, copy);
        }
    }
}

/// Writes random jobs that must be accepted.
struct Draw(Stream);

impl Draw {
    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.0.below(items.len() as u64) as usize]
    }

    fn maybe(&mut self, lines: &[&str]) -> String {
        if self.0.below(2) == 0 { String::new() } else { format!("{}\n", self.pick(lines)) }
    }

    fn job(&mut self) -> String {
        match self.0.below(3) {
            0 => self.mixture_job(),
            1 => self.table_job(),
            _ => self.regression_job(),
        }
    }

    /// A table with gaps.
    fn table_job(&mut self) -> String {
        let mut out = String::from("[data]\nsource = \"csv\"\npath = \"a.csv\"\n");
        out += self.pick(&[
            "row = \"site\"\ncolumn = \"month\"\nvalue = \"count\"\nmissing_as_zero = true\n",
            "row = [\"site\", \"species\"]\ncolumn = [\"winter\", \"period\"]\nvalue = \"n\"\n",
            "row = \"site\"\ncolumns = [\"1990\", \"1991\"]\n",
            "",
        ]);
        out += &self.maybe(&["holdout = 0.1", "holdout = 0.25"]);
        out += &self.maybe(&["row_labels = \"rows.txt\"", "row_labels = [\"a\", \"b\"]"]);
        out += &self.maybe(&["column_labels = \"columns.txt\""]);
        out += self.pick(&[
            "client = \"observer\"\n",
            "split = { by = \"rows\", clients = 10 }\n",
            "split = { by = \"iid\", clients = 3 }\n",
        ]);
        out += "[model]\nkind = \"low-rank\"\n";
        out += self.pick(&[
            "family = \"gaussian\"\nvariance = \"unit\"\n",
            "family = \"gaussian\"\n",
            "family = \"poisson\"\n",
            "family = \"bernoulli\"\n",
        ]);
        out += &self.maybe(&["rank = 3", "rank = \"auto\""]);
        out += &self.maybe(&["lambda = 0.1", "lambda = \"auto\""]);
        out +=
            &self.maybe(&["effects = \"row+column\"\nlambda_effects = 0.01", "effects = \"row\""]);
        out += &self.maybe(&["personal = true"]);
        out += "[method]\nkind = \"fedmiss\"\n";
        out += self.pick(&["epochs = 150\n", "rounds = 20\n"]);
        out += &self.maybe(&["batch = 100", "batch = \"full\""]);
        out += &self.maybe(&["step = 0.3", "step = { initial = 0.5 }"]);
        out += &self.maybe(&["copies = \"fewest\"", "copies = \"clients\""]);
        out += &self.maybe(&["participation = 0.5", "stop = { patience = 3 }"]);
        out += "[uplink]\n";
        out +=
            &self.maybe(&["codec = { kind = \"dithering\", levels = 4 }", "codec = \"natural\""]);
        out += &self.maybe(&["alpha = 0.1", "start = \"zero\"", "memory = \"off\""]);
        out
    }

    /// A job of the gradient family.
    fn regression_job(&mut self) -> String {
        let mut out = self.maybe(&["seeds = 1", "seed = 3\nseeds = 5"]);
        let kind = self.pick(&[
            "sgd",
            "qsgd",
            "ecq-sgd",
            "diana",
            "artemis",
            "artemis-nd",
            "dore",
            "dist-ef-sgd",
            "mcm",
            "rand-mcm",
            "rand-mcm-g",
            "ghost",
        ]);
        out += self.pick(&[
            "[data]\nsource = \"toy\"\nnoise = 0.4\nclients = 9\n",
            "[data]\nsource = \"libsvm\"\npath = \"a.gz\"\nstandardize = true\n\
             split = { by = \"clusters\", clients = 9, embedding = \"e.npy\" }\n",
            "[data]\nsource = \"libsvm\"\npath = \"a.gz\"\ncolumns_count = 3\n\
             split = { by = \"dirichlet\", clients = 9, alpha = 0.5 }\n",
            "[data]\nsource = \"csv\"\npath = \"a.csv\"\ntarget = \"y\"\nclient = \"c\"\n",
        ]);
        out += self.pick(&[
            "[model]\nkind = \"linear\"\n",
            "[model]\nkind = \"logistic\"\nridge = 1e-3\nintercept = false\n",
        ]);
        out += &format!("[method]\nkind = \"{kind}\"\nrounds = 50\n");
        out += &self.maybe(&["batch = 5", "batch = \"full\""]);
        out += &self.maybe(&[
            "step = \"1/L\"",
            "step = \"1/(2L)\"",
            "step = \"1/(L sqrt(k))\"",
            "step = { over_L = 0.3 }",
            "step = \"theory\"",
        ]);
        out += &self.maybe(&["momentum = 0.5", "average = \"weighted\"", "weights = \"samples\""]);
        out += &self.maybe(&["memory_max = \"12kB\"", "stop = { excess_loss = 1e-3 }"]);
        let (up, down) = from_name(kind).unwrap().compresses();
        out += "[uplink]\n";
        if up {
            out += &self.maybe(&["codec = \"dithering\"", "codec = \"natural\""]);
            out += &self
                .maybe(&["for = [{ clients = [\"a\"], codec = { kind = \"sparse\", k = 2 } }]"]);
        }
        out += "[downlink]\n";
        if down {
            out +=
                &self.maybe(&["codec = \"dithering\"", "codec = { kind = \"sparse\", q = 0.3 }"]);
        }
        match kind {
            "rand-mcm-g" => out += "memories = 4\n",
            "mcm" | "rand-mcm" => {
                out += &self.maybe(&["alpha = 0.1", "memories = \"single\"\nreset = 7"]);
            }
            "dore" => out += &self.maybe(&["feedback = true", "feedback = \"dore\""]),
            _ => {}
        }
        out
    }

    fn mixture_job(&mut self) -> String {
        let kind = self.pick(&["em", "dem", "fedem", "vr-fedem"]);
        let federated = kind != "em";
        let mut out = self.maybe(&["name = \"a.b-c_1\""]);
        out += &self.maybe(&["seed = 0", "seed = 18446744073709551615", "seed = 0x1F"]);
        out += &self.data(federated);
        out += &self.model();
        out += &self.method(kind);
        if federated {
            out += &self.uplink(kind);
        }
        out += &self.maybe(&["[downlink]", "[downlink]\nrule = \"exact\"\ncodec = \"exact\""]);
        out += &self.simulation(federated);
        out += &self.maybe(&[
            "[federation]\nclients = 3\nquorum = 0.25\nlisten = \"[::]:1\"\nmessage_max = 2048",
            "[federation]\nclients = [\"b \\\"q\\\"\", \"a\"]\nquorum = 1\ndeadline_s = 0.5\n\
             dashboard = false\nheartbeat_s = 0.25",
        ]);
        out
    }

    fn data(&mut self, federated: bool) -> String {
        let seed = self.maybe(&["seed = 12"]);
        match self.0.below(3) {
            0 => {
                let more = self.maybe(&["columns = [\"x\", \"z \\\"q\\\"\"]", "label = \"y\""]);
                let delimiter = self.maybe(&["delimiter = \"\\t\"", "delimiter = \";\""]);
                let who = match self.0.below(if federated { 3 } else { 4 }) {
                    0 => "client = \"é\"\n",
                    1 => "[data.split]\nby = \"iid\"\nclients = 7\n",
                    2 => {
                        "[data.split]\nby = \"dirichlet\"\nclients = 7\nalpha = 1e-3\n\
                         column = \"class\"\n"
                    }
                    _ => "",
                };
                format!("[data]\nsource = \"csv\"\npath = 'a\\b.csv'\n{seed}{more}{delimiter}{who}")
            }
            1 => format!(
                "[data]\nsource = \"npy\"\npath = \"x.npy\"\n{seed}\
                 split = {{ by = \"iid\", clients = 7 }}\n"
            ),
            _ => {
                let size = self.maybe(&["clients = 7\nrows = 3"]);
                let covariance =
                    self.maybe(&["covariance = [[[1, 0], [0, 2]], [[3, 0.1], [0.1, 4.5]]]"]);
                let how = self.maybe(&[
                    "heterogeneity = \"identical\"",
                    "heterogeneity = \"identical\"\nweights = [0.3, 0.7]",
                    "heterogeneity = \"one-component\"",
                    "heterogeneity = { dirichlet = 3 }",
                    "heterogeneity = { dirichlet = [0.1, 0.7] }",
                ]);
                format!("[data]\nsource = \"mixture\"\n{seed}{size}{covariance}{how}")
            }
        }
    }

    fn model(&mut self) -> String {
        let form = self.pick(&[
            "",
            "covariance = \"full\"\nreg_covar = 1e-6\n",
            "covariance = \"diagonal\"\ncovariance_floor = 1e-3\n",
            "covariance = \"known\"\nknown_covariance = [[1.0, 0.25], [0.25, 2]]\n",
            "penalty = { dirichlet = 0.1, inverse_wishart = { nu = 3 } }\n",
        ]);
        let init = self.maybe(&[
            "init = \"federated-kmeans\"",
            "init = \"examples\"",
            "init = \"../init.json\"",
        ]);
        let floor = self.maybe(&["weight_floor = 1e-4"]);
        format!("[model]\nkind = \"gmm\"\ncomponents = 3\n{form}{init}{floor}")
    }

    fn method(&mut self, kind: &str) -> String {
        let length = self.pick(&["rounds = 4294967295", "rounds = 50", "epochs = 2.5"]);
        let batch = self.maybe(&[
            "batch = 20",
            "batch = 20\nreplacement = false\nlocal_steps = 3",
            "batch = \"full\"",
        ]);
        let step = self.maybe(&[
            "step = 0.1",
            "step = 1e-300",
            "step = { initial = 0.3, power = 1, delay = 0.5 }",
            "step = {}",
        ]);
        let evaluate = self.maybe(&["evaluate = { every = 3 }", "evaluate = {}"]);
        let stop = self.maybe(&[
            "stop = { field_norm2 = 1e-12 }",
            "stop = { patience = 5 }",
            "stop = { field_norm2 = 1, patience = 5, tolerance = 0 }",
        ]);
        let mut out =
            format!("[method]\nkind = \"{kind}\"\n{length}\n{batch}{step}{evaluate}{stop}");
        if kind == "vr-fedem" {
            out += &self.maybe(&["inner = 20", "inner = \"auto\""]);
        }
        if kind != "em" {
            out += &self.maybe(&[
                "participation = 0.75",
                "participation = { size = 7 }",
                "participation = { default = 0.5, clients = { \"a b\" = 0.1, c = 1 } }",
                "participation = { clients = { c = 1 } }",
            ]);
            out += &self.maybe(&["weights = \"equal\"", "form = \"pair\""]);
        }
        out
    }

    fn uplink(&mut self, kind: &str) -> String {
        let codec = self.maybe(&[
            "codec = \"exact-f32\"",
            "codec = \"dithering\"",
            "codec = { kind = \"dithering\", levels = 16, norm = \"inf\", bucket = 256 }",
            "codec = { kind = \"block-p\", p = 3, sizes = [1, 2, 3] }",
            "codec = { kind = \"sparse\", k = 2 }",
            "codec = { kind = \"sparse\", q = 0.1 }",
            "codec = \"natural\"",
            "codec = \"sign\"\nrule = \"feedback\"",
            "codec = { kind = \"top-k\", k = 2 }\nrule = \"feedback\"",
        ]);
        let rule = match (codec.contains("rule"), kind) {
            (true, _) => String::new(),
            (false, "fedem" | "vr-fedem") => self.maybe(&[
                "rule = \"plain\"",
                "alpha = 0.3",
                "rule = \"memory\"\nalpha = 1\nstart = \"zero\"",
                "start = \"memories.json\"",
                "rule = \"feedback\"",
            ]),
            (false, _) => self.maybe(&["rule = \"plain\"", "rule = \"feedback\""]),
        };
        let own = self.maybe(&["for = [{ clients = [\"a\"], codec = \"natural\" }]"]);
        format!("[uplink]\n{codec}{rule}{own}")
    }

    fn simulation(&mut self, federated: bool) -> String {
        let save = self.maybe(&["checkpoint_seconds = 0.5"]);
        if !federated {
            return format!("[simulation]\n{save}");
        }
        let lost = self.maybe(&["lost = 0.25"]);
        let script = self.maybe(&[
            "drops = [{ round = 3, clients = [\"a\", \"b\"] }, { round = 4, clients = [] }]",
            "late = [{ client = \"b\", round = 40 }]",
        ]);
        format!("[simulation]\n{save}{lost}{script}")
    }
}
