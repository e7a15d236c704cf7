//! Page cache modes: who keeps the pages, and which options have an effect.

use readpath::{BackendKind, BuildError, Builder, File, OptionError, PageCache, ReadPath, Stats};

use crate::support::*;

const PAGE: u64 = 4096;
const FILE_BYTES: usize = 1 << 20;
const OWN: PageCache = PageCache::Own { bytes: None };

fn stats_of(file: &File) -> Stats {
    file.read_path().stats()
}

/// An option and the modes in which it has no effect.
type Case = (&'static str, fn(Builder) -> Builder, &'static [PageCache]);

/// The table in the documentation of `Builder::page_cache`.
const CASES: [Case; 10] = {
    use PageCache::{Kernel, None};
    [
        ("coherence", |it| it.coherence(readpath::Coherence::EachMiss), &[]),
        ("log_decisions", |it| it.log_decisions(true), &[]),
        ("scheduler", |it| it.scheduler("noop"), &[Kernel]),
        ("depth", |it| it.depth(128), &[Kernel]),
        ("backend", |it| it.backend(BackendKind::Auto), &[Kernel]),
        ("held_memory", |it| it.held_memory(1 << 20), &[Kernel]),
        ("readahead", |it| it.readahead("adaptive"), &[Kernel, None]),
        ("eviction", |it| it.eviction("adaptive"), &[Kernel, None]),
        ("kernel_cache", |it| it.kernel_cache(true), &[Kernel, None]),
        ("whole_file_memory", |it| it.whole_file_memory(1 << 20), &[OWN, None]),
    ]
};

/// The values are the defaults: a mode never depends on them.
#[test]
fn option_without_effect_is_an_error_that_names_the_cure() {
    for (option, give, refused_in) in CASES {
        for page_cache in [PageCache::Kernel, OWN, PageCache::None] {
            let built = give(ReadPath::builder().page_cache(page_cache)).build();
            if !refused_in.contains(&page_cache) {
                assert_eq!(built.unwrap().page_cache(), page_cache, "{option}");
                continue;
            }
            let error = built.err().unwrap();
            assert_eq!(error, BuildError::Option(error_of(option, &error)));
            let text = error.to_string();
            let said =
                format!("option `{option}` has no effect with the page cache `{page_cache}`");
            let cure = if option == "whole_file_memory" { "kernel" } else { "own" };
            let cure = format!("choose the page cache `{cure}`");
            assert!(text.starts_with(&said) && text.contains(&cure), "{text}");
        }
        // An option does not change the default mode.
        let built = give(ReadPath::builder()).build();
        assert_eq!(built.is_ok(), !refused_in.contains(&PageCache::Kernel), "{option}");
    }
}

/// The option error of a build error, which must name this option.
fn error_of(option: &str, error: &BuildError) -> OptionError {
    let BuildError::Option(inner) = error else { panic!("{error}") };
    assert_eq!(inner.option, option);
    *inner
}

#[test]
fn memory_means_a_cache_of_ones_own() {
    let own = PageCache::Own { bytes: Some(8 << 20) };
    let by_memory = ReadPath::builder().memory(8 << 20).build().unwrap();
    assert_eq!(by_memory.page_cache(), own);
    for page_cache in [own, OWN] {
        let path = ReadPath::builder().page_cache(page_cache).memory(8 << 20).build().unwrap();
        assert_eq!((path.page_cache(), path.stats().memory_bytes), (own, 8 << 20));
    }
    let named = ReadPath::builder().page_cache(own).build().unwrap();
    assert_eq!(named.stats().memory_bytes, 8 << 20);
    for page_cache in [PageCache::Kernel, PageCache::None] {
        let built = ReadPath::builder().page_cache(page_cache).memory(8 << 20).build();
        assert_eq!(error_of("memory", &built.err().unwrap()).page_cache, page_cache);
    }
    let twice = ReadPath::builder().page_cache(own).memory(4 << 20).build().err().unwrap();
    assert!(twice.to_string().contains("different sizes"), "{twice}");
}

/// The second read of a page: a request of the device without a cache, a copy with one.
#[test]
fn pages_stay_only_where_the_mode_keeps_them() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    for (page_cache, requests) in [(PageCache::None, 2), (OWN, 1)] {
        let builder = ReadPath::builder().page_cache(page_cache);
        let builder = match page_cache {
            OWN => builder.readahead("none").kernel_cache(false),
            _ => builder,
        };
        let file = builder.build().unwrap().open(&temp.path).unwrap();
        assert_eq!(file.page_cache(), page_cache);
        for _ in 0..2 {
            let mut buffer = vec![0; 64 << 10];
            file.read_exact_at(&mut buffer, 5 * PAGE).unwrap();
            assert!(buffer == content[5 * PAGE as usize..][..64 << 10]);
        }
        let stats = stats_of(&file);
        assert_eq!((stats.device_reads, stats.device_bytes), (requests, requests << 16));
    }
    let file = File::open(&temp.path).unwrap();
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    assert_eq!((file.page_cache(), stats_of(&file).device_reads), (PageCache::Kernel, 0));
}

/// Without a cache there are no pages that no read waits for. Guards keep theirs.
#[test]
fn path_without_a_cache_prefetches_nothing_and_keeps_guarded_pages() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let file = ReadPath::builder().page_cache(PageCache::None).build().unwrap();
    let file = file.open(&temp.path).unwrap();
    file.prefetch(0, FILE_BYTES as u64);
    file.advise(readpath::Advice::Sequential);
    assert_eq!(stats_of(&file).device_reads, 0);
    for page in 0..32u64 {
        file.read_exact_at(&mut [0; 4096], page * PAGE).unwrap();
    }
    assert_eq!((stats_of(&file).device_reads, stats_of(&file).readahead_bytes), (32, 0));
    let guard = file.page(3 * PAGE).unwrap();
    let again = file.page(3 * PAGE).unwrap();
    assert!(guard[..] == content[3 * 4096..][..4096] && again[..] == guard[..]);
    assert_eq!(stats_of(&file).device_reads, 34);
}

/// Batches, vectored reads and readers return the file's bytes without a cache.
#[test]
fn every_kind_of_read_works_without_a_cache() {
    let temp = TempFile::new(FILE_BYTES + 777);
    let content = std::fs::read(&temp.path).unwrap();
    for backend in BACKENDS {
        let path =
            ReadPath::builder().page_cache(PageCache::None).backend(backend).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut whole = Vec::new();
        std::io::Read::read_to_end(&mut file.reader(), &mut whole).unwrap();
        assert!(whole == content);
        let mut batch = path.batch();
        for nth in 0..64u64 {
            batch.read(&file, nth * 7_919 % 1_000_000, 5000, nth).unwrap();
        }
        let mut count = 0;
        while let Some(read) = batch.wait().unwrap() {
            let offset = (read.ticket() * 7_919 % 1_000_000) as usize;
            let bytes: Vec<u8> = read.slices().unwrap().flatten().copied().collect();
            assert!(bytes == content[offset..offset + 5000]);
            count += 1;
        }
        assert_eq!(count, 64);
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let (file, content) = (&file, &content);
                scope.spawn(move || {
                    let mut buffer = vec![0; 100_000];
                    for nth in 0..40 {
                        // Neighbours read overlapping ranges at the same time.
                        let offset = (nth * 30_011 + thread * 50_000) % 900_000;
                        file.read_exact_at(&mut buffer, offset as u64).unwrap();
                        assert!(buffer == content[offset..offset + 100_000]);
                    }
                });
            }
        });
    }
}
