//! Report of `watch --advise`: pages brought in, their use, and waits.

use readpath_peers::watch::Help;

/// The lines of the report, without the name of the command.
pub fn lines(help: &Help) -> Vec<String> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if help.brought_bytes == 0 {
        return vec!["nothing was brought in: nothing of it could be foreseen".to_owned()];
    }
    Vec::from([format!("{}", mib(0))])
}
