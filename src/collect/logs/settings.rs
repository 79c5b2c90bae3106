//! Paths and programs for the search for logs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Paths and programs that are used to find logs. Tests replace them.
#[derive(Debug, Clone)]
pub struct LogSettings {
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

impl LogSettings {
    /// Returns the settings for a system. `tmux` and `tmux_folder` are the values of the environment variables TMUX and
    /// TMUX_TMPDIR.
    pub fn new(proc_root: &Path, tmux: Option<&OsStr>, tmux_folder: Option<&OsStr>) -> Self {
        let user = geteuid().as_raw();
        // `/tmp/tmux-1000/default,4711,0`
        let socket = tmux.map(|tmux| {
            let end = tmux.as_bytes().iter().position(|&b| b == b',');
            let socket = &tmux.as_bytes()[..end.unwrap_or(tmux.len())];
            PathBuf::from(OsStr::from_bytes(socket))
        });
        let folders = tmux_folder.map(Path::new).into_iter().chain([Path::new("/tmp")]);
        Self {
            proc_root: proc_root.to_owned(),
            user,
            is_remote: false,
            docker_root: "/var/lib/docker/containers".into(),
            journalctl: "journalctl".into(),
            tmux: "tmux".into(),
            tmux_socket: socket,
            tmux_folders: folders.map(|folder| folder.join(format!("tmux-{user}"))).collect(),
        }
    }
}
