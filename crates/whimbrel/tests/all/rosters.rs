//! Rosters of masked jobs through the command line: shown to everyone, compared, and refused.

use crate::federation::{
    NAMES, Process, all_end, invitations, join_all, join_with, masked_wards, same_model, serve,
    served, wait, wards,
};
use crate::support::{Sandbox, one_line};

/// The lines of these clients, as their users would send them to each other.
fn lines(sandbox: &Sandbox, names: &[&str]) -> String {
    let line = |name: &&str| {
        let line = sandbox.ok(&["identity", &format!("client-{name}")]).stdout;
        assert!(line.rsplit(' ').next().is_some_and(|print| print.len() == 40), "{line}");
        line
    };
    names.iter().map(line).collect()
}

fn joins(sandbox: &Sandbox, (name, invitation): &(String, String), roster: &str) -> Process {
    join_with(sandbox, name, invitation, &["--min-group", "1", "--roster", roster])
}

/// The fingerprint after these words in a text.
fn fingerprint<'a>(text: &'a str, after: &str) -> &'a str {
    let at = text.find(after).unwrap_or_else(|| panic!("{after}: {text}")) + after.len();
    &text[at..at + 39]
}

/// All sides show one fingerprint, and a client restarts under the roster that its user accepted.
#[test]
fn a_roster_is_shown_by_all_and_compared() {
    let sandbox = masked_wards(8, true);
    sandbox.write("roster", &format!("# wards\n{}", lines(&sandbox, &NAMES)));
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let clients = invitations.iter().map(|invited| joins(&sandbox, invited, "@roster")).collect();
    all_end(&sandbox, coordinator, &invitations, clients);
    same_model(&sandbox);
    let log = sandbox.read("serve.log");
    let shown = fingerprint(&log, "roster of 3 clients: ");
    let status = sandbox.ok(&["status", "served"]).stdout;
    assert_eq!(fingerprint(&status, "roster of 3 clients: "), shown);
    for name in NAMES {
        let told = sandbox.read(&format!("{name}.log"));
        assert!(told.contains(&format!("roster of 3 clients: {shown}, as accepted")), "{told}");
        let said = one_line(&told).contains("the clients are those of the roster that you gave");
        assert!(said, "{told}");
        // The file in the folder is one that --roster reads.
        let kept = sandbox.read(&format!("client-{name}/roster.txt"));
        for line in lines(&sandbox, &NAMES).lines() {
            let identity = line.rsplit(' ').next().unwrap();
            assert!(kept.contains(identity), "{kept}: {identity}");
        }
        let ledger = sandbox.ok(&["ledger", &format!("client-{name}")]).stdout;
        assert!(ledger.contains(&format!("roster of 3 clients: {shown} (accepted)")), "{ledger}");
    }
    // A lost identity is not replaced by another one.
    std::fs::remove_file(sandbox.path("client-north/mask-identity")).unwrap();
    sandbox.fails(&["identity", "client-north"], 1, "mask-identity: it is missing");
}

