//! What `readpath profile` measured of some storage, as a value and as a TOML text.
//!
//! ```toml
//! name = "…"
//! bytes = 1_073_741_824
//! request_bytes_max = 1_048_576
//! alignment_bytes = 512
//! rotational = 0                  # 1: what is near costs less than what is far
//! depths = [1, 2, 4]              # requests under way, from 1 upwards
//! depth_max = 64                  # more are not handed to it at once
//! probe_bytes = 4096              # size of the requests in near and spread
//! [[random]]                      # requests at random places, a block for each size
//! bytes = 4096
//! us = [90.0, 92.0, 97.5]         # mean time of one, for the first so many of depths
//! [[following]]                   # requests that go on where the last one ended
//! bytes = 4096
//! us = [12.0, 12.0, 14.0]
//! [near]                          # a request alone, from the end of the last
//! bytes = [-98_304, 98_304]       # backwards, forwards; rising
//! us = [88.0, 70.0]
//! [streams]                       # so many streams in turn, one request under way
//! count = 8
//! bytes = 131_072
//! us = 60.0
//! [spread]                        # a request alone at random: 0, 10, 50, 90, 99, 100 %
//! us = [80.0, 84.0, 88.0, 100.0, 140.0, 300.0]
//! ```

use std::fmt::Write as _;

use crate::fields::{FieldBlock, FileError, NumberBounds, bounds};

/// Storage as it was measured. Times are means in µs.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageDescription {
    /// What it is.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// The largest request that is to be handed to it.
    pub request_bytes_max: u64,
    /// What offsets and sizes are multiples of: 512 or 4096.
    pub alignment_bytes: u64,
    /// Whether what is near costs less than what is far.
    pub is_rotational: bool,
    /// How many requests were under way, rising from 1.
    pub depths: Vec<u32>,
    /// The most that are handed to it at once.
    pub depth_max: u32,
    /// The size of the requests of `near` and `spread_us`.
    pub probe_bytes: u64,
    /// At random places, by size, rising.
    pub random: Vec<SizeCosts>,
    /// Going on where the last one ended, by size, rising.
    pub following: Vec<SizeCosts>,
    /// By distance, rising.
    pub near: Vec<NearResponse>,
    /// Several streams in turn.
    pub streams: StreamCosts,
    /// Quantiles of a request at random alone: 0, 10, 50, 90, 99 and 100 %.
    pub spread_us: Vec<f64>,
}

/// What requests of one size take.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCosts {
    /// The size.
    pub bytes: u64,
    /// The mean time of one, for the first so many of the depths.
    pub us: Vec<f64>,
}

/// What a request takes that begins near the end of the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearResponse {
    /// Bytes from that end; negative: before it.
    pub distance: i64,
    /// The mean time.
    pub us: f64,
}

/// What a request takes where streams are read in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamCosts {
    /// How many.
    pub count: u32,
    /// The size of the requests.
    pub bytes: u64,
    /// The mean time of one.
    pub us: f64,
}

const REQUEST_SIZES: NumberBounds = bounds(512.0, 67_108_864.0, "bytes");
pub(super) const US: NumberBounds = bounds(0.01, 1e8, "µs");
const DEPTH: NumberBounds = bounds(1.0, 4096.0, "requests");

impl StorageDescription {
    /// The description in a parsed file.
    ///
    /// # Errors
    /// A field is missing, unknown, out of bounds, or doesn't go with the others.
    pub fn of(root: &FieldBlock) -> Result<StorageDescription, FileError> {
        let alignment_bytes = root.integer("alignment_bytes", bounds(512.0, 4096.0, "bytes"))?;
        if ![512, 4096].contains(&alignment_bytes) {
            return Err(root.error("alignment_bytes", "expected 512 or 4096".to_owned()));
        }
        let depths: Vec<u32> =
            root.numbers("depths", DEPTH)?.into_iter().map(|depth| depth as u32).collect();
        if depths.first() != Some(&1) || !is_rising(&depths) {
            return Err(root.error("depths", "expected numbers that rise from 1".to_owned()));
        }
        let lines = |key: &str| -> Result<Vec<SizeCosts>, FileError> {
            let blocks = root.blocks(key)?.into_iter();
            let lines: Vec<SizeCosts> =
                blocks.map(|block| line(block, depths.len())).collect::<Result<_, _>>()?;
            let sizes: Vec<u64> = lines.iter().map(|line| line.bytes).collect();
            if lines.is_empty() || !is_rising(&sizes) {
                return Err(root.error(key, "expected blocks whose `bytes` rise".to_owned()));
            }
            Ok(lines)
        };
        let description = StorageDescription {
            name: root.needed_text("name")?.to_owned(),
            bytes: root.integer("bytes", bounds(4096.0, 1e18, "bytes"))?,
            request_bytes_max: root.integer("request_bytes_max", REQUEST_SIZES)?,
            alignment_bytes,
            is_rotational: root.switch_or("rotational", false)?,
            depth_max: root.integer("depth_max", DEPTH)? as u32,
            probe_bytes: root.integer("probe_bytes", REQUEST_SIZES)?,
            random: lines("random")?,
            following: lines("following")?,
            near: near(root.block("near")?)?,
            streams: streams(root.block("streams")?)?,
            spread_us: spread(root.block("spread")?)?,
            depths,
        };
        root.reject_unread()?;
        Ok(description)
    }

