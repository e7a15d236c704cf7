//! The NFS server of a simulated run: its answers by the layouts of RFC 1813, RFC 5531 and RFC
//! 4506, and the answers of a faulty server.
//!
//! A file's bytes and attributes are taken from the [disk](super::disk) when the server handles the
//! call, possibly long before the answer arrives. Servers that lie within a valid answer are not
//! simulated, because the protocol gives a client no means to detect this.

use readpath_core::unit::PAGE_BYTES;

use super::disk::BLOCK;
use super::network::LAST;
use super::world::World;

/// Options of the server, and frequencies of its faults. A value n means one event of n; 0 means
/// never.
#[derive(Clone, Debug, Default)]
pub struct SimulatedServer {
    /// Largest READ that the client requests, in bytes.
    pub rsize: u64,
    /// Largest READ that the server accepts, in bytes.
    pub read_bytes_max: u64,
    /// Number of simultaneous calls.
    pub slots: u64,
    /// Milliseconds after which a call is repeated.
    pub repeat_ms: u64,
    /// Milliseconds after which a call fails.
    pub timeout_ms: u64,
    /// True if calls come from a reserved port, if one is available.
    pub from_reserved: bool,
    /// True if the file's name is a symbolic link.
    pub is_linked: bool,
    /// True if a short answer may end at any byte, and not only between blocks.
    pub has_unaligned_short_answers: bool,
    /// An answer has several fragments.
    pub fragment_rate: u64,
    /// A connection is cut in the middle of an answer.
    pub cut_rate: u64,
    /// A connection is refused, or never made.
    pub refuse_rate: u64,
    /// A call is never answered.
    pub no_answer_rate: u64,
    /// From a call on, no call is answered and no connection made for seconds.
    pub hang_rate: u64,
    /// An answer comes twice.
    pub duplicate_rate: u64,
    /// An answer cannot be decoded.
    pub garble_rate: u64,
    /// Bytes arrive that are no answer, or no answer to a call of the client.
    pub noise_rate: u64,
}

impl SimulatedServer {
    /// URL of the run's file.
    pub(super) fn url(&self) -> String {
        let SimulatedServer { rsize, slots, repeat_ms, timeout_ms, .. } = self;
        let source = if self.from_reserved { "reserved" } else { "any" };
        format!(
            "nfs://127.0.0.1:2049/export/0?rsize={rsize}&slots={slots}&repeat={repeat_ms}ms&\
             timeout={timeout_ms}ms&source={source}&uid=1&gid=1"
        )
    }

    /// True if a call may get no answer in time. A call normally takes some tens of milliseconds.
    pub(super) fn can_time_out(&self) -> bool {
        let parts = [
            self.cut_rate,
            self.refuse_rate,
            self.no_answer_rate,
            self.hang_rate,
            self.garble_rate,
            self.noise_rate,
        ];
        self.repeat_ms < 1_000 || parts.iter().any(|&part| part > 0)
    }

    /// All fault frequencies.
    pub(super) fn faults(&mut self) -> [&mut u64; 8] {
        let SimulatedServer {
            fragment_rate: fragments,
            cut_rate: cuts,
            refuse_rate: refuses,
            no_answer_rate: silent,
            hang_rate: hangs,
            duplicate_rate: twice,
            garble_rate: garbles,
            noise_rate: strange,
            ..
        } = self;
        [fragments, cuts, refuses, silent, hangs, twice, garbles, strange]
    }
}

const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;

const ROOT: &[u8] = b"root";
const DIRECTORY: &[u8] = b"directory";
const LINK: &[u8] = b"link";

const REGULAR: u32 = 1;
const DIRECTORY_KIND: u32 = 2;
const LINK_KIND: u32 = 5;

/// A decoded call.
struct RpcCall<'a> {
    xid: u32,
    program: u32,
    procedure: u32,
    undecoded: &'a [u8],
}

