//! Asynchronous reads (`io_submit(2)`). A read is recorded when its result is fetched, from the
//! time of its submission to the time of the fetch.
//!
//! Reads of POSIX AIO (`aio_read(3)`) are only counted. Threads of the C library make them one
//! after the other, by calls within the library, so their times are not known.

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::c::{self, memory_piece, ssize_t};
use crate::layout::RecordRing;
use crate::{
    ReadPosition, RecordedCall, errno, has_entered_sandbox, method, now_ns, ring, set_errno, thread,
};

/// Requests that are copied at once, chosen. The copies lie on the stack, which may be a small one.
const BATCH_REQUESTS: usize = 16;

/// Entries that are tried for a request, chosen. A request without a free entry is counted as lost.
const ATTEMPTS: usize = 16;

/// Values of [`SubmittedRead::request_address`] for a free entry, and for one that is being
/// written.
const FREE: u64 = 0;
const TAKEN: u64 = 1;

/// Read requests of AIO, with one buffer and with several.
const READ: u16 = 0;
const VECTORED_READ: u16 = 7;

/// `struct iocb` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    _rest: [u64; 2],
}

/// `struct io_event` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    _data: u64,
    /// Address of the request that has ended.
    request_address: u64,
    result: i64,
    _result2: i64,
}

/// A read that was submitted and whose result was not yet fetched.
struct SubmittedRead {
    /// Address of the request, or [`FREE`], or [`TAKEN`].
    request_address: AtomicU64,
    /// Time of the submission, by the monotonic clock.
    begin_ns: AtomicU64,
    /// Descriptor of the file.
    descriptor: AtomicU64,
    /// First byte in the file.
    offset: AtomicU64,
    /// Requested bytes; [`u64::MAX`] for a vector.
    bytes: AtomicU64,
}

