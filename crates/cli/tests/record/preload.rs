//! Recording without root, as another user: the recording equals the program's reads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{READPATH, Ran, Scratch, has, is_root};
use crate::{PROGRAM, of_kind, records_of};

/// Reads of the program below on a file of 256 KiB: method, offset, requested bytes, returned
/// bytes.
const READS: [(&str, u64, u64, u64); 6] = [
    ("read", 0, 1000, 1000),
    ("read", 1000, 1000, 1000),
    ("pread", 100_000, 4096, 4096),
    ("readv", 2000, 300, 300),
    ("pread", 262_000, 4096, 144),
    ("read", 262_144, 10, 0),
];

/// Program for the test below, started by it.
#[test]
#[ignore = "it is a program for the other tests"]
fn reader() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let mut file = File::open("data").unwrap();
    let mut memory = [0; 4096];
    for _ in 0..2 {
        file.read_exact(&mut memory[..1000]).unwrap();
    }
    file.read_exact_at(&mut memory, 100_000).unwrap();
    let (first, second) = memory.split_at_mut(100);
    let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(&mut second[..200])];
    assert_eq!(file.read_vectored(&mut pieces).unwrap(), 300);
    assert_eq!(file.read_at(&mut memory, 262_000).unwrap(), 144);
    file.seek(SeekFrom::End(0)).unwrap();
    assert_eq!(file.read(&mut memory[..10]).unwrap(), 0);
    // Two threads, and a child program.
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let file = &file;
            scope.spawn(move || {
                let mut memory = [0; 512];
                (0..100).for_each(|at| {
                    file.read_exact_at(&mut memory, thread * 51_200 + at * 512).unwrap();
                });
            });
        }
    });
    // Different files in quick succession at the same descriptor, faster than the cache of
    // descriptors expires.
    drop(file);
    for _ in 0..50 {
        for (name, bytes) in [("data", 3), ("other", 5)] {
            assert_eq!(File::open(name).unwrap().read_at(&mut memory[..bytes], 7).unwrap(), bytes);
        }
    }
    assert!(Command::new("cat").arg("other").output().unwrap().status.success());
}

/// The command in a folder, as a user without rights. `None` if this process cannot change its
/// user.
pub(crate) fn as_nobody(scratch: &Scratch, arguments: &[&str]) -> Option<Command> {
    // The other user must be able to write there, and to start the command.
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = match is_root() {
        false => Command::new(READPATH),
        true if !has("setpriv") => return None,
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(READPATH);
            command
        }
    };
    command.args(arguments).current_dir(&scratch.0).env("TMPDIR", &scratch.0);
    Some(command)
}

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::under(&std::env::temp_dir(), name);
    scratch.data("data", 256 << 10);
    scratch.data("other", 10_000);
    scratch
}

#[test]
fn preload_recording_without_root_has_every_call() {
    let scratch = scratch("preload");
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let program = ["--exact", "preload::reader", "--ignored", "--test-threads=1"];
    let arguments = [&["record", "-o", "r.rec", "--", own][..], &program].concat();
    let Some(mut command) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(command.env(PROGRAM, "reader").output().unwrap());
    if ran.stderr.contains("ermission denied") {
        return println!("skipped: another user may not enter the build's folder");
    }
    ran.has_ended(0, "watch");
    ran.says(&["not root", "stdio", "r.rec", "the kernel counts"], "watch");
    let records = records_of(&scratch, "r.rec");
    let of = |kind: &str| of_kind(&records, kind);
    assert_eq!(of("start")[0]["source"], "preload");
    let number = |name: &str| {
        let path = scratch.path(name);
        let is_it = |file: &&&Value| Path::new(file["path"].as_str().unwrap()) == path;
        of("file").iter().find(is_it).unwrap_or_else(|| panic!("{name}: {records:?}"))["file"]
            .clone()
    };
    let reads_of = |name: &str| {
        let file = number(name);
        of("read").into_iter().filter(|read| read["file"] == file).collect::<Vec<_>>()
    };
    let fields = |read: &&Value| {
        let field = |name: &str| read[name].as_u64().unwrap();
        let way = read["way"].as_str().unwrap().to_owned();
        (way, field("offset"), field("asked_bytes"), read["outcome"]["bytes"].as_u64().unwrap())
    };
    let reads = reads_of("data");
    let first: Vec<_> = reads.iter().take(READS.len()).map(fields).collect();
    let expected = READS.map(|(way, offset, asked, got)| (way.to_owned(), offset, asked, got));
    assert_eq!(first, expected);
    // Each of the two threads reads its own half, in order.
    let mut by_thread: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let is_of = |asked: u64| move |read: &&&Value| read["asked_bytes"].as_u64() == Some(asked);
    for read in reads[READS.len()..].iter().filter(is_of(512)) {
        let thread = by_thread.entry(read["thread"].as_u64().unwrap()).or_default();
        thread.push(read["offset"].as_u64().unwrap());
    }
    let mut halves: Vec<Vec<u64>> = by_thread.into_values().collect();
    halves.sort();
    let half = |thread: u64| (0..100).map(|at| thread * 51_200 + at * 512).collect::<Vec<u64>>();
    assert_eq!(halves, [half(0), half(1)]);
    assert_eq!(reads.iter().filter(is_of(3)).count(), 50);
    assert_eq!(reads.len(), READS.len() + 200 + 50);
    // `cat` reads to the end.
    let of_other = reads_of("other");
    assert_eq!(of_other.iter().filter(is_of(5)).count(), 50);
    let got: u64 = of_other.iter().map(|read| fields(read).3).sum();
    assert_eq!(got, 10_000 + 50 * 5);
    for read in of("read") {
        assert!(read["begin_ns"].as_u64() <= read["end_ns"].as_u64(), "{read}");
    }
    let is_left = |name: &String| name.starts_with("readpath-watch");
    assert_eq!(
        scratch.names().iter().find(|name| is_left(name)),
        None,
        "the shared memory is gone"
    );
}

