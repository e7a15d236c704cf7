//! Tracer of reads submitted to AIO and io_uring, by BPF programs.
//!
//! The kernel's events name neither file nor range of such a read. AIO's `iocb` is in the program's
//! memory and is soon reused. The request of io_uring is in the kernel's memory. Short BPF programs
//! copy both at `syscalls:sys_enter_io_submit` and `io_uring:io_uring_submit_req`. Kernel threads
//! of io_uring (`IORING_SETUP_SQPOLL`, workers) are not recorded tasks. Therefore a program at
//! `io_uring:io_uring_complete` reports the end of each request with its file. Another one at the
//! end of open calls reports the file of a descriptor, since `/proc` would be read too late for a
//! short-lived program.
//!
//! Other sources were rejected. A read of the program's memory comes milliseconds too late, event
//! probes need `CONFIG_EPROBE_EVENTS`, and `block:*` has no offset in a file.
//!
//! A request of io_uring is accepted only if its operation and `user_data` are at the offsets of
//! Linux 6.18. The first fields, with the range, are the fields of `struct kiocb` since Linux 4.1.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use readpath_trace::recording::Activity;

use super::aio_operations;
use super::event::{EventData, Inode, SubmittedRead, TraceEvent};
use super::layout::EventLayout;
use super::uring_operations::is_vectored_read;
use crate::tracefs::{Instance, TracefsError};

mod btf;
mod program;

pub(super) use btf::{Offsets, read_offsets};
use program::{Output, Program};

/// Size of the ring that the programs write to, in bytes. A record takes at most 152 bytes.
const RING_BYTES: usize = 4 << 20;

/// Commands and attributes of bpf(2), from `linux/bpf.h`.
const MAP_CREATE: u32 = 0;
const PROG_LOAD: u32 = 5;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const MAP_IS_MAPPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACEPOINT: u32 = 5;

/// Constants of perf_event_open(2), from `linux/perf_event.h`.
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_SAMPLE_PERIOD_ONE: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const PERF_EVENT_IOC_ENABLE: u64 = 0x2400;
const PERF_EVENT_IOC_SET_BPF: u64 = 0x4004_2408;

/// Bit of a record's length in the ring while the record is being written.
const BUSY: u32 = 1 << 31;

/// Bit of a record's length in the ring if the record was discarded.
const DISCARDED: u32 = 1 << 30;

/// Size of the head before a record in the ring, which begins with the length.
const RECORD_HEAD_BYTES: u64 = 8;

/// Request flag of io_uring: the descriptor is an index into the registered files.
pub(super) const FIXED_FILE: u64 = 1;

/// Size of `struct bpf_prog_info` up to its field `recursion_misses`, which is included.
const INFO_BYTES: usize = 216;

/// Offset of that field: the number of events at which the kernel has not run the program, because
/// another one was running.
const MISSES_OFFSET: usize = 208;

/// The attached programs and their ring.
#[derive(Debug)]
pub(super) struct Submissions {
    /// Ring with the records of the programs.
    ring: Ring,
    /// Number of records for which the ring had no space.
    dropped: DropCounter,
    /// The programs, each at its event.
    attached: Vec<Attached>,
    /// Number of records lost during pauses, which do not count.
    lost_in_pauses: u64,
    /// The count of lost records at the start of the current pause.
    lost_before_pause: Option<u64>,
}

/// A program at an event.
#[derive(Debug)]
struct Attached {
    /// Descriptor of the event. The program runs until it is closed.
    event: OwnedFd,
    /// Descriptor of the program.
    program: OwnedFd,
    /// True if its records report reads. The file of an open call is found elsewhere too.
    is_of_reads: bool,
}

impl Drop for Submissions {
    /// The kernel waits some 75 ms for its own readers when an event is closed. Threads wait at the
    /// same time.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for attached in self.attached.drain(..) {
                scope.spawn(|| drop(attached));
            }
        });
    }
}

