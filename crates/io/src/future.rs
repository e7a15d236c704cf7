//! Reads as futures, for any executor.
//!
//! The *engine* of a path is its own cache with its requests. It reads the bytes that the kernel
//! page cache cannot provide. The *reactor* is the engine's thread that waits for storage on behalf
//! of futures.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::file::{File, clip_to_file};
use crate::page_cache::kernel::blocking_pool::BlockingRead;
use crate::page_cache::own::Handle;
use crate::page_cache::own::copy_out::copy_out;
use crate::page_cache::own::pending_read::PendingRead;
use crate::read_error::{Forked, ReadError};

/// Future of a read. Its output is the number of bytes and the buffer.
///
/// Cached bytes are ready at the first poll. Other bytes are read into the cache (the kernel's or
/// the path's), never into the buffer, and copied by a later poll. The future may therefore be
/// dropped at any time.
///
/// The task is woken by the thread that processes the completion: one that reads from the same
/// path, or the reactor. The first waiting future of a path starts the reactor, which sleeps while
/// no future waits.
pub struct ReadFuture<B> {
    /// Handle of the file. The first poll replaces it if the file has changed or this is a child.
    handle: Arc<Handle>,
    /// Returned with the result.
    buffer: Option<B>,
    /// Offset of the first byte in the file.
    offset: u64,
    /// Number of bytes to read; 0 before the first poll.
    bytes: usize,
    /// Number of bytes copied to the buffer.
    bytes_done: usize,
    /// Read in progress through the kernel page cache, after a miss there.
    kernel_read: Option<Arc<BlockingRead>>,
    /// Read of the engine in progress.
    engine_read: Option<PendingRead<Arc<Handle>>>,
}

impl File {
    /// Reads bytes from `offset` on into `buffer` like [`read_at`](File::read_at), as a future. The
    /// buffer may be borrowed (`&mut [u8]`) or owned (`Vec<u8>`).
    ///
    /// # Errors
    /// The future returns the errors of [`read_at`](File::read_at), and the system's error if it
    /// provides no thread for the reactor. Without memory for a piece of at most 256 KiB, where the
    /// file system has no `RWF_NOWAIT`, the error is a [`ReadError::Device`] with `ENOMEM`.
    ///
    /// ```
    /// # let folder = std::env::temp_dir();
    /// # let name = folder.join(format!("readpath-doc-future-{}", std::process::id()));
    /// # std::fs::write(&name, vec![7u8; 100_000])?;
    /// let path = readpath::ReadPath::builder().build()?;
    /// let file = path.open(&name)?;
    /// let (count, buffer) = pollster::block_on(file.read_at_async(vec![0; 5000], 98_000));
    /// assert_eq!(count?, 2000);
    /// assert_eq!(buffer[..2000], [7; 2000]);
    /// # std::fs::remove_file(&name)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_at_async<B: AsMut<[u8]> + Unpin>(&self, buffer: B, offset: u64) -> ReadFuture<B> {
        let handle = Arc::clone(self.handle());
        ReadFuture {
            handle,
            buffer: Some(buffer),
            offset,
            bytes: 0,
            bytes_done: 0,
            kernel_read: None,
            engine_read: None,
        }
    }
}

impl<B: AsMut<[u8]> + Unpin> Future for ReadFuture<B> {
    type Output = (io::Result<usize>, B);

    /// # Panics
    /// The future has already returned its result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = &mut *self;
        let result = match future.poll_read(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        // Ends the engine's read, if there was one: its drop closes its queue.
        future.engine_read = None;
        let buffer = future.buffer.take().expect("a future is not polled after its result");
        Poll::Ready((result.map(|()| future.bytes), buffer))
    }
}

impl<B: AsMut<[u8]>> ReadFuture<B> {
    /// Continues the read until it completes or has to wait. The waker of `context` is called when
    /// a read that waits can continue. Bytes are copied to the buffer as far as they are there. The
    /// first poll sets `bytes`, the number of bytes that the read returns.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let buffer = self.buffer.as_mut().expect("a future is not polled after its result");
        let is_begun = self.engine_read.is_some() || self.kernel_read.is_some();
        if is_begun && !self.handle.engine.is_of_this_process() {
            return Poll::Ready(Err(ReadError::Forked { why: Forked::UnderWay }.into()));
        }
        if !is_begun {
            // First poll. Shared bytes are cached pages that are copied without the engine's lock,
            // and here without the check of the file by `current`, if the path permits that.
            let part_in_file = clip_to_file(buffer.as_mut(), &self.handle, self.offset);
            if !part_in_file.is_empty() && self.handle.read_shared(self.offset, part_in_file) {
                self.bytes = part_in_file.len();
                return Poll::Ready(Ok(()));
            }
            // The handle of this process, and of the file's present version if it is checked.
            self.handle = self.handle.current()?;
            let part_in_file = clip_to_file(buffer.as_mut(), &self.handle, self.offset);
            self.bytes = part_in_file.len();
            if part_in_file.is_empty() || self.handle.read_shared_checked(self.offset, part_in_file)
            {
                return Poll::Ready(Ok(()));
            }
        }
        // A read begins in the kernel page cache. Once the engine reads, that cache is left out.
        if self.engine_read.is_none() {
            let part_in_file = &mut buffer.as_mut()[..self.bytes];
            let read = self.handle.poll_kernel_read(
                self.offset,
                part_in_file,
                &mut self.kernel_read,
                context.waker(),
            );
            match read {
                Poll::Pending => return Poll::Pending,
                // The buffer is full.
                Poll::Ready(Ok(true)) => return Poll::Ready(Ok(())),
                // The kernel page cache cannot provide the bytes: the engine reads them.
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if self.engine_read.is_none() {
            let handle = Arc::clone(&self.handle);
            self.engine_read = Some(PendingRead::new(handle, self.offset, self.bytes as u64)?);
        }
        let engine_read =
            self.engine_read.as_mut().expect("the read of the engine was created above");
        let (buffer, bytes_done) = (buffer.as_mut(), &mut self.bytes_done);
        let polled = engine_read.poll(context.waker(), |part| {
            copy_out(part, &mut buffer[*bytes_done..*bytes_done + part.len()]);
            *bytes_done += part.len();
        });
        if polled.is_pending() {
            // The task does not sleep in the engine: the reactor takes in the completion.
            self.handle.engine.start_reactor()?;
        }
        polled.map_err(io::Error::from)
    }
}
