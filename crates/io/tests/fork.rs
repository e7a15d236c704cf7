//! Forks during reads: a child reads, drops, polls or exits. The parent's reads return the right
//! bytes and end; the child's do too, or return a named error.

mod support;

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

use readpath::raw::RawFault;
use readpath::{Advice, File, RawFile, ReadError, ReadPath};
use support::child::Child;
use support::*;

const FILE_BYTES: usize = 4 << 20;
/// An eighth of the file, so that most reads miss.
const MEMORY_BYTES: u64 = 512 << 10;
const ROUNDS: u64 = 40;
/// Timeout after which a test counts as stuck. Tests need only a part of it.
const STUCK: Duration = Duration::from_secs(100);

/// Runs `act` on its own thread, and fails if it hangs.
fn unless_stuck(act: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        act();
        done.send(()).expect("the test waits");
    });
    match is_done.recv_timeout(STUCK) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("stuck"),
        _ => thread.join().expect("the thread does not panic"),
    }
}

/// Reads `count` random ranges of the file, drawn from `seed`; true if every byte is right.
fn reads_well(file: &File, content: &[u8], seed: u64, count: usize) -> bool {
    let mut state = seed;
    let mut buffer = vec![0; 20_000];
    (0..count).all(|_| {
        let offset = (splitmix(&mut state) % content.len() as u64) as usize;
        let bytes = (1 + splitmix(&mut state) as usize % 20_000).min(content.len() - offset);
        file.read_exact_at(&mut buffer[..bytes], offset as u64).expect("it can be read");
        buffer[..bytes] == content[offset..][..bytes]
    })
}

/// Objects that a child inherits.
struct Inherited<'a> {
    path: &'a ReadPath,
    file: &'a File,
    /// Path and content of the file.
    name: &'a Path,
    content: &'a [u8],
}

/// Runs a parent whose threads continuously read and check, while children run `act`.
fn beside_children(act: fn(Inherited) -> bool) {
    unless_stuck(move || {
        for backend in BACKENDS {
            let temp = TempFile::new(FILE_BYTES);
            let content = content(FILE_BYTES);
            let path = ReadPath::builder()
                .kernel_cache(false)
                .memory(MEMORY_BYTES)
                .backend(backend)
                .build()
                .unwrap();
            let file = path.open(&temp.path).unwrap();
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (file, content, is_over) = (&file, &content, &is_over);
                    scope.spawn(move || {
                        let mut seed = thread;
                        while !is_over.load(Ordering::Relaxed) {
                            assert!(reads_well(file, content, seed, 10), "wrong in the parent");
                            seed += 3;
                        }
                    });
                }
                let codes: Vec<i32> = (0..ROUNDS)
                    .map(|round| {
                        let child = Child::forked(&|| {
                            act(Inherited {
                                path: &path,
                                file: &file,
                                name: &temp.path,
                                content: &content,
                            })
                        });
                        assert!(reads_well(&file, &content, 1_000 + round, 5));
                        child.code()
                    })
                    .collect();
                is_over.store(true, Ordering::Relaxed);
                assert_eq!(codes, [0; ROUNDS as usize], "{backend:?}");
            });
        }
    });
}

#[test]
fn forked_child_reads_right_bytes_concurrently_with_its_parent() {
    beside_children(|had| reads_well(had.file, had.content, 7, 30));
}

#[test]
fn forked_child_can_drop_inherited_handles() {
    beside_children(|had| {
        // SAFETY: each is dropped once here; the process exits without using it again.
        unsafe {
            drop(std::ptr::read(had.file));
            drop(std::ptr::read(had.path));
        }
        true
    });
}

#[test]
fn forked_child_can_exit_with_atexit_handlers() {
    // SAFETY: ends the child with its `atexit` handlers.
    beside_children(|_| unsafe { libc::exit(0) });
}

/// A child and its own child open, prefetch, invalidate and read counters.
#[test]
fn forked_child_and_grandchild_can_use_the_path() {
    beside_children(|Inherited { path, file, name, content }| {
        let is_well = |seed| {
            let other = path.open(name).expect("it is there");
            other.advise(Advice::Random);
            file.prefetch(0, 100_000);
            file.invalidate(0, 50_000);
            let stream = file.reopen();
            reads_well(&other, content, seed, 5)
                && reads_well(&stream, content, seed + 1, 5)
                && file.page(70_000).expect("it can be read")[..] == content[70_000..73_728]
                && path.stats().device_reads > 0
                && stream.stats().bytes > 0
        };
        path.stats().device_reads == 0
            && is_well(1)
            && Child::forked(&|| path.stats().device_reads == 0 && is_well(3)).code() == 0
            && is_well(5)
    });
}

