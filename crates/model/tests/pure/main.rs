//! Tests of the JSON that other versions of gputop write and read.
#![allow(clippy::unwrap_used)]

mod unknown_fields;
