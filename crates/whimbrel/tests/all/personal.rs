//! Personal models as a user meets them: a run, its clients' models, a client that was not there.

use crate::support::{Sandbox, number};

fn job(method: &str) -> String {
    format!(
        "name = \"mixture\"\nseed = 1\n[data]\nsource = \"synthetic-mixture\"\nclients = 60\n\
         components = 2\ndimension = 40\nalpha = 0\nunseen = 0.2\n[model]\nkind = \"logistic\"\n\
         [method]\nrounds = 60\nbatch = 64\nstep = 3.0\ndecay = {{ factor = 0.1, at = [0.5] }}\n\
         evaluate = {{ every = 20 }}\n{method}\n"
    )
}

/// Figures of a run's end are those of every seed, and `seed = "run"` draws the data of each seed anew.
#[test]
fn results_over_seeds_have_a_value_of_each_and_data_may_differ() {
    let values = |data: &str| {
        let job = job("kind = \"fedmix\"\ncomponents = 2").replace("rounds = 60", "rounds = 4");
        let job = job.replace("seed = 1", "seed = 1\nseeds = 2");
        let job = job.replace("alpha = 0", &format!("alpha = 0\n{data}"));
        let summary = Sandbox::with_job(&job).run_job("out");
        let of = |key: &str| {
            let all = summary[key]["values"].as_array();
            all.unwrap_or_else(|| panic!("{key}: {summary:?}")).clone()
        };
        for key in
            ["component_distance", "weights_distance", "weights_entropy", "unseen_weights_entropy"]
        {
            assert!(of(key).len() == 2 && of(key)[0] != of(key)[1], "{key}: {summary:?}");
        }
        of("bayes_accuracy")
    };
    let [same, fresh] = ["", "seed = \"run\""].map(values);
    assert_eq!(same[0], same[1]);
    assert_eq!(same[0], fresh[0]);
    assert_ne!(fresh[0], fresh[1]);
}

/// What is said where the program must end with this code.
fn refused(sandbox: &Sandbox, args: &[&str], code: i32) -> String {
    let ran = sandbox.run(args);
    assert_eq!(ran.code, code, "{}", ran.stderr);
    ran.stderr
}

/// Rows of a new client, whose classes follow the sign of one column.
fn rows(count: usize) -> String {
    let mut text: String = (1..=40).map(|j| format!("x{j},")).collect();
    text.push_str("target\n");
    for i in 0..count {
        for j in 0..40 {
            let x = ((i * 31 + j * 17) % 21) as f64 / 10.0 - 1.0;
            text.push_str(&format!("{x},"));
        }
        text.push_str(if i % 3 == 0 { "0\n" } else { "1\n" });
    }
    text
}

#[test]
fn a_mixture_beats_one_model_and_serves_clients_it_never_saw() {
    let sandbox = Sandbox::with_job(&job("kind = \"fedmix\"\ncomponents = 2"));
    let fedmix = sandbox.run_job("out");
    let of = |key| number(&fedmix, key);
    assert!(of("test_accuracy") > of("bayes_accuracy") - 0.03, "{fedmix:?}");
    assert!(of("unseen_accuracy") > of("bayes_accuracy_unseen") - 0.05, "{fedmix:?}");
    assert!(of("component_distance") < 0.1 && of("weights_distance") < 0.05, "{fedmix:?}");
    sandbox.write("fedavg.toml", &job("kind = \"fedavg\""));
    let fedavg = sandbox.ok(&["run", "fedavg.toml", "--out", "avg", "--json"]).json();
    assert!(of("test_accuracy") > number(&fedavg, "test_accuracy") + 0.03, "{fedavg:?}");
    // Unseen clients sent nothing, and have nothing of their own in the folder.
    let clients = sandbox.read("out/clients.csv");
    let silent = clients.lines().skip(1).filter(|line| line.split(',').nth(3) == Some("0")).count();
    assert_eq!(silent, 12, "{clients}");
    let report = sandbox.read("out/report.html");
    assert!(report.contains("Mixture weights"));
}

