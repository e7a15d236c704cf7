//! Files of nfs-ganesha, a widely used server, compared with libnfs.
//!
//! The server needs a port mapper, whose port exists only once per machine. Everything therefore
//! runs in separate namespaces (network, mounts, processes), which end with the test.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use readpath::{File, OpenFileError};

use crate::support::content;

/// Starts the port mapper and the server, and executes the command behind `--` once the server
/// listens. Exit status 77: the server does not start.
const SERVE: &str = r#"
ip link set lo up && mount -t tmpfs tmpfs /run && mkdir /run/rpcbind && mount -t proc proc /proc || exit 77
rpcbind -w || exit 77
ganesha.nfsd -f "$1/ganesha.conf" -L "$1/log" -p /run/ganesha.pid > /dev/null 2>&1 || exit 77
turn=0
until grep -q ':0801 ' /proc/net/tcp /proc/net/tcp6; do
    turn=$((turn + 1)); [ $turn -lt 200 ] || exit 77
    sleep 0.1
done
shift
"$@"
"#;

const BYTES: usize = 20 * (1 << 20) + 777;

/// A folder that is removed when the test ends.
struct Export(PathBuf);

impl Drop for Export {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn installed(command: &str) -> bool {
    let folders = std::env::var("PATH").unwrap_or_default();
    folders.split(':').any(|folder| Path::new(folder).join(command).exists())
}

#[test]
fn ganesha_files_read_equal_to_libnfs() {
    let needed = ["ganesha.nfsd", "rpcbind", "nfs-cat", "unshare", "ip"];
    if let Some(missing) = needed.iter().find(|command| !installed(command)) {
        return eprintln!("skipped: {missing} is not installed");
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: namespaces and the server need root");
    }
    let name = format!("readpath-ganesha-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(folder.join("export/folder")).unwrap();
    let folder = Export(folder.canonicalize().unwrap());
    let export = folder.0.join("export");
    std::fs::write(export.join("file"), content(BYTES)).unwrap();
    std::fs::write(export.join("empty"), b"").unwrap();
    symlink("../file", export.join("folder/up")).unwrap();
    symlink(export.join("folder"), export.join("absolute")).unwrap();
    symlink("loop", export.join("loop")).unwrap();
    symlink("/etc/passwd", export.join("outside")).unwrap();
    let config = format!(
        "NFS_CORE_PARAM {{ NFS_Protocols = 3; NFS_Port = 2049; MNT_Port = 20048; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         NFSv4 {{ Graceless = true; RecoveryRoot = \"{run}\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{export}\"; Pseudo = /export; Protocols = 3; \
         Transports = TCP; SecType = sys; Access_Type = RO; Squash = None; \
         Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}\n",
        run = folder.0.display(),
        export = export.display(),
    );
    std::fs::write(folder.0.join("ganesha.conf"), config).unwrap();
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SERVE, "sh"])
        .arg(&folder.0)
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ganesha::child_compares_reads_of_the_server_with_libnfs",
            "--ignored",
            "--nocapture",
        ])
        .env("READPATH_TEST_EXPORT", &export)
        .status()
        .unwrap();
    if status.code() == Some(77) {
        let log = std::fs::read_to_string(folder.0.join("log")).unwrap_or_default();
        let last = log.lines().last().unwrap_or("it wrote no log");
        return eprintln!("skipped: the server does not start here: {last}");
    }
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "runs where the test above has started the server"]
fn child_compares_reads_of_the_server_with_libnfs() {
    let export = PathBuf::from(std::env::var_os("READPATH_TEST_EXPORT").expect("see above"));
    let url = |name: &str| {
        format!("nfs://127.0.0.1:2049{}/{name}?mountport=20048&timeout=30s", export.display())
    };
    let read = |name: &str| {
        let mut bytes = Vec::new();
        let file = File::open(url(name)).unwrap_or_else(|error| panic!("{error}"));
        file.reader().read_to_end(&mut bytes).unwrap();
        bytes
    };
    let theirs = |name: &str| {
        let url = format!(
            "nfs://127.0.0.1{}/{name}?version=3&nfsport=2049&mountport=20048",
            export.display()
        );
        let output = Command::new("nfs-cat").arg(url).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let open_error = |name: &str| File::open(url(name)).err().unwrap();

    let whole = theirs("file");
    assert_eq!(whole.len(), BYTES);
    for name in ["file", "folder/up", "absolute/up"] {
        assert!(read(name) == whole, "{name}");
    }
    assert!(read("empty").is_empty());
    assert!(open_error("loop").to_string().contains("ELOOP"));
    let outside = open_error("outside");
    assert!(outside.to_string().contains("outside of the export"), "{outside}");
    assert!(matches!(outside, OpenFileError::Nfs(_)));
    assert_eq!(open_error("nothing").kind(), ErrorKind::NotFound);
    assert_eq!(open_error("folder").kind(), ErrorKind::IsADirectory);

    let mut file = File::open(url("folder/up")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 9_000).unwrap();
    assert!(!file.revalidate().unwrap());
    // Changed in place, and then replaced by another file.
    let other: Vec<u8> = whole.iter().map(|byte| !byte).collect();
    std::fs::write(export.join("file"), &other[..50_000]).unwrap();
    assert!(file.revalidate().unwrap());
    assert_eq!(file.len(), 50_000);
    file.read_exact_at(&mut byte, 9_000).unwrap();
    assert_eq!(byte[0], other[9_000]);
    std::fs::write(export.join("new"), &whole[..60_000]).unwrap();
    std::fs::rename(export.join("new"), export.join("file")).unwrap();
    assert!(file.revalidate().unwrap());
    file.read_exact_at(&mut byte, 9_000).unwrap();
    assert_eq!((file.len(), byte[0]), (60_000, whole[9_000]));
    std::fs::remove_file(export.join("file")).unwrap();
    assert_eq!(file.revalidate().unwrap_err().kind(), ErrorKind::NotFound);
}
