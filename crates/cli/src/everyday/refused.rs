//! A system that refuses what the library would use: containers do (Docker's default profile refuses
//! io_uring and userfaultfd), and a run can be made as it would be there.

use std::collections::BTreeMap;

use clap::ValueEnum;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};
use serde::{Deserialize, Serialize};

/// `USERFAULTFD_IOC_NEW`, by which /dev/userfaultfd gives one (linux/userfaultfd.h).
const NEW_USERFAULTFD: u64 = 0xaa00;

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Refused {
    /// io_uring
    IoUring,
    /// Linux AIO
    Aio,
    /// userfaultfd, as a system call and from /dev/userfaultfd
    Userfaultfd,
}

impl Refused {
    /// Its name, as the option takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Refused::IoUring => "io_uring",
            Refused::Aio => "aio",
            Refused::Userfaultfd => "userfaultfd",
        }
    }

    /// The system calls, each with the rules of which one must hold; none: always.
    fn calls(self) -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
        let always = |calls: &[i64]| calls.iter().map(|&call| (call, Vec::new())).collect();
        Ok(match self {
            Refused::IoUring => always(&[
                libc::SYS_io_uring_setup,
                libc::SYS_io_uring_enter,
                libc::SYS_io_uring_register,
            ]),
            Refused::Aio => always(&[libc::SYS_io_setup, libc::SYS_io_submit]),
            Refused::Userfaultfd => {
                let (equal, length) = (SeccompCmpOp::Eq, SeccompCmpArgLen::Dword);
                let is_new = SeccompCondition::new(1, length, equal, NEW_USERFAULTFD)?;
                let device = SeccompRule::new(vec![is_new])?;
                vec![(libc::SYS_userfaultfd, Vec::new()), (libc::SYS_ioctl, vec![device])]
            }
        })
    }
}

/// Has all of these refused from now on with `EPERM`, to this thread and to those that it starts.
///
/// # Errors
/// The kernel takes no filter.
pub fn refuse(all: &[Refused]) -> Result<(), Error> {
    if all.is_empty() {
        return Ok(());
    }
    let mut rules = BTreeMap::new();
    for refused in all {
        rules.extend(refused.calls()?);
    }
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let target = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, target)?;
    apply_filter(&BpfProgram::try_from(filter)?)
}
