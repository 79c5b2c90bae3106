//! Tests with recorded memory of processes with many releases of Python and PyTorch.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod arrays_truth;
mod bfc_dump;
mod cupy_dump;
mod holders_dump;
mod holders_truth;
mod nccl_dump;
mod torch_dump;
mod words;
