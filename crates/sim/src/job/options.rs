//! The options: one table of names, one function that puts a value into a job.
//!
//! A [`Draft`] is a job on its way: it starts as fio's defaults, takes options
//! in the order of the file, and is checked as a whole at the end.

use readpath_core::request::{Class, Priority};
use readpath_core::unit::Time;

use super::units::{BYTES_FORM, SPAN_FORM, bytes, count, span};
use super::{Distribution, Engine, Extent, Hint, Job, JobError, Pattern, Sync};

/// The options that are supported, each with what it takes.
pub const OPTIONS: &[(&str, &str)] = &[
    ("rw", "read, randread, write, randwrite, rw, randrw (also: readwrite=)"),
    ("rwmixread", "percentage of reads in a mix (50)"),
    ("rwmixwrite", "percentage of writes in a mix (50)"),
    ("bs", "block size, or READ,WRITE (4k) (also: blocksize=)"),
    ("size", "bytes, or a percentage of the file, that one pass of a process covers"),
    (
        "io_size",
        "bytes, or a percentage of the size, that a process moves in total (also: io_limit=)",
    ),
    ("offset", "where in the file the area begins: bytes or a percentage (0)"),
    ("filesize", "bytes in each file"),
    ("filename", "file, or files with `:` between them, shared by all processes"),
    ("directory", "directory of the files"),
    ("numjobs", "processes that do the same (1)"),
    ("iodepth", "operations in flight, for asynchronous engines (1)"),
    ("iodepth_batch", "operations submitted together (1) (also: iodepth_batch_submit=)"),
    ("iodepth_batch_complete", "completions waited for together (1)"),
    ("ioengine", "psync, sync, libaio, io_uring, mmap; raw, which fio has not (psync)"),
    ("direct", "1 to go past the page cache (0)"),
    ("buffered", "0 to go past the page cache (1)"),
    ("runtime", "the longest that a process runs, in seconds or with a unit (also: timeout=)"),
    ("time_based", "start over until the runtime is up"),
    ("thinktime", "pause between operations, in microseconds or with a unit (0)"),
    ("thinktime_blocks", "operations between two pauses (1)"),
    ("fadvise_hint", "0, 1 (the job's own pattern), sequential, random (1)"),
    ("randseed", "seed of the random places (137)"),
    ("random_distribution", "random, zipf, zipf:THETA (random)"),
    ("norandommap", "random places may repeat"),
    ("group_reporting", "report all processes of the job as one"),
    ("startdelay", "wait this long after the start, in seconds or with a unit (0)"),
    ("stonewall", "wait for the jobs above to end (also: wait_for_previous)"),
    ("description", "free text"),
    ("name", "the job's name, in place of its section's"),
    ("loops", "how many times the work is done (1)"),
    ("prio", "I/O priority from 0 (most) to 7"),
    ("prioclass", "I/O class: 1 real time, 2 best effort, 3 idle"),
    ("fsync", "fsync(2) after so many writes (0: never)"),
    ("fdatasync", "fdatasync(2) after so many writes (0: never)"),
    ("end_fsync", "1: fsync(2) when all is written (0)"),
    ("nrfiles", "1: name the files with filename="),
];

/// The value that fio's manual names for `zipf` without a number.
const ZIPF_THETA_DEFAULT: f64 = 1.1;

/// fio's `randseed` when none is given (`fio --cmdhelp=randseed`).
const SEED_DEFAULT: u64 = 0x89;

/// A job while its options are read.
#[derive(Clone, Debug)]
pub struct Draft {
    job: Job,
    /// The value of `name`, which wins over the section's name.
    name: Option<String>,
    flow: Option<Flow>,
    reads_percent_of_mix: u8,
    class: Option<Class>,
    level: Option<u8>,
}

