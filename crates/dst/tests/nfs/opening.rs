//! Files that cannot be opened, and the error messages.

use std::net::TcpListener;

use readpath::inside::{Clock, NfsTarget};
use readpath::nfs::NfsError;
use readpath::nfs::NfsUrl;

use crate::rig::find;
use crate::server::Server;

fn open(url: &str) -> Result<u64, NfsError> {
    let url = NfsUrl::parse(url)?;
    NfsTarget::open(&url, Clock::start()).map(|target| target.bytes())
}

#[test]
fn nfs_file_is_found_at_any_depth_below_its_export() {
    let server = Server::start(vec![7; 5_000], 1 << 20);
    let at = format!("nfs://127.0.0.1:{}", server.port);
    assert_eq!(open(&format!("{at}/data/file")), Ok(5_000));
    assert_eq!(open(&format!("{at}//data/folder/file")), Ok(5_000));
    assert_eq!(open(&format!("nfs://localhost:{}/data/file", server.port)), Ok(5_000));
}

#[test]
fn missing_nfs_paths_and_directories_are_refused_by_name() {
    let server = Server::start(vec![7; 5_000], 1 << 20);
    let at = format!("nfs://127.0.0.1:{}", server.port);
    for (path, words) in [
        ("/other/file", "it exports /data"),
        ("/data/nothing", "there is no such file"),
        ("/data/file/deeper", "there is no such file"),
        ("/data/folder", "is a directory; name a file in it"),
        ("/data/secret", "permission refused"),
    ] {
        let error = open(&format!("{at}{path}")).unwrap_err().to_string();
        assert!(error.contains(words), "{path}: {error}");
    }
    let open_error = open("nfs://no-such-host.invalid/data/file").unwrap_err();
    assert!(matches!(open_error, NfsError::NoHost { .. }), "{open_error}");
    assert!(matches!(open("nfs://x"), Err(NfsError::Url(_))));
}

#[test]
fn nfs_file_beyond_4_pib_is_refused_by_name() {
    let server = Server::start(vec![7; 5_000], 1 << 20);
    let file = format!("nfs://127.0.0.1:{}/data/file", server.port);
    server.faults.lock().unwrap().shrunk_bytes = Some(1 << 60);
    let error = open(&file).unwrap_err();
    assert!(matches!(error, NfsError::TooLarge { bytes, .. } if bytes == 1 << 60), "{error}");
    assert!(error.to_string().contains("4 PiB"), "{error}");
    server.faults.lock().unwrap().shrunk_bytes = Some(1 << 52);
    assert_eq!(open(&file), Ok(1 << 52));
}

#[test]
fn links_are_followed_within_the_export() {
    let server = Server::start(vec![7; 5_000], 1 << 20);
    let at = format!("nfs://127.0.0.1:{}/data", server.port);
    for path in ["to-file", "to-folder/file", "absolute", "to-link", "roundabout", "to-root/file"] {
        assert_eq!(open(&format!("{at}/{path}")), Ok(5_000), "{path}");
    }
    assert_eq!(open(&format!("{at}/folder/up")), Ok(5_000));
    // Linux follows forty links.
    assert_eq!(open(&format!("{at}/chain-39")), Ok(5_000));
    for (path, words, errno) in [
        ("chain-40", "more than 40 symbolic links (ELOOP)", libc::ELOOP),
        ("loop", "more than 40 symbolic links (ELOOP)", libc::ELOOP),
        ("ping", "more than 40 symbolic links (ELOOP)", libc::ELOOP),
        ("outside", "outside of the export", libc::EXDEV),
        ("elsewhere", "link to `/etc/passwd`, which lies outside of the export", libc::EXDEV),
        ("dangling", "there is no such file", libc::ENOENT),
        ("to-folder", "is a directory", libc::EISDIR),
        ("to-root", "is a directory", libc::EISDIR),
        ("to-file/deeper", "there is no such file", libc::ENOENT),
    ] {
        let error = open(&format!("{at}/{path}")).unwrap_err();
        assert!(error.to_string().contains(words), "{path}: {error}");
        assert_eq!(error.errno(), errno, "{path}");
    }
}

/// `std::io` error kinds of a server's file are the same as for a local file.
#[test]
fn nfs_open_errors_have_the_matching_io_error_kind() {
    use std::io::ErrorKind;
    let server = Server::start(vec![7; 5_000], 1 << 20);
    let at = format!("nfs://127.0.0.1:{}", server.port);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let looping = std::io::Error::from_raw_os_error(libc::ELOOP).kind();
    for (url, kind) in [
        (format!("{at}/data/nothing"), ErrorKind::NotFound),
        (format!("{at}/other/file"), ErrorKind::NotFound),
        (format!("{at}/data/folder"), ErrorKind::IsADirectory),
        (format!("{at}/data/secret"), ErrorKind::PermissionDenied),
        (format!("{at}/data/loop"), looping),
        (format!("{at}/data/elsewhere"), ErrorKind::CrossesDevices),
        (format!("nfs://127.0.0.1:{closed}/data/file"), ErrorKind::ConnectionRefused),
        (
            format!(
                "nfs://127.0.0.1:{}/data/file?repeat=50ms&timeout=100ms",
                silent.local_addr().unwrap().port()
            ),
            ErrorKind::TimedOut,
        ),
        ("nfs://host".to_owned(), ErrorKind::InvalidInput),
    ] {
        let error = readpath::File::open(&url).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        let error = std::io::Error::from(error);
        assert_eq!((error.kind(), error.to_string()), (kind, text));
    }
}

#[test]
fn refused_connection_is_reported_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let open_error = find(free.port(), "").err().unwrap();
    assert_eq!(open_error, NfsError::Connect { address: free, errno: libc::ECONNREFUSED });
}

/// A server of another protocol, and a silent one: an error within the timeout.
#[test]
fn non_nfs_server_is_an_error_within_the_timeout() {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        // Answers each connection with another protocol, until one sends "end".
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut asked = [0; 3];
            if client.read_exact(&mut asked).is_err() || &asked == b"end" {
                return;
            }
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let open_error = find(port, "repeat=100ms&timeout=500ms").err().unwrap().to_string();
    assert!(open_error.contains("did not answer in time"), "{open_error}");
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"end").unwrap();
    other.join().unwrap();

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let open_error = find(port, "repeat=100ms&timeout=500ms").err().unwrap().to_string();
    assert!(open_error.contains("did not answer in time"), "{open_error}");
}
