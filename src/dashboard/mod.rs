//! The state of one host or recording that a dashboard shows, without a terminal, theme or key.

pub mod emphasis;
pub mod filter;
pub mod fleet;
pub mod gpu_columns;
pub mod groups;
pub mod holder_columns;
pub mod holder_growth;
pub mod holders;
pub mod host_state;
pub mod incident_charts;
pub mod incidents;
pub mod memory_parts;
pub mod past_frames;
pub mod pools;
pub mod probes;
pub mod process_columns;
pub mod recording;
pub mod return_point;
pub mod rows;
pub mod signal_outcome;
pub mod sizes;
pub mod table;
pub mod tags;
pub mod time_axis;
pub mod time_window;
pub mod times;