/// What `rw` said.
#[derive(Clone, Copy, Debug)]
struct Flow {
    is_random: bool,
    direction: Direction,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Read,
    Write,
    Mix,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft {
            job: Job {
                name: String::new(),
                description: None,
                line: 0,
                pattern: Pattern { is_random: false, reads_percent: 100 },
                block_bytes_read: 4096,
                block_bytes_write: 4096,
                size: None,
                io_size: None,
                offset: Extent::Bytes(0),
                file_bytes: None,
                file_names: Vec::new(),
                directory: None,
                processes: 1,
                depth: 1,
                batch: 1,
                batch_complete: 1,
                engine: Engine::default(),
                is_direct: false,
                runtime: None,
                is_time_based: false,
                think_time: Time::ZERO,
                think_blocks: 1,
                hint: Hint::default(),
                seed: SEED_DEFAULT,
                distribution: Distribution::default(),
                has_random_map: true,
                is_group_reported: false,
                start_delay: Time::ZERO,
                is_barrier: false,
                loops: 1,
                sync: Sync::default(),
                priority: None,
            },
            name: None,
            flow: None,
            reads_percent_of_mix: 50,
            class: None,
            level: None,
        }
    }
}

impl Draft {
    /// This draft as the start of the job whose section is at `line`.
    pub fn for_job(mut self, section: &str, line: usize) -> Draft {
        section.clone_into(&mut self.job.name);
        self.job.line = line;
        self
    }

    /// Puts one option in.
    ///
    /// # Errors
    /// The option is unknown, or the value is not what it takes.
    pub fn set(&mut self, line: usize, option: &str, value: Option<&str>) -> Result<(), JobError> {
        let job = &mut self.job;
        let text = value.unwrap_or_default();
        let outcome = match option {
            "rw" | "readwrite" => flow(text).map(|flow| self.flow = Some(flow)),
            "rwmixread" => integer(text, 0..=100).map(|n| self.reads_percent_of_mix = n),
            "rwmixwrite" => integer(text, 0..=100).map(|n: u8| self.reads_percent_of_mix = 100 - n),
            "bs" | "blocksize" => block_bytes(text, job),
            "size" => extent(text, 1).map(|size| job.size = Some(size)),
            "io_size" | "io_limit" => extent(text, 1).map(|size| job.io_size = Some(size)),
            "offset" | "fileoffset" => extent(text, 0).map(|offset| job.offset = offset),
            "filesize" => bytes(text)
                .filter(|n| *n > 0)
                .map(|n| job.file_bytes = Some(n))
                .ok_or_else(|| BYTES_FORM.to_owned()),
            "filename" => file_names(text).map(|names| job.file_names = names),
            "directory" => directory(text).map(|path| job.directory = Some(path)),
            "numjobs" => integer(text, 1..=65_536).map(|n| job.processes = n),
            "iodepth" => integer(text, 1..=65_536).map(|n| job.depth = n),
            "iodepth_batch" | "iodepth_batch_submit" => {
                integer(text, 0..=65_536).map(|n| job.batch = n)
            }
            "iodepth_batch_complete" | "iodepth_batch_complete_min" => {
                integer(text, 0..=65_536).map(|n| job.batch_complete = n)
            }
            "ioengine" => engine(text).map(|engine| job.engine = engine),
            "direct" => integer(text, 0..=1).map(|n: u8| job.is_direct = n == 1),
            "buffered" => integer(text, 0..=1).map(|n: u8| job.is_direct = n == 0),
            "runtime" | "timeout" => {
                time(text, Time::from_s(1)).map(|t| job.runtime = Some(t).filter(|t| t.ns() > 0))
            }
            "time_based" => switch(value).map(|on| job.is_time_based = on),
            "thinktime" => time(text, Time::from_us(1)).map(|t| job.think_time = t),
            "thinktime_blocks" => integer(text, 1..=u32::MAX).map(|n| job.think_blocks = n),
            "fadvise_hint" => hint(text).map(|hint| job.hint = hint),
            "randseed" => integer(text, 0..=u64::MAX).map(|n| job.seed = n),
            "random_distribution" => distribution(text).map(|d| job.distribution = d),
            "norandommap" => switch(value).map(|on| job.has_random_map = !on),
            "group_reporting" => switch(value).map(|on| job.is_group_reported = on),
            "startdelay" => time(text, Time::from_s(1)).map(|t| job.start_delay = t),
            "stonewall" | "wait_for_previous" => switch(value).map(|on| job.is_barrier = on),
            "description" => some_text(text).map(|text| job.description = Some(text)),
            "name" => some_text(text).map(|text| self.name = Some(text)),
            "loops" => integer(text, 1..=u32::MAX).map(|n| job.loops = n),
            "prio" => integer(text, 0..=7).map(|n| self.level = Some(n)),
            "prioclass" => class(text).map(|class| self.class = Some(class)),
            "fsync" => integer(text, 0..=u32::MAX).map(|n| job.sync.writes = n),
            "fdatasync" => integer(text, 0..=u32::MAX).map(|n| job.sync.data_writes = n),
            "end_fsync" => integer(text, 0..=1).map(|n: u8| job.sync.at_end = n == 1),
            "nrfiles" => integer(text, 1..=1).map(|_: u8| ()),
            _ => return Err(JobError::UnknownOption { line, option: option.to_owned() }),
        };
        outcome.map_err(|expected| JobError::BadValue {
            line,
            option: option.to_owned(),
            value: text.to_owned(),
            expected,
        })
    }

