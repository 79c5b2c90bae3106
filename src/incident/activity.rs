//! Sends notifications about processes that exit or leave their GPU idle. Each notification runs the user's
//! `on_incident` command with JSON on standard input: `kind` is `exit` or `idle`, and `title` is one sentence, as for
//! incidents.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use gputop_model::event::Exit;
use gputop_model::protocol::Update;
use gputop_model::text::visible;
use gputop_model::{
    Bytes, ContextKind, Frame, Gpu, GpuProcess, GpuUuid, HealthState, Hello, Millis, Mono,
    Observation, Process, ProcessKey, UnixMillis,
};
use serde::Serialize;
use serde_with::skip_serializing_none;

use super::notifications::{Notification, Notifications};
use super::on_incident::{NOTICE_LIMIT, run};
use super::results::{ResultSender, WatchResult, WeakResultSender};
use super::save::in_time;
use super::sink::IncidentSink;

/// Maximum number of notifications waiting for the command, which is run for one notification at a time. It is enough
/// for the exit of all processes of a large job.
const MAX_WAITING: usize = 1_024;
const MAX_COMMAND_CHARS: usize = 60;
/// A claim for an exit notification never expires, because a process exits only once.
const FOREVER: Millis = Millis(u64::MAX);

/// JSON document passed to the notification command.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Activity {
    kind: &'static str,
    title: String,
    host: String,
    time: UnixMillis,
    process: Option<Process>,
    gpus: Vec<GpuUuid>,
    exit: Option<Exit>,
    /// Unique ID of the process across hosts and boots.
    #[serde(skip)]
    key: String,
    /// Time span during which other gputop processes do not repeat the notification.
    #[serde(skip)]
    window: Millis,
}

/// Time span during which a process has held GPU memory without using a GPU.
struct IdlePeriod {
    since: Mono,
    is_reported: bool,
}

pub struct ActivityWatcher {
    idle_time: Option<Millis>,
    reports_exits: bool,
    hello: Arc<Hello>,
    idle: HashMap<ProcessKey, IdlePeriod>,
    notifications: Notifications,
    report: WeakResultSender,
    waiting: Option<SyncSender<(Activity, Notification)>>,
}

impl ActivityWatcher {
    /// Starts the thread that runs the notification command, if the user asked for notifications.
    pub fn start(sink: Option<&IncidentSink>, report: &ResultSender) -> Self {
        let sink = sink.filter(|sink| sink.on_idle.is_some() || sink.on_exit);
        let command = sink.and_then(|sink| sink.on_incident.clone());
        let waiting = sink.zip(command).and_then(|(sink, command)| {
            let (waiting, inbox) = sync_channel(MAX_WAITING);
            let (sink, weak) = (sink.clone(), report.downgrade());
            let thread = std::thread::Builder::new().name("activity".into());
            let started = thread.spawn(move || notify_all(inbox, &sink, &command, &weak));
            if let Err(why) = &started {
                let why = format!("on_idle and on_exit do not work: cannot start a thread: {why}");
                report.send(WatchResult::Error(why));
            }
            started.ok().map(|_| waiting)
        });
        Self {
            idle_time: sink.and_then(|sink| sink.on_idle),
            reports_exits: sink.is_some_and(|sink| sink.on_exit),
            hello: Arc::default(),
            idle: HashMap::new(),
            notifications: sink.map(|sink| sink.notifications.clone()).unwrap_or_default(),
            report: report.downgrade(),
            waiting,
        }
    }

