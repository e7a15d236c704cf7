//! Denied system calls: under a filter like a container's default profile, as an ordinary user with
//! little locked memory, and with calls denied later. Each test runs in a separate process.

extern crate readpath_dst as readpath;

#[path = "support/device.rs"]
mod device;
#[path = "../../io/tests/support/mod.rs"]
mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use device::*;
use readpath::pager::UffdError;
use readpath::pager::{KernelMappingReason, MappingMode};
use readpath::{
    BackendError, BackendKind, Direct, Mapping, Mode, PagerError, RawFile, ReadPath, Region,
};
use support::*;

/// Environment variable set in a test's separate process.
const INSIDE: &str = "READPATH_TEST_INSIDE";

/// System calls of ours that default profiles of containers deny.
const RING: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
const AIO: [i64; 2] = [libc::SYS_io_setup, libc::SYS_io_submit];

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const NUMBER: u32 = 0; // of `struct seccomp_data`: which call it is

/// A filter instruction with operand `k`, and the jumps if its condition holds and if not.
fn code(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Runs `body` in a separate process, and fails if that fails.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let program = std::env::current_exe().unwrap();
    let run =
        Command::new(program).args([name, "--exact", "--nocapture"]).env(INSIDE, "1").output();
    let run = run.unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{:?}, signal {:?}: {stderr}", run.status, run.status.signal());
}

/// Makes the system calls `refused` and userfaultfd fail with EPERM from now on, for this thread
/// and its future threads (seccomp(2)).
fn forbid(refused: &[i64]) {
    const SECOND: u32 = 24; // of `struct seccomp_data`: its second argument
    const NEW_USERFAULTFD: u32 = 0xaa00; // USERFAULTFD_IOC_NEW, of /dev/userfaultfd
    let refuse = code(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0);
    let mut filter = vec![code(LOAD, NUMBER, 0, 0)];
    for &call in refused.iter().chain(&[libc::SYS_userfaultfd]) {
        filter.extend([code(IF_EQUAL, call as u32, 0, 1), refuse]);
    }
    filter.extend([
        code(IF_EQUAL, libc::SYS_ioctl as u32, 0, 3),
        code(LOAD, SECOND, 0, 0),
        code(IF_EQUAL, NEW_USERFAULTFD, 0, 1),
        refuse,
        code(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]);
    set(filter);
}

/// Makes `madvise(2)` reject MADV_POPULATE_READ, as before Linux 5.14.
fn forbid_populating() {
    const THIRD: u32 = 32; // of `struct seccomp_data`: its third argument
    set(vec![
        code(LOAD, NUMBER, 0, 0),
        code(IF_EQUAL, libc::SYS_madvise as u32, 0, 3),
        code(LOAD, THIRD, 0, 0),
        code(IF_EQUAL, libc::MADV_POPULATE_READ as u32, 0, 1),
        code(RETURN, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32, 0, 0),
        code(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]);
}

/// Installs a seccomp filter for this thread and its future threads.
fn set(mut filter: Vec<libc::sock_filter>) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls and affects this test's process alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Checks every byte of files, raw files and mappings; returns the backends of the first two.
fn everything_is_read(file: &TempFile) -> (BackendKind, BackendKind) {
    let expected = std::fs::read(&file.path).unwrap();
    let path = ReadPath::builder().kernel_cache(false).memory(1 << 20).build().unwrap();
    let opened = path.open(&file.path).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (opened, expected) = (&opened, &expected);
            threads.spawn(move || {
                let mut buffer = [0; 10_000];
                for offset in (thread * 2_500..expected.len() - 10_000).step_by(10_000) {
                    opened.read_exact_at(&mut buffer, offset as u64).unwrap();
                    assert!(buffer[..] == expected[offset..][..10_000], "at {offset}");
                }
            });
        }
    });
    let raw = RawFile::builder().write(true).chunk_bytes(64 << 10).open(&file.path).unwrap();
    let mut all = vec![0; expected.len()];
    raw.read_exact_at(&mut all, 0).unwrap();
    assert!(all == expected);
    raw.write_all_at(&expected[100..300_000], 100).unwrap();
    assert!(std::fs::read(&file.path).unwrap() == expected);
    // SAFETY: the file does not change any more.
    let mapping =
        unsafe { Mapping::builder().kernel_cache(false).memory(1 << 20).open(&file.path) }.unwrap();
    assert!(mapping.as_slice() == expected);
    mapping.load(5_000, 100_000).unwrap();
    let mut some = vec![0; 70_000];
    mapping.read_exact_at(&mut some, 12_345).unwrap();
    assert!(some == expected[12_345..][..70_000]);
    (path.stats().backend.unwrap().kind, raw.backend().kind)
}