    /// Checks the job as a whole.
    ///
    /// # Errors
    /// `rw` is missing, or two options contradict each other.
    pub fn finish(mut self) -> Result<Job, JobError> {
        let line = self.job.line;
        self.job.name = self.name.unwrap_or(self.job.name);
        let mut job = self.job;
        let Some(flow) = self.flow else {
            return Err(JobError::NoDirection { line, job: job.name });
        };
        job.pattern.is_random = flow.is_random;
        job.pattern.reads_percent = match flow.direction {
            Direction::Read => 100,
            Direction::Write => 0,
            Direction::Mix => self.reads_percent_of_mix,
        };
        job.priority = match (self.class, self.level) {
            (None, None) => None,
            (class, level) => Some(Priority {
                class: class.unwrap_or_default(),
                level: level.unwrap_or_default(),
            }),
        };
        // Raw I/O is past the cache by its nature.
        job.is_direct |= job.engine == Engine::Raw;
        if !job.engine.is_async() {
            job.depth = 1; // as fio, which says so in a note
        }
        // fio: a batch of 0, or above the depth, is the depth.
        job.batch = if job.batch == 0 { job.depth } else { job.batch.min(job.depth) };
        // 0 polls in fio: what is complete is taken, as with 1.
        job.batch_complete = job.batch_complete.clamp(1, job.depth);
        match conflict(&job) {
            Some(what) => Err(JobError::Conflict { line, job: job.name, what: what.to_owned() }),
            None => Ok(job),
        }
    }
}

/// Two options that contradict each other, and what to do.
fn conflict(job: &Job) -> Option<&'static str> {
    if job.is_time_based && job.runtime.is_none() {
        return Some("time_based needs a time: add `runtime=10s`, or take it out");
    }
    if job.engine == Engine::Mmap && job.is_direct {
        return Some("a mapping goes through the page cache: take `direct=1` out, or use psync");
    }
    None
}

/// What a value must be, for the message.
type Expected = String;

fn flow(text: &str) -> Result<Flow, Expected> {
    let (is_random, direction) = match text {
        "read" => (false, Direction::Read),
        "write" => (false, Direction::Write),
        "rw" | "readwrite" => (false, Direction::Mix),
        "randread" => (true, Direction::Read),
        "randwrite" => (true, Direction::Write),
        "randrw" => (true, Direction::Mix),
        _ => return Err("read, randread, write, randwrite, rw or randrw".to_owned()),
    };
    Ok(Flow { is_random, direction })
}

fn integer<N>(text: &str, bounds: std::ops::RangeInclusive<N>) -> Result<N, Expected>
where
    N: TryFrom<u64> + PartialOrd + Copy + std::fmt::Display,
{
    count(text).and_then(|n| N::try_from(n).ok()).filter(|n| bounds.contains(n)).ok_or_else(|| {
        match (bounds.start(), bounds.end()) {
            (low, high) if low == high => format!("{low}"),
            (low, high) => format!("a whole number from {low} to {high}"),
        }
    })
}

/// `4k` for both directions, `4k,8k` for reads and writes; an empty part keeps what was.
fn block_bytes(text: &str, job: &mut Job) -> Result<(), Expected> {
    let expected = || format!("a block size above 0, or READ,WRITE: {BYTES_FORM}");
    let one = |part: &str, old| match part.trim() {
        "" => Ok(old),
        part => bytes(part).filter(|n| *n > 0 && *n <= BLOCK_BYTES_MAX).ok_or_else(expected),
    };
    match text.split_once(',') {
        None if text.is_empty() => return Err(expected()),
        None => {
            job.block_bytes_read = one(text, 0)?;
            job.block_bytes_write = job.block_bytes_read;
        }
        Some((read, write)) => {
            job.block_bytes_read = one(read, job.block_bytes_read)?;
            job.block_bytes_write = one(write, job.block_bytes_write)?;
        }
    }
    Ok(())
}

