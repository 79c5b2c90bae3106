//! Incidents on a remote host, observed or not: each is shown once, over a real sshd, from the store that a real
//! `gputop run` wrote there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::incidents::{User, run_in};
use crate::run_explained::{EXPLAINED, OOM, OOM_KILLED};
use crate::support::fake_machine::{Guarded, gputop, is_host, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::sshd::{self, Sshd};
use crate::support::terminal::{Launch, Terminal};

/// The remote user and the local one.
pub struct RemoteHost {
    pub sshd: Sshd,
    pub near: User,
}

impl RemoteHost {
    pub fn start(fake: &FakeNvml) -> Self {
        let sshd = Sshd::start(fake, "");
        sshd.install();
        Self { sshd, near: User::new() }
    }

    pub fn state(&self) -> PathBuf {
        self.sshd.at("home/.local/state")
    }

    /// Runs a failing script with `gputop run` on the remote host.
    pub fn fail(&self, script: &str) {
        fs::create_dir_all(self.state()).unwrap();
        assert!(!run_in(&self.state(), script, &[]).status.success());
    }

    pub fn dashboard(&self) -> Terminal {
        let launch = self.sshd.dashboard().args(["far"]);
        launch.env("XDG_STATE_HOME", self.near.0.path()).start()
    }

    pub fn cut(&self) {
        for connection in self.sshd.connections() {
            kill(Pid::from_raw(connection.cast_signed()), Signal::SIGKILL).unwrap();
        }
    }

    /// Returns the incidents in the local store.
    pub fn local_incidents(&self) -> Vec<Value> {
        let (_, out, _) = self.near.incidents(["list", "--json"]);
        let reported: Value = serde_json::from_str(&out).unwrap();
        reported["incidents"].as_array().unwrap().clone()
    }
}

/// Returns each file below a folder, with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap() {
            about if about.is_dir() => all.extend(files(&path)),
            about if about.is_file() => drop(all.insert(path.clone(), fs::read(path).unwrap())),
            _ => {}
        }
    }
    all
}

fn oom() -> String {
    format!("echo '{OOM}' >&2; exit 3")
}

fn is_calm(screen: &vt100::Screen) -> bool {
    let shown = screen.contents();
    shown.contains("live") && shown.contains("No incidents since")
}

#[test]
fn unobserved_remote_failure_is_explained_once_and_store_unchanged() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let far = RemoteHost::start(&fake);
    far.fail(&oom());
    let before = files(&far.sshd.at("home"));
    let terminal = far.dashboard();
    terminal.wait_text(&format!("{EXPLAINED}: "));
    terminal.send("d");
    terminal.wait_text("expandable_segments:True");
    // The end may be below the last row.
    terminal.send("\x1b[6~");
    terminal.wait_text("WHEN  ");
    terminal.send("\x1b");
    terminal.wait_for(is_calm, "the overview without it");
    // Another connection starts with the same list.
    far.cut();
    terminal.wait_text("no link");
    terminal.wait_for(is_calm, "the link without it");
    let local_incidents = far.local_incidents();
    assert_eq!(local_incidents.len(), 1, "{local_incidents:?}");
    assert_eq!(files(&far.sshd.at("home")), before);

    // The local copy of the incident is complete.
    let uid = local_incidents[0]["uid"].as_str().unwrap();
    let file = |state: &Path| {
        let file = state.join(format!("gputop/incidents/{uid}.json"));
        serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap()
    };
    assert_eq!(file(&far.state()), file(far.near.0.path()));

    // Incidents that happen while connected also arrive. Another dashboard shows neither of them again.
    far.fail(OOM_KILLED);
    terminal.wait_text("KILLED BY SIGNAL 9");
    terminal.send("d");
    terminal.wait_text("host memory limit");
    terminal.send("q");
    wait_until("the note of what was read", || {
        let state = far.near.0.path().join("gputop/incidents/state.json");
        let state: Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
        state["read"].as_object().unwrap().len() == 2
    });
    drop(terminal);
    let terminal = far.dashboard();
    terminal.wait_text("SM%");
    terminal.wait_for(is_calm, "nothing new");
    terminal.send("i");
    terminal.wait_text("HEADLINE");
    terminal.wait_text(EXPLAINED);
    assert_eq!(far.local_incidents().len(), 2);
    assert!(!far.state().join("gputop/incidents/state.json").exists());
}

