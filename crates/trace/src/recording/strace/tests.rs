//! Tests of the import of strace.

use super::*;

/// Reads of a text: file, offset, requested and read bytes, begin and end in nanoseconds.
pub(super) fn reads(text: &str) -> Vec<(u32, u64, u64, u64, u64, u64)> {
    let records = records(text.as_bytes()).unwrap().records;
    let read = |record: &Record| match record {
        Record::Read(read) => Some((
            read.file,
            read.offset,
            read.asked_bytes,
            read.bytes_read(),
            read.begin_ns,
            read.end_ns,
        )),
        _ => None,
    };
    records.iter().filter_map(read).collect()
}

/// The last read has an unknown descriptor and is left out. Reads move the position, `pread64`
/// does not.
#[test]
fn calls_are_followed_by_descriptor_and_position() {
    let text = r#"
70 1000.000000 openat(AT_FDCWD, "/a, b", O_RDONLY|O_CLOEXEC) = 3 <0.000010>
70 1000.000100 read(3, "\"x\\"..., 4096) = 100 <0.000050>
70 1000.000200 read(3, ""..., 4096) = 0 <0.000001>
70 1000.000300 lseek(3, 8192, SEEK_SET) = 8192 <0.000001>
70 1000.000400 read(3, ""..., 10) = 10 <0.000001>
70 1000.000500 pread64(3, ""..., 4096, 65536) = 4096 <0.000200>
70 1000.000600 read(5, 0x7f, 10) = -1 EBADF (Bad file descriptor) <0.000001>
70 1000.001000 +++ exited with 0 +++
"#;
    assert_eq!(
        reads(text),
        [
            (0, 0, 4096, 100, 100_000, 150_000),
            (0, 100, 4096, 0, 200_000, 201_000),
            (0, 8192, 10, 10, 400_000, 401_000),
            (0, 65536, 4096, 4096, 500_000, 700_000),
        ]
    );
}

#[test]
fn unfinished_calls_and_descriptor_paths_are_imported() {
    let text = "7 5.0 read(3</d/f>,  <unfinished ...>\n\
        8 5.1 read(4<pipe:[12]>, \"\", 5) = 5 <0.1>\n\
        8 5.2 preadv(9</d/g>, [{iov_base=\"\", iov_len=8}], 1, 512) = 8 <0.001000>\n\
        7 5.5 <... read resumed>\"\"..., 64) = 64 <0.500000>\n";
    let found = reads(text);
    // Files are numbered in the order in which reads of them ended.
    assert_eq!(found[0], (0, 512, 8, 8, 200_000_000, 201_000_000));
    assert_eq!(found[1], (1, 0, 64, 64, 0, 500_000_000));
    assert_eq!(found.len(), 2);
}

/// Thread 2 shares the descriptors of task 1, which closes the file. Child 9 has a copy, so
/// only its read of 6 bytes is of a file.
#[test]
fn threads_share_descriptors_and_children_have_copies() {
    let text = "1 1.0 openat(AT_FDCWD, \"f\", O_RDONLY) = 3 <0.1>\n\
        1 1.1 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD}, 88) = 2 <0.1>\n\
        1 1.2 fork() = 9 <0.1>\n\
        1 1.3 close(3) = 0 <0.1>\n\
        2 1.4 read(3, \"\", 5) = 5 <0.1>\n\
        9 1.5 read(3, \"\", 6) = 6 <0.1>\n";
    let found: Vec<u64> = reads(text).iter().map(|&(_, _, _, read_bytes, ..)| read_bytes).collect();
    assert_eq!(found, [6]);
}

/// Copies of a descriptor by `dup` and `fork` have one position (dup(2), fork(2)). A second
/// opening has its own.
#[test]
fn copies_of_a_descriptor_share_its_position() {
    let text = "1 1.0 openat(AT_FDCWD, \"f\", O_RDONLY) = 3 <0.1>\n\
        1 1.1 read(3, \"\", 100) = 100 <0.1>\n\
        1 1.2 dup(3) = 4 <0.1>\n\
        1 1.3 read(4, \"\", 50) = 50 <0.1>\n\
        1 1.4 read(3, \"\", 10) = 10 <0.1>\n\
        1 1.5 fork() = 9 <0.1>\n\
        9 1.6 lseek(3, 4096, SEEK_SET) = 4096 <0.1>\n\
        1 1.7 read(4, \"\", 1) = 1 <0.1>\n\
        1 1.8 openat(AT_FDCWD, \"f\", O_RDONLY) = 5 <0.1>\n\
        1 1.9 read(5, \"\", 2) = 2 <0.1>\n";
    let offsets: Vec<u64> = reads(text).iter().map(|&(_, offset, ..)| offset).collect();
    assert_eq!(offsets, [0, 100, 150, 4096, 0]);
}

