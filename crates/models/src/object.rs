//! An object store: each request is a ranged GET or a PUT over one of several connections.
//!
//! A request waits for a free connection and for its turn under the store's request rate. A GET
//! then waits for its first byte. This latency is drawn from the configured quantiles with the
//! seed. The data follows, limited by the bandwidth of the connection and by the client's network,
//! which all connections share. Data is sent in blocks, one at a time per request, so requests
//! share the network evenly. A PUT sends its data first and then waits for the reply.

use std::collections::VecDeque;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::Device;
use super::agenda::EventQueue;
use super::numbered_slab::NumberedSlab;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};
use super::random::{Quantiles, SeededRng};
use super::rate::{Bandwidth, Link};

/// Bytes, chosen, that one request sends before another request gets the network.
const BLOCK_BYTES: u64 = 64 << 10;

/// A store that is reached over a network.
pub struct Object {
    /// Limits from the parameters.
    caps: DeviceCaps,
    /// Number of connections.
    connections: u32,
    /// Connections with a request.
    connections_used: u32,
    /// Minimum time between two GETs, and between two PUTs. The index is the operation.
    interval: [Time; 2],
    /// Earliest time of the next GET, and of the next PUT. The index is the operation.
    next_start: [Time; 2],
    /// Distribution of the first-byte latency.
    first_byte: Quantiles,
    /// Bandwidth of each connection.
    connection_bandwidth: Bandwidth,
    /// The client's network, to the client for GETs and from the client for PUTs.
    network: [Link; 2],
    /// Draws of the first-byte latencies.
    rng: SeededRng,
    /// Requests that wait for a connection, by key in `slots`.
    waiting: VecDeque<u32>,
    /// Future events.
    events: EventQueue<ObjectEvent>,
    /// Requests, waiting or on a connection.
    slots: NumberedSlab<ObjectRequest>,
}

/// A request in flight, with the bytes that are not yet transferred.
#[derive(Clone, Copy, Debug)]
struct ObjectRequest {
    /// The request as submitted.
    request: DeviceRequest,
    /// Bytes that no block has sent yet.
    bytes_left: u64,
}

/// Internal event. The number is a key in `slots`.
#[derive(Clone, Copy, Debug)]
enum ObjectEvent {
    /// The next block of a request can be sent.
    SendBlock(u32),
    /// The last byte of a GET, or the reply to a PUT, has arrived.
    Answered(u32),
    /// A flush, which has no work to do.
    Flushed(RequestId),
}

impl Object {
    /// Creates the store that `spec` describes. Latencies derive from `seed`.
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn from_spec(spec: &Spec, seed: u64) -> Result<Object, SpecError> {
        let settings = ParameterValues::read(spec, &PARAMETERS)?;
        let points = QUANTILES.map(|(key, share)| (share, Time(settings.of(key))));
        // The error is the index of the first quantile that is less than the one before.
        let first_byte = Quantiles::new(points.to_vec()).map_err(|index| {
            let expected = format!("no less than {}", QUANTILES[index - 1].0);
            settings.contradiction(QUANTILES[index].0, expected)
        })?;
        // The time between two requests, from a rate per second.
        let interval = |key| Time(1_000_000_000 / settings.of(key));
        Ok(Object {
            caps: DeviceCaps {
                sectors: settings.of("size") / SECTOR_BYTES,
                request_sectors_max: (settings.of("request_max") / SECTOR_BYTES) as u32,
                depth_max: settings.get_u32("depth"),
                is_rotational: false,
                alignment_sectors: 1,
            },
            connections: settings.get_u32("connections"),
            connections_used: 0,
            interval: [interval("get_rate"), interval("put_rate")],
            next_start: [Time::ZERO; 2],
            first_byte,
            connection_bandwidth: Bandwidth::new(settings.of("connection")),
            network: [Link::new(settings.of("bandwidth")); 2],
            rng: SeededRng::new(seed),
            waiting: VecDeque::new(),
            events: EventQueue::new(),
            slots: NumberedSlab::new(),
        })
    }

    /// Starts waiting requests on free connections, subject to the request rate. A request holds
    /// its connection while it waits for its turn under that rate. A GET sends its first block
    /// after the first-byte latency, a PUT at once.
    fn start_requests(&mut self, now: Time) {
        while self.connections_used < self.connections
            && let Some(slot) = self.waiting.pop_front()
        {
            self.connections_used += 1;
            let op = self.slots[slot].request.op;
            let start_time = self.next_start[op as usize].max(now);
            self.next_start[op as usize] = start_time + self.interval[op as usize];
            let latency = match op {
                Op::Read => self.first_byte.draw(&mut self.rng),
                Op::Write => Time::ZERO,
            };
            self.events.add(start_time + latency, ObjectEvent::SendBlock(slot));
        }
    }

    /// Sends the next block of the request in `slot`, and schedules the following event: the next
    /// block, or the end of the request. The reply to a PUT takes a first-byte latency.
    fn send_block(&mut self, now: Time, slot: u32) {
        let ObjectRequest { request, bytes_left } = self.slots[slot];
        let bytes = bytes_left.min(BLOCK_BYTES);
        let network_end = self.network[request.op as usize].queue_transfer(now, bytes);
        // The slower of the shared network and the request's own connection.
        let sent_time = network_end.max(now + self.connection_bandwidth.time(bytes));
        self.slots[slot].bytes_left -= bytes;
        if bytes < bytes_left {
            self.events.add(sent_time, ObjectEvent::SendBlock(slot));
            return;
        }
        let reply_latency = match request.op {
            Op::Read => Time::ZERO,
            Op::Write => self.first_byte.draw(&mut self.rng),
        };
        self.events.add(sent_time + reply_latency, ObjectEvent::Answered(slot));
    }
}

