//! The names of the subcommands, for error messages about words that resemble one.

/// Names of all visible subcommands. Listed here so that files below `cli/mod.rs` need not name it; a test compares the
/// list with the commands.
pub const SUBCOMMANDS: &[&str] = &[
    "once",
    "line",
    "ranks",
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
    "why",
    "run",
    "hook",
    "explain",
    "incidents",
    "cards",
    "doctor",
    "config",
    "generate",
];
