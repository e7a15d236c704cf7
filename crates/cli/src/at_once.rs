//! Parallel execution of the independent pieces of a run. A *piece* is one unit of work, such as a
//! cell.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use indicatif::ProgressBar;

use crate::exit::Failure;
use crate::progress::Interrupt;

/// Processes each piece by `work` on `threads` threads, by default one per processor. The results
/// are in the order of the pieces, independent of the number of threads. After an interrupt no
/// further piece starts, and the results are incomplete.
///
/// # Errors
/// The error of a piece. Its thread stops; the other threads still process the remaining pieces.
pub fn process_all<T: Sync, R: Send>(
    pieces: &[T],
    work: &(dyn Fn(&T) -> Result<R, Failure> + Sync),
    threads: Option<NonZero<usize>>,
    interrupt: &Interrupt,
) -> Result<Vec<R>, Failure> {
    let next_index = AtomicUsize::new(0);
    let bar = ProgressBar::new(pieces.len() as u64);
    let worker = || {
        let mut results = Vec::new();
        while !interrupt.is_signalled() {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else { break };
            results.push((index, work(piece)?));
            bar.inc(1);
        }
        Ok(results)
    };
    let processor_count = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.map_or_else(processor_count, NonZero::get);
    let mut results = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            results.extend(worker.join().expect("a piece does not panic")?);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    results.sort_by_key(|&(index, _)| index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
