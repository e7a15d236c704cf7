//! Traces through `run` and `cachesim`: packed in parts, of one name, from pipes, and with the
//! options of a job.

mod support;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use support::{Ran, Scratch};

/// Runs a command of the shell in the scratch folder. `$READPATH` is the command under test.
fn shell(scratch: &Scratch, script: &str) -> Ran {
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("READPATH", support::READPATH).current_dir(&scratch.0);
    Ran::of(command.stdin(Stdio::null()).output().unwrap())
}

/// Two files, packed one after the other: programs that pack in parallel write such files, and
/// `cat` of two packed files is one. zstd knows frames without data too (RFC 8878, 3.1.2), here
/// of 3 bytes, and xz pads its streams with zeros.
#[test]
fn packed_traces_of_several_parts_are_read_whole() {
    let scratch = Scratch::new("packed-parts");
    scratch.file("one", "0 0 0 8 1\n1 0 8 8 1\n");
    scratch.file("two", "2 0 16 8 1\n");
    scratch.file("none", "");
    let skipped = r"printf '\x50\x2a\x4d\x18\x03\0\0\0abc'";
    let cases = [
        ("t.trace.gz", "gzip", "gzip -c one; gzip -c none; gzip -c two".to_owned()),
        ("t.trace.zst", "zstd", "zstd -qc one; zstd -qc none; zstd -qc two".to_owned()),
        ("s.trace.zst", "zstd", format!("{skipped}; zstd -qc one; {skipped}; zstd -qc two")),
        ("t.trace.xz", "xz", "xz -c one; xz -c none; printf '\\0\\0\\0\\0'; xz -c two".to_owned()),
    ];
    for (name, program, script) in cases {
        if !support::has(program) {
            println!("skipped: {program} is not installed");
            continue;
        }
        shell(&scratch, &format!("({script}) > {name}")).has_ended(0, name);
        // `run` reads a stream, and `cachesim` the whole file.
        let ran = scratch.run(&format!("run {name} --on ssd --json"));
        ran.has_ended(0, name);
        assert_eq!(ran.results()[0]["bytes"], 3 * 4096, "{name}");
        let cached = scratch.run(&format!("cachesim {name} --sizes 100% --eviction lru --json"));
        cached.has_ended(0, name);
        assert_eq!(cached.results()[0]["references"], 3, "{name}");
        // The last part is cut off.
        let whole = std::fs::read(scratch.path(name)).unwrap();
        scratch.file(name, &whole[..whole.len() - 6]);
        scratch.refused(&format!("cachesim {name}"), &[name, "is cut off"]);
    }
}

/// By hand: ten blocks in a loop miss always under lru with one or two pages. Each size is a row,
/// also a size that was given before, and traces of one name have the names of their paths.
#[test]
fn repeated_sizes_and_names_of_traces_are_rows_of_their_own() {
    let scratch = Scratch::new("repeated-rows");
    let loop_of = |blocks: u32| -> String {
        (0..blocks).cycle().take(100).map(|block| format!("{block}\n")).collect()
    };
    for (folder, blocks) in [("a", 10), ("b", 20)] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
        scratch.file(&format!("{folder}/usr.trace"), loop_of(blocks));
    }
    let options = "--eviction lru --picture p.html --html page.html";
    let ran = scratch.run(&format!("cachesim a/usr.trace --sizes 10%,10%,20% {options}"));
    ran.has_ended(0, "sizes");
    ran.says(&[], "sizes");
    assert!(ran.stdout.contains("best in 3 of 3 rows"), "{}", ran.stdout);

    let ran = scratch.run(&format!("cachesim a/usr.trace b/usr.trace --sizes 10% {options}"));
    ran.has_ended(0, "names");
    assert!(ran.stdout.contains("best in 2 of 2 rows"), "{}", ran.stdout);
    let names: BTreeSet<&str> =
        ran.stdout.lines().skip(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, BTreeSet::from(["a/usr.trace", "b/usr.trace"]));
    for page in ["p.html", "page.html"] {
        let text = std::fs::read_to_string(scratch.path(page)).unwrap();
        for caption in ["a/usr.trace: 100 references, 10", "b/usr.trace: 100 references, 20"] {
            assert!(text.contains(caption), "{page}: {caption}");
        }
    }
}
