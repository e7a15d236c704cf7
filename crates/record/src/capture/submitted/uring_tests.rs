//! Reads by io_uring that the running kernel reports.

use std::sync::atomic::AtomicI32;

use super::*;

/// Size of an entry of the submission queue.
const ENTRY_BYTES: usize = 64;

/// A ring for up to 8 requests, each submitted alone.
struct TestRing {
    descriptor: OwnedFd,
    /// Memory of both queues.
    queues: *mut u8,
    /// Memory of the entries. All indices of the queue are 0, so the first one is always used.
    entries: *mut u8,
    /// Offsets of the submission queue's tail and of the results, in bytes.
    tail_offset: usize,
    results_offset: usize,
    submitted_count: usize,
}

impl TestRing {
    /// Opens a ring. `None` if the system has no io_uring.
    fn open() -> Option<TestRing> {
        // struct io_uring_params of linux/io_uring.h, in words: the submission queue's tail 11, the
        // completion queue's entries 25.
        let mut parameters = [0_u32; 30];
        // SAFETY: the parameters have the size that the kernel reads and writes (120 bytes).
        let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8_u32, &raw mut parameters) };
        let descriptor = i32::try_from(result).ok().filter(|&number| number >= 0)?;
        // SAFETY: the descriptor is new and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Offsets of the queues and of the entries for `mmap`: IORING_OFF_SQ_RING and _SQES.
        let [queues, entries] = [0, 0x1000_0000]
            .map(|offset| map_pages(&descriptor, 4096, access, offset).unwrap().cast());
        let [tail_offset, results_offset] = [11, 25].map(|word| parameters[word] as usize);
        Some(TestRing {
            descriptor,
            queues,
            entries,
            tail_offset,
            results_offset,
            submitted_count: 0,
        })
    }

    /// Submits a request, waits for its end and returns its result.
    fn submit(&mut self, entry: [u8; ENTRY_BYTES]) -> i32 {
        // SAFETY: the memory of the ring is mapped, and the kernel reads it in the call only.
        unsafe {
            self.entries.cast::<[u8; ENTRY_BYTES]>().write(entry);
            let tail = &*self.queues.add(self.tail_offset).cast::<AtomicU32>();
            tail.fetch_add(1, Ordering::Release);
        }
        self.submitted_count += 1;
        let (count, wait_count, get_events) = (1, self.submitted_count, 1);
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: the call has no signal mask (a null pointer of 0 bytes).
        let accepted = unsafe {
            let number = libc::SYS_io_uring_enter;
            libc::syscall(number, descriptor, count, wait_count, get_events, ptr::null::<u8>(), 0)
        };
        assert_eq!(accepted, 1, "{}", io::Error::last_os_error());
        // struct io_uring_cqe: 16 bytes, the result is at offset 8.
        let result_offset = self.results_offset + 16 * (self.submitted_count - 1) + 8;
        // SAFETY: the queue has 16 results, within the mapped page.
        unsafe { &*self.queues.add(result_offset).cast::<AtomicI32>() }.load(Ordering::Acquire)
    }
}

impl Drop for TestRing {
    fn drop(&mut self) {
        // SAFETY: both were mapped with this length and have no references.
        unsafe {
            libc::munmap(self.queues.cast(), 4096);
            libc::munmap(self.entries.cast(), 4096);
        }
    }
}

/// A request `operation` (a number of linux/io_uring.h) for `length` bytes or vectors at `address`,
/// from the file offset 8192 on. It uses the registered buffer 0.
fn entry(operation: u8, descriptor: i32, address: u64, length: u32) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[0] = operation;
    entry[4..8].copy_from_slice(&descriptor.to_ne_bytes());
    entry[8..16].copy_from_slice(&8192_u64.to_ne_bytes());
    entry[16..24].copy_from_slice(&address.to_ne_bytes());
    entry[24..28].copy_from_slice(&length.to_ne_bytes());
    // The number of the request.
    entry[32] = operation;
    entry
}

/// Each operation reads 4096 bytes. Only a list of buffers hides the length.
#[test]
fn each_operation_that_reads_a_file_has_its_range() {
    let started = Instance::create().and_then(|instance| {
        let no_types = || TracefsError::UnknownEvent { line: "kernel types".to_owned() };
        let submissions = Submissions::start(&instance, read_offsets().ok_or_else(no_types)?)?;
        Ok((submissions, instance))
    });
    let (mut submissions, _instance) = match started {
        Ok(started) => started,
        Err(error) => return println!("skipped: {error}"),
    };
    let Some(mut ring) = TestRing::open() else { return println!("skipped: no io_uring") };
    // The program of this test is longer than three pages.
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let descriptor = file.as_raw_fd();
    let mut buffer = vec![0_u8; 4096];
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // IORING_REGISTER_BUFFERS has the number 0.
    // SAFETY: the vector describes the buffer, which outlives the ring's requests.
    let registered = unsafe {
        let (number, ring) = (libc::SYS_io_uring_register, ring.descriptor.as_raw_fd());
        libc::syscall(number, ring, 0, &raw const vector, 1)
    };
    assert_eq!(registered, 0, "{}", io::Error::last_os_error());
    let (memory, vectors) = (buffer.as_ptr() as u64, &raw const vector as u64);
    // READ_FIXED, READ, READV and READV_FIXED. A kernel before 6.15 has no READV_FIXED.
    for (operation, address, length, bytes) in [
        (4, memory, 4096, Some(4096)),
        (22, memory, 4096, Some(4096)),
        (1, vectors, 1, None),
        (60, vectors, 1, None),
    ] {
        match ring.submit(entry(operation, descriptor, address, length)) {
            4096 => {}
            result if operation == 60 && result == -libc::EINVAL => {
                println!("skipped: no READV_FIXED");
                continue;
            }
            result => panic!("operation {operation}: {result}"),
        }
        let mut events = Vec::new();
        submissions.read(&mut events);
        let own = events.into_iter().filter_map(|event| match event.data {
            EventData::UringRead { read, process } if process == std::process::id() => Some(read),
            _ => None,
        });
        let own: Vec<SubmittedRead> = own.collect();
        assert_eq!(own.len(), 1, "operation {operation}: {own:?}");
        let actual = (own[0].descriptor, own[0].offset, own[0].bytes);
        assert_eq!(actual, (Some(descriptor as u64), 8192, bytes), "operation {operation}");
    }
}
