//! Tests of the samples of rings: rings of this process, and made-up ones.

use super::*;

/// Number of a read in `linux/io_uring.h`.
const OP_READ: u8 = 22;

#[test]
fn counters_wrap_and_may_go_back() {
    assert_eq!(difference(10, 4), Some(6));
    assert_eq!(difference(2, u32::MAX - 1), Some(4));
    // More results than requests, as of requests with many results.
    assert_eq!(difference(4, 10), None);
    assert_eq!(difference(1 << 20, 0), Some(1 << 20));
    assert_eq!(difference((1 << 20) + 1, 0), None);
}

/// Opens a ring for `entries` requests at the descriptor `number`, or at a new one. `None` if
/// the system has no io_uring.
fn open_ring(entries: u32, number: Option<i32>) -> Option<OwnedFd> {
    let mut parameters = [0_u32; 30];
    // SAFETY: the parameters have the size that the kernel reads and writes (120 bytes).
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut parameters) };
    let descriptor = i32::try_from(result).ok().filter(|&number| number >= 0)?;
    // SAFETY: the descriptor is new and has no other owner.
    let ring = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let Some(number) = number else { return Some(ring) };
    // SAFETY: the caller owns `number`, and gets its new owner.
    unsafe {
        assert_eq!(libc::dup2(descriptor, number), number);
        Some(OwnedFd::from_raw_fd(number))
    }
}

/// A ring of 4 requests is replaced at its descriptor by one of 16.
#[test]
fn ring_created_again_at_the_same_descriptor_is_mapped_again() {
    use std::os::fd::IntoRawFd;
    let (sender, _receiver) = std::sync::mpsc::channel();
    let Some(mut samples) = UringSamples::new(sender) else { return };
    let Some(ring) = open_ring(4, None) else { return };
    let number = ring.as_raw_fd();
    let entries_at = |samples: &UringSamples| -> Vec<u32> {
        let is_at = |ring: &&Ring| ring.descriptor == number as u64;
        samples.rings.iter().filter(is_at).map(|ring| ring.request_entries).collect()
    };
    samples.search([std::process::id()].into_iter());
    assert_eq!(entries_at(&samples), [4]);
    samples.search([std::process::id()].into_iter());
    assert_eq!(entries_at(&samples), [4], "the same ring");
    let _second = open_ring(16, Some(ring.into_raw_fd()));
    samples.search([std::process::id()].into_iter());
    assert_eq!(entries_at(&samples), [16]);
}

/// Offsets of the words of a made-up ring.
const LAYOUT: Layout =
    Layout { request_head: 0, request_entries: 4, result_tail: 8, result_entries: 12, results: 64 };

/// A ring in the memory file `memory` with two requests in flight, one of them unknown, after
/// 10 requests and 8 results.
fn ring_in(memory: &OwnedFd) -> Ring {
    let known = Request {
        user_data: 1,
        operation: OP_READ,
        flags: 0,
        descriptor: 0,
        offset: 0,
        bytes: 4096,
        begin_ns: 1,
    };
    Ring {
        process: std::process::id(),
        descriptor: 0,
        file: memory.try_clone().unwrap(),
        results: Mapped::new(memory, 0, 4096).unwrap(),
        requests: Mapped::new(memory, 0, 4096).unwrap(),
        request_entries: 4,
        result_entries: 4,
        taken: 10,
        completed: 8,
        in_flight: VecDeque::from([known]),
        overwritten: VecDeque::from([Overwritten { begin_ns: 1, activity: Activity::AsyncIo }]),
    }
}

/// A request and its result between two samples have one estimated time. No request stays in
/// flight.
#[test]
fn result_of_the_interval_of_its_request_ends_it() {
    let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let mut ring = ring_in(&memory);
    ring.overwritten.clear();
    for request in &mut ring.in_flight {
        (request.begin_ns, request.flags) = (100, FIXED_FILE as u8);
    }
    // Result 8 of a ring of 4: data 1, and 4096 bytes.
    rustix::io::pwrite(&memory, &1_u64.to_ne_bytes(), LAYOUT.results as u64).unwrap();
    rustix::io::pwrite(&memory, &4096_u32.to_ne_bytes(), LAYOUT.results as u64 + 8).unwrap();
    let read = ring.complete(8, false, LAYOUT, 100, &mut DescriptorFiles::new()).unwrap();
    assert_eq!((read.begin_ns, read.end_ns, read.result), (100, 100, Some(4096)));
    assert!(ring.in_flight.is_empty());
}

