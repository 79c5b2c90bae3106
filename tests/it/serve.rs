//! `gputop serve` with a real client: its values, gaps, limits, and files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::net::{SocketAddr, TcpStream};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use gputop_model::gpu::{GPU_FIGURES, Gpu};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::incidents::User;
use crate::run_explained::OOM;
use crate::support::fake_machine::{
    Guarded, INTERVAL, RealProcess, command, has, is_host, on_gpu, run, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::torch_target::Target;
use crate::torch_live::dump_path;

/// A running exporter and its port.
pub struct Exporter {
    child: Guarded,
    address: SocketAddr,
    errors: BufReader<ChildStderr>,
}

impl Exporter {
    pub fn start(fake: &FakeNvml, more: &[&str]) -> Self {
        let mut serve = command(fake, ["serve", "--interval", INTERVAL]);
        serve.args(["--listen", "127.0.0.1:0"]).args(more);
        Self::spawn(serve)
    }

    fn spawn(mut serve: Command) -> Self {
        let mut child = Guarded(serve.stderr(Stdio::piped()).spawn().unwrap());
        let mut errors = BufReader::new(child.0.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).unwrap() > 0, "{seen}");
            if let Some((_, rest)) = line.split_once("serving http://") {
                break rest.trim().trim_end_matches("/metrics").parse().unwrap();
            }
            seen += &line;
        };
        Self { child, address, errors }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        let timeout = Some(Duration::from_secs(30));
        stream.set_read_timeout(timeout).unwrap();
        stream.set_write_timeout(timeout).unwrap();
        stream
    }

    /// Sends a request and returns the whole response.
    fn request(&self, head: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{head}\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Returns the status line of the response to a request with these header lines.
    fn status(&self, target: &str, headers: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "GET {target} HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn metrics(&self) -> Metrics {
        let response = self.request("GET /metrics HTTP/1.1");
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Metrics::parse(body)
    }

    /// Waits until the metrics satisfy `wanted`, and returns them.
    #[track_caller]
    fn wait(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        let mut metrics = self.metrics();
        wait_until(what, || {
            metrics = self.metrics();
            wanted(&metrics)
        });
        metrics
    }

    /// Stops the exporter as systemd does. Returns the exit code and the remaining messages.
    fn stop(mut self) -> (Option<i32>, String) {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).unwrap();
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        (self.child.0.wait().unwrap().code(), rest)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.0.id()).unwrap()
    }

    /// Returns the resident memory in KiB.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Samples by series: `DCGM_FI_DEV_GPU_UTIL{gpu="0"}`.
#[derive(Debug)]
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut metrics = BTreeMap::new();
        for line in samples {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let before = metrics.insert(series.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "{series} occurs twice");
        }
        Self(metrics)
    }

    fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    fn with(&self, part: &str) -> Vec<&str> {
        let names = self.0.keys().filter(|series| series.contains(part));
        names.map(String::as_str).collect()
    }

    fn is_up(&self) -> bool {
        self.get("gputop_up{state=\"up\"}") == Some(1.0)
    }
}

/// Returns the series and the value of each GPU figure in the output of `gputop once --json`.
fn figures_of_once(fake: &FakeNvml) -> Vec<(String, Option<f64>)> {
    let once = run(fake, ["once", "--json"]);
    let json: Value = serde_json::from_str(&once.out).unwrap();
    let mut figures = Vec::new();
    for (index, gpu) in json["gpus"].as_array().unwrap().iter().enumerate() {
        let gpu: Gpu = serde_json::from_value(gpu.clone()).unwrap();
        for figure in GPU_FIGURES {
            let Some(name) = figure.dcgm else { continue };
            let value = figure.field.read(&gpu).ok().and_then(|v| v.dcgm_number());
            figures.push((format!("{name}{{gpu=\"{index}\"}}"), value));
        }
    }
    figures
}

