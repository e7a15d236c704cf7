//! Command line: the arguments of each subcommand, as text that is not checked yet.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use readpath::{BackendKind, PageCache};

use crate::bench::refused::DeniedInterface;
use crate::bench::states::CacheState;
use crate::input::path_argument_parser;
use crate::output::OutputFormat;

/// `readpath run`.
#[derive(Debug, Args)]
#[command(after_help = "STORAGE is one of\n  \
    hdd, ssd, nvme, raid0:12xhdd, …  a modelled device (`readpath devices`); parameters follow\n                                   \
    after commas: hdd,drive=sata2010\n  \
    file:PATH                        a file or block device, through our read path\n  \
    kernel:PATH                      the same through the kernel's read path: the baseline\n  \
    nfs://HOST[:PORT]/EXPORT/PATH    a file of an NFS server, over the network; options after ?:\n                                   \
    rsize=32768&slots=16&timeout=60s&mountport=20048, and repeat=,\n                                   \
    uid=, gid=, source=reserved or source=any\n  \
    region:PATH                      a load on memory, in the library's `Region`\n\n\
    A load touches memory instead of reading files. It runs on modelled devices, on region:PATH, and\n\
    on kernel:PATH with the kernel's own swap (root). The swap space is a file created in the folder\n\
    PATH, or the file or block device PATH, whose content is lost (--overwrite).\n\n\
    POLICY is a name from `readpath policies`; parameters follow after commas:\n  \
    --scheduler deadline,fifo_batch=1,noop   names two schedulers\n\n\
    Columns of a row; `-` was not measured:\n  \
    MiB/s, IOPS    data and operations of the job per second\n  \
    range          lowest and highest MiB/s of several runs (--runs)\n  \
    p50, p99, max  latency of an operation: median, 99th percentile, maximum\n  \
    dev reqs       requests to the device; KiB/req is their mean size\n  \
    depth          mean number of requests at the device while it is busy\n  \
    read amp       read amplification: data read from the device / data requested\n  \
    coverage       share of the requested data that was in the cache\n  \
    waste MiB      prefetched data that was never used\n  \
    cpu s          user and system processor time (real storage)\n  \
    jain           Jain's fairness index of the processes' rates; 1 means equal rates\n  \
    touches/s      accesses of a load to its memory per second\n  \
    major faults   accesses that waited for the device; minor faults found the page in memory\n  \
    pages in, out  pages read from swap, used or not; pages written to swap")]
