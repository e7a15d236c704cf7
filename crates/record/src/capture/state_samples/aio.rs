//! Requests of AIO for which a thread waits, from the memory of the program.
//!
//! `io_submit` has the addresses of the requests among its arguments. `io_getevents` has the
//! address of a ring in the program's memory, which the kernel fills with results. A result names
//! its request, and a program mostly submits the same request again. The newest results therefore
//! show the kinds of the requests in flight.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use readpath_trace::recording::Activity;

use super::super::aio_operations::activity_of_operation;
use super::super::uring_operations::first_activity;
use super::descriptor_kind::is_file;

/// Maximum number of requests looked at. A read of a file is missed only if all of them are
/// others. Their results are 2 KiB, read at once. The test of a ring below took 0.35 to 0.56 ms for
/// a look at 64 requests, in a build without optimization on a busy machine.
const REQUESTS_MAX: u64 = 64;

/// Value of the field `magic` in the ring of the kernel (`AIO_RING_MAGIC` in `fs/aio.c`).
const RING_MAGIC: u32 = 0xa10a_10a1;

/// Size of the head of a ring and of a result, in bytes.
const HEAD_BYTES: u64 = 32;
const RESULT_BYTES: u64 = 32;

/// Memory of another process.
struct Memory {
    /// Its file in `/proc`.
    file: File,
    /// Number of the process.
    process: u32,
    /// Descriptors of the process that were looked at, and true for files.
    files: HashMap<u32, bool>,
}

impl Memory {
    /// Opens the memory. `None` if the kernel does not allow it.
    fn open(process: u32) -> Option<Memory> {
        let file = File::open(format!("/proc/{process}/mem")).ok()?;
        Some(Memory { file, process, files: HashMap::new() })
    }

    /// Reads `count` numbers of 64 bits at an address. `None` if they are not mapped.
    fn read(&self, address: u64, count: u64) -> Option<Vec<u64>> {
        let mut bytes = vec![0; count as usize * 8];
        self.file.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes.as_chunks().0.iter().map(|&number| u64::from_ne_bytes(number)).collect())
    }

    /// Activity of a thread that waits for the request at an address. `None` if the memory there
    /// cannot be read or is all zeros, and for an operation without an activity.
    fn activity_of_request(&mut self, address: u64) -> Option<Activity> {
        // struct iocb: 64 bytes, operation (16 bits) at 16, descriptor (32 bits) at 20.
        let words = self.read(address, 8)?;
        if words.iter().all(|&word| word == 0) {
            return None;
        }
        let (operation, descriptor) = (words[2] as u16, (words[2] >> 32) as u32);
        let process = self.process;
        let is_file =
            || *self.files.entry(descriptor).or_insert_with(|| is_file(process, Some(descriptor)));
        activity_of_operation(operation, is_file)
    }

    /// Activities of the requests at addresses. `None` in place of an address without a request.
    fn activities(&mut self, addresses: &[u64]) -> Vec<Option<Activity>> {
        let mut known = HashMap::new();
        let activities = addresses.iter().map(|&address| {
            *known.entry(address).or_insert_with(|| self.activity_of_request(address))
        });
        activities.collect()
    }

    /// Addresses of the requests of the newest results in the ring at an address, at most
    /// [`REQUESTS_MAX`], in no particular order. `None` if there is no ring, or if it cannot be
    /// read.
    fn newest_requests(&self, ring: u64) -> Option<Vec<u64>> {
        // struct aio_ring: number of entries 4, index of the entry after the newest result 12,
        // magic 16, all of 32 bits.
        let head = self.read(ring, HEAD_BYTES / 8)?;
        let (entries, end, magic) = (head[0] >> 32, head[1] >> 32, head[2] as u32);
        if magic != RING_MAGIC || end > entries {
            return None;
        }
        // The results before `end`, and the rest at the end of the ring.
        let count = entries.min(REQUESTS_MAX);
        let first_count = count.min(end);
        let parts = [
            (end - first_count, first_count),
            (entries + first_count - count, count - first_count),
        ];
        let mut addresses = Vec::new();
        for (first, part_count) in parts {
            let start = ring + HEAD_BYTES + first * RESULT_BYTES;
            let words = self.read(start, part_count * RESULT_BYTES / 8)?;
            // struct io_event: address of the request 8.
            addresses.extend(words.chunks(RESULT_BYTES as usize / 8).map(|result| result[1]));
        }
        Some(addresses)
    }
}

