//! Command line: the arguments of each subcommand, as text that is not checked yet.

use std::num::NonZero;
use std::path::PathBuf;

use clap::Args;
use readpath::BackendKind;

use crate::everyday::{CacheState, Refused};
use crate::input::with_path;
use crate::output::OutputFormat;

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
    POLICY is a name from `readpath policies`; parameters follow after commas:\n  \
    --scheduler deadline,fifo_batch=1,noop   names two schedulers")]
pub struct RunArgs {
    /// A job file in fio's format, a file of loads on memory (its name ends with .toml), or a
    /// trace of block requests, which is known by what stands in it
    #[arg(
        value_name = "JOB.fio|LOAD.toml|TRACE",
        required_unless_present = "fio_options",
        default_value = "-",
        hide_default_value = true
    )]
    pub job: PathBuf,
    /// The job is a trace in this format, one of iolog, blkparse, blktrace, msr, mqsim, disksim,
    /// spc, alibaba, tencent
    #[arg(long, value_name = "FORMAT")]
    pub trace: Option<String>,
    /// Replay a trace this many times as fast as it was recorded [default: 1]
    #[arg(long, value_name = "FACTOR", conflicts_with = "closed")]
    pub speed: Option<f64>,
    /// Replay a trace with this many requests in flight, whatever its times
    #[arg(long, value_name = "N")]
    pub closed: Option<NonZero<u32>>,
    /// List fio's options and engines: which are honoured, which change nothing here, and which
    /// are refused, and why
    #[arg(long, exclusive = true)]
    pub fio_options: bool,
    /// Where to run it; repeat it, or separate with commas [default: hdd]
    #[arg(long = "on", value_name = "STORAGE", value_parser = with_path())]
    pub storages: Vec<String>,
    /// Readahead policies, each a row [default: adaptive]
    #[arg(long, value_name = "POLICY,…")]
    pub readahead: Option<String>,
    /// Swap-in policies of a load, each a row. On kernel: the kernel has its own, and the policy's
    /// name is `kernel`: kernel,page_cluster=3 sets vm.page_cluster for the run, for the whole
    /// machine
    #[arg(long, value_name = "POLICY,…")]
    pub swapin: Option<String>,
    /// Schedulers, each a row
    #[arg(long, value_name = "POLICY,…", default_value = "adaptive")]
    pub scheduler: String,
    /// The eviction policy, for all rows; on kernel: the kernel has its own [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<String>,
    /// How jobs with ioengine=raw cut their transfers, each a row (not on kernel:) [default: ring]
    #[arg(long, value_name = "POLICY,…")]
    pub chunking: Option<String>,
    /// What carries the requests of file:, one of auto, aio, io_uring, threads; auto is the first
    /// that suits of those that this system gives, and the row says where that isn't the best
    #[arg(long, value_name = "NAME", default_value_t = BackendKind::Auto)]
    pub backend: BackendKind,
    /// Memory of the page cache, with a unit (KiB, MiB, GiB) [default: 256MiB; on file: what this
    /// machine has to spare; what a load says]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Seed of everything that is random in the run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write every decision of the policies to this file, with the numbers that decided it, one a
    /// line (the schedulers `cfq` and `adaptive` and the readahead policy `adaptive` write them;
    /// not on kernel:)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Make the files of file: and kernel: that don't exist, filled with random bytes, and remove
    /// them afterwards
    #[arg(long)]
    pub create: bool,
    /// Let each process of a job run for this long at most, in seconds or with a unit, whatever the
    /// job says
    #[arg(long, value_name = "TIME")]
    pub runtime: Option<String>,
    /// Let a job that writes overwrite the data of file: and kernel: storage
    #[arg(long)]
    pub overwrite: bool,
    /// Write it to this file too, as one page of HTML that needs nothing else: tables that a click
    /// sorts, and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
    /// In which form the rows of a job are printed; fio is fio's own JSON, for what reads that
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    pub output_format: Option<OutputFormat>,
}

