//! Finds and follows the logs of watched processes, and reports excerpts that contain errors.
//!
//! When a process is first watched, `find` determines where its output goes and stores the current end of the log. Only
//! text written later is ever reported. `tail` reads the log as it grows. [`Scanner`](crate::diagnose::scan::Scanner)
//! searches the text for fixed strings from known error messages, to decide which text to send. Collectors do not use
//! any other part of `diagnose`. A match is sent once it stops growing (`batch`), redacted and sanitized (`sanitize`),
//! as an [`Observation::Log`](crate::model::event::Observation::Log). The last output of a process is sent when it
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
mod stream;
mod tail;
mod watcher;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

pub use self::log::ProcessExcerpt;
pub use self::watcher::Logs;

/// Paths and programs that are used to find logs. Tests replace them.
#[derive(Debug, Clone)]
pub struct Settings {
    pub proc_root: PathBuf,
    /// ID of the user that runs gputop.
    pub user: u32,
    /// True if the client that names log files is on another host. In that case, a named file must belong to the owner
    /// of the process, and is opened with that owner's permissions.
    pub is_remote: bool,
    pub docker_root: PathBuf,
    pub journalctl: PathBuf,
    pub tmux: PathBuf,
    /// Socket of the tmux server to which gputop's own pane belongs.
    pub tmux_socket: Option<PathBuf>,
    /// Directories with the sockets of other tmux servers.
    pub tmux_folders: Vec<PathBuf>,
}

impl Settings {
    /// Returns the settings for a system. `tmux` and `tmux_folder` are the values of the environment variables TMUX and
    /// TMUX_TMPDIR.
    pub fn new(proc_root: &Path, tmux: Option<&OsStr>, tmux_folder: Option<&OsStr>) -> Self {
        let user = geteuid().as_raw();
        let in_folder = |folder: &Path| folder.join(format!("tmux-{user}"));
        // `/tmp/tmux-1000/default,4711,0`
        let socket = tmux.map(|tmux| {
            let end = tmux.as_bytes().iter().position(|&b| b == b',');
            let socket = &tmux.as_bytes()[..end.unwrap_or(tmux.len())];
            PathBuf::from(OsStr::from_bytes(socket))
        });
        let folder = tmux_folder.map(Path::new);
        let folders = folder.into_iter().chain([Path::new("/tmp")]);
        Self {
            proc_root: proc_root.to_owned(),
            user,
            is_remote: false,
            docker_root: "/var/lib/docker/containers".into(),
            journalctl: "journalctl".into(),
            tmux: "tmux".into(),
            tmux_socket: socket,
            tmux_folders: folders.map(in_folder).collect(),
        }
    }
}
