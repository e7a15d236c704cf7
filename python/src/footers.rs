//! The footer of a Parquet file: names of the columns, and the place of each column chunk.
//!
//! The footer is a structure in Thrift's compact protocol. Its fields have the numbers of
//! `parquet.thrift` of the project Parquet. Unknown fields are skipped.

use pyo3::prelude::*;

use crate::spec::refused;

/// Maximum depth of nested values. A footer of Parquet has fewer than 10 levels.
const DEPTH_MAX: usize = 32;

/// Maximum depth of a schema, chosen. Schemas of 40 levels are tested.
const SCHEMA_DEPTH_MAX: usize = 1000;

/// Maximum number of items of a list. The default limit of Apache Arrow for such lists is the same
/// number.
const ITEMS_MAX: usize = 1_000_000;

/// Maximum bytes of all paths of a footer without row groups, and of all paths of a
/// small footer. Each column chunk repeats the path of its column, so other footers are at least as
/// long as their paths.
const PATHS_MAX: usize = 1 << 20;

/// Types of values in the compact protocol.
mod kind {
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const I8: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const UUID: u8 = 13;
}

/// Path of each column, and offset and size of each column chunk by row group and column.
type Layout = (Vec<String>, Vec<Vec<(i64, i64)>>);

/// Returns the path of each column, with dots between the names of nested ones, and the offset and
/// size in bytes of each column chunk by row group and column.
///
/// `footer` begins with the footer's first byte. Offsets and sizes are not checked against a file.
///
/// Raises ValueError for bytes that are no footer, for one without columns, and for a row group
/// without a chunk of each column.
#[pyfunction]
pub fn parquet_columns(py: Python<'_>, footer: &[u8]) -> PyResult<Layout> {
    py.detach(|| layout(footer))
        .map_err(|wrong| refused(format!("the file is no Parquet file: {wrong}, in its footer")))
}

/// Part of a footer that is wrong.
type Wrong = &'static str;

/// Reads `FileMetaData`: field 2 is the schema, field 4 the list of row groups.
fn layout(footer: &[u8]) -> Result<Layout, Wrong> {
    let mut reader = Reader { bytes: footer };
    let mut schema = None;
    let mut groups = None;
    reader.each_field(|reader, field, kind| match (field, kind) {
        (2, kind::LIST) => {
            schema = Some(reader.list(kind::STRUCT, schema_element)?);
            Ok(())
        }
        (4, kind::LIST) => {
            groups = Some(reader.list(kind::STRUCT, row_group)?);
            Ok(())
        }
        (2 | 4, _) => Err("a field of another type"),
        _ => reader.skip(kind, DEPTH_MAX),
    })?;
    let schema = schema.ok_or("no schema")?;
    let groups: Vec<Vec<(i64, i64)>> = groups.ok_or("no list of row groups")?;
    let bytes_max = if groups.is_empty() { PATHS_MAX } else { footer.len().max(PATHS_MAX) };
    let paths = paths(schema, bytes_max)?;
    match groups.iter().all(|group| group.len() == paths.len()) {
        true => Ok((paths, groups)),
        false => Err("a row group without each column"),
    }
}

/// An element of the schema: a column, or a group of the elements that follow.
struct SchemaElement {
    name: String,
    is_column: bool,
    children: usize,
}

/// Reads `SchemaElement`: field 1 is the type of a column, 4 the name, 5 the number of children.
fn schema_element(reader: &mut Reader<'_>) -> Result<SchemaElement, Wrong> {
    let mut element = SchemaElement { name: String::new(), is_column: false, children: 0 };
    let mut has_name = false;
    reader.each_field(|reader, field, kind| {
        match (field, kind) {
            (1, kind::I32) => {
                // The type itself is not used: only a column has one.
                let _type = reader.varint()?;
                element.is_column = true;
            }
            (4, kind::BINARY) => {
                has_name = true;
                let name = reader.binary()?;
                element.name =
                    str::from_utf8(name).map_err(|_| "a name that is no UTF-8")?.to_owned();
            }
            (5, kind::I32) => {
                let children = reader.integer()?;
                element.children =
                    children.try_into().map_err(|_| "a negative number of children")?;
            }
            (1 | 4 | 5, _) => return Err("a field of another type"),
            _ => reader.skip(kind, DEPTH_MAX)?,
        }
        Ok(())
    })?;
    // An element with a type and children is a group.
    element.is_column &= element.children == 0;
    has_name.then_some(element).ok_or("an element of the schema without a name")
}

