//! A file on a server, under the machine.

use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::nfs::error::NfsError;
use readpath::nfs::storage::NfsStorage;
use readpath::nfs::target::NfsTarget;
use readpath::nfs::url::NfsUrl;

use crate::support::rig::Rig;

pub const MEMORY_BYTES: u64 = 4 << 20;
const BUFFERS: u32 = 16;
const BUFFER_BYTES: u64 = 1 << 20;

/// Finds `data/file` behind this port; `options` as in a URL.
pub fn find(port: u16, options: &str) -> Result<NfsTarget, NfsError> {
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
    NfsTarget::open(&url, Clock::start())
}

/// Opens `data/file` behind this port, under a law.
pub fn open(port: u16, options: &str, law: &str) -> Rig<NfsStorage> {
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
    let clock = Clock::start();
    let target = NfsTarget::open(&url, clock).unwrap_or_else(|error| panic!("{error}"));
    let bytes = target.bytes();
    let memory =
        CarrierMemory { cache_bytes: MEMORY_BYTES, buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
    let carrier = Carrier::over(NfsStorage::one(target), memory, clock).unwrap();
    Rig::over(carrier, bytes, MEMORY_BYTES, law, "deadline")
}

/// Numbers below a bound, from a seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
