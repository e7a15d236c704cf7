//! Many reads at once from one thread.

use std::sync::Arc;

use crate::engine::Owner;
use crate::engine::desk::{Landed, LineId, SeatId, slices};
use crate::file::File;
use crate::path::ReadPath;
use crate::read_error::ReadError;

/// Reads that are under way together, of any files of one path: start many, wait
/// for any.
///
/// Whoever waits drives the storage: one thread keeps any number of reads in
/// flight without a wake-up between threads. Reads start in small groups as they
/// are given; the last ones at the latest with [`start`](Batch::start) or
/// [`wait`](Batch::wait). Dropped, a batch gives up what is under way.
///
/// ```
/// # let name = std::env::temp_dir().join(format!("readpath-doc-batch-{}", std::process::id()));
/// # std::fs::write(&name, vec![7u8; 100_000])?;
/// let path = readpath::ReadPath::builder().build()?;
/// let file = path.open(&name)?;
/// let mut batch = path.batch();
/// for ticket in 0..10 {
///     batch.read(&file, ticket * 5_000, 100, ticket)?;
/// }
/// let mut bytes = 0;
/// while let Some(read) = batch.wait()? {
///     assert!(read.ticket() < 10);
///     bytes += read.slices()?.map(<[u8]>::len).sum::<usize>();
/// }
/// assert_eq!(bytes, 1000);
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch {
    engine: Arc<Owner>,
    line: LineId,
    /// The read that was lent last, to be given back.
    lent: Option<(SeatId, Landed)>,
}

impl ReadPath {
    /// A batch with nothing in it.
    pub fn batch(&self) -> Batch {
        let engine = Arc::clone(self.engine());
        let line = engine.desk().open_line(false);
        Batch { engine, line, lent: None }
    }
}

impl Batch {
    /// Starts to read `bytes` bytes of `file` at `offset`; `ticket` comes back with
    /// them. The handle may be dropped meanwhile.
    ///
    /// # Errors
    /// It asks for more than there is memory for ([`ReadError::TooLarge`]), or too
    /// many reads are under way.
    ///
    /// # Panics
    /// The file belongs to another path.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        bytes: u64,
        ticket: u64,
    ) -> Result<(), ReadError> {
        let handle = file.handle();
        assert!(Arc::ptr_eq(&handle.engine, &self.engine), "a batch reads files of its own path");
        let bytes_max = self.engine.read_bytes_max;
        if bytes > bytes_max {
            return Err(ReadError::TooLarge { bytes, bytes_max });
        }
        let mut desk = self.engine.desk();
        if let Some((seat, landed)) = self.lent.take() {
            desk.take_off(seat, landed);
        }
        let started = desk.start(handle, offset, bytes, self.line, ticket);
        self.engine.leave(desk);
        started.map_err(ReadError::of)
    }

    /// Hands over what was not started yet.
    pub fn start(&mut self) {
        let is_queued = self.engine.desk().take_is_queued();
        if is_queued {
            self.engine.hand_over();
        }
    }

    /// How many reads are under way, or done and not yet waited for.
    pub fn len(&self) -> usize {
        self.engine.desk().line_len(self.line)
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until any of the reads is done, and lends its bytes; `None` when there
    /// is none.
    ///
    /// While they are lent, their memory is not there for others: don't read from
    /// the same path meanwhile.
    ///
    /// # Errors
    /// The storage carries nothing any more. (That one read failed is told by
    /// [`BatchRead`].)
    pub fn wait(&mut self) -> Result<Option<BatchRead<'_>>, ReadError> {
        let mut desk = self.engine.desk();
        if let Some((seat, landed)) = self.lent.take() {
            desk.take_off(seat, landed);
        }
        if desk.line_len(self.line) == 0 {
            self.engine.leave(desk);
            return Ok(None);
        }
        let (mut desk, done) = self.engine.wait(desk, self.line);
        let landed = done.map(|seat| (seat, desk.land(seat)));
        self.engine.leave(desk);
        let (seat, landed) = landed.map_err(|error| ReadError::Storage { error })?;
        let (_, landed) = self.lent.insert((seat, landed));
        Ok(Some(BatchRead { engine: &self.engine, landed }))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut desk = self.engine.desk();
        if let Some((seat, landed)) = self.lent.take() {
            desk.take_off(seat, landed);
        }
        desk.close_line(self.line);
        self.engine.leave(desk);
    }
}

/// A read of a [`Batch`] that is done, with its bytes, until the batch is used again.
pub struct BatchRead<'a> {
    engine: &'a Owner,
    landed: &'a Landed,
}

impl BatchRead<'_> {
    /// The name that was given at the start.
    pub fn ticket(&self) -> u64 {
        self.landed.ticket
    }

    /// How many bytes there are: fewer than asked only at the end of the file.
    ///
    /// # Errors
    /// Why there are none.
    pub fn bytes(&self) -> Result<u64, ReadError> {
        self.landed.result.expect("a read that is done has a result").map_err(ReadError::of)
    }

    /// The bytes, as they lie in the cache: a page or less each.
    ///
    /// # Errors
    /// Why there are none.
    pub fn slices(&self) -> Result<impl Iterator<Item = &[u8]>, ReadError> {
        self.bytes()?;
        Ok(slices(&self.engine.shelf, self.landed))
    }

    /// Copies the bytes to the start of `buffer`; gives how many.
    ///
    /// # Errors
    /// Why there are none.
    ///
    /// # Panics
    /// The buffer is too small.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let mut done = 0;
        for part in self.slices()? {
            buffer[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        Ok(done)
    }
}
