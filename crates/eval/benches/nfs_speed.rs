//! Table C on a real network connection: random reads of 16 to 96 KiB, one at a time. The server is
//! behind a link that delays each reply by a millisecond. One policy sends and awaits a READ per
//! page, the other sends the whole request. Then the whole file is read in sequence without the
//! delay, compared with libnfs's `nfs-cat` if that is installed.
//!
//! `cargo bench -p readpath-eval --bench nfs_speed -- [ROUNDS]`

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use readpath::{File, ReadPath};

#[path = "../../io/tests/nfs/proxy.rs"]
mod proxy;
#[path = "../../io/tests/nfs/server.rs"]
mod server;

use proxy::{Proxy, Weather};
use server::Server;

const FILE_BYTES: u64 = 64 << 20;

const POLICIES: [(&str, &str); 2] =
    [("a page at a time", "window,read_ahead_kb=0"), ("whole", "none")];

fn main() {
    let rounds = std::env::args()
        .skip(1)
        .find(|word| word != "--bench")
        .map_or(5, |text| text.parse().expect("ROUNDS is a number"));
    let server = Server::start((0..FILE_BYTES).map(|at| ((at * 31) >> 7) as u8).collect(), 32_768);
    let proxy = Proxy::to(server.port);
    for round in 0..rounds {
        let [slow, fast] = POLICIES.map(|(_, policy)| {
            proxy.weather(Weather { delay: Duration::from_millis(1), ..Weather::default() });
            let file = open(proxy.port, "rsize=32768", policy);
            let megabytes = random(&file, round);
            (megabytes, proxy.reads().len())
        });
        for ((label, _), (megabytes, reads)) in POLICIES.into_iter().zip([slow, fast]) {
            println!("round {round}  {label:<18} {megabytes:8.2} MB/s  {reads:5} READs");
        }
        println!("round {round}  whole ÷ page at a time {:.2}", fast.0 / slow.0);
        // The second of two runs counts. The first may touch memory that the host of a virtual
        // machine has taken back. nfs-cat keeps no such memory.
        let [_, ours] = [(); 2].map(|()| {
            in_sequence(&open(server.port, "rsize=1048576", "ondemand,read_ahead_kb=8192"))
        });
        print!("round {round}  in sequence {ours:.0} MB/s");
        match libnfs(server.port) {
            Some(theirs) => println!("  nfs-cat {theirs:.0} MB/s  ratio {:.2}", ours / theirs),
            None => println!("  (nfs-cat is not installed, or failed)"),
        }
    }
}

fn open(port: u16, options: &str, policy: &str) -> File {
    let url = format!("nfs://127.0.0.1:{port}/data/file?{options}");
    let path = ReadPath::builder().memory(128 << 20).readahead(policy);
    path.open(&url).unwrap_or_else(|error| panic!("{error}"))
}

/// Equal numbers of reads of each size, mixed, at distinct offsets. Returns MB/s.
fn random(file: &File, seed: u64) -> f64 {
    let mut state = seed;
    let mut buffer = vec![0; 96 << 10];
    let (begun, mut bytes) = (Instant::now(), 0);
    for step in 0..120u64 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = (1 + step % 6) as usize * (16 << 10);
        // Each read has a separate range, so that no read finds another's pages.
        let offset = step * (FILE_BYTES / 120) + (state >> 33) % 100 * 4096;
        file.read_exact_at(&mut buffer[..size], offset).expect("the server has the file");
        bytes += size;
    }
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn in_sequence(file: &File) -> f64 {
    let mut buffer = vec![0; 1 << 20];
    let begun = Instant::now();
    for at in 0..FILE_BYTES >> 20 {
        file.read_exact_at(&mut buffer, at << 20).expect("the server has the file");
    }
    FILE_BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

/// Reads the whole file with the command of libnfs, process start included.
fn libnfs(port: u16) -> Option<f64> {
    let url = format!("nfs://127.0.0.1/data/file?version=3&nfsport={port}&mountport={port}");
    let begun = Instant::now();
    let status = Command::new("nfs-cat").arg(url).stdout(Stdio::null()).status().ok()?;
    let seconds = begun.elapsed().as_secs_f64();
    status.success().then_some(FILE_BYTES as f64 / 1e6 / seconds)
}
