//! Keys that export data: text through the terminal, and files to the current directory.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::fake_machine::{RealProcess, dashboard, is_host, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables;
use crate::support::terminal::{Launch, Terminal};

/// Starts the dashboard in `folder`, on a machine with one GPU that `process` uses.
fn start(process: &RealProcess, folder: &Path) -> (FakeNvml, Terminal) {
    let busy = on_gpu(0, process, "used = \"2 GiB\"");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{busy}"));
    // Use the test's own directory: `env -C` changes to it first.
    let program = env!("CARGO_BIN_EXE_gputop");
    let folder = folder.to_str().unwrap();
    let terminal = Launch::program("env")
        .args(["-C", folder, program, "--interval", "200ms"])
        .envs(fake.env())
        .env("TZ", "UTC")
        .size(40, 120)
        .start();
    // Its first row may be older than its data from the kernel.
    let row = |screen: &vt100::Screen| screen_tables::process(screen, process.pid());
    terminal.wait_for(|s| row(s).is_some_and(|row| row.cell("AGE") != "–"), "the process");
    (fake, terminal)
}

fn base64(text: &[u8]) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} in base64"),
    };
    let letters = text.iter().filter(|letter| **letter != b'=');
    let mut bits = letters.flat_map(|letter| (0..6).rev().map(|bit| value(*letter) >> bit & 1));
    let mut bytes = Vec::new();
    loop {
        let byte: Vec<u8> = bits.by_ref().take(8).collect();
        if byte.len() < 8 {
            return bytes;
        }
        bytes.push(byte.iter().fold(0, |byte, bit| byte << 1 | bit));
    }
}

/// Returns the texts that the terminal was asked to copy to the clipboard, in order.
fn clipboard_texts(terminal: &Terminal) -> Vec<String> {
    let raw = terminal.raw();
    let mark = b"\x1b]52;c;";
    let starts = raw.windows(mark.len()).enumerate().filter(|(_, w)| w == mark);
    starts
        .map(|(at, _)| {
            let rest = &raw[at + mark.len()..];
            let end = rest.iter().position(|byte| *byte == 7).unwrap();
            String::from_utf8(base64(&rest[..end])).unwrap()
        })
        .collect()
}

#[test]
fn copy_uses_the_terminal_and_confirms_in_the_footer() {
    if !is_host() {
        return;
    }
    let process = RealProcess::with_arguments(
        ["sh", "--lr", "1\x1b]0;owned\x07", "--api-key", "hunter2secret"],
        |_| {},
    );
    let folder = tempfile::tempdir().unwrap();
    let (_fake, terminal) = start(&process, folder.path());
    terminal.send("y");
    terminal.wait_text("GPU 0 and its UUID sent to the terminal");
    terminal.send("\t");
    terminal.wait_for(
        |s| {
            s.contents().lines().any(|line| {
                line.starts_with('▸') && line.contains(&format!("   0 {:>7}", process.pid()))
            })
        },
        "the cursor on the process",
    );
    terminal.send("y");
    let confirmation = format!("PID {} and its command line sent to", process.pid());
    terminal.wait_text(&confirmation);
    let asked = clipboard_texts(&terminal);
    assert!(asked[0].starts_with("GPU 0  NVIDIA H200  GPU-"), "{asked:?}");
    let line = &asked[1];
    assert!(
        line.starts_with(&format!("{} sh -c 'read line' sh --lr '1^[]0;owned^G'", process.pid())),
        "{line}"
    );
    assert!(!line.contains("hunter2secret"), "{line}");
    // The screen must not claim that the text was copied.
    let shown = terminal.text();
    assert!(!shown.contains("copied"), "{shown}");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

fn documents(folder: &Path) -> Vec<(String, Value)> {
    let mut list: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && !path.is_symlink())
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}

#[test]
fn w_writes_the_frame_to_a_new_file() {
    if !is_host() {
        return;
    }
    let process = RealProcess::with_arguments(["sh", "--api-key", "hunter2secret"], |_| {});
    let folder = tempfile::tempdir().unwrap();
    let (_fake, terminal) = start(&process, folder.path());
    // Pause, so that both files are of the same time and would have the same name.
    terminal.send("p");
    terminal.wait_text("paused");
    terminal.send("W");
    terminal.wait_text("wrote gputop-");
    terminal.send("\t\r");
    terminal.wait_text("On the GPU");
    terminal.send("W");
    terminal.wait_text("-2.json");
    let documents = documents(folder.path());
    let [(second_name, second), (name, first)] = &documents[..] else {
        panic!("{documents:?}");
    };
    assert_eq!(second_name, &name.replace(".json", "-2.json"));
    let date = name.trim_end_matches(".json").rsplit_once('-').unwrap().1;
    assert!(name.starts_with("gputop-") && date.len() == 6, "{name}");
    assert_eq!((&first["schema"], &first["screen"]["id"]), (&1.into(), &"overview".into()));
    assert_eq!(second["screen"]["id"], "process");
    assert_eq!(first["gpus"], second["gpus"]);
    assert_eq!(first["gpus"][0]["memory"]["total_bytes"], 143_771_u64 << 20);
    let listed = first["processes"]["list"].as_array().unwrap();
    assert!(listed.iter().any(|p| p["key"]["pid"] == process.pid()), "{listed:?}");
    // No secrets, as in every frame.
    let text = first.to_string();
    assert!(text.contains("--api-key") && !text.contains("hunter2secret"), "{text}");
    // The file can be read as a frame.
    let frame: gputop_model::frame::Frame = serde_json::from_value(first.clone()).unwrap();
    assert_eq!(frame.gpus.len(), 1);
    // If no file can be written, an error message is shown.
    fs::remove_dir_all(folder.path()).unwrap();
    terminal.send("W");
    terminal.wait_text(". does not exist; start gputop in another directory");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn copy_without_tmux_server_reports_that_nothing_was_sent() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).env("TMUX", "/nowhere/socket,1,0").start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("y");
    terminal.wait_text("not copied: `tmux");
    assert!(clipboard_texts(&terminal).is_empty());
    terminal.send("qq");
    terminal.wait_exit();
    terminal.assert_restored();
}
