//! Load files: the values that are run, and error messages with line and key.

use std::path::Path;

use proptest::prelude::*;
use readpath_sim::load::{MemoryLoad, MemorySharing, TouchPattern, file};

const MIB: u64 = 1 << 20;

fn parse(text: &str) -> Result<Vec<MemoryLoad>, String> {
    file::parse(text, Path::new("load.toml")).map_err(|error| error.to_string())
}

/// Example from the description of the format.
#[test]
fn documented_example_is_parsed_as_described() {
    let text = r#"
        mapping = "1000MiB"
        memory = "900MiB"
        swap = "1GiB"

        [[load]]
        name = "sweeps"
        pattern = "sequential"
        sweeps = 5

        [[load]]
        name = "random"
        pattern = "random"
        touches = 5_000_000
        writes = 0.3
        share = "shared"
        processes = 4
        seed = 7
    "#;
    let loads = parse(text).unwrap();
    let sweeps = MemoryLoad {
        name: "sweeps".to_owned(),
        mapping_bytes: 1000 * MIB,
        memory_bytes: 900 * MIB,
        swap_bytes: 1024 * MIB,
        pattern: TouchPattern::Sequential,
        touches: 1_280_000,
        writes_percent: 0,
        share: MemorySharing::Private,
        processes: 1,
        seed: 0,
    };
    let random = MemoryLoad {
        name: "random".to_owned(),
        pattern: TouchPattern::Random,
        touches: 5_000_000,
        writes_percent: 30,
        share: MemorySharing::Shared,
        processes: 4,
        seed: 7,
        ..sweeps.clone()
    };
    assert_eq!(loads, [sweeps, random]);
}

/// A file of one load. Each of `lines` replaces the line with the same key.
fn with(lines: &[&str]) -> String {
    let mut all = vec![
        "[[load]]".to_owned(),
        "name = \"l\"".to_owned(),
        "mapping = \"64MiB\"".to_owned(),
        "memory = \"48MiB\"".to_owned(),
        "pattern = \"random\"".to_owned(),
        "touches = 100".to_owned(),
    ];
    for line in lines {
        let key = line.split('=').next().unwrap();
        match all.iter_mut().find(|there| there.starts_with(key)) {
            Some(there) => *there = (*line).to_owned(),
            None => all.push((*line).to_owned()),
        }
    }
    all.join("\n")
}

#[test]
fn values_are_accepted_in_several_notations() {
    let one = |line: &str| parse(&with(&[line])).unwrap().remove(0);
    assert_eq!(one("mapping = 67108864").mapping_bytes, 64 * MIB);
    assert_eq!(one("mapping = '64m'").mapping_bytes, 64 * MIB);
    assert_eq!(one("touches = 0x10").touches, 16);
    assert_eq!(one("writes = true").writes_percent, 100);
    assert_eq!(one("writes = false").writes_percent, 0);
    assert_eq!(one("writes = 0.29").writes_percent, 29);
    assert_eq!(one("swap = '16MiB'").swap_bytes, 16 * MIB);
    // Three private mappings need three times the swap. A shared one does not.
    assert_eq!(one("processes = 3").swap_bytes, 192 * MIB);
    let shared = parse(&with(&["processes = 3", "share = 'shared'"])).unwrap().remove(0);
    assert_eq!(shared.swap_bytes, 64 * MIB);
    // The number of random touches equals three sweeps of 16,384 pages.
    let text = with(&[]).replace("touches = 100", "sweeps = 3");
    assert_eq!(parse(&text).unwrap()[0].touches, 49_152);
}

/// A load's own value has priority over the value above all loads.
#[test]
fn load_value_overrides_the_file_default() {
    let text = format!("sweeps = 9\nmemory = '1GiB'\nshare = 'shared'\n{}", with(&[]));
    let load = parse(&text).unwrap().remove(0);
    assert_eq!(
        (load.touches, load.memory_bytes, load.share),
        (100, 48 * MIB, MemorySharing::Shared)
    );
}

