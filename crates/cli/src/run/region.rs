//! `region:PATH` for loads: the same touches of a [`Region`] on the storage that PATH names.
//!
//! The load's processes are threads here, each with its own part of one region. They share the
//! load's memory like processes under one memory limit. Filling, touching and checking equal the
//! kernel's row. A page's first word identifies the page and its process. A touch reads it, and a
//! writing touch changes the second word.

use std::path::Path;
use std::time::Instant;

use readpath::Region;
use readpath::pager::RegionStats;
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_eval::kernel_swap::memory::{first_word, page_words};
use readpath_eval::usage::CpuTime;
use readpath_sim::load::{LoadRow, MemoryLoad};

use crate::exit::Failure;
use crate::plan::load::LoadRun;
use crate::progress::Interrupt;

/// Size of a page in bytes, for indices.
const PAGE: usize = PAGE_BYTES as usize;
/// Number of touches between two checks of the interrupt, for a small cost per touch. Chosen, not
/// measured.
const TOUCHES_PER_INTERRUPT_CHECK: usize = 4096;

/// Runs the load in a region of the library and returns its row. The region is filled first. Its
/// storage is a scratch file in the folder `path`, or the device at `path`.
pub fn run(
    run: &LoadRun,
    path: &Path,
    swapin: &Spec,
    eviction: &Spec,
    interrupt: &Interrupt,
) -> Result<LoadRow, Failure> {
    let load = &run.load;
    let mut row = LoadRow::new(load, &run.storage);
    row.swapin = Some(swapin.to_string());
    row.engine = Some("userfaultfd".to_owned());
    let options = Region::builder().memory(load.memory_bytes).swapin(&swapin.to_string());
    let options = options.eviction(&eviction.to_string());
    let bytes = load.mapped_bytes();
    let region = match path.is_dir() {
        true => options.in_folder(bytes, path),
        false => options.on_device(bytes, path),
    };
    let mut region = region.map_err(|error| Failure::Run(error.to_string()))?;
    // Fill all pages, then make the touches between two readings of the counters.
    let start = Instant::now();
    run_on_threads(&mut region, load, |process, memory| {
        fill(process, memory);
        Ok(())
    })?;
    row.fill_seconds = Some(start.elapsed().as_secs_f64());
    let (before, cpu_before, start) = (region.stats(), CpuTime::of_process(), Instant::now());
    run_on_threads(&mut region, load, |process, memory| {
        touch_all(run, interrupt, process, memory)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = CpuTime::of_process().since(cpu_before).seconds();
    let after = region.stats();
    // A touch of memory returns no error. `check` returns the first error of all touches.
    region.check().map_err(|error| Failure::usage_of(path.display(), error))?;
    Ok(with_figures(row, load, seconds, cpu_seconds, &before, &after))
}

/// Fills the row with the figures between two readings of the counters.
fn with_figures(
    mut row: LoadRow,
    load: &MemoryLoad,
    seconds: f64,
    cpu_seconds: f64,
    before: &RegionStats,
    after: &RegionStats,
) -> LoadRow {
    row.cpu_seconds = Some(cpu_seconds);
    row.minor_faults = Some(after.faults_minor - before.faults_minor);
    let requests =
        (after.device_reads + after.device_writes) - (before.device_reads + before.device_writes);
    let bytes = (after.device_read_bytes + after.device_write_bytes)
        - (before.device_read_bytes + before.device_write_bytes);
    row.with_touches(load.touches * u64::from(load.processes), seconds)
        .with_swapping(
            Some(after.faults_major - before.faults_major),
            Some(after.swap_in_pages - before.swap_in_pages),
            Some(after.swap_out_pages - before.swap_out_pages),
        )
        .with_device(requests, bytes)
}

/// Runs `body` in one thread per process, each with the memory of that process. Returns after all
/// have ended, with the failure of the first process that has one.
fn run_on_threads(
    region: &mut Region,
    load: &MemoryLoad,
    body: impl Fn(u32, &mut [u8]) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let mapping_bytes = load.mapping_bytes as usize;
    std::thread::scope(|scope| {
        // The region consists of one part of this size for each process.
        let memories = region.as_mut_slice().chunks_exact_mut(mapping_bytes);
        let threads: Vec<_> = (0..)
            .zip(memories)
            .map(|(process, memory)| {
                let body = &body;
                scope.spawn(move || body(process, memory))
            })
            .collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().expect("a thread of a load ends"));
        ended.fold(Ok(()), Result::and)
    })
}

/// Makes the touches of one process and verifies each page's mark. Ends early after a signal, or
/// with an error at the first page that lacks its mark.
fn touch_all(
    run: &LoadRun,
    interrupt: &Interrupt,
    process: u32,
    memory: &mut [u8],
) -> Result<(), Failure> {
    for (touch_index, touch) in run.load.touches_of(process, run.seed).enumerate() {
        if touch_index % TOUCHES_PER_INTERRUPT_CHECK == 0 && interrupt.is_signalled() {
            return Err(Failure::Interrupted);
        }
        let page = touch.page as usize;
        let bytes = &mut memory[page * PAGE..(page + 1) * PAGE];
        if touch.is_write {
            // The mark is the first word, and a write changes the second.
            bytes[8..16].copy_from_slice(&(touch_index as u64).to_ne_bytes());
        }
        let found = u64::from_ne_bytes(bytes[..8].try_into().expect("a word is 8 bytes"));
        let expected = first_word(touch.page, process.into());
        if found != expected {
            return Err(Failure::Run(format!(
                "page {page} holds {found:#x} where {expected:#x} was written: memory was lost"
            )));
        }
    }
    Ok(())
}

/// Fills the memory of a process with words that differ from page to page, also between processes.
fn fill(process: u32, memory: &mut [u8]) {
    for (page, bytes) in (0..).zip(memory.chunks_exact_mut(PAGE)) {
        let words = page_words(first_word(page, process.into()));
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of the region that returns in another place is found: no two pages have a word in
    /// common, as for the processes of the kernel's row.
    #[test]
    fn pages_of_all_processes_differ_in_each_word() {
        let memories = [0, 1, 2].map(|process| {
            let mut memory = vec![0; 2 * PAGE];
            fill(process, &mut memory);
            memory
        });
        let words: std::collections::BTreeSet<&[u8]> =
            memories.iter().flat_map(|memory| memory.chunks_exact(8)).collect();
        assert_eq!(words.len(), 3 * 2 * PAGE / 8);
    }
}
