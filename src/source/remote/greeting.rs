//! Finding the greeting in what a far side says first.

use std::io::{self, BufRead};

use memchr::memmem;

use super::nvidia_smi;
use super::protocol::{GREETING, MAX_NOISE, fits};
use crate::model::text::visible;

/// Who is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    Agent,
    /// The loop of [`reduced`].
    NvidiaSmi,
}

const GREETINGS: [(&str, Speaker); 2] = [
    (GREETING, Speaker::Agent),
    (nvidia_smi::GREETING, Speaker::NvidiaSmi),
];

/// Why nobody is talked to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAgent {
    /// It ended, or said too much else; this is the end of what it said.
    Silent(String),
    /// It speaks another protocol; its version.
    Other(String),
}

/// Reads up to and including the greeting.
pub(super) fn greeted(from: &mut impl BufRead) -> io::Result<Result<Speaker, NoAgent>> {
    let mut said = Vec::new();
    loop {
        let came = from.fill_buf()?;
        if came.is_empty() || said.len() > MAX_NOISE {
            return Ok(Err(NoAgent::Silent(last_words(&said))));
        }
        let before = said.len();
        said.extend_from_slice(came);
        let came = came.len();
        let line = begins(&said).and_then(|(at, speaker)| {
            let end = memchr::memchr(b'\n', &said[at..])?;
            Some((at, at + end, speaker))
        });
        let Some((at, end, speaker)) = line else {
            from.consume(came);
            continue;
        };
        from.consume(end + 1 - before);
        let fits = fits(&said[at..end]).map_err(NoAgent::Other);
        return Ok(fits.map(|()| speaker));
    }
}

/// Where the words behind a greeting begin, and whose it is.
fn begins(said: &[u8]) -> Option<(usize, Speaker)> {
    GREETINGS.iter().find_map(|(greeting, speaker)| {
        let at = memmem::find(said, greeting.as_bytes())?;
        Some((at + greeting.len(), *speaker))
    })
}

/// The last line that says anything.
pub(super) fn last_words(said: &[u8]) -> String {
    let mut lines = said.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    visible(line, 200)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::super::protocol::greeting;
    use super::*;

    /// What is told of it, and what is left to read.
    fn heard(said: &[u8], piece: usize) -> (Result<Speaker, NoAgent>, Vec<u8>) {
        let mut from = BufReader::with_capacity(piece, said);
        let result = greeted(&mut from).expect("memory can be read");
        let mut rest = Vec::new();
        from.read_to_end(&mut rest).expect("memory can be read");
        (result, rest)
    }

    #[test]
    fn behind_a_banner_in_pieces_of_any_size_it_is_found_and_nothing_behind_it_is_taken() {
        let rest = b"\x28\xb5\x2f\xfd\n\x00rest";
        for banner in [
            "",
            "Welcome to node 7\r\n",
            "no line end ",
            "gputop-agent?\n",
        ] {
            let said = [banner.as_bytes(), greeting().as_bytes(), rest].concat();
            for piece in 1..said.len() + 1 {
                assert_eq!(
                    heard(&said, piece),
                    (Ok(Speaker::Agent), rest.to_vec()),
                    "{banner} {piece}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_agent_is_told_by_its_last_words() {
        let shell = heard(b"Last login: today\nsh: 1: gputop: not found\n\n", 7).0;
        assert_eq!(
            shell,
            Err(NoAgent::Silent("sh: 1: gputop: not found".into()))
        );
        assert_eq!(heard(b"", 7).0, Err(NoAgent::Silent(String::new())));
        let endless = vec![b'y'; MAX_NOISE * 2];
        assert!(matches!(heard(&endless, 4096).0, Err(NoAgent::Silent(_))));
    }

    #[test]
    fn who_speaks_is_told_by_the_greeting() {
        let smi = heard(b"hi\ngputop-smi protocol=1 version=1\nN node\n", 3);
        assert_eq!(smi, (Ok(Speaker::NvidiaSmi), b"N node\n".to_vec()));
    }

    #[test]
    fn another_protocol_is_told_with_its_version() {
        let other = heard(b"gputop-agent protocol=9 version=4.2.0 more\n", 7).0;
        assert_eq!(other, Err(NoAgent::Other("4.2.0 more".into())));
    }
}
