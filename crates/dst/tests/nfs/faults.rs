//! Faults of networks and servers, and their effect on a reader: right bytes, or an error for
//! exactly the affected reads, in time.

use std::time::{Duration, Instant};

use readpath_core::machine::{ReadAccess, ReadError};
use readpath_core::readahead::Advice;
use readpath_core::request::DeviceError;
use readpath_core::unit::PageRange;

use crate::draw::Draw;
use crate::proxy::{Proxy, Weather};
use crate::rig::Rig;
use crate::server::{Faults, Server};
use crate::support::content;

const FILE_BYTES: u64 = 8 * (1 << 20) + 1234;

/// Options: a silent connection is replaced after 100 ms, and a call fails after 10 s.
const OPTIONS: &str = "rsize=32768&repeat=100ms&timeout=10s";

/// Liveness limit of a test, even at a tenth of its speed.
const HANG: Duration = Duration::from_secs(120);

fn serve() -> (Server, Proxy, Vec<u8>) {
    let content = content(FILE_BYTES as usize);
    let server = Server::start(content.clone(), 1 << 20);
    let proxy = Proxy::to(server.port);
    (server, proxy, content)
}

/// Makes several reads of different kinds at once, and checks each byte.
fn read_all_sorts(rig: &mut Rig, content: &[u8], turns: u32, seed: u64) {
    let begun = Instant::now();
    let mut draw = Draw(seed);
    for _ in 0..turns {
        for tag in 0..6 {
            let bytes = 1 + draw.below(150_000);
            let offset = draw.below(FILE_BYTES);
            match tag % 3 {
                0 => rig.read(ReadAccess::Direct, offset / 512 * 512, bytes / 512 * 512, tag),
                1 => rig.read(ReadAccess::Fault, offset, 1, tag),
                _ => rig.read(ReadAccess::Buffered, offset, bytes, tag),
            }
        }
        rig.check(content);
    }
    assert!(begun.elapsed() < HANG);
}

/// The bytes are right after any treatment of the replies.
#[test]
fn read_bytes_are_right_under_every_network_fault() {
    let (_server, proxy, content) = serve();
    let late = Duration::from_millis(1);
    let weathers = [
        ("fair", Weather::default()),
        ("late", Weather { delay: late, ..Weather::default() }),
        ("doubled", Weather { double_every: 1, delay: late, ..Weather::default() }),
        ("in fragments", Weather { fragment_bytes: 1_000, ..Weather::default() }),
        ("lost", Weather { drop_every: 13, ..Weather::default() }),
        ("cut off", Weather { truncate_every: 7, ..Weather::default() }),
        ("garbage", Weather { garble_every: 7, ..Weather::default() }),
        ("broken", Weather { cut_every: 9, ..Weather::default() }),
        (
            "everything",
            Weather {
                delay: late,
                double_every: 3,
                fragment_bytes: 7_000,
                truncate_every: 11,
                garble_every: 13,
                cut_every: 17,
                drop_every: 19,
                ..Weather::default()
            },
        ),
    ];
    for (what, weather) in weathers {
        eprintln!("{what}");
        let mut rig = Rig::open(proxy.port, OPTIONS, "ondemand");
        proxy.weather(weather);
        read_all_sorts(&mut rig, &content, 8, 5);
        rig.settle();
        proxy.weather(Weather::default());
    }
}

#[test]
fn replies_in_the_wrong_order_find_their_reads() {
    let (_server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, OPTIONS, "none");
    proxy.weather(Weather { reverse: 8, ..Weather::default() });
    for turn in 0..10 {
        // Eight READs, answered in reverse order.
        rig.read(ReadAccess::Buffered, turn * (512 << 10), 256 << 10, 0);
        rig.check(&content);
    }
    assert_eq!(proxy.reads().len(), 80, "none was asked for twice");
}

/// The server is killed with READs in flight and restarted after a while: the run completes.
#[test]
fn server_restart_delays_reads_without_errors() {
    let content = content(FILE_BYTES as usize);
    let mut server = Server::start(content.clone(), 32_768);
    let mut rig = Rig::open(server.port, "repeat=1s&timeout=60s", "ondemand");
    for turn in 0..6u64 {
        for tag in 0..8 {
            rig.read(ReadAccess::Buffered, (turn * 8 + tag) * 131_072, 131_072, tag);
        }
        rig.send();
        server.kill();
        let restarting = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            server.restart();
            server
        });
        rig.check(&content);
        server = restarting.join().unwrap();
    }
    let traffic = rig.storage().traffic();
    assert!(traffic.connections > 1, "{traffic:?}");
}

