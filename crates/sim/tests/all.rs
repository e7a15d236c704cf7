//! Tests of the simulation through its public API. All files below are one program, which is linked
//! once and runs on all processors.

mod advice;
mod array_tables;
mod decisions;
mod depth;
#[path = "fio/main.rs"]
mod fio;
mod job;
mod load_file;
mod load_run;
mod observe;
mod program_start;
mod raw;
mod readers_and_writer;
mod runs;
mod workload;
