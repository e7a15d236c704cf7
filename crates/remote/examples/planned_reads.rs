//! Reads a file by a planner without any I/O of its own. Each range to fetch goes to a thread, and
//! its bytes come back over a channel, in any order.
//!
//!     cargo run -p readpath-remote --example planned_reads -- FILE
//!
//! The threads read ranges of a local file, in place of requests to a server. Prints the number of
//! bytes, their sum, and the number of fetches.

#![expect(clippy::disallowed_methods, reason = "the program has threads and a clock")]

use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom};
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use readpath_remote::planner::{Event, Fetch, FetchId, Planner, PlannerOptions, ReadId, Time};

/// Bytes of a read.
const READ_BYTES: u64 = 64 << 10;

/// The answer to a fetch.
type Answer = (FetchId, Result<Vec<u8>>);

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: planned_reads FILE")?;
    let bytes = File::open(&name)?.metadata()?.len();
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64);
    let mut planner = Planner::new(&PlannerOptions::default())?;
    let remote = planner.open_file(bytes, "the only version")?;
    let handle = planner.open(remote)?;
    let (sender, answers) = channel::<Answer>();
    let (mut total, mut sum) = (0, 0);
    for offset in (0..bytes).step_by(READ_BYTES as usize) {
        let read = planner.start(now(), handle, offset, READ_BYTES)?;
        while !poll(&mut planner, now(), read, &name, &sender) {
            let (id, answer) = answers.recv()?;
            match answer {
                Ok(data) => {
                    planner.fill(now(), id, &data);
                    planner.finish(now(), id);
                }
                Err(error) => {
                    planner.fail(now(), id, error.raw_os_error().unwrap_or_default());
                }
            }
        }
        let data = planner.take(now(), read).expect("the read has ended")?;
        total += data.len();
        sum += data.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    println!("{total} bytes, sum {sum}, {} fetches", planner.counters().fetches);
    Ok(())
}

/// Starts the fetches that are due. Returns true if the read has ended.
fn poll(
    planner: &mut Planner,
    now: Time,
    read: ReadId,
    name: &str,
    sender: &Sender<Answer>,
) -> bool {
    let mut has_ended = false;
    while let Some(event) = planner.poll(now) {
        match event {
            Event::Ended(id) => has_ended |= id == read,
            Event::Fetch(Fetch { id, range, .. }) => {
                let (name, sender) = (name.to_owned(), sender.clone());
                // At the end of the program nothing receives the last prefetches.
                std::thread::spawn(move || sender.send((id, bytes_of(&name, range))));
            }
        }
    }
    has_ended
}

/// The bytes of a range of a file.
fn bytes_of(name: &str, range: Range<u64>) -> Result<Vec<u8>> {
    let mut file = File::open(name)?;
    file.seek(SeekFrom::Start(range.start))?;
    let mut data = vec![0; (range.end - range.start) as usize];
    file.read_exact(&mut data)?;
    Ok(data)
}
