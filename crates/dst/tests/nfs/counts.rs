//! Number, size and time of the READs, counted on the wire.

use std::time::Duration;

use readpath::inside::Storage;
use readpath_core::machine::ReadAccess;
use readpath_core::readahead::{self, Advice};
use readpath_core::request::Completion;
use readpath_core::unit::PageRange;

use crate::draw::Draw;
use crate::proxy::{Proxy, Weather};
use crate::rig::Rig;
use crate::server::Server;
use crate::support::content;
use crate::support::system_calls::{calls_between_marks, mark};

const FILE_BYTES: u64 = 16 * (1 << 20) + 1234;
const RSIZE: u64 = 32_768;

/// Options with short timeouts: a reply that is held forever becomes an error soon.
const SOON: &str = "repeat=3s&timeout=6s";

fn serve() -> (Server, Proxy, Vec<u8>) {
    let content = content(FILE_BYTES as usize);
    let server = Server::start(content.clone(), RSIZE as u32);
    let proxy = Proxy::to(server.port);
    (server, proxy, content)
}

/// The published case: 98,304 bytes with an rsize of 32 KiB are three READs of 32 KiB. The server,
/// which answers none before it has all three, does not wait.
#[test]
fn read_of_three_rsizes_sends_three_reads_before_any_answer() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, SOON, "none");
    assert_eq!(u64::from(rig.storage().read_bytes()), RSIZE, "what the server prefers");
    for access in [ReadAccess::Buffered, ReadAccess::Direct] {
        proxy.weather(Weather { hold_until: 3, ..Weather::default() });
        rig.read(access, 1 << 20, 98_304, 0);
        rig.check(&content);
        let mut reads = proxy.reads();
        reads.sort_unstable();
        let expected = [0, 1, 2].map(|at| ((1 << 20) + at * RSIZE, RSIZE as u32));
        assert_eq!(reads, expected, "{access:?}");
        assert!(proxy.calls().iter().all(|call| call.answered_before == 0));
        rig.advise(Advice::DontNeed, PageRange::new(0, 1 << 20));
    }
}

/// A wait for answers that are not due would never end.
#[test]
fn wait_without_calls_in_flight_returns_at_once() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, SOON, "none");
    rig.read(ReadAccess::Buffered, 0, 100_000, 0);
    rig.check(&content);
    rig.wait_for_nothing();
}

/// Number of READs that contain any byte of the range.
fn touching(reads: &[(u64, u32)], offset: u64, bytes: u64) -> u64 {
    let end = (offset + bytes).min(FILE_BYTES);
    let touches = |&&(at, size): &&(u64, u32)| at < end && offset < at + u64::from(size);
    reads.iter().filter(touches).count() as u64
}

/// For any policy and advice, a request of n bytes at any offset is in at most ⌈n ÷ rsize⌉ + 1
/// READs. The server may wait for all of them before it answers the first.
#[test]
fn read_takes_minimal_nfs_reads_under_every_policy_and_advice() {
    let (_server, proxy, content) = serve();
    let whole = PageRange::new(0, 1 << 20);
    let mut draw = Draw(11);
    for policy in readahead::POLICIES {
        // The policy of 2003 is kept because it splits requests.
        if policy.name == "window" {
            continue;
        }
        for advice in [Advice::Normal, Advice::Sequential, Advice::Random] {
            let mut rig = Rig::open(proxy.port, SOON, policy.name);
            rig.advise(advice, whole);
            for turn in 0..24 {
                // Empties the cache, because cached pages are not requested.
                rig.settle();
                rig.advise(Advice::DontNeed, whole);
                let bytes = 1 + draw.below([100, 5_000, 98_304, 400_000][turn % 4]);
                let offset = match turn % 3 {
                    0 => draw.below(FILE_BYTES / 4096) * 4096,
                    1 => draw.below(FILE_BYTES),
                    _ => draw.below(FILE_BYTES / 4096) * 4096 + 4095,
                };
                let bytes = bytes.min(FILE_BYTES - offset);
                let fewest = bytes.div_ceil(RSIZE);
                // The partial pages at the ends may cause one more READ. The server waits for the
                // fewest possible number.
                proxy.weather(Weather { hold_until: fewest as usize, ..Weather::default() });
                rig.read(ReadAccess::Buffered, offset, bytes, 0);
                rig.check(&content);
                let made = touching(&proxy.reads(), offset, bytes);
                assert!(
                    (1..=fewest + 1).contains(&made),
                    "{}, {advice:?}: {made} READs for {bytes} bytes at {offset}",
                    policy.name
                );
            }
        }
    }
}

