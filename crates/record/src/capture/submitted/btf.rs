//! Offsets of fields in the kernel's structures, from its type information (BTF).
//!
//! The kernel's `Documentation/bpf/btf.rst` describes the layout.

use std::collections::HashMap;

/// Path of the kernel's BTF.
pub(super) const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types with data after their 12-byte head.
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNCTION_PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// Offsets used by the programs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    pub task_files: i32,
    pub files_table: i32,
    pub table_list: i32,
    pub file_inode: i32,
    pub file_flags: i32,
    pub inode_number: i32,
    pub inode_mode: i32,
    pub inode_block: i32,
    pub block_device: i32,
}

/// Finds the offsets. Returns `None` for an unknown format or a missing field.
pub(super) fn offsets(btf: &[u8]) -> Option<Offsets> {
    let wanted = ["task_struct", "files_struct", "fdtable", "file", "inode", "super_block"];
    let found = structures(btf, &wanted)?;
    let of = |structure: &str, field: &str| {
        found.get(&(structure.to_owned(), field.to_owned())).copied()
    };
    Some(Offsets {
        task_files: of("task_struct", "files")?,
        files_table: of("files_struct", "fdt")?,
        table_list: of("fdtable", "fd")?,
        file_inode: of("file", "f_inode")?,
        file_flags: of("file", "f_flags")?,
        inode_number: of("inode", "i_ino")?,
        inode_mode: of("inode", "i_mode")?,
        inode_block: of("inode", "i_sb")?,
        block_device: of("super_block", "s_dev")?,
    })
}

/// Byte offsets of the fields of some structures.
fn structures(btf: &[u8], wanted: &[&str]) -> Option<HashMap<(String, String), i32>> {
    let word = |at: usize| Some(u32::from_le_bytes(btf.get(at..at + 4)?.try_into().ok()?));
    if word(0)? & 0xffff != 0xeb9f {
        return None;
    }
    let head = word(4)? as usize;
    let (types, types_bytes) = (head + word(8)? as usize, word(12)? as usize);
    let strings = head + word(16)? as usize;
    let text = |offset: u32| {
        let bytes = btf.get(strings + offset as usize..)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        str::from_utf8(&bytes[..end]).ok()
    };
    let mut found = HashMap::new();
    let mut at = types;
    while at < types + types_bytes {
        let (name, about) = (word(at)?, word(at + 4)?);
        let (kind, count, is_packed) =
            (about >> 24 & 31, about as usize & 0xffff, about >> 31 == 1);
        at += 12;
        if kind == STRUCT && wanted.contains(&text(name)?) {
            for member in (0..count).map(|nth| at + 12 * nth) {
                let offset = word(member + 8)?;
                let bits = if is_packed { offset & 0xff_ffff } else { offset };
                let key = (text(name)?.to_owned(), text(word(member)?)?.to_owned());
                found.entry(key).or_insert((bits / 8) as i32);
            }
        }
        at += match kind {
            INT | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | SECTION | ENUM64 => 12 * count,
            ENUM | FUNCTION_PROTOTYPE => 8 * count,
            _ => 0,
        };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file table begins with a reference count, so its pointer comes later. Pointers are
    /// aligned.
    #[test]
    fn offsets_of_the_running_kernel_are_found() {
        let Ok(btf) = std::fs::read(PATH) else { return println!("skipped: no {PATH}") };
        let found = offsets(&btf).expect("the kernel has these structures");
        let pointers = [
            found.task_files,
            found.files_table,
            found.table_list,
            found.file_inode,
            found.inode_block,
        ];
        assert!(pointers.iter().all(|offset| offset % 8 == 0), "{found:?}");
        assert!(found.task_files > 0 && found.files_table > 0, "{found:?}");
        assert_eq!(offsets(&btf[..btf.len() / 2]), None);
        assert_eq!(offsets(b"no BTF"), None);
    }
}
