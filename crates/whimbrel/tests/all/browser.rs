//! Report and dashboard in Chromium, over the DevTools protocol on a pipe. Without a browser these
//! tests are skipped.

use crate::support::Sandbox;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use whimbrel_testkit::skipped;

const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
struct Browser {
    process: Child,
    pipe: File,
    answers: Receiver<Value>,
    /// Events since the last visit.
    events: Vec<Value>,
    session: Option<String>,
    asked: u64,
    _home: Sandbox,
}

impl Browser {
    /// Starts Chromium; `None` if there is none, or if `WHIMBREL_NO_BROWSER` is set.
    fn start() -> Option<Self> {
        if std::env::var_os("WHIMBREL_NO_BROWSER").is_some() {
            eprintln!("skipped: WHIMBREL_NO_BROWSER is set");
            return None;
        }
        let found = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        let Some(name) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(found)
        else {
            skipped("report and dashboard in a browser: Chromium is not installed");
            return None;
        };
        let home = Sandbox::new();
        let pipes = ["to", "from"].map(|name| home.path(name));
        assert!(Command::new("mkfifo").args(&pipes).status().expect("mkfifo").success());
        // The shell opens the pipes as descriptors 3 and 4, and becomes the browser.
        let flags = "--headless --no-sandbox --disable-gpu --disable-background-networking \
                     --disable-dev-shm-usage --no-first-run --remote-debugging-pipe";
        let line = format!("exec {name} {flags} --user-data-dir=\"$1\" 3< \"$2\" 4> \"$3\"");
        let mut shell = Command::new("bash");
        shell.args(["-c", &line, "bash"]).arg(home.path("profile")).args(&pipes);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = shell.spawn().expect("bash starts");
        let pipe = File::options().write(true).open(&pipes[0]).expect("a pipe");
        let mut from = BufReader::new(File::open(&pipes[1]).expect("a pipe"));
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while from.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if send.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let (events, session) = (Vec::new(), None);
        let mut browser = Self { process, pipe, answers, events, session, asked: 0, _home: home };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", attach)["sessionId"].clone();
        browser.session = session.as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and returns its result.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        self.pipe.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let answer = self.next(method);
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn next(&self, what: &str) -> Value {
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    /// Opens a page at a width, light or dark, and waits until it is loaded.
    fn visit(&mut self, url: &str, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
        self.events.clear();
        self.ask("Page.navigate", json!({ "url": url }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next("the page");
            self.events.push(event);
        }
    }

    /// Writes the top of the page to the folder in `WHIMBREL_SCREENSHOTS`, if set.
    fn screenshot(&mut self, name: &str, height: u32) {
        let Some(folder) = std::env::var_os("WHIMBREL_SCREENSHOTS") else { return };
        let size =
            json!({ "width": 1000, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": "light" });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
        let picture = self.ask("Page.captureScreenshot", json!({ "format": "png" }));
        let coded = self._home.path("picture");
        fs::write(&coded, picture["data"].as_str().expect("a picture")).unwrap();
        let file = File::create(Path::new(&folder).join(format!("{name}.png"))).expect("a file");
        let decoded = Command::new("base64").arg("-d").arg(coded).stdout(file).status();
        assert!(decoded.expect("base64").success());
    }

    /// The value of a script.
    fn value(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        self.ask("Runtime.evaluate", params)["result"]["value"].clone()
    }

    fn text(&mut self, selector: &str) -> String {
        let script = format!("document.querySelector('{selector}')?.innerText ?? ''");
        self.value(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Presses a key.
    fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "ArrowRight" => (39, ""),
            other => panic!("{other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.ask(
                "Input.dispatchKeyEvent",
                json!({ "type": kind, "key": key, "code": key, "text": text,
                        "windowsVirtualKeyCode": code }),
            );
        }
    }

    /// Presses Tab until an element has the focus.
    fn tab_to(&mut self, selector: &str) {
        for _ in 0..60 {
            self.press("Tab");
            if self.value(&format!("document.activeElement.matches('{selector}')")) == true {
                return;
            }
        }
        panic!("the Tab key does not reach {selector}");
    }

    /// The directive that forbids a picture from another server.
    fn forbidden(&mut self) -> Value {
        self.value(
            "new Promise((done) => {
               addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));
               new Image().src = 'http://192.0.2.1/picture.png';
             })",
        )
    }

    /// Fails if the page or a visible part of it scrolls sideways, reports an error, or asks for anything outside `home`.
    #[track_caller]
    fn check(&mut self, home: &str, width: u32) {
        let root = "document.documentElement";
        let beyond = self.value(&format!("{root}.scrollWidth - {root}.clientWidth"));
        assert_eq!(beyond, 0, "the page scrolls sideways at {width}");
        let cut = self.value(CUT);
        assert_eq!(cut, json!([]), "parts are cut off at {width}");
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => panic!("{params}"),
                "Log.entryAdded" if params["entry"]["level"] == "error" => panic!("{params}"),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    assert!(url.starts_with(home) || url.starts_with("data:"), "{url} is outside");
                }
                _ => {}
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const WIDTHS: [u32; 2] = [400, 1400];

/// Visible elements whose content is wider than they are.
const CUT: &str = "[...document.body.querySelectorAll('*')]
    .filter((e) => e.checkVisibility() && e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1)
    .filter((e) => getComputedStyle(e).overflowX !== 'visible' && !e.closest('svg'))
    .map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} in ${e.clientWidth}`)";

fn url(file: &Path) -> String {
    format!("file://{}", file.canonicalize().expect("a page").display())
}

/// Visits a report at both widths, light and dark.
fn tour(browser: &mut Browser, page: &Path) {
    let url = url(page);
    let mut pages = Vec::new();
    for scheme in ["light", "dark"] {
        for width in WIDTHS {
            browser.visit(&url, width, scheme);
            browser.check(&url, width);
        }
        pages.push(browser.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(pages[0], pages[1], "dark mode has another background");
}

#[test]
fn reports_answer_first_and_fit_the_screen() {
    let Some(mut browser) = Browser::start() else { return };
    let wards = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jobs/wards");
    let sandbox = Sandbox::new();
    for name in ["wards.csv", "wards.toml", "em.toml"] {
        fs::copy(wards.join(name), sandbox.path(name)).unwrap();
    }
    sandbox.ok(&["compare", "wards.toml", "em.toml", "--out", "both"]);
    let one = sandbox.path("both/wards/report.html");
    tour(&mut browser, &one);
    let begins = "792 rows of 12 clients; Gaussian mixture, 3 components";
    assert!(browser.text(".answer").starts_with(begins));
    // The first tile is the family's figure; constants are among the diagnostics.
    assert_eq!(browser.text(".tiles dt"), "Log-likelihood");
    assert!(!browser.text("main").contains("omega_up"));
    assert!(browser.value("document.body.textContent").as_str().unwrap().contains("omega_up"));
    // Curves are folded, and follow the controls when unfolded.
    let folded = "!document.querySelector('details.diagnostics').open";
    assert_eq!(browser.value(folded), true);
    browser.value("document.querySelector('details.diagnostics').open = true");
    let shown = |class: &str| {
        format!("[...document.querySelectorAll('{class}')].some((e) => e.checkVisibility())")
    };
    assert_eq!(browser.value(&shown(".x-round.y-log")), true);
    assert_eq!(browser.value(&shown(".x-up.y-linear")), false);
    browser.value("for (const id of ['x-up', 'y-linear']) document.getElementById(id).click()");
    assert_eq!(browser.value(&shown(".x-up.y-linear")), true);
    assert_eq!(browser.value(&shown(".x-round.y-log:not(.y-linear)")), false);
    // The policy is in force.
    assert_eq!(browser.forbidden(), "img-src");
    // The keyboard opens the diagnostics, reaches the controls, and changes them.
    browser.visit(&url(&one), 1400, "light");
    browser.tab_to("details.diagnostics > summary");
    browser.press("Enter");
    assert_eq!(browser.value(folded), false);
    browser.tab_to("#x-round");
    browser.press("ArrowRight");
    assert_eq!(browser.value("document.getElementById('x-epoch').checked"), true);
    assert_eq!(browser.value(&shown(".x-round.y-log")), false);
    tour(&mut browser, &sandbox.path("both/report.html"));
    assert!(browser.text("main").contains("Settings that differ"));
    assert!(
        browser.text(".answer").starts_with("2 jobs on 792 rows of 12 clients. Objective: 9.16")
    );
}

#[test]
fn personal_models_are_shown_over_clients_and_unseen_ones_apart() {
    let Some(mut browser) = Browser::start() else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "visits", "--out", "."]);
    sandbox.ok(&["run", "job.toml", "--out", "run"]);
    tour(&mut browser, &sandbox.path("run/report.html"));
    let answer = browser.text(".answer");
    assert!(answer.contains("of the clients' test rows are predicted correctly"), "{answer}");
    let page = browser.text("main");
    assert!(page.contains("Test accuracy of clients that took no part in training"), "{page}");
    // 19 wards with bars and 5 without, in tables of their own.
    let rows = |table: u32| {
        format!("document.querySelectorAll('table.clients')[{table}].tBodies[0].rows.length")
    };
    assert_eq!((browser.value(&rows(0)), browser.value(&rows(1))), (json!(19), json!(5)));
    // The loss is that of training, which has a column.
    assert_eq!(
        browser.value("document.querySelectorAll('.clients td[data-label=loss]').length"),
        0
    );
}

#[test]
fn a_failed_run_says_so() {
    let Some(mut browser) = Browser::start() else { return };
    let sandbox = Sandbox::with_job(
        "name = \"far\"\n[data]\nsource = \"toy\"\nclients = 4\n[model]\nkind = \"linear\"\n[method]\n\
         kind = \"sgd\"\nrounds = 400\nstep = 1e6\n",
    );
    let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    tour(&mut browser, &sandbox.path("out/report.html"));
    assert!(browser.text(".banner.error").starts_with("Diverged"));
}

#[test]
fn the_dashboard_keeps_its_last_word() {
    let Some(mut browser) = Browser::start() else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "hospitals", "--out", "."]);
    let (mut coordinator, link) = serve(&sandbox);
    for width in WIDTHS {
        browser.visit(&link, width, "dark");
        wait(&mut browser, "#job", "hospitals");
        browser.check(&link, width);
    }
    let mut clients = ["north", "south", "west"].map(|name| join(&sandbox, name));
    wait(&mut browser, "#state", "finished");
    let run = sandbox.path("run").canonicalize().unwrap();
    let report = run.join("report.html").display().to_string();
    assert!(browser.text("#banner").contains(&report), "{}", browser.text("#banner"));
    assert_eq!(browser.text("#clients-note"), "3 of 3 have the model");
    browser.screenshot("dashboard", 900);
    coordinator.wait().unwrap();
    clients.iter_mut().for_each(|client| drop(client.wait()));
    // The page asks again after five seconds at the latest, and stays as it is.
    let begun = Instant::now();
    while !browser.text("#banner").contains("The coordinator has ended") {
        assert!(begun.elapsed() < PATIENCE, "{}", browser.text("body"));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(browser.text("#state"), "finished");
    browser.visit(&url(&sandbox.path("run/report.html")), 1000, "light");
    browser.screenshot("report", 1000);
}

/// Serves the job of a folder, and returns the dashboard's link.
fn serve(sandbox: &Sandbox) -> (Child, String) {
    let serve = ["serve", "job.toml", "--out", "run", "--invitations", "invitations"];
    let places = ["--listen", "127.0.0.1:0", "--dashboard", "127.0.0.1:0", "--open-dashboard"];
    let mut coordinator = sandbox.spawn(&[&serve[..], &places].concat());
    let mut lines =
        BufReader::new(coordinator.stderr.take().unwrap()).lines().map_while(Result::ok);
    let link = lines.find_map(|line| Some(line.split_once("dashboard: ")?.1.to_owned())).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    (coordinator, link)
}

/// Starts the client of this name.
fn join(sandbox: &Sandbox, name: &str) -> Child {
    let invitations = sandbox.read("invitations");
    let line = invitations.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let data = format!("{name}.csv");
    sandbox.spawn(&["join", line.trim(), "--data", &data, "--yes"])
}

#[test]
fn the_dashboard_shows_departures_returns_and_failures() {
    let Some(mut browser) = Browser::start() else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "hospitals", "--out", "."]);
    let job = sandbox.read("job.toml");
    sandbox.write("job.toml", &job.replace("rounds = 300", "rounds = 1000000"));
    let (mut coordinator, link) = serve(&sandbox);
    let mut clients = ["north", "south", "west"].map(|name| join(&sandbox, name));
    browser.visit(&link, 1400, "light");
    assert_eq!(browser.forbidden(), "img-src");
    browser.visit(&link, 400, "light");
    wait(&mut browser, "#clients-note", "3 of 3 connected");
    wait_for(&mut browser, "#privacy", "rests on at least 5 rows of a client");
    clients[0].kill().unwrap();
    clients[0].wait().unwrap();
    wait_for(&mut browser, "td[data-state=away]", "away");
    wait_for(&mut browser, "#log", "`north` is disconnected");
    clients[0] = join(&sandbox, "north");
    wait_for(&mut browser, "#log", "`north` returned from");
    wait(&mut browser, "#clients-note", "3 of 3 connected");
    browser.check(&link, 400);
    let id = coordinator.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    coordinator.wait().unwrap();
    wait_for(&mut browser, "#banner", "stopped; all state is saved. The coordinator has ended");
    assert_eq!(browser.text("#state"), "paused");
    clients.iter_mut().for_each(|process| {
        process.kill().unwrap();
        process.wait().unwrap();
    });

    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "hospitals", "--out", "."]);
    sandbox.write("job.toml", &job.replace("step = 0.2", "step = 1e9"));
    let (mut coordinator, link) = serve(&sandbox);
    browser.visit(&link, 400, "dark");
    wait(&mut browser, "#clients-note", "0 of 3 connected");
    let clients = ["north", "south", "west"].map(|name| join(&sandbox, name));
    wait(&mut browser, "#state", "failed");
    browser.check(&link, 400);
    let banner = browser.text("#banner.error");
    assert!(banner.starts_with("diverged: ") && banner.contains("; hint: "), "{banner}");
    coordinator.wait().unwrap();
    for client in clients {
        let ran = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains("; hint: ") && !said.contains("\\n"), "{said}");
    }
}

/// Waits for a part of a text of the dashboard.
fn wait_for(browser: &mut Browser, selector: &str, part: &str) {
    let begun = Instant::now();
    while !browser.text(selector).contains(part) {
        assert!(begun.elapsed() < PATIENCE, "no {part}: {}", browser.text("body"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits for a text of the dashboard.
fn wait(browser: &mut Browser, selector: &str, text: &str) {
    let begun = Instant::now();
    while browser.text(selector) != text {
        assert!(begun.elapsed() < PATIENCE, "not {text}: {}", browser.text("body"));
        std::thread::sleep(Duration::from_millis(100));
    }
}
