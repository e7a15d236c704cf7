//! Tests of the AIO context and of its threads.

use super::*;

/// A context that was kept for reuse, and whose memory has no answer queue.
#[test]
fn context_without_a_shared_queue_is_not_kept_for_reuse() {
    // No other test uses contexts of this depth.
    const DEPTH: u32 = 1_237;
    request_share::reserve(DEPTH);
    let id = Box::leak(Box::new([0u64; 4])).as_ptr() as usize;
    let idle_context = IdleContext { process: ProcessNumber::current(), id, depth: DEPTH };
    IDLE_CONTEXTS.lock().unwrap().push(idle_context);
    // The context is not taken while another test holds the lock.
    let error = (0..1_000).find_map(|_| Aio::new(DEPTH).err());
    assert_eq!(error, Some(BackendError::NoAio { errno: libc::ENOSYS }));
    assert!(IDLE_CONTEXTS.lock().unwrap().iter().all(|context| context.id != id));
}

/// A buffered read of a page, by a wait without a limit.
#[test]
fn wait_executes_a_single_buffered_transfer_without_a_worker() {
    let path = std::env::temp_dir().join(format!("readpath-aio-{}", std::process::id()));
    std::fs::write(&path, [7; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // A sandbox may forbid AIO.
    let Ok(mut aio) = Aio::new(1) else { return };
    let mut bytes = [0u8; 4096];
    let segments = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let transfer = Transfer {
        token: 5,
        fd: file.as_raw_fd(),
        op: Op::Read,
        offset: 0,
        segments: &segments,
        is_direct: false,
    };
    let mut answers = Vec::new();
    // SAFETY: the bytes and the file outlive the answer.
    unsafe { aio.queue(transfer) };
    aio.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
    assert_eq!(answers, [KernelAnswer { token: 5, raw: 4096 }]);
    assert_eq!(aio.context.pool.worker_count(), 0);
    assert_eq!(bytes, [7; 4096]);
}
