//! Recording without root, as another user: functions of the C library beyond the read calls, and
//! calls on a busy machine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::preload::as_nobody;
use crate::support::{Ran, Scratch};
use crate::time::seconds as seconds_of;
use crate::{PROGRAM, of_kind, records_of};

/// Length of a read.
const BYTES: usize = 4096;

/// Number of reads of a program below.
const COUNT: usize = 32;

/// Program that moves every second page of a file through a pipe by `splice(2)`, and then one more.
#[test]
#[ignore = "it is a program for the other tests"]
fn splicing_program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let (file, target) = (File::open("data").unwrap(), File::create("/dev/null").unwrap());
    let mut pipe = [0; 2];
    // SAFETY: the array has space for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let null = std::ptr::null_mut();
    let move_bytes = |from: i32, offset: *mut i64, to: i32| {
        // SAFETY: the offset is null or a variable of the caller.
        let moved = unsafe { libc::splice(from, offset, to, null, BYTES, 0) };
        assert_eq!(moved, BYTES as isize);
    };
    for at in 0..COUNT {
        let mut offset = (2 * at * BYTES) as i64;
        move_bytes(file.as_raw_fd(), &raw mut offset, pipe[1]);
        move_bytes(pipe[0], null, target.as_raw_fd());
    }
    // The next one is at the position of the descriptor, which has not moved.
    move_bytes(file.as_raw_fd(), null, pipe[1]);
}

/// Program that reads by `aio_read(3)`.
#[test]
#[ignore = "it is a program for the other tests"]
fn posix_aio_program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let file = File::open("data").unwrap();
    let mut memory = vec![0_u8; BYTES];
    for at in 0..COUNT {
        // SAFETY: all zero is a request of nothing.
        let mut request: libc::aiocb = unsafe { std::mem::zeroed() };
        request.aio_fildes = file.as_raw_fd();
        request.aio_buf = memory.as_mut_ptr().cast();
        request.aio_nbytes = BYTES;
        request.aio_offset = (at * BYTES) as i64;
        let request = &raw mut request;
        // SAFETY: request and memory live until the result is fetched.
        unsafe {
            assert_eq!(libc::aio_read(request), 0);
            while libc::aio_error(request) == libc::EINPROGRESS {
                std::thread::yield_now();
            }
            assert_eq!(libc::aio_return(request), BYTES as isize);
        }
    }
}

/// Program that sends a file of 8 MiB, which is in memory, to a slow receiver. The socket is full
/// most of the time.
#[test]
#[ignore = "it is a program for the other tests"]
fn sending_program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let file = File::open("data").unwrap();
    let (sender, mut receiver) = UnixStream::pair().unwrap();
    let receive = std::thread::spawn(move || {
        let mut memory = vec![0; 64 << 10];
        while receiver.read(&mut memory).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let (mut offset, bytes) = (0, 64 << 10);
    let null = std::ptr::null_mut();
    // SAFETY: no offset is passed. The result 0 is the end of the file.
    while unsafe { libc::sendfile(sender.as_raw_fd(), file.as_raw_fd(), null, bytes) } > 0 {
        offset += bytes;
    }
    assert!(offset >= 8 << 20);
    drop(sender);
    receive.join().unwrap();
}

/// Number of pages that each of the two programs below reads.
const PAGES: u64 = 2000;

/// Opens the file without pages in memory, and reads its pages in an order without a pattern.
fn read_cold_pages(file: &File, threads: usize) {
    // SAFETY: the descriptor is open, and advice accesses no memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let read = || {
        let mut memory = [0; BYTES];
        for at in 0..PAGES {
            // The factor has no common divisor with the number of pages in the file.
            file.read_exact_at(&mut memory, at * 6007 % 8192 * BYTES as u64).unwrap();
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(read)));
}

/// Program with eight threads that read the same pages in the same order.
#[test]
#[ignore = "it is a program for the other tests"]
fn sharing_program() {
    if std::env::var_os(PROGRAM).is_some() {
        read_cold_pages(&File::open("data").unwrap(), 8);
    }
}

/// Program that reads the same pages twice, and drops them from memory before.
#[test]
#[ignore = "it is a program for the other tests"]
fn repeating_program() {
    if std::env::var_os(PROGRAM).is_some() {
        let file = File::open("data").unwrap();
        (0..2).for_each(|_| read_cold_pages(&file, 1));
    }
}