#[test]
fn clients_predict_with_their_own_and_new_ones_adapt() {
    let sandbox = Sandbox::with_job(&job("kind = \"fedmix\"\ncomponents = 2"));
    sandbox.run_job("out");
    sandbox.write("new.csv", &rows(30));
    let said = refused(&sandbox, &["predict", "out", "--data", "new.csv", "--out", "p.csv"], 2);
    assert!(said.contains("predicts for a client") && said.contains("--client"), "{said}");
    let adapted =
        sandbox.ok(&["adapt", "out", "--data", "new.csv", "--out", "mine", "--json"]).json();
    let weights: Vec<f64> =
        adapted["weights"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{weights:?}");
    let predict = ["predict", "out", "--client", "mine", "--data", "new.csv", "--out", "p.csv"];
    sandbox.ok(&predict);
    assert_eq!(sandbox.read("p.csv"), sandbox.read("mine/predictions.csv"));
    let known = std::fs::read_dir(sandbox.path("out/clients")).unwrap().next().unwrap().unwrap();
    let name = known.file_name().into_string().unwrap();
    sandbox.ok(&["predict", "out", "--client", &name, "--data", "new.csv", "--out", "q.csv"]);
    let text = sandbox.read("q.csv");
    assert!(text.starts_with("row,label,p_0,p_1\n") && text.lines().count() == 31, "{text}");
    // Another run's model is not what the client adapted to.
    sandbox.write("three.toml", &job("kind = \"fedmix\"\ncomponents = 3"));
    sandbox.ok(&["run", "three.toml", "--out", "three", "-q"]);
    let other = ["predict", "three", "--client", "mine", "--data", "new.csv", "--out", "r.csv"];
    let said = refused(&sandbox, &other, 2);
    assert!(said.contains("mine was adapted to a model other"), "{said}");
    // A class that the run does not know.
    sandbox.write("odd.csv", &rows(30).replace(",1\n", ",7\n"));
    let said = refused(&sandbox, &["adapt", "out", "--data", "odd.csv", "--out", "odd"], 3);
    assert!(said.contains("class \"7\" is not one of the run's"), "{said}");
}

/// Rows in the format of the run's own: images with their labels, and LIBSVM's text.
#[test]
fn new_clients_adapt_to_images_and_sparse_rows() {
    let sandbox = Sandbox::new();
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(sandbox.path(name), bytes).unwrap();
    // Images of 3 x 2 whose first or last pixel is bright.
    let labels: Vec<u8> = (0..40).map(|i| i % 2).collect();
    let image = |class: &u8| [255 * (1 - class), 0, 3, 7, 0, 255 * class];
    let head = |lengths: &[u32]| -> Vec<u8> {
        let lengths_bytes = lengths.iter().flat_map(|n| n.to_be_bytes());
        [0, 0, 8, lengths.len() as u8].into_iter().chain(lengths_bytes).collect()
    };
    write("labels.idx", [head(&[40]), labels.clone()].concat());
    write("images.idx", [head(&[40, 3, 2]), labels.iter().flat_map(image).collect()].concat());
    let text: String = labels.iter().map(|y| format!("{y} {}:1 3:0.5\n", 1 + y)).collect();
    write("rows.svm", text.into_bytes());
    let method = "split = { by = \"iid\", clients = 4 }\ntest = 0.2\n[model]\nkind = \"logistic\"\n\
                  [method]\nkind = \"fedmix\"\ncomponents = 2\nrounds = 20\nstep = 2.0\n";
    for (source, data, labels) in [
        ("idx\"\ntranspose = true\nlabels = \"labels.idx", "images.idx", Some("labels.idx")),
        ("libsvm", "rows.svm", None),
    ] {
        let job = format!("[data]\nsource = \"{source}\"\npath = \"{data}\"\n{method}");
        sandbox.write("job.toml", &job);
        let run = format!("run-{data}");
        sandbox.run_job(&run);
        let mut args = vec!["adapt", &run, "--data", data, "--out", "mine", "--json"];
        if let Some(labels) = labels {
            let said = refused(&sandbox, &args, 2);
            assert!(said.contains("--labels"), "{said}");
            args.extend(["--labels", labels]);
        }
        let adapted = sandbox.ok(&args).json();
        assert_eq!(number(&adapted, "train_accuracy"), 1.0, "{adapted:?}");
        std::fs::remove_dir_all(sandbox.path("mine")).unwrap();
    }
}

#[test]
fn methods_without_a_meaning_for_adapt_refuse() {
    let sandbox = Sandbox::with_job(&job("kind = \"fedavg\""));
    sandbox.run_job("out");
    sandbox.write("new.csv", &rows(12));
    let said = refused(&sandbox, &["adapt", "out", "--data", "new.csv", "--out", "mine"], 2);
    assert!(said.contains("fedavg has no personal part to fit"), "{said}");
    sandbox.ok(&["predict", "out", "--data", "new.csv", "--out", "p.csv"]);
}

#[test]
fn fine_tuned_models_predict_for_clients_that_adapted() {
    let sandbox = Sandbox::with_job(&job("kind = \"fedavg+\""));
    sandbox.run_job("out");
    sandbox.write("new.csv", &rows(30));
    let predict = ["predict", "out", "--data", "new.csv", "--out", "p.csv"];
    let said = refused(&sandbox, &predict, 2);
    assert!(said.contains("fedavg+ predicts for a client") && said.contains("adapt"), "{said}");
    sandbox.ok(&["adapt", "out", "--data", "new.csv", "--out", "mine", "-q"]);
    sandbox.ok(&[&predict[..], &["--client", "mine"]].concat());
    assert_eq!(sandbox.read("p.csv"), sandbox.read("mine/predictions.csv"));
}

#[test]
fn a_search_leaves_out_what_diverged_and_goes_on_with_what_it_chose() {
    let method = "kind = \"fedavg\"\nsearch = { step = [0.5, 1e30] }";
    let text = job(method).replace("step = 3.0\n", "").replace("every = 20", "every = 1");
    let sandbox = Sandbox::with_job(&text);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("dropped: round 1: the state diverged"), "{}", ran.stderr);
    assert!(ran.stderr.contains("mixture: continuing with step=0.5"), "{}", ran.stderr);
    assert!(sandbox.read("out/job.toml").contains("step = 0.5"));
    let record: serde_json::Value =
        serde_json::from_str(&sandbox.read("out-search/search.json")).unwrap();
    assert_eq!(record["chosen"], "step=0.5");
    assert!(record["tried"]["step=0.5"]["validation_accuracy"].as_f64().unwrap() > 0.5, "{record}");
    let mut tried = record["tried"].as_object().unwrap().values();
    let left_out = tried.find_map(|one| one.get("left_out")).expect("the other one");
    assert!(left_out.as_str().unwrap().contains("diverged"), "{record}");
    // The run is over, and no candidate runs again to say so.
    let said = refused(&sandbox, &["run", "job.toml", "--out", "out", "--resume"], 2);
    assert!(said.contains("has ended: stopped") && !said.contains("search step"), "{said}");
}

