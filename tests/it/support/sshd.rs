//! A real sshd on loopback with its own keys, configuration and home, and a client that has a name for it.
#![allow(clippy::print_stdout)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::executable;
use super::fake_machine::wait_until;
use super::fake_nvml::FakeNvml;
use super::skip::available;
use super::terminal::Launch;

const SSHD: &str = "/usr/sbin/sshd";

/// The server, its files, and the client's files.
pub struct Sshd {
    server: Child,
    folder: tempfile::TempDir,
    address: String,
    port: u16,
}

/// Returns true if a server and a client can run here. Otherwise the test is skipped, or fails if nothing may be
/// skipped.
pub fn is_available() -> bool {
    let is_available = Path::new(SSHD).exists() && Command::new("ssh").arg("-V").output().is_ok();
    available(is_available, "sshd or ssh is not here")
}

fn ssh_keygen(file: &Path) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file);
    assert!(command.status().unwrap().success());
}

/// Writes a file that only its owner can read, as ssh requires.
fn write(path: PathBuf, text: &str) {
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

impl Sshd {
    /// Starts a server with further lines of configuration. Its users see the machine `fake`.
    pub fn start(fake: &FakeNvml, more: &str) -> Self {
        Self::start_on("127.0.0.1", Command::new("env"), fake, more)
    }

    /// Starts a server on an address, through a command that runs the one that follows it.
    pub fn start_on(address: &str, mut through: Command, fake: &FakeNvml, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ssh_keygen(&at("host"));
        ssh_keygen(&at("user"));
        fs::copy(at("user.pub"), at("authorized")).unwrap();
        for name in ["home", "bin", "client"] {
            fs::create_dir(at(name)).unwrap();
        }
        // The directory that sshd needs for privilege separation when root runs it.
        if nix::unistd::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let port = free_port();
        let mut environment =
            format!("HOME={} PATH={}:/usr/bin:/bin", at("home").display(), at("bin").display());
        for (name, value) in fake.env() {
            environment += &format!(" {name}={}", value.to_string_lossy());
        }
        let configuration = format!(
            "Port {port}\nListenAddress {address}\nHostKey {host}\nPidFile none\nAuthorizedKeysFile {authorized}\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n\
             PermitRootLogin yes\nSetEnv {environment}\n{more}\n",
            host = at("host").display(),
            authorized = at("authorized").display(),
        );
        write(at("sshd.conf"), &configuration);
        let server = through.arg(SSHD).args(["-D", "-e", "-f"]).arg(at("sshd.conf"));
        server.stderr(fs::File::create(at("sshd.log")).unwrap());
        let server = server.stdin(Stdio::null()).spawn().unwrap();
        let sshd = Self { server, folder, address: address.to_owned(), port };
        sshd.write_client("");
        wait_until("sshd", || std::net::TcpStream::connect((address, port)).is_ok());
        sshd
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Writes the client's configuration: the host `far`, and these further lines. The client reads nothing else, since
    /// its `ssh` is a script that names this file.
    pub fn write_client(&self, more: &str) {
        let configuration = format!(
            "{more}\n{}\nHost *\n{} IdentitiesOnly yes\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n\
             \x20LogLevel ERROR\n",
            self.client_of("far"),
            self.identity(),
        );
        write(self.at("ssh.conf"), &configuration);
        let script =
            format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", self.at("ssh.conf").display());
        executable::write(self.at("client/ssh"), &script);
    }

    /// Returns a client's configuration of this server under a name.
    pub fn client_of(&self, name: &str) -> String {
        let Self { address, port, .. } = self;
        format!("Host {name}\n HostName {address}\n Port {port}\n{}", self.identity())
    }

    /// Returns the lines that name the client's key and the server's.
    fn identity(&self) -> String {
        let key = fs::read_to_string(self.at("host.pub")).unwrap();
        write(self.at("known"), &format!("[{}]:{} {key}", self.address, self.port));
        let [user, known] = ["user", "known"].map(|name| self.at(name));
        format!(" IdentityFile {}\n UserKnownHostsFile {}\n", user.display(), known.display())
    }

    /// Encrypts the client's key with this passphrase.
    pub fn lock_key(&self, passphrase: &str) {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-p", "-P", "", "-N", passphrase, "-f"]);
        assert!(command.arg(self.at("user")).status().unwrap().success());
    }

    /// Installs gputop where the remote shell finds it.
    pub fn install(&self) {
        let folder = self.at("home/.local/bin");
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gputop"), folder.join("gputop")).unwrap();
    }

    /// Returns the variables that the local gputop needs to find this client and a folder for its sockets.
    pub fn local_environment(&self) -> [(&'static str, std::ffi::OsString); 2] {
        let path = format!("{}:/usr/bin:/bin", self.at("client").display());
        // Socket paths must be short.
        let runtime = self.at("r");
        fs::create_dir_all(&runtime).unwrap();
        [("PATH", path.into()), ("XDG_RUNTIME_DIR", runtime.into())]
    }

    /// Returns a dashboard that can connect to the remote host.
    pub fn dashboard(&self) -> Launch {
        Launch::gputop()
            .envs(self.local_environment())
            .env("TZ", "UTC")
            .args(["--interval", "250ms"])
            .size(40, 120)
    }

    /// Returns the PIDs of the server's current connections.
    pub fn connections(&self) -> Vec<u32> {
        children(self.server.id())
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // Shared connections would stay open for another minute.
        for connection in self.connections() {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(connection.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
