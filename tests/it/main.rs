//! Tests that start processes, in one binary with one file per topic. `tests/pure` holds those that start none.
#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod allocator_pause;
#[cfg(target_os = "linux")]
mod bfc_live;
#[cfg(target_os = "linux")]
mod budgets;
#[cfg(target_os = "linux")]
mod candidates;
#[cfg(target_os = "linux")]
mod cards;
#[cfg(target_os = "linux")]
mod commands;
#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod containers;
mod copy_and_save;
#[cfg(target_os = "linux")]
mod dashboard;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod driver_failures;
#[cfg(target_os = "linux")]
mod exits;
mod explain;
#[cfg(target_os = "linux")]
mod fake_nvml_abi;
#[cfg(target_os = "linux")]
mod frame_bytes;
#[cfg(target_os = "linux")]
mod gpu_figures;
#[cfg(target_os = "linux")]
mod groups;
#[cfg(target_os = "linux")]
mod help;
#[cfg(target_os = "linux")]
mod history;
#[cfg(target_os = "linux")]
mod hook;
#[cfg(target_os = "linux")]
mod hostile_input;
#[cfg(target_os = "linux")]
mod hostile_processes;
#[cfg(target_os = "linux")]
mod incident_scene;
#[cfg(target_os = "linux")]
mod incidents;
#[cfg(target_os = "linux")]
mod incidents_shown;
#[cfg(target_os = "linux")]
mod keyboard;
#[cfg(target_os = "linux")]
mod line;
#[cfg(target_os = "linux")]
mod live_incidents;
#[cfg(target_os = "linux")]
mod logs;
#[cfg(target_os = "linux")]
mod machines;
mod many_hosts;
#[cfg(target_os = "linux")]
mod mouse;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod recorded_holders;
#[cfg(target_os = "linux")]
mod recorded_hosts;
mod recorded_maps;
#[cfg(target_os = "linux")]
mod redaction;
#[cfg(target_os = "linux")]
mod reference;
#[cfg(target_os = "linux")]
mod remote;
#[cfg(target_os = "linux")]
mod remote_disconnect;
#[cfg(target_os = "linux")]
mod remote_incidents;
#[cfg(target_os = "linux")]
mod remote_nvidia_smi;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_explained;
#[cfg(all(target_os = "linux", feature = "serve"))]
mod serve;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod slurm;
#[cfg(target_os = "linux")]
mod snapshot;
#[cfg(target_os = "linux")]
mod snapshot_shown;
#[cfg(target_os = "linux")]
mod ssh;
#[cfg(target_os = "linux")]
mod summary;
mod support;
#[cfg(target_os = "linux")]
mod terminal_harness;
#[cfg(target_os = "linux")]
mod terminal_paths;
#[cfg(target_os = "linux")]
mod tmux;
#[cfg(target_os = "linux")]
mod torch_live;
#[cfg(target_os = "linux")]
mod unattributed;
#[cfg(target_os = "linux")]
mod untrusted_text;
#[cfg(target_os = "linux")]
mod whatif;
#[cfg(target_os = "linux")]
mod whatif_shown;
#[cfg(target_os = "linux")]
mod why;
mod wire;
