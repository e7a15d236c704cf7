//! Calls with an unknown file, an impossible result or an error.

use super::tests::reads;
use super::*;

/// The text does not show the file of descriptor 6. The result of the other request is the least
/// number of 64 bits.
#[test]
fn asynchronous_read_of_an_unknown_file_is_no_read_of_a_pipe() {
    let text = "1 5.0 io_submit(0x7f, 1, [{aio_data=7, aio_lio_opcode=IOCB_CMD_PREAD, \
        aio_fildes=6, aio_buf=0x7f, aio_nbytes=4096, aio_offset=0}]) = 1 <0.1>\n\
        1 5.2 io_submit(0x7f, 1, [{aio_data=8, aio_lio_opcode=IOCB_CMD_PREAD, \
        aio_fildes=7</b>, aio_buf=0x7f, aio_nbytes=4096, aio_offset=0}]) = 1 <0.1>\n\
        1 5.4 io_getevents(0x7f, 1, 1, [{data=8, obj=0x7f, res=-9223372036854775808, res2=0}], \
        NULL) = 1 <0.1>\n";
    assert_eq!(reads(text), [(0, 0, 4096, 0, 200_000_000, 500_000_000)]);
    let left_out = records(text.as_bytes()).unwrap().left_out.to_string();
    let expected = "1 reads of descriptors whose file the text does not show";
    assert!(left_out.contains(expected) && !left_out.contains("pipes"), "{left_out}");
}

/// `munmap` at an address that is no multiple of the page size fails (munmap(2)).
#[test]
fn failed_munmap_leaves_the_mapping() {
    let text = "1 5.1 mmap(NULL, 65536, PROT_READ, MAP_SHARED, 4</b>, 0) = 0x7f04a4942000 <0.1>\n\
        1 5.2 munmap(0x7f04a4942001, 65536) = -1 EINVAL (Invalid argument) <0.1>\n\
        1 5.3 madvise(0x7f04a4943000, 8192, MADV_WILLNEED) = 0 <0.1>\n\
        1 5.4 read(4</b>, \"\"..., 5) = 5 <0.1>\n";
    let left_out = records(text.as_bytes()).unwrap().left_out.to_string();
    assert!(!left_out.contains("advice on memory"), "{left_out}");
}

/// Each read of a text: 1 if the opening before it has direct I/O, as open(2), dup(2) and fcntl(2)
/// describe it.
fn direct_reads(text: &str) -> Vec<bool> {
    let mut direct = BTreeMap::new();
    let mut of_reads = Vec::new();
    for record in records(text.as_bytes()).unwrap().records {
        match record {
            Record::Open(open) => drop(direct.insert((open.file, open.descriptor), open.is_direct)),
            Record::Read(read) => {
                let opened = (read.file, read.descriptor.unwrap());
                of_reads.push(direct.get(&opened).copied().unwrap_or(false));
            }
            _ => {}
        }
    }
    of_reads
}

#[test]
fn reads_of_openings_with_direct_io_are_direct() {
    let read = |descriptor| format!("1 5.5 pread64({descriptor}, \"\"..., 4096, 0) = 4096 <0.1>\n");
    let submitted = "1 5.6 io_submit(0x7f, 1, [{aio_data=7, aio_lio_opcode=IOCB_CMD_PREAD, \
        aio_fildes=3, aio_buf=0x7f, aio_nbytes=4096, aio_offset=0}]) = 1 <0.1>\n\
        1 5.8 io_getevents(0x7f, 1, 1, [{data=7, obj=0x7f, res=4096, res2=0}], NULL) = 1 <0.1>\n";
    let cases = [
        ("open(\"/f\", O_RDONLY|O_DIRECT) = 3", read(3), true),
        ("openat(AT_FDCWD, \"/f\", O_RDWR|O_DIRECT|O_CLOEXEC) = 3", read(3), true),
        ("openat(AT_FDCWD, \"/f\", O_RDONLY|O_DIRECT) = 3", submitted.to_owned(), true),
        ("openat2(AT_FDCWD, \"/f\", {flags=O_RDONLY|O_DIRECT, resolve=0}, 24) = 3", read(3), true),
        ("openat(AT_FDCWD, \"/f\", O_RDONLY|O_DIRECT) = 3\ndup(3) = 9", read(9), true),
        // Another flag, and an opening of the file without the flag.
        ("openat(AT_FDCWD, \"/f\", O_RDONLY|O_DIRECTORY) = 3", read(3), false),
        ("openat(AT_FDCWD, \"/f\", O_RDONLY) = 3", read(3), false),
        (
            "open(\"/f\", O_RDONLY|O_DIRECT) = 3\npread64(3, \"\", 1, 0) = 1\nclose(3) = 0\n\
             open(\"/f\", O_RDONLY) = 3",
            read(3),
            false,
        ),
        ("open(\"/f\", O_RDWR) = 3\nfcntl(3, F_SETFL, O_RDWR|O_DIRECT) = 0", read(3), true),
        ("open(\"/f\", O_RDWR|O_DIRECT) = 3\nfcntl(3, F_SETFL, O_RDWR) = 0", read(3), false),
    ];
    for (calls, reads, expected) in cases {
        let line = |call: &str| format!("1 1.0 {call} <0.1>\n");
        let text = calls.split('\n').map(line).collect::<String>() + &reads;
        assert_eq!(direct_reads(&text).last(), Some(&expected), "{text}");
    }
}

