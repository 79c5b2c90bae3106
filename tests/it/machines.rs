//! Machines that are not a server with H200s: GPUs that sleep or need seconds to wake, GPUs of other users, unified
//! memory, odd names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use gputop::collect::agent::Options;
use gputop::collect::local;
use gputop::collect::process::container::Files;
use gputop_model::protocol::Update;
use gputop_model::{HealthState, Millis, Percent, Permissions};

use crate::support::deadline::DEADLINE;
use crate::support::executable;
use crate::support::fake_machine::{
    RealProcess, command, dashboard, is_host, on_gpu, run, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::{self, gpu_shows, shows};

/// A machine whose driver and GPUs need seconds to start, because nothing keeps them loaded.
const SLOW_TO_WAKE: &str = "[driver]\nwake_ms = 1500\n\
    [[gpu]]\nsm = 10\nwake_ms = 2200\npersistence = false\n\
    [[gpu]]\nsm = 20\nwake_ms = 2200\npersistence = false\n";

#[test]
fn gpus_that_need_seconds_to_wake_are_waited_for() {
    for (args, expected) in [
        (vec!["line"], " sm 20% 31C\n"),
        (vec!["once"], "139.8   20 "),
        (vec!["once", "--csv"], "NVIDIA H200"),
        (vec!["once", "--json"], "NVIDIA H200"),
        (vec!["serve", "--once"], "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 20"),
    ] {
        let fake = FakeNvml::new(SLOW_TO_WAKE);
        let outcome = run(&fake, &args);
        assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{args:?}");
        assert!(outcome.out.contains(expected), "{args:?}: {}", outcome.out);
        // The driver is started once: with persistence mode off, the GPUs would sleep again in between.
        assert_eq!((fake.calls().of("init"), fake.calls().of("shutdown")), (1, 0), "{args:?}");
    }
}

#[test]
fn gpus_that_do_not_wake_in_time_are_an_error_with_the_reason() {
    for (args, seconds) in
        [(&["line"][..], 5), (&["once"], 10), (&["once", "--csv"], 10), (&["serve", "--once"], 10)]
    {
        let fake = FakeNvml::new("[[gpu]]\nwake_ms = 60000\n[[gpu]]\nwake_ms = 60000\n");
        let started = Instant::now();
        let outcome = run(&fake, args);
        assert_eq!(outcome.code, Some(1), "{args:?}: {outcome:?}");
        let reason = format!("gputop: no answer from the NVIDIA driver within {seconds} s");
        assert!(outcome.err.starts_with(&reason), "{args:?}: {outcome:?}");
        assert!(outcome.err.ends_with("keep the driver loaded: nvidia-smi -pm 1\n"), "{outcome:?}");
        assert!(started.elapsed() < Duration::from_secs(2 * seconds), "{args:?}");
    }
    // One hanging GPU does not hide the others.
    let fake = FakeNvml::new("[[gpu]]\nwake_ms = 60000\n[[gpu]]\nsm = 20\n");
    let outcome = run(&fake, ["line"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.out.contains("sm 20%") && outcome.out.contains("no answer"), "{outcome:?}");
}

/// A private sysfs with one GPU, which the fake driver lists as GPU 0.
struct Sysfs {
    root: tempfile::TempDir,
}

impl Sysfs {
    fn with_gpu(status: &str) -> Self {
        let sysfs = Self { root: tempfile::tempdir().unwrap() };
        for (name, text) in [("vendor", "0x10de"), ("class", "0x030000"), ("device", "0x28e0")] {
            sysfs.set(name, text);
        }
        sysfs.set("power/control", "auto");
        sysfs.set("power/runtime_status", status);
        sysfs
    }

    fn set(&self, name: &str, text: &str) {
        self.set_at("0000:01:00.0", name, text);
    }

    fn set_at(&self, address: &str, name: &str, text: &str) {
        let path = self.root.path().join("bus/pci/devices").join(address).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
}

/// A laptop whose GPU can sleep.
const LAPTOP: &str = "[[gpu]]\nname = \"NVIDIA GeForce RTX 4060 Laptop GPU\"\nsm = 7\n\
    total = \"8 GiB\"\npci_bus = \"00000000:01:00.0\"\npersistence = false\n";

fn run_with(sysfs: &Sysfs, fake: &FakeNvml, args: &[&str]) -> (Option<i32>, String) {
    let output = command(fake, args).env("GPUTOP_SYS", sysfs.root.path()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_sleeping_gpu_is_not_woken() {
    let sysfs = Sysfs::with_gpu("suspended");
    for (args, expected) in [
        (&["line"][..], "1 GPU asleep\n"),
        (&["once"], "asleep"),
        (&["once", "--json"], "\"state\": \"asleep\""),
        (&["once", "--csv"], "NVIDIA GPU (PCI ID 10de:28e0)"),
        (&["serve", "--once"], "gputop_gpu_up{gpu=\"0\",state=\"asleep\"} -1"),
        (&["doctor"], "not loaded, because all GPUs (1) are asleep"),
    ] {
        let fake = FakeNvml::new(LAPTOP);
        let (code, out) = run_with(&sysfs, &fake, args);
        assert!(out.contains(expected), "{args:?}: {out}");
        assert_eq!(code, Some(0), "{args:?}: {out}");
        let calls = fake.calls();
        assert_eq!(calls.iter().count(), 0, "{args:?}: {calls:?}");
    }
    let fake = FakeNvml::new(LAPTOP);
    let (code, out) = run_with(&sysfs, &fake, &["once", "--wake"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains(" 7.4 ") && !out.contains("asleep"), "{out}");
}

#[test]
fn doctor_names_a_gpu_on_the_bus_that_the_driver_does_not_list() {
    let sysfs = Sysfs::with_gpu("active");
    for (address, driver) in [("0000:41:00.0", None), ("0000:c1:00.0", Some("vfio-pci"))] {
        for (name, text) in
            [("vendor", "0x10de"), ("class", "0x030200"), ("power/runtime_status", "active")]
        {
            sysfs.set_at(address, name, text);
        }
        if let Some(driver) = driver {
            let link = sysfs.root.path().join("bus/pci/devices").join(address).join("driver");
            std::os::unix::fs::symlink(format!("../../../drivers/{driver}"), link).unwrap();
        }
    }
    let words = "the PCI bus also has 0000:41:00, which the driver does not list";
    let (_, out) = run_with(&sysfs, &FakeNvml::new(LAPTOP), &["doctor"]);
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(out.contains(words), is_host(), "{out}");
    let both = format!("{LAPTOP}[[gpu]]\npci_bus = \"00000000:41:00.0\"\n");
    let (_, out) = run_with(&sysfs, &FakeNvml::new(&both), &["doctor"]);
    assert!(!out.contains("does not list"), "{out}");
}

#[test]
fn the_dashboard_reads_a_gpu_once_something_else_wakes_it_or_a_key_is_pressed() {
    let sysfs = Sysfs::with_gpu("suspended");
    let fake = FakeNvml::new(LAPTOP);
    let shown = |text: &'static str| {
        move |screen: &vt100::Screen| {
            screen_tables::gpu(screen, "0").is_some_and(|row| row.cell("NOTE").starts_with(text))
        }
    };
    let terminal = dashboard(&fake).env("GPUTOP_SYS", sysfs.root.path()).start();
    terminal.wait_for(shown("asleep"), "a sleeping GPU");
    assert_eq!(fake.calls().iter().count(), 0);
    sysfs.set("power/runtime_status", "active");
    terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", "7"), ("NOTE", "")]), "the GPU");
    drop(terminal);

    sysfs.set("power/runtime_status", "suspended");
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal =
            dashboard(&fake).env("GPUTOP_SYS", sysfs.root.path()).size(rows, columns).start();
        terminal.wait_for(shown("asleep"), "a sleeping GPU");
        terminal.send("a");
        terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", "7"), ("NOTE", "")]), "the GPU");
    }
    let terminal = dashboard(&fake).env("GPUTOP_SYS", sysfs.root.path()).size(6, 40).start();
    terminal.wait_text("asleep");
}

#[test]
fn an_idle_gpu_is_released_so_that_it_can_sleep() {
    let sysfs = Sysfs::with_gpu("active");
    let fake = FakeNvml::new(&LAPTOP.replace("sm = 7", "sm = 0"));
    let options = Options {
        interval: Millis(100),
        library: Some(fake.library_copy()),
        keeps_gpus_awake: false,
        idle_limit: Duration::from_millis(500),
        proc_root: "/proc".into(),
        sys_root: sysfs.root.path().into(),
        container_files: Files { root: "/".into(), home: None },
        tmux: None,
        tmux_folder: None,
        cgroup_root: "/sys/fs/cgroup".into(),
        kernel_log: "/nonexistent".into(),
        finds_candidates: false,
        permissions: Permissions::none("a test"),
        is_remote: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let mut source = local::start(options).unwrap();
    let mut wait_for = |wanted: HealthState| {
        let found = runtime.block_on(tokio::time::timeout(DEADLINE, async {
            loop {
                if let Some(Update::Frame(frame)) = source.next().await
                    && frame.gpus.iter().any(|gpu| gpu.health.state == wanted)
                {
                    return frame;
                }
            }
        }));
        found.unwrap().gpus[0].clone()
    };
    let gpu = wait_for(HealthState::Answering);
    let asleep = wait_for(HealthState::Asleep);
    assert_eq!((&asleep.name, &asleep.uuid, asleep.sm.get()), (&gpu.name, &gpu.uuid, None));
    // The driver is unloaded, and not loaded again while the GPU sleeps.
    fake.wait_calls("shutdown", |calls| calls.of("shutdown") == calls.of("init"));
    sysfs.set("power/runtime_status", "suspended");
    let before = fake.calls().of("init");
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(fake.calls().of("init"), before);
    // A program wakes it.
    fake.replace(&format!("{LAPTOP}[[process]]\npid = 1\nused = \"1 GiB\"\n"));
    sysfs.set("power/runtime_status", "active");
    assert_eq!(wait_for(HealthState::Answering).sm.get(), Some(Percent(7.0)));
    // It is used, and not released.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(fake.calls().of("init"), before + 1);
}

#[test]
fn a_gpu_of_another_job_is_not_lost() {
    let foreign = "[[gpu]]\nerrors = { handle = \"no_permission\" }\n";
    let fake = FakeNvml::new(&format!("{foreign}[[gpu]]\nsm = 50\n{foreign}"));
    let line = run(&fake, ["line"]);
    assert_eq!(
        (line.code, &*line.out),
        (Some(0), "0 not yours | 1 0.6/140G 0% sm 50% 31C | 2 not yours\n")
    );
    assert_eq!(run(&fake, ["line", "--width", "30"]).out, "mem - 0 -%  sm 50%  31C\n");
    assert_eq!(run(&fake, ["line", "--width", "20"]).out, "0% sm 50%\n");
    let metrics = run(&fake, ["serve", "--once"]).out;
    assert!(metrics.contains("gputop_gpu_up{gpu=\"0\",state=\"not_yours\"} -1"), "{metrics}");
    assert!(!metrics.contains("state=\"lost\""), "{metrics}");
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal = dashboard(&fake).size(rows, columns).start();
        let is_foreign = |screen: &vt100::Screen, gpu| {
            gpu_shows(screen, gpu, &[("NOTE", "not yours"), ("USED", "–")])
        };
        terminal.wait_for(|s| is_foreign(s, "0") && is_foreign(s, "2"), "GPUs of other jobs");
        terminal.send("\r");
        terminal.wait_text("GPU 0  GPU (not yours)");
        if rows > 24 {
            terminal.wait_text("not yours: access denied");
        }
    }
    let all = FakeNvml::new(&foreign.repeat(2));
    assert_eq!(run(&all, ["line"]).out, "2 GPUs not yours\n");
}

#[test]
fn names_that_are_not_utf8_lose_neither_owner_nor_command() {
    if !is_host() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The kernel cuts the first name to 15 bytes, inside a letter. The second one is Latin-1.
    let names = ["обучение_модели".as_bytes(), b"tr\xe9n"];
    let programs: Vec<RealProcess> = names
        .iter()
        .map(|name| {
            let path = dir.path().join(OsStr::from_bytes(name));
            executable::copy("/bin/cat", &path);
            RealProcess::program(&path)
        })
        .collect();
    let on = |process: &RealProcess| on_gpu(0, process, "used = \"2 GiB\"");
    let fake = FakeNvml::h200s(1, &programs.iter().map(on).collect::<String>());
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    let json: serde_json::Value =
        serde_json::from_str(&run(&fake, ["once", "--json"]).out).unwrap();
    for process in &programs {
        let list = json["processes"]["list"].as_array().unwrap();
        let shown = list.iter().find(|shown| shown["key"]["pid"] == process.pid()).unwrap();
        assert_eq!(shown["user"], user, "{shown:#}");
        assert!(shown["command"].is_string(), "{shown:#}");
    }
    let metrics = run(&fake, ["serve", "--once"]).out;
    let info = metrics.lines().filter(|line| line.starts_with("gputop_process_info"));
    assert!(info.clone().all(|line| line.contains(&format!("user=\"{user}\""))), "{metrics}");
    assert_eq!(info.count(), 2, "{metrics}");
}

#[test]
fn printed_tables_have_no_gaps_after_wide_characters() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("训练模型🔥日本語");
    let fake = FakeNvml::h200s(1, &on_gpu(0, &process, "used = \"2 GiB\""));
    let table = run(&fake, ["once"]).out;
    assert!(table.contains(" 训练模型🔥日本語\n"), "{table}");
}

#[test]
fn fans_may_exceed_100_percent_and_all_are_read() {
    let fake = FakeNvml::new(
        "[[gpu]]\nfans = [150]\n[[gpu]]\nfans = [0, 40, 38]\n[[gpu]]\nfans = [4294967295]\n[[gpu]]\n",
    );
    let metrics = run(&fake, ["serve", "--once"]).out;
    let shown: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("DCGM_FI_DEV_FAN_SPEED")).collect();
    assert_eq!(
        shown,
        ["DCGM_FI_DEV_FAN_SPEED{gpu=\"0\"} 150", "DCGM_FI_DEV_FAN_SPEED{gpu=\"1\"} 40"]
    );
    let terminal = dashboard(&fake).size(60, 200).start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[("NOTE", "")]), "the overview");
    terminal.send("j\r");
    terminal.wait_text("0 %, 40 %, 38 %");
}

