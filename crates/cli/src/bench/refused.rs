//! Denied system calls, to reproduce a restricted system. Docker's default profile denies io_uring
//! and userfaultfd.

use std::collections::BTreeMap;

use clap::ValueEnum;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};
use serde::{Deserialize, Serialize};

/// `USERFAULTFD_IOC_NEW`: the ioctl of /dev/userfaultfd that creates a userfaultfd
/// (linux/userfaultfd.h).
const NEW_USERFAULTFD: u64 = 0xaa00;

/// System interface to deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum DeniedInterface {
    /// io_uring
    IoUring,
    /// Linux AIO
    Aio,
    /// userfaultfd, as a system call and from /dev/userfaultfd
    Userfaultfd,
}

impl DeniedInterface {
    /// Name of the interface, as the option takes it.
    pub const fn name(self) -> &'static str {
        match self {
            DeniedInterface::IoUring => "io_uring",
            DeniedInterface::Aio => "aio",
            DeniedInterface::Userfaultfd => "userfaultfd",
        }
    }

    /// Returns the numbers of the system calls to deny, each with its rules. A call with rules is
    /// denied if one of them matches; a call without rules is always denied.
    fn denied_calls(self) -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
        let unconditional = |calls: &[i64]| calls.iter().map(|&call| (call, Vec::new())).collect();
        Ok(match self {
            DeniedInterface::IoUring => unconditional(&[
                libc::SYS_io_uring_setup,
                libc::SYS_io_uring_enter,
                libc::SYS_io_uring_register,
            ]),
            DeniedInterface::Aio => unconditional(&[libc::SYS_io_setup, libc::SYS_io_submit]),
            DeniedInterface::Userfaultfd => {
                let (equal, length) = (SeccompCmpOp::Eq, SeccompCmpArgLen::Dword);
                // Argument 1 of the system call ioctl is its request code.
                let creates_userfaultfd = SeccompCondition::new(1, length, equal, NEW_USERFAULTFD)?;
                let new_from_device = SeccompRule::new(vec![creates_userfaultfd])?;
                vec![(libc::SYS_userfaultfd, Vec::new()), (libc::SYS_ioctl, vec![new_from_device])]
            }
        })
    }
}

/// Denies the interfaces with `EPERM`, irrevocably, for this thread and the threads it starts.
///
/// # Errors
/// The kernel rejected the seccomp filter, or no filter exists for this processor architecture.
pub fn deny(interfaces: &[DeniedInterface]) -> Result<(), Error> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let mut rules = BTreeMap::new();
    for interface in interfaces {
        // No two interfaces have a call in common.
        rules.extend(interface.denied_calls()?);
    }
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let target = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, target)?;
    apply_filter(&BpfProgram::try_from(filter)?)
}
