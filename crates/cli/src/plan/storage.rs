//! Storages of the option `--on`.

use std::fmt;
use std::path::PathBuf;

use readpath::nfs::NfsUrl;
use readpath_core::policy::Spec;
use readpath_models::{path_text, registry};

use crate::devices::print_unmodelled;
use crate::exit::Failure;
use crate::input;

/// Storage of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Modelled device, in virtual time.
    Modelled(Spec),
    /// File or block device, through readpath.
    File(PathBuf),
    /// File or block device, through the kernel's own read path.
    Kernel(PathBuf),
    /// File of an NFS server, through readpath: its valid URL, as given.
    Nfs(String),
    /// Memory region larger than its budget, backed by a folder or block device, for loads.
    Region(PathBuf),
}

impl Storage {
    /// Parses the values of `--on`. A value with a path is one storage; modelled devices may be a
    /// list separated by commas. The default is `hdd`. A URL of another server than NFS is an
    /// error. Prints a notice about ignored properties of a device.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Storage>, Failure> {
        let mut storages = Vec::new();
        for text in texts {
            if NfsUrl::is_meant(text) {
                NfsUrl::parse(text).map_err(Failure::usage)?;
                storages.push(Storage::Nfs(text.clone()));
                continue;
            }
            match text.split_once(':') {
                Some(("file", path)) => storages.push(Storage::File(decode_path(text, path)?)),
                Some(("region", path)) => storages.push(Storage::Region(decode_path(text, path)?)),
                Some(("kernel", path)) => storages.push(Storage::Kernel(decode_path(text, path)?)),
                // With a comma before the URL, the text is a list, which `refuse_path` refuses.
                Some((scheme, rest)) if rest.starts_with("//") && !scheme.contains(',') => {
                    return Err(Failure::Usage(no_client(text, scheme)));
                }
                _ => {
                    let specs = input::parse_specs(text)?;
                    specs.iter().try_for_each(|spec| refuse_path(text, spec))?;
                    specs.iter().for_each(print_unmodelled);
                    storages.extend(specs.into_iter().map(Storage::Modelled));
                }
            }
        }
        if storages.is_empty() {
            storages.push(Storage::Modelled(Spec::plain("hdd")));
        }
        Ok(storages)
    }

    /// Local file of the storage, if it has one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Storage::Modelled(_) | Storage::Nfs(_) => None,
            Storage::File(path) | Storage::Kernel(path) | Storage::Region(path) => Some(path),
        }
    }
}

/// Error of a storage or folder that is the URL of an object: the command has no client for it.
pub fn no_client(text: &str, scheme: &str) -> String {
    format!(
        "`{text}` is a URL, and the command has no client for `{scheme}`; run the job on a modelled \
         store (`--on object`), or read the object by the crate `readpath-remote`"
    )
}

/// Decodes a path. An empty path is an error. A missing path is an error too if its part before the
/// first comma exists and a storage follows: it is meant as a list.
fn decode_path(text: &str, path: &str) -> Result<PathBuf, Failure> {
    if path.is_empty() {
        return Err(Failure::Usage(format!("`--on {text}` names no file: write {text}PATH")));
    }
    let decoded = path_text::decode(path);
    let is_list = path.split_once(',').is_some_and(|(first, rest)| {
        begins_like_storage(rest) && path_text::decode(first).exists()
    });
    match is_list && !decoded.exists() {
        true => Err(Failure::Usage(format!(
            "`--on {text}`: a comma is part of the path; give each storage an --on of its own"
        ))),
        false => Ok(decoded),
    }
}

/// True if the text begins with the name of a kind of storage.
fn begins_like_storage(text: &str) -> bool {
    let name = text.split([':', ',']).next().unwrap_or(text);
    matches!(name, "file" | "kernel" | "region" | "nfs") || is_device(name)
}

/// True if a modelled device has this name.
fn is_device(name: &str) -> bool {
    registry::devices().iter().any(|(device_name, _)| *device_name == name)
}

/// Refuses the entry `spec` of the option's value `text` if it is real storage or a URL in a list
/// of modelled devices, or an existing path without `file:`. Other unknown names pass here.
fn refuse_path(text: &str, spec: &Spec) -> Result<(), Failure> {
    let (base, rest) = spec.name.split_once(':').unwrap_or((&spec.name, ""));
    let is_real = matches!(base, "file" | "kernel" | "region") || rest.starts_with("//");
    if is_real {
        return Err(Failure::Usage(format!(
            "`--on {text}`: commas separate modelled devices only; write {} in an --on of its own",
            spec.name
        )));
    }
    match !is_device(base) && path_text::decode(&spec.name).exists() {
        true => Err(Failure::Usage(format!(
            "`--on {0}` is no modelled device; for the file write file:{0}",
            spec.name
        ))),
        false => Ok(()),
    }
}

impl fmt::Display for Storage {
    /// Writes the storage in the form of `--on`, a URL as given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Modelled(spec) => spec.fmt(f),
            Storage::File(path) => write!(f, "file:{}", path.display()),
            Storage::Kernel(path) => write!(f, "kernel:{}", path.display()),
            Storage::Nfs(url) => url.fmt(f),
            Storage::Region(path) => write!(f, "region:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commas separate devices and their parameters; behind `file:` and in a URL they belong to the
    /// path. A storage without a path is an error.
    #[test]
    fn storage_option_splits_device_lists_but_not_paths() {
        let texts = ["hdd,drive=sata,ssd", "file:/tmp/a,b=c", "nfs://h:9/e/f,g?slots=2"];
        let texts = texts.map(str::to_owned);
        let storages = Storage::parse_all(&texts).unwrap();
        let names: Vec<String> = storages.iter().map(Storage::to_string).collect();
        assert_eq!(names, ["hdd,drive=sata", "ssd", "file:/tmp/a,b=c", "nfs://h:9/e/f,g?slots=2"]);
        let error = |text: &str| match Storage::parse_all(&[text.to_owned()]) {
            Err(Failure::Usage(message)) => message,
            other => panic!("{text}: {other:?}"),
        };
        for text in
            ["hdd,file:d.bin", "ssd,size=1g,kernel:/d,a", "hdd,region:/tmp", "hdd,nfs://h/e"]
        {
            let message = error(text);
            assert!(message.contains("in an --on of its own"), "{text}: {message}");
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        // The part before the comma exists. A list has a storage behind it, and a name has not.
        for list in ["hdd", "ssd,size=1g", "kernel:/d", "file:x", "region:/tmp", "nfs://h/e"] {
            let message = error(&format!("file:{file},{list}"));
            assert!(message.contains("an --on of its own"), "{list}: {message}");
        }
        for name in ["v2.bin", "hdd.bin", "", "a,hdd"] {
            let text = format!("file:{file},{name}");
            let storages = Storage::parse_all(std::slice::from_ref(&text)).unwrap();
            assert_eq!(storages[0].to_string(), text);
        }
        assert!(error(file).contains(&format!("write file:{file}")));
        assert!(Storage::parse_all(&["kernel:".to_owned()]).is_err());
        assert!(Storage::parse_all(&["nfs://h".to_owned()]).is_err());
    }
}
