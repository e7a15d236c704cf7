//! Raw files compared with a plain byte array, over a backend with injected faults.
//!
//! The backend moves real bytes of a real file, with direct I/O if available. It stops early,
//! returns EAGAIN or fails as configured, and answers out of order.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use readpath_core::chunking;
use readpath_core::policy::Spec;
use readpath_core::request::{DeviceError, Op};
use readpath_core::splitmix;

use super::buffers::Buffers;
use super::channel::Channel;
use super::*;
use crate::backend::{
    Backend, BackendError, BackendInUse, BackendKind, KernelAnswer, Sleep, Transfer,
    execute_transfer,
};
use crate::os::clock::Clock;
use crate::target::{Direct, OpenOptions, Target};

mod streams;

/// A scratch file on a real file system, deleted on drop.
struct ScratchFile(PathBuf);

impl ScratchFile {
    /// Chooses a new name, without a file.
    fn new() -> ScratchFile {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("readpath-raw-{}-{number}", std::process::id());
        // Next to the test program: the build directory is on a disk.
        ScratchFile(std::env::current_exe().unwrap().with_file_name(name))
    }

    /// Creates a file with these bytes.
    fn with_content(bytes: &[u8]) -> ScratchFile {
        let scratch = ScratchFile::new();
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Injected faults and their frequency.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// Period of transfers that stop after half of their blocks; 0: never.
    short_every: u64,
    /// Period of transfers that move no bytes and return EAGAIN or EINTR; 0: never.
    again_every: u64,
    /// Offset of a byte that fails every read and write of it.
    bad_byte: Option<u64>,
    /// Offset from which on writes fail with ENOSPC.
    device_bytes: Option<u64>,
    /// Offset from which on the next write moves no bytes and returns 0. It becomes `device_bytes`.
    stops_once_at: Option<u64>,
    /// Length to which another writer extends the file with a byte before each write.
    grows_to_bytes: Option<u64>,
    /// Index, modulo their number, of the waiting answer to return next.
    answer_index: usize,
}

/// Executes each transfer when it is queued, and answers out of order.
struct FaultyBackend {
    fd: i32,
    block_bytes: u64,
    faults: Arc<Mutex<Faults>>,
    /// Number of transfers so far.
    transfer_count: u64,
    /// Answers that were not returned yet.
    waiting: Vec<KernelAnswer>,
}

impl FaultyBackend {
    /// Executes a transfer, or a part of it, or injects a fault. Returns the number of bytes moved,
    /// or a negative error number.
    fn execute(&mut self, transfer: &Transfer<'_>) -> i32 {
        self.transfer_count += 1;
        let faults = self.faults.lock().unwrap().clone();
        if let Some(bytes) = faults.grows_to_bytes.filter(|_| transfer.op == Op::Write) {
            let path = format!("/proc/self/fd/{}", self.fd);
            let other = std::fs::File::options().write(true).open(path).unwrap();
            other.write_all_at(&[6], bytes - 1).unwrap();
        }
        let is_due = |period: u64| period > 0 && self.transfer_count.is_multiple_of(period);
        let bytes: u64 = transfer.segments.iter().map(|segment| segment.iov_len as u64).sum();
        let range = transfer.offset..transfer.offset + bytes;
        if is_due(faults.again_every) {
            return if self.transfer_count.is_multiple_of(2) {
                -libc::EAGAIN
            } else {
                -libc::EINTR
            };
        }
        if faults.bad_byte.is_some_and(|bad| range.contains(&bad)) {
            return -libc::EIO;
        }
        if transfer.op == Op::Write && faults.stops_once_at.is_some_and(|stop| stop <= range.start)
        {
            let mut faults = self.faults.lock().unwrap();
            faults.device_bytes = faults.stops_once_at.take();
            return 0;
        }
        let is_beyond_device = faults.device_bytes.is_some_and(|bytes| range.end > bytes);
        if transfer.op == Op::Write && is_beyond_device {
            return -libc::ENOSPC;
        }
        let blocks = bytes / self.block_bytes;
        let mut bytes_left = match is_due(faults.short_every) && blocks > 1 {
            true => blocks / 2 * self.block_bytes,
            false => bytes,
        };
        let mut segments = Vec::new();
        for segment in transfer.segments {
            let iov_len = (segment.iov_len as u64).min(bytes_left) as usize;
            bytes_left -= iov_len as u64;
            segments.push(libc::iovec { iov_len, ..*segment });
        }
        // SAFETY: parts of the segments whose validity the caller of `queue` guarantees.
        unsafe { execute_transfer(self.fd, transfer.op, transfer.offset, &segments) }
    }
}

impl Backend for FaultyBackend {
    /// Executes the transfer at once and keeps its answer.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let raw = self.execute(&transfer);
        self.waiting.push(KernelAnswer { token: transfer.token, raw });
    }

