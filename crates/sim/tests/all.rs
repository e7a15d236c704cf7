//! Tests of the simulation through its public API. All files below are one program, which is linked
//! once and runs on all processors.

mod array_tables;
mod decisions;
mod decoders;
mod depth;
mod device_contract;
mod diagnoses;
mod disk_writes;
mod explain;
#[path = "fio/main.rs"]
mod fio;
mod hard_disk;
mod hard_disk_traces;
mod job;
mod load_file;
mod load_run;
mod member_contract;
mod merge;
mod observe;
mod physics;
mod profile;
mod program_causes;
mod raw;
mod recorded_kernel;
mod recorded_machine;
mod recording;
mod regret;
mod remote;
mod reproduce;
mod runs;
mod solid_state;
mod speculation;
mod striping;
mod what_if;
mod workload;
