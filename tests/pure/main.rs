//! Tests that start no process and load no library, in one binary with one file per topic. They are part of the first tier:
//! `cargo test --lib --test pure`.
#![allow(clippy::unwrap_used)]

mod explanations;
mod filter;
mod groups;
mod help;
#[cfg(target_os = "linux")]
mod history;
mod holders;
mod layers;
mod memory_screen;
mod menus;
mod pictures;
mod printed_tables;
mod process_limits;
mod ranks;
mod recording;
mod screen_sizes;
mod screens;
mod snapshot_shown;
mod stability;
mod support;
mod themes;
mod whatif_shown;
mod why;
