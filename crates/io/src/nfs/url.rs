//! `nfs://HOST[:PORT]/EXPORT/PATH[?OPTION=VALUE&…]` (RFC 2224, with options in the form of libnfs).
//!
//! With a port, both MOUNT and NFS use it, unless the option `mountport` is set. Without a port,
//! the server's port mapper is asked. Bytes of the path that a URL cannot contain are written as
//! `%XX`.

use super::options::NfsOptions;

/// A file on an NFS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// Name or address. An IPv6 address has no brackets here.
    pub host: String,
    /// Port of NFS; `None` to ask the port mapper.
    pub port: Option<u16>,
    /// Export and path in it, from the first slash on, as bytes.
    pub path: Vec<u8>,
    /// Options of the server.
    pub options: NfsOptions,
}

/// Error in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// The URL.
    pub url: String,
    /// The error, and the expected form.
    pub problem: String,
}

/// Prefix of every such URL.
const SCHEME: &str = "nfs://";

impl NfsUrl {
    /// Parses a URL of the form `nfs://HOST[:PORT]/EXPORT/PATH[?NAME=VALUE&…]`. The path is decoded
    /// from `%` escapes. It must name a file, without `.` and `..`.
    ///
    /// # Errors
    /// The wrong part, and its expected form.
    pub fn parse(url: &str) -> Result<NfsUrl, UrlError> {
        let url_error =
            |problem: &str| UrlError { url: url.to_owned(), problem: problem.to_owned() };
        let valid_form = "write nfs://HOST[:PORT]/EXPORT/PATH";
        let after_scheme = url.strip_prefix(SCHEME).ok_or_else(|| url_error(valid_form))?;
        let (location, query) = after_scheme.split_once('?').unwrap_or((after_scheme, ""));
        let path_start =
            location.find('/').ok_or_else(|| url_error(&format!("names no file: {valid_form}")))?;
        let (authority, path) = location.split_at(path_start);
        let (host, port) = host_and_port(authority).map_err(|problem| url_error(&problem))?;
        let path = decode_percent(path)
            .ok_or_else(|| url_error("`%` stands before two hexadecimal digits"))?;
        if path.split(|&byte| byte == b'/').all(|name| name.is_empty()) {
            return Err(url_error(&format!("names no file: {valid_form}")));
        }
        if path.split(|&byte| byte == b'/').any(|name| name == b"." || name == b"..") {
            return Err(url_error("holds `.` or `..`; write the path without them"));
        }
        let mut options = NfsOptions::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').ok_or_else(|| {
                url_error(&format!("option `{option}` has no value; write NAME=VALUE"))
            })?;
            options.set(name, value).map_err(|expected| {
                url_error(&format!("option `{option}`: expected {expected}"))
            })?;
        }
        options.check().map_err(|(name, expected)| {
            url_error(&format!("option `{name}`: expected {expected}"))
        })?;
        Ok(NfsUrl { host, port, path, options })
    }

    /// True if a text begins with `nfs://`, and is therefore meant as such a URL.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Names of the path, without empty ones.
    pub(crate) fn path_names(&self) -> Vec<&[u8]> {
        self.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect()
    }
}

/// Splits `HOST[:PORT]` or `[IPV6][:PORT]` into the host without brackets and the port, if one is
/// given. The error describes the wrong part.
fn host_and_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or("an address in brackets has no closing one")?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err("after the brackets comes `:PORT` or `/`".to_owned()),
            };
            (host, port)
        }
        None => {
            authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
        }
    };
    if host.is_empty() {
        return Err("names no host".to_owned());
    }
    let port = port.map(|text| {
        let port = text.parse::<u16>().ok().filter(|&port| port > 0);
        port.ok_or_else(|| format!("`{text}` is no port; write a number from 1 to 65535"))
    });
    Ok((host.to_owned(), port.transpose()?))
}

/// Decodes `%XX` in a path to bytes. Returns `None` for a wrong escape.
fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    // Bytes behind the last decoded one.
    let mut undecoded = text.as_bytes();
    while let [first_byte, after @ ..] = undecoded {
        undecoded = after;
        if *first_byte != b'%' {
            bytes.push(*first_byte);
            continue;
        }
        let (digits, after) = undecoded.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        undecoded = after;
    }
    Some(bytes)
}

impl std::fmt::Display for NfsUrl {
    /// Prints the URL without its options. A host with a colon is an IPv6 address and gets
    /// brackets. Bytes that end a path or begin an escape are escaped, as are bytes that are not
    /// printable ASCII.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "{SCHEME}[{}]", self.host)?;
        } else {
            write!(f, "{SCHEME}{}", self.host)?;
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        for &byte in &self.path {
            let is_plain = byte.is_ascii_graphic() && !matches!(byte, b'%' | b'?' | b'#');
            if is_plain {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for UrlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.url, self.problem)
    }
}

