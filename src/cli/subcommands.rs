//! The names of the subcommands, for error messages about words that resemble one.

/// All visible subcommands. A list of names, because what the command line accepts depends on the settings.
pub const SUBCOMMANDS: &[&str] = &[
    "once",
    "line",
    "record",
    #[cfg(feature = "serve")]
    "serve",
    "replay",
    "demo",
    "allocator",
    "memory",
    "probe",
    "snapshot",
    "summary",
    "whatif",
    "run",
    "hook",
    "explain",
    "incidents",
    "cards",
    "doctor",
    "config",
    "generate",
];
