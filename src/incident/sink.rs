//! The store for incidents, and the commands that run for them.

use gputop_model::Millis;

use super::notifications::Notifications;
use super::store::Store;

/// The incident store and the user's commands to run for incidents and processes.
#[derive(Debug, Clone)]
pub struct IncidentSink {
    pub store: Store,
    /// The user's shell command, run with the incident's JSON on its standard input.
    pub on_incident: Option<String>,
    /// Time after which the command runs for a process that holds GPU memory without using the GPU.
    pub on_idle: Option<Millis>,
    /// True if the command runs for each GPU process that exits.
    pub on_exit: bool,
    /// True if names of tensors may be stored.
    pub record_names: bool,
    pub notifications: Notifications,
}
