//! Jobs and tables on a real NFS server on loopback.

mod support;

#[path = "../../io/tests/nfs/server.rs"]
mod server;

use server::Server;
use support::{RANDOM, Scratch};

const FILE_BYTES: usize = 8 << 20;

fn serve() -> (Server, String) {
    let server =
        Server::start((0..FILE_BYTES).map(|at| (at / 4096 * 31 + at) as u8).collect(), 32_768);
    let at = format!("nfs://127.0.0.1:{}", server.port);
    (server, at)
}

#[test]
fn job_runs_on_an_nfs_file_and_on_a_modelled_server() {
    let (_server, at) = serve();
    let scratch = Scratch::new("nfs-run");
    scratch.file("j.fio", RANDOM);
    let ran = scratch.run(&format!(
        "run j.fio --on {at}/data/file --on nfs:ssd --readahead none,ondemand --json"
    ));
    ran.has_ended(0, "a job on a server");
    let rows = ran.results();
    assert_eq!(rows.len(), 4);
    for row in &rows[..2] {
        assert_eq!(row["storage"], format!("{at}/data/file"));
        assert_eq!((&row["errors"], &row["bytes"]), (&0.into(), &(4 << 20).into()));
        assert!(row["note"].as_str().unwrap().contains("READs of at most 32768 bytes"));
    }
    // 64 reads of 64 KiB, each two READs of 32 KiB, and no further READs.
    assert_eq!(rows[0]["device_requests"], 128);
    assert_eq!(rows[0]["device_request_kib_mean"], 32.0);
}

/// The server prefers READs of 32 KiB. With `rsize=4096`, 64 reads of 64 KiB are 1,024 READs.
/// MOUNT is not on port 1.
#[test]
fn options_of_a_url_apply_to_jobs_and_name_their_rows() {
    let (_server, at) = serve();
    let scratch = Scratch::new("nfs-options");
    scratch.file("j.fio", RANDOM);
    let on = format!("{at}/data/file?rsize=4096");
    let ran = scratch.run(&format!("run j.fio --on {on} --readahead none --json"));
    ran.has_ended(0, "a job on a server");
    let row = &ran.results()[0];
    assert_eq!((&row["device_requests"], &row["storage"]), (&1024.into(), &on.into()));
    let on = format!("{at}/data/file?mountport=1");
    scratch.refused(&format!("run j.fio --on {on}"), &["127.0.0.1:1"]);
}

#[test]
fn missing_or_unreadable_nfs_files_are_refused_before_any_run() {
    let (_server, at) = serve();
    let scratch = Scratch::new("nfs-bad");
    scratch.file("j.fio", RANDOM);
    scratch.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=1m\n");
    for (job, on, words) in [
        ("j.fio", "nfs://host", "names no file"),
        ("j.fio", "nfs://no-such-host.invalid/e/f", "can't be found"),
        ("j.fio", "nfs://127.0.0.1:1/e/f", "check that an NFS server listens there"),
        ("j.fio", &format!("{at}/other/file"), "it exports /data"),
        ("j.fio", &format!("{at}/data/nothing"), "there is no such file"),
        ("j.fio", &format!("{at}/data/folder"), "is a directory"),
        ("j.fio", &format!("{at}/data/secret"), "permission refused"),
        ("j.fio", &format!("{at}/data/file?slots=0"), "from 1 to 1024"),
        ("w.fio", &format!("{at}/data/file"), "only read"),
    ] {
        scratch.refused(&format!("run {job} --on {on}"), &[words]);
    }
    scratch.refused(&format!("reproduce A --server {at}/data/file"), &["name that table"]);
    scratch.refused("reproduce C --server nfs://127.0.0.1/data/file", &["the server's port"]);
}

#[test]
fn table_c_is_counted_on_the_wire() {
    let (_server, at) = serve();
    let scratch = Scratch::new("nfs-table");
    let counted = |options: &str| -> Vec<(f64, f64, f64)> {
        let ran = scratch.run(&format!("reproduce C --server {at}/data/file{options} --json"));
        ran.has_ended(0, "table C");
        let rows = ran.results();
        let counted_rows = rows.iter().filter(|row| row.get("counted_reads").is_some());
        let figures = counted_rows.map(|row| {
            let number = |key: &str| row[key].as_f64().unwrap();
            (number("counted_reads"), number("read_kib_mean"), number("reads_before_answer"))
        });
        figures.collect()
    };
    // Published: 24 READs of 4 KiB, each awaited; 3 of 32 KiB before the first answer.
    assert_eq!(counted(""), [(24.0, 4.0, 1.0), (3.0, 32.0, 3.0)]);
    // With one READ in flight each is awaited.
    assert_eq!(counted("?slots=1"), [(24.0, 4.0, 1.0), (3.0, 32.0, 1.0)]);
    let mount = "mountport=1&repeat=100ms&timeout=200ms";
    let ran = scratch.run(&format!("reproduce C --server {at}/data/file?{mount}"));
    assert_ne!(ran.code, Some(0), "MOUNT is not on port 1");
}