/// Files of a text without `-y`, by the name of each read.
fn files_read(text: &str) -> Vec<String> {
    let records = records(text.as_bytes()).unwrap().records;
    let name = |file: u32| {
        let is_file =
            |record: &&Record| matches!(record, Record::File(found) if found.file == file);
        match records.iter().find(is_file) {
            Some(Record::File(found)) => found.path.clone(),
            _ => panic!("file {file} has no record"),
        }
    };
    records
        .iter()
        .filter_map(|record| match record {
            Record::Read(read) => Some(name(read.file)),
            _ => None,
        })
        .collect()
}

/// Names in folders by openat(2), chdir(2) and fchdir(2). A thread shares the current folder of its
/// process, and a child begins with it (clone(2)).
#[test]
fn names_without_paths_are_those_in_their_folder() {
    let read = "1 1.5 read(9, \"\", 5) = 5 <0.1>\n";
    let cases = [
        ("openat(AT_FDCWD, \"a\", O_DIRECTORY) = 3\nopenat(3, \"data\", O_RDONLY) = 9", "a/data"),
        ("openat(AT_FDCWD, \"/b\", 0) = 3\nopenat2(3, \"../data\", {}) = 9", "/data"),
        ("chdir(\"a\") = 0\nopen(\"data\", O_RDONLY) = 9", "a/data"),
        ("chdir(\"a\") = 0\nchdir(\"../b\") = 0\nopenat(AT_FDCWD, \"data\", 0) = 9", "b/data"),
        ("chdir(\"..\") = 0\nopenat(AT_FDCWD, \"data\", 0) = 9", "../data"),
        ("chdir(\"a\") = 0\nopenat(AT_FDCWD, \"/data\", 0) = 9", "/data"),
        ("openat(AT_FDCWD, \"./a//data\", 0) = 9", "a/data"),
        ("openat(AT_FDCWD, \"/b/../data\", 0) = 9", "/data"),
        ("chdir(\"/b/../c\") = 0\nopen(\"./data\", 0) = 9", "/c/data"),
        ("open(\"./a\", 0) = 9\nrename(\"a\", \"../b\") = 0", "../b"),
        ("chdir(\"a\") = -1 ENOENT (No such file)\nopen(\"data\", 0) = 9", "data"),
        ("open(\"/c\", 0) = 3\nfchdir(3) = 0\nopen(\"data\", 0) = 9", "/c/data"),
        ("chdir(\"/c\") = 0\nopen(\"a\", 0) = 9\nrename(\"a\", \"b\") = 0", "/c/b"),
        // Back to the first folder, as fts(3) climbs.
        ("chdir(\"a\") = 0\nopenat(AT_FDCWD, \"..\", 0) = 3\nopenat(3, \"data\", 0) = 9", "data"),
        (
            "chdir(\"a\") = 0\nopen(\"..\", 0) = 3\nfchdir(3) = 0\nchdir(\"b\") = 0\n\
             open(\"data\", 0) = 9",
            "b/data",
        ),
    ];
    for (calls, expected) in cases {
        let line = |call: &str| format!("1 1.0 {call} <0.1>\n");
        let text: String = calls.lines().map(line).collect::<String>() + read;
        assert_eq!(files_read(&text), [expected], "{text}");
    }
    // Equal names in two folders are two files.
    let text = "1 1.0 openat(AT_FDCWD, \"a\", O_DIRECTORY) = 3 <0.1>\n\
        1 1.1 openat(3, \"data\", O_RDONLY) = 4 <0.1>\n\
        1 1.2 openat(AT_FDCWD, \"b\", O_DIRECTORY) = 5 <0.1>\n\
        1 1.3 openat(5, \"data\", O_RDONLY) = 6 <0.1>\n\
        1 1.4 read(4, \"\", 5) = 5 <0.1>\n1 1.5 read(6, \"\", 5) = 5 <0.1>\n";
    assert_eq!(files_read(text), ["a/data", "b/data"]);
    let text = "1 1.0 chdir(\"/a\") = 0 <0.1>\n1 1.1 fork() = 2 <0.1>\n\
        1 1.2 chdir(\"/b\") = 0 <0.1>\n2 1.3 open(\"data\", O_RDONLY) = 4 <0.1>\n\
        2 1.4 read(4, \"\", 5) = 5 <0.1>\n";
    assert_eq!(files_read(text), ["/a/data"]);
}

