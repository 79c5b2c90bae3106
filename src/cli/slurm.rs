//! `--slurm JOB`: reads the nodes of a Slurm job from `squeue`, and expands node lists with `scontrol`.

use std::io;
use std::process::Command;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::text::{quoted, visible};

use crate::source::remote::Target;
use crate::source::remote::slurm::Step;

/// Output format of `squeue`. Each running task of a job array has its own line: `81234|RUNNING|None|node[1-2]`.
const FORMAT: &str = "%A|%T|%r|%N";

/// Returns the nodes of the Slurm job, without duplicates. Fails if the job currently has no nodes, or if Slurm is not
/// available.
pub fn targets(job: &str) -> Result<Vec<Target>> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // Valid job IDs: `81234`, `81234_7` in a job array, `81234+1` in a heterogeneous job.
    let is_job = match job.split_once(['_', '+']) {
        Some((job, part)) => is_digits(job) && is_digits(part),
        None => is_digits(job),
    };
    if !is_job {
        bail!(
            "--slurm `{}`: not a job ID. Use a number from the first column of `squeue --me`",
            quoted(job)
        );
    }
    let lines = output_of(job, "squeue", &["--noheader", "--jobs", job, "--format", FORMAT])?;
    let hostnames = |list: &str| output_of(job, "scontrol", &["show", "hostnames", list]);
    let steps = steps(job, &lines, hostnames)?;
    Ok(steps.into_iter().map(Target::Slurm).collect())
}

/// Returns what a Slurm program prints about the job.
fn output_of(job: &str, program: &str, args: &[&str]) -> Result<String> {
    let output = match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "cannot find the nodes of job {job}: `{program}` is not installed. Run gputop on a host with Slurm's commands, or name \
                 the nodes: `gputop NODE…`"
            );
        }
        Err(error) => bail!("cannot find the nodes of job {job}: cannot run `{program}`: {error}"),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("Invalid job id") {
        bail!("no Slurm job {job}. `squeue --me` lists your jobs");
    }
    let line = stderr.lines().find(|line| !line.trim().is_empty());
    let line = visible(line.unwrap_or("no error message").as_bytes(), 160);
    bail!("cannot find the nodes of job {job}: `{program}` failed: {line}")
}

/// Parses the output of `squeue`. The function `hostnames` expands `node[01-03,7],login` into one name per line.
fn steps(job: &str, lines: &str, hostnames: impl Fn(&str) -> Result<String>) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut not_running = None;
    for line in lines.lines() {
        let mut fields = line.trim().splitn(4, '|');
        let mut field = || fields.next().unwrap_or_default();
        let (id, state, reason, list) = (field(), field(), field(), field());
        if !matches!(state, "RUNNING" | "SUSPENDED") {
            not_running.get_or_insert_with(|| (quoted(state), quoted(reason)));
            continue;
        }
        for node in hostnames(list)?.lines() {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if node.starts_with('-') || !node.chars().all(is_plain) {
                bail!("cannot find the nodes of job {job}: `{}` is not a node", quoted(node));
            }
            // Skip duplicates, because tasks of a job array may share a node.
            if !steps.iter().any(|step| step.node == node) {
                steps.push(Step { job: id.to_owned(), node: node.to_owned() });
            }
        }
    }
    match not_running {
        _ if !steps.is_empty() => Ok(steps),
        Some((state, reason)) if state == "PENDING" => {
            bail!(
                "job {job} has no nodes yet: it is pending ({reason}). Try again once it is running"
            )
        }
        Some((state, _)) => bail!("job {job} has no nodes: it is {}", state.to_lowercase()),
        None => bail!("job {job} has no nodes: it has ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostnames(list: &str) -> Result<String> {
        Ok(list.replace(',', "\n"))
    }

    #[test]
    fn returns_each_node_of_the_running_tasks_once() {
        let lines = "501|RUNNING|None|n1,n2\n502|RUNNING|None|n2,n3\n500|PENDING|Resources|\n";
        let steps = steps("500", lines, hostnames).expect("running tasks");
        let nodes: Vec<_> =
            steps.iter().map(|step| (step.job.as_str(), step.node.as_str())).collect();
        assert_eq!(nodes, [("501", "n1"), ("501", "n2"), ("502", "n3")]);
    }

    #[test]
    fn reports_why_a_job_has_no_nodes() {
        let why = |lines| steps("7", lines, hostnames).expect_err("no nodes").to_string();
        assert_eq!(
            why("7|PENDING|Priority|\n"),
            "job 7 has no nodes yet: it is pending (Priority). Try again once it is running"
        );
        assert_eq!(why("7|COMPLETING|None|n1\n"), "job 7 has no nodes: it is completing");
        assert_eq!(why(""), "job 7 has no nodes: it has ended");
        assert_eq!(
            why("7|RUNNING|None|\u{1b}[2J\n"),
            "cannot find the nodes of job 7: `^[[2J` is not a node"
        );
        for wrong in ["", "x", "7;id", "-7", "7_", "7_1_2"] {
            assert!(
                targets(wrong).is_err_and(|why| why.to_string().contains("not a job ID")),
                "{wrong}"
            );
        }
    }
}
