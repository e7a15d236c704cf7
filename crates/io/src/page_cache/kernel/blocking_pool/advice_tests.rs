//! Tests of the bound on the queued advice of a file.

use readpath_core::unit::PageRange;

use super::tests::read_job;
use super::{BlockingPoolState, FileKey, Job};
use crate::target::Target;

/// Advice of a file with eight threads in reads is dropped from the 1,025th job on. With seven
/// threads, no advice is dropped, unless the device has its 64 threads. Reads are not affected.
#[test]
fn queued_advice_of_a_stuck_file_is_bounded() {
    let program_path = std::env::current_exe().unwrap();
    let target = Target::open(&program_path, Default::default()).unwrap();
    let key @ FileKey { device, inode } = FileKey::from_target(&target);
    let advice_job = |page| {
        let pages = PageRange::new(page, 1);
        Job::Advise { target: Box::new(target.clone()), pages }
    };
    let cases = [(0, 0, 5_000), (7, 56, 5_000), (7, 57, 1_024), (8, 0, 1_024)];
    for (threads, other_threads, jobs) in cases {
        let mut pool = BlockingPoolState::default();
        let other_files = (1..=other_threads).map(|nth| inode + nth);
        for read_inode in other_files.chain((0..threads).map(|_| inode)) {
            assert!(pool.push_job(read_job(device, read_inode)) && pool.take_job().is_some());
        }
        let queued = (0..5_000).filter(|&page| pool.push_job(advice_job(page))).count();
        assert_eq!((queued, pool.files[&key].queue.len()), (jobs, jobs), "{threads} threads");
        assert!(pool.push_job(read_job(device, inode)));
        // A thread ends and takes one job, so there is room for one.
        if threads == 8 {
            pool.record_end(key);
            assert!(pool.take_job().is_some());
            assert!(pool.push_job(advice_job(0)) && !pool.push_job(advice_job(0)));
        }
    }
}
