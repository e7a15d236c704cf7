//! Contract of a device, checked on all backends, direct and buffered: right bytes at every offset,
//! short reads at the end, named errors, cancellation, and no request left in flight.

use std::time::{Duration, Instant};

use crate::device::*;
use crate::support::*;
use readpath::inside::{OpenOptions, Target};
use readpath::{BackendKind, Direct};
use readpath_core::request::{DeviceError, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

/// Runs a test on every backend, direct and buffered.
fn everywhere(mut test: impl FnMut(BackendKind, Direct)) {
    for backend in BACKENDS {
        for direct in DIRECTS {
            eprintln!("{backend:?}, direct {direct:?}");
            test(backend, direct);
        }
    }
}

#[test]
fn device_reads_equal_the_file_at_any_offset_and_size() {
    let file_bytes = 3 * (1 << 20) + 1_234;
    let file = TempFile::new(file_bytes as usize);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 1024);
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut reads: Vec<(u64, u64)> =
            (0..200).map(|_| (next(file_bytes + 9_000), 1 + next(300_000))).collect();
        // A byte, a page, both sides of a boundary, the end, past the end.
        reads.extend([(0, 1), (0, 4096), (4095, 2), (file_bytes - 1, 1), (file_bytes - 1, 2)]);
        reads.extend([(file_bytes, 1), (file_bytes + 1, 1), (file_bytes + 100_000, 5_000)]);
        for (offset, bytes) in reads {
            let got = read_bytes(&mut device, offset, bytes);
            assert!(got == pread(&file.path, offset, bytes), "{bytes} bytes at {offset}");
        }
    });
}

#[test]
fn last_page_is_short_and_pages_past_it_are_empty() {
    let file = TempFile::new(10 * 4096 + 100);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 32);
        // Requested pages and expected outcome, computed by hand from the length.
        for (pages, outcome) in [
            (PageRange::new(0, 10), Outcome::Done),
            (PageRange::new(10, 1), Outcome::Short { bytes: 100 }),
            (PageRange::new(8, 16), Outcome::Short { bytes: 8_292 }),
            (PageRange::new(11, 1), Outcome::Short { bytes: 0 }),
            (PageRange::new(1 << 30, 4), Outcome::Short { bytes: 0 }),
        ] {
            let frames: Vec<u32> = (0..pages.count() as u32).collect();
            device.submit(read_pages(7, pages), &frames);
            let completion = completion(&mut device);
            assert_eq!((completion.id, completion.outcome), (RequestId(7), outcome), "{pages:?}");
        }
    });
}

#[test]
fn shrunk_file_reads_short_at_its_new_end() {
    for new_bytes in [5 * 4096, 5 * 4096 + 1_000] {
        everywhere(|backend, direct| {
            let file = TempFile::new(16 * 4096);
            let mut device = device(open(&file.path, direct), backend, 16);
            std::fs::File::options()
                .write(true)
                .open(&file.path)
                .unwrap()
                .set_len(new_bytes)
                .unwrap();
            device.submit(read_pages(0, PageRange::new(2, 8)), &[0, 1, 2, 3, 4, 5, 6, 7]);
            let expected = Outcome::Short { bytes: new_bytes - 2 * 4096 };
            assert_eq!(completion(&mut device).outcome, expected);
        });
    }
}

#[test]
fn requests_up_to_the_depth_complete_once_each() {
    let file = TempFile::new(1 << 20);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 256);
        let depth = device.caps().depth_max.min(64);
        for id in 0..depth {
            let page = u64::from(id * 37 % 250);
            device.submit(read_pages(id, PageRange::new(page, 4)), &four_frames(id));
        }
        assert_eq!(device.in_flight(), depth);
        let mut seen = vec![false; depth as usize];
        let mut at_previous = Time::ZERO;
        for _ in 0..depth {
            let completion = completion(&mut device);
            assert_eq!(completion.outcome, Outcome::Done);
            assert!(completion.at >= at_previous && completion.at <= device.now());
            at_previous = completion.at;
            let id = completion.id.0;
            assert!(!std::mem::replace(&mut seen[id as usize], true), "{id} completed twice");
            let got: Vec<u8> = four_frames(id)
                .iter()
                .flat_map(|&frame| device.frame(frame).iter().copied())
                .collect();
            assert!(got == pread(&file.path, u64::from(id * 37 % 250) * PAGE_BYTES, 16_384));
        }
        assert_eq!((device.in_flight(), device.poll()), (0, None));
    });
}

fn four_frames(id: u32) -> [u32; 4] {
    [id * 4, id * 4 + 1, id * 4 + 3, id * 4 + 2]
}

#[test]
fn write_to_a_read_only_file_fails_with_ebadf() {
    // A medium error needs a failing device: block_device.rs.
    let file = TempFile::new(1 << 16);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 16);
        let request = DeviceRequest { op: Op::Write, ..read_pages(3, PageRange::new(0, 1)) };
        device.submit(request, &[0]);
        let outcome = completion(&mut device).outcome;
        assert_eq!(outcome, Outcome::Failed(DeviceError::Other(9)), "EBADF is 9 in errno(3)");
        // The device remains usable.
        assert!(read_bytes(&mut device, 5, 10) == pread(&file.path, 5, 10));
    });
}