/// GB10: the driver supports neither memory call, and its PCIe link is a placeholder. Jetson: it reports zeros.
const NO_MEMORY: &str = "[[gpu]]\nname = \"NVIDIA GB10\"\nsm = 96\ntemperature = 55\n\
    pcie_generation = 1\npcie_width = 1\n\
    errors = { memory = \"not_supported\", bar1 = \"not_supported\" }\n";
const ZERO_MEMORY: &str = "[[gpu]]\nname = \"Orin (nvgpu)\"\ntotal = 0\nreserved = 0\nused = 0\n\
    free = 0\nsm = 96\npower = 0\ntemperature = 0\nsm_clock = 0\nmemory_clock = 0\n\
    pcie_generation = 0\npcie_width = 0\npcie_max_generation = 0\npcie_max_width = 0\n";

#[test]
fn memory_shared_with_the_host_is_the_sum_of_the_processes() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("serve.py");
    let rows = on_gpu(0, &process, "used = \"62 GiB\"\nkind = \"both\"")
        + "[[process]]\npid = 0\nused = \"1 GiB\"\n[[process]]\npid = 4294967295\n";
    for gpu in [NO_MEMORY, ZERO_MEMORY] {
        let fake = FakeNvml::new(&format!("{gpu}{rows}"));
        let line = run(&fake, ["line"]).out;
        assert!(line.starts_with("0 62.0G sm 96% "), "{line}");
        assert!(!line.contains('!'), "{line}");
        let metrics = run(&fake, ["serve", "--once"]).out;
        assert!(metrics.contains("DCGM_FI_DEV_FB_USED{gpu=\"0\"} 63488\n"), "{metrics}");
        for absent in ["FB_TOTAL", "FB_FREE", "PCIE_LINK_WIDTH", "pid=\"0\"", "pid=\"4294967295\""]
        {
            assert!(!metrics.contains(absent), "{absent}: {metrics}");
        }
        for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
            let terminal = dashboard(&fake).size(rows, columns).start();
            let values = [("USED", "62.0"), ("FREE", "–"), ("NOTE", "")];
            terminal.wait_for(|s| gpu_shows(s, "0", &values), "the sum of the processes");
            terminal.send("\r");
            terminal.wait_text("shared with the CPU");
            let screen = terminal.text();
            assert!(!screen.contains("1B"), "{screen}");
        }
        let terminal = dashboard(&fake).size(6, 40).start();
        terminal.wait_text("62.0 of");
    }
}

