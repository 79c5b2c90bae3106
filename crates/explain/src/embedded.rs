//! Files that are part of the program.

use std::io::Read as _;

use flate2::read::GzDecoder;

pub(super) fn unpacked(lines: &[u8]) -> String {
    let mut text = String::new();
    let _ = GzDecoder::new(lines).read_to_string(&mut text);
    text
}
