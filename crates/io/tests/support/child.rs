//! Forked child processes, for actions that need another process.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Timeout after which a child counts as hanging. Children need only a part of it.
const STUCK: Duration = Duration::from_secs(25);

/// Action of a child; returns true on success.
pub type InChild<'a> = dyn Fn() -> bool + 'a;

/// A forked child, killed if the test ends first.
pub struct Child(libc::pid_t);

impl Child {
    /// Forks a child that runs `act` and exits without the test's destructors.
    pub fn forked(act: &InChild) -> Child {
        // SAFETY: the child runs the tested code and then `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let code = match catch_unwind(AssertUnwindSafe(act)) {
                    Ok(true) => 0,
                    Ok(false) => 1,
                    Err(_) => 2,
                };
                // SAFETY: ends this process.
                unsafe { libc::_exit(code) }
            }
            child => {
                assert!(child > 0, "{}", io::Error::last_os_error());
                Child(child)
            }
        }
    }

    /// Waits for its end; returns its exit code, or the negative number of the signal that ended
    /// it.
    pub fn code(mut self) -> i32 {
        let begun = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: our child, not waited for before.
            let ended = unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) };
            if ended == self.0 {
                self.0 = 0;
                return match libc::WIFEXITED(status) {
                    true => libc::WEXITSTATUS(status),
                    false => -libc::WTERMSIG(status),
                };
            }
            assert!(begun.elapsed() < STUCK, "a child hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: our child, not waited for before.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}
