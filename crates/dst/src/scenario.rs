//! A run as plain data: settings of the path, files, and the actions of each thread, drawn from a
//! seed. A *path* is a `ReadPath` of the public API. To *draw* is to select at random by the seed.
//! All ranges and rates of the draws are chosen: memories and files are small, so that the threads
//! meet at the same pages.
//!
//! A *guard* keeps a cached page in memory while it lives. Memory with *served faults* is a region
//! (anonymous memory over a file) or a mapping, whose page faults the library serves. A *window* of
//! a mapping is *delegated* while the kernel's own mapping of the file serves it.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::disk::{BLOCK, Faults};
use super::memory::Kernel;
use super::server::SimulatedServer;
use crate::target::Coherence;

/// Description of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of the schedule.
    pub seed: u64,
    /// Options of the path, and of the schedule.
    pub settings: Settings,
    /// Lengths of the files in bytes.
    pub files: Vec<u64>,
    /// Faults.
    pub faults: Faults,
    /// Server of the only file; `None` for files of this machine.
    pub server: Option<SimulatedServer>,
    /// Actions of each thread, in order.
    pub threads: Vec<Vec<Action>>,
}

/// Options of the path, and of the schedule.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for pages, in pages.
    pub memory_pages: u64,
    /// Number of these pages that guards may pin.
    pub held_pages: u64,
    /// Readahead policy.
    pub readahead: &'static str,
    /// Scheduler.
    pub scheduler: &'static str,
    /// Eviction policy.
    pub eviction: &'static str,
    /// Queue depth of the storage.
    pub depth: u32,
    /// True if threads may execute their own requests.
    pub can_execute_inline: bool,
    /// Time at which files are checked for changes.
    pub coherence: Coherence,
    /// One step of this number switches to another thread.
    pub switch_one_in: u64,
    /// One step of this number stops a thread for a while; 0 for none.
    pub freeze_one_in: u64,
    /// One thread start of this number fails; 0 for none.
    pub refuse_thread_one_in: u64,
    /// Memory that the threads touch; `None` if they read files.
    pub paged: Option<Paged>,
}

/// A range to read: index of the file, offset in bytes, number of bytes.
pub type ScenarioRead = (usize, u64, u64);

/// An action of a thread.
#[derive(Clone, Debug)]
pub enum Action {
    /// Reads into one buffer.
    Read(ScenarioRead),
    /// Reads into three buffers of about a third each.
    ReadVectored(ScenarioRead),
    /// Takes a guard on the page of a byte, and keeps it: file, offset of the byte.
    Hold(usize, u64),
    /// Drops the oldest guard.
    LetGo,
    /// Prefetches a range.
    Prefetch(ScenarioRead),
    /// Gives advice: file, number of the kind of advice.
    Advise(usize, u8),
    /// Invalidates the cached pages of a range.
    Invalidate(ScenarioRead),
    /// Opens another handle of the file with its own readahead state.
    Reopen(usize),
    /// Opens the file again by its name.
    Open(usize),
    /// Checks the file for changes.
    Revalidate(usize),
    /// Reads a range through a reader, in lines of this number of bytes.
    Stream(ScenarioRead, u64),
    /// Reads several ranges in a batch, waits for this number of them, or for all if it is larger,
    /// and abandons the rest. The last range is read while a result is shared.
    Batch(Vec<ScenarioRead>, usize, Option<ScenarioRead>),
    /// Polls several reads as futures. The first number is the number of rounds of polls after
    /// which the reads are abandoned; 0 for none. The second is the number of the call at which the
    /// buffers and wakers panic; 0 for never.
    Futures(Vec<ScenarioRead>, u64, u64),
    /// Reads the counters.
    Stats,
    /// Another program writes pages: file, first page, number of pages.
    Write(usize, u64, u64),
    /// Another program truncates or extends a file: file, new length in bytes.
    Resize(usize, u64),
    /// Another program replaces a file: file, length of the new file in bytes.
    Replace(usize, u64),
    /// Waits for this number of microseconds.
    Pause(u64),
    /// Touches memory with served faults.
    Touch(MappingTouch),
}

