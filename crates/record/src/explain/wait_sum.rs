//! Sums of waits.

/// Sum of waits with the same charge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WaitSum {
    /// Number of waits.
    pub waits: u64,
    /// Sum of the waits in nanoseconds.
    pub ns: u64,
    /// Bytes fetched for them.
    pub bytes: u64,
}

impl WaitSum {
    /// Adds a wait of `ns` nanoseconds, in which `bytes` bytes were fetched.
    pub(super) fn add(&mut self, ns: u64, bytes: u64) {
        self.add_all(&WaitSum { waits: 1, ns, bytes });
    }

    /// Adds the waits of another sum.
    pub(super) fn add_all(&mut self, other: &WaitSum) {
        self.waits += other.waits;
        self.ns += other.ns;
        self.bytes += other.bytes;
    }

    /// Subtracts the waits of another sum, which were added before.
    pub(super) fn subtract(&mut self, other: &WaitSum) {
        self.waits -= other.waits;
        self.ns -= other.ns;
        self.bytes -= other.bytes;
    }
}
