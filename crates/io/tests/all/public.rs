//! A program that depends on this crate alone can name every type that it meets: options, results
//! and errors. No import here is from another crate of the workspace.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use readpath::nfs::{NfsOptions, SourcePort};
use readpath::pager::{FaultScope, LoadError, MappingBuilder, MappingMode, RegionStats};
use readpath::raw::{RawError, RawFault, RawFileBuilder, RawMemory, RawOpenError};
use readpath::{
    Advice, BackendError, BackendInUse, BackendKind, BuildError, Builder, Coherence, ConfigError,
    Decision, DeviceError, Direct, FrameMemoryError, LoggedDecision, Mapping, MemoryError, Mode,
    NfsError, NfsUrl, Op, OpenError, OpenFileError, PageCache, PagerError, ProcessId, RawFile,
    ReadError, ReadPath, Region, RequestId, SpecError, SwapError, Time,
};

/// A file of 64 KiB in the build directory, deleted on drop.
struct Made(PathBuf);

impl Made {
    fn new(name: &str) -> Made {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("public-{name}-{}", std::process::id()));
        std::fs::write(&path, [5; 64 << 10]).unwrap();
        Made(path)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Fields of a decision that a program would log.
fn dispatched(decided: &LoggedDecision) -> Option<(Time, RequestId, ProcessId)> {
    match decided.decision {
        Decision::Dispatch { request, process, .. } => Some((decided.at, request, process)),
        _ => None,
    }
}

#[test]
fn path_decisions_and_backend_have_public_types() {
    let made = Made::new("path");
    let builder: Builder = ReadPath::builder()
        .page_cache(PageCache::Own { bytes: None })
        .scheduler("cfq")
        .log_decisions(true);
    let path = builder.coherence(Coherence::EachMiss).backend(BackendKind::Auto).build().unwrap();
    let file = path.open(&made.0).unwrap();
    file.advise(Advice::Random);
    file.read_exact_at(&mut [0; 4096], 8192).unwrap();
    let in_use: BackendInUse = path.stats().backend.unwrap();
    let _why_not_better: Option<BackendError> = in_use.because;
    let _way: Mode = file.mode();
    // Resident pages were read from the kernel page cache, without the scheduler.
    assert!(path.take_decisions().iter().filter_map(dispatched).count() <= 1);
}

#[test]
fn builders_name_the_known_policies_in_policy_errors() {
    let made = Made::new("policies");
    let known = |error: &SpecError| match error {
        SpecError::UnknownName { known, .. } => known.len(),
        other => panic!("{other}"),
    };
    let error = ReadPath::builder()
        .page_cache(PageCache::Own { bytes: None })
        .readahead("psychic")
        .build()
        .err()
        .unwrap();
    let BuildError::Config(ConfigError::Policy(error)) = error else { panic!("{error}") };
    assert!(known(&error) > 3);
    let error = ReadPath::builder()
        .page_cache(PageCache::Own { bytes: None })
        .scheduler("a,b")
        .build()
        .err()
        .unwrap();
    assert!(matches!(error, BuildError::Policy(SpecError::Malformed { .. })), "{error}");

    let builder: RawFileBuilder = RawFile::builder().direct(Direct::Never).policy("psychic");
    let error = builder.open(&made.0).err().unwrap();
    let RawOpenError::Policy(error) = error else { panic!("{error}") };
    assert!(known(&error) >= 2);
    let error = RawFile::builder().policy("a,b").chunk_bytes(4096).open(&made.0).err().unwrap();
    assert!(matches!(error, RawOpenError::Policy(SpecError::Malformed { .. })), "{error}");

    let builder: MappingBuilder = Mapping::builder().readahead("a,b");
    // SAFETY: the file does not change.
    let error = unsafe { builder.open(&made.0) }.unwrap_err();
    assert!(matches!(error, PagerError::Policy(SpecError::Malformed { .. })), "{error}");
    match Region::builder().swapin("psychic").in_folder(1 << 20, env!("CARGO_TARGET_TMPDIR")) {
        Err(PagerError::Swap(SwapError::Policy(error))) => assert!(known(&error) > 3),
        Err(error) => eprintln!("skipped: {error}"),
        Ok(_) => panic!("there is no such policy"),
    }
}

#[test]
fn errors_are_distinguished_by_public_variants() {
    let missing = readpath::File::open("/nowhere/at/all").err().unwrap();
    assert!(matches!(missing, OpenFileError::Open(OpenError::Missing { .. })), "{missing}");
    // As open(2): a file has no entries.
    let below = readpath::File::open("/dev/null/entry").err().unwrap();
    let is_no_folder =
        matches!(below, OpenFileError::Open(OpenError::Other { errno: libc::ENOTDIR, .. }));
    assert!(is_no_folder, "{below}");
    let error = ReadPath::builder().memory(0).build().err().unwrap();
    let is_memory = |error: &BuildError| match error {
        BuildError::Config(ConfigError::NoMemory { memory_bytes, .. }) => *memory_bytes == 0,
        BuildError::Memory(FrameMemoryError::Empty) => true,
        _ => false,
    };
    assert!(is_memory(&error), "{error}");

    let made = Made::new("errors");
    let file = RawFile::open(&made.0).unwrap();
    let error: RawError = file.write_at(&RawMemory::new(4096).unwrap(), 0).unwrap_err();
    let is_medium = |fault: &RawFault| {
        matches!(fault, RawFault::Device { op: Op::Read, error: DeviceError::Medium, .. })
    };
    assert!(error.fault == RawFault::ReadOnly && !is_medium(&error.fault));

    let file = readpath::File::open(&made.0).unwrap();
    std::fs::File::options().write(true).open(&made.0).unwrap().set_len(4096).unwrap();
    let error = file.read_exact_at(&mut [0; 4096], 8192).unwrap_err();
    let inner = error.get_ref().and_then(|error| error.downcast_ref::<ReadError>());
    // The first requested byte.
    assert_eq!(inner, Some(&ReadError::Shrunk { offset: 8192 }), "{error}");
}

/// Success of a call, without its value.
fn done<T>(_: T) -> std::io::Result<()> {
    Ok(())
}

/// A program's function that returns `std::io::Error` uses `?` after every call of the library.
#[test]
fn errors_of_all_calls_convert_to_io_errors_with_their_kind() {
    type Call = fn(&Path) -> std::io::Result<()>;
    let calls: [(ErrorKind, Call); 14] = [
        (ErrorKind::NotFound, |none| done(ReadPath::builder().build()?.open(none)?)),
        (ErrorKind::NotFound, |none| done(readpath::File::open(none)?)),
        (ErrorKind::NotFound, |none| done(RawFile::open(none)?)),
        // SAFETY: no file is mapped.
        (ErrorKind::NotFound, |none| done(unsafe { Mapping::builder().open(none) }?)),
        (ErrorKind::NotFound, |none| done(Region::builder().in_folder(4096, none)?)),
        (ErrorKind::InvalidInput, |_| done(ReadPath::builder().depth(9).build()?)),
        (ErrorKind::InvalidInput, |_| done(ReadPath::builder().memory(9).build()?)),
        (ErrorKind::InvalidInput, |_| done(RawFile::builder().policy("?").open("/")?)),
        (ErrorKind::IsADirectory, |_| done(RawFile::open("/")?)),
        (ErrorKind::IsADirectory, |_| done(ReadPath::builder().build()?.open("/")?)),
        (ErrorKind::OutOfMemory, |_| done(ReadPath::builder().memory(1 << 43).build()?)),
        (ErrorKind::InvalidInput, |_| done(ReadPath::builder().build()?.open("a\0b")?)),
        (ErrorKind::InvalidInput, |_| done(RawFile::open("a\0b")?)),
        (ErrorKind::UnexpectedEof, |_| {
            // SAFETY: the program does not change.
            let mapping = unsafe { Mapping::builder().open(std::env::current_exe()?) }?;
            Ok(mapping.read_exact_at(&mut [0; 2], mapping.len() as u64 - 1)?)
        }),
    ];
    for (index, (kind, call)) in calls.into_iter().enumerate() {
        let error = call(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(error.kind(), kind, "call {index}: {error}");
        assert!(error.get_ref().is_some(), "call {index}: {error}");
    }
    let nul = ReadPath::builder().build().unwrap().open("a\0b").err().unwrap().to_string();
    assert_eq!(nul, "\"a\\0b\": the name has a NUL byte; check the path");
    let empty = readpath::File::open("").err().unwrap().to_string();
    assert_eq!(empty, "the name is empty; give the path of a file");
    // NAME_MAX is 255 bytes (limits.h).
    let long = readpath::File::open("n".repeat(256)).err().unwrap().to_string();
    assert!(long.ends_with("; shorten the path, or a name in it of more than 255 bytes"), "{long}");
    let link = std::env::temp_dir().join(format!("readpath-loop-{}", std::process::id()));
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let cycle = readpath::File::open(&link).err().unwrap().to_string();
    std::fs::remove_file(&link).unwrap();
    // Also the error of more than 40 links without a cycle (path_resolution(7)).
    assert!(cycle.ends_with("; use a path with fewer symbolic links, without a cycle"), "{cycle}");
    let url = ReadPath::builder().build().unwrap().open("s3://a/b").err().unwrap().to_string();
    assert!(url.ends_with("open a URL by `File::open`"), "{url}");
}

#[test]
fn mappings_and_regions_report_their_mode_and_errors() {
    let made = Made::new("memory");
    // SAFETY: the file does not change.
    let mapping = unsafe { Mapping::builder().memory(1 << 20).open(&made.0) }.unwrap();
    if let MappingMode::Kernel { because } = mapping.mode() {
        eprintln!("the kernel serves it: {because}");
    }
    let error = mapping.load(0, 1 << 20).unwrap_err();
    assert_eq!(error, LoadError::PastEnd { bytes: 64 << 10 });
    let made = Region::builder().memory(1 << 20).in_folder(1 << 20, env!("CARGO_TARGET_TMPDIR"));
    let Ok(region) = made else { return eprintln!("skipped: {}", made.unwrap_err()) };
    let checked: Result<(), MemoryError> = region.check();
    assert_eq!((checked, region.stats()), (Ok(()), RegionStats::default()));
    assert!([FaultScope::All, FaultScope::UserOnly].contains(&region.scope()));
}

#[test]
fn nfs_url_and_options_have_public_types() {
    let url = NfsUrl::parse("nfs://server:2050/export/file?slots=8&repeat=2s&source=any").unwrap();
    let NfsOptions { slots, repeat_after, source_port, .. } = url.options;
    assert_eq!((slots, repeat_after, source_port), (8, Time::from_s(2), SourcePort::Any));
    let error = readpath::File::open("nfs://server/export/file?slots=none").err().unwrap();
    assert!(matches!(error, OpenFileError::Nfs(NfsError::Url(_))), "{error}");
}