    /// Queued transfers have already been executed.
    fn cancel(&mut self, _token: u64) {}

    /// Returns one of the waiting answers, selected by the faults.
    fn exchange(&mut self, _: Sleep, answers: &mut Vec<KernelAnswer>) -> Result<(), BackendError> {
        if !self.waiting.is_empty() {
            let answer_index = self.faults.lock().unwrap().answer_index % self.waiting.len();
            answers.push(self.waiting.swap_remove(answer_index));
        }
        Ok(())
    }
}

/// A faulty backend for the transfers of a file.
fn faulty_backend(target: &Target, faults: Arc<Mutex<Faults>>) -> FaultyBackend {
    FaultyBackend {
        fd: target.as_raw_fd(),
        block_bytes: u64::from(target.alignment_bytes()),
        faults,
        transfer_count: 0,
        waiting: Vec::new(),
    }
}

/// Opens a raw file over a faulty backend. Returns the file, and the faults to be injected.
fn open_faulty(path: &Path, policy: &str) -> (RawFile, Arc<Mutex<Faults>>) {
    let options = OpenOptions { is_writable: true, direct: Direct::Preferred };
    let creates = false;
    let target = Target::open_or_create(path, options, creates).unwrap();
    let faults = Arc::new(Mutex::new(Faults::default()));
    let backend = faulty_backend(&target, Arc::clone(&faults));
    let policy = Spec::parse(policy).unwrap();
    let channel_parameters = ChannelParameters {
        target: target.clone(),
        policy: policy.clone(),
        backend: BackendKind::default(),
    };
    let policy = chunking::build(&policy).unwrap();
    let buffers = Buffers::new(policy.chunk_bytes(), policy.depth()).unwrap();
    let in_use = BackendInUse { kind: BackendKind::Threads, because: None };
    let channel =
        Channel::with_backend(target, policy, buffers, (Box::new(backend), in_use), Clock::start());
    let (is_writable, cache_invalidator) = (true, None);
    let file = RawFile::from_channel(channel, channel_parameters, is_writable, cache_invalidator);
    (file, faults)
}

/// Value of memory that was not read into.
const UNTOUCHED: u8 = 0xee;

/// Memory that begins `shift` bytes after a page boundary.
struct ShiftedMemory {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl ShiftedMemory {
    /// Allocates `bytes` bytes.
    fn new(bytes: usize, shift: usize) -> ShiftedMemory {
        let memory = vec![UNTOUCHED; bytes + 2 * 4096];
        let start = memory.as_ptr().align_offset(4096) + shift;
        ShiftedMemory { memory, start, bytes }
    }

