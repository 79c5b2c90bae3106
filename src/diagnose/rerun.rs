//! The command that a fix says to run, with the arguments of the program that failed, so that it can be copied whole.
//!
//! Cards say `NAME=VALUE python train.py`, which the judge gives the script's name; what the program was started with is
//! known where it was watched: a process's command line, or what `gputop run` was given.

use crate::model::incident::Incident;

const PYTHON: &str = "python ";
/// What stands for a secret, or for what was cut off.
const NOT_WHOLE: [&str; 2] = ["***", "…"];
/// A longer one hides what is to be changed.
const MAX_COMMAND: usize = 300;

/// Puts `command` in the place of `python SCRIPT` in each fix. One of a single rank is left alone: by itself it would wait
/// for the others.
pub fn with_command(incident: &mut Incident, command: &str) {
    let is_whole = !NOT_WHOLE.iter().any(|mark| command.contains(mark));
    if !is_whole || command.len() > MAX_COMMAND || command.contains('\n') {
        return;
    }
    let is_python = command
        .split(' ')
        .next()
        .and_then(|program| program.rsplit('/').next())
        .is_some_and(|name| name.starts_with("python"));
    for fix in &mut incident.fixes {
        let Some((before, after)) = around(&fix.change) else {
            continue;
        };
        // A launcher takes its environment from here as well, but is not what a debugger or a tool wants.
        if is_python || before.split_whitespace().all(is_assignment) {
            fix.change = format!("{before}{command}{after}");
        }
    }
}

/// What stands before and behind `python SCRIPT`, once in it.
fn around(change: &str) -> Option<(&str, &str)> {
    let (before, rest) = change.split_once(PYTHON)?;
    let is_word = before.is_empty() || before.ends_with(' ');
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (script, after) = rest.split_at(end);
    (is_word && script.ends_with(".py") && !after.contains(PYTHON)).then_some((before, after))
}

/// `NAME=VALUE`
fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::incident::Fix;

    fn put(change: &str, command: &str) -> String {
        let mut incident = Incident {
            fixes: vec![Fix {
                change: change.into(),
                ..Fix::default()
            }],
            ..Incident::default()
        };
        with_command(&mut incident, command);
        incident.fixes.remove(0).change
    }

    #[test]
    fn a_fix_has_the_arguments_of_the_program() {
        let own = "python3 -u train.py --batch 8";
        assert_eq!(put("A=1 B= python train.py", own), format!("A=1 B= {own}"));
        assert_eq!(
            put("gdb -batch --args python train.py", own),
            format!("gdb -batch --args {own}")
        );
        assert_eq!(
            put("python train.py --resume", own),
            format!("{own} --resume")
        );
        let launcher = "torchrun --nproc-per-node 8 train.py";
        assert_eq!(
            put("A=1 python train.py", launcher),
            format!("A=1 {launcher}")
        );
    }

    #[test]
    fn what_is_no_command_to_run_again_stays() {
        for (change, command) in [
            ("model.half()", "python train.py -x"),
            ("torchrun train.py", "python train.py -x"),
            ("A=1 python train.py", "python train.py --token ***"),
            ("A=1 python train.py", "python train.py 1 2 3 …"),
            ("gdb --args python train.py", "torchrun train.py"),
            ("A=1 ipython train.py", "python train.py -x"),
            ("python a.py && python b.py", "python a.py -x"),
        ] {
            assert_eq!(put(change, command), change);
        }
    }
}
