//! The state of one host or recording that a dashboard shows, without a terminal, theme or key.

pub mod fleet;
pub mod incident_charts;
pub mod incidents;
pub mod past_frames;
pub mod pools;
pub mod probes;
pub mod return_point;
pub mod sizes;
pub mod time_window;
