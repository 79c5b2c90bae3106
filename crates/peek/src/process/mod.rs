//! Reads the files of another process in `/proc` that every user may read.

pub mod access;
pub mod load;
pub mod stat;
pub mod statm;
