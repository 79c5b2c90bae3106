//! Generated files: the committed reference matches the program's output, and shells and `man` can read the others.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use gputop::tui::action::ACTIONS;

use crate::support::fake_machine::{self, gputop};

fn generate(args: &[&str]) -> String {
    let output = gputop([&["generate"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reference_matches_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/REFERENCE.md");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let written = generate(&["markdown"]);
    let differs = committed.lines().zip(written.lines()).find(|(old, new)| old != new);
    assert!(
        committed == written,
        "docs/REFERENCE.md is out of date ({differs:?}): cargo run -- generate markdown > docs/REFERENCE.md"
    );
}

#[test]
fn every_shell_completes_commands_and_themes() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = generate(&["completions", shell]);
        // Two of the shells do not get the values of a flag.
        let themes = if ["elvish", "powershell"].contains(&shell) { "" } else { "colour-blind" };
        for word in ["gputop", "allocator", "config", themes] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    let script = generate(&["completions", "bash"]);
    let mut input = bash.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    assert!(bash.wait().unwrap().success());
}

/// Prints bash's completions for the last of these words.
const BASH: &str = r#"
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_gputop_hosts gputop "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[*]}"
"#;

#[test]
fn completions_offer_ssh_hosts_and_groups() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for (name, text) in [
        (".ssh/config", "Host gpu1 gpu2 *.lab\nInclude more\n"),
        (".ssh/more", "Host gpu3 $(touch) a\n"),
        ("gputop/config.toml", "[hosts]\ngpus = ['gpu1']\n\"g;x\" = ['gpu1']\n"),
    ] {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), text).unwrap();
    }
    let product = Path::new(env!("CARGO_BIN_EXE_gputop")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", product.display());
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("PATH", &path).env("HOME", home.path());
        let output = command.env("XDG_CONFIG_HOME", home.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "fish", "zsh"] {
        std::fs::write(at(shell), generate(&["completions", shell])).unwrap();
    }
    let hosts = "gpus gpu1 gpu2 gpu3\n";
    for (line, offered) in [
        ("gputop g", &*format!("generate {hosts}")),
        ("gputop gpu1 gp", hosts),
        ("gputop --theme dark gp", hosts),
        ("gputop record gp", hosts),
        ("gputop once gp", "\n"),
        ("gputop --config gp", "\n"),
        ("gputop --rea", "--readonly\n"),
    ] {
        let script = at("bash").display().to_string();
        let words: Vec<&str> = line.split(' ').collect();
        let completions = run("bash", &[&["-c", BASH, "bash", &script], &*words].concat());
        // The script completes file names by itself; there are none here.
        assert_eq!(completions, offered, "{line}");
    }
    if fake_machine::has("fish") {
        let ask = format!("source {}; complete -C 'gputop record g'", at("fish").display());
        let completions = run("fish", &["-c", &ask]);
        assert_eq!(completions, "gpu1\tHost\ngpu2\tHost\ngpu3\tHost\ngpus\tHost\n");
    }
    // zsh completes nothing without a terminal, but its script names the hosts in all four places.
    let zsh = std::fs::read_to_string(at("zsh")).unwrap();
    assert_eq!(zsh.matches("_gputop_hosts").count(), 5, "{zsh}");
    if fake_machine::has("zsh") {
        run("zsh", &["-n", at("zsh").to_str().unwrap()]);
    }
}

#[test]
fn manual_page_lists_commands_settings_and_keys() {
    let page = generate(&["man"]);
    assert!(page.contains(".TH gputop 1"), "{page}");
    for word in ["explain", "GPUTOP_INTERVAL", "GPUTOP_CONFIG", "colour"] {
        assert!(page.contains(word), "{word}");
    }
    for def in ACTIONS {
        // Manual pages write a dash with a backslash.
        let name = def.name.replace('-', "\\-");
        assert!(page.contains(&format!("({name})")), "{name}");
    }
    let page = generate(&["man", "config", "print"]);
    assert!(page.contains(".TH gputop-config-print 1"), "{page}");
    let wrong = gputop(["generate", "man", "recrod"]).output().unwrap();
    assert_eq!(
        String::from_utf8(wrong.stderr).unwrap(),
        "gputop: unknown command `recrod`; did you mean `record`?\n"
    );
}