/// A text of `strace -p` begins in unknown folders.
#[test]
fn names_in_unknown_folders_are_counted() {
    let read = "1 1.5 read(9, \"\", 5) = 5 <0.1>\n";
    let count = |calls: &str| {
        let line = |call: &str| format!("1 1.0 {call} <0.1>\n");
        let text: String = calls.lines().map(line).collect::<String>() + read;
        records(text.as_bytes()).unwrap().names_in_unknown_folders
    };
    assert_eq!(count("openat(7, \"data\", O_RDONLY) = 9"), 1);
    assert_eq!(count("fchdir(7) = 0\nopen(\"x\", 0) = 8\nopen(\"data\", 0) = 9"), 2);
    assert_eq!(count("fchdir(7) = 0\nchdir(\"/a\") = 0\nopen(\"data\", 0) = 9"), 0);
    let climbed = "chdir(\"a\") = 0\nopenat(AT_FDCWD, \"..\", 0) = 3\nopenat(3, \"data\", 0) = 9";
    assert_eq!(count(climbed), 0);
    assert_eq!(count("openat(7, \"/data\", O_RDONLY) = 9"), 0);
    assert_eq!(count("openat(7, \"data\", O_RDONLY) = 9</d/data>"), 0);
}

/// The names of `cat data; cd sub; cat data; cd ..; cat data` in `/d`: the first and the last one
/// are one file.
#[test]
fn files_with_a_relative_and_an_absolute_name_are_counted() {
    let count = |calls: &[&str]| {
        let lines = calls.iter().map(|call| match call.starts_with("open") {
            true => format!("1 1.0 {call} <0.1>\n1 1.1 read(9, \"\", 5) = 5 <0.1>\n"),
            false => format!("1 1.0 {call} <0.1>\n"),
        });
        let text: String = lines.collect();
        records(text.as_bytes()).unwrap().files_of_two_names
    };
    let open = "open(\"data\", O_RDONLY) = 9";
    let (into, back) = ("chdir(\"/d/sub\") = 0", "chdir(\"/d\") = 0");
    assert_eq!(count(&[open, into, open, back, open]), 1);
    assert_eq!(count(&["chdir(\"sub\") = 0", open, into, open]), 1);
    assert_eq!(count(&["open(\"../data\", O_RDONLY) = 9", into, open]), 1);
    // With relative names, or absolute names, the folder is one.
    assert_eq!(count(&[open, "chdir(\"sub\") = 0", open, "chdir(\"..\") = 0", open]), 0);
    assert_eq!(count(&[back, open, into, open]), 0);
    assert_eq!(count(&["open(\"/d/sub/x\", O_RDONLY) = 9", "open(\"b/x\", O_RDONLY) = 9"]), 0);
}

/// Order of strace 6.1 for two runs of Python's `subprocess.run(['cat'], stdin=open(…))`: each
/// child is seen before the `vfork` that began it returns. A child reads from the start of its
/// own file. The third file is read by a thread of task 1, before `clone3` returns.
#[test]
fn children_seen_before_their_parent_resumes_have_its_descriptors() {
    let child = |at: u32, child: u32, file: &str, with_paths: bool| {
        let path = |path: &str| if with_paths { format!("<{path}>") } else { String::new() };
        let (input, file_path) = (path("/dev/null"), path(file));
        format!(
            "1 {at}.0 openat(AT_FDCWD, \"{file}\", O_RDONLY) = 3{file_path} <0.1>\n\
             1 {at}.1 vfork( <unfinished ...>\n\
             {child} {at}.2 dup2(3{file_path}, 0{input}) = 0{file_path} <0.1>\n\
             {child} {at}.3 close_range(3, 4294967295, 0) = 0 <0.1>\n\
             {child} {at}.4 execve(\"/usr/bin/cat\", [\"cat\"], 0x7f <unfinished ...>\n\
             1 {at}.5 <... vfork resumed>) = {child} <0.1>\n\
             1 {at}.6 close(3{file_path}) = 0 <0.1>\n\
             {child} {at}.6 <... execve resumed>) = 0 <0.1>\n\
             {child} {at}.7 read(0{file_path}, \"\"..., 131072) = 20000 <0.1>\n\
             {child} {at}.8 read(0{file_path}, \"\"..., 131072) = 0 <0.1>\n\
             {child} {at}.9 +++ exited with 0 +++\n"
        )
    };
    for with_paths in [true, false] {
        // The second child has the process number of the first one again.
        let text = child(1, 8, "/big", with_paths)
            + &child(2, 9, "/big2", with_paths)
            + &child(3, 8, "/big3", with_paths)
            + "1 4.0 openat(AT_FDCWD, \"/t\", O_RDONLY) = 3 <0.1>\n\
               1 4.1 clone3({flags=CLONE_FILES|CLONE_THREAD, stack=0x7f} <unfinished ...>\n\
               8 4.2 read(3, \"\"..., 5) = 5 <0.1>\n\
               1 4.3 <... clone3 resumed> => {parent_tid=[8]}, 88) = 8 <0.1>\n\
               1 4.4 read(3, \"\"..., 5) = 5 <0.1>\n";
        let found: Vec<(u32, u64)> =
            reads(&text).iter().map(|&(file, offset, ..)| (file, offset)).collect();
        let expected =
            [(0, 0), (0, 20_000), (1, 0), (1, 20_000), (2, 0), (2, 20_000), (3, 0), (3, 5)];
        assert_eq!(found, expected, "paths: {with_paths}");
    }
}

