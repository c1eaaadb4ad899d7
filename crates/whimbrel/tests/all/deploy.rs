//! The files of `deploy/` and the guide for two hospitals, followed literally but for paths and ports.

use crate::federation::{Process, free_address, wait};
use crate::pki::Authority;
use crate::support::Sandbox;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use whimbrel::parts::net::Invitation;

fn deployed(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    fs::read_to_string(folder.join(file)).unwrap()
}

fn manifest() -> String {
    deployed("kubernetes/coordinator.yaml")
}

/// The values of `- KEY: VALUE` and `KEY: VALUE`, also within braces, wherever they stand.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let written = format!("{key}: ");
    let found = text
        .match_indices(&written)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric()));
    let value = |(at, _): (usize, &str)| {
        let rest = &text[at + key.len() + 2..];
        rest.split([',', '}', '\n', '#']).next().unwrap_or_default().trim()
    };
    found.map(value).collect()
}

/// The items of the container's `args`.
fn args(text: &str) -> Vec<String> {
    let (_, rest) = text.split_once("          args:\n").unwrap();
    let items = rest.lines().map_while(|line| line.trim().strip_prefix("- "));
    items.map(|item| item.split(" #").next().unwrap_or_default().trim().to_owned()).collect()
}

/// The text of the job in the ConfigMap.
fn job(text: &str) -> String {
    let (_, rest) = text.split_once("  job.toml: |\n").unwrap();
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn what_the_manifest_refers_to_is_there() {
    let text = manifest();
    let documents: Vec<&str> = text.split("\n---\n").collect();
    let kinds: Vec<(&str, &str)> = documents
        .iter()
        .map(|document| (values(document, "apiVersion")[0], values(document, "kind")[0]))
        .collect();
    let known = [
        ("v1", "Namespace"),
        ("v1", "ConfigMap"),
        ("v1", "Service"),
        ("v1", "Service"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("apps/v1", "StatefulSet"),
    ];
    assert_eq!(kinds, known);
    for document in &documents[1..] {
        assert_eq!(values(document, "namespace")[0], "whimbrel");
    }
    let set = documents[5];
    let ports: Vec<(&str, &str)> =
        [("rounds", "7443"), ("dashboard", "7480"), ("probes", "7481")].into();
    for (name, port) in &ports {
        assert!(set.contains(&format!("{{ name: {name}, containerPort: {port} }}")), "{name}");
    }
    for port in values(&text, "targetPort").into_iter().chain(values(set, " port")) {
        assert!(ports.iter().any(|(name, _)| *name == port), "{port}");
    }
    assert_eq!(values(documents[4], " port"), ["7443", "7480"]);
    // Mounts are of volumes, the configuration is the one above, and clients reach the service.
    let (_, volumes) = set.split_once("      volumes:\n").unwrap();
    for mount in ["job", "tls", "run"] {
        assert!(set.contains(&format!("{{ name: {mount}, mountPath: ")), "{mount}");
        assert!(values(volumes, "name").contains(&mount), "{mount}");
    }
    assert!(volumes.contains("configMap: { name: job }"));
    assert!(values(set, "app").iter().all(|app| *app == "coordinator"));
    assert_eq!(values(set, "replicas"), ["1"]);
    let address = args(&text).iter().find_map(|a| a.strip_prefix("--address=").map(str::to_owned));
    let service = format!("{}.whimbrel.svc:7443", values(documents[2], "name")[0]);
    assert_eq!(address, Some(service));
}

/// Commands of units and of the compose file are read, and fail for their missing files alone.
#[test]
fn commands_of_units_and_containers_are_valid() {
    let sandbox = Sandbox::new();
    let units = ["coordinator", "client@", "relay"];
    let mut commands: Vec<Vec<String>> = Vec::new();
    for unit in units {
        let text = deployed(&format!("systemd/whimbrel-{unit}.service")).replace("%i", "wards");
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        commands.push(line.split(' ').skip(1).map(str::to_owned).collect());
    }
    let compose = deployed("compose/compose.yaml");
    for part in compose.split("    command:\n").skip(1) {
        let items = part.lines().map_while(|line| line.strip_prefix("      - "));
        let word = |item: &str| {
            let item = item.trim_matches('"');
            item.split_once("${").map_or(item.to_owned(), |(before, _)| format!("{before}h:1"))
        };
        commands.push(items.map(word).collect());
    }
    assert_eq!(commands.len(), 5);
    for command in commands {
        let ran = sandbox.run(&command);
        let missing = command.iter().find(|word| word.contains("/etc/whimbrel/")).unwrap();
        let named = ran.stderr.contains(missing.trim_start_matches('@'));
        assert!(ran.code != 0 && named && !ran.stderr.contains("Usage"), "{}", ran.stderr);
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Serves with the manifest's command line and its job, answers its probes, is moved once, and ends.
#[test]
fn the_command_line_of_the_manifest_serves_its_job() {
    let sandbox = Sandbox::new();
    let text = manifest();
    let (local, probes) = (free_address(), free_address());
    let job = job(&text).replace("0.0.0.0:7443", &local).replace("0.0.0.0:7480", "127.0.0.1:0");
    sandbox.write("job.toml", &job);
    let (cert, key) = Authority::new("institution").sign(&sandbox.path(""), "coordinator");
    let places = [
        ("/etc/whimbrel-tls/tls.crt", cert),
        ("/etc/whimbrel-tls/tls.key", key),
        ("/etc/whimbrel/job.toml", sandbox.path("job.toml")),
        ("/var/lib/whimbrel", sandbox.path("")),
        ("0.0.0.0:7481", (&probes).into()),
    ];
    let local_args: Vec<String> = args(&text)
        .iter()
        .map(|arg| {
            places.iter().fold(arg.clone(), |arg, (there, here)| {
                arg.replace(there, here.to_str().unwrap().trim_end_matches('/'))
            })
        })
        .collect();
    let local_args: Vec<&str> = local_args.iter().map(String::as_str).collect();
    let mut coordinator = Process::start(&sandbox, "serve", &local_args);
    let dashboard = |times: usize| {
        wait("the dashboard", || {
            sandbox.read("serve.log").matches("dashboard: http").count() == times
        });
    };
    dashboard(1);
    for probe in values(&text, "path").into_iter().filter(|path| path.starts_with('/')) {
        let answer = get(&probes, probe);
        assert!(answer.starts_with("HTTP/1.1 200"), "{probe}: {answer}");
    }
    // Nothing that a pod's log shows lets anybody in.
    assert!(
        !sandbox.read("serve.log").contains("whimbrel1-") && sandbox.read("serve.out").is_empty()
    );
    let invitations = sandbox.read("invitations");

    // The pod is moved: the same command goes on.
    coordinator.kill();
    let coordinator = Process::start(&sandbox, "serve", &local_args);
    dashboard(2);
    let mut clients = Vec::new();
    for (number, line) in invitations.lines().enumerate() {
        let (name, invitation) = line.split_once('\t').unwrap();
        let mut rows = String::from("age,sodium,creatinine\n");
        for i in 0..60 {
            let wave = |step: usize| ((i * step + 13 * number) % 97) as f64 / 97.0;
            let group = f64::from((i % 3) as u32);
            writeln!(
                rows,
                "{},{},{}",
                20.0 * group + wave(31),
                5.0 * group + wave(57),
                group + wave(11)
            )
            .unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &rows);
        let invitation = Invitation::decode(invitation).unwrap();
        assert_eq!(invitation.address, "coordinator.whimbrel.svc:7443");
        let invitation = Invitation { address: local.clone(), ..invitation }.encode();
        clients.push((name, crate::federation::join(&sandbox, name, &invitation)));
    }
    assert_eq!(clients.len(), 3);
    coordinator.ends(&sandbox, "serve");
    clients.into_iter().for_each(|(name, client)| client.ends(&sandbox, name));
    assert_eq!(sandbox.object("run/summary.json")["rounds"], 500);
}

/// The first block of a language in a page.
fn block<'a>(page: &'a str, language: &str, containing: &str) -> &'a str {
    let blocks = page.split(&format!("```{language}\n")[..]).skip(1).collect::<Vec<_>>();
    let texts = blocks.into_iter().filter_map(|rest| rest.split_once("```").map(|(text, _)| text));
    texts.into_iter().find(|text| text.contains(containing)).expect("a block")
}

/// The words of the command in a block that begins so, without the program's name.
fn command(block: &str, begins: &str) -> Vec<String> {
    let lines = block.replace("\\\n", " ");
    let line = lines.lines().find(|line| line.starts_with(begins)).expect("a command");
    let line = line.split(" #").next().unwrap_or_default();
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn the_guide_for_two_hospitals_works_as_it_is_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/two-hospitals.md");
    let page = fs::read_to_string(path).unwrap();
    let sandbox = Sandbox::new();
    let local = free_address();
    let job = block(&page, "toml", "[federation]").replace("0.0.0.0:7443", &local);
    sandbox.write("job.toml", &(job + "dashboard = false\n"));
    let authorities = [Authority::new("city"), Authority::new("county")];
    sandbox.write("hospitals.pem", &authorities.each_ref().map(|a| &a.pem[..]).concat());
    Authority::new("third place").sign(&sandbox.path(""), "coordinator");
    let serve = command(block(&page, "sh", "whimbrel serve"), "whimbrel serve");
    let serve: Vec<String> = serve
        .iter()
        .map(|word| word.replace("/srv/sodium", "sodium").replace("fl.example.org:7443", &local))
        .collect();
    let serve: Vec<&str> = serve.iter().map(String::as_str).collect();
    let coordinator = Process::start(&sandbox, "serve", &serve);
    let printed = || fs::read_to_string(sandbox.path("serve.out")).unwrap_or_default();
    wait("the invitations", || printed().matches('\n').count() == 2);

    let hospital = block(&page, "sh", "whimbrel join");
    let mut clients = Vec::new();
    for (number, line) in printed().lines().enumerate() {
        let (name, invitation) = line.split_once('\t').unwrap();
        authorities[number].sign(&sandbox.path(""), name);
        sandbox.write("invitation", invitation);
        let mut rows = String::from("age,sodium,potassium,creatinine,ward\n");
        for i in 0..240 {
            let wave = |step: usize| ((i * step + 13 * number) % 97) as f64 / 97.0;
            let group = f64::from((i % 4) as u32);
            let (age, sodium) = (20.0 * group + 9.0 * wave(31), 130.0 + 3.0 * group + wave(57));
            let (potassium, creatinine) = (4.0 + (group - 1.5).abs() + wave(11), group + wave(7));
            writeln!(rows, "{age},{sodium},{potassium},{creatinine},w{number}").unwrap();
        }
        sandbox.write("labs.csv", &rows);
        let inspect = command(hospital, "whimbrel data inspect");
        sandbox.ok(&inspect);
        let join: Vec<String> =
            command(hospital, "whimbrel join").iter().map(|w| w.replace("city", name)).collect();
        sandbox.write("answer", "yes\n");
        let mut command = sandbox.command(&join);
        command.stdin(fs::File::open(sandbox.path("answer")).unwrap());
        clients.push((name.to_owned(), Process::spawn(&sandbox, name, command)));
        // Both hospitals have files of the same names, here in one folder.
        wait("its consent", || sandbox.path(&format!("joined/{name}/data.sha256")).exists());
    }
    coordinator.ends(&sandbox, "serve");
    for (name, client) in clients {
        client.ends(&sandbox, &name);
        let shown = sandbox.read(&format!("{name}.log"));
        for said in ["that would leave this machine", "upper limits", "asks you to take part"] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
        let ledger = sandbox.ok(&["ledger", &format!("joined/{name}")]).stdout;
        assert!(ledger.contains("rounds"), "{ledger}");
        assert!(sandbox.path(&format!("joined/{name}/model/model.json")).exists());
    }
}