/// Returns the paths of the columns of a schema, whose elements are in depth-first order.
/// `bytes_max`: maximum length of the paths of all columns, and of the paths of all groups.
fn paths(schema: Vec<SchemaElement>, bytes_max: usize) -> Result<Vec<String>, Wrong> {
    let mut elements = schema.into_iter();
    // The root has no name in the paths.
    let root = elements.next().ok_or("no schema")?;
    // Path of each open group, and its number of children that have not come yet.
    let mut open = vec![(String::new(), root.children)];
    let mut paths = Vec::new();
    let (mut column_bytes, mut group_bytes) = (0, 0);
    for element in elements {
        while open.last().is_some_and(|(_, left)| *left == 0) {
            open.pop();
        }
        let depth = open.len();
        let (parent, left) = open.last_mut().ok_or("a schema with other numbers of children")?;
        *left -= 1;
        // Paths of groups are copies, and have a limit of their own.
        let bytes = if element.is_column { &mut column_bytes } else { &mut group_bytes };
        *bytes += parent.len() + element.name.len();
        if *bytes > bytes_max {
            return Err("too long paths of columns");
        }
        let path = match depth {
            // The parent is the root.
            1 => element.name,
            _ => format!("{parent}.{}", element.name),
        };
        match element.is_column {
            true => paths.push(path),
            false if depth == SCHEMA_DEPTH_MAX => return Err("a schema of too many levels"),
            false => open.push((path, element.children)),
        }
    }
    match (open.iter().all(|(_, left)| *left == 0), paths.is_empty()) {
        (true, false) => Ok(paths),
        (true, true) => Err("no columns"),
        (false, _) => Err("a schema with other numbers of children"),
    }
}

/// Reads `RowGroup`: field 1 is the list of column chunks. Returns offset and size of each.
fn row_group(reader: &mut Reader<'_>) -> Result<Vec<(i64, i64)>, Wrong> {
    let mut chunks = None;
    reader.each_field(|reader, field, kind| match (field, kind) {
        (1, kind::LIST) => {
            chunks = Some(reader.list(kind::STRUCT, column_chunk)?);
            Ok(())
        }
        (1, _) => Err("a field of another type"),
        _ => reader.skip(kind, DEPTH_MAX),
    })?;
    chunks.ok_or("a row group without columns")
}

/// Reads `ColumnChunk`: field 3 is its `ColumnMetaData`. Returns the chunk's offset and size.
fn column_chunk(reader: &mut Reader<'_>) -> Result<(i64, i64), Wrong> {
    let mut place = None;
    reader.each_field(|reader, field, kind| match (field, kind) {
        (3, kind::STRUCT) => {
            place = Some(chunk_place(reader)?);
            Ok(())
        }
        (3, _) => Err("a field of another type"),
        _ => reader.skip(kind, DEPTH_MAX),
    })?;
    place.ok_or("a column chunk without its place")
}

/// Reads `ColumnMetaData`: field 7 is the compressed size, 9 the offset of the first data page, and
/// 11 the one of the dictionary page. Returns the offset of the first page, and the size.
fn chunk_place(reader: &mut Reader<'_>) -> Result<(i64, i64), Wrong> {
    let (mut size, mut data, mut dictionary) = (None, None, None);
    reader.each_field(|reader, field, kind| {
        let number = match field {
            7 => &mut size,
            9 => &mut data,
            11 => &mut dictionary,
            _ => return reader.skip(kind, DEPTH_MAX),
        };
        if kind != kind::I64 {
            return Err("a field of another type");
        }
        *number = Some(reader.integer()?);
        Ok(())
    })?;
    let (Some(size), Some(data)) = (size, data) else {
        return Err("a column chunk without its place");
    };
    // No page begins at 0, where the magic is: some writers put 0 for no page.
    let pages = dictionary.into_iter().chain([data]).filter(|&offset| offset > 0);
    let start = pages.min().unwrap_or(data);
    Ok((start, size))
}