/// The counters go back to 3 requests and 3 results. No request is then in flight, and the
/// next result ends none.
#[test]
fn all_requests_in_flight_are_forgotten_when_the_counters_go_back() {
    let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let mut ring = ring_in(&memory);
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut files = DescriptorFiles::new();
    for (taken, completed, now_ns) in [(3_u32, 3_u32, 100), (3, 4, 200)] {
        rustix::io::pwrite(&memory, &taken.to_ne_bytes(), 0).unwrap();
        rustix::io::pwrite(&memory, &completed.to_ne_bytes(), 8).unwrap();
        ring.sample(LAYOUT, (now_ns - 100, now_ns), &mut files, &sender);
        assert!(ring.in_flight.is_empty() && ring.overwritten.is_empty(), "{ring:?}");
    }
    assert!(receiver.try_recv().is_err());
}

/// Ten requests between two samples, of which the ring has the last four: two reads of registered
/// files, each with a `LINK_TIMEOUT` after it. The first four results name none of them.
#[test]
fn overwritten_requests_next_to_a_read_are_counted() {
    const LINK_TIMEOUT: u8 = 15;
    let new_memory = || {
        let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        memory
    };
    let (memory, entries) = (new_memory(), new_memory());
    for (index, operation) in [OP_READ, LINK_TIMEOUT, OP_READ, LINK_TIMEOUT].into_iter().enumerate()
    {
        let mut entry = [0; REQUEST_BYTES];
        (entry[0], entry[1], entry[32]) = (operation, FIXED_FILE as u8, 9);
        rustix::io::pwrite(&entries, &entry, (index * REQUEST_BYTES) as u64).unwrap();
    }
    let mut ring = ring_in(&memory);
    ring.requests = Mapped::new(&entries, 0, 4096).unwrap();
    (ring.in_flight, ring.overwritten) = Default::default();
    ring.completed = ring.taken;
    for (counter, offset) in [(20_u32, LAYOUT.request_head), (14, LAYOUT.result_tail)] {
        rustix::io::pwrite(&memory, &counter.to_ne_bytes(), offset as u64).unwrap();
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    ring.sample(LAYOUT, (100, 200), &mut DescriptorFiles::new(), &sender);
    let reads: Vec<UringRead> = receiver.try_iter().collect();
    assert_eq!(reads.len(), 4, "{ring:?}");
    assert!(reads.iter().all(|read| read.file.is_none()), "{reads:?}");
}

/// Two reads with buffers in lists, by the numbers of linux/io_uring.h: READV, and READV_FIXED of
/// Linux 6.15. The results are the only lengths.
#[test]
fn reads_with_buffers_in_a_list_have_the_lengths_of_their_results() {
    let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let mut ring = ring_in(&memory);
    ring.overwritten.clear();
    let read = |operation, user_data| Request {
        user_data,
        operation,
        flags: FIXED_FILE as u8,
        descriptor: 9,
        offset: 8192,
        bytes: 1,
        begin_ns: 50,
    };
    ring.in_flight = [read(1, 5), read(60, 6)].into();
    for (nth, (user_data, bytes)) in [(5_u64, 4096_u32), (6, 8192)].into_iter().enumerate() {
        let mut result = [0; RESULT_BYTES];
        result[..8].copy_from_slice(&user_data.to_ne_bytes());
        result[8..12].copy_from_slice(&bytes.to_ne_bytes());
        let offset = LAYOUT.results + nth * RESULT_BYTES;
        rustix::io::pwrite(&memory, &result, offset as u64).unwrap();
    }
    let mut files = DescriptorFiles::new();
    let lengths: Vec<Option<u64>> = (0..2)
        .map(|number| {
            let read = ring.complete(number, false, LAYOUT, 100, &mut files);
            read.map(|read| read.asked_bytes)
        })
        .collect();
    assert_eq!(lengths, [Some(4096), Some(8192)]);
}

/// Two reads of a file whose results were overwritten: READ with one buffer of 4096 bytes, and
/// READV, whose length only its result names.
#[test]
fn read_of_unknown_length_is_one_of_unknown_range() {
    let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let found = [OP_READ, 1].map(|operation| {
        let mut ring = ring_in(&memory);
        ring.overwritten.clear();
        let request = &mut ring.in_flight[0];
        (request.operation, request.descriptor) = (operation, file.as_raw_fd() as u64);
        let read = ring.complete(8, true, LAYOUT, 100, &mut DescriptorFiles::new()).unwrap();
        (read.file.is_some(), read.asked_bytes)
    });
    assert_eq!(found, [(true, 4096), (false, 0)]);
}