impl Submissions {
    /// Loads the programs and runs them at their events. `instance` has the formats of the events,
    /// and `offsets` are the places of the kernel's fields.
    ///
    /// # Errors
    /// The kernel refuses BPF or lacks an event.
    pub fn start(instance: &Instance, offsets: Offsets) -> Result<Submissions, TracefsError> {
        let bpf_error = |action| {
            move |source| TracefsError::Unavailable { action, path: "bpf(2)".into(), source }
        };
        let ring = Ring::new().map_err(bpf_error("make the ring of"))?;
        let dropped = DropCounter::new().map_err(bpf_error("make an array of"))?;
        let output = Output { ring: ring.map.as_raw_fd(), dropped: dropped.map.as_raw_fd() };
        let mut attached = Vec::new();
        let layout = |name: &str| {
            let text = instance.read(&format!("events/{name}/format"))?;
            let wrong = || TracefsError::UnknownEvent { line: name.to_owned() };
            EventLayout::parse(&text).ok_or_else(wrong)
        };
        type ProgramBuilder<'a> = &'a dyn Fn(&EventLayout, Output) -> Option<Program>;
        let opening: ProgramBuilder<'_> =
            &|layout, output| program::open_program(layout, output, &offsets);
        let completion: ProgramBuilder<'_> =
            &|layout, output| program::completion_program(layout, output, &offsets);
        let programs: [(&str, ProgramBuilder<'_>); 6] = [
            ("syscalls/sys_exit_open", opening),
            ("syscalls/sys_exit_openat", opening),
            ("syscalls/sys_exit_openat2", opening),
            ("syscalls/sys_enter_io_submit", &program::aio_program),
            ("io_uring/io_uring_submit_req", &program::uring_program),
            ("io_uring/io_uring_complete", completion),
        ];
        for (name, build) in programs {
            let is_of_reads = !name.starts_with("syscalls/sys_exit_open");
            // Some architectures lack the older calls.
            let layout = match layout(name) {
                Err(_) if !is_of_reads => continue,
                layout => layout?,
            };
            let Some(program) = build(&layout, output) else {
                return Err(TracefsError::UnknownEvent { line: name.to_owned() });
            };
            let [event, program] =
                attach_program(layout.id, &program).map_err(bpf_error("attach a program by"))?;
            attached.push(Attached { event, program, is_of_reads });
        }
        Ok(Submissions { ring, dropped, attached, lost_in_pauses: 0, lost_before_pause: None })
    }

    /// Number of records lost since the start: the ring was full, or the kernel has not run a
    /// program. Events of other tasks are included. Pauses are left out.
    pub fn lost(&self) -> u64 {
        self.lost_before_pause.unwrap_or_else(|| self.lost_since_start() - self.lost_in_pauses)
    }

    /// Number of records lost since the start, pauses included. Events of open calls that the
    /// kernel has not passed to a program do not count.
    fn lost_since_start(&self) -> u64 {
        let read_programs = self.attached.iter().filter(|attached| attached.is_of_reads);
        let missed: u64 = read_programs.map(|attached| missed_events(&attached.program)).sum();
        self.dropped.count() + missed
    }

    /// Descriptors of the maps, the events and the programs: all that this value keeps open.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let raw = |descriptor: &OwnedFd| descriptor.as_raw_fd();
        let of_attached = move |attached: &Attached| [&attached.event, &attached.program].map(raw);
        let maps = [&self.ring.map, &self.dropped.map].map(raw);
        maps.into_iter().chain(self.attached.iter().flat_map(of_attached))
    }

    /// Appends the events since the last call to `events`. During a pause they are discarded.
    pub fn read(&mut self, events: &mut Vec<TraceEvent>) {
        let is_paused = self.lost_before_pause.is_some();
        self.ring.read(|bytes| events.extend(decode_record(bytes).filter(|_| !is_paused)));
    }

    /// Discards all events from now on, until [`resume`](Submissions::resume). The programs go on:
    /// the kernel runs them also at a disabled event, and takes some 75 ms to detach one.
    pub fn pause(&mut self) {
        self.lost_before_pause = Some(self.lost());
        self.ring.read(|_| {});
    }

