//! Transfers allocate no memory, counted by the test's own allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use readpath::{BackendKind, RawFile};
use support::*;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // The counter is gone while a thread exits.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: passes all calls to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(address, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    run();
    COUNT.get() - before
}

#[test]
fn raw_transfers_allocate_no_memory() {
    for backend in BACKENDS {
        none_allocates_over(backend);
    }
}

fn none_allocates_over(backend: BackendKind) {
    let file = TempFile::new(1 << 20);
    let builder = RawFile::builder().write(true).chunk_bytes(16 << 10).depth(4).backend(backend);
    let mut raw = builder.open(&file.path).unwrap();
    let mut memory = vec![0; 500_000];
    // The counter works.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    for round in 0..3 {
        // Whole blocks, edges, aligned and unaligned memory, the end of the file.
        for (offset, start) in [(0, 0), (700, 0), (8_192, 3), (1_000_000, 5)] {
            let read = allocations(|| {
                raw.read_at(&mut memory[start..], offset).unwrap();
            });
            let end = if offset == 1_000_000 { 40_000 } else { 500_000 };
            let written = allocations(|| {
                raw.write_all_at(&memory[start..end], offset).unwrap();
            });
            assert_eq!((read, written), (0, 0), "{backend:?}, round {round}, from {offset}");
        }
        assert_eq!(allocations(|| raw.sync_data().unwrap()), 0);
    }
    // A reader allocates its list of chunks, once.
    let mut chunks = 0;
    let counted = allocations(|| {
        let mut reader = raw.reader(700, 900_000).unwrap();
        while reader.next_chunk().unwrap().is_some() {
            chunks += 1;
        }
    });
    assert_eq!((counted, chunks), (1, 55), "{backend:?}");
}
