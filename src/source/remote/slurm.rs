//! The nodes of a job of Slurm: their names out of its lists, and the way onto one of them.

use std::process::Command;

use crate::open_files::restore_in;

/// More is no list of nodes.
const MAX_NODES: usize = 4_096;
/// Digits of a number in a name.
const MAX_DIGITS: usize = 18;

/// A node, entered as part of the job: what that may see of GPUs is what is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub job: String,
    pub node: String,
}

impl Step {
    /// Runs `remote`, a line for a shell, beside what the job runs there, on no resources of its own.
    pub(super) fn command(&self, remote: &str) -> Command {
        let mut command = Command::new("srun");
        // One task, that is no part of an MPI program and is bound to no core.
        command.args([
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--mpi=none",
            "--cpu-bind=none",
        ]);
        command.args([
            format!("--jobid={}", self.job),
            format!("--nodelist={}", self.node),
        ]);
        command.args(["sh", "-c", remote]);
        restore_in(&mut command);
        command
    }
}

/// `node[01-03,7],login` → the names, in that order; `None` for what is no list of Slurm's.
///
/// As `scontrol show hostnames` does it: ranges have leading zeros where their first number has, and a name may have more
/// than one pair of brackets.
pub fn names(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for entry in parts(list)? {
        let mut begun = vec![String::new()];
        let mut rest = entry;
        while let Some((before, behind)) = rest.split_once('[') {
            let (inside, after) = behind.split_once(']')?;
            let numbers = numbers(inside)?;
            if begun.len().checked_mul(numbers.len())? > MAX_NODES {
                return None;
            }
            let mut each = Vec::new();
            for name in &begun {
                each.extend(
                    numbers
                        .iter()
                        .map(|number| format!("{name}{before}{number}")),
                );
            }
            (begun, rest) = (each, after);
        }
        names.extend(begun.into_iter().map(|name| name + rest));
        if names.len() > MAX_NODES {
            return None;
        }
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_name =
        |name: &String| !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain);
    names.iter().all(is_name).then_some(names)
}

/// What stands between commas that are in no brackets.
fn parts(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut is_open) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !is_open => is_open = true,
            ']' if is_open => is_open = false,
            '[' | ']' => return None,
            ',' if !is_open => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    (!is_open).then_some(parts)
}

/// `01-03,7` → `01`, `02`, `03`, `7`
fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| {
            (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let width = first.len();
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MAX_NODES - numbers.len() {
            return None;
        }
        numbers.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_is_taken_apart_as_slurm_does_it() {
        let of = |list| names(list).map(|names| names.join(" "));
        assert_eq!(of("node7").as_deref(), Some("node7"));
        assert_eq!(
            of("gpu[08-11,3],login-a").as_deref(),
            Some("gpu08 gpu09 gpu10 gpu11 gpu3 login-a")
        );
        assert_eq!(
            of("r[1-2]n[0-1]-ib").as_deref(),
            Some("r1n0-ib r1n1-ib r2n0-ib r2n1-ib")
        );
        for wrong in [
            "",
            "a,",
            "n[1",
            "n]1[",
            "n[]",
            "n[2-1]",
            "n[a]",
            "n[1-99999]",
            "n[0-999]x[0-999]",
            "-w",
            "a b",
            "a;b",
            "(null)",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_list_is_long(list in "[a-c0-9,\\[\\]-]{0,40}") {
            prop_assert!(names(&list).is_none_or(|names| names.len() <= MAX_NODES));
        }
    }
}