impl std::error::Error for UrlError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use readpath_core::unit::Time;

    #[test]
    fn a_url_has_host_port_path_and_options() {
        let url = NfsUrl::parse(
            "nfs://host:2049/export/a%20b/c?rsize=32768&slots=4&timeout=9s&repeat=500ms&uid=5&\
             mountport=7&source=any",
        )
        .unwrap();
        assert_eq!((url.host.as_str(), url.port), ("host", Some(2049)));
        assert_eq!(url.path_names(), [&b"export"[..], b"a b", b"c"]);
        let options = &url.options;
        assert_eq!((options.rsize_bytes_max, options.slots), (Some(32_768), 4));
        assert_eq!(options.give_up_after, Time::from_s(9));
        assert_eq!(options.repeat_after, Time::from_ms(500));
        assert_eq!((options.credentials.uid, options.mount_port), (5, Some(7)));
        assert_eq!(url.to_string(), "nfs://host:2049/export/a%20b/c");
        let ipv6_url = NfsUrl::parse("nfs://[::1]:3/f").unwrap();
        assert_eq!((ipv6_url.host.as_str(), ipv6_url.port), ("::1", Some(3)));
        assert_eq!(ipv6_url.to_string(), "nfs://[::1]:3/f");
        assert_eq!(NfsUrl::parse("nfs://h/f").unwrap().port, None);
    }

    /// URLs with one wrong part each, and words of the expected message.
    #[test]
    fn invalid_url_errors_name_a_valid_form() {
        for (url, words) in [
            ("http://host/f", "write nfs://HOST[:PORT]/EXPORT/PATH"),
            ("nfs://host", "names no file"),
            ("nfs://host//", "names no file"),
            ("nfs:///f", "names no host"),
            ("nfs://host:0/f", "`0` is no port"),
            ("nfs://host:x/f", "`x` is no port"),
            ("nfs://[::1/f", "no closing one"),
            ("nfs://[::1]9/f", "after the brackets"),
            ("nfs://host/a/../f", "write the path without them"),
            ("nfs://host/f%4", "two hexadecimal digits"),
            ("nfs://host/f?rsize", "has no value"),
            ("nfs://host/f?rsize=5000", "a multiple of 4096 bytes"),
            ("nfs://host/f?rsize=2097152", "from 4096 to 1048576"),
            ("nfs://host/f?slots=0", "from 1 to 1024"),
            ("nfs://host/f?timeout=5", "such as 500ms or 5s"),
            ("nfs://host/f?timeout=1s", "no less than `repeat` (5000ms)"),
            ("nfs://host/f?colour=red", "one of rsize, slots"),
            ("nfs://host/f?source=me", "`reserved` or `any`"),
        ] {
            let error = NfsUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with(url), "{error}");
        }
    }

    /// Each option that the error lists accepts the value here; the list has each option once.
    #[test]
    fn error_of_an_unknown_option_lists_the_options() {
        let error = NfsUrl::parse("nfs://h/f?colour=red").unwrap_err().to_string();
        let (_, list) = error.split_once("one of ").unwrap();
        let mut listed: Vec<&str> = list.split(", ").collect();
        listed.sort_unstable();
        let mut valid = [
            "gid=5",
            "mountport=7",
            "repeat=1s",
            "rsize=4096",
            "slots=4",
            "source=any",
            "timeout=9s",
            "uid=5",
        ];
        valid.sort_unstable();
        assert_eq!(listed, valid.map(|option| option.split_once('=').unwrap().0));
        for option in valid {
            NfsUrl::parse(&format!("nfs://h/f?{option}")).unwrap();
        }
    }

    proptest! {
        /// The parser must not panic.
        #[test]
        fn arbitrary_text_parses_to_a_url_or_an_error(text in "(nfs://)?[a-z:/%?&=0-9\\[\\].]{0,40}") {
            let _ = NfsUrl::parse(&text);
        }

        /// Paths of any bytes. Only a path with a name of one or two dots is rejected.
        #[test]
        fn printed_urls_parse_back_to_the_same_url(path in prop::collection::vec(1u8.., 1..30)) {
            let path = [b"/x".to_vec(), path].concat();
            let url = NfsUrl { host: "h".to_owned(), port: Some(9), path, options: NfsOptions::default() };
            let reparsed = NfsUrl::parse(&url.to_string());
            if let Ok(reparsed) = reparsed {
                prop_assert_eq!(reparsed, url);
            } else {
                prop_assert!(url.path_names().iter().any(|name| *name == b"." || *name == b".."));
            }
        }
    }
}
