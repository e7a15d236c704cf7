//! Checks of URLs: parts that no client sends are refused, since another object would be read.

use readpath::shown_url;
use url::Url;

use super::{OpenObjectError, SCHEMES};

/// The URL of an object, if no part of it is at fault.
///
/// # Errors
/// The text is no URL, or has a part that names no object.
pub(super) fn parsed(text: &str) -> Result<Url, OpenObjectError> {
    let refused = |why| OpenObjectError::Url { url: shown_url(text), why };
    let url = Url::parse(text).map_err(|error| refused(error.to_string()))?;
    match fault(&url) {
        Some(why) => Err(refused(why)),
        None => Ok(url),
    }
}

/// Checks that the path of a URL has no escape of a slash. The clients of `object_store` decode the
/// path, and send a slash in its place.
///
/// # Errors
/// As for [`parsed`], or there is such an escape.
pub(super) fn check_no_escaped_slash(text: &str) -> Result<(), OpenObjectError> {
    if !parsed(text)?.path().to_ascii_uppercase().contains("%2F") {
        return Ok(());
    }
    let why = "the clients of `object_store` send the escape `%2F` in its path as a slash, which \
               names another object; use `open_object` with a store of your own";
    Err(OpenObjectError::Url { url: shown_url(text), why: why.to_owned() })
}

/// The reason why a URL names no object, with a remedy; `None` if it names one.
fn fault(url: &Url) -> Option<String> {
    let scheme = url.scheme();
    let is_local = matches!(scheme, "file" | "memory");
    let is_http = matches!(scheme, "http" | "https");
    let takes_user = is_http || matches!(scheme, "az" | "adl" | "azure" | "abfs" | "abfss");
    let has_user = !url.username().is_empty() || url.password().is_some();
    let path = url.path();
    // `memory` is a store within the process. It is taken, but not offered.
    if !SCHEMES.contains(&scheme) && scheme != "memory" {
        Some(format!("no client has the scheme `{scheme}`; the schemes are {}", SCHEMES.join(", ")))
    } else if url.fragment().is_some() {
        Some("a fragment is no part of an object; write `%23` for a `#` in its name".to_owned())
    } else if url.query().is_some() {
        let store = match is_http {
            true => " made by `HttpBuilder::with_url` with the query",
            false => "",
        };
        Some(format!(
            "the clients of `object_store` do not send a query; use `open_object` with a store\
             {store}, or write `%3F` for a `?` in the name"
        ))
    } else if has_user && !takes_user {
        Some(format!(
            "the client of `{scheme}` takes no user from a URL; set the credentials in the \
             environment or in the client options, as `AWS_ACCESS_KEY_ID`"
        ))
    } else if !is_local && url.host_str().is_none_or(str::is_empty) {
        Some(format!("it has no host or bucket; write `{scheme}://BUCKET/OBJECT`"))
    } else if path.is_empty() || path == "/" {
        Some("it names no object; add the name of the object".to_owned())
    } else if path.ends_with('/') {
        Some("it ends in a slash, as a folder does; write the name of an object".to_owned())
    } else if path.contains("//") {
        let advice = "remove the slash, or use `open_object` with a store of your own";
        Some(format!("a part of its path is empty, and no client sends that; {advice}"))
    } else {
        None
    }
}