    /// Ends a pause. The events up to here are discarded, and lost ones do not count.
    pub fn resume(&mut self) {
        self.ring.read(|_| {});
        if let Some(lost) = self.lost_before_pause.take() {
            self.lost_in_pauses = self.lost_since_start() - lost;
        }
    }
}

/// Decodes a record of the programs. Returns `None` for a record that is too short or of unknown
/// kind. A read by io_uring whose fields have other offsets in this kernel, and an opened file that
/// is not regular, are `None` too.
///
/// The head is task 0, process 4, time in ns 8, kind 16, and address of the request 24 (of an
/// opened file: its descriptor). Records of files continue with inode number 0, device 8, flags of
/// the file 16, mode 24 and result 32. The numbers are offsets in bytes. They count from the start
/// of the record in the head, and from the end of the head behind it.
fn decode_record(bytes: &[u8]) -> Option<TraceEvent> {
    let u64_at =
        |offset: usize| Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?));
    let u32_at =
        |offset: usize| Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?));
    let (task, process, at_ns, request) = (u32_at(0)?, u32_at(4)?, u64_at(8)?, u64_at(24)?);
    let copy_offset = program::HEAD_BYTES;
    let file = || {
        let is_regular =
            u64_at(copy_offset + 24)? & u64::from(libc::S_IFMT) == u64::from(libc::S_IFREG);
        let inode = Inode { number: u64_at(copy_offset)?, device: u64_at(copy_offset + 8)? };
        // The programs copy 0 from an address that they cannot read.
        Some(inode).filter(|inode| is_regular && inode.number != 0)
    };
    let data = match u32_at(16)? {
        program::OPENED => EventData::Opened {
            descriptor: request,
            inode: file()?,
            flags: u64_at(copy_offset + 16)?,
        },
        program::COMPLETED => {
            let result = u32_at(copy_offset + 32)? as i32;
            let flags = u64_at(copy_offset + 16)?;
            EventData::UringEnds { request, inode: file(), flags, result }
        }
        program::AIO => {
            // struct iocb: operation 16, descriptor 20, bytes 32, offset 40.
            let operation = u32_at(copy_offset + 16)? as u16;
            let is_vectored = operation == aio_operations::READV;
            if operation != aio_operations::READ && !is_vectored {
                // The object of the descriptor is not known here: it counts as a file.
                let activity = aio_operations::activity_of_operation(operation, || true);
                let activity = activity.unwrap_or(Activity::Others);
                return Some(TraceEvent { at_ns, task, data: EventData::AioOther { activity } });
            }
            let bytes = (!is_vectored).then_some(u64_at(copy_offset + 32)?);
            let descriptor = Some(u64::from(u32_at(copy_offset + 20)?));
            EventData::AioRead(SubmittedRead {
                request,
                descriptor,
                offset: u64_at(copy_offset + 40)?,
                bytes,
            })
        }
        program::URING => {
            // struct io_kiocb: offset 8, length 56, operation 64, flags 72, user_data 80,
            // descriptor 92. Behind its copy are operation and user_data of the event. They differ
            // if the fields of the struct have other offsets in this kernel.
            let operation = u64::from(*bytes.get(copy_offset + 64)?);
            let [event_operation, user_data] =
                [u64_at(copy_offset + 96)?, u64_at(copy_offset + 104)?];
            if event_operation & 0xff != operation || u64_at(copy_offset + 80)? != user_data {
                return None;
            }
            let is_vectored = is_vectored_read(operation as u8);
            let is_fixed = u64_at(copy_offset + 72)? & FIXED_FILE != 0;
            let descriptor = (!is_fixed).then_some(u64::from(u32_at(copy_offset + 92)?));
            let bytes = (!is_vectored).then_some(u64::from(u32_at(copy_offset + 56)?));
            let offset = u64_at(copy_offset + 8)?;
            let read = SubmittedRead { request, descriptor, offset, bytes };
            EventData::UringRead { read, process }
        }
        _ => return None,
    };
    Some(TraceEvent { at_ns, task, data })
}

