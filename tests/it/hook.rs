//! The Python hook in real Python interpreters: it reports failures, and programs otherwise behave as without it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gputop_model::event::Observation;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::commands::{events, frames};
use crate::run::text;
use crate::support::fake_machine::{Guarded, INTERVAL, command, gputop, is_root, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::python;

/// A fake torch package with everything that the hook uses.
pub const FRAMEWORKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hook");
const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hook");

/// A user's directories, all empty at first.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("runtime")).unwrap();
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn spool(&self) -> PathBuf {
        self.path("runtime/gputop/hook")
    }

    /// Writes a file below this user's home.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn set_environment(&self, command: &mut Command) {
        command
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        for name in ["PYTHONPATH", "RANK", "SLURM_PROCID", "GPUTOP_HOOK", "GPUTOP_HOOK_SPOOL"] {
            command.env_remove(name);
        }
    }

    /// Returns a command for Python without the hook, with these directories on its path.
    fn bare(&self, python: &Path, path: &[&str]) -> Command {
        let mut command = Command::new(python);
        self.set_environment(&mut command);
        if !path.is_empty() {
            command.env("PYTHONPATH", path.join(":"));
        }
        command
    }

    /// Same as `bare`, with the hook.
    fn hooked(&self, python: &Path, path: &[&str]) -> Command {
        let mut where_is_it = gputop(["hook", "path"]);
        self.set_environment(&mut where_is_it);
        let output = where_is_it.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let hook = text(&output.stdout).trim().to_owned();
        let path: Vec<&str> = [hook.as_str()].iter().chain(path).copied().collect();
        self.bare(python, &path)
    }

    /// Returns a `gputop run` command, by default with the fake frameworks on the user's path.
    fn run(&self, args: &[&str]) -> Command {
        let mut command = gputop(["run"]);
        self.set_environment(&mut command);
        command.env("PYTHONPATH", FRAMEWORKS).args(args);
        command
    }

    /// Returns the hook's output: for each process its first line, followed by its events.
    fn hook_reports(&self) -> Vec<Value> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.spool())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "jsonl"))
            .filter(|path| path.symlink_metadata().unwrap().is_file())
            .collect();
        files.sort();
        let lines = |path: PathBuf| {
            let status = fs::metadata(&path).unwrap();
            assert_eq!(status.permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines[0]["what"], "process", "{text}");
            lines
        };
        files.into_iter().flat_map(lines).collect()
    }

    fn events(&self) -> Vec<Value> {
        let mut hook_reports = self.hook_reports();
        hook_reports.retain(|line| line["what"] != "process");
        hook_reports
    }
}

/// Returns the text without its line breaks.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that exit code and output are the same with and without the hook.
#[track_caller]
fn assert_same(user: &User, python: &Path, path: &[&str], args: &[&str]) -> Output {
    let bare = user.bare(python, path).args(args).output().unwrap();
    let hooked = user.hooked(python, path).args(args).output().unwrap();
    let hook_reports = |output: &Output| {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        format!("{:?}\n{out}\n{err}", output.status.code())
    };
    assert_eq!(hook_reports(&bare), hook_reports(&hooked), "{} {args:?}", python.display());
    hooked
}