/// Kind of memory.
#[derive(Clone, Debug)]
pub enum Paged {
    /// A region with this number of pages and this swap-in policy.
    Region(u64, &'static str),
    /// A mapping of the file.
    Mapping,
    /// A mapping with windows delegated to the kernel's own mapping.
    MappingWithDelegation(Kernel),
}

/// An action of a thread. Most take the first page and the number of pages.
#[derive(Clone, Debug)]
pub enum MappingTouch {
    /// Reads pages in ascending order.
    Read(u64, u64),
    /// Reads pages in descending order.
    ReadDown(u64, u64),
    /// Writes one part of each page; the third number is the part.
    Write(u64, u64, u64),
    /// Loads pages and waits.
    Load(u64, u64),
    /// Announces the use of pages.
    WillNeed(u64, u64),
    /// Drops the content of pages; for a mapping, their memory.
    Discard(u64, u64),
    /// Copies bytes of a mapping: offset and number.
    ReadAt(u64, u64),
    /// Gives a mapping advice by number.
    Advise(u8),
    /// A system call uses a page for a time in microseconds. At its end the call writes to the page
    /// if `writes_page` is true.
    Hold {
        /// Number of the page.
        page: u64,
        /// True if the call writes to the page.
        writes_page: bool,
        /// Time in microseconds.
        use_us: u64,
    },
    /// Locks `count` pages from page `first` on in memory, or unlocks them.
    Lock {
        /// First page.
        first: u64,
        /// Number of pages.
        count: u64,
        /// False to unlock.
        is_locked: bool,
    },
    /// Drops the memory of pages directly (madvise(2)).
    DropByMadvise(u64, u64),
    /// Reads the counters, and checks that they agree with the failures so far.
    CheckCounters,
}

/// Number of kinds of actions that are drawn together for files.
const ACTION_KINDS: u64 = 20;

/// Random numbers from a seed, which is the initial state.
pub struct Draw(pub u64);

impl Draw {
    /// Draws a number below `end`, which is not 0.
    pub(super) fn number_below(&mut self, end: u64) -> u64 {
        splitmix::next(&mut self.0) % end
    }

    /// Draws one of `all`.
    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.number_below(all.len() as u64) as usize]
    }

    /// Draws one of `rates` in one case of three, otherwise returns 0, which means never. Most runs
    /// thus have few kinds of faults.
    pub(super) fn fault_rate(&mut self, rates: &[u64]) -> u64 {
        if self.number_below(3) == 0 { self.pick(rates) } else { 0 }
    }
}

impl Scenario {
    /// Draws a scenario from a seed, with about `actions` actions in all.
    pub fn from_seed(seed: u64, actions: u64) -> Scenario {
        let is_served = false;
        Scenario::draw_scenario(seed, actions, is_served)
    }

    /// Draws a scenario with one file on a server, with about `actions` actions in all.
    pub fn from_seed_with_server(seed: u64, actions: u64) -> Scenario {
        let is_served = true;
        Scenario::draw_scenario(seed, actions, is_served)
    }

    /// Draws a scenario with about `actions` actions: over local files, or over one file on a
    /// server if `is_served` is true. A value that is listed twice is drawn twice as often.
    fn draw_scenario(seed: u64, actions: u64, is_served: bool) -> Scenario {
        // The constant gives other numbers than other kinds of scenarios draw from the same seed.
        let mut draw = Draw(splitmix::mixed(seed ^ 0x5ce4_a510));
        let memory_pages = draw.pick(&[2, 3, 4, 6, 8, 12, 16, 24, 40, 64]);
        // Guards may pin at most half of the memory, and at least one page.
        let held_pages = match draw.number_below(3) {
            0 => 1,
            1 => memory_pages / 2,
            _ => (memory_pages / 4).max(1),
        };
        let mut files: Vec<u64> =
            (0..1 + draw.number_below(3)).map(|_| draw_length(&mut draw)).collect();
        if is_served {
            files.truncate(1);
        }
        // A quiet run has no faults.
        let is_quiet = draw.number_below(4) == 0;
        let mut faults = if is_quiet { Faults::default() } else { draw_faults(&mut draw, &files) };
        let coherences = [
            Coherence::WhenOpened,
            Coherence::WhenOpened,
            Coherence::EachMiss,
            Coherence::EachRead,
        ];
        let mut settings = Settings {
            memory_pages,
            held_pages,
            readahead: draw.pick(&[
                "adaptive",
                "adaptive",
                "ondemand",
                "window",
                "none",
                "window-fixed",
            ]),
            scheduler: draw.pick(&["adaptive", "deadline", "noop", "cfq"]),
            eviction: draw.pick(&["adaptive", "lru", "two-lists", "s3fifo", "arc", "lirs"]),
            depth: draw.pick(&[1, 2, 3, 8, 32]),
            can_execute_inline: draw.number_below(3) > 0,
            coherence: draw.pick(&coherences),
            switch_one_in: draw.pick(&[2, 4, 16, 64, 300]),
            freeze_one_in: draw.fault_rate(&[300, 2_000, 10_000]),
            // At the rate 1, no thread starts at all.
            refuse_thread_one_in: draw.fault_rate(&[2, 1]),
            paged: None,
        };
        let kinds = draw_kinds(&mut draw, ACTION_KINDS);
        let changes_files = draw.number_below(2) == 0;
        let threads = draw_threads(&mut draw, actions, |draw, count| {
            (0..count).map(|_| draw_action(draw, &files, kinds, changes_files)).collect()
        });
        let server = is_served.then(|| draw_server(&mut draw, files[0], is_quiet, changes_files));
        if is_served {
            // The file's changes are visible when it is looked up again, and the connection never
            // dies permanently.
            settings.coherence = Coherence::WhenOpened;
            faults.dies_after = 0;
        }
        Scenario { seed, settings, files, faults, server, threads }
    }
}

