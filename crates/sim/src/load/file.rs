//! Text form of memory loads: a TOML file with one `[[load]]` table per load.
//!
//! ```toml
//! # Fields above the first [[load]] are defaults of all loads.
//! mapping = "1000MiB"      # per process; for shared memory, of all together
//! memory = "900MiB"        # for the whole load; `--memory` of the command overrides it
//! swap = "1GiB"            # default: the mapped size
//!
//! [[load]]
//! name = "sweeps"
//! pattern = "sequential"
//! sweeps = 5               # touches every page of the mapping five times, in order
//!
//! [[load]]
//! name = "random"
//! pattern = "random"
//! touches = 5_000_000      # per process; or `sweeps = 5`: the touches of five sweeps
//! writes = 0.3             # share of touches that write; default false: none; true: all
//! share = "shared"         # one mapping for all processes; default "private"
//! processes = 4            # default 1
//! seed = 7                 # default 0; combined with the seed of the run
//! ```
//!
//! Sizes are binary (`KiB`, `MiB`, `GiB`, or `k`, `m`, `g`). A number without unit is in bytes. The
//! file is UTF-8. A key that is not listed above is an error.

use std::path::Path;

use readpath_core::unit::PAGE_BYTES;

use super::{MemoryLoad, MemorySharing, TouchPattern};
use crate::size;
use readpath_models::fields::{FieldBlock, FieldValue, FileError, NumberBounds, bounds, toml_text};

/// All keys of a load.
const KEYS: [&str; 11] = [
    "name",
    "mapping",
    "memory",
    "swap",
    "pattern",
    "sweeps",
    "touches",
    "writes",
    "share",
    "processes",
    "seed",
];

/// Valid number of sweeps. The maximum of sweeps and of touches is chosen.
const SWEEPS: NumberBounds = bounds(1.0, 1e6, "sweeps");
/// Valid number of touches.
const TOUCHES: NumberBounds = bounds(1.0, 1e12, "touches (for each process)");
/// Valid number of processes.
const PROCESSES: NumberBounds = bounds(1.0, super::PROCESSES_MAX as f64, "processes");
/// Valid seeds: the integers that a 64-bit floating-point number represents exactly.
const SEED: NumberBounds = bounds(0.0, 9_007_199_254_740_992.0, "(any whole number)");

/// Maximum number of loads in a file. Each produces at least one row.
const LOADS_MAX: usize = 1_000;

/// Parses the loads in the text of a file. `file` is its name in messages.
///
/// # Errors
/// Describes the problem with file, line, key and expected form.
pub fn parse(text: &str, file: &Path) -> Result<Vec<MemoryLoad>, FileError> {
    let root = toml_text::parse(text, file)?;
    // Line 0 and no field: the problem is one of the whole file.
    let file_error = |problem: &str| FileError {
        file: root.file.clone(),
        line: 0,
        field: String::new(),
        problem: problem.to_owned(),
    };
    if root.find("load").is_none() {
        return Err(file_error(
            "has no load; write `[[load]]` on a line, and below it name, mapping, memory, pattern \
             and sweeps",
        ));
    }
    let blocks = root.blocks("load").map_err(|error| FileError {
        problem: "expected a list; head each load with `[[load]]`".to_owned(),
        ..error
    })?;
    if blocks.is_empty() || blocks.len() > LOADS_MAX {
        let problem = format!("{} loads; expected 1 to {LOADS_MAX}", blocks.len());
        return Err(root.error("load", problem));
    }
    let keys_above_loads = ["load"];
    reject_unknown_keys(&root, &keys_above_loads)?;
    if root.find("name").is_some() {
        return Err(root.error("name", "belongs below a `[[load]]`".to_owned()));
    }
    let mut loads: Vec<MemoryLoad> = Vec::new();
    for block in blocks {
        let no_other_keys = [];
        reject_unknown_keys(block, &no_other_keys)?;
        let load = LoadFields { own: block, common: &root }.build_load()?;
        if loads.iter().any(|other| other.name == load.name) {
            let problem = format!("`{}` is the name of an earlier load too", load.name);
            return Err(block.error("name", problem));
        }
        loads.push(load);
    }
    Ok(loads)
}

/// Rejects unknown keys. `other_keys` contains keys that are valid in addition to the keys of a
/// load.
fn reject_unknown_keys(block: &FieldBlock, other_keys: &[&str]) -> Result<(), FileError> {
    let is_known = |key: &str| KEYS.contains(&key) || other_keys.contains(&key);
    match block.fields.iter().find(|field| !is_known(&field.key)) {
        None => Ok(()),
        Some(field) => {
            let problem = format!("is no key of a load; there are: {}", KEYS.join(", "));
            Err(block.error(&field.key, problem))
        }
    }
}

/// Fields of one load, and common fields of all loads.
struct LoadFields<'a> {
    /// The fields below `[[load]]`.
    own: &'a FieldBlock,
    /// The fields above the first `[[load]]`, which are defaults.
    common: &'a FieldBlock,
}

