//! Random scenarios of memory with served faults. All ranges and rates of the draws are chosen:
//! memory is smaller than most files, so that pages are evicted.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::super::memory::Kernel;
use super::super::scenario::{
    Action, Draw, MappingTouch, Paged, Scenario, Settings, draw_faults, draw_kinds, draw_threads,
};
use super::{FILE, PAGE_PARTS};
use crate::target::Coherence;

/// Least memory of regions and mappings in pages.
const MEMORY_PAGES_MIN: u64 = 64;
/// Number of kinds of actions on memory.
const ACTION_KINDS: u64 = 16;
/// Largest page of a file in Linux: 2 MiB.
const LINUX_LARGE_FOLIO_PAGES: u64 = 512;

impl Scenario {
    /// Draws a scenario of memory with served faults and about `actions` actions in all. It has a
    /// region in one case of two, and otherwise a mapping. Values that are listed twice are drawn
    /// twice as often.
    pub fn paged(seed: u64, actions: u64) -> Scenario {
        // The constant gives other numbers than other kinds of scenarios draw from the same seed.
        let mut draw = Draw(splitmix::mixed(seed ^ 0x9a6e_d000));
        let memory_pages = MEMORY_PAGES_MIN + draw.pick(&[0, 0, 1, 16, 64]);
        let pages = draw.pick(&[8, 66, 70, 90, 130, 200, 300]);
        let is_region = draw.number_below(2) == 0;
        let bytes = match is_region {
            // The file has more pages than the region: many spare slots for pages, or almost none.
            true => (pages + draw.pick(&[0, 1, 8, 300])) * PAGE_BYTES,
            false => pages * PAGE_BYTES - draw.pick(&[0, 1, 1_000, 4_095]),
        };
        let swapin = draw.pick(&["adaptive", "adaptive", "cluster", "hits", "vma", "none"]);
        let is_quiet = draw.number_below(4) == 0;
        let mut faults = if is_quiet {
            Default::default()
        } else {
            draw_faults(&mut draw, &[pages * PAGE_BYTES])
        };
        // The checks of memory do not permit these failures.
        (faults.dies_after, faults.unexpected_error_one_in) = (0, 0);
        faults.short_call_one_in = draw.fault_rate(&[3, 20, 100]);
        faults.out_of_memory_one_in = draw.fault_rate(&[10, 100]);
        // Drawn from a separate state, so that the other values of each seed do not change.
        let mut swapped_out_draw = Draw(splitmix::mixed(seed ^ 0x5a44_0000));
        faults.swapped_out_one_in = swapped_out_draw.fault_rate(&[1, 2, 10]);
        // The number of held pages, the scheduler, the depth, inline execution and the coherence
        // have no effect on mappings and regions.
        let settings = Settings {
            memory_pages,
            held_pages: 1,
            readahead: draw.pick(&["adaptive", "adaptive", "ondemand", "window", "runs", "none"]),
            scheduler: "adaptive",
            eviction: draw.pick(&["two-lists", "adaptive", "lru", "arc", "lirs"]),
            depth: 1,
            can_execute_inline: false,
            coherence: Coherence::WhenOpened,
            switch_one_in: draw.pick(&[2, 4, 16, 64]),
            freeze_one_in: draw.fault_rate(&[2_000, 10_000]),
            refuse_thread_one_in: draw.fault_rate(&[8, 1]),
            paged: Some(if is_region { Paged::Region(pages, swapin) } else { Paged::Mapping }),
        };
        // Reads, the kind 0, are always included.
        let kinds = draw_kinds(&mut draw, ACTION_KINDS) | 1;
        let changes_file = !is_region && draw.number_below(2) == 0;
        let threads = draw_threads(&mut draw, actions, |draw, count| {
            (0..count).map(|_| draw_action(draw, pages, kinds, changes_file)).collect()
        });
        Scenario { seed, settings, files: vec![bytes], faults, server: None, threads }
    }

