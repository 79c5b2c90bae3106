//! What its user called a container, from the files in which the runtimes keep it.
//!
//! | runtime | file | name |
//! |---|---|---|
//! | docker | `/var/lib/docker/containers/ID/config.v2.json` | `"Name": "/train"` |
//! | Podman, CRI-O | `…/containers/storage/overlay-containers/containers.json`, of root or of one's own home | `"names": ["train"]` |
//! | Kubernetes | the file name `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log` | `POD/CONTAINER` |
//! | | else the directory `/var/log/pods/NAMESPACE_POD_UID` | `POD` |
//! | | else `HOSTNAME` of the process's environment | `POD` |
//!
//! Below Kubernetes docker and CRI-O keep `k8s_CONTAINER_POD_NAMESPACE_UID_N`: the same container, written another way.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::super::environment;
use super::super::nul_list::List;
use super::{ContainerMatch, Files, open_beneath};
use crate::model::container::Runtime;
use crate::model::reading::{Reading, Reason};
use crate::model::text::visible;

const MAX_NAME_CHARS: usize = 128;
/// Podman's list has some 400 bytes for each container and its layers.
const MAX_JSON: u64 = 1 << 20;
/// The kubelet takes 110 pods on a node by default.
const MAX_LISTED: usize = 16_384;
/// Names are kept, since they seldom change; on a host that starts containers all day, not for ever.
const MAX_KNOWN: usize = 1_024;

const STORAGE: &str = "containers/storage/overlay-containers/containers.json";

pub struct Names {
    files: Files,
    /// By id.
    known: HashMap<String, String>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct Stored {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

impl Names {
    pub fn new(files: Files) -> Self {
        Self {
            files,
            known: HashMap::new(),
        }
    }

    pub fn of(&mut self, found: &ContainerMatch, environment: Option<&List>) -> Reading<String> {
        if let Some(name) = self.known.get(&found.id) {
            return Reading::Value(name.clone());
        }
        let name = match self.look_up(found) {
            Ok(Some(name)) => name,
            told => {
                let pod = found
                    .pod
                    .as_ref()
                    .and(environment)
                    .and_then(environment::pod);
                let Some(pod) = pod else {
                    return nameless(found.runtime, told.err().as_ref());
                };
                String::from_utf8_lossy(pod).into_owned()
            }
        };
        let name = visible(name.as_bytes(), MAX_NAME_CHARS);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(found.id.clone(), name.clone());
        Reading::Value(name)
    }

    fn look_up(&self, found: &ContainerMatch) -> io::Result<Option<String>> {
        if found.pod.is_some()
            && let Ok(Some(name)) = self.logged(found)
        {
            return Ok(Some(name));
        }
        match found.runtime {
            Runtime::Docker => self.docker(&found.id).map(Some),
            Runtime::Podman | Runtime::CriO => self.stored(&found.id),
            _ => Ok(None),
        }
    }

    fn docker(&self, id: &str) -> io::Result<String> {
        let path = format!("var/lib/docker/containers/{id}/config.v2.json");
        let text = open_beneath::read(&self.files.root, &path, MAX_JSON)?;
        let config: DockerConfig = serde_json::from_slice(&text)?;
        Ok(plain(&config.name))
    }

    fn stored(&self, id: &str) -> io::Result<Option<String>> {
        let of_root = listed(&self.files.root, &format!("var/lib/{STORAGE}"), id);
        let own = match &self.files.home {
            Some(home) => listed(home, &format!(".local/share/{STORAGE}"), id),
            None => Ok(None),
        };
        match (own, of_root) {
            (Ok(Some(name)), _) | (_, Ok(Some(name))) => Ok(Some(name)),
            (_, Err(error)) => Err(error),
            _ => Ok(None),
        }
    }

    /// By the names of the log files that the kubelet links, and of its directories.
    fn logged(&self, found: &ContainerMatch) -> io::Result<Option<String>> {
        let root = &self.files.root;
        let end = format!("-{}.log", found.id);
        let logs = open_beneath::names(root, "var/log/containers", MAX_LISTED).unwrap_or_default();
        let log = logs.iter().find_map(|log| log.strip_suffix(&end));
        let mut parts = log.into_iter().flat_map(|log| log.split('_'));
        if let (Some(pod), Some(_), Some(container)) = (parts.next(), parts.next(), parts.next()) {
            return Ok(Some(format!("{pod}/{container}")));
        }
        let end = format!("_{}", found.pod.as_deref().unwrap_or_default());
        let pods = open_beneath::names(root, "var/log/pods", MAX_LISTED)?;
        let pod = pods.iter().find_map(|pod| pod.strip_suffix(&end));
        Ok(pod.and_then(|pod| Some(pod.split_once('_')?.1.to_owned())))
    }
}

fn listed(root: &Path, path: &str, id: &str) -> io::Result<Option<String>> {
    let text = open_beneath::read(root, path, MAX_JSON)?;
    let list: Vec<Stored> = serde_json::from_slice(&text)?;
    let stored = list.into_iter().find(|stored| stored.id == id);
    Ok(stored.and_then(|stored| stored.names.first().map(|name| plain(name))))
}

/// `/train` as `train`, `/k8s_torch_train-0_ns_8a1c…_0` as `train-0/torch`.
fn plain(name: &str) -> String {
    let name = name.strip_prefix('/').unwrap_or(name);
    let mut parts = name.split('_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("k8s"), Some(container), Some(pod), Some(_)) => format!("{pod}/{container}"),
        _ => name.to_owned(),
    }
}

fn nameless(runtime: Runtime, error: Option<&io::Error>) -> Reading<String> {
    match (runtime, error.map(io::Error::kind)) {
        (Runtime::Lxc | Runtime::SystemdNspawn | Runtime::Slurm, _) => Reading::default(),
        (_, Some(io::ErrorKind::PermissionDenied)) => Reading::missing(
            Reason::Denied,
            format!("root can read the names of {}", runtime.word()),
        ),
        (_, Some(io::ErrorKind::NotFound)) | (_, None) => Reading::missing(
            Reason::Unsupported,
            "no file that is read here names the container",
        ),
        (_, Some(_)) => Reading::missing(Reason::Unknown, "the runtime's file could not be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const ID: &str = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";
    const POD: &str = "8a1c3b52-91d4-4a6e-b1f0-2c7d5e9f0a11";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("as laid out"))
        }

        fn with(self, path: &str, text: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("as laid out")).expect("as laid out");
            fs::write(path, text).expect("as laid out");
            self
        }

        fn name(&self, runtime: Runtime, pod: bool) -> Reading<String> {
            let environment =
                List::from_bytes(b"KUBERNETES_SERVICE_HOST=10.0.0.1\0HOSTNAME=train-0\0".to_vec());
            let files = Files {
                root: self.0.path().to_owned(),
                home: Some(self.0.path().join("home/ana")),
            };
            let found = ContainerMatch {
                runtime,
                id: ID.to_owned(),
                shown: String::new(),
                pod: pod.then(|| POD.to_owned()),
            };
            Names::new(files).of(&found, Some(&environment))
        }
    }

