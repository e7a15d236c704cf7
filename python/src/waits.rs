//! Reads that may wait for seconds: signals are handled meanwhile.
//!
//! A read of a server's object waits for the network, and retries may take a minute. The calling
//! thread polls futures here, and looks for signals while it sleeps.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use pyo3::prelude::*;
use readpath::{File, ReadError, ReadFuture};

use crate::buffers::BufferMemory;
use crate::failure::Failure;
use crate::interruptible::SIGNAL_CHECK_INTERVAL;
use crate::many::{ReadRange, SignalChecks};
use crate::runs::Runs;

/// Maximum number of reads in flight per call: more than the requests that a server gets at once.
const IN_FLIGHT_MAX: usize = 256;

/// Maximum number of bytes in flight per call, in pieces. A piece is an eighth of the memory of a
/// small cache, so half of the cache stays for other readers and for readahead.
const IN_FLIGHT_PIECES_MAX: usize = 4;

/// Memory of a caller, as the buffer of a future.
struct Borrowed {
    memory: BufferMemory,
    bytes: usize,
}

impl AsMut<[u8]> for Borrowed {
    /// The memory of the caller.
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the caller of `fill_interruptibly` keeps the memory until that function returns,
        // and the function drops its futures before. A future writes only while it is polled.
        unsafe { BufferMemory(self.memory.0).slice(self.bytes) }
    }
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A read in flight.
struct Waiting {
    future: ReadFuture<Borrowed>,
    offset: u64,
    bytes: usize,
}

/// Fills the memory of each range. A file that became shorter is the error `Shrunk`. The first
/// error ends the call, as does an exception of a signal handler: reads in flight are abandoned,
/// and any of the memory may be filled. Called without Python's lock. `piece_bytes`: maximum size
/// of a single read.
///
/// # Safety
/// Each destination has space for its bytes and no other user until the return.
pub unsafe fn fill_interruptibly(
    file: &File,
    ranges: &[ReadRange],
    piece_bytes: usize,
) -> Result<(), Failure> {
    let bytes_max = IN_FLIGHT_PIECES_MAX * piece_bytes;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut cached = Vec::with_capacity(ranges.len());
    // Several ranges go through the cache, which has fetches of all of them in flight.
    let is_single = ranges.len() == 1;
    for range in ranges {
        // SAFETY: guaranteed by the caller.
        if !(is_single && unsafe { fill_directly(file, range) }?) {
            cached.push(range);
        }
    }
    let mut runs = Runs::new(&cached);
    let pieces_of = |(index, range)| pieces_of(range, piece_bytes).map(move |piece| (index, piece));
    let mut pieces = cached.into_iter().enumerate().flat_map(pieces_of).peekable();
    let (mut in_flight, mut bytes_in_flight) = (VecDeque::new(), 0);
    // Python's lock is not taken for each read.
    let mut signals = SignalChecks::new();
    loop {
        // The first piece starts even if it is larger than all that may be in flight.
        while let Some((_, next)) = pieces.peek()
            && (in_flight.is_empty()
                || in_flight.len() < IN_FLIGHT_MAX && bytes_in_flight + next.bytes <= bytes_max)
        {
            let Some((index, ReadRange { offset, memory, bytes })) = pieces.next() else { break };
            runs.on_start(file, index);
            let mut future = file.read_at_async(Borrowed { memory, bytes }, offset);
            // The first poll starts the read.
            match Pin::new(&mut future).poll(&mut context) {
                Poll::Ready((result, _)) => check_length(result?, offset, bytes)?,
                Poll::Pending => {
                    bytes_in_flight += bytes;
                    in_flight.push_back(Waiting { future, offset, bytes });
                }
            }
        }
        // The reads are awaited in the order of their start.
        let Some(first) = in_flight.front_mut() else { return Ok(()) };
        match Pin::new(&mut first.future).poll(&mut context) {
            Poll::Ready((result, _)) => {
                check_length(result?, first.offset, first.bytes)?;
                bytes_in_flight -= first.bytes;
                in_flight.pop_front();
            }
            Poll::Pending => {
                std::thread::park_timeout(SIGNAL_CHECK_INTERVAL);
                signals.on_read(0)?;
            }
        }
    }
}

/// Fills the memory of a range past the cache, if such a read bypasses it. Returns false otherwise.
///
/// # Safety
/// As for [`fill_interruptibly`].
unsafe fn fill_directly(file: &File, range: &ReadRange) -> Result<bool, Failure> {
    // SAFETY: guaranteed by the caller.
    let buffer = unsafe { range.memory.slice(range.bytes) };
    let mut signal = Ok(());
    // The closure is called again and again during the read; false ends the read.
    let read = file.read_direct_at(buffer, range.offset, || {
        signal = Python::attach(|py| py.check_signals());
        signal.is_ok()
    });
    signal.map_err(Failure::Signal)?;
    match read? {
        Some(bytes) => check_length(bytes, range.offset, range.bytes).map(|()| true),
        None => Ok(false),
    }
}

/// Divides a range into pieces of at most `piece_bytes` bytes.
fn pieces_of(range: &ReadRange, piece_bytes: usize) -> impl Iterator<Item = ReadRange> {
    let (offset, bytes, address) = (range.offset, range.bytes, range.memory.0);
    (0..bytes).step_by(piece_bytes).map(move |start| ReadRange {
        offset: offset + start as u64,
        // SAFETY: within the range's memory.
        memory: BufferMemory(unsafe { address.add(start) }),
        bytes: piece_bytes.min(bytes - start),
    })
}

/// The error `Shrunk` unless a read has returned all its bytes.
fn check_length(read_bytes: usize, offset: u64, bytes: usize) -> Result<(), Failure> {
    match read_bytes == bytes {
        true => Ok(()),
        false => Err(ReadError::Shrunk { offset: offset + read_bytes as u64 }.into()),
    }
}
