//! The same work by several threads, each with a buffer of its own.

use std::io;

use super::{Checksum, PageBuffer};

/// Has a thread for each buffer do `read`, which is told the thread's number; one alone does it here.
/// Gives the sum over what all have read, or the first error.
pub(super) fn by_threads(
    buffers: &mut [PageBuffer],
    read: impl Fn(usize, &mut PageBuffer) -> io::Result<Checksum> + Sync,
) -> io::Result<Checksum> {
    if let [buffer] = buffers {
        return read(0, buffer);
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
