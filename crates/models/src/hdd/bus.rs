//! The bus between host and drive: transfer times and the cost of arbitration.
//!
//! A disconnected read requests the bus when its water mark of data is in the cache. A bus that is
//! faster than the medium runs out of data. It is then either held idle until the next sector, or
//! released and requested again at the next water mark. The mark is the part of a read that must be
//! in the cache (`bus_after`).

use super::Hdd;

/// Relation of a command to the bus. A SCSI drive may release the bus while the arm works and must
/// then win it again.
#[derive(Clone, Copy, Debug)]
pub(super) enum BusState {
    /// The command holds the bus. Its data can be prepared for the transfer from this time on.
    Held {
        /// Time in ns.
        from_ns: u64,
    },
    /// The command has released the bus and can request it from this time on.
    Left {
        /// Time in ns.
        from_ns: u64,
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
    pub begin_ns: u64,
    /// End of the last arriving sector, in ns.
    pub end_ns: u64,
}

impl MediumFlow {
    /// Creates the flow of a read whose data is completely cached.
    pub(super) fn cached(sectors: u32) -> MediumFlow {
        MediumFlow { cached_sectors: sectors, arriving_sectors: 0, begin_ns: 0, end_ns: 0 }
    }

    /// Number of sectors of the read, cached or arriving.
    fn sectors(&self) -> u32 {
        self.cached_sectors + self.arriving_sectors
    }

    /// Returns the time in ns at which the first `count` sectors of a read are in the cache; 0 if
    /// they are cached from the start. `count` is at most the number of sectors of the read.
    fn arrival_ns(&self, count: u32) -> u64 {
        match u64::from(count.saturating_sub(self.cached_sectors)) {
            0 => 0,
            arriving => {
                // Rounded up, so `arrived_sectors` counts the sector at this time.
                let duration_ns = self.duration_ns() * arriving;
                self.begin_ns + duration_ns.div_ceil(u64::from(self.arriving_sectors))
            }
        }
    }

    /// Returns the number of sectors in the cache at `time_ns`. A flow with no arriving sector has
    /// no duration, and only its cached sectors count.
    fn arrived_sectors(&self, time_ns: u64) -> u32 {
        let elapsed_ns = time_ns.saturating_sub(self.begin_ns).min(self.duration_ns());
        let arrived =
            (elapsed_ns * u64::from(self.arriving_sectors)).checked_div(self.duration_ns());
        self.cached_sectors + arrived.unwrap_or(0) as u32
    }

    /// Time from the first to the last arriving sector, in ns.
    fn duration_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }
}

/// Sectors that arrive in the cache from the host, one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostFeed {
    /// Start of the first sector, in ns.
    pub begin_ns: u64,
    /// Transfer time of each sector, in ns.
    pub sector_ns: u64,
    /// Number of sectors required before the write to the medium starts.
    pub sectors_to_start: u32,
}

impl HostFeed {
    /// Returns the time in ns at which the first `count` sectors of a write are in the cache. The
    /// host sends at a constant rate and does not pause.
    pub(super) fn arrival_ns(&self, count: u64) -> u64 {
        self.begin_ns + self.sector_ns * count
    }
}