    /// Handles an update without blocking. Returns an error message if too many notifications are waiting, which names
    /// those that are not sent.
    pub fn see(&mut self, update: &Update) -> Option<String> {
        self.waiting.as_ref()?;
        let found = match update {
            Update::Hello(hello) => {
                self.hello = Arc::clone(hello);
                Vec::new()
            }
            Update::Frame(frame) => self.idle(frame),
            Update::Event(event) => match (&event.observation, event.process) {
                (Observation::Exit(exit), Some(key))
                    if self.reports_exits && !exit.is_candidate =>
                {
                    vec![self.exit(key, exit, event.time)]
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let skipped: Vec<String> = found.into_iter().filter_map(|one| self.queue(one)).collect();
        (!skipped.is_empty()).then(|| {
            format!(
                "on_incident: {MAX_WAITING} notifications are waiting, so the command is not run for: {}",
                skipped.join("; ")
            )
        })
    }

    /// Queues a notification. Returns its title if the queue is full.
    fn queue(&self, activity: Activity) -> Option<String> {
        let notification = self.notifications.add(activity.title.clone());
        match self.waiting.as_ref()?.try_send((activity, notification)) {
            Err(TrySendError::Full((activity, notification))) => {
                notification.close(Ok(()), &self.report);
                Some(activity.title)
            }
            _ => None,
        }
    }

    fn exit(&self, key: ProcessKey, exit: &Exit, time: UnixMillis) -> Activity {
        let last = exit.last.as_deref();
        let end = match (exit.signal.get(), exit.status.get()) {
            _ if exit.oom.killed.get() == Some(true) => {
                "was killed by the kernel: out of memory".into()
            }
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, Some(code)) => format!("exited with code {code}"),
            (None, None) => "exited".to_owned(),
        };
        Activity {
            kind: "exit",
            title: format!("{} {end}", described(key, last)),
            host: self.hello.host.clone(),
            time,
            process: last.cloned(),
            gpus: exit.gpus.clone(),
            exit: Some(Exit { last: None, ..exit.clone() }),
            key: self.key("exit", key),
            window: FOREVER,
        }
    }

    /// Returns the processes whose idle time reached the limit with this frame.
    fn idle(&mut self, frame: &Frame) -> Vec<Activity> {
        let Some(idle_time) = self.idle_time else { return Vec::new() };
        let idle = idle_processes(frame);
        self.idle.retain(|key, _| idle.contains_key(key));
        let mut found = Vec::new();
        for (key, held) in idle {
            let period = self
                .idle
                .entry(key)
                .or_insert(IdlePeriod { since: frame.mono, is_reported: false });
            let length = frame.mono.since(period.since);
            if length < idle_time || std::mem::replace(&mut period.is_reported, true) {
                continue;
            }
            let process = frame.process(key);
            let bytes = Bytes(held.iter().map(|(_, bytes)| bytes.0).sum());
            let title = format!(
                "{} has held {bytes} of GPU memory for {} min without using the GPU",
                described(key, process),
                length.0 / 60_000
            );
            found.push(Activity {
                kind: "idle",
                title,
                host: self.hello.host.clone(),
                time: frame.time,
                process: process.cloned(),
                gpus: held.into_iter().map(|(gpu, _)| gpu).collect(),
                exit: None,
                key: self.key("idle", key),
                window: idle_time,
            });
        }
        found
    }

    fn key(&self, kind: &str, process: ProcessKey) -> String {
        let ProcessKey { pid, start } = process;
        format!("{kind}:{}:{pid}:{}", self.hello.boot_id, start.0)
    }
}

fn described(key: ProcessKey, process: Option<&Process>) -> String {
    let command = process.map(|process| process.command.value().unwrap_or(&process.name));
    let command = command.map_or("a process", String::as_str);
    let user = process.and_then(|process| process.user.value());
    let user = user.map_or(String::new(), |user| format!(", {user}"));
    let command = visible(command.as_bytes(), MAX_COMMAND_CHARS);
    format!("{command} (PID {}{user})", key.pid)
}

/// Returns the idle processes, with their memory on each GPU. An idle process holds memory on GPUs but uses none of
/// them. A process whose GPU use is unknown does not count as idle.
fn idle_processes(frame: &Frame) -> HashMap<ProcessKey, Vec<(GpuUuid, Bytes)>> {
    let mut idle: HashMap<ProcessKey, Vec<(GpuUuid, Bytes)>> = HashMap::new();
    let mut busy = Vec::new();
    for gpu in &frame.gpus {
        let listed = gpu.processes.value().into_iter().flatten();
        for listed in listed.filter(|listed| listed.kind != ContextKind::Graphics) {
            let Some(key) = listed.process else { continue };
            match listed.vram.get().filter(|_| is_idle(gpu, listed)) {
                Some(bytes) => idle.entry(key).or_default().push((gpu.uuid.clone(), bytes)),
                None => busy.push(key),
            }
        }
    }
    for key in busy {
        idle.remove(&key);
    }
    idle
}

fn is_idle(gpu: &Gpu, listed: &GpuProcess) -> bool {
    let share = listed.sm.get().or(gpu.sm.get());
    gpu.health.state == HealthState::Answering && share.is_some_and(|share| share.0 <= 0.0)
}

/// Runs the command for each notification, unless another gputop process of this user has already sent it.
fn notify_all(
    inbox: Receiver<(Activity, Notification)>,
    sink: &IncidentSink,
    command: &str,
    report: &WeakResultSender,
) {
    for (activity, notification) in inbox {
        if notification.is_cancelled().load(Ordering::Relaxed) {
            continue;
        }
        let (store, key, window) = (sink.store.clone(), activity.key.clone(), activity.window);
        let claimed = in_time(move || store.claim_activity(&key, window));
        let result = match claimed {
            Ok(false) => Ok(()),
            Ok(true) => {
                serde_json::to_vec(&activity).map_err(|error| error.to_string()).and_then(|json| {
                    let deadline = Instant::now() + NOTICE_LIMIT;
                    run(command, json, deadline, notification.is_cancelled())
                })
            }
            Err(why) => Err(why),
        };
        notification.close(result, report);
    }
}

#[cfg(test)]
mod tests;
