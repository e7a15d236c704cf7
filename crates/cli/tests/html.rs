//! `--html`: self-contained pages, opened in a real browser.
//!
//! The browser is headless Chromium. Tests that need it are skipped without it.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{RANDOM, Scratch};

/// Returns the document after its script has run; `None` without a browser.
fn opened(scratch: &Scratch, page: &str, fragment: &str) -> Option<String> {
    browsed(scratch, page, fragment).map(|(document, _)| document)
}

/// Like `opened`, with the browser's messages, including its console.
fn browsed(scratch: &Scratch, page: &str, fragment: &str) -> Option<(String, String)> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let Some(browser) = names.into_iter().find(|name| support::has(name)) else {
        println!("skipped: opening a page needs Chromium");
        return None;
    };
    let address = format!("file://{}{fragment}", scratch.path(page).display());
    let profile = format!("--user-data-dir={}", scratch.path("browser").display());
    let words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile];
    let output = Command::new(browser)
        .args(words)
        // Time for the page's work after loading.
        .args(["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", &address])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    Some((String::from_utf8(output.stdout).unwrap(), printed))
}

/// Reads a written page and checks the properties of every page.
fn page(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    // Name of a namespace, which is not fetched.
    let text = text.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    assert!(text.starts_with("<!doctype html>"), "{text}");
    let outside = ["http:", "https:", "src=", "<link", "@import", "url("];
    for word in outside {
        assert!(!text.contains(word), "{}: refers to something outside: {word}", path.display());
    }
    assert!(text.contains("default-src 'none'"));
    text
}

/// First cells of a table's rows, from top to bottom.
fn first_cells(document: &str) -> Vec<&str> {
    let rows = document.split("<tr>").filter_map(|row| row.trim_start().strip_prefix("<td>"));
    rows.map(|row| row.split_once("</td>").unwrap().0).collect()
}

#[test]
fn the_pages_of_a_job_are_sorted_by_the_address_and_by_a_click() {
    let scratch = Scratch::new("html-job");
    scratch.file("j.fio", RANDOM);
    let arguments = "run j.fio --on hdd,nvme,ssd --readahead none --html page.html";
    scratch.run(arguments).has_ended(0, arguments);
    let text = page(&scratch.path("page.html"));
    for word in ["Throughput", "Latency", "Moment by moment: nvme", "waited for the device"] {
        assert!(text.contains(word), "no {word}");
    }
    assert_eq!(first_cells(&text), ["hdd", "nvme", "ssd"], "as they ran");

    // The throughput is the fifth column: a hard disk is always the slowest.
    let Some(sorted) = opened(&scratch, "page.html", "#sort=0.4.descending") else { return };
    assert_eq!(first_cells(&sorted), ["nvme", "ssd", "hdd"]);
    assert_eq!(sorted.matches("aria-sort=\"descending\">").count(), 1);

    // A script at the end of a copy clicks once and twice.
    let click = "<script>document.querySelectorAll('th button')[0].click();</script>";
    let clicked =
        |clicks: usize| text.replace("</body>", &format!("{}</body>", click.repeat(clicks)));
    scratch.file("once.html", clicked(1));
    scratch.file("twice.html", clicked(2));
    let once = opened(&scratch, "once.html", "").unwrap();
    assert_eq!(first_cells(&once), ["hdd", "nvme", "ssd"]);
    assert!(once.contains("aria-sort=\"ascending\">"));
    let twice = opened(&scratch, "twice.html", "").unwrap();
    assert_eq!(first_cells(&twice), ["ssd", "nvme", "hdd"]);
    assert!(twice.contains("aria-sort=\"descending\">"));
}

/// Script before everything else of a page. It notes errors and security violations.
const LISTEN: &str = r#"<script>
const noted = [];
addEventListener("error", (event) => noted.push(`error: ${event.message}`), true);
addEventListener("securitypolicyviolation", (event) => noted.push(`refused: ${event.blockedURI}`));
</script>"#;

/// Script after everything else of a page. It clicks the head of each column of each table once and
/// twice. It leaves the resulting columns, from top to bottom, in the document, with the noted
/// errors and the fetched resources.
const CLICK: &str = r#"<script>
const read = (table, column) => [...table.tBodies].map((body) => body.rows[0].cells[column].textContent);
const orders = [];
for (const table of document.querySelectorAll("table.sortable")) {
  for (let column = 0; column < table.tHead.rows[0].cells.length; column += 1) {
    const head = () => table.tHead.rows[0].cells[column];
    for (const before of [read(table, column), null]) {
      head().querySelector("button").click();
      const name = `${table.caption.textContent}: ${head().textContent}`;
      orders.push({ name, before, after: read(table, column), way: head().getAttribute("aria-sort") });
    }
  }
}
addEventListener("load", () => setTimeout(() => {
  const left = document.createElement("pre");
  left.id = "left";
  const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
  const pictures = document.querySelectorAll("figure svg").length;
  left.textContent = btoa(unescape(encodeURIComponent(JSON.stringify({ noted, fetched, pictures, orders }))));
  document.body.append(left);
}, 50));
</script>"#;