/// The first path caches pages itself, and the second one leaves them to the kernel. The reads are
/// descending, which the kernel does not detect.
#[test]
fn decisions_of_a_child_are_its_own() {
    unless_stuck(|| {
        for builder in [own_cache().kernel_cache(false).scheduler("cfq"), ReadPath::builder()] {
            let temp = TempFile::new(FILE_BYTES);
            let path = builder.log_decisions(true).build().unwrap();
            let file = path.open(&temp.path).unwrap();
            let read_all = || {
                readpath_record::cold::drop_pages(&temp.path).unwrap();
                let mut block = vec![0; 65_536];
                for nth in (0..FILE_BYTES / 65_536).rev() {
                    file.read_exact_at(&mut block, nth as u64 * 65_536).unwrap();
                }
            };
            if readpath_record::cold::drop_pages(&temp.path).unwrap().resident > 0 {
                return eprintln!("skipped: the pages of the file stay in memory here");
            }
            read_all();
            let child = Child::forked(&|| {
                let has_none_at_first = path.take_decisions().is_empty();
                read_all();
                has_none_at_first && !path.take_decisions().is_empty()
            });
            assert_eq!(child.code(), 0);
            assert!(!path.take_decisions().is_empty());
        }
    });
}

/// Operations begun before the fork end in the parent; in the child they return a named error.
#[test]
fn operations_begun_before_a_fork_fail_by_name_in_the_child() {
    unless_stuck(|| {
        for backend in BACKENDS {
            let temp = TempFile::new(FILE_BYTES);
            let content = content(FILE_BYTES);
            let path =
                own_cache().kernel_cache(false).readahead("none").backend(backend).build().unwrap();
            let file = path.open(&temp.path).unwrap();
            for round in 0..20u64 {
                let offset = round * 100_000;
                let right = &content[offset as usize..][..5_000];
                let mut batch = path.batch();
                for nth in 0..8 {
                    batch.read(&file, offset + nth * 10_000, 5_000, nth).unwrap();
                }
                let guard = file.page(offset).unwrap();
                let mut future = file.read_at_async(vec![0; 5_000], offset + 2_100_000);
                let mut context = Context::from_waker(Waker::noop());
                assert!(std::pin::pin!(&mut future).poll(&mut context).is_pending());
                let mut untouched = file.read_at_async(vec![0; 5_000], offset);
                let (batch, future, untouched) = (
                    AssertUnwindSafe(std::cell::RefCell::new(batch)),
                    AssertUnwindSafe(std::cell::RefCell::new(future)),
                    AssertUnwindSafe(std::cell::RefCell::new(&mut untouched)),
                );
                let child = Child::forked(&|| {
                    let check_error = |error: &io::Error| {
                        let inner = error.get_ref().expect("it holds a `ReadError`");
                        inner.to_string().contains("fork")
                    };
                    let mut batch = batch.borrow_mut();
                    let refused = matches!(batch.wait(), Err(ReadError::Forked { .. }));
                    let refused = refused
                        && matches!(batch.read(&file, 0, 1, 1), Err(ReadError::Forked { .. }));
                    batch.start();
                    let looked = catch_unwind(AssertUnwindSafe(|| guard.len()));
                    let said = looked.is_err_and(|panic| {
                        panic.downcast_ref::<String>().is_some_and(|text| text.contains("fork"))
                    });
                    let mut context = Context::from_waker(Waker::noop());
                    let mut future = future.borrow_mut();
                    let polled = std::pin::pin!(&mut *future).poll(&mut context);
                    let future_told = match polled {
                        std::task::Poll::Ready((Err(error), _)) => check_error(&error),
                        _ => false,
                    };
                    // A future not polled before the fork works in the child.
                    let (count, buffer) = pollster::block_on(&mut **untouched.borrow_mut());
                    let anew = count.is_ok_and(|count| count == 5_000) && buffer == *right;
                    if !(refused && said && future_told && anew) {
                        eprintln!("{refused} {said} {future_told} {anew}");
                    }
                    refused && said && future_told && anew
                });
                let (mut batch, future) = (batch.0.into_inner(), future.0.into_inner());
                let mut left = 8;
                while let Some(read) = batch.wait().unwrap() {
                    let place = (offset + read.ticket() * 10_000) as usize;
                    let mut bytes = [0; 5_000];
                    read.copy_to(&mut bytes).unwrap();
                    assert!(bytes[..] == content[place..][..5_000]);
                    left -= 1;
                }
                assert_eq!(left, 0);
                let (count, buffer) = pollster::block_on(future);
                assert_eq!(count.unwrap(), 5_000);
                assert!(buffer[..] == content[offset as usize + 2_100_000..][..5_000]);
                assert!(guard[..] == content[offset as usize..][..guard.len()]);
                assert_eq!(child.code(), 0, "{backend:?}");
            }
        }
    });
}

