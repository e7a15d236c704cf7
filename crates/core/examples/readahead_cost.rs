//! What a readahead law costs the processor: one read of 4 KiB through the machine, from
//! the call to the release, on one core, with a device that is done at once.
//!
//! `cargo run --release -p readpath-core --example readahead_cost [READS]`
//!
//! Streams are interleaved on one handle in random order; where no stream is named, each read
//! goes to a place at random. The bytes are not moved, so all that differs between two laws
//! is what they decide and how many requests they make of it. The best of five rounds is printed:
//! the machine's other work only adds to it.

#![allow(clippy::disallowed_methods)] // It measures on the wall clock and reads its arguments.

use std::time::Instant;

use readpath_core::law::Spec;
use readpath_core::machine::{Access, Config, HandleId, Machine, Transfer};
use readpath_core::request::{Completion, DeviceCaps, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, Time};

const LAWS: &[&str] = &["none", "window-fixed", "ondemand", "adaptive"];

/// How many streams are interleaved; 0: none, random reads.
const LOADS: &[u64] = &[1, 8, 64, 128, 0];

const ROUNDS: u32 = 5;

/// 32 GiB, so that random reads seldom continue one another.
const FILE_PAGES: u64 = 1 << 23;

const MEMORY_BYTES: u64 = 64 << 20;

fn main() {
    let reads = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse());
    let Ok(reads) = reads else {
        eprintln!("READS must be a whole number, as 100000");
        std::process::exit(2);
    };
    table(reads);
}

/// Prints a row for each load, with `reads` reads a round.
pub fn table(reads: u64) {
    print!("{:24}", "ns per read");
    LAWS.iter().for_each(|law| print!("{law:>14}"));
    println!();
    for &streams in LOADS {
        match streams {
            0 => print!("{:24}", "random"),
            _ => print!("{:24}", format!("{streams} streams, one handle")),
        }
        for law in LAWS {
            let best = (0..ROUNDS).map(|_| round(law, streams, reads)).min().unwrap_or(0);
            print!("{best:>14}");
        }
        println!();
    }
}

/// Nanoseconds per read.
fn round(law: &str, streams: u64, reads: u64) -> u64 {
    let caps = DeviceCaps {
        sectors: FILE_PAGES * PAGE_SECTORS,
        request_sectors_max: 8192,
        depth_max: 128,
        is_rotational: false,
        alignment_sectors: 8,
    };
    let config = Config {
        memory_bytes: MEMORY_BYTES,
        readahead: Spec::parse(law).expect("the laws above are well-formed"),
        scheduler: Spec::plain("noop"),
        ..Config::new(caps)
    };
    let mut path = Machine::new(config).expect("the laws above exist");
    let file = path.add_file(FILE_PAGES * PAGE_BYTES, 0).expect("it is as large as the device");
    let handle = path.open(file);
    let mut next: Vec<u64> = (0..streams).map(|at| at * (FILE_PAGES / streams)).collect();
    let mut state = 1u64;
    let mut now = Time::ZERO;
    let begin = Instant::now();
    for _ in 0..reads {
        // A linear congruential generator (Knuth's MMIX).
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = match streams {
            0 => (state >> 33) % FILE_PAGES,
            _ => {
                let stream = &mut next[((state >> 33) % streams) as usize];
                *stream += 1;
                *stream - 1
            }
        };
        now = read(&mut path, handle, page, now);
    }
    (begin.elapsed().as_nanos() / u128::from(reads)) as u64
}

/// Reads a page; gives the time at which it is there.
fn read(path: &mut Machine, handle: HandleId, page: u64, now: Time) -> Time {
    let transfer = Transfer {
        handle,
        process: ProcessId(0),
        offset: page * PAGE_BYTES,
        bytes: PAGE_BYTES,
        tag: 0,
    };
    path.read(now, Access::Buffered, transfer).expect("a page fits in memory");
    let mut now = now;
    while let Some(request) = path.poll_request(now) {
        // A request takes 80 µs and a page 3, one after the other.
        now += Time(80_000 + u64::from(request.sectors) / PAGE_SECTORS * 3_000);
        path.handle_completion(now, Completion::at(now, request.id, Outcome::Done));
    }
    let done = path.poll_done().expect("all that it waits for is there");
    path.release(now, done.read);
    now
}
