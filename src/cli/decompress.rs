//! Decompresses gzip and zstd files. The format is detected from the first bytes, because file names can be misleading.

use std::io::{self, BufReader, Read};

use crate::source::named_zstd_error;

const BUFFER_BYTES: usize = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reader whose errors have a text.
struct Zstd<R>(R);

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(named_zstd_error)
    }
}

/// Returns a reader of the decompressed input, or of the input itself if it is not compressed.
pub fn decompressed<'a>(mut input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(input);
    Ok(if head.starts_with(&GZIP) {
        Box::new(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
    } else if head.starts_with(&ZSTD) {
        let mut decoder = zstd::stream::read::Decoder::new(whole)?;
        // Limit the zstd window to the size that gputop's own recordings use. A larger limit would let any input make
        // gputop allocate more memory.
        decoder.window_log_max(27)?;
        Box::new(Zstd(decoder))
    } else {
        Box::new(whole)
    })
}
