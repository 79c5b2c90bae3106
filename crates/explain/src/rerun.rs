//! Inserts the failed program's command line into fixes, so that they can be copied unchanged.
//!
//! A card's fix reads `NAME=VALUE python train.py`, with the script's name inserted by the diagnosis. For watched
//! processes and `gputop run`, gputop knows the full command.

use gputop_model::incident::Incident;

const PYTHON: &str = "python ";
/// Markers of a redacted secret and of a truncated command.
const INCOMPLETE: [&str; 2] = ["***", "…"];
/// Maximum length of a command to insert. In a longer command, users would not notice the change that fixes the error.
const MAX_COMMAND: usize = 300;

/// Replaces `python SCRIPT` with `command` in each fix. Callers must not pass the command of one rank of a job, because
/// a single rank would wait forever for the others.
pub fn with_command(incident: &mut Incident, command: &str) {
    let is_whole = !INCOMPLETE.iter().any(|mark| command.contains(mark));
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
        // Insert a launcher only after environment variables, because a debugger or similar tool does not accept one as
        // its argument.
        if is_python || before.split_whitespace().all(is_assignment) {
            fix.change = format!("{before}{command}{after}");
        }
    }
}

/// Returns the text before and after `python SCRIPT`, or `None` if it does not occur exactly once.
fn around(change: &str) -> Option<(&str, &str)> {
    let (before, rest) = change.split_once(PYTHON)?;
    let is_word = before.is_empty() || before.ends_with(' ');
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (script, after) = rest.split_at(end);
    (is_word && script.ends_with(".py") && !after.contains(PYTHON)).then_some((before, after))
}

/// Returns true for a variable assignment: `NAME=VALUE`.
fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::incident::Fix;

    fn put(change: &str, command: &str) -> String {
        let mut incident = Incident {
            fixes: vec![Fix { change: change.into(), ..Fix::default() }],
            ..Incident::default()
        };
        with_command(&mut incident, command);
        incident.fixes.remove(0).change
    }

    #[test]
    fn inserts_the_arguments_of_the_program() {
        let own = "python3 -u train.py --batch 8";
        assert_eq!(put("A=1 B= python train.py", own), format!("A=1 B= {own}"));
        assert_eq!(
            put("gdb -batch --args python train.py", own),
            format!("gdb -batch --args {own}")
        );
        assert_eq!(put("python train.py --resume", own), format!("{own} --resume"));
        let launcher = "torchrun --nproc-per-node 8 train.py";
        assert_eq!(put("A=1 python train.py", launcher), format!("A=1 {launcher}"));
    }

    #[test]
    fn leaves_other_commands_unchanged() {
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
