//! The `readpath` command-line tool.

// Both macros panic where the text cannot be written: `output` and `notice` report it or drop it.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod aliases;

mod args;
mod at_once;
mod cache;
mod cache_regret;
mod commands;
mod conform;
mod decision_log;
mod devices;
mod everyday;
mod exit;
mod explain;
mod html;
mod input;
mod note;
mod operation_logs;
mod output;
mod packed;
mod part;
mod plan;
mod policies;
mod profile;
mod progress;
mod real_file;
mod recordings;
mod regret;
mod replay;
mod reproduce;
mod run;
mod scratch_files;
mod serve;
mod shells;
mod table;
mod touch_memory;
mod validate;
mod watch;
mod what_if;

use std::process::ExitCode;

use clap::Parser;
use readpath_peers::notice;

use commands::{Cli, Command, DevicesCommand, EvalCommand};

fn main() -> ExitCode {
    let (arguments, notes) = aliases::translate(std::env::args_os().collect());
    let command = Cli::parse_from(arguments).command;
    notes.iter().for_each(notice::print);
    // A worker is a part of another run, which is alive.
    if !matches!(command, Command::TouchMemory | Command::BenchOne | Command::ReplayOne) {
        for cleanup_entry in readpath_peers::cleanup_entry::undo_abandoned() {
            notice::print(cleanup_entry);
        }
    }
    let ended = match command {
        Command::Explain(args) => explain::run(args),
        Command::Record(args) => watch::record(args),
        Command::Recording(args) => recordings::run(&args),
        Command::Advise(args) => watch::advise(args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => everyday::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Devices(args) => match args.command {
            None => devices::run(args.name.as_deref()),
            Some(DevicesCommand::List) => devices::run(None),
            Some(DevicesCommand::Show(args)) => devices::run(args.name.as_deref()),
            Some(DevicesCommand::Measure(args)) => profile::run(&args),
            Some(DevicesCommand::Validate(args)) => validate::run(&args),
        },
        Command::Emulate(args) => serve::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Cachesim(args) => cache::run(&args),
        Command::Eval(EvalCommand::Policies(args)) => regret::run(&args),
        Command::Eval(EvalCommand::Eviction(args)) => cache_regret::run(&args),
        Command::CheckKernel(args) => conform::run(&args),
        Command::Completions(args) => shells::complete(&args),
        Command::Man(args) => shells::write_manual(&args),
        Command::BenchOne => everyday::run_one(),
        Command::TouchMemory => touch_memory::run(),
        Command::ReplayOne => what_if::run_one(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