/// Bytes in the compact protocol that are not read yet.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Takes the next `count` bytes.
    fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or("too few bytes")?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        Ok(self.take(1)?[0])
    }

    /// Reads an unsigned integer: groups of 7 bits, the lowest first.
    fn varint(&mut self) -> Result<u64, Wrong> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // Bits that the shift loses are beyond 64.
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number beyond 64 bits")
    }

    /// Reads a signed integer, which has its sign in the lowest bit.
    fn integer(&mut self) -> Result<i64, Wrong> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Reads the number of the items of a value, as a varint. Each item has `item_bytes` at least.
    fn count(&mut self, item_bytes: usize) -> Result<usize, Wrong> {
        self.within(item_bytes, |reader| reader.varint())
    }

    /// Returns a number of items that `number` reads, if the bytes left can have that many items
    /// of `item_bytes`.
    fn within(
        &mut self,
        item_bytes: usize,
        number: impl FnOnce(&mut Reader<'a>) -> Result<u64, Wrong>,
    ) -> Result<usize, Wrong> {
        let count = number(self)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.bytes.len() / item_bytes => Ok(count),
            _ => Err("a length beyond its end"),
        }
    }

    /// Reads a length, and returns that many bytes.
    fn binary(&mut self) -> Result<&'a [u8], Wrong> {
        let count = self.count(1)?;
        self.take(count)
    }

    /// Reads the head of a list: the number of its items, and their type.
    fn list_head(&mut self) -> Result<(usize, u8), Wrong> {
        // The upper half of the byte is the number; 15 stands for a varint that follows.
        let head = self.byte()?;
        let count = self.within(1, |reader| match head >> 4 {
            15 => reader.varint(),
            count => Ok(count.into()),
        })?;
        Ok((count, head & 15))
    }

    /// Reads a list of items of one type.
    fn list<T>(
        &mut self,
        kind: u8,
        mut item: impl FnMut(&mut Reader<'a>) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, Wrong> {
        let (count, found) = self.list_head()?;
        // An empty list may have any type.
        if found != kind && count > 0 {
            return Err("a list of another type");
        }
        if count > ITEMS_MAX {
            return Err("a list of too many items");
        }
        // Memory grows with the items, because the length is not trusted.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Calls `field` with the number and the type of each field of a structure. `field` must read
    /// or skip the value. The upper half of a field's head is the step from the previous number;
    /// with 0 there, the number itself follows. A head of 0 ends the structure.
    fn each_field(
        &mut self,
        mut field: impl FnMut(&mut Reader<'a>, i64, u8) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let mut number = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            number = match head >> 4 {
                0 => self.integer()?,
                // No field has a number beyond 64 bits.
                step => number.checked_add(step.into()).ok_or("a field of another type")?,
            };
            field(self, number, head & 15)?;
        }
    }

    /// Skips a value of a field. It may have at most `depth` levels, itself included.
    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Wrong> {
        let depth = depth.checked_sub(1).ok_or("too many levels")?;
        match kind {
            // The type is the value.
            kind::TRUE | kind::FALSE => Ok(()),
            kind::I8 => self.take(1).map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.take(8).map(drop),
            kind::UUID => self.take(16).map(drop),
            kind::BINARY => self.binary().map(drop),
            kind::LIST | kind::SET => {
                let (count, kind) = self.list_head()?;
                (0..count).try_for_each(|_| self.skip_item(kind, depth))
            }
            kind::MAP => {
                let count = self.count(2)?;
                // The type of the keys in the upper half, of the values in the lower. An empty map
                // has no such byte.
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_item(kinds >> 4, depth)?;
                    self.skip_item(kinds & 15, depth)
                })
            }
            kind::STRUCT => self.each_field(|reader, _, kind| reader.skip(kind, depth)),
            _ => Err("an unknown type"),
        }
    }

    /// Skips an item of a list or a map, where a boolean is a byte.
    fn skip_item(&mut self, kind: u8, depth: usize) -> Result<(), Wrong> {
        match kind {
            kind::TRUE | kind::FALSE => self.take(1).map(drop),
            _ => self.skip(kind, depth),
        }
    }
}
