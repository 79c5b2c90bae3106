//! Report about a wrong explanation, with the log text and the values on which the explanation was based.
//!
//! The report is meant to be published. In addition to what the store redacts, it omits the host, the command line, the
//! environment, and user names in paths.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use color_eyre::Result;
use color_eyre::eyre::{WrapErr, bail};
use gputop_model::incident_record::Record;
use gputop_model::redact;
use regex::Regex;

use crate::cli::print;
use crate::export::explanation::{Others, fenced, scene as scene_lines};

const WIDTH: usize = 100;

pub(super) fn text(record: &Record) -> String {
    let incident = &record.incident;
    let mut out = format!(
        "# Wrong explanation: {}\n\nWhat was the real cause? (describe it here)\n\n## Explanation\n\n",
        incident.id
    );
    let _ = writeln!(
        out,
        "- {} ({}, confidence {:.2}): {}",
        incident.id,
        incident.severity.word(),
        incident.confidence,
        incident.title
    );
    let evidence = |list: &[String]| match list {
        [] => "–".to_owned(),
        list => list.join("; "),
    };
    for cause in &incident.causes {
        let (pro, con) = (evidence(&cause.r#for), evidence(&cause.against));
        let verdict = cause.verdict.words();
        let _ = writeln!(out, "- {verdict}: {} (for: {pro}; against: {con})", cause.id);
    }
    for one in &incident.secondary {
        let _ = writeln!(out, "- then {}: {}", one.id, one.title);
    }
    out.push_str("\n## Versions\n\n");
    for (name, version) in &record.versions {
        let _ = writeln!(out, "- {name} {version}");
    }
    if let Some(scene) = &record.scene {
        let lines = scene_lines(scene, Others::Numbered, WIDTH).into_iter();
        let lines: Vec<String> = lines.map(|line| line.printed(false)).collect();
        let _ = writeln!(out, "\n## Scene\n\n{}", fenced("", &lines.join("\n")));
    }
    let evidence = [
        ("Fields", serde_json::to_string_pretty(&incident.fields)),
        ("Evidence", serde_json::to_string_pretty(&record.evidence)),
    ];
    for (title, json) in evidence {
        // User names in process events are removed later, in `anonymous`.
        let json = json.unwrap_or_default();
        let _ = writeln!(out, "\n## {title}\n\n{}", fenced("json", &json));
    }
    let excerpt = record.excerpt.as_ref().map(|excerpt| excerpt.text.as_str());
    let log = excerpt.unwrap_or(&incident.quote.text);
    let _ = writeln!(out, "\n## Log\n\n{}", fenced("", log));
    let host = incident.host.as_deref().unwrap_or_default();
    anonymous(&String::from_utf8_lossy(&redact::text(out.as_bytes())), host)
}

/// Removes the host name from a report, and user names from paths.
fn anonymous(text: &str, host: &str) -> String {
    let mut text = text.to_owned();
    if let Some(home) = std::env::var("HOME").ok().filter(|home| home.len() > 5) {
        text = text.replace(&home, "~");
    }
    if let Ok(users) = Regex::new(r"/(home|Users|scratch|data/users)/[^/\s\x22'`]+") {
        text = users.replace_all(&text, "/$1/USER").into_owned();
    }
    if let Ok(user) = Regex::new(r#""user": "[^"]*""#) {
        text = user.replace_all(&text, r#""user": "USER""#).into_owned();
    }
    // Keep host names of one or two letters, because replacing them would change other text.
    if host.len() > 2
        && let Ok(name) = Regex::new(&format!(r"\b{}\b", regex::escape(host)))
    {
        text = name.replace_all(&text, "HOST").into_owned();
    }
    text
}

/// Writes the report to a new file that only this user can read.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("cannot write {}: the file exists. Name another file", path.display())
        }
        file => file
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .wrap_err_with(|| format!("cannot write {}", path.display()))?,
    }
    print::say(&format!(
        "gputop: report written to {}. Review it before you send it\n",
        path.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_users_and_the_host() {
        let text = anonymous(
            "/home/ana/run/train.py on node17, node170 in \"/scratch/ana\": \"user\": \"ana\"",
            "node17",
        );
        assert_eq!(
            text,
            "/home/USER/run/train.py on HOST, node170 in \"/scratch/USER\": \"user\": \"USER\""
        );
    }
}
