//! Metadata and names of objects, between OpenDAL and the store.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ::opendal::raw::Timestamp;
use ::opendal::{EntryMode, Metadata};
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetResult, ObjectMeta};

use crate::store::is_weak;

/// Beginning of a tag that stands for the version of an object without an ETag. An ETag begins
/// with a quote or with `W/` (RFC 9110, section 8.8.3).
const VERSION_TAG: &str = "version ";

/// Returns true if an answer of a storage has the version of the object.
pub(super) fn has_version(metadata: &Metadata) -> bool {
    metadata.etag().is_some() || metadata.version().is_some() || metadata.last_modified().is_some()
}

/// The version that a tag of this module stands for; `None` for an ETag.
pub(super) fn version_of(tag: &str) -> Option<&str> {
    tag.strip_prefix(VERSION_TAG)
}

/// The description of an object. It has no version, and is not cached, if its length is zero:
/// OpenDAL reports this length for an unknown one, too.
pub(super) fn to_store(location: &Path, metadata: &Metadata) -> ObjectMeta {
    let size = metadata.content_length();
    let has_length = size > 0;
    let tag = metadata.etag().map(str::to_owned);
    let has_strong_tag = tag.as_deref().is_some_and(|tag| !is_weak(tag));
    let version = metadata.version().map(str::to_owned);
    // A strong ETag comes first, then the version, then a weak ETag.
    let tag = match &version {
        Some(version) if !has_strong_tag => Some(format!("{VERSION_TAG}{version}")),
        _ => tag,
    };
    let modified = metadata.last_modified().filter(|_| has_length).map(SystemTime::from);
    ObjectMeta {
        location: location.clone(),
        last_modified: modified.unwrap_or(SystemTime::UNIX_EPOCH).into(),
        size,
        e_tag: tag.filter(|_| has_length),
        version,
    }
}

/// The attributes of an object that reads return.
pub(super) fn attributes_of(metadata: &Metadata) -> Attributes {
    let named = [
        (Attribute::CacheControl, metadata.cache_control()),
        (Attribute::ContentDisposition, metadata.content_disposition()),
        (Attribute::ContentEncoding, metadata.content_encoding()),
        (Attribute::ContentType, metadata.content_type()),
    ];
    let mut attributes = Attributes::new();
    for (name, value) in named {
        if let Some(value) = value {
            attributes.insert(name, value.to_owned().into());
        }
    }
    for (name, value) in metadata.user_metadata().into_iter().flatten() {
        attributes.insert(Attribute::Metadata(name.clone().into()), value.clone().into());
    }
    attributes
}

/// The metadata of an object that the cache has answered for.
pub(super) fn from_store(result: &GetResult) -> Metadata {
    let meta = &result.meta;
    let mut metadata = Metadata::new(EntryMode::FILE).with_content_length(meta.size);
    // A tag that stands for a version is no ETag of the storage.
    if let Some(tag) = meta.e_tag.as_deref().filter(|tag| version_of(tag).is_none()) {
        metadata.set_etag(tag);
    }
    if let Some(version) = &meta.version {
        metadata.set_version(version);
    }
    let modified = meta.last_modified;
    // In a leap second the type of the time counts up to two seconds of nanoseconds.
    let nanos = modified.timestamp_subsec_nanos().min(999_999_999) as i32;
    // 0 stands for an unknown time.
    if modified.timestamp() > 0
        && let Ok(time) = Timestamp::new(modified.timestamp(), nanos)
    {
        metadata.set_last_modified(time);
    }
    let mut own = BTreeMap::new();
    for (attribute, value) in &result.attributes {
        match attribute {
            Attribute::CacheControl => drop(metadata.set_cache_control(value)),
            Attribute::ContentDisposition => drop(metadata.set_content_disposition(value)),
            Attribute::ContentEncoding => drop(metadata.set_content_encoding(value)),
            Attribute::ContentType => drop(metadata.set_content_type(value)),
            Attribute::Metadata(name) => drop(own.insert(name.to_string(), value.to_string())),
            _ => {}
        }
    }
    match own.is_empty() {
        true => metadata,
        false => metadata.with_user_metadata(own.into_iter().collect()),
    }
}

/// The location of a path of OpenDAL. Its text is percent-encoded, so that two paths have two
/// locations.
pub(super) fn location_of(path: &str) -> Path {
    Path::from(path)
}

/// The path of OpenDAL at a location: the reverse of [`location_of`]. Each `%` with two hexadecimal
/// digits is one byte; any other `%` stands for itself.
pub(super) fn path_of(location: &Path) -> String {
    let text = location.as_ref().as_bytes();
    let mut path = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let encoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%');
        path.push(encoded.unwrap_or(byte));
        at += if encoded.is_some() { 3 } else { 1 };
    }
    String::from_utf8(path).expect("the encoded text was UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_locations_are_inverse() {
        let paths = ["a", "a/b c", "ä/%20/日", "x%2Fy", "..", "a/./b", "q?x=1#f", "~[]{}\\|*", "%"];
        let mut locations = Vec::new();
        for path in paths {
            let location = location_of(path);
            assert_eq!(path_of(&location), path, "{location}");
            locations.push(location);
        }
        locations.sort();
        locations.dedup();
        assert_eq!(locations.len(), paths.len());
    }

    #[test]
    fn version_stands_for_a_missing_tag() {
        let location = location_of("a");
        let tagged = |metadata: &Metadata| to_store(&location, metadata).e_tag;
        let mut metadata = Metadata::new(EntryMode::FILE).with_content_length(7);
        assert_eq!(tagged(&metadata), None);
        metadata.set_etag("W/\"1\"");
        assert_eq!(tagged(&metadata).as_deref(), Some("W/\"1\""));
        metadata.set_version("v3");
        assert_eq!(version_of(&tagged(&metadata).unwrap()), Some("v3"));
        metadata.set_etag("\"2\"");
        assert_eq!(tagged(&metadata).as_deref(), Some("\"2\""));
        // The length may be unknown.
        metadata.set_content_length(0);
        assert_eq!(tagged(&metadata), None);
    }
}
