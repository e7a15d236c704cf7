//! Failures that runs have found in the servers of mappings and regions. The doc comment of a
//! scenario describes the failure before the repair. Most actions have a first page and a number of
//! pages: see [`MappingTouch`]. `Write` continues with the part of each page that it writes, of
//! eight parts from 0 on; a mapping it only reads. `ReadAt` has an offset and a number of bytes.
//! Numbers that a comment does not explain are those that the shortening left.
//!
//! A *server* is the thread that serves the faults of a memory. The touch of a *poisoned* page ends
//! in a bus error. A *window* is a range of pages; the kernel's own mapping of the file serves a
//! *delegated* window, until the server takes it back. To *load* pages is to bring them into memory
//! and wait for them (`Load`). `DropByMadvise` drops pages without the knowledge of the server.
//! `Hold` lets a system call use a page for a time, which *pins* the page.

use super::super::memory::Kernel;
use super::super::scenario::{Action, MappingTouch, Paged};
use super::{Faults, Scenario, Settings, settings_without_faults};

use MappingTouch::{DropByMadvise, Hold, Load, Lock, Read, ReadAt, ReadDown, WillNeed, Write};

/// Returns all scenarios of mappings and regions.
pub(super) fn regressions() -> Vec<Scenario> {
    vec![
        transfer_that_stops_half_way(),
        no_memory_for_a_page(),
        eviction_of_a_dropped_page(),
        copy_of_a_dropped_page(),
        dropped_bad_page(),
        poisoned_page_read_later_for_another_thread(),
        dropped_page_during_a_slow_load(),
        failed_dropped_page_during_a_load(),
        dropped_page_before_its_write(),
        pinned_and_dropped_page_before_its_write(),
        pages_locked_while_they_are_moved_out(),
        pages_that_the_kernel_swapped_out(),
        windows_that_cannot_be_taken_back(),
        window_delegated_during_transfers(),
        window_without_a_take_back_thread(),
    ]
}

/// Settings of a region of `pages` pages with this swap-in policy and amount of memory.
fn region_settings(pages: u64, swapin: &'static str, memory_pages: u64) -> Settings {
    Settings {
        memory_pages,
        paged: Some(Paged::Region(pages, swapin)),
        ..settings_without_faults()
    }
}

/// Settings of a mapping with this readahead policy and amount of memory.
fn mapping_settings(readahead: &'static str, memory_pages: u64) -> Settings {
    Settings { memory_pages, readahead, paged: Some(Paged::Mapping), ..settings_without_faults() }
}

/// Settings of a mapping with delegated windows: the kernel's largest page and its readahead, and
/// the memory of the mapping, all in pages. The system has less free memory than the file has
/// bytes, and none of the file's pages in its cache.
fn settings_with_delegation(large_pages: u64, ahead_pages: u64, memory_pages: u64) -> Settings {
    let kernel = Kernel {
        large_folio_pages: large_pages,
        ahead_pages,
        is_memory_short: true,
        cached_one_in: 0,
    };
    Settings {
        paged: Some(Paged::MappingWithDelegation(kernel)),
        switch_one_in: 2,
        ..mapping_settings("adaptive", memory_pages)
    }
}

/// Scenario with seed 1 and a file of `bytes` bytes, in which each thread performs its list of
/// actions. The file of a region is its storage, and has at least as many pages as the region.
fn paged_scenario(
    settings: Settings,
    bytes: u64,
    faults: Faults,
    threads: Vec<Vec<MappingTouch>>,
) -> Scenario {
    let actions = |touches: Vec<MappingTouch>| touches.into_iter().map(Action::Touch).collect();
    let threads = threads.into_iter().map(actions).collect();
    Scenario { seed: 1, settings, files: vec![bytes], faults, server: None, threads }
}

/// By the fault `short_one_in`, a transfer of the `Read` stopped early. Its rest was queued and not
/// submitted, and the server slept: the faulting thread waited forever.
fn transfer_that_stops_half_way() -> Scenario {
    let faults = Faults { short_one_in: 2, ..Faults::default() };
    paged_scenario(mapping_settings("none", 64), 285_720, faults, vec![vec![Read(18, 59)]])
}

/// By the fault `out_of_memory_one_in`, no memory was free for a page of the region that `Write`
/// touched, which ended the process.
fn no_memory_for_a_page() -> Scenario {
    let faults = Faults { out_of_memory_one_in: 10, ..Faults::default() };
    let pages = 70;
    let touches = vec![Write(0, pages, 4), Read(0, pages)];
    paged_scenario(region_settings(pages, "none", 64), pages << 12, faults, vec![touches])
}

