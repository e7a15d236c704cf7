//! `readpath cachesim`: miss ratios of traces, held against those that another simulator has
//! of the same traces.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use readpath_core::splitmix;
use support::Scratch;

/// Folder of the traces and of libCacheSim's miss ratios on them. They are not part of this
/// project.
fn traces() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/cache");
    let is_there = folder.join("miss-ratios.txt").is_file();
    if !is_there {
        println!("skipped: there are no traces in {}", folder.display());
    }
    is_there.then_some(folder)
}

/// Policies implemented by both simulators: readpath's name and libCacheSim's name.
const POLICIES: [(&str, &str); 9] = [
    ("lru", "LRU"),
    ("2q", "TwoQ"),
    ("sieve", "Sieve"),
    ("s3fifo", "S3FIFO"),
    ("s4fifo", "S3FIFO"),
    ("arc", "ARC"),
    ("lirs", "LIRS"),
    ("clock2q", "Clock2QPl"),
    ("optimum", "Belady"),
];

/// Parses the published miss ratios, by trace, pages, and libCacheSim's name of the policy.
fn published(text: &str) -> BTreeMap<(String, u64, String), f64> {
    let (mut trace, mut header) = (String::new(), Vec::new());
    let mut ratios = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, _, "references,", ..] => trace = name.trim_end_matches(':').to_owned(),
            ["size", ..] => header = words[1..].to_vec(),
            [pages, ..] => {
                for (policy, ratio) in header.iter().zip(&words[1..]) {
                    let cell = (trace.clone(), pages.parse().unwrap(), (*policy).to_owned());
                    ratios.insert(cell, ratio.parse().unwrap());
                }
            }
            [] => {}
        }
    }
    ratios
}

/// Runs the command on a trace and compares each cell with the published ratio, within 0.002.
/// Returns the number of cells.
fn compare(folder: &Path, trace: &str, sizes: &str) -> usize {
    let published = published(&std::fs::read_to_string(folder.join("miss-ratios.txt")).unwrap());
    let scratch = Scratch::new(&format!("ratios-{trace}"));
    let policies = POLICIES[..8].iter().map(|(ours, _)| *ours).collect::<Vec<_>>().join(",");
    let path = folder.join(trace);
    let ran = scratch.run(&format!(
        "cachesim {} --eviction {policies} --sizes {sizes} --first 4000000 --json",
        path.display()
    ));
    ran.has_ended(0, trace);
    let mut compared = 0;
    for cell in ran.results() {
        let policy = cell["eviction"].as_str().unwrap();
        let theirs = POLICIES.iter().find(|(ours, _)| *ours == policy).unwrap().1;
        let key = (trace.to_owned(), cell["pages"].as_u64().unwrap(), theirs.to_owned());
        // libCacheSim omits sizes of less than a hundred blocks.
        let Some(expected) = published.get(&key) else { continue };
        let ratio = cell["miss_ratio"].as_f64().unwrap();
        assert!(
            (ratio - expected).abs() <= 0.002,
            "{key:?}: {ratio} where {expected} is published"
        );
        compared += 1;
    }
    compared
}

#[test]
fn classic_policies_match_miss_ratios_of_another_simulator() {
    let Some(folder) = traces() else { return };
    let all = "0.5%,2%,5%,10%,20%,40%";
    let mut compared = 0;
    for name in ["2_pools", "cpp", "gli", "multi1", "multi2", "ps", "scan", "zigzag"] {
        compared += compare(&folder, &format!("lirs-{name}.trace.gz"), all);
    }
    assert_eq!(compared, 33 * POLICIES.len(), "every published cell was compared");
}

/// Sizes, ghosts and thresholds of `s4fifo` that libCacheSim's S3FIFO has as well: its
/// `small_size_ratio`, `ghost_size_ratio` and `move_to_main_threshold`.
const S3FIFO_PARAMETERS: [&str; 2] =
    ["s4fifo,ghost=300,promote=1,small=25", "s4fifo,ghost=50,promote=3,small=50"];

