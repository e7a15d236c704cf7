//! All APIs at once, for a chosen time, over failing storage. There are three storages: a local
//! file, a modelled device that fails, delays and shortens requests (FUSE, as root), and an NFS
//! file whose connections are cut.
//!
//! ```text
//! READPATH_MINUTES=1440 READPATH_SEED=3 cargo test --release -p readpath-cli --test stress -- \
//!     --ignored --nocapture for_minutes
//! ```
//!
//! Each byte of a file is a function of its offset. A read returns these bytes, or an error of the
//! storage where that may fail. Any other result fails the test. The numbers of operations and of
//! failures of each API are printed at the end.

mod support;

#[path = "../../io/tests/nfs/proxy.rs"]
mod proxy;
#[path = "../../io/tests/nfs/server.rs"]
mod server;

use std::error::Error;
use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use proxy::{Proxy, Weather};
use readpath::pager::{Mapping, Region};
use readpath::raw::RawMemory;
use readpath::{Advice, File, RawFile, ReadPath};
use readpath_core::splitmix;
use server::Server;
use support::Scratch;
use support::serve::{Folder, Serve, can_mount};

const BYTES: usize = 24 << 20;
const PAGE: usize = 4096;
const REGION_BYTES: usize = 4 << 20;
const DEVICE: &str = "faulty:nvme,fail_one_in=400,short_every=97,slow_every=211,slow_by=20000";

/// Bytes of every file: each word of eight is a function of its offset.
fn content() -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|word| splitmix::mixed(word).to_le_bytes()).collect()
}

/// Work of one thread.
#[derive(Clone, Debug, Default)]
struct Done {
    front: String,
    operations: u64,
    bytes: u64,
    failed: u64,
}

/// Random numbers of a thread, and the results of its operations.
struct Worker<'a> {
    content: &'a [u8],
    state: u64,
    may_fail: bool,
    done: Done,
    is_over: &'a AtomicBool,
}

impl Worker<'_> {
    fn below(&mut self, end: usize) -> usize {
        splitmix::next(&mut self.state) as usize % end
    }

    /// Random range of up to `most` bytes, page-aligned half of the time.
    fn place(&mut self, most: usize) -> (usize, usize) {
        let (offset, bytes) = (self.below(BYTES - most), 1 + self.below(most));
        match self.below(2) {
            0 => (offset / PAGE * PAGE, bytes.div_ceil(PAGE) * PAGE),
            _ => (offset, bytes),
        }
    }

    /// Checks the end of an operation: the right bytes of the file, or an error if the storage may
    /// fail.
    fn ended<E: Error + 'static>(&mut self, offset: usize, given: Result<&[u8], E>) {
        self.done.operations += 1;
        match given {
            Ok(bytes) => {
                let right = &self.content[offset..][..bytes.len()];
                assert!(bytes == right, "{:?}: {} bytes at {offset}", self.done, bytes.len());
                self.done.bytes += bytes.len() as u64;
            }
            Err(error) => {
                let words = error.to_string();
                assert!(self.may_fail && words.contains("EIO"), "{:?}: {words}", self.done);
                self.done.failed += 1;
            }
        }
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

/// Reads with every method of a path's file.
fn file(worker: &mut Worker<'_>, path: Option<&ReadPath>, file: &File) {
    let mut file = file.reopen();
    let mut buffer = vec![0; 300_000];
    while worker.goes_on() {
        let (offset, bytes) = worker.place(200_000);
        let part = &mut buffer[..bytes];
        match worker.below(8) {
            0..3 => {
                let read = file.read_exact_at(part, offset as u64);
                worker.ended(offset, read.map(|()| &*part));
            }
            3 => stream(worker, &file, offset),
            4 => path.into_iter().for_each(|path| batch(worker, path, &file)),
            5 => futures(worker, &file),
            6 => {
                file.prefetch(offset as u64, bytes as u64);
                file.invalidate(worker.place(500_000).0 as u64, 500_000);
            }
            _ => {
                file = file.reopen();
                file.advise([Advice::Normal, Advice::Sequential, Advice::Random][worker.below(3)]);
            }
        }
    }
}

fn stream(worker: &mut Worker<'_>, file: &File, offset: usize) {
    let mut reader = file.reader();
    reader.seek(SeekFrom::Start(offset as u64)).unwrap();
    let (mut at, mut part) = (offset, vec![0; 1 + worker.below(100_000)]);
    for _ in 0..worker.below(40) {
        match reader.read(&mut part) {
            Ok(0) => return assert_eq!(at, BYTES),
            Ok(read) => {
                worker.ended::<std::io::Error>(at, Ok(&part[..read]));
                at += read;
            }
            Err(error) => return worker.ended(at, Err(error)),
        }
    }
}

