#![doc = include_str!("../README.md")]
// The kernel's interfaces for reading other processes exist only in Linux.
#![cfg(target_os = "linux")]

pub mod bfc;
pub mod clock;
pub mod cpython;
pub mod memory;
pub mod nccl;
pub mod process;
pub mod python;
mod scalar_types;
pub mod torch;
