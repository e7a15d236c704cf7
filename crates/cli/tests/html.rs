//! `--html`: pages that need nothing else, opened in a real browser.
//!
//! The browser is headless Chromium; where none is installed the tests that need it say so and skip.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{RANDOM, Scratch};

/// The document as it is once its script has run; none where there is no browser.
fn opened(scratch: &Scratch, page: &str, fragment: &str) -> Option<String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let Some(browser) = names.into_iter().find(|name| support::has(name)) else {
        println!("skipped: opening a page needs Chromium");
        return None;
    };
    let address = format!("file://{}{fragment}", scratch.path(page).display());
    let profile = format!("--user-data-dir={}", scratch.path("browser").display());
    let words =
        ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile, "--dump-dom"];
    let output =
        Command::new(browser).args(words).arg(address).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The page as it was written, checked for what every page is.
fn page(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    // The name of a language, which nobody fetches.
    let text = text.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    assert!(text.starts_with("<!doctype html>"), "{text}");
    let outside = ["http:", "https:", "src=", "<link", "@import", "url("];
    for word in outside {
        assert!(!text.contains(word), "{}: refers to something outside: {word}", path.display());
    }
    assert!(text.contains("default-src 'none'"));
    text
}

/// The first cells of a table's rows, from top to bottom.
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

    // The rate is the fifth column: a disk is the slowest, whatever the figures.
    let Some(sorted) = opened(&scratch, "page.html", "#sort=0.4.descending") else { return };
    assert_eq!(first_cells(&sorted), ["nvme", "ssd", "hdd"]);
    assert_eq!(sorted.matches("aria-sort=\"descending\">").count(), 1);

    // Somebody clicks, once and twice: a script at the end of a copy does it.
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

#[test]
fn every_command_that_compares_writes_its_page() {
    let scratch = Scratch::new("html-all");
    let example =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let (mixed, swap) = (example("mixed.trace"), example("swap.toml"));
    for (arguments, words) in [
        ("reproduce A".to_owned(), vec!["Table A", "orange published"]),
        (
            format!("cache {} --sizes 20% --reclaim lru,lirs", mixed.display()),
            vec!["lirs", "Belady"],
        ),
        ("cache-regret --cells /phases/ --smoke".to_owned(), vec!["Every law in every cell"]),
        ("regret --cells /ssd/,rand-4k/ --smoke".to_owned(), vec!["Throughput to that", "rand-4k"]),
        (format!("run {} --on ssd --swapin none", swap.display()), vec!["Loads on memory"]),
        (
            "everyday . --rows stream/1MiB/64KiB --states cached --runs 1 --small".to_owned(),
            vec!["Everyday reads", "reaches its bar"],
        ),
    ] {
        let ran = scratch.run(&format!("{arguments} --html page.html"));
        ran.has_ended(0, &arguments);
        let text = page(&scratch.path("page.html"));
        for word in words {
            assert!(text.contains(word), "{arguments}: no `{word}`");
        }
        assert!(text.contains("<svg") && text.contains("<table"), "{arguments}");
        std::fs::remove_file(scratch.path("page.html")).unwrap();
    }
}

/// The example is of reads one at a time: that is the first finding, and its file has a picture of places over time.
#[test]
fn an_explanation_is_a_page_with_pictures() {
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
        "in vain",
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

#[test]
fn names_from_outside_are_text_and_a_page_that_cannot_be_written_is_refused_before_the_run() {
    let scratch = Scratch::new("html-names");
    scratch.file("<b>'j'.fio", RANDOM);
    let mut command = scratch.command(["run", "<b>'j'.fio", "--on", "ssd", "--html", "page.html"]);
    assert!(command.output().unwrap().status.success());
    let text = page(&scratch.path("page.html"));
    assert!(text.contains("&lt;b&gt;&#39;j&#39;") && !text.contains("<b>"), "{text}");
    scratch.file("j.fio", RANDOM);
    scratch.refused("run j.fio --html no/such/folder.html", &["folder.html", "can't be written"]);
    scratch.refused("cache x.trace --html .", &["can't be written"]);
}
