//! `File::open("nfs://…")`: the same file API over the wire.

use std::io::Read;
use std::time::Duration;

use readpath::{Advice, Coherence, File, OpenFileError, ReadPath};

use crate::draw::Draw;
use crate::proxy::{Proxy, Weather};
use crate::server::{Faults, Server};
use crate::support::content;

const FILE_BYTES: u64 = 8 * (1 << 20) + 1234;

fn serve() -> (Server, Proxy, Vec<u8>, String) {
    let content = content(FILE_BYTES as usize);
    let server = Server::start(content.clone(), 32_768);
    let proxy = Proxy::to(server.port);
    let url = format!("nfs://127.0.0.1:{}/data/file?repeat=500ms&timeout=10s", proxy.port);
    (server, proxy, content, url)
}

#[test]
fn nfs_file_is_read_and_cached_like_a_local_file() {
    let (_server, proxy, content, url) = serve();
    let file = File::open(&url).unwrap();
    assert_eq!(file.len(), FILE_BYTES);
    let mut all = Vec::new();
    file.reader().read_to_end(&mut all).unwrap();
    assert!(all == content);
    // The second read comes from memory.
    proxy.weather(Weather::default());
    let mut buffer = vec![0; 100_000];
    file.read_exact_at(&mut buffer, 12_345).unwrap();
    assert!(buffer == content[12_345..112_345]);
    assert_eq!(proxy.reads(), []);
    let page = file.page(8_192 + 5).unwrap();
    assert!(page[..] == content[8_197..12_288]);
}

#[test]
fn random_advice_read_sends_three_nfs_reads_before_any_answer() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(32 << 20).open(&url).unwrap();
    file.advise(Advice::Random);
    proxy.weather(Weather { hold_until: 3, ..Weather::default() });
    let mut buffer = vec![0; 98_304];
    file.read_exact_at(&mut buffer, 4 << 20).unwrap();
    assert!(buffer == content[4 << 20..(4 << 20) + 98_304]);
    let mut reads = proxy.reads();
    reads.sort_unstable();
    assert_eq!(reads, [0, 1, 2].map(|at| ((4 << 20) + at * 32_768, 32_768)));
}

/// The reader computes for 700 ms after each MiB, longer than the timeout of 500 ms. The answers to
/// its prefetches arrive after some 20 ms, and wait in the socket.
#[test]
fn nfs_answers_that_arrive_between_reads_are_not_late() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(32 << 20).open(&url).unwrap();
    proxy.weather(Weather { delay: Duration::from_millis(20), ..Weather::default() });
    let mut buffer = vec![0; 256 << 10];
    for end in (1..=12).map(|parts| parts * (256 << 10)) {
        let start = end - buffer.len() as u64;
        file.read_exact_at(&mut buffer, start).unwrap();
        assert!(buffer == content[start as usize..end as usize]);
        if end % (1 << 20) == 0 {
            std::thread::sleep(Duration::from_millis(700));
            let is_ahead = |&(offset, _): &(u64, u32)| offset >= end;
            assert!(proxy.reads().iter().any(is_ahead), "no READ was in flight");
        }
    }
    let traffic = file.connection().unwrap().traffic;
    assert_eq!((traffic.repeats, traffic.connections), (0, 1));
}

/// Threads share one connection, and one of them sleeps for all.
#[test]
fn concurrent_nfs_reads_survive_delays_and_broken_connections() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(2 << 20).open(&url).unwrap();
    let delay = Duration::from_millis(1);
    proxy.weather(Weather { delay, cut_every: 97, drop_every: 101, ..Weather::default() });
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (file, content) = (file.reopen(), &content);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                for _ in 0..40 {
                    let offset = draw.below(FILE_BYTES - 1);
                    let bytes = (1 + draw.below(90_000)).min(FILE_BYTES - offset);
                    let mut buffer = vec![0; bytes as usize];
                    file.read_exact_at(&mut buffer, offset).unwrap();
                    let start = offset as usize;
                    assert!(buffer == content[start..start + bytes as usize]);
                }
            });
        }
    });
    assert!(proxy.connections() > 0);
}

#[test]
fn nfs_errors_reach_the_reader_and_open_errors_are_named() {
    let (server, _proxy, content, url) = serve();
    let file = File::open(&url).unwrap();
    server.faults.lock().unwrap().is_stale = true;
    let read_error = file.read_exact_at(&mut [0; 10], 100).unwrap_err().to_string();
    assert!(read_error.contains("not there any more on the server"), "{read_error}");
    *server.faults.lock().unwrap() = Faults::default();
    let mut buffer = [0; 10];
    file.read_exact_at(&mut buffer, 100).unwrap();
    assert_eq!(buffer, content[100..110]);

    let read_error = File::open("nfs://127.0.0.1:1/data/file").err().unwrap();
    assert!(matches!(read_error, OpenFileError::Nfs(_)), "{read_error}");
    let read_error = File::open("/no/such/file").err().unwrap();
    assert!(matches!(read_error, OpenFileError::Open(_)), "{read_error}");
    let read_error = ReadPath::builder().readahead("psychic").open(&url).err().unwrap();
    assert!(matches!(read_error, OpenFileError::Build(_)), "{read_error}");
}

