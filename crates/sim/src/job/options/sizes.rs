//! Options about block sizes and the amount of data.

use super::{FioOption, refused, supported, without_effect};
use crate::job::BlockSizes;
use crate::job::draft::JobDraft;
use crate::job::value::{BYTES_FORM, ExpectedForm, OptionValue};

/// Maximum block size: fio's block sizes are 32-bit.
const BLOCK_BYTES_MAX: u64 = u32::MAX as u64;

/// Maximum number of parts of a `bssplit` in fio.
const SPLIT_PARTS_MAX: usize = 64;

pub const TABLE: &[FioOption] = &[
    supported("bs", &["blocksize"], "block size, or READS,WRITES (4k)", |draft, value| {
        set_block_sizes(draft, value, parse_size)
    }),
    supported(
        "bsrange",
        &["blocksize_range"],
        "LEAST-MOST bytes, or READS,WRITES: any multiple of LEAST up to MOST",
        |draft, value| set_block_sizes(draft, value, parse_range),
    ),
    supported(
        "bssplit",
        &[],
        "SIZE/PERCENT:SIZE/PERCENT:…, or READS,WRITES; what is left of 100 % is shared evenly by \
         sizes without a percentage",
        |draft, value| set_block_sizes(draft, value, parse_split),
    ),
    supported(
        "bs_unaligned",
        &["blocksize_unaligned"],
        "sizes of a range need not be multiples of the least",
        |draft, value| value.switch().map(|on| draft.job.is_unaligned = on),
    ),
    supported(
        "bs_is_seq_rand",
        &["bsseqrand"],
        "1: the first block size is that of sequential places, the second of random ones (0)",
        |draft, value| value.switch().map(|on| draft.job.is_size_by_order = on),
    ),
    supported(
        "ba",
        &["blockalign"],
        "to what random places are aligned, or READS,WRITES (the smallest block)",
        |draft, value| {
            value.for_each_direction(&mut draft.job.align_bytes, |part| {
                part.bytes_in(1..=BLOCK_BYTES_MAX).map(Some)
            })
        },
    ),
    supported(
        "size",
        &[],
        "bytes, or a percentage of the file, that one pass of a process covers; on a modelled \
         device the whole of a file is 1 GiB where nothing says its size",
        |draft, value| value.extent(1).map(|size| draft.job.size = Some(size)),
    ),
    supported(
        "io_size",
        &["io_limit"],
        "bytes, or a percentage of the size, that a process moves in total",
        |draft, value| value.extent(1).map(|size| draft.job.io_size = Some(size)),
    ),
    supported("number_ios", &[], "operations that end a pass", |draft, value| {
        value.integer(0..=u64::MAX).map(|n| draft.job.operations = Some(n).filter(|n| *n > 0))
    }),
    supported(
        "filesize",
        &["file_size"],
        "bytes in each file, or LEAST-MOST, drawn from the seeds of the process",
        |draft, value| {
            let least_and_most = match value.text.split_once('-') {
                Some((least, most)) => {
                    let least = value.part(least).bytes_in(1..=u64::MAX)?;
                    (least, value.part(most).bytes_in(least..=u64::MAX)?)
                }
                None => {
                    let bytes = value.bytes_in(1..=u64::MAX)?;
                    (bytes, bytes)
                }
            };
            draft.job.file_bytes = Some(least_and_most);
            Ok(())
        },
    ),
    supported(
        "offset",
        &["fileoffset"],
        "where in the file the area begins: bytes or a percentage (0)",
        |draft, value| value.extent(0).map(|offset| draft.job.offset = offset),
    ),
    supported(
        "offset_increment",
        &[],
        "by how much further each process begins than the one before: bytes or a percentage (0)",
        |draft, value| value.extent(0).map(|extent| draft.job.offset_increment = extent),
    ),
    supported(
        "offset_align",
        &[],
        "to what an offset in percent is rounded up (the smallest block)",
        |draft, value| {
            let bytes = value.bytes_in(0..=u64::MAX)?;
            draft.job.offset_align_bytes = Some(bytes).filter(|bytes| *bytes > 0);
            Ok(())
        },
    ),
    supported(
        "fill_device",
        &["fill_fs"],
        "1: in place of a size, the whole of the file, which is full at its end (0)",
        |draft, value| value.flag().map(|on| draft.fills_storage = on),
    ),
    refused("file_append", &[], &["0"], "files here have a fixed size; give an `offset`"),
    refused("num_range", &[], &[], "it is about discards, which no device here takes"),
    without_effect("overwrite", &[], "files are there in full before they are written"),
];