/// Opens a page in a browser and clicks every column of every table. Returns the result; `None`
/// without a browser.
fn clicked(scratch: &Scratch, text: &str) -> Option<serde_json::Value> {
    let page = text.replace("<head>", &format!("<head>{LISTEN}"));
    scratch.file("clicked.html", page.replace("</body>", &format!("{CLICK}</body>")));
    let (document, printed) = browsed(scratch, "clicked.html", "")?;
    let left = document.split_once("<pre id=\"left\">").expect("its script ran").1;
    let left = decoded(left.split_once("</pre>").unwrap().0);
    let mut left: serde_json::Value = serde_json::from_slice(&left).unwrap();
    let console: Vec<&str> = printed.lines().filter(|line| line.contains("CONSOLE")).collect();
    left["console"] = console.into();
    Some(left)
}

/// Decodes base 64.
fn decoded(text: &str) -> Vec<u8> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sixes = text.bytes().filter_map(|letter| letters.find(char::from(letter)));
    let bits: Vec<bool> =
        sixes.flat_map(|six| (0..6).rev().map(move |at| six >> at & 1 == 1)).collect();
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    bits.chunks_exact(8).map(byte).collect()
}

/// Quantity in a cell: its number times its unit. `None` for other text.
fn worth(cell: &str) -> Option<f64> {
    let cell = cell.trim().trim_start_matches('<');
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let units = [
        ("", 1.0),
        ("%", 1.0),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    let (_, worth) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number.parse::<f64>().ok()? * worth)
}

/// Checks that a clicked column has its original cells, in the direction shown in its head.
fn assert_sorted(what: &str, order: &serde_json::Value, cells_before: &mut Vec<String>) {
    let cells =
        |which: &str| -> Option<Vec<String>> { serde_json::from_value(order[which].clone()).ok() };
    let what = format!("{what}: {}", order["name"]);
    let after = cells("after").unwrap();
    if let Some(before) = cells("before") {
        *cells_before = before;
    }
    let sorted = |cells: &[String]| {
        let mut cells = cells.to_vec();
        cells.sort();
        cells
    };
    assert_eq!(sorted(&after), sorted(cells_before), "{what}: no row is lost");
    let falls = match order["way"].as_str() {
        Some("ascending") => false,
        Some("descending") => true,
        other => panic!("{what}: its head says {other:?}"),
    };
    // In a column of quantities, other cells (`-`) are last.
    if after.iter().any(|cell| worth(cell).is_some()) {
        let numbers: Vec<f64> = after.iter().map_while(|cell| worth(cell)).collect();
        assert!(
            after[numbers.len()..].iter().all(|cell| worth(cell).is_none()),
            "{what}: {after:?}"
        );
        let is_right = |pair: &[f64]| if falls { pair[0] >= pair[1] } else { pair[0] <= pair[1] };
        assert!(numbers.windows(2).all(is_right), "{what}: {after:?}");
    }
}

/// Every command with `--html` writes a self-contained page. In a browser it fetches nothing,
/// violates no policy, and logs no message. A click sorts each column of each table.
#[test]
fn html_pages_of_all_commands_sort_by_click_and_fetch_nothing() {
    let scratch = Scratch::new("html-all");
    let example = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        folder.join(name).display().to_string()
    };
    scratch.file("j.fio", RANDOM);
    let recording = example("one-at-a-time.rec");
    for (arguments, words) in [
        (
            "run j.fio --on hdd,ssd --on file:j.data --on kernel:j.data --create --page-cache own \
             --readahead none,adaptive"
                .to_owned(),
            vec!["Throughput of each row", "Distribution of latencies", "Reads by place and time"],
        ),
        (
            format!("run {} --on ssd --swapin none,adaptive", example("swap.toml")),
            vec![
                "Loads on memory",
                "Time of each row",
                "Faults of each row",
                "Requests by place and time",
            ],
        ),
        ("reproduce A E".to_owned(), vec!["Table A", "Table E", "orange published"]),
        (
            format!("cachesim {} --sizes 10%,20% --eviction lru,lirs", example("mixed.trace")),
            vec!["lirs", "Belady"],
        ),
        ("eval eviction --cells /phases/ --smoke".to_owned(), vec!["Every policy in every cell"]),
        (
            "eval policies --cells /ssd/,rand-4k/ --smoke".to_owned(),
            vec!["Throughput to that", "rand-4k", "Point at a square"],
        ),
        (
            "everyday . --rows stream/1MiB/64KiB,random/4KiB/1 --states cached --runs 1 --small"
                .to_owned(),
            vec!["Access patterns", "meets its goal"],
        ),
        (format!("explain {recording}"), vec!["What a program reads", "Working set"]),
        (format!("replay {recording} --on nvme,hdd"), vec!["Time"]),
    ] {
        let ran = scratch.run(&format!("{arguments} --html page.html"));
        ran.has_ended(0, &arguments);
        let text = page(&scratch.path("page.html"));
        for word in words {
            assert!(text.contains(word), "{arguments}: no `{word}`");
        }
        assert!(text.contains("<svg") && text.contains("<table"), "{arguments}");
        std::fs::remove_file(scratch.path("page.html")).unwrap();

        let Some(left) = clicked(&scratch, &text) else { continue };
        for what in ["noted", "fetched", "console"] {
            assert_eq!(left[what], serde_json::json!([]), "{arguments}");
        }
        assert!(left["pictures"].as_u64() > Some(0), "{arguments}");
        let orders = left["orders"].as_array().unwrap();
        assert!(orders.len() >= 4, "{arguments}: {orders:?}");
        let mut before = Vec::new();
        orders.iter().for_each(|order| assert_sorted(&arguments, order, &mut before));
    }
}

