//! Reads container names from the runtimes' files.
//!
//! | runtime | file | name |
//! |---|---|---|
//! | Docker | `/var/lib/docker/containers/ID/config.v2.json` | `"Name": "/train"` |
//! | Podman, CRI-O | `…/containers/storage/overlay-containers/containers.json`, of root or in the user's home | `"names": ["train"]` |
//! | Kubernetes | the file name `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log` | `POD/CONTAINER` |
//! | | else the directory `/var/log/pods/NAMESPACE_POD_UID` | `POD` |
//! | | else `HOSTNAME` in the process's environment | `POD` |
//!
//! In Kubernetes, Docker and CRI-O use the name `k8s_CONTAINER_POD_NAMESPACE_UID_N`, which is shown as `POD/CONTAINER`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use gputop_model::container::Runtime;
use gputop_model::text::visible;
use gputop_model::{Reading, Reason};
use serde::Deserialize;

use super::super::environment;
use super::super::nul_list::NulList;
use crate::collect::process::container::found::{ContainerMatch, Files};
use crate::user_files;

const MAX_NAME_CHARS: usize = 128;
/// Maximum size of a runtime's JSON file. Podman's list has about 400 bytes per container.
const MAX_JSON: u64 = 1 << 20;
/// Maximum number of names to read from a directory of kubelet logs, which has one entry per pod or container. The
/// kubelet's default limit is 110 pods per node.
const MAX_LISTED: usize = 16_384;
/// Maximum number of cached container names. Names rarely change, but a host may start containers all day.
const MAX_KNOWN: usize = 1_024;

const STORAGE: &str = "containers/storage/overlay-containers/containers.json";

pub struct Names {
    files: Files,
    known: HashMap<String, String>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

impl Names {
    pub fn new(files: Files) -> Self {
        Self { files, known: HashMap::new() }
    }

    pub fn name(
        &mut self,
        found: &ContainerMatch,
        environment: Option<&NulList>,
    ) -> Reading<String> {
        if let Some(name) = self.known.get(&found.id) {
            return Reading::Value(name.clone());
        }
        let name = match self.look_up(found) {
            Ok(Some(name)) => name,
            result => {
                let pod = found.pod.as_ref().and(environment).and_then(environment::pod);
                let Some(pod) = pod else { return no_name(found.runtime, result.err().as_ref()) };
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
            && let Ok(Some(name)) = self.kubelet_name(found)
        {
            return Ok(Some(name));
        }
        match found.runtime {
            Runtime::Docker => self.docker_name(&found.id).map(Some),
            Runtime::Podman | Runtime::CriO => self.storage_name(&found.id),
            _ => Ok(None),
        }
    }

    fn docker_name(&self, id: &str) -> io::Result<String> {
        let path = format!("var/lib/docker/containers/{id}/config.v2.json");
        let text = user_files::read(&self.files.root.join(path), MAX_JSON)?;
        let config: DockerConfig = serde_json::from_slice(&text)?;
        Ok(display_name(&config.name))
    }

    fn storage_name(&self, id: &str) -> io::Result<Option<String>> {
        let system = listed(&self.files.root, &format!("var/lib/{STORAGE}"), id);
        let rootless = match &self.files.home {
            Some(home) => listed(home, &format!(".local/share/{STORAGE}"), id),
            None => Ok(None),
        };
        match (rootless, system) {
            (Ok(Some(name)), _) | (_, Ok(Some(name))) => Ok(Some(name)),
            (_, Err(error)) => Err(error),
            _ => Ok(None),
        }
    }

    /// Finds the container's name in the names of the kubelet's log links and log directories.
    fn kubelet_name(&self, found: &ContainerMatch) -> io::Result<Option<String>> {
        let names = |path: &str| -> io::Result<Vec<String>> {
            let entries = fs::read_dir(self.files.root.join(path))?.flatten();
            let names = entries.take(MAX_LISTED);
            Ok(names.filter_map(|entry| entry.file_name().into_string().ok()).collect())
        };
        let end = format!("-{}.log", found.id);
        let logs = names("var/log/containers").unwrap_or_default();
        let log = logs.iter().find_map(|log| log.strip_suffix(&end));
        let mut parts = log.into_iter().flat_map(|log| log.split('_'));
        if let (Some(pod), Some(_), Some(container)) = (parts.next(), parts.next(), parts.next()) {
            return Ok(Some(format!("{pod}/{container}")));
        }
        let end = format!("_{}", found.pod.as_deref().unwrap_or_default());
        let pods = names("var/log/pods")?;
        let pod = pods.iter().find_map(|pod| pod.strip_suffix(&end));
        Ok(pod.and_then(|pod| Some(pod.split_once('_')?.1.to_owned())))
    }
}

fn listed(root: &Path, path: &str, id: &str) -> io::Result<Option<String>> {
    let text = user_files::read(&root.join(path), MAX_JSON)?;
    let list: Vec<StoredContainer> = serde_json::from_slice(&text)?;
    let entry = list.into_iter().find(|entry| entry.id == id);
    Ok(entry.and_then(|entry| entry.names.first().map(|name| display_name(name))))
}

/// Converts a container name for display: `/train` to `train`, `/k8s_torch_train-0_ns_8a1c…_0` to `train-0/torch`.
fn display_name(name: &str) -> String {
    let name = name.strip_prefix('/').unwrap_or(name);
    let mut parts = name.split('_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("k8s"), Some(container), Some(pod), Some(_)) => format!("{pod}/{container}"),
        _ => name.to_owned(),
    }
}

fn no_name(runtime: Runtime, error: Option<&io::Error>) -> Reading<String> {
    match (runtime, error.map(io::Error::kind)) {
        (Runtime::Lxc | Runtime::Slurm, _) => Reading::default(),
        (_, Some(io::ErrorKind::PermissionDenied)) => Reading::missing(
            Reason::Denied,
            format!("only root can read the container names of {}", runtime.word()),
        ),
        (_, Some(io::ErrorKind::NotFound)) | (_, None) => {
            Reading::missing(Reason::Unsupported, "no name found for the container")
        }
        (_, Some(_)) => {
            Reading::missing(Reason::Unknown, "cannot read the container runtime's file")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";
    const POD: &str = "8a1c3b52-91d4-4a6e-b1f0-2c7d5e9f0a11";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("test setup"))
        }

        fn with(self, path: &str, text: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("test setup")).expect("test setup");
            fs::write(path, text).expect("test setup");
            self
        }

        fn name(&self, runtime: Runtime, pod: bool) -> Reading<String> {
            let environment = NulList::from_bytes(
                b"KUBERNETES_SERVICE_HOST=10.0.0.1\0HOSTNAME=train-0\0".to_vec(),
            );
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
            Names::new(files).name(&found, Some(&environment))
        }
    }

