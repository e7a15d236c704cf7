//! Foreign input of a program: wakers that panic, and offsets past the end of any file.

use std::future::Future;
use std::io::{self, BufRead, IoSliceMut, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::support::*;
use readpath::raw::RawFault;
use readpath::{Advice, File, RawFile, ReadPath};

const FILE_BYTES: usize = 4 << 20;

/// Bits for the method in which a waker panics.
const CLONE: u32 = 1;
const WAKE: u32 = 2;
const DROP: u32 = 4;

/// A waker whose clones panic in the methods named by `when`. (The first of them may be dropped.)
fn panicking(when: &'static AtomicU32) -> Waker {
    fn act(data: *const (), what: u32) {
        // SAFETY: the data of each of these wakers is such a word, which is never freed.
        let when = unsafe { &*data.cast::<AtomicU32>() };
        if when.load(Ordering::Relaxed) & what != 0 {
            // A panic without the hook, which would print each of them.
            std::panic::resume_unwind(Box::new("a waker that panics"));
        }
    }
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            act(data, CLONE);
            RawWaker::new(data, &TABLE)
        },
        |data| act(data, WAKE),
        |data| act(data, WAKE),
        |data| act(data, DROP),
    );
    // SAFETY: the functions keep no state except the word, and may be called from any thread.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(when).cast(), &TABLE)) }
}

#[test]
fn panicking_waker_does_not_affect_other_reads() {
    let temp = TempFile::new(FILE_BYTES);
    let content = content(FILE_BYTES);
    for backend in BACKENDS {
        let path = own_cache().readahead("none").backend(backend).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut place = 0;
        for what in [CLONE, WAKE, DROP, WAKE | DROP] {
            for _ in 0..10 {
                let when: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(what)));
                let waker = panicking(when);
                let mut context = Context::from_waker(&waker);
                let mut future = Box::pin(file.read_at_async(vec![0; 5_000], place));
                let mut poll =
                    || catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
                let mut polled = [poll(), Ok(Poll::Pending)];
                if !matches!(polled[0], Ok(Poll::Ready(_))) {
                    polled[1] = poll();
                }
                let done = polled.into_iter().find_map(|polled| match polled {
                    Ok(Poll::Ready(done)) => Some(done),
                    _ => None,
                });
                // Another future and another read complete meanwhile.
                let beside = file.read_at_async(vec![0; 5_000], place + 20_000);
                let (count, bytes) = pollster::block_on(beside);
                assert_eq!(count.unwrap(), 5_000);
                assert!(bytes == content[place as usize + 20_000..][..5_000]);
                let mut bytes = [0; 5_000];
                file.read_exact_at(&mut bytes, place + 40_000).unwrap();
                assert!(bytes[..] == content[place as usize + 40_000..][..5_000]);
                // The future itself, now that its waker no longer panics.
                when.store(0, Ordering::Relaxed);
                if what & DROP == 0 {
                    let (count, bytes) = done.unwrap_or_else(|| pollster::block_on(future));
                    assert_eq!(count.unwrap(), 5_000);
                    assert!(bytes == content[place as usize..][..5_000]);
                }
                place += 90_000;
            }
        }
    }
}

/// Any `u64` is a valid offset; reads past the end return no bytes.
#[test]
fn offsets_beyond_the_file_return_no_bytes() {
    let temp = TempFile::new(10_000);
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    for place in [10_000, 1 << 40, i64::MAX as u64, u64::MAX - 4096, u64::MAX - 1, u64::MAX] {
        nothing_at(&path, &file, place);
    }
    let raw = RawFile::open(&temp.path).unwrap();
    let mut raw_to_stream = RawFile::open(&temp.path).unwrap();
    for place in [10_000, 1 << 40, i64::MAX as u64, u64::MAX - 4096, u64::MAX] {
        match raw.read_at(&mut [0; 100], place) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert!(matches!(error.fault, RawFault::Range { .. }), "{error}"),
        }
        for bytes in [0, 1, u64::MAX] {
            let mut reader = raw_to_stream.reader(place, bytes).unwrap();
            assert!(reader.next_chunk().unwrap().is_none());
        }
    }
}

fn nothing_at(path: &ReadPath, file: &File, place: u64) {
    let mut buffer = [0; 100];
    assert_eq!(file.read_at(&mut buffer, place).unwrap(), 0);
    let error = file.read_exact_at(&mut buffer, place).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(file.read_vectored_at(&mut [IoSliceMut::new(&mut buffer)], place).unwrap(), 0);
    assert!(file.page(place).unwrap().is_empty());
    assert_eq!(pollster::block_on(file.read_at_async(vec![0; 100], place)).0.unwrap(), 0);
    for bytes in [0, 1, 4096, u64::MAX] {
        file.prefetch(place, bytes);
        file.invalidate(place, bytes);
    }
    file.advise(Advice::WillNeed);
    let mut batch = path.batch();
    batch.read(file, place, 100, 1).unwrap();
    assert_eq!(batch.wait().unwrap().expect("it was asked for").bytes().unwrap(), 0);
    let mut reader = file.reader();
    assert_eq!(reader.seek(SeekFrom::Start(place)).unwrap(), place);
    assert!(reader.fill_buf().unwrap().is_empty());
    assert_eq!(reader.read(&mut buffer).unwrap(), 0);
    assert_eq!(reader.stream_position().unwrap(), place);
    assert_eq!(reader.seek(SeekFrom::Current(i64::MAX)).is_ok(), place <= u64::MAX / 2 + 1);
    reader.consume(usize::MAX);
    reader.consume(usize::MAX);
}