#[test]
fn static_program_without_preload_library_is_reported() {
    let scratch = scratch("preload-static");
    let program = "/sbin/ldconfig";
    let is_static = fs::read(program).is_ok_and(|bytes| {
        bytes.starts_with(b"\x7fELF") && !bytes[..4096].windows(8).any(|part| part == b"ld-linux")
    });
    if !is_static {
        return println!("skipped: {program} is not there, or not linked statically");
    }
    let arguments = ["record", "-o", "r.rec", "--", program, "--version"];
    let Some(mut command) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(command.output().unwrap());
    if ran.stderr.contains("ermission denied") {
        return println!("skipped: another user may not enter the build's folder");
    }
    ran.has_ended(3, "watch");
    ran.says(&["no read of ldconfig was recorded", "linked statically"], "watch");
    assert!(ran.stdout.contains("Counted by the kernel"), "{}", ran.stdout);
}

/// Program for the test below: it reads the header of a file through the page cache, and the rest
/// past it, twice. All descriptors have the same number.
#[test]
#[ignore = "it is a program for the other tests"]
fn reopening_reader() {
    use std::os::unix::fs::OpenOptionsExt;
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    // A page-aligned address within the memory.
    let mut memory = vec![0_u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    let page = &mut memory[start..start + 4096];
    for offset in [0, 4096] {
        File::open("data").unwrap().read_exact_at(&mut page[..100], offset).unwrap();
        let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open("data");
        direct.unwrap().read_exact_at(page, offset + 8192).unwrap();
    }
}

/// The last open of a descriptor decides if its reads are direct.
#[test]
fn file_opened_again_for_direct_reads_is_recorded_again_without_root() {
    let scratch = scratch("preload-reopened");
    let own = std::env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "preload::reopening_reader", "--ignored"];
    let arguments = [&["record", "-o", "r.rec", "--"][..], &program].concat();
    let Some(mut command) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(command.env(PROGRAM, "reopened").output().unwrap());
    ran.has_ended(0, "record");
    let records = records_of(&scratch, "r.rec");
    let path = scratch.path("data");
    let is_data = |file: &&&Value| Path::new(file["path"].as_str().unwrap()) == path;
    let file = &of_kind(&records, "file").iter().find(is_data).expect("the file is named")["file"];
    let mut is_direct = Value::Null;
    let mut reads = Vec::new();
    for record in &records {
        if let Some(open) = record.get("open").filter(|open| open["file"] == *file) {
            is_direct = open["is_direct"].clone();
        }
        if let Some(read) = record.get("read").filter(|read| read["file"] == *file) {
            reads.push((read["offset"].as_u64().unwrap(), is_direct.as_bool()));
        }
    }
    let [header, rest] = [Some(false), Some(true)];
    assert_eq!(reads, [(0, header), (8192, rest), (4096, header), (12_288, rest)]);
}

/// Program for the test below: it copies a file of 256 KiB until no byte is left. The standard
/// library requests 1 GiB a call, and cp(1) nearly 8 EiB.
#[test]
#[ignore = "it is a program for the other tests"]
fn copier() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let (mut from, mut to) = (File::open("data").unwrap(), File::create("copy").unwrap());
    assert_eq!(std::io::copy(&mut from, &mut to).unwrap(), 256 << 10);
}

/// The number of bytes that a copy requests for the rest of a file is no size of a read.
#[test]
fn copies_without_root_have_the_copied_bytes() {
    let scratch = scratch("preload-copied");
    let own = std::env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "preload::copier", "--ignored"];
    let arguments = [&["record", "-o", "r.rec", "--"][..], &program].concat();
    let Some(mut command) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(command.env(PROGRAM, "copier").output().unwrap());
    ran.has_ended(0, "record");
    let records = records_of(&scratch, "r.rec");
    let copies: Vec<_> = of_kind(&records, "read")
        .into_iter()
        .filter(|read| read["way"] == "copied")
        .map(|read| (read["offset"].as_u64(), read["asked_bytes"].as_u64()))
        .collect();
    assert_eq!(copies, [(Some(0), Some(256 << 10)), (Some(256 << 10), Some(0))]);
}
