//! `run --log`, `replay`, and the fairness of a row: decisions of the scheduler and shares of the
//! processes.

mod support;

use std::fs;

use support::Scratch;

/// Two readers, one of them in the idle class.
const UNEQUAL: &str = "[global]\nbs=64k\ndirect=1\nruntime=2\ntime_based=1\nsize=1g\nrw=read\n[usual]\n[idle]\nprioclass=3\n";

#[test]
fn decision_log_has_one_key_value_line_per_dispatch() {
    let scratch = Scratch::new("log");
    scratch.file("j.fio", "[j]\nrw=randread\nbs=64k\nsize=4m\n");
    scratch.data("data", 4 << 20);
    let command =
        "run j.fio --on hdd --on file:data --page-cache own --scheduler cfq --log decisions --json";
    let ran = scratch.run(command);
    ran.has_ended(0, command);
    let log = fs::read_to_string(scratch.path("decisions")).unwrap();
    let rows: Vec<&str> = log.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(rows, ["# hdd adaptive cfq", "# file:data adaptive cfq"]);
    let (modelled, real) = log.split_once("# file").unwrap();
    for (part, row) in [modelled, real].into_iter().zip(ran.results()) {
        let dispatches = part.lines().filter(|line| line.contains(" event=dispatch "));
        let sent = dispatches.count() as u64;
        assert_eq!(sent, row["device_requests"].as_u64().unwrap(), "one line for each request");
    }
    for line in log.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        assert!(fields[0].starts_with("at_ms=") && fields[1].starts_with("event="), "{line}");
        assert!(fields.iter().all(|field| field.split('=').count() == 2), "{line}");
    }
}

/// 64 KiB reads of a file of 4 MiB from its start. Each window lies beyond the request, and the
/// windows together are the whole file without its first block.
#[test]
fn window_log_lines_state_the_reason_for_the_window_size() {
    let scratch = Scratch::new("log-windows");
    scratch.file("j.fio", "[j]\nrw=read\nbs=64k\nsize=4m\n");
    let command = "run j.fio --on ssd --readahead adaptive --scheduler deadline --log windows";
    scratch.run(command).has_ended(0, command);
    let log = fs::read_to_string(scratch.path("windows")).unwrap();
    let windows: Vec<&str> = log.lines().filter(|line| !line.starts_with('#')).collect();
    let number = |line: &str, key: &str| -> u64 {
        let field = line.split(' ').find_map(|field| field.strip_prefix(&format!("{key}=")));
        field.unwrap_or_else(|| panic!("{key} in {line}")).parse().unwrap()
    };
    let mut next = 16;
    for line in &windows {
        assert!(line.contains(" event=read_ahead file=0 "), "{line}");
        assert!(line.contains(" shape=forward why="), "{line}");
        assert_eq!(number(line, "readers"), 1, "{line}");
        assert_eq!(number(line, "first"), next, "{line}");
        next += number(line, "pages");
    }
    assert_eq!(next, 1024, "{log}");
}

/// Sweep over memory: each line names the reason of the read and the available space.
#[test]
fn swap_in_log_lines_state_the_reason_for_the_read_size() {
    let scratch = Scratch::new("log-swapin");
    let load =
        "[[load]]\nname = 'l'\nmapping = '8m'\nmemory = '2m'\npattern = 'sequential'\nsweeps = 2\n";
    scratch.file("l.toml", load);
    let command = "run l.toml --on ssd --scheduler noop --log ahead";
    scratch.run(command).has_ended(0, command);
    let log = fs::read_to_string(scratch.path("ahead")).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with('#')).collect();
    // Two sweeps of 2,048 pages, each time at most half of the memory: 256 pages.
    assert!((16..1024).contains(&lines.len()), "{log}");
    for line in lines {
        assert!(line.contains(" event=swap_in memory=0 "), "{line}");
        for key in [" by=", " wanted_pages=", " room_pages=", " value=", " waiting=1 "] {
            assert!(line.contains(key), "{key} in {line}");
        }
    }
}

