//! Progress bar on standard error if that is a terminal, and handling of ctrl-C.
//!
//! A *modelled run* is a simulation in virtual time. It has nothing to clean up but scratch files,
//! so the process may remove them and end during it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use readpath_record::notice;
use readpath_sim::run::{Progress, ProgressAnswer};

use crate::scratch_files::registry;

/// Shared flag that a signal has asked the command to end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<InterruptState>);

/// State that all clones of an [`Interrupt`] share with the signal handler.
#[derive(Debug, Default)]
struct InterruptState {
    /// True after the first signal.
    is_signalled: AtomicBool,
    /// Number of modelled runs in progress. They have nothing to clean up.
    modelled_runs: AtomicUsize,
}

/// Time after a signal that a modelled run has to end by itself. After it, the process ends.
/// Chosen, not measured.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(800);

/// Counts a modelled run as in progress while this value lives.
#[derive(Debug)]
pub struct ModelledRunGuard(Arc<InterruptState>);

impl Drop for ModelledRunGuard {
    /// Counts the modelled run as ended.
    fn drop(&mut self) {
        self.0.modelled_runs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Interrupt {
    /// Listens for ctrl-C, SIGTERM and SIGHUP. The first signal sets the flag, so the run can end
    /// in order. The second one ends the process at once with exit code 130; the next run removes
    /// its scratch files. If a modelled run is in progress 0.8 s after the first, scratch files are
    /// removed and the process ends with exit code 130 too.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt::default();
        let state = interrupt.0.clone();
        // Without a handler, the signal ends the process directly.
        let _ = ctrlc::set_handler(move || {
            if state.is_signalled.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            let state = state.clone();
            std::thread::spawn(move || {
                std::thread::sleep(SHUTDOWN_GRACE);
                if state.modelled_runs.load(Ordering::Relaxed) > 0 {
                    registry::remove_all();
                    notice::print("interrupted; a modelled run did not end in order");
                    std::process::exit(130);
                }
            });
        });
        interrupt
    }

    /// Counts a modelled run as begun. The process may end during it while the result lives.
    pub fn begin_modelled_run(&self) -> ModelledRunGuard {
        self.0.modelled_runs.fetch_add(1, Ordering::Relaxed);
        ModelledRunGuard(self.0.clone())
    }

    /// Handles the signals of a command with nothing to clean up but scratch files: the first
    /// signal removes these and ends the process with exit code 130. The returned flag is never
    /// set.
    pub fn ending_at_once() -> Interrupt {
        let _ = ctrlc::set_handler(|| {
            registry::remove_all();
            std::process::exit(130);
        });
        Interrupt::default()
    }

    /// True after a signal.
    pub fn is_signalled(&self) -> bool {
        self.0.is_signalled.load(Ordering::Relaxed)
    }
}

/// Progress of one run, with its rate and remaining time.
pub struct RunProgress {
    /// Bar on standard error.
    bar: ProgressBar,
    /// Flag that a signal has come.
    interrupt: Interrupt,
}

impl RunProgress {
    /// Starts a progress bar with a label, for example the storage and the policies of the row.
    pub fn new(label: String, interrupt: Interrupt) -> RunProgress {
        // indicatif shows no bar if standard error is no terminal.
        let (total_unknown, draws_per_second) = (None, 4);
        let draw_target = ProgressDrawTarget::stderr_with_hz(draws_per_second);
        let bar = ProgressBar::with_draw_target(total_unknown, draw_target);
        bar.set_style(spinner_style());
        bar.set_message(label);
        RunProgress { bar, interrupt }
    }

    /// True if no signal has come.
    pub fn should_continue(&self) -> bool {
        !self.interrupt.is_signalled()
    }

    /// Shows the progress: a bar once the total is known, before that a spinner. Returns `Stop`
    /// after a signal, `Continue` otherwise.
    pub fn update(&self, progress: Progress) -> ProgressAnswer {
        if let Some(total) = progress.bytes_total
            && self.bar.length() != Some(total)
        {
            self.bar.set_length(total);
            self.bar.set_style(bar_style());
        }
        self.bar.set_position(progress.bytes);
        if self.interrupt.is_signalled() { ProgressAnswer::Stop } else { ProgressAnswer::Continue }
    }
}

impl Drop for RunProgress {
    /// Removes the bar from the terminal.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Style with the total known.
fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{msg}  {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .expect("the template is well formed")
}

/// Style with the total unknown.
fn spinner_style() -> ProgressStyle {
    ProgressStyle::with_template("{msg}  {spinner} {bytes} {bytes_per_sec} {elapsed}")
        .expect("the template is well formed")
}
