//! Traces of references to objects with sizes, and the misses of a cache with a size in bytes.
//!
//! Objects are chunks of files, blocks of keys and values, or the weights of one expert. A miss of
//! a large object costs more bytes than one of a small object. Two numbers therefore count: the
//! *miss ratio* of the references, and the *byte miss ratio*.
//!
//! The rules are common to all policies. An object keeps the size of the reference by which it
//! entered. Objects leave until the new one fits; under `gdsf` the new one can be among them. An
//! object larger than the cache is not admitted, and no object leaves for it. An object that the
//! admission policy rejects is treated alike.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::TraceError;
use crate::references::oracle_general_records;

mod admission;
mod policies;

pub use admission::{ADMISSION_POLICIES, Admission, AdmissionError, TINYLFU_EVICTION};

use admission::AdmissionPolicy;
use policies::{Fifo, Gdsf, Lru, ObjectPolicy, S3Fifo, Sieve};

/// Names of the policies for objects with sizes.
pub const OBJECT_POLICIES: [&str; 5] = ["fifo", "lru", "sieve", "s3fifo", "gdsf"];

/// Format of a trace of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFormat {
    /// libCacheSim's `oracleGeneral`: records of 24 bytes, each with time (4 bytes), object (8),
    /// size (4) and next use (8), little-endian.
    OracleGeneral,
    /// One JSON object per line with `key`, a text or a whole number, and `size` in bytes. Other
    /// fields are ignored.
    Jsonl,
}

impl ObjectFormat {
    /// The formats by name.
    pub const ALL: [(&'static str, ObjectFormat); 2] =
        [("oracle-general", ObjectFormat::OracleGeneral), ("jsonl", ObjectFormat::Jsonl)];

    /// Returns the format with this name, or `None` if it is unknown.
    pub fn named(name: &str) -> Option<ObjectFormat> {
        ObjectFormat::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// Returns the format indicated by a trace's name, or by text with a brace at its start. The
    /// text must be UTF-8, since a binary trace can begin with the byte of a brace. Returns `None`
    /// if neither indicates one.
    pub fn detect(name: &str, bytes: &[u8]) -> Option<ObjectFormat> {
        let name = name.to_ascii_lowercase();
        if name.contains("oraclegeneral") {
            return Some(ObjectFormat::OracleGeneral);
        }
        let has_brace = || bytes.trim_ascii_start().starts_with(b"{");
        let is_jsonl = name.ends_with(".jsonl") || has_brace() && str::from_utf8(bytes).is_ok();
        is_jsonl.then_some(ObjectFormat::Jsonl)
    }
}

/// One reference: the object, renumbered from 0, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// Number of the object.
    pub object: u32,
    /// Size in bytes, at least 1.
    pub bytes: u64,
}

/// A trace: objects in order of reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectTrace {
    /// References. The objects are renumbered from 0 in the order of their first reference.
    pub references: Vec<ObjectReference>,
    /// Number of distinct objects.
    pub objects: u32,
    /// Sum of the sizes of all references, in bytes.
    pub bytes: u64,
    /// Sum of the first sizes of all objects, in bytes.
    pub distinct_bytes: u64,
}

impl ObjectTrace {
    /// Creates a trace from keys and sizes in bytes. A size of 0 counts as 1 byte, since 0 marks an
    /// absent object in a cache. The line in an error is the number of the reference, from 1.
    ///
    /// # Errors
    /// There is no reference, there are too many objects, or the sum of the sizes exceeds 64 bits.
    pub fn new<K: Ord>(
        references: impl IntoIterator<Item = (K, u64)>,
    ) -> Result<ObjectTrace, TraceError> {
        let mut numbers: BTreeMap<K, u32> = BTreeMap::new();
        let mut trace = ObjectTrace::default();
        for (line, (key, bytes)) in (1..).zip(references) {
            let bytes = bytes.max(1);
            let next = numbers.len();
            let object = match numbers.get(&key) {
                Some(&object) => object,
                None => {
                    let object = u32::try_from(next).map_err(|_| TraceError::TooManyBlocks)?;
                    numbers.insert(key, object);
                    trace.distinct_bytes = trace.distinct_bytes.saturating_add(bytes);
                    object
                }
            };
            trace.bytes = trace.bytes.checked_add(bytes).ok_or_else(|| {
                TraceError::line(line, "the sum of the sizes up to here exceeds 64 bits")
            })?;
            trace.references.push(ObjectReference { object, bytes });
        }
        trace.objects = numbers.len() as u32;
        match trace.references.is_empty() {
            true => Err(TraceError::Empty { reason: "there is no reference in it".to_owned() }),
            false => Ok(trace),
        }
    }

