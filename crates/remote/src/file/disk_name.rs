//! The name of a store in the disk tier, from the URL of an object.

use twox_hash::XxHash3_64;
use url::Url;

use crate::disk::DiskStore;

/// Parts of the names of options that select a server or an account.
const SERVER_OPTIONS: [&str; 6] = ["endpoint", "url", "account", "region", "bucket", "emulator"];

/// The tier for the object of a URL. Two URLs with different hosts, ports or paths are two stores,
/// and so are two servers that the options of the client select. Neither the query nor the user of
/// a URL enters the folder, as they may contain credentials. The values of options enter it as a
/// hash alone.
pub(super) fn of_url(disk: &DiskStore, url: &Url, options: &[(String, String)]) -> DiskStore {
    let selects = |key: &str| {
        let key = key.to_ascii_lowercase();
        SERVER_OPTIONS.iter().any(|part| key.contains(part))
    };
    let mut selected: Vec<String> = options
        .iter()
        .filter(|(key, _)| selects(key))
        .map(|(key, value)| format!("{}={value}\n", key.to_ascii_lowercase()))
        .collect();
    // The order of the options has no effect.
    selected.sort();
    let server = XxHash3_64::oneshot(selected.concat().as_bytes());
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    let (scheme, host, path) = (url.scheme(), url.host_str().unwrap_or_default(), url.path());
    let name = format!("{} {scheme}://{host}{port}{path} {server:016x}", disk.name());
    disk.tier().store(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskOptions, DiskTier};

    #[test]
    fn servers_differ_and_credentials_do_not_enter() {
        let folder = std::env::temp_dir().join(format!("remote-disk-name-{}", std::process::id()));
        let tier = DiskTier::open(&DiskOptions::new(&folder, 1 << 20)).unwrap();
        let name = |url: &str, options: &[(&str, &str)]| {
            let options: Vec<(String, String)> = options
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            let store = of_url(&tier.store("x"), &Url::parse(url).unwrap(), &options);
            store.name().to_owned()
        };
        let plain = name("s3://bucket/a", &[]);
        assert!(plain.starts_with("x s3://bucket/a "), "{plain}");
        assert_eq!(plain, name("s3://user:pass@bucket/a?sig=1", &[("aws_secret_access_key", "k")]));
        assert_ne!(plain, name("s3://bucket/a", &[("AWS_ENDPOINT_URL", "http://other")]));
        assert_ne!(plain, name("s3://bucket:99/a", &[]));
        assert_ne!(plain, name("s3://bucket2/a", &[]));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
