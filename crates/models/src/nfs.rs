//! An NFS mount: a client that sends calls over a network to a server with a device.
//!
//! A request is split into calls of at most `rsize`, reads and writes alike. All calls of a request
//! are sent at once if the slots suffice, never one after the other. A call crosses the network,
//! waits for a server thread, costs server time, and is served from the server's memory or its
//! device. The data of the replies crosses the link one reply after the other. A request completes
//! with its last call.
//!
//! Each direction takes half of the round trip, plus a uniformly distributed jitter. Replies can
//! arrive out of order.

use std::collections::VecDeque;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::agenda::EventQueue;
use super::array::{Controller, ControllerParts};
use super::numbered_slab::NumberedSlab;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};
use super::parted_request::PartedRequest;
use super::random::SeededRng;
use super::rate::Link;
use super::{BoxedDevice, Device};

/// A mount over a network.
pub struct Nfs {
    /// Limits of the mount.
    caps: DeviceCaps,
    /// Largest call, in sectors.
    call_sectors_max: u32,
    /// Network latency in one direction.
    one_way_latency: Time,
    /// Largest delay added to a round trip, half of it in each direction.
    jitter: Time,
    /// Link to the server, for write data.
    link_to_server: Link,
    /// Link to the client, for read data.
    link_to_client: Link,
    /// Maximum number of calls in flight.
    slots_max: u32,
    /// Calls in flight, at most `slots_max`.
    slots_used: u32,
    /// Number of server threads.
    threads: u32,
    /// Calls that server threads are working on, at most `threads`.
    server_calls: u32,
    /// The server's memory and device.
    server: Controller,
    /// Draws of the jitter.
    rng: SeededRng,
    /// Keys of the calls that wait for a slot.
    calls_without_slot: VecDeque<u32>,
    /// Keys of the calls that wait for a server thread.
    calls_without_thread: VecDeque<u32>,
    /// Future events of client, network and server.
    events: EventQueue<NfsEvent>,
    /// Requests in flight.
    requests: NumberedSlab<NfsRequest>,
    /// Calls, waiting or in flight.
    calls: NumberedSlab<NfsCall>,
    /// Completions that `poll` has not yet returned.
    done: VecDeque<Completion>,
    /// COMMIT calls at the server.
    commits: Vec<Commit>,
    /// Number of COMMIT calls so far, from which their identifiers at the server derive.
    commits_sent: u32,
}

