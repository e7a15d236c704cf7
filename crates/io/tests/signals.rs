//! Signal handlers of the program: none runs on a thread of this crate, where an access to a
//! mapping would wait for itself.

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use readpath::{BackendKind, Mapping, Region};
use support::{TempFile, can_serve, in_child, own_cache, splitmix};

const PAGE: usize = 4096;
const FILE_BYTES: usize = 4 << 20;

static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicUsize = AtomicUsize::new(0);

/// Handler that touches a different, mostly absent page of the mapping each time.
extern "C" fn touch_a_page(_: libc::c_int) {
    let page = HANDLED.fetch_add(1, Ordering::Relaxed) * 397 % (FILE_BYTES / PAGE);
    // SAFETY: the mapping lives as long as signals are sent.
    let byte =
        unsafe { ((ADDRESS.load(Ordering::Relaxed) + page * PAGE) as *const u8).read_volatile() };
    SUM.fetch_add(byte.into(), Ordering::Relaxed);
}

fn set_blocked(is_blocked: bool) {
    let how = if is_blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: a local set, written before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

/// A handler that waits for itself hangs the child, which is then killed.
#[test]
fn signal_handler_may_touch_a_mapping_on_any_thread() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    for (backend, is_blocked) in [BackendKind::Ring, BackendKind::Threads]
        .into_iter()
        .flat_map(|backend| [(backend, true), (backend, false)])
    {
        assert!(in_child(|| {
            // SAFETY: the file does not change; the handler is async-signal-safe.
            let mapping = unsafe {
                libc::signal(libc::SIGUSR1, touch_a_page as *const () as usize);
                let options =
                    Mapping::builder().kernel_cache(false).memory(1 << 20).backend(backend);
                options.open(&file.path).unwrap()
            };
            ADDRESS.store(mapping.as_slice().as_ptr() as usize, Ordering::Relaxed);
            set_blocked(is_blocked);
            let mut state = 1;
            for _ in 0..2_000 {
                // SAFETY: a signal to this process, whose handler is installed.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
                let first = splitmix(&mut state) as usize % (FILE_BYTES - PAGE);
                assert!(mapping.as_slice()[first..first + PAGE] == content[first..first + PAGE]);
            }
            assert_eq!(
                HANDLED.load(Ordering::Relaxed) == 0,
                is_blocked,
                "no other thread takes it"
            );
            set_blocked(false);
            // A pending signal is delivered before the call returns.
            HANDLED.load(Ordering::Relaxed) > 0
        }));
    }
}

/// Names and blocked signals of the crate's threads in this process (proc(5)).
fn threads_of_ours() -> Vec<(String, u64)> {
    let of = |path: &Path| {
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = field("Name:").filter(|name| name.starts_with("readpath"))?;
        Some((name.to_owned(), u64::from_str_radix(field("SigBlk:")?, 16).unwrap()))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| of(&task.ok()?.path())).collect()
}

#[test]
fn library_threads_block_every_signal() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    assert!(in_child(|| {
        // SAFETY: the file does not change.
        let mapping = unsafe {
            Mapping::builder().kernel_cache(false).backend(BackendKind::Threads).open(&file.path)
        };
        let folder = env!("CARGO_TARGET_TMPDIR");
        let region = Region::builder().memory(1 << 20).in_folder(1 << 20, folder);
        let path = own_cache().kernel_cache(false).build().unwrap();
        let opened = path.open(&file.path).unwrap();
        let (count, _) = pollster::block_on(opened.read_at_async(vec![0; 10], 0));
        assert_eq!(count.unwrap(), 10);
        // A pool starts its threads once there are more requests than the waiting thread executes.
        let threads =
            own_cache().kernel_cache(false).backend(BackendKind::Threads).build().unwrap();
        let pooled = threads.open(&file.path).unwrap();
        let mut batch = threads.batch();
        (0..16).for_each(|at| batch.read(&pooled, at * 8192, 10, at).unwrap());
        while batch.wait().unwrap().is_some() {}
        // A thread has its name only once it runs. The child is killed if it waits too long.
        let names = ["readpath-map", "readpath-swap", "readpath-io-0", "readpath-react"];
        let threads = loop {
            let threads = threads_of_ours();
            if names.iter().all(|name| threads.iter().any(|(other, _)| other == name)) {
                break threads;
            }
            std::thread::yield_now();
        };
        // The bit of signal n is n - 1; KILL and STOP cannot be blocked (signal(7)).
        let blockable = 0x7fff_ffff & !(1 << (9 - 1)) & !(1 << (19 - 1));
        for (name, blocked) in threads {
            assert_eq!(blocked & blockable, blockable, "{name}");
        }
        mapping.is_ok() && region.is_ok()
    }));
}