pub struct RunArgs {
    /// Job file in fio's format, file of memory loads (.toml), or trace of block requests
    /// (recognized by its content)
    #[arg(
        value_name = "JOB.fio|LOAD.toml|TRACE",
        required_unless_present = "fio_options",
        default_value = "-",
        hide_default_value = true
    )]
    pub job: PathBuf,
    /// Format of the trace, if the job is one: iolog, blkparse, blktrace, msr, mqsim, disksim, spc,
    /// alibaba, tencent or recording
    #[arg(long, value_name = "FORMAT")]
    pub trace: Option<String>,
    /// Speed of a trace's replay, as a multiple of its recorded speed [default: 1]
    #[arg(long, value_name = "FACTOR", conflicts_with = "closed")]
    pub speed: Option<f64>,
    /// Number of a trace's requests in flight; its arrival times are ignored
    #[arg(long, value_name = "N")]
    pub closed: Option<NonZero<u32>>,
    /// List fio's options and engines: honoured, without effect, or refused, each with the reason
    #[arg(long, conflicts_with_all = ["job", "trace", "speed", "closed", "storages", "readahead", "swapin", "scheduler", "eviction", "chunking", "backend", "page_cache", "memory", "seed", "log", "create", "runs", "runtime", "overwrite", "html", "json", "output_format"])]
    pub fio_options: bool,
    /// Storage that the job runs on; repeat the option, or separate modelled devices with commas
    /// [default: hdd]
    #[arg(long = "on", value_name = "STORAGE", value_parser = path_argument_parser())]
    pub storages: Vec<String>,
    /// Readahead policies, one row each [default: adaptive]
    #[arg(long, value_name = "POLICY,…")]
    pub readahead: Option<String>,
    /// Swap-in policies of a load, one row each. On kernel: the only policy is `kernel`;
    /// kernel,page_cluster=3 sets vm.page_cluster for the whole machine during the run
    #[arg(long, value_name = "POLICY,…")]
    pub swapin: Option<String>,
    /// Schedulers, one row each [default: adaptive]
    #[arg(long, value_name = "POLICY,…")]
    pub scheduler: Option<String>,
    /// Eviction policy for all rows; not used on kernel:, which has its own [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<String>,
    /// Policies that split the transfers of jobs with ioengine=raw, one row each; not on kernel:
    /// [default: ring]
    #[arg(long, value_name = "POLICY,…")]
    pub chunking: Option<String>,
    /// Backend for requests to file: auto, aio, io_uring or threads. auto takes the first suitable
    /// backend that this system offers; the row reports if it isn't the best one
    #[arg(long, value_name = "NAME")]
    pub backend: Option<BackendKind>,
    /// Page cache of file: storage. Policies of `file:` need `own` or `none`; `none` needs neither
    /// readahead nor eviction [default: kernel; own with --memory]
    #[arg(long, value_name = "MODE")]
    pub page_cache: Option<PageCacheMode>,
    /// Page cache memory, with a unit (KiB, MiB, GiB) [default: 256MiB; on file: this machine's
    /// spare memory; for a load, the size in its file]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Seed of all random choices in the run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File for the policies' decisions, one per line, with the numbers behind each. Written by
    /// schedulers `cfq` and `adaptive` and readahead `adaptive`; not on kernel:
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Create missing files of file: and kernel: with random bytes, and remove them afterwards
    #[arg(long)]
    pub create: bool,
    /// Number of runs of each row in real time, in turn with the other rows; the row is the run
    /// with the median throughput. Rows in virtual time are equal in each run [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "log")]
    pub runs: Option<NonZero<u32>>,
    /// Longest run of each process of a job, or of a trace's replay, in seconds or with a unit; 0
    /// for no limit
    #[arg(long, value_name = "TIME")]
    pub runtime: Option<String>,
    /// Allow a writing job to overwrite the data of file: and kernel: storage; files that --create
    /// creates need no permission
    #[arg(long)]
    pub overwrite: bool,
    /// File for a copy of the results: one self-contained HTML page with sortable tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
    /// Output format of a job's rows; fio means fio's own JSON, for tools that read it
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    pub output_format: Option<OutputFormat>,
}

impl RunArgs {
    /// Output format of a job's rows: `--output-format`, else `--json`, else a table.
    pub fn format(&self) -> OutputFormat {
        match self.output_format {
            Some(format) => format,
            None if self.json => OutputFormat::Json,
            None => OutputFormat::Table,
        }
    }
}

/// Page cache of real storage through the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageCacheMode {
    /// The kernel page cache
    Kernel,
    /// A cache of the library, past the kernel's
    Own,
    /// No page cache: each read is requests to the device
    None,
}

impl PageCacheMode {
    /// Page cache that the library's builder takes. A cache of its own has no memory limit yet.
    pub fn page_cache(self) -> PageCache {
        match self {
            PageCacheMode::Kernel => PageCache::Kernel,
            PageCacheMode::Own => PageCache::Own { bytes: None },
            PageCacheMode::None => PageCache::None,
        }
    }
}

/// `readpath reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Tables to reproduce, A to F; all tables if none is named
    #[arg(value_name = "TABLE")]
    pub tables: Vec<String>,
    /// NFS file, 96 KiB or more, on which table C's READs are also counted on the wire
    /// (nfs://HOST[:PORT]/EXPORT/PATH)
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File for a copy of the results: one self-contained HTML page with sortable tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// `readpath check-kernel`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root and tracefs (exit code 3 without). A list of reads has one step per \
    line:\n  \
    OFFSET LENGTH    a read, in bytes\n  \
    touch OFFSET     an access to one byte of the mapped file\n  \
    advice NAME      access advice: normal, sequential, random, dontneed\n  \
    reopen           close the file and open it again\n  \
    # …              a comment\n\n\
    Example:\n  \
    readpath check-kernel --generate 500 --seed 7 --file /mnt/data/large.bin"
)]
pub struct CheckKernelArgs {
    /// List of reads
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub reads: Option<PathBuf>,
    /// Number of reads in a generated list of mixed patterns [default: 2000]
    #[arg(long, value_name = "N")]
    pub generate: Option<usize>,
    /// Access the file by mapping in half of the generated patterns
    #[arg(long, conflicts_with = "reads")]
    pub mapped: bool,
    /// Seed of the list
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File to read, on the device under test [default: a scratch file in TMPDIR or /var/tmp,
    /// removed afterwards]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Print one JSON document in place of the text
    #[arg(long)]
    pub json: bool,
}

/// Argument of the commands that list things: nothing, or one name to show in full.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of one entry to show in full
    #[arg(value_name = "NAME", value_parser = path_argument_parser())]
    pub name: Option<String>,
}

