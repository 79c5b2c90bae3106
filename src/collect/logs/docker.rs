//! Extracts the text from the log that Docker keeps for a container. The log has one JSON object per line.
//!
//! For example, `{"log":"step 1\\n","stream":"stdout","time":"…"}` becomes `step 1` and a line break.

/// Returns the container's output from the text of its Docker log. Keeps a line that is not a JSON object, such as a
/// truncated first line.
pub fn plain(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|&b| b == b'\n') {
        match log_of(line) {
            Some(log) => out.extend_from_slice(log.as_bytes()),
            None => out.extend_from_slice(line),
        }
    }
    out
}

fn log_of(line: &[u8]) -> Option<String> {
    let object: serde_json::Value = serde_json::from_slice(line).ok()?;
    Some(object.get("log")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extracts_the_text_and_keeps_lines_that_are_not_objects() {
        let log = concat!(
            r#"rest of one","stream":"stderr"}"#,
            "\n",
            r#"{"log":"Error: \"x\"\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}"#,
            "\n",
            r#"{"log":"half a "}"#,
            "\n",
            r#"{"log":"line\n"}"#,
            "\n[1, 2]\n"
        );
        let plain = String::from_utf8(plain(log.as_bytes())).expect("text");
        let expected = "rest of one\",\"stream\":\"stderr\"}\nError: \"x\"\nhalf a line\n[1, 2]\n";
        assert_eq!(plain, expected);
    }
}
