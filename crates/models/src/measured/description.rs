//! Measurement of a storage device by `readpath devices measure`, and its TOML form.
//!
//! ```toml
//! name = "…"
//! bytes = 1_073_741_824
//! request_bytes_max = 1_048_576
//! alignment_bytes = 512
//! rotational = 0                  # 1: near requests are cheaper than far ones
//! depths = [1, 2, 4]              # queue depths, increasing from 1
//! depth_max = 64                  # largest queue depth that is used
//! probe_bytes = 4096              # size of the requests in near and spread
//! [[random]]                      # random requests, one block per size
//! bytes = 4096
//! us = [90.0, 92.0, 97.5]         # mean response time at the first depths
//! [[following]]                   # requests that continue the last one
//! bytes = 4096
//! us = [12.0, 12.0, 14.0]
//! [near]                          # a single request near the end of the last
//! bytes = [-98_304, 98_304]       # distance from that end, increasing
//! us = [88.0, 70.0]
//! [streams]                       # streams in rotation at queue depth 1
//! count = 8
//! bytes = 131_072
//! us = 60.0
//! [spread]                        # a single random request: 0, 10, 50, 90, 99, 100 %
//! us = [80.0, 84.0, 88.0, 100.0, 140.0, 300.0]
//! ```

use std::fmt::Write as _;

use crate::fields::{FieldBlock, FileError, NumberBounds, bounds};

/// Measured storage. All times are means in µs.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageDescription {
    /// Name of the storage.
    pub name: String,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Largest request in bytes.
    pub request_bytes_max: u64,
    /// Alignment of offsets and sizes in bytes: 512 or 4096.
    pub alignment_bytes: u64,
    /// True if near requests are cheaper than far ones.
    pub is_rotational: bool,
    /// Measured queue depths, increasing from 1.
    pub depths: Vec<u32>,
    /// Largest queue depth that is used.
    pub depth_max: u32,
    /// Request size in bytes of `near` and `spread_us`.
    pub probe_bytes: u64,
    /// Response times at random positions, by increasing size.
    pub random: Vec<SizeCosts>,
    /// Response times of requests that continue the last one, by increasing size.
    pub following: Vec<SizeCosts>,
    /// Response times near the end of the last request, by increasing distance.
    pub near: Vec<NearResponse>,
    /// Response times of interleaved streams.
    pub streams: StreamCosts,
    /// Quantiles of the response time of a single random request: 0, 10, 50, 90, 99 and 100 %.
    pub spread_us: Vec<f64>,
}

/// Response times for one request size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCosts {
    /// Request size in bytes.
    pub bytes: u64,
    /// Mean response times in µs at the first measured depths.
    pub us: Vec<f64>,
}

/// Response time of a request near the end of the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearResponse {
    /// Distance in bytes from that end. Negative before it.
    pub distance: i64,
    /// Mean response time in µs.
    pub us: f64,
}

/// Response time when several streams are read in rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamCosts {
    /// Number of streams.
    pub count: u32,
    /// Request size in bytes.
    pub bytes: u64,
    /// Mean response time in µs.
    pub us: f64,
}

/// Valid request sizes.
const REQUEST_SIZES: NumberBounds = bounds(512.0, 67_108_864.0, "bytes");
/// Valid response times.
pub(super) const US: NumberBounds = bounds(0.01, 1e8, "µs");
/// Valid queue depths.
const DEPTH: NumberBounds = bounds(1.0, 4096.0, "requests");

