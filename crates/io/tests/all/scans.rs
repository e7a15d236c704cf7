//! A hot set during a scan, through `File`: reads are recorded as two access bits per page, and the
//! hot set stays cached.

use crate::support::TempFile;
use readpath::ReadPath;
use readpath_core::splitmix;

const PAGE: u64 = 4096;
const MEMORY_PAGES: u64 = 2048;
const HOT_PAGES: u64 = MEMORY_PAGES * 3 / 8;
const FILE_PAGES: u64 = 24_576;
const WARM_UP: u64 = 5_000;
const COUNTED: u64 = 15_000;

/// Fraction of the hot set's bytes that were cached, while as many bytes are scanned in reads of
/// `step` bytes as are read of the hot set. Step 0 means no scan.
fn hot_hits(eviction: &str, temp: &TempFile, step: u64) -> f64 {
    // A readahead policy without measurements: the counts are the same on any disk.
    let builder = ReadPath::builder().memory(MEMORY_PAGES * PAGE).readahead("ondemand");
    let builder = builder.eviction(eviction);
    let path = builder.build().unwrap();
    let [hot, scan] = [0, 1].map(|_| path.open(&temp.path).unwrap());
    let mut buffer = vec![0; (64 << 10).max(step as usize)];
    let (mut state, mut credit, mut at) = (3, 0, HOT_PAGES * PAGE);
    let mut before = hot.stats();
    for nth in 0..WARM_UP + COUNTED {
        if nth == WARM_UP {
            before = hot.stats();
        }
        let page = splitmix::next(&mut state) % HOT_PAGES;
        hot.read_at(&mut buffer[..PAGE as usize], page * PAGE).unwrap();
        credit += if step > 0 { PAGE } else { 0 };
        while step > 0 && credit >= step {
            credit -= step;
            scan.read_at(&mut buffer[..step as usize], at).unwrap();
            at += step;
        }
    }
    let after = hot.stats();
    (after.cached_bytes - before.cached_bytes) as f64 / (after.bytes - before.bytes) as f64
}

#[test]
fn hot_set_keeps_its_hits_during_a_scan_of_any_step() {
    let temp = TempFile::new((FILE_PAGES * PAGE) as usize);
    let alone = hot_hits("adaptive", &temp, 0);
    assert!(alone > 0.99, "{alone}");
    for step in [512, 1 << 10, 4 << 10, 64 << 10] {
        let beside = hot_hits("adaptive", &temp, step);
        println!("by {step}: {beside:.4}, alone {alone:.4}");
        assert!(beside >= 0.98 * alone, "by {step}: {beside}, alone {alone}");
    }
}
