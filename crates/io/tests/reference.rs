//! Every public type compared with a copy in memory: random operations by several threads must
//! return the bytes of the copy.
//!
//! The simulation (`src/simulation.rs`) tests the same under a schedule from a seed. This test runs
//! on real storage, with forks, and also covers raw files, mappings and regions.
//!
//! ```text
//! export READPATH_ROUNDS=200000 READPATH_SEED=9
//! cargo test --release -p readpath --test reference -- --nocapture
//! ```

mod support;

use std::collections::VecDeque;
use std::future::Future;
use std::io::{BufRead, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::task::{Context, Waker};

use readpath::pager::{Mapping, Region};
use readpath::raw::{RawBatch, RawMemory};
use readpath::{Advice, BackendKind, File, PageGuard, RawFile, ReadError, ReadPath};
use support::child::Child;
use support::*;

const PAGE: usize = 4096;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Random choices of a thread.
struct Draw(u64);

impl Draw {
    fn of(thread: u64) -> Draw {
        Draw(number("READPATH_SEED", 1) << 8 ^ thread)
    }

    fn below(&mut self, end: usize) -> usize {
        splitmix(&mut self.0) as usize % end
    }

    /// A random range of up to `most` bytes within `bytes`; a third of the ranges are whole pages.
    fn place(&mut self, bytes: usize, most: usize) -> (usize, usize) {
        let offset = self.below(bytes);
        let most = [10, PAGE, most][self.below(3)];
        let count = self.below(most);
        let (offset, count) = match self.below(3) {
            0 => (offset / PAGE * PAGE, count.next_multiple_of(PAGE)),
            _ => (offset, count),
        };
        (offset, count.min(bytes - offset))
    }

    fn advice(&mut self) -> Advice {
        [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed]
            [self.below(5)]
    }
}

/// Reads of an unchanging file by one thread, of every kind.
struct Reads<'a> {
    path: &'a ReadPath,
    file: File,
    content: &'a [u8],
    draw: Draw,
    guards: VecDeque<(PageGuard, usize)>,
    /// Number of refused guards.
    refused: u32,
}