/// Makes the system call `bpf(2)` with a command that returns a descriptor. Returns the system's
/// error if the kernel refuses.
fn bpf(command: u32, attributes: &mut [u8; 128]) -> io::Result<OwnedFd> {
    // SAFETY: the length is correct, and the pointers in the attributes outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), attributes.len() as u32)
    };
    owned_descriptor(result)
}

/// Converts the result of a system call to an owned descriptor, or to the system's last error.
fn owned_descriptor(result: i64) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: a new descriptor from the call, with no other owner.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes bytes at an offset of the attributes of a system call.
fn set_field(attributes: &mut [u8], offset: usize, bytes: &[u8]) {
    attributes[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Loads a program and runs it at each event with the number `event`, on all processors. Returns
/// the descriptors of the event and of the program. The program runs until the event is closed.
/// Returns the system's error of the step that failed.
fn attach_program(event: u16, program: &Program) -> io::Result<[OwnedFd; 2]> {
    let license = c"GPL";
    // union bpf_attr: type, number of instructions, instructions, license.
    let mut attributes = [0; 128];
    set_field(&mut attributes, 0, &PROG_TYPE_TRACEPOINT.to_ne_bytes());
    set_field(&mut attributes, 4, &(program.len() as u32).to_ne_bytes());
    set_field(&mut attributes, 8, &(program.as_ptr() as u64).to_ne_bytes());
    set_field(&mut attributes, 16, &(license.as_ptr() as u64).to_ne_bytes());
    let loaded = bpf(PROG_LOAD, &mut attributes)?;
    // struct perf_event_attr: type, size, config, sample_period.
    // The kernel runs the program at this tracepoint on all processors, so one event is enough.
    set_field(&mut attributes, 0, &[0; 128]);
    set_field(&mut attributes, 0, &PERF_TYPE_TRACEPOINT.to_ne_bytes());
    set_field(&mut attributes, 4, &128_u32.to_ne_bytes());
    set_field(&mut attributes, 8, &u64::from(event).to_ne_bytes());
    set_field(&mut attributes, 16, &PERF_SAMPLE_PERIOD_ONE.to_ne_bytes());
    let (any_task, first_processor, no_group) = (-1_i32, 0_i32, -1_i32);
    // SAFETY: the length in the attributes is correct.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            any_task,
            first_processor,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let opened = owned_descriptor(opened)?;
    for (command, argument) in
        [(PERF_EVENT_IOC_SET_BPF, loaded.as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)]
    {
        // SAFETY: both requests take a number and access no memory of this process.
        if unsafe { libc::ioctl(opened.as_raw_fd(), command as _, argument) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok([opened, loaded])
}

/// Number of events at which the kernel has not run the program. 0 for an older kernel, which does
/// not count them, and if the kernel does not answer.
fn missed_events(program: &OwnedFd) -> u64 {
    let mut info = [0_u8; INFO_BYTES];
    // union bpf_attr: descriptor, length and address of the info.
    let mut attributes = [0; 128];
    set_field(&mut attributes, 0, &program.as_raw_fd().to_ne_bytes());
    set_field(&mut attributes, 4, &(INFO_BYTES as u32).to_ne_bytes());
    set_field(&mut attributes, 8, &(info.as_mut_ptr() as u64).to_ne_bytes());
    let (command, bytes) = (OBJ_GET_INFO_BY_FD, attributes.len() as u32);
    // SAFETY: the lengths are correct, and the kernel writes to `info` during the call only.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), bytes) };
    let count = info[MISSES_OFFSET..].try_into().map_or(0, u64::from_ne_bytes);
    if result == 0 { count } else { 0 }
}

/// A BPF array with one number, which the programs increase.
#[derive(Debug)]
struct DropCounter {
    /// Descriptor of the array.
    map: OwnedFd,
    /// Address of the number in the mapped array.
    number: *mut libc::c_void,
    /// Length of the mapping.
    page_bytes: usize,
}

impl DropCounter {
    /// Creates the kernel's array with one number, 0, and maps it read-only. Returns the system's
    /// error if one of them fails.
    fn new() -> io::Result<DropCounter> {
        let mut attributes = [0; 128];
        // union bpf_attr: type, bytes of a key and of a value, number of values, flags.
        let (key_bytes, value_bytes, count) = (4_u32, 8_u32, 1_u32);
        let fields = [MAP_TYPE_ARRAY, key_bytes, value_bytes, count, MAP_IS_MAPPABLE];
        fields
            .iter()
            .enumerate()
            .for_each(|(nth, field)| set_field(&mut attributes, nth * 4, &field.to_ne_bytes()));
        let map = bpf(MAP_CREATE, &mut attributes)?;
        let page_bytes = rustix::param::page_size();
        let number = map_pages(&map, page_bytes, libc::PROT_READ, 0)?;
        Ok(DropCounter { map, number, page_bytes })
    }

    /// Returns the number of records for which the ring had no space.
    fn count(&self) -> u64 {
        // SAFETY: the page begins with the number and lives as long as the mapping.
        unsafe { &*self.number.cast::<AtomicU64>() }.load(Ordering::Relaxed)
    }
}

impl Drop for DropCounter {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length and has no references.
        unsafe { libc::munmap(self.number, self.page_bytes) };
    }
}

/// Maps `bytes` bytes of a BPF map from `offset` on, and returns their address or the system's
/// error. `protection`: access flags of `mmap`.
fn map_pages(
    map: &OwnedFd,
    bytes: usize,
    protection: i32,
    offset: usize,
) -> io::Result<*mut libc::c_void> {
    let (flags, offset) = (libc::MAP_SHARED, offset as libc::off_t);
    // SAFETY: a new mapping at an address chosen by the kernel.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, map.as_raw_fd(), offset) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
}

/// A BPF ring as in `kernel/bpf/ringbuf.c`. The first page holds the consumer position, the next
/// one the producer position. The data follows, mapped twice in a row, so that a record never
/// wraps.
#[derive(Debug)]
struct Ring {
    /// Descriptor of the ring.
    map: OwnedFd,
    /// Address of the page with the consumer position: the bytes that were read.
    consumer: *mut libc::c_void,
    /// Address of the page with the producer position: the bytes that were written. The data
    /// follows.
    producer: *mut libc::c_void,
    /// Size of a page.
    page_bytes: usize,
}

impl Ring {
    /// Creates the ring of [`RING_BYTES`] bytes and maps it: the consumer page writable, the
    /// producer page and the data read-only.
    ///
    /// # Errors
    /// The system's error: no permission for BPF, or too little memory.
    fn new() -> io::Result<Ring> {
        // union bpf_attr: type, and number of bytes.
        let mut attributes = [0; 128];
        set_field(&mut attributes, 0, &MAP_TYPE_RINGBUF.to_ne_bytes());
        set_field(&mut attributes, 12, &(RING_BYTES as u32).to_ne_bytes());
        let map = bpf(MAP_CREATE, &mut attributes)?;
        let page_bytes = rustix::param::page_size();
        let consumer = map_pages(&map, page_bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = map_pages(&map, page_bytes + 2 * RING_BYTES, libc::PROT_READ, page_bytes);
        let producer = producer.inspect_err(|_| {
            // SAFETY: the mapping was made above and has no references.
            unsafe { libc::munmap(consumer, page_bytes) };
        })?;
        Ok(Ring { map, consumer, producer, page_bytes })
    }

    /// Calls `on_record` with the bytes of each record since the last call, and returns their space
    /// to the programs. Ends at a record that is still being written, or that was written after the
    /// start of the call. Discarded ones are skipped.
    fn read(&mut self, mut on_record: impl FnMut(&[u8])) {
        // SAFETY: each of the two pages begins with a position and lives as long as the mapping.
        let (consumed, produced) =
            unsafe { (&*self.consumer.cast::<AtomicU64>(), &*self.producer.cast::<AtomicU64>()) };
        let mut position = consumed.load(Ordering::Relaxed);
        // Programs that write as fast as this thread reads would keep it in a loop without an end.
        let end = produced.load(Ordering::Acquire);
        while position < end {
            let head_offset = self.page_bytes + position as usize % RING_BYTES;
            // SAFETY: the producer position lies beyond this record, so its head is here, written
            // as one word.
            let length = unsafe { &*self.producer.byte_add(head_offset).cast::<AtomicU32>() };
            let length = length.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = u64::from(length & !DISCARDED);
            if length & DISCARDED == 0 {
                // SAFETY: the record is complete, and is not overwritten before the consumer
                // position moves.
                on_record(unsafe {
                    let start = self.producer.byte_add(head_offset + RECORD_HEAD_BYTES as usize);
                    std::slice::from_raw_parts(start.cast::<u8>(), bytes as usize)
                });
            }
            position += (RECORD_HEAD_BYTES + bytes).next_multiple_of(8);
            consumed.store(position, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both were mapped with these lengths and have no references.
        unsafe {
            libc::munmap(self.consumer, self.page_bytes);
            libc::munmap(self.producer, self.page_bytes + 2 * RING_BYTES);
        }
    }
}

#[cfg(test)]
mod uring_tests;

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring with three records of 8 bytes. A program writes one more while each is read.
    #[test]
    fn ring_that_is_never_empty_is_read_up_to_the_present() {
        const RECORD_BYTES: usize = RECORD_HEAD_BYTES as usize + 8;
        let page_bytes = rustix::param::page_size();
        let memory = |bytes: usize| {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new memory, which the ring unmaps.
            let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            start
        };
        let (consumer, producer) = (memory(page_bytes), memory(page_bytes + 2 * RING_BYTES));
        let write = |number: usize| {
            // SAFETY: the head and the position lie in the memory, and are aligned.
            unsafe {
                let head = producer.byte_add(page_bytes + number * RECORD_BYTES);
                (&*head.cast::<AtomicU32>()).store(8, Ordering::Release);
                let produced = &*producer.cast::<AtomicU64>();
                produced.store(((number + 1) * RECORD_BYTES) as u64, Ordering::Release);
            }
        };
        (0..3).for_each(write);
        let map = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut ring = Ring { map, consumer, producer, page_bytes };
        let mut read = 0;
        ring.read(|_| {
            write(3 + read);
            read += 1;
            assert!(read < 1_000, "the reader does not end");
        });
        assert_eq!(read, 3);
        ring.read(|_| read += 1);
        assert_eq!(read, 6);
    }

    /// A record of an open call takes 80 bytes, so 60,000 of them exceed the ring of 4 MiB.
    #[test]
    fn records_beyond_a_full_ring_are_counted() {
        let started = Instance::create().and_then(|instance| {
            let no_types = || TracefsError::UnknownEvent { line: "kernel types".to_owned() };
            let submissions = Submissions::start(&instance, read_offsets().ok_or_else(no_types)?)?;
            Ok((submissions, instance))
        });
        let (mut submissions, _instance) = match started {
            Ok(started) => started,
            Err(error) => return println!("skipped: {error}"),
        };
        let executable = std::env::current_exe().unwrap();
        let this_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(submissions.lost(), 0);
        for _ in 0..60_000 {
            std::fs::File::open(&executable).unwrap();
        }
        let mut events = Vec::new();
        submissions.read(&mut events);
        let lost = submissions.lost();
        assert!(lost > 0 && events.len() as u64 + lost >= 60_000, "{} and {lost}", events.len());
        // In a pause the same number of opens reports no event and no loss.
        submissions.pause();
        for _ in 0..60_000 {
            std::fs::File::open(&executable).unwrap();
        }
        submissions.resume();
        events.clear();
        submissions.read(&mut events);
        let is_of_this_thread = |event: &TraceEvent| event.task == this_thread;
        assert!(!events.iter().any(is_of_this_thread));
        assert_eq!(submissions.lost(), lost);
        std::fs::File::open(&executable).unwrap();
        submissions.read(&mut events);
        assert_eq!(events.into_iter().filter(is_of_this_thread).count(), 1);
    }
}
