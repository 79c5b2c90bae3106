//! Compares gputop with the real CUDA caching allocator of every torch release in the test bed.
//!
//! tests/fake_cuda builds the bed: the `libc10_cuda.so` of a wheel in a small process, with a CUDA runtime that only
//! assigns addresses. A test drives such a process into a state, in which PyTorch reports its own statistics and blocks
//! (`getDeviceStats`, `snapshot`). The real `gputop allocator PID --json --blocks` must report the same.
//!
//! ```sh
//! versions=$(tests/fake_cuda/fetch.py target/bed)
//! tests/fake_cuda/build.sh target/bed $versions
//! GPUTOP_BED=target/bed GPUTOP_BED_VERSIONS="$versions" cargo test --test bed -- --nocapture
//! ```
//!
//! | environment | |
//! |---|---|
//! | `GPUTOP_BED` | the bed |
//! | `GPUTOP_BED_VERSIONS` | the releases to use; unset: all that are built there |
//! | `GPUTOP_BED_TORCH` | folders in the bed with whole torch wheels (tests/fake_cuda/install_torch.py); unset: all there |
//! | `GPUTOP_BED_READER` | another program to be put to the test |
//! | `GPUTOP_BED_RECORD` | a folder for the dumps that `record_dumps` in ranks.rs writes |
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod compare;
#[path = "../it/support/deadline.rs"]
#[allow(dead_code)]
mod deadline;
mod differential;
#[path = "../it/support/executable.rs"]
mod executable;
mod failed_allocation;
#[path = "../it/support/fake_machine.rs"]
#[allow(dead_code)]
mod fake_machine;
#[path = "../it/support/fake_nvml.rs"]
mod fake_nvml;
mod harness;
mod holders;
#[path = "../../crates/peek/tests/pure/holders_truth.rs"]
mod holders_truth;
mod idle;
mod journal;
#[path = "../it/support/namespace.rs"]
mod namespace;
mod races;
mod ranks;
mod reader;
#[path = "../it/support/skip.rs"]
mod skip;
#[path = "../it/support/sshd.rs"]
#[allow(dead_code)]
mod sshd;
mod stacks;
#[path = "../it/support/terminal.rs"]
mod terminal;
mod two_hosts;
mod unusual_targets;
mod whatif;