#[test]
fn errors_that_gputop_does_not_know_are_described_by_nvml() {
    for (code, text) in [
        ("\"gpu_not_found\"", "The NVIDIA driver finds no GPU: it may be switched off"),
        ("23", "Insufficient Resources."),
        ("77", "NVML reports error 77"),
    ] {
        let fake = FakeNvml::new(&format!("[driver]\ninit = {code}\n[[gpu]]\n"));
        let outcome = run(&fake, ["line"]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.err.contains(text), "{outcome:?}");
        assert!(!outcome.err.contains("enum variant"), "{outcome:?}");
    }
}

#[test]
fn a_kernel_thread_does_not_own_gpu_memory() {
    if !is_host() {
        return;
    }
    let fake = FakeNvml::h200s(1, "[[process]]\npid = 2\nused = \"2 GiB\"\n");
    let json: serde_json::Value =
        serde_json::from_str(&run(&fake, ["once", "--json"]).out).unwrap();
    let shown = &json["processes"]["list"][0];
    assert_eq!(shown["user"]["missing"], "gone", "{shown:#}");
    assert_eq!(json["gpus"][0]["unattributed"][0]["cause"], "gone", "{json:#}");
}

#[test]
fn mps_clients_are_listed_once() {
    if !is_host() {
        return;
    }
    let (client, both) = (RealProcess::start("client.py"), RealProcess::start("both.py"));
    let rows = on_gpu(0, &client, "used = \"6 GiB\"\nkind = \"mps\"\nsm = 40")
        + &on_gpu(0, &both, "used = \"2 GiB\"\nkind = \"mps\"")
        + &on_gpu(0, &both, "used = \"2 GiB\"");
    let fake = FakeNvml::new(&format!("[[gpu]]\ncompute_mode = 3\nused = \"8 GiB\"\n{rows}"));
    let json: serde_json::Value =
        serde_json::from_str(&run(&fake, ["once", "--json"]).out).unwrap();
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["processes"].as_array().unwrap().len(), 2, "{gpu:#}");
    assert_eq!(gpu["unattributed"], serde_json::Value::Null, "{gpu:#}");
}

