use super::*;

impl Workloads {
    /// Returns the errors in the embedded workloads.
    fn errors(&self) -> Vec<String> {
        let (_, mut errors) = Self::read();
        for workload in &self.all {
            for name in workload.actions.keys().filter(|name| !self.has_remedy(name)) {
                errors.push(format!("{}: unknown remedy: {name}", workload.id));
            }
            let base = workload.base.as_ref();
            if let Some(base) = base.filter(|base| self.get(base).is_none()) {
                errors.push(format!("{}: unknown base: {base}", workload.id));
            }
            let patterns =
                [&workload.recognize, &workload.hints, &workload.exclude, &workload.unless];
            for pattern in patterns.into_iter().flatten() {
                let error = pattern.check().err();
                errors.extend(error.map(|error| format!("{}: {error}", workload.id)));
            }
        }
        errors
    }
}

fn rule(remedy: &str, value: Option<&str>) -> FixRule {
    serde_json::from_value(serde_json::json!({"remedy": remedy, "value": value}))
        .expect("a valid rule")
}

#[test]
fn actions_come_from_all_bases() {
    let workloads = Workloads::embedded();
    let flags = Setting::of(workloads.get("hf-trainer-flags").expect("a workload"));
    let bases: Vec<&str> = flags.bases().map(|w| w.id.as_str()).collect();
    assert_eq!(bases, ["hf-trainer", "pytorch"]);
    assert!(flags.is_for(&["hf-trainer".to_owned()]));
    assert!(flags.fix(&rule("set_device", None), &FieldMap::new()).is_some());
}

#[test]
fn the_files_are_valid() {
    assert_eq!(Workloads::embedded().errors(), Vec::<String>::new());
}

#[test]
fn a_remedy_becomes_the_flag_of_the_program_with_a_computed_value() {
    let mut found = FieldMap::new();
    found.insert("free_bytes".into(), (30_u64 << 30).into());
    found.insert("total_bytes".into(), (40_u64 << 30).into());
    let workloads = Workloads::embedded();
    let rule = rule("match_free_memory", Some("free-share"));
    let vllm = workloads.recognize("(EngineCore pid=1) ValueError", "");
    let fix = vllm.fix(&rule, &found).expect("vLLM has the flag");
    assert_eq!(fix.change, "vllm serve MODEL --gpu-memory-utilization 0.73");
    assert_eq!(
        fix.effect.as_deref(),
        Some("0.73 = (30.00 GiB free - 0.50 GiB margin) / 40.00 GiB total")
    );
    // Without figures, the fix explains how to choose the value.
    let fix = vllm.fix(&rule, &FieldMap::new()).expect("vLLM has the flag");
    assert!(fix.change.ends_with(UNKNOWN_VALUE));
    assert!(fix.effect.is_some_and(|e| e.contains("free / total")));
    // llama.cpp has no such flag, so there is no fix.
    let llama = workloads.recognize("llama_model_load: error", "");
    assert_eq!(llama.fix(&rule, &found), None);
}

#[test]
fn a_scheduler_keeps_the_command_of_the_user() {
    let workloads = Workloads::embedded();
    let setting = Setting::of(workloads.get("slurm").expect("slurm"));
    let program = Setting { program: workloads.get("slurm"), around: Vec::new(), ..setting };
    let command = "srun --overlap python train.py";
    assert_eq!(program.adapted(command).as_deref(), Some(command));
}

#[test]
fn a_rule_can_name_a_program_and_a_platform() {
    let is_for = |text: &str| {
        let only = ["jax".to_owned(), "conda".to_owned()];
        Workloads::embedded().recognize(text, "").is_for(&only)
    };
    assert!(is_for("/home/me/miniforge3/envs/sim/lib/python3.12/site-packages/jaxlib/x.so"));
    assert!(!is_for("/home/me/sim/.venv/lib/python3.12/site-packages/jaxlib/x.so"));
    assert!(!is_for("/home/me/miniforge3/envs/sim/lib/python3.12/site-packages/torch/x.so"));
}

#[test]
fn podman_replaces_docker() {
    let podman = "Error: setting up CDI devices\n[host]$ podman run fedora nvidia-container-cli";
    let usual = Some("docker".to_owned());
    let setting = Workloads::embedded().recognize_or(podman, "", usual.as_ref());
    let names: Vec<&str> = setting.all().map(|w| w.id.as_str()).collect();
    assert!(names.contains(&"podman") && !names.contains(&"docker"), "{names:?}");
    assert!(setting.is_for(&["docker".to_owned()]));
    let change = "docker run --rm --gpus all IMAGE nvidia-smi";
    assert_eq!(
        setting.adapted(change).as_deref(),
        Some("podman run --rm --device nvidia.com/gpu=all IMAGE nvidia-smi")
    );
}

#[test]
fn a_rule_can_exclude_a_program() {
    let setting = Workloads::embedded().recognize("jaxlib.xla_extension", "");
    let is_for = |only: &[&str]| {
        let only: Vec<String> = only.iter().map(|&one| one.to_owned()).collect();
        setting.is_for(&only)
    };
    assert!(is_for(&["training"]) && is_for(&["!vllm"]) && is_for(&[]));
    assert!(!is_for(&["training", "!jax"]) && !is_for(&["server", "!vllm"]));
}

#[test]
fn a_server_gets_no_code_and_its_own_command() {
    let setting = Workloads::embedded().recognize("sglang.srt.managers", "");
    assert_eq!(setting.adapted("Use an 8-bit optimizer"), None);
    assert_eq!(
        setting.adapted("A=1 python train.py").as_deref(),
        Some("A=1 python -m sglang.launch_server --model-path MODEL")
    );
    let rocm = Workloads::embedded().recognize("torch: HIP out of memory", "");
    assert_eq!(rocm.adapted("run `nvidia-smi`").as_deref(), Some("run `rocm-smi`"));
}