#[test]
fn lines_that_are_no_calls_are_reported() {
    let wrong = |text: &str| records(text.as_bytes()).unwrap_err().to_string();
    assert!(wrong("1 1.0 read(3</f>, \"\", 5) = 5 <0.1>\nhello\n").starts_with("line 2: "));
    assert!(wrong("1 1.0 read(3, \"\n").contains("strace -f -ttt -T"));
    assert_eq!(
        wrong("1 1.0 write(1, \"\", 5) = 5 <0.1>\n"),
        "there is no read of a file in it; not imported: 1 write; record a program that reads files"
    );
    // `strace -r` and `strace` without `-T`: times since the last call, and no durations.
    assert_eq!(
        wrong("2274 0.000000 execve(\"/bin/true\") = 0 <0.000317>\n"),
        "line 1: expected times since 1970, and not since the last call (`-r`); make it with \
         `strace -f -ttt -T -y -s 0 -o FILE`"
    );
    assert_eq!(
        wrong("1 1.0 read(3</f>, \"\", 5) = 5\n"),
        "no call has a duration; make it with `strace -f -ttt -T -y -s 0 -o FILE`"
    );
    assert!(is_start(b"70 1000.000000 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3 <0.1>\n"));
    assert!(is_start(b"1000.5 execve(\"/bin/true\", ...) = 0 <0.1>\n"));
    assert!(!is_start(b"fio version 3 iolog\n") && !is_start(b"1 2 3 4 5\n"));
}

/// An endless source of one character, with the number of bytes read so far. A read further
/// than necessary panics.
struct Endless(usize);

impl io::Read for Endless {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0 += to.len();
        assert!(self.0 < 4 * LINE_BYTES_MAX, "the parser reads no more than the maximum of a line");
        to.fill(b'x');
        Ok(to.len())
    }
}

#[test]
fn endless_line_is_refused() {
    let error = records(io::BufReader::new(Endless(0))).unwrap_err().to_string();
    assert!(error.starts_with("line 1: expected a line of less than 1 MiB"), "{error}");
}

/// Each value would let an offset, a time or a sum exceed its maximum.
#[test]
fn impossible_return_values_are_line_errors() {
    let head = "7 1000.000000";
    let opened = format!("{head} openat(AT_FDCWD, \"f\", O_RDONLY) = 3 <0.000001>\n");
    let twice = format!("{head} read(3, \"\", 9) = 3000000000 <9999999999.9>\n").repeat(2);
    for text in [
        format!("{opened}{head} read(3, \"\", 9) = 4611686018427387904 <0.1>\n"),
        format!("{opened}{head} read(3, \"\", 9) = 9 <18446744073.0>\n"),
        format!("{opened}{head} lseek(3, 0, SEEK_END) = 9223372036854775807 <0.1>\n{twice}"),
    ] {
        let error = records(text.as_bytes()).unwrap_err();
        assert!(matches!(error, TraceError::Line { line: 2.., .. }), "{error} of {text}");
    }
}