#[test]
fn values_equal_those_of_once_as_json() {
    let process = RealProcess::start("train.py");
    let listed = on_gpu(1, &process, "used = \"21.5 GiB\"\nsm = 90");
    let fake = FakeNvml::new(&format!(
        "[[gpu]]\nsm = 12\npower = 131500\necc_corrected = 3\n[[gpu]]\nmig = []\n\
         errors = {{ temperature = \"not_supported\" }}\n{listed}"
    ));
    let exporter = Exporter::start(&fake, &[]);
    let is_complete = |metrics: &Metrics| {
        metrics.is_up() && !metrics.with("FAN_SPEED").is_empty()
            || !metrics.with("MIG_MODE").is_empty()
    };
    let metrics = exporter.wait("all figures", is_complete);
    for (series, expected) in figures_of_once(&fake) {
        assert_eq!(metrics.get(&series), expected, "{series}");
    }
    assert_eq!(metrics.get("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\"}"), Some(131.5));
    assert_eq!(metrics.get("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"}"), None);
    let row = format!("{{gpu=\"1\",pid=\"{}\"}}", process.pid());
    let memory = metrics.get(&format!("gputop_process_memory_bytes{row}"));
    assert_eq!(memory, Some(21.5 * f64::from(1 << 30)));
    let sm = exporter.wait("the share of the process", |metrics| {
        metrics.get(&format!("gputop_process_sm_ratio{row}")).is_some()
    });
    assert_eq!(sm.get(&format!("gputop_process_sm_ratio{row}")), Some(0.9));
}

#[test]
fn a_gpu_that_hangs_or_is_lost_leaves_gaps() {
    let fake = FakeNvml::h200s(2, "");
    let exporter = Exporter::start(&fake, &[]);
    let second = "{gpu=\"1\"}";
    exporter.wait("both GPUs", |metrics| !metrics.with(second).is_empty());
    for (fault, state) in
        [("hang = [\"memory\"]", "silent"), ("errors = { \"*\" = \"gpu_is_lost\" }", "lost")]
    {
        fake.replace(&format!("[[gpu]]\n[[gpu]]\n{fault}\n"));
        let health = format!("gputop_gpu_up{{gpu=\"1\",state=\"{state}\"}}");
        let metrics = exporter.wait(state, |metrics| metrics.get(&health) == Some(0.0));
        assert_eq!(metrics.with("gpu=\"1\""), [health]);
        assert!(metrics.get("DCGM_FI_DEV_FB_USED{gpu=\"0\"}").is_some());
        assert!(metrics.is_up());
        fake.replace("[[gpu]]\n[[gpu]]\n");
        exporter.wait("the GPU to return", |metrics| !metrics.with(second).is_empty());
    }
}

#[test]
fn a_machine_without_gpus_is_down() {
    let fake = FakeNvml::new("");
    let exporter = Exporter::start(&fake, &[]);
    let metrics = exporter
        .wait("the reason", |metrics| metrics.get("gputop_up{state=\"no_gpus\"}") == Some(0.0));
    assert!(metrics.with("DCGM").is_empty());
    let once = run(&fake, ["serve", "--once"]);
    assert_eq!(once.code, Some(1));
}

#[test]
fn labels_describe_processes_without_their_arguments() {
    if !is_host() {
        return;
    }
    let script = "/srv/secret-project/train.py";
    let arguments = ["x", script, "--token", "hf_secret", "\"quoted\\"];
    let process = RealProcess::with_arguments(arguments, |command| {
        command.env("RANK", "3").env("SLURM_JOB_ID", "81234");
    });
    let others: Vec<RealProcess> = (0..3).map(|_| RealProcess::start("eval.py")).collect();
    let mut scenario = format!("[[gpu]]\n{}", on_gpu(0, &process, "used = \"9 GiB\"\nsm = 40"));
    for other in &others {
        scenario += &on_gpu(0, other, "used = \"1 GiB\"\nsm = 10");
    }
    let fake = FakeNvml::new(&scenario);
    let exporter = Exporter::start(&fake, &["--processes", "1", "--labels", "command,rank,job"]);
    let sums = |metrics: &Metrics| {
        let row =
            |name: &str| metrics.get(&format!("gputop_process_{name}{{gpu=\"0\",pid=\"other\"}}"));
        (row("memory_bytes"), row("sm_ratio"))
    };
    let gib = f64::from(1 << 30);
    let metrics = exporter.wait("the sum of the others", |metrics| {
        let (memory, sm) = sums(metrics);
        memory == Some(3.0 * gib) && sm.is_some_and(|sm| (sm - 0.3).abs() < 1e-9)
    });
    let info = metrics.with("gputop_process_info");
    let expected = format!(
        "gputop_process_info{{pid=\"{}\",command=\"sh\",rank=\"3\",job=\"81234\"}}",
        process.pid()
    );
    assert_eq!(info, [expected]);
    let all = format!("{metrics:?}");
    for private in ["train", "secret", "hf_", "--token", "quoted"] {
        assert!(!all.contains(private), "{private} in {all}");
    }
}

#[test]
fn clients_choose_the_format_and_get_clear_errors() {
    let fake = FakeNvml::h200s(1, "");
    let exporter = Exporter::start(&fake, &[]);
    exporter.wait("a GPU", Metrics::is_up);
    let accept = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let open = exporter.request(accept);
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("# EOF\n"));
    let plain = exporter.request("GET /metrics HTTP/1.1");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(!plain.contains("# EOF"));
    for (request, status) in [
        ("GET / HTTP/1.1", "200"),
        ("GET /nothing HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
    ] {
        let response = exporter.request(request);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    }
    let address = exporter.address().to_string();
    let second = run(&fake, ["serve", "--listen", &address]);
    second.assert_refused(
        2,
        &format!("cannot listen on {address}: another program uses this port. Choose a different port with --listen"),
    );
    assert_eq!(exporter.stop(), (Some(0), String::new()));
    let mut public = command(&fake, ["serve", "--listen", "0.0.0.0:0"]);
    let mut child = Guarded(public.stderr(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let mut errors = BufReader::new(child.0.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("warning: other hosts can read the metrics at 0.0.0.0:"), "{line}");
}

#[test]
fn textfile_is_always_complete_and_removed_at_the_end() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gputop.prom");
    let name = path.to_str().unwrap();
    let args = ["serve", "--interval", INTERVAL, "--textfile", name];
    let child = Guarded(command(&fake, args).spawn().unwrap());
    let read = || fs::read_to_string(&path).unwrap_or_default();
    wait_until("the file", || read().contains("DCGM_FI_DEV_FB_USED{gpu=\"0\"}"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let text = read();
        assert!(text.ends_with('\n') && text.contains("gputop_up"), "{text}");
        Metrics::parse(&text);
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o444, 0o444, "the node exporter cannot read the file");
    let pid = i32::try_from(child.0.id()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    wait_until("the file to be removed", || !path.exists());
    let once = run(&fake, ["serve", "--once", "--textfile", name]);
    assert_eq!((once.code, once.out.as_str()), (Some(0), ""));
    Metrics::parse(&read());
    let missing = run(&fake, ["serve", "--textfile", "/nonexistent/gputop.prom"]);
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.err.contains("cannot write /nonexistent/gputop.prom: No such file"),
        "{missing:?}"
    );
}

/// A website whose name resolves to the exporter's address must not read it with a user's browser.
#[test]
fn only_addresses_and_own_names_are_answered() {
    let fake = FakeNvml::h200s(1, "");
    let exporter = Exporter::start(&fake, &[]);
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let port = exporter.address().port();
    let answered = [
        "127.0.0.1",
        "127.0.0.1.",
        "10.0.0.7:9836",
        "[::1]:9836",
        "[2001:DB8::7]",
        "localhost",
        "LOCALHOST.:1",
        "localhost:",
        &own,
    ];
    for host in answered.map(str::to_owned).into_iter().chain([format!("{own}:{port}")]) {
        let status = exporter.status("/metrics", &format!("Host: {host}\r\n"));
        assert_eq!(status, "HTTP/1.1 200 OK", "{host}");
    }
    assert_eq!(exporter.status("/metrics", ""), "HTTP/1.1 200 OK");
    let refused = [
        "attacker.example",
        "127.0.0.1.attacker.example:80",
        "localhost.attacker.example",
        "localhost..",
        "localhost@attacker.example",
        "attacker.example@localhost",
        "user:password@127.0.0.1:80",
        "localhost@localhost",
        "localhost:80:80",
        "localhost:x",
        "[::1",
        "[localhost]",
        "[attacker.example]",
        "[::1].attacker.example",
        "::1",
        "2130706433",
        "%6cocalhost",
        "localhost,attacker.example",
        "localhost/attacker.example",
        "http://localhost",
        "localhost\u{e9}",
        "",
        ".",
        ":80",
        "a b",
    ];
    for host in refused {
        let status = exporter.status("/metrics", &format!("Host: {host}\r\n"));
        assert_eq!(status, "HTTP/1.1 421 Misdirected Request", "{host}");
    }
    let two = exporter.status("/metrics", "Host: localhost\r\nHost: attacker.example\r\n");
    let absolute = exporter.status("http://attacker.example/metrics", "Host: localhost\r\n");
    let absolute_user = exporter.status("http://localhost@attacker.example/metrics", "");
    let refused = [two, absolute, absolute_user];
    assert!(refused.iter().all(|status| status.contains(" 421 ")), "{refused:?}");
    // Nothing but the path of an absolute target counts once its host is known.
    let own = exporter.status("http://localhost:1/metrics", "Host: 127.0.0.1\r\n");
    assert_eq!(own, "HTTP/1.1 200 OK");
}

#[test]
fn idle_connections_do_not_delay_a_scrape() {
    /// Three times the maximum number of connections.
    const IDLE: usize = 385;
    /// Without a free slot, a scrape waits until the idle connections reach the server's timeout of 5 seconds.
    const DELAY: Duration = Duration::from_secs(5);
    let fake = FakeNvml::h200s(1, "");
    let exporter = Exporter::start(&fake, &[]);
    exporter.wait("the GPU", Metrics::is_up);
    // A busy machine may delay one scrape, but not each of them.
    let is_fast = (0..3).any(|_| {
        let idle: Vec<TcpStream> = (0..IDLE).map(|_| exporter.connect()).collect();
        let start = Instant::now();
        assert!(exporter.metrics().is_up());
        let took = start.elapsed();
        drop(idle);
        took < DELAY / 2
    });
    assert!(is_fast);
}

#[test]
fn textfile_replaces_and_deletes_only_its_own_regular_file() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("theirs"), "theirs").unwrap();
    std::os::unix::fs::symlink(at("theirs"), at("link.prom")).unwrap();
    nix::unistd::mkfifo(&at("fifo.prom"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in ["link.prom", "fifo.prom"] {
        let path = at(name);
        for more in [&["--once"][..], &[]] {
            let args = [&["serve", "--textfile", path.to_str().unwrap()], more].concat();
            let sentence = format!(
                "cannot write {}: not a regular file, so it is not replaced. Name another file",
                path.display()
            );
            run(&fake, args).assert_refused(2, &sentence);
        }
        assert!(!path.symlink_metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(fs::read_to_string(at("theirs")).unwrap(), "theirs");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    // The interval is long, so that gputop does not write again.
    let path = at("gputop.prom");
    let args = ["serve", "--interval", "60s", "--textfile", path.to_str().unwrap()];
    let mut child = Guarded(command(&fake, args).spawn().unwrap());
    wait_until("the file", || path.exists());
    fs::rename(at("theirs"), &path).unwrap();
    kill(Pid::from_raw(i32::try_from(child.0.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
}

#[test]
fn hostile_clients_use_bounded_memory_and_leave_sampling_alone() {
    const SCRAPES: usize = 1_000;
    const MAX_GROWTH_KIB: u64 = 32 << 10;
    let fake = FakeNvml::h200s(8, "");
    let exporter = Exporter::start(&fake, &[]);
    exporter.wait("the GPUs", |metrics| !metrics.with("gpu=\"7\"").is_empty());
    let before = exporter.resident();
    let (begun, calls) = (Instant::now(), fake.calls().on("memory", 0));
    // Half-open connections, and readers that never read.
    let idle: Vec<TcpStream> = (0..40).map(|_| exporter.connect()).collect();
    let slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = exporter.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for head in [
        "GET /metrics HTTP/1.1\r\nX: ",
        "POST /metrics HTTP/1.1\r\nContent-Length: 10485760\r\n\r\n",
    ] {
        let mut stream = exporter.connect();
        stream.write_all(head.as_bytes()).unwrap();
        // The server closes the connection long before the end.
        let chunk = [b'x'; 64 << 10];
        let is_sent = (0..160).all(|_| stream.write_all(&chunk).is_ok());
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        assert!(!is_sent || response.starts_with(b"HTTP/1.1 4"), "{}", response.len());
    }
    let scrapes: Vec<TcpStream> = (0..SCRAPES)
        .map(|_| {
            let mut stream = exporter.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for mut stream in scrapes {
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.contains("DCGM_FI_DEV_FB_USED{gpu=\"7\"}"), "{response}");
    }
    let growth = exporter.resident().saturating_sub(before);
    assert!(growth < MAX_GROWTH_KIB, "{growth} KiB more than before");
    // One call for each interval, as without clients.
    let expected = begun.elapsed().as_millis() / 200;
    let made = u128::from(fake.calls().on("memory", 0) - calls);
    assert!(made <= expected + 2, "{made} calls in {expected} intervals");
    assert!(made + 3 >= expected / 2, "{made} calls in {expected} intervals");
    drop((idle, slow));
    assert!(exporter.metrics().is_up());
}

#[test]
fn remote_hosts_have_a_label_and_a_state() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let gputop = env!("CARGO_BIN_EXE_gputop");
    let via = format!("via:echo $$ > {}; exec {gputop} agent", pid.display());
    let exporter = Exporter::start(&fake, &[&via, "via:false"]);
    let name = &via["via:".len()..];
    let name: String = name.chars().take(20).collect();
    let metrics = exporter.wait("the remote host", |metrics| {
        !metrics.with("DCGM_FI_DEV_FB_USED").is_empty()
            && !metrics.with("state=\"disconnected\"").is_empty()
    });
    let used = metrics.with("DCGM_FI_DEV_FB_USED");
    assert!(used[0].contains(&format!("host=\"{name}")), "{used:?}");
    assert_eq!(metrics.get("gputop_up{host=\"false\",state=\"disconnected\"}"), Some(0.0));
    let agent: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let _ = fs::remove_file(&pid);
    fs::create_dir(&pid).unwrap();
    kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
    exporter.wait("the figures to disappear", |metrics| {
        metrics.with("gpu=").is_empty() && metrics.with("state=\"disconnected\"").len() == 2
    });
}

/// Returns the notifications that `cat >> FILE` has written.
fn notifications(path: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let stream = serde_json::Deserializer::from_str(&text).into_iter();
    stream.map_while(Result::ok).collect()
}

#[test]
fn exits_and_idle_processes_are_notified_once() {
    if !is_host() {
        return;
    }
    let user = User::new();
    let file = user.0.path().join("notified");
    let notify = format!("cat >> {}", file.display());
    let options = ["--on-incident", &notify, "--on-exit", "--on-idle", "10s"];
    let idle = RealProcess::start("notebook");
    let mut trainer = RealProcess::start("train.py");
    let listed = on_gpu(0, &idle, "used = \"2 GiB\"\nsm = 0")
        + &on_gpu(0, &trainer, "used = \"9 GiB\"\nsm = 90");
    let fake = FakeNvml::new(&format!("[[gpu]]\nsm = 90\n{listed}"));
    let start = || {
        let mut serve =
            command(&fake, ["serve", "--interval", INTERVAL, "--listen", "127.0.0.1:0"]);
        serve.args(options).env("XDG_STATE_HOME", user.0.path());
        Exporter::spawn(serve)
    };
    // Two observers of the same user notify once.
    let exporters = [start(), start()];
    let of_kind = |kind: &str| {
        let all = notifications(&file);
        all.into_iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>()
    };
    for exporter in &exporters {
        exporter.wait("the shares", |metrics| metrics.with("gputop_process_sm_ratio").len() == 2);
    }
    trainer.finish();
    wait_until("the exit", || !of_kind("exit").is_empty());
    wait_until("the idle process", || !of_kind("idle").is_empty());
    for exporter in exporters {
        let (_, messages) = exporter.stop();
        assert_eq!(messages, "");
    }
    let exits = of_kind("exit");
    assert_eq!(exits.len(), 1, "{exits:?}");
    let title = exits[0]["title"].as_str().unwrap();
    assert!(title.starts_with(&format!("train.py (PID {}, ", trainer.pid())), "{title}");
    let quiet = of_kind("idle");
    assert_eq!(quiet.len(), 1, "{quiet:?}");
    let title = quiet[0]["title"].as_str().unwrap();
    assert!(title.contains("has held 2.00 GiB of GPU memory for "), "{title}");
    assert_eq!(quiet[0]["process"]["key"]["pid"], idle.pid());
    let without = run(&fake, ["serve", "--once", "--on-exit"]);
    without.assert_refused(2, "--on-exit: on_exit needs a command; set on_incident as well");
}

#[test]
fn serve_stops_the_command_at_exit_and_names_what_was_not_sent() {
    if !is_host() {
        return;
    }
    let user = User::new();
    let file = user.0.path().join("pid");
    let notify = format!("echo $$ > {}; sleep 60 & sleep 60", file.display());
    let mut trainer = RealProcess::start("train.py");
    let listed = on_gpu(0, &trainer, "used = \"2 GiB\"");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{listed}"));
    let mut serve = command(&fake, ["serve", "--interval", INTERVAL, "--listen", "127.0.0.1:0"]);
    serve.args(["--on-exit", "--on-incident", &notify]).env("XDG_STATE_HOME", user.0.path());
    let exporter = Exporter::spawn(serve);
    exporter.wait("the process", |metrics| !metrics.with("gputop_process_memory_bytes").is_empty());
    trainer.finish();
    let pid = || fs::read_to_string(&file).unwrap_or_default();
    wait_until("the command", || pid().ends_with('\n'));
    let (code, messages) = exporter.stop();
    assert_eq!(code, Some(0));
    let (first, second) = messages.trim_end().split_once('\n').expect("two lines");
    let expected = "gputop: on_incident: 1 notification was not sent before gputop exited:";
    assert_eq!(first, expected, "{messages}");
    assert!(second.starts_with(&format!("  train.py (PID {}", trainer.pid())), "{messages}");
    let pid = pid();
    wait_until("the end of the command", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
}

/// A Prometheus server that scrapes an exporter each second.
struct Prometheus {
    address: SocketAddr,
    _folder: tempfile::TempDir,
    _child: Guarded,
}

impl Prometheus {
    fn start(exporter: &Exporter) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let target = exporter.address();
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
                 - {{job_name: gputop, static_configs: [{{targets: ['{target}']}}]}}\n"
            ),
        )
        .unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn();
        Self { address, _folder: folder, _child: Guarded(child.unwrap()) }
    }

    /// Returns the results of an instant query: labels and value. Empty while Prometheus starts.
    fn query(&self, query: &str) -> Vec<Value> {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return Vec::new() };
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        write!(stream, "GET /api/v1/query?query={escaped} HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response);
        let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let json: Value = serde_json::from_str(body).unwrap_or_default();
        assert_ne!(json["status"], "error", "{query}: {json}");
        json["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    fn value(&self, query: &str) -> Option<f64> {
        self.query(query).first()?["value"][1].as_str()?.parse().ok()
    }
}

/// Returns the queries of the Grafana board for all instances and GPUs.
fn board_queries() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/grafana/gputop.json");
    let board: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|query| query.replace("$instance", ".*").replace("$gpu", ".*"))
        .collect()
}

#[test]
fn prometheus_gets_every_value_of_the_board() {
    if !is_host() || !has("prometheus") || !has("promtool") {
        return;
    }
    let trainer = Target::start(&dump_path());
    let folder = tempfile::tempdir().unwrap();
    let log_path = folder.path().join("fail.log");
    let mut log = fs::File::options().create(true).append(true).open(&log_path).unwrap();
    let errors = log.try_clone().unwrap();
    let mut failing = RealProcess::with("fail.py", |command| {
        command.stderr(errors);
    });
    let scenario = |fault: &str| {
        format!(
            "[[gpu]]\nsm = 30\n[[process]]\npid = {}\ngpu = 0\nused = \"9 GiB\"\nsm = 20\n{}[[gpu]]\n{fault}\n",
            trainer.pid(),
            on_gpu(0, &failing, "used = \"1 GiB\"\nsm = 10"),
        )
    };
    let fake = FakeNvml::new(&scenario(""));
    let mut serve = command(&fake, ["serve", "--interval", INTERVAL, "--listen", "127.0.0.1:0"]);
    serve.env("XDG_STATE_HOME", folder.path());
    let exporter = Exporter::spawn(serve);
    let prometheus = Prometheus::start(&exporter);
    exporter.wait("the pool", |metrics| !metrics.with("gputop_pool_fits_bytes").is_empty());
    let broken = scenario("hang = [\"memory\"]");
    writeln!(log, "{OOM}").unwrap();
    failing.finish();
    exporter.wait("the incident", |metrics| {
        metrics.get("gputop_incidents_total{card=\"oom-fragmentation\",severity=\"fatal\"}")
            == Some(1.0)
    });

    let text = exporter.request("GET /metrics HTTP/1.1");
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    check.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && complaints.is_empty(), "{complaints}");

    // Figures of processes need a process that is still running.
    let mut missing = board_queries();
    wait_until("data for every query of the board", || {
        missing.retain(|query| prometheus.query(query).is_empty());
        missing.is_empty()
    });
    let figures = figures_of_once(&fake);
    wait_until("the same values as those of once", || {
        let is_equal = |(series, value): &(String, Option<f64>)| prometheus.value(series) == *value;
        figures.iter().all(is_equal)
    });
    fake.replace(&broken);
    let used = "DCGM_FI_DEV_FB_USED{gpu=\"1\"}";
    wait_until("a gap", || prometheus.query(used).is_empty());
    assert_eq!(prometheus.value("gputop_gpu_up{gpu=\"1\",state=\"silent\"}"), Some(0.0));
    assert!(prometheus.value("DCGM_FI_DEV_FB_USED{gpu=\"0\"}").is_some());
    // One scrape a second.
    wait_until("20 scrapes", || prometheus.value("count_over_time(up[5m])") >= Some(20.0));
    assert_eq!(prometheus.value("min_over_time(up[5m])"), Some(1.0));
}