/// Draws the length of a file in bytes, at least 1.
fn draw_length(draw: &mut Draw) -> u64 {
    match draw.number_below(5) {
        0 => 1 + draw.number_below(5_000),
        1 => (1 + draw.number_below(4)) * PAGE_BYTES,
        2 => 1 + draw.number_below(300 * PAGE_BYTES),
        _ => 1 + draw.number_below(40 * PAGE_BYTES),
    }
}

/// Draws the kinds of actions of a run, as one bit for each of `kind_count` kinds: about half of
/// them, and at least one. With all kinds in each run, rare actions would hardly interact.
pub fn draw_kinds(draw: &mut Draw, kind_count: u64) -> u64 {
    // These make an empty set improbable. Equal bits add up to the next one, which may be beyond
    // the kinds.
    let few_kinds = (0..3).map(|_| 1 << draw.number_below(kind_count)).sum::<u64>();
    let kinds = (few_kinds | draw.number_below(1 << kind_count)) & ((1 << kind_count) - 1);
    // An empty set becomes the first kind. Other seeds keep their actions.
    kinds.max(1)
}

/// Draws the actions of a few threads, about `actions` in all. `draw_thread` draws the given number
/// of actions of one thread.
pub(super) fn draw_threads(
    draw: &mut Draw,
    actions: u64,
    mut draw_thread: impl FnMut(&mut Draw, u64) -> Vec<Action>,
) -> Vec<Vec<Action>> {
    let thread_count = 1 + draw.number_below(4);
    (0..thread_count).map(|_| draw_thread(draw, 1 + actions / thread_count)).collect()
}

/// Draws the faults of the storage. `files` are the lengths of the files in bytes.
pub(super) fn draw_faults(draw: &mut Draw, files: &[u64]) -> Faults {
    let mut bad_pages = Vec::new();
    if draw.number_below(3) == 0 {
        for _ in 0..1 + draw.number_below(4) {
            let file = draw.number_below(files.len() as u64) as usize;
            bad_pages.push((file as u32, draw.number_below(files[file].div_ceil(PAGE_BYTES))));
        }
    }
    Faults {
        error_one_in: draw.fault_rate(&[5, 20, 100]),
        short_one_in: draw.fault_rate(&[2, 5, 20]),
        retry_one_in: draw.fault_rate(&[3, 10, 50]),
        delay_one_in: draw.fault_rate(&[10, 100]),
        spurious_wake_one_in: draw.fault_rate(&[2, 10]),
        // Tests of the simulation set it.
        unexpected_error_one_in: 0,
        // The next four are for memory with served faults, whose scenarios set them.
        short_call_one_in: 0,
        out_of_memory_one_in: 0,
        mapping_limit_one_in: 0,
        swapped_out_one_in: 0,
        // In one run of 20 the storage dies, after 1 to 100 transfers.
        dies_after: if draw.number_below(20) == 0 { 1 + draw.number_below(100) } else { 0 },
        bad_pages,
    }
}