/// Parses the block sizes of reads, writes and trims with `parse`, and stores them in the draft. A
/// direction that `value` leaves empty, as in `bs=,8k`, keeps its sizes.
fn set_block_sizes(
    draft: &mut JobDraft,
    value: OptionValue<'_>,
    parse: fn(OptionValue<'_>) -> Result<BlockSizes, ExpectedForm>,
) -> Result<(), ExpectedForm> {
    let [reads, writes] = draft.job.block_sizes.clone();
    let mut by_direction = [reads, writes, draft.job.trim_block_sizes.clone()];
    value.for_each_direction(&mut by_direction, parse)?;
    let [reads, writes, trims] = by_direction;
    draft.job.block_sizes = [reads, writes];
    draft.job.trim_block_sizes = trims;
    Ok(())
}

/// Parses a block size. Not a range such as `4k-64k`, whose end fio drops without a message.
fn parse_size(value: OptionValue<'_>) -> Result<BlockSizes, ExpectedForm> {
    let bytes = value.bytes().filter(|bytes| (1..=BLOCK_BYTES_MAX).contains(bytes));
    bytes.map(BlockSizes::One).ok_or_else(|| {
        format!("a block size above 0, or READ,WRITE (ranges: `bsrange`): {BYTES_FORM}")
    })
}

/// Parses a range of block sizes, such as `4k-64k` or `4k:64k`. Equal bounds are a fixed size.
fn parse_range(value: OptionValue<'_>) -> Result<BlockSizes, ExpectedForm> {
    let expected = || format!("LEAST-MOST, the least above 0: {BYTES_FORM}");
    let (least, most) = value.text.split_once(['-', ':']).ok_or_else(expected)?;
    let least = value.part(least).bytes().filter(|n| *n > 0).ok_or_else(expected)?;
    let most = value.part(most).bytes().ok_or_else(expected)?;
    if !(least..=BLOCK_BYTES_MAX).contains(&most) {
        return Err(expected());
    }
    match least == most {
        true => Ok(BlockSizes::One(least)),
        false => Ok(BlockSizes::Range { least, most }),
    }
}

/// Parses `4k/60:64k/`. A part without percentage gets an equal share of the rest to 100 %, rounded
/// down. Draws that no share covers go to the last part, the largest share. A part with a share of
/// 0 is never drawn, but its size counts as the smallest or largest one. Fails if the shares exceed
/// 100 % or all are 0.
fn parse_split(value: OptionValue<'_>) -> Result<BlockSizes, ExpectedForm> {
    let expected =
        || format!("SIZE/PERCENT:SIZE/PERCENT:…, together 100 percent at most: {BYTES_FORM}");
    let mut parts: Vec<(u64, Option<u8>)> = Vec::new();
    for part in value.text.split(':') {
        let (size, share) = match part.split_once('/') {
            Some((size, share)) => (size, Some(share.trim()).filter(|share| !share.is_empty())),
            None => (part, None),
        };
        let bytes = value.part(size).bytes().filter(|n| (1..=BLOCK_BYTES_MAX).contains(n));
        let share = match share {
            Some(share) => Some(value.part(share).integer(0..=100).map_err(|_| expected())?),
            None => None,
        };
        parts.push((bytes.ok_or_else(expected)?, share));
    }
    let given_percent: u32 = parts.iter().filter_map(|(_, share)| *share).map(u32::from).sum();
    let open_parts = parts.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if given_percent > 100 || parts.len() > SPLIT_PARTS_MAX {
        return Err(expected());
    }
    // Not used if each part has a share.
    let even_share = (100 - given_percent).checked_div(open_parts).unwrap_or(0);
    // The rarest size comes first, as in fio, where random draws fall into the shares in this
    // order.
    let mut sizes: Vec<(u64, u8)> = parts
        .into_iter()
        .map(|(bytes, share)| (bytes, share.unwrap_or(even_share as u8)))
        .collect();
    sizes.sort_by_key(|(_, share)| *share);
    match sizes.iter().all(|(_, share)| *share == 0) {
        true => Err(expected()),
        false => Ok(BlockSizes::Split(sizes)),
    }
}