#[test]
fn related_models_are_logistic() {
    let text = job("kind = \"mocha\"").replace("\"logistic\"", "\"softmax\"");
    let text = text.replace("batch = 64\nstep = 3.0\ndecay = { factor = 0.1, at = [0.5] }\n", "");
    let sandbox = Sandbox::with_job(&text);
    let said = refused(&sandbox, &["run", "job.toml", "--out", "out"], 2);
    assert!(said.contains("mocha fits logistic regressions of two classes, not softmax"), "{said}");
}

#[test]
fn control_variates_travel_exactly() {
    let sandbox = Sandbox::with_job(&job(
        "kind = \"scaffold\"\nchannels = \"qsgd\"\n[uplink]\ncodec = { kind = \"dithering\", levels = 4 }",
    ));
    let said = refused(&sandbox, &["run", "job.toml", "--out", "out"], 2);
    assert!(said.contains("control variates of clients and server drift apart"), "{said}");
}

#[test]
fn a_client_without_training_rows_is_evaluated_with_what_is_shared() {
    let mut text = String::from("who,x,y,part\n");
    for i in 0..60 {
        let (who, part) = match i {
            0..50 => (["a", "b"][i % 2], if i % 5 == 0 { "test" } else { "train" }),
            _ => ("late", "test"),
        };
        let class = i % 3 % 2;
        text.push_str(&format!("{who},{},{class},{part}\n", class as f64 + 0.01 * i as f64));
    }
    for method in ["fedmix\"\ncomponents = 2", "fedavg\"", "d-fedavg\"", "pfedme\""] {
        let sandbox = Sandbox::with_job(&format!(
            "[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"who\"\ntarget = \"y\"\n\
             role = \"part\"\n[model]\nkind = \"logistic\"\n[method]\nrounds = 20\nstep = 1.0\n\
             kind = \"{method}\n"
        ));
        sandbox.write("rows.csv", &text);
        let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
        assert!(ran.stderr.contains("client \"late\" has no training rows"), "{}", ran.stderr);
        let summary = sandbox.object("out/summary.json");
        let clients = sandbox.read("out/clients.csv");
        let mut lines = clients.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let at = lines.next().unwrap().iter().position(|key| *key == "test_accuracy").unwrap();
        let late = lines.find(|line| line[0] == "late").unwrap();
        let own: f64 = late[at].parse().unwrap();
        assert_eq!(number(&summary, "unseen_accuracy"), own, "{method}: {clients}");
    }
}

