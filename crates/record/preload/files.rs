//! Files of descriptors, and their names.
//!
//! A *cell* of a ring in the shared memory has space for one report. A *ticket* is the number of a
//! write to a ring, and belongs to one cell.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::c::{self, ssize_t};
use crate::layout::{ABANDONED, Cells, RecordRing};
use crate::{publish, take_ticket, thread};

/// Hash table of the descriptors and files whose names were reported. The index depends on both,
/// and the entry also on the flags of the open file. A file that is opened again with other flags
/// at the same descriptor is reported again, as is a name after a collision.
static REPORTED: [AtomicU64; 2048] = [const { AtomicU64::new(0) }; 2048];

/// Lifetime in nanoseconds of a cached descriptor. The library does not see a close by the C
/// library itself or by a bare system call. If the descriptor is opened again within this time, its
/// next reads are reported for the old file.
const CACHE_LIFETIME_NS: u64 = 200_000;

/// Cached files of the first descriptors.
static CACHED_FILES: [CachedFile; 1024] = [const { CachedFile::nothing() }; 1024];

/// Cached device and inode of one descriptor.
struct CachedFile {
    /// End of its validity; 0 if nothing is cached.
    valid_until_ns: AtomicU64,
    /// Device of the file: major number × 2²⁰ + minor number.
    device: AtomicU64,
    /// Inode number of the file.
    inode: AtomicU64,
}