/// `readpath policies`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    readpath policies eviction/adaptive\n  \
    readpath policies scheduler/cfq --picture cfq.svg")]
pub struct PoliciesArgs {
    /// Name of one policy to show in full; KIND/NAME if two kinds share the name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// SVG file for a picture of the policy's actions in a small modelled run
    #[arg(long, value_name = "FILE", requires = "name")]
    pub picture: Option<PathBuf>,
}

/// `readpath completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  readpath completions bash > \
    ~/.local/share/bash-completion/completions/readpath")]
pub struct CompletionsArgs {
    /// Shell to generate the completions for
    pub shell: clap_complete::Shell,
}

/// `readpath man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  readpath man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Folder for the manual pages; created if missing
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// `readpath emulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    readpath emulate hdd --at /mnt/slow --size 8G &\n  \
    fio --filename=/mnt/slow/device --direct=1 --rw=randread --runtime=10 --name=test\n  \
    losetup --direct-io=on --find --show /mnt/slow/device\n\n\
    The device is there once the file exists. Detach a loop device (`losetup --detach`) before `umount`.\n\
    Needs root or fusermount3. Ends on ctrl-C, on `umount DIR`, and with the process that started it,\n\
    such as a script that starts it with `&`.")]
pub struct EmulateArgs {
    /// Modelled device (`readpath devices`), with parameters after commas
    #[arg(value_name = "DEVICE", value_parser = path_argument_parser())]
    pub device: String,
    /// Empty folder used as the mount point; the device is the file DIR/device
    #[arg(long = "at", value_name = "DIR")]
    pub folder: PathBuf,
    /// File that holds the device's data; its length is the device's size
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub backing: Option<PathBuf>,
    /// Length of the temporary file that holds the data, with a unit [default: the device's size]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Seed of all random choices in the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `readpath devices validate`.
#[derive(Debug, Args)]
#[command(after_help = "Format of a trace's lines, as in DiskSim's validation set:\n  \
    R|W  Hit|Miss  first-sector  sectors  service-time-µs  idle-time-µs\n\n\
    Example:\n  readpath devices validate atlas10k.trace --on hdd,disksim=atlas10k.diskspecs")]
pub struct ValidateArgs {
    /// Trace with measured service times
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Disk to validate: hdd,disksim=FILE.diskspecs, hdd,toml=FILE or hdd,drive=NAME
    #[arg(
        long = "on",
        value_name = "DISK",
        default_value = "hdd",
        value_parser = path_argument_parser()
    )]
    pub disk: String,
    /// Print also the error of the model without each of its features
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
    after_help = "A row is one access pattern of a program, as in stream/256MiB/64KiB. It is measured \
    in each\ncache state, each time in a new process: the library with default settings, and the same \
    accesses\nby pread, mmap and O_DIRECT. The ratio is the time of the fastest of the three divided by \
    the\nlibrary's time: below 1, the library is slower.\n\n\
    Examples:\n  \
    readpath bench /mnt/data --picture bench.svg\n  \
    readpath bench . --rows stream,map --states cold,cached --runs 5"
)]
pub struct BenchArgs {
    /// Folder on the storage to measure; scratch files are created in it and removed
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Parts of names: only rows that contain one of them are measured
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Cache states to measure [default: all]
    #[arg(long, value_name = "STATE,…", value_enum, value_delimiter = ',')]
    pub states: Vec<CacheState>,
    /// Number of measurements for each figure, which is their median [default: 3; --full 5; --small
    /// 1]
    #[arg(long, value_name = "N")]
    pub runs: Option<NonZero<u32>>,
    /// Measure files of 2 GiB too, without a time limit
    #[arg(long)]
    pub full: bool,
    /// Limit files to 4 MiB: a check that the rows run, not a measurement
    #[arg(long, conflicts_with = "full")]
    pub small: bool,
    /// Minutes after which no new measurement starts [default: 9; --full: none]
    #[arg(long, value_name = "N")]
    pub minutes: Option<NonZero<u64>>,
    /// System calls denied to the library and its baselines with seccomp, as in a container
    #[arg(long, value_name = "WHAT,…", value_enum, value_delimiter = ',')]
    pub refuse: Vec<DeniedInterface>,
    /// Compare cold rows also with a program that knows its reads beforehand. It keeps as many of
    /// them in flight (io_uring and O_DIRECT; small files: threads), for each of these numbers
    #[arg(long, value_name = "DEPTH,…", value_delimiter = ',')]
    pub queue: Vec<NonZero<u32>>,
    /// SVG file for a picture of the ratios
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// File for a copy of the results: one self-contained HTML page with sortable tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// `readpath replay`.
#[derive(Debug, Args)]
#[command(after_help = "A list of scheduler events has one event per line, in order of time:\n  \
    at_ms=0    event=arrive request=1 process=1 op=read start=0 sectors=8\n  \
    at_ms=0    event=dispatch request=1  the other scheduler sent it to the device\n  \
    at_ms=1.25 event=complete request=1\n  \
    at_ms=9    event=wait                time passes\n  \
    at_ms=9    event=end process=1       the process has ended\n  \
    # …                                  a comment\n\
    An arrival may have class=rt|be|idle (be), level=0..7 (4) and sync=yes|no (yes for a read).\n\
    The output is the policy's decisions, one per line, as `readpath run --log` writes them. An\n\
    `event=divergence` marks each difference between a dispatch of the list and the policy. The\n\
    last line counts the equal requests. Exit code 1: some requests differ.\n\n\
    The reads of a recording are repeated, on modelled devices in virtual time and on real storage\n\
    in real time. A process that waited for a read waits for it again, and pauses between reads for\n\
    as long as in the recording. The result is the program's run time. `dev reqs` and `dev MiB` are\n\
    requests to the device and their data. `read amp` is data read from the device / data requested.\n\
    `coverage` is the share of the requested data that was in the cache.\n\n\
    Examples:\n  \
    readpath record -o reads.rec -- COMMAND\n  \
    readpath replay reads.rec --on measured,toml=mine.toml,nvme --readahead ondemand,adaptive\n  \
    readpath replay reads.rec --on file:/mnt/fast --on kernel:/mnt/fast --memory 1GiB,+4GiB")]
pub struct ReplayArgs {
    /// Recording of `readpath record`, or list of scheduler events; recognized by its first bytes
    #[arg(value_name = "FILE")]
    pub events: PathBuf,
    /// Scheduler [default: adaptive for a recording, cfq for a list]
    #[arg(long, value_name = "POLICY")]
    pub scheduler: Option<String>,
    /// Storage for a recording's reads, one row each; the option may be repeated. Modelled devices,
    /// or real storage: file:FOLDER through our read path, kernel:FOLDER through the kernel's. Real
    /// storage uses scratch files as long as the recorded files [default: hdd,nvme]
    #[arg(long = "on", value_name = "STORAGE,…", value_parser = path_argument_parser())]
    pub storages: Vec<String>,
    /// Readahead policies for a recording, one row each; not used on kernel:, which has its own
    /// [default: ondemand,adaptive]
    #[arg(long, value_name = "POLICY,…")]
    pub readahead: Option<String>,
    /// Eviction policies for a recording, one row each [default: two-lists]
    #[arg(long, value_name = "POLICY,…")]
    pub eviction: Option<String>,
    /// Page cache memory for a recording, with a unit, one row each; +SIZE adds to the memory of
    /// the recorded machine. On kernel: it limits a control group (root) [default: the recorded
    /// machine's memory; on file: and kernel: this machine's spare memory]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    pub memory: Vec<String>,
    /// Seed of a recording's random choices in devices, and of the scratch files' content
    /// [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Queue depth of a list: number of requests that the device accepts at once [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Treat the device of a list as solid-state, without a moving head
    #[arg(long)]
    pub solid_state: bool,
    /// File for a copy of a recording's rows, as one self-contained HTML page
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
    lirs            one block number per line\n  \
    arc             FIRST COUNT … on each line (.lis)\n  \
    cloudphysics    block numbers of 32 bits, big-endian\n  \
    oracle-general  libCacheSim's records of 24 bytes\n  \
    blkparse        output of blkparse: its queued requests, in pages of 4 KiB\n  \
    msr             timestamp,host,disk,type,offset,size,response, in pages of 4 KiB\n  \
    reads           OFFSET LENGTH per line, as for `readpath check-kernel`, in pages of 4 KiB\n  \
    iolog, blktrace, mqsim, disksim, spc, alibaba, tencent, recording\n                  \
    as for `readpath run --trace`, in pages of 4 KiB. A recording has its\n                  \
    device requests, behind the kernel's cache; for the program's reads:\n                  \
    `readpath recording export --as oracle-general`\n\n\
    Reads and writes both count as references. `optimum` is Belady's policy: it knows all future\n\
    references.\n\n\
    With --objects, a TRACE is a list of references to objects with sizes, in one of these formats:\n  \
    oracle-general  libCacheSim's records of 24 bytes, with their sizes\n  \
    jsonl           {\"key\": KEY, \"size\": BYTES} per line; KEY is a text or a whole number\n\
    The policies for objects are fifo, lru, sieve, s3fifo and gdsf.\n\
    Admission policies: all, size:LIMIT, probability:P[:SEED], size-probability:BYTES[:SEED], bloom,\n\
    adaptsize[:INTERVAL[:SEED]] and tinylfu, as in `readpath policies admission/bloom`.\n\n\
    Examples:\n  \
    readpath cachesim gli.trace.gz --eviction lru,lirs --sizes 5%,20%,40% --picture gli.svg\n  \
    readpath cachesim cdn.oracleGeneral.zst --objects --sizes 1%,64MiB --admission all,bloom"
)]
pub struct CachesimArgs {
    /// Traces of references to blocks or, with --objects, to objects
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Eviction policies (`readpath policies`), one column each [default: all]
    #[arg(long, value_name = "POLICY,…")]
    pub eviction: Option<String>,
    /// Print the miss ratio and the byte miss ratio of references to objects with sizes
    #[arg(long, conflicts_with_all = ["picture", "html"])]
    pub objects: bool,
    /// Admission policies, which select the missed objects that enter [default: all]
    #[arg(long, value_name = "POLICY,…", requires = "objects")]
    pub admission: Option<String>,
    /// Memory sizes: shares of a trace's distinct blocks, rounded down (1 block at least), or sizes
    /// with a unit, in blocks of 4 KiB; with --objects, of the objects' bytes, or in bytes
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "0.5%,2%,5%,10%,20%,40%"
    )]
    pub sizes: Vec<String>,
    /// Options for reading the traces.
    #[command(flatten)]
    pub read: TraceArgs,
    /// File (.svg or .html) for a picture of the miss-ratio curves
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// File for a copy of the results: one self-contained HTML page with sortable tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}

