//! The far side: a source's updates written out, orders read in.
//!
//! Of frames only the newest is kept while [`FRAMES_UNDER_WAY`] have not been heard of; all else is sent as it comes.

use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use super::protocol::{FRAMES_UNDER_WAY, MAX_ORDER, RequestLine, WINDOW_LOG, greeting};
use crate::model::frame::Frame;
use crate::source::live_message::Reply;
use crate::source::map_line::MapLine;
use crate::source::stream::Source;
use crate::source::wire::WireLine;
use crate::source::{Request, Update};

/// As recordings.
const LEVEL: i32 = 3;

/// The incident store of this host, which somebody else reads: what is asked of it by name, and what it tells.
pub struct IncidentRequests {
    pub asked: mpsc::Sender<String>,
    pub told: UnboundedReceiver<Reply>,
}

/// What the store tells next; never where there is none.
async fn told(store: &mut Option<UnboundedReceiver<Reply>>) -> Reply {
    if let Some(told) = store {
        if let Some(reply) = told.recv().await {
            return reply;
        }
        *store = None;
    }
    std::future::pending().await
}

/// What has arrived there.
#[derive(Debug, Default)]
struct Arrived {
    frames: AtomicU64,
    grew: Notify,
}

/// Writes all that `source` says, and `shelf`, to `output`, until that is closed or the source ends; obeys `input`, and calls `at_end`
/// when it ends, from a thread of its own.
///
/// # Errors
/// When nothing can be written, or no thread can be had.
pub async fn serve(
    mut source: Source,
    shelf: Option<IncidentRequests>,
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // Also to who only wants to know who is there, and says nothing.
    output.write_all(greeting().as_bytes())?;
    output.flush()?;
    let arrived = Arc::new(Arrived::default());
    let (asked, mut stored) = shelf.map(|shelf| (shelf.asked, shelf.told)).unzip();
    let (requests, heard) = (source.requests(), Arc::clone(&arrived));
    std::thread::Builder::new()
        .name("orders".into())
        .spawn(move || {
            obey(input, &requests, asked.as_ref(), &heard);
            at_end();
        })?;
    let mut output = Packed::new(output)?;
    let mut frames = Frames::default();
    loop {
        let update = tokio::select! {
            update = source.next() => match update {
                None => break,
                update => update,
            },
            () = arrived.grew.notified() => None,
            reply = told(&mut stored) => {
                output.line(&of(reply))?;
                output.flush()?;
                continue;
            }
        };
        let mut wrote = false;
        let more = std::iter::from_fn(|| source.try_next());
        for update in update.into_iter().chain(more) {
            if let Update::Frame(frame) = update {
                frames.newest = Some(frame);
            } else if let Some(line) = line(update)? {
                // What was told before it comes before it, where there is room.
                frames.write(&mut output, &arrived)?;
                output.line(&line)?;
                wrote = true;
            }
        }
        if frames.write(&mut output, &arrived)? || wrote {
            output.flush()?;
        }
    }
    output.flush()?;
    output.encoder.finish()?.flush()
}

/// Lines into one zstd stream. The last byte of each flush is a line end, since `srun` passes on whole lines alone, of bytes as
/// of text: for that the last line's own end is compressed by itself, which leaves it as it is (RFC 8878, 3.1.1.2: a block is
/// raw, or one byte and how often).
struct Packed<W: Write> {
    encoder: Encoder<'static, W>,
    owes_end: bool,
}

impl<W: Write> Packed<W> {
    fn new(output: W) -> io::Result<Self> {
        let mut encoder = Encoder::new(output, LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        let owes_end = false;
        Ok(Self { encoder, owes_end })
    }

    fn line<F: serde::Serialize>(&mut self, line: &WireLine<F>) -> io::Result<()> {
        let text = serde_json::to_vec(line)?;
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

/// The frames that are to be sent, which is the newest, and that were.
#[derive(Default)]
struct Frames {
    newest: Option<Arc<Frame>>,
    sent: u64,
}

impl Frames {
    /// Whether there was one, and room for it.
    fn write(&mut self, to: &mut Packed<impl Write>, arrived: &Arrived) -> io::Result<bool> {
        let arrived = arrived.frames.load(Ordering::Acquire).min(self.sent);
        if self.sent - arrived >= FRAMES_UNDER_WAY {
            return Ok(false);
        }
        let Some(frame) = self.newest.take() else {
            return Ok(false);
        };
        self.sent += 1;
        let line = WireLine {
            frame: Some(&*frame),
            ..WireLine::default()
        };
        to.line(&line)?;
        Ok(true)
    }
}

/// Everything but frames, which are written without being cloned. Nothing for what no living host says.
fn line(update: Update) -> io::Result<Option<WireLine>> {
    let empty = WireLine::default();
    Ok(match update {
        Update::Hello(hello) => Some(WireLine {
            hello: Some((*hello).clone()),
            ..empty
        }),
        Update::Event(event) => Some(WireLine {
            event: Some(event),
            ..empty
        }),
        Update::Map(map) => Some(WireLine {
            map: Some(MapLine::new(&map)?),
            ..empty
        }),
        Update::FailureMap(failed) => Some(WireLine {
            map: Some(MapLine::new(&failed.map)?),
            failed_since: Some(failed.since),
            ..empty
        }),
        update => Reply::of(update).map(of),
    })
}

fn of(reply: Reply) -> WireLine {
    WireLine {
        reply: Some(Box::new(reply)),
        ..WireLine::default()
    }
}

/// Until the input ends. Orders of kinds that this version does not know are passed over.
fn obey(
    mut input: impl BufRead,
    requests: &mpsc::Sender<Request>,
    asked: Option<&mpsc::Sender<String>>,
    arrived: &Arrived,
) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(MAX_ORDER).read_until(b'\n', &mut line) {
            Ok(1..) if line.last() == Some(&b'\n') => {}
            _ => return,
        }
        let Ok(order) = serde_json::from_slice::<RequestLine>(&line) else {
            continue;
        };
        if let Some(frames) = order.frames {
            arrived.frames.store(frames, Ordering::Release);
            arrived.grew.notify_one();
        }
        if let Some(request) = order.request {
            let _ = requests.send(request);
        }
        if let (Some(incident), Some(asked)) = (order.incident, asked) {
            let _ = asked.send(incident);
        }
    }
}