    /// The description as a text that [`StorageDescription::of`] takes; each line of `head` a comment.
    pub fn to_toml(&self, head: &[String]) -> String {
        let mut text = String::new();
        for line in head {
            text += &format!("# {}\n", line.replace(char::is_control, ""));
        }
        let list = |us: &[f64]| {
            let items: Vec<String> = us.iter().map(|us| format!("{us:.2}")).collect();
            format!("[{}]", items.join(", "))
        };
        let name = quoted(&self.name);
        let _ = write!(
            text,
            "name = {name}\nbytes = {}\nrequest_bytes_max = {}\nalignment_bytes = {}\n\
             rotational = {}\ndepths = {:?}\ndepth_max = {}\nprobe_bytes = {}\n",
            self.bytes,
            self.request_bytes_max,
            self.alignment_bytes,
            u8::from(self.is_rotational),
            self.depths,
            self.depth_max,
            self.probe_bytes
        );
        for (kind, what, lines) in [
            ("random", "Requests at random places: µs of one, by depth.", &self.random),
            ("following", "Requests that go on where the last one ended.", &self.following),
        ] {
            let _ = write!(text, "\n# {what}\n");
            for SizeCosts { bytes, us } in lines {
                let _ = write!(text, "[[{kind}]]\nbytes = {bytes}\nus = {}\n", list(us));
            }
        }
        let distances: Vec<i64> = self.near.iter().map(|near| near.distance).collect();
        let us: Vec<f64> = self.near.iter().map(|near| near.us).collect();
        let StreamCosts { count, bytes, us: each_us } = self.streams;
        let _ = write!(
            text,
            "\n# A request alone that begins so far from the end of the last.\n[near]\n\
             bytes = {distances:?}\nus = {}\n\n# One of so many streams in turn.\n[streams]\n\
             count = {count}\nbytes = {bytes}\nus = {each_us:.2}\n\n\
             # A request alone at random: 0, 10, 50, 90, 99, 100 %.\n[spread]\nus = {}\n",
            list(&us),
            list(&self.spread_us)
        );
        text
    }
}

/// A text in quotes, as TOML has it; what can't be printed is left out.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace(char::is_control, ""))
}

fn is_rising<T: PartialOrd>(values: &[T]) -> bool {
    values.windows(2).all(|pair| pair[0] < pair[1])
}

fn line(block: &FieldBlock, depths: usize) -> Result<SizeCosts, FileError> {
    let line =
        SizeCosts { bytes: block.integer("bytes", REQUEST_SIZES)?, us: block.numbers("us", US)? };
    if line.us.is_empty() || line.us.len() > depths {
        let problem = format!("expected a time for each of `depths`, of which there are {depths}");
        return Err(block.error("us", problem));
    }
    block.reject_unread()?;
    Ok(line)
}

fn near(block: &FieldBlock) -> Result<Vec<NearResponse>, FileError> {
    let distances = block.numbers("bytes", bounds(-1e18, 1e18, "bytes"))?;
    let us = block.numbers("us", US)?;
    block.reject_unread()?;
    if distances.contains(&0.0) || !is_rising(&distances) {
        return Err(block.error("bytes", "expected distances that rise, none of them 0".to_owned()));
    }
    if us.len() != distances.len() {
        return Err(block.error("us", format!("expected {} times, as `bytes`", distances.len())));
    }
    let near = |(distance, us): (f64, f64)| NearResponse { distance: distance as i64, us };
    Ok(distances.into_iter().zip(us).map(near).collect())
}

fn streams(block: &FieldBlock) -> Result<StreamCosts, FileError> {
    let streams = StreamCosts {
        count: block.integer("count", bounds(1.0, 1024.0, "streams"))? as u32,
        bytes: block.integer("bytes", REQUEST_SIZES)?,
        us: block.number("us", US)?,
    };
    block.reject_unread()?;
    Ok(streams)
}

fn spread(block: &FieldBlock) -> Result<Vec<f64>, FileError> {
    let us = block.numbers("us", US)?;
    block.reject_unread()?;
    if us.len() != super::QUANTILE_SHARES.len() || us.windows(2).any(|pair| pair[0] > pair[1]) {
        let count = super::QUANTILE_SHARES.len();
        return Err(block.error("us", format!("expected {count} times that don't fall")));
    }
    Ok(us)
}