#[test]
fn a_method_without_a_model_for_strangers_has_no_figures_of_them() {
    let sandbox = Sandbox::with_job(&job("kind = \"local\""));
    sandbox.run_job("out");
    let clients = sandbox.read("out/clients.csv");
    let head: Vec<&str> = clients.lines().next().unwrap().split(',').collect();
    let at = head.iter().position(|name| *name == "test_accuracy").unwrap();
    let silent = clients.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let silent: Vec<_> = silent.filter(|line| line[3] == "0").collect();
    assert_eq!(silent.len(), 12, "{clients}");
    assert!(silent.iter().all(|line| line[at].is_empty()), "{clients}");
    let kept = std::fs::read_dir(sandbox.path("out/clients")).unwrap().count();
    assert_eq!(kept, 48, "those who trained");
}

#[test]
fn gradients_of_a_network_are_compressed_both_ways() {
    let job = |method: &str, channels: &str| {
        format!(
            "name = \"net\"\nseed = 1\n[data]\nsource = \"synthetic-mixture\"\nclients = 20\n\
             components = 1\ndimension = 20\nalpha = 1\n[model]\nkind = \"mlp\"\nhidden = [16]\n\
             [method]\nkind = \"{method}\"\nrounds = 60\nbatch = 64\nstep = 0.3\nmomentum = 0.5\n{channels}"
        )
    };
    let sandbox = Sandbox::with_job(&job("sgd", ""));
    let exact = sandbox.run_job("out");
    let dither = "codec = { kind = \"dithering\", levels = 2 }\n";
    sandbox.write("mcm.toml", &job("mcm", &format!("[uplink]\n{dither}[downlink]\n{dither}")));
    let mcm = sandbox.ok(&["run", "mcm.toml", "--out", "mcm", "--json"]).json();
    for key in ["bits_up", "bits_down"] {
        assert!(5.0 * number(&mcm, key) < number(&exact, key), "{key} {mcm:?}");
    }
    // Both learn: the first loss is ln 2 or above.
    for summary in [&exact, &mcm] {
        assert!(number(summary, "train_loss") < 0.6, "{summary:?}");
    }
}

