//! Channel of a raw file per process: a child made by `fork` builds its own over the same open file
//! description and leaves the inherited one alone. A *channel* is the open file with its ring of
//! buffers and its I/O backend.

use std::sync::Mutex;

use readpath_core::chunking;
use readpath_core::policy::Spec;

use super::channel::Channel;
use super::{RawFault, RawOpenError};
use crate::backend::BackendKind;
use crate::os::clock::Clock;
use crate::os::process::{ForkLocal, ProcessOwned};
use crate::read_error::Forked;
use crate::target::Target;

/// Channel of the process that created it, and the channels of its forked children.
pub(super) struct ProcessChannels {
    /// Channel of the process that created it.
    creator_channel: ProcessOwned<Mutex<Channel>>,
    /// Channels of a forked child and of its own children, built at first use.
    child_channels: ForkLocal<ProcessChannels>,
}

/// Parameters to build a channel in a child.
pub(super) struct ChannelParameters {
    /// The open file, shared with the parent.
    pub(super) target: Target,
    pub(super) policy: Spec,
    pub(super) backend: BackendKind,
}

impl ProcessChannels {
    /// Creates the channels with this channel of the calling process.
    pub(super) fn new(channel: Channel) -> ProcessChannels {
        ProcessChannels {
            creator_channel: ProcessOwned::new(Mutex::new(channel)),
            child_channels: ForkLocal::new(),
        }
    }

    /// Returns the channel of this process behind its lock. A child builds it at first use. A
    /// grandchild finds the child's entry, and builds its own one below it.
    ///
    /// # Errors
    /// This is a child, and it cannot build a channel.
    pub(super) fn for_this_process(
        &self,
        parameters: &ChannelParameters,
    ) -> Result<&Mutex<Channel>, RawFault> {
        match self.creator_channel.get() {
            Some(channel) => Ok(channel),
            None => self
                .child_channels
                .get_or_init(|| parameters.build_child_channels())?
                .for_this_process(parameters),
        }
    }

    /// Like [`for_this_process`](ProcessChannels::for_this_process), with exclusive access.
    ///
    /// # Errors
    /// As [`for_this_process`](ProcessChannels::for_this_process).
    pub(super) fn for_this_process_mut(
        &mut self,
        parameters: &ChannelParameters,
    ) -> Result<&mut Mutex<Channel>, RawFault> {
        match self.creator_channel.get_mut() {
            Some(channel) => Ok(channel),
            None => self
                .child_channels
                .get_mut_or_init(|| parameters.build_child_channels())?
                .for_this_process_mut(parameters),
        }
    }
}

impl ChannelParameters {
    /// Builds the channel of a child made by `fork`.
    ///
    /// # Errors
    /// The child has closed the descriptor, or memory or a backend is not available.
    fn build_child_channels(&self) -> Result<ProcessChannels, RawFault> {
        if !self.target.is_still_open() {
            return Err(RawFault::Forked(Forked::Closed));
        }
        let policy =
            chunking::build(&self.policy).expect("the policy was built before, from the same text");
        let channel = Channel::new(self.target.clone(), policy, self.backend, Clock::start());
        channel.map(ProcessChannels::new).map_err(|error| match error {
            RawOpenError::Memory { error, .. } => RawFault::Forked(Forked::Memory(error)),
            RawOpenError::Backend(error) => RawFault::Forked(Forked::Backend(error)),
            error => unreachable!("the policy was parsed and the file is open: {error}"),
        })
    }
}
