//! Docker's own log of a container: one JSON object a line, of which only the text is of interest.
//!
//! `{"log":"step 1\\n","stream":"stdout","time":"…"}` becomes `step 1` and a line break.

/// What the container wrote. A line that is no such object (the rest of one, at the beginning) stays as it is.
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
    fn the_text_is_taken_out_and_what_is_no_object_stays() {
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