/// Two reads at one place with direct I/O are two requests to a device. The list has the mode of
/// most reads, each by the opening before it.
#[test]
fn imported_direct_reads_are_replayed_with_direct_io() {
    let is_direct = |openings: &[(&str, usize)]| {
        let read = "1 5.5 pread64(3</f>, \"\"..., 4096, 0) = 4096 <0.1>\n";
        let opened = |&(flags, reads): &(&str, usize)| {
            let open = format!("1 5.0 openat(AT_FDCWD, \"/f\", {flags}) = 3</f> <0.1>\n");
            open + &read.repeat(reads)
        };
        let text: String = openings.iter().map(opened).collect();
        let mut input = crate::replay::RecordingInput::default();
        records(text.as_bytes()).unwrap().records.iter().for_each(|record| input.take(record));
        input.finish().unwrap().threads()[0].is_direct
    };
    let (direct, buffered) = ("O_RDONLY|O_DIRECT", "O_RDONLY");
    assert!(is_direct(&[(direct, 2)]) && !is_direct(&[(buffered, 2)]));
    assert!(is_direct(&[(direct, 3), (buffered, 1)]));
    assert!(!is_direct(&[(buffered, 3), (direct, 1)]));
}

/// A range that ends beyond the largest offset is EINVAL, and a buffer of 2^64 - 1 bytes is EFAULT
/// (pread(2), read(2)). Neither call reads data.
#[test]
fn failed_reads_with_extreme_arguments_are_accepted() {
    let good = "1 5.0 pread64(3</f>, \"\"..., 4096, 0) = 4096 <0.1>\n";
    for call in [
        "pread64(3</f>, 0x7f, 16, 9223372036854775807) = -1 EINVAL (Invalid argument)",
        "read(3</f>, 0x7f, 18446744073709551615) = -1 EFAULT (Bad address)",
    ] {
        let found = reads(&format!("{good}1 5.2 {call} <0.1>\n{good}"));
        let read_bytes: Vec<u64> = found.iter().map(|&(.., got, _, _)| got).collect();
        let with_data = read_bytes.iter().filter(|&&bytes| bytes == 4096).count();
        assert_eq!((with_data, read_bytes.iter().sum::<u64>()), (2, 8192), "{call}");
    }
}

/// The second event is hidden, so the request of offset 4096 may have completed with it. Then its
/// number is used again (io_submit(2) leaves the number to the program).
#[test]
fn hidden_completion_does_not_end_a_later_read_of_its_number() {
    let submit = |seconds: &str, data: u32, offset: u32| {
        format!(
            "1 {seconds} io_submit(0x7f, 1, [{{aio_data={data}, aio_lio_opcode=IOCB_CMD_PREAD, \
             aio_fildes=6</b>, aio_buf=0x7f, aio_nbytes=4096, aio_offset={offset}}}]) = 1 <0.01>\n"
        )
    };
    let text = submit("5.0", 1, 0)
        + &submit("5.1", 2, 4096)
        + "1 5.2 io_getevents(0x7f, 1, 2, [{data=1, obj=0x7f, res=4096, res2=0}, ...], NULL) \
           = 2 <0.1>\n"
        + &submit("9.0", 2, 8192)
        + "1 9.1 io_getevents(0x7f, 1, 1, [{data=2, obj=0x7f, res=4096, res2=0}], NULL) \
           = 1 <0.1>\n";
    let ns = 1_000_000_000;
    let expected =
        [(0, 0, 4096, 4096, 0, 3 * ns / 10), (0, 8192, 4096, 4096, 4 * ns, 42 * ns / 10)];
    assert_eq!(reads(&text), expected);
    let left_out = records(text.as_bytes()).unwrap().left_out.to_string();
    assert!(left_out.contains("1 io_submit of reads whose end"), "{left_out}");
}

/// Character and block devices by the list of Linux (admin-guide/devices.txt), and file systems.
#[test]
fn reads_of_character_devices_are_no_reads_of_files() {
    let characters = ["ptmx", "random", "fuse", "full", "kmsg", "input/event0", "net/tun", "pts/3"];
    let others = ["sda1", "nvme0n1", "vda", "dm-0", "md127", "mapper/vg-lv", "vg0/lv", "shm/f"];
    let imported = |name: &str| {
        let text = format!(
            "1 5.0 read(5</dev/{name}>, \"\"..., 5) = 4 <0.1>\n\
             1 5.2 read(3</f>, \"\"..., 5) = 5 <0.1>\n"
        );
        reads(&text).len()
    };
    assert_eq!(characters.map(imported), [1; 8]);
    assert_eq!(others.map(imported), [2; 8]);
}