const MIG: &str = "[[gpu]]\nname = \"NVIDIA A100-SXM4-40GB\"\ntotal = \"40960 MiB\"\n\
    mig = [{ profile = \"3g.20gb\", gi = 1 }, { profile = \"1g.5gb\", gi = 9 }]\n";

#[test]
fn mig_memory_and_processes_have_the_same_instance_name() {
    let fake =
        FakeNvml::new(&format!("{MIG}[[process]]\npid = 1\ngi = 9\nci = 0\nused = \"4 GiB\"\n"));
    let metrics = run(&fake, ["serve", "--once"]).out;
    let memory = "gputop_mig_memory_used_bytes{gpu=\"0\",mig=\"1\",gpu_instance=\"9\",compute_instance=\"0\",profile=\"1g.5gb\"}";
    assert!(metrics.contains(memory), "{metrics}");
    if is_host() {
        assert!(
            metrics.contains("gputop_process_memory_bytes{gpu=\"0\",gpu_instance=\"9\",pid=\"1\"}"),
            "{metrics}"
        );
    }
}

#[test]
fn mig_instances_that_are_gone_disappear_at_once() {
    let fake = FakeNvml::new(MIG);
    let terminal = dashboard(&fake).start();
    terminal.wait_text("1g.5gb");
    fake.replace(&MIG.replace(", { profile = \"1g.5gb\", gi = 9 }", ""));
    let replaced = Instant::now();
    terminal.wait_for(|screen| !screen.contents().contains("1g.5gb"), "one instance");
    assert!(replaced.elapsed() < Duration::from_secs(4), "{:?}", replaced.elapsed());
    fake.replace("[[gpu]]\nsm = 12\n");
    terminal.wait_for(|screen| !screen.contents().contains("3g.20gb"), "no instance");
}

#[test]
fn headings_are_not_overwritten_with_many_gpus() {
    for (count, rows, columns) in
        [(16, 24, 80), (32, 24, 80), (16, 15, 60), (32, 15, 60), (32, 40, 120)]
    {
        let fake = FakeNvml::h200s(count, "");
        let terminal = dashboard(&fake).size(rows, columns).start();
        let range = format!(" of {count} ");
        terminal.wait_text(&range);
        let text = terminal.text();
        let heading = text.lines().find(|line| line.contains("VRAM GiB")).unwrap();
        assert!(!heading.contains(&range), "{text}");
        let last = text.lines().position(|line| line.contains(&range)).unwrap();
        assert!(!text.lines().nth(last).unwrap().contains("SM%"), "{text}");
        terminal.send("G");
        terminal.wait_text(&format!("to {count} of {count} "));
    }
}

#[test]
fn printed_notes_are_not_cut_and_an_empty_process_table_says_why() {
    let fake = FakeNvml::new("[[gpu]]\nerrors = { process_list = \"not_supported\" }\n");
    let table = run(&fake, ["once"]).out;
    assert!(table.contains("processes: not supported here\n"), "{table}");
    assert!(table.ends_with("Process list not available: not supported here\n"), "{table}");
}

#[test]
fn a_lost_gpu_without_an_xid_is_an_incident() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let fake = FakeNvml::h200s(2, "");
    let terminal = dashboard(&fake)
        .env("XDG_STATE_HOME", dir.path())
        .args(["--on-incident", &format!("cat > {}", said.display())])
        .start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[("USED", "0.6"), ("NOTE", "")]), "the GPUs");
    const LOST: &str = "[[gpu]]\n[[gpu]]\nerrors = { \"*\" = \"gpu_is_lost\" }\n";
    let lost_before = FakeNvml::new(LOST);
    let late = dashboard(&lost_before).start();
    late.wait_text("GPU 1 is lost, and its programs fail");
    fake.replace(LOST);
    terminal.wait_text("OFF THE BUS");
    late.wait_text("OFF THE BUS");
    wait_until("on_incident", || {
        fs::read_to_string(&said).is_ok_and(|text| text.contains("no longer answers"))
    });
    terminal.send("i");
    terminal.wait_text("no longer answers");
}

#[test]
fn a_gpu_name_that_is_not_utf8_is_escaped() {
    let fake = FakeNvml::new("[[gpu]]\nname = \"bytes:Quadro \\u00e9\\u001b[31m\"\n");
    let json = run(&fake, ["once", "--json"]).out;
    assert!(json.contains(r#""name": "Quadro \\xe9^[[31m""#), "{json}");
}

/// Symbols that came with later drivers than 470.
const SINCE_R470: [&str; 5] = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetNumFans",
];

#[test]
fn an_old_driver_and_a_kepler_card_show_what_they_have() {
    let kepler = ["utilization", "power", "process_list", "ecc_mode", "process_utilization"];
    let errors = kepler.map(|call| format!("{call} = \"not_supported\"")).join(", ");
    let fake = FakeNvml::new(&format!(
        "[driver]\nversion = \"470.256.02\"\n[[gpu]]\nname = \"GeForce GTX 690\"\n\
         total = \"2 GiB\"\nreserved = 0\nused = \"1 GiB\"\nfans = [30]\nerrors = {{ {errors} }}\n"
    ));
    let old = fake.library_without(&SINCE_R470);
    let output = command(&fake, ["once"]).env("GPUTOP_NVML", &old).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("   1.0    1.0    – "), "{out}");
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal = dashboard(&fake).env("GPUTOP_NVML", old.clone()).size(rows, columns).start();
        let values = [("USED", "1.0"), ("SM%", "–"), ("W", "–")];
        terminal.wait_for(|s| gpu_shows(s, "0", &values), "the values of an old card");
        terminal.wait_text("Process list not available: not supported here");
    }
    let terminal = dashboard(&fake).env("GPUTOP_NVML", old).size(6, 40).start();
    terminal.wait_text("1.0 of 2.0 GiB");
}

