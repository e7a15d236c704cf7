//! Tests of recordings, traces and their replay, linked as one program.

#[path = "cfq/main.rs"]
mod cfq;
mod merge;
mod recording;
mod replay;
