//! Channel of a raw file per process: a child made by `fork` builds its own over the same open file
//! description and leaves the inherited one alone. A *channel* is the open file with its ring of
//! buffers and its I/O backend.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use readpath_core::chunking;
use readpath_core::policy::Spec;
use readpath_core::request::Op;

use super::batch_writes::BatchWrites;
use super::channel::Channel;
use super::{RawFault, RawOpenError, RawStats};
use crate::backend::BackendKind;
use crate::os::clock::Clock;
use crate::os::process::{ForkLocal, ProcessOwned};
use crate::read_error::Forked;
use crate::target::Target;

/// Channel of the process that created it, and the channels of its forked children.
pub(super) struct ProcessChannels {
    /// Channel of the process that created it. `get` returns `None` in other processes.
    creator_channel: ProcessOwned<ProcessChannel>,
    /// Channels of a forked child and of its own children, built at first use.
    child_channels: ForkLocal<ProcessChannels>,
}

/// Channel of one process, and the writes of its batches.
pub(super) struct ProcessChannel {
    /// The channel behind its lock.
    pub(super) channel: Mutex<Channel>,
    /// Writes of batches in flight, which the channel's calls respect.
    pub(super) batch_writes: BatchWrites,
    /// Counters of the transfers of batches.
    batch_stats: BatchStats,
}

/// Counters of the transfers of batches, each a chunk. They have the meaning of [`RawStats`].
#[derive(Default)]
struct BatchStats {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
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
            creator_channel: ProcessOwned::new(ProcessChannel {
                channel: Mutex::new(channel),
                batch_writes: BatchWrites::default(),
                batch_stats: BatchStats::default(),
            }),
            child_channels: ForkLocal::new(),
        }
    }

    /// Returns the channel of this process. A child builds it at first use. A grandchild finds the
    /// child's entry, and builds its own one below it.
    ///
    /// # Errors
    /// This is a child, and it cannot build a channel.
    pub(super) fn for_this_process(
        &self,
        parameters: &ChannelParameters,
    ) -> Result<&ProcessChannel, RawFault> {
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
    ) -> Result<&mut ProcessChannel, RawFault> {
        match self.creator_channel.get_mut() {
            Some(channel) => Ok(channel),
            None => self
                .child_channels
                .get_mut_or_init(|| parameters.build_child_channels())?
                .for_this_process_mut(parameters),
        }
    }
}

impl ProcessChannel {
    /// Locks the channel.
    pub(super) fn lock(&self) -> MutexGuard<'_, Channel> {
        // A panic leaves no request in flight, and each call resets the channel's free buffers: a
        // poisoned lock is safe.
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a transfer of a batch as one chunk.
    pub(super) fn count_batch_transfer(&self, op: Op, bytes: u64) {
        let stats = &self.batch_stats;
        let (chunk_count, byte_count) = match op {
            Op::Read => (&stats.reads, &stats.read_bytes),
            Op::Write => (&stats.writes, &stats.written_bytes),
        };
        chunk_count.fetch_add(1, Ordering::Relaxed);
        byte_count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counters of the calls, the readers and the batches.
    pub(super) fn counters(&self) -> RawStats {
        let of_calls = self.lock().counters();
        let of_batches = &self.batch_stats;
        RawStats {
            reads: of_calls.reads + of_batches.reads.load(Ordering::Relaxed),
            read_bytes: of_calls.read_bytes + of_batches.read_bytes.load(Ordering::Relaxed),
            writes: of_calls.writes + of_batches.writes.load(Ordering::Relaxed),
            written_bytes: of_calls.written_bytes
                + of_batches.written_bytes.load(Ordering::Relaxed),
            // A batch copies no bytes.
            copied_bytes: of_calls.copied_bytes,
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