/// Draws a server of a file of `bytes` bytes with its faults. A quiet run (`is_quiet`) has none.
/// `changes_files` is true if other programs change the file.
fn draw_server(
    draw: &mut Draw,
    bytes: u64,
    is_quiet: bool,
    changes_files: bool,
) -> SimulatedServer {
    let (repeat_ms, repeats_until_timeout) = match is_quiet {
        // No answer takes long enough for a repetition.
        true => (draw.pick(&[1_000, 5_000]), draw.pick(&[10, 12])),
        false => (draw.pick(&[10, 30, 100, 300, 1_000]), draw.pick(&[1, 2, 5])),
    };
    let read_bytes_max = match draw.number_below(4) {
        // One block: with another length, two READs could fill a block with bytes of two changes.
        0 if changes_files => 512,
        0 => 300 + draw.number_below(5_000),
        _ => 1 << (12 + draw.number_below(9)),
    };
    // Limits the number of READs, so that a run ends soon even if each answer is late.
    let read_bytes_max = read_bytes_max.max((bytes / 50).next_multiple_of(BLOCK));
    let mut server = SimulatedServer {
        rsize: (1 + draw.number_below(40)) * PAGE_BYTES,
        read_bytes_max,
        slots: draw.pick(&[1, 2, 3, 8, 64]),
        repeat_ms,
        timeout_ms: repeat_ms * repeats_until_timeout,
        from_reserved: draw.number_below(4) == 0,
        is_linked: draw.number_below(3) == 0,
        // Otherwise two READs of a changed file could fill one block with bytes of two changes.
        has_unaligned_short_answers: !changes_files,
        ..SimulatedServer::default()
    };
    if !is_quiet {
        for rate in server.fault_rates_mut() {
            *rate = draw.fault_rate(&[3, 10, 40, 150]);
        }
        // Each costs a timeout, in which all waiting threads check for completions many times.
        server.no_answer_one_in *= 4;
        server.hang_one_in *= 20;
    }
    server
}

/// Draws a range of one of the files, whose lengths in bytes are `files`. It may reach past the
/// end.
fn draw_range(draw: &mut Draw, files: &[u64]) -> ScenarioRead {
    let file = draw.number_below(files.len() as u64) as usize;
    // The start of a page, a byte of the first four pages, a byte possibly past the end, or any
    // byte of the file.
    let offset = match draw.number_below(4) {
        0 => draw.number_below(files[file].div_ceil(PAGE_BYTES)) * PAGE_BYTES,
        1 => draw.number_below(files[file].min(4 * PAGE_BYTES)),
        2 => draw.number_below(files[file] + 2 * PAGE_BYTES),
        _ => draw.number_below(files[file]),
    };
    let bytes = match draw.number_below(8) {
        0 => draw.number_below(10),
        1 | 2 => draw.number_below(5_000),
        3 => PAGE_BYTES,
        4 | 5 => draw.number_below(5) * PAGE_BYTES,
        6 => draw.number_below(20 * PAGE_BYTES),
        _ => draw.number_below(80 * PAGE_BYTES),
    };
    (file, offset, bytes)
}

/// Draws one action of the kinds whose bits are set in `kinds`, at least one. `files` are the
/// lengths of the files in bytes. If `changes_files` is false, no action changes a file. An action
/// with several numbers of `kind` is drawn more often.
fn draw_action(draw: &mut Draw, files: &[u64], kinds: u64, changes_files: bool) -> Action {
    loop {
        let kind = draw.number_below(ACTION_KINDS);
        if kinds & 1 << kind == 0 {
            continue;
        }
        let file = draw.number_below(files.len() as u64) as usize;
        let range = draw_range(draw, files);
        let (_, offset, _) = range;
        return match kind {
            0..=3 => Action::Read(range),
            4 => Action::ReadVectored(range),
            5 => Action::Hold(file, offset),
            6 => Action::LetGo,
            7 => Action::Prefetch(range),
            8 => Action::Advise(file, draw.number_below(5) as u8),
            9 => Action::Invalidate(range),
            10 => Action::Reopen(file),
            11 => Action::Open(file),
            12 => Action::Revalidate(file),
            13 => Action::Stream(range, 1 + draw.number_below(3_000)),
            14 | 15 => {
                let reads =
                    (0..1 + draw.number_below(20)).map(|_| draw_range(draw, files)).collect();
                let concurrent_read =
                    if draw.number_below(2) == 0 { Some(draw_range(draw, files)) } else { None };
                // A number of at least the reads waits for all of them.
                Action::Batch(reads, draw.number_below(22) as usize, concurrent_read)
            }
            16 | 17 => {
                let reads =
                    (0..1 + draw.number_below(6)).map(|_| draw_range(draw, files)).collect();
                let polls = if draw.number_below(2) == 0 { 0 } else { 1 + draw.number_below(4) };
                let countdown =
                    if draw.number_below(6) == 0 { 1 + draw.number_below(8) } else { 0 };
                Action::Futures(reads, polls, countdown)
            }
            18 => match draw.number_below(2) {
                0 => Action::Stats,
                _ => Action::Pause(draw.number_below(20_000)),
            },
            _ if !changes_files => Action::Read(range),
            _ => match draw.number_below(8) {
                0 => Action::Resize(file, draw_length(draw)),
                1 => Action::Replace(file, draw_length(draw)),
                _ => Action::Write(file, offset / PAGE_BYTES, 1 + draw.number_below(20)),
            },
        };
    }
}
