//! The remote end of a connection: writes the updates of a source, and reads requests.
//!
//! Only the newest frame is kept while [`MAX_UNACKNOWLEDGED_FRAMES`] frames are unacknowledged. All other updates are sent
//! immediately.

use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use gputop_model::frame::Frame;
use gputop_model::protocol::stream::Source;
use gputop_model::protocol::{Request, RequestLine, Update};
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use super::greeting::greeting;
use super::limits::{MAX_REQUEST_LINE, MAX_UNACKNOWLEDGED_FRAMES, WINDOW_LOG};

const COMPRESSION_LEVEL: i32 = 3;

/// Channels to the thread that reads this host's incident store: requests by incident name, and replies.
pub struct IncidentRequests {
    pub asked: mpsc::SyncSender<String>,
    pub replies: Receiver<Update>,
}

/// Returns the next reply from the incident store. Waits forever if there is no store.
async fn next_reply(store: &mut Option<Receiver<Update>>) -> Update {
    if let Some(replies) = store {
        if let Some(reply) = replies.recv().await {
            return reply;
        }
        *store = None;
    }
    std::future::pending().await
}

#[derive(Debug, Default)]
struct Acknowledged {
    frames: AtomicU64,
    grew: Notify,
}

/// Writes the updates of `source` and the replies of `incidents` to `output` until `output` is closed or the source
/// ends. A separate thread reads requests from `input` and calls `at_end` when the input ends.
pub async fn serve(
    mut source: Source,
    incidents: Option<IncidentRequests>,
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // Send the greeting even to clients that only check which program responds and send nothing.
    output.write_all(greeting().as_bytes())?;
    output.flush()?;
    let acknowledged = Arc::new(Acknowledged::default());
    let (asked, mut stored_replies) =
        incidents.map(|incidents| (incidents.asked, incidents.replies)).unzip();
    let (requests, received) = (source.requests(), Arc::clone(&acknowledged));
    std::thread::Builder::new().name("requests".into()).spawn(move || {
        read_requests(input, &requests, asked.as_ref(), &received);
        at_end();
    })?;
    let mut output = CompressedLines::new(output)?;
    let mut frames = UnsentFrames::default();
    // Incidents are sent only after the hello, because clients may ignore earlier updates.
    let mut has_sent_hello = false;
    loop {
        let update = tokio::select! {
            update = source.next() => match update {
                None => break,
                update => update,
            },
            () = acknowledged.grew.notified() => None,
            reply = next_reply(&mut stored_replies), if has_sent_hello => Some(reply),
        };
        let more = std::iter::from_fn(|| source.try_next());
        for update in update.into_iter().chain(more) {
            if let Update::Frame(frame) = update {
                frames.newest = Some(frame);
            } else if update.is_sent() {
                // If the reader has room, write the newest frame first, because it is older than this update.
                frames.write(&mut output, &acknowledged)?;
                output.line(&update)?;
                has_sent_hello |= matches!(update, Update::Hello(_));
            }
        }
        frames.write(&mut output, &acknowledged)?;
        output.flush()?;
    }
    output.flush()?;
    output.encoder.finish()?.flush()
}

/// Writes lines into one zstd stream. The last byte of each flush is a line feed, because `srun` forwards only complete
/// lines, even if the data is binary. To achieve this, the last line feed is compressed as a separate block, which
/// stores it unchanged (RFC 8878, 3.1.1.2: a block is raw, or one byte and its count).
struct CompressedLines<W: Write> {
    encoder: Encoder<'static, W>,
    owes_end: bool,
}

impl<W: Write> CompressedLines<W> {
    fn new(output: W) -> io::Result<Self> {
        let mut encoder = Encoder::new(output, COMPRESSION_LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        let owes_end = false;
        Ok(Self { encoder, owes_end })
    }

    fn line(&mut self, update: &Update) -> io::Result<()> {
        let text = serde_json::to_vec(update)?;
        if std::mem::replace(&mut self.owes_end, true) {
            self.encoder.write_all(b"\n")?;
        }
        self.encoder.write_all(&text)
    }

    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.owes_end) {
            self.encoder.flush()?;
            self.encoder.write_all(b"\n")?;
            self.encoder.flush()?;
        }
        Ok(())
    }
}

/// Newest unsent frame, and the number of frames sent.
#[derive(Default)]
struct UnsentFrames {
    newest: Option<Arc<Frame>>,
    sent: u64,
}

impl UnsentFrames {
    /// Writes the newest frame if the reader has room. Returns true if a frame was written.
    fn write(
        &mut self,
        to: &mut CompressedLines<impl Write>,
        acknowledged: &Acknowledged,
    ) -> io::Result<()> {
        let acknowledged = acknowledged.frames.load(Ordering::Acquire).min(self.sent);
        if self.sent - acknowledged >= MAX_UNACKNOWLEDGED_FRAMES {
            return Ok(());
        }
        let Some(frame) = self.newest.take() else { return Ok(()) };
        self.sent += 1;
        to.line(&Update::Frame(frame))
    }
}

/// Reads requests until the input ends. Skips requests of unknown kinds.
fn read_requests(
    mut input: impl BufRead,
    requests: &mpsc::Sender<Request>,
    asked: Option<&mpsc::SyncSender<String>>,
    acknowledged: &Acknowledged,
) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(MAX_REQUEST_LINE).read_until(b'\n', &mut line) {
            Ok(1..) if line.last() == Some(&b'\n') => {}
            _ => return,
        }
        match (serde_json::from_slice(&line), asked) {
            (Ok(RequestLine::Frames(frames)), _) => {
                acknowledged.frames.store(frames, Ordering::Release);
                acknowledged.grew.notify_one();
            }
            (Ok(RequestLine::Request(request)), _) => drop(requests.send(request)),
            // A client requests the next incident only after the previous one.
            (Ok(RequestLine::Incident(uid)), Some(asked)) => drop(asked.try_send(uid)),
            _ => {}
        }
    }
}
