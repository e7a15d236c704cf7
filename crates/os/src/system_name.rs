//! Name of the running kernel.

/// Name and release of the operating system: `Linux 6.8.0`.
pub fn system_name() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}
