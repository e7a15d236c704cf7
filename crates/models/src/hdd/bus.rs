//! The bus between host and drive: transfer times and the cost of arbitration.
//!
//! A disconnected read requests the bus when its water mark of data is in the cache. A bus that is
//! faster than the medium runs out of data. It is then either held idle until the next sector, or
//! released and requested again at the next water mark.

use super::Hdd;

/// Relation of a command to the bus.
#[derive(Clone, Copy, Debug)]
pub(super) enum BusState {
    /// The command holds the bus. Data can be prepared from this time on.
    Held {
        /// Time in ns.
        from: u64,
    },
    /// The command has released the bus and can request it from this time on.
    Left {
        /// Time in ns.
        from: u64,
    },
}

/// Sectors that arrive in the cache from the medium, one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediumFlow {
    /// Number of sectors that are in the cache from the start.
    pub cached_sectors: u32,
    /// Number of sectors that arrive.
    pub arriving_sectors: u32,
    /// Start of the first arriving sector, in ns.
    pub begin: u64,
    /// End of the last arriving sector, in ns.
    pub end: u64,
}

impl MediumFlow {
    /// Creates the flow of a read whose data is completely cached.
    pub(super) fn cached(sectors: u32) -> MediumFlow {
        MediumFlow { cached_sectors: sectors, arriving_sectors: 0, begin: 0, end: 0 }
    }

    /// Total number of sectors.
    fn sectors(&self) -> u32 {
        self.cached_sectors + self.arriving_sectors
    }

    /// Returns the time in ns at which the first `count` sectors of a read are in the cache.
    fn has(&self, count: u32) -> u64 {
        match u64::from(count.saturating_sub(self.cached_sectors)) {
            0 => 0,
            more => {
                self.begin + (self.duration_ns() * more).div_ceil(u64::from(self.arriving_sectors))
            }
        }
    }

    /// Returns the number of sectors in the cache at `time_ns`.
    fn arrived_at(&self, time_ns: u64) -> u32 {
        let elapsed_ns = time_ns.saturating_sub(self.begin).min(self.duration_ns());
        let arrived =
            (elapsed_ns * u64::from(self.arriving_sectors)).checked_div(self.duration_ns());
        self.cached_sectors + arrived.unwrap_or(0) as u32
    }

    /// Time from the first to the last arriving sector, in ns.
    fn duration_ns(&self) -> u64 {
        self.end - self.begin
    }
}

/// Sectors that arrive in the cache from the host, one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostFeed {
    /// Start of the first sector, in ns.
    pub from: u64,
    /// Transfer time of each sector, in ns.
    pub sector_ns: u64,
    /// Number of sectors required before the write to the medium starts.
    pub sectors_to_start: u32,
}

impl HostFeed {
    /// Returns the time in ns at which the first `count` sectors of a write are in the cache.
    pub(super) fn has(&self, count: u64) -> u64 {
        self.from + self.sector_ns * count
    }
}

impl Hdd {
    /// Transfers a read's sectors to the host as they arrive, and occupies the bus. With
    /// `leaves_bus`, a read that has outrun the medium releases the bus, which takes `leave_ns`.
    /// Returns the end of the transfer in ns.
    pub(super) fn send(&mut self, bus: BusState, leave_ns: u64, flow: MediumFlow) -> u64 {
        let controller = &self.drive.controller;
        let (sectors, sector_ns) = (flow.sectors(), controller.bus_read_sector_ns);
        let (mark_sectors, prepare_ns) =
            (controller.bus_after.sectors_of(sectors), controller.data_preparation_ns);
        let start = match bus {
            BusState::Held { from } => from,
            BusState::Left { from } => flow.has(mark_sectors).max(from) + controller.reselect_ns,
        };
        let mut end_ns = self.bus_free_at.max(start + prepare_ns);
        if controller.leaves_bus {
            let mut sent_sectors = 0;
            while sent_sectors < sectors {
                let arrived = flow.arrived_at(end_ns);
                if arrived > sent_sectors {
                    end_ns += sector_ns * u64::from(arrived - sent_sectors);
                    sent_sectors = arrived;
                    continue;
                }
                let next_data_ns = flow.has(sectors.min(sent_sectors + mark_sectors));
                end_ns =
                    next_data_ns.max(end_ns + leave_ns) + controller.reselect_again_ns + prepare_ns;
            }
        } else {
            end_ns = (end_ns + sector_ns * u64::from(sectors)).max(flow.has(sectors) + sector_ns);
        }
        self.bus_free_at = end_ns;
        end_ns
    }

    /// Transfers a write's sectors from the host, as early as `bus` allows, and occupies the bus.
    /// The arm is free for the write at `arm_free_ns`. Returns the arrival of the data.
    pub(super) fn receive(&mut self, arm_free_ns: u64, bus: BusState, sectors: u32) -> HostFeed {
        let controller = &self.drive.controller;
        let start = match bus {
            BusState::Held { from } => from,
            BusState::Left { from } if controller.buffers_waiting_writes => {
                from + controller.reselect_ns
            }
            BusState::Left { from } => from.max(arm_free_ns) + controller.reselect_ns,
        };
        let start_ns = self.bus_free_at.max(start + controller.data_preparation_ns);
        let sector_ns = controller.bus_write_sector_ns;
        self.bus_free_at = start_ns + sector_ns * u64::from(sectors);
        // DiskSim's source, for drives with the extra disconnection: ten sectors or all of a write,
        // fifteen for a write of 45 or more.
        let sectors_to_start = match controller.early_disconnect {
            Some(_) if sectors < 45 => sectors.min(10),
            Some(_) => 15,
            None => 1,
        };
        HostFeed { from: start_ns, sector_ns, sectors_to_start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_arrive_at_a_constant_rate() {
        let flow = MediumFlow { cached_sectors: 2, arriving_sectors: 4, begin: 100, end: 140 };
        assert_eq!([1, 2, 3, 6].map(|count| flow.has(count)), [0, 0, 110, 140]);
        assert_eq!([0, 109, 110, 139, 500].map(|at| flow.arrived_at(at)), [2, 2, 3, 5, 6]);
        assert_eq!(MediumFlow::cached(8).arrived_at(0), 8);
    }
}