#[test]
fn errors_name_the_line_and_the_key() {
    let cases: &[(&[&str], &str)] = &[
        (&["name = ''"], "load.toml:2: `name`: expected a word or two on one line"),
        (&["mapping = '64 stone'"], "load.toml:3: `mapping`: expected a size such as \"512MiB\""),
        (&["mapping = -1"], "load.toml:3: `mapping`: expected a size"),
        (&["mapping = 5000"], "load.toml:3: `mapping`: 5000 bytes; expected whole pages of 4096"),
        (&["memory = '4k'"], "load.toml:4: `memory`: 4096 bytes; expected whole pages"),
        (
            &["pattern = 'psychic'"],
            "load.toml:5: `pattern`: `psychic` is none of: sequential, random, zipf, swept",
        ),
        (&["touches = 0"], "load.toml:6: `touches`: 0 touches"),
        (&["touches = 1.5"], "load.toml:6: `touches`: 1.5 is not a whole number of touches"),
        (&["touches = 'many'"], "load.toml:6: `touches`: expected a number of touches"),
        (&["sweeps = 3"], "load.toml:7: `sweeps`: and `touches` say the same; leave one out"),
        (
            &["swap = '1MiB'"],
            "load.toml:7: `swap`: all mappings together have 67108864 bytes, \
            memory and swap 51380224; give at least 15728640 bytes more swap",
        ),
        (&["writes = 30"], "load.toml:7: `writes`: expected false, true, or the part"),
        (&["writes = 0.333"], "load.toml:7: `writes`: expected false, true, or the part"),
        (&["share = 'public'"], "load.toml:7: `share`: `public` is none of: private, shared"),
        (&["processes = 0"], "load.toml:7: `processes`: 0 processes is less than 1 processes"),
        (&["processes = 1025"], "load.toml:7: `processes`: 1025 processes is more than 1024"),
        (&["seed = -1"], "load.toml:7: `seed`: -1"),
        (&["stride = 3"], "load.toml:7: `stride`: is no key of a load; there are: name, mapping,"),
        (&["name = 'l'\nname = 'm'"], "load.toml:3: duplicate key"),
        (&["mapping = "], "load.toml:3: "),
    ];
    for (lines, expected) in cases {
        let parse_error = parse(&with(lines)).unwrap_err();
        assert!(parse_error.starts_with(expected), "{lines:?}: {parse_error}");
    }
    for key in ["name", "mapping", "memory", "pattern"] {
        let text: Vec<_> =
            with(&[]).lines().filter(|line| !line.starts_with(key)).map(str::to_owned).collect();
        let parse_error = parse(&text.join("\n")).unwrap_err();
        assert!(
            parse_error.starts_with(&format!("load.toml:1: `{key}`: is missing")),
            "{parse_error}"
        );
    }
    let parse_error = parse(&with(&[]).replace("touches = 100", "")).unwrap_err();
    assert!(parse_error.starts_with("load.toml:1: `sweeps`: is missing"), "{parse_error}");
}

#[test]
fn file_level_errors_are_reported() {
    for (text, expected) in [
        (String::new(), "load.toml: has no load; write `[[load]]`"),
        ("[global]\nrw=read\n".to_owned(), "load.toml:2: "),
        ("load = 3".to_owned(), "load.toml:1: `load`: expected a list; head each load with"),
        ("load = []".to_owned(), "load.toml:1: `load`: 0 loads; expected 1 to 1000"),
        ("[load]\nname = 'l'".to_owned(), "load.toml:1: `load`: expected a list; head each"),
        (format!("depth = 3\n{}", with(&[])), "load.toml:1: `depth`: is no key of a load"),
        (format!("name = 'all'\n{}", with(&[])), "load.toml:1: `name`: belongs below"),
        (format!("{0}\n{0}", with(&[])), "load.toml:8: `name`: `l` is the name of an earlier load"),
        (format!("memory = 7\n{}", with(&[]).replace("memory", "#")), "load.toml:1: `memory`: 7"),
    ] {
        let parse_error = parse(&text).unwrap_err();
        assert!(parse_error.starts_with(expected), "{text}: {parse_error}");
    }
}