    /// Parses a trace, up to `references_max` references. Later ones are left out, and lines of
    /// JSON behind them are not checked.
    ///
    /// # Errors
    /// Fails on the first malformed line or record, on an empty trace, and as
    /// [`ObjectTrace::new`] does.
    pub fn parse(
        bytes: &[u8],
        format: ObjectFormat,
        references_max: usize,
    ) -> Result<ObjectTrace, TraceError> {
        match format {
            ObjectFormat::OracleGeneral => {
                ObjectTrace::new(oracle_general_records(bytes)?.take(references_max))
            }
            ObjectFormat::Jsonl => parse_jsonl(bytes, references_max),
        }
    }
}

/// Key of an object in JSON. A number and the text of its digits are two keys.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(untagged)]
enum JsonKey {
    /// A key without quotes: digits alone, below 2^64.
    Number(u64),
    /// A key in quotes.
    Text(String),
}

/// Line of [`ObjectFormat::Jsonl`].
#[derive(Debug, Deserialize)]
struct JsonReference {
    /// Name of the object.
    key: JsonKey,
    /// Size of the object in bytes.
    size: u64,
}

/// Parses lines of [`ObjectFormat::Jsonl`]. Empty lines are ignored.
fn parse_jsonl(bytes: &[u8], references_max: usize) -> Result<ObjectTrace, TraceError> {
    let lines = (1..)
        .zip(bytes.split(|&byte| byte == b'\n'))
        .filter(|(_, text)| !text.trim_ascii().is_empty());
    let references: Result<Vec<(JsonKey, u64)>, TraceError> = lines
        .take(references_max)
        .map(|(line, text)| match serde_json::from_slice(text) {
            Ok(JsonReference { key, size }) => Ok((key, size)),
            Err(_) => Err(TraceError::unexpected(
                line,
                String::from_utf8_lossy(text).trim(),
                "`{\"key\": KEY, \"size\": BYTES}`, where KEY is a text or a whole number, and \
                 BYTES a whole number",
            )),
        })
        .collect();
    ObjectTrace::new(references?)
}

/// References and misses of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectMisses {
    /// Number of references.
    pub references: u64,
    /// Number of references that missed.
    pub misses: u64,
    /// Bytes of all references.
    pub bytes: u64,
    /// Bytes of the references that missed.
    pub missed_bytes: u64,
    /// Number of references that missed, and whose object did not enter: it was larger than the
    /// cache, or rejected by the admission policy.
    pub not_admitted: u64,
}

impl ObjectMisses {
    /// Share of the references that missed. Not a number without references.
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.references as f64
    }

    /// Share of the bytes that missed.
    pub fn byte_miss_ratio(&self) -> f64 {
        self.missed_bytes as f64 / self.bytes as f64
    }
}

/// Returns the misses of a trace in an initially empty cache of `cache_bytes`, under the policy of
/// [`OBJECT_POLICIES`] with this name. Every object that fits enters. `None` without such a policy.
pub fn object_misses(trace: &ObjectTrace, policy: &str, cache_bytes: u64) -> Option<ObjectMisses> {
    object_misses_admitted(trace, policy, &Admission::ALL, cache_bytes)
}

/// Returns the misses as [`object_misses`] does, with an admission policy. `None` also if it does
/// not work with the eviction policy.
pub fn object_misses_admitted(
    trace: &ObjectTrace,
    policy: &str,
    admission: &Admission,
    cache_bytes: u64,
) -> Option<ObjectMisses> {
    let mut cache = ObjectCache::new(policy, admission, trace.objects, cache_bytes)?;
    let mut misses = ObjectMisses::default();
    for &reference in &trace.references {
        misses.references += 1;
        misses.bytes += reference.bytes;
        let outcome = cache.reference(reference);
        if outcome != ObjectOutcome::Hit {
            misses.misses += 1;
            misses.missed_bytes += reference.bytes;
        }
        misses.not_admitted += u64::from(outcome == ObjectOutcome::NotAdmitted);
    }
    Some(misses)
}

/// Outcome of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOutcome {
    /// The object was present.
    Hit,
    /// The object was absent, and entered. Under `gdsf` it can have left again at once.
    Entered,
    /// The object was absent, and did not enter.
    NotAdmitted,
}

/// A cache of objects.
pub struct ObjectCache {
    /// Eviction policy.
    policy: Box<dyn ObjectPolicy>,
    /// Admission policy for missed objects.
    admission: Box<dyn AdmissionPolicy>,
    /// Size of each object in the cache; 0 for an absent one.
    sizes: Vec<u64>,
    /// Number of objects in the cache.
    present: u64,
    /// Size of the cache.
    cache_bytes: u64,
    /// Bytes of the objects in the cache.
    used_bytes: u64,
}