#[test]
fn components_of_little_weight_are_not_sent() {
    let sandbox = Sandbox::with_job(&job("kind = \"fedmix\"\ncomponents = 2"));
    let all = sandbox.run_job("out");
    sandbox.write("some.toml", &job("kind = \"fedmix\"\ncomponents = 2\nsend_above = 0.1"));
    let some = sandbox.ok(&["run", "some.toml", "--out", "some", "--json"]).json();
    // One component per client: half of the bits are left once they are told apart, which takes some of
    // the 60 rounds.
    assert!(number(&some, "bits_up") < 0.85 * number(&all, "bits_up"), "{some:?}");
    assert_eq!(number(&some, "bits_down"), number(&all, "bits_down"));
    let lost = number(&all, "test_accuracy") - number(&some, "test_accuracy");
    assert!(lost < 0.02, "{some:?}");
}

/// Clients whose names make no folder name are counted in what stated probabilities are worth.
#[test]
fn reports_do_not_depend_on_what_clients_are_called() {
    let figures = |name: &dyn Fn(usize) -> String| {
        let sandbox = Sandbox::with_job(
            "name = \"names\"\n[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"who\"\n\
             target = \"y\"\ntest = 0.3\n[model]\nkind = \"logistic\"\n[method]\nkind = \"fedmix\"\n\
             components = 2\nrounds = 10\nstep = 1.0\n",
        );
        let row = |i: usize| {
            let x = [7, 5].map(|m| ((i * m) % 11) as f64 / 5.0 - 1.0);
            format!("{},{},{},{}\n", name(i % 6), x[0], x[1], u8::from(x[i % 2] > 0.0))
        };
        sandbox.write(
            "rows.csv",
            &("who,a,b,y\n".to_owned() + &(0..240).map(row).collect::<String>()),
        );
        let summary = sandbox.run_job("out");
        let report = sandbox.read("out/report.html");
        assert!(report.contains("Reliability") && report.contains("Mixture weights"));
        number(&summary, "test_ece")
    };
    // Which rows are for tests depends on the name.
    let [plain, escaped] = [figures(&|c| format!("c{c}")), figures(&|c| format!("Client {c}"))];
    assert!((plain - escaped).abs() < 0.2, "{plain} {escaped}");
}

/// A shared model has predictions for clients that did not train, and a mixture has none: both are judged
/// on the rows of the others.
#[test]
fn calibration_is_over_the_same_rows_for_every_method() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "visits", "--out", "."]);
    let job = sandbox.read("job.toml").replace("search = { step = [0.1, 0.5, 2.0] }", "step = 0.5");
    let job = job.replace("rounds = 100", "rounds = 3");
    let samples = |method: &str, out: &str| {
        sandbox.write("job.toml", &job.replace("kind = \"fedmix\"\ncomponents = 2", method));
        sandbox.run_job(out);
        let shown = sandbox.read(&format!("{out}/exhibits.json"));
        let caption = shown.split("Expected calibration error").nth(1).unwrap();
        caption.split('"').next().unwrap().split(" over ").nth(1).unwrap().to_owned()
    };
    let one = samples("kind = \"fedavg\"", "one");
    assert_eq!(one, samples("kind = \"fedmix\"\ncomponents = 2", "two"));
    assert!(sandbox.read("one/report.html").contains("960 rows of 19 clients; "));
}

/// The header of an idx file of bytes with these lengths, and so many bytes.
fn idx(lengths: &[u32]) -> Vec<u8> {
    let count: u32 = lengths.iter().product();
    let head = [0, 0, 8, lengths.len() as u8].into_iter();
    let lengths = lengths.iter().flat_map(|n| n.to_be_bytes());
    head.chain(lengths).chain((0..count).map(|i| (i % 2) as u8)).collect()
}

