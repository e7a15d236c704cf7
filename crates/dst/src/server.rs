//! The NFS server of a simulated run: its answers by the layouts of RFC 1813, RFC 5531 and RFC
//! 4506, and the answers of a faulty server.
//!
//! A file's bytes and attributes are taken from the [disk](super::disk) when the server handles the
//! call, possibly long before the answer arrives. Servers that lie within a valid answer are not
//! simulated, because the protocol gives a client no means to detect this.

use readpath_core::unit::PAGE_BYTES;

use super::disk::BLOCK;
use super::network::FINAL;
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
    pub fragment_one_in: u64,
    /// A connection is cut in the middle of an answer.
    pub cut_one_in: u64,
    /// A connection is refused, or never made.
    pub refuse_one_in: u64,
    /// A call is never answered.
    pub no_answer_one_in: u64,
    /// From a call on, no call is answered and no connection made for seconds.
    pub hang_one_in: u64,
    /// An answer comes twice.
    pub duplicate_one_in: u64,
    /// An answer cannot be decoded.
    pub garble_one_in: u64,
    /// Bytes arrive that are no answer, or no answer to a call of the client.
    pub noise_one_in: u64,
}

impl SimulatedServer {
    /// URL of the run's file with the options of this server. Address, port, user and group have no
    /// meaning, because no connection of the system is made.
    pub(super) fn url(&self) -> String {
        let SimulatedServer { rsize, slots, repeat_ms, timeout_ms, .. } = self;
        let source = if self.from_reserved { "reserved" } else { "any" };
        format!(
            "nfs://127.0.0.1:2049/export/0?rsize={rsize}&slots={slots}&repeat={repeat_ms}ms&\
             timeout={timeout_ms}ms&source={source}&uid=1&gid=1"
        )
    }

    /// True if a call may get no answer in time. A call normally takes some tens of milliseconds,
    /// and the timeout is a multiple of `repeat_ms`, from once to 12 times. A timeout of a second
    /// or more is thus missed only by a fault.
    pub(super) fn can_time_out(&self) -> bool {
        let rates = [
            self.cut_one_in,
            self.refuse_one_in,
            self.no_answer_one_in,
            self.hang_one_in,
            self.garble_one_in,
            self.noise_one_in,
        ];
        self.repeat_ms < 1_000 || rates.iter().any(|&rate| rate > 0)
    }

    /// Returns all fault frequencies, for scenarios that change them.
    pub(super) fn fault_rates_mut(&mut self) -> [&mut u64; 8] {
        [
            &mut self.fragment_one_in,
            &mut self.cut_one_in,
            &mut self.refuse_one_in,
            &mut self.no_answer_one_in,
            &mut self.hang_one_in,
            &mut self.duplicate_one_in,
            &mut self.garble_one_in,
            &mut self.noise_one_in,
        ]
    }
}

/// RPC program numbers.
const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;
/// Number of the procedure READ.
const READ: u32 = 6;

/// Handles of the export, of its folder, and of the symbolic link. Other handles name files.
const ROOT: &[u8] = b"root";
const DIRECTORY: &[u8] = b"directory";
const LINK: &[u8] = b"link";

/// File kinds of NFS (ftype3 in RFC 1813).
const REGULAR: u32 = 1;
const DIRECTORY_KIND: u32 = 2;
const LINK_KIND: u32 = 5;

/// A decoded call.
struct RpcCall<'a> {
    /// Transaction id, which the answer repeats.
    xid: u32,
    /// Number of the RPC program: `MOUNT` or `NFS`.
    program: u32,
    /// Number of the procedure in the program.
    procedure: u32,
    /// The arguments that are not decoded yet.
    undecoded: &'a [u8],
}

