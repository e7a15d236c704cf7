//! The command line, and the lists in it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use readpath::BackendKind;
use readpath_core::law::Spec;

use crate::exit::Failure;
use crate::regret::RegretArgs;
use crate::replay::ReplayArgs;
use crate::serve::ServeArgs;
use crate::validate::ValidateArgs;

/// The storage read path in user space: one job, many policies and devices, one table.
#[derive(Debug, Parser)]
#[command(name = "readpath", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Start with:\n  \
    readpath run examples/quickstart.fio --on hdd,ssd\n  \
    readpath run examples/quickstart.fio --on hdd --on file:DATA --on kernel:DATA --create\n  \
    readpath reproduce A\n\n\
    Exit codes: 0 done; 1 some operations failed, or compared things differ; 2 bad input;\n\
    3 this system lacks something that the command needs; 130 interrupted.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a fio job file, or loads on memory, through the read path: one row per storage and laws
    Run(RunArgs),
    /// Print the sources' tables: published beside modelled
    Reproduce(ReproduceArgs),
    /// Hold the law `ondemand` against the running kernel, read by read
    Conform(ConformArgs),
    /// List the laws, or tell one in full
    Laws(NameArgs),
    /// List the modelled devices, or one with every parameter and its source
    Devices(NameArgs),
    /// Put a modelled device behind a file, in real time, for any program
    Serve(ServeArgs),
    /// Hold a modelled disk against a trace of service times measured on the real one
    Validate(ValidateArgs),
    /// Hold the law `adaptive` against the best classic law of each cell of a matrix
    Regret(RegretArgs),
    /// Print what a scheduler decides on a list of arrivals and completions
    Replay(ReplayArgs),
    /// One process of a load on memory; started by `run`
    #[command(hide = true)]
    TouchMemory,
}

/// The readahead law where none is named.
pub const READAHEAD_DEFAULT: &str = "adaptive";

/// `readpath run`.
#[derive(Debug, Args)]
#[command(after_help = "STORAGE is one of\n  \
    hdd, ssd, nvme, raid0:12xhdd, …  a modelled device (`readpath devices`); parameters follow\n                                   \
    after commas: hdd,drive=sata2010\n  \
    file:PATH                        a file or block device, through our read path\n  \
    kernel:PATH                      the same through the kernel's own: the peer\n  \
    nfs://HOST[:PORT]/EXPORT/PATH    a file of an NFS server, over the wire; options after ?:\n                                   \
    rsize=32768&slots=16&timeout=60s&mountport=20048\n\n\
    A load names memory that is touched, not files that are read. It runs on modelled devices and\n\
    on kernel:PATH: under the kernel's own swap (root), on a file made in the folder PATH, or on\n\
    the file or block device PATH, whose content is lost (--overwrite).\n\n\
    LAW is a name from `readpath laws`; parameters follow after commas:\n  \
    --scheduler deadline,fifo_batch=1,noop   names two schedulers")]
pub struct RunArgs {
    /// A job file in fio's format, or a file of loads on memory (its name ends with .toml)
    #[arg(value_name = "JOB.fio|LOAD.toml")]
    pub job: PathBuf,
    /// Where to run it; repeat it, or separate with commas [default: hdd]
    #[arg(long = "on", value_name = "STORAGE")]
    pub storages: Vec<String>,
    /// Readahead laws, each a row [default: adaptive; of mappings on file: their own]
    #[arg(long, value_name = "LAW,…")]
    pub readahead: Option<String>,
    /// Swap-in laws of a load, each a row. On kernel: the kernel has its own, and the law's name is
    /// `kernel`: kernel,page_cluster=3 sets vm.page_cluster for the run, for the whole machine
    #[arg(long, value_name = "LAW,…")]
    pub swapin: Option<String>,
    /// Schedulers, each a row
    #[arg(long, value_name = "LAW,…", default_value = "adaptive")]
    pub scheduler: String,
    /// How jobs with ioengine=raw cut their transfers, each a row (not on kernel:) [default: ring]
    #[arg(long, value_name = "LAW,…")]
    pub raw: Option<String>,
    /// What carries the requests of file:, one of auto, aio, io_uring, threads; auto is the first
    /// that suits of those that this system gives, and the row says where that isn't the best
    #[arg(long, value_name = "NAME", default_value_t = BackendKind::Auto)]
    pub backend: BackendKind,
    /// Memory of the page cache, with a unit (KiB, MiB, GiB) [default: 256MiB; what a load says]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Seed of everything that is random in the run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write every decision of the laws to this file, with the numbers that decided it, one a line
    /// (the schedulers `cfq` and `adaptive` and the readahead law `adaptive` tell them; not on
    /// kernel:)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Make the files of file: and kernel: that don't exist, filled with random bytes, and remove
    /// them afterwards
    #[arg(long)]
    pub create: bool,
    /// Let a job that writes overwrite the data of file: and kernel: storage
    #[arg(long)]
    pub overwrite: bool,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}

/// `readpath reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Which tables (A to E); all that there are when none is named
    #[arg(value_name = "TABLE")]
    pub tables: Vec<String>,
    /// Count table C's READs on the wire to this file of an NFS server as well
    /// (nfs://HOST[:PORT]/EXPORT/PATH, of 96 KiB at least)
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// `readpath conform`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root and tracefs (exit code 3 without). A list of reads has one step a \
    line:\n  \
    OFFSET LENGTH    a read, in bytes\n  \
    touch OFFSET     one byte of the mapped file\n  \
    advice NAME      normal, sequential, random, dontneed\n  \
    reopen           close the file and open it again\n  \
    # …              a comment\n\n\
    Example:\n  \
    readpath conform --generate 500 --seed 7 --file /mnt/data/large.bin"
)]
pub struct ConformArgs {
    /// The list of reads
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub reads: Option<PathBuf>,
    /// Make a list of so many reads of all sorts [default: 2000]
    #[arg(long, value_name = "N")]
    pub generate: Option<usize>,
    /// Let half of the patterns of a made list touch the mapped file
    #[arg(long, conflicts_with = "reads")]
    pub mapped: bool,
    /// Seed of the list
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A file to read from, on the device to be asked; one is made in TMPDIR or
    /// /var/tmp, and removed, when none is given
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Print one JSON document in place of the text
    #[arg(long)]
    pub json: bool,
}

/// A list, or one of it in full.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// One of them, in full
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Takes a list of laws or devices apart.
pub fn specs(text: &str) -> Result<Vec<Spec>, Failure> {
    Spec::parse_all(text).map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