/// Output of strace 6.1 with `-y` for a program that reads by each method. The expected offsets
/// and lengths are the arguments of its calls.
#[test]
fn each_way_of_reading_is_imported() {
    let text = "1 5.000 preadv2(4</b>, [...], 1, 0, 0) = 2 <0.000005>\n\
        1 5.001 sendfile(5</o>, 4</b>, [4096] => [12288], 8192) = 8192 <0.000034>\n\
        1 5.002 sendfile(5</o>, 4</b>, NULL, 100) = 100 <0.000008>\n\
        1 5.003 copy_file_range(4</b>, [8192], 5</o>, [0], 4096, 0) = 4096 <0.000006>\n\
        1 5.004 copy_file_range(4</b>, NULL, 5</o>, NULL, 9223372035781033984, 0) = 7 <0.000007>\n\
        1 5.005 splice(4</b>, [8192], 8<pipe:[219920]>, NULL, 4096, 0) = 4096 <0.000006>\n\
        1 5.006 preadv2(4</b>, [...], 1, -1, RWF_NOWAIT) = 8 <0.000004>\n\
        1 5.007 read(5</o>(deleted), \"\"..., 10) = 10 <0.000005>\n\
        1 5.008 fcntl(4</b>, F_DUPFD_CLOEXEC, 20) = 20</b> <0.000005>\n\
        1 5.009 read(20</b>, \"\"..., 5) = 5 <0.000004>\n";
    let ranges: Vec<(u64, u64, u64)> =
        reads(text).iter().map(|&(_, offset, asked, got, ..)| (offset, asked, got)).collect();
    assert_eq!(
        ranges,
        [
            (0, 2, 2),
            (4096, 8192, 8192),
            (0, 100, 100),
            (8192, 4096, 4096),
            (100, 7, 7),
            (8192, 4096, 4096),
            (107, 8, 8),
            // The position follows the 8192, 100 and 7 bytes that were copied there without an
            // offset.
            (8299, 10, 10),
            (115, 5, 5),
        ]
    );
}

#[test]
fn advice_and_mappings_are_imported() {
    let text = "1 5.0 fadvise64(4</b>, 0, 0, POSIX_FADV_RANDOM) = 0 <0.1>\n\
        1 5.1 mmap(NULL, 65536, PROT_READ, MAP_SHARED, 4</b>, 0x1000) = 0x7f04a4942000 <0.1>\n\
        1 5.2 madvise(0x7f04a4943000, 8192, MADV_WILLNEED) = 0 <0.1>\n\
        1 5.3 munmap(0x7f04a4942000, 65536) = 0 <0.1>\n\
        1 5.4 madvise(0x7f04a4943000, 8192, MADV_WILLNEED) = 0 <0.1>\n\
        1 5.5 readahead(4</b>, 4096, 100) = 0 <0.1>\n\
        1 5.6 read(4</b>, \"\"..., 5) = 5 <0.1>\n";
    let imported = records(text.as_bytes()).unwrap();
    let imported_lines: Vec<String> = imported
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Advice(advice) => Some(format!(
                "{:?} {} {} {}",
                advice.hint, advice.offset, advice.bytes, advice.is_of_mapping
            )),
            Record::Map(map) => Some(format!("map {} {}", map.offset, map.bytes)),
            _ => None,
        })
        .collect();
    let expected = [
        "Random 0 0 false",
        "map 4096 65536",
        "WillNeed 8192 8192 true",
        "WillNeed 4096 100 false",
    ];
    assert_eq!(imported_lines, expected);
    let left_out = imported.left_out.to_string();
    assert!(left_out.contains("1 mappings of files"), "{left_out}");
    assert!(left_out.contains("1 advice on memory"), "{left_out}");
}

/// Output of fio's engine libaio under strace 6.1 with `-s 1` and `-s 0`. Each visible element
/// is imported as a request.
#[test]
fn asynchronous_reads_are_imported_as_far_as_they_are_shown() {
    let text = "1 5.0 io_submit(0x7f, 2, [{aio_data=0, aio_lio_opcode=IOCB_CMD_PREAD, \
        aio_fildes=6</b>, aio_buf=0x7f, aio_nbytes=4096, aio_offset=53248}, ...]) = 2 <0.000031>\n\
        1 5.1 io_submit(0x7f, 1, [{aio_data=7, aio_lio_opcode=IOCB_CMD_PWRITE, aio_fildes=6</b>, \
        aio_buf=0x7f, aio_nbytes=4096, aio_offset=0}]) = 1 <0.000031>\n\
        1 5.2 io_submit(0x7f, 2, [...]) = 2 <0.000009>\n\
        1 5.3 io_getevents(0x7f, 1, 1, [{data=7, obj=0x7f, res=4096, res2=0}], NULL) = 1 <0.1>\n\
        1 5.5 io_getevents(0x7f, 1, 1, [{data=0, obj=0x7f, res=100, res2=0}], NULL) = 1 <0.1>\n";
    assert_eq!(reads(text), [(0, 53_248, 4096, 100, 0, 600_000_000)]);
    let left_out = records(text.as_bytes()).unwrap().left_out.to_string();
    assert!(left_out.contains("2 io_submit with requests"), "{left_out}");
    assert!(left_out.contains("1 io_submit of IOCB_CMD_PWRITE"), "{left_out}");
}

