//! Requests of AIO for which a thread waits, from the memory of the program.
//!
//! `io_submit` has the addresses of the requests among its arguments. `io_getevents` has the
//! address of a ring in the program's memory, which the kernel fills with results. A result names
//! its request, and a program mostly submits the same request again. The newest results therefore
//! show the kinds of the requests in flight.

use std::fs::File;
use std::os::unix::fs::FileExt;

use readpath_trace::recording::Activity;

use super::super::uring_operations::first_activity;
use super::activities::is_file;

/// Maximum number of requests that are looked at, chosen: a look takes about 2 µs.
const REQUESTS_MAX: u64 = 4;

/// Value of the field `magic` in the ring of the kernel (`AIO_RING_MAGIC` in `fs/aio.c`).
const RING_MAGIC: u32 = 0xa10a_10a1;

/// Size of the head of a ring, of a result, and of an address, in bytes.
const HEAD_BYTES: u64 = 32;
const RESULT_BYTES: u64 = 32;
const ADDRESS_BYTES: u64 = 8;

/// Memory of another process.
struct Memory {
    /// Its file in `/proc`.
    file: File,
    /// Number of the process.
    process: u32,
}

impl Memory {
    /// Opens the memory. `None` if the kernel does not allow it.
    fn open(process: u32) -> Option<Memory> {
        let file = File::open(format!("/proc/{process}/mem")).ok()?;
        Some(Memory { file, process })
    }

    /// Reads bytes at an address. `None` if they are not mapped.
    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    }

    /// Reads a number of 32 bits.
    fn word(&self, address: u64) -> Option<u32> {
        self.read(address).map(u32::from_ne_bytes)
    }

    /// Reads an address.
    fn address(&self, address: u64) -> Option<u64> {
        self.read(address).map(u64::from_ne_bytes)
    }

    /// Activity of a thread that waits for the request at an address. `None` if there is none.
    fn activity_of_request(&self, address: u64) -> Option<Activity> {
        // struct iocb: operation 16, descriptor 20.
        let [low, high] = self.read(address + 16)?;
        let descriptor = Some(self.word(address + 20)?);
        activity_of_operation(u16::from_ne_bytes([low, high]), || is_file(self.process, descriptor))
    }
}

/// Activity of a thread that waits for an operation of `linux/aio_abi.h`. `None` for other numbers,
/// and for the operation without an effect. `is_file` is true for a descriptor of a file.
fn activity_of_operation(operation: u16, is_file: impl Fn() -> bool) -> Option<Activity> {
    /// Reads and writes with one buffer and with several, `fsync`, `fdatasync`, and polls.
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const FSYNC: u16 = 2;
    const FDSYNC: u16 = 3;
    const POLL: u16 = 5;
    const READV: u16 = 7;
    const WRITEV: u16 = 8;
    match operation {
        READ | READV if is_file() => Some(Activity::AsyncIo),
        WRITE | WRITEV if is_file() => Some(Activity::Write),
        FSYNC | FDSYNC => Some(Activity::Write),
        READ | READV | WRITE | WRITEV | POLL => Some(Activity::Others),
        _ => None,
    }
}

/// Activity of a thread that sleeps in `io_submit` with these arguments. Its requests are made one
/// after the other, so that the thread itself reads. It is unknown if the memory cannot be read.
pub(super) fn submission_activity(process: u32, [_, count, list]: [u64; 3]) -> Activity {
    let Some(memory) = Memory::open(process) else { return Activity::Unknown };
    let requests = (0..count.min(REQUESTS_MAX)).filter_map(|index| {
        memory.activity_of_request(memory.address(list + index * ADDRESS_BYTES)?)
    });
    let requests: Vec<Activity> = requests.collect();
    match first_activity(requests.iter().copied()) {
        _ if requests.is_empty() => Activity::Unknown,
        Activity::AsyncIo => Activity::Read,
        activity => activity,
    }
}

/// Activity of a thread that sleeps in `io_getevents` for the ring at an address. Before the first
/// result, and if the memory cannot be read, it may be a wait for reads.
pub(super) fn results_activity(process: u32, ring: u64) -> Activity {
    let activities = Memory::open(process).and_then(|memory| {
        // struct aio_ring: number of entries 4, end of the newest result 12, magic 16.
        let [entries, end, magic] = [4, 12, 16].map(|offset| memory.word(ring + offset));
        let (entries, end) = (u64::from(entries?), u64::from(end?));
        if magic? != RING_MAGIC || entries == 0 {
            return None;
        }
        let requests = (1..=entries.min(REQUESTS_MAX)).filter_map(|age| {
            let index = (end + entries - age) % entries;
            // struct io_event: address of the request 8.
            let address = memory.address(ring + HEAD_BYTES + index * RESULT_BYTES + 8)?;
            memory.activity_of_request(address)
        });
        Some(requests.collect::<Vec<Activity>>())
    });
    match activities.filter(|activities| !activities.is_empty()) {
        Some(activities) => first_activity(activities.into_iter()),
        None => Activity::AsyncIo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `linux/aio_abi.h`.
    #[test]
    fn operation_of_aio_shows_the_activity() {
        let of = |operation, is_file| activity_of_operation(operation, || is_file);
        assert_eq!([of(0, true), of(7, true)], [Some(Activity::AsyncIo); 2]);
        assert_eq!([of(1, true), of(8, true), of(2, false)], [Some(Activity::Write); 3]);
        assert_eq!([of(0, false), of(5, true)], [Some(Activity::Others); 2]);
        assert_eq!([of(6, true), of(77, true)], [None; 2]);
    }

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
}
