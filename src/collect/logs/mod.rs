//! The logs of watched processes: found by themselves, followed, and told of when they hold an error.
//!
//! A process is attached to when it is first watched (`find`: where its output goes), and the end of its log at that
//! moment noted: only what is written later is of this process's present, and only that is ever told. From then on
//! a log is read as it grows (`tail`), searched for the literals that signatures hold
//! ([`Scanner`](crate::diagnose::scan::Scanner), the one part of `diagnose` that a collector knows: it is what tells
//! which text is worth sending at all), and what was found is sent once it stops growing (`group`), without secrets
//! and harmless (`shown`), as an [`Observation::Log`](crate::model::event::Observation::Log). What a process wrote
//! last is sent when it ends or an allocation failed.
//!
//! Reading a file can hang for ever (a file server that is gone), so it happens on a thread that is left behind when
//! it does: that log is passed over until its thread comes back, all others go on on a new one (`board`).
//!
//! Example: `python train.py > train.log 2>&1` is listed by the driver; `/proc/418/fd/1` is `train.log`, 4,711 bytes
//! long. It grows by a traceback of 2 KiB, and 200 ms later an excerpt at offset 4,711 is told, of process 418.

mod batch;
mod command;
mod content;
mod docker;
mod find;
mod journal;
mod log;
mod pane;
mod pipe;
mod piped_log;
mod sanitize;
mod tail;
mod watcher;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

pub use self::log::Excerpted;
pub use self::watcher::Logs;

/// Where to look, and by which programs: a test has its own.
#[derive(Debug, Clone)]
pub struct Settings {
    pub proc_root: PathBuf,
    /// The user who runs this.
    pub user: u32,
    /// True if the client that names log files is on another host. Then a named file must belong to the owner of the
    /// process, and is opened with that owner's rights.
    pub is_remote: bool,
    pub docker_root: PathBuf,
    pub journalctl: PathBuf,
    pub tmux: PathBuf,
    /// The server of the pane that this runs in.
    pub tmux_socket: Option<PathBuf>,
    /// Where sockets of other servers are.
    pub tmux_folders: Vec<PathBuf>,
}

impl Settings {
    /// `tmux` is the variable of that name, `tmux_folder` TMUX_TMPDIR.
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

/// Starts following; `tell` is called on a thread of this and should only pass the excerpt on.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    settings: Settings,
    tell: impl Fn(Excerpted) + Send + Sync + 'static,
) -> io::Result<Logs> {
    Logs::start(settings, Box::new(tell))
}