/// Trace, pages, and the miss ratios of libCacheSim 0.3.5 with these parameters.
const S3FIFO_RATIOS: [(&str, u64, [f64; 2]); 16] = [
    ("2_pools", 993, [0.4567, 0.4567]),
    ("2_pools", 3975, [0.3159, 0.3160]),
    ("cpp", 122, [0.2079, 0.2483]),
    ("cpp", 489, [0.1414, 0.1428]),
    ("gli", 252, [0.8710, 0.9066]),
    ("gli", 1011, [0.6979, 0.7247]),
    ("multi1", 260, [0.5137, 0.5283]),
    ("multi1", 1042, [0.4260, 0.4381]),
    ("multi2", 568, [0.5262, 0.5732]),
    ("multi2", 2273, [0.3307, 0.3671]),
    ("ps", 308, [0.4825, 0.6550]),
    ("ps", 1233, [0.3718, 0.4366]),
    ("scan", 200, [0.9280, 0.9520]),
    ("scan", 800, [0.8881, 0.8081]),
    ("zigzag", 200, [0.9764, 0.9524]),
    ("zigzag", 800, [0.9005, 0.8082]),
];

#[test]
fn s4fifo_matches_s3fifo_of_another_simulator_with_other_parameters() {
    let Some(folder) = traces() else { return };
    let scratch = Scratch::new("s4fifo");
    for rows in S3FIFO_RATIOS.chunk_by(|a, b| a.0 == b.0) {
        let trace = folder.join(format!("lirs-{}.trace.gz", rows[0].0));
        let ran = scratch.run(&format!(
            "cachesim {} --eviction {} --sizes 10%,40% --json",
            trace.display(),
            S3FIFO_PARAMETERS.join(",")
        ));
        ran.has_ended(0, rows[0].0);
        let cells = ran.results();
        for &(name, pages, expected) in rows {
            for (policy, expected) in S3FIFO_PARAMETERS.into_iter().zip(expected) {
                let is_cell = |cell: &&serde_json::Value| {
                    cell["eviction"] == policy && cell["pages"] == pages
                };
                let cell = cells.iter().find(is_cell).unwrap();
                let ratio = cell["miss_ratio"].as_f64().unwrap();
                assert!(
                    (ratio - expected).abs() <= 0.002,
                    "{name}, {pages} pages, {policy}: {ratio} where {expected} is expected"
                );
            }
        }
    }
}

/// On the same traces, `adaptive` has a mean closer to the optimum than `s3fifo` and `arc`. It is
/// at most 0.01 worse than `two-lists` on any trace. These properties are guaranteed for any trace.
/// Its distance from the best of all others is a measured bound; the aim is 1.02.
#[test]
fn adaptive_eviction_stays_near_the_best_other_policy() {
    let Some(folder) = traces() else { return };
    let scratch = Scratch::new("adaptive");
    let names = ["2_pools", "cpp", "gli", "multi1", "multi2", "ps", "scan", "zigzag"];
    let paths =
        names.map(|name| folder.join(format!("lirs-{name}.trace.gz")).display().to_string());
    let ran = scratch.run(&format!("cachesim {} --sizes 5%,10%,20%,40% --json", paths.join(" ")));
    ran.has_ended(0, "the traces");
    let results = ran.results();
    let mut distance = [0.0; 3];
    let rows = results.chunk_by(|a, b| (&a["trace"], &a["size"]) == (&b["trace"], &b["size"]));
    for row in rows {
        let ratio = |policy: &str| {
            let cell = row.iter().find(|cell| cell["eviction"] == policy).unwrap();
            cell["miss_ratio"].as_f64().unwrap()
        };
        let ours = ratio("adaptive");
        let others = ["two-lists", "lru", "s3fifo", "arc", "lirs", "clock2q"].map(ratio);
        let best = others.into_iter().fold(1.0, f64::min);
        let (trace, size) = (&row[0]["trace"], &row[0]["size"]);
        assert!(ours <= 1.01 * ratio("two-lists"), "{trace} {size}: {ours}");
        assert!(ours <= 1.06 * best, "{trace} {size}: {ours} where {best} is the best");
        for (sum, policy) in distance.iter_mut().zip(["adaptive", "s3fifo", "arc"]) {
            *sum += ratio(policy) - ratio("optimum");
        }
    }
    assert!(distance[0] <= distance[1] && distance[0] <= distance[2], "{distance:?}");
}

