//! Channel of a raw file per process: a child made by `fork` builds its own over the same open file
//! description and leaves the inherited one alone.

use std::sync::Mutex;

use readpath_core::chunking;
use readpath_core::policy::Spec;

use super::channel::Channel;
use super::{RawFault, RawOpenError};
use crate::backend::BackendKind;
use crate::clock::Clock;
use crate::process::{ForkLocal, Own};
use crate::read_error::Forked;
use crate::target::Target;

/// Channel of the process that created it, and the channels of its forked children.
pub(super) struct Channels {
    /// Channel of the process that created it.
    own: Own<Mutex<Channel>>,
    /// Channels of a forked child, built at first use.
    fork_local: ForkLocal<Channels>,
}

/// Parameters to build a channel in a child.
pub(super) struct Spare {
    /// The open file, shared with the parent.
    pub(super) target: Target,
    pub(super) policy: Spec,
    pub(super) backend: BackendKind,
}

impl Channels {
    pub(super) fn new(channel: Channel) -> Channels {
        Channels { own: Own::new(Mutex::new(channel)), fork_local: ForkLocal::new() }
    }

    /// Channel of this process; a child builds it at first use.
    ///
    /// # Errors
    /// This is a child, and it cannot build a channel.
    pub(super) fn here(&self, spare: &Spare) -> Result<&Mutex<Channel>, RawFault> {
        match self.own.get() {
            Some(channel) => Ok(channel),
            None => self.fork_local.get_or_make(|| spare.channels())?.here(spare),
        }
    }

    /// Like [`here`](Channels::here), with exclusive access.
    ///
    /// # Errors
    /// As [`here`](Channels::here).
    pub(super) fn here_mut(&mut self, spare: &Spare) -> Result<&mut Mutex<Channel>, RawFault> {
        match self.own.get_mut() {
            Some(channel) => Ok(channel),
            None => self.fork_local.get_mut_or_make(|| spare.channels())?.here_mut(spare),
        }
    }
}

impl Spare {
    /// Builds the channel of a child, if it still has the descriptor.
    fn channels(&self) -> Result<Channels, RawFault> {
        if !self.target.is_still_open() {
            return Err(RawFault::Forked(Forked::Closed));
        }
        let policy =
            chunking::build(&self.policy).expect("the policy was built before, from the same text");
        let channel = Channel::new(self.target.clone(), policy, self.backend, Clock::start());
        channel.map(Channels::new).map_err(|error| match error {
            RawOpenError::Memory { error, .. } => RawFault::Forked(Forked::Memory(error)),
            RawOpenError::Backend(error) => RawFault::Forked(Forked::Backend(error)),
            error => unreachable!("the policy and the file are there: {error}"),
        })
    }
}
