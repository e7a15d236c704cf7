//! Texts of errors of a store, with their causes and advice, without credentials.

use std::error::Error as _;

use object_store::Error;

/// The text of a store's error, without the users and passwords of the URLs in it.
pub fn shown_error(error: &Error) -> String {
    let mut text = error.to_string();
    // The texts of some clients have no cause, such as a certificate.
    if let Some(cause) = root_cause(error)
        && !text.contains(&cause)
    {
        text = format!("{}: {cause}", text.trim_end_matches([':', ' ']));
    }
    // Each further part begins with the user and the host of a URL. A user ends at the last `@`
    // before the path. It has no escapes for characters such as a quote or a bracket.
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let host_end = part.find(['/', '?', '#', ' ', '"']).unwrap_or(part.len());
        let host_start = part[..host_end].rfind('@').map_or(0, |at| at + 1);
        shown.push_str("://");
        shown.push_str(&part[host_start..]);
    }
    shown
}

/// The text of the last cause of an error; `None` without a cause.
fn root_cause(error: &Error) -> Option<String> {
    let mut cause = error.source()?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Some(cause.to_string())
}

/// The next step after an error of a store; `None` if its text says it.
pub(super) fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::NotFound { .. } => Some("check the name of the object, and of its bucket"),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            Some("check the credentials in the environment or the client options")
        }
        _ if root_cause(error).is_some_and(|cause| cause.contains("certificate")) => Some(
            "name a file with the certificate of its authority in the variable SSL_CERT_FILE, or \
             set the client option allow_invalid_certificates",
        ),
        // The scheme needs a feature of `object_store` that is off; the error's text names it.
        Error::Generic { store: "parse_url", .. } => {
            Some("add this feature to `object_store` in the manifest of the program")
        }
        _ => None,
    }
}
