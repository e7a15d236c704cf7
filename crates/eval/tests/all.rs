//! Tests of the evaluation through its public API, linked as one program.

mod decoders;
mod policy_matrix;
mod recorded_kernel;
mod recorded_machine;
mod reproduce;
mod speculation;