#[test]
fn version_1_of_the_memory_call_replaces_version_2() {
    let fake = FakeNvml::new(
        "[[gpu]]\ntotal = \"8 GiB\"\nreserved = 0\nused = \"2 GiB\"\n\
         errors = { memory = \"not_supported\", memory_v1 = \"ok\" }\n",
    );
    assert_eq!(run(&fake, ["line"]).out, "0 2.0/8G 25% sm 0% 31C ! 2.0 GiB unattributed\n");
}

#[test]
fn process_lists_of_the_wrong_length_are_read_as_far_as_they_go() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    for listed in [0, 1, 3, 31] {
        let rows = on_gpu(0, &process, "used = \"2 GiB\"");
        let fake = FakeNvml::new(&format!("[[gpu]]\nlisted = {listed}\n{rows}"));
        let json: serde_json::Value =
            serde_json::from_str(&run(&fake, ["once", "--json"]).out).unwrap();
        let shown = json["gpus"][0]["processes"].as_array().unwrap();
        assert_eq!(shown.len(), usize::from(listed > 0), "{listed}: {shown:?}");
    }
}

#[test]
fn utilization_samples_of_others_and_of_the_future_do_not_matter() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let pid = process.pid();
    let samples = format!(
        "samples = [{{ pid = 0, sm = 90 }}, {{ pid = 4294967295, sm = 80 }}, {{ pid = {pid}, sm = 33 }}, \
         {{ pid = {pid}, sm = 44, time = 1 }}, {{ pid = 999999, sm = 70, time = 9223372036854775807 }}]"
    );
    let rows = on_gpu(0, &process, "used = \"2 GiB\"\nsm = 1");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{samples}\n{rows}"));
    let terminal = dashboard(&fake).size(40, 160).start();
    terminal.wait_for(|s| shows(s, pid, &[("SM%", "33")]), "the own sample");
}

#[test]
fn an_error_of_one_mig_instance_does_not_hide_the_others() {
    let fake = FakeNvml::new(
        "[[gpu]]\ntotal = \"40 GiB\"\nmig_pending = false\nmig = [\
         { profile = \"3g.20gb\", gi = 1, errors = { memory = \"unknown\" } },\
         { profile = \"1g.5gb\", gi = 9, used = \"1 GiB\" }]\n",
    );
    let metrics = run(&fake, ["serve", "--once"]).out;
    let used = metrics.lines().filter(|line| line.starts_with("gputop_mig_memory_used_bytes"));
    assert_eq!(used.count(), 1, "{metrics}");
}

#[test]
fn gpus_without_a_handle_do_not_hide_the_others() {
    let fake = FakeNvml::new("[driver]\ndevice_count = 3\n[[gpu]]\nsm = 10\n[[gpu]]\nsm = 20\n");
    let line = run(&fake, ["line", "--width", "100"]);
    assert_eq!(line.code, Some(0), "{line:?}");
    assert!(line.out.contains("sm 10%") && line.out.contains("sm 20%"), "{line:?}");
}

#[test]
fn wsl_lists_processes_of_another_namespace() {
    if !is_host() {
        return;
    }
    let fake = FakeNvml::new(
        "[driver]\nversion = \"555.85\"\nerrors = { process_name = \"not_supported\" }\n\
         [[gpu]]\nname = \"NVIDIA GeForce RTX 3090\"\ntotal = \"24 GiB\"\nused = \"5 GiB\"\n\
         mig_supported = false\nfans = [36]\nerrors = { process_utilization = \"not_supported\" }\n\
         [[process]]\npid = 2\nkind = \"graphics\"\nused = \"unavailable\"\n\
         [[process]]\npid = 4194000\nused = \"unavailable\"\n",
    );
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal = dashboard(&fake).size(rows, columns).start();
        let row = [("VRAM", "–"), ("COMMAND", "no such process")];
        terminal.wait_for(|s| shows(s, 2, &row) && shows(s, 4_194_000, &row), "unknown processes");
    }
    let terminal = dashboard(&fake).size(6, 40).start();
    terminal.wait_text("5.6 of 24.0 GiB");
}

#[test]
fn utilization_is_read_after_the_clock_was_set_back() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let pid = process.pid();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let future = now.as_micros() + 3 * 3_600_000_000;
    let scenario = |sample: &str| {
        let rows = on_gpu(0, &process, "used = \"2 GiB\"");
        format!("[[gpu]]\nsamples = [{{ pid = {pid}, {sample} }}]\n{rows}")
    };
    let fake = FakeNvml::new(&scenario(&format!("sm = 70, time = {future}")));
    let terminal = dashboard(&fake).size(40, 160).start();
    terminal.wait_for(|s| shows(s, pid, &[("SM%", "0")]), "no sample of the past");
    fake.replace(&scenario("sm = 33"));
    terminal.wait_for(|s| shows(s, pid, &[("SM%", "33")]), "the new sample");
}

#[test]
fn a_gpu_sleeps_while_another_one_is_read() {
    let sysfs = Sysfs::with_gpu("suspended");
    let awake = "0000:41:00.0";
    for (name, text) in [
        ("vendor", "0x10de"),
        ("class", "0x030000"),
        ("device", "0x2684"),
        ("power/control", "auto"),
        ("power/runtime_status", "active"),
    ] {
        sysfs.set_at(awake, name, text);
    }
    let fake = FakeNvml::new(&format!(
        "{LAPTOP}[[gpu]]\nname = \"NVIDIA GeForce RTX 4090\"\nsm = 60\npci_bus = \"0000{awake}\"\n"
    ));
    let (code, out) = run_with(&sysfs, &fake, &["line"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("0 asleep | 1 ") && out.contains(" sm 60% "), "{out}");
    let calls_of = |gpu| fake.calls().iter().filter(|(_, of, _)| *of == Some(gpu)).count();
    assert_eq!(calls_of(0), 0, "{:?}", fake.calls());
    assert!(calls_of(1) > 0);
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal =
            dashboard(&fake).env("GPUTOP_SYS", sysfs.root.path()).size(rows, columns).start();
        terminal.wait_for(
            |s| gpu_shows(s, "0", &[("SM%", "–")]) && gpu_shows(s, "1", &[("SM%", "60")]),
            "one GPU",
        );
    }
    assert_eq!(calls_of(0), 0);
}

