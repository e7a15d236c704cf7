//! The store over other stores: its behaviour, the suite of `object_store`, access patterns in
//! virtual time, and random operations against a plain store.

mod behaviour;
mod failures;
mod lengths;
mod patterns;
mod random;
mod suite;
mod support;
mod versions;