impl ObjectCache {
    /// Creates an empty cache for this number of distinct objects. `None` without an eviction
    /// policy of that name, or if the admission policy does not work with it.
    pub fn new(
        policy: &str,
        admission: &Admission,
        objects: u32,
        cache_bytes: u64,
    ) -> Option<ObjectCache> {
        if !admission.works_with(policy) {
            return None;
        }
        let policy: Box<dyn ObjectPolicy> = match policy {
            "fifo" => Box::new(Fifo::default()),
            "lru" => Box::new(Lru::default()),
            "sieve" => Box::new(Sieve::default()),
            "s3fifo" => Box::new(S3Fifo::new(cache_bytes)),
            "gdsf" => Box::new(Gdsf::default()),
            _ => return None,
        };
        let admission = admission.build(objects, cache_bytes);
        let sizes = vec![0; objects as usize];
        Some(ObjectCache { policy, admission, sizes, present: 0, cache_bytes, used_bytes: 0 })
    }

    /// Uses an object, or lets it enter. A present object is a hit, also with another size than at
    /// its entry. The admission policy records every reference first, hits included. The object's
    /// number is below the number of objects given to [`new`](ObjectCache::new).
    pub fn reference(&mut self, reference: ObjectReference) -> ObjectOutcome {
        let ObjectReference { object, bytes } = reference;
        self.admission.record(reference, self.present);
        if self.sizes[object as usize] > 0 {
            self.policy.record_use(object);
            return ObjectOutcome::Hit;
        }
        if bytes > self.cache_bytes || !self.admits(reference) {
            return ObjectOutcome::NotAdmitted;
        }
        self.admit(object, bytes);
        ObjectOutcome::Entered
    }

    /// Returns true if the admission policy lets the object enter. The policy is shown the objects
    /// that would leave for it: those next in the eviction order whose bytes make room. No object
    /// leaves yet.
    fn admits(&mut self, reference: ObjectReference) -> bool {
        let mut excess_bytes = (self.used_bytes + reference.bytes).saturating_sub(self.cache_bytes);
        let sizes = &self.sizes;
        let mut leaving = self.policy.leaving_order().take_while(|&object| {
            let leaves = excess_bytes > 0;
            excess_bytes = excess_bytes.saturating_sub(sizes[object as usize]);
            leaves
        });
        self.admission.admits(reference, &mut leaving)
    }

    /// Adds an object of at most the cache's size, after other objects have left until it fits. If
    /// the policy lets it compete, it enters first, and can be among the objects that leave. The
    /// announcement comes before both, while `s3fifo` still remembers the object as a ghost.
    fn admit(&mut self, object: u32, bytes: u64) {
        self.policy.announce(object);
        if self.policy.lets_compete() {
            self.enter(object, bytes);
            self.evict_to(self.cache_bytes);
        } else {
            self.evict_to(self.cache_bytes - bytes);
            self.enter(object, bytes);
        }
    }

    /// Lets objects leave until at most `bytes_max` are used.
    fn evict_to(&mut self, bytes_max: u64) {
        while self.used_bytes > bytes_max {
            let victim = self.policy.take_victim().expect("every present object can leave");
            self.used_bytes -= std::mem::take(&mut self.sizes[victim as usize]);
            self.present -= 1;
        }
    }

    /// Adds an object to the policy, and counts it as present.
    fn enter(&mut self, object: u32, bytes: u64) {
        self.policy.enter(object, bytes);
        self.sizes[object as usize] = bytes;
        self.used_bytes += bytes;
        self.present += 1;
    }
}

#[cfg(test)]
mod tests {
    use readpath_core::policy::Spec;
    use readpath_core::splitmix;

    use super::*;
    use crate::references::{BlockTrace, misses};

    /// References to objects `(number, bytes)` under a policy: misses, and missed bytes.
    fn missed(references: &[(u64, u64)], policy: &str, cache_bytes: u64) -> (u64, u64) {
        let trace = ObjectTrace::new(references.iter().copied()).unwrap();
        let misses = object_misses(&trace, policy, cache_bytes).unwrap();
        (misses.misses, misses.missed_bytes)
    }