#[test]
fn container_profile_leaves_reads_working_and_the_backend_reported() {
    alone("container_profile_leaves_reads_working_and_the_backend_reported", || {
        let file = TempFile::new(3_000_001);
        forbid(&RING);
        let (shared, raw) = everything_is_read(&file);
        assert_eq!(shared, BackendKind::Aio);
        let is_direct = RawFile::open(&file.path).unwrap().mode() == Mode::Direct;
        assert_eq!(raw, if is_direct { BackendKind::Aio } else { BackendKind::Threads });
        // SAFETY: the file does not change.
        let mapping = unsafe { Mapping::builder().kernel_cache(false).open(&file.path) }.unwrap();
        let because =
            KernelMappingReason::NoUserfaultfd(UffdError::Forbidden { errno: libc::EPERM });
        assert_eq!(mapping.mode(), MappingMode::Kernel { because });
        assert!(mapping.mode().to_string().contains("seccomp"), "{}", mapping.mode());
        // A region has no fallback to the kernel mapping: a page whose write failed would come back
        // with older content.
        let error = Region::builder().in_folder(1 << 20, env!("CARGO_TARGET_TMPDIR")).unwrap_err();
        assert!(matches!(error, PagerError::Uffd(UffdError::Forbidden { .. })), "{error}");
        // A named backend is used or is an error.
        let error =
            own_cache().kernel_cache(false).backend(BackendKind::Ring).build().err().unwrap();
        assert!(error.to_string().contains("choose the backend `auto`"), "{error}");
        let one = device(open(&file.path, Direct::Preferred), BackendKind::Auto, 8);
        let in_use = one.storage().backend();
        assert_eq!(in_use.kind, BackendKind::Aio);
        assert_eq!(in_use.because, Some(BackendError::NoRing { errno: libc::EPERM }));
    });
}

/// A kernel mapping on a kernel without MADV_POPULATE_READ.
#[test]
fn mapping_loads_without_madv_populate_read() {
    alone("mapping_loads_without_madv_populate_read", || {
        let file = TempFile::new(3_000_001);
        let expected = std::fs::read(&file.path).unwrap();
        forbid(&[]);
        forbid_populating();
        // SAFETY: the file does not change.
        let mapping = unsafe { Mapping::builder().kernel_cache(false).open(&file.path) }.unwrap();
        assert!(matches!(mapping.mode(), MappingMode::Kernel { .. }), "{}", mapping.mode());
        mapping.load(5_000, 2_995_001).unwrap();
        let mut some = vec![0; 700_000];
        mapping.read_exact_at(&mut some, 2_300_001).unwrap();
        assert!(some == expected[2_300_001..]);
    });
}

#[test]
fn denied_aio_falls_back_to_threads() {
    alone("denied_aio_falls_back_to_threads", || {
        let file = TempFile::new(3_000_001);
        forbid(&[&RING[..], &AIO[..]].concat());
        assert_eq!(everything_is_read(&file), (BackendKind::Threads, BackendKind::Threads));
        let path = own_cache().kernel_cache(false).build().unwrap();
        let because = path.stats().backend.unwrap().because;
        assert_eq!(because, takes_direct(&file.path).then_some(BackendError::NoAio { errno: 1 }));
    });
}

