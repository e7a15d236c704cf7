//! Files by URL, over local servers: right bytes, or an error with its place, cause and remedy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme};
use readpath::{DeviceError, File, ReadError, ReadPath};
use readpath_core::splitmix;
use readpath_remote::file::{
    FileOptions, OpenObjectError, open_object, open_url, register, shown_error,
};
use url::Url;

mod client;
#[path = "../http/server.rs"]
#[allow(dead_code)]
mod server;

use client::Plain;
use server::{Object, Request, Response, Server};

const MIB: u64 = 1 << 20;

fn bytes() -> Vec<u8> {
    (0..MIB / 8).flat_map(|word| splitmix::mixed(word).to_le_bytes()).collect()
}

fn object() -> Object {
    Object::tagged(bytes(), "v0")
}

/// Texts of the errors of requests.
type Errors = Arc<Mutex<Vec<String>>>;

fn options(errors: &Errors) -> FileOptions {
    let seen = Arc::clone(errors);
    FileOptions {
        path: ReadPath::builder().memory(256 << 10),
        retries_max: 0,
        on_error: Some(Arc::new(move |error| seen.lock().unwrap().push(error.to_string()))),
        ..FileOptions::default()
    }
}

/// The object of a URL, by the client of its scheme and the connection of the tests. `server` is
/// the address of the clouds.
fn opened(url: &str, server: &Server) -> (Result<File, OpenObjectError>, Errors) {
    let errors = Errors::default();
    let parsed = Url::parse(url).unwrap();
    let (scheme, location) = ObjectStoreScheme::parse(&parsed).unwrap();
    let client = ClientOptions::new().with_allow_http(true);
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::Http => Arc::new(
            HttpBuilder::new()
                .with_url(&parsed[..url::Position::BeforePath])
                .with_client_options(client)
                .with_http_connector(Plain)
                .build()
                .unwrap(),
        ),
        ObjectStoreScheme::AmazonS3 => Arc::new(
            AmazonS3Builder::new()
                .with_url(url)
                .with_endpoint(server.url())
                .with_skip_signature(true)
                .with_client_options(client)
                .with_http_connector(Plain)
                .build()
                .unwrap(),
        ),
        ObjectStoreScheme::GoogleCloudStorage => Arc::new(
            GoogleCloudStorageBuilder::new()
                .with_url(url)
                .with_base_url(&server.url())
                .with_skip_signature(true)
                .with_client_options(client)
                .with_http_connector(Plain)
                .build()
                .unwrap(),
        ),
        _ => Arc::new(
            MicrosoftAzureBuilder::new()
                .with_url(url)
                .with_account("account")
                .with_endpoint(server.url())
                .with_skip_signature(true)
                .with_client_options(client)
                .with_http_connector(Plain)
                .build()
                .unwrap(),
        ),
    };
    (open_object(store, &location, options(&errors)), errors)
}

