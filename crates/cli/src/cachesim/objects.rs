//! `readpath cachesim --objects`: miss ratio and byte miss ratio of traces of objects with sizes.

use std::path::{Path, PathBuf};

use readpath_core::size;
use readpath_trace::objects::{
    Admission, OBJECT_POLICIES, ObjectFormat, ObjectMisses, ObjectTrace, TINYLFU_EVICTION,
    object_misses_admitted,
};
use serde::Serialize;

use super::{distinguish_names, parse_millionths, simulate_cells};
use crate::args::CachesimArgs;
use crate::exit::{CommandResult, Failure};
use crate::output::{print, print_json};
use crate::packed;
use crate::table::{Column, Table};

/// Misses of one policy on one trace with one memory size.
#[derive(Clone, Debug, Serialize)]
struct ObjectCell {
    /// Name of the trace.
    trace: String,
    /// Number of references in the trace.
    references: u64,
    /// Number of distinct objects in the trace.
    objects: u32,
    /// Sum of the sizes of all references.
    bytes: u64,
    /// Sum of the sizes of all objects.
    distinct_bytes: u64,
    /// Memory size as given on the command line.
    size: String,
    /// Memory size in bytes.
    memory_bytes: u64,
    /// Eviction policy.
    eviction: &'static str,
    /// Admission policy with its values.
    admission: String,
    /// Number of references whose object was not in memory.
    misses: u64,
    /// `misses` ÷ `references`.
    miss_ratio: f64,
    /// Sum of the sizes of the missed references.
    missed_bytes: u64,
    /// `missed_bytes` ÷ `bytes`.
    byte_miss_ratio: f64,
    /// Number of missed references whose object did not enter.
    not_admitted: u64,
}

/// Trace of objects with its name.
struct NamedObjects {
    /// File name without the ending of its compression, or the path if several have that name.
    name: String,
    /// Parsed references.
    trace: ObjectTrace,
}

/// Prints the ratios of missed references and of missed bytes, for each trace, size and policy.
pub fn run(args: &CachesimArgs) -> CommandResult {
    let policies = parse_policies(args.eviction.as_deref(), args.admission.as_deref())?;
    let sizes: Vec<MemorySize> =
        args.sizes.iter().map(|text| MemorySize::parse(text)).collect::<Result<_, _>>()?;
    let format = args.read.format.as_deref().map(find_format).transpose()?;
    let references_max = args.read.first.map_or(usize::MAX, |references_max| references_max.get());
    let read = |path: &PathBuf| read_trace(path, format, references_max);
    let mut traces: Vec<NamedObjects> = args.traces.iter().map(read).collect::<Result<_, _>>()?;
    distinguish_names(&args.traces, traces.iter_mut().map(|trace| &mut trace.name));
    let cells = simulate_cells(&traces, &sizes, &policies, simulate_cell)?;
    match args.json {
        true => {
            let no_seed = None;
            print_json(&cells, no_seed)
        }
        false => print(&Table::of(&cells, &COLUMNS, NUMBERS_FROM).to_string()),
    }
}

/// Columns of the table.
const COLUMNS: [Column<ObjectCell>; 8] = [
    ("trace", |cell| cell.trace.clone()),
    ("size", |cell| cell.size.clone()),
    ("eviction", |cell| cell.eviction.to_owned()),
    ("admission", |cell| cell.admission.clone()),
    ("memory bytes", |cell| cell.memory_bytes.to_string()),
    ("miss ratio", |cell| format!("{:.4}", cell.miss_ratio)),
    ("byte miss ratio", |cell| format!("{:.4}", cell.byte_miss_ratio)),
    ("not admitted", |cell| cell.not_admitted.to_string()),
];

/// Index of the first numeric column.
const NUMBERS_FROM: usize = 4;

/// Eviction policy with an admission policy.
#[derive(Clone, Copy)]
struct PolicyPair {
    /// Name of the eviction policy.
    eviction: &'static str,
    /// Admission policy with its values. It works with the eviction policy.
    admission: Admission,
}

/// Parses `--eviction` and `--admission`, and returns each pair of them. Without `--eviction`, all
/// eviction policies that work with the admission policy. A named eviction policy that does not
/// work with a named admission policy is refused instead of left out.
fn parse_policies(
    eviction: Option<&str>,
    admission: Option<&str>,
) -> Result<Vec<PolicyPair>, Failure> {
    let evictions = match eviction {
        Some(names) => names.split(',').map(parse_eviction).collect::<Result<_, _>>()?,
        None => OBJECT_POLICIES.to_vec(),
    };
    let admissions = match admission {
        Some(texts) => texts.split(',').map(parse_admission).collect::<Result<_, _>>()?,
        None => vec![Admission::ALL],
    };
    let pairs = evictions.iter().flat_map(|&eviction| {
        admissions.iter().map(move |&admission| PolicyPair { eviction, admission })
    });
    let (pairs, unusable): (Vec<PolicyPair>, Vec<PolicyPair>) =
        pairs.partition(|pair| pair.admission.works_with(pair.eviction));
    match (eviction, unusable.first()) {
        (Some(_), Some(PolicyPair { eviction, admission })) => Err(Failure::Usage(format!(
            "--admission {admission}: it compares the new object with those that leave for it, \
             and {eviction} cannot look them up; choose from --eviction {}",
            TINYLFU_EVICTION.join(",")
        ))),
        _ => Ok(pairs),
    }
}

