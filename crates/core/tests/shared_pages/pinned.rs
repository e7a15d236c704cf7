//! Memory suffices for every begun read, for any pages pinned by readers outside the machine within
//! their limit. The machine is compared with a model of the pins.

use std::sync::{Arc, Mutex};

use proptest::collection::vec;
use proptest::prelude::*;
use readpath_core::cache::Mark;
use readpath_core::eviction;
use readpath_core::machine::{Config, ReadAccess};
use readpath_core::policy::Spec;
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::sharer::{FrameSharer, SharerRecord};
use crate::common::{FileEnvironment, config};

const FILE_PAGES: u64 = 96;
const POLICIES: [&str; 4] = ["none", "ondemand", "window", "adaptive"];

#[derive(Clone, Debug)]
enum SharingEvent {
    Read {
        page: u64,
        pages: u64,
    },
    Prefetch {
        page: u64,
        pages: u64,
    },
    Invalidate {
        page: u64,
        pages: u64,
    },
    /// A reader outside the machine uses the page, and pins it if it may.
    Use {
        page: u64,
        times: u32,
        holds: bool,
    },
    LetGo {
        nth: usize,
    },
    Finish {
        nth: usize,
    },
    Release,
    Hop(bool),
}

fn event() -> impl Strategy<Value = SharingEvent> {
    let place = || (0..FILE_PAGES, 1..6u64);
    prop_oneof![
        4 => place().prop_map(|(page, pages)| SharingEvent::Read { page, pages }),
        2 => place().prop_map(|(page, pages)| SharingEvent::Prefetch { page, pages }),
        1 => place().prop_map(|(page, pages)| SharingEvent::Invalidate { page, pages }),
        8 => (0..FILE_PAGES, 1..3u32, any::<bool>())
            .prop_map(|(page, times, holds)| SharingEvent::Use { page, times, holds }),
        2 => (0..64usize).prop_map(|nth| SharingEvent::LetGo { nth }),
        4 => (0..4usize).prop_map(|nth| SharingEvent::Finish { nth }),
        3 => Just(SharingEvent::Release),
        1 => any::<bool>().prop_map(SharingEvent::Hop),
    ]
}

/// A machine with a sharer, and the model of its pins.
struct PinnedRun {
    world: FileEnvironment,
    books: Arc<Mutex<SharerRecord>>,
    held_max: usize,
    tags: u64,
}

impl PinnedRun {
    fn new(policy: &str, memory_pages: u64, held_max: u64) -> PinnedRun {
        PinnedRun::under("adaptive", policy, memory_pages, held_max)
    }

    fn under(eviction: &str, policy: &str, memory_pages: u64, held_max: u64) -> PinnedRun {
        let config = Config {
            pinned_bytes_max: held_max * PAGE_BYTES,
            eviction: Spec::plain(eviction),
            ..config(policy, "noop", memory_pages)
        };
        let mut world = FileEnvironment::new(config);
        let books = Arc::<Mutex<SharerRecord>>::default();
        world.path.share_through(Box::new(FrameSharer(Arc::clone(&books))));
        PinnedRun { world, books, held_max: held_max as usize, tags: 0 }
    }

    fn take(&mut self, handle: readpath_core::machine::HandleId, event: &SharingEvent) {
        let (world, books) = (&mut self.world, &self.books);
        match *event {
            SharingEvent::Read { page, pages } => {
                self.tags += 1;
                let (offset, bytes) = (page * PAGE_BYTES, pages * PAGE_BYTES);
                let read = world.read(ReadAccess::Buffered, handle, 0, offset, bytes, self.tags);
                let needed = pages.min(FILE_PAGES - page);
                assert_eq!(read.is_ok(), needed * PAGE_BYTES <= world.path.read_bytes_max());
            }
            SharingEvent::Prefetch { page, pages } => {
                let range = PageRange::new(page, pages);
                world.path.advise(world.now, handle, ProcessId(0), Advice::WillNeed, range);
            }
            SharingEvent::Invalidate { page, pages } => {
                world.path.invalidate(handle, PageRange::new(page, pages));
            }
            SharingEvent::Use { page, times, holds } => {
                let mut books = books.lock().unwrap();
                let is_it = |shared: &(u64, Mark)| *shared == (page, Mark::Clear);
                let frame =
                    books.shared.iter().find(|(_, shared)| is_it(shared)).map(|(&frame, _)| frame);
                if let Some(frame) = frame {
                    *books.used.entry(frame).or_default() += times;
                    if holds && books.held.len() < self.held_max {
                        books.held.insert(frame);
                    }
                }
            }
            SharingEvent::LetGo { nth } => {
                let mut books = books.lock().unwrap();
                let frame = books.held.iter().nth(nth).copied();
                frame.into_iter().for_each(|frame| books.let_go(frame));
            }
            SharingEvent::Finish { nth } => {
                world.issue();
                if nth < world.in_device.len() {
                    world.finish(nth);
                }
            }
            SharingEvent::Release => drop(world.collect()),
            SharingEvent::Hop(hops) => books.lock().unwrap().hops = hops,
        }
        world.path.take_returned(world.now);
        self.check();
    }