impl CachedFile {
    /// Returns an entry without a file.
    const fn nothing() -> CachedFile {
        CachedFile {
            valid_until_ns: AtomicU64::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }
}

/// Removes a descriptor from the cache, or all of them for `None`.
fn forget_files(descriptor: Option<c_int>) {
    let clear = |cached: &CachedFile| cached.valid_until_ns.store(0, Ordering::Release);
    match descriptor {
        Some(descriptor) => _ = CACHED_FILES.get(descriptor as usize).map(clear),
        None => CACHED_FILES.iter().for_each(clear),
    }
}

/// Calls a function that closes this descriptor, or possibly any descriptor for `None`. The cached
/// file is removed before.
#[inline(always)]
pub fn call_and_forget(descriptor: Option<c_int>, real: impl FnOnce() -> ssize_t) -> ssize_t {
    forget_files(descriptor);
    real()
}

/// Returns device and inode of a descriptor, from the cache or from the kernel. `None` for a
/// descriptor without positions, and for a file that is too short to be reported. Also `None`
/// without a free buffer or cell: the read then counts as lost. `now_ns` is the end of the read.
pub fn device_and_inode(ring: RecordRing, descriptor: c_int, now_ns: u64) -> Option<(u64, u64)> {
    let cached = CACHED_FILES.get(descriptor as usize);
    let is_valid = |entry: &&CachedFile| now_ns < entry.valid_until_ns.load(Ordering::Acquire);
    if let Some(entry) = cached.filter(is_valid) {
        let device = entry.device.load(Ordering::Relaxed);
        return (device != UNREPORTED).then(|| (device, entry.inode.load(Ordering::Relaxed)));
    }
    let (device, inode) = identify_and_report(ring, descriptor, now_ns)?;
    if let Some(entry) = cached {
        entry.device.store(device, Ordering::Relaxed);
        entry.inode.store(inode, Ordering::Relaxed);
        entry.valid_until_ns.store(now_ns + CACHE_LIFETIME_NS, Ordering::Release);
    }
    (device != UNREPORTED).then_some((device, inode))
}

/// Device number of a file whose reads are not reported. The kernel's numbers have 32 bits.
const UNREPORTED: u64 = u64::MAX;

/// Attributes of a file from `statx(2)`.
struct FileAttributes {
    /// Major number × 2²⁰ + minor number.
    device: u64,
    /// Inode number.
    inode: u64,
    /// Length in bytes.
    bytes: u64,
}

/// Buffers for the results of `statx(2)`, which are too large for a signal stack. A thread takes
/// any free buffer.
static STATX_BUFFERS: [StatxBuffer; 64] = [const { StatxBuffer::free() }; 64];

/// Space for the result of one `statx(2)`.
struct StatxBuffer {
    /// True while a thread uses the buffer.
    is_taken: AtomicBool,
    /// Space for the kernel's struct.
    words: [AtomicU64; size_of::<c::statx_buffer>() / 8],
}

impl StatxBuffer {
    /// Returns a buffer that no thread has taken.
    const fn free() -> StatxBuffer {
        StatxBuffer {
            is_taken: AtomicBool::new(false),
            words: [const { AtomicU64::new(0) }; size_of::<c::statx_buffer>() / 8],
        }
    }
}

/// Returns the attributes of a regular file or block device. `None` for a descriptor of another
/// kind, and after an error. Also `None` when all buffers are taken: the read then counts as lost.
fn file_attributes(ring: RecordRing, descriptor: c_int) -> Option<FileAttributes> {
    let is_reserved = |statx_buffer: &&StatxBuffer| {
        let (old, new, order) = (false, true, Ordering::Relaxed);
        statx_buffer.is_taken.compare_exchange(old, new, Ordering::Acquire, order).is_ok()
    };
    let Some(statx_buffer) = STATX_BUFFERS.iter().find(is_reserved) else {
        ring.head().lost.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    let buffer: *mut c::statx_buffer = statx_buffer.words.as_ptr().cast_mut().cast();
    // SAFETY: the buffer is reserved for this call, has the size of the struct, and consists of
    // atomics. The name is terminated.
    let attributes = unsafe {
        let flags = c::AT_EMPTY_PATH;
        let result = c::statx(descriptor, c"".as_ptr(), flags, c::STATX_MASK, buffer);
        let is_accepted = matches!((*buffer).mode & c::TYPE_MASK, c::TYPE_FILE | c::TYPE_BLOCK);
        (result == 0 && is_accepted).then(|| FileAttributes {
            device: u64::from((*buffer).major) << 20 | u64::from((*buffer).minor),
            inode: (*buffer).inode,
            bytes: (*buffer).bytes,
        })
    };
    statx_buffer.is_taken.store(false, Ordering::Release);
    attributes
}

/// Returns device and inode of a descriptor from the kernel, and reports a new name. A file that is
/// too short to be reported has the device [`UNREPORTED`]. `None` for a descriptor without
/// positions. Also `None` without a free buffer or cell: the read then counts as lost. `now_ns` is
/// the end of the read.
#[inline(never)]
fn identify_and_report(ring: RecordRing, descriptor: c_int, now_ns: u64) -> Option<(u64, u64)> {
    let attributes = file_attributes(ring, descriptor)?;
    let (device, inode) = (attributes.device, attributes.inode);
    // The length of an empty file wraps around to the largest number: it is always reported.
    let unreported_bytes_max = ring.head().unreported_bytes_max.load(Ordering::Relaxed);
    if attributes.bytes.wrapping_sub(1) < unreported_bytes_max {
        return Some((UNREPORTED, 0));
    }
    // After an error the flags are 0.
    // SAFETY: the call changes nothing.
    let flags = unsafe { c::fcntl(descriptor, c::F_GETFL) }.max(0) as u64;
    // The rotations, chosen, keep the small numbers apart.
    let file_hash = hash(device ^ inode.rotate_left(20) ^ (descriptor as u64).rotate_left(40));
    // The lowest bit distinguishes a hash from an empty entry.
    let opened_hash = hash(file_hash ^ flags) | 1;
    // The mask keeps the index within the table.
    let reported = REPORTED.get(file_hash as usize & (REPORTED.len() - 1))?;
    if reported.load(Ordering::Relaxed) != opened_hash {
        report_name(ring, (descriptor, flags), &attributes, now_ns)?;
        // Stored only after the report: another thread's read of this file must not precede its
        // name.
        reported.store(opened_hash, Ordering::Relaxed);
    }
    Some((device, inode))
}

/// Reports the name of a file to the recorder, with its descriptor and the flags of the open file.
/// `now_ns` is the end of the read. A path too long for a short cell goes into a long one, and is
/// cut there. A path that cannot be read is empty. Returns `None` if no cell was free; the read
/// then counts as lost.
#[inline(never)]
fn report_name(
    ring: RecordRing,
    (descriptor, flags): (c_int, u64),
    attributes: &FileAttributes,
    now_ns: u64,
) -> Option<()> {
    for cells in [Cells::Short, Cells::Long] {
        let ticket = take_ticket(ring, cells)?;
        let (name, path) = ring.name(cells, ticket);
        let path_room = cells.path_room();
        let link = descriptor_path(descriptor);
        // SAFETY: the link's name is terminated, and the cell is this call's own.
        let length = unsafe { c::readlink(link.as_ptr().cast(), path.cast(), path_room) };
        let length = length.max(0) as u64;
        // A path that fills its cell may have been cut.
        let is_complete = cells == Cells::Long || length < path_room as u64;
        let set = |field: &AtomicU64, value: u64| field.store(value, Ordering::Relaxed);
        set(&name.device, attributes.device);
        set(&name.inode, attributes.inode);
        set(&name.bytes, attributes.bytes);
        set(&name.task, thread::task());
        set(&name.at_ns, now_ns);
        set(&name.opened, flags << 32 | descriptor as u32 as u64);
        set(&name.path_bytes, if is_complete { length } else { ABANDONED });
        publish(ring, cells, ticket);
        if is_complete {
            break;
        }
    }
    Some(())
}

/// Returns the path `/proc/self/fd/N` with its terminating zero.
fn descriptor_path(descriptor: c_int) -> [u8; 32] {
    const START: &[u8; 14] = b"/proc/self/fd/";
    let mut link = [0; 32];
    let (start, rest) = link.split_at_mut(START.len());
    start.copy_from_slice(START);
    let (mut remaining, mut digits) = (descriptor as u32, 1);
    while remaining > 9 {
        (remaining, digits) = (remaining / 10, digits + 1);
    }
    remaining = descriptor as u32;
    for digit in rest.iter_mut().take(digits).rev() {
        *digit = b'0' + (remaining % 10) as u8;
        remaining /= 10;
    }
    link
}

/// Mixes the bits of a key with the finaliser of MurmurHash3.
fn hash(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}