impl SubmittedRead {
    /// Returns a free entry.
    const fn free() -> SubmittedRead {
        SubmittedRead {
            request_address: AtomicU64::new(FREE),
            begin_ns: AtomicU64::new(0),
            descriptor: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// Hash table of the submitted reads.
static SUBMITTED: [SubmittedRead; 4096] = [const { SubmittedRead::free() }; 4096];

/// Returns the entries in the table that the request at an address may have, in the order of the
/// attempts.
fn candidate_entries(request_address: u64) -> impl Iterator<Item = &'static SubmittedRead> {
    // Multiplicative hash of the address, without the six bits below the size of a request. Its
    // upper 24 bits depend on all bits of the address.
    let first = (request_address >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let index = move |nth| (first as usize + nth) & (SUBMITTED.len() - 1);
    (0..ATTEMPTS).filter_map(move |nth| SUBMITTED.get(index(nth)))
}

/// Reserves an entry for writing if it holds `expected`: an address or `FREE`. Returns false if it
/// holds another value.
fn reserve_entry(entry: &SubmittedRead, expected: u64) -> bool {
    let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
    entry.request_address.compare_exchange(expected, TAKEN, success, failure).is_ok()
}

/// Enters a read that is about to be submitted. An older entry for the same address is replaced:
/// its read was refused, or the result was not fetched. A read without a free entry counts as lost.
fn enter_read(ring: RecordRing, request_address: u64, request: &Request, begin_ns: u64) {
    let reserved = candidate_entries(request_address)
        .find(|entry| reserve_entry(entry, request_address))
        .or_else(|| candidate_entries(request_address).find(|entry| reserve_entry(entry, FREE)));
    let Some(entry) = reserved else {
        ring.head().lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let set = |field: &AtomicU64, value: u64| field.store(value, Ordering::Relaxed);
    set(&entry.begin_ns, begin_ns);
    set(&entry.descriptor, u64::from(request.descriptor));
    set(&entry.offset, request.offset as u64);
    set(&entry.bytes, if request.operation == READ { request.bytes } else { u64::MAX });
    entry.request_address.store(request_address, Ordering::Release);
}

/// Copies memory of the program, whose addresses may be wrong. Returns false if the kernel could
/// not read all of it, or if it is larger than `to`.
fn copy_from_program<T, const N: usize>(to: &mut [T; N], from: &memory_piece) -> bool {
    if from.bytes > size_of_val(to) {
        return false;
    }
    let local = memory_piece { begin: (&raw mut *to).cast_const().cast(), bytes: from.bytes };
    // Number of this process: the upper half of the task. The call copies one piece to one piece.
    // It fails at a wrong address, where a direct access would end the program.
    let process = (thread::task() >> 32) as c_int;
    // SAFETY: the local piece is within `to`, and the kernel checks the other address.
    let copied = unsafe { c::process_vm_readv(process, &raw const local, 1, from, 1, 0) };
    copied == from.bytes as ssize_t
}

/// Enters the reads of a submission of `count` requests. `requests` is the program's list of their
/// addresses. The kernel has not yet checked them. It submits nothing from the first wrong address
/// on, where the rest is left out here too.
#[inline(never)]
fn enter_reads(ring: RecordRing, count: usize, requests: *const u64) {
    let begin_ns = now_ns();
    for first_index in (0..count).step_by(BATCH_REQUESTS) {
        let mut addresses = [0_u64; BATCH_REQUESTS];
        let batch_count = BATCH_REQUESTS.min(count - first_index);
        let begin = requests.wrapping_add(first_index).cast();
        let list = memory_piece { begin, bytes: batch_count * size_of::<u64>() };
        if !copy_from_program(&mut addresses, &list) {
            return;
        }
        for &address in addresses.iter().take(batch_count) {
            let mut request = [EMPTY_REQUEST];
            let begin = address as *const c_void;
            if !copy_from_program(
                &mut request,
                &memory_piece { begin, bytes: size_of::<Request>() },
            ) {
                return;
            }
            let [request] = request;
            // An address of `FREE` or `TAKEN` would be mistaken for the state of an entry.
            if address > TAKEN && matches!(request.operation, READ | VECTORED_READ) {
                enter_read(ring, address, &request, begin_ns);
            }
        }
    }
}

/// Space for a request, before its copy.
const EMPTY_REQUEST: Request = Request {
    data: 0,
    key_and_flags: [0; 2],
    operation: u16::MAX,
    priority: 0,
    descriptor: 0,
    buffer: 0,
    bytes: 0,
    offset: 0,
    _rest: [0; 2],
};

/// Calls `io_submit` (`real`) and returns its result. The reads among the requests are entered
/// before, as another thread may fetch their results at once.
#[inline(always)]
pub fn submit_requests(
    count: c_long,
    requests: *mut *mut c_void,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(ring) = ring() else { return real() };
    if count > 0 && !requests.is_null() {
        let error_number = errno();
        enter_reads(ring, count as usize, requests.cast());
        set_errno(error_number);
    }
    real()
}

/// Calls `io_getevents` (`real`) and returns its result. The reads among the fetched events are
/// recorded, unless the process has entered a sandbox meanwhile.
#[inline(always)]
pub fn fetch_results(events: *const Event, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(ring) = ring() else { return real() };
    let count = real();
    if count > 0 && !has_entered_sandbox(ring) {
        let error_number = errno();
        record_events(ring, events, count as usize);
        set_errno(error_number);
    }
    count
}

/// Records the entered reads among `count` fetched events, and frees their entries.
#[inline(never)]
fn record_events(ring: RecordRing, events: *const Event, count: usize) {
    let end_ns = now_ns();
    for index in 0..count {
        // SAFETY: the kernel has written `count` events there.
        let event = unsafe { events.add(index).read_unaligned() };
        let address = event.request_address;
        let Some(entry) = candidate_entries(address).find(|entry| reserve_entry(entry, address))
        else {
            // A write, or a read that was lost.
            continue;
        };
        let get = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let (begin_ns, bytes) = (get(&entry.begin_ns), get(&entry.bytes));
        let call = RecordedCall {
            method: method::AIO,
            descriptor: get(&entry.descriptor) as c_int,
            position: ReadPosition::At(get(&entry.offset)),
            requested_bytes: (bytes != u64::MAX).then_some(bytes as usize),
        };
        entry.request_address.store(FREE, Ordering::Release);
        call.record(ring, begin_ns, end_ns, event.result);
    }
}

/// First fields of `struct aiocb` of the C library.
#[repr(C)]
pub struct ListedRequest {
    _descriptor: c_int,
    /// Operation for `lio_listio`; 0 is a read.
    operation: c_int,
}

/// Calls a function that starts `count` reads of POSIX AIO (`real`), and returns its result. A
/// success adds `count` to `helper_reads`.
#[inline(always)]
pub fn count_helper_reads(count: u64, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let result = real();
    if result == 0
        && let Some(ring) = ring()
    {
        ring.head().helper_reads.fetch_add(count, Ordering::Relaxed);
    }
    result
}

/// Calls `lio_listio(3)` (`real`) and returns its result. A success adds the reads of its list to
/// `helper_reads`. The function has then read the list itself, so its addresses are good.
#[inline(always)]
pub fn count_listed_reads(
    list: *const *const ListedRequest,
    count: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let result = real();
    if result == 0
        && let Some(ring) = ring()
    {
        // SAFETY: the C library has read the list and its requests.
        let is_read = |index: usize| unsafe {
            let request = *list.add(index);
            // 0 is a read (LIO_READ).
            !request.is_null() && (*request).operation == 0
        };
        let reads = (0..count.max(0) as usize).filter(|&index| is_read(index)).count();
        ring.head().helper_reads.fetch_add(reads as u64, Ordering::Relaxed);
    }
    result
}
