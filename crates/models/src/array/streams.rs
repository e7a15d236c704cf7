//! Detection of sequential streams.
//!
//! The table holds a fixed number of streams, each with the sector at which its next request would
//! start. A request that starts there continues the stream. Any other request starts a new stream,
//! which replaces the least recently used one if the table is full.

/// The streams that a controller tracks.
#[derive(Debug)]
pub struct ControllerStreams {
    /// Maximum number of streams in the table.
    streams_max: usize,
    /// Number of requests after which a stream without a request is inactive.
    inactive_after_requests: u64,
    /// The table.
    streams: Vec<ControllerStream>,
    /// Number of requests so far.
    request_count: u64,
}

/// A sequential stream.
#[derive(Clone, Copy, Debug)]
struct ControllerStream {
    /// Sector at which its next request would start.
    next_sector: u64,
    /// Number of sectors read in sequence.
    run_sectors: u64,
    /// Number of the stream's last request, among the requests of all streams.
    last_request: u64,
}

impl ControllerStreams {
    /// Tracks up to `streams_max` streams. A stream without a request among the last
    /// `inactive_after_requests` requests is inactive.
    pub fn new(streams_max: usize, inactive_after_requests: u64) -> ControllerStreams {
        ControllerStreams {
            streams_max,
            inactive_after_requests,
            streams: Vec::new(),
            request_count: 0,
        }
    }

    /// Records a request for the sectors `start..end`. Returns the number of sectors that its
    /// stream had read in sequence before; 0 if it begins a stream.
    pub fn record_request(&mut self, start: u64, end: u64) -> u64 {
        self.request_count += 1;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.next_sector == start) {
            let sectors_before = stream.run_sectors;
            *stream = ControllerStream {
                next_sector: end,
                run_sectors: sectors_before + (end - start),
                last_request: self.request_count,
            };
            return sectors_before;
        }
        let stream = ControllerStream {
            next_sector: end,
            run_sectors: end - start,
            last_request: self.request_count,
        };
        if self.streams.len() < self.streams_max {
            self.streams.push(stream);
        } else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_request);
            if let Some(oldest) = oldest {
                *oldest = stream;
            }
        }
        0
    }

    /// Returns the number of active streams that have read at least `sectors_min` in sequence.
    /// These share the read-ahead memory in equal parts.
    pub fn active_count(&self, sectors_min: u64) -> u64 {
        let is_active = |stream: &&ControllerStream| {
            stream.run_sectors >= sectors_min
                && stream.last_request + self.inactive_after_requests > self.request_count
        };
        self.streams.iter().filter(is_active).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams are tracked. The request at sector 5,000 replaces the stream of sector 16, which
    /// then begins again and replaces the stream of 1,016. After 192 more requests of the stream of
    /// 5,008, the other one is inactive. Each stream has read 8 sectors in sequence, not 9.
    #[test]
    fn interleaved_streams_are_distinguished_up_to_the_stream_limit() {
        let (streams_max, inactive_after_requests) = (2, 192);
        let mut streams = ControllerStreams::new(streams_max, inactive_after_requests);
        assert_eq!(streams.record_request(0, 8), 0);
        assert_eq!(streams.record_request(1_000, 1_008), 0);
        assert_eq!(streams.record_request(8, 16), 8);
        assert_eq!(streams.record_request(1_008, 1_016), 8);
        assert_eq!(streams.record_request(5_000, 5_008), 0);
        assert_eq!(streams.record_request(16, 24), 0, "the third stream replaces the oldest");
        assert_eq!((streams.active_count(1), streams.active_count(9)), (2, 0));
        for _ in 0..inactive_after_requests {
            streams.record_request(5_008, 5_008);
        }
        assert_eq!(streams.active_count(1), 1, "the other stream is inactive");
    }
}