impl Hdd {
    /// Transfers a read's sectors to the host as they arrive, and occupies the bus. With
    /// `leaves_bus`, a read that has sent all arrived sectors releases the bus, which takes
    /// `bus_release_ns`. A command that holds the bus sends from the start of its data; one that
    /// has left it waits for the water mark first. Regaining the bus takes `reselect_ns` if the
    /// command had released it before the first data, and `reselect_again_ns` each time during the
    /// data. Returns the end of the transfer in ns.
    pub(super) fn send_to_host(
        &mut self,
        bus: BusState,
        bus_release_ns: u64,
        flow: MediumFlow,
    ) -> u64 {
        let controller = &self.drive.controller;
        let (sectors, sector_ns) = (flow.sectors(), controller.bus_read_sector_ns);
        let (mark_sectors, prepare_ns) =
            (controller.bus_after.sectors_of(sectors), controller.data_preparation_ns);
        let prepare_start_ns = match bus {
            BusState::Held { from_ns } => from_ns,
            BusState::Left { from_ns } => {
                flow.arrival_ns(mark_sectors).max(from_ns) + controller.reselect_ns
            }
        };
        // The transfer has progressed to this time.
        let mut bus_time_ns = self.bus_free_at_ns.max(prepare_start_ns + prepare_ns);
        if controller.leaves_bus {
            // All arrived sectors are sent. Then the bus is released until the next water mark or
            // the end of the read. `arrival_ns` of that mark, at least one sector, ensures that
            // each round sends a sector.
            let mut sent_sectors = 0;
            while sent_sectors < sectors {
                let arrived_sectors = flow.arrived_sectors(bus_time_ns);
                if arrived_sectors > sent_sectors {
                    bus_time_ns += sector_ns * u64::from(arrived_sectors - sent_sectors);
                    sent_sectors = arrived_sectors;
                    continue;
                }
                let next_data_ns = flow.arrival_ns(sectors.min(sent_sectors + mark_sectors));
                bus_time_ns = next_data_ns.max(bus_time_ns + bus_release_ns)
                    + controller.reselect_again_ns
                    + prepare_ns;
            }
        } else {
            // The last sector crosses the bus after its arrival.
            bus_time_ns += sector_ns * u64::from(sectors);
            bus_time_ns = bus_time_ns.max(flow.arrival_ns(sectors) + sector_ns);
        }
        self.bus_free_at_ns = bus_time_ns;
        bus_time_ns
    }

    /// Transfers a write's sectors from the host, as early as `bus` allows, and occupies the bus.
    /// The arm is free for the write at `arm_free_ns`. A write that has released the bus waits for
    /// the arm first, unless the drive has `buffers_waiting_writes`. The write to the medium then
    /// starts with one sector, or with more on drives with the extra disconnection. Returns the
    /// arrival of the data.
    pub(super) fn receive_from_host(
        &mut self,
        arm_free_ns: u64,
        bus: BusState,
        sectors: u32,
    ) -> HostFeed {
        let controller = &self.drive.controller;
        let prepare_start_ns = match bus {
            BusState::Held { from_ns } => from_ns,
            BusState::Left { from_ns } if controller.buffers_waiting_writes => {
                from_ns + controller.reselect_ns
            }
            BusState::Left { from_ns } => from_ns.max(arm_free_ns) + controller.reselect_ns,
        };
        let start_ns = self.bus_free_at_ns.max(prepare_start_ns + controller.data_preparation_ns);
        let sector_ns = controller.bus_write_sector_ns;
        self.bus_free_at_ns = start_ns + sector_ns * u64::from(sectors);
        // DiskSim's source, for drives with the extra disconnection: ten sectors or all of a write,
        // fifteen for a write of 45 or more.
        let sectors_to_start = match controller.early_disconnect {
            Some(_) if sectors < 45 => sectors.min(10),
            Some(_) => 15,
            None => 1,
        };
        HostFeed { begin_ns: start_ns, sector_ns, sectors_to_start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sectors are cached. Four more arrive between 100 and 140 ns, one every 10 ns: the third
    /// of all at 110 ns, the sixth at 140 ns.
    #[test]
    fn sectors_arrive_at_a_constant_rate() {
        let (begin_ns, end_ns) = (100, 140);
        let flow = MediumFlow { cached_sectors: 2, arriving_sectors: 4, begin_ns, end_ns };
        assert_eq!([1, 2, 3, 6].map(|count| flow.arrival_ns(count)), [0, 0, 110, 140]);
        let arrived = [0, 109, 110, 139, 500].map(|time_ns| flow.arrived_sectors(time_ns));
        assert_eq!(arrived, [2, 2, 3, 5, 6]);
        assert_eq!(MediumFlow::cached(8).arrived_sectors(0), 8);
    }
}