    /// The bytes from the shifted start on.
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// Creates pseudorandom bytes from a seed.
fn pattern_bytes(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..bytes).map(|_| splitmix::next(&mut state) as u8).collect()
}

/// One call of a generated test.
#[derive(Clone, Debug)]
struct ScriptedCall {
    is_write: bool,
    offset: u64,
    bytes: usize,
    /// Offset of the caller's memory in a page.
    shift: usize,
    /// Value of `Faults::answer_index` during the call.
    answer_index: usize,
}

/// Generates up to 11 calls on the first 100,000 bytes of a file.
fn calls() -> impl Strategy<Value = Vec<ScriptedCall>> {
    // Offsets at, before and after block edges, and at random.
    let offset = prop_oneof![0u64..60_000, (0u64..100).prop_map(|block| block * 512)];
    let bytes =
        prop_oneof![0usize..40_000, (0usize..60).prop_map(|blocks| blocks * 512), 0usize..600];
    let shift = prop_oneof![Just(0usize), Just(512), 0usize..4096];
    let call = (any::<bool>(), offset, bytes, shift, any::<bool>(), 0usize..8).prop_map(
        |(is_write, offset, bytes, shift, is_congruent, answer_index)| {
            // Half of the calls have memory aligned like the file.
            let shift = if is_congruent { (offset % 4096) as usize } else { shift };
            ScriptedCall { is_write, offset, bytes, shift, answer_index }
        },
    );
    proptest::collection::vec(call, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// With early stops and EAGAIN, reads return the bytes of a byte array, and the file ends up
    /// equal to the array in content and length.
    #[test]
    fn raw_file_equals_a_byte_array_model(
        length in 0usize..50_000,
        calls in calls(),
        depth in 1u32..5,
        chunk_pages in 1u64..4,
        short_every in 0u64..5,
        again_every in prop_oneof![Just(0u64), 2u64..5],
    ) {
        let mut model = pattern_bytes(length, 1);
        let scratch = ScratchFile::with_content(&model);
        let policy = format!("ring,chunk={},depth={depth}", chunk_pages * 4096);
        let (file, faults) = open_faulty(&scratch.0, &policy);
        for (nth, call) in calls.iter().enumerate() {
            let answer_index = call.answer_index;
            *faults.lock().unwrap() =
                Faults { short_every, again_every, answer_index, ..Faults::default() };
            let mut memory = ShiftedMemory::new(call.bytes, call.shift);
            if call.is_write {
                memory.bytes().copy_from_slice(&pattern_bytes(call.bytes, nth as u64 + 2));
                file.write_all_at(memory.bytes(), call.offset).unwrap();
                write_to_model(&mut model, memory.bytes(), call.offset);
            } else {
                let read_bytes = file.read_at(memory.bytes(), call.offset).unwrap();
                let start = (call.offset as usize).min(model.len());
                let end = (start + call.bytes).min(model.len());
                prop_assert!(memory.bytes()[..read_bytes] == model[start..end], "{call:?}");
                let rest = &memory.bytes()[read_bytes..];
                prop_assert!(rest.iter().all(|&byte| byte == UNTOUCHED), "{call:?}");
            }
            prop_assert_eq!(file.bytes().unwrap(), model.len() as u64, "{:?}", call);
        }
        prop_assert!(std::fs::read(&scratch.0).unwrap() == model);
    }

    /// A bad byte fails exactly the calls whose blocks hold it. Bytes reported as moved were moved,
    /// and all other bytes are unchanged.
    #[test]
    fn bad_byte_fails_exactly_the_calls_that_need_it(
        bad in 0u64..50_000,
        calls in calls(),
        depth in 1u32..5,
    ) {
        let mut model = pattern_bytes(50_000, 1);
        let scratch = ScratchFile::with_content(&model);
        let (file, faults) = open_faulty(&scratch.0, &format!("ring,chunk=8KiB,depth={depth}"));
        let block_bytes = u64::from(file.alignment_bytes());
        for (nth, call) in calls.iter().enumerate() {
            let answer_index = call.answer_index;
            *faults.lock().unwrap() =
                Faults { bad_byte: Some(bad), answer_index, ..Faults::default() };
            let mut memory = ShiftedMemory::new(call.bytes, call.shift);
            memory.bytes().copy_from_slice(&pattern_bytes(call.bytes, nth as u64 + 2));
            let end = call.offset + call.bytes as u64;
            let blocks = call.offset / block_bytes * block_bytes..end.next_multiple_of(block_bytes);
            let is_needed = call.bytes > 0 && blocks.contains(&bad);
            let result = match call.is_write {
                true => file.write_at(memory.bytes(), call.offset),
                false => file.read_at(memory.bytes(), call.offset),
            };
            match result {
                // A read that begins past the end reads no bytes.
                Ok(_) => prop_assert!(!is_needed || (!call.is_write && call.offset >= model.len() as u64), "{call:?}"),
                Err(error) => {
                    prop_assert!(is_needed, "{call:?}: {error}");
                    let RawFault::Device { bytes_done, error, .. } = error.fault else {
                        panic!("{error}");
                    };
                    prop_assert_eq!(error, DeviceError::Medium);
                    // No byte after the bad one is reported, and none if the bad byte is in the
                    // first block.
                    prop_assert!(bytes_done <= bad.saturating_sub(call.offset), "{call:?}: {bytes_done}");
                }
            }
            let content_after = std::fs::read(&scratch.0).unwrap();
            if call.is_write && call.bytes > 0 {
                // Any part of the written bytes may be there; all other bytes are unchanged.
                let requested = call.offset as usize..end as usize;
                for (offset, &byte) in content_after.iter().enumerate() {
                    let old_byte = model.get(offset).copied().unwrap_or(0);
                    let new_byte = requested
                        .contains(&offset)
                        .then(|| memory.bytes()[offset - requested.start]);
                    let is_valid = byte == old_byte || Some(byte) == new_byte;
                    prop_assert!(is_valid, "{call:?}: byte {offset}");
                }
                prop_assert!(content_after.len() >= model.len());
            }
            model = content_after;
        }
    }
}

/// Writes `bytes` at `offset` to the model, and extends it as needed.
fn write_to_model(model: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if !bytes.is_empty() && model.len() < end {
        model.resize(end, 0);
    }
    if !bytes.is_empty() {
        model[start..end].copy_from_slice(bytes);
    }
}

/// The device has room for 40,960 of 100,000 bytes: five chunks of 8 KiB, which are written and
/// reported. The file has no other bytes.
#[test]
fn full_device_holds_exactly_the_reported_bytes() {
    let scratch = ScratchFile::with_content(b"");
    let (file, faults) = open_faulty(&scratch.0, "ring,chunk=8KiB,depth=3");
    faults.lock().unwrap().device_bytes = Some(40_960);
    let data = pattern_bytes(100_000, 9);
    let error = file.write_all_at(&data, 0).unwrap_err();
    let expected = RawFault::Device {
        op: Op::Write,
        offset: 40_960,
        bytes_done: 40_960,
        error: DeviceError::Full,
    };
    assert_eq!(error.fault, expected);
    assert!(error.to_string().contains("make room, or write less"), "{error}");
    assert!(std::fs::read(&scratch.0).unwrap() == data[..40_960]);
    // It works again once there is room.
    faults.lock().unwrap().device_bytes = None;
    file.write_all_at(&data, 0).unwrap();
    assert!(std::fs::read(&scratch.0).unwrap() == data);
}

/// The kernel stops after two chunks of 8 KiB without an error, and the device is full at the next
/// try. All 16,384 bytes before it are reported.
#[test]
fn failure_after_a_stopped_write_reports_the_bytes_before_the_stop() {
    let scratch = ScratchFile::with_content(b"");
    let (file, faults) = open_faulty(&scratch.0, "ring,chunk=8KiB,depth=1");
    faults.lock().unwrap().stops_once_at = Some(16_384);
    let error = file.write_all_at(&[7; 40_960], 0).unwrap_err();
    let (offset, bytes_done, error_kind) = (16_384, 16_384, DeviceError::Full);
    let expected = RawFault::Device { op: Op::Write, offset, bytes_done, error: error_kind };
    assert_eq!(error.fault, expected);
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 16_384);
}

/// The first chunk of a write beyond the end fails, and the chunks behind it extend the file. The
/// file keeps its length.
#[test]
fn failed_write_beyond_the_end_leaves_the_length() {
    let scratch = ScratchFile::with_content(&pattern_bytes(1_000, 1));
    let (file, faults) = open_faulty(&scratch.0, "ring,chunk=8KiB,depth=3");
    faults.lock().unwrap().bad_byte = Some(20_000);
    let error = file.write_at(&[7; 40_000], 16_384).unwrap_err();
    assert!(matches!(error.fault, RawFault::Device { bytes_done: 0, .. }), "{error}");
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 1_000);
}

