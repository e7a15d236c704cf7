//! Which cells nobody looks at who works on a law.
//!
//! A law that was worked on with a table in view is judged by that table too kindly. So a third of
//! the devices, of the workloads and of the numbers of processes is *held out*, chosen by a hash of the name
//! and not by hand, and with them every cell that has one of them. Devices whose parameters
//! are *drawn* are held out as well: another seed gives others, within what such devices have
//! been built with.

use super::MatrixCell;
use crate::device::random::SeededRng;

/// Which cells of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellSet {
    /// Those on which laws are worked on.
    Developed,
    /// Those by which they are judged.
    HeldOut,
    /// Both.
    Whole,
}

/// How many devices are drawn.
const DRAWN: u64 = 4;

impl CellSet {
    /// Whether the cell belongs to it.
    pub fn has(self, cell: &MatrixCell) -> bool {
        match self {
            CellSet::Developed => !cell.is_held_out(),
            CellSet::HeldOut => cell.is_held_out(),
            CellSet::Whole => true,
        }
    }
}

impl MatrixCell {
    /// Whether the cell is one by which laws are judged, and on which none is worked on.
    pub fn is_held_out(&self) -> bool {
        is_held_out(&self.device, self.workload, self.processes)
    }
}

/// Whether the cell of this name is held out.
pub(super) fn is_held_out(device: &str, workload: &str, processes: u32) -> bool {
    device.starts_with("drawn-")
        || [device, workload, &format!("processes-{processes}")]
            .iter()
            .any(|name| one_in_three(name))
}

/// One name in three, by FNV-1a of 64 bits, whose upper half is spread best.
fn one_in_three(name: &str) -> bool {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32).is_multiple_of(3)
}

/// The devices that `seed` draws: names and what they are.
pub fn drawn(seed: u64) -> Vec<(String, String)> {
    let mut draw = SeededRng::new(seed ^ 0x6465_7669_6365);
    (1..=DRAWN).map(|nth| (format!("drawn-{nth}"), device(nth, &mut draw))).collect()
}

/// A disk, a solid-state drive, several disks, and a server, one after the other.
fn device(nth: u64, draw: &mut SeededRng) -> String {
    match nth % 4 {
        1 => disk(draw),
        2 => solid_state(draw),
        3 => format!("raid0:{}x{}", draw.between(2, 16), disk(draw).replace(',', ",hdd.")),
        _ => {
            let (rtt, slots) = (draw.between(50, 10_000), draw.between(4, 128));
            format!("nfs:ssd,rtt={rtt}us,slots={slots}")
        }
    }
}

/// Seeks, turns and queues between those of a drive of a laptop and of a server.
fn disk(draw: &mut SeededRng) -> String {
    let rpm = [5400, 7200, 10_000, 15_000][draw.below(4) as usize];
    let (single, average) = (draw.between(3, 20), draw.between(40, 120));
    let (full, window, segments) = (2 * average, draw.between(1, 32), draw.between(8, 64));
    format!(
        "hdd,drive=sata2010,rpm={rpm},segments={segments},window={window},seek.single_ms={},\
         seek.average_ms={},seek.full_ms={}",
        single as f64 / 10.0,
        average as f64 / 10.0,
        full as f64 / 10.0,
    )
}

/// From a card's few dies to a server's hundreds.
fn solid_state(draw: &mut SeededRng) -> String {
    let (channels, dies) = (draw.between(1, 16), draw.between(1, 8));
    let (bits, interval) = (draw.between(1, 3), draw.between(1, 20));
    format!(
        "ssd,channels={channels},dies_per_channel={dies},bits_per_cell={bits},\
         command_interval={interval}us"
    )
}

#[cfg(test)]
mod tests {
    use super::super::{DEVICES, PROCESSES, cells};
    use super::*;
    use crate::device::registry;
    use readpath_core::policy::Spec;

    #[test]
    fn about_a_third_of_the_cells_is_developed_and_each_kind_is_held_out_in_part() {
        let all = cells(&[]);
        let developed = all.iter().filter(|cell| CellSet::Developed.has(cell)).count();
        let held_out = all.iter().filter(|cell| CellSet::HeldOut.has(cell)).count();
        assert_eq!(developed + held_out, all.len());
        assert!(
            (all.len() / 5..all.len() / 2).contains(&developed),
            "{developed} of {}",
            all.len()
        );
        let devices = DEVICES.iter().filter(|(name, _)| one_in_three(name)).count();
        let counts = PROCESSES.iter().filter(|it| one_in_three(&format!("processes-{it}"))).count();
        assert!((2..=7).contains(&devices), "{devices}");
        assert!((1..=2).contains(&counts), "{counts}");
    }

    #[test]
    fn drawn_devices_are_built_and_another_seed_draws_others() {
        for seed in 0..50 {
            for (name, text) in drawn(seed) {
                let spec = Spec::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
                registry::build(&spec, 1).unwrap_or_else(|error| panic!("{name}: {text}: {error}"));
            }
        }
        assert_ne!(drawn(1), drawn(2));
        assert_eq!(drawn(1), drawn(1));
    }
}