impl StorageDescription {
    /// Reads the description from a parsed file.
    ///
    /// # Errors
    /// Fails when a field is missing, unknown, out of bounds, or contradicts another field.
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
        // The response times of the field `key`, by increasing request size.
        let read_all_sizes = |key: &str| -> Result<Vec<SizeCosts>, FileError> {
            let blocks = root.blocks(key)?.into_iter();
            let size_costs: Vec<SizeCosts> = blocks
                .map(|block| read_size_costs(block, depths.len()))
                .collect::<Result<_, _>>()?;
            let sizes: Vec<u64> = size_costs.iter().map(|costs| costs.bytes).collect();
            if size_costs.is_empty() || !is_rising(&sizes) {
                return Err(root.error(key, "expected blocks whose `bytes` rise".to_owned()));
            }
            Ok(size_costs)
        };
        let description = StorageDescription {
            name: root.required_text("name")?.to_owned(),
            bytes: root.integer("bytes", bounds(4096.0, 1e18, "bytes"))?,
            request_bytes_max: root.integer("request_bytes_max", REQUEST_SIZES)?,
            alignment_bytes,
            is_rotational: root.switch_or("rotational", false)?,
            depth_max: root.integer("depth_max", DEPTH)? as u32,
            probe_bytes: root.integer("probe_bytes", REQUEST_SIZES)?,
            random: read_all_sizes("random")?,
            following: read_all_sizes("following")?,
            near: read_near(root.block("near")?)?,
            streams: read_streams(root.block("streams")?)?,
            spread_us: read_spread(root.block("spread")?)?,
            depths,
        };
        root.reject_unread()?;
        Ok(description)
    }

    /// Formats the description so that [`StorageDescription::of`] can read it, with times rounded
    /// to 0.01 µs. Each line of `head` becomes a comment.
    pub fn to_toml(&self, head: &[String]) -> String {
        let mut text = String::new();
        for line in head {
            text += &format!("# {}\n", line.replace(char::is_control, ""));
        }
        let format_list = |times_us: &[f64]| {
            let items: Vec<String> = times_us.iter().map(|us| format!("{us:.2}")).collect();
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
        for (kind, comment, size_costs) in [
            ("random", "Requests at random places: µs of one, by depth.", &self.random),
            ("following", "Requests that go on where the last one ended.", &self.following),
        ] {
            let _ = write!(text, "\n# {comment}\n");
            for SizeCosts { bytes, us } in size_costs {
                let _ = write!(text, "[[{kind}]]\nbytes = {bytes}\nus = {}\n", format_list(us));
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
            format_list(&us),
            format_list(&self.spread_us)
        );
        text
    }
}

/// Quotes a text for TOML. Control characters are removed.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace(char::is_control, ""))
}

/// Returns true if the values strictly increase.
fn is_rising<T: PartialOrd>(values: &[T]) -> bool {
    values.windows(2).all(|pair| pair[0] < pair[1])
}

/// Reads the response times of one request size at the first depths: some or all of `depth_count`.
fn read_size_costs(block: &FieldBlock, depth_count: usize) -> Result<SizeCosts, FileError> {
    let costs =
        SizeCosts { bytes: block.integer("bytes", REQUEST_SIZES)?, us: block.numbers("us", US)? };
    if costs.us.is_empty() || costs.us.len() > depth_count {
        let problem =
            format!("expected a time for each of `depths`, of which there are {depth_count}");
        return Err(block.error("us", problem));
    }
    block.reject_unread()?;
    Ok(costs)
}

/// Reads the table `near`: distances in bytes from the end of the last request, ascending and not
/// 0, and the response time in µs at each.
fn read_near(block: &FieldBlock) -> Result<Vec<NearResponse>, FileError> {
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

/// Reads the table `streams`.
fn read_streams(block: &FieldBlock) -> Result<StreamCosts, FileError> {
    let streams = StreamCosts {
        count: block.integer("count", bounds(1.0, 1024.0, "streams"))? as u32,
        bytes: block.integer("bytes", REQUEST_SIZES)?,
        us: block.number("us", US)?,
    };
    block.reject_unread()?;
    Ok(streams)
}

/// Reads the table `spread`: one response time in µs for each of the quantiles.
fn read_spread(block: &FieldBlock) -> Result<Vec<f64>, FileError> {
    let us = block.numbers("us", US)?;
    block.reject_unread()?;
    if us.len() != super::QUANTILE_SHARES.len() || us.windows(2).any(|pair| pair[0] > pair[1]) {
        let count = super::QUANTILE_SHARES.len();
        return Err(block.error("us", format!("expected {count} times that don't fall")));
    }
    Ok(us)
}