/// The file was opened empty, and the kernel stops early. The end is an answer of 0 bytes.
#[test]
fn batch_reads_a_file_that_has_grown_since_its_opening() {
    let scratch = ScratchFile::with_content(b"");
    let file = RawFile::builder().open(&scratch.0).unwrap();
    let faults = Faults { short_every: 1, ..Faults::default() };
    let backend = faulty_backend(&file.channel_parameters.target, Arc::new(Mutex::new(faults)));
    let mut batch = file.batch_over(Box::new(backend), 1);
    let content = pattern_bytes(8_192, 1);
    std::fs::write(&scratch.0, &content).unwrap();
    batch.read(RawMemory::new(8_192).unwrap(), 8_192, 0, 0).unwrap();
    let RawMoved { memory, result, .. } = batch.wait().unwrap().unwrap();
    assert_eq!(result, Ok(8_192));
    assert!(memory[..8_192] == content);
}

/// Another writer extends the file during a write that fails: its bytes stay. With three chunks in
/// flight, the last two extend the file beyond them, and the file then ends at the write's offset.
#[test]
fn failed_write_beyond_the_end_keeps_bytes_of_another_writer() {
    for (depth, length_bytes) in [(1, 20_480), (3, 1 << 20)] {
        let scratch = ScratchFile::with_content(&pattern_bytes(1_000, 1));
        let (file, faults) = open_faulty(&scratch.0, &format!("ring,chunk=8KiB,depth={depth}"));
        *faults.lock().unwrap() =
            Faults { bad_byte: Some(1 << 20), grows_to_bytes: Some(20_480), ..Faults::default() };
        file.write_at(&[7; 40_960], 1 << 20).unwrap_err();
        let content = std::fs::read(&scratch.0).unwrap();
        assert_eq!((content.len(), content.get(20_479)), (length_bytes, Some(&6)), "{depth}");
    }
}

