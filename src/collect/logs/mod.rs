//! Finds and follows the logs of watched processes, and reports excerpts that contain errors.
//!
//! When a process is first watched, `find` determines where its output goes and stores the current end of the log. Only
//! text written later is ever reported. `tail` reads the log as it grows. [`Scanner`](gputop_explain::scan::Scanner)
//! searches the text for fixed strings from known error messages, to decide which text to send. Collectors do not use
//! any other part of `gputop-explain`. A match is sent once it stops growing (`batch`), redacted and sanitized (`sanitize`),
//! as an [`Observation::Log`](gputop_model::event::Observation::Log). The last output of a process is sent when it
//! exits or an allocation fails.
//!
//! Reading a file can hang forever, for example if a file server is down. Each log therefore has its own thread
//! (`watcher`), so that a hung thread does not affect other logs.
//!
//! Example: the driver lists `python train.py > train.log 2>&1`; `/proc/418/fd/1` is `train.log`, 4,711 bytes long. The
//! log grows by a traceback of 2 KiB, and 200 ms later an excerpt at offset 4,711 is reported for process 418.

mod batch;
mod command;
mod content;
mod docker;
mod find;
mod journal;
mod log;
mod pane;
mod pipe;
mod sanitize;
mod settings;
mod stream;
mod tail;
mod watcher;

pub use self::log::ProcessExcerpt;
pub use self::settings::LogSettings;
pub use self::watcher::Logs;
