//! System calls made by a piece of code, counted with ptrace.

#![allow(dead_code, reason = "each test binary uses a part of it")]

/// Runs `act` in a child and returns the numbers of its system calls between each pair of `getppid`
/// calls. `None`, with a skip message, if children cannot be traced.
pub fn calls_between_marks(act: impl Fn()) -> Option<Vec<Vec<i64>>> {
    // SAFETY: the child runs the tested code and exits; ptrace gets our own memory.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(1);
            }
            libc::raise(libc::SIGSTOP);
            // The harness of the tests would end this copy of the process with 0 after a panic.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&act));
            libc::_exit(if result.is_ok() { 0 } else { 101 });
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        if !libc::WIFSTOPPED(status) {
            eprintln!("skipped: children can't be traced here");
            return None;
        }
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options);
        let (mut all, mut open) = (Vec::new(), None::<Vec<i64>>);
        loop {
            libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0);
            libc::waitpid(child, &raw mut status, 0);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "the child");
                return Some(all);
            }
            assert!(libc::WIFSTOPPED(status), "the child was ended by a signal");
            if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
                continue;
            }
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            let bytes = size_of_val(&info);
            libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, child, bytes, &raw mut info);
            if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
                continue;
            }
            let number = info.u.entry.nr as i64;
            match (number == libc::SYS_getppid, open.take()) {
                (true, None) => open = Some(Vec::new()),
                (true, Some(calls)) => all.push(calls),
                (false, Some(mut calls)) => {
                    calls.push(number);
                    open = Some(calls);
                }
                (false, None) => {}
            }
        }
    }
}

/// Marks the start or end of a counted section.
pub fn mark() {
    // SAFETY: the call has no effect.
    unsafe { libc::syscall(libc::SYS_getppid) };
}
