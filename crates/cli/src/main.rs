//! The `readpath` command: one job under several policies and devices, in one table.

// Both macros panic where the text cannot be written: `output` and `notice` report it or drop it.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod args;
mod at_once;
mod cache;
mod cache_regret;
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

use args::{Cli, Command};

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Not a part of another run: that one lives.
    if !matches!(command, Command::TouchMemory | Command::BenchOne | Command::ReplayOne) {
        for cleanup_entry in readpath_peers::cleanup_entry::undo_abandoned() {
            notice::print(cleanup_entry);
        }
    }
    let ended = match command {
        Command::Run(args) => run::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::CheckKernel(args) => conform::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::CacheRegret(args) => cache_regret::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Regret(args) => regret::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::BenchCommand(args) => everyday::run(&args),
        Command::Completions(args) => shells::complete(&args),
        Command::Man(args) => shells::write_manual(&args),
        Command::BenchOne => everyday::run_one(),
        Command::Watch(args) => watch::run(args),
        Command::Explain(args) => explain::run(&args),
        Command::Trace(args) => recordings::run(&args),
        Command::TouchMemory => touch_memory::run(),
        Command::ReplayOne => what_if::run_one(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
