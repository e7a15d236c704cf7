//! The progress bar on standard error, when that is a terminal; and ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use readpath_sim::run::{Progress, ProgressAnswer};

/// Whether somebody wants the command to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for ctrl-C, SIGTERM and SIGHUP. The first one lets the run end
    /// in order, the second one ends the process.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt::default();
        let flag = interrupt.0.clone();
        // Where no handler can be set, the signal ends the process as it always did.
        let _ = ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
        interrupt
    }

    /// The same where there is nothing to be put in order: the first one ends the process.
    pub fn that_ends_at_once() -> Interrupt {
        let _ = ctrlc::set_handler(|| std::process::exit(130));
        Interrupt::default()
    }

    /// Whether a signal has come.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The progress of one run, with its rate and the time that remains.
pub struct RunProgress {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl RunProgress {
    /// A bar that starts with a label, e.g. the row's storage and laws.
    pub fn new(label: String, interrupt: Interrupt) -> RunProgress {
        // indicatif shows nothing where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
        bar.set_style(spinner());
        bar.set_message(label);
        RunProgress { bar, interrupt }
    }

    /// Whether the run is still wanted: no signal has come.
    pub fn is_wanted(&self) -> bool {
        !self.interrupt.has_come()
    }

    /// Shows how far the run has come, and says whether it is to go on.
    pub fn tell(&self, progress: Progress) -> ProgressAnswer {
        if let Some(total) = progress.bytes_total
            && self.bar.length() != Some(total)
        {
            self.bar.set_length(total);
            self.bar.set_style(style());
        }
        self.bar.set_position(progress.bytes);
        if self.interrupt.has_come() { ProgressAnswer::Stop } else { ProgressAnswer::On }
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{msg}  {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .expect("the template is well formed")
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{msg}  {spinner} {bytes} {bytes_per_sec} {elapsed}")
        .expect("the template is well formed")
}
