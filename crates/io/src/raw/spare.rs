//! The channel of a raw file in each process: a child made by `fork` gets one of its own over the
//! same open file, and leaves the one that it inherited alone.

use std::sync::Mutex;

use readpath_core::policy::Spec;
use readpath_core::raw;

use super::channel::Channel;
use super::{RawFault, RawOpenError};
use crate::backend::BackendKind;
use crate::clock::Clock;
use crate::process::{ForkLocal, Own};
use crate::read_error::Forked;
use crate::target::Target;

/// A channel, and the one that takes its place in a child.
pub(super) struct Channels {
    own: Own<Mutex<Channel>>,
    fork_local: ForkLocal<Channels>,
}

/// What another channel is built of.
pub(super) struct Spare {
    /// The same open file.
    pub(super) target: Target,
    pub(super) policy: Spec,
    pub(super) backend: BackendKind,
}

impl Channels {
    pub(super) fn new(channel: Channel) -> Channels {
        Channels { own: Own::new(Mutex::new(channel)), fork_local: ForkLocal::new() }
    }

    /// The channel of this process.
    ///
    /// # Errors
    /// This is a child, and there is none to be had.
    pub(super) fn here(&self, spare: &Spare) -> Result<&Mutex<Channel>, RawFault> {
        match self.own.get() {
            Some(channel) => Ok(channel),
            None => self.fork_local.get_or_make(|| spare.channels())?.here(spare),
        }
    }

    /// As [`here`](Channels::here), to be changed.
    ///
    /// # Errors
    /// As there.
    pub(super) fn here_mut(&mut self, spare: &Spare) -> Result<&mut Mutex<Channel>, RawFault> {
        match self.own.get_mut() {
            Some(channel) => Ok(channel),
            None => self.fork_local.get_mut_or_make(|| spare.channels())?.here_mut(spare),
        }
    }
}

impl Spare {
    fn channels(&self) -> Result<Channels, RawFault> {
        if !self.target.is_still_open() {
            return Err(RawFault::Forked(Forked::Closed));
        }
        let policy =
            raw::build(&self.policy).expect("the policy was built before, from the same text");
        let channel = Channel::new(self.target.clone(), policy, self.backend, Clock::start());
        channel.map(Channels::new).map_err(|error| match error {
            RawOpenError::Memory { error, .. } => RawFault::Forked(Forked::Memory(error)),
            RawOpenError::Backend(error) => RawFault::Forked(Forked::Backend(error)),
            error => unreachable!("the policy and the file are there: {error}"),
        })
    }
}
