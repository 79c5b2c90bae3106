//! A sample for other programs and for people without a screen. Each format is one file and one function.

pub mod csv;
pub mod json;
pub mod table;