/// Options for reading traces of block references.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Format of the traces [default: recognized by file names and first lines]
    #[arg(long, value_name = "NAME")]
    pub format: Option<String>,
    /// Number of references to take from the beginning of each trace [default: all]
    #[arg(long, value_name = "N")]
    pub first: Option<NonZero<usize>>,
}

/// `readpath eval eviction`.
#[derive(Debug, Args)]
#[command(
    after_help = "A cell is a load with less memory than it needs, in one of these forms:\n  \
    references/LOAD/SIZE  references to blocks, with the policies alone; the cost is the misses\n  \
    reads/LOAD            reads of files through the whole modelled path; the cost is the bytes\n                        \
    requested from the device\n  \
    touches/LOAD          touches of more pages than memory holds; the cost is the bytes moved\n                        \
    from and to the device\n\n\
    The ratio is the policy's cost divided by the cost of the best other policy: above 1, that policy,\n\
    known in hindsight, costs less. The numbers of generated loads are drawn from the seed. A TRACE, as\n\
    for `readpath cachesim`, is one more load of references.\n\n\
    Examples:\n  \
    readpath eval eviction --cells reads/\n  \
    readpath eval eviction gli.trace.gz --cells /gli --sizes 5%,20%,40% --seed 7"
)]
pub struct EvalEvictionArgs {
    /// Traces of block references, in addition to the generated loads
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Memory sizes for the traces, as for `readpath cachesim`
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "0.5%,2%,5%,10%,20%,40%",
        requires = "traces"
    )]
    pub sizes: Vec<String>,
    /// Options for reading the traces.
    #[command(flatten)]
    pub read: TraceArgs,
    /// Parts of names: only cells that contain all of them run, as in `/zipf/,/20%/`
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub cells: Vec<String>,
    /// Eviction policy to judge
    #[arg(long, value_name = "POLICY", default_value = "adaptive")]
    pub eviction: String,
    /// Do 1/64 of the work: a check that the cells run, not a measurement
    #[arg(long)]
    pub smoke: bool,
    /// Print every cell, not only the worst and the summary
    #[arg(long)]
    pub all: bool,
    /// Number of cells that run at a time [default: the number of processors]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File for a copy of the results: one self-contained HTML page with sortable tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}
