//! Batches and futures of a thread: several reads at a time.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

use super::super::model::{ReadStart, VisibleState};
use super::super::panicking_callers::{PanickingBuffer, TaskWaker};
use super::super::scenario::ScenarioRead;
use super::super::world::Deliberate;
use super::Thread;
use crate::future::ReadFuture;
use crate::read_error::ReadError;

impl Thread {
    /// Reads several ranges in a batch and waits for `wait_count` of them, or for all if there are
    /// fewer. While a result is borrowed, reads `concurrent_read`, and checks that the result does
    /// not change.
    pub(super) fn read_batch(
        &mut self,
        ranges: &[ScenarioRead],
        wait_count: usize,
        concurrent_read: Option<ScenarioRead>,
    ) {
        // All reads are added to the batch; the ticket of a read is its index.
        let mut batch = self.shared.path.batch();
        let mut read_starts = Vec::new();
        for (ticket, &range) in ranges.iter().enumerate() {
            let (file_index, offset, bytes) = range;
            let (file, visible_state) = self.file(file_index);
            read_starts.push(self.start_read(visible_state, range));
            match batch.read(&file, offset, bytes, ticket as u64) {
                Ok(()) => {}
                // A batch refuses a read above its limit, which depends on the memory.
                Err(ReadError::TooLarge { bytes_max, .. }) if bytes > bytes_max => {}
                Err(error) => self.check_read_error(&read_starts[ticket], error),
            }
        }
        // Waits for some of the results, in any order. The others are abandoned at the drop of the
        // batch.
        for _ in 0..wait_count {
            let read = match batch.wait() {
                // No read of the batch is left.
                Ok(None) => break,
                Ok(Some(read)) => read,
                // The storage has failed as a whole: any read stands for all.
                Err(error) => {
                    self.check_read_error(&read_starts[0], error);
                    break;
                }
            };
            let read_start = &read_starts[read.ticket() as usize];
            match read.slices() {
                Ok(slices) => {
                    let bytes: Vec<u8> = slices.flatten().copied().collect();
                    self.check_bytes(read_start, &bytes);
                    if let Some(range) = concurrent_read {
                        self.read(range);
                        let bytes_again: Vec<u8> =
                            read.slices().into_iter().flatten().flatten().copied().collect();
                        if bytes != bytes_again {
                            self.world
                                .fail_run(format!("what is delegated has changed: {read_start:?}"));
                        }
                    }
                }
                Err(error) => self.check_read_error(read_start, error),
            }
        }
    }

    /// Polls several reads as futures, in `polls` rounds at most, or until all are done for 0. The
    /// reads that are not done then are abandoned. `countdown` is the number of the use of the
    /// buffers, and of the call of the waker, that panics; 0 for none.
    pub(super) fn poll_futures(&mut self, ranges: &[ScenarioRead], polls: u64, countdown: u64) {
        let task_waker =
            Arc::new(TaskWaker { task: self.world.task(), countdown: AtomicU64::new(countdown) });
        let waker = Waker::from(Arc::clone(&task_waker));
        let mut context = Context::from_waker(&waker);
        // All buffers count down together, the waker apart from them.
        let buffer_countdown = Rc::new(Cell::new(countdown));
        // The futures, which do nothing before their first poll.
        let mut reads = Vec::new();
        for &range in ranges {
            let (file_index, offset, bytes) = range;
            let (file, visible_state) = self.file(file_index);
            let buffer = PanickingBuffer {
                bytes: vec![0; bytes as usize],
                countdown: Rc::clone(&buffer_countdown),
            };
            reads.push(Some(FutureInProgress {
                range,
                visible_state,
                read_start: None,
                read: file.read_at_async(buffer, offset),
            }));
        }
        // Rounds of polls, until all reads are done or abandoned.
        for round in 1.. {
            for read in &mut reads {
                let Some(future_read) = read else { continue };
                // A read begins with its first poll. The model takes the state of that time.
                let read_start = match future_read.read_start {
                    Some(read_start) => read_start,
                    None => self.start_read(future_read.visible_state, future_read.range),
                };
                future_read.read_start = Some(read_start);
                let pinned = Pin::new(&mut future_read.read);
                let polled = catch_unwind(AssertUnwindSafe(|| pinned.poll_once(&mut context)));
                match polled {
                    Ok(Poll::Pending) => continue,
                    Ok(Poll::Ready((result, buffer))) => match result {
                        Err(error) if error.to_string().contains("thread for futures") => {
                            // The reactor's thread could not be started.
                            if self.shared.scenario.settings.refuse_thread_one_in == 0 {
                                self.world.fail_run(format!("{error} of {read_start:?}"));
                            }
                        }
                        result => self
                            .check_result(&read_start, result.map(|count| &buffer.bytes[..count])),
                    },
                    // The buffer or the waker has panicked, at the end of the countdown.
                    Err(payload) if payload.is::<Deliberate>() => {}
                    Err(payload) => resume_unwind(payload),
                }
                *read = None;
            }
            // No round has the number 0, so all reads end if `polls` is 0.
            if reads.iter().all(Option::is_none) || round == polls {
                return;
            }
            // The waker of any of the reads ends the sleep.
            self.world.park(None);
        }
    }
}

/// A read as a future that is not done.
struct FutureInProgress {
    /// The range to read.
    range: ScenarioRead,
    /// State that its handle may show.
    visible_state: VisibleState,
    /// Set by the first poll.
    read_start: Option<ReadStart>,
    /// The future, which has the buffer until its end.
    read: ReadFuture<PanickingBuffer>,
}

impl<B: AsMut<[u8]> + Unpin> ReadFuture<B> {
    /// Polls the read. Its result has the number of bytes, or the error, and the buffer.
    fn poll_once(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(io::Result<usize>, B)> {
        Future::poll(self, context)
    }
}