#[test]
fn a_gpu_without_a_uuid_is_read() {
    let fake = FakeNvml::new(
        "[[gpu]]\nsm = 10\n[[gpu]]\nsm = 20\nerrors = { uuid = \"not_supported\" }\n",
    );
    let line = run(&fake, ["line", "--width", "100"]);
    assert_eq!(line.code, Some(0), "{line:?}");
    assert!(line.out.contains("sm 10%") && line.out.contains("sm 20%"), "{line:?}");
    let metrics = run(&fake, ["serve", "--once"]).out;
    assert!(!metrics.contains("state=\"lost\""), "{metrics}");
}

#[test]
fn a_virtual_gpu_shows_what_the_guest_can_read() {
    let absent =
        ["power", "power_management_limit", "temperature", "fan", "process_list", "ecc_mode"];
    let errors = absent.map(|call| format!("{call} = \"not_supported\"")).join(", ");
    let fake = FakeNvml::new(&format!(
        "[[gpu]]\nname = \"GRID A100-10C\"\ntotal = \"10 GiB\"\nused = \"4 GiB\"\nsm = 35\n\
         mig_supported = false\nerrors = {{ {errors} }}\n"
    ));
    let line = run(&fake, ["line"]).out;
    assert!(line.starts_with("0 4.6/10G 46% sm 35%") && !line.contains('!'), "{line}");
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal = dashboard(&fake).size(rows, columns).start();
        let values = [("SM%", "35"), ("W", "–"), ("TEMP", "–")];
        terminal.wait_for(|s| gpu_shows(s, "0", &values), "a virtual GPU");
        terminal.wait_text("Process list not available: not supported here");
    }
    let terminal = dashboard(&fake).size(6, 40).start();
    terminal.wait_text("4.6 of 10.0 GiB");
}

#[test]
fn performance_metrics_are_read_while_the_screen_of_a_gpu_is_open() {
    let fake = FakeNvml::new(
        "[[gpu]]\nsm = 100\ngpm = { 2 = 61.5, 5 = 40.2, 10 = 33.0, 20 = 100.0, 21 = 9216.0, 60 = 5.0, 61 = 7.0 }\n\
         [[gpu]]\nsm = 100\nname = \"NVIDIA A100\"\n",
    );
    let terminal = dashboard(&fake).size(50, 200).start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[("SM%", "100")]), "the GPUs");
    assert_eq!(fake.calls().of("gpm_sample"), 0);
    terminal.send("\r");
    for words in ["SM active             62 %", "tensor cores active   40 %", "9664 MB/s"] {
        terminal.wait_text(words);
    }
    // The slow calls for traffic are not made.
    assert_eq!(fake.calls().of("pcie_throughput"), 0);
    terminal.send("]");
    terminal.wait_text("not measured by the driver");
    fake.wait_calls("traffic", |calls| calls.on("pcie_throughput", 1) > 0);
    terminal.send("\x1b");
    terminal.wait_for(|s| gpu_shows(s, "1", &[("SM%", "100")]), "the overview");
}

/// GPUs with a performance monitor, each with a process. GPU `hangs` does not return from it.
fn monitored(count: usize, hangs: Option<usize>) -> String {
    let mut scenario = "[latency]\ngpm_sample = 20000\n".to_owned();
    for gpu in 0..count {
        scenario += "[[gpu]]\nsm = 97\ngpm = { 2 = 61.5 }\n";
        if hangs == Some(gpu) {
            scenario += "hang = [\"gpm_sample\"]\n";
        }
    }
    for gpu in 0..count {
        let pid = std::process::id();
        scenario += &format!("[[process]]\npid = {pid}\ngpu = {gpu}\nused = \"1 GiB\"\n");
    }
    scenario
}

#[test]
fn gpus_take_turns_in_the_performance_monitor() {
    let fake = FakeNvml::new(&monitored(4, None));
    let _terminal = dashboard(&fake).start();
    // The scripted driver aborts if two threads are in the monitor.
    fake.wait_calls("samples", |calls| (0..4).all(|gpu| calls.on("gpm_sample", gpu) > 0));
}

#[test]
fn a_gpu_that_hangs_in_the_performance_monitor_stops_no_other() {
    let fake = FakeNvml::new(&monitored(2, Some(0)));
    let terminal = dashboard(&fake).size(50, 200).start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[("SM%", "97")]), "the other GPU");
    terminal.send("j\r");
    terminal.wait_text("another GPU does not answer");
}

#[test]
fn marks_for_missing_traffic_are_no_values() {
    let fake = FakeNvml::new(
        "[[gpu]]\ngpm = { 2 = 140737488355328.0, 20 = 9223372036854775792.0, 21 = 9216.0, 60 = -1.0, 61 = inf }\n\
         [[gpu]]\nname = \"NVIDIA A100\"\npcie_tx = 4294967295\npcie_rx = 5000\n",
    );
    for (keys, real) in [("\r", "9664 MB/s"), ("j\r", "5.0 MB/s")] {
        let terminal = dashboard(&fake).size(50, 200).start();
        terminal.wait_for(|s| gpu_shows(s, "1", &[("SM%", "0")]), "the GPUs");
        terminal.send(keys);
        terminal.wait_text(real);
        let text = terminal.text();
        assert_eq!(text.matches("B/s").count(), 1, "{text}");
    }
}

#[test]
fn line_shows_problems_that_are_read_rarely() {
    for (problem, words) in [
        ("remap_pending = true", "row remap: reset"),
        ("remap_failed = true", "row remap failed"),
        ("ecc_uncorrected = 1", "1 ECC uncorrected"),
        ("pcie_width = 4", "PCIe x4 of x16"),
        ("recovery_action = 1", "needs reset"),
        ("recovery_action = 2", "needs reboot"),
        ("recovery_action = 4", "needs drain and reset"),
        ("recovery_action = 9", "needs unknown action"),
        ("mig_mode = true", "MIG on, no instance"),
        (
            "mig = [{ profile = \"1g.18gb\", gi = 3 }]\nerrors = { mig_handle = \"no_permission\" }",
            "MIG: no permission",
        ),
    ] {
        // The calls about errors are slow.
        let slow = "latency = { ecc_errors = 50000, remapped_rows = 50000 }";
        let fake = FakeNvml::new(&format!("[[gpu]]\n[[gpu]]\n{problem}\n{slow}\n"));
        let line = run(&fake, ["line", "--width", "100"]).out;
        assert!(line.ends_with(&format!(" ! {words}\n")), "{problem}: {line}");
        assert!(line.starts_with("0 0.6/140G 0% sm 0% 31C | 1 "), "{problem}: {line}");
    }
    let started = Instant::now();
    let fake = FakeNvml::h200s(1, "");
    assert_eq!(run(&fake, ["line"]).out, "0 0.6/140G 0% sm 0% 31C\n");
    assert!(started.elapsed() < Duration::from_millis(1_500), "{:?}", started.elapsed());
}

