//! What is generated: the committed reference is what the program writes, and shells and `man` can read the rest.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use gputop::tui::action::ACTIONS;

use crate::machine::gputop;

fn generate(args: &[&str]) -> String {
    let output = gputop([&["generate"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_reference_is_what_the_program_says_of_itself() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/REFERENCE.md");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let written = generate(&["markdown"]);
    let differs = committed
        .lines()
        .zip(written.lines())
        .find(|(old, new)| old != new);
    assert!(
        committed == written,
        "docs/REFERENCE.md is out of date ({differs:?}): cargo run -- generate markdown > docs/REFERENCE.md"
    );
}

#[test]
fn every_shell_completes_commands_and_themes() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = generate(&["completions", shell]);
        // Two of them are not told the values of a flag.
        let themes = if ["elvish", "powershell"].contains(&shell) {
            ""
        } else {
            "colour-blind"
        };
        for word in ["gputop", "allocator", "config", themes] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let script = generate(&["completions", "bash"]);
    let mut input = bash.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    assert!(bash.wait().unwrap().success());
}

#[test]
fn the_manual_says_commands_settings_and_keys() {
    let page = generate(&["man"]);
    assert!(page.contains(".TH gputop 1"), "{page}");
    for word in ["explain", "GPUTOP_INTERVAL", "GPUTOP_CONFIG", "colour"] {
        assert!(page.contains(word), "{word}");
    }
    for def in ACTIONS {
        // A dash is written with a backslash in a manual.
        let name = def.name.replace('-', "\\-");
        assert!(page.contains(&format!("({name})")), "{name}");
    }
    let page = generate(&["man", "config", "print"]);
    assert!(page.contains(".TH gputop-config-print 1"), "{page}");
    let wrong = gputop(["generate", "man", "recrod"]).output().unwrap();
    assert_eq!(
        String::from_utf8(wrong.stderr).unwrap(),
        "gputop: there is no command `recrod`; did you mean `record`?\n"
    );
}