/// A COMMIT call at the server: a flush, with its identifiers on both sides.
#[derive(Clone, Copy, Debug)]
struct Commit {
    /// Identifier of the flush at the server's storage.
    server_id: RequestId,
    /// Identifier of the flush of the mount.
    client_id: RequestId,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct NfsRequest {
    /// The request of the mount.
    request: DeviceRequest,
    /// Its calls.
    calls: PartedRequest,
}

/// One call of a request, with its sectors.
#[derive(Clone, Copy, Debug)]
struct NfsCall {
    /// Key of the request in `requests`.
    request_key: u32,
    /// First sector of the call.
    start: u64,
    /// Number of sectors, at most `call_sectors_max`.
    sectors: u32,
}

/// Internal event. A number is a key in `calls`.
#[derive(Clone, Copy, Debug)]
enum NfsEvent {
    /// A call has arrived at the server.
    AtServer(u32),
    /// The reply of a call has arrived at the client.
    Answered(u32, Outcome),
    /// A COMMIT call has arrived at the server.
    CommitAtServer(RequestId),
    /// The reply of a COMMIT call has arrived at the client. It fails if the server lost a write
    /// (RFC 1813, `NFS3ERR_IO`).
    Committed(RequestId, Outcome),
}

impl Nfs {
    /// Mounts the server that `spec` describes, which stores its data on `device`. Jitter derives
    /// from `seed`.
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn from_spec(spec: &Spec, device: BoxedDevice, seed: u64) -> Result<Nfs, SpecError> {
        let settings = ParameterValues::read(spec, &PARAMETERS)?;
        let rsize = settings.of("rsize");
        if !rsize.is_multiple_of(SECTOR_BYTES) {
            return Err(settings.contradiction("rsize", "a multiple of 512 bytes".to_owned()));
        }
        let inner_caps = device.caps();
        let line_sectors = SERVER_LINE_SECTORS.min(inner_caps.request_sectors_max);
        let server = ControllerParts {
            overhead: Time(settings.of("server_overhead")),
            miss: Time::ZERO,
            link_bytes_per_second: None,
            cache_bytes: settings.of("server_cache"),
            caches_all_reads: true,
            line_sectors: u64::from(line_sectors),
            readahead_sectors: settings.of("server_readahead") / SECTOR_BYTES,
            // No limit, and read-ahead from the second request of a stream on: one sector in
            // sequence suffices.
            readahead_all_sectors: u64::MAX,
            readahead_after_sectors: 1,
            // The defaults of `array`.
            streams: 256,
            inactive_after_requests: 192,
            // A simplification: reads and writes each have the whole memory.
            write_cache_bytes: settings.of("server_cache"),
            write_cache_survives_power_loss: false,
            depth_max: settings.get_u32("threads"),
        };
        let rsize_sectors = (rsize / SECTOR_BYTES) as u32;
        let bandwidth = settings.of("bandwidth");
        Ok(Nfs {
            caps: DeviceCaps {
                sectors: inner_caps.sectors,
                request_sectors_max: (settings.of("request_max") / SECTOR_BYTES) as u32,
                depth_max: settings.get_u32("depth"),
                is_rotational: false,
                alignment_sectors: 1,
            },
            // The server passes a call to its device as one request.
            call_sectors_max: rsize_sectors.min(inner_caps.request_sectors_max),
            one_way_latency: Time(settings.of("rtt") / 2),
            jitter: Time(settings.of("jitter")),
            link_to_server: Link::new(bandwidth),
            link_to_client: Link::new(bandwidth),
            slots_max: settings.get_u32("slots"),
            slots_used: 0,
            threads: settings.get_u32("threads"),
            server_calls: 0,
            server: Controller::new(device, server),
            rng: SeededRng::new(seed),
            calls_without_slot: VecDeque::new(),
            calls_without_thread: VecDeque::new(),
            events: EventQueue::new(),
            requests: NumberedSlab::new(),
            calls: NumberedSlab::new(),
            done: VecDeque::new(),
            commits: Vec::new(),
            commits_sent: 0,
        })
    }

    /// Draws the latency of one direction: `one_way_latency` plus zero to half of `jitter`,
    /// inclusive.
    fn draw_one_way_latency(&mut self) -> Time {
        self.one_way_latency + Time(self.rng.below(self.jitter.ns() / 2 + 1))
    }

    /// Sends queued calls while slots are free. A write's data crosses the link first.
    fn send_calls(&mut self, now: Time) {
        while self.slots_used < self.slots_max
            && let Some(call_key) = self.calls_without_slot.pop_front()
        {
            self.slots_used += 1;
            let NfsCall { request_key, sectors, .. } = self.calls[call_key];
            let sent_time = match self.requests[request_key].request.op {
                Op::Read => now,
                Op::Write => {
                    self.link_to_server.queue_transfer(now, u64::from(sectors) * SECTOR_BYTES)
                }
            };
            let latency = self.draw_one_way_latency();
            self.events.add(sent_time + latency, NfsEvent::AtServer(call_key));
        }
    }

    /// Assigns waiting calls to free server threads, and submits them to the storage of the server.
    fn start_server_calls(&mut self, now: Time) {
        while self.server_calls < self.threads
            && let Some(call_key) = self.calls_without_thread.pop_front()
        {
            self.server_calls += 1;
            let NfsCall { request_key, start, sectors } = self.calls[call_key];
            let (id, op) = (RequestId(call_key), self.requests[request_key].request.op);
            self.server.submit(now, DeviceRequest { id, op, start, sectors });
        }
    }