#[test]
fn escaped_file_names_are_decoded() {
    let text = "1 5.0 openat(AT_FDCWD</t>, \"\\303\\244 \\\"x<y>(1, z\", O_RDONLY) = \
        3</t/\\303\\244 \"x\\74y\\76(1, z> <0.1>\n\
        1 5.1 read(3</t/\\303\\244 \"x\\74y\\76(1, z>, \"\"..., 2) = 2 <0.1>\n\
        1 5.2 openat(AT_FDCWD, \"a\\tb\\0011\", O_RDONLY) = 4 <0.1>\n\
        1 5.3 read(4, \"\"..., 2) = 2 <0.1>\n";
    let imported = records(text.as_bytes()).unwrap();
    let path = |record: &Record| match record {
        Record::File(file) => Some(file.path.clone()),
        _ => None,
    };
    let paths: Vec<String> = imported.records.iter().filter_map(path).collect();
    assert_eq!(paths, ["/t/\u{e4} \"x<y>(1, z", "a\tb\u{1}1"]);
}

/// In the order of the kinds' names. The first kind has two calls under way at the end of the
/// text: one unfinished, one detached.
#[test]
fn calls_not_imported_are_counted_by_kind() {
    let text = "1 5.0 read(3</f>, \"\"..., 5) = 5 <0.1>\n\
        1 5.1 write(1</dev/pts/0>, \"\"..., 5) = 5 <0.1>\n\
        1 5.2 read(4<pipe:[12]>, \"\"..., 5) = 5 <0.1>\n\
        1 5.3 io_uring_enter(5<anon_inode:[io_uring]>, 1, 1, 0, NULL, 8) = 1 <0.1>\n\
        1 5.4 read(3</f>, 0x7f, 5) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.1>\n\
        1 5.5 pwrite64(3</f>, \"\"..., 5, 0) = 5 <0.1>\n\
        2 5.6 <... pread64 resumed>\"\"..., 5, 0) = 5 <0.1>\n\
        1 5.7 read(3</f>,  <unfinished ...>\n\
        2 5.8 read(3</f>,  <detached ...>\n";
    let left_out = records(text.as_bytes()).unwrap().left_out;
    let counts: Vec<u64> = left_out.0.values().copied().collect();
    assert_eq!(counts, [2, 1, 1, 1, 1, 1, 1], "{left_out}");
}

/// Offsets of the reads of each file in a text, by its path, in the order of their ends.
fn offsets_by_path(text: &str) -> Vec<(String, u64)> {
    let records = records(text.as_bytes()).unwrap().records;
    let path = |record: &Record| match record {
        Record::File(file) => Some((file.file, file.path.clone())),
        _ => None,
    };
    let paths: BTreeMap<u32, String> = records.iter().filter_map(path).collect();
    let read = |record: &Record| match record {
        Record::Read(read) => Some((paths[&read.file].clone(), read.offset)),
        _ => None,
    };
    records.iter().filter_map(read).collect()
}

/// Texts with the paths of `-y`, and without them. `{p}` in `text` is a path `</p>` or nothing.
fn with_and_without_paths(text: &str, paths: &[&str]) -> [String; 2] {
    let (mut with, mut without) = (text.to_owned(), text.to_owned());
    for path in paths {
        let mark = format!("{{{path}}}");
        with = with.replace(&mark, &format!("</{path}>"));
        without = without.replace(&mark, "");
    }
    [with, without]
}

/// Child 2 belongs to task 1, whose `clone` has returned. Child 10 of task 9 shows no line. The
/// last read of a child shares the position of its parent (fork(2)), also where the text ends
/// before the `vfork` returns.
#[test]
fn child_of_a_returned_call_is_not_given_to_an_unfinished_one() {
    let text = "1 1.0 openat(AT_FDCWD, \"/p\", O_RDONLY) = 3{p} <0.1>\n\
        1 1.1 read(3{p}, \"\"..., 100) = 100 <0.1>\n\
        9 1.3 openat(AT_FDCWD, \"/other\", O_RDONLY) = 3{other} <0.1>\n\
        9 1.4 vfork( <unfinished ...>\n\
        1 1.5 clone(child_stack=NULL, flags=SIGCHLD) = 2 <0.1>\n\
        2 1.6 read(3{p}, \"\"..., 50) = 50 <0.1>\n";
    let resumed = "9 1.7 <... vfork resumed>) = 10 <0.1>\n";
    for text in with_and_without_paths(text, &["p", "other"]) {
        for text in [format!("{text}{resumed}"), text] {
            let expected = [("/p".to_owned(), 0), ("/p".to_owned(), 100)];
            assert_eq!(offsets_by_path(&text), expected, "{text}");
        }
    }
}

