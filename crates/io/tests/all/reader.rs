//! A reader compared with a cursor over the same bytes, where the kernel caches the pages. Small
//! reads come from a larger copy and must return the same bytes.

use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use crate::support::*;
use proptest::prelude::*;
use readpath::{Coherence, File, PageCache, ReadPath};

const FILE_BYTES: usize = 300_001;

fn opened(temp: &TempFile, coherence: Coherence) -> File {
    ReadPath::builder().coherence(coherence).build().unwrap().open(&temp.path).unwrap()
}

/// An operation of a reader.
#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    /// Consumes up to this number of buffered bytes.
    Lent(usize),
    Seek(SeekFrom),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = || prop_oneof![0usize..64, 1_000usize..20_000, Just(4096), Just(100_000)];
    let place = prop_oneof![
        (0..FILE_BYTES as u64 + 10).prop_map(SeekFrom::Start),
        (-(FILE_BYTES as i64)..10).prop_map(SeekFrom::End),
        (-5_000i64..5_000).prop_map(SeekFrom::Current),
    ];
    let step = prop_oneof![
        6 => sizes().prop_map(Step::Read),
        1 => sizes().prop_map(Step::Lent),
        1 => place.prop_map(Step::Seek),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn reader_equals_a_cursor_for_reads_and_seeks(steps in steps()) {
        let temp = TempFile::new(FILE_BYTES);
        let content = std::fs::read(&temp.path).unwrap();
        let mut reader = opened(&temp, Coherence::default()).reader();
        let mut model = Cursor::new(&content[..]);
        for step in steps {
            match step {
                Step::Read(bytes) => {
                    let (mut ours, mut theirs) = (vec![0; bytes], vec![0; bytes]);
                    let read = reader.read(&mut ours).unwrap();
                    // Never fewer bytes than the cursor returns.
                    prop_assert_eq!(read, model.read(&mut theirs).unwrap());
                    prop_assert!(ours == theirs);
                }
                Step::Lent(bytes) => {
                    let borrowed = reader.fill_buf().unwrap();
                    let taken = borrowed.len().min(bytes);
                    let place = model.position() as usize;
                    prop_assert!(borrowed == &content[place.min(FILE_BYTES)..][..borrowed.len()]);
                    reader.consume(taken);
                    model.consume(taken);
                }
                Step::Seek(to) => {
                    let (ours, theirs) = (reader.seek(to), model.seek(to));
                    prop_assert_eq!(ours.ok(), theirs.ok());
                }
            }
        }
    }
}

/// Number of bytes requested from the file.
fn asked(file: &File) -> u64 {
    file.stats().bytes
}

#[test]
fn reader_copies_ahead_at_most_the_bytes_read_in_sequence() {
    let temp = TempFile::new(FILE_BYTES);
    let file = opened(&temp, Coherence::default());
    let mut reader = file.reader();
    // A header and a name, as in a zip file's entry: the read of the name copies the rest of its
    // page.
    for place in [50_000u64, 120_000, 200_000] {
        let before = asked(&file);
        reader.seek(SeekFrom::Start(place)).unwrap();
        reader.read_exact(&mut [0; 30]).unwrap();
        assert_eq!(asked(&file) - before, 30, "the first read after a seek is made as it is");
        reader.read_exact(&mut [0; 24]).unwrap();
        let page_end = place.next_multiple_of(4096);
        assert_eq!(asked(&file) - before, page_end - place);
    }
    // A stream by 4 KiB: a read of 4 KiB, then copies of 4, 8, 16, 32, 64 KiB, and of 128 KiB from
    // then on. Each byte is requested once.
    let before = asked(&file);
    reader.seek(SeekFrom::Start(0)).unwrap();
    let mut all = Vec::new();
    let mut seen = Vec::new();
    loop {
        let mut part = [0; 4096];
        let bytes = reader.read(&mut part).unwrap();
        all.extend_from_slice(&part[..bytes]);
        let step = asked(&file) - before;
        if seen.last() != Some(&step) {
            seen.push(step);
        }
        if bytes == 0 {
            break;
        }
    }
    assert!(all == std::fs::read(&temp.path).unwrap());
    let kib = [4u64, 8, 16, 32, 64, 128, 256].map(|kib| kib << 10);
    assert_eq!(seen, [&kib[..], &[FILE_BYTES as u64]].concat());
    // Large reads go straight into the caller's memory, also in a run.
    reader.seek(SeekFrom::Start(0)).unwrap();
    let before = asked(&file);
    for _ in 0..4 {
        reader.read_exact(&mut [0; 32 << 10]).unwrap();
    }
    assert_eq!(asked(&file) - before, 128 << 10);
}

