//! A region in a child made by `fork`, which does not inherit it: an access prints a named message,
//! calls return errors, and the parent's region is unchanged.

mod support;

use readpath::Region;
use readpath_core::machine::ReadError;
use support::{can_serve, in_child, text_of_child};

const PAGE: usize = 4096;
const BYTES: u64 = 4 << 20;
/// Termination by `SIGSEGV` (11 in signal(7)), as reported by waitpid(2).
const SEGMENTATION_FAULT: libc::c_int = 11;

fn region() -> Region {
    let options = Region::builder().memory(1 << 20);
    let mut region = options.in_folder(BYTES, env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pages = region.as_mut_slice().chunks_mut(PAGE).enumerate();
    pages.for_each(|(at, page)| page.fill(at as u8));
    region
}

fn is_whole(region: &Region) -> bool {
    let mut pages = region.as_slice().chunks(PAGE).enumerate();
    pages.all(|(at, page)| page.iter().all(|&byte| byte == at as u8))
}

fn says_what_it_is(child_text: &str) -> bool {
    child_text.contains("readpath::Region")
        && child_text.contains("fork")
        && child_text.contains("in the child")
}

/// Reads a byte at an arbitrary address.
fn touch(address: *const u8) -> bool {
    // SAFETY: none; the test checks the resulting fault.
    let byte = unsafe { address.read_volatile() };
    byte == 0
}

#[test]
fn region_touch_in_a_forked_child_prints_a_named_message() {
    if !can_serve() {
        return;
    }
    let mut region = region();
    for offset in [0, 7 * PAGE, BYTES as usize - 1] {
        let (status, child_text) = text_of_child(|| touch(&raw const region.as_slice()[offset]));
        assert_eq!(status & 0x7f, SEGMENTATION_FAULT, "{child_text}");
        assert!(says_what_it_is(&child_text), "{child_text}");
    }
    let (status, child_text) = text_of_child(|| {
        region.as_mut_slice()[5] = 5;
        true
    });
    assert!(status & 0x7f == SEGMENTATION_FAULT && says_what_it_is(&child_text), "{child_text}");
    // In a grandchild too.
    let (_, child_text) = text_of_child(|| in_child(|| touch(region.as_slice().as_ptr())));
    assert!(says_what_it_is(&child_text), "{child_text}");
    assert!(is_whole(&region));
    // No message for other memory, or for the address of a dropped region.
    let was = region.as_slice().as_ptr() as usize;
    let (status, child_text) = text_of_child(|| touch(std::ptr::without_provenance(8)));
    assert!(status & 0x7f == SEGMENTATION_FAULT && child_text.is_empty(), "{child_text}");
    drop(region);
    let (status, child_text) = text_of_child(|| touch(std::ptr::without_provenance(was)));
    assert!(status & 0x7f != SEGMENTATION_FAULT || child_text.is_empty(), "{child_text}");
}

extern "C" fn exit_with_7(_: libc::c_int) {
    // SAFETY: ends the process, which a handler may do.
    unsafe { libc::_exit(7) }
}

#[test]
fn program_signal_handler_runs_after_the_message() {
    if !can_serve() {
        return;
    }
    let region = region();
    let (status, child_text) = text_of_child(|| {
        // SAFETY: the handler ends the process.
        unsafe { libc::signal(libc::SIGSEGV, exit_with_7 as *const () as usize) };
        let status = support::status_of_child(|| touch(region.as_slice().as_ptr()));
        // SAFETY: ends the child without running the parent's code.
        unsafe { libc::_exit(libc::WEXITSTATUS(status)) }
    });
    assert_eq!(
        (libc::WEXITSTATUS(status), says_what_it_is(&child_text)),
        (7, true),
        "{child_text}"
    );
    assert!(is_whole(&region));
}

#[test]
fn region_calls_in_a_forked_child_are_errors_and_spare_the_parent() {
    if !can_serve() {
        return;
    }
    let mut region = Some(region());
    let child = |region: &mut Option<Region>| {
        let ours = region.as_ref().unwrap();
        assert_eq!(ours.load(0, 100), Err(ReadError::OtherProcess));
        assert_eq!(ours.check(), Err(ReadError::OtherProcess));
        assert!(ReadError::OtherProcess.to_string().contains("fork"));
        ours.will_need(0, BYTES);
        assert_eq!(ours.stats(), Default::default());
        drop(region.take());
        // The child can have a region of its own.
        is_whole(&self::region())
    };
    assert!(in_child(|| child(&mut region)));
    let region = region.unwrap();
    assert!(is_whole(&region));
    region.check().unwrap();
    assert!(region.stats().faults > 0);
}

/// A part of a page, a whole page, and no byte at all.
#[test]
fn region_discard_in_a_forked_child_is_a_panic() {
    if !can_serve() {
        return;
    }
    let mut region = region();
    for bytes in [0, 100, PAGE as u64] {
        let (status, child_text) = text_of_child(|| {
            let discard = std::panic::AssertUnwindSafe(|| region.discard(0, bytes));
            std::panic::catch_unwind(discard).is_err()
        });
        assert_eq!(status, 0, "{bytes} bytes: {child_text}");
    }
    assert!(is_whole(&region));
}
