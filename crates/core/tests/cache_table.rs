//! The table of cached pages, compared with an ordered map.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use readpath_core::cache::{Cache, FileId, FrameId, Mark};
use readpath_core::eviction::TwoLists;
use readpath_core::readahead::Folio;
use readpath_core::unit::PageRange;

const FRAMES: u32 = 24;
const FILES: u32 = 3;
/// First pages of groups: adjacent, in the next 2 MiB, at 4 GiB, at 512 TiB, and near the largest
/// offset.
const BASES: [u64; 5] = [0, 500, 1 << 20, 1 << 37, (1 << 52) - 64];

#[derive(Clone, Debug)]
enum CacheEvent {
    Add { file: u32, page: u64 },
    Fill { nth: usize },
    Fail { nth: usize },
    Invalidate { file: u32, range: PageRange },
    Drop { file: u32, range: PageRange },
}

fn page() -> impl Strategy<Value = u64> {
    (prop::sample::select(&BASES[..]), 0..40u64).prop_map(|(base, at)| base + at)
}

fn range() -> impl Strategy<Value = PageRange> {
    let short = (page(), 0..60u64).prop_map(|(first, pages)| PageRange::new(first, pages));
    let long = (page(), page())
        .prop_map(|(one, other)| PageRange { first: one.min(other), end: one.max(other) });
    prop_oneof![short, long, Just(PageRange { first: 0, end: u64::MAX })]
}

fn event() -> impl Strategy<Value = CacheEvent> {
    let file = || 0..FILES;
    prop_oneof![
        8 => (file(), page()).prop_map(|(file, page)| CacheEvent::Add { file, page }),
        4 => (0..64usize).prop_map(|nth| CacheEvent::Fill { nth }),
        1 => (0..64usize).prop_map(|nth| CacheEvent::Fail { nth }),
        1 => (file(), range()).prop_map(|(file, range)| CacheEvent::Invalidate { file, range }),
        1 => (file(), range()).prop_map(|(file, range)| CacheEvent::Drop { file, range }),
    ]
}

/// A cached page. A page that was invalidated in flight is dropped when it arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CachedPage {
    frame: FrameId,
    is_filled: bool,
    is_stale: bool,
}

/// The reference: all cached pages.
#[derive(Debug, Default)]
struct CacheModel(BTreeMap<(FileId, u64), CachedPage>);

impl CacheModel {
    fn in_flight(&self, nth: usize) -> Option<((FileId, u64), CachedPage)> {
        let mut in_flight = self.0.iter().filter(|(_, entry)| !entry.is_filled);
        in_flight.nth(nth).map(|(&place, &entry)| (place, entry))
    }

    fn pages(&self, file: FileId, range: PageRange) -> Vec<u64> {
        let of_file = self.0.keys().filter(|(of, _)| *of == file).map(|&(_, page)| page);
        of_file.filter(|&page| range.contains(page)).collect()
    }

    fn absent_run(&self, file: FileId, range: PageRange) -> Option<PageRange> {
        let cached = self.pages(file, range);
        let mut first = range.first;
        while cached.contains(&first) {
            first += 1;
        }
        let end = cached.into_iter().find(|&page| page > first).unwrap_or(range.end);
        (first < range.end).then_some(PageRange { first, end })
    }
}

fn take(cache: &mut Cache, model: &mut CacheModel, event: &CacheEvent) {
    match *event {
        CacheEvent::Add { file, page } => {
            let file = FileId(file);
            // No page is evicted: the choice of victims is tested elsewhere.
            if cache.find(file, page).is_none() && cache.free_pages() > 0 {
                let folio = Folio::holding(page, 0);
                let frame = cache.add(file, page, folio, Mark::Clear, false).unwrap();
                let entry = CachedPage { frame, is_filled: false, is_stale: false };
                model.0.insert((file, page), entry);
            }
        }
        CacheEvent::Fill { nth } => {
            if let Some((place, entry)) = model.in_flight(nth) {
                cache.fill(entry.frame);
                model.0.get_mut(&place).unwrap().is_filled = true;
                if entry.is_stale {
                    model.0.remove(&place);
                }
            }
        }
        CacheEvent::Fail { nth } => {
            if let Some((place, entry)) = model.in_flight(nth) {
                cache.fail(entry.frame);
                model.0.remove(&place);
            }
        }
        CacheEvent::Invalidate { file, range } => {
            let file = FileId(file);
            cache.invalidate(file, range);
            for page in model.pages(file, range) {
                let entry = model.0.get_mut(&(file, page)).unwrap();
                entry.is_stale = true;
                if entry.is_filled {
                    model.0.remove(&(file, page));
                }
            }
        }
        CacheEvent::Drop { file, range } => {
            let file = FileId(file);
            cache.drop_unused(file, range);
            model.0.retain(|&(of, page), entry| {
                !(of == file && range.contains(page) && entry.is_filled)
            });
        }
    }
}

proptest! {
    #[test]
    fn the_table_matches_an_ordered_map(
        events in vec((event(), 0..FILES, range()), 1..200),
    ) {
        let mut cache = Cache::new(FRAMES, Box::new(TwoLists));
        (0..FILES).for_each(|file| assert_eq!(cache.add_file(), FileId(file)));
        let mut model = CacheModel::default();
        for (event, file, range) in &events {
            take(&mut cache, &mut model, event);
            let file = FileId(*file);
            prop_assert_eq!(cache.free_pages() as usize, FRAMES as usize - model.0.len());
            prop_assert_eq!(cache.is_empty(file), model.pages(file, ALL).is_empty());
            prop_assert_eq!(cache.absent_run(file, *range), model.absent_run(file, *range));
            for base in BASES {
                for page in base..base + 40 {
                    let entry = model.0.get(&(file, page));
                    prop_assert_eq!(cache.find(file, page), entry.map(|entry| entry.frame));
                }
            }
        }
    }
}

const ALL: PageRange = PageRange { first: 0, end: u64::MAX };