/// A client whose user knows fewer or other identities sends nothing under the coordinator's roster,
/// and resumes once its user accepts it.
#[test]
fn another_roster_is_refused_until_it_is_accepted() {
    let sandbox = masked_wards(8, true);
    sandbox.write("all", &lines(&sandbox, &NAMES));
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let [east, north, west] = &invitations[..] else { panic!("{invitations:?}") };
    let mut clients = vec![joins(&sandbox, east, "@all")];
    sandbox.write("two", &lines(&sandbox, &["east", "north"]));
    let mut refusing = joins(&sandbox, north, "@two");
    let last = joins(&sandbox, west, "@all");
    let mut code = None;
    wait("refusal", || {
        code = refusing.code();
        code.is_some()
    });
    assert_eq!(code, Some(4), "{}", sandbox.read("north.log"));
    let told = sandbox.read("north.log");
    assert!(told.contains("is not on the accepted roster: nothing was sent"), "{told}");
    // It enrolled, and no exchange of any stage left.
    let ledger = sandbox.ok(&["ledger", "client-north"]).stdout;
    let lines = ledger.lines().filter(|line| line.starts_with("  "));
    let counts = lines.filter_map(|line| line.split_once(" of ")).map(|(count, _)| count);
    let kinds = counts.filter(|count| !count.contains("enrol") && !count.contains("bytes"));
    assert!(kinds.clone().count() > 2 && kinds.clone().all(|k| k.ends_with(" 0")), "{ledger}");
    // So does a client with another fingerprint; its restart keeps to it.
    let zeros = ["0000"; 8].join("-");
    let args = ["join", &north.1, "--data", "north.csv", "--out", "client-north", "--yes"];
    let args = [&args[..], &["--min-group", "1", "--give-up", "120"]].concat();
    let why = format!("and {zeros} was accepted: nothing was sent under it");
    sandbox.fails(&[&args[..], &["--roster", &zeros]].concat(), 4, &why);
    sandbox.fails(&args, 4, &why);
    // Fewer clients than its user expects would hide its messages less.
    sandbox.write("four", &(sandbox.read("all") + &self::lines(&sandbox, &["south"])));
    let why = "is missing from the roster: sums with and without a client";
    sandbox.fails(&[&args[..], &["--roster", "@four"]].concat(), 4, why);
    clients.extend([joins(&sandbox, north, "@all"), last]);
    all_end(&sandbox, coordinator, &invitations, clients);
    same_model(&sandbox);
}

/// A client that is invited after the first stage has begun is refused with the reason, and the others
/// end in the simulation's bits.
#[test]
fn nobody_joins_a_masked_job_that_has_begun() {
    let sandbox = masked_wards(8, true);
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let status = || std::fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
    wait("enrolment", || status().contains("enrolment: waiting for"));
    let late = sandbox.ok(&["invite", "served", "south"]).stdout.trim().to_owned();
    sandbox.write("south.csv", &sandbox.read("north.csv"));
    let why = "nobody joins a masked job after its first stage has begun";
    let enter = ["join", &late, "--data", "south.csv", "--out", "client-south", "--yes"];
    sandbox.fails(&[&enter[..], &["--min-group", "1"]].concat(), 4, why);
    all_end(&sandbox, coordinator, &invitations, join_all(&sandbox, &invitations));
    same_model(&sandbox);
    assert!(sandbox.read("serve.log").contains(&format!("`south` cannot join: {why}")));
}

/// Rounds that may leave clients out need an explicit word, and a roster needs masks.
#[test]
fn masked_rounds_without_some_clients_need_a_word() {
    let sandbox = masked_wards(3, true);
    let job = sandbox.read("job.toml");
    let deadline = "heartbeat_s = 1\nquorum = 2\ndeadline_s = 600\n";
    sandbox.write("job.toml", &job.replace("heartbeat_s = 1\n", deadline));
    let (_coordinator, name, invitation) = served(&sandbox);
    let data = format!("{name}.csv");
    let enter = ["join", &invitation, "--data", &data, "--out", "x"];
    sandbox.fails(&enter, 2, "rounds close 600 s after they began: a client that returns");
    let allowed = sandbox.run(&[&enter[..], &["--partial-rounds"]].concat());
    assert!(
        allowed.code == 5 && one_line(&allowed.stderr).contains("can be read off the masked sum")
    );
    sandbox.fails(&[&enter[..], &["--roster", "12-34"]].concat(), 2, "is not a fingerprint");

    let plain = wards(3, "");
    let (_coordinator, name, invitation) = served(&plain);
    let data = format!("{name}.csv");
    let enter = ["join", &invitation, "--data", &data, "--out", "x", "--roster", "@x"];
    plain.fails(&enter, 2, "--roster has no meaning: the job has no masks");
}