/// `adaptive` misses at most 1.02 times as often as the worst of the policies that it chooses from.
/// Each change of policy costs misses, so that frequent changes can exceed all of them. The
/// small traces, whose pages are all sampled, run in 5 % to 95 % of their blocks. The other two
/// cells are those that exceeded the bound.
#[test]
fn adaptive_eviction_is_no_worse_than_the_worst_policy_it_chooses_from() {
    let Some(folder) = traces() else { return };
    let scratch = Scratch::new("worst");
    let names = ["2_pools", "cpp", "gli", "multi1", "multi2", "ps", "scan", "zigzag"];
    let small = names.map(|name| format!("lirs-{name}.trace.gz"));
    let steps: Vec<String> = (1..20).map(|step| format!("{}%", 5 * step)).collect();
    let mut runs: Vec<(String, String)> =
        small.into_iter().map(|name| (name, steps.join(","))).collect();
    runs.push(("arc-P3.lis.zst".into(), "45%".into()));
    runs.push(("cloudphysics-w106.trace.xz".into(), "15%".into()));
    for (name, sizes) in runs {
        let path = folder.join(&name);
        let ran = scratch.run(&format!(
            "cachesim {} --eviction adaptive,clock2q,lirs,arc,lru --sizes {sizes} --json",
            path.display()
        ));
        ran.has_ended(0, &name);
        for row in ran.results().chunk_by(|a, b| a["size"] == b["size"]) {
            let misses = |policy: &str| {
                let cell = row.iter().find(|cell| cell["eviction"] == policy).unwrap();
                cell["misses"].as_u64().unwrap()
            };
            let worst = ["clock2q", "lirs", "arc", "lru"].map(misses).into_iter().max().unwrap();
            let ours = misses("adaptive");
            assert!(50 * ours <= 51 * worst, "{name} {}: {ours}, worst {worst}", row[0]["size"]);
        }
    }
}

/// The other traces have millions of references: one or two sizes each suffice.
#[test]
fn classic_policies_match_miss_ratios_on_storage_server_traces() {
    let Some(folder) = traces() else { return };
    let compared = compare(&folder, "arc-OLTP.lis.zst", "2%,20%")
        + compare(&folder, "arc-P3.lis.zst", "10%")
        + compare(&folder, "cloudphysics-w106.trace.xz", "10%");
    assert_eq!(compared, 4 * POLICIES.len());
}