/// An option that checks for changes would have no effect. The error names the remedy.
#[test]
fn nfs_file_is_refused_with_checks_for_changes() {
    let (_server, _proxy, _, url) = serve();
    for coherence in [Coherence::EachRead, Coherence::EachMiss] {
        let builder = ReadPath::builder().memory(8 << 20).coherence(coherence);
        let error = builder.open(&url).err().expect("a refusal").to_string();
        assert!(error.contains("`coherence`") && error.contains("`revalidate`"), "{error}");
    }
    let builder = ReadPath::builder().memory(8 << 20).coherence(Coherence::WhenOpened);
    assert_eq!(builder.open(&url).unwrap().len(), FILE_BYTES);
}

#[test]
fn empty_nfs_file_opens_and_reads_as_empty() {
    let (server, _proxy, _, _) = serve();
    let mut file = File::open(format!("nfs://127.0.0.1:{}/data/empty", server.port)).unwrap();
    assert!(file.is_empty());
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 0);
    assert!(file.page(0).unwrap().is_empty());
    assert_eq!(file.reader().read_to_end(&mut Vec::new()).unwrap(), 0);
    file.advise(Advice::WillNeed);
    assert!(!file.revalidate().unwrap());
    // A file that has grown is found.
    server.faults.lock().unwrap().grown_bytes = 70_000;
    assert!(file.revalidate().unwrap());
    let mut all = Vec::new();
    file.reader().read_to_end(&mut all).unwrap();
    assert_eq!(all, [5; 70_000]);
}

#[test]
fn changed_nfs_file_is_read_again_after_revalidation() {
    let (server, _proxy, content, url) = serve();
    let set = |faults: Faults| *server.faults.lock().unwrap() = faults;
    let mut file = File::open(&url).unwrap();
    let first = |file: &File| {
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[1], content[1]);
        bytes[0].wrapping_sub(content[0])
    };
    assert_eq!(first(&file), 0);
    assert!(!file.revalidate().unwrap());
    let before = file.clone();
    // Changed in place; replaced by another file; shorter.
    for (faults, added, bytes) in [
        (Faults { changes: 1, ..Faults::default() }, 1, FILE_BYTES),
        (Faults { is_replaced: true, ..Faults::default() }, 2, FILE_BYTES),
        (Faults { shrunk_bytes: Some(5_000), ..Faults::default() }, 0, 5_000),
    ] {
        set(faults);
        assert!(file.revalidate().unwrap());
        assert_eq!((first(&file), file.len()), (added, bytes));
        assert!(!file.revalidate().unwrap());
        assert_eq!((first(&before), before.len()), (0, FILE_BYTES), "what it has");
    }
    set(Faults { is_removed: true, ..Faults::default() });
    let error = file.revalidate().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    assert_eq!(first(&file), 0, "it goes on as it is");
}

/// Other threads read, and sleep for the same socket.
#[test]
fn nfs_file_can_be_revalidated_during_reads() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(2 << 20).open(&url).unwrap();
    proxy.weather(Weather { delay: Duration::from_millis(1), ..Weather::default() });
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (mut file, content) = (file.reopen(), &content);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                for _ in 0..60 {
                    if thread < 2 {
                        assert!(!file.revalidate().unwrap());
                    }
                    let offset = draw.below(FILE_BYTES - 50_000);
                    let mut buffer = vec![0; 50_000];
                    file.read_exact_at(&mut buffer, offset).unwrap();
                    assert!(buffer == content[offset as usize..offset as usize + 50_000]);
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "no answer was slept through");
}

/// The kind of the error shows the cause.
#[test]
fn failed_nfs_reads_have_the_matching_io_error_kind() {
    use std::io::ErrorKind;
    let (mut server, _proxy, _, url) = serve();
    let file = File::open(url.replace("repeat=500ms&timeout=10s", "repeat=50ms&timeout=200ms"));
    let file = file.unwrap();
    for (faults, kind) in [
        (Faults { is_stale: true, ..Faults::default() }, ErrorKind::StaleNetworkFileHandle),
        (Faults { is_refused: true, ..Faults::default() }, ErrorKind::PermissionDenied),
        (Faults { shrunk_bytes: Some(0), ..Faults::default() }, ErrorKind::UnexpectedEof),
        (Faults { broken: Some(0..FILE_BYTES), ..Faults::default() }, ErrorKind::Other),
        // Postponed repeatedly until the timeout.
        (Faults { jukebox: u32::MAX, ..Faults::default() }, ErrorKind::TimedOut),
    ] {
        *server.faults.lock().unwrap() = faults;
        let error = file.read_exact_at(&mut [0; 10], 100).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    server.kill();
    let error = file.read_exact_at(&mut [0; 10], 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}
