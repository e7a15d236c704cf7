//! Files by URL, over local servers: right bytes, or an error with its place, cause and remedy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

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
/// the address of the clouds. A fragment of the URL is the number of first bytes.
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
    let mut options = options(&errors);
    if let Some(bytes) = parsed.fragment() {
        options.first_bytes = bytes.parse().unwrap();
    }
    (open_object(store, &location, options), errors)
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
        (format!("http://{host}/files/data%2Fa.bin"), "%2F", "open_object"),
        ("s3://bucket/data%2fa.bin".to_owned(), "%2F", "open_object"),
        ("http://key:secret@[::1/a".to_owned(), "no URL", "IPv6"),
        ("s3a://key:sec/secret@bucket/a".to_owned(), "`s3a://bucket/a`", "port"),
        ("s3a://key:secret?x@bucket/a?b".to_owned(), "`s3a://bucket/a`", "port"),
        ("s3a://key:secret#x@bucket/a".to_owned(), "`s3a://bucket/a`", "port"),
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
    for url in
        ["ftp://user:se/secret@host/a", "ftp://user:/secret@host/a", "ftp://u:p]a/secret@host/a"]
    {
        let error = File::open(url).err().unwrap().to_string();
        assert!(error.contains("ftp://host/a:") && !error.contains("secret"), "{error}");
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

/// The object with this time of modification, in place of a strong ETag.
fn modified(unix_seconds: u64) -> Object {
    Object { tag: None, modified: Some(http_date(unix_seconds)), ..object() }
}

/// The date of RFC 9110, without the weekday, which clients do not need.
fn http_date(unix_seconds: u64) -> String {
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let is_leap = |year: u64| year.is_multiple_of(4);
    let (mut year, mut month, mut day) = (1970, 0, unix_seconds / 86_400);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let days = |month: usize| match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    while day >= days(month) {
        day -= days(month);
        month += 1;
    }
    let (hour, minute) = (unix_seconds / 3600 % 24, unix_seconds / 60 % 60);
    let (name, second) = (months[month], unix_seconds % 60);
    format!("{:02} {name} {year} {hour:02}:{minute:02}:{second:02} GMT", day + 1)
}

#[expect(clippy::disallowed_methods, reason = "versions without ETag are compared with the clock")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Without a strong ETag an opening waits once, for two seconds. A server that sends the current
/// time with each answer has no version, nor has one whose time is an hour ahead: it is not waited
/// for. An object that was written just now is opened after the wait.
#[test]
fn opening_waits_at_most_once_for_a_version() {
    let start = unix_seconds();
    let ahead = Server::of(modified(start + 3600));
    let always_now = Server::start(|request| modified(unix_seconds()).answer(request));
    for (name, server, requests) in [("ahead", ahead, 1), ("now", always_now, 2)] {
        let error = opened(&format!("{}/a", server.url()), &server).0.err().unwrap();
        assert!(matches!(error, OpenObjectError::Unsettled { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(
            text.starts_with("a was modified at 20") && text.contains("ETag"),
            "{name}: {text}"
        );
        assert_eq!(server.lines().len(), requests, "{name}");
    }
    let written = Server::of(modified(unix_seconds()));
    compare(&open(&written, "a"), "written just now");
    // Two waits of two seconds, and no hour.
    assert!(unix_seconds() - start <= 8);
}

/// The URL of an object of a server, or of a cloud with this server.
fn url_of(scheme: &str, server: &Server, name: &str) -> String {
    match scheme {
        "http" => format!("{}/{name}", server.url()),
        _ => format!("{scheme}://bucket/{name}"),
    }
}

/// A server without ranges: its objects are not opened, as no read would succeed. The name and the
/// length of the object do not matter. An empty object has nothing to read.
#[test]
fn server_without_ranges_opens_only_empty_objects() {
    let without_ranges = |object: Object| {
        Server::start(move |request| {
            let mut request = request.clone();
            request.headers.remove("range");
            object.answer(&request)
        })
    };
    for name in ["a", "orange.bin", "416", "a.parquet", "a#0", "a.parquet#0"] {
        for scheme in ["http", "s3", "gs", "az"] {
            let server = without_ranges(object());
            let url = url_of(scheme, &server, name);
            let error = opened(&url, &server).0.err().unwrap_or_else(|| panic!("{url}"));
            let text = error.to_string().to_lowercase();
            let has_reason = text.contains("when range requested")
                || text.contains("range request not supported");
            assert!(has_reason, "{url}: {error}");
        }
        for scheme in ["http", "s3", "gs", "az"] {
            let server = without_ranges(Object::tagged(Vec::new(), "v0"));
            let url = url_of(scheme, &server, name);
            let file = opened(&url, &server).0.unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(file.len(), 0, "{name}");
        }
    }
}

/// Each extension whose files are opened by their end. All others are opened by the start.
#[test]
fn opening_requests_the_end_of_formats_with_an_index_there() {
    let by_end = ["parquet", "pq", "orc", "arrow", "feather", "zip", "jar"];
    let by_start = ["npz", "npy", "arrows", "bin"];
    let cases = by_end.map(|it| (it, "GET bytes=-69632")).into_iter();
    for (extension, line) in cases.chain(by_start.map(|it| (it, "GET bytes=0-65535"))) {
        let server = Server::of(object());
        open(&server, &format!("a.{extension}"));
        assert_eq!(server.lines(), [line], "{extension}");
    }
}

/// The texts of errors have the URLs of their requests, which may have credentials.
#[test]
fn shown_errors_have_no_credentials() {
    let cases = [
        ("GET http://user:secret@host:1/a@b in 3 ms", "GET http://host:1/a@b in 3 ms"),
        ("s3://key@bucket and (https://a:b@c)", "s3://bucket and (https://c)"),
        ("http://user:se@cret@host", "http://host"),
        ("mail me@here, no URL", "mail me@here, no URL"),
        // A user may have these without an escape.
        ("GET http://user:it's-secret@host/a", "GET http://host/a"),
        ("GET http://user:p)secret@host/a", "GET http://host/a"),
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
