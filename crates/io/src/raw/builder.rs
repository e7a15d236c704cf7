//! Options of a raw file. Its *channel* is the open file with buffers and an I/O backend.

use std::path::Path;

use readpath_core::chunking;
use readpath_core::policy::{Spec, SpecError};

use super::cache_invalidator::CacheInvalidator;
use super::channel::Channel;
use super::process_channels::ChannelParameters;
use super::{RawFile, RawOpenError};
use crate::backend::BackendKind;
use crate::os::clock::Clock;
use crate::target::{Direct, OpenOptions, Target};

/// Options of a [`RawFile`]: [`RawFile::builder`], then [`open`](RawFileBuilder::open).
///
/// ```
/// use readpath::RawFile;
///
/// # let path = std::env::temp_dir().join(format!("readpath-doc-options-{}", std::process::id()));
/// let builder = RawFile::builder().write(true).create(true).chunk_bytes(1 << 20).depth(2);
/// let file = builder.open(&path)?;
/// assert_eq!((file.chunk_bytes(), file.depth()), (1 << 20, 2));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RawFileBuilder {
    /// Chunking policy, or its error, which `open` reports.
    policy: Result<Spec, SpecError>,
    is_writable: bool,
    /// True if a missing file is created.
    creates: bool,
    direct: Direct,
    backend: BackendKind,
}

impl Default for RawFileBuilder {
    fn default() -> RawFileBuilder {
        RawFileBuilder {
            policy: Ok(Spec::plain("ring")),
            is_writable: false,
            creates: false,
            direct: Direct::default(),
            backend: BackendKind::default(),
        }
    }
}

impl RawFile {
    /// Default options: read only, chunking policy `ring` with four chunks of 512 KiB in flight,
    /// direct I/O if available, and the best backend that the kernel provides.
    pub fn builder() -> RawFileBuilder {
        RawFileBuilder::default()
    }
}

impl RawFileBuilder {
    /// Chunk size in bytes: a multiple of 4 KiB, from 4 KiB to 64 MiB. Default 512 KiB. Large
    /// chunks cost memory (a buffer for each chunk in flight), small chunks cost system calls.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// let error = RawFile::builder().chunk_bytes(1000).open("/etc/passwd").err().unwrap();
    /// assert!(error.to_string().contains("expected a size from 4096"));
    /// ```
    #[must_use]
    pub fn chunk_bytes(mut self, bytes: u64) -> RawFileBuilder {
        self.set_parameter("chunk", bytes.to_string());
        self
    }

    /// Number of chunks in flight, 1 to 256. Default 4. Each needs a buffer of the chunk size.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// let error = RawFile::builder().depth(0).open("/etc/passwd").err().unwrap();
    /// assert_eq!(error.to_string(), "`ring,depth=0`: expected a whole number from 1 to 256");
    /// ```
    #[must_use]
    pub fn depth(mut self, chunks: u32) -> RawFileBuilder {
        self.set_parameter("depth", chunks.to_string());
        self
    }