fn samples(metrics: &str, name: &str) -> Vec<String> {
    let lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.map(|line| line[name.len()..].to_owned()).collect()
}

fn json(fake: &FakeNvml) -> serde_json::Value {
    serde_json::from_str(&run(fake, ["once", "--json"]).out).unwrap()
}

#[test]
fn implausible_power_and_limits_of_zero_are_missing() {
    let card = "power_limit = 150000\npower_default_limit = 150000\npower_max_limit = 150000\n";
    let fake = FakeNvml::new(&format!(
        "[[gpu]]\npower = 3868000\n{card}[[gpu]]\npower = 300000\n{card}\
         [[gpu]]\npower = 3868000\nerrors = {{ power_constraints = \"not_supported\", \
         power_default_limit = \"not_supported\" }}\n\
         [[gpu]]\nslowdown_temperature = 0\nshutdown_temperature = 0\n"
    ));
    let json = json(&fake);
    assert_eq!(json["gpus"][0]["power_mw"]["missing"], "implausible", "{:#}", json["gpus"][0]);
    assert_eq!(json["gpus"][1]["power_mw"], 300_000);
    assert_eq!(json["gpus"][2]["power_mw"], 3_868_000, "no limit is known");
    let metrics = run(&fake, ["serve", "--once"]).out;
    let power = samples(&metrics, "DCGM_FI_DEV_POWER_USAGE");
    assert_eq!(power, ["{gpu=\"1\"} 300", "{gpu=\"2\"} 3868", "{gpu=\"3\"} 76"]);
    for name in ["DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_SHUTDOWN_TEMP"] {
        assert_eq!(samples(&metrics, name).len(), 3, "{metrics}");
    }
    assert_eq!(json["gpus"][3]["board"]["slowdown_temperature_c"]["missing"], "unsupported");
}

#[test]
fn a_gpu_without_any_figure_is_not_answering() {
    let fake = FakeNvml::new(
        "[[gpu]]\nsm = 30\n[[gpu]]\nerrors = { \"*\" = \"unknown\", handle = \"ok\", uuid = \"ok\", \
         name = \"ok\", index = \"ok\", pci_info = \"ok\", minor = \"ok\" }\n",
    );
    let line = run(&fake, ["line", "--width", "100"]).out;
    let note = "no figures: an internal driver error occurred";
    assert_eq!(line, format!("0 0.6/140G 0% sm 30% 31C | 1 - sm - - ! {note}\n"));
    let up = samples(&run(&fake, ["serve", "--once"]).out, "gputop_gpu_up");
    let expected = ["{gpu=\"0\",state=\"answering\"} 1", "{gpu=\"1\",state=\"unreadable\"} 0"];
    assert_eq!(up, expected);
    let table = run(&fake, ["once"]).out;
    assert!(table.contains(note), "{table}");
    assert!(table.contains("Process list not available for GPU 1: "), "{table}");
    for (rows, columns) in [(24, 80), (40, 120), (60, 200)] {
        let terminal = dashboard(&fake).size(rows, columns).start();
        let is_shown = |screen: &vt100::Screen| {
            let row = screen_tables::gpu(screen, "1");
            row.is_some_and(|row| row.cell("NOTE").starts_with("no figures"))
        };
        terminal.wait_for(is_shown, "the note");
        terminal.wait_text("Process list not available for GPU 1");
    }
}

#[test]
fn a_gpu_without_a_process_list_does_not_hide_the_processes_of_others() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&format!(
        "[[gpu]]\n[[gpu]]\nerrors = {{ process_list = \"not_supported\" }}\n{}",
        on_gpu(0, &process, "used = \"2 GiB\"")
    ));
    let table = run(&fake, ["once"]).out;
    assert!(table.contains(" train.py\n"), "{table}");
    assert!(table.contains("processes: not supported here"), "{table}");
}

#[test]
fn the_reason_for_a_missing_process_list_is_that_of_the_driver() {
    let lists = ["Compute", "Graphics", "MPSCompute"];
    let symbols = lists.iter().flat_map(|list| {
        ["_v2", "_v3"].map(|version| format!("nvmlDeviceGet{list}RunningProcesses{version}"))
    });
    let symbols: Vec<String> = symbols.collect();
    let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
    let fake = FakeNvml::new("[driver]\nversion = \"430.50\"\n[[gpu]]\n");
    let old = fake.library_without(&symbols);
    let output = command(&fake, ["once"]).env("GPUTOP_NVML", &old).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(" processes: needs a newer driver\n"), "{table}");
}

#[test]
fn unknown_throttle_bits_are_shown() {
    let fake = FakeNvml::new("[[gpu]]\nthrottle = 0x200\n[[gpu]]\nthrottle = 0x204\n");
    let json = json(&fake);
    assert_eq!(json["gpus"][0]["throttle"], serde_json::json!(["unknown"]));
    assert_eq!(json["gpus"][1]["throttle"], serde_json::json!(["sw_power_cap", "unknown"]));
    let line = run(&fake, ["line", "--gpu", "0"]).out;
    assert!(line.ends_with(" ! throttled, reason unknown\n"), "{line}");
    let reasons = samples(&run(&fake, ["serve", "--once"]).out, "gputop_gpu_throttle");
    assert_eq!(reasons.len(), 3, "{reasons:?}");
}