    /// Handles a completion of the server's storage: sends the reply, and frees a call's thread.
    /// Only the reply to a read carries data, but every reply waits until the link is free. A
    /// COMMIT call occupies no thread and no link.
    fn finish_server_call(&mut self, now: Time, completion: &Completion) {
        let commit = self.commits.iter().position(|commit| commit.server_id == completion.id);
        if let Some(index) = commit {
            let id = self.commits.swap_remove(index).client_id;
            let latency = self.draw_one_way_latency();
            let event = NfsEvent::Committed(id, completion.outcome);
            return self.events.add(now + latency, event);
        }
        self.server_calls -= 1;
        let call_key = completion.id.0;
        let call = self.calls[call_key];
        let is_read = self.requests[call.request_key].request.op == Op::Read;
        let bytes = match completion.outcome {
            Outcome::Done if is_read => u64::from(call.sectors) * SECTOR_BYTES,
            Outcome::Short { bytes } if is_read => bytes,
            _ => 0,
        };
        let sent_time = self.link_to_client.queue_transfer(now, bytes);
        let latency = self.draw_one_way_latency();
        self.events.add(sent_time + latency, NfsEvent::Answered(call_key, completion.outcome));
    }

    /// Handles the reply to a call: frees a slot. The last reply completes the request.
    fn receive_reply(&mut self, now: Time, call_key: u32, outcome: Outcome) {
        self.slots_used -= 1;
        let call = self.calls.take(call_key);
        let nfs_request = &mut self.requests[call.request_key];
        nfs_request.calls.record_outcome(call.start - nfs_request.request.start, outcome);
        // The worst outcome of all calls; `None` before the last reply.
        let Some(request_outcome) = nfs_request.calls.end_part() else { return };
        let NfsRequest { request, .. } = self.requests.take(call.request_key);
        self.done.push_back(Completion::at(now, request.id, request_outcome));
    }
}

impl Device for Nfs {
    /// Size of the server's storage, with largest request and queue depth of the client. The disk
    /// of the server is not visible, so the mount is not rotational.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Splits a request into calls, and sends as many as there are slots.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let call_count = request.sectors.div_ceil(self.call_sectors_max);
        let calls = PartedRequest::new(request.sectors, u64::from(call_count));
        let request_key = self.requests.add(NfsRequest { request, calls });
        let mut start = request.start;
        while start < request.end() {
            let sectors = (request.end() - start).min(u64::from(self.call_sectors_max)) as u32;
            let call_key = self.calls.add(NfsCall { request_key, start, sectors });
            self.calls_without_slot.push_back(call_key);
            start += u64::from(sectors);
        }
        self.send_calls(now);
    }

    /// Sends a COMMIT call (RFC 1813), which takes no slot. The server replies when its storage has
    /// the written data.
    fn flush(&mut self, now: Time, id: RequestId) {
        let latency = self.draw_one_way_latency();
        self.events.add(now + latency, NfsEvent::CommitAtServer(id));
    }

    /// Returns the time of the next completion or event, of client or server.
    fn next_event(&self) -> Option<Time> {
        let done = self.done.front().map(|completion| completion.at);
        [done, self.events.next_at(), self.server.next_event()].into_iter().flatten().min()
    }

