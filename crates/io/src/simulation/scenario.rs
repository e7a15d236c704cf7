//! A run as plain data: settings of the path, files, and the actions of each thread, drawn from a
//! seed.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::disk::{BLOCK, Faults};
use super::paged::{MappingTouch, Paged};
use super::server::SimulatedServer;
use crate::path::Coherence;

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
    pub lets_carry: bool,
    /// Time at which files are checked for changes.
    pub coherence: Coherence,
    /// One step of this number switches to another thread.
    pub switch_part: u64,
    /// One step of this number stops a thread for a while; 0 for none.
    pub freeze_part: u64,
    /// One thread start of this number fails; 0 for none.
    pub refuse_thread_part: u64,
    /// Memory that the threads touch; `None` if they read files.
    pub paged: Option<Paged>,
}

/// A range to read: file, offset, bytes.
pub type ScenarioRead = (usize, u64, u64);

/// An action of a thread.
#[derive(Clone, Debug)]
pub enum Action {
    /// Reads into one buffer.
    Read(ScenarioRead),
    /// Reads into three buffers of about a third each.
    ReadVectored(ScenarioRead),
    /// Takes a guard on the page of a byte, and keeps it.
    Hold(usize, u64),
    /// Drops the oldest guard.
    LetGo,
    /// Prefetches a range.
    Prefetch(ScenarioRead),
    /// Gives advice by number.
    Advise(usize, u8),
    /// Invalidates the cached pages of a range.
    Invalidate(ScenarioRead),
    /// Opens another handle with its own readahead state.
    Reopen(usize),
    /// Opens the file again by its name.
    Open(usize),
    /// Checks the file for changes.
    Revalidate(usize),
    /// Reads a range through a reader, in lines of this number of bytes.
    Stream(ScenarioRead, u64),
    /// Reads several ranges in a batch, waits for this number of them, and abandons the rest. The
    /// last range is read while a result is shared.
    Batch(Vec<ScenarioRead>, usize, Option<ScenarioRead>),
    /// Polls several reads as futures. Abandons them after the second number of polls, unless it is
    /// 0. The buffers and wakers panic at the call given by the third number; 0 for never.
    Futures(Vec<ScenarioRead>, u64, u64),
    /// Reads the counters.
    Stats,
    /// Another program writes pages: file, first page, number.
    Write(usize, u64, u64),
    /// Another program truncates or extends the file.
    Resize(usize, u64),
    /// Another program replaces the file.
    Replace(usize, u64),
    /// Waits for this number of microseconds.
    Pause(u64),
    /// Touches memory with served faults.
    Touch(MappingTouch),
}

/// Random numbers from a seed.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        splitmix::next(&mut self.0) % end
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Returns one of `parts` in one scenario of three, otherwise 0.
    pub(super) fn part(&mut self, parts: &[u64]) -> u64 {
        if self.below(3) == 0 { self.one_of(parts) } else { 0 }
    }
}

impl Scenario {
    /// Draws a scenario from a seed, with about `actions` actions in all.
    pub fn of(seed: u64, actions: u64) -> Scenario {
        Scenario::drawn(seed, actions, false)
    }

    /// Draws a scenario with one file on a server.
    pub fn served(seed: u64, actions: u64) -> Scenario {
        Scenario::drawn(seed, actions, true)
    }

