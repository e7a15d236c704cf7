//! The bus between host and drive: when data can come over it, and what it costs to get it.
//!
//! A read that was sent away asks for the bus once the water mark of it is in the cache. A
//! bus that is faster than the medium runs out of sectors: then it is kept idle until the
//! next has come, or left and asked for anew at the next mark.

use super::Hdd;

/// How a command stands to the bus.
#[derive(Clone, Copy, Debug)]
pub(super) enum BusState {
    /// It has it; data may be prepared from this time on.
    Held {
        /// ns.
        from: u64,
    },
    /// It left it, and may ask for it again from this time on.
    Left {
        /// ns.
        from: u64,
    },
}

/// Sectors that come into the cache from the medium, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediumFlow {
    /// How many are there before.
    pub there: u32,
    /// How many come.
    pub coming: u32,
    /// When the first of these begins.
    pub begin: u64,
    /// When the last one is there.
    pub end: u64,
}

impl MediumFlow {
    /// Of a read that is in the cache.
    pub(super) fn cached(sectors: u32) -> MediumFlow {
        MediumFlow { there: sectors, coming: 0, begin: 0, end: 0 }
    }

    fn sectors(&self) -> u32 {
        self.there + self.coming
    }

    /// When the first `count` sectors are there.
    fn has(&self, count: u32) -> u64 {
        match u64::from(count.saturating_sub(self.there)) {
            0 => 0,
            more => self.begin + (self.duration_ns() * more).div_ceil(u64::from(self.coming)),
        }
    }

    /// How many are there at `at`.
    fn arrived_at(&self, at: u64) -> u32 {
        let since_ns = at.saturating_sub(self.begin).min(self.duration_ns());
        let came = (since_ns * u64::from(self.coming)).checked_div(self.duration_ns());
        self.there + came.unwrap_or(0) as u32
    }

    fn duration_ns(&self) -> u64 {
        self.end - self.begin
    }
}

/// Sectors that come into the cache from the host, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostFeed {
    /// When the first begins.
    pub from: u64,
    /// How long each takes.
    pub sector_ns: u64,
    /// How many must be there before the medium is touched.
    pub least: u32,
}

impl HostFeed {
    /// When the first `count` sectors are there.
    pub(super) fn has(&self, count: u64) -> u64 {
        self.from + self.sector_ns * count
    }
}

impl Hdd {
    /// Moves a read's sectors to the host as they come, `leave_ns` being what it takes to leave
    /// the bus; when the last is there.
    pub(super) fn send(&mut self, bus: BusState, leave_ns: u64, flow: MediumFlow) -> u64 {
        let controller = &self.drive.controller;
        let (sectors, sector_ns) = (flow.sectors(), controller.bus_read_sector_ns);
        let (mark, prepare_ns) =
            (controller.bus_after.sectors_of(sectors), controller.data_preparation_ns);
        let start = match bus {
            BusState::Held { from } => from,
            BusState::Left { from } => flow.has(mark).max(from) + controller.reselect_ns,
        };
        let mut at = self.bus_free_at.max(start + prepare_ns);
        if controller.leaves_bus {
            let mut sent = 0;
            while sent < sectors {
                let there = flow.arrived_at(at);
                if there > sent {
                    at += sector_ns * u64::from(there - sent);
                    sent = there;
                    continue;
                }
                let next = flow.has(sectors.min(sent + mark));
                at = next.max(at + leave_ns) + controller.reselect_again_ns + prepare_ns;
            }
        } else {
            at = (at + sector_ns * u64::from(sectors)).max(flow.has(sectors) + sector_ns);
        }
        self.bus_free_at = at;
        at
    }

    /// Takes a write's sectors from the host as early as `bus` allows, `at` being when the arm
    /// is free for it.
    pub(super) fn receive(&mut self, at: u64, bus: BusState, sectors: u32) -> HostFeed {
        let controller = &self.drive.controller;
        let start = match bus {
            BusState::Held { from } => from,
            BusState::Left { from } if controller.buffers_waiting_writes => {
                from + controller.reselect_ns
            }
            BusState::Left { from } => from.max(at) + controller.reselect_ns,
        };
        let from = self.bus_free_at.max(start + controller.data_preparation_ns);
        let sector_ns = controller.bus_write_sector_ns;
        self.bus_free_at = from + sector_ns * u64::from(sectors);
        // DiskSim's source, of drives with the extra disconnection: ten sectors or all of a
        // write, fifteen of one of 45 or more.
        let least = match controller.early_disconnect {
            Some(_) if sectors < 45 => sectors.min(10),
            Some(_) => 15,
            None => 1,
        };
        HostFeed { from, sector_ns, least }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_come_one_after_the_other() {
        let flow = MediumFlow { there: 2, coming: 4, begin: 100, end: 140 };
        assert_eq!([1, 2, 3, 6].map(|count| flow.has(count)), [0, 0, 110, 140]);
        assert_eq!([0, 109, 110, 139, 500].map(|at| flow.arrived_at(at)), [2, 2, 3, 5, 6]);
        assert_eq!(MediumFlow::cached(8).arrived_at(0), 8);
    }
}