#[test]
fn the_files_are_read_by_python_3_8() {
    for python in python::all() {
        let code = "import ast, sys\nfor name in sys.argv[1:]: ast.parse(open(name).read(), name, feature_version=(3, 8))";
        let files = ["sitecustomize.py", "gputop_hook.py"].map(|file| format!("{HOOK}/{file}"));
        let output = Command::new(python).args(["-I", "-c", code]).args(files).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn hook_reports_an_exception_with_its_location() {
    for python in python::all() {
        let user = User::new();
        let program = user.write("train.py", "def f(d):\n    return d['labels']\n\nf({})\n");
        let output = assert_same(&user, python, &[], &[program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let hook_reports = user.hook_reports();
        assert_eq!(hook_reports.len(), 2, "{hook_reports:?}");
        let event = &hook_reports[1];
        assert_eq!(event["type"], "KeyError");
        assert_eq!(event["message"], "'labels'");
        assert_eq!((&event["line"], &event["where"]), (&2.into(), &"program".into()));
        assert_eq!(event["traceback"], text(&output.stderr));
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        if scope.is_ok_and(|scope| scope.trim() == "1") {
            assert_eq!(hook_reports[0]["ptracer"], "given");
        }
        assert_eq!(fs::metadata(user.spool()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

/// Checks the argument of prctl for each value of the variable; works without Yama.
#[test]
fn the_hook_permits_reading_by_all_processes_by_one_or_by_none() {
    for python in python::all() {
        let user = User::new();
        let scope = user.write("scope", "1\n");
        let code = format!(
            "import os, gputop_hook as hook\nasked = []\nhook._PTRACE_SCOPE = {:?}\n\
             hook._set_ptracer = lambda tracer: asked.append(tracer)\nhook._permit_reading()\n\
             if os.fork() == 0: print(asked, hook._ptracer, flush=True); os._exit(0)\nos.wait()",
            scope.display()
        );
        for (value, expected) in [
            (None, "[-1, -1] given"),
            (Some(""), "[-1, -1] given"),
            (Some("0"), "[] refused"),
            (Some("4711"), "[4711, 4711] given"),
            (Some("-1"), "[] refused"),
            (Some("18446744073709551615"), "[] refused"),
            (Some("tmux"), "[] refused"),
        ] {
            let mut command = user.hooked(python, &[]);
            command.args(["-c", &code]);
            match value {
                Some(value) => command.env("GPUTOP_HOOK_PTRACER", value),
                None => command.env_remove("GPUTOP_HOOK_PTRACER"),
            };
            let output = command.output().unwrap();
            assert_eq!(
                text(&output.stdout).trim(),
                expected,
                "{value:?}: {}",
                text(&output.stderr)
            );
        }
    }
}

/// With `sudo -E`, the variables name the caller's directories. The hook of root writes nothing there.
#[test]
fn the_hook_of_root_leaves_directories_of_other_users_alone() {
    if !is_root() {
        return;
    }
    for python in python::all() {
        let user = User::new();
        let mut program = user.hooked(python, &[]);
        program.args(["-c", "1 / 0"]);
        std::os::unix::fs::chown(user.path("runtime"), Some(65_534), None).unwrap();
        program.output().unwrap();
        assert!(!user.path("runtime/gputop").exists());
        assert_eq!(fs::read_dir(user.path("state/gputop/hook")).unwrap().count(), 1);
        let mut program = user.hooked(python, &[]);
        program.args(["-c", "1 / 0"]);
        fs::remove_dir_all(user.path("state")).unwrap();
        std::os::unix::fs::chown(user.home.path(), Some(65_534), None).unwrap();
        program.output().unwrap();
        assert!(!user.path("state").exists());
    }
}

#[test]
fn successful_program_leaves_no_hook_file() {
    for python in python::all() {
        let user = User::new();
        let own = user.write("own/leaves.py", "import torch.cuda, sys; sys.exit(6)\n");
        let own = own.parent().unwrap().to_str().unwrap().to_owned();
        for code in [
            "pass",
            "import sys; sys.exit(3)",
            "import os; os._exit(4)",
            "import leaves",
            "import torch",
        ] {
            assert_same(&user, python, &[FRAMEWORKS, &own], &["-c", code]);
        }
        assert!(!user.spool().exists());
    }
}

#[test]
fn hooked_program_sees_the_same_environment() {
    let look = "import sys, os; print(sys.path, sys.argv, sorted(m for m in sys.modules if 'custom' in m)); \
                print(os.environ.get('PYTHONPATH', '').split(':')[-2:])";
    for python in python::all() {
        let user = User::new();
        let own = user.write("own/sitecustomize.py", "print('mine', __name__, __file__)\n");
        let own = own.parent().unwrap().to_str().unwrap().to_owned();
        assert_same(&user, python, &[&own, "/b"], &["-c", look]);
        assert_same(&user, python, &["/a", "/b"], &["-c", look]);
        for ways in ["-S", "-E", "-I", "-s", "-B"] {
            let bare = user
                .bare(python, &["/a"])
                .args([ways, "-c", "import sys; print(sys.path)"])
                .output()
                .unwrap();
            let hooked = user
                .hooked(python, &["/a"])
                .args([ways, "-c", "import sys; print([p for p in sys.path if 'gputop' not in p])"])
                .output()
                .unwrap();
            assert_eq!(text(&bare.stdout), text(&hooked.stdout), "{ways}");
        }
        // A child process has the hook too.
        let child = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'raise OSError(5)']))";
        assert_same(&user, python, &[], &["-c", child]);
        assert_eq!(user.events().len(), 1);
        assert_eq!(user.events()[0]["type"], "OSError");
    }
}

#[test]
fn failing_sitecustomize_is_reported_by_python() {
    for python in python::all() {
        for (n, fails) in [
            "raise ValueError('mine')",
            "import no_such_module",
            "import sys; sys.exit(7)",
            "raise ImportError('x', name='sitecustomize')",
            "this is no Python",
            "raise KeyboardInterrupt",
        ]
        .into_iter()
        .enumerate()
        {
            let user = User::new();
            let own = user.write(&format!("own{n}/sitecustomize.py"), fails);
            let own = own.parent().unwrap().to_str().unwrap().to_owned();
            let bare = user.bare(python, &[&own]).args(["-c", "print('on')"]).output().unwrap();
            let hooked = user.hooked(python, &[&own]).args(["-c", "print('on')"]).output().unwrap();
            assert_eq!(bare.status, hooked.status, "{fails}");
            assert_eq!(bare.stdout, hooked.stdout, "{fails}");
            // A traceback through site.py, as after Ctrl-C, also shows the path of the import.
            if !fails.contains("exit") && !fails.contains("Interrupt") {
                assert_eq!(text(&bare.stderr), text(&hooked.stderr), "{fails}");
            }
        }
    }
}

#[test]
fn an_old_python_is_left_alone() {
    for name in ["python2.7", "python3.6", "python3.7"] {
        let user = User::new();
        let is_there = Command::new(name).args(["-c", ""]).output();
        if is_there.is_ok_and(|output| output.status.success()) {
            let look = "import sys; print([m for m in sys.modules if 'gputop' in m], sys.path); raise OSError(5)";
            assert_same(&user, Path::new(name), &["/a"], &["-c", look]);
        }
    }
}

#[test]
fn threads_and_children_write_their_own_reports() {
    let program = "import json, os, sys, threading, multiprocessing\n\
        def fail(what): raise RuntimeError(what)\n\
        if __name__ == '__main__':\n\
        \x20   thread = threading.Thread(target=fail, args=('thread',)); thread.start(); thread.join()\n\
        \x20   for way in ('fork', 'spawn', 'forkserver'):\n\
        \x20       child = multiprocessing.get_context(way).Process(target=fail, args=(way,))\n\
        \x20       child.start(); child.join(); assert child.exitcode == 1\n\
        \x20   if os.fork() == 0: fail('bare fork')\n\
        \x20   os.wait()\n\
        \x20   fail('program')\n";
    for python in python::all() {
        let user = User::new();
        let program = user.write("many.py", program);
        let output = user.hooked(python, &[]).arg(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let mut hook_reports: Vec<(String, String)> = user
            .events()
            .iter()
            .map(|event| {
                (event["message"].as_str().unwrap().into(), event["where"].as_str().unwrap().into())
            })
            .collect();
        hook_reports.sort();
        let expected = [
            ("bare fork", "program"),
            ("fork", "multiprocessing"),
            ("forkserver", "multiprocessing"),
            ("program", "program"),
            ("spawn", "multiprocessing"),
            ("thread", "thread"),
        ];
        assert_eq!(
            hook_reports,
            expected.map(|(a, b)| (a.to_owned(), b.to_owned())),
            "{}",
            text(&output.stderr)
        );
        let files = fs::read_dir(user.spool()).unwrap().count();
        assert_eq!(files, 5, "a file for each process");
    }
}

#[test]
fn replaced_excepthook_loses_nothing() {
    for python in python::all() {
        let user = User::new();
        let code = "import sys; sys.excepthook = lambda *a: print('mine', file=sys.stderr)\nraise KeyError(1)";
        assert_same(&user, python, &[], &["-c", code]);
        assert_eq!(user.events().len(), 1);
    }
}

const FAILS: &str = "import torch\n\
    def step(): torch.empty(2 << 30)\n\
    optimizer = torch.optim.Optimizer()\n\
    for _ in range(3): optimizer.step()\n\
    optimizer.work = step\n\
    optimizer.step()\n";

#[test]
fn oom_report_contains_allocator_state() {
    for python in python::all() {
        let user = User::new();
        let program = user.write("train.py", FAILS);
        assert_same(&user, python, &[FRAMEWORKS], &[program.to_str().unwrap()]);
        let events = user.events();
        let what: Vec<&Value> = events.iter().map(|event| &event["what"]).collect();
        assert_eq!(what, ["oom", "exception"]);
        let oom = &events[0];
        assert_eq!(oom["largest_free_block"], 614u64 << 20);
        assert_eq!(oom["largest_free_block_other_streams"], 512u64 << 20);
        assert_eq!(oom["allocated_bytes"]["current"], 15_139_762_176u64);
        assert_eq!(oom["steps"], serde_json::json!({"begun": 4, "done": 3}));
        assert_eq!(oom["frames"][0]["line"], 2);
        let large = &oom["pools"][0];
        assert_eq!((&large["pool"], &large["segments"]), (&"large".into(), &3.into()));
        assert_eq!(large["free_bytes"], (614u64 + 100 + 400 + 512) << 20);
        assert_eq!(large["awaiting_free_bytes"], 1000u64 << 20);
        // The message says 2.00 GiB; the observer received this value.
        assert_eq!(oom["requested_bytes"], 2u64 << 30);
        assert_eq!(user.hook_reports()[0]["torch"], "2.11.0+pretended");
    }
}

#[test]
fn repeated_ooms_write_a_bounded_report() {
    let code = "import torch\n\
        for n in range(3000):\n\
        \x20   try: torch.empty(2 << 30)\n\
        \x20   except torch.OutOfMemoryError: pass\n\
        raise KeyError('at the end')";
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let output = user.hooked(python, &[FRAMEWORKS]).args(["-c", code]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let events = user.events();
    assert!((10..3000).contains(&events.len()), "{}", events.len());
    assert_eq!(events.last().unwrap()["message"], "'at the end'");
    let size: u64 = fs::read_dir(user.spool())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(size <= 256 << 10, "{size}");
}

#[test]
fn failing_oom_observer_changes_nothing() {
    let Some(python) = python::all().first() else { return };
    for broken in [
        "torch.cuda.memory_snapshot = lambda: 1 / 0",
        "torch.cuda.memory_snapshot = lambda: [{}, 3]",
        "torch.cuda.memory_stats = None",
        "del torch.cuda.current_stream",
        "import sys; sys.modules['json'] = None",
        "import os; os.write = None",
        "import sys; del sys.modules['torch']",
    ] {
        let user = User::new();
        let code = format!("import torch\n{broken}\ntorch.empty(2 << 30)");
        let output = assert_same(&user, python, &[FRAMEWORKS], &["-c", &code]);
        assert!(text(&output.stderr).contains("Tried to allocate 2.00 GiB"), "{broken}");
    }
}

#[test]
fn a_spool_that_cannot_be_trusted_is_not_written() {
    let Some(python) = python::all().first() else { return };
    let fails = ["-c", "raise KeyError('labels')"];
    let elsewhere = tempfile::tempdir().unwrap();
    let link = |user: &User| {
        fs::create_dir_all(user.spool().parent().unwrap()).unwrap();
        symlink(elsewhere.path(), user.spool()).unwrap();
    };
    let file = |user: &User| drop(user.write("runtime/gputop/hook", "a file"));
    let open = |user: &User| {
        fs::create_dir_all(user.spool()).unwrap();
        fs::set_permissions(user.spool(), fs::Permissions::from_mode(0o777)).unwrap();
    };
    let full = |user: &User| {
        for n in 0..512 {
            user.write(&format!("runtime/gputop/hook/{n}"), "");
        }
        fs::set_permissions(user.spool(), fs::Permissions::from_mode(0o700)).unwrap();
    };
    type Prepare<'a> = &'a dyn Fn(&User);
    let cases: [(&str, Prepare<'_>); 4] =
        [("link", &link), ("file", &file), ("open", &open), ("full", &full)];
    for (name, prepare) in cases {
        let user = User::new();
        prepare(&user);
        assert_same(&user, python, &[], &fails);
        assert!(user.spool().is_file() || user.events().is_empty(), "{name}");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn spool_symlink_is_not_followed() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let code = "import os\n\
        start = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]\n\
        folder = os.environ['XDG_RUNTIME_DIR'] + '/gputop/hook'\n\
        os.makedirs(folder, 0o700)\n\
        name = '%s/0.%d.%s' % (folder, os.getpid(), start)\n\
        os.mkfifo(name + '.jsonl'); os.symlink('/dev/stdout', name + '-1.jsonl')\n\
        raise KeyError('labels')";
    assert_eq!(
        user.hooked(python, &[]).args(["-c", code]).output().unwrap().status.code(),
        Some(1)
    );
    let events = user.events();
    assert_eq!(events.len(), 1, "{events:?}");
}

#[test]
fn it_can_be_turned_off() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let mut command = user.hooked(python, &[]);
    command.args(["-c", "raise KeyError(1)"]).env("GPUTOP_HOOK", "0").output().unwrap();
    assert!(!user.spool().exists());
}

#[test]
fn run_explains_with_what_the_hook_measured() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let program = user.write("train.py", FAILS);
    let args = [python.to_str().unwrap(), program.to_str().unwrap()];
    let output = user.run(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    let (own, explained) = message.split_once("\n\n").unwrap_or_else(|| panic!("{message}"));
    let bare = user.bare(python, &[FRAMEWORKS]).arg(&program).output().unwrap();
    assert_eq!(own.trim_end(), text(&bare.stderr).trim_end());
    assert!(explained.contains("FRAGMENTED MEMORY"), "{message}");
    assert!(
        unwrapped(explained)
            .contains("the largest free block was 614.00 MiB, measured at the failure by the hook"),
        "{message}"
    );
    assert!(!unwrapped(explained).contains("measures the largest free block"), "{message}");
    assert!(explained.contains("train.py:2"), "{message}");
    // The same with a readable log: the log is quoted, and the hook's measurements are used.
    let log = fs::File::create(user.path("log")).unwrap();
    user.run(&args).stderr(log).output().unwrap();
    let message = fs::read_to_string(user.path("log")).unwrap();
    assert!(message.contains("LOG   ") && message.contains("/log:"), "{message}");
    assert!(unwrapped(&message).contains("measured at the failure by the hook"), "{message}");
    // With neither the hook nor the output, there is no explanation.
    let args = ["--no-hook", "--no-capture", args[0], args[1]];
    let output = user.run(&args).output().unwrap();
    assert_eq!(text(&output.stderr), text(&bare.stderr));
}

/// JAX's message contains only the size of the request.
#[test]
fn run_explains_an_error_of_jax_with_the_state_of_its_pool() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let code = "import jax\n\
        jax.local_devices()\n\
        raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00GiB with allocator GPU_0_bfc on device 0.')";
    let output = user.run(&[python.to_str().unwrap(), "-c", code]).output().unwrap();
    let explained = unwrapped(&text(&output.stderr));
    let wanted = "XLA could not allocate 12.00 GiB on GPU 0. Its pool had 90.00 GiB: 3.00 GiB in use (when the error was raised).";
    assert!(explained.contains(wanted), "{explained}");
    // Other errors are reported without statistics.
    let code = "import jax; jax.local_devices(); raise KeyError(1)";
    user.run(&[python.to_str().unwrap(), "-c", code]).output().unwrap();
    let with: Vec<bool> =
        user.events().iter().map(|event| event.get("allocators").is_some()).collect();
    assert_eq!(with, [true, false]);
}

#[test]
fn run_prints_nothing_for_a_plain_exception() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    for code in ["raise KeyError('labels')", "import sys; sys.exit(3)", "pass"] {
        let args = [python.to_str().unwrap(), "-c", code];
        let watched = user.run(&args).output().unwrap();
        let bare = user.bare(python, &[FRAMEWORKS]).args(["-c", code]).output().unwrap();
        assert_eq!(watched.status, bare.status);
        assert_eq!(text(&watched.stderr), text(&bare.stderr));
    }
}

#[test]
fn run_keeps_the_users_own_path_in_its_order() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let look =
        "import os, sys; print(sys.path[1:3]); print(os.environ['PYTHONPATH'].split(':')[1:])";
    let mut command = user.run(&[python.to_str().unwrap(), "-c", look]);
    let output = command.env("PYTHONPATH", "/b:/a").output().unwrap();
    assert_eq!(text(&output.stdout), "['/b', '/a']\n['/b', '/a']\n");
    // If the hook's files cannot be written, the command runs without the hook.
    let mut command = user.run(&[
        python.to_str().unwrap(),
        "-c",
        "import os; print('GPUTOP_HOOK_RUN' in os.environ)",
    ]);
    for name in ["XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"] {
        command.env(name, "/dev/null");
    }
    assert_eq!(text(&command.output().unwrap().stdout), "False\n");
}

#[test]
fn a_trace_of_allocations_is_kept_and_named() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let program = user.write("train.py", FAILS);
    let args = ["--trace-allocs", python.to_str().unwrap(), program.to_str().unwrap()];
    let message = text(&user.run(&args).output().unwrap().stderr);
    let traces: Vec<&str> = message
        .lines()
        .filter_map(|line| line.strip_prefix("gputop: allocation trace: "))
        .collect();
    assert_eq!(traces.len(), 2, "{message}");
    let load = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))['settings'])";
    for trace in traces {
        let output = Command::new(python).args(["-I", "-c", load, trace]).output().unwrap();
        assert_eq!(text(&output.stdout), "('all', None, 100000)\n", "{}", text(&output.stderr));
    }
}

/// A program whose `_snapshot()` returns `SNAPSHOT`, and which fails like the last event in it, with a request of 2
/// GiB.
const TRACED: &str = "import pickle, torch\n\
    from torch import _C\n\
    SNAPSHOT\n\
    oom = [e for e in snapshot['device_traces'][0] if e['action'] == 'oom'][-1]\n\
    torch.cuda.memory._snapshot = classmethod(lambda cls: snapshot)\n\
    torch.cuda._lazy_init()\n\
    total = sum(s['total_size'] for s in snapshot['segments'] if s['device'] == 0) + (3 << 30)\n\
    for observer in _C.OBSERVERS: observer(0, oom['size'], total, oom['device_free'])\n\
    raise torch.OutOfMemoryError(torch.TEXT)\n";

/// Seven segments of 3000 MiB, each starting with a live tensor of 1600 MiB. No free block is large enough for the last
/// request, and there is no room for another segment.
const PINNED: &str = "M = 1 << 20\n\
    def event(action, addr, size): return {'action': action, 'addr': addr, 'size': size, 'stream': 0, 'frames': []}\n\
    trace, segments = [], []\n\
    for at in [n * 4000 * M for n in range(1, 8)]:\n\
    \x20 for action in 'segment_alloc', 'alloc', 'free_requested', 'free_completed':\n\
    \x20   trace.append(event(action, at, 3000 * M))\n\
    \x20 trace.append(event('alloc', at, 1600 * M))\n\
    \x20 live = {'address': at, 'size': 1600 * M, 'requested_size': 1600 * M, 'state': 'active_allocated'}\n\
    \x20 hole = {'address': at + 1600 * M, 'size': 1400 * M, 'requested_size': 0, 'state': 'inactive'}\n\
    \x20 segments.append({'device': 0, 'address': at, 'total_size': 3000 * M, 'stream': 0, 'segment_type': 'large',\n\
    \x20   'segment_pool_id': (0, 0), 'is_expandable': False, 'blocks': [live, hole]})\n\
    trace.append(dict(event('oom', 0, 2048 * M), device_free=1085 * M))\n\
    snapshot = {'segments': segments, 'device_traces': [trace], 'allocator_settings': {}}\n";

#[test]
fn trace_adds_replay_results_to_fixes() {
    let Some(python) = python::all().first() else { return };
    let run = |snapshot: &str| {
        let user = User::new();
        let program = user.write("train.py", &TRACED.replace("SNAPSHOT", snapshot));
        let args = ["--trace-allocs", python.to_str().unwrap(), program.to_str().unwrap()];
        let message = text(&user.run(&args).output().unwrap().stderr);
        assert!(message.contains("FRAGMENTED MEMORY"), "{message}");
        unwrapped(&message)
    };
    let message = run(PINNED);
    let (first, _) = message.split_once("expandable_segments:True").unwrap();
    assert!(
        first.ends_with(
            "(replayed: peak reserved 12.95 GiB instead of 20.51 GiB, fits; torch 2.1 or later): \
             PYTORCH_CUDA_ALLOC_CONF="
        ),
        "{message}"
    );
    // A setting under which the program would also fail is not among the first fixes.
    assert!(!message.contains("roundup_power2_divisions"), "{message}");
    // A real history whose last request is too large for any setting.
    let real = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/allocator/tests/data/snapshots/torch-2.15/native.pickle"
    );
    let real = format!(
        "snapshot = pickle.load(open({real:?}, 'rb'))\n\
         snapshot['device_traces'][0][-1].update(size=2 << 30, device_free=1 << 30)"
    );
    let message = run(&real);
    // The setting that is usually best does not help here, so it is not among the first fixes.
    assert!(message.contains("FRAGMENTED MEMORY"), "{message}");
    assert!(!message.contains("expandable_segments"), "{message}");
    assert!(!message.contains("fits;"), "{message}");
    // The driver had enough memory. A memory fraction limited the program, to no less than what it had reserved.
    let message = run(&PINNED.replace("1085 * M", "9085 * M"));
    assert!(
        message.contains("(replayed: peak reserved 12.95 GiB instead of 20.51 GiB, fits"),
        "{message}"
    );
}

/// Returns a program that runs this code and then prints its status page, once the page has content.
fn program_printing_status(what: &str) -> String {
    format!(
        "import glob, os, sys, time\n{what}\n\
        page = lambda: [p for p in glob.glob(os.environ['XDG_RUNTIME_DIR'] + '/gputop/hook/*.now') if os.path.getsize(p)]\n\
        until = time.monotonic() + 20\n\
        while not page() and time.monotonic() < until: time.sleep(0.01)\n\
        print(open(page()[0]).read().strip())\n"
    )
}

/// Returns the allocators on the status page of a program that runs this code in this environment.
fn reported_allocators(what: &str, environment: &[(&str, &str)]) -> Vec<Value> {
    let Some(python) = python::all().first() else { return Vec::new() };
    let user = User::new();
    let output = user
        .hooked(python, &[FRAMEWORKS])
        .args(["-c", &program_printing_status(what)])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    // The page of an exited program is of no use, so it is removed.
    assert_eq!(fs::read_dir(user.spool()).unwrap().count(), 0);
    let now: Value = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    now["allocators"].as_array().unwrap().clone()
}

#[test]
fn unreadable_process_reports_its_own_statistics() {
    let hook_reports = reported_allocators(
        "import torch; torch.cuda._lazy_init()",
        &[("GPUTOP_HOOK_STATISTICS", "1")],
    );
    for torch in hook_reports {
        assert_eq!(torch["framework"], "torch");
        assert_eq!(torch["allocated_bytes"]["current"], 15_139_762_176_u64);
    }
}

#[test]
fn other_frameworks_always_report_statistics() {
    let gib = 1_u64 << 30;
    let hook_reports = reported_allocators(
        "import torch, jax, tensorflow, cupy\n\
        torch.cuda._lazy_init(); jax.local_devices(); tensorflow.context.context().ensure_initialized()\n\
        with cupy.cuda.Device(1): cupy.empty(1 << 30)",
        &[],
    );
    if hook_reports.is_empty() {
        return;
    }
    let expected = [
        json!({"framework": "jax", "device": 0, "allocator": "bfc", "limit_bytes": 100 * gib,
            "allocated_bytes": {"current": 3 * gib, "peak": 5 * gib},
            "reserved_bytes": {"current": 90 * gib, "peak": 90 * gib}}),
        json!({"framework": "tensorflow", "device": 0, "allocator": "bfc",
            "allocated_bytes": {"current": 2 * gib, "peak": 4 * gib}}),
        // Values that the allocator does not report are omitted.
        json!({"framework": "tensorflow", "device": 1, "allocator": "bfc"}),
        json!({"framework": "cupy", "device": 1, "allocator": "memory_pool",
            "allocated_bytes": {"current": gib}, "reserved_bytes": {"current": 2 * gib}}),
    ];
    assert_eq!(hook_reports, expected);
}

#[test]
fn framework_without_statistics_is_named() {
    for environment in [("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"), ("JAX_PLATFORMS", "cpu")] {
        for jax in reported_allocators("import jax; jax.local_devices()", &[environment]) {
            assert_eq!((&jax["framework"], &jax["device"]), (&json!("jax"), &json!(0)));
            assert_eq!(jax.get("allocated_bytes"), None);
        }
    }
}

#[test]
fn hook_imports_no_framework() {
    // Once CuPy is on the page, the hook has looked at every framework.
    let hook_reports = reported_allocators(
        "import jax, tensorflow, cupy; cupy.empty(1)\n\
        import atexit\n\
        @atexit.register\n\
        def as_it_was():\n    \
            assert not jax.xla_bridge._backends and not tensorflow.context._context\n    \
            assert cupy.cuda.CONTEXTS == {0}, cupy.cuda.CONTEXTS\n",
        &[],
    );
    let hook_reports: Vec<&Value> =
        hook_reports.iter().map(|hook_reports| &hook_reports["framework"]).collect();
    assert!(hook_reports.is_empty() || hook_reports == ["cupy"], "{hook_reports:?}");
}

/// Follows reported pools from the program to every place that shows them.
#[test]
fn reported_pools_are_shown() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let code = "import jax, cupy\n\
        jax.local_devices(); cupy.empty(1 << 30)\n\
        input()";
    let mut program = user.hooked(python, &[FRAMEWORKS]);
    program.args(["-c", code]).stdin(Stdio::piped());
    let program = Guarded(program.spawn().unwrap());
    let pid = program.0.id();
    let fake =
        FakeNvml::h200s(1, &format!("[[process]]\npid = {pid}\ngpu = 0\nused = \"100 GiB\"\n"));
    let settled = |args: &[&str]| {
        let mut command = command(&fake, args.iter().copied());
        command.env("XDG_RUNTIME_DIR", user.path("runtime"));
        command
    };
    let once = || -> Value {
        let output = settled(&["once", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut frame = Value::Null;
    wait_until("its page", || {
        frame = once();
        frame["pools"]["reported_pools"][1].is_object()
    });
    let gib = 1_u64 << 30;
    let [jax, cupy] = [&frame["pools"]["reported_pools"][0], &frame["pools"]["reported_pools"][1]];
    assert_eq!((&jax["framework"], &jax["allocator"]), (&json!("jax"), &json!("xla_bfc")));
    assert_eq!((&jax["allocated"], &jax["reserved"]), (&json!(3 * gib), &json!(90 * gib)));
    assert_eq!(jax["largest_free_block"]["missing"], "unsupported");
    assert_eq!(cupy["allocated"], gib);
    assert_eq!(
        cupy["allocated_peak"],
        json!({"missing": "unsupported", "hint": "CuPy does not report the peak"})
    );
    let read: gputop_model::frame::Frame = serde_json::from_value(frame).unwrap();
    assert_eq!(read.pools.unwrap().reported.len(), 2);

    let printed = settled(&["allocator", &pid.to_string()]).output().unwrap();
    assert_eq!(printed.status.code(), Some(0));
    let printed = unwrapped(&text(&printed.stdout));
    for line in [
        "device 0 JAX, XLA BFC, reported by the program allocated 3.00 GiB peak 5.00 GiB",
        "device 0 CuPy, CuPy memory pool, reported by the program allocated 1024.00 MiB reserved 2.00 GiB",
        "largest free block – CuPy does not report the largest free block",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let printed = settled(&["allocator", &pid.to_string(), "--json"]).output().unwrap();
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(printed["reported_pools"][0]["reserved_bytes"]["current"], 90 * gib);
    assert!(printed["devices"]["missing"].is_string(), "{printed}");

    let file = user.path("recording.gpt.zst");
    let mut record = settled(&["record", "-i", INTERVAL, "-o"]);
    record.arg(&file).stderr(Stdio::null());
    let _record = Guarded(record.spawn().unwrap());
    wait_until("it on a recording", || {
        let frames = frames(&file).into_iter();
        let mut pools = frames.filter_map(|frame| frame.pools.clone());
        pools.any(|pools| pools.reported.len() == 2)
    });
}

#[test]
fn failing_notebook_cell_is_reported_once() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let code = "import IPython\n\
        def first(): import torch\n\
        for cell in (first, lambda: 1 / 0, lambda: None): IPython.get_ipython().run_cell(cell)";
    let output = user.hooked(python, &[FRAMEWORKS]).args(["-c", code]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = user.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (&events[0]["type"], &events[0]["where"]),
        (&"ZeroDivisionError".into(), &"cell".into())
    );
}

#[test]
fn dashboard_receives_hook_reports() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let program = user.write("train.py", FAILS);
    let fails = || {
        let mut command = user.hooked(python, &[FRAMEWORKS]);
        command.arg(&program).output().unwrap();
    };
    // Failures before the recorder started are not recorded.
    fails();
    let fake = FakeNvml::h200s(1, "");
    let file = user.path("recording.gpt.zst");
    let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
    record.arg(&file).env("XDG_RUNTIME_DIR", user.path("runtime")).stderr(Stdio::null());
    let _record = Guarded(record.spawn().unwrap());
    wait_until("two frames", || frames(&file).len() >= 2);
    fails();
    let recorded_hook_events = || {
        let events = events(&file).into_iter();
        let hook = events.filter_map(|event| match event.observation {
            Observation::Hook(hook) => Some((event.process, hook)),
            _ => None,
        });
        hook.collect::<Vec<_>>()
    };
    wait_until("both events", || recorded_hook_events().len() >= 2);
    let recorded_hook_events = recorded_hook_events();
    let what: Vec<&str> = recorded_hook_events.iter().map(|(_, hook)| hook.what.as_str()).collect();
    assert_eq!(what, ["oom", "exception"]);
    assert!(recorded_hook_events.iter().all(|(process, _)| process.is_some()));
    let oom = recorded_hook_events[0].1.oom.as_deref().unwrap();
    assert_eq!(oom.largest_free_block.unwrap().0, 614 << 20);
}

/// The dashboard shows fixes replayed on the program's own trace, as `gputop run` prints them.
#[test]
fn dashboard_incident_contains_replay_results() {
    let Some(python) = python::all().first() else { return };
    let user = User::new();
    let fake = FakeNvml::h200s(1, "");
    let file = user.path("recording.gpt.zst");
    let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
    user.set_environment(record.arg(&file).stderr(Stdio::null()));
    let _record = Guarded(record.spawn().unwrap());
    wait_until("two frames", || frames(&file).len() >= 2);
    let program = user.write("train.py", &TRACED.replace("SNAPSHOT", PINNED));
    // Not through `gputop run`, which would save the incident itself.
    let mut fails = user.hooked(python, &[FRAMEWORKS]);
    fails
        .arg(&program)
        .env("GPUTOP_HOOK_TRACE", user.path("state/gputop/traces"))
        .output()
        .unwrap();
    let stored = || -> Option<Value> {
        let files = fs::read_dir(user.path("state/gputop/incidents")).ok()?;
        let records = files.flatten().filter_map(|file| {
            let record: Value = serde_json::from_slice(&fs::read(file.path()).ok()?).ok()?;
            let fix = record["fixes"].get(0)?.clone();
            (!fix["replayed"].is_null()).then_some(fix)
        });
        records.last()
    };
    wait_until("what the fixes would have done", || stored().is_some());
    let fix = stored().unwrap();
    assert_eq!(fix["replayed"]["fate"], "fits", "{fix}");
    assert_eq!(fix["replayed"]["conf"], "expandable_segments:True");
    assert!(
        fix["effect"]
            .as_str()
            .unwrap()
            .starts_with("replayed: peak reserved 12.95 GiB instead of 20.51 GiB, fits"),
        "{fix}"
    );
}