/// The largest block: fio's block sizes are 32-bit.
const BLOCK_BYTES_MAX: u64 = u32::MAX as u64;

fn extent(text: &str, least: u64) -> Result<Extent, Expected> {
    let parsed = match text.strip_suffix('%') {
        Some(number) => count(number)
            .and_then(|n| u8::try_from(n).ok())
            .filter(|n| *n <= 100)
            .map(|n| (u64::from(n), Extent::Percent(n))),
        None => bytes(text).map(|n| (n, Extent::Bytes(n))),
    };
    match parsed {
        Some((number, extent)) if number >= least => Ok(extent),
        _ => Err(format!("a percentage from {least}% to 100%, or, from {least}, {BYTES_FORM}")),
    }
}

/// Names with `:` between them; `\:` stands for a colon in a name.
fn file_names(text: &str) -> Result<Vec<String>, Expected> {
    let mut names = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.next_if_eq(&':').is_some() => last(&mut names).push(':'),
            ':' => names.push(String::new()),
            letter => last(&mut names).push(letter),
        }
    }
    if names.iter().any(String::is_empty) {
        return Err("a file name, or several with `:` between them".to_owned());
    }
    Ok(names)
}

fn last(names: &mut [String]) -> &mut String {
    names.last_mut().expect("the list starts with one name")
}

fn directory(text: &str) -> Result<String, Expected> {
    let names = file_names(text).map_err(|_| "a directory".to_owned())?;
    match <[String; 1]>::try_from(names) {
        Ok([path]) => Ok(path),
        Err(_) => Err("one directory (`\\:` stands for a colon in its name)".to_owned()),
    }
}

fn engine(text: &str) -> Result<Engine, Expected> {
    const ENGINES: [Engine; 6] =
        [Engine::Psync, Engine::Sync, Engine::Libaio, Engine::IoUring, Engine::Mmap, Engine::Raw];
    ENGINES
        .into_iter()
        .find(|engine| engine.name() == text)
        .ok_or_else(|| ENGINES.map(Engine::name).join(", "))
}

fn time(text: &str, unit: Time) -> Result<Time, Expected> {
    span(text, unit).ok_or_else(|| {
        let unit = if unit == Time::from_s(1) { "seconds" } else { "microseconds" };
        format!("{SPAN_FORM}; without one it counts {unit}")
    })
}

fn switch(value: Option<&str>) -> Result<bool, Expected> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err("1, 0, or the option alone".to_owned()),
    }
}

fn hint(text: &str) -> Result<Hint, Expected> {
    match text {
        "0" => Ok(Hint::None),
        "1" => Ok(Hint::Pattern),
        "sequential" => Ok(Hint::Sequential),
        "random" => Ok(Hint::Random),
        _ => Err("0, 1, sequential or random".to_owned()),
    }
}

fn distribution(text: &str) -> Result<Distribution, Expected> {
    match text {
        "random" => return Ok(Distribution::Uniform),
        "zipf" => return Ok(Distribution::Zipf { theta: ZIPF_THETA_DEFAULT }),
        _ => {}
    }
    // fio refuses 1 (its formula divides by 1 - theta), and takes its time above 100.
    text.strip_prefix("zipf:")
        .and_then(|theta| theta.parse::<f64>().ok())
        .filter(|theta| *theta > 0.0 && *theta < 100.0 && *theta != 1.0)
        .map(|theta| Distribution::Zipf { theta })
        .ok_or_else(|| {
            "random, zipf, or zipf:THETA with THETA above 0, below 100, not 1".to_owned()
        })
}

fn class(text: &str) -> Result<Class, Expected> {
    match text {
        "1" => Ok(Class::RealTime),
        "2" => Ok(Class::BestEffort),
        "3" => Ok(Class::Idle),
        _ => Err("1 (real time), 2 (best effort) or 3 (idle)".to_owned()),
    }
}

fn some_text(text: &str) -> Result<String, Expected> {
    (!text.is_empty()).then(|| text.to_owned()).ok_or_else(|| "some text".to_owned())
}