impl RunArgs {
    /// In which form the rows of a job are printed.
    pub fn format(&self) -> OutputFormat {
        match self.output_format {
            Some(format) => format,
            None if self.json => OutputFormat::Json,
            None => OutputFormat::Table,
        }
    }
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
    /// Write it to this file too, as one page of HTML that needs nothing else: tables that a click
    /// sorts, and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// `readpath check-kernel`.
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
    readpath check-kernel --generate 500 --seed 7 --file /mnt/data/large.bin"
)]
pub struct CheckKernelArgs {
    /// The list of reads
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub reads: Option<PathBuf>,
    /// Make a list of this many reads of all sorts [default: 2000]
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
    #[arg(value_name = "NAME", value_parser = with_path())]
    pub name: Option<String>,
}

/// `readpath policies`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    readpath policies eviction/adaptive\n  \
    readpath policies scheduler/cfq --picture cfq.svg")]
pub struct PoliciesArgs {
    /// One of them, in full; KIND/NAME where two kinds have a policy of that name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Draw what the policy does in a small modelled run to this file, as SVG
    #[arg(long, value_name = "FILE", requires = "name")]
    pub picture: Option<PathBuf>,
}

/// `readpath completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  readpath completions bash > \
    ~/.local/share/bash-completion/completions/readpath")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `readpath man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  readpath man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The folder; it is made if it isn't there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// `readpath emulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    readpath emulate hdd --at /mnt/slow --size 8G &\n  \
    fio --filename=/mnt/slow/device --direct=1 --rw=randread --name=test\n  \
    losetup --direct-io=on --find --show /mnt/slow/device\n\n\
    Needs root, or fusermount3. `umount DIR` ends it too.")]
