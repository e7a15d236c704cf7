//! What happens in a run, as plain data: settings of the path, files, and for each thread what it does. A seed draws it.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::disk::{BLOCK, Faults};
use super::paged::{MappingTouch, Paged};
use super::server::SimulatedServer;
use crate::path::Coherence;

/// What a run is of.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// From which the schedule is drawn.
    pub seed: u64,
    /// How the path is built, and how the threads take turns.
    pub settings: Settings,
    /// The files' lengths in bytes.
    pub files: Vec<u64>,
    /// What goes wrong.
    pub faults: Faults,
    /// The server that the one file is on; none: it is one of this machine.
    pub server: Option<SimulatedServer>,
    /// What each thread does, one after the other.
    pub threads: Vec<Vec<Action>>,
}

/// How the path is built, and how the threads take turns.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for pages, in pages.
    pub memory_pages: u64,
    /// Those of them that guards may hold.
    pub held_pages: u64,
    /// The readahead law.
    pub readahead: &'static str,
    /// The scheduler.
    pub scheduler: &'static str,
    /// The reclaim law.
    pub eviction: &'static str,
    /// Requests in the storage at once.
    pub depth: u32,
    /// Whether threads carry requests of their own by themselves.
    pub lets_carry: bool,
    /// When files are looked at.
    pub coherence: Coherence,
    /// One of so many steps hands on to another thread.
    pub switch_part: u64,
    /// One of so many stops a thread for a while; 0: none.
    pub freeze_part: u64,
    /// One of so many threads is refused by the system; 0: none.
    pub refuse_thread_part: u64,
    /// The memory that the threads touch; none: they read files.
    pub paged: Option<Paged>,
}

/// A place to be read: file, offset, bytes.
pub type ScenarioRead = (usize, u64, u64);

/// Something that a thread does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Reads into one buffer.
    Read(ScenarioRead),
    /// Reads into three buffers of about a third each.
    ReadVectored(ScenarioRead),
    /// Takes a guard on the page of a byte, and keeps it.
    Hold(usize, u64),
    /// Gives the guard back that was taken first.
    LetGo,
    /// Has a range be read ahead.
    Prefetch(ScenarioRead),
    /// Gives advice of that number.
    Advise(usize, u8),
    /// Drops what is cached of a range.
    Invalidate(ScenarioRead),
    /// Takes a handle with a stream of its own.
    Reopen(usize),
    /// Opens the file by its name anew.
    Open(usize),
    /// Looks whether it has changed.
    Revalidate(usize),
    /// Reads a stream of so many lines of so many bytes through a reader.
    Stream(ScenarioRead, u64),
    /// Reads many together, waits for some of them, and gives the rest up; with a read beside while one is lent.
    Batch(Vec<ScenarioRead>, usize, Option<ScenarioRead>),
    /// Awaits reads together; gives them up after so many polls, if not 0. The third number: after so many calls the
    /// buffer panics, and wakers as well; 0: never.
    Futures(Vec<ScenarioRead>, u64, u64),
    /// Asks for what was counted.
    Stats,
    /// Somebody else writes pages: file, first, count.
    Write(usize, u64, u64),
    /// Somebody else cuts the file, or makes it longer.
    Resize(usize, u64),
    /// Somebody else puts another file in its place.
    Replace(usize, u64),
    /// Does nothing for so many microseconds.
    Pause(u64),
    /// Touches memory whose faults are served.
    Touch(MappingTouch),
}

pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        splitmix::next(&mut self.0) % end
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A part of so many, in one of three scenarios.
    pub(super) fn part(&mut self, parts: &[u64]) -> u64 {
        if self.below(3) == 0 { self.one_of(parts) } else { 0 }
    }
}

impl Scenario {
    /// That of a seed, with about so many actions in all.
    pub fn of(seed: u64, actions: u64) -> Scenario {
        Scenario::drawn(seed, actions, false)
    }

    /// The same with one file, of a server.
    pub fn served(seed: u64, actions: u64) -> Scenario {
        Scenario::drawn(seed, actions, true)
    }

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
            // What others change of it is seen when it is looked for again, and the connection never dies for good.
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

/// The kinds of actions that there are in a run, of so many, a bit for each. Most runs are about some alone: what is drawn rarely
/// would else be in no one's way.
pub(super) fn kinds(draw: &mut Draw, of: u64) -> u64 {
    (0..3).map(|_| 1 << draw.below(of)).sum::<u64>() | draw.below(1 << of)
}

/// What a few threads do, that share so many actions; `thread` draws what one of them does, so many.
pub(super) fn threads(
    draw: &mut Draw,
    actions: u64,
    mut thread: impl FnMut(&mut Draw, u64) -> Vec<Action>,
) -> Vec<Vec<Action>> {
    let count = 1 + draw.below(4);
    (0..count).map(|_| thread(draw, 1 + actions / count)).collect()
}

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

fn server(draw: &mut Draw, bytes: u64, is_quiet: bool, changes_files: bool) -> SimulatedServer {
    let (repeat_ms, timeouts) = match is_quiet {
        // Nothing takes so long that it were repeated.
        true => (draw.one_of(&[1_000, 5_000]), draw.one_of(&[10, 12])),
        false => (draw.one_of(&[10, 30, 100, 300, 1_000]), draw.one_of(&[1, 2, 5])),
    };
    let read_bytes_max = match draw.below(4) {
        // Blocks of several changes would else be in one page.
        0 if changes_files => 512,
        0 => 300 + draw.below(5_000),
        _ => 1 << (12 + draw.below(9)),
    };
    // As many READs as are made in a moment, also where each is answered late.
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
        // Each costs a time-out, in which all who wait look after it again and again.
        server.silent *= 4;
        server.hangs *= 20;
    }
    server
}

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