/// Activity of a thread that sleeps in `io_submit` with these arguments: context, number of
/// requests, and address of the list of their addresses. Its requests are made one after the other,
/// so that the thread itself reads. Unknown if the list cannot be read, or if no request has an
/// activity.
pub(super) fn submission_activity(process: u32, [_, count, list]: [u64; 3]) -> Activity {
    let activities = Memory::open(process).and_then(|mut memory| {
        let addresses = memory.read(list, count.min(REQUESTS_MAX))?;
        Some(memory.activities(&addresses))
    });
    let activities: Vec<Activity> = activities.into_iter().flatten().flatten().collect();
    match first_activity(activities.iter().copied()) {
        _ if activities.is_empty() => Activity::Unknown,
        Activity::AsyncIo => Activity::Read,
        activity => activity,
    }
}

/// Activity of a thread that sleeps in `io_getevents` for the ring at an address, by the requests
/// of the newest results. It is a wait for reads if one of them reads a file. It also counts as one
/// if any result names no request with an activity, as before the ring is full, or if the memory
/// cannot be read.
pub(super) fn results_activity(process: u32, ring: u64) -> Activity {
    let activities = Memory::open(process).and_then(|mut memory| {
        let addresses = memory.newest_requests(ring)?;
        memory.activities(&addresses).into_iter().collect::<Option<Vec<Activity>>>()
    });
    match activities.filter(|activities| !activities.is_empty()) {
        Some(activities) => first_activity(activities.into_iter()),
        None => Activity::AsyncIo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests in the memory of this process: a write to a file, and a read of a pipe.
    #[test]
    fn submission_is_named_by_its_requests() {
        use std::os::fd::AsRawFd;
        let own = std::process::id();
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let request = |operation: u64, descriptor: i32| {
            let mut words = [0_u64; 8];
            words[2] = operation | (descriptor as u64) << 32;
            words
        };
        let requests = [request(1, file.as_raw_fd()), request(0, pipe.as_raw_fd())];
        let list = [&raw const requests[0] as u64, &raw const requests[1] as u64];
        let submitted = |first: usize, count| {
            submission_activity(own, [0, count, &raw const list[first] as u64])
        };
        assert_eq!(submitted(0, 2), Activity::Write);
        assert_eq!(submitted(1, 1), Activity::Others);
        assert_eq!(submission_activity(own, [0, 1, 0]), Activity::Unknown);
    }

    /// A ring of 128 results in the memory of this process. The newest result is the tenth. 64
    /// results name a write to a file, and then one of them a read, no request, or freed memory.
    #[test]
    fn newest_results_show_if_a_file_is_read() {
        use std::os::fd::AsRawFd;
        let own = std::process::id();
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let request = |operation: u64| {
            let mut words = [0_u64; 8];
            words[2] = operation | (file.as_raw_fd() as u64) << 32;
            words
        };
        let requests: Vec<[u64; 8]> = (0..64).map(|_| request(1)).collect();
        let (read, freed) = (request(0), [0_u64; 8]);
        let mut ring = vec![0_u64; 4 + 128 * 4];
        (ring[0], ring[1], ring[2]) = (128 << 32, 10 << 32, u64::from(RING_MAGIC));
        let address_at = |age: usize| 4 + (10 + 128 - age) % 128 * 4 + 1;
        for (age, request) in (1..=64).zip(&requests) {
            ring[address_at(age)] = request.as_ptr() as u64;
        }
        let begin = std::time::Instant::now();
        assert_eq!(results_activity(own, ring.as_ptr() as u64), Activity::Write);
        println!("64 requests: {:?}", begin.elapsed());
        for address in [read.as_ptr() as u64, freed.as_ptr() as u64, 0] {
            let mut ring = ring.clone();
            ring[address_at(40)] = address;
            assert_eq!(results_activity(own, ring.as_ptr() as u64), Activity::AsyncIo);
        }
    }
}
