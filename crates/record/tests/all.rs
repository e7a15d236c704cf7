//! Tests of the recorder and of the diagnoses, linked as one program.

mod advised_calls;
mod attached;
mod diagnoses;
mod evidence;
mod explain;
mod live;
mod over_read_parts;
mod program_causes;
mod sequential;
mod shared_fetches;
mod unseen;