    /// A cache of 10 bytes. Objects: 1 of 4 bytes, 2 of 3, 3 of 5, 4 of 20.
    ///
    /// 1 and 2 enter (7 bytes). 1 is a hit. 3 needs 5: FIFO evicts 1 (3 + 5 = 8), LRU evicts 2 (4 +
    /// 5 = 9), as SIEVE does, past the marked 1. 4 is not admitted, and evicts nothing. Then 1 is
    /// a miss of FIFO, which evicts 2 (5 + 4); 2 is a miss of all: for 3 more bytes FIFO evicts 3.
    #[test]
    fn golden_misses_of_objects_with_sizes() {
        let references = [(1, 4), (2, 3), (1, 4), (3, 5), (4, 20), (1, 4), (2, 3)];
        // FIFO: 1, 2, 3, 4, 1, 2 miss: 4 + 3 + 5 + 20 + 4 + 3.
        assert_eq!(missed(&references, "fifo", 10), (6, 39));
        // 1 is present at its second use.
        assert_eq!(missed(&references, "lru", 10), (5, 35));
        assert_eq!(missed(&references, "sieve", 10), (5, 35));
    }

    /// A cache of 10 bytes. The priority is the clock plus uses / bytes. Object 1 (2 bytes) has
    /// 2/2 after its second use, object 2 (5 bytes) 1/5. 3 enters with 1/5, 2 leaves, and the clock
    /// is 0.2. The third use of 1 gives it 0.2 + 3/2. 4 has 0.4 and evicts 3, 5 has 0.4 and evicts
    /// 4, and the last use of 1 is a hit: 1 to 5 miss once, 2 + 4 · 5 bytes.
    ///
    /// LRU evicts 1 for 3 and for 5, and misses it three times.
    #[test]
    fn golden_misses_of_gdsf() {
        let references = [(1, 2), (1, 2), (2, 5), (3, 5), (1, 2), (4, 5), (5, 5), (1, 2)];
        assert_eq!(missed(&references, "gdsf", 10), (5, 22));
        assert_eq!(missed(&references, "lru", 10), (7, 26));
    }

    /// A cache of 10 bytes, and objects 1 of 6 bytes, 2, 3 and 4 of 2. The large object has the
    /// lowest priority, 1/6, and leaves for 4; LRU evicts 2, the oldest one, and misses it again.
    /// At last 1 returns with 1/6 + 1/6, the lowest priority, and leaves at once: GDSF misses 2, 1,
    /// 3, 4 and 1, 2 + 6 + 2 + 2 + 6 bytes.
    #[test]
    fn gdsf_evicts_large_objects_first() {
        let references = [(2, 2), (1, 6), (3, 2), (4, 2), (2, 2), (1, 6)];
        assert_eq!(missed(&references, "gdsf", 10), (5, 18));
        assert_eq!(missed(&references, "lru", 10), (6, 20));
    }

    /// A cache of 10 bytes. Object 1 (5 bytes) has 2/5 after two uses. 2 and 3 (4 bytes) have 1/4.
    /// 2 leaves for 3, and 3 for 4, which has 1/4 + 1/4 by the clock, as 5 has. So 1 leaves for 5,
    /// and misses again. With the clock at 0, 4 would leave, and 1 would be a hit. libCacheSim
    /// 0.3.5 has the same misses.
    #[test]
    fn gdsf_ages_objects_by_its_clock() {
        let references = [(1, 5), (1, 5), (2, 4), (3, 4), (4, 4), (5, 4), (1, 5)];
        assert_eq!(missed(&references, "gdsf", 10), (6, 26));
    }

    /// A cache of 100 bytes. The object of 95 bytes has a lower priority than the one of 10, which
    /// does not leave for it. libCacheSim 0.3.5 has the same misses.
    #[test]
    fn gdsf_keeps_a_small_object_when_a_large_one_enters() {
        let references = [(1, 10), (2, 95), (1, 10), (2, 95)];
        assert_eq!(missed(&references, "gdsf", 100), (3, 200));
    }

    /// Objects of one byte are blocks: they miss as often as under the page cache's own policies.
    #[test]
    fn objects_of_one_byte_miss_as_blocks_do() {
        let random = |seed: u64, below: u64| (splitmix::mixed(seed) >> 32) % below;
        let name = |nth: u64| match random(2 * nth, 3) {
            0 => random(2 * nth + 1, 40),
            _ => random(2 * nth + 1, 900),
        };
        let names: Vec<u64> = (0..20_000).map(name).collect();
        let objects = ObjectTrace::new(names.iter().map(|&name| (name, 1))).unwrap();
        let blocks = BlockTrace::of(names).unwrap();
        for pages in [10, 100, 400] {
            for policy in ["lru", "sieve", "s3fifo"] {
                let found = object_misses(&objects, policy, pages).unwrap().misses;
                let expected = misses(&blocks, &Spec::plain(policy), pages as u32).unwrap();
                assert_eq!(found, expected, "{policy}, {pages}");
            }
        }
    }