#[test]
fn a_raw_file_is_read_and_written_by_parent_and_child() {
    unless_stuck(|| {
        for backend in BACKENDS {
            let temp = TempFile::new(FILE_BYTES);
            let builder = RawFile::builder().backend(backend).chunk_bytes(65_536).write(true);
            let mut file = builder.open(&temp.path).unwrap();
            let mut content = content(FILE_BYTES);
            for round in 0..ROUNDS {
                // Parent and child write disjoint halves, in whole blocks.
                let (low, high) = (4096 * round, (2 << 20) + 4096 * round);
                let child = Child::forked(&|| {
                    let mut content = content.clone();
                    content[high as usize..][..4096].fill(round as u8);
                    file.write_all_at(&[round as u8; 4096], high).unwrap();
                    let is_right = reads_raw(&file, &content[2 << 20..], 2 << 20, round);
                    // SAFETY: dropped once here; the process exits without using it again.
                    drop(unsafe { std::ptr::read(&raw const file) });
                    is_right
                });
                file.write_all_at(&[!round as u8; 4096], low).unwrap();
                content[low as usize..][..4096].fill(!round as u8);
                content[high as usize..][..4096].fill(round as u8);
                assert!(reads_raw(&file, &content[..2 << 20], 0, round + 1));
                assert_eq!(child.code(), 0, "{backend:?}");
                assert!(reads_raw(&file, &content, 0, round + 2));
            }
            // A reader in progress continues in the parent only.
            let mut reader = file.reader(0, FILE_BYTES as u64).unwrap();
            let first = reader.next_chunk().unwrap().expect("a chunk").to_vec();
            let reader = AssertUnwindSafe(std::cell::RefCell::new(reader));
            let child = Child::forked(&|| {
                let mut reader = reader.borrow_mut();
                let error = reader.next_chunk().err();
                error.is_some_and(|error| matches!(error.fault, RawFault::Forked(_)))
            });
            let mut all = first;
            let mut reader = reader.0.into_inner();
            while let Some(chunk) = reader.next_chunk().unwrap() {
                all.extend_from_slice(&chunk);
            }
            assert!(all == content);
            assert_eq!(child.code(), 0);
        }
    });
}

/// Reads up to 100,000 bytes at ten random offsets of `content`, which begins at file offset
/// `start`; true if every byte is right.
fn reads_raw(file: &RawFile, content: &[u8], start: u64, seed: u64) -> bool {
    let mut state = seed;
    let mut buffer = vec![0; 100_000];
    (0..10).all(|_| {
        let offset = (splitmix(&mut state) % content.len() as u64) as usize;
        let bytes = (1 + splitmix(&mut state) as usize % 100_000).min(content.len() - offset);
        let place = start + offset as u64;
        file.read_exact_at(&mut buffer[..bytes], place).expect("it can be read");
        buffer[..bytes] == content[offset..][..bytes]
    })
}

/// A child may have closed all descriptors: no other file must be read instead.
#[test]
fn forked_child_with_closed_descriptors_gets_an_error() {
    let temp = TempFile::new(100_000);
    let other = TempFile::new(200_000);
    let path = own_cache().kernel_cache(false).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let child = Child::forked(&|| {
        // SAFETY: closes the child's own descriptors, which have no other users.
        unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
        let others: Vec<_> =
            (0..20).map(|_| std::fs::File::open(&other.path).expect("it is there")).collect();
        let mut byte = [0];
        let error = file.read_exact_at(&mut byte, 0).err();
        others[0].read_exact_at(&mut byte, 0).is_ok()
            && error.is_some_and(|error| error.to_string().contains("fork"))
    });
    assert_eq!(child.code(), 0);
}
