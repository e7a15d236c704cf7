//! Detection of a sequential stream of writes, which needs no cache.

/// The latest run of adjacent writes. All sizes are in sectors.
#[derive(Clone, Debug)]
pub(super) struct WriteStream {
    band_sectors: u64,
    /// Length of a run before it counts as a stream.
    stream_sectors_min: u64,
    /// First sector of the run.
    start: u64,
    /// End of the run, or `u64::MAX` before the first write.
    end: u64,
    /// True while the run writes directly into a band.
    is_direct: bool,
}

impl WriteStream {
    /// Creates the detector, before the first write.
    pub(super) const fn new(band_sectors: u64, stream_sectors_min: u64) -> WriteStream {
        let (start, end) = (0, u64::MAX);
        WriteStream { band_sectors, stream_sectors_min, start, end, is_direct: false }
    }

    /// Returns the band that a write at `start` leaves half written: the band of a direct stream
    /// that the write does not continue. `None` if the stream ended with its band. The caller asks
    /// before `divide`, which forgets that stream.
    pub(super) const fn torn_band(&self, start: u64) -> Option<u64> {
        let is_torn =
            self.is_direct && start != self.end && !self.end.is_multiple_of(self.band_sectors);
        if is_torn { Some(self.end / self.band_sectors) } else { None }
    }

    /// Divides a write into pieces of one band each: start, sectors, and true for a piece that goes
    /// directly to its band. A run does so from the first beginning of a band at which it has at
    /// least `stream_sectors_min` sectors. A write that does not continue the run starts a new one.
    pub(super) fn divide(&mut self, start: u64, sectors: u64) -> Vec<(u64, u64, bool)> {
        if start != self.end {
            (self.start, self.is_direct) = (start, false);
        }
        self.end = start + sectors;
        let (mut next, mut pieces) = (start, Vec::new());
        while next < self.end {
            let in_band = next % self.band_sectors;
            if in_band == 0 {
                self.is_direct = next - self.start >= self.stream_sectors_min;
            }
            let sectors = (self.band_sectors - in_band).min(self.end - next);
            pieces.push((next, sectors, self.is_direct));
            next += sectors;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bands of 100. A run from 50 counts as a stream after 100 sectors, at 150. The next band
    /// begins at 200.
    #[test]
    fn stream_is_direct_from_the_next_band_on() {
        let mut stream = WriteStream::new(100, 100);
        assert_eq!(stream.divide(50, 100), [(50, 50, false), (100, 50, false)]);
        assert_eq!(stream.divide(150, 70), [(150, 50, false), (200, 20, true)]);
        assert_eq!(stream.divide(220, 10), [(220, 10, true)]);
        assert_eq!(stream.torn_band(230), None);
        assert_eq!(stream.torn_band(700), Some(2));
        assert_eq!(stream.divide(700, 10), [(700, 10, false)]);
        assert_eq!(stream.torn_band(0), None);
    }
}
