//! A command that has to end within a time.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit of every command of a document; none takes a minute on an idle machine.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Runs a command; one that has not ended within the limit is killed, and the test fails.
pub fn output_within(command: &mut Command, limit: Duration) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let printed = read_all(child.stdout.take().unwrap());
    let said = read_all(child.stderr.take().unwrap());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} has not ended within {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let bytes = |thread: JoinHandle<Vec<u8>>| thread.join().unwrap();
    Output { status, stdout: bytes(printed), stderr: bytes(said) }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}