    /// Draws a scenario over local files, or over one file on a server.
    fn drawn(seed: u64, actions: u64, is_served: bool) -> Scenario {
        let mut draw = Draw(splitmix::mixed(seed ^ 0x5ce4_a510));
        let memory_pages = draw.one_of(&[2, 3, 4, 6, 8, 12, 16, 24, 40, 64]);
        let held_pages = match draw.below(3) {
            0 => 1,
            1 => memory_pages / 2,
            _ => (memory_pages / 4).max(1),
        };
        let mut files: Vec<u64> = (0..1 + draw.below(3)).map(|_| length(&mut draw)).collect();
        if is_served {
            files.truncate(1);
        }
        let is_quiet = draw.below(4) == 0;
        let mut faults = if is_quiet { Faults::default() } else { faults(&mut draw, &files) };
        let coherences = [
            Coherence::WhenOpened,
            Coherence::WhenOpened,
            Coherence::EachMiss,
            Coherence::EachRead,
        ];
        let mut settings = Settings {
            memory_pages,
            held_pages,
            readahead: draw.one_of(&[
                "adaptive",
                "adaptive",
                "ondemand",
                "window",
                "none",
                "window-fixed",
            ]),
            scheduler: draw.one_of(&["adaptive", "deadline", "noop", "cfq"]),
            eviction: draw.one_of(&["adaptive", "lru", "two-lists", "s3fifo", "arc", "lirs"]),
            depth: draw.one_of(&[1, 2, 3, 8, 32]),
            lets_carry: draw.below(3) > 0,
            coherence: draw.one_of(&coherences),
            switch_part: draw.one_of(&[2, 4, 16, 64, 300]),
            freeze_part: draw.part(&[300, 2_000, 10_000]),
            refuse_thread_part: draw.part(&[2, 1]),
            paged: None,
        };
        let kinds = kinds(&mut draw, 20);
        let changes_files = draw.below(2) == 0;
        let threads = threads(&mut draw, actions, |draw, count| {
            (0..count).map(|_| action(draw, &files, kinds, changes_files)).collect()
        });
        let server = is_served.then(|| server(&mut draw, files[0], is_quiet, changes_files));
        if is_served {
            // The file's changes are visible when it is looked up again, and the connection never
            // dies permanently.
            settings.coherence = Coherence::WhenOpened;
            faults.dies_after = 0;
        }
        Scenario { seed, settings, files, faults, server, threads }
    }
}

fn length(draw: &mut Draw) -> u64 {
    match draw.below(5) {
        0 => 1 + draw.below(5_000),
        1 => (1 + draw.below(4)) * PAGE_BYTES,
        2 => 1 + draw.below(300 * PAGE_BYTES),
        _ => 1 + draw.below(40 * PAGE_BYTES),
    }
}

/// Draws the kinds of actions of a run, one bit for each of `of` kinds. Most runs use only a few
/// kinds: otherwise rare actions would hardly interact.
pub(super) fn kinds(draw: &mut Draw, of: u64) -> u64 {
    (0..3).map(|_| 1 << draw.below(of)).sum::<u64>() | draw.below(1 << of)
}

/// Draws the actions of a few threads, `actions` in all. `thread` draws a number of actions of one
/// thread.
pub(super) fn threads(
    draw: &mut Draw,
    actions: u64,
    mut thread: impl FnMut(&mut Draw, u64) -> Vec<Action>,
) -> Vec<Vec<Action>> {
    let count = 1 + draw.below(4);
    (0..count).map(|_| thread(draw, 1 + actions / count)).collect()
}

/// Draws the faults of the storage.
pub(super) fn faults(draw: &mut Draw, files: &[u64]) -> Faults {
    let mut bad = Vec::new();
    if draw.below(3) == 0 {
        for _ in 0..1 + draw.below(4) {
            let file = draw.below(files.len() as u64) as usize;
            bad.push((file as u32, draw.below(files[file].div_ceil(PAGE_BYTES))));
        }
    }
    Faults {
        fails: draw.part(&[5, 20, 100]),
        stops: draw.part(&[2, 5, 20]),
        again: draw.part(&[3, 10, 50]),
        late: draw.part(&[10, 100]),
        wakes: draw.part(&[2, 10]),
        unknown: 0,
        calls_stop: 0,
        no_memory: 0,
        no_parts: 0,
        swapped: 0,
        dies_after: if draw.below(20) == 0 { 1 + draw.below(100) } else { 0 },
        bad,
    }
}