impl<'a> RpcCall<'a> {
    /// Decodes the head of a call. Its arguments stay undecoded.
    fn parse(record: &'a [u8]) -> RpcCall<'a> {
        let mut call = RpcCall { xid: 0, program: 0, procedure: 0, undecoded: record };
        call.xid = call.take_word();
        assert_eq!(
            [call.take_word(), call.take_word()],
            [0, 2],
            "the message is a call of RPC version 2"
        );
        call.program = call.take_word();
        // The client uses NFS 3, whose MOUNT program has version 3 too.
        assert_eq!(call.take_word(), 3, "the program has version 3");
        call.procedure = call.take_word();
        for _credential_and_verifier in 0..2 {
            call.take_word();
            call.take_opaque();
        }
        call
    }

    /// Decodes the next word of four bytes. Panics at the end of the call.
    fn take_word(&mut self) -> u32 {
        let (word, undecoded) = self.undecoded.split_first_chunk().expect("a call is whole");
        self.undecoded = undecoded;
        u32::from_be_bytes(*word)
    }

    /// Decodes the next opaque data: a length, the bytes, and their padding. Returns the bytes.
    fn take_opaque(&mut self) -> &'a [u8] {
        let bytes = self.take_word() as usize;
        let (opaque, undecoded) = self.undecoded.split_at(bytes);
        self.undecoded = &undecoded[bytes.next_multiple_of(4) - bytes..];
        opaque
    }
}

/// Encodes an answer: its bytes so far.
#[derive(Default)]
struct AnswerWriter(Vec<u8>);

impl AnswerWriter {
    /// Creates an answer of these words.
    fn from_words(words: &[u32]) -> AnswerWriter {
        AnswerWriter(words.iter().flat_map(|word| word.to_be_bytes()).collect())
    }

    /// Appends words of four bytes each.
    fn push_words(&mut self, words: &[u32]) -> &mut AnswerWriter {
        self.0.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        self
    }

    /// Appends a number of eight bytes.
    fn push_u64(&mut self, value: u64) -> &mut AnswerWriter {
        self.push_words(&[(value >> 32) as u32, value as u32])
    }

