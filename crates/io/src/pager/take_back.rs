//! Takes parts of an area back from the kernel's own mapping of a file.
//!
//! In the place of such a part comes memory whose absent pages are watched already, moved there at once (`mremap(2)`): to map
//! it there and then have it watched would leave a moment in which a touch finds zeros. The kernel tells a move of watched
//! memory to who watches it (`UFFD_FEATURE_EVENT_REMAP`), and the move waits until that is read. So one thread moves
//! and the one that serves faults reads.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use readpath_core::unit::PageRange;

use super::area::AnonymousArea;
use super::error::PagerError;
use super::uffd::{RangeRegistration, Uffd, UserFault};
use super::wait::look;
use crate::sync::{JoinHandle, Receiver, SyncSender, spawn, sync_channel};

/// How long is waited at a time for a move to be told, or to have failed.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that moves; dropped, it ends.
#[derive(Debug)]
pub(super) struct TakeBack {
    /// None once it is dropped.
    asked: Option<SyncSender<PageRange>>,
    answers: Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl TakeBack {
    /// Starts the thread for an area that is watched by `uffd`, which must be told of moves.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(uffd: &Arc<Uffd>, area: &Arc<AnonymousArea>) -> std::io::Result<TakeBack> {
        // One range at a time.
        let (asked, asks) = sync_channel::<PageRange>(1);
        let (answer, answers) = sync_channel(1);
        let (uffd, area) = (Arc::clone(uffd), Arc::clone(area));
        let body = move || {
            while let Ok(range) = asks.recv() {
                let is_back = replace(&area, &uffd, range).is_ok();
                if answer.send(is_back).is_err() {
                    return;
                }
            }
        };
        let thread = Some(spawn("readpath-back", body)?);
        Ok(TakeBack { asked: Some(asked), answers, thread })
    }

    /// Takes a range back, and waits until it is: true then. The faults that are told meanwhile are added to `faults`.
    pub(super) fn take(&self, range: PageRange, uffd: &Uffd, faults: &mut Vec<UserFault>) -> bool {
        if self.asked.as_ref().is_none_or(|asked| asked.send(range).is_err()) {
            return false;
        }
        loop {
            let moves = uffd.faults(faults).expect("a userfaultfd can be read while it is open");
            // Told, the move is over, and its thread on its way here; unless it was one of the program's own.
            let wait = if moves > 0 { LOOK } else { Duration::ZERO };
            match self.answers.recv_timeout(wait) {
                Ok(is_back) => return is_back,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => look(uffd, LOOK),
            }
        }
    }
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to panic for.
            let _ = thread.join();
        }
    }
}

/// Puts watched, absent pages in the place of a range.
fn replace(area: &AnonymousArea, uffd: &Uffd, range: PageRange) -> Result<(), PagerError> {
    let fresh =
        AnonymousArea::new(range.count()).map_err(|errno| PagerError::System(errno.into()))?;
    fresh.watch(uffd, RangeRegistration::Missing)?;
    // SAFETY: what takes the place of the range is watched, and who watches it fills it with the same bytes.
    unsafe { fresh.move_into(area, range.first) }.map_err(|errno| PagerError::System(errno.into()))
}