/// Batch of many reads, of which the last ones are dropped.
fn batch(worker: &mut Worker<'_>, path: &ReadPath, file: &File) {
    let mut batch = path.batch();
    let count = 1 + worker.below(60);
    let places: Vec<_> = (0..count).map(|_| worker.place(20_000)).collect();
    for (ticket, &(offset, bytes)) in places.iter().enumerate() {
        batch.read(file, offset as u64, bytes as u64, ticket as u64).unwrap();
    }
    let mut buffer = vec![0; 24_576];
    for _ in 0..1 + worker.below(count) {
        let Some(read) = batch.wait().unwrap() else { return };
        let given = read.copy_to(&mut buffer);
        let (offset, bytes) = places[read.ticket() as usize];
        assert!(given.as_ref().ok().is_none_or(|&given| given == bytes));
        worker.ended(offset, given.map(|given| &buffer[..given]));
    }
}

/// Futures: some are polled once and dropped, the others awaited.
fn futures(worker: &mut Worker<'_>, file: &File) {
    let places: Vec<_> = (0..1 + worker.below(8)).map(|_| worker.place(70_000)).collect();
    let reads = places.iter().map(|&(at, bytes)| file.read_at_async(vec![0; bytes], at as u64));
    for ((offset, bytes), mut read) in places.iter().copied().zip(reads.collect::<Vec<_>>()) {
        if worker.below(4) == 0 {
            let _ = pin!(&mut read).poll(&mut Context::from_waker(Waker::noop()));
            continue;
        }
        let (count, buffer) = pollster::block_on(read);
        assert!(count.as_ref().ok().is_none_or(|&count| count == bytes));
        worker.ended(offset, count.map(|_| &buffer[..]));
    }
}

fn raw(worker: &mut Worker<'_>, file: &RawFile) {
    let mut buffer = vec![0; 300_000];
    while worker.goes_on() {
        let (offset, bytes) = worker.place(200_000);
        if worker.below(2) == 0 {
            let read = file.read_exact_at(&mut buffer[..bytes], offset as u64);
            worker.ended(offset, read.map(|()| &buffer[..bytes]));
            continue;
        }
        let mut batch = file.batch(16).unwrap();
        for _ in 0..1 + worker.below(16) {
            let page = worker.below(BYTES / PAGE - 16) * PAGE;
            let memory = RawMemory::new(16 * PAGE).unwrap();
            batch.read(memory, 16 * PAGE, page as u64, page as u64).unwrap();
        }
        while worker.below(30) > 0
            && let Some(moved) = batch.wait().unwrap()
        {
            let given = moved.result.map(|moved_bytes| {
                assert_eq!(moved_bytes, 16 * PAGE);
                &moved.memory[..]
            });
            worker.ended(moved.ticket as usize, given);
        }
    }
}

/// Failing storage is accessed by calls only: a touch would be a bus error.
fn mapping(worker: &mut Worker<'_>, mapping: &Mapping) {
    let mut buffer = vec![0; 300_000];
    while worker.goes_on() {
        let (offset, bytes) = worker.place(200_000);
        match worker.below(if worker.may_fail { 3 } else { 5 }) {
            0 => mapping.advise(Advice::WillNeed, offset as u64, bytes as u64),
            1 | 2 => {
                let read = mapping.read_exact_at(&mut buffer[..bytes], offset as u64);
                worker.ended(offset, read.map(|()| &buffer[..bytes]));
            }
            _ => {
                let touched = &mapping.as_slice()[offset..][..bytes];
                worker.ended::<std::io::Error>(offset, Ok(touched));
            }
        }
    }
}

/// Region of four times the resident memory, compared with a copy.
fn region(worker: &mut Worker<'_>, region: &mut Region) {
    let mut copy = vec![0; REGION_BYTES];
    while worker.goes_on() {
        let (first, bytes) = (worker.below(REGION_BYTES), worker.below(200_000));
        let bytes = bytes.min(REGION_BYTES - first);
        match worker.below(5) {
            0 | 1 => assert!(region.as_slice()[first..][..bytes] == copy[first..][..bytes]),
            2 | 3 => {
                let fill = worker.below(256) as u8;
                region.as_mut_slice()[first..][..bytes].fill(fill);
                copy[first..][..bytes].fill(fill);
            }
            _ => {
                region.discard(first as u64, bytes as u64);
                copy[first..][..bytes].fill(0);
            }
        }
        worker.done.operations += 1;
        worker.done.bytes += bytes as u64;
    }
    region.check().unwrap();
    assert!(region.as_slice() == copy);
}

