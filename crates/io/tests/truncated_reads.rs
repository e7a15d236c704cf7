//! A read that meets a truncation reports an error and leaves no old page in the cache: later reads
//! return the file's present bytes.

mod support;

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::task::{Context, Waker};

use readpath::{File, ReadError, ReadPath};
use support::TempFile;

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Fills the file with one byte value.
fn rewrite(temp: &TempFile, byte: u8) {
    let file = std::fs::File::options().write(true).open(&temp.path).unwrap();
    file.write_all_at(&vec![byte; PAGES * PAGE], 0).unwrap();
}

fn cut(temp: &TempFile, pages: usize) {
    let file = std::fs::File::options().write(true).open(&temp.path).unwrap();
    file.set_len((pages * PAGE) as u64).unwrap();
}

/// First byte of each page, by single reads, by one read and by guards.
fn first_bytes(file: &File) -> [Vec<u8>; 3] {
    let mut all = vec![0; PAGES * PAGE];
    file.read_exact_at(&mut all, 0).unwrap();
    let single = |page: usize| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
        byte[0]
    };
    let guard = |page: usize| file.page((page * PAGE) as u64).unwrap()[0];
    [
        (0..PAGES).map(single).collect(),
        (0..PAGES).map(|page| all[page * PAGE]).collect(),
        (0..PAGES).map(guard).collect(),
    ]
}

type Way = fn(&ReadPath, &File);

/// Reads that meet the truncation, by every kind of read.
const WAYS: [(&str, Way); 6] = [
    ("read_at", |_, file| {
        file.read_exact_at(&mut vec![0; PAGES * PAGE], 0).unwrap_err();
    }),
    ("vectored", |_, file| {
        let (mut one, mut two) = (vec![0; 3 * PAGE], vec![0; 20 * PAGE]);
        let buffers = &mut [std::io::IoSliceMut::new(&mut one), std::io::IoSliceMut::new(&mut two)];
        file.read_vectored_at(buffers, 0).unwrap_err();
    }),
    ("page", |_, file| {
        drop(file.page((20 * PAGE) as u64));
        drop(file.page((2 * PAGE) as u64));
    }),
    ("batch", |path, file| {
        let mut batch = path.batch();
        for nth in 0..4 {
            batch.read(file, nth * 4 * PAGE as u64, 16 * PAGE as u64, nth).unwrap();
        }
        let mut errors = 0;
        while let Some(read) = batch.wait().unwrap() {
            errors += u32::from(read.bytes().is_err());
        }
        assert!(errors > 0);
    }),
    ("future", |_, file| {
        let (bytes, _) = pollster::block_on(file.read_at_async(vec![0; 20 * PAGE], 0));
        bytes.unwrap_err();
    }),
    ("dropped future", |_, file| {
        let mut read = Box::pin(file.read_at_async(vec![0; 20 * PAGE], 0));
        for _ in 0..20 {
            if read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }),
];

#[test]
fn pages_cached_by_a_read_that_met_a_truncation_are_dropped() {
    for (way, read) in WAYS {
        for is_cold in [false, true] {
            let temp = TempFile::new(0);
            rewrite(&temp, 1);
            let path = ReadPath::builder().build().unwrap();
            let file = path.open(&temp.path).unwrap();
            rewrite(&temp, 2);
            cut(&temp, 10);
            if is_cold {
                readpath_record::cold::drop_pages(&temp.path).unwrap();
            }
            read(&path, &file);
            for byte in [7, 8] {
                rewrite(&temp, byte);
                // An abandoned read may still be in flight.
                let is_fresh = || first_bytes(&file).iter().flatten().all(|&found| found == byte);
                let found = (0..200).any(|_| {
                    let is_fresh = is_fresh();
                    if !is_fresh && way == "dropped future" {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                    is_fresh
                });
                assert!(found, "{way}: {byte} was written, and {:?} is read", first_bytes(&file));
            }
        }
    }
}

/// Concurrent reads while the file is truncated and restored; at the end all bytes are new.
#[test]
fn concurrent_reads_that_meet_truncations_leave_no_old_bytes() {
    let temp = TempFile::new(0);
    rewrite(&temp, 1);
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut errors = 0;
    for round in 0..30u8 {
        cut(&temp, 1 + usize::from(round) * 2 % 60);
        errors += std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|nth| {
                    let file = &file;
                    scope.spawn(move || {
                        let mut room = vec![0; 40 * PAGE];
                        file.read_exact_at(&mut room, nth * 8 * PAGE as u64).is_err() as u32
                    })
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u32>()
        });
        rewrite(&temp, round);
        for bytes in first_bytes(&file) {
            assert!(bytes.iter().all(|&found| found == round), "{round}: {bytes:?}");
        }
    }
    assert!(errors > 0, "no read has met a cut");
}

/// Reads that the kernel page cache does not answer come to the engine, whose options were checked
/// in the mode of the path. Expected: the results of a path without the option.
#[test]
fn path_with_whole_file_memory_reads_past_a_moved_end() {
    let temp = TempFile::new(100_000);
    let path = ReadPath::builder().whole_file_memory(1 << 20).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut batch = path.batch();
    batch.read(&file, 200_000, 5, 1).unwrap();
    assert_eq!(batch.wait().unwrap().unwrap().bytes().unwrap(), 0);
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(10).unwrap();
    let error = file.read_at(&mut [0; 5], 50_000).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// The file now ends within the page of the last requested bytes, behind them. Their page cannot be
/// cached, and they are read all the same.
#[test]
fn bytes_before_a_moved_end_in_its_page_are_read_by_every_call() {
    let temp = TempFile::new(2_000_000);
    let content = std::fs::read(&temp.path).unwrap();
    let wanted = &content[991_000..1_000_000];
    for kernel_cache in [true, false] {
        std::fs::write(&temp.path, &content).unwrap();
        let path = ReadPath::builder().memory(4 << 20).kernel_cache(kernel_cache).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(1_000_001).unwrap();
        let mut buffer = vec![0; 9_000];
        assert_eq!(file.read_at(&mut buffer, 991_000).unwrap(), 9_000);
        assert!(buffer == wanted);
        let (bytes, buffer) = pollster::block_on(file.read_at_async(vec![0; 9_000], 991_000));
        assert_eq!(bytes.unwrap(), 9_000);
        assert!(buffer == wanted);
        let mut batch = path.batch();
        batch.read(&file, 991_000, 9_000, 7).unwrap();
        batch.read(&file, 0, 5_000, 8).unwrap();
        batch.read(&file, 991_000, 9_002, 9).unwrap();
        let mut tickets = Vec::new();
        while let Some(read) = batch.wait().unwrap() {
            tickets.push(read.ticket());
            match read.ticket() {
                7 => assert!(read.slices().unwrap().flatten().eq(wanted)),
                8 => assert!(read.slices().unwrap().flatten().eq(&content[..5_000])),
                _ => assert_eq!(read.bytes(), Err(ReadError::Shrunk { offset: 1_000_001 })),
            }
        }
        tickets.sort_unstable();
        assert_eq!(tickets, [7, 8, 9]);
        batch.read(&file, 991_000, 9_000, 3).unwrap();
        let mut buffer = vec![0; 9_000];
        let put = batch.wait_into(|_, _| &mut buffer).unwrap().unwrap();
        assert_eq!((put.ticket, put.bytes), (3, Ok(9_000)));
        assert!(buffer == wanted);
        assert!(batch.is_empty());
    }
}