/// Draws a server with its faults.
fn server(draw: &mut Draw, bytes: u64, is_quiet: bool, changes_files: bool) -> SimulatedServer {
    let (repeat_ms, timeouts) = match is_quiet {
        // No answer takes long enough for a repetition.
        true => (draw.one_of(&[1_000, 5_000]), draw.one_of(&[10, 12])),
        false => (draw.one_of(&[10, 30, 100, 300, 1_000]), draw.one_of(&[1, 2, 5])),
    };
    let read_bytes_max = match draw.below(4) {
        // Otherwise blocks of several changes could be in one page.
        0 if changes_files => 512,
        0 => 300 + draw.below(5_000),
        _ => 1 << (12 + draw.below(9)),
    };
    // Limits the number of READs, so that a run ends soon even if each answer is late.
    let read_bytes_max = read_bytes_max.max((bytes / 50).next_multiple_of(BLOCK));
    let mut server = SimulatedServer {
        rsize: (1 + draw.below(40)) * PAGE_BYTES,
        read_bytes_max,
        slots: draw.one_of(&[1, 2, 3, 8, 64]),
        repeat_ms,
        timeout_ms: repeat_ms * timeouts,
        from_reserved: draw.below(4) == 0,
        is_linked: draw.below(3) == 0,
        has_odd_parts: !changes_files,
        ..SimulatedServer::default()
    };
    if !is_quiet {
        for fault in server.faults() {
            *fault = draw.part(&[3, 10, 40, 150]);
        }
        // Each costs a timeout, in which all waiting threads check for completions many times.
        server.silent *= 4;
        server.hangs *= 20;
    }
    server
}

/// Draws a range of a file.
fn place(draw: &mut Draw, files: &[u64]) -> ScenarioRead {
    let file = draw.below(files.len() as u64) as usize;
    let offset = match draw.below(4) {
        0 => draw.below(files[file].div_ceil(PAGE_BYTES)) * PAGE_BYTES,
        1 => draw.below(files[file].min(4 * PAGE_BYTES)),
        2 => draw.below(files[file] + 2 * PAGE_BYTES),
        _ => draw.below(files[file]),
    };
    let bytes = match draw.below(8) {
        0 => draw.below(10),
        1 | 2 => draw.below(5_000),
        3 => PAGE_BYTES,
        4 | 5 => draw.below(5) * PAGE_BYTES,
        6 => draw.below(20 * PAGE_BYTES),
        _ => draw.below(80 * PAGE_BYTES),
    };
    (file, offset, bytes)
}

/// Draws one action of the selected kinds.
fn action(draw: &mut Draw, files: &[u64], kinds: u64, changes_files: bool) -> Action {
    loop {
        let kind = draw.below(20);
        if kinds & 1 << kind == 0 {
            continue;
        }
        let file = draw.below(files.len() as u64) as usize;
        let at = place(draw, files);
        return match kind {
            0..=3 => Action::Read(at),
            4 => Action::ReadVectored(at),
            5 => Action::Hold(file, at.1),
            6 => Action::LetGo,
            7 => Action::Prefetch(at),
            8 => Action::Advise(file, draw.below(5) as u8),
            9 => Action::Invalidate(at),
            10 => Action::Reopen(file),
            11 => Action::Open(file),
            12 => Action::Revalidate(file),
            13 => Action::Stream(at, 1 + draw.below(3_000)),
            14 | 15 => {
                let reads = (0..1 + draw.below(20)).map(|_| place(draw, files)).collect();
                let beside = if draw.below(2) == 0 { Some(place(draw, files)) } else { None };
                Action::Batch(reads, draw.below(22) as usize, beside)
            }
            16 | 17 => {
                let reads = (0..1 + draw.below(6)).map(|_| place(draw, files)).collect();
                let polls = if draw.below(2) == 0 { 0 } else { 1 + draw.below(4) };
                let fuse = if draw.below(6) == 0 { 1 + draw.below(8) } else { 0 };
                Action::Futures(reads, polls, fuse)
            }
            18 => match draw.below(2) {
                0 => Action::Stats,
                _ => Action::Pause(draw.below(20_000)),
            },
            _ if !changes_files => Action::Read(at),
            _ => match draw.below(8) {
                0 => Action::Resize(file, length(draw)),
                1 => Action::Replace(file, length(draw)),
                _ => Action::Write(file, at.1 / PAGE_BYTES, 1 + draw.below(20)),
            },
        };
    }
}