    /// Processes the events up to `now`. Returns the next completion, if any.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        while self.done.is_empty() {
            while let Some(completion) = self.server.poll(now) {
                self.finish_server_call(now, &completion);
            }
            let Some((time, event)) = self.events.take_due(now) else {
                // Completed calls may have freed threads, so waiting calls start although no event
                // was due.
                self.start_server_calls(now);
                break;
            };
            match event {
                NfsEvent::AtServer(call_key) => self.calls_without_thread.push_back(call_key),
                NfsEvent::CommitAtServer(client_id) => {
                    let server_id =
                        RequestId(FIRST_COMMIT_ID + self.commits_sent % FIRST_COMMIT_ID);
                    self.commits_sent += 1;
                    self.commits.push(Commit { server_id, client_id });
                    self.server.flush(time, server_id);
                }
                NfsEvent::Committed(id, outcome) => {
                    self.done.push_back(Completion::at(time, id, outcome));
                }
                NfsEvent::Answered(call_key, outcome) => {
                    self.receive_reply(time, call_key, outcome);
                    self.send_calls(time);
                }
            }
            self.start_server_calls(time);
        }
        self.done.pop_front()
    }
}

/// Cache line of the server's memory, in sectors: 16 KiB. Chosen, not measured.
const SERVER_LINE_SECTORS: u32 = 32;

/// First identifier of COMMIT calls at the server. Other calls have their keys in `calls`, which
/// are far smaller.
const FIRST_COMMIT_ID: u32 = 1 << 31;

/// Parameters of `nfs`.
pub const PARAMETERS: [ParameterSpec; 11] = [
    ParameterSpec {
        key: "rtt",
        description: "round trip of an empty call",
        quantity: ParameterQuantity::Time,
        default: 200_000,
        least: 0,
        most: 10_000_000_000,
        source: "chosen: hosts on one switch of gigabit Ethernet, with both network stacks",
    },
    ParameterSpec {
        key: "jitter",
        description: "largest delay added to a round trip",
        quantity: ParameterQuantity::Time,
        default: 50_000,
        least: 0,
        most: 10_000_000_000,
        source: "chosen: interrupt moderation of a gigabit card",
    },
    ParameterSpec {
        key: "bandwidth",
        description: "network, each way",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 117_700_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: "derived: gigabit Ethernet less headers: 1,448 of each 1,538 bytes are data",
    },
    ParameterSpec {
        key: "rsize",
        description: "largest call",
        quantity: ParameterQuantity::Bytes,
        default: 32 << 10,
        least: 4 << 10,
        most: 1 << 20,
        source: "published: the NFS thread of 2009; Linux negotiates up to 1m today",
    },
    ParameterSpec {
        key: "slots",
        description: "calls in flight",
        quantity: ParameterQuantity::Count,
        default: 16,
        least: 1,
        most: 65_536,
        source: "published: Linux sunrpc.tcp_slot_table_entries of the time",
    },
    ParameterSpec {
        key: "threads",
        description: "calls that the server works on at once",
        quantity: ParameterQuantity::Count,
        default: 8,
        least: 1,
        most: 4_096,
        source: "published: nfs-utils, rpc.nfsd starts 8 threads",
    },
    ParameterSpec {
        key: "server_overhead",
        description: "server's own time for a call",
        quantity: ParameterQuantity::Time,
        default: 50_000,
        least: 0,
        most: 10_000_000_000,
        source: "chosen: decoding, look-up and copy on a server of the time",
    },
    ParameterSpec {
        key: "server_cache",
        description: "server's memory for data; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 1 << 30,
        least: 0,
        most: 1 << 44,
        source: "chosen: a server of the time with a few gigabytes of memory",
    },
    ParameterSpec {
        key: "server_readahead",
        description: "bytes that the server reads ahead; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 128 << 10,
        least: 0,
        most: 1 << 30,
        source: "published: Linux's default read_ahead_kb",
    },
    ParameterSpec {
        key: "request_max",
        description: "largest request, cut into calls",
        quantity: ParameterQuantity::Bytes,
        default: 4 << 20,
        least: 4 << 10,
        most: 32 << 20,
        source: "chosen: the client cuts whatever comes",
    },
    ParameterSpec {
        key: "depth",
        description: "requests at once",
        quantity: ParameterQuantity::Count,
        default: 1_024,
        least: 1,
        most: 65_536,
        source: "chosen: the client queues what has no slot",
    },
];
