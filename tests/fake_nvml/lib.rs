//! A scriptable `libnvidia-ml.so.1`: NVML's symbols and ABI over a scenario file.
//!
//! gputop loads it through its own `dlopen` path, so tests cross every layer that a real driver crosses, and can
//! show what no machine at hand can: MIG, a lost GPU, a driver that is not there, a call that never returns,
//! values that cannot be true.
//!
//! | environment | |
//! |---|---|
//! | `FAKE_NVML_SCENARIO` | the scenario (TOML, `scenario/`), read again whenever it changes. Unset: `scenario.toml` beside this library |
//! | `FAKE_NVML_CALLS` | a file that counts the calls, always current (`log.rs`). Unset: `calls.txt` beside this library, if it exists |
//!
//! A copy of the library beside a `scenario.toml` has state of its own, so one process can load many.
//!
//! What is not exported (clocks to set, vGPU, accounting, units, GPM samples, the setters of every kind) gputop
//! does not call; a wrapper that asks for it gets the same "symbol not found" that an older driver gives.
#![cfg(target_os = "linux")]
// The C ABI cannot be spoken without; each block says what it relies on.
#![allow(unsafe_code)]
// The contract of every exported function is NVML's own.
#![allow(clippy::missing_safety_doc)]
// NVML's names.
#![allow(non_snake_case)]
// Codes, bits and sizes cross between C types of NVML's choosing.
#![allow(clippy::cast_possible_truncation)]

#[macro_use]
mod call;
mod handle;
mod log;
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
mod nvlink;
mod pcie;
mod power;
mod process;
mod system;
mod thermal;
mod utilization;