impl Reads<'_> {
    fn is(&self, offset: usize, bytes: &[u8]) {
        assert!(bytes == &self.content[offset..][..bytes.len()], "{} at {offset}", bytes.len());
    }

    fn act(&mut self) {
        let (offset, bytes) = self.draw.place(self.content.len(), 150_000);
        let (at, mut buffer) = (offset as u64, vec![0xa5; bytes]);
        match self.draw.below(12) {
            0 | 1 => {
                assert_eq!(self.file.read_at(&mut buffer, at).unwrap(), bytes);
                self.is(offset, &buffer);
            }
            2 => {
                let (one, two) = buffer.split_at_mut(bytes / 3);
                let mut both = [IoSliceMut::new(one), IoSliceMut::new(two)];
                assert_eq!(self.file.read_vectored_at(&mut both, at).unwrap(), bytes);
                self.is(offset, &buffer);
            }
            3 | 4 => self.hold(offset),
            5 => drop(self.guards.drain(..self.guards.len() / 2)),
            6 => self.file.prefetch(at, bytes as u64),
            7 => self.file.invalidate(at, bytes as u64),
            8 => match self.draw.below(2) {
                0 => self.file.advise(self.draw.advice()),
                _ => self.file = self.file.reopen(),
            },
            9 => self.batch(),
            10 => self.futures(),
            _ => self.stream(offset),
        }
    }

    fn hold(&mut self, offset: usize) {
        match self.file.page(offset as u64) {
            Ok(guard) => {
                self.is(offset, &guard);
                self.guards.push_back((guard, offset));
            }
            Err(error) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
                assert!(matches!(inner, Some(ReadError::TooManyPinned { .. })), "{error}");
                self.refused += 1;
                self.guards.pop_front();
            }
        }
        if let Some((guard, offset)) = self.guards.front() {
            self.is(*offset, guard);
        }
    }

    /// More reads than the queue depth; some are awaited, the rest abandoned.
    fn batch(&mut self) {
        let mut batch = self.path.batch();
        let count = 1 + self.draw.below(200);
        let places: Vec<_> =
            (0..count).map(|_| self.draw.place(self.content.len(), 20_000)).collect();
        for (ticket, &(offset, bytes)) in places.iter().enumerate() {
            match batch.read(&self.file, offset as u64, bytes as u64, ticket as u64) {
                Ok(()) | Err(ReadError::TooLarge { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..self.draw.below(2 * count) {
            let Some(read) = batch.wait().unwrap() else { break };
            let (offset, bytes) = places[read.ticket() as usize];
            let all: Vec<u8> = read.slices().unwrap().flatten().copied().collect();
            assert_eq!(all.len(), bytes);
            self.is(offset, &all);
        }
    }

    /// Several futures, polled a few times and then dropped or awaited.
    fn futures(&mut self) {
        let places: Vec<_> = (0..1 + self.draw.below(8))
            .map(|_| self.draw.place(self.content.len(), 40_000))
            .collect();
        let mut reads: Vec<_> = places
            .iter()
            .map(|&(offset, bytes)| self.file.read_at_async(vec![0; bytes], offset as u64))
            .collect();
        for _ in 0..self.draw.below(3) {
            reads.retain_mut(|read| {
                let mut context = Context::from_waker(Waker::noop());
                pin!(read).poll(&mut context).is_pending()
            });
        }
        if self.draw.below(2) == 0 && reads.len() == places.len() {
            for (read, (offset, bytes)) in reads.into_iter().zip(places) {
                let (count, buffer) = pollster::block_on(read);
                assert_eq!(count.unwrap(), bytes);
                self.is(offset, &buffer);
            }
        }
    }

    fn stream(&mut self, offset: usize) {
        // A reader pins a page; guards may have left none.
        self.guards.clear();
        let mut reader = self.file.reader();
        reader.seek(SeekFrom::Start(offset as u64)).unwrap();
        let mut at = offset;
        for _ in 0..self.draw.below(12) {
            let part = match reader.fill_buf() {
                Ok([]) => {
                    assert_eq!(at, self.content.len());
                    break;
                }
                Ok(part) => part.len().min(1 + self.draw.0 as usize % 6_000),
                Err(error) => {
                    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
                    assert!(matches!(inner, Some(ReadError::TooManyPinned { .. })), "{error}");
                    break;
                }
            };
            self.is(at, &reader.fill_buf().unwrap()[..part]);
            reader.consume(part);
            at += part;
        }
    }
}

fn read_all_ways(memory_pages: u64, depth: u32, backend: BackendKind, forks: bool) {
    const BYTES: usize = 1_500_001;
    let temp = TempFile::new(BYTES);
    let content = content(BYTES);
    let memory = memory_pages * PAGE as u64;
    let path = ReadPath::builder().kernel_cache(false).memory(memory).held_memory(memory / 2);
    let path = path.depth(depth).backend(backend).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let rounds = number("READPATH_ROUNDS", 90);
    let reads = |thread| {
        let draw = Draw::of(thread);
        let (path, file) = (&path, file.reopen());
        Reads { path, file, content: &content, draw, guards: VecDeque::new(), refused: 0 }
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let reads = &reads;
            scope.spawn(move || {
                let mut reads = reads(thread);
                (0..rounds).for_each(|_| reads.act());
            });
        }
        let mut reads = reads(9);
        for round in 0..rounds {
            reads.act();
            if forks && round % 25 == 0 {
                let seed = Draw::of(100 + round);
                let child = Child::forked(&|| {
                    let mut mine = Reads {
                        path: &path,
                        file: file.clone(),
                        content: &content,
                        draw: Draw(seed.0),
                        guards: VecDeque::new(),
                        refused: 0,
                    };
                    // Batches and guards belong to the parent: the child creates its own.
                    let (offset, bytes) = mine.draw.place(BYTES, 60_000);
                    let mut buffer = vec![0; bytes];
                    for _ in 0..5 {
                        mine.file.read_exact_at(&mut buffer, offset as u64).unwrap();
                        mine.is(offset, &buffer);
                        mine.futures();
                        mine.file.prefetch(offset as u64, bytes as u64);
                    }
                    true
                });
                reads.act();
                assert_eq!(child.code(), 0);
            }
        }
    });
    let stats = path.stats();
    assert!(stats.used_memory_bytes <= memory && stats.depth_max <= depth, "{stats:?}");
}

#[test]
fn file_equals_the_model_with_minimal_memory_and_a_deep_queue() {
    for backend in BACKENDS {
        read_all_ways(6, 256, backend, false);
        read_all_ways(64, 1, backend, false);
    }
}

#[test]
fn file_equals_the_model_during_forks() {
    for backend in BACKENDS {
        read_all_ways(48, 32, backend, true);
    }
}

/// A thread's part of a raw file, with its copy.
struct Share<'a> {
    file: &'a RawFile,
    cached: File,
    start: usize,
    copy: &'a mut [u8],
    draw: Draw,
}