    /// Appends opaque data: its length, the bytes, and their padding.
    fn push_opaque(&mut self, bytes: &[u8]) -> &mut AnswerWriter {
        self.push_words(&[bytes.len() as u32]);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// Returns the handle of a file by its number: the number in four bytes, and then any bytes. In
/// turn, handles have 4, 24, 44 and 64 bytes; 64 is the limit of NFS 3.
fn handle_of_inode(inode: u32) -> Vec<u8> {
    let mut handle = inode.to_be_bytes().to_vec();
    let any_byte = 7;
    handle.resize(4 + 20 * (inode as usize % 4), any_byte);
    handle
}

impl World {
    /// Returns the answer of the server to a call, as it is sent, with its record marks. Faults may
    /// change it: an error, a request to try again later, undecodable bytes, or several fragments.
    pub(super) fn answer_to_call(&self, server: &SimulatedServer, record: &[u8]) -> Vec<u8> {
        let mut call = RpcCall::parse(record);
        let xid = call.xid;
        let faults = self.disk.borrow().faults().clone();
        let is_read = (call.program, call.procedure) == (NFS, READ);
        // A reply, accepted, without a verifier, successful.
        let mut answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 0]);
        if self.happens_one_in(faults.error_one_in) {
            match self.random_below(4) {
                // Unknown program; system error; denied; no exports; or a status of NFS (I/O error,
                // no permission, stale handle, server fault), and no attributes.
                0 => answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 1]),
                1 => answer = AnswerWriter::from_words(&[xid, 1, 0, 0, 0, 5]),
                2 => answer = AnswerWriter::from_words(&[xid, 1, 1, 1, 2]),
                // EXPORT has no status.
                _ if (call.program, call.procedure) == (MOUNT, 5) => _ = answer.push_words(&[0]),
                _ => {
                    _ = answer.push_words(&[
                        [5, 13, 70, 10_006][self.random_below(4) as usize],
                        0,
                        0,
                    ])
                }
            }
        } else if self.happens_one_in(faults.retry_one_in) && call.program == NFS {
            // The status JUKEBOX, which MOUNT does not have: the client must try again. No
            // attributes follow.
            answer.push_words(&[10_008, 0, 0]);
        } else {
            answer.0.extend(self.results_of(server, &mut call).0);
        }
        // The answer is garbled or not, and then split into fragments, each behind its record mark.
        let mut answer = answer.0;
        if self.happens_one_in(server.garble_one_in) {
            self.garble(&mut answer, is_read);
        }
        let mut fragment_ends = vec![answer.len()];
        if self.happens_one_in(server.fragment_one_in) {
            // No fragment is empty.
            fragment_ends.extend(
                (0..self.random_below(4))
                    .map(|_| 1 + self.random_below(answer.len() as u64) as usize),
            );
            fragment_ends.sort_unstable();
            fragment_ends.dedup();
        }
        let mut sent = Vec::new();
        let mut start = 0;
        for (fragment_index, &end) in fragment_ends.iter().enumerate() {
            let last_flag = if fragment_index + 1 == fragment_ends.len() { FINAL } else { 0 };
            sent.extend(((end - start) as u32 | last_flag).to_be_bytes());
            sent.extend(&answer[start..end]);
            start = end;
        }
        sent
    }

    /// Decodes the arguments of a call and returns the results that a server without faults would
    /// send. Most begin with a status: 0 for success, 2 for no such entry. The ways of
    /// authentication are 0 (none) and 1 (system). The largest file has 2^60 bytes, chosen, and the
    /// time step is 1 ns. The properties 27 are hard and symbolic links, equal limits for all
    /// files, and settable times. A call of an unknown procedure fails the run.
    fn results_of(&self, server: &SimulatedServer, call: &mut RpcCall<'_>) -> AnswerWriter {
        let mut results = AnswerWriter::default();
        match (call.program, call.procedure) {
            // MNT: status, handle, and two ways of authentication; or the status "no such entry".
            (MOUNT, 1) if call.take_opaque() == b"/export" => {
                results.push_words(&[0]).push_opaque(ROOT).push_words(&[2, 0, 1]);
            }
            (MOUNT, 1) => _ = results.push_words(&[2]),
            // EXPORT: a list of one export with one group, or an empty list. A 1 precedes each
            // entry, and a 0 ends each list.
            (MOUNT, 5) if self.random_below(2) == 0 => _ = results.push_words(&[0]),
            (MOUNT, 5) => {
                results
                    .push_words(&[1])
                    .push_opaque(b"/export")
                    .push_words(&[1])
                    .push_opaque(b"all")
                    .push_words(&[0, 0]);
            }
            // GETATTR: the status and the attributes of a file.
            (NFS, 1) => self.push_attributes(results.push_words(&[0]), call.take_opaque()),
            // LOOKUP: the handle of a name in a folder. The only file has the name 0, in the root
            // and in the folder.
            (NFS, 3) => {
                let (directory, name) = (call.take_opaque(), call.take_opaque());
                let file_handle = handle_of_inode(self.disk.borrow().names[0]);
                let handle_found = match name {
                    b"0" if directory == ROOT && server.is_linked => LINK,
                    b"0" => &file_handle,
                    b"directory" if directory == ROOT => DIRECTORY,
                    // No such entry, and no attributes.
                    _ => return AnswerWriter::from_words(&[2, 0]),
                };
                results.push_words(&[0]).push_opaque(handle_found);
                self.push_optional_attributes(&mut results, handle_found);
                self.push_optional_attributes(&mut results, directory);
            }
            // ACCESS: all requested rights are granted.
            (NFS, 4) => {
                let handle = call.take_opaque();
                self.push_optional_attributes(results.push_words(&[0]), handle);
                results.push_words(&[call.take_word()]);
            }
            // READLINK: one of three texts, all of which lead to the file.
            (NFS, 5) => {
                let targets =
                    [&b"directory/0"[..], b"/export/directory//0", b"./directory/../directory/0"];
                self.push_optional_attributes(results.push_words(&[0]), LINK);
                results.push_opaque(targets[self.random_below(3) as usize]);
            }
            (NFS, READ) => {
                let handle = call.take_opaque();
                let offset = u64::from(call.take_word()) << 32 | u64::from(call.take_word());
                let count = u64::from(call.take_word());
                self.push_read_results(server, &mut results, handle, offset, count);
            }
            // FSINFO: limits of READ, WRITE and READDIR, largest file, time step, properties.
            (NFS, 19) => {
                let handle = call.take_opaque();
                self.push_optional_attributes(results.push_words(&[0]), handle);
                let read_bytes_max = server.read_bytes_max as u32;
                results
                    .push_words(&[read_bytes_max, read_bytes_max, 1, 4096, 4096, 1, 4096])
                    .push_u64(1 << 60)
                    .push_words(&[0, 1, 27]);
            }
            other => self.record_failure(format!("the server was asked for {other:?}")),
        }
        results
    }

    /// Appends the results of a READ of `count` bytes from `offset` on. `handle` names the file.
    /// The answer is a status NFS3ERR_IO if one of the pages is bad on the disk, and sometimes
    /// shorter than requested. A READ above the limit of the server, or above `rsize` of the
    /// client, fails the run.
    fn push_read_results(
        &self,
        server: &SimulatedServer,
        results: &mut AnswerWriter,
        handle: &[u8],
        offset: u64,
        count: u64,
    ) {
        let short_one_in = self.disk.borrow().faults().short_one_in;
        let inode = inode_of_handle(handle);
        let disk = self.disk.borrow();
        let file_state = &disk.inodes[inode as usize];
        let mut bytes =
            file_state.bytes.saturating_sub(offset).min(count).min(server.read_bytes_max);
        let pages = offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES);
        if count > server.read_bytes_max.min(server.rsize) {
            self.record_failure(format!("a READ of {count} bytes is too large"));
        }
        if pages.clone().any(|page| disk.is_bad(inode, page)) {
            let (status_io_error, no_attributes) = (5, 0);
            results.push_words(&[status_io_error, no_attributes]);
            return;
        }
        if self.happens_one_in(short_one_in) {
            let unit = if server.has_unaligned_short_answers { 1 } else { BLOCK };
            if bytes > unit {
                // At least one unit, and less than requested.
                bytes = (1 + self.random_below((bytes - 1) / unit)) * unit;
            }
        }
        let mut data = vec![0; bytes as usize];
        file_state.read_current(inode, offset, &mut data);
        let is_at_end = offset + bytes >= file_state.bytes;
        drop(disk);
        self.push_optional_attributes(results.push_words(&[0]), handle);
        results.push_words(&[bytes as u32, is_at_end.into()]).push_opaque(&data);
    }

    /// Appends optional attributes of the file with this handle: a flag, and the attributes if it
    /// is 1. In one case of four they are absent.
    fn push_optional_attributes(&self, results: &mut AnswerWriter, handle: &[u8]) {
        if self.random_below(4) == 0 {
            results.push_words(&[0]);
        } else {
            self.push_attributes(results.push_words(&[1]), handle);
        }
    }

    /// Appends the attributes of the file with this handle. The number of the file's changes is in
    /// its times of modification and change, as nanoseconds.
    fn push_attributes(&self, results: &mut AnswerWriter, handle: &[u8]) {
        let (kind, file_number, bytes, changes) = match handle {
            ROOT => (DIRECTORY_KIND, 1_000, 4_096, 0),
            DIRECTORY => (DIRECTORY_KIND, 1_001, 4_096, 0),
            // The length of one of the link's texts, "directory/0".
            LINK => (LINK_KIND, 1_002, 11, 0),
            _ => {
                let (inode, disk) = (inode_of_handle(handle), self.disk.borrow());
                let file_state = &disk.inodes[inode as usize];
                (REGULAR, u64::from(inode), file_state.bytes, file_state.changes as u32)
            }
        };
        // Kind, mode, links, owner, group; length, used bytes; device; file system and number;
        // access, modification and change time, each in seconds and nanoseconds.
        results
            .push_words(&[kind, 0o644, 1, 1, 1])
            .push_u64(bytes)
            .push_u64(bytes)
            .push_words(&[0, 0])
            .push_u64(1)
            .push_u64(file_number);
        results.push_words(&[1_000_000, 0, 1_000_000, changes, 1_000_000, changes]);
    }

    /// Makes an answer undecodable: a wrong status, a wrong header, or a cut. `is_read` is true for
    /// the answer to a READ, in which the counts and the end flag may be wrong too.
    fn garble(&self, answer: &mut Vec<u8>, is_read: bool) {
        /// Offset of the results in bytes: behind the six words of the reply's header.
        const RESULTS: usize = 24;
        /// Length of a file's attributes in bytes (fattr3 in RFC 1813).
        const ATTRIBUTES_BYTES: usize = 84;
        /// Offset in bytes of the header's word that is 0 for an accepted reply.
        const REPLY_STATUS: usize = 8;
        /// Larger than the largest READ that the client requests.
        const MORE_BYTES: u32 = 200_000;
        let put_word = |answer: &mut Vec<u8>, offset: usize, word: u32| {
            answer.resize(answer.len().max(offset + 4), 0);
            answer[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
        };
        let word = |answer: &[u8], offset: usize| {
            answer.get(offset..offset + 4).map_or(0, |word| {
                u32::from_be_bytes(word.try_into().expect("the slice has four bytes"))
            })
        };
        // Results of a READ: status, flag of the attributes, attributes if the flag is 1, count,
        // end flag, count again, data.
        let attributes_bytes = if word(answer, RESULTS + 4) == 1 { ATTRIBUTES_BYTES } else { 0 };
        let count_offset = RESULTS + 8 + attributes_bytes;
        let has_data = is_read
            && word(answer, REPLY_STATUS) == 0
            && answer.len() > count_offset + 12
            && word(answer, RESULTS) == 0;
        // The last three kinds of faults need the data of a READ.
        match self.random_below(if has_data { 8 } else { 5 }) {
            // An undefined status.
            0 => put_word(answer, RESULTS, 9_999),
            // The message is a call, not a reply.
            1 => put_word(answer, 4, 0),
            // The server reports that it could not decode the arguments.
            2 => {
                put_word(answer, REPLY_STATUS, 0);
                put_word(answer, 20, 4);
            }
            // The answer is cut, by a word or to a part of its header.
            3 => answer.truncate(answer.len() - 4),
            4 => answer.truncate(1 + self.random_below(RESULTS as u64) as usize),
            // The two counts differ.
            5 => put_word(answer, count_offset, word(answer, count_offset) ^ 4),
            // The end flag is neither 0 nor 1.
            6 => put_word(answer, count_offset + 4, 2),
            // The counts exceed the request. The additional bytes are all present, in part, or not.
            _ => {
                let count = word(answer, count_offset) + MORE_BYTES;
                put_word(answer, count_offset, count);
                put_word(answer, count_offset + 8, count);
                let added_bytes = [0, 8, MORE_BYTES][self.random_below(3) as usize];
                answer.resize(answer.len() + added_bytes as usize, 0xdb);
            }
        }
    }

    /// Returns bytes that are no answer to a call, of five kinds with equal chance. They are sent
    /// before `answer`.
    pub(super) fn unrelated_bytes(&self, answer: &[u8]) -> Vec<u8> {
        let random_words = |count: u64| {
            (0..count).map(|_| self.random_below(1 << 32) as u32).collect::<Vec<u32>>()
        };
        let words = match self.random_below(5) {
            // An answer to another call, or to none. Its transaction id follows the record mark.
            0 => {
                let mut changed = answer.to_vec();
                if changed.len() >= 8 {
                    changed[4..8]
                        .copy_from_slice(&(self.random_below(1 << 32) as u32).to_be_bytes());
                }
                return changed;
            }
            // A record that is too long for any answer; words of zeros, each an empty fragment; a
            // fragment that swallows the following bytes; a whole record of random words.
            1 => vec![FINAL | 5_000_000],
            2 => vec![0; 1 + self.random_below(5) as usize],
            3 => vec![self.random_below(200) as u32],
            _ => {
                let mut words = random_words(1 + self.random_below(40));
                words.insert(0, FINAL | (words.len() as u32 * 4));
                words
            }
        };
        AnswerWriter::from_words(&words).0
    }
}

/// Returns the number of the file with this handle: its first four bytes.
fn inode_of_handle(handle: &[u8]) -> u32 {
    u32::from_be_bytes(*handle.first_chunk().expect("the handle was made by `handle_of_inode`"))
}