impl<'a> RpcCall<'a> {
    fn parse(record: &'a [u8]) -> RpcCall<'a> {
        let mut call = RpcCall { xid: 0, program: 0, procedure: 0, undecoded: record };
        call.xid = call.word();
        assert_eq!([call.word(), call.word()], [0, 2], "a call, of version 2");
        call.program = call.word();
        assert_eq!(call.word(), 3, "the version of both programs");
        call.procedure = call.word();
        for _credential_and_verifier in 0..2 {
            call.word();
            call.opaque();
        }
        call
    }

    fn word(&mut self) -> u32 {
        let (word, left) = self.undecoded.split_first_chunk().expect("a call is whole");
        self.undecoded = left;
        u32::from_be_bytes(*word)
    }

    fn opaque(&mut self) -> &'a [u8] {
        let bytes = self.word() as usize;
        let (opaque, left) = self.undecoded.split_at(bytes);
        self.undecoded = &left[bytes.next_multiple_of(4) - bytes..];
        opaque
    }
}

/// Encodes an answer.
#[derive(Default)]
struct AnswerWriter(Vec<u8>);

impl AnswerWriter {
    fn from_words(words: &[u32]) -> AnswerWriter {
        AnswerWriter(words.iter().flat_map(|word| word.to_be_bytes()).collect())
    }

    fn push_words(&mut self, words: &[u32]) -> &mut AnswerWriter {
        self.0.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        self
    }

    fn push_u64(&mut self, value: u64) -> &mut AnswerWriter {
        self.push_words(&[(value >> 32) as u32, value as u32])
    }