impl Share<'_> {
    fn act(&mut self) {
        let (offset, bytes) = self.draw.place(self.copy.len(), 300_000);
        let at = (self.start + offset) as u64;
        let mut buffer = vec![0xa5; bytes];
        match self.draw.below(6) {
            0 | 1 => {
                assert_eq!(self.file.read_at(&mut buffer, at).unwrap(), bytes);
                assert!(buffer == self.copy[offset..][..bytes], "{bytes} at {at}");
            }
            2 => {
                let fill = self.draw.below(256) as u8;
                self.copy[offset..][..bytes].fill(fill);
                self.file.write_all_at(&self.copy[offset..][..bytes], at).unwrap();
            }
            3 => {
                self.cached.read_exact_at(&mut buffer, at).unwrap();
                assert!(buffer == self.copy[offset..][..bytes], "{bytes} at {at}, cached");
            }
            _ => self.batch(),
        }
    }

    /// Concurrent reads and writes of separate blocks; only batches of reads are abandoned.
    fn batch(&mut self) {
        const BLOCK: usize = 8 << 10;
        let file = self.file;
        let mut batch = file.batch(16).unwrap();
        let blocks = self.copy.len() / BLOCK;
        let mut taken = vec![false; blocks];
        let is_given_up = self.draw.below(4) == 0;
        for _ in 0..self.draw.below(60) {
            // A completed transfer has freed its slot.
            while batch.room() == 0 {
                self.take(&mut batch);
            }
            let block = self.draw.below(blocks);
            let at = (self.start + block * BLOCK) as u64;
            let mut memory = RawMemory::new(BLOCK).unwrap();
            if !is_given_up && self.draw.below(3) == 0 && !taken[block] {
                let fill = self.draw.below(256) as u8;
                self.copy[block * BLOCK..][..BLOCK].fill(fill);
                memory.fill(fill);
                batch.write(memory, BLOCK, at, u64::MAX).unwrap();
                taken[block] = true;
            } else if !taken[block] {
                batch.read(memory, BLOCK, at, (block * BLOCK) as u64).unwrap();
                // A block that is read is not written at the same time.
                taken[block] = true;
            }
        }
        while !is_given_up && self.take(&mut batch) {}
    }

    fn take(&self, batch: &mut RawBatch<'_>) -> bool {
        let Some(moved) = batch.wait().unwrap() else { return false };
        let bytes = moved.memory.len();
        assert_eq!(moved.result, Ok(bytes));
        if moved.ticket != u64::MAX {
            assert!(moved.memory[..] == self.copy[moved.ticket as usize..][..bytes]);
        }
        true
    }
}

