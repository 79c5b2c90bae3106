//! All integration tests are in one binary, with one file per topic.
#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod allocator_pause;
#[cfg(target_os = "linux")]
mod budgets;
#[cfg(target_os = "linux")]
mod candidates;
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
mod filter;
mod first_fix;
mod fragmentation;
#[cfg(target_os = "linux")]
mod frame_bytes;
#[cfg(target_os = "linux")]
mod gpu_figures;
mod groups;
#[cfg(target_os = "linux")]
mod help;
#[cfg(target_os = "linux")]
mod history;
mod holders;
#[cfg(target_os = "linux")]
mod holders_dump;
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
mod layers;
#[cfg(target_os = "linux")]
mod line;
#[cfg(target_os = "linux")]
mod live_incidents;
#[cfg(target_os = "linux")]
mod logs;
mod many_hosts;
mod memory_screen;
mod menus;
#[cfg(target_os = "linux")]
mod mouse;
mod ordinary_exceptions;
mod pictures;
#[cfg(target_os = "linux")]
mod probe;
mod process_limits;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod recorded_hosts;
mod recorded_maps;
mod recording;
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
mod screens;
#[cfg(all(target_os = "linux", feature = "serve"))]
mod serve;
mod server_advice;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod slurm;
mod snapshot;
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
mod themes;
#[cfg(target_os = "linux")]
mod tmux;
#[cfg(target_os = "linux")]
mod torch_dump;
#[cfg(target_os = "linux")]
mod torch_live;
#[cfg(target_os = "linux")]
mod unattributed;
mod unknown_fields;
#[cfg(target_os = "linux")]
mod untrusted_text;
#[cfg(target_os = "linux")]
mod whatif;
mod whatif_shown;
mod wire;