    /// Draws a scenario of a mapping with windows delegated to the kernel, and about `actions`
    /// actions in all.
    pub fn with_delegation(seed: u64, actions: u64) -> Scenario {
        // The constant gives other numbers than `paged` draws from the same seed.
        let mut draw = Draw(splitmix::mixed(seed ^ 0x1e47_0000));
        let kernel = Kernel {
            // With Linux's large pages, a run has some 100,000 steps.
            large_folio_pages: match draw.number_below(64) {
                0 => LINUX_LARGE_FOLIO_PAGES,
                _ => draw.pick(&[1, 2, 4, 4, 8, 8, 16]),
            },
            ahead_pages: draw.pick(&[1, 4, 8, 16, 32, 48]),
            is_memory_short: draw.number_below(2) == 0,
            cached_one_in: draw.fault_rate(&[2, 20]),
        };
        let Kernel { large_folio_pages: large_pages, ahead_pages, .. } = kernel;
        // Four windows and the readahead may take two thirds of the memory. With less memory, no
        // window is delegated.
        let memory_pages_min = (4 * large_pages + ahead_pages) * 3 / 2 + 1;
        let memory_pages = match draw.number_below(16) {
            0 => MEMORY_PAGES_MIN,
            _ => memory_pages_min.max(MEMORY_PAGES_MIN) + draw.pick(&[0, 1, 16, 16 * large_pages]),
        };
        let pages = memory_pages + draw.number_below(3 * memory_pages);
        let bytes = pages * PAGE_BYTES - draw.pick(&[0, 1, 1_000, 4_095]);
        // Only the faults and settings are used, so it needs no action.
        let no_actions = 0;
        let paged = Scenario::paged(draw.number_below(u64::MAX), no_actions);
        let mut faults = paged.faults;
        // The numbers were drawn for a file of another size.
        faults.bad_pages.iter_mut().for_each(|(_, page)| *page = draw.number_below(pages));
        faults.mapping_limit_one_in = draw.fault_rate(&[2, 10, 100]);
        if large_pages == LINUX_LARGE_FOLIO_PAGES {
            // With thousands of pages that are seconds late, a run would take hours.
            faults.delay_one_in = 0;
        }
        let settings = Settings {
            memory_pages,
            readahead: "adaptive",
            paged: Some(Paged::MappingWithDelegation(kernel)),
            ..paged.settings
        };
        // Reads, the kind 0, are always included.
        let kinds = draw_kinds(&mut draw, ACTION_KINDS) | 1;
        let changes_file = draw.number_below(2) == 0;
        let threads = draw_threads(&mut draw, actions, |draw, count| {
            let mut run = DrawnRun { next_page: draw.number_below(pages), is_descending: false };
            let draw_next = |_| match draw.number_below(50) {
                0 if changes_file => {
                    Action::Replace(FILE, 1 + draw.number_below(pages * PAGE_BYTES))
                }
                0..20 => draw_action(draw, pages, kinds, changes_file),
                _ => Action::Touch(run.next_part(draw, pages, large_pages)),
            };
            (0..count).map(draw_next).collect()
        });
        Scenario { seed, settings, files: vec![bytes], faults, server: None, threads }
    }
}

/// A run of pages that a thread reads step by step.
struct DrawnRun {
    /// Page at which the next part begins, or ends for a descending run.
    next_page: u64,
    /// True if the thread reads from higher pages to lower ones.
    is_descending: bool,
}

impl DrawnRun {
    /// Draws the next part of the run in a memory of `pages` pages, and moves the run on. At an end
    /// of the memory the run continues from the other end. In one case of twelve each, it first
    /// moves to another page, turns around, or skips some pages. `large_pages` is the kernel's
    /// largest page of a file, in pages.
    fn next_part(&mut self, draw: &mut Draw, pages: u64, large_pages: u64) -> MappingTouch {
        match draw.number_below(12) {
            0 => self.next_page = draw.number_below(pages),
            1 => self.is_descending = !self.is_descending,
            // Skips some pages.
            2 => self.next_page += draw.number_below(1 + large_pages / 2),
            _ => {}
        }
        let count = 1 + draw.number_below(6 * large_pages);
        if self.is_descending {
            let first = self.next_page.saturating_sub(count);
            let count = self.next_page - first;
            self.next_page = if first == 0 { pages } else { first };
            return MappingTouch::ReadDown(first, count);
        }
        let first = if self.next_page >= pages { 0 } else { self.next_page };
        self.next_page = first + count;
        MappingTouch::Read(first, count)
    }
}

/// Draws one action on a memory of `pages` pages, of the kinds whose bits are set in `kinds`. If
/// `changes_file` is true, the action may also change the file of a mapping.
fn draw_action(draw: &mut Draw, pages: u64, kinds: u64, changes_file: bool) -> Action {
    loop {
        let kind = draw.number_below(ACTION_KINDS);
        let first = draw.number_below(pages);
        let count = match draw.number_below(4) {
            0 => 1,
            1 => 1 + draw.number_below(8),
            2 => 1 + draw.number_below(80),
            _ => 1 + draw.number_below(pages),
        };
        let (part, duration_us) = (draw.number_below(PAGE_PARTS as u64), draw.number_below(20_000));
        if kinds & 1 << kind == 0 {
            continue;
        }
        // The number `part` below 8 also serves as a random choice with a probability in eighths.
        return Action::Touch(match kind {
            0..=2 => MappingTouch::Read(first, count),
            3..=5 => MappingTouch::Write(first, count, part),
            6 => MappingTouch::Load(first, count),
            7 => MappingTouch::WillNeed(first, count),
            8 => MappingTouch::Discard(first, count),
            9 => MappingTouch::ReadAt(first * PAGE_BYTES + duration_us % PAGE_BYTES, count * 1_000),
            10 => MappingTouch::Advise(draw.number_below(5) as u8),
            11 => MappingTouch::Hold { page: first, writes_page: part > 3, use_us: duration_us },
            12 => MappingTouch::Lock { first, count, is_locked: part > 2 },
            13 => MappingTouch::DropByMadvise(first, count.min(8)),
            14 => MappingTouch::CheckCounters,
            _ if changes_file => match part {
                0..3 => return Action::Resize(FILE, 1 + draw.number_below(pages * PAGE_BYTES)),
                _ => return Action::Write(FILE, first, count),
            },
            _ => return Action::Pause(duration_us),
        });
    }
}
