//! fio's engines: supported, replaced by another engine, or rejected.

use super::JobEngine;

/// An engine of fio.
#[derive(Clone, Copy, Debug)]
pub struct FioEngine {
    /// Name in a job file.
    pub name: &'static str,
    /// Level of support.
    pub class: EngineClass,
}

/// Level of support of an engine.
#[derive(Clone, Copy, Debug)]
pub enum EngineClass {
    /// Supported directly.
    Supported(JobEngine),
    /// Replaced by another engine that reads and writes the same bytes.
    Replaced {
        /// The replacement.
        replacement: JobEngine,
        /// Difference between the two.
        difference: &'static str,
    },
    /// Rejected.
    Refused {
        /// Reason.
        because: &'static str,
    },
}

/// Declares an engine of fio that is run as itself.
const fn supported(name: &'static str, engine: JobEngine) -> FioEngine {
    FioEngine { name, class: EngineClass::Supported(engine) }
}

/// Declares an engine of fio that is run as `replacement`. `difference` is for the user.
const fn replaced(
    name: &'static str,
    replacement: JobEngine,
    difference: &'static str,
) -> FioEngine {
    FioEngine { name, class: EngineClass::Replaced { replacement, difference } }
}

/// Declares an engine of fio that is refused. `because` is for the user.
const fn refused(name: &'static str, because: &'static str) -> FioEngine {
    FioEngine { name, class: EngineClass::Refused { because } }
}

/// Reason of engines that talk to another machine.
const NETWORK: &str = "it moves data over a network and reads no file or device";
/// Reason of engines that are clients of a storage service.
const REMOTE: &str = "it speaks to a storage service by a protocol of its own";
/// Reason of engines that measure operations on directories and file attributes.
const NAMES: &str = "it measures calls on names and sizes of files, and moves no data";
/// Reason of engines that bypass the block layer.
const DEVICE: &str = "it sends commands to a device driver in place of reads and writes";

/// All engines of fio, and the additional engine `raw`.
pub const ENGINES: &[FioEngine] = &[
    supported("psync", JobEngine::Psync),
    supported("sync", JobEngine::Sync),
    supported("libaio", JobEngine::Libaio),
    supported("io_uring", JobEngine::IoUring),
    supported("mmap", JobEngine::Mmap),
    supported("raw", JobEngine::Raw),
    replaced("vsync", JobEngine::Psync, "neighbouring operations are not joined before the call"),
    replaced("pvsync", JobEngine::Psync, "preadv(2) of one piece is pread(2)"),
    replaced("pvsync2", JobEngine::Psync, "preadv2(2) of one piece is pread(2)"),
    replaced("posixaio", JobEngine::Libaio, "it is the C library's threads in fio"),
    replaced("solarisaio", JobEngine::Libaio, "it is Solaris's way to many in flight"),
    replaced("windowsaio", JobEngine::Libaio, "it is Windows's way to many in flight"),
    replaced("syslet-rw", JobEngine::Libaio, "it is an early way to many in flight"),
    replaced("libblkio", JobEngine::IoUring, "its drivers of plain files do the same I/O"),
    replaced("xnvme", JobEngine::IoUring, "its asynchronous ways do the same I/O"),
    replaced(
        "splice",
        JobEngine::Psync,
        "the bytes are copied to memory, not moved through a pipe",
    ),
    replaced("null", JobEngine::Libaio, "fio moves nothing; here the operations are carried out"),
    replaced(
        "cpp_null",
        JobEngine::Libaio,
        "fio moves nothing; here the operations are carried out",
    ),
    replaced("libpmem", JobEngine::Mmap, "the memory is that of the page cache"),
    replaced("dev-dax", JobEngine::Mmap, "the memory is that of the page cache"),
    replaced("pmemblk", JobEngine::Psync, "blocks are written in place"),
    refused("net", NETWORK),
    refused("netsplice", NETWORK),
    refused("rdma", NETWORK),
    refused("librpma_apm_client", NETWORK),
    refused("librpma_apm_server", NETWORK),
    refused("librpma_gpspm_client", NETWORK),
    refused("librpma_gpspm_server", NETWORK),
    refused("http", REMOTE),
    refused("rados", REMOTE),
    refused("rbd", REMOTE),
    refused("gfapi", REMOTE),
    refused("gfapi_async", REMOTE),
    refused("libhdfs", REMOTE),
    refused("dfs", REMOTE),
    refused("nbd", REMOTE),
    refused("ime_psync", REMOTE),
    refused("ime_psyncv", REMOTE),
    refused("ime_aio", REMOTE),
    refused("libzbc", "it sends commands to zoned disks in place of reads and writes"),
    refused("libiscsi", REMOTE),
    refused("nfs", "name the server's file with --on nfs://HOST/EXPORT/PATH in its place"),
    refused("libcufile", "it moves data to the memory of a graphics card"),
    replaced("sg", JobEngine::Psync, "its commands read and write the same blocks, past the cache"),
    refused("bsg", DEVICE),
    refused("mtd", "it writes to raw flash, which must be erased first"),
    replaced(
        "io_uring_cmd",
        JobEngine::IoUring,
        "its commands read and write the same blocks, past the cache",
    ),
    refused("ftruncate", NAMES),
    refused("falloc", NAMES),
    refused("filecreate", NAMES),
    refused("filestat", NAMES),
    refused("filedelete", NAMES),
    refused("dircreate", NAMES),
    refused("dirstat", NAMES),
    refused("dirdelete", NAMES),
    refused("fileopen", NAMES),
    refused("filexattr", NAMES),
    refused("fileoperations", NAMES),
    refused("e4defrag", "it moves the blocks of files about inside their file system"),
    refused("cpuio", "it burns processor time and reads nothing"),
    refused("exec", "it runs a program of its own"),
    refused("guasi", "it is given up by its authors; use libaio"),
    refused("external", "it is code of its own that would have to be loaded"),
];