/// A copy may be older than a write. A seek, or a coherence option with checks, shows the new
/// bytes.
#[test]
fn written_bytes_are_visible_after_a_seek_or_with_coherence_checks() {
    let temp = TempFile::new(FILE_BYTES);
    let written = std::fs::File::options().write(true).open(&temp.path).unwrap();
    for coherence in [Coherence::WhenOpened, Coherence::EachMiss, Coherence::EachRead] {
        written.write_all_at(&[1; 64 << 10], 0).unwrap();
        let file = opened(&temp, coherence);
        let mut reader = file.reader();
        let mut byte = [0; 1];
        reader.read_exact(&mut [0; 100]).unwrap();
        reader.read_exact(&mut byte).unwrap();
        written.write_all_at(&[2; 64 << 10], 0).unwrap();
        reader.read_exact(&mut byte).unwrap();
        let is_copied =
            coherence == Coherence::WhenOpened && file.page_cache() == PageCache::Kernel;
        assert_eq!(byte[0], if is_copied { 1 } else { 2 });
        assert_eq!(reader.stream_position().unwrap(), 102);
        for place in [0, 102] {
            reader.seek(SeekFrom::Start(place)).unwrap();
        }
        reader.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [2]);
    }
}

/// `io::copy` of the standard library, with its buffer of 8 KiB.
#[test]
fn io_copy_from_a_reader_copies_the_whole_file() {
    struct Kept(Vec<u8>);
    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let temp = TempFile::new(FILE_BYTES);
    let file = opened(&temp, Coherence::default());
    let mut kept = Kept(Vec::new());
    assert_eq!(io::copy(&mut file.reader(), &mut kept).unwrap(), FILE_BYTES as u64);
    assert!(kept.0 == std::fs::read(&temp.path).unwrap());
}

/// A reader returns the bytes before the first unreadable one, and then the error, as `read(2)`.
#[test]
fn bytes_before_an_unreadable_one_are_returned_before_the_error() {
    const CUT: usize = 123_456;
    for page_cache in [PageCache::Kernel, PageCache::Own { bytes: Some(8 << 20) }, PageCache::None]
    {
        for buffered in [false, true] {
            let temp = TempFile::new(FILE_BYTES);
            let content = std::fs::read(&temp.path).unwrap();
            let path = ReadPath::builder().page_cache(page_cache).build().unwrap();
            let mut reader = path.open(&temp.path).unwrap().reader();
            let mut bytes = vec![0; 10_000];
            reader.read_exact(&mut bytes).unwrap();
            std::fs::File::options()
                .write(true)
                .open(&temp.path)
                .unwrap()
                .set_len(CUT as u64)
                .unwrap();
            let error = match buffered {
                false => reader.read_to_end(&mut bytes).unwrap_err(),
                true => loop {
                    match reader.fill_buf() {
                        Ok(part) => bytes.extend_from_slice(part),
                        Err(error) => break error,
                    }
                    reader.consume(usize::MAX);
                },
            };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{page_cache}: {error}");
            assert_eq!(bytes.len(), CUT, "{page_cache}, by `BufRead`: {buffered}");
            assert!(bytes == content[..CUT]);
        }
    }
}