/// The server evicted a page to make space for the last `Write`s. The program had dropped it by
/// `DropByMadvise`, so that it could not be moved, which ended the process.
fn eviction_of_a_dropped_page() -> Scenario {
    let touches = vec![Write(16, 64, 6), DropByMadvise(16, 54), Write(0, 16, 0), Write(5, 65, 0)];
    let settings = region_settings(70, "cluster", 64);
    // The file has one page more than the region, as the shortening left it.
    paged_scenario(settings, 71 << 12, Faults::default(), vec![touches])
}

/// The server touched the page itself to copy it for `ReadAt`. The program had dropped it, after
/// the `Hold` had brought it in, and the server waited for itself.
fn copy_of_a_dropped_page() -> Scenario {
    let hold = Hold { page: 2, writes_page: false, use_us: 16_768 };
    let touches = vec![hold, DropByMadvise(2, 1), ReadAt(11_636, 6_000)];
    paged_scenario(mapping_settings("none", 64), 28_673, Faults::default(), vec![touches])
}

/// The first `Read` poisons the bad pages 4 and 6, which `DropByMadvise` makes absent again. The
/// server treated them as still poisoned: the touch of the last `Read` failed and was repeated
/// without end.
fn dropped_bad_page() -> Scenario {
    let faults = Faults { bad_pages: vec![(0, 4), (0, 6)], ..Faults::default() };
    let touches = vec![Read(3, 62), DropByMadvise(4, 2), Read(4, 3)];
    paged_scenario(mapping_settings("adaptive", 64), 32_768, faults, vec![touches])
}

/// By `error_one_in` the read of a page failed for one thread, and the page was poisoned. It was
/// then read successfully for another thread and mapped over its poison, which ended the process.
fn poisoned_page_read_later_for_another_thread() -> Scenario {
    let faults = Faults { error_one_in: 2, ..Faults::default() };
    let touches = || vec![Read(0, 8), Read(0, 8), Read(0, 8)];
    let settings = Settings { switch_one_in: 2, ..mapping_settings("none", 80) };
    paged_scenario(settings, 32_768, faults, vec![touches(), touches(), touches(), touches()])
}

/// The second thread drops pages by `DropByMadvise` while the `Load` of the first thread, of the
/// pages 71 to 157, brings them in. Its next `Read` touches them. The touch of a dropped page was
/// repeated until the load was over, which takes seconds by `delay_one_in`.
fn dropped_page_during_a_slow_load() -> Scenario {
    let faults = Faults { delay_one_in: 10, ..Faults::default() };
    let thread_1 = vec![DropByMadvise(7, 8), Load(71, 87)];
    let thread_2 =
        vec![Read(125, 35), Load(44, 4), Load(25, 46), DropByMadvise(123, 8), Read(123, 78)];
    let settings = Settings { switch_one_in: 4, ..mapping_settings("ondemand", 80) };
    paged_scenario(settings, 528_385, faults, vec![thread_1, thread_2])
}

/// A page that the program had dropped was touched by `Lock`, while `ReadAt` of the other thread
/// loaded it. The touch failed by `error_one_in` and poisoned the page. The load, which had the
/// page pinned, read it successfully and found poison in its place.
fn failed_dropped_page_during_a_load() -> Scenario {
    let faults = Faults { error_one_in: 5, ..Faults::default() };
    let thread_1 = vec![Read(6, 44), ReadAt(218_925, 57_000)];
    let lock = Lock { first: 36, count: 32, is_locked: true };
    let thread_2 = vec![Read(28, 30), DropByMadvise(48, 8), lock];
    let settings = Settings { switch_one_in: 64, ..mapping_settings("none", 64) };
    paged_scenario(settings, 282_625, faults, vec![thread_1, thread_2])
}

/// The program dropped a written page by `DropByMadvise` before the server wrote it out to make
/// space for the pages of `Load`. The kernel would have waited for the page in the server's own
/// call, and only the server serves the page.
fn dropped_page_before_its_write() -> Scenario {
    let thread_1 = vec![Load(197, 91), DropByMadvise(190, 8), DropByMadvise(167, 8)];
    let thread_2 = vec![Write(167, 18, 7), Write(99, 34, 6), Load(0, 75), DropByMadvise(194, 8)];
    let settings = Settings { switch_one_in: 2, ..region_settings(200, "adaptive", 64) };
    paged_scenario(settings, 819_200, Faults::default(), vec![thread_1.clone(), thread_2, thread_1])
}