#[test]
fn fewer_nvlinks_than_on_gpus_of_the_same_model_are_noted() {
    let gpu = "[[gpu]]\nname = \"Tesla V100-SXM2-32GB\"\nnvlinks = 6\n";
    let fake = FakeNvml::new(&format!(
        "{gpu}{gpu}nvlinks_down = [3, 5]\n[[gpu]]\nnvlinks = 0\n\
         [[gpu]]\nname = \"NVIDIA A100-PCIE-40GB\"\nnvlinks = 12\nnvlinks_down = [0, 1]\n"
    ));
    let table = run(&fake, ["once"]).out;
    assert_eq!(table.matches(" NVLinks\n").count(), 1, "{table}");
    assert!(table.contains(" 4 of 6 NVLinks\n"), "{table}");
    let metrics = run(&fake, ["serve", "--once"]).out;
    let up = samples(&metrics, "gputop_gpu_nvlinks_up");
    assert_eq!(up, ["{gpu=\"0\"} 6", "{gpu=\"1\"} 4", "{gpu=\"3\"} 10"]);
    // One call shows that a GPU has no NVLink. Each command reads the GPU at least once.
    assert_eq!(fake.calls().on("nvlink_state", 2), 2);
}

#[test]
fn a_failed_row_remap_is_an_incident() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let failed = "[[gpu]]\nremapped_uncorrectable = 8\nremap_failed = true\n";
    let fake = FakeNvml::new(&format!("[[gpu]]\n{failed}{failed}"));
    let start = || {
        dashboard(&fake)
            .env("XDG_STATE_HOME", dir.path())
            .args(["--on-incident", &format!("cat >> {}", said.display())])
            .start()
    };
    let notified = || fs::read_to_string(&said).unwrap_or_default().lines().count();
    let terminal = start();
    wait_until("on_incident for both GPUs", || notified() >= 2);
    let said = fs::read_to_string(&said).unwrap();
    for gpu in ["GPU 1 (0000:2a:00)", "GPU 2 (0000:3a:00)"] {
        assert!(said.contains(&format!("{gpu} could not replace a defective memory row.")));
    }
    terminal.wait_text("MEMORY ROW REMAPPING");
    drop(terminal);
    // A later gputop finds the same incident.
    let terminal = start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[("NOTE", "row remap failed")]), "the GPU");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(notified(), 2);
    drop(terminal);
}

#[test]
fn small_totals_have_a_decimal_that_matches_the_share() {
    for (total, used, expected) in [
        ("576 MiB", "348 MiB", "0.5/0.6G 86%"),
        ("2 GiB", "1 GiB", "1.1/2G 57%"),
        ("8188 MiB", "1 GiB", "1.1/8G 14%"),
        ("11178 MiB", "1 GiB", "1.1/11G 11%"),
    ] {
        let gpu =
            format!("[[gpu]]\ntotal = \"{total}\"\nreserved = \"150 MiB\"\nused = \"{used}\"\n");
        let line = run(&FakeNvml::new(&gpu), ["line"]).out;
        assert!(line.starts_with(&format!("0 {expected} ")), "{line}");
    }
}

#[test]
fn labels_have_no_shell_quotes() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("say \"hi\", ok");
    let fake = FakeNvml::h200s(1, &on_gpu(0, &process, "used = \"2 GiB\""));
    let info = samples(&run(&fake, ["serve", "--once"]).out, "gputop_process_info");
    assert!(info.len() == 1 && info[0].contains("command=\"say\""), "{info:?}");
}

#[test]
fn a_virtual_gpu_without_events_does_not_report_xids() {
    let fake = FakeNvml::new(
        "[[gpu]]\nname = \"GRID A100-10C\"\nerrors = { event_register = \"not_supported\" }\n",
    );
    let doctor = run(&fake, ["doctor"]).out;
    assert!(doctor.contains(", 1 GPU, "), "{doctor}");
    assert!(doctor.contains("not reported by the driver for these GPUs"), "{doctor}");
}

#[test]
fn a_pcie_gpu_without_the_memory_call_does_not_share_the_memory_of_the_host() {
    let fake = FakeNvml::new(
        "[[gpu]]\nname = \"NVIDIA GeForce GT 610\"\npcie_width = 16\n\
         errors = { memory = \"not_supported\", process_list = \"not_supported\" }\n",
    );
    let json = json(&fake);
    let gpu = &json["gpus"][0];
    assert_eq!(
        gpu["memory"]["total_bytes"],
        serde_json::json!({"missing": "unsupported"}),
        "{gpu:#}"
    );
    assert_eq!(gpu["pcie"]["width"], 16, "{gpu:#}");
}

#[test]
fn serve_tells_a_missing_driver_from_a_host_without_gpus() {
    for (scenario, state, why) in [
        ("[driver]\ninit = \"driver_not_loaded\"\n[[gpu]]\n", "no_driver", "gputop: "),
        ("[driver]\ndevice_count = 0\n[[gpu]]\n", "no_gpus", "gputop: "),
    ] {
        let outcome = run(&FakeNvml::new(scenario), ["serve", "--once"]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert_eq!(samples(&outcome.out, "gputop_up"), [format!("{{state=\"{state}\"}} 0")]);
        assert!(outcome.err.starts_with(why) && outcome.err.lines().count() == 1, "{outcome:?}");
    }
}

#[test]
fn serve_once_exports_the_same_series_each_time() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::h200s(2, &on_gpu(0, &process, "used = \"2 GiB\"\nsm = 80"));
    for _ in 0..5 {
        let ratio = samples(&run(&fake, ["serve", "--once"]).out, "gputop_process_sm_ratio");
        assert!(ratio.len() == 1 && ratio[0].ends_with(" 0.8"), "{ratio:?}");
    }
}

#[test]
fn a_terminal_of_unknown_type_gets_no_colours() {
    let fake = FakeNvml::h200s(1, "");
    for term in ["", "unknown", "dumb"] {
        let terminal = dashboard(&fake).env("TERM", term).start();
        terminal.wait_for(|s| gpu_shows(s, "0", &[("NOTE", "")]), "the overview");
        let screen = terminal.screen();
        let cells = (0..40).flat_map(|row| (0..120).map(move |column| (row, column)));
        let is_coloured = |&(row, column): &(u16, u16)| {
            let cell = screen.cell(row, column).unwrap();
            (cell.fgcolor(), cell.bgcolor()) != (vt100::Color::Default, vt100::Color::Default)
        };
        assert_eq!(cells.filter(is_coloured).count(), 0, "{term:?}");
    }
}

#[test]
fn long_user_names_are_cut_in_the_middle() {
    use gputop::dashboard::process_columns::PROCESS_COLUMNS;
    use gputop::dashboard::table::Align;
    let user = PROCESS_COLUMNS.iter().find(|column| column.title == "USER").unwrap();
    assert_eq!((user.align, user.width), (Align::LeftMiddle, 8));
}
