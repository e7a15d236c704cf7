//! Page cache modes of a read path, and options that have no effect in a mode.

pub(crate) mod kernel;
pub(crate) mod kernel_reads;
pub(crate) mod own;

use std::fmt;

/// Cache of the pages that a [`ReadPath`](crate::ReadPath) reads. It is fixed when the path is
/// built.
///
/// | mode | a read | pages stay | memory |
/// |---|---|---|---|
/// | `Kernel` | one system call | in the kernel page cache, for all programs | none of the process |
/// | `Own` | a copy, without a system call if cached | in the path's cache, as long as the file is open | `bytes` |
/// | `None` | a request to the device | nowhere | 64 MiB for reads in flight |
///
/// ```
/// use readpath::{PageCache, ReadPath};
/// assert_eq!(ReadPath::builder().build()?.page_cache(), PageCache::Kernel);
/// let own = PageCache::Own { bytes: Some(32 << 20) };
/// assert_eq!(ReadPath::builder().memory(32 << 20).build()?.page_cache(), own);
/// // A queue of one's own needs reads of one's own.
/// let error = ReadPath::builder().depth(64).build().err().unwrap();
/// assert!(error.to_string().contains("option `depth` has no effect"));
/// # Ok::<(), readpath::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// The kernel page cache. Default.
    ///
    /// A read goes through that cache into the caller's memory. The pages stay for the next pass
    /// and for other programs, and are evicted when memory is short. The readahead policy
    /// `adaptive` sees reads that may miss, and advises the kernel of patterns that Linux does not
    /// detect: strides, backward streams and records.
    #[default]
    Kernel,
    /// A cache of the path's own. Its reads bypass the kernel page cache with `O_DIRECT`.
    ///
    /// Some pages may be resident in the kernel page cache: the file was just written, or another
    /// program reads it. They are read from there, without a copy in the path's memory, unless
    /// [`Builder::kernel_cache`](crate::Builder::kernel_cache) forbids it.
    Own {
        /// Size in bytes: at least 8 KiB, at most 16 TiB less 8 KiB, rounded down to pages of 4
        /// KiB. With `None` the memory is elastic; see [`Builder::memory`](crate::Builder::memory).
        bytes: Option<u64>,
    },
    /// No page cache. Each read is whole requests to the device, past the kernel page cache.
    ///
    /// Reads of the same pages at the same time share their requests. The path prefetches nothing:
    /// [`File::prefetch`](crate::File::prefetch) and hints have no effect. For measurements, and
    /// for programs with a cache of their own.
    None,
}

impl PageCache {
    /// Name of the mode in options, messages and JSON: `kernel`, `own` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            PageCache::Kernel => "kernel",
            PageCache::Own { .. } => "own",
            PageCache::None => "none",
        }
    }
}

impl fmt::Display for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An option of a [`ReadPath`](crate::ReadPath) that has no effect in its page cache mode, or on
/// files of an NFS server. Or a mode that cannot have the files of a server or a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionError {
    /// Name of the option, as its method in [`Builder`](crate::Builder). If the mode cannot have
    /// the file, words for such a file (of an NFS server or a source).
    pub option: &'static str,
    /// Page cache mode of the path.
    pub page_cache: PageCache,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OptionError { option, page_cache } = self;
        if *option == NFS {
            return f.write_str(
                "the kernel page cache has no files of an NFS server (`nfs://`); choose the page \
                 cache `own` or `none`, or mount the export",
            );
        }
        if *option == SOURCE {
            return f.write_str(
                "the kernel page cache has no files of a source; choose the page cache `own` or \
                 `none`",
            );
        }
        // Valid in every mode, so it is an error on such a file alone.
        if *option == "coherence" {
            return f.write_str(
                "option `coherence` has no effect on a file of an NFS server (`nfs://`), which is \
                 not checked for changes; leave the option out and call `revalidate`, or mount the \
                 export",
            );
        }
        // In the mode `Own` the option has an effect, but not with another size next to it.
        if let ("memory", PageCache::Own { .. }) = (*option, page_cache) {
            return f.write_str(
                "option `memory` and the page cache `own` give different sizes; leave one out",
            );
        }
        write!(f, "option `{option}` has no effect with the page cache `{page_cache}`; ")?;
        match (*option, page_cache) {
            ("whole_file_memory", _) => {
                f.write_str("choose the page cache `kernel`, or leave the option out")
            }
            ("depth" | "scheduler" | "backend" | "held_memory", _) => f.write_str(
                "choose the page cache `own` (a size of `memory` does too) or `none`, or leave the \
                 option out",
            ),
            // The other options concern cached pages, which `none` does not have either.
            _ => f.write_str(
                "choose the page cache `own` (a size of `memory` does too), or leave the option out",
            ),
        }
    }
}

impl std::error::Error for OptionError {}

/// Pseudo option in the error for an NFS file, which the mode `Kernel` cannot have.
pub(crate) const NFS: &str = "nfs://";
/// Pseudo option in the error for a [`Source`](crate::source::Source), as for an NFS file.
pub(crate) const SOURCE: &str = "a source";
