//! The environment variables of gputop.

use crate::cli::log;
use crate::cli::settings::CONFIG_VARIABLE;
#[cfg(local)]
use crate::cli::settings::{CANDIDATES_VARIABLE, KERNEL_LOG_VARIABLE, LIBRARY_VARIABLE};

/// Environment variables that do not correspond to a setting, each with a description (no final period).
pub(super) const VARIABLES: &[(&str, &str)] = &[
    (CONFIG_VARIABLE, "Configuration file to read, as with --config"),
    #[cfg(local)]
    (LIBRARY_VARIABLE, "NVML library to load instead of the system's"),
    #[cfg(local)]
    (KERNEL_LOG_VARIABLE, "File to read the kernel log from instead of /dev/kmsg"),
    #[cfg(local)]
    (CANDIDATES_VARIABLE, "`0`: Do not follow new programs before the driver lists them"),
    (
        log::LEVEL_VARIABLE,
        "Minimum level of messages in gputop/gputop.log in the state directory: `error`, `warn`, `info`, `debug`",
    ),
    ("NO_COLOR", "Disables colours unless a theme is set"),
];