/// Checks the test above: it must detect a page that fetches a picture and has an error.
#[test]
fn page_check_detects_external_fetches_and_script_errors() {
    let scratch = Scratch::new("html-canary");
    scratch.file("j.fio", RANDOM);
    scratch.run("run j.fio --on ssd --html page.html").has_ended(0, "a page");
    let text = page(&scratch.path("page.html"));
    let wanting = "<img src=\"http://127.0.0.1:9/picture.png\"><script>nobody();</script></main>";
    let Some(left) = clicked(&scratch, &text.replace("</main>", wanting)) else { return };
    let noted = left["noted"].to_string();
    assert!(noted.contains("refused: http://127.0.0.1:9/picture.png"), "{noted}");
    assert!(noted.contains("nobody is not defined"), "{noted}");
    assert!(left["console"].to_string().contains("nobody is not defined"), "{left}");
}

/// The example reads with one request in flight. This is the first finding, and its file has a
/// picture of offsets over time.
#[test]
fn explain_page_contains_pictures() {
    let scratch = Scratch::new("html-explain");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/one-at-a-time.rec");
    let arguments = format!("explain {} --html page.html", example.display());
    let ran = scratch.run(&arguments);
    ran.has_ended(0, &arguments);
    let text = page(&scratch.path("page.html"));
    let pictures = [
        "Reads by place and time",
        "Latency over time",
        "Depth over time",
        "and unused",
        "Working set",
    ];
    for word in pictures {
        assert!(text.contains(word), "no `{word}`");
    }
    let title = ran.stdout.lines().find_map(|line| line.strip_prefix("1. ")).expect("a finding");
    let title = title.rsplit_once(": ").unwrap().0;
    assert!(text.contains(title), "no `{title}`");
    let Some(opened) = opened(&scratch, "page.html", "#sort=0.1.descending") else { return };
    assert!(opened.matches("<svg").count() >= 5);
    assert_eq!(opened.matches("aria-sort=\"descending\">").count(), 1, "its script runs");
    scratch.refused(
        &format!("explain {} --html no/such/page.html", example.display()),
        &["can't be written"],
    );
}

/// `/dev/full` fails at the first write, as a full disk does.
#[test]
fn results_are_printed_though_their_page_cannot_be_written() {
    let scratch = Scratch::new("html-full");
    scratch.file("j.fio", RANDOM);
    let example = format!("{}/../../examples/one-at-a-time.rec", env!("CARGO_MANIFEST_DIR"));
    if !Path::new("/dev/full").exists() {
        return println!("skipped: needs /dev/full");
    }
    for command in [
        "run j.fio --on ssd".to_owned(),
        "run j.fio --on ssd --json".to_owned(),
        format!("explain {example}"),
        format!("replay {example} --on ssd"),
        format!("cachesim {example} --sizes 1MiB"),
        "eval eviction --cells loop --smoke".to_owned(),
        "reproduce A".to_owned(),
    ] {
        let plain = scratch.run(&command);
        plain.has_ended(0, &command);
        let ran = scratch.run(&format!("{command} --html /dev/full"));
        ran.has_ended(1, &command);
        ran.says(&["/dev/full: can't be written: No space left"], &command);
        assert_eq!(ran.stdout, plain.stdout, "{command}");
    }
}

#[test]
fn external_names_are_escaped_and_unwritable_pages_refused() {
    let scratch = Scratch::new("html-names");
    scratch.file("<b>'j'.fio", RANDOM);
    let mut command = scratch.command(["run", "<b>'j'.fio", "--on", "ssd", "--html", "page.html"]);
    assert!(command.output().unwrap().status.success());
    let text = page(&scratch.path("page.html"));
    assert!(text.contains("&lt;b&gt;&#39;j&#39;") && !text.contains("<b>"), "{text}");
    scratch.file("j.fio", RANDOM);
    scratch.refused("run j.fio --html no/such/folder.html", &["folder.html", "can't be written"]);
    scratch.refused("cachesim x.trace --html .", &["can't be written"]);
}