#[test]
fn unsupported_or_overwriting_log_is_refused() {
    let scratch = Scratch::new("log-refused");
    scratch.file("j.fio", UNEQUAL);
    let cases = [
        (
            "run j.fio --readahead ondemand --scheduler cfq,deadline --log out",
            ["deadline", "keeps a log"],
        ),
        ("run j.fio --on kernel:data --scheduler cfq --log out", ["kernel:data", "leave out"]),
        ("run j.fio --scheduler cfq --log ./j.fio", ["j.fio", "name another file"]),
        ("run j.fio --scheduler cfq --log no/out", ["no/out", "can be written"]),
    ];
    for (arguments, words) in cases {
        scratch.refused(arguments, &words);
    }
    assert_eq!(scratch.names(), ["j.fio"], "no log is begun");
    assert_eq!(fs::read_to_string(scratch.path("j.fio")).unwrap(), UNEQUAL);
}

#[test]
fn process_shares_and_jain_index_reveal_starvation() {
    let scratch = Scratch::new("fairness");
    scratch.file("j.fio", UNEQUAL);
    let ran = scratch.run("run j.fio --on hdd --scheduler cfq,noop --json");
    ran.has_ended(0, "two schedulers");
    let [by_class, by_turn] = &ran.results()[..] else { panic!("two rows") };
    let share = |row: &serde_json::Value, at: usize| row["streams"][at]["share"].as_f64().unwrap();
    assert_eq!(by_class["streams"][1]["name"], "idle");
    assert!(share(by_class, 0) > 0.9, "{by_class:#}");
    assert!((share(by_class, 0) + share(by_class, 1) - 1.0).abs() < 1e-9);
    assert!(by_class["jain_index"].as_f64().unwrap() < 0.6);
    assert!(by_turn["jain_index"].as_f64().unwrap() > 0.95, "noop knows no class");
    let table = scratch.run("run j.fio --on hdd --scheduler noop");
    assert!(table.stdout.lines().nth(2).unwrap().ends_with("jain"), "{}", table.stdout);
}

/// Worked by hand: the second request arrives while the device idles for the first one's process.
/// It must wait until the idle time ends, 7 to 8 ms later.
#[test]
fn event_list_is_replayed_and_invalid_lines_are_named() {
    let scratch = Scratch::new("replay");
    let arrive = |request, process, start| {
        format!(
            "event=arrive request={request} process={process} op=read start={start} sectors=8\n"
        )
    };
    let events = format!(
        "at_ms=0 {}at_ms=1.25 event=complete request=1\nat_ms=2 {}at_ms=12 event=wait\n",
        arrive(1, 1, 0),
        arrive(2, 2, 1_000_000)
    );
    scratch.file("events", &events);
    let ran = scratch.run("replay events --scheduler cfq");
    ran.has_ended(0, "replay");
    let at = |what: &str| {
        let line = ran.stdout.lines().find(|line| line.contains(what));
        let line = line.unwrap_or_else(|| panic!("{what} in\n{}", ran.stdout));
        line.split(' ').next().unwrap()["at_ms=".len()..].parse::<f64>().unwrap()
    };
    assert_eq!(at("event=dispatch request=1"), 0.0);
    assert_eq!(at("event=idle_start"), 1.25);
    assert!((8.25..9.3).contains(&at("event=dispatch request=2")), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("\n# 1 of 1 requests equal\n"), "{}", ran.stdout);
    // Scheduler without idling: its second request completes before readpath's is dispatched.
    scratch.file(
        "other",
        format!("{events}at_ms=13 event=arrive request=3 process=1 op=read start=8 sectors=8\n")
            .replace("at_ms=12 event=wait", "at_ms=6 event=complete request=2")
            + "at_ms=22 event=complete request=3\n",
    );
    let ran = scratch.run("replay other --json");
    ran.has_ended(1, "what differs");
    let row = &ran.results()[0];
    assert_eq!((&row["judged"], &row["equal"]), (&3.into(), &2.into()), "{row:#}");
    let divergence = serde_json::json!(
        [{"line": 4, "at_ms": 6.0, "request": 2, "policy": "holds_it", "other": null}]
    );
    assert_eq!(row["divergences"], divergence);
    let ran = scratch.run("replay other");
    ran.has_ended(1, "what differs");
    let line = "at_ms=6.000000 event=divergence line=4 request=2 policy=holds_it";
    assert!(ran.stdout.lines().any(|it| it == line), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("\n# 2 of 3 requests equal\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("1 of 3 requests differ"), "{}", ran.stderr);
    scratch.file("bad", format!("{events}at_ms=13 event=arrive request=3\n"));
    scratch.refused("replay bad", &["bad", "line 5"]);
    scratch.refused("replay events --scheduler cfq,noop", &["one scheduler"]);
    scratch.refused("replay nowhere", &["nowhere", "list of events"]);
}