#[test]
fn raw_file_equals_the_model_under_concurrent_writes() {
    // Parts are whole pages, so that no block is written by two threads.
    const SHARE: usize = 100 * PAGE;
    for backend in BACKENDS {
        for direct in DIRECTS {
            let temp = TempFile::new(3 * SHARE);
            let mut copy = content(3 * SHARE);
            let path = ReadPath::builder().kernel_cache(false).memory(200_000).build().unwrap();
            let cached = path.open(&temp.path).unwrap();
            let options = RawFile::builder().write(true).direct(direct).backend(backend);
            let mut file = cached.raw(options.chunk_bytes(64 << 10)).unwrap();
            std::thread::scope(|scope| {
                for (thread, copy) in copy.chunks_mut(SHARE).enumerate() {
                    let (file, cached) = (&file, cached.clone());
                    scope.spawn(move || {
                        let (start, draw) = (thread * SHARE, Draw::of(thread as u64));
                        let mut share = Share { file, cached, start, copy, draw };
                        (0..number("READPATH_ROUNDS", 50)).for_each(|_| share.act());
                    });
                }
            });
            assert!(std::fs::read(&temp.path).unwrap() == copy);
            let mut reader = file.reader(0, u64::MAX).unwrap();
            let mut at = 0;
            while let Some(chunk) = reader.next_chunk().unwrap() {
                assert!(chunk[..] == copy[at..][..chunk.len()], "at {at}");
                at += chunk.len();
            }
            assert_eq!(at, copy.len());
        }
    }
}

#[test]
fn mapping_equals_the_model_for_all_operations() {
    if !can_serve() {
        return;
    }
    const BYTES: usize = 2_000_003;
    for backend in BACKENDS {
        let temp = TempFile::new(BYTES);
        let content = content(BYTES);
        let options = Mapping::builder().kernel_cache(false).backend(backend).memory(64 << 12);
        // SAFETY: the file does not change.
        let mapping = unsafe { options.open(&temp.path) }.unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (mapping, content) = (&mapping, &content);
                scope.spawn(move || {
                    let mut draw = Draw::of(thread);
                    for _ in 0..number("READPATH_ROUNDS", 80) {
                        let (first, bytes) = draw.place(BYTES, 200_000);
                        let (offset, count) = (first as u64, bytes as u64);
                        let right = &content[first..][..bytes];
                        match draw.below(5) {
                            0 | 1 => assert!(&mapping.as_slice()[first..][..bytes] == right),
                            2 => {
                                let mut buffer = vec![0; bytes];
                                mapping.read_exact_at(&mut buffer, offset).unwrap();
                                assert!(buffer == right, "{bytes} at {first}");
                            }
                            3 => mapping.load(offset, count).unwrap(),
                            _ => mapping.advise(draw.advice(), offset, count),
                        }
                    }
                });
            }
        });
        let statistics = mapping.stats();
        assert_eq!(statistics.poisoned_pages, 0, "{statistics:?}");
        assert!(statistics.resident_pages <= 64, "{statistics:?}");
        let plain = std::fs::File::open(&temp.path).unwrap();
        let mut last = [0; 3];
        plain.read_exact_at(&mut last, BYTES as u64 - 3).unwrap();
        assert_eq!(mapping.as_slice()[BYTES - 3..], last);
    }
}

#[test]
fn region_equals_the_model_for_all_operations() {
    if !can_serve() {
        return;
    }
    const PAGES: usize = 300;
    for backend in BACKENDS {
        let options = Region::builder().memory(24 << 12).backend(backend);
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut region = options.in_folder((PAGES * PAGE) as u64, folder).unwrap();
        let mut copy = vec![0; PAGES * PAGE];
        let mut draw = Draw::of(3);
        for round in 0..number("READPATH_ROUNDS", 300) {
            let (first, bytes) = draw.place(copy.len(), 200_000);
            let (offset, count) = (first as u64, bytes as u64);
            match draw.below(8) {
                0..=2 => assert!(region.as_slice()[first..][..bytes] == copy[first..][..bytes]),
                3 | 4 => {
                    let fill = draw.below(256) as u8;
                    region.as_mut_slice()[first..][..bytes].fill(fill);
                    copy[first..][..bytes].fill(fill);
                }
                5 => {
                    region.discard(offset, count);
                    copy[first..][..bytes].fill(0);
                }
                6 => region.will_need(offset, count),
                _ => region.load(offset, count).unwrap(),
            }
            if round % 100 == 0 {
                region.check().unwrap();
            }
        }
        assert!(region.as_slice() == copy);
        let statistics = region.stats();
        assert!(statistics.swap_out_pages > 0, "{statistics:?}");
        // Pages mapped again while they are written out are in memory twice.
        assert!(statistics.memory_pages_max <= 24 + 64, "{statistics:?}");
    }
}
