//! Takes parts of an area back from the kernel's own mapping of a file.
//!
//! *Registered* memory reports touches of its absent pages to a userfaultfd, and a server fills
//! them. The part is replaced by registered memory with absent pages, moved there in one step
//! (`mremap(2)`). The alternative, to map memory there and register it afterwards, leaves a moment
//! in which a touch finds zeros. The kernel reports a move of registered memory to the userfaultfd
//! (`UFFD_FEATURE_EVENT_REMAP`), and the move waits until the report is read. One thread therefore
//! moves, and the thread that serves faults reads.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use readpath_core::unit::PageRange;

use super::anonymous_area::AnonymousArea;
use super::error::PagerError;
use super::uffd::{RangeRegistration, Uffd, UserFault};
use super::wait::wait_until_readable;
use crate::os::sync::{JoinHandle, Receiver, SyncSender, spawn, sync_channel};

/// Longest wait for a report of a move or for its failure, before both are checked again. The
/// number is chosen, not measured.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(1);

/// The moving thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct TakeBackThread {
    /// Ranges to take back; `None` during the drop.
    requests: Option<SyncSender<PageRange>>,
    /// One answer for each request: true if the range was replaced.
    answers: Receiver<bool>,
    /// Taken by the drop, which waits for it.
    thread: Option<JoinHandle<()>>,
}

impl TakeBackThread {
    /// Starts the thread for an area that is registered with `uffd`, which must report remaps.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(
        uffd: &Arc<Uffd>,
        area: &Arc<AnonymousArea>,
    ) -> std::io::Result<TakeBackThread> {
        // One range at a time.
        let (requests, request_receiver) = sync_channel::<PageRange>(1);
        let (answer_sender, answers) = sync_channel(1);
        let (uffd, area) = (Arc::clone(uffd), Arc::clone(area));
        let body = move || {
            while let Ok(range) = request_receiver.recv() {
                let is_taken_back = replace_by_absent_pages(&area, &uffd, range).is_ok();
                // An error: the owner is gone.
                if answer_sender.send(is_taken_back).is_err() {
                    return;
                }
            }
        };
        let thread = Some(spawn("readpath-back", body)?);
        Ok(TakeBackThread { requests: Some(requests), answers, thread })
    }

    /// Takes a range back from the kernel's mapping and waits. `uffd` is the userfaultfd of the
    /// area. Returns false if the system refuses (too many mappings) or the thread has ended: the
    /// kernel's mapping then stays. Faults that are read meanwhile are added to `faults`: the
    /// caller handles them afterwards.
    pub(super) fn take_back(
        &self,
        range: PageRange,
        uffd: &Uffd,
        faults: &mut Vec<UserFault>,
    ) -> bool {
        if self.requests.as_ref().is_none_or(|requests| requests.send(range).is_err()) {
            return false;
        }
        // The remap waits until this thread has read its report, so reports and the answer are
        // checked in turn.
        loop {
            let reported_remaps =
                uffd.take_faults(faults).expect("a userfaultfd can be read while it is open");
            // After the report the remap is over, and the answer follows soon. One by the program
            // looks the same, so the wait is limited. Without a report the answer is only polled.
            let answer_timeout = if reported_remaps > 0 { REPORT_WAIT_MAX } else { Duration::ZERO };
            match self.answers.recv_timeout(answer_timeout) {
                Ok(is_taken_back) => return is_taken_back,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => wait_until_readable(uffd, REPORT_WAIT_MAX),
            }
        }
    }
}

impl Drop for TakeBackThread {
    /// Ends the thread and waits for it.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread's code does not panic.
            let _ = thread.join();
        }
    }
}

/// Replaces a range of the area by absent pages that are registered with `uffd`. After an error the
/// range is unchanged.
fn replace_by_absent_pages(
    area: &AnonymousArea,
    uffd: &Uffd,
    range: PageRange,
) -> Result<(), PagerError> {
    let new_area =
        AnonymousArea::new(range.count()).map_err(|errno| PagerError::System(errno.into()))?;
    new_area.register(uffd, RangeRegistration::Missing)?;
    // SAFETY: the replacement is registered, and the server of its faults fills it with the same
    // bytes.
    unsafe { new_area.move_into(area, range.first) }
        .map_err(|errno| PagerError::System(errno.into()))
}