/// A call of whole blocks fails after 8 KiB, while a batch writes the last 8 KiB of its range: the
/// batch's bytes stay.
#[test]
fn failed_write_keeps_the_bytes_of_a_batch_write_in_flight() {
    let scratch = ScratchFile::with_content(b"");
    let (file, faults) = open_faulty(&scratch.0, "ring,chunk=8KiB,depth=1");
    let backend = faulty_backend(&file.channel_parameters.target, Arc::default());
    let mut batch = file.batch_over(Box::new(backend), 1);
    let other = std::fs::File::options().write(true).open(&scratch.0).unwrap();
    let mut memory = RawMemory::new(8_192).unwrap();
    memory.fill(6);
    batch.write(memory, 8_192, 32_768, 0).unwrap();
    // The batch's write reaches the file during the call.
    other.set_len(0).unwrap();
    *faults.lock().unwrap() =
        Faults { bad_byte: Some(10_000), grows_to_bytes: Some(40_960), ..Faults::default() };
    let error = file.write_at(&[7; 40_960], 0).unwrap_err();
    assert!(matches!(error.fault, RawFault::Device { bytes_done: 8_192, .. }), "{error}");
    assert_eq!(batch.wait().unwrap().unwrap().result, Ok(8_192));
    let content = std::fs::read(&scratch.0).unwrap();
    assert_eq!((content.len(), content.get(40_959)), (40_960, Some(&6)));
}

/// A kernel that always returns EAGAIN is not retried for ever.
#[test]
fn endless_eagain_becomes_an_error() {
    let scratch = ScratchFile::with_content(&pattern_bytes(10_000, 1));
    let (file, faults) = open_faulty(&scratch.0, "ring");
    faults.lock().unwrap().again_every = 1;
    let error = file.read_at(&mut [0; 5_000], 0).unwrap_err();
    let RawFault::Device { error: DeviceError::Other(errno), bytes_done: 0, .. } = error.fault
    else {
        panic!("{error}");
    };
    assert!(errno == libc::EAGAIN || errno == libc::EINTR);
    faults.lock().unwrap().again_every = 0;
    assert_eq!(file.read_at(&mut [0; 5_000], 0).unwrap(), 5_000);
}

/// Another writer extends the file to 20,010 bytes before a write that ends inside a block: its
/// bytes stay.
#[test]
fn bytes_appended_by_another_writer_before_a_write_stay() {
    let scratch = ScratchFile::with_content(&pattern_bytes(1_000, 1));
    let (file, _) = open_faulty(&scratch.0, "kiobuf");
    file.write_all_at(&[5; 700], 800).unwrap();
    assert_eq!(file.bytes().unwrap(), 1_500);
    let other = std::fs::File::options().write(true).open(&scratch.0).unwrap();
    other.write_all_at(&[6; 10], 20_000).unwrap();
    file.write_all_at(&[7; 100], 1_400).unwrap();
    assert_eq!(file.bytes().unwrap(), 20_010);
}

/// Another writer extends the file to 20,010 bytes during the write: its length stays.
#[test]
fn bytes_appended_by_another_writer_during_a_write_stay() {
    let scratch = ScratchFile::with_content(&pattern_bytes(1_000, 1));
    let (file, faults) = open_faulty(&scratch.0, "kiobuf");
    faults.lock().unwrap().grows_to_bytes = Some(20_010);
    file.write_all_at(&[5; 700], 800).unwrap();
    assert_eq!(file.bytes().unwrap(), 20_010);
    assert!(std::fs::read(&scratch.0).unwrap()[800..1_500] == [5; 700]);
}

#[test]
fn raw_file_is_send_and_sync() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<RawFile>();
}
