//! The command `readpath` as a function, for programs that add policies or devices of their own.
//!
//! The program registers them and then calls [`main`]. The command then has them under their names:
//! in models, traces, simulations of caches, and on real files. The example `own_policies` of this
//! crate does so with a readahead policy, an eviction policy, a scheduler and a device.
//!
//! ```no_run
//! # use readpath_core::policy::Policy;
//! # use readpath_core::readahead::{self, NoReadahead};
//! fn main() -> std::process::ExitCode {
//!     readahead::register(Policy::new("mine", "reads nothing ahead", ""), |spec, _limits| {
//!         spec.only(&[])?;
//!         Ok(Box::new(NoReadahead))
//!     })
//!     .expect("the name is free");
//!     readpath_cli::main()
//! }
//! ```

// Both macros panic where the text cannot be written: `output` and `notice` report it or drop it.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod aliases;

mod args;
mod at_once;
mod bench;
mod cachesim;
mod check_kernel;
mod commands;
mod decision_log;
mod devices;
mod emulate;
mod eval_eviction;
mod eval_policies;
mod exit;
mod explain;
mod html;
mod input;
mod measure;
mod note;
mod operation_logs;
mod output;
mod output_file;
mod packed;
mod plan;
mod policies;
mod progress;
mod real_file;
mod record;
mod recordings;
mod replay;
mod replay_recording;
mod reproduce;
mod run;
mod scratch_files;
mod shells;
mod signals;
mod table;
mod top;
mod touch_memory;
mod usage;
mod validate;
mod worker;

use std::process::ExitCode;

use readpath_eval::kernel_swap::page_cluster;
use readpath_record::cleanup::undo_abandoned;
use readpath_record::notice;

use commands::{Cli, Command, DevicesCommand, EvalCommand};
use worker::WorkerTask;

/// Runs the command with the arguments of this process, and returns its exit code: 0 done, 1 some
/// operations failed, 2 bad input, 3 the system lacks something, 130 interrupted. Wrong arguments,
/// `--help` and `--version` end the process instead.
///
/// Policies and devices must be registered before. Measurements start this program again as a
/// worker, so `main` must not do other work first.
pub fn main() -> ExitCode {
    let (arguments, notes) = aliases::translate(std::env::args_os().collect());
    let Cli { wide, command } = usage::parse(arguments);
    table::fit_terminal(wide);
    notes.iter().for_each(notice::print);
    // Undo the changes that killed runs left, such as files, mounts and a kernel setting. Each
    // undone change is printed. A worker is a part of another run, which is alive.
    if !matches!(command, Command::Worker { .. }) {
        let restored = page_cluster::restore_abandoned().into_iter();
        restored.chain(undo_abandoned()).for_each(notice::print);
    }
    let ended = match command {
        Command::Explain(args) => explain::run(args),
        Command::Top(args) => top::run(&args),
        Command::Record(args) => record::record(args),
        Command::Recording(args) => recordings::run(&args),
        Command::Advise(args) => record::advise(args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Devices(args) => match args.command {
            None => devices::run(args.name.as_deref()),
            Some(DevicesCommand::List) => devices::run(None),
            Some(DevicesCommand::Show(args)) => devices::run(args.name.as_deref()),
            Some(DevicesCommand::Measure(args)) => measure::run(&args),
            Some(DevicesCommand::Validate(args)) => validate::run(&args),
        },
        Command::Emulate(args) => emulate::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Cachesim(args) => cachesim::run(&args),
        Command::Eval(EvalCommand::Policies(args)) => eval_policies::run(&args),
        Command::Eval(EvalCommand::Eviction(args)) => eval_eviction::run(&args),
        Command::CheckKernel(args) => check_kernel::run(&args),
        Command::Completions(args) => shells::print_completions(&args),
        Command::Man(args) => shells::write_manual(&args),
        Command::Worker { task: WorkerTask::Bench } => bench::run_one(),
        Command::Worker { task: WorkerTask::Touch } => touch_memory::run(),
        Command::Worker { task: WorkerTask::Replay } => replay_recording::run_one(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print_message(),
    }
}
