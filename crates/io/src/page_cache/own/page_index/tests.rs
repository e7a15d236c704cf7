//! Tests of the index, compared with maps of the standard library.

use super::*;

const FILE: FileId = FileId(3);

/// Mark bits of pages without a mark.
const NO_MARKS: u64 = 0;
/// Mark bits with which the first page is marked.
const FIRST_MARKED: u64 = 1;
const IGNORES_MARK: bool = true;
const RESPECTS_MARK: bool = false;

/// Signs in for a page in slot 0, looks it up and counts a use. Returns its frame.
fn look_up_once(index: &PageIndex<Std>, file: FileId, page: u64) -> Option<u32> {
    let reader = index.sign_in(file, page, 0).expect("the group has no other reader");
    let counts_use = true;
    index.look_up(&reader, file, page, counts_use)
}

/// 64 pages at scattered numbers, one in each frame. Each is found, and is absent after its recall.
#[test]
fn shared_page_is_found_until_it_is_recalled() {
    let index = PageIndex::<Std>::new(64, 1);
    let pages: Vec<u64> = (0..64).map(|frame| frame * 977 % 1_000_003).collect();
    for (frame, &page) in pages.iter().enumerate() {
        index.share(FILE, page, &[FrameId(frame as u32)], NO_MARKS);
    }
    for (frame, &page) in pages.iter().enumerate() {
        assert_eq!(look_up_once(&index, FILE, page), Some(frame as u32));
        assert_eq!(look_up_once(&index, FileId(4), page), None);
        assert!(index.recall(frame as u32));
        assert_eq!(look_up_once(&index, FILE, page), None);
    }
}

/// Page 7 in frame 0 has two pins when it is invalidated: only the second unpin reports the frame.
/// Page 8 has no pin, so its invalidation itself frees the frame.
#[test]
fn pin_prevents_recall_and_last_release_frees_an_invalidated_frame() {
    let index = PageIndex::<Std>::new(2, 1);
    index.share(FILE, 7, &[FrameId(0)], NO_MARKS);
    for _ in 0..2 {
        assert_eq!(index.pin(FILE, 7, RESPECTS_MARK), PinOutcome::Pinned(0));
        assert!(!index.recall(0));
    }
    assert!(index.have_all_readers_left(&mut index.invalidate(0)) && !index.mark_invalidated(0));
    assert_eq!(look_up_once(&index, FILE, 7), None);
    assert!(!index.unpin(0));
    assert!(index.unpin(0));
    index.share(FILE, 8, &[FrameId(0)], NO_MARKS);
    assert!(index.have_all_readers_left(&mut index.invalidate(0)) && index.mark_invalidated(0));
}

/// Pages 7 and 8 are in one group, and page 16 in the next. A reader copies page 8: no page of its
/// group can be recalled, so bits 0 and 1 are refused, and page 16 is recalled. The invalidation of
/// page 8 ends its sharing at once, but its frame stays in use until the copy ends. Then no pin is
/// left either, so the mark frees the frame.
#[test]
fn copy_in_progress_prevents_recall_and_delays_invalidation() {
    let (frames, readers) = (4, 2);
    let index = PageIndex::<Std>::new(frames, readers);
    for (page, frame) in [(7, 0), (8, 1), (16, 2)] {
        index.share(FILE, page, &[FrameId(frame)], NO_MARKS);
    }
    let reader_slot = 0;
    let reader = index.sign_in(FILE, 8, reader_slot).expect("the group has no other reader");
    let refused = index.recall_all(&[0, 1, 2].map(FrameId));
    assert_eq!(refused, 0b011);
    assert_eq!([7, 8, 16].map(|page| index.is_shared(FILE, page)), [true, true, false]);
    let frame_of_page_8 = 1;
    let mut active_readers = index.invalidate(frame_of_page_8);
    assert!(!index.is_shared(FILE, 8) && !index.have_all_readers_left(&mut active_readers));
    drop(reader);
    assert!(index.have_all_readers_left(&mut active_readers));
    let is_frame_free = index.mark_invalidated(frame_of_page_8);
    assert!(is_frame_free);
    let frame_of_page_7 = 0;
    assert!(index.recall(frame_of_page_7));
}

/// Page 7 in frame 1 is marked. The pin that ignores the mark is its first use. After that, three
/// uses count as repeated, like any number above one.
#[test]
fn marked_page_is_not_shared_until_it_is_unmarked() {
    let index = PageIndex::<Std>::new(2, 1);
    index.share(FILE, 7, &[FrameId(1)], FIRST_MARKED);
    assert!(!index.is_shared(FILE, 7) && look_up_once(&index, FILE, 7).is_none());
    assert_eq!(index.pin(FILE, 7, RESPECTS_MARK), PinOutcome::Absent);
    assert_eq!(index.pin(FILE, 7, IGNORES_MARK), PinOutcome::Pinned(1));
    assert!(!index.unpin(1));
    index.unmark(1);
    assert!(index.is_shared(FILE, 7));
    index.mark(1);
    assert!(!index.is_shared(FILE, 7));
    index.unmark(1);
    assert_eq!((index.take_uses(1), index.take_uses(1)), (UseCount::Once, UseCount::None));
    for uses in [UseCount::Once, UseCount::Again, UseCount::Again] {
        let lookups = match uses {
            UseCount::Once => 1,
            _ => 3,
        };
        for _ in 0..lookups {
            assert_eq!(look_up_once(&index, FILE, 7), Some(1));
        }
        assert_eq!(index.take_uses(1), uses);
    }
}

/// Frames 1 and 4 are pinned: bits 1 and 4 are refused. Frame 3 was never shared, and frame 5 is
/// not recalled.
#[test]
fn recall_of_many_frames_skips_pinned_ones() {
    let index = PageIndex::<Std>::new(6, 1);
    for (frame, page) in [(0, 14), (1, 15), (2, 16), (4, 17), (5, 40)] {
        index.share(FILE, page, &[FrameId(frame)], NO_MARKS);
    }
    assert_eq!(index.pin(FILE, 15, RESPECTS_MARK), PinOutcome::Pinned(1));
    assert_eq!(index.pin(FILE, 17, RESPECTS_MARK), PinOutcome::Pinned(4));
    assert_eq!(index.recall_all(&[0, 1, 2, 3, 4].map(FrameId)), 0b10010);
    let are_shared = [14, 15, 16, 17, 40].map(|page| index.is_shared(FILE, page));
    assert_eq!(are_shared, [false, true, false, true, true]);
    assert_eq!(index.recall_all(&[]), 0);
}
