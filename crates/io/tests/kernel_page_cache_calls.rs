//! Cost in system calls of a file whose pages the kernel caches, compared with plain calls.

mod support;

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use readpath::{File, ReadPath};
use support::system_calls::{calls_between_marks, mark};
use support::{TempFile, takes_direct};

const FILE_BYTES: usize = 4 << 20;
const PAGE: usize = 4096;

/// Number of calls by system call number. Excludes the allocator's, and the descriptor check of the
/// standard library at close with debug assertions.
fn counted(calls: &[i64]) -> BTreeMap<i64, usize> {
    let others = [libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect];
    let mut counted = BTreeMap::new();
    for &call in calls.iter().filter(|call| !others.contains(call)) {
        *counted.entry(call).or_default() += 1;
    }
    counted
}

/// A resident file on a file system that reports its direct I/O alignment.
fn held() -> Option<TempFile> {
    let temp = TempFile::new(FILE_BYTES);
    std::fs::read(&temp.path).unwrap();
    let is_usual = takes_direct(&temp.path);
    if !is_usual {
        eprintln!("skipped: no direct I/O here, or it is not reported");
    }
    is_usual.then_some(temp)
}

/// One system call per read. Checked reads are the 1st, 3rd, 7th, 15th, 31st, and then one of 32:
/// 24 of 640, and 19 of the last 600.
#[test]
fn read_of_resident_pages_is_one_system_call() {
    let Some(temp) = held() else { return };
    let orders: [&dyn Fn(usize) -> usize; 2] = [&|nth| nth, &|nth| nth * 7_919 % 1_000];
    for order in orders {
        let calls = calls_between_marks(|| {
            let file = File::open(&temp.path).unwrap();
            let mut page = [0; PAGE];
            let mut read =
                |nth: usize| file.read_exact_at(&mut page, (order(nth) * PAGE) as u64).unwrap();
            (0..40).for_each(&mut read);
            mark();
            (40..640).for_each(&mut read);
            mark();
        });
        let Some(calls) = calls else { return };
        let counted = counted(&calls[0]);
        let expected = [(libc::SYS_pread64, 581), (libc::SYS_preadv2, 19)];
        assert_eq!(counted, BTreeMap::from(expected));
    }
}

/// One call fills 1,024 buffers (`UIO_MAXIOV`). The others of 1,500 are filled one by one, and no
/// byte is read twice. The fourth read is one without a check.
#[test]
fn read_of_many_buffers_continues_after_the_first_call() {
    let Some(temp) = held() else { return };
    let mut rows = vec![[0; 64]; 1_500];
    let mut buffers: Vec<_> = rows.iter_mut().map(|row| IoSliceMut::new(row)).collect();
    let buffers = std::cell::RefCell::new(&mut buffers);
    let calls = calls_between_marks(|| {
        let file = File::open(&temp.path).unwrap();
        (0..3).for_each(|nth| file.read_exact_at(&mut [0; PAGE], nth * 4096).unwrap());
        mark();
        let bytes = file.read_vectored_at(&mut buffers.borrow_mut(), 12_288).unwrap();
        mark();
        assert_eq!(bytes, 1_500 * 64);
    });
    let Some(calls) = calls else { return };
    let expected = [(libc::SYS_preadv, 1), (libc::SYS_pread64, 1_500 - 1_024)];
    assert_eq!(counted(&calls[0]), BTreeMap::from(expected));
}

/// The kernel refuses offsets from 2^63 on, even for no bytes. The read after it is checked all the
/// same.
#[test]
fn empty_read_far_past_the_end_makes_no_call() {
    let Some(temp) = held() else { return };
    let calls = calls_between_marks(|| {
        let file = File::open(&temp.path).unwrap();
        mark();
        assert_eq!(file.read_vectored_at(&mut [], 1 << 63).unwrap(), 0);
        mark();
        mark();
        file.read_exact_at(&mut [0; PAGE], 5).unwrap();
        mark();
    });
    let Some(calls) = calls else { return };
    let counted: Vec<_> = calls.iter().map(|calls| counted(calls)).collect();
    assert_eq!(counted, [BTreeMap::new(), BTreeMap::from([(libc::SYS_preadv2, 1)])]);
}

/// Opening is open(2) and statx(2): no device queue, memory or thread of our own.
#[test]
fn an_open_a_read_and_a_close_are_four_system_calls() {
    let Some(temp) = held() else { return };
    let calls = calls_between_marks(|| {
        // Warm-up for values that are read once per process: its number and the processor count.
        drop(File::open(&temp.path).unwrap());
        mark();
        File::open(&temp.path).unwrap().read_exact_at(&mut [0; PAGE], 5).unwrap();
        mark();
        let path = ReadPath::builder().build().unwrap();
        mark();
        drop(path.open(&temp.path).unwrap());
        mark();
    });
    let Some(calls) = calls else { return };
    let mut open =
        BTreeMap::from([(libc::SYS_openat, 1), (libc::SYS_statx, 1), (libc::SYS_close, 1)]);
    if cfg!(debug_assertions) {
        open.insert(libc::SYS_fcntl, 1);
    }
    let mut with_read = open.clone();
    with_read.insert(libc::SYS_preadv2, 1);
    assert_eq!(calls.iter().map(|calls| counted(calls)).collect::<Vec<_>>(), [with_read, open]);
}

/// A pipe without a writer is refused at once: the open does not wait for its other end.
#[test]
fn pipe_without_a_writer_is_refused_without_waiting() {
    let Some(temp) = held() else { return };
    let name = temp.path.with_extension("pipe");
    let pipe = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &name, rustix::fs::FileType::Fifo, pipe, 0).unwrap();
    let error = File::open(&name).err().unwrap().to_string();
    std::fs::remove_file(&name).unwrap();
    assert!(error.contains("neither a regular file nor a block device"), "{error}");
}

/// The I/O of each batch read of a cold file is started when the read is added, also after earlier
/// ones were resident. No read waits for its turn.
#[test]
fn batch_reads_are_started_before_they_are_awaited() {
    let temp = TempFile::new(64 << 20);
    let calls = calls_between_marks(|| {
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut batch = path.batch();
        mark();
        for nth in 0..400u64 {
            let place = nth * 7_919 % (16 << 10) * PAGE as u64;
            batch.read(&file, place, PAGE as u64, nth).unwrap();
            if batch.len() == 16 {
                batch.wait().unwrap().unwrap().bytes().unwrap();
            }
        }
        mark();
    });
    let Some(calls) = calls else { return };
    let begun = calls[0].iter().filter(|&&call| call == libc::SYS_readahead).count();
    assert!(begun >= 380, "{begun} of 400, and the kernel's readahead may have brought in a few");
}
