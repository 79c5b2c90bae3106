//! Describes a captured Python stack: what triggered the capture, how long after the trigger the stack was read, and
//! its frames.

use gputop_model::reading::Missing;
use gputop_model::stack::{PythonStack, StackTrigger};
use gputop_model::units::{Bytes, Mono};

use super::theme::{Role, Theme};
use super::widgets::facts::Fact;
use crate::dashboard::times::span_text;

/// Describes why and when a stack was captured: `within 52 ms of reaching 12.3 GiB allocated, 14s ago`.
pub fn why_text(stack: &PythonStack, now: Mono) -> String {
    let ago = now.since(stack.at);
    let ago = if ago.0 < 1_000 { "now".into() } else { format!("{} ago", span_text(ago)) };
    let allocated = stack.allocated.unwrap_or(Bytes(0));
    let lag = stack.lag.0;
    match stack.why {
        StackTrigger::Request => format!("on request, {ago}"),
        StackTrigger::NewMaximum => {
            format!("within {lag} ms of reaching {allocated} allocated, {ago}")
        }
        StackTrigger::Oom => {
            format!("within {lag} ms of a failed allocation, {ago}")
        }
        StackTrigger::Unknown => ago,
    }
}

/// Formats the frames of the main thread, innermost first: `train.py:57 step < train.py:90 main`.
pub fn frames_text(stack: &PythonStack) -> String {
    let frames = stack.main().map_or(&[][..], |thread| &thread.frames);
    if frames.is_empty() {
        return "no Python function is running".into();
    }
    frames.iter().map(ToString::to_string).collect::<Vec<String>>().join(" < ")
}

/// Returns the stack as a section in a list of facts.
pub fn facts(stack: &Result<PythonStack, Missing>, now: Mono, theme: &Theme) -> Vec<Fact> {
    let mut list = vec![Fact::Blank, Fact::Heading("Python stack".into())];
    let stack = match stack {
        Ok(stack) => stack,
        Err(why) => {
            let why = format!("{} {why}", theme.glyphs.absent);
            list.push(Fact::Value("", why, Role::Dim, ""));
            return list;
        }
    };
    let value = |name, text| Fact::Value(name, text, Role::Text, "");
    list.push(value("captured", why_text(stack, now)));
    let mut idle = 0;
    for (i, thread) in stack.threads.iter().enumerate() {
        let name = if thread.name.is_empty() { "unnamed" } else { &thread.name };
        let innermost = thread.frames.first();
        if i > 0 {
            match innermost {
                Some(at) => list.push(value("thread", format!("{name}: {at}"))),
                None => idle += 1,
            }
            continue;
        }
        list.push(value("thread", name.to_owned()));
        if innermost.is_none() {
            list.push(value("", "no Python function is running".into()));
        }
        list.extend(thread.frames.iter().map(|f| value("", f.to_string())));
    }
    if idle > 0 {
        let threads = if idle == 1 { "thread" } else { "threads" };
        list.push(value("", format!("{idle} {threads} not in a Python function")));
    }
    if stack.left_out > 0 {
        let text = format!("{} not readable, or beyond the limit", stack.left_out);
        list.push(value("other threads", text));
    }
    list
}
