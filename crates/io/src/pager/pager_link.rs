//! Link between a pager and its thread: commands in one direction, replies in the other. A *pager*
//! is a mapping or a region. Its *owner* is the program's object, which holds the link. Its
//! *server* runs on the thread and serves the faults.
//!
//! Only this thread can fill a page. If it died, threads would wait forever. After its userfaultfd
//! is closed, absent pages would read as zeros, which are wrong bytes. A panic of this thread
//! therefore aborts the process.

use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use readpath_core::machine::ReadError;

use super::error::PagerError;
use super::uffd::FaultScope;
use crate::os::event_fd::EventFd;
use crate::os::sync::{JoinHandle, Mutex, SyncSender, spawn, sync_channel};

/// Server that runs on a pager's thread.
pub(super) trait PagerServer {
    /// Accesses whose faults the server handles.
    fn scope(&self) -> FaultScope;

    /// Serves faults and commands on the calling thread until the inbox is closed.
    fn run(&mut self);
}

/// The owner's end. Dropping it closes the inbox and waits for the thread to end.
#[derive(Debug)]
pub(super) struct PagerLink<C> {
    /// Commands to the thread.
    inbox: Arc<Inbox<C>>,
    /// Taken by the drop, which waits for it.
    thread: Option<JoinHandle<()>>,
    /// Process that owns the thread.
    process: u32,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Inbox<C> {
    state: Mutex<InboxState<C>>,
    /// Signalled for each command and at the end of the link.
    event_fd: EventFd,
}

/// Commands for the thread, and the end of the link.
#[derive(Debug)]
struct InboxState<C> {
    /// Commands that the thread has not taken, oldest first.
    commands: VecDeque<C>,
    /// True once the owner has dropped its end.
    is_closed: bool,
}

/// Reason for which the lock is never poisoned.
const POISON: &str = "no thread panics while it holds the lock";

impl<C: Send + 'static> PagerLink<C> {
    /// Starts a thread with this name, builds its server there by `build`, and waits until it is
    /// built. (An io_uring belongs to the thread that makes it.) Returns the link and the accesses
    /// that the server serves.
    ///
    /// # Errors
    /// The thread cannot be started, or `build` failed.
    pub(super) fn start<S: PagerServer>(
        name: &str,
        build: impl FnOnce(Arc<Inbox<C>>) -> Result<S, PagerError> + Send + 'static,
    ) -> Result<(PagerLink<C>, FaultScope), PagerError> {
        let event_fd = EventFd::new().map_err(|errno| PagerError::System(errno.into()))?;
        let state = Mutex::new(InboxState { commands: VecDeque::new(), is_closed: false });
        let inbox = Arc::new(Inbox { state, event_fd });
        // Room for the one message, so that the thread does not wait for its receiver.
        let (start_sender, start_receiver) = sync_channel(1);
        let thread_inbox = Arc::clone(&inbox);
        let body = move || match build(thread_inbox) {
            Ok(mut server) => {
                // The other end waits for this message, unless it has panicked.
                let _ = start_sender.send(Ok(server.scope()));
                // The server outlives the panic: its userfaultfd must not be closed.
                if let Err(_payload) = catch_unwind(AssertUnwindSafe(|| server.run())) {
                    #[cfg(simulation)]
                    if crate::simulation::memory::end_run_on_panic(&*_payload) {
                        return std::mem::forget(server);
                    }
                    // Not `eprintln!`: its panic would drop the server.
                    let text: &[u8] =
                        b"readpath: the thread that fills pages is lost, and with it their bytes\n";
                    let _ = std::io::stderr().write_all(text);
                    std::process::abort();
                }
            }
            // The thread ends without a server.
            Err(error) => {
                let _ = start_sender.send(Err(error));
            }
        };
        let thread = Some(spawn(name, body).map_err(PagerError::System)?);
        // After an error of `build` the drop of the link waits for the thread.
        let link = PagerLink { inbox, thread, process: std::process::id() };
        let scope = start_receiver.recv().expect("the thread answers before it ends")?;
        Ok((link, scope))
    }

    /// True if the thread is in this process, and not in the parent of a `fork`.
    pub(super) fn is_in_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Queues a command for the thread and wakes it. Does not wait for a reply.
    ///
    /// # Panics
    /// In a child made by `fork`, which has no such thread.
    pub(super) fn send(&self, command: C) {
        assert!(self.is_in_this_process(), "{}", ReadError::OtherProcess);
        self.inbox.state.lock().expect(POISON).commands.push_back(command);
        self.inbox.event_fd.signal();
    }

    /// Sends the command that `command` makes of a reply channel, and waits for its reply.
    ///
    /// # Panics
    /// As for [`send`](Self::send).
    pub(super) fn request<R>(&self, command: impl FnOnce(SyncSender<R>) -> C) -> R {
        // Room for the one reply, so that the thread does not wait for this caller.
        let (reply, answer) = sync_channel(1);
        self.send(command(reply));
        answer.recv().expect("every command is answered while its sender waits")
    }
}

impl<C> Inbox<C> {
    /// Returns the eventfd that wakes the thread.
    pub(super) fn event_fd(&self) -> &EventFd {
        &self.event_fd
    }

    /// Removes and returns the next command, or `None` if there is none.
    pub(super) fn next(&self) -> Option<C> {
        self.state.lock().expect(POISON).commands.pop_front()
    }

    /// True once the owner has dropped its link: the thread must end.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().expect(POISON).is_closed
    }
}

impl<C> Drop for PagerLink<C> {
    /// Closes the inbox and waits for the thread. In a child made by `fork`, does neither.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child made by `fork` has no such thread, and the lock may stay locked forever.
            std::mem::forget(self.thread.take());
            return;
        }
        self.inbox.state.lock().expect(POISON).is_closed = true;
        self.inbox.event_fd.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the server aborts the process, so there is no other result.
            let _ = thread.join();
        }
    }
}
