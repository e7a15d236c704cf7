//! Builds the memory of a scenario: a region, or a mapping of the file.

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;

use readpath_core::unit::PAGE_BYTES;

use super::{FILE, FILE_PATH, MemoryObject, Paged, Scenario, World};
use crate::pager::{Mapping, PagerError, Region, RegionBuilder};

/// Builds the memory with its storage. Returns its length in bytes too.
///
/// # Errors
/// The simulated system refuses a thread or memory.
pub(super) fn build_memory(
    world: &World,
    scenario: &Scenario,
    paged: &Paged,
) -> Result<(MemoryObject, u64), PagerError> {
    let settings = &scenario.settings;
    let memory_bytes = settings.memory_pages * PAGE_BYTES;
    match *paged {
        Paged::Region(pages, swapin) => {
            // The file keeps the bytes that the region writes to it.
            world.disk.borrow_mut().make_store(FILE);
            world.memory.borrow_mut().pages_max = settings.memory_pages;
            let builder =
                Region::builder().memory(memory_bytes).swapin(swapin).eviction(settings.eviction);
            let region = open_region(builder, pages * PAGE_BYTES);
            region.map(|region| (MemoryObject::Region(RefCell::new(region)), pages * PAGE_BYTES))
        }
        Paged::Mapping | Paged::MappingWithDelegation(_) => {
            let bytes = scenario.files[FILE];
            let pages = bytes.div_ceil(PAGE_BYTES);
            // A mapping never has more pages in memory than its file has.
            world.memory.borrow_mut().pages_max = settings.memory_pages.min(pages);
            if let Paged::MappingWithDelegation(kernel) = paged {
                // Page 0 stays uncached: the kernel alone serves a file that is completely cached.
                let cached =
                    (1..pages).filter(|_| world.happens_one_in(kernel.cached_one_in)).collect();
                world.memory.borrow_mut().set_kernel(kernel, cached);
            }
            let builder = Mapping::builder()
                .memory(memory_bytes)
                .readahead(settings.readahead)
                .kernel_cache(matches!(paged, Paged::MappingWithDelegation(_)));
            // SAFETY: the checks expect that other programs change the bytes.
            let mapping = unsafe { builder.open(FILE_PATH) };
            mapping.map(|mapping| (MemoryObject::Mapping(mapping), bytes))
        }
    }
}

/// Opens a region of `bytes` bytes over the first file of the running simulation.
///
/// # Errors
/// The simulated system refuses a thread or memory, or the file is too small.
pub fn open_region(builder: RegionBuilder, bytes: u64) -> Result<Region, PagerError> {
    // The region only keeps this file open: its storage is the simulated disk.
    let unused_file = File::open("/dev/null").expect("there is always nothing to be opened");
    builder.open_storage(bytes, Path::new(FILE_PATH), unused_file)
}
