//! Speed of a raw file, for `bench/raw.py`, which compares it with fio.
//!
//! `cargo bench -p readpath-eval --bench raw_speed -- FILE read|write CHUNK DEPTH CALL
//! huge|small|unaligned|chunks`
//!
//! Moves all of FILE once, in order, with calls of CALL bytes. All calls use the same memory,
//! touched before: huge pages (`RawMemory`), small pages, or unaligned small pages, which need
//! bounce buffers. With `chunks` the file is read through a `RawReader` in its own memory, and CALL
//! is ignored. Sizes are in bytes. Prints one JSON object. The times are from the first call to the
//! end of the last.

use std::process::ExitCode;
use std::time::Instant;

use readpath::RawFile;
use readpath::raw::RawMemory;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;
use readpath_eval::usage::{CpuTime, minor_faults};

/// Memory in huge pages or in small ones.
enum Memory {
    Huge(RawMemory),
    /// Pages of 4 KiB, as in fio, with the index of the first aligned byte.
    Small(Vec<u8>, usize),
}

impl Memory {
    fn new(bytes: usize, pages: &str) -> Memory {
        if pages == "huge" {
            return Memory::Huge(RawMemory::new(bytes).expect("there is memory"));
        }
        let mut memory = vec![1; bytes + 2 * PAGE_BYTES as usize];
        let aligned = memory.as_mut_ptr().align_offset(PAGE_BYTES as usize);
        Memory::Small(memory, aligned + usize::from(pages == "unaligned"))
    }

    fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        match self {
            Memory::Huge(memory) => &mut memory[..bytes],
            Memory::Small(memory, start) => &mut memory[*start..][..bytes],
        }
    }
}

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = args.iter().position(|word| word == "--bench").map(|at| args.remove(at));
    let [path, op, chunk, depth, call, pages] = &args[..] else {
        eprintln!("usage: raw_speed FILE read|write CHUNK DEPTH CALL huge|small|unaligned|chunks");
        // The tests build this program and run it without arguments.
        return ExitCode::from(if is_bench.is_some() { 2 } else { 0 });
    };
    let number = |text: &String| text.parse::<u64>().expect("a whole number");
    let op = if op == "write" { Op::Write } else { Op::Read };
    let lends = pages == "chunks" && op == Op::Read;
    let mut memory = Memory::new(if lends { 1 } else { number(call) as usize }, pages);
    let builder = RawFile::builder().write(op == Op::Write);
    let builder = builder.chunk_bytes(number(chunk)).depth(number(depth) as u32);
    let mut file = builder.open(path).expect("the file can be opened");
    let bytes = file.bytes().expect("it has a length");
    let (faults, cpu, start) = (minor_faults(), CpuTime::of_process(), Instant::now());
    let mut offset = 0;
    if lends {
        let mut reader = file.reader(0, bytes).expect("it has a length");
        while let Some(chunk) = reader.next_chunk().expect("it reads") {
            offset += std::hint::black_box(&*chunk).len() as u64;
        }
    }
    while offset < bytes {
        let piece = memory.bytes(number(call).min(bytes - offset) as usize);
        match op {
            Op::Read => file.read_exact_at(piece, offset).expect("it reads"),
            Op::Write => file.write_all_at(piece, offset).expect("it writes"),
        }
        offset += piece.len() as u64;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), CpuTime::of_process().since(cpu));
    let counters = file.stats();
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
