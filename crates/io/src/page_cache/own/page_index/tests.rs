//! Tests of the index, compared with maps of the standard library.

use super::*;

const FILE: FileId = FileId(3);

fn found(index: &PageIndex<Std>, file: FileId, page: u64) -> Option<u32> {
    index.look_up(
        &index.sign_in(file, page, 0).expect("the group has no other reader"),
        file,
        page,
        true,
    )
}

#[test]
fn shared_page_is_found_until_it_is_recalled() {
    let index = PageIndex::<Std>::new(64, 1);
    let pages: Vec<u64> = (0..64).map(|frame| frame * 977 % 1_000_003).collect();
    for (frame, &page) in pages.iter().enumerate() {
        index.share(FILE, page, &[FrameId(frame as u32)], 0);
    }
    for (frame, &page) in pages.iter().enumerate() {
        assert_eq!(found(&index, FILE, page), Some(frame as u32));
        assert_eq!(found(&index, FileId(4), page), None);
        assert!(index.recall(frame as u32));
        assert_eq!(found(&index, FILE, page), None);
    }
}

#[test]
fn pin_prevents_recall_and_last_release_frees_an_invalidated_frame() {
    let index = PageIndex::<Std>::new(2, 1);
    index.share(FILE, 7, &[FrameId(0)], 0);
    for _ in 0..2 {
        assert_eq!(index.pin(FILE, 7, false), PinOutcome::Pinned(0));
        assert!(!index.recall(0));
    }
    assert!(index.have_all_readers_left(&mut index.invalidate(0)) && !index.mark_invalidated(0));
    assert_eq!(found(&index, FILE, 7), None);
    assert!(!index.unpin(0));
    assert!(index.unpin(0));
    index.share(FILE, 8, &[FrameId(0)], 0);
    assert!(index.have_all_readers_left(&mut index.invalidate(0)) && index.mark_invalidated(0));
}

#[test]
fn copy_in_progress_prevents_recall_and_delays_invalidation() {
    let index = PageIndex::<Std>::new(4, 2);
    for (page, frame) in [(7, 0), (8, 1), (16, 2)] {
        index.share(FILE, page, &[FrameId(frame)], 0);
    }
    let reading = index.sign_in(FILE, 8, 0).expect("the group has no other reader");
    assert_eq!(index.recall_all(&[0, 1, 2].map(FrameId)), 0b011);
    assert_eq!([7, 8, 16].map(|page| index.is_shared(FILE, page)), [true, true, false]);
    let mut copies = index.invalidate(1);
    assert!(!index.is_shared(FILE, 8) && !index.have_all_readers_left(&mut copies));
    drop(reading);
    assert!(
        index.have_all_readers_left(&mut copies) && index.mark_invalidated(1) && index.recall(0)
    );
}

#[test]
fn marked_page_is_not_shared_until_it_is_unmarked() {
    let index = PageIndex::<Std>::new(2, 1);
    index.share(FILE, 7, &[FrameId(1)], 1);
    assert!(!index.is_shared(FILE, 7) && found(&index, FILE, 7).is_none());
    assert_eq!(index.pin(FILE, 7, false), PinOutcome::Absent);
    assert_eq!(index.pin(FILE, 7, true), PinOutcome::Pinned(1));
    assert!(!index.unpin(1));
    index.unmark(1);
    assert!(index.is_shared(FILE, 7));
    assert_eq!((index.take_uses(1), index.take_uses(1)), (UseCount::Once, UseCount::None));
    for uses in [UseCount::Once, UseCount::Again, UseCount::Again] {
        let pins = match uses {
            UseCount::Once => 1,
            _ => 3,
        };
        for _ in 0..pins {
            assert_eq!(found(&index, FILE, 7), Some(1));
        }
        assert_eq!(index.take_uses(1), uses);
    }
}

#[test]
fn recall_of_many_frames_skips_pinned_ones() {
    let index = PageIndex::<Std>::new(6, 1);
    for (frame, page) in [(0, 14), (1, 15), (2, 16), (4, 17), (5, 40)] {
        index.share(FILE, page, &[FrameId(frame)], 0);
    }
    assert_eq!(index.pin(FILE, 15, false), PinOutcome::Pinned(1));
    assert_eq!(index.pin(FILE, 17, false), PinOutcome::Pinned(4));
    assert_eq!(index.recall_all(&[0, 1, 2, 3, 4].map(FrameId)), 0b10010);
    let pages = [14, 15, 16, 17, 40].map(|page| index.is_shared(FILE, page));
    assert_eq!(pages, [false, true, false, true, true]);
    assert_eq!(index.recall_all(&[]), 0);
}