fn any_load() -> impl Strategy<Value = MemoryLoad> {
    let sizes = (1u64..1 << 20, 256u64..1 << 20, 0u64..1 << 20);
    let touches = (any::<bool>(), 1u64..1_000_000_000);
    let others = (0u32..=100, any::<bool>(), 1u32..=1024, 0u64..1 << 53);
    (sizes, touches, others).prop_map(|(sizes, (is_random, touches), others)| {
        let (mapping_pages, memory_pages, more_pages) = sizes;
        let (writes_percent, is_shared, processes, seed) = others;
        let mappings = if is_shared { 1 } else { u64::from(processes) };
        let needed_pages = (mapping_pages * mappings).saturating_sub(memory_pages);
        MemoryLoad {
            name: "any".to_owned(),
            mapping_bytes: mapping_pages * 4096,
            memory_bytes: memory_pages * 4096,
            swap_bytes: (needed_pages + more_pages).max(1) * 4096,
            pattern: if is_random { TouchPattern::Random } else { TouchPattern::Sequential },
            touches,
            writes_percent,
            share: if is_shared { MemorySharing::Shared } else { MemorySharing::Private },
            processes,
            seed,
        }
    })
}

/// A load as text, with sizes in the largest exact unit.
fn written(load: &MemoryLoad) -> String {
    let size = |bytes: u64| match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("'{}GiB'", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("'{}m'", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 13) => format!("{bytes}"),
        _ => format!("'{} KiB'", bytes >> 10),
    };
    format!(
        "swap = {}\n[[load]]\nname = '{}'\nmapping = {}\nmemory = {}\npattern = '{}'\n\
         touches = {}\nwrites = {}.{:02}\nshare = '{}'\nprocesses = {}\nseed = {}\n",
        size(load.swap_bytes),
        load.name,
        size(load.mapping_bytes),
        size(load.memory_bytes),
        if load.pattern == TouchPattern::Random { "random" } else { "sequential" },
        load.touches,
        load.writes_percent / 100,
        load.writes_percent % 100,
        if load.share == MemorySharing::Shared { "shared" } else { "private" },
        load.processes,
        load.seed,
    )
}

/// Applies insertions, deletions and replacements to the text.
fn damaged(text: &str, damages: &[(usize, u8, String)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for (place, way, piece) in damages {
        let at = place % (letters.len() + 1);
        let end = (at + usize::from(way / 3)).min(letters.len());
        let piece: Vec<char> = if way % 3 == 0 { Vec::new() } else { piece.chars().collect() };
        let end = if way % 3 == 1 { at } else { end };
        letters.splice(at..end, piece);
    }
    letters.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn written_load_is_read_back(load in any_load()) {
        prop_assert_eq!(parse(&written(&load)), Ok(vec![load]));
    }

    /// Any text gives loads that can be run, or a message with one of its lines.
    #[test]
    fn damaged_text_gives_valid_loads_or_an_error_with_its_line(
        load in any_load(),
        damages in prop::collection::vec(
            (any::<usize>(), any::<u8>(), "[ -~\n]{0,6}|\\[\\[load\\]\\]\n|nan|1e400|0x|\u{0}|é"),
            1..6,
        ),
    ) {
        let text = damaged(&written(&load), &damages);
        match file::parse(&text, Path::new("load.toml")) {
            Ok(loads) => {
                prop_assert!(!loads.is_empty());
                for load in loads {
                    prop_assert_eq!(load.check(), Ok(()));
                }
            }
            Err(error) => {
                prop_assert!(error.line <= text.lines().count() + 1, "{}", error);
                prop_assert!(!error.problem.is_empty());
            }
        }
    }
}
