//! Probes of a running path: spans and events of `tracing`, and USDT probes in the program.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use readpath::ReadPath;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A subscriber that records one line per span or event.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Listener {
    fn note(&self, what: &str, record: impl FnOnce(&mut Line)) {
        let mut line = Line(what.to_owned());
        record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "readpath"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata().name(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.note("event", |line| event.record(line));
    }

    fn enter(&self, _: &Id) {
        self.note("enter", |_| {});
    }

    fn exit(&self, _: &Id) {
        self.note("exit", |_| {});
    }
}

/// A read of 8 KiB that misses is a span with one request of 16 sectors. A repeated read is a copy
/// and reports no event.
#[test]
fn missed_read_emits_events_and_a_cached_copy_none() {
    let name = std::env::temp_dir().join(format!("readpath-points-{}", std::process::id()));
    std::fs::write(&name, vec![7; 1 << 20]).unwrap();
    let heard = Listener::default();
    tracing::subscriber::with_default(heard.clone(), || {
        let path = ReadPath::builder()
            .memory(16 << 20)
            .readahead("none")
            .kernel_cache(false)
            .build()
            .unwrap();
        let file = path.open(&name).unwrap();
        let mut buffer = vec![0; 8192];
        file.read_exact_at(&mut buffer, 40_960).unwrap();
        let once = heard.0.lock().unwrap().len();
        file.read_exact_at(&mut buffer, 40_960).unwrap();
        assert_eq!(heard.0.lock().unwrap().len(), once, "a copy passes no point");
    });
    std::fs::remove_file(&name).unwrap();
    let lines = heard.0.lock().unwrap();
    assert_eq!(lines[0], "read offset=40960 bytes=8192");
    let of = |word: &str| lines.iter().filter(|line| line.contains(word)).collect::<Vec<_>>();
    let [submitted] = of("submitted")[..] else { panic!("{lines:?}") };
    assert!(submitted.contains("sectors=16") && submitted.contains("is_write=false"));
    let [completed] = of("completed")[..] else { panic!("{lines:?}") };
    assert!(completed.contains("is_whole=true"), "{completed}");
    assert_eq!((&lines[1][..], &lines[lines.len() - 1][..]), ("enter", "exit"));
}

/// The probes are in the ELF note that `bpftrace` and `readelf -n` read (`.note.stapsdt`).
#[test]
fn usdt_probes_are_in_the_elf_notes() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for name in ["read_begin", "read_end", "submitted", "completed", "advised"] {
        // Provider and name, each with its terminator.
        let note = [b"readpath\0", name.as_bytes(), b"\0"].concat();
        assert!(program.windows(note.len()).any(|bytes| bytes == note), "{name}");
    }
}

/// A probe as described by its note.
struct Probe {
    name: &'static str,
    /// Offset of its `nop` in the program file.
    place: u64,
    /// Locations of its arguments in assembler syntax: `8@%rdi 4@-16(%rbp)`.
    arguments: String,
}

/// Finds a probe by name in a program for this machine (a 64-bit ELF file).
fn probe(program: &[u8], name: &'static str) -> Probe {
    let number = |at: u64, bytes: usize| -> u64 {
        let bytes = &program[at as usize..][..bytes];
        bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    // Before provider and name, the note has three addresses: the probe, a base and a semaphore.
    let names = [b"readpath\0", name.as_bytes(), b"\0"].concat();
    let at = program.windows(names.len()).position(|bytes| bytes == names).expect(name);
    assert_eq!(&program[at - 32..at - 24], b"stapsdt\0");
    let address = number(at as u64 - 24, 8);
    let arguments = program[at + names.len()..].split(|&byte| byte == 0).next().unwrap();
    let arguments = String::from_utf8(arguments.to_vec()).unwrap();
    // The header has offset, entry size and count of the segment table. An entry has a type (1:
    // loaded), the offsets in the file and in memory, and a length.
    let (table, length, count) = (number(32, 8), number(54, 2), number(56, 2));
    let segments = (0..count).map(|nth| table + nth * length);
    let mut places = segments.filter(|&at| number(at, 4) == 1).filter_map(|at| {
        let [offset, in_memory, length] = [8, 16, 32].map(|field| number(at + field, 8));
        let within = address.checked_sub(in_memory).filter(|&within| within < length)?;
        Some(offset + within)
    });
    let place = places.next().expect("the probe is in a segment");
    Probe { name, place, arguments }
}

impl Probe {
    /// Argument `nth` as a kernel uprobe argument named `arg`; `None` for an unsupported syntax.
    fn argument(&self, nth: usize) -> Option<String> {
        let (size, place) = self.arguments.split(' ').nth(nth)?.split_once('@')?;
        let bits = size.trim_start_matches('-').parse::<u32>().ok()? * 8;
        let register = |name: &str| {
            let name = name.strip_prefix('%')?;
            let plain = name.trim_start_matches(['r', 'e']).trim_end_matches('d');
            let is_numbered = plain.chars().all(|digit| digit.is_ascii_digit());
            Some(if is_numbered { format!("%r{plain}") } else { format!("%{plain}") })
        };
        let place = match place.strip_suffix(')').and_then(|place| place.split_once('(')) {
            Some((offset, base)) => {
                let offset = offset.parse::<i64>().ok()?;
                format!("{offset:+}({})", register(base)?)
            }
            None => register(place)?,
        };
        Some(format!("arg={place}:u{bits}"))
    }
}

/// Attaches to `submitted` from outside, like `bpftrace`: a kernel uprobe at the location in the
/// note. During one read of 8 KiB it sees one request of 16 sectors, with its arguments.
#[test]
fn attached_probe_reports_request_arguments() {
    let program = std::env::current_exe().unwrap();
    let probe = probe(&std::fs::read(&program).unwrap(), "submitted");
    let sectors = probe.argument(2).unwrap_or_else(|| panic!("{}", probe.arguments));
    let group = format!("readpath_test_{}", std::process::id());
    // Mounted in a private namespace; the probe is removed when the shell exits.
    let script = r#"
        set -e
        mount -t tracefs tracefs /sys/kernel/tracing
        cd /sys/kernel/tracing
        echo "p:$GROUP/$NAME $PROGRAM:$PLACE $SECTORS" >>uprobe_events
        trap 'cd /sys/kernel/tracing; echo 0 >instances/$GROUP/events/$GROUP/enable; rmdir instances/$GROUP; echo "-:$GROUP/$NAME" >>uprobe_events' EXIT
        mkdir instances/$GROUP
        echo 1 >instances/$GROUP/events/$GROUP/enable
        "$PROGRAM" --exact missed_read_emits_events_and_a_cached_copy_none >/dev/null
        cat instances/$GROUP/trace
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", script])
        .current_dir(Path::new("/"))
        .env("GROUP", &group)
        .env("NAME", probe.name)
        .env("PROGRAM", &program)
        .env("PLACE", format!("{:#x}", probe.place))
        .env("SECTORS", sectors)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_denied = ["Operation not permitted", "ermission denied", "uprobe_events: No such file"];
    if is_denied.iter().any(|word| stderr.contains(word)) {
        println!("skipped: attaching to a probe needs root, tracefs and uprobes: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let trace = String::from_utf8(output.stdout).unwrap();
    let seen: Vec<&str> = trace.lines().filter(|line| line.contains(" submitted: (")).collect();
    let [seen] = seen[..] else { panic!("{trace}") };
    assert!(seen.ends_with(" arg=16"), "{seen}");
}