    /// Chunking policy, as `readpath policies` names it. Default `ring`. Replaces earlier values of
    /// [`chunk_bytes`](RawFileBuilder::chunk_bytes) and [`depth`](RawFileBuilder::depth).
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::current_exe()?;
    /// let file = RawFile::builder().policy("kiobuf,chunk=64KiB").open(&path)?;
    /// assert_eq!((file.chunk_bytes(), file.depth()), (65_536, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn policy(mut self, policy: &str) -> RawFileBuilder {
        self.policy = Spec::parse(policy);
        self
    }

    /// Opens the file for writing too. Default no.
    ///
    /// ```
    /// # use readpath::{RawFile, raw::RawFault};
    /// # let path = std::env::current_exe()?;
    /// let file = RawFile::builder().write(false).open(&path)?;
    /// assert_eq!(file.write_at(b"x", 0).unwrap_err().fault, RawFault::ReadOnly);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn write(mut self, writes: bool) -> RawFileBuilder {
        self.is_writable = writes;
        self
    }

    /// Creates the file if it does not exist. Without [`write`](RawFileBuilder::write) it is an
    /// error of `open`. Default no.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-create-{}", std::process::id()));
    /// assert!(RawFile::builder().write(true).open(&path).is_err());
    /// assert_eq!(RawFile::builder().write(true).create(true).open(&path)?.bytes()?, 0);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn create(mut self, creates: bool) -> RawFileBuilder {
        self.creates = creates;
        self
    }

    /// Use of direct I/O. [`RawFile::mode`] reports the reason if it is not available. Default
    /// [`Direct::Preferred`].
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # use readpath::{BufferedBecause, Direct, Mode};
    /// # let path = std::env::current_exe()?;
    /// let file = RawFile::builder().direct(Direct::Never).open(&path)?;
    /// assert_eq!(file.mode(), Mode::Buffered(BufferedBecause::Asked));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn direct(mut self, direct: Direct) -> RawFileBuilder {
        self.direct = direct;
        self
    }

    /// I/O backend. Default [`BackendKind::Auto`]: Linux AIO, or threads if the kernel provides
    /// none or the file goes through its cache. [`RawFile::backend`] reports the choice. With
    /// io_uring the kernel can [register the buffers](RawFile::buffers_are_registered), but a
    /// reader that moves to another thread then depends on the thread that began it.
    ///
    /// ```
    /// # use readpath::BackendKind;
    /// # use readpath::RawFile;
    /// # let path = std::env::current_exe()?;
    /// let file = RawFile::builder().backend(BackendKind::Threads).open(&path)?;
    /// assert_eq!(file.backend().kind, BackendKind::Threads);
    /// assert_eq!(file.read_at(&mut [0; 4], 0)?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> RawFileBuilder {
        self.backend = backend;
        self
    }

    /// Opens the regular file or block device at `path` and allocates all its buffers.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// let error = RawFile::builder().open("/no/such/file").err().unwrap();
    /// assert!(error.to_string().contains("there is no such file; check the path, or make it"));
    /// ```
    ///
    /// # Errors
    /// The file cannot be opened this way, or is to be created but not written. The policy is
    /// wrong, memory for the buffers is short, or the backend is not available.
    pub fn open(self, path: impl AsRef<Path>) -> Result<RawFile, RawOpenError> {
        let no_invalidator = None;
        self.open_with_invalidator(path.as_ref(), no_invalidator)
    }

    /// Sets the parameter `name` of the chunking policy to `value`. No effect on a policy that
    /// could not be parsed: its error is reported by `open`.
    fn set_parameter(&mut self, name: &str, value: String) {
        if let Ok(policy) = &mut self.policy {
            policy.parameters.insert(name.to_owned(), value);
        }
    }

    /// Opens the file. `cache_invalidator` names the read path whose cache its writes invalidate,
    /// if any.
    pub(super) fn open_with_invalidator(
        self,
        path: &Path,
        cache_invalidator: Option<CacheInvalidator>,
    ) -> Result<RawFile, RawOpenError> {
        // The parsed name and parameters of the policy, which a child needs again.
        let spec = self.policy.map_err(RawOpenError::Policy)?;
        let policy = chunking::build(&spec).map_err(RawOpenError::Policy)?;
        let options = OpenOptions { is_writable: self.is_writable, direct: self.direct };
        if self.creates && !self.is_writable {
            return Err(RawOpenError::CreateWithoutWrite { path: path.to_path_buf() });
        }
        let target =
            Target::open_or_create(path, options, self.creates).map_err(RawOpenError::Open)?;
        if let Some(cache_invalidator) = &cache_invalidator {
            cache_invalidator.check_same_file(&target, path)?;
        }
        let channel_parameters =
            ChannelParameters { target: target.clone(), policy: spec, backend: self.backend };
        let channel = Channel::new(target, policy, self.backend, Clock::start())?;
        Ok(RawFile::from_channel(channel, channel_parameters, self.is_writable, cache_invalidator))
    }
}
