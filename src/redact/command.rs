//! A command line as a person would type it: without secrets, and to be pasted where there was none.

/// What a shell would take for something else, or for two words.
const SPECIAL: &[u8] = b" \t\n'\"\\$`;&|<>()";

/// Words that are one argument each, without their secrets; an argument with a blank in it stands in quotes.
///
/// A command line of one word is shown as it is: programs that name themselves (`sshd: root@pts/0`) write it so.
#[must_use]
pub fn command<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let words = super::arguments(arguments);
    let is_alone = words.iter().filter(|word| !word.is_empty()).count() < 2;
    let typed: Vec<Vec<u8>> = match is_alone {
        true => words,
        false => words.into_iter().map(typed).collect(),
    };
    typed.join(&b' ')
}

fn typed(word: Vec<u8>) -> Vec<u8> {
    let is_plain = !word.is_empty() && !word.iter().any(|byte| SPECIAL.contains(byte));
    if is_plain {
        return word;
    }
    // A quote within is put outside: 'don'\''t'.
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [b"'", parts.join(&b"'\\''"[..]).as_slice(), b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &[&str]) -> String {
        let line = command(words.iter().map(|word| word.as_bytes()));
        String::from_utf8(line).expect("it was text")
    }

    #[test]
    fn a_line_can_be_pasted_into_a_shell() {
        let plain = ["python", "train.py", "--lr=1e-3", "--tags=[a,b]"];
        assert_eq!(shown(&plain), plain.join(" "));
        let odd = [
            "printf", "%s|", "my run", "don't", "", "$HOME", "a\nb", "c;d",
        ];
        let output = std::process::Command::new("sh")
            .args(["-c", &shown(&odd)])
            .output()
            .expect("there is a shell");
        let said = String::from_utf8(output.stdout).expect("it was text");
        assert_eq!(said, "my run|don't||$HOME|a\nb|c;d|");
    }

    #[test]
    fn secrets_are_hidden_and_what_names_itself_is_shown_as_it_is() {
        assert_eq!(shown(&["x", "--token", "a b"]), "x --token ***");
        assert_eq!(shown(&["sshd: root@pts/0"]), "sshd: root@pts/0");
        assert_eq!(
            shown(&["ray::train step 3", "", ""]).trim_end(),
            "ray::train step 3"
        );
    }
}