    fn opaque(&mut self, bytes: &[u8]) -> &mut AnswerWriter {
        self.push_words(&[bytes.len() as u32]);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// Handle of a file. Handles of some files are longer.
fn handle(inode: u32) -> Vec<u8> {
    let mut handle = inode.to_be_bytes().to_vec();
    handle.resize(4 + 20 * (inode as usize % 4), 7);
    handle
}

impl World {
    /// Answer of the server to a call, as it is sent.
    pub(super) fn answer(&self, server: &SimulatedServer, record: &[u8]) -> Vec<u8> {
        let mut call = RpcCall::parse(record);
        let xid = call.xid;
        let faults = self.disk.borrow().faults().clone();
        let is_read = (call.program, call.procedure) == (NFS, 6);
        let mut answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 0]);
        if self.happens_one_in(faults.error_rate) {
            match self.random_below(4) {
                // Unknown program; system error; denied.
                0 => answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 1]),
                1 => answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 5]),
                2 => answer = AnswerWriter::from_words(&[xid, 1, 1, 1, 2]),
                _ if (call.program, call.procedure) == (MOUNT, 5) => _ = answer.push_words(&[0]),
                _ => {
                    _ = answer.push_words(&[
                        [5, 13, 70, 10_006][self.random_below(4) as usize],
                        0,
                        0,
                    ])
                }
            }
        } else if self.happens_one_in(faults.retry_rate) && call.program == NFS {
            answer.push_words(&[10_008, 0, 0]);
        } else {
            answer.0.extend(self.results(server, &mut call).0);
        }
        let mut answer = answer.0;
        if self.happens_one_in(server.garble_rate) {
            self.garble(&mut answer, is_read);
        }
        let mut ends = vec![answer.len()];
        if self.happens_one_in(server.fragment_rate) {
            // No fragment is empty.
            ends.extend(
                (0..self.random_below(4))
                    .map(|_| 1 + self.random_below(answer.len() as u64) as usize),
            );
            ends.sort_unstable();
            ends.dedup();
        }
        let mut sent = Vec::new();
        let mut start = 0;
        for (nth, &end) in ends.iter().enumerate() {
            let last = if nth + 1 == ends.len() { LAST } else { 0 };
            sent.extend(((end - start) as u32 | last).to_be_bytes());
            sent.extend(&answer[start..end]);
            start = end;
        }
        sent
    }

    /// Results of a call without faults.
    fn results(&self, server: &SimulatedServer, call: &mut RpcCall<'_>) -> AnswerWriter {
        let mut results = AnswerWriter::default();
        match (call.program, call.procedure) {
            // MNT, EXPORT.
            (MOUNT, 1) if call.opaque() == b"/export" => {
                results.push_words(&[0]).opaque(ROOT).push_words(&[2, 0, 1]);
            }
            (MOUNT, 1) => _ = results.push_words(&[2]),
            (MOUNT, 5) if self.random_below(2) == 0 => _ = results.push_words(&[0]),
            (MOUNT, 5) => {
                results
                    .push_words(&[1])
                    .opaque(b"/export")
                    .push_words(&[1])
                    .opaque(b"all")
                    .push_words(&[0, 0]);
            }
            // GETATTR.
            (NFS, 1) => {
                let file = call.opaque();
                self.attributes(results.push_words(&[0]), file);
            }
            // LOOKUP.
            (NFS, 3) => {
                let (directory, name) = (call.opaque(), call.opaque());
                let file = handle(self.disk.borrow().names[0]);
                let found = match name {
                    b"0" if directory == ROOT && server.is_linked => LINK,
                    b"0" => &file,
                    b"directory" if directory == ROOT => DIRECTORY,
                    _ => return AnswerWriter::from_words(&[2, 0]),
                };
                results.push_words(&[0]).opaque(found);
                self.attributes_if_any(&mut results, found);
                self.attributes_if_any(&mut results, directory);
            }
            // ACCESS.
            (NFS, 4) => {
                let file = call.opaque();
                self.attributes_if_any(results.push_words(&[0]), file);
                results.push_words(&[call.word()]);
            }
            // READLINK.
            (NFS, 5) => {
                let targets =
                    [&b"directory/0"[..], b"/export/directory//0", b"./directory/../directory/0"];
                self.attributes_if_any(results.push_words(&[0]), LINK);
                results.opaque(targets[self.random_below(3) as usize]);
            }
            // READ.
            (NFS, 6) => {
                let file = call.opaque();
                let offset = u64::from(call.word()) << 32 | u64::from(call.word());
                self.read(server, &mut results, file, offset, u64::from(call.word()));
            }
            // FSINFO.
            (NFS, 19) => {
                let file = call.opaque();
                self.attributes_if_any(results.push_words(&[0]), file);
                let most = server.read_bytes_max as u32;
                results
                    .push_words(&[most, most, 1, 4096, 4096, 1, 4096])
                    .push_u64(1 << 60)
                    .push_words(&[0, 1, 27]);
            }
            other => self.record_failure(format!("the server was asked for {other:?}")),
        }
        results
    }

    /// Results of a READ.
    fn read(
        &self,
        server: &SimulatedServer,
        results: &mut AnswerWriter,
        file: &[u8],
        offset: u64,
        count: u64,
    ) {
        let stops = self.disk.borrow().faults().short_rate;
        let inode = inode(file);
        let disk = self.disk.borrow();
        let place = &disk.inodes[inode as usize];
        let mut bytes = place.bytes.saturating_sub(offset).min(count).min(server.read_bytes_max);
        let pages = offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES);
        if count > server.read_bytes_max.min(server.rsize) {
            self.record_failure(format!("a READ of {count} bytes is too large"));
        }
        if pages.clone().any(|page| disk.is_bad(inode, page)) {
            results.push_words(&[5, 0]);
            return;
        }
        if self.happens_one_in(stops) {
            let unit = if server.has_unaligned_short_answers { 1 } else { BLOCK };
            if bytes > unit {
                bytes = (1 + self.random_below((bytes - 1) / unit)) * unit;
            }
        }
        let mut data = vec![0; bytes as usize];
        place.read_current(inode, offset, &mut data);
        let is_at_end = offset + bytes >= place.bytes;
        drop(disk);
        self.attributes_if_any(results.push_words(&[0]), file);
        results.push_words(&[bytes as u32, is_at_end.into()]).opaque(&data);
    }

    fn attributes_if_any(&self, to: &mut AnswerWriter, file: &[u8]) {
        if self.random_below(4) == 0 {
            to.push_words(&[0]);
        } else {
            self.attributes(to.push_words(&[1]), file);
        }
    }

    fn attributes(&self, to: &mut AnswerWriter, file: &[u8]) {
        let (kind, number, bytes, changes) = match file {
            ROOT => (DIRECTORY_KIND, 1_000, 4_096, 0),
            DIRECTORY => (DIRECTORY_KIND, 1_001, 4_096, 0),
            LINK => (LINK_KIND, 1_002, 11, 0),
            _ => {
                let (inode, disk) = (inode(file), self.disk.borrow());
                let place = &disk.inodes[inode as usize];
                (REGULAR, u64::from(inode), place.bytes, place.changes as u32)
            }
        };
        // Kind, mode, links, owner, group; length, used bytes; device; file system and number;
        // times.
        to.push_words(&[kind, 0o644, 1, 1, 1])
            .push_u64(bytes)
            .push_u64(bytes)
            .push_words(&[0, 0])
            .push_u64(1)
            .push_u64(number);
        to.push_words(&[1_000_000, 0, 1_000_000, changes, 1_000_000, changes]);
    }

    /// Makes an answer undecodable.
    fn garble(&self, answer: &mut Vec<u8>, is_read: bool) {
        const RESULTS: usize = 24;
        /// Larger than the largest READ that the client requests.
        const MORE_BYTES: u32 = 200_000;
        let put = |answer: &mut Vec<u8>, at: usize, word: u32| {
            answer.resize(answer.len().max(at + 4), 0);
            answer[at..at + 4].copy_from_slice(&word.to_be_bytes());
        };
        let word = |answer: &[u8], at: usize| {
            answer
                .get(at..at + 4)
                .map_or(0, |word| u32::from_be_bytes(word.try_into().expect("four")))
        };
        // Offset of the count, behind the attributes if there are any; then the end flag, and the
        // count again.
        let count_at = RESULTS + 8 + if word(answer, RESULTS + 4) == 1 { 84 } else { 0 };
        let has_data = is_read
            && word(answer, 8) == 0
            && answer.len() > count_at + 12
            && word(answer, RESULTS) == 0;
        match self.random_below(if has_data { 8 } else { 5 }) {
            // An undefined status.
            0 => put(answer, RESULTS, 9_999),
            // No reply; arguments that cannot be decoded.
            1 => put(answer, 4, 0),
            2 => {
                put(answer, 8, 0);
                put(answer, 20, 4);
            }
            // Cut off.
            3 => answer.truncate(answer.len() - 4),
            4 => answer.truncate(1 + self.random_below(RESULTS as u64) as usize),
            // Contradictory counts, an invalid end flag, more bytes than requested.
            5 => put(answer, count_at, word(answer, count_at) ^ 4),
            6 => put(answer, count_at + 4, 2),
            _ => {
                // The additional bytes are present, or not.
                let count = word(answer, count_at) + MORE_BYTES;
                put(answer, count_at, count);
                put(answer, count_at + 8, count);
                let there = [0, 8, MORE_BYTES][self.random_below(3) as usize];
                answer.resize(answer.len() + there as usize, 0xdb);
            }
        }
    }

    /// Bytes that are no answer to a call, sent before an answer.
    pub(super) fn unrelated_bytes(&self, answer: &[u8]) -> Vec<u8> {
        let any = |count: u64| {
            (0..count).map(|_| self.random_below(1 << 32) as u32).collect::<Vec<u32>>()
        };
        let words = match self.random_below(5) {
            // An answer to another call, or to none.
            0 => {
                let mut other = answer.to_vec();
                if other.len() >= 8 {
                    other[4..8].copy_from_slice(&(self.random_below(1 << 32) as u32).to_be_bytes());
                }
                return other;
            }
            // A record that is too long for any answer, one of zeros, one that swallows the
            // following bytes.
            1 => vec![LAST | 5_000_000],
            2 => vec![0; 1 + self.random_below(5) as usize],
            3 => vec![self.random_below(200) as u32],
            _ => {
                let mut words = any(1 + self.random_below(40));
                words.insert(0, LAST | (words.len() as u32 * 4));
                words
            }
        };
        AnswerWriter::from_words(&words).0
    }
}

/// File of a handle.
fn inode(handle: &[u8]) -> u32 {
    u32::from_be_bytes(*handle.first_chunk().expect("a handle of ours"))
}
