//! A request in flight, with its memory.

use readpath_core::request::RequestId;

use crate::os::sync::Mutex;

/// A request in flight. Its storage shares it with the fetch.
pub(super) struct Request {
    /// The machine's id of the request.
    pub(super) id: RequestId,
    /// Bytes of the request, which may reach past the end of the file.
    pub(super) bytes: u64,
    /// Memory of the request. `None` after its end, or after the storage was dropped.
    memory: Mutex<Option<Memory>>,
}

/// Memory of a request in order of the bytes.
struct Memory(Vec<libc::iovec>);

// SAFETY: the memory is valid, without other users, until the request ends (the contract of
// `Storage::submit`). No thread uses it after that: the lock then has `None`.
unsafe impl Send for Memory {}

impl Request {
    /// A request with its memory.
    ///
    /// # Safety
    /// The segments have `bytes` bytes together. They are valid, without other users, until
    /// [`end`](Request::end) has returned.
    pub(super) unsafe fn new(id: RequestId, bytes: u64, memory: &[libc::iovec]) -> Request {
        Request { id, bytes, memory: Mutex::new(Some(Memory(memory.to_vec()))) }
    }

    /// Ends the use of the memory. Returns false if it had ended before.
    pub(super) fn end(&self) -> bool {
        self.memory.lock().expect("a copy does not panic").take().is_some()
    }

    /// Copies bytes to the memory from `offset` on. Returns false if the request has ended.
    pub(super) fn fill(&self, bytes: &[u8], offset: u64) -> bool {
        debug_assert!(offset + bytes.len() as u64 <= self.bytes, "the caller has checked");
        let memory = self.memory.lock().expect("a copy does not panic");
        let Some(Memory(segments)) = &*memory else { return false };
        // Bytes to pass over before the destination, and bytes to copy.
        let (mut skipped, mut rest) = (offset as usize, bytes);
        for segment in segments {
            if skipped >= segment.iov_len {
                skipped -= segment.iov_len;
                continue;
            }
            let count = rest.len().min(segment.iov_len - skipped);
            // SAFETY: the segment has these bytes. They have no other user until `end`, which waits
            // for this lock.
            unsafe {
                let target = segment.iov_base.cast::<u8>().add(skipped);
                std::ptr::copy_nonoverlapping(rest.as_ptr(), target, count);
            }
            (skipped, rest) = (0, &rest[count..]);
            if rest.is_empty() {
                break;
            }
        }
        true
    }
}