#[test]
fn incident_read_on_the_remote_host_is_listed_without_notice() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let far = RemoteHost::start(&fake);
    far.fail(&oom());
    let store = gputop::incident::Store::at(&far.state().join("gputop/incidents"));
    let listed = store.list().unwrap().entries;
    store.mark_read(&[listed[0].uid.clone()]).unwrap();
    let terminal = far.dashboard();
    wait_until("the incident", || far.local_incidents().len() == 1);
    terminal.send("i");
    terminal.wait_text(EXPLAINED);
    terminal.send("\x1b");
    terminal.wait_for(is_calm, "nothing to read");
}

#[test]
fn run_watched_locally_and_saved_remotely_is_one_incident() {
    if !sshd::is_available() || !is_host() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let far = RemoteHost::start(&fake);
    let [pid, go] = ["pid", "go"].map(|name| far.sshd.at(name));
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo $$ > {}; read line < {}; {}", pid.display(), go.display(), oom());
    std::thread::scope(|scope| {
        let run = scope.spawn(|| far.fail(&script));
        let written = || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
        wait_until("the run", written);
        let number = fs::read_to_string(&pid).unwrap();
        fake.replace(&format!(
            "[[gpu]]\nsm = 31\n[[process]]\npid = {number}gpu = 0\nused = \"22 GiB\"\n"
        ));
        let terminal = far.dashboard();
        terminal.wait_text(number.trim());
        fs::write(&go, "now\n").unwrap();
        run.join().unwrap();
        // A local observer may get the message in pieces, and the first piece says less. The remote explanation wins.
        terminal.wait_text(EXPLAINED);
        // The stored incident contains the remote data, even if it was first observed locally. There are never two
        // incidents.
        wait_until("what was kept there", || {
            let local_incidents = far.local_incidents();
            assert!(local_incidents.len() < 2, "{local_incidents:?}");
            let file = |uid: &Value| {
                let file = format!("gputop/incidents/{}.json", uid.as_str().unwrap());
                let file = fs::read(far.near.0.path().join(file)).unwrap();
                serde_json::from_slice::<Value>(&file).unwrap()
            };
            local_incidents.first().is_some_and(|local_incidents| {
                file(&local_incidents["uid"])["environment"].is_array()
                    && local_incidents["headline"] == EXPLAINED
            })
        });
    });
}

#[test]
fn remote_incident_saved_during_recording_is_in_the_recording() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let far = RemoteHost::start(&fake);
    far.fail(&oom());
    let file = far.sshd.at("run.gpt.zst");
    let mut record = gputop(["record", "-i", "250ms", "-o"]);
    record.arg(&file).arg("far").envs(far.sshd.local_environment());
    record.env("XDG_STATE_HOME", far.near.0.path());
    let mut record = Guarded(record.stderr(Stdio::null()).spawn().unwrap());
    wait_until("what had been kept", || far.local_incidents().len() == 1);
    far.fail(OOM_KILLED);
    wait_until("what is kept now", || far.local_incidents().len() == 2);
    let recorder = Pid::from_raw(record.0.id().cast_signed());
    kill(recorder, Signal::SIGINT).unwrap();
    assert!(record.0.wait().unwrap().success());

    let replay = Launch::gputop().args(["replay"]).args([&file]);
    let terminal = replay.size(40, 120).start();
    terminal.wait_text("KILLED BY SIGNAL 9");
    terminal.send("i");
    terminal.wait_text("HEADLINE");
    // Incidents from before the recording are not part of it.
    assert!(!terminal.text().contains(EXPLAINED), "{}", terminal.text());
}
