//! Decision log of a live path: each decision once, as the command prints it.

use crate::support::{TempFile, own_cache};
use readpath::{Decision, ReadPath};

const PAGE: usize = 4096;

fn stream(path: &ReadPath, temp: &TempFile) {
    // Resident pages would be read from the kernel page cache.
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut buffer = vec![0; 16 * PAGE];
    for at in 0..64 {
        file.read_exact_at(&mut buffer, (at * 16 * PAGE) as u64).unwrap();
    }
}

#[test]
fn stream_decisions_are_returned_once_and_in_order() {
    let temp = TempFile::new(64 * 16 * PAGE);
    let path =
        own_cache().kernel_cache(false).scheduler("cfq").log_decisions(true).build().unwrap();
    stream(&path, &temp);
    let decided = path.take_decisions();
    assert!(decided.is_sorted_by_key(|decided| decided.at));
    let lines: Vec<String> = decided.iter().map(ToString::to_string).collect();
    assert!(lines.iter().all(|line| line.starts_with("at_ms=") && line.contains(" event=")));
    // The policy or its reader requested all of the file from the device.
    let sectors = decided.iter().map(|decided| match decided.decision {
        Decision::Dispatch { sectors, .. } => u64::from(sectors),
        _ => 0,
    });
    assert_eq!(sectors.sum::<u64>() * 512, path.stats().device_bytes);
    let is_ahead = |line: &String| line.contains(" event=read_ahead ");
    assert!(lines.iter().any(is_ahead), "the policy read ahead of a stream");
    assert_eq!(path.take_decisions(), []);
}

#[test]
fn decision_log_is_empty_unless_enabled() {
    let temp = TempFile::new(64 * 16 * PAGE);
    let path = own_cache().kernel_cache(false).scheduler("cfq").build().unwrap();
    stream(&path, &temp);
    assert_eq!(path.take_decisions(), []);
}

#[test]
fn decision_log_is_bounded_and_counts_lost_entries() {
    let temp = TempFile::new(10_000 * PAGE);
    let policies = own_cache().kernel_cache(false).readahead("none").scheduler("cfq");
    let path = policies.memory(64 * PAGE as u64).log_decisions(true).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut page = vec![0; PAGE];
    for at in 0..5_000u64 {
        file.read_exact_at(&mut page, at * 7 % 10_000 * PAGE as u64).unwrap();
    }
    let decided = path.take_decisions();
    assert_eq!(decided.len(), 4_097);
    assert!(matches!(decided[0].decision, Decision::Lost { count } if count >= 5_000 - 4_096));
}

/// A file that was never read has the initial estimate, 1 ms per request. Later estimates depend on
/// the disk and the kernel page cache, so only their consistency is checked. (Their values are
/// tested on a modelled device.)
#[test]
fn file_statistics_contain_the_readahead_state() {
    let temp = TempFile::new(64 * 16 * PAGE);
    for builder in [ReadPath::builder(), own_cache().kernel_cache(false)] {
        let path = builder.build().unwrap();
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let file = path.open(&temp.path).unwrap();
        let readahead_state = file.stats().readahead_state.expect("this is no child");
        assert_eq!((readahead_state.request.as_micros(), &readahead_state.window), (1000, &None));
        assert_eq!(readahead_state.used_percent, None);
        // Descending: the kernel does not detect such a stream.
        let mut buffer = vec![0; 16 * PAGE];
        for at in (0..64).rev() {
            file.read_exact_at(&mut buffer, (at * 16 * PAGE) as u64).unwrap();
        }
        let readahead_state = file.stats().readahead_state.expect("this is no child");
        if let Some(window) = &readahead_state.window {
            assert!(window.bytes.start < window.bytes.end, "{readahead_state}");
            assert!(window.bytes.end <= 64 * 16 * PAGE as u64, "{readahead_state}");
        }
        assert!(
            readahead_state.marginal_cost_bytes > 0 && readahead_state.bytes_per_s > 0,
            "{readahead_state}"
        );
        assert!(readahead_state.used_percent.is_none_or(|used| used <= 100), "{readahead_state}");
    }
}