#[test]
fn images_from_elsewhere_must_have_the_size_of_the_data() {
    let sandbox = Sandbox::new();
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(sandbox.path(name), bytes).unwrap();
    write("images.idx", idx(&[40, 3, 2]));
    write("labels.idx", idx(&[40]));
    write("large.idx", idx(&[10, 4, 4]));
    for method in ["kind = \"fedmix\"", "kind = \"fedsoul\""] {
        let job = format!(
            "[data]\nsource = \"idx\"\npath = \"images.idx\"\nlabels = \"labels.idx\"\n\
             split = {{ by = \"iid\", clients = 4 }}\ntest = 0.2\n[model]\nkind = \"logistic\"\n\
             [method]\n{method}\nrounds = 2\noutside = \"large.idx\"\n"
        );
        sandbox.write("job.toml", &job);
        let said = refused(&sandbox, &["run", "job.toml", "--out", "out"], 2);
        assert!(said.contains("has images of 16 pixels, the data of 6"), "{said}");
    }
}

#[test]
fn clients_without_a_model_of_their_own_are_told_why() {
    let predict = |run: &str, client: &str| {
        ["predict", run, "--client", client, "--data", "new.csv", "--out", "p.csv"]
            .map(str::to_owned)
    };
    let sandbox = Sandbox::with_job(&job("kind = \"fedavg+\""));
    sandbox.run_job("out");
    sandbox.write("new.csv", &rows(12));
    let ran = sandbox.run(&predict("out", "client-001"));
    assert!(
        ran.code == 2 && ran.stderr.contains("fedavg+ keeps no personal model"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("`whimbrel adapt RUN --data ROWS"), "{}", ran.stderr);
    sandbox.write("job.toml", &job("kind = \"fedavg\""));
    sandbox.run_job("one");
    let ran = sandbox.run(&predict("one", "client-001"));
    assert!(ran.code == 2 && ran.stderr.contains("one model for all clients"), "{}", ran.stderr);
    let seeds = job("kind = \"fedmix\"\ncomponents = 2").replace("seed = 1", "seeds = 2");
    sandbox.write("job.toml", &seeds.replace("rounds = 60", "rounds = 4"));
    sandbox.ok(&["run", "job.toml", "--out", "two", "-q"]);
    let ran = sandbox.run(&predict("two", "client-001"));
    let hint =
        "the run has several seeds, each with its clients: name the run of one seed, such as two";
    assert!(ran.code == 2 && ran.stderr.contains(hint), "{}", ran.stderr);
}

#[test]
fn clusters_that_were_never_split_are_said() {
    let split = |split: &str| {
        let method = format!("kind = \"clustered\"\nsplit = {split}");
        let summary = Sandbox::with_job(&job(&method)).run_job("out");
        let detail = summary["ending_detail"].as_str().unwrap();
        assert!(detail.contains("not converged: relative update "), "{detail}");
        summary["notes"].to_string()
    };
    let notes = split("{ below = 1e-6, above = 1e6 }");
    assert!(
        notes.contains("no cluster was split") && notes.contains("longer than 1000000"),
        "{notes}"
    );
    let notes = split("{ below = 1e6, above = 1e-6 }");
    assert!(!notes.contains("no cluster was split"), "{notes}");
}

/// Over channels networks have local steps that fall; convex models do not.
#[test]
fn a_key_of_networks_names_them() {
    let sandbox = Sandbox::with_job(&job("kind = \"mcm\""));
    let said = refused(&sandbox, &["check", "job.toml"], 2);
    let what = "`decay` has no meaning for sgd with this model: it is for linear-representation";
    assert!(said.contains(what) && said.contains("mlp"), "{said}");
    assert!(!said.contains("sgd,") && !said.contains("logistic"), "{said}");
}
