//! How fast a raw file moves, for `bench/raw.py`, which has fio move the same beside it.
//!
//! `cargo run --release -p readpath --example raw_speed -- FILE read|write CHUNK DEPTH CALL huge|small`
//!
//! Moves all of FILE once, in order, with calls of CALL bytes into (or from)
//! the same memory, which lies in huge pages or in small ones and has been
//! touched before. Sizes are bytes. Prints one JSON object; the times are from
//! the first call to the end of the last.

use std::process::ExitCode;
use std::time::Instant;

use readpath::raw::RawOptions;
use readpath::usage::{CpuTime, minor_faults};
use readpath_core::request::Op;

/// A whole number of huge pages, aligned as they are.
struct Memory {
    address: *mut u8,
    bytes: usize,
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Memory {
    fn new(bytes: usize, advice: libc::c_int) -> Memory {
        let whole = bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, kept to the end of the program.
        let address = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), whole, protection, flags, -1, 0);
            assert!(start != libc::MAP_FAILED, "there is memory");
            libc::madvise(start, whole, advice);
            start.wrapping_byte_add(start.align_offset(HUGE_PAGE_BYTES))
        };
        let mut memory = Memory { address: address.cast(), bytes };
        memory.bytes().fill(1);
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped by `new`, and borrowed from `self`.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, op, chunk, depth, call, pages] = &args[..] else {
        eprintln!("usage: raw_speed FILE read|write CHUNK DEPTH CALL huge|small");
        return ExitCode::from(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a whole number");
    let op = if op == "write" { Op::Write } else { Op::Read };
    let advice = if pages == "huge" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    let shift = usize::from(pages == "unaligned");
    let mut memory = Memory::new(number(call) as usize + shift, advice);
    let mut options = RawOptions::new();
    options.write(op == Op::Write).chunk_bytes(number(chunk)).depth(number(depth) as u32);
    let file = options.open(path.as_ref()).expect("the file can be opened");
    let bytes = file.bytes().expect("it has a length");
    let (faults, cpu, start) = (minor_faults(), CpuTime::of_process(), Instant::now());
    let mut offset = 0;
    while offset < bytes {
        let piece = &mut memory.bytes()[shift..][..number(call).min(bytes - offset) as usize];
        match op {
            Op::Read => file.read_exact_at(piece, offset).expect("it reads"),
            Op::Write => file.write_all_at(piece, offset).expect("it writes"),
        }
        offset += piece.len() as u64;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), CpuTime::of_process().since(cpu));
    let counters = file.counters();
    println!(
        "{{\"mib_per_s\": {}, \"cpu_seconds\": {}, \"user_seconds\": {}, \"requests\": {}, \
         \"faults\": {}}}",
        bytes as f64 / f64::from(1 << 20) / seconds,
        cpu.seconds(),
        cpu.user.as_secs_f64(),
        counters.reads + counters.writes,
        minor_faults() - faults,
    );
    ExitCode::SUCCESS
}
