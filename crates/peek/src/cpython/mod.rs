//! Reads the structures of CPython in the memory of another process, for its stacks (`python`) and for the names of
//! its tensors (`torch/holders`).
//!
//! ```text
//! maps ─► interpreter.rs: _PyRuntime, version, offsets ─► objects.rs: threads, frames, dictionaries, strings
//!                                                             └─► reader.rs: words, through a cache and within limits
//! ```

pub(crate) mod interpreter;
pub mod limits;
pub(crate) mod objects;
pub(crate) mod reader;