/// Parses one name of `--eviction`.
fn parse_eviction(name: &str) -> Result<&'static str, Failure> {
    let name = name.trim();
    OBJECT_POLICIES.into_iter().find(|known| *known == name).ok_or_else(|| {
        Failure::Usage(format!(
            "--eviction {name}: there is no such policy for objects; there are: {}",
            OBJECT_POLICIES.join(", ")
        ))
    })
}

/// Parses one policy of `--admission`.
fn parse_admission(text: &str) -> Result<Admission, Failure> {
    let text = text.trim();
    Admission::parse(text).map_err(|error| Failure::Usage(format!("--admission {text}: {error}")))
}

/// Names of the trace formats, for messages.
fn format_names() -> String {
    ObjectFormat::ALL.map(|(name, _)| name).join(", ")
}

/// Returns the format of objects of that name. An unknown name is refused, with the known ones.
fn find_format(name: &str) -> Result<ObjectFormat, Failure> {
    ObjectFormat::named(name).ok_or_else(|| {
        let names = format_names();
        Failure::Usage(format!(
            "--format {name}: there is no such format of objects; there are: {names}"
        ))
    })
}

/// Reads and unpacks one trace of at most `references_max` references. Without `format`, detects
/// the format from the name, without the ending of a compression, and the first bytes.
fn read_trace(
    path: &Path,
    format: Option<ObjectFormat>,
    references_max: usize,
) -> Result<NamedObjects, Failure> {
    let (name, bytes) = packed::read(path)?;
    let format = format.or_else(|| ObjectFormat::detect(&name, &bytes)).ok_or_else(|| {
        let names = format_names();
        Failure::Usage(format!(
            "{}: its name and its first bytes don't say in which format of objects it is; add \
             --format, one of {names}",
            path.display()
        ))
    })?;
    let trace = ObjectTrace::parse(&bytes, format, references_max)
        .map_err(|error| Failure::usage_of(path.display(), error))?;
    Ok(NamedObjects { name, trace })
}

/// Memory size: a share of the bytes of the trace's objects or an absolute size.
struct MemorySize {
    /// Text of the option.
    text: String,
    /// The parsed text.
    amount: MemoryAmount,
}

/// Parsed memory size.
#[derive(Clone, Copy)]
enum MemoryAmount {
    /// Share of the bytes of all distinct objects of a trace, in millionths.
    Millionths(u64),
    /// Number of bytes, at least 1.
    Bytes(u64),
}

impl MemorySize {
    /// Parses one size of `--sizes`: a percentage of the objects' bytes, or bytes.
    fn parse(text: &str) -> Result<MemorySize, Failure> {
        let amount = match text.strip_suffix('%') {
            Some(percent) => parse_millionths(percent).map(MemoryAmount::Millionths),
            None => size::parse(text).filter(|&bytes| bytes > 0).map(MemoryAmount::Bytes),
        };
        let syntax_failure = || {
            Failure::Usage(format!(
                "--sizes {text}: expected parts of the bytes of a trace's objects, above 0% and up \
                 to 100%, as in 0.5%,20%, or sizes with a unit, as in 64MiB"
            ))
        };
        Ok(MemorySize { text: text.to_owned(), amount: amount.ok_or_else(syntax_failure)? })
    }

    /// Returns the size for `trace` in bytes, at least one.
    fn bytes(&self, trace: &ObjectTrace) -> u64 {
        match self.amount {
            MemoryAmount::Millionths(millionths) => {
                let bytes = u128::from(trace.distinct_bytes) * u128::from(millionths) / 1_000_000;
                (bytes as u64).max(1)
            }
            MemoryAmount::Bytes(bytes) => bytes,
        }
    }
}

/// Simulates one policy on one trace and size.
fn simulate_cell(
    NamedObjects { name, trace }: &NamedObjects,
    size: &MemorySize,
    PolicyPair { eviction, admission }: PolicyPair,
) -> ObjectCell {
    let memory_bytes = size.bytes(trace);
    let misses: ObjectMisses = object_misses_admitted(trace, eviction, &admission, memory_bytes)
        .expect("the pair was checked when it was parsed");
    ObjectCell {
        trace: name.clone(),
        references: misses.references,
        objects: trace.objects,
        bytes: misses.bytes,
        distinct_bytes: trace.distinct_bytes,
        size: size.text.clone(),
        memory_bytes,
        eviction,
        admission: admission.to_string(),
        misses: misses.misses,
        miss_ratio: misses.miss_ratio(),
        missed_bytes: misses.missed_bytes,
        byte_miss_ratio: misses.byte_miss_ratio(),
        not_admitted: misses.not_admitted,
    }
}