/// Program that announces ranges of its file and of a mapping, and an empty one.
#[test]
#[ignore = "it is a program for the other tests"]
fn announcing_program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let file = File::open("data").unwrap();
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is open, and advice accesses no memory.
    unsafe {
        assert_eq!(libc::readahead(descriptor, 4096, 8192), 0);
        assert_eq!(libc::readahead(descriptor, 4096, 0), 0);
        assert_eq!(libc::posix_fadvise(descriptor, 8192, 4096, libc::POSIX_FADV_WILLNEED), 0);
        assert_eq!(libc::posix_fadvise(descriptor, 0, 0, libc::POSIX_FADV_RANDOM), 0);
        let (null, bytes) = (std::ptr::null_mut(), 2 * BYTES);
        let start = libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_SHARED, descriptor, 8192);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::madvise(start, bytes, libc::MADV_RANDOM), 0);
        assert_eq!(libc::posix_madvise(start.add(BYTES), 1, libc::POSIX_MADV_WILLNEED), 0);
        assert_eq!(libc::madvise(start, 0, libc::MADV_WILLNEED), 0);
        assert_eq!(libc::madvise(start, bytes, libc::MADV_DONTNEED), 0);
        // `é` in Latin-1 is the byte E9, which is not UTF-8.
        let other = File::open(OsStr::from_bytes(b"caf\xe9")).unwrap();
        let start =
            libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_SHARED, other.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::madvise(start, BYTES, libc::MADV_SEQUENTIAL), 0);
    }
    // The recorder looks up the mapping after the call.
    std::thread::sleep(Duration::from_millis(500));
}

/// Runs the command as another user with a program above, or with the other words of `arguments`.
/// Returns `None` if no other user can run them.
fn ran(scratch: &Scratch, arguments: &[&str], program: Option<&str>) -> Option<Ran> {
    let own = std::env::current_exe().unwrap();
    let of_program = |program| vec![own.to_str().unwrap(), "--exact", program, "--ignored"];
    let arguments = [arguments, &program.map_or_else(Vec::new, of_program)].concat();
    let Some(mut command) = as_nobody(scratch, &arguments) else {
        println!("skipped: no setpriv(1)");
        return None;
    };
    let ran = Ran::of(command.env(PROGRAM, "called").output().unwrap());
    if ran.stderr.contains("ermission denied") {
        println!("skipped: another user may not enter the build's folder");
        return None;
    }
    ran.has_ended(0, "the command");
    Some(ran)
}

#[test]
fn splice_is_recorded_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "splice");
    scratch.data("data", 2 * COUNT * BYTES);
    let arguments = ["record", "-o", "r.rec", "--"];
    if ran(&scratch, &arguments, Some("called::splicing_program")).is_none() {
        return;
    }
    let records = records_of(&scratch, "r.rec");
    let reads = of_kind(&records, "read").into_iter().filter(|read| read["way"] == "copied");
    let offsets: Vec<u64> = reads.map(|read| read["offset"].as_u64().unwrap()).collect();
    let expected = (0..COUNT).map(|at| 2 * at * BYTES).chain([0]);
    assert_eq!(offsets, expected.map(|offset| offset as u64).collect::<Vec<u64>>());
}

/// Offset, length and hint of each advice, and true for advice on a mapping. The empty `readahead`
/// reads nothing.
#[test]
fn announcements_are_recorded_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "announcements");
    scratch.data("data", 4 * BYTES);
    let other = scratch.path("data").with_file_name(OsStr::from_bytes(b"caf\xe9"));
    fs::copy(scratch.path("data"), other).unwrap();
    let arguments = ["record", "-o", "r.rec", "--"];
    if ran(&scratch, &arguments, Some("called::announcing_program")).is_none() {
        return;
    }
    let records = records_of(&scratch, "r.rec");
    let given = of_kind(&records, "advice").into_iter().map(|advice| {
        let number = |name: &str| advice[name].as_u64().unwrap();
        let hint = advice["hint"].as_str().unwrap().to_owned();
        (number("offset"), number("bytes"), hint, advice["is_of_mapping"].as_bool().unwrap())
    });
    let expected = [
        (4096, 8192, "will_need", false),
        (8192, 4096, "will_need", false),
        (0, 0, "random", false),
        (8192, 8192, "random", true),
        // The page of the advised byte.
        (12288, 4096, "will_need", true),
        (0, 4096, "sequential", true),
    ];
    let expected =
        expected.map(|(offset, bytes, hint, mapped)| (offset, bytes, hint.to_owned(), mapped));
    assert_eq!(given.collect::<Vec<_>>(), expected);
    let files = of_kind(&records, "file");
    let path = |file: &serde_json::Value| file["path"].as_str().unwrap().to_owned();
    let other = files.iter().find(|file| path(file).contains("/caf")).expect("the other file");
    assert_eq!(other["bytes"], 4 * BYTES as u64);
}