/// Runs all APIs at once for `time`.
fn stressed(name: &str, time: Duration) -> Vec<Done> {
    let seed = std::env::var("READPATH_SEED").map_or(1, |text| text.parse::<u64>().unwrap());
    let content = content();
    let scratch = Scratch::new(name);
    let plain = scratch.file("plain", &content);
    let served = can_mount("a device that fails").then(|| {
        let (folder, backing) = (Folder::new(name), scratch.file("backing", &content));
        let serve = Serve::start(DEVICE, &folder, &["--backing", backing.to_str().unwrap()]);
        // The served device ends before its folder is removed.
        (serve, folder)
    });
    let failing = served.as_ref().map(|(_, folder)| folder.device());
    let server = Server::start(content.clone(), 65_536);
    let proxy = Proxy::to(server.port);
    let weather = Weather {
        delay: Duration::from_micros(300),
        double_every: 53,
        drop_every: 701,
        cut_every: 499,
        fragment_bytes: 3_000,
        ..Weather::default()
    };
    let url = format!("nfs://127.0.0.1:{}/data/file?repeat=200ms&timeout=60s", proxy.port);
    let is_over = AtomicBool::new(false);
    let all: Mutex<Vec<Done>> = Mutex::default();
    std::thread::scope(|scope| {
        let (content, is_over) = (&content[..], &is_over);
        let all = &all;
        let mut number = 0;
        let mut spawn =
            |front: String, may_fail: bool, work: Box<dyn FnOnce(&mut Worker<'_>) + Send>| {
                number += 1;
                let state = splitmix::mixed(seed << 16 | number);
                let done = Done { front, ..Done::default() };
                let mut worker = Worker { content, state, may_fail, done, is_over };
                scope.spawn(move || {
                    // A failing thread ends the run for all.
                    let _ends = Ends(is_over);
                    work(&mut worker);
                    all.lock().unwrap().push(worker.done);
                });
            };
        let storages = [("file", Some(plain.clone()), false), ("failing", failing, true)];
        for (storage, at, may_fail) in
            storages.into_iter().filter_map(|(s, at, f)| Some((s, at?, f)))
        {
            for (way, builder) in [
                ("nothing set", ReadPath::builder()),
                ("8 MiB", ReadPath::builder().memory(8 << 20)),
            ] {
                let path = builder.build().unwrap();
                let opened = path.open(&at).unwrap();
                for _ in 0..2 {
                    let (path, opened) = (path.clone(), opened.reopen());
                    let work = move |worker: &mut Worker<'_>| file(worker, Some(&path), &opened);
                    spawn(format!("{storage}, {way}"), may_fail, Box::new(work));
                }
            }
            let raw_file = RawFile::open(&at).unwrap();
            spawn(
                format!("{storage}, raw"),
                may_fail,
                Box::new(move |worker| raw(worker, &raw_file)),
            );
            // SAFETY: no process changes the files.
            let mapped = unsafe { Mapping::builder().memory(4 << 20).open(&at) }.unwrap();
            let work = move |worker: &mut Worker<'_>| mapping(worker, &mapped);
            spawn(format!("{storage}, mapping"), may_fail, Box::new(work));
        }
        match Region::builder().memory(1 << 20).in_folder(REGION_BYTES as u64, &scratch.0) {
            Ok(mut swapped) => {
                let work = move |worker: &mut Worker<'_>| region(worker, &mut swapped);
                spawn("region".to_owned(), false, Box::new(work));
            }
            Err(error) => println!("skipped: a region: {error}"),
        }
        let opened = ReadPath::builder().memory(8 << 20).open(&url).unwrap();
        spawn("server".to_owned(), false, Box::new(move |worker| file(worker, None, &opened)));
        let began = Instant::now();
        while began.elapsed() < time && !is_over.load(Ordering::Relaxed) {
            // Reset the proxy's record of calls. From time to time all connections break at once.
            proxy.weather(weather.clone());
            proxy.cut();
            std::thread::sleep(time.saturating_sub(began.elapsed()).min(Duration::from_secs(10)));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    all.into_inner().unwrap()
}

/// Ends the run when its thread ends, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Prints the work of all threads. Checks that all APIs took part, and that the failing storage
/// failed.
fn print_table(mut all: Vec<Done>) {
    all.sort_by(|one, other| one.front.cmp(&other.front));
    for Done { front, operations, bytes, failed } in &all {
        println!("{front:22} {operations:12} operations {:10} MiB {failed:8} failed", bytes >> 20);
    }
    let sum: u64 = all.iter().map(|done| done.operations).sum();
    println!(
        "{sum} operations, {} of which failed",
        all.iter().map(|done| done.failed).sum::<u64>()
    );
    for done in &all {
        assert!(done.operations > 0, "{done:?}");
    }
    let failing: Vec<_> = all.iter().filter(|done| done.front.starts_with("failing")).collect();
    assert!(failing.is_empty() || failing.iter().any(|done| done.failed > 0), "{failing:?}");
}

#[test]
fn all_apis_at_once_return_right_bytes_or_errors_on_failing_storage() {
    print_table(stressed("stress", Duration::from_secs(2)));
}

#[test]
#[ignore = "minutes: READPATH_MINUTES, 1 unless set"]
fn all_apis_at_once_return_right_bytes_or_errors_for_minutes() {
    let minutes = std::env::var("READPATH_MINUTES").map_or(1, |text| text.parse::<u64>().unwrap());
    print_table(stressed("stress-long", Duration::from_secs(60 * minutes)));
}