/// A server that is gone permanently: an error soon after the timeout, also for the many reads that
/// follow.
#[test]
fn absent_server_is_a_timeout_error_in_time() {
    let (mut server, proxy, _) = serve();
    let mut rig = Rig::open(proxy.port, "repeat=100ms&timeout=600ms", "none");
    server.kill();
    let begun = Instant::now();
    for at in 0..4 {
        let result = rig.one(at * 65_536, 65_536);
        let error = DeviceError::TimedOut;
        assert_eq!(result, Err(ReadError::Device { offset: at * 65_536, error }));
    }
    let read_error = rig.one(0, 1).unwrap_err().to_string();
    assert!(read_error.contains("did not answer in time"), "{read_error}");
    // The first read waits for the whole timeout, and later ones for the short one. Failed reads
    // are repeated in parts.
    assert!(begun.elapsed() > Duration::from_millis(600));
    assert!(begun.elapsed() < HANG);
    server.restart();
}

#[test]
fn server_error_fails_only_the_reads_that_need_those_bytes() {
    let (server, proxy, content) = serve();
    let broken = 1_000_000..1_000_001;
    *server.faults.lock().unwrap() = Faults { broken: Some(broken), ..Faults::default() };
    for policy in ["none", "ondemand"] {
        let mut rig = Rig::open(proxy.port, OPTIONS, policy);
        for tag in 0..16 {
            rig.read(ReadAccess::Buffered, tag * 131_072, 131_072, tag);
        }
        for (tag, result) in rig.finish() {
            let start = (tag * 131_072) as usize;
            if (start..start + 131_072).contains(&1_000_000) {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, ReadError::Device { error: DeviceError::Medium, offset }
                        if offset <= 1_000_000 && 1_000_000 < offset + 32_768),
                    "{error:?}"
                );
            } else {
                assert!(result.unwrap() == content[start..start + 131_072]);
            }
        }
    }
}

#[test]
fn stale_refused_and_shrunk_files_return_named_errors() {
    let (server, proxy, content) = serve();
    let set = |faults: Faults| *server.faults.lock().unwrap() = faults;
    let whole = PageRange::new(0, 1 << 20);
    let mut rig = Rig::open(proxy.port, OPTIONS, "none");
    assert!(rig.one(0, 10_000).unwrap() == content[..10_000]);
    for (faults, error) in [
        (Faults { is_stale: true, ..Faults::default() }, DeviceError::Stale),
        (Faults { is_refused: true, ..Faults::default() }, DeviceError::Refused),
    ] {
        set(faults);
        rig.advise(Advice::DontNeed, whole);
        assert_eq!(rig.one(8_192, 10_000), Err(ReadError::Device { offset: 8_192, error }));
    }
    set(Faults { shrunk_bytes: Some(1_000_000), ..Faults::default() });
    rig.advise(Advice::DontNeed, whole);
    assert!(rig.one(900_000, 50_000).unwrap() == content[900_000..950_000]);
    assert!(matches!(rig.one(980_000, 50_000), Err(ReadError::Shrunk { .. })));
    // Without faults, reads succeed again.
    set(Faults::default());
    rig.advise(Advice::DontNeed, whole);
    assert!(rig.one(980_000, 50_000).unwrap() == content[980_000..1_030_000]);
}

#[test]
fn jukebox_replies_are_retried_later_with_new_xids() {
    let (server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, OPTIONS, "none");
    *server.faults.lock().unwrap() = Faults { jukebox: 5, ..Faults::default() };
    assert!(rig.one(0, 98_304).unwrap() == content[..98_304]);
    // Each repetition has another transaction id.
    let mut xids: Vec<u32> = proxy.calls().iter().map(|call| call.xid).collect();
    xids.dedup();
    assert!(proxy.reads().len() >= 3 + 5);
    assert_eq!(xids.len(), proxy.calls().len());
}

#[test]
fn short_server_replies_are_continued() {
    let (server, proxy, content) = serve();
    let mut rig = Rig::open(proxy.port, OPTIONS, "none");
    *server.faults.lock().unwrap() = Faults { short_bytes: Some(10_001), ..Faults::default() };
    read_all_sorts(&mut rig, &content, 3, 9);
    assert!(rig.one(FILE_BYTES - 5, 100).unwrap() == content[content.len() - 5..]);
}

/// Cancelled and abandoned reads leave nothing behind.
#[test]
fn a_storage_is_dropped_with_reads_in_flight() {
    let (_server, proxy, _) = serve();
    let mut rig = Rig::open(proxy.port, OPTIONS, "none");
    proxy.weather(Weather { delay: Duration::from_millis(200), ..Weather::default() });
    for tag in 0..8 {
        rig.read(ReadAccess::Buffered, tag * 65_536, 65_536, tag);
    }
    rig.send();
    drop(rig);
}