/// A direct read makes only READs: no GETATTR, no look-up and no other call.
#[test]
fn direct_reads_make_no_other_calls() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, "", "none");
    proxy.weather(Weather::default());
    for at in 0..50 {
        rig.read(ReadAccess::Direct, at * 65_536, 65_536, 0);
        rig.check(&content);
    }
    let calls = proxy.calls();
    assert_eq!(calls.len(), 100);
    assert!(calls.iter().all(|call| call.read.is_some()));
}

/// `rsize` is the server's preference or the option, in whole pages. No READ is larger, and no READ
/// of a large request is smaller without need.
#[test]
fn rsize_is_the_servers_preference_or_the_option() {
    let (_server, proxy, content) = serve();
    for (options, rsize) in [(SOON, 32_768), ("rsize=8192", 8_192), ("rsize=262144", 262_144)] {
        let mut rig = Rig::open(proxy.port, options, "none");
        proxy.weather(Weather::default());
        rig.read(ReadAccess::Buffered, 0, 524_288, 0);
        rig.check(&content);
        let sizes: Vec<u32> = proxy.reads().iter().map(|&(_, size)| size).collect();
        assert_eq!(sizes, vec![rsize; 524_288 / rsize as usize]);
    }
}

/// The number of calls in flight never exceeds the slots. The other calls follow.
#[test]
fn slots_bound_the_calls_in_flight() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, "slots=4&rsize=4096", "none");
    let delay = Duration::from_millis(20);
    proxy.weather(Weather { hold_until: 4, delay, ..Weather::default() });
    rig.read(ReadAccess::Buffered, 0, 64 << 10, 0);
    rig.check(&content);
    let calls = proxy.calls();
    assert_eq!(calls.len(), 16);
    let waited = calls.iter().enumerate().all(|(at, call)| at < 4 + call.answered_before);
    assert!(waited, "a fifth call went out before an answer: {calls:?}");
}

/// The policy of 2003 without readahead: 24 READs of 4 KiB, each awaited.
#[test]
fn splitting_policy_sends_one_nfs_read_per_page() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, SOON, "window,read_ahead_kb=0");
    proxy.weather(Weather::default());
    rig.read(ReadAccess::Buffered, 1 << 20, 98_304, 0);
    rig.check(&content);
    let calls = proxy.calls();
    let expected: Vec<_> = (0..24).map(|page| Some(((1 << 20) + page * 4096, 4096))).collect();
    assert_eq!(calls.iter().map(|call| call.read).collect::<Vec<_>>(), expected);
    assert!(calls.iter().enumerate().all(|(at, call)| call.answered_before == at));
}

/// The policy receives the earliest and latest time of an answer's arrival. After a sleep for the
/// answer, the earliest is the start of the sleep. Without a sleep, it is the last receive, also if
/// completions were collected since, which receives none.
#[test]
fn earliest_answer_time_is_the_start_of_the_sleep() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, SOON, "none");
    proxy.weather(Weather { delay: Duration::from_millis(20), ..Weather::default() });
    for at in 0..5 {
        rig.read(ReadAccess::Direct, at * RSIZE, RSIZE, 0);
        rig.send();
        let asleep = rig.now();
        rig.check(&content);
        let came = rig.take_completions();
        let is_known = |one: &Completion| asleep <= one.not_before && one.not_before <= one.at;
        assert!(came.len() == 1 && came.iter().all(is_known), "{came:?} after {asleep:?}");
    }
    // On a busy machine one of them may take long, but not each.
    let mut has_found = false;
    for at in 0..5 {
        rig.read(ReadAccess::Direct, at * RSIZE, RSIZE, 0);
        rig.send();
        let looked = rig.now();
        std::thread::sleep(Duration::from_millis(100));
        rig.storage().collect(&mut Vec::new()).unwrap();
        rig.send();
        rig.check(&content);
        has_found |= rig.take_completions().iter().all(|one| one.not_before <= looked);
    }
    assert!(has_found);
}

/// For an answer that has arrived completely, one readv(2) reads the head and one the data, and no
/// check follows: two system calls without a sleep.
#[test]
fn arrived_answer_is_received_in_two_system_calls() {
    let (_server, proxy, content) = serve();
    let mut seen = Vec::new();
    // On a busy machine the answer may be late.
    for _ in 0..5 {
        let calls = calls_between_marks(|| {
            let mut rig = Rig::open(proxy.port, SOON, "none");
            rig.read(ReadAccess::Direct, 0, RSIZE, 0);
            rig.send();
            std::thread::sleep(Duration::from_millis(200));
            mark();
            rig.check(&content);
            mark();
        });
        let Some(calls) = calls else { return };
        let is_of_socket =
            |&&call: &&i64| [libc::SYS_readv, libc::SYS_poll, libc::SYS_ppoll].contains(&call);
        seen = calls[0].iter().filter(is_of_socket).copied().collect();
        if seen == [libc::SYS_readv; 2] {
            return;
        }
    }
    panic!("{seen:?}");
}