pub struct ServeArgs {
    /// A modelled device (`readpath devices`), with parameters after commas
    #[arg(value_name = "DEVICE", value_parser = with_path())]
    pub device: String,
    /// An empty folder, on which it is mounted; the file is DIR/device
    #[arg(long = "at", value_name = "DIR")]
    pub folder: PathBuf,
    /// Keep the data in this file, whose length is the file's
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub backing: Option<PathBuf>,
    /// Keep the data in a temporary file of this length, with a unit [default: the device's size]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Seed of everything that is random in the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `readpath devices validate`.
#[derive(Debug, Args)]
#[command(after_help = "A line of a trace, as DiskSim's validation set has them:\n  \
    R|W  Hit|Miss  first-sector  sectors  service-time-µs  idle-time-µs\n\n\
    Example:\n  readpath devices validate atlas10k.trace --on hdd,disksim=atlas10k.diskspecs")]
pub struct ValidateArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// The disk: hdd,disksim=FILE.diskspecs, hdd,toml=FILE, hdd,drive=NAME
    #[arg(long = "on", value_name = "DISK", default_value = "hdd", value_parser = with_path())]
    pub disk: String,
    /// Print also how much each feature of the model is worth
    #[arg(long)]
    pub ablate: bool,
    /// Seed of the platter's phase at the start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}

/// `readpath bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "A row is what a program does, as in stream/256MiB/64KiB. Each is measured in each \
    state, each\ntime in a new process: the library with nothing set, and the same accesses by pread, mmap \
    and\nO_DIRECT. The ratio is the time of the fastest of the three to ours: below 1, ours is slower.\n\n\
    Examples:\n  \
    readpath bench /mnt/data --picture everyday.svg\n  \
    readpath bench . --rows stream,map --states cold,cached --runs 5"
)]
pub struct BenchArgs {
    /// A folder on the storage to be measured; the files are made in it, and removed
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Only the rows whose names have one of these parts in them
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Only these states [default: all]
    #[arg(long, value_name = "STATE,…", value_enum, value_delimiter = ',')]
    pub states: Vec<CacheState>,
    /// How often each is measured; figures are medians [default: 3; --full 5; --small 1]
    #[arg(long, value_name = "N")]
    pub runs: Option<NonZero<u32>>,
    /// Files of 2 GiB too, and no limit of time
    #[arg(long)]
    pub full: bool,
    /// Files of 4 MiB at most: shows that the rows run, and judges nothing
    #[arg(long, conflicts_with = "full")]
    pub small: bool,
    /// Begin no measurement after so many minutes [default: 9; --full: none]
    #[arg(long, value_name = "N")]
    pub minutes: Option<NonZero<u64>>,
    /// Refuse these to the library and to its peers, as a container's profile does (seccomp)
    #[arg(long, value_name = "WHAT,…", value_enum, value_delimiter = ',')]
    pub refuse: Vec<Refused>,
    /// Draw the ratios to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Write it to this file too, as one page of HTML that needs nothing else: tables that a click
    /// sorts, and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// `readpath replay`.
#[derive(Debug, Args)]
#[command(after_help = "FILE has one event a line, in the order of time:\n  \
    at_ms=0    event=arrive request=1 process=1 op=read start=0 sectors=8\n  \
    at_ms=0    event=dispatch request=1  the other scheduler gave it to the device\n  \
    at_ms=1.25 event=complete request=1\n  \
    at_ms=9    event=wait                time passes\n  \
    at_ms=9    event=end process=1       the process is gone\n  \
    # …                                  a comment\n\
    An arrival may say class=rt|be|idle (be), level=0..7 (4) and sync=yes|no (yes for a read).\n\
    Printed are the decisions, one a line, as `readpath run --log` writes them, among them as\n\
    `event=divergence` where the list has a request in the device and the policy did otherwise, and\n\
    at the end how many requests are equal. Exit code 1: some are not.\n\n\
    A recording's reads are made again, on modelled devices in virtual time and on real storage by\n\
    the clock: who waited for an answer waits for it, and thinks for as long as then. The figure is\n\
    the time of the program.\n\n\
    Examples:\n  \
    readpath record -o reads.rec -- COMMAND\n  \
    readpath replay reads.rec --on measured,toml=mine.toml,nvme --readahead ondemand,adaptive\n  \
    readpath replay reads.rec --on file:/mnt/fast --on kernel:/mnt/fast --memory 1GiB,+4GiB")]
pub struct ReplayArgs {
    /// A recording of `readpath record`, or a list of a scheduler's events: known by its first
    /// bytes
    #[arg(value_name = "FILE")]
    pub events: PathBuf,
    /// The scheduler [default: of a recording adaptive, of a list cfq]
    #[arg(long, value_name = "POLICY")]
    pub scheduler: Option<String>,
    /// Of a recording: make its reads again on these modelled devices, each a row; or on real
    /// storage: file:FOLDER by our read path, kernel:FOLDER by the kernel's, over scratch files as
    /// long as those that were recorded; repeat it
    #[arg(
        long = "on",
        value_name = "STORAGE,…",
        default_value = "hdd,nvme",
        value_parser = with_path()
    )]
    pub storages: Vec<String>,
    /// Of a recording: readahead policies, each a row; the kernel has its own
    #[arg(long, value_name = "POLICY,…", default_value = "ondemand,adaptive")]
    pub readahead: String,
    /// Of a recording: eviction policies, each a row
    #[arg(long, value_name = "POLICY,…", default_value = "two-lists")]
    pub eviction: String,
    /// Of a recording: memory for its pages, with a unit, each a row; +SIZE is that much more than
    /// its machine has. On kernel: a control group's (root) [default: all that its machine has; on
    /// file: and kernel: what this one has to spare]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    pub memory: Vec<String>,
    /// Of a recording: seed of what is random in devices, and of what is in the scratch files
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many requests the device takes at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: u32,
    /// The device has no head that moves
    #[arg(long)]
    pub solid_state: bool,
    /// Of a recording: write the rows to this file too, as one page of HTML that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `readpath cachesim`.