/// A page that a system call used (`Hold`) could not be moved, so that the server wrote it from the
/// program's address. After the program dropped it too, by `DropByMadvise`, the kernel would have
/// waited for it in the server's own call.
fn pinned_and_dropped_page_before_its_write() -> Scenario {
    let faults = Faults { bad_pages: vec![(0, 48), (0, 3)], ..Faults::default() };
    let thread_1 = vec![
        Read(0, 7),
        Write(49, 69, 7),
        Lock { first: 25, count: 38, is_locked: true },
        Hold { page: 22, writes_page: true, use_us: 2645 },
    ];
    let thread_2 = vec![
        Write(29, 2, 0),
        Hold { page: 50, writes_page: true, use_us: 15_510 },
        Write(4, 19, 1),
        Hold { page: 67, writes_page: false, use_us: 9_108 },
        Lock { first: 28, count: 8, is_locked: true },
    ];
    let thread_3 = vec![
        Load(6, 9),
        Hold { page: 31, writes_page: false, use_us: 8_017 },
        Hold { page: 27, writes_page: true, use_us: 18_042 },
        DropByMadvise(24, 8),
        Write(20, 5, 7),
    ];
    let settings =
        Settings { eviction: "lru", switch_one_in: 2, ..region_settings(70, "hits", 64) };
    let scenario = paged_scenario(settings, 1_515_520, faults, vec![thread_1, thread_2, thread_3]);
    Scenario { seed: 70_007_794, ..scenario }
}

/// The server moves pages out of the region to write them, while `Lock` locks them in memory. By
/// `short_call_one_in` a move stopped early. It was started again, and a page that was already
/// moved was treated as lost.
fn pages_locked_while_they_are_moved_out() -> Scenario {
    let faults = Faults { short_call_one_in: 3, ..Faults::default() };
    let thread_1 = vec![Load(61, 55), Write(29, 11, 2), Read(42, 3)];
    let thread_2 =
        vec![Read(99, 115), Load(60, 95), Lock { first: 55, count: 51, is_locked: true }];
    paged_scenario(region_settings(130, "hits", 80), 1_761_280, faults, vec![thread_1, thread_2])
}

/// By `swapped_out_one_in` the kernel reports present pages as absent. The server treated them as
/// dropped by the program, and read them again for `ReadAt` while they were present, which ended
/// the process.
fn pages_that_the_kernel_swapped_out() -> Scenario {
    let faults = Faults { swapped_out_one_in: 1, ..Faults::default() };
    let touches = vec![Write(22, 36, 6), ReadAt(146_830, 19_000)];
    paged_scenario(mapping_settings("ondemand", 128), 282_625, faults, vec![touches])
}

/// By `mapping_limit_one_in` the server could not take windows back. It treated them as pages of
/// its own, and mapping pages there for the `Read`s ended the process.
fn windows_that_cannot_be_taken_back() -> Scenario {
    let faults = Faults { mapping_limit_one_in: 2, ..Faults::default() };
    let touches = vec![Read(73, 20), Read(51, 16), Read(68, 13)];
    paged_scenario(settings_with_delegation(4, 32, 89), 1_085_439, faults, vec![touches])
}

/// A window takes memory from the machine, the engine that reads pages. During transfers, such as
/// the ones of the `WillNeed`, the machine could not give up its memory at once, and the window was
/// delegated anyway. Together they exceeded the budget.
fn window_delegated_during_transfers() -> Scenario {
    let settings = Settings { switch_one_in: 64, ..settings_with_delegation(8, 48, 249) };
    let threads = vec![vec![WillNeed(608, 468)], vec![ReadDown(390, 29)]];
    paged_scenario(settings, 3_342_336, Faults::default(), threads)
}

/// By `refuse_thread_one_in` the thread that takes windows back could not be started. The window
/// stayed with the kernel permanently, in addition to the budgeted ones.
fn window_without_a_take_back_thread() -> Scenario {
    let settings = Settings {
        switch_one_in: 64,
        refuse_thread_one_in: 8,
        ..settings_with_delegation(8, 16, 89)
    };
    let touches = vec![Load(86, 101), Read(12, 5), Read(17, 44)];
    paged_scenario(settings, 512_001, Faults::default(), vec![touches])
}
