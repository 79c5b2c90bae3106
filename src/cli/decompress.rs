//! Files that were packed, read as what they were: told by how they begin and not by their name, since a file may be
//! called anything.

use std::io::{self, BufReader, Read};

/// How much is unpacked at once.
const PIECE: usize = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What is behind `input`.
///
/// # Errors
/// When its beginning cannot be read.
pub fn unpacked<'a>(mut input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(input);
    Ok(if head.starts_with(&GZIP) {
        Box::new(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(
            PIECE, whole,
        )))
    } else if head.starts_with(&ZSTD) {
        let mut decoder = zstd::stream::read::Decoder::new(whole)?;
        // As large a window as gputop's own recordings have; a larger one would cost memory for a log of any size.
        decoder.window_log_max(27)?;
        Box::new(decoder)
    } else {
        Box::new(whole)
    })
}