impl Device for Object {
    /// Limits from the parameters: size of the object, largest range, requests at once.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Queues a request for a connection, and starts it if one is free.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let bytes_left = u64::from(request.sectors) * SECTOR_BYTES;
        self.waiting.push_back(self.slots.add(ObjectRequest { request, bytes_left }));
        self.start_requests(now);
    }

    /// Completes at once: the reply to a PUT means that it is durable (Amazon S3 user guide).
    fn flush(&mut self, now: Time, id: RequestId) {
        self.events.add(now, ObjectEvent::Flushed(id));
    }

    /// Returns the time of the next event; `None` if no request or flush is in flight.
    fn next_event(&self) -> Option<Time> {
        self.events.next_at()
    }

    /// Processes the events up to `now`. Returns the next completion, if any.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        loop {
            match self.events.take_due(now)? {
                (time, ObjectEvent::SendBlock(slot)) => self.send_block(time, slot),
                (time, ObjectEvent::Flushed(id)) => {
                    return Some(Completion::at(time, id, Outcome::Done));
                }
                (time, ObjectEvent::Answered(slot)) => {
                    self.connections_used -= 1;
                    self.start_requests(time);
                    let id = self.slots.take(slot).request.id;
                    return Some(Completion::at(time, id, Outcome::Done));
                }
            }
        }
    }
}

/// Quantiles of the first-byte latency: parameter keys, and cumulative probabilities in millionths.
const QUANTILES: [(&str, u64); 5] = [
    ("first_byte_min", 0),
    ("first_byte_p50", 500_000),
    ("first_byte_p90", 900_000),
    ("first_byte_p99", 990_000),
    ("first_byte_max", 1_000_000),
];

/// Source of the request rates.
const S3_GUIDELINES: &str =
    "published: Amazon S3 user guide, performance guidelines and design patterns";
/// Source of the measured latencies and of the bandwidth.
const SOURCE_DURNER_2023: &str = "measured: S3 by Durner, Leis, Neumann, PVLDB 16(11), 2023";

/// Declares one quantile of the first-byte latency. `default` is in ns. The bounds, 0 to 100 s, are
/// chosen.
const fn first_byte(
    key: &'static str,
    description: &'static str,
    default: u64,
    source: &'static str,
) -> ParameterSpec {
    let (least, most) = (0, 100_000_000_000);
    ParameterSpec {
        key,
        description,
        quantity: ParameterQuantity::Time,
        default,
        least,
        most,
        source,
    }
}

/// Parameters of `object`.
pub const PARAMETERS: [ParameterSpec; 13] = [
    first_byte("first_byte_min", "least first-byte latency", 10_000_000, SOURCE_DURNER_2023),
    first_byte("first_byte_p50", "median first-byte latency", 30_000_000, SOURCE_DURNER_2023),
    first_byte(
        "first_byte_p90",
        "first-byte latency of nine in ten",
        100_000_000,
        "published: Amazon S3 design patterns, roughly 100 to 200 ms, its lower end",
    ),
    first_byte(
        "first_byte_p99",
        "first-byte latency of 99 in 100",
        200_000_000,
        "published: Amazon S3 design patterns, roughly 100 to 200 ms, its upper end",
    ),
    first_byte(
        "first_byte_max",
        "largest first-byte latency",
        2_000_000_000,
        "published: Amazon S3 guidelines, retry when a small request takes 2 s",
    ),
    ParameterSpec {
        key: "connection",
        description: "one connection",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 85_000_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: "published: Amazon S3 design patterns, one request for each 85 to 90 MB/s",
    },
    ParameterSpec {
        key: "bandwidth",
        description: "client's network, each way",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 12_500_000_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: SOURCE_DURNER_2023,
    },
    ParameterSpec {
        key: "connections",
        description: "connections; each carries one request at a time",
        quantity: ParameterQuantity::Count,
        default: 256,
        least: 1,
        most: 65_536,
        source: "measured: Durner, Leis, Neumann, 200 to 250 requests in flight fill 100 Gbit/s",
    },
    ParameterSpec {
        key: "get_rate",
        description: "GETs a second",
        quantity: ParameterQuantity::Count,
        default: 5_500,
        least: 1,
        most: 1_000_000_000,
        source: S3_GUIDELINES,
    },
    ParameterSpec {
        key: "put_rate",
        description: "PUTs a second",
        quantity: ParameterQuantity::Count,
        default: 3_500,
        least: 1,
        most: 1_000_000_000,
        source: S3_GUIDELINES,
    },
    ParameterSpec {
        key: "size",
        description: "size of the object",
        quantity: ParameterQuantity::Bytes,
        default: 1 << 40,
        least: 1 << 20,
        most: 1 << 50,
        source: "chosen: a data set of a terabyte",
    },
    ParameterSpec {
        key: "request_max",
        description: "largest range",
        quantity: ParameterQuantity::Bytes,
        default: 16 << 20,
        least: 4 << 10,
        most: 1 << 30,
        source: "published: Amazon S3 guidelines, ranges of 8 to 16 MB",
    },
    ParameterSpec {
        key: "depth",
        description: "requests at once",
        quantity: ParameterQuantity::Count,
        default: 1_024,
        least: 1,
        most: 65_536,
        source: "chosen: the client queues what has no connection",
    },
];
