//! Tests of the diagnoses, on recordings written by the tests, linked as one program.

mod diagnoses;
mod explain;
mod live;
mod program_causes;