#[test]
fn misaligned_direct_request_fails_with_einval() {
    let file = TempFile::new(1 << 16);
    if !takes_direct(&file.path) {
        return;
    }
    for backend in BACKENDS {
        let target = open(&file.path, Direct::Required);
        let mut device = device(target, backend, 2);
        let pieces = std::iter::once((1, PAGE_BYTES as usize));
        device.submit_pieces(read_pages(1, PageRange::new(0, 1)), pieces);
        let outcome = completion(&mut device).outcome;
        assert_eq!(outcome, Outcome::Failed(DeviceError::Other(22)), "EINVAL is 22 in errno(3)");
    }
}

#[test]
fn written_pages_are_read_back() {
    everywhere(|backend, direct| {
        let file = TempFile::new(1 << 18);
        let options = OpenOptions { direct, is_writable: true };
        let mut device = device(Target::open(&file.path, options).unwrap(), backend, 8);
        let frames = [5, 6, 1, 2];
        for (index, &frame) in frames.iter().enumerate() {
            device.frame_mut(frame).fill(index as u8 + 1);
        }
        let request = DeviceRequest {
            op: Op::Write,
            ..read_pages(0, PageRange::new(7, frames.len() as u64))
        };
        device.submit(request, &frames);
        // Frames of a write in flight can be read.
        assert_eq!(device.frame(5)[0], 1);
        assert_eq!(completion(&mut device).outcome, Outcome::Done);
        let got = pread(&file.path, 0, 1 << 18);
        let mut expected = content(1 << 18);
        for index in 0..frames.len() {
            expected[(7 + index) * 4096..(8 + index) * 4096].fill(index as u8 + 1);
        }
        assert!(got == expected);
    });
}

#[test]
fn cancelled_request_completes_once_and_frees_its_frames() {
    let file = TempFile::new(1 << 22);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 1024);
        let caps = device.caps();
        let count = caps.depth_max.min(64);
        for id in 0..count {
            let frames: Vec<u32> = (id * 16..id * 16 + 16).collect();
            device.submit(read_pages(id, PageRange::new(u64::from(id) * 16, 16)), &frames);
            device.cancel(RequestId(id));
            device.cancel(RequestId(id));
        }
        device.cancel(RequestId(9_999));
        for _ in 0..count {
            let outcome = completion(&mut device).outcome;
            let is_known = [Outcome::Done, Outcome::Failed(DeviceError::Cancelled)];
            assert!(is_known.contains(&outcome), "{outcome:?}");
        }
        assert_eq!(device.in_flight(), 0);
        for frame in 0..count * 16 {
            device.frame_mut(frame)[0] = 0;
        }
    });
}

#[test]
fn a_device_is_dropped_with_requests_in_flight() {
    let file = TempFile::new(1 << 22);
    everywhere(|backend, direct| {
        for is_handed_over in [false, true] {
            let mut device = device(open(&file.path, direct), backend, 1024);
            for id in 0..device.caps().depth_max.min(64) {
                let frames: Vec<u32> = (id * 16..id * 16 + 16).collect();
                device.submit(read_pages(id, PageRange::new(u64::from(id) * 16, 16)), &frames);
            }
            if is_handed_over {
                device.flush().unwrap();
            }
        }
    });
}

#[test]
fn waiting_ends_at_the_deadline_and_at_once_when_nothing_is_in_flight() {
    let file = TempFile::new(1 << 16);
    // A sleep without an answer needs a file that does not answer: the ring's unit tests read a
    // pipe.
    for backend in BACKENDS {
        let mut device = device(open(&file.path, Direct::Preferred), backend, 16);
        let start = Instant::now();
        device.wait(None).unwrap();
        device.wait(Some(device.now() + Time::from_s(3_600))).unwrap();
        device.submit(read_pages(0, PageRange::new(0, 1)), &[0]);
        device.wait(Some(Time::ZERO)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(3_000), "it slept with nothing to wait for");
        assert_eq!(completion(&mut device).outcome, Outcome::Done);
    }
}

#[test]
fn largest_request_accepts_scattered_frames() {
    let file = TempFile::new(5 << 20);
    everywhere(|backend, direct| {
        let mut device = device(open(&file.path, direct), backend, 2048);
        let pages = u64::from(device.caps().request_sectors_max) / PAGE_SECTORS;
        // Every second frame: as many segments as pages.
        let frames: Vec<u32> = (0..pages as u32).map(|index| index * 2).collect();
        device.submit(read_pages(0, PageRange::new(1, pages)), &frames);
        assert_eq!(completion(&mut device).outcome, Outcome::Done);
        let expected = pread(&file.path, 4096, pages * PAGE_BYTES);
        for (index, &frame) in frames.iter().enumerate() {
            let part = &expected[index * 4096..(index + 1) * 4096];
            assert!(device.frame(frame) == part, "page {index}");
        }
    });
}