fn open(server: &Server, name: &str) -> File {
    let url = format!("{}/{name}", server.url());
    opened(&url, server).0.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// The error of opening a URL as a program does, without a server.
fn refused(url: &str) -> String {
    let options = FileOptions::default();
    open_url(url, [("a", "b"); 0], options).err().unwrap().to_string()
}

/// Reads at hand-picked places: the beginning, over a page, the end, past the end.
fn compare(file: &File, name: &str) {
    let expected = bytes();
    assert_eq!(file.len(), MIB, "{name}");
    for (offset, count) in [(0, 100), (4000, 200), (MIB - 10, 10), (500_000, 100_000)] {
        let mut buffer = vec![0; count];
        file.read_exact_at(&mut buffer, offset).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(buffer == expected[offset as usize..][..count], "{name}: {offset}");
    }
    let mut buffer = [0; 20];
    assert_eq!(file.read_at(&mut buffer, MIB - 5).unwrap(), 5, "{name}");
    assert!(buffer[..5] == expected[MIB as usize - 5..], "{name}");
    assert_eq!(file.read_at(&mut buffer, MIB + 5).unwrap(), 0, "{name}");
}

/// The error of a failed read.
fn device_error(error: &std::io::Error) -> DeviceError {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<ReadError>());
    match error {
        Some(ReadError::Device { error, .. }) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn object_of_a_server_has_the_interface_of_a_file() {
    let server = Server::of(object());
    compare(&open(&server, "folder/object"), "http");
    let lines = server.lines();
    // The opening asks for the first bytes of any version.
    assert!(!lines.iter().any(|line| line.contains("HEAD")), "{lines:?}");
    assert!(!lines[0].ends_with("if-match"), "{lines:?}");
    assert!(lines[1..].iter().all(|line| line.ends_with("if-match")), "{lines:?}");
}

/// Names arrive at the server as they are in the URL, whichever way they are written there.
#[test]
fn names_arrive_encoded_once() {
    let names = [
        ("a%20b/c", "/a%20b/c"),
        ("a b/c", "/a%20b/c"),
        ("%C3%A4/日", "/%C3%A4/%E6%97%A5"),
        ("100%25", "/100%25"),
        ("a+b&c=d;e", "/a+b&c=d;e"),
        ("a%23b%3Fc", "/a%23b%3Fc"),
        ("x/./y/../z", "/x/z"),
    ];
    for (name, target) in names {
        let server = Server::of(object());
        compare(&open(&server, name), name);
        for request in server.requests() {
            assert_eq!(decoded(&request.target), decoded(target), "{name}");
        }
    }
}

/// The bytes of a target without percent-encoding: two encodings of one name are equal.
fn decoded(target: &str) -> Vec<u8> {
    let mut parts = target.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

/// Compressed content is read as it is stored: a file has the bytes of the server.
#[test]
fn content_encoding_is_not_undone() {
    let server = Server::start(|request| object().answer(request).with("Content-Encoding", "gzip"));
    compare(&open(&server, "a.gz"), "gzip");
}

/// URLs that no client could open as they are written. The text names the URL without its user and
/// its query.
#[test]
fn refused_urls_have_a_reason_and_an_advice() {
    let server = Server::of(object());
    let host = server.address;
    let cases = [
        (format!("http://{host}/a?X-Signature=secret"), "query", "open_object"),
        ("s3://bucket/a?versionId=secret".to_owned(), "query", "open_object"),
        (format!("http://{host}/a#part"), "fragment", "%23"),
        ("s3://key:secret@bucket/a".to_owned(), "user", "AWS_ACCESS_KEY_ID"),
        ("gs://key:secret@bucket/a".to_owned(), "user", "environment"),
        (format!("http://{host}/folder/"), "slash", "object"),
        (format!("http://{host}"), "names no object", "object"),
        ("s3://bucket".to_owned(), "names no object", "object"),
        ("s3:///a".to_owned(), "bucket", "s3://"),
        (format!("http://{host}/a//b"), "empty", "slash"),
        ("http://key:secret@[::1/a".to_owned(), "no URL", "IPv6"),
    ];
    for (url, reason, advice) in cases {
        let error = refused(&url);
        assert!(error.contains(reason) && error.contains(advice), "{url}: {error}");
        assert!(!error.contains("secret"), "{url}: {error}");
        assert_eq!(server.lines(), [""; 0], "{url}");
    }
}

/// The advice about queries: a store with the query.
#[test]
fn store_sends_the_query_of_its_url() {
    let server = Server::of(object());
    let store = HttpBuilder::new()
        .with_url(format!("{}/?sig=1%2B2", server.url()))
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(Plain)
        .build()
        .unwrap();
    let file = open_object(Arc::new(store), &Path::from("b/c"), FileOptions::default()).unwrap();
    compare(&file, "query");
    assert!(server.requests().iter().all(|request| request.target == "/b/c?sig=1%2B2"));
}

#[test]
fn unknown_schemes_are_refused_by_name() {
    register();
    let error = File::open("ftp://user:secret@host/a?secret").err().unwrap().to_string();
    for part in ["ftp://host/a:", "the scheme `ftp` has no opener", "file::register"] {
        assert!(error.contains(part) && !error.contains("secret"), "{error}");
    }
    // The name of a file that could exist.
    let error = File::open("no folder://a").err().unwrap().to_string();
    assert!(error.contains("no such file"), "{error}");
    let error = refused("ftp://host/a");
    assert!(error.contains("scheme `ftp`") && error.contains("s3, s3a, gs"), "{error}");
}

/// A registered opener refuses as `open_url` does, without the secrets of the URL.
#[test]
fn errors_of_registered_schemes_have_no_secrets() {
    register();
    for url in ["http://user:secret@host/a?secret", "s3://key:secret@bucket/a", "gs://b/#secret"] {
        let error = File::open(url).err().unwrap().to_string();
        assert!(error.contains("cannot open") && !error.contains("secret"), "{error}");
    }
}

/// The text of `object_store` for a client that the program does not have.
#[test]
fn missing_client_is_named_with_its_feature() {
    let source = "feature for AmazonS3 not enabled".into();
    let error = object_store::Error::Generic { store: "parse_url", source };
    let error = OpenObjectError::Store(error).to_string();
    assert!(error.contains("AmazonS3") && error.contains("in the manifest"), "{error}");
}

/// Answers to the opening request, by their meaning.
#[test]
fn failed_openings_name_the_object_and_the_reason() {
    let cases = [
        (404, "missing", "check the name"),
        (403, "forbidden", "check the credentials"),
        (401, "unknown", "check the credentials"),
        (410, "gone", "410"),
    ];
    for (status, name, text) in cases {
        let server = Server::start(move |_| Response::new(status, "no"));
        let error = opened(&format!("{}/folder/{name}", server.url()), &server).0.err().unwrap();
        let error = error.to_string();
        assert!(error.contains(text) && error.contains("folder/"), "{name}: {error}");
        assert_eq!(server.lines().len(), 1, "{name}");
    }
    let no_length =
        Server::start(|request| Response { is_chunked: true, ..object().answer(request) });
    let error = opened(&format!("{}/a", no_length.url()), &no_length).0.err().unwrap().to_string();
    assert!(error.to_lowercase().contains("length"), "{error}");
    let no_version = Server::of(Object { tag: None, modified: None, ..object() });
    let error =
        opened(&format!("{}/a", no_version.url()), &no_version).0.err().unwrap().to_string();
    assert!(error.contains("ETag") || error.contains("modification"), "{error}");
}

/// The texts of errors have the URLs of their requests, which may have credentials.
#[test]
fn shown_errors_have_no_credentials() {
    let cases = [
        ("GET http://user:secret@host:1/a@b in 3 ms", "GET http://host:1/a@b in 3 ms"),
        ("s3://key@bucket and (https://a:b@c)", "s3://bucket and (https://c)"),
        ("http://user:se@cret@host", "http://host"),
        ("mail me@here, no URL", "mail me@here, no URL"),
    ];
    for (text, expected) in cases {
        let error = object_store::Error::Generic { store: "test", source: text.into() };
        assert_eq!(shown_error(&error), format!("Generic test error: {expected}"));
        let error = OpenObjectError::Store(error).to_string();
        assert!(error.starts_with(&format!("Generic test error: {expected}")), "{error}");
    }
}

/// A server that answers the opening, and then fails each read.
#[test]
fn failed_reads_have_a_kind_and_a_text() {
    type Answer = fn(&Request) -> Response;
    let cases: [(&str, Answer, DeviceError, &str); 4] = [
        ("changed", |_| Response::new(412, ""), DeviceError::Stale, ""),
        ("gone", |_| Response::new(404, ""), DeviceError::Stale, ""),
        (
            "no ranges",
            |request| {
                let mut request = request.clone();
                request.headers.remove("range");
                object().answer(&request)
            },
            DeviceError::Medium,
            "range",
        ),
        ("refused", |_| Response::new(403, "not any more"), DeviceError::Refused, "403"),
    ];
    for (name, answer, kind, text) in cases {
        let count = AtomicU64::new(0);
        let server = Server::start(move |request| match count.fetch_add(1, Ordering::Relaxed) {
            0 => object().answer(request),
            _ => answer(request),
        });
        let (file, errors) = opened(&format!("{}/a", server.url()), &server);
        let mut buffer = [0; 100];
        let error = file.unwrap().read_exact_at(&mut buffer, 500_000).unwrap_err();
        assert_eq!(device_error(&error), kind, "{name}: {error}");
        let errors = errors.lock().unwrap();
        let is_named = errors.iter().any(|error| error.to_lowercase().contains(text));
        assert!(is_named, "{name}: {errors:?}");
    }
}

/// An answer with status 503 and `Retry-After` is tried again by the client.
#[test]
fn busy_server_is_asked_again() {
    let count = AtomicU64::new(0);
    let server = Server::start(move |request| match count.fetch_add(1, Ordering::Relaxed) % 3 {
        1 => Response::new(503, "busy").with("Retry-After", "0"),
        _ => object().answer(request),
    });
    compare(&open(&server, "a"), "busy");
}

/// A bucket with one object; every other bucket is missing.
fn bucket() -> Server {
    Server::start(|request| {
        let target = request.target.split('?').next().unwrap();
        match decoded(target).as_slice() {
            b"/bucket/folder/a b" => object().answer(request),
            path if path.starts_with(b"/bucket/") => Response::new(404, "NoSuchKey"),
            _ => Response::new(404, "NoSuchBucket"),
        }
    })
}

#[test]
fn clouds_have_the_bytes_and_the_errors_of_their_servers() {
    for scheme in ["s3", "gs", "az"] {
        let server = bucket();
        let file = opened(&format!("{scheme}://bucket/folder/a%20b"), &server).0;
        compare(&file.unwrap_or_else(|error| panic!("{scheme}: {error}")), scheme);
        for name in ["bucket/missing", "elsewhere/a"] {
            let error = opened(&format!("{scheme}://{name}"), &server).0.err().unwrap().to_string();
            let object = name.split_once('/').unwrap().1;
            assert!(error.contains("404") && error.contains(object), "{scheme}: {error}");
        }
    }
}