/// Parents 1 and 2 have begun children at the same time. The older call has the first child, by
/// its second line. Each child continues at the position of its parent.
#[test]
fn children_of_two_unfinished_calls_have_the_parents_that_the_text_shows() {
    let text = "1 1.0 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3{a} <0.1>\n\
        2 1.0 openat(AT_FDCWD, \"/b\", O_RDONLY) = 3{b} <0.1>\n\
        1 1.1 read(3{a}, \"\"..., 100) = 100 <0.1>\n\
        2 1.2 read(3{b}, \"\"..., 200) = 200 <0.1>\n\
        1 1.3 vfork( <unfinished ...>\n\
        2 1.4 vfork( <unfinished ...>\n\
        11 1.5 read(3{a}, \"\"..., 10) = 10 <0.1>\n\
        12 1.6 read(3{b}, \"\"..., 20) = 20 <0.1>\n\
        2 1.7 <... vfork resumed>) = 12 <0.1>\n\
        1 1.8 <... vfork resumed>) = 11 <0.1>\n\
        11 1.9 read(3{a}, \"\"..., 1) = 1 <0.1>\n\
        12 2.0 read(3{b}, \"\"..., 1) = 1 <0.1>\n";
    for text in with_and_without_paths(text, &["a", "b"]) {
        let found = offsets_by_path(&text);
        let of = |path: &str| -> Vec<u64> {
            found.iter().filter(|(name, _)| name == path).map(|&(_, offset)| offset).collect()
        };
        assert_eq!((of("/a"), of("/b")), (vec![0, 100, 110], vec![0, 200, 220]), "{text}");
    }
}

/// Task 1 is killed during its `vfork`, fails in another text, or is interrupted. Task 8, which
/// strace was attached to, is no child of it: the descriptor 3 of task 8 is unknown.
#[test]
fn calls_that_began_no_task_have_no_child() {
    for end in [
        "1 1.2 +++ killed by SIGKILL +++\n8 1.3 read(3, \"\"..., 5) = 5 <0.1>\n",
        "8 1.3 read(3, \"\"..., 5) = 5 <0.1>\n1 1.4 +++ killed by SIGKILL +++\n",
        "8 1.3 read(3, \"\"..., 5) = 5 <0.1>\n1 1.4 <... vfork resumed>) = -1 EAGAIN <0.1>\n",
        "8 1.3 read(3, \"\"..., 5) = 5 <0.1>\n1 1.4 <... vfork resumed>) = ? <unavailable>\n",
    ] {
        let text = format!(
            "1 1.0 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3 <0.1>\n\
             1 1.05 read(3, \"\"..., 5) = 5 <0.1>\n\
             1 1.1 vfork( <unfinished ...>\n{end}"
        );
        assert_eq!(offsets_by_path(&text), [("/a".to_owned(), 0)], "{text}");
    }
}

/// The text ends during the `vfork` of task 1. The first new task is its child.
#[test]
fn child_of_a_call_that_the_end_of_the_text_cuts_off_has_its_descriptors() {
    let text = "1 1.0 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3 <0.1>\n\
        1 1.1 read(3, \"\"..., 100) = 100 <0.1>\n\
        1 1.2 vfork( <unfinished ...>\n\
        8 1.3 read(3, \"\"..., 5) = 5 <0.1>\n";
    assert_eq!(offsets_by_path(text), [("/a".to_owned(), 0), ("/a".to_owned(), 100)]);
}