/// Requests from before and after the denial are read, or return an error with the reason.
#[test]
fn later_denied_system_calls_end_no_process() {
    alone("later_denied_system_calls_end_no_process", || {
        let file = TempFile::new(8 << 20);
        let expected = std::fs::read(&file.path).unwrap();
        let built = |backend| {
            let path =
                own_cache().kernel_cache(false).readahead("none").backend(backend).build().unwrap();
            let opened = path.open(&file.path).unwrap();
            opened.prefetch(0, 4 << 20);
            (path, opened)
        };
        let (aio_path, aio) = built(BackendKind::Aio);
        let (_ring_path, ring) = built(BackendKind::Ring);
        let raw = RawFile::builder().backend(BackendKind::Ring).open(&file.path).unwrap();
        let mut alone = device(open(&file.path, Direct::Preferred), BackendKind::Ring, 128);
        let pages = readpath_core::unit::PageRange::new(0, 64);
        alone.submit(read_pages(0, pages), &(0..64).collect::<Vec<_>>());
        alone.flush().unwrap();
        forbid(&[&RING[..], &AIO[..]].concat());
        let mut page = [0; 4096];
        for offset in (0..8 << 20).step_by(512 << 10) {
            aio.read_exact_at(&mut page, offset).unwrap();
            assert!(page[..] == expected[offset as usize..][..4096]);
        }
        if aio.mode() == Mode::Direct {
            let in_use = aio_path.stats().backend.unwrap();
            assert_eq!(in_use.kind, BackendKind::Threads);
            assert_eq!(in_use.because, Some(BackendError::NoAio { errno: libc::EPERM }));
        }
        let error = ring.read_exact_at(&mut page, 6 << 20).unwrap_err().to_string();
        assert!(error.contains("a sandbox has come to forbid it"), "{error}");
        let mut memory = vec![0; 2 << 20];
        let error = raw.read_exact_at(&mut memory, 0).unwrap_err().to_string();
        assert!(error.contains("a sandbox has come to forbid it"), "{error}");
        alone.submit(read_pages(1, pages), &(64..128).collect::<Vec<_>>());
        assert_eq!(alone.flush(), Err(BackendError::Exchange { errno: libc::EPERM }));
    });
}

/// Opening a file needs no locked memory.
#[test]
fn ordinary_user_opens_200_files_with_little_locked_memory() {
    alone("ordinary_user_opens_200_files_with_little_locked_memory", || {
        let file = TempFile::in_directory(&std::env::temp_dir(), 1 << 20);
        let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
        // SAFETY: plain numbers; affects this test's process only.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
            if libc::geteuid() == 0 {
                // The owner of the file may delete it from the temporary folder.
                std::os::unix::fs::chown(&file.path, Some(65_534), None).unwrap();
                assert_eq!(libc::setuid(65_534), 0);
            }
        }
        let opened: Vec<_> = (0..200)
            .map(|number| {
                let file = ReadPath::builder()
                    .kernel_cache(false)
                    .memory(1 << 20)
                    .open(&file.path)
                    .unwrap();
                let mut page = [0; 4096];
                file.read_exact_at(&mut page, number * 4096).unwrap();
                file
            })
            .collect();
        assert_eq!(opened.len(), 200);
        let raws: Vec<_> = (0..20).map(|_| RawFile::open(&file.path).unwrap()).collect();
        raws.iter().for_each(|raw| raw.read_exact_at(&mut [0; 5_000], 77).unwrap());
        // A ring of one thread needs locked memory; without any left, another backend is used.
        let devices: Vec<_> = (0..20)
            .map(|_| device(open(&file.path, Direct::Preferred), BackendKind::Auto, 8))
            .collect();
        let last = devices.last().unwrap().storage().backend();
        let no_memory = BackendError::NoRing { errno: libc::ENOMEM };
        assert!(last.because.is_none_or(|because| because == no_memory), "{last}");
    });
}
