//! Decompresses gzip and zstd files. The format is detected from the first bytes, because file names can be misleading.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

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

/// Reader that counts the bytes read from the input.
struct CountingReader<R> {
    input: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// The content of an input that may be compressed.
pub struct Decompressed<'a> {
    pub content: Box<dyn Read + 'a>,
    /// Number of compressed bytes read so far, if the input is compressed.
    packed_bytes: Option<Rc<Cell<u64>>>,
}

impl Decompressed<'_> {
    pub fn packed_bytes(&self) -> Option<u64> {
        self.packed_bytes.as_ref().map(|count| count.get())
    }
}

/// Returns the decompressed input, or the input itself if it is not compressed.
pub fn decompressed<'a>(mut input: impl Read + 'a) -> io::Result<Decompressed<'a>> {
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let count = Rc::new(Cell::new(0));
    let input = CountingReader { input, count: Rc::clone(&count) };
    let whole = io::Cursor::new(head.clone()).chain(input);
    let is_packed = head.starts_with(&GZIP) || head.starts_with(&ZSTD);
    let content: Box<dyn Read + 'a> = if head.starts_with(&GZIP) {
        Box::new(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
    } else if head.starts_with(&ZSTD) {
        let mut decoder = zstd::stream::read::Decoder::new(whole)?;
        // Limit the zstd window to the size that gputop's own recordings use. A larger limit would let any input make
        // gputop allocate more memory.
        decoder.window_log_max(27)?;
        Box::new(Zstd(decoder))
    } else {
        Box::new(whole)
    };
    Ok(Decompressed { content, packed_bytes: is_packed.then_some(count) })
}
