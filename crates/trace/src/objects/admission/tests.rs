//! Decisions of the admission policies, worked by hand.

use super::*;
use crate::objects::{ObjectTrace, object_misses_admitted};

/// Hits (`h`), misses that enter (`m`) and misses that do not enter (`-`) of references to objects
/// `(number, bytes)`, taken from the counts of all beginnings of the trace.
fn trajectory(
    references: &[(u64, u64)],
    eviction: &str,
    admission: &str,
    cache_bytes: u64,
) -> String {
    let admission = Admission::parse(admission).unwrap();
    let mut before = (0, 0);
    let step = |count: usize| {
        let trace = ObjectTrace::new(references[..count].iter().copied()).unwrap();
        let counts = object_misses_admitted(&trace, eviction, &admission, cache_bytes).unwrap();
        let now = (counts.misses, counts.not_admitted);
        let letter = match (now.0 - before.0, now.1 - before.1) {
            (0, 0) => 'h',
            (1, 0) => 'm',
            (1, 1) => '-',
            other => panic!("{other:?}"),
        };
        before = now;
        letter
    };
    (1..=references.len()).map(step).collect()
}

/// A cache of 10 bytes. Objects: 1 of 4 bytes, 2 of 3, 3 of 5, 4 of 20. The last one never fits.
const REFERENCES: [(u64, u64); 9] =
    [(1, 4), (2, 3), (1, 4), (3, 5), (4, 20), (1, 4), (2, 3), (3, 5), (2, 3)];

/// `all`, lru: 1 and 2 enter, 1 hits, 3 evicts 2, 1 hits, 2 evicts 3, 3 evicts 1 (2 and 3 are 8
/// bytes), 2 hits.
///
/// `size:5` rejects 3 and 4; 1 and 2 hit.
///
/// `bloom`: the second references of 1, 2 and 3 enter. Before 3, 1 (4) and 2 (3) are present;
/// 1 leaves for 3, and 2 hits.
#[test]
fn golden_trajectories_of_fixed_rules() {
    assert_eq!(trajectory(&REFERENCES, "lru", "all", 10), "mmhm-hmmh");
    assert_eq!(trajectory(&REFERENCES, "lru", "size:5", 10), "mmh--hh-h");
    assert_eq!(trajectory(&REFERENCES, "lru", "bloom", 10), "--m--hmmh");
}

/// `tinylfu`, with the uses of 1, 2, 3 after each reference. 1 and 2 fill 7 of 10 bytes. 3 (5
/// bytes, 1 use) needs 2 more: 2 would leave under lru with 1 use, so 3 stays out. 1 and 2 hit. At
/// its second reference 3 has 2 uses, and the next to leave is 1 with 3. At the third one it has 3
/// uses against 3. At the fourth, 4 uses exceed 3, and 1 leaves.
#[test]
fn golden_trajectory_of_tinylfu() {
    let references =
        [(1, 4), (2, 3), (1, 4), (3, 5), (1, 4), (2, 3), (3, 5), (3, 5), (3, 5), (3, 5)];
    assert_eq!(trajectory(&references, "lru", "tinylfu", 10), "mmh-hh--mh");
}

/// Two objects of 5 bytes with 2 uses each fill 10 bytes. One of 10 bytes needs both, and enters
/// with its fifth use: 5 exceeds 2 + 2.
#[test]
fn tinylfu_compares_with_all_objects_that_leave_together() {
    let mut references = vec![(1, 5), (2, 5), (1, 5), (2, 5)];
    references.extend([(3, 10); 6]);
    for eviction in TINYLFU_EVICTION {
        assert_eq!(trajectory(&references, eviction, "tinylfu", 10), "mmhh----mh", "{eviction}");
    }
}

/// 160 references, ten for each of at least 16 objects, precede the halving. Object 1 has 15 uses
/// (the largest count) then, and 7 after it, when 3 has 1; with its eighth use 3 enters.
#[test]
fn tinylfu_halves_all_counts() {
    let mut references = vec![(1, 10); 160];
    references.extend([(3, 10); 9]);
    let expected = format!("m{}-------mh", "h".repeat(159));
    assert_eq!(trajectory(&references, "lru", "tinylfu", 10), expected);
}

/// The first values of SplitMix64 for seed 1234567 are published: 6457827717110365317, then
/// 3203168211198807973: 0.3501 and 0.1736 of 2^64.
#[test]
fn probability_compares_with_the_draw() {
    let mut draws = Draws(1_234_567);
    assert!(!draws.is_below(0.35));
    assert!(draws.is_below(0.1737));
    // A probability of 1 admits all, whatever the seed.
    assert_eq!(trajectory(&REFERENCES, "lru", "probability:1:7", 10), "mmhm-hmmh");
    // Objects of 3 and more bytes enter with a probability of e^-3 000 and less of c = 1/1000.
    let policy = |scale_bytes| SizeProbability { scale_bytes, draws: Draws(1) };
    let mut none = std::iter::empty();
    let reference = ObjectReference { object: 0, bytes: 3 };
    assert!(!policy(1e-3).admits(reference, &mut none));
    assert!(policy(1e18).admits(reference, &mut none));
}

#[test]
fn text_of_an_admission_policy_is_parsed_and_printed() {
    for (text, printed) in [
        ("all", "all"),
        ("size:4KiB", "size:4096"),
        ("probability:0.25", "probability:0.25"),
        ("probability:1:9", "probability:1:9"),
        ("size-probability:1000:3", "size-probability:1000:3"),
        ("bloomfilter", "bloom"),
        ("adaptsize", "adaptsize"),
        ("adaptsize:5000", "adaptsize:5000"),
        ("adaptsize:250000:2", "adaptsize:250000:2"),
        ("tinylfu", "tinylfu"),
    ] {
        assert_eq!(Admission::parse(text).unwrap().to_string(), printed);
    }
    for text in [
        "all:1",
        "size",
        "size:0",
        "size:x",
        "size:1:2",
        "probability",
        "probability:0",
        "probability:1.01",
        "probability:nan",
        "probability:0.5:x",
        "probability:0.5:1:1",
        "size-probability:0",
        "bloom:1",
        "adaptsize:0",
        "adaptsize:x",
        "tinylfu:",
    ] {
        let error = Admission::parse(text).unwrap_err().to_string();
        assert!(error.starts_with("expected "), "{text}: {error}");
    }
    let error = Admission::parse("lru").unwrap_err().to_string();
    assert!(error.ends_with("size-probability, bloom, adaptsize, tinylfu"), "{error}");
    assert!(Admission::parse("").is_err());
}

#[test]
fn every_admission_policy_has_a_page() {
    for policy in ADMISSION_POLICIES {
        assert!(policy.page().count() > 3, "{}", policy.name);
    }
}
