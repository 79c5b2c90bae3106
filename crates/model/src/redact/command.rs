//! Formats a redacted command line with shell quoting. A command line without secrets can be pasted into a shell.

/// Characters with a special meaning in a shell.
const SPECIAL: &[u8] = b" \t\n'\"\\$`;&|<>()";

/// Returns the redacted arguments as a command line. Arguments with whitespace or other special characters are quoted.
///
/// A single argument is not quoted, because programs that set their own title (`sshd: root@pts/0`) store the whole
/// title as one argument.
pub fn command<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let words = super::free_text::arguments(arguments);
    let is_alone = words.iter().filter(|word| !word.is_empty()).count() < 2;
    let quoted: Vec<Vec<u8>> =
        if is_alone { words } else { words.into_iter().map(quoted).collect() };
    quoted.join(&b' ')
}

fn quoted(word: Vec<u8>) -> Vec<u8> {
    let is_plain = !word.is_empty() && !word.iter().any(|byte| SPECIAL.contains(byte));
    if is_plain {
        return word;
    }
    // Close the quoted part before each literal quote and reopen it afterwards: 'don'\''t'.
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [b"'", parts.join(&b"'\\''"[..]).as_slice(), b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &[&str]) -> String {
        let line = command(words.iter().map(|word| word.as_bytes()));
        String::from_utf8(line).expect("UTF-8")
    }

    #[test]
    fn command_line_can_be_pasted_into_a_shell() {
        let plain = ["python", "train.py", "--lr=1e-3", "--tags=[a,b]"];
        assert_eq!(shown(&plain), plain.join(" "));
        let odd = ["printf", "%s|", "my run", "don't", "", "$HOME", "a\nb", "c;d"];
        let output =
            std::process::Command::new("sh").args(["-c", &shown(&odd)]).output().expect("sh runs");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(printed, "my run|don't||$HOME|a\nb|c;d|");
    }

    #[test]
    fn hides_secrets_and_keeps_process_titles() {
        assert_eq!(shown(&["x", "--token", "a b"]), "x --token ***");
        assert_eq!(shown(&["sshd: root@pts/0"]), "sshd: root@pts/0");
        assert_eq!(shown(&["ray::train step 3", "", ""]).trim_end(), "ray::train step 3");
    }
}
