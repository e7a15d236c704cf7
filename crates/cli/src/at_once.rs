//! Parallel execution of the independent pieces of a run. A *piece* is one unit of work, such as a
//! cell.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use indicatif::ProgressBar;

use crate::exit::Failure;
use crate::progress::Interrupt;

/// Processes each piece by `work` on `threads` threads, by default one per processor. The results
/// are in the order of the pieces, independent of the number of threads. After an interrupt or an
/// error no further piece starts, and the started ones run to their end. An interrupt is no error:
/// the results are then of the first pieces only, and the caller asks `interrupt`.
///
/// # Errors
/// The error of the first of the pieces that failed, in their order. All results are dropped.
pub fn process_all<T: Sync, R: Send>(
    pieces: &[T],
    work: &(dyn Fn(&T) -> Result<R, Failure> + Sync),
    threads: Option<NonZero<usize>>,
    interrupt: &Interrupt,
) -> Result<Vec<R>, Failure> {
    let next_index = AtomicUsize::new(0);
    let bar = ProgressBar::new(pieces.len() as u64);
    let has_failed = AtomicBool::new(false);
    let worker = || {
        let mut results = Vec::new();
        while !interrupt.is_signalled() && !has_failed.load(Ordering::Relaxed) {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else { break };
            let result = work(piece);
            if result.is_err() {
                has_failed.store(true, Ordering::Relaxed);
            }
            results.push((index, result));
            bar.inc(1);
        }
        results
    };
    let processor_count = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.map_or_else(processor_count, NonZero::get);
    let mut results = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            results.extend(worker.join().expect("a piece does not panic"));
        }
    });
    bar.finish_and_clear();
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Sender};

    use super::*;

    /// Sends a message when its thread ends.
    struct EndReport(Sender<()>);

    impl Drop for EndReport {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    thread_local! {
        static END_REPORT: Cell<Option<EndReport>> = const { Cell::new(None) };
    }

    /// Piece 0 fails. The thread of any other piece goes on only when the failed thread has ended.
    #[test]
    fn after_an_error_no_further_piece_starts() {
        let (sender, receiver) = mpsc::channel();
        let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
        let processed_count = AtomicUsize::new(0);
        let work = |piece: &u32| {
            processed_count.fetch_add(1, Ordering::Relaxed);
            if *piece == 0 {
                let sender = sender.lock().unwrap().clone();
                END_REPORT.set(Some(EndReport(sender)));
                return Err(Failure::Run("piece 0".to_owned()));
            }
            if *piece == 1 {
                receiver.lock().unwrap().recv().unwrap();
            }
            Ok(*piece)
        };
        let pieces: Vec<u32> = (0..100).collect();
        let threads = NonZero::new(2);
        let failure = process_all(&pieces, &work, threads, &Interrupt::default()).unwrap_err();
        assert!(matches!(failure, Failure::Run(text) if text == "piece 0"));
        assert!(processed_count.into_inner() <= 2);
    }
}
