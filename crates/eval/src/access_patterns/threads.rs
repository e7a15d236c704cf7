//! Parallel work by several threads, each with its own buffer.

use std::io;

use readpath_os::page_buffer::PageBuffer;

use super::Checksum;

/// Calls `read` on one thread per buffer, with the thread's number from 0. A single buffer is
/// served on the calling thread, without a new thread. Returns the sum of all checksums, or the
/// first error in the order of the threads. It returns after all threads have ended, also with an
/// error.
pub(super) fn read_in_parallel(
    buffers: &mut [PageBuffer],
    read: impl Fn(usize, &mut PageBuffer) -> io::Result<Checksum> + Sync,
) -> io::Result<Checksum> {
    if let [buffer] = buffers {
        let only_thread = 0;
        return read(only_thread, buffer);
    }
    std::thread::scope(|scope| {
        let read = &read;
        let numbered = buffers.iter_mut().enumerate();
        let threads: Vec<_> =
            numbered.map(|(thread, buffer)| scope.spawn(move || read(thread, buffer))).collect();
        let mut sum = Checksum::default();
        for thread in threads {
            sum.add_all(thread.join().expect("a reader doesn't panic")?);
        }
        Ok(sum)
    })
}
