//! The held-out set: cells that are not used for tuning.
//!
//! A policy that was tuned on a table is judged too favourably by the same table. Therefore a third
//! of the devices, of the workloads and of the numbers of processes is *held out*. A hash of the
//! name selects them, not a person. Every cell with one of them belongs to the held-out set.
//! Devices with randomly *drawn* parameters, within realistic ranges, belong to it too. Another
//! seed draws others.

use super::MatrixCell;
use readpath_models::random::SeededRng;

/// A subset of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellSet {
    /// The tuning set.
    Tuning,
    /// The held-out set.
    HeldOut,
    /// Both sets.
    Whole,
}

/// Number of drawn devices: one of each type of [`draw_device`].
const DRAWN_DEVICES: u64 = 4;

impl CellSet {
    /// Returns true if the cell belongs to the subset.
    pub fn has_cell(self, cell: &MatrixCell) -> bool {
        match self {
            CellSet::Tuning => !cell.is_held_out(),
            CellSet::HeldOut => cell.is_held_out(),
            CellSet::Whole => true,
        }
    }
}

impl MatrixCell {
    /// Returns true if the cell is in the held-out set, which is not used for tuning.
    pub fn is_held_out(&self) -> bool {
        is_held_out(&self.device, &self.workload, self.processes)
    }
}

/// Returns true if the cell with these names is held out: its device is drawn, or one of the three
/// names is selected by its hash.
pub(super) fn is_held_out(device: &str, workload: &str, processes: u32) -> bool {
    device.starts_with("drawn-")
        || [device, workload, &format!("processes-{processes}")]
            .iter()
            .any(|name| is_one_in_three(name))
}

/// Returns true for one name in three, by its 64-bit FNV-1a hash, of which the upper half is the
/// most uniform.
fn is_one_in_three(name: &str) -> bool {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32).is_multiple_of(3)
}

/// Draws devices from `seed`. Returns their names and device texts.
pub fn drawn_devices(seed: u64) -> Vec<(String, String)> {
    // The letters of "device", so that the devices differ from other draws with this seed.
    let mut rng = SeededRng::new(seed ^ 0x6465_7669_6365);
    (1..=DRAWN_DEVICES)
        .map(|number| (format!("drawn-{number}"), draw_device(number, &mut rng)))
        .collect()
}

/// Draws a device and returns its text. Its type rotates with its `number`: a disk, a solid-state
/// drive, several disks, a server.
fn draw_device(number: u64, rng: &mut SeededRng) -> String {
    match number % 4 {
        1 => draw_disk(rng),
        2 => draw_solid_state(rng),
        // Parameters of the member disks have the prefix `hdd.`.
        3 => format!("raid0:{}x{}", rng.between(2, 16), draw_disk(rng).replace(',', ",hdd.")),
        // `slots` is the maximum number of calls to the server in flight.
        _ => {
            let (rtt_us, slots) = (rng.between(50, 10_000), rng.between(4, 128));
            format!("nfs:ssd,rtt={rtt_us}us,slots={slots}")
        }
    }
}

/// Draws a disk between a laptop drive and a server drive in seek times, speed and queue.
fn draw_disk(rng: &mut SeededRng) -> String {
    let rpm = [5400, 7200, 10_000, 15_000][rng.below(4) as usize];
    // Seek times in tenths of a millisecond: to the next track, on average, over the whole disk.
    let (single_tenths, average_tenths) = (rng.between(3, 20), rng.between(40, 120));
    let full_tenths = 2 * average_tenths;
    // Number of queued commands among which the drive chooses, and of segments of its cache.
    let (window, segments) = (rng.between(1, 32), rng.between(8, 64));
    format!(
        "hdd,drive=sata2010,rpm={rpm},segments={segments},window={window},seek.single_ms={},\
         seek.average_ms={},seek.full_ms={}",
        single_tenths as f64 / 10.0,
        average_tenths as f64 / 10.0,
        full_tenths as f64 / 10.0,
    )
}

/// Draws a solid-state drive between a memory card with few dies and a server drive with hundreds.
fn draw_solid_state(rng: &mut SeededRng) -> String {
    let (channels, dies) = (rng.between(1, 16), rng.between(1, 8));
    // Bits of a flash cell, and the least time between two commands in the controller.
    let (bits, interval_us) = (rng.between(1, 3), rng.between(1, 20));
    format!(
        "ssd,channels={channels},dies_per_channel={dies},bits_per_cell={bits},\
         command_interval={interval_us}us"
    )
}

#[cfg(test)]
mod tests {
    use super::super::{DEVICES, PROCESSES, cells};
    use super::*;
    use readpath_core::policy::Spec;
    use readpath_models::registry;

    /// A cell is in the tuning set with a probability of (2/3)³ = 0.3: neither its device, nor its
    /// workload, nor its number of processes is held out.
    #[test]
    fn tuning_set_has_a_third_of_the_cells_and_a_part_of_each_kind() {
        let all = cells(&[]);
        let tuning = all.iter().filter(|cell| CellSet::Tuning.has_cell(cell)).count();
        let held_out = all.iter().filter(|cell| CellSet::HeldOut.has_cell(cell)).count();
        assert_eq!(tuning + held_out, all.len());
        assert!((all.len() / 5..all.len() / 2).contains(&tuning), "{tuning} of {}", all.len());
        let devices = DEVICES.iter().filter(|(name, _)| is_one_in_three(name)).count();
        let is_count_held_out = |count: &&u32| is_one_in_three(&format!("processes-{count}"));
        let process_counts = PROCESSES.iter().filter(is_count_held_out).count();
        assert!((2..=7).contains(&devices), "{devices}");
        assert!((1..=2).contains(&process_counts), "{process_counts}");
    }

    #[test]
    fn drawn_devices_are_built_and_another_seed_draws_others() {
        for seed in 0..50 {
            for (name, text) in drawn_devices(seed) {
                let spec = Spec::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
                registry::build(&spec, 1).unwrap_or_else(|error| panic!("{name}: {text}: {error}"));
            }
        }
        assert_ne!(drawn_devices(1), drawn_devices(2));
        assert_eq!(drawn_devices(1), drawn_devices(1));
    }
}
