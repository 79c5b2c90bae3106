//! The state of one host or recording that a dashboard shows, without a terminal, theme or key.

pub mod emphasis;
pub mod fleet;
pub mod holder_growth;
pub mod incident_charts;
pub mod incidents;
pub mod memory_parts;
pub mod past_frames;
pub mod pools;
pub mod probes;
pub mod return_point;
pub mod sizes;
pub mod table;
pub mod time_window;
pub mod times;