#[derive(Debug, Args)]
#[command(
    after_help = "A TRACE is a list of references to blocks, compressed (.gz, .xz, .zst) or \
    not, in one of\nthese formats:\n  \
    lirs            a block's number a line\n  \
    arc             FIRST COUNT … a line (.lis)\n  \
    cloudphysics    numbers of 32 bits, the highest byte first\n  \
    oracle-general  libCacheSim's records of 24 bytes\n  \
    blkparse        what blkparse prints: requests that are queued, in pages of 4 KiB\n  \
    msr             timestamp,host,disk,type,offset,size,response, in pages of 4 KiB\n  \
    reads           OFFSET LENGTH a line, as for `readpath check-kernel`, in pages of 4 KiB\n\n\
    Reads and writes are references alike. `optimum` is Belady's: it knows what is to come.\n\n\
    Example:\n  readpath cachesim gli.trace.gz --eviction lru,lirs --sizes 5%,20%,40% --picture gli.svg"
)]
pub struct CacheArgs {
    /// Traces
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Eviction policies (`readpath policies`), each a column [default: all]
    #[arg(long, value_name = "POLICY,…")]
    pub eviction: Option<String>,
    /// Sizes of memory: parts of the different blocks of a trace, rounded down to one block at
    /// least, or sizes with a unit, of blocks of 4 KiB
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "0.5%,2%,5%,10%,20%,40%"
    )]
    pub sizes: Vec<String>,
    /// How they are read.
    #[command(flatten)]
    pub read: TraceArgs,
    /// Draw the miss-ratio curves to this file, .svg or .html
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Write it to this file too, as one page of HTML that needs nothing else: tables that a click
    /// sorts, and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}

/// How traces of blocks are read.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The format of the traces [default: what names and first lines speak for]
    #[arg(long, value_name = "NAME")]
    pub format: Option<String>,
    /// Take this many references of each trace, from its beginning [default: all]
    #[arg(long, value_name = "N")]
    pub first: Option<NonZero<usize>>,
}

/// `readpath eval eviction`.
#[derive(Debug, Args)]
#[command(
    after_help = "A cell is a load in a memory that is too small for it, in one of these forms:\n  \
    references/LOAD/SIZE  references to blocks by the policies alone; what counts is what they miss\n  \
    reads/LOAD            reads of files through the whole modelled path; what counts is the bytes\n                        \
    that the device is asked for\n  \
    touches/LOAD          touches of memory larger than memory; the bytes to the device and back\n\n\
    The ratio is what the policy costs to what the best of the others costs: above 1 the best of them,\n\
    known in hindsight, costs less. Numbers of the loads made here are drawn from the seed. A TRACE, as\n\
    for `readpath cachesim`, is one more load of references.\n\n\
    Examples:\n  \
    readpath eval eviction --cells reads/\n  \
    readpath eval eviction gli.trace.gz --cells /gli --sizes 5%,20%,40% --seed 7"
)]
pub struct CacheRegretArgs {
    /// Traces of blocks, next to the loads made here
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Sizes of memory for the traces, as for `readpath cachesim`
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "0.5%,2%,5%,10%,20%,40%",
        requires = "traces"
    )]
    pub sizes: Vec<String>,
    /// How the traces are read.
    #[command(flatten)]
    pub read: TraceArgs,
    /// Only the cells whose name contains each of these, as in `/zipf/,/20%/`
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub cells: Vec<String>,
    /// Judge this eviction policy
    #[arg(long, value_name = "POLICY", default_value = "adaptive")]
    pub eviction: String,
    /// Do a sixty-fourth of the work: shows that the cells run, and judges nothing
    #[arg(long)]
    pub smoke: bool,
    /// Print every cell, not only the worst and the summary
    #[arg(long)]
    pub all: bool,
    /// How many cells run at a time [default: the processors that there are]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write it to this file too, as one page of HTML that needs nothing else: tables that a click
    /// sorts, and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}
