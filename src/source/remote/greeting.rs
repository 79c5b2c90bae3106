//! The greeting that an agent sends first, and how to find it in a remote host's initial output.

use std::io::{self, BufRead};

use gputop_model::text::visible;
use memchr::memmem;

use super::nvidia_smi::script;

/// Protocol version, which must be the same on both ends. New fields and kinds of lines need no new version, because
/// readers skip unknown data.
pub const PROTOCOL: u32 = 1;

/// Start of the first line of an agent: `gputop-agent protocol=1 version=0.1.0`.
pub const GREETING: &str = "gputop-agent protocol=";

/// Maximum length of the text before the greeting, such as a banner or a message of the day.
pub const MAX_PREAMBLE: usize = 64 << 10;

/// The program at the remote end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteProgram {
    Agent,
    NvidiaSmi,
}

const GREETINGS: [(&str, RemoteProgram); 2] =
    [(GREETING, RemoteProgram::Agent), (script::GREETING, RemoteProgram::NvidiaSmi)];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAgent {
    /// The output ended, or reached the size limit, without a greeting. Contains the last line of output.
    Silent(String),
    /// The agent uses a different protocol; contains its gputop version.
    Other(String),
}

/// Returns the greeting of this gputop version.
pub fn greeting() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{GREETING}{PROTOCOL} version={version}\n")
}

/// Checks the text after [`GREETING`], such as `1 version=0.1.0`. If the protocol differs, returns the version of the
/// remote gputop as the error.
pub fn fits(words: &[u8]) -> Result<(), String> {
    let words = visible(words, 60);
    let (protocol, version) = words.split_once(" version=").unwrap_or((&words, "?"));
    match protocol.parse::<u32>() {
        Ok(PROTOCOL) => Ok(()),
        _ => Err(version.trim_end().to_owned()),
    }
}

/// Reads a remote host's output up to and including the greeting.
pub(super) fn read_greeting(from: &mut impl BufRead) -> io::Result<Result<RemoteProgram, NoAgent>> {
    let mut received = Vec::new();
    loop {
        let chunk = from.fill_buf()?;
        if chunk.is_empty() || received.len() > MAX_PREAMBLE {
            return Ok(Err(NoAgent::Silent(last_line(&received))));
        }
        let before = received.len();
        received.extend_from_slice(chunk);
        let chunk = chunk.len();
        let line = find_greeting(&received).and_then(|(at, speaker)| {
            let end = memchr::memchr(b'\n', &received[at..])?;
            Some((at, at + end, speaker))
        });
        let Some((at, end, speaker)) = line else {
            from.consume(chunk);
            continue;
        };
        from.consume(end + 1 - before);
        let compatibility = fits(&received[at..end]).map_err(NoAgent::Other);
        return Ok(compatibility.map(|()| speaker));
    }
}

/// Returns the position just after the fixed prefix of a greeting, and the program that sent the greeting.
fn find_greeting(received: &[u8]) -> Option<(usize, RemoteProgram)> {
    GREETINGS.iter().find_map(|(greeting, speaker)| {
        let at = memmem::find(received, greeting.as_bytes())?;
        Some((at + greeting.len(), *speaker))
    })
}

/// Returns the last line that is not empty.
pub(super) fn last_line(received: &[u8]) -> String {
    let mut lines = received.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    visible(lines.find(|line| !line.is_empty()).unwrap_or_default(), 200)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    /// Returns the result of reading a greeting, and the remaining input.
    fn read(received: &[u8], piece: usize) -> (Result<RemoteProgram, NoAgent>, Vec<u8>) {
        let mut from = BufReader::with_capacity(piece, received);
        let result = read_greeting(&mut from).expect("reading from memory cannot fail");
        let mut rest = Vec::new();
        from.read_to_end(&mut rest).expect("reading from memory cannot fail");
        (result, rest)
    }

    #[test]
    fn finds_the_greeting_after_a_banner_and_leaves_the_rest_unread() {
        let rest = b"\x28\xb5\x2f\xfd\n\x00rest";
        for banner in ["", "Welcome to node 7\r\n", "no line end ", "gputop-agent?\n"] {
            let received = [banner.as_bytes(), greeting().as_bytes(), rest].concat();
            for piece in 1..received.len() + 1 {
                assert_eq!(
                    read(&received, piece),
                    (Ok(RemoteProgram::Agent), rest.to_vec()),
                    "{banner} {piece}"
                );
            }
        }
    }

    #[test]
    fn reports_the_last_line_without_a_greeting() {
        let shell = read(b"Last login: today\nsh: 1: gputop: not found\n\n", 7).0;
        assert_eq!(shell, Err(NoAgent::Silent("sh: 1: gputop: not found".into())));
        assert_eq!(read(b"", 7).0, Err(NoAgent::Silent(String::new())));
        let endless = vec![b'y'; MAX_PREAMBLE * 2];
        assert!(matches!(read(&endless, 4096).0, Err(NoAgent::Silent(_))));
    }

    #[test]
    fn recognizes_the_nvidia_smi_script() {
        let smi = read(b"hi\ngputop-smi protocol=1 version=1\nN node\n", 3);
        assert_eq!(smi, (Ok(RemoteProgram::NvidiaSmi), b"N node\n".to_vec()));
    }

    #[test]
    fn reports_the_version_of_another_protocol() {
        let other = read(b"gputop-agent protocol=9 version=4.2.0 more\n", 7).0;
        assert_eq!(other, Err(NoAgent::Other("4.2.0 more".into())));
    }
}
