//! `File::open("nfs://…")`: the same file API, over the wire.

use std::io::Read;
use std::time::Duration;

use readpath::{Advice, File, OpenFileError, ReadPath};

use crate::proxy::{Proxy, Weather};
use crate::rig::Draw;
use crate::server::{Faults, Server};
use crate::support::content;

const FILE_BYTES: u64 = 8 * (1 << 20) + 1234;

fn serve() -> (Server, Proxy, Vec<u8>, String) {
    let content = content(FILE_BYTES as usize);
    let server = Server::start(content.clone(), 32_768);
    let proxy = Proxy::to(server.port);
    let url = format!("nfs://127.0.0.1:{}/data/file?repeat=500ms&timeout=10s", proxy.port);
    (server, proxy, content, url)
}

#[test]
fn a_file_on_a_server_is_read_as_one_here() {
    let (_server, proxy, content, url) = serve();
    let file = File::open(&url).unwrap();
    assert_eq!(file.len(), FILE_BYTES);
    let mut all = Vec::new();
    file.reader().read_to_end(&mut all).unwrap();
    assert!(all == content);
    // Once more: from memory.
    proxy.weather(Weather::default());
    let mut buffer = vec![0; 100_000];
    file.read_exact_at(&mut buffer, 12_345).unwrap();
    assert!(buffer == content[12_345..112_345]);
    assert_eq!(proxy.reads(), []);
    let page = file.page(8_192 + 5).unwrap();
    assert!(page[..] == content[8_197..12_288]);
}

#[test]
fn a_read_with_random_advice_is_three_reads_sent_before_an_answer() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(32 << 20).open(&url).unwrap();
    file.advise(Advice::Random);
    proxy.weather(Weather { hold_until: 3, ..Weather::default() });
    let mut buffer = vec![0; 98_304];
    file.read_exact_at(&mut buffer, 4 << 20).unwrap();
    assert!(buffer == content[4 << 20..(4 << 20) + 98_304]);
    let mut reads = proxy.reads();
    reads.sort_unstable();
    assert_eq!(reads, [0, 1, 2].map(|at| ((4 << 20) + at * 32_768, 32_768)));
}

/// Threads share one connection; one of them sleeps for all.
#[test]
fn threads_read_one_file_through_delays_and_broken_connections() {
    let (_server, proxy, content, url) = serve();
    let file = ReadPath::builder().memory(2 << 20).open(&url).unwrap();
    let delay = Duration::from_millis(1);
    proxy.weather(Weather { delay, cut_every: 97, drop_every: 101, ..Weather::default() });
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (file, content) = (file.reopen(), &content);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                for _ in 0..40 {
                    let offset = draw.below(FILE_BYTES - 1);
                    let bytes = (1 + draw.below(90_000)).min(FILE_BYTES - offset);
                    let mut buffer = vec![0; bytes as usize];
                    file.read_exact_at(&mut buffer, offset).unwrap();
                    let start = offset as usize;
                    assert!(buffer == content[start..start + bytes as usize]);
                }
            });
        }
    });
    assert!(proxy.connections() > 0);
}

#[test]
fn errors_come_to_the_reader_and_what_cant_be_opened_is_told() {
    let (server, _proxy, content, url) = serve();
    let file = File::open(&url).unwrap();
    server.faults.lock().unwrap().is_stale = true;
    let told = file.read_exact_at(&mut [0; 10], 100).unwrap_err().to_string();
    assert!(told.contains("not there any more on the server"), "{told}");
    *server.faults.lock().unwrap() = Faults::default();
    let mut buffer = [0; 10];
    file.read_exact_at(&mut buffer, 100).unwrap();
    assert_eq!(buffer, content[100..110]);

    let told = File::open("nfs://127.0.0.1:1/data/file").err().unwrap();
    assert!(matches!(told, OpenFileError::Nfs(_)), "{told}");
    let told = File::open("/no/such/file").err().unwrap();
    assert!(matches!(told, OpenFileError::Open(_)), "{told}");
    let told = ReadPath::builder().readahead("psychic").open(&url).err().unwrap();
    assert!(matches!(told, OpenFileError::Build(_)), "{told}");
}
