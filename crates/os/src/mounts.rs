//! Mounts of a process, from the text of `/proc/self/mountinfo`.

/// A mount: one line of `mountinfo`, see proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'t> {
    /// Number of the mount.
    pub number: u64,
    /// Number of the file system's device in the kernel's form: major × 2²⁰ + minor.
    pub device: u64,
    /// Mounted part of the file system.
    pub root: &'t str,
    /// Folder of the mount, with `\040` for a space.
    pub mount_point: &'t str,
    /// Type of the file system.
    pub file_system: &'t str,
    /// Source, such as a block device.
    pub source: &'t str,
    /// Options of the file system, not of the mount.
    pub options: &'t str,
}

/// Mounts in the text of `mountinfo`. Lines of another form are left out.
pub fn parse_mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(parse_mount)
}

/// Parses a line. `None` for a line of another form.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    // A variable number of optional fields ends at the separator.
    let (before_separator, after_separator) = line.split_once(" - ")?;
    let mut fields = before_separator.split(' ');
    let number = fields.next()?.parse().ok()?;
    let _parent_number = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    // The form of the field `device`: 20 bits of minor number below the major one.
    let device = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
    let (root, mount_point) = (fields.next()?, fields.next()?);
    let mut fields = after_separator.split(' ');
    let (file_system, source, options) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Mount { number, device, root, mount_point, file_system, source, options })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of proc(5), with two optional fields, and one of another form.
    #[test]
    fn line_has_the_fields_of_the_manual() {
        let text = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root \
                    rw,errors=continue\nother\n";
        let expected = Mount {
            number: 36,
            device: 98 << 20,
            root: "/mnt1",
            mount_point: "/mnt2",
            file_system: "ext3",
            source: "/dev/root",
            options: "rw,errors=continue",
        };
        assert_eq!(parse_mounts(text).collect::<Vec<_>>(), [expected]);
    }
}
