//! What a path tells of itself while it runs: spans and events of `tracing`, and the probes that are in the program.

use std::sync::{Arc, Mutex};

use readpath::ReadPath;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes down what it hears, a line each.
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

/// One read of 8 KiB that nobody has is a span with one request in it, of 16 sectors; the same read again, which
/// is a copy, tells nothing.
#[test]
fn a_read_that_misses_is_told_and_a_copy_is_not() {
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

/// The probes are in the note that `bpftrace` and `readelf -n` look for (`.note.stapsdt`).
#[test]
fn the_probes_are_in_the_program() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for name in ["read_begin", "read_end", "submitted", "completed", "advised"] {
        // Provider and name, each with its end.
        let note = [b"readpath\0", name.as_bytes(), b"\0"].concat();
        assert!(program.windows(note.len()).any(|bytes| bytes == note), "{name}");
    }
}
