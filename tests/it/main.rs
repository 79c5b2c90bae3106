//! All integration tests are one binary; a file is a topic.
#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod budgets;
#[cfg(target_os = "linux")]
mod bytes;
mod cards;
#[cfg(target_os = "linux")]
mod commands;
#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod containers;
mod crowd;
#[cfg(target_os = "linux")]
mod cut_links;
#[cfg(target_os = "linux")]
mod dashboard;
mod day;
#[cfg(target_os = "linux")]
mod ends;
mod explain;
#[cfg(target_os = "linux")]
mod fake_nvml;
#[cfg(target_os = "linux")]
mod fake_nvml_abi;
#[cfg(target_os = "linux")]
mod far_cuts;
#[cfg(target_os = "linux")]
mod far_incidents;
mod filter;
#[cfg(target_os = "linux")]
mod frame_bytes;
#[cfg(target_os = "linux")]
mod groups;
#[cfg(target_os = "linux")]
mod help;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod hook;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(target_os = "linux")]
mod hosts;
#[cfg(target_os = "linux")]
mod incidents;
#[cfg(target_os = "linux")]
mod incidents_shown;
mod layers;
#[cfg(target_os = "linux")]
mod line;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod logs;
#[cfg(target_os = "linux")]
mod machine;
mod many_hosts;
mod model;
#[cfg(target_os = "linux")]
mod mouse;
mod namespace;
mod network;
#[cfg(target_os = "linux")]
mod nvidia_smi;
mod outside;
#[cfg(target_os = "linux")]
mod past;
mod pictures;
mod pooled;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod python_target;
#[cfg(target_os = "linux")]
mod recorded_hosts;
mod recorded_maps;
mod recording;
#[cfg(target_os = "linux")]
mod reduced;
#[cfg(target_os = "linux")]
mod reference;
#[cfg(target_os = "linux")]
mod remote;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_explained;
#[cfg(target_os = "linux")]
mod scene;
mod screens;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod slurm;
mod snapshot;
mod snapshot_shown;
#[cfg(target_os = "linux")]
mod ssh;
#[cfg(target_os = "linux")]
mod sshd;
mod stage;
#[cfg(target_os = "linux")]
mod tables;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod terminal_harness;
#[cfg(target_os = "linux")]
mod terminal_paths;
mod themes;
mod throng;
#[cfg(target_os = "linux")]
mod tmux;
#[cfg(target_os = "linux")]
mod torch_dump;
#[cfg(target_os = "linux")]
mod torch_live;
#[cfg(target_os = "linux")]
mod torch_target;
mod training;
#[cfg(target_os = "linux")]
mod trouble;
#[cfg(target_os = "linux")]
mod unattributed;
#[cfg(target_os = "linux")]
mod whatif;
mod whatif_shown;
mod wire;
