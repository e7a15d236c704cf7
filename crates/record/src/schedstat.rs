//! Times of a thread in the kernel's file `schedstat`.

use std::fs;

/// Returns a thread's time on processors, and its time in their queues, in nanoseconds. `folder` is
/// its folder in `/proc`. `None` if the thread has ended or the kernel does not count these times.
pub(crate) fn running_and_queued_ns(folder: &str) -> Option<[u64; 2]> {
    // Time on a processor, time in the queue of one, number of time slices.
    let text = fs::read_to_string(format!("{folder}/schedstat")).ok()?;
    let mut numbers = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}
