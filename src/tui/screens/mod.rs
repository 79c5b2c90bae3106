//! The screens. Each is in a file or folder of its own and implements [`Screen`](super::screen::Screen).

pub mod fleet;
pub mod gpu;
pub mod gpu_table;
pub mod holder_group;
mod holder_screen;
pub mod holders;
pub mod incident;
pub mod incidents;
mod list;
pub mod log;
pub mod memory;
pub mod overview;
pub mod probe;
pub mod process;
pub mod process_table;
pub mod ranks;
pub mod small_overview;
pub mod snapshot;
pub mod snapshot_comparison;
mod strips;
pub mod unreadable;
pub mod whatif;

use super::screen::ScreenDef;

pub const SCREENS: &[&ScreenDef] = &[
    &overview::DEF,
    &gpu::DEF,
    &process::DEF,
    &memory::DEF,
    &holders::DEF,
    &holder_group::DEF,
    &log::DEF,
    &unreadable::DEF,
    &ranks::DEF,
    &incident::DEF,
    &incidents::DEF,
    &fleet::DEF,
    &probe::DEF,
    &snapshot::DEF,
    &snapshot_comparison::DEF,
    &whatif::DEF,
];