    /// Pinned frames keep their content, and no read waits for pins.
    fn check(&self) {
        let books = self.books.lock().unwrap();
        assert!(!books.is_closed && books.held.len() <= self.held_max);
        for frame in &books.held {
            if let Some(&(page, _)) = books.shared.get(frame) {
                assert_eq!(self.world.content(*frame), Some(page));
            }
        }
        assert_eq!(self.world.path.next_wake(), None, "no read waits for a pinned page");
    }
}

proptest! {
    #[test]
    fn every_read_finds_its_frames_with_any_pins(
        eviction in prop::sample::select(eviction::POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>()),
        policy in prop::sample::select(&POLICIES[..]),
        memory_pages in 2..40u64,
        held_share in 1..4u64,
        events in vec(event(), 1..300),
    ) {
        let held_max = (memory_pages * held_share / 4).clamp(1, memory_pages - 1);
        let mut run = PinnedRun::under(eviction, policy, memory_pages, held_max);
        let handle = run.world.open(FILE_PAGES * PAGE_BYTES, 0);
        events.iter().for_each(|event| run.take(handle, event));
        // The device and the copies end eventually, but pinned pages are never returned.
        run.world.run();
        run.check();
    }
}

/// Half of the memory is pinned, and the pins move ahead of the scan.
#[test]
fn moving_pins_do_not_hide_frames_from_eviction() {
    let mut run = PinnedRun::new("none", 16, 8);
    let handle = run.world.open(FILE_PAGES * PAGE_BYTES, 0);
    for round in 0..FILE_PAGES / 8 {
        run.take(handle, &SharingEvent::Read { page: round * 8, pages: 8 });
        run.world.run();
        for page in 0..FILE_PAGES {
            run.take(handle, &SharingEvent::Use { page, times: 2, holds: true });
        }
        run.take(handle, &SharingEvent::Hop(true));
    }
    assert_eq!(run.books.lock().unwrap().held.len(), 8);
}

/// Every frame is being copied from. The read waits, pins no page meanwhile, and goes on after the
/// end of a copy, which is not reported.
#[test]
fn read_waits_for_frames_being_copied_and_then_completes() {
    for policy in POLICIES {
        let mut run = PinnedRun::new(policy, 8, 1);
        let handle = run.world.open(FILE_PAGES * PAGE_BYTES, 0);
        for page in [0, 20, 40, 60] {
            run.take(handle, &SharingEvent::Read { page, pages: 2 });
            run.world.run();
        }
        run.books.lock().unwrap().copied = (0..8).collect();
        let issued = run.world.issued.len();
        let read = run.world.read(ReadAccess::Buffered, handle, 0, 77 * PAGE_BYTES, PAGE_BYTES, 99);
        read.unwrap();
        run.world.issue();
        assert_eq!((run.world.collect(), run.world.issued.len()), (Vec::new(), issued), "{policy}");
        // Another try, without a change.
        run.world.now = run.world.path.next_wake().expect("it looks again by itself");
        run.world.issue();
        assert_eq!(run.world.issued.len(), issued, "{policy}");
        run.books.lock().unwrap().copied.clear();
        let done = run.world.run();
        assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [99], "{policy}");
    }
}
