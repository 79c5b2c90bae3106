//! Parses a spool line into an event: `{"what": "oom", "time": 1795178159981, "requested_bytes": 2147483648, …}`.
//!
//! Other programs write these lines, so their content is not trusted.

use gputop_model::event::{HookException, Steps};
use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{HookEvent, ProcessKey, UnixMillis};
use gputop_peek::clock::now_mono;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::statistics::ReportedPools;

/// Maximum length of a path, a name or a message. A traceback is limited only by the maximum line length.
const MAX_TEXT: usize = 4 << 10;
const MAX_LINES: usize = 400;
/// Maximum nesting depth of a JSON value. The hook uses 4 levels.
const MAX_DEPTH: usize = 8;
const MAX_ENTRIES: usize = 64;

/// Process that wrote a spool file, as described by the file's first line.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Process {
    pub rank: Option<u32>,
    pub python: String,
    pub torch: String,
}

pub(super) enum SpoolLine {
    Process(Process),
    Event(Box<HookEvent>),
}

#[derive(Deserialize)]
struct Raw {
    what: String,
    #[serde(default)]
    time: UnixMillis,
    #[serde(default)]
    steps: Option<Steps>,
    #[serde(flatten)]
    data: Map<String, Value>,
}

/// Parses a line of the spool file of `process`. Returns `None` if the line does not have the hook's format.
pub(super) fn read(line: &[u8], process: ProcessKey) -> Option<SpoolLine> {
    let Raw { what, time, steps, mut data } = serde_json::from_slice(line).ok()?;
    let allocators = data.remove("allocators");
    let data = sanitize(Value::Object(data), "", 0);
    if what == "process" {
        return serde_json::from_value(data).ok().map(SpoolLine::Process);
    }
    let mut event =
        HookEvent { what: visible(what.as_bytes(), 40), time, steps, ..HookEvent::default() };
    match event.what.as_str() {
        "oom" => event.oom = Some(serde_json::from_value(data).ok()?),
        "exception" => {
            let mut exception: Box<HookException> = serde_json::from_value(data).ok()?;
            let pools = allocators.map(|all| ReportedPools::of(all, process, now_mono()));
            exception.pools = pools.unwrap_or_default().others;
            event.exception = Some(exception);
        }
        _ => event.data = data,
    }
    Some(SpoolLine::Event(Box::new(event)))
}

fn sanitize(value: Value, name: &str, depth: usize) -> Value {
    match value {
        _ if depth > MAX_DEPTH => Value::Null,
        Value::String(text) if name == "traceback" => lines(&text).into(),
        Value::String(text) => one_line(&text).into(),
        Value::Array(all) => {
            all.into_iter().take(MAX_ENTRIES).map(|one| sanitize(one, "", depth + 1)).collect()
        }
        Value::Object(all) => {
            let all = all.into_iter().take(MAX_ENTRIES).map(|(name, value)| {
                (visible(name.as_bytes(), 60), sanitize(value, &name, depth + 1))
            });
            Value::Object(all.collect())
        }
        plain => plain,
    }
}

fn one_line(text: &str) -> String {
    visible(&redact::text(text.as_bytes()), MAX_TEXT)
}

/// Sanitizes each line of a text. Redacts the complete text before splitting it, because a secret may span several
/// lines.
fn lines(text: &str) -> String {
    let text = redact::text(text.as_bytes());
    let lines = text.split(|byte| *byte == b'\n').take(MAX_LINES);
    lines.map(|line| visible(line, MAX_TEXT)).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::units::Bytes;

    fn event(line: &str) -> Option<HookEvent> {
        match read(line.as_bytes(), ProcessKey::default())? {
            SpoolLine::Event(event) => Some(*event),
            SpoolLine::Process(_) => None,
        }
    }

    #[test]
    fn reads_lines_of_the_hook() {
        let oom = event(
            r#"{"what": "oom", "time": 5, "steps": {"begun": 1, "done": 0}, "device": 1, "requested_bytes": 2147483648,
                "largest_free_block": 644245094, "pools": [{"pool": "large", "free_bytes": 9}], "new": 1}"#,
        )
        .expect("an event");
        assert_eq!((oom.what.as_str(), oom.time), ("oom", UnixMillis(5)));
        assert_eq!(oom.steps, Some(Steps { begun: 1, done: 0 }));
        let oom = oom.oom.expect("the reported sizes");
        assert_eq!(oom.requested_bytes, Bytes(2 << 30));
        assert_eq!(oom.largest_free_block, Some(Bytes(644_245_094)));
        assert_eq!(oom.pools[0].free_bytes, Bytes(9));
        let later = event(r#"{"what": "graph", "nodes": 3}"#).expect("an event");
        assert_eq!(later.data, serde_json::json!({"nodes": 3}));
    }

    #[test]
    fn sanitizes_hostile_text() {
        let exception = event(
            r#"{"what": "exception", "type": "E\u001b[2J", "message": "token=hf_abcdefghijklmnopqrstuvwxyz0123456789",
                "traceback": "a\u001b[31m\nb \u202e c"}"#,
        );
        let exception = exception.and_then(|event| event.exception);
        let exception = exception.expect("an event");
        assert_eq!(exception.r#type, "E^[[2J");
        assert!(!exception.message.contains("hf_abc"), "{}", exception.message);
        assert_eq!(exception.traceback, "a^[[31m\nb \\u{202e} c");
    }

    #[test]
    fn ignores_lines_that_are_not_events() {
        for line in [
            "",
            "null",
            "[]",
            "{}",
            "{\"what\": 3}",
            "{\"what\": \"oom\", \"requested_bytes\": -1}",
            "{\"what\": \"oo",
            "\u{0}\u{0}",
        ] {
            assert!(read(line.as_bytes(), ProcessKey::default()).is_none(), "{line}");
        }
        let deep = format!("{{\"what\": \"x\", \"a\": {}1{}}}", "[".repeat(100), "]".repeat(100));
        assert!(event(&deep).is_some());
    }
}
