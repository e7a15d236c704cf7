//! Tests of recordings, traces and their replay, linked as one program.

mod merge;
mod recording;
mod replay;