    /// One record: time 7, object 2^40, size 1,000, next use -1. The same object again has 500
    /// bytes, and another one has none.
    #[test]
    fn oracle_general_records_have_object_and_size() {
        let mut bytes = Vec::new();
        for (object, size) in [(1_u64 << 40, 1_000_u32), (1 << 40, 500), (3, 0)] {
            let head = [7_u32.to_le_bytes().as_slice(), &object.to_le_bytes()].concat();
            bytes.extend([head, size.to_le_bytes().to_vec(), vec![0xff; 8]].concat());
        }
        let parse = |bytes| ObjectTrace::parse(bytes, ObjectFormat::OracleGeneral, usize::MAX);
        let trace = parse(&bytes).unwrap();
        let references: Vec<_> = trace.references.iter().map(|it| (it.object, it.bytes)).collect();
        assert_eq!(references, [(0, 1_000), (0, 500), (1, 1)]);
        assert_eq!((trace.objects, trace.bytes, trace.distinct_bytes), (2, 1_501, 1_001));
        assert!(parse(&bytes[..30]).is_err());
        assert!(parse(&[]).is_err());
    }

    /// The number 7 and the text "7" are two objects.
    #[test]
    fn json_lines_have_key_and_size() {
        let parse = |text: &str, references_max| {
            ObjectTrace::parse(text.as_bytes(), ObjectFormat::Jsonl, references_max)
        };
        let text = "{\"key\": \"a\", \"size\": 10}\n\n\
                    {\"size\": 0, \"key\": 7, \"op\": \"get\"}\r\n\
                    {\"key\": \"7\", \"size\": 3}\n{\"key\": 7, \"size\": 5}";
        let trace = parse(text, usize::MAX).unwrap();
        let references: Vec<_> = trace.references.iter().map(|it| (it.object, it.bytes)).collect();
        assert_eq!(references, [(0, 10), (1, 1), (2, 3), (1, 5)]);
        assert_eq!((trace.objects, trace.bytes, trace.distinct_bytes), (3, 19, 14));
        assert_eq!(parse(text, 2).unwrap().references, trace.references[..2]);
        for line in [
            "{\"key\": \"a\"}",
            "{\"key\": 1.5, \"size\": 1}",
            "{\"key\": 1, \"size\": -1}",
            "[1, 2, 3]",
            "{\"key\": 1, \"size\": 1",
        ] {
            let error = parse(&format!("\n{line}\n"), 9).unwrap_err().to_string();
            assert!(error.starts_with("line 2: ") && error.contains("\"size\": BYTES"), "{error}");
        }
        let error = parse("\n", 9).unwrap_err().to_string();
        assert_eq!(error, "there is no reference in it");
        let huge = format!("{{\"key\": 1, \"size\": {}}}\n", u64::MAX).repeat(2);
        assert!(parse(&huge, 9).unwrap_err().to_string().contains("line 2: the sum of the sizes"));
        assert_eq!(parse(&huge, 1).unwrap().bytes, u64::MAX);
    }

    #[test]
    fn format_of_objects_is_detected_by_name_or_first_byte() {
        let detect = ObjectFormat::detect;
        assert_eq!(detect("w.oracleGeneral.bin", b"{"), Some(ObjectFormat::OracleGeneral));
        assert_eq!(detect("x", b"\n{\"key\": 1"), Some(ObjectFormat::Jsonl));
        assert_eq!(detect("x", b"{\0\xff"), None);
        assert_eq!(detect("x.JSONL", b"1\n"), Some(ObjectFormat::Jsonl));
        assert_eq!(detect("x", b"1\n"), None);
        assert_eq!(detect("x", b""), None);
    }

    /// Object 2 of 11 bytes never fits into 10; its two references evict nothing.
    #[test]
    fn objects_larger_than_the_cache_are_counted_and_not_admitted() {
        for policy in OBJECT_POLICIES {
            let references = [(1, 10), (2, 11), (1, 10), (2, 11)];
            let trace = ObjectTrace::new(references).unwrap();
            let expected = ObjectMisses {
                references: 4,
                misses: 3,
                bytes: 42,
                missed_bytes: 32,
                not_admitted: 2,
            };
            assert_eq!(object_misses(&trace, policy, 10), Some(expected), "{policy}");
        }
        let trace = ObjectTrace::new([(1, 1)]).unwrap();
        assert_eq!(object_misses(&trace, "magic", 10), None);
    }
}
