//! Translates the commands of fixes from a POSIX shell to cmd.exe.

use gputop_model::incident::{Fix, FixKind};

/// Syntax and directories that do not exist in cmd.exe. A command that contains one cannot be translated.
const UNKNOWN: &[&str] = &["$", "`", " | ", "~/", "/tmp"];
/// Programs that Windows does not have.
const UNKNOWN_PROGRAMS: &[&str] =
    &["rm", "cat", "ls", "grep", "head", "tail", "which", "find", "sed", "awk", "make", "lscpu"];

/// Returns `fix` with its command for cmd.exe, or `None` if the command has no counterpart there.
#[must_use]
pub(super) fn translated(fix: Fix) -> Option<Fix> {
    match fix.kind {
        FixKind::Command | FixKind::Env => Some(Fix { change: command(&fix.change)?, ..fix }),
        _ => Some(fix),
    }
}

fn command(posix: &str) -> Option<String> {
    // cmd.exe has no comments at the end of a line.
    let mut rest = posix.split("  #").next().unwrap_or_default().trim();
    let mut parts = Vec::new();
    if let Some(names) = rest.strip_prefix("unset ") {
        parts.extend(names.split(' ').map(|name| format!("set {name}=")));
        rest = "";
    }
    while let Some(name) = rest.strip_prefix("env ").unwrap_or(rest).strip_prefix("-u ") {
        let (name, after) = name.split_once(' ').unwrap_or((name, ""));
        parts.push(format!("set {name}="));
        rest = after;
    }
    rest = rest.strip_prefix("export ").unwrap_or(rest);
    while let Some((name, value, after)) = assignment(rest) {
        parts.push(format!("set \"{name}={value}\""));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(match rest.contains('"') {
            true => rest.to_owned(),
            // A single quote has no meaning in cmd.exe.
            false => rest.replace('\'', "\""),
        });
    }
    let windows = parts.join(" && ");
    let is_unknown = UNKNOWN.iter().any(|part| windows.contains(part))
        || windows.split([' ', ';', '(']).any(|word| UNKNOWN_PROGRAMS.contains(&word));
    (!is_unknown).then_some(windows)
}

/// Splits an assignment from the start of a command: its name, its value without quotes, and the command after it.
pub(super) fn assignment(command: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = command.split_once('=')?;
    let is_name = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    let (value, after) = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?,
        None => rest.split_once(' ').unwrap_or((rest, "")),
    };
    Some((name, value, after.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_settings_and_quotes() {
        for (posix, windows) in [
            ("A=1 B=x python train.py", r#"set "A=1" && set "B=x" && python train.py"#),
            ("export MAX_JOBS=2", r#"set "MAX_JOBS=2""#),
            ("unset A B", "set A= && set B="),
            ("env -u A -u B python x.py", "set A= && set B= && python x.py"),
            ("CUDA_VISIBLE_DEVICES= python x.py", r#"set "CUDA_VISIBLE_DEVICES=" && python x.py"#),
            (r#"X="a b" nmake"#, r#"set "X=a b" && nmake"#),
            ("pip install 'numpy<2'  # for now", r#"pip install "numpy<2""#),
        ] {
            assert_eq!(command(posix).as_deref(), Some(windows));
        }
    }

    #[test]
    fn does_not_translate_a_command_that_windows_does_not_have() {
        for posix in ["export A=$(nproc)", "rm -rf ~/.triton/cache", "pip list | grep torch"] {
            assert_eq!(command(posix), None, "{posix}");
        }
    }
}