/// Lines behind an unfinished `vfork` wait for its end. A malformed one is still reported with its
/// number, and before a later line that is too long.
#[test]
fn malformed_line_behind_an_unfinished_call_is_reported_with_its_number() {
    let text = "1 1.0 vfork( <unfinished ...>\n\n1 1.1 read(3</f>, \"\", 5) = 5 <0.1>\nhello\n";
    for end in [String::new(), "x".repeat(LINE_BYTES_MAX)] {
        let error = records(format!("{text}{end}").as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 4: "), "{error}");
    }
}

/// A name that ends in `-`, and a socket with the arrow between its addresses.
#[test]
fn name_before_the_end_of_a_path_may_end_in_a_dash() {
    let text = "1 1.0 read(4</etc/passwd->, \"\"..., 100) = 100 <0.1>\n\
        1 1.1 poll([{fd=5<TCP:[127.0.0.1:1->127.0.0.1:2]>, events=POLLIN}], 1, -1) = 1 <0.1>\n\
        1 1.2 read(4</etc/passwd->, \"\"..., 100) = 50 <0.1>\n";
    let path = "/etc/passwd-".to_owned();
    assert_eq!(offsets_by_path(text), [(path.clone(), 0), (path, 100)]);
}

/// Offsets by rename(2): an open file keeps its position under its new name, and so do files below
/// a renamed folder. A failed rename and another file of a like name have no effect.
#[test]
fn renamed_open_file_keeps_its_position() {
    let read = |path: &str, fd: u32, at: u32| {
        format!("1 1.{at} read({fd}<{path}>, \"\"..., 100) = 100 <0.1>\n")
    };
    let cases = [
        ("rename(\"/d/t.tmp\", \"/d/t\") = 0", "/d/t.tmp", "/d/t", 100),
        ("rename(\"/d\", \"/e\") = 0", "/d/t.tmp", "/e/t.tmp", 100),
        ("rename(\"/d/\", \"/e\") = 0", "/d/t.tmp", "/e/t.tmp", 100),
        ("renameat(AT_FDCWD</d>, \"a\\tb\", 5</e>, \"x/y\") = 0", "/d/a\\tb", "/e/x/y", 100),
        ("renameat2(5</>, \"t\", AT_FDCWD, \"/u\", RENAME_NOREPLACE) = 0", "/t", "/u", 100),
        ("renameat2(5</d>, \"t\", 5</d>, \"u\", RENAME_EXCHANGE) = 0", "/d/u", "/d/t", 100),
        ("rename(\"t\", \"t.1\") = 0", "/d/t", "/d/t.1", 100),
        ("renameat(AT_FDCWD</d>, \"../t\", 5</e>, \"./u\") = 0", "/t", "/e/u", 100),
        ("rename(\"t\", \"t.1\") = 0", "/d/t", "/d/u", 0),
        ("rename(\"/d/t\", \"/d/u\") = -1 ENOENT (No such file)", "/d/t", "/d/u", 0),
        ("rename(\"/d/t\", \"/d/u\") = 0", "/d/t.tmp", "/d/u", 0),
        // Both names are in the current folder, which is either `/d` or `/e`.
        ("rename(\"t\", \"t.1\") = 0", "/d/t", "/e/t.1", 0),
        ("rename(\"s/t\", \"./u\") = 0", "/d/s/t", "/d/u", 100),
        ("rename(\"s/t\", \"u/t\") = 0", "/d/s/t", "/d/u/t", 100),
        ("rename(\"s/t\", \"u/t\") = 0", "/d/r/t", "/d/u/t", 0),
        ("rename(\"s//t\", \"s//u\") = 0", "/d/s/t", "/d/s/u", 100),
        // The names have one folder, a symbolic link to `/r/1`.
        ("rename(\"s/t\", \"s/u\") = 0", "/r/1/t", "/r/1/u", 100),
        ("rename(\"s/t\", \"s/u\") = 0", "/r/1/t", "/r/2/u", 0),
        ("rename(\"/d/t\", \"u\") = 0", "/d/t", "/e/u", 100),
        ("rename(\"/d/t\", \"u\") = 0", "/e/t", "/e/u", 0),
        ("renameat2(AT_FDCWD, \"t\", AT_FDCWD, \"u\", RENAME_EXCHANGE) = 0", "/u", "/t", 100),
    ];
    for (call, before, after, offset) in cases {
        let renamed = format!("2 1.2 {call} <0.1>\n");
        let text = read(before, 3, 1) + &renamed + &read(after, 3, 3);
        let offsets: Vec<u64> = reads(&text).iter().map(|&(_, offset, ..)| offset).collect();
        assert_eq!(offsets, [0, offset], "{text}");
    }
    // A file that is renamed over an open one is another file.
    let text = "1 1.0 openat(AT_FDCWD, \"/d\", O_RDONLY) = 3 <0.1>\n\
        1 1.1 openat(AT_FDCWD, \"/d.tmp\", O_RDONLY) = 4 <0.1>\n\
        1 1.2 rename(\"/d.tmp\", \"/d\") = 0 <0.1>\n\
        1 1.3 read(3, \"\"..., 100) = 100 <0.1>\n\
        1 1.4 read(4, \"\"..., 100) = 100 <0.1>\n";
    let expected = [("/d (deleted)".to_owned(), 0), ("/d".to_owned(), 0)];
    assert_eq!(offsets_by_path(text), expected);
    // Without paths, the recording has the new name.
    let text = "1 1.0 openat(AT_FDCWD, \"/d/t.tmp\", O_RDONLY) = 3 <0.1>\n\
        1 1.1 read(3, \"\"..., 100) = 100 <0.1>\n\
        1 1.2 rename(\"/d/t.tmp\", \"/d/t\") = 0 <0.1>\n\
        1 1.3 read(3, \"\"..., 50) = 50 <0.1>\n";
    assert_eq!(offsets_by_path(text), [("/d/t.tmp".to_owned(), 0), ("/d/t".to_owned(), 100)]);
}