impl LoadFields<'_> {
    /// Builds the load, and checks that it can run.
    fn build_load(&self) -> Result<MemoryLoad, FileError> {
        let name = self.own.required_text("name")?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(self.own.error("name", "expected a word or two on one line".to_owned()));
        }
        let mapping_bytes = self.required_bytes("mapping")?;
        let mut load = MemoryLoad::new(name, mapping_bytes, self.required_bytes("memory")?);
        let patterns = [
            ("sequential", TouchPattern::Sequential),
            ("random", TouchPattern::Random),
            ("zipf", TouchPattern::Zipf),
            ("swept", TouchPattern::Swept),
        ];
        load.pattern = self.choice("pattern", None, &patterns)?;
        let shares = [("private", MemorySharing::Private), ("shared", MemorySharing::Shared)];
        load.share = self.choice("share", Some(MemorySharing::Private), &shares)?;
        load.processes = self.block_of("processes").integer_or("processes", 1, PROCESSES)? as u32;
        load.seed = self.block_of("seed").integer_or("seed", 0, SEED)?;
        load.writes_percent = self.writes_percent()?;
        load.touches = self.touch_count(load.mapping_bytes / PAGE_BYTES)?;
        // The mapped bytes depend on `share` and `processes`, which are set above.
        load.swap_bytes = match self.has_field("swap") {
            true => self.required_bytes("swap")?,
            false => load.mapped_bytes(),
        };
        load.check().map_err(|error| {
            let key = error.key().name();
            self.block_of(key).error(key, error.to_string())
        })?;
        Ok(load)
    }

    /// Returns true if the field `key` is present in the load or in the common fields.
    fn has_field(&self, key: &str) -> bool {
        self.block_of(key).find(key).is_some()
    }

    /// Returns the block that contains `key`: the load, otherwise the common fields. If `key` is
    /// missing, returns the load.
    fn block_of(&self, key: &str) -> &FieldBlock {
        let is_common = self.own.find(key).is_none() && self.common.find(key).is_some();
        if is_common { self.common } else { self.own }
    }

    /// Returns the size in field `key`, in bytes: a text with a unit, or a whole number of
    /// bytes. A missing field is an error.
    fn required_bytes(&self, key: &str) -> Result<u64, FileError> {
        let block = self.block_of(key);
        let Some(field) = block.find(key) else {
            return Err(
                block.error(key, "is missing; expected a size such as \"512MiB\"".to_owned())
            );
        };
        // Numbers below 1e18 fit 64 bits. Much larger ones would not.
        let bytes = match &field.value {
            FieldValue::Text(text) => size::parse(text),
            FieldValue::Number(number) if number.fract() == 0.0 && (0.0..1e18).contains(number) => {
                Some(*number as u64)
            }
            _ => None,
        };
        // The limit keeps products with the number of processes within 64 bits. Afterwards
        // `MemoryLoad::check` applies the smaller limit of a load.
        bytes.filter(|bytes| *bytes < 1 << 53).ok_or_else(|| {
            block.error(key, "expected a size such as \"512MiB\" or \"4GiB\"".to_owned())
        })
    }

    /// Returns the value of `choices` whose name is in field `key`, or `default` without the field.
    /// The field is mandatory if `default` is `None`.
    ///
    /// # Errors
    /// A mandatory field is missing, or its text is none of the names.
    fn choice<T: Copy + PartialEq>(
        &self,
        key: &str,
        default: Option<T>,
        choices: &[(&str, T)],
    ) -> Result<T, FileError> {
        let block = self.block_of(key);
        match default {
            None if block.find(key).is_none() => {
                let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                Err(block.error(key, format!("is missing; expected {}", names.join(" or "))))
            }
            // Without `default` the field is present, so the first choice is only a placeholder.
            _ => block.choice(key, default.unwrap_or(choices[0].1), choices),
        }
    }

    /// Returns the share of writes in field `writes` as a percentage. 0 without the field. The
    /// parser returns `false` and `true` as the numbers 0 and 1. Any other type becomes NaN,
    /// which no range contains, and so an error.
    fn writes_percent(&self) -> Result<u32, FileError> {
        let block = self.block_of("writes");
        let percent = match block.find("writes").map(|field| &field.value) {
            None => return Ok(0),
            Some(FieldValue::Number(share)) => share * 100.0,
            Some(_) => f64::NAN,
        };
        // 0.29 × 100 is not exactly 29 in floating point.
        let whole = percent.round();
        match (percent - whole).abs() < 1e-9 && (0.0..=100.0).contains(&whole) {
            true => Ok(whole as u32),
            false => Err(block.error(
                "writes",
                "expected false, true, or the part of the touches that write: 0.01 to 0.99, in \
                 whole hundredths"
                    .to_owned(),
            )),
        }
    }

    /// Returns the number of touches of each process, from `touches`, or from `sweeps` over
    /// `mapping_pages` pages. The load's own field precedes a common one, even if the two have
    /// different names. Two fields in the block that counts are an error, and so is none at all.
    fn touch_count(&self, mapping_pages: u64) -> Result<u64, FileError> {
        for block in [self.own, self.common] {
            match (block.find("sweeps"), block.find("touches")) {
                (Some(_), Some(_)) => {
                    let problem = "and `touches` say the same; leave one out".to_owned();
                    return Err(block.error("sweeps", problem));
                }
                (Some(_), None) => return Ok(block.integer("sweeps", SWEEPS)? * mapping_pages),
                (None, Some(_)) => return block.integer("touches", TOUCHES),
                (None, None) => {}
            }
        }
        let problem = "is missing; expected how often every page is touched, or `touches`, how \
                       many touches there are";
        Err(self.own.error("sweeps", problem.to_owned()))
    }
}