#[test]
fn cachesim_table_json_and_picture_agree() {
    let scratch = Scratch::new("cache");
    let lines: String = (0..10).cycle().take(100).map(|block| format!("{block}\n")).collect();
    scratch.file("loop.trace", lines);
    let ran = scratch.run("cachesim loop.trace --eviction lru --sizes 90% --picture loop.html");
    ran.has_ended(0, "table");
    // LRU never hits in a loop of ten blocks with nine pages. The optimum misses ten times, and
    // then once in nine references.
    let row: Vec<&str> = ran.stdout.lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(row, ["loop.trace", "90%", "9", "1.0000", "0.2000"]);
    let page = std::fs::read_to_string(scratch.path("loop.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("optimum") && page.contains("lru"));
    assert!(!page.contains("http-equiv") && !page.contains("<script"), "it needs nothing else");
    let results = scratch.run("cachesim loop.trace --eviction lru --sizes 90% --json").results();
    assert_eq!(results[0]["misses"], 100);
    assert_eq!(results[1]["eviction"], "optimum");
    assert_eq!(results[1]["misses"], 20);
}

#[test]
fn invalid_cachesim_input_is_refused() {
    let scratch = Scratch::new("cache-bad");
    scratch.file("bad.trace", "1\n2\nx\n");
    scratch.file("two.txt", "1 2\n");
    scratch.file("good.trace", "1\n2\n");
    scratch.file("no.gz", "1\n");
    scratch.refused("cachesim bad.trace", &["bad.trace: line 3", "`x`", "whole number"]);
    scratch.refused("cachesim none.trace", &["none.trace", "No such file"]);
    scratch.refused("cachesim two.txt", &["two.txt", "--format", "lirs, arc"]);
    scratch.refused("cachesim two.txt --format tape", &["--format tape", "lirs, arc"]);
    scratch.refused("cachesim no.gz", &["no.gz", "no .gz file"]);
    scratch.refused("cachesim good.trace --eviction magic", &["magic", "two-lists", "lirs"]);
    scratch.refused("cachesim good.trace --eviction lru,x=1", &["`lru`", "`x`", "takes none"]);
    scratch.refused("cachesim good.trace --sizes 0%", &["--sizes 0%", "0.5%,20%"]);
    scratch.refused("cachesim good.trace --sizes 101%", &["--sizes 101%"]);
    scratch.refused("cachesim good.trace --sizes 1KiB", &["--sizes 1KiB", "4096"]);
    scratch.refused("cachesim good.trace --picture x.png", &["x.png", ".svg or .html"]);
    scratch.refused("cachesim good.trace --first 0", &["--first", "0"]);
}

/// One cell of each kind, and one of a trace. Three references to two blocks in a memory of two
/// miss twice under any policy.
#[test]
fn eviction_matrix_evaluates_generated_loads_and_traces() {
    let scratch = Scratch::new("cache-regret");
    scratch.file("three.trace", "1\n2\n1\n");
    let ran = scratch.run("eval eviction three.trace --sizes 100% --cells /three --json");
    ran.has_ended(0, "a trace");
    let [cell] = &ran.results()[..] else { panic!("one cell") };
    assert_eq!(cell["cell"], "references/three.trace/100%");
    assert_eq!((&cell["judged"]["cost"], &cell["ratio"]), (&2.into(), &1.0.into()));
    assert_eq!(cell["optimum"]["cost"], 2);
    let ran = scratch.run("eval eviction --cells zipf --smoke --all");
    ran.has_ended(0, "those made here");
    for word in ["references/zipf/5%", "reads/zipf-scan", "geometric mean", "above 1.02"] {
        assert!(ran.stdout.contains(word), "no `{word}` in\n{}", ran.stdout);
    }
    scratch.refused("eval eviction --cells magic", &["magic", "references/zipf/20%"]);
    scratch.refused("eval eviction --eviction magic", &["magic", "two-lists"]);
}

/// Two pages, the first of them twice, in each format that `run` takes: `cache` and `run` agree on
/// the format, and on the packing, by the same first bytes.
#[test]
fn cachesim_and_run_accept_the_same_trace_formats() {
    let scratch = Scratch::new("same-traces");
    let msr = "128166372003061629,hm,1,read,0,4096,413\n128166372003061639,hm,1,read,4096,4096,1\n\
               128166372003061649,hm,1,read,0,4096,1\n";
    let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n";
    let issued = " 8,0 3 1 0.0 697 D R 0 + 8 [x]\n 8,0 3 2 0.1 697 D R 8 + 8 [x]\n\
                  8,0 3 3 0.2 697 D R 0 + 8 [x]\n";
    let traces: [(&str, String); 8] = [
        ("spc", "0,0,4096,r,0.0\n0,8,4096,r,0.1\n0,0,4096,R,0.2\n".to_owned()),
        ("alibaba", "1,R,0,4096,1\n1,R,4096,4096,2\n1,R,0,4096,3\n".to_owned()),
        ("tencent", "1,0,8,0,9\n2,8,8,0,9\n3,0,8,0,9\n".to_owned()),
        (
            "iolog",
            "fio version 2 iolog\na add\na read 0 4096\na read 4096 4096\na read 0 4096\n"
                .to_owned(),
        ),
        ("msr", msr.to_owned()),
        ("msr-with-header", format!("{header}{msr}")),
        ("issued-only", issued.to_owned()),
        ("mqsim", "1 0 0 8 1\n2 0 8 8 1\n3 0 0 8 1\n".to_owned()),
    ];
    let mut names: Vec<String> = Vec::new();
    for (name, text) in &traces {
        scratch.file(&format!("{name}.trace"), text);
        names.push(format!("{name}.trace"));
        if *name != "issued-only" {
            scratch.run(&format!("recording import {name}.trace -o {name}.rec")).has_ended(0, name);
        }
    }
    names.push("spc.rec".to_owned());
    for program in ["gzip", "zstd", "xz"] {
        let packed = std::process::Command::new("sh")
            .current_dir(&scratch.0)
            .args(["-c", &format!("{program} -k msr.trace")])
            .status();
        match packed.is_ok_and(|status| status.success()) {
            true => {}
            false => println!("skipped: {program} is not installed"),
        }
    }
    let packed = ["gz", "zst", "xz"].map(|ending| format!("msr.trace.{ending}"));
    names.extend(packed.into_iter().filter(|name| scratch.path(name).exists()));
    for name in &names {
        let cached = scratch.run(&format!("cachesim {name} --sizes 100% --eviction lru --json"));
        cached.has_ended(0, name);
        let cell = &cached.results()[0];
        assert_eq!((&cell["references"], &cell["misses"]), (&3.into(), &2.into()), "{name}");
        let ran = scratch.run(&format!("run {name} --on ssd --json"));
        ran.has_ended(0, name);
        assert_eq!(ran.results()[0]["bytes"], 3 * 4096, "{name}");
    }
    let ran = scratch.run("run issued-only.trace --on ssd --json");
    let note = ran.results()[0]["note"].to_string();
    assert!(note.contains("issued ones (D) count"), "{note}");
    scratch
        .run("cachesim issued-only.trace")
        .says(&["issued ones (D) count"], "no queued requests");
    scratch.refused("recording import spc.rec -o x.rec", &["neither the text of `strace"]);
    scratch.file("no.trace.gz", "1,R,0,4096,1\n");
    scratch.refused("run no.trace.gz --on ssd", &["no.trace.gz", "no .gz file"]);
}

/// Number of references of the generated trace of objects.
const OBJECT_REFERENCES: u64 = 30_000;

/// The number of SplitMix64 after `index` steps from seed 0, and one more.
fn drawn(index: u64) -> u64 {
    splitmix::next(&mut index.wrapping_mul(splitmix::STEP))
}

/// Size of an object of the generated trace: 64 to 4,159 bytes, or more than every tested memory.
fn object_bytes(object: u64) -> u32 {
    let number = drawn(object + 1_000_000);
    match object % 500 {
        499 => 400_000,
        _ => ((64 << (number % 7)) + (number >> 32) % 64) as u32,
    }
}

/// References of the generated trace: an eighth to new objects, half to popular ones of 3,000
/// objects, and the rest to any of these.
fn object_references() -> impl Iterator<Item = u64> {
    (0..OBJECT_REFERENCES).map(|index| {
        let number = drawn(index);
        let drawn = (number >> 8) % 3_000;
        match number % 8 {
            0 => index,
            1..=4 => drawn * drawn / 3_000 * drawn / 3_000,
            _ => drawn,
        }
    })
}

/// Memory in bytes, policy, and miss ratio and byte miss ratio on the generated trace: of
/// libCacheSim 0.3.5 (PyPI).
const OBJECT_RATIOS: [(u64, &str, f64, f64); 15] = [
    (50_000, "fifo", 0.9567, 0.9862),
    (50_000, "lru", 0.9498, 0.9851),
    (50_000, "sieve", 0.8929, 0.9603),
    (50_000, "s3fifo", 0.8834, 0.9580),
    (50_000, "gdsf", 0.8647, 0.9805),
    (150_000, "fifo", 0.9135, 0.9631),
    (150_000, "lru", 0.9028, 0.9605),
    (150_000, "sieve", 0.8450, 0.9349),
    (150_000, "s3fifo", 0.8405, 0.9261),
    (150_000, "gdsf", 0.7557, 0.9549),
    (350_000, "fifo", 0.8503, 0.9262),
    (350_000, "lru", 0.8369, 0.9198),
    (350_000, "sieve", 0.7832, 0.8906),
    (350_000, "s3fifo", 0.7721, 0.8824),
    (350_000, "gdsf", 0.6261, 0.9126),
];

/// Memory in bytes, eviction and admission policy, and miss ratio and byte miss ratio on the
/// generated trace: of libCacheSim 0.3.5 (PyPI). Policies with random draws: mean of 30 runs.
const ADMITTED_RATIOS: [(u64, &str, &str, f64, f64); 21] = [
    (50_000, "lru", "bloom", 0.9424, 0.9809),
    (50_000, "lru", "size:512", 0.8633, 0.9883),
    (50_000, "lru", "probability:0.3", 0.9399, 0.9829),
    (50_000, "lru", "size-probability:1000", 0.9026, 0.9829),
    (50_000, "lru", "adaptsize:5000", 0.8647, 0.9727),
    (50_000, "sieve", "bloom", 0.8902, 0.9609),
    (50_000, "sieve", "size:512", 0.8432, 0.9861),
    (150_000, "lru", "bloom", 0.8930, 0.9532),
    (150_000, "lru", "size:512", 0.7413, 0.9767),
    (150_000, "lru", "probability:0.3", 0.8929, 0.9545),
    (150_000, "lru", "size-probability:1000", 0.8162, 0.9529),
    (150_000, "lru", "adaptsize:5000", 0.7686, 0.9516),
    (150_000, "sieve", "bloom", 0.8481, 0.9322),
    (150_000, "sieve", "size:512", 0.7149, 0.9740),
    (350_000, "lru", "bloom", 0.8200, 0.9100),
    (350_000, "lru", "size:512", 0.6582, 0.9686),
    (350_000, "lru", "probability:0.3", 0.8222, 0.9120),
    (350_000, "lru", "size-probability:1000", 0.7030, 0.9173),
    (350_000, "lru", "adaptsize:5000", 0.6864, 0.9170),
    (350_000, "sieve", "bloom", 0.7797, 0.8850),
    (350_000, "sieve", "size:512", 0.6558, 0.9684),
];

/// Number of seeds whose mean is compared.
const SEEDS: u64 = 10;

/// Writes the generated trace of objects in the records of libCacheSim.
fn write_object_records(scratch: &Scratch, name: &str) {
    let mut records = Vec::new();
    for (time, object) in (0_u32..).zip(object_references()) {
        records.extend(time.to_le_bytes());
        records.extend(object.to_le_bytes());
        records.extend(object_bytes(object).to_le_bytes());
        records.extend((-1_i64).to_le_bytes());
    }
    scratch.file(name, records);
}

/// The ratios are equal within 0.002.
#[test]
fn admission_policies_match_both_miss_ratios_of_another_simulator() {
    let scratch = Scratch::new("admission");
    write_object_records(&scratch, "generated.oracleGeneral.bin");
    let command = "cachesim generated.oracleGeneral.bin --objects --sizes 50000,150000,350000";
    let seeded = |admission: &str| match admission.contains(':') && !admission.starts_with("size:")
    {
        true => (1..=SEEDS).map(|seed| format!("{admission}:{seed}")).collect(),
        false => vec![admission.to_owned()],
    };
    let ratios_of = |eviction: &str, admission: &str, key: &str| -> Vec<f64> {
        let ran = scratch.run(&format!(
            "{command} --eviction {eviction} --admission {} --json",
            seeded(admission).join(",")
        ));
        ran.has_ended(0, admission);
        let cells = ran.results();
        let of_memory = |cells: &[serde_json::Value]| {
            cells.iter().map(|cell| cell[key].as_f64().unwrap()).sum::<f64>() / cells.len() as f64
        };
        cells.chunks(cells.len() / 3).map(of_memory).collect()
    };
    for (eviction, admission) in
        ADMITTED_RATIOS[..ADMITTED_RATIOS.len() / 3].iter().map(|row| (row.1, row.2))
    {
        let rows = || ADMITTED_RATIOS.iter().filter(|row| (row.1, row.2) == (eviction, admission));
        let expected = [
            ("miss_ratio", rows().map(|row| row.3).collect::<Vec<f64>>()),
            ("byte_miss_ratio", rows().map(|row| row.4).collect()),
        ];
        for (key, expected) in expected {
            for (ratio, expected) in ratios_of(eviction, admission, key).iter().zip(expected) {
                assert!(
                    (ratio - expected).abs() <= 0.002,
                    "{eviction}, {admission}: {key} {ratio} where {expected} is expected"
                );
            }
        }
    }
}

/// The same references in both formats of objects have the same misses. The sum of the sizes of the
/// 6,277 distinct objects is from the generator in Python.
#[test]
fn object_policies_match_both_miss_ratios_of_another_simulator() {
    let scratch = Scratch::new("objects");
    let (mut records, mut lines) = (Vec::new(), String::new());
    let mut too_large = 0;
    for (time, object) in (0_u32..).zip(object_references()) {
        let size = object_bytes(object);
        records.extend(time.to_le_bytes());
        records.extend(object.to_le_bytes());
        records.extend(size.to_le_bytes());
        records.extend((-1_i64).to_le_bytes());
        lines += &format!("{{\"key\":\"object-{object}\",\"size\":{size}}}\n");
        too_large += u64::from(object % 500 == 499);
    }
    scratch.file("generated.oracleGeneral.bin", records);
    scratch.file("generated.jsonl", lines);
    let ran = scratch.run(
        "cachesim generated.oracleGeneral.bin generated.jsonl --objects \
         --sizes 50000,150000,350000 --json",
    );
    ran.has_ended(0, "generated objects");
    let cells = ran.results();
    assert_eq!(cells.len(), 2 * OBJECT_RATIOS.len());
    let expected = OBJECT_RATIOS.iter().cycle();
    for (cell, &(memory_bytes, policy, miss_ratio, byte_miss_ratio)) in cells.iter().zip(expected) {
        assert_eq!(
            (&cell["memory_bytes"], &cell["eviction"]),
            (&memory_bytes.into(), &policy.into())
        );
        assert_eq!((&cell["objects"], &cell["distinct_bytes"]), (&6277.into(), &12_802_102.into()));
        assert_eq!(cell["references"], OBJECT_REFERENCES);
        assert_eq!(cell["not_admitted"], too_large);
        for (key, expected) in [("miss_ratio", miss_ratio), ("byte_miss_ratio", byte_miss_ratio)] {
            let ratio = cell[key].as_f64().unwrap();
            assert!(
                (ratio - expected).abs() <= 0.002,
                "{policy} in {memory_bytes}: {key} {ratio} where {expected} is expected"
            );
        }
    }
}

/// LRU in 50 % of 40 bytes, for the references a b a c a with 10, 10 and 20 bytes. Each misses
/// once, and c evicts both others, so that a misses again: 4 of 5 references, 50 of 60 bytes.
/// In 15 bytes a, b, a and c miss, and c is not admitted, so that the last a is a hit.
#[test]
fn cachesim_of_objects_prints_both_ratios_and_refuses_bad_input() {
    let scratch = Scratch::new("objects-table");
    let line = |key: &str, size: u64| format!("{{\"key\": \"{key}\", \"size\": {size}}}\n");
    let [a, b, c] = [line("a", 10), line("b", 10), line("c", 20)];
    scratch.file("five.jsonl", [&*a, &b, &a, &c, &a].concat());
    let ran = scratch.run("cachesim five.jsonl --objects --eviction lru --sizes 50%,15");
    ran.has_ended(0, "table");
    let rows: Vec<Vec<&str>> =
        ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["five.jsonl", "50%", "lru", "all", "20", "0.8000", "0.8333", "0"]);
    assert_eq!(rows[2], ["five.jsonl", "15", "lru", "all", "15", "0.8000", "0.8333", "1"]);
    let ran =
        scratch.run("cachesim five.jsonl --objects --eviction lru --sizes 50% --first 3 --json");
    let cell = &ran.results()[0];
    assert_eq!((&cell["references"], &cell["bytes"]), (&3.into(), &30.into()));
    assert_eq!((&cell["misses"], &cell["missed_bytes"]), (&3.into(), &30.into()));

    scratch.file("bad.jsonl", format!("{a}{{\"key\": \"b\"}}\n"));
    scratch.file("cut.oracleGeneral.bin", vec![0_u8; 30]);
    scratch.file("empty.jsonl", "\n");
    scratch.file("blocks.trace", "1\n2\n");
    let refused = |options: &str, words: &[&str]| {
        scratch.refused(&format!("cachesim {options} --objects"), words);
    };
    refused("bad.jsonl", &["bad.jsonl: line 2", "\"size\": BYTES"]);
    refused("cut.oracleGeneral.bin", &["30 bytes", "records of 24 bytes", "cut off"]);
    refused("empty.jsonl", &["empty.jsonl", "no reference"]);
    refused("none.jsonl", &["none.jsonl", "No such file"]);
    refused("blocks.trace", &["blocks.trace", "--format", "oracle-general, jsonl"]);
    refused("five.jsonl --format lirs", &["--format lirs", "oracle-general, jsonl"]);
    refused("five.jsonl --eviction lirs", &["--eviction lirs", "fifo, lru, sieve, s3fifo, gdsf"]);
    refused("five.jsonl --admission lru", &["--admission lru", "all, size, probability"]);
    refused("five.jsonl --admission size", &["--admission size: expected size:LIMIT", "64KiB"]);
    refused("five.jsonl --admission probability:2", &["--admission probability:2", "up to 1"]);
    refused("five.jsonl --admission bloom:1", &["--admission bloom:1", "the name alone"]);
    refused(
        "five.jsonl --eviction lru,gdsf --admission tinylfu",
        &["--admission tinylfu", "gdsf", "--eviction fifo,lru,sieve"],
    );
    scratch.refused("cachesim blocks.trace --admission bloom", &["--objects"]);
    refused("five.jsonl --sizes 0", &["--sizes 0", "64MiB"]);
    refused("five.jsonl --sizes 101%", &["--sizes 101%", "100%"]);
    refused("five.jsonl --picture x.svg", &["--objects", "--picture"]);
    refused("five.jsonl --html x.html", &["--objects", "--html"]);
}