/// The reads are made within the C library: the program must not be said to read no file.
#[test]
fn reads_by_posix_aio_are_counted_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "posix-aio");
    scratch.data("data", COUNT * BYTES);
    let program = Some("called::posix_aio_program");
    let Some(ran) = ran(&scratch, &["explain", "-o", "r.rec", "--"], program) else { return };
    let text = format!("{COUNT} reads by aio were not recorded; the waits for them are not known");
    assert!(ran.stdout.contains(&text), "{}", ran.stdout);
    let records = records_of(&scratch, "r.rec");
    let counts: Vec<_> = of_kind(&records, "unseen").iter().map(|it| it["count"].clone()).collect();
    assert_eq!(counts, [COUNT as u64]);
}

/// The sender sleeps in its calls until the receiver has read. These were said to be waits for the
/// device of the file.
#[test]
fn waits_for_a_receiver_are_no_waits_for_a_device_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "sender");
    scratch.data("data", 8 << 20);
    let arguments = ["record", "-o", "r.rec", "--"];
    if ran(&scratch, &arguments, Some("called::sending_program")).is_none() {
        return;
    }
    let explained = scratch.run("explain r.rec --json");
    explained.has_ended(0, "explain");
    let explained: serde_json::Value = serde_json::from_str(&explained.stdout).unwrap();
    let seconds = |name: &str| explained[name].as_f64().unwrap();
    let (waited, all) = (seconds("waited_seconds"), seconds("seconds"));
    assert!(waited < all / 4.0, "{waited} s of {all} s");
}

/// Eight threads wait for the same requests, and for processors. Their waits were said to be eight
/// fetches of the same data. Data that was dropped is fetched a second time.
#[test]
fn waits_of_threads_for_the_same_pages_are_one_fetch_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "sharing");
    let data = scratch.data("data", 8192 * BYTES);
    File::open(data).unwrap().sync_all().unwrap();
    let fetched = |program: &str| {
        ran(&scratch, &["record", "-o", "r.rec", "--"], Some(program))?;
        let explained = scratch.run("explain r.rec --json");
        let explained: serde_json::Value = serde_json::from_str(&explained.stdout).unwrap();
        let bytes = |name: &str| explained["shape"][name].as_u64().unwrap();
        Some((bytes("fetched_bytes"), bytes("again_bytes")))
    };
    let Some((all_bytes, again_bytes)) = fetched("called::sharing_program") else { return };
    assert!(again_bytes <= all_bytes / 20, "{again_bytes} of {all_bytes} bytes");
    let Some((all_bytes, again_bytes)) = fetched("called::repeating_program") else { return };
    // The first wait for a page is a fetch, and a device in memory has no waits.
    assert!(again_bytes >= all_bytes / 3, "{again_bytes} of {all_bytes} bytes");
}

/// Processes that compute all the time, ended with this value.
struct Load(Vec<Child>);

impl Load {
    /// Starts three processes for each processor.
    fn start() -> Load {
        let count = 3 * std::thread::available_parallelism().unwrap().get();
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Load((0..count).map(|_| shell.spawn().unwrap()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file that was just written is in memory, and its reads wait for no device. Next to three
/// other programs for each processor, each read that is interrupted lasts some milliseconds. These
/// were most of the time, and were said to be waits for the device.
#[test]
fn time_in_the_queue_of_a_processor_is_no_wait_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "queue");
    scratch.data("data", 32 << 20);
    let copies = ["data"; 24].join(" ");
    let program = format!("exec cat {copies} > /dev/null");
    let _load = Load::start();
    let arguments = ["explain", "--json", "--gains", "never", "--", "sh", "-c", &program];
    let Some(ran) = ran(&scratch, &arguments, None) else { return };
    let explained: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let seconds = |name: &str| explained[name].as_f64().unwrap();
    let (waited, all) = (seconds("waited_seconds"), seconds("seconds"));
    assert!(waited < all / 10.0, "{waited} s of {all} s");
    // The kernel's own sum of the processor time. A sample of a thread that has queued since the
    // last one counted as time on a processor: ten times that sum.
    let running = seconds_of(&explained, "processor");
    let processor = seconds("processor_seconds");
    assert!(running < 2.0 * processor + all / 10.0, "{running} s running, {processor} s counted");
}
