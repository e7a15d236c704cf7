//! Offsets of fields in the kernel's structures, from its type information (BTF).
//!
//! The kernel's `Documentation/bpf/btf.rst` describes the layout.

use std::collections::HashMap;

/// Path of the kernel's BTF.
const PATH: &str = "/sys/kernel/btf/vmlinux";

/// First two bytes of BTF.
const MAGIC: u32 = 0xeb9f;

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

/// Offsets in bytes of the fields that the programs read, by structure and field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Files of a task.
    pub task_files: i32,
    /// Descriptor table of these files.
    pub files_table: i32,
    /// Array of open files of a descriptor table.
    pub table_list: i32,
    /// Inode of an open file.
    pub file_inode: i32,
    /// Open flags of an open file.
    pub file_flags: i32,
    /// Number of an inode.
    pub inode_number: i32,
    /// File type and rights of an inode.
    pub inode_mode: i32,
    /// Super block of an inode: its file system.
    pub inode_block: i32,
    /// Device number of a super block.
    pub block_device: i32,
}

/// Reads the offsets of the running kernel. Returns `None` where it has no type information.
pub fn read_offsets() -> Option<Offsets> {
    offsets(&std::fs::read(PATH).ok()?)
}

/// Finds the offsets in the kernel's type information. Returns `None` for an unknown format or a
/// missing field.
fn offsets(btf: &[u8]) -> Option<Offsets> {
    let structures = ["task_struct", "files_struct", "fdtable", "file", "inode", "super_block"];
    let field_offsets = field_offsets(btf, &structures)?;
    let offset = |structure: &str, field: &str| {
        field_offsets.get(&(structure.to_owned(), field.to_owned())).copied()
    };
    Some(Offsets {
        task_files: offset("task_struct", "files")?,
        files_table: offset("files_struct", "fdt")?,
        table_list: offset("fdtable", "fd")?,
        file_inode: offset("file", "f_inode")?,
        file_flags: offset("file", "f_flags")?,
        inode_number: offset("inode", "i_ino")?,
        inode_mode: offset("inode", "i_mode")?,
        inode_block: offset("inode", "i_sb")?,
        block_device: offset("super_block", "s_dev")?,
    })
}

/// Returns the byte offset of each field of the structures `names`, by structure and field. Fields
/// within an unnamed member are left out. `None` for an unknown format.
fn field_offsets(btf: &[u8], names: &[&str]) -> Option<HashMap<(String, String), i32>> {
    let word = |position: usize| {
        Some(u32::from_le_bytes(btf.get(position..position + 4)?.try_into().ok()?))
    };
    if word(0)? & 0xffff != MAGIC {
        return None;
    }
    // Head of the file: length of the head 4, types 8 and their length 12, strings 16. The offsets
    // of types and strings count from the end of the head.
    let head_bytes = word(4)? as usize;
    let (types, types_bytes) = (head_bytes + word(8)? as usize, word(12)? as usize);
    let strings = head_bytes + word(16)? as usize;
    let text = |offset: u32| {
        let bytes = btf.get(strings + offset as usize..)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        str::from_utf8(&bytes[..end]).ok()
    };
    let mut offsets = HashMap::new();
    let mut position = types;
    while position < types + types_bytes {
        let (name, info) = (word(position)?, word(position + 4)?);
        // The kind of the type is in bits 24 to 28 and the packed flag is bit 31. `count` is the
        // number of members, which follow the head of a type.
        let (kind, count, is_packed) = (info >> 24 & 31, info as usize & 0xffff, info >> 31 == 1);
        position += 12;
        if kind == STRUCT && names.contains(&text(name)?) {
            // A member has its name, its type and its offset in bits.
            for member in (0..count).map(|nth| position + 12 * nth) {
                let offset = word(member + 8)?;
                // In a packed structure the upper bits are the width of a bit field.
                let bits = if is_packed { offset & 0xff_ffff } else { offset };
                let key = (text(name)?.to_owned(), text(word(member)?)?.to_owned());
                // With several structures of a name, the first one counts.
                offsets.entry(key).or_insert((bits / 8) as i32);
            }
        }
        // Bytes of the data behind the head of the type.
        position += match kind {
            INT | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | SECTION | ENUM64 => 12 * count,
            ENUM | FUNCTION_PROTOTYPE => 8 * count,
            _ => 0,
        };
    }
    Some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file table begins with a reference count, so its pointer comes later. Pointers are
    /// aligned.
    #[test]
    fn offsets_of_the_running_kernel_are_found() {
        let Ok(btf) = std::fs::read(PATH) else { return println!("skipped: no {PATH}") };
        let found = offsets(&btf).expect("the BTF of the kernel has these structures");
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
