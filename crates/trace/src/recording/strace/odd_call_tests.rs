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