    fn named(name: &str) -> Reading<String> {
        Reading::Value(name.to_owned())
    }

    #[test]
    fn reads_name_from_the_file_of_each_runtime() {
        let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
        let machine =
            Machine::new().with(&docker, r#"{"ID": "x", "Name": "/train", "Config": {}}"#);
        assert_eq!(machine.name(Runtime::Docker, false), named("train"));

        let list = format!(r#"[{{"id": "other"}}, {{"id": "{ID}", "names": ["nightly"]}}]"#);
        let system = Machine::new().with(&format!("var/lib/{STORAGE}"), &list);
        assert_eq!(system.name(Runtime::Podman, false), named("nightly"));
        let rootless = Machine::new().with(&format!("home/ana/.local/share/{STORAGE}"), &list);
        assert_eq!(rootless.name(Runtime::Podman, false), named("nightly"));
        let crio = list.replace("nightly", &format!("k8s_torch_train-0_ml_{POD}_0"));
        let crio = Machine::new().with(&format!("var/lib/{STORAGE}"), &crio);
        assert_eq!(crio.name(Runtime::CriO, false), named("train-0/torch"));
    }

    #[test]
    fn reads_pod_name_from_logs_or_environment() {
        let log = format!("var/log/containers/train-0_ml_torch-{ID}.log");
        let machine = Machine::new().with(&log, "");
        assert_eq!(machine.name(Runtime::Containerd, true), named("train-0/torch"));
        let machine =
            Machine::new().with(&format!("var/log/pods/ml_train-0_{POD}/torch/0.log"), "");
        assert_eq!(machine.name(Runtime::Containerd, true), named("train-0"));
        let nothing = Machine::new();
        assert_eq!(nothing.name(Runtime::Containerd, true), named("train-0"));
        assert!(nothing.name(Runtime::Containerd, false).why().is_some());
    }

    #[test]
    fn reports_missing_and_invalid_names_and_escapes_hostile_ones() {
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