    fn named(name: &str) -> Reading<String> {
        Reading::Value(name.to_owned())
    }

    #[test]
    fn each_runtime_keeps_the_name_in_its_own_file() {
        let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
        let machine =
            Machine::new().with(&docker, r#"{"ID": "x", "Name": "/train", "Config": {}}"#);
        assert_eq!(machine.name(Runtime::Docker, false), named("train"));

        let list = format!(r#"[{{"id": "other"}}, {{"id": "{ID}", "names": ["nightly"]}}]"#);
        let of_root = Machine::new().with(&format!("var/lib/{STORAGE}"), &list);
        assert_eq!(of_root.name(Runtime::Podman, false), named("nightly"));
        let own = Machine::new().with(&format!("home/ana/.local/share/{STORAGE}"), &list);
        assert_eq!(own.name(Runtime::Podman, false), named("nightly"));
        let crio = list.replace("nightly", &format!("k8s_torch_train-0_ml_{POD}_0"));
        let crio = Machine::new().with(&format!("var/lib/{STORAGE}"), &crio);
        assert_eq!(crio.name(Runtime::CriO, false), named("train-0/torch"));
    }

    #[test]
    fn a_pod_is_named_by_its_logs_or_by_its_environment() {
        let log = format!("var/log/containers/train-0_ml_torch-{ID}.log");
        let machine = Machine::new().with(&log, "");
        assert_eq!(
            machine.name(Runtime::Containerd, true),
            named("train-0/torch")
        );
        let machine =
            Machine::new().with(&format!("var/log/pods/ml_train-0_{POD}/torch/0.log"), "");
        assert_eq!(machine.name(Runtime::Containerd, true), named("train-0"));
        let nothing = Machine::new();
        assert_eq!(nothing.name(Runtime::Containerd, true), named("train-0"));
        assert!(nothing.name(Runtime::Containerd, false).why().is_some());
    }

    #[test]
    fn what_is_no_name_says_why_and_what_is_hostile_does_nothing() {
        let reason = |machine: &Machine| {
            let name = machine.name(Runtime::Docker, false);
            name.why().map(|why| why.reason)
        };
        let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
        assert_eq!(reason(&Machine::new()), Some(Reason::Unsupported));
        let broken = Machine::new().with(&docker, r#"{"Name": ["#);
        assert_eq!(reason(&broken), Some(Reason::Unknown));
        let endless = Machine::new().with(&docker, &" ".repeat(2 << 20));
        assert_eq!(reason(&endless), Some(Reason::Unknown));
        let hostile = Machine::new().with(&docker, r#"{"Name": "/a\u001b[31mb"}"#);
        assert_eq!(hostile.name(Runtime::Docker, false), named("a^[[31mb"));
    }
}
