//! A scriptable `libnvidia-ml.so.1`: NVML's symbols and ABI, with values from a scenario file.
//!
//! gputop loads it with `dlopen` like the real library, so tests cover the same layers. It can also simulate conditions
//! that our machines do not have: MIG, a lost GPU, a missing driver, a call that never returns, and impossible values.
//!
//! | environment | |
//! |---|---|
//! | `FAKE_NVML_SCENARIO` | the scenario (TOML, `scenario/`), read again whenever it changes. Unset: `scenario.toml` beside this library |
//! | `FAKE_NVML_CALLS` | a file that counts the calls, always current (`log.rs`). Unset: `calls.txt` beside this library, if it exists |
//!
//! A copy of the library next to a `scenario.toml` has its own state, so one process can load several copies.
//!
//! Functions that gputop does not call are not exported (settable clocks, vGPU, accounting, units, GPM samples, setters
//! of every kind). A wrapper that looks one up gets the same "symbol not found" as from an older driver.
#![cfg(target_os = "linux")]
// The C ABI requires unsafe code. Each block states its assumptions.
#![allow(unsafe_code)]
// Every exported function has NVML's own contract.
#![allow(clippy::missing_safety_doc)]
// NVML's names.
#![allow(non_snake_case)]
// Codes, bits and sizes are converted between the C types that NVML uses.
#![allow(clippy::cast_possible_truncation)]

#[macro_use]
mod call;
mod handle;
mod log;
#[macro_use]
mod scenario;
mod spin;
mod state;
mod wobble;

mod clocks;
mod ecc;
mod event;
mod field;
mod gpm;
mod identity;
mod memory;
mod mig;
mod number;
mod nvlink;
mod pcie;
mod power;
mod process;
mod system;
mod thermal;
mod utilization;
