//! Text files of `/proc` and of control groups.

/// Text after `name` on its line, without the blanks around it. `name` includes a colon in files
/// such as `/proc/self/status` and `/proc/self/io`. `None` without such a line.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Bytes in a field that the file has in kB, such as `VmHWM:` of `/proc/self/status`. `None`
/// without such a line, or if it has no number of kB.
pub fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(text, name)?.strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Number after `name` and a blank on a line of its own, as in `/proc/vmstat` and `memory.stat`.
/// `None` without such a line, or if it has no number.
pub fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

/// Fields of `/proc/PID/stat` after the name of the program, of which the first is the state.
/// `None` for a text of another form.
///
/// The first field returned is thus field 3 of proc(5).
pub fn stat_fields(text: &str) -> Option<impl Iterator<Item = &str>> {
    // The name before the fields may contain spaces and parentheses.
    text.rsplit_once(") ").map(|(_, fields)| fields.trim_end().split(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as in proc(5).
    #[test]
    fn field_is_the_text_after_its_name() {
        let status = "Name:\tdd\nVmHWM:\t    2048 kB\nVmSwap:\t       0 kB\nThreads:\t1\n";
        assert_eq!(field(status, "Name:"), Some("dd"));
        assert_eq!(field(status, "Threads:"), Some("1"));
        assert_eq!(field(status, "VmLck:"), None);
        assert_eq!(field_bytes(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(field_bytes(status, "VmSwap:"), Some(0));
        assert_eq!(field_bytes(status, "Threads:"), None);
        let status = "Name:\tbash\nVmRSS:\t    3840 kB\nVmSwap:\t     816 kB\nThreads:\t1\n";
        assert_eq!(field_bytes(status, "VmSwap:"), Some(816 * 1024));
        assert_eq!(field_bytes("Name:\tkthreadd\nThreads:\t1\n", "VmSwap:"), None);
    }

    /// Other names begin or end with the searched ones.
    #[test]
    fn number_is_found_by_its_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nswapcached 4096\nswap 8192\n";
        assert_eq!(number(text, "oom_kill"), Some(3));
        assert_eq!(number(text, "swap"), Some(8192));
        assert_eq!(number(text, "oom"), None);
    }

    /// The name of the program looks like the end of a name and a state.
    #[test]
    fn fields_of_a_program_begin_after_its_name() {
        let fields: Vec<&str> = stat_fields("7 (a) R (b) S 1 7\n").unwrap().collect();
        assert_eq!(fields, ["S", "1", "7"]);
        assert!(stat_fields("").is_none());
    }
}
