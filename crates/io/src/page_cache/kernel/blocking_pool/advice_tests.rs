//! Tests of the bound on the queued advice of a file.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use readpath_core::unit::PageRange;

use super::tests::{forbid_threads, read_job};
use super::{BlockingPool, BlockingPoolState, FileKey, Job};
use crate::os::thread;
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
            assert!(
                pool.push_job(read_job(device, read_inode)).is_some() && pool.take_job().is_some()
            );
        }
        let queued = (0..5_000).filter(|&page| pool.push_job(advice_job(page)).is_some()).count();
        assert_eq!((queued, pool.files[&key].queue.len()), (jobs, jobs), "{threads} threads");
        assert!(pool.push_job(read_job(device, inode)).is_some());
        // A thread ends and takes one job, so there is room for one.
        if threads == 8 {
            pool.record_end(key);
            assert!(pool.take_job().is_some());
            assert!(
                pool.push_job(advice_job(0)).is_some() && pool.push_job(advice_job(0)).is_none()
            );
        }
    }
}

/// Waker that reports its call and then waits for the sender to be dropped.
struct StuckWaker {
    has_begun: Sender<()>,
    release: Mutex<Receiver<()>>,
}

impl Wake for StuckWaker {
    fn wake(self: Arc<StuckWaker>) {
        self.has_begun.send(()).unwrap();
        let _ = self.release.lock().unwrap().recv();
    }
}

/// The only thread of the pool is stuck, and the system provides no other one. Advice is then
/// dropped from the 1,025th call on, with few threads in the file.
#[test]
fn queued_advice_is_bounded_if_no_thread_can_be_started() {
    let pool = Arc::new(BlockingPool::new());
    let ((has_begun, begun), (release_sender, release)) = (channel(), channel());
    let Job::Read(read) = read_job(0, 1) else { unreachable!("it is a read") };
    let waker = Waker::from(Arc::new(StuckWaker { has_begun, release: Mutex::new(release) }));
    assert!(!read.poll(&waker));
    pool.queue_job(Job::Read(Arc::clone(&read))).unwrap();
    begun.recv().unwrap();
    let program_path = std::env::current_exe().unwrap();
    let target = Target::open(&program_path, Default::default()).unwrap();
    let queue_advice = |pool: &BlockingPool, target: &Target, page| {
        let (target, pages) = (Box::new(target.clone()), PageRange::new(page, 1));
        pool.queue_job(Job::Advise { target, pages }).map_err(|error| error.kind())
    };
    let shared = Arc::clone(&pool.shared);
    let queued_jobs = |key| shared.lock().files.get(&key).map_or(0, |file| file.queue.len());
    let key = FileKey::from_target(&target);
    let (restricted_pool, restricted_target) = (Arc::clone(&pool), target.clone());
    let restricted = thread::spawn("restricted", move || {
        forbid_threads();
        let results = (0..5_000)
            .map(|page| queue_advice(&restricted_pool, &restricted_target, page))
            .collect::<Vec<_>>();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1_024);
        assert_eq!(results[1_024], Err(io::ErrorKind::QuotaExceeded));
    });
    restricted.unwrap().join().unwrap();
    assert_eq!(queued_jobs(key), 1_024);
    // Another thread of the program may start threads: the dropped advice starts one.
    assert_eq!(queue_advice(&pool, &target, 0), Err(io::ErrorKind::QuotaExceeded));
    while queued_jobs(key) > 0 {
        std::thread::yield_now();
    }
    drop(release_sender);
}
