//! A fake machine with any number of processes, and an app that shows it, to test what keys do to the table.

use std::sync::Arc;

use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::picture::text_of;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Gpu, GpuProcess, Health, HealthState, Memory};
use gputop_model::host::Hello;
use gputop_model::process::{Process, ProcessKey};
use gputop_model::protocol::{Request, Update};
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono, Percent, UnixMillis};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

pub const ME: u32 = 1_000;

pub fn key(pid: u32) -> ProcessKey {
    ProcessKey::new(pid, u64::from(pid) * 7)
}

/// A process and its memory on each of its GPUs.
pub struct Member {
    pub process: Process,
    pub on: Vec<(u32, Bytes)>,
}

impl Member {
    pub fn new(pid: u32, user: &str, command: &str, on: &[(u32, u64)]) -> Self {
        let process = Process {
            key: key(pid),
            started: UnixMillis(1_700_000_000_000),
            name: command.split(' ').next().unwrap_or_default().into(),
            command: command.to_owned().into(),
            user: user.to_owned().into(),
            uid: Some(if user == "ana" { ME } else { ME + 1 }),
            cpu: Percent(100.0).into(),
            rss: Bytes::gib(2).into(),
            ..Process::default()
        };
        let on = on.iter().map(|(gpu, gib)| (*gpu, Bytes::gib(*gib)));
        Self { process, on: on.collect() }
    }

    pub fn with(mut self, more: impl FnOnce(&mut Process)) -> Self {
        more(&mut self.process);
        self
    }
}

pub fn frame(gpus: u32, members: &[Member]) -> Frame {
    let gpu = |index: u32| {
        let listed = members.iter().flat_map(|member| {
            let here = member.on.iter().filter(move |(gpu, _)| *gpu == index);
            here.map(|(_, vram)| GpuProcess {
                pid: member.process.key.pid,
                process: Some(member.process.key),
                vram: (*vram).into(),
                sm: Percent(50.0).into(),
                ..GpuProcess::default()
            })
        });
        Gpu {
            index,
            uuid: GpuUuid(format!("GPU-{index}").into()),
            name: "NVIDIA H200".into(),
            health: Health { state: HealthState::Answering, ..Health::default() },
            memory: Memory {
                total: Bytes::gib(140).into(),
                free: Bytes::gib(40).into(),
                used: Bytes::gib(100).into(),
                reserved: Bytes(0).into(),
            },
            processes: listed.collect::<Vec<_>>().into(),
            ..Gpu::default()
        }
    };
    let mut list: Vec<Process> = members.iter().map(|m| m.process.clone()).collect();
    list.sort_by_key(|process| process.key.pid);
    Frame {
        mono: Mono(1_000_000),
        time: UnixMillis(1_700_000_100_000),
        interval: Millis(1_000),
        gpus: (0..gpus).map(gpu).collect(),
        processes: Some(ProcessList { at: Mono(1_000_000), list: list.into() }),
        ..Frame::default()
    }
}

/// The state of a screen: the app, the view, and the requests that keys caused.
pub struct TestApp {
    pub app: App,
    pub view: View,
    pub asked: Vec<Request>,
}

impl TestApp {
    pub fn new(gpus: u32, members: &[Member]) -> Self {
        Self::of_frame(frame(gpus, members))
    }

    pub fn of_frame(frame: Frame) -> Self {
        let theme = Theme::new(Palette::None, false, TimeZone::UTC);
        let mut app = App::new(theme, Keymap::default(), None);
        app.update(Update::Hello(Arc::new(Hello {
            host: "node17".into(),
            uid: Some(ME),
            ticks_per_second: 100,
            ..Hello::default()
        })));
        let mut desk = Self { app, view: View::default(), asked: Vec::new() };
        desk.update(Update::Frame(Arc::new(frame)));
        desk
    }

    pub fn update(&mut self, update: Update) {
        self.app.update(update);
        self.asked.extend(self.view.follow(&self.app));
    }

    /// Sends characters as keys. A line feed is Enter and an escape is Esc.
    pub fn send(&mut self, keys: &str) {
        for key in keys.chars() {
            self.press(match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\t' => KeyCode::Tab,
                key => KeyCode::Char(key),
            });
        }
    }

    pub fn press(&mut self, code: KeyCode) {
        let event = KeyEvent::new(code, KeyModifiers::NONE);
        let (_, requests) = self.view.key(event, &mut self.app);
        self.asked.extend(requests);
    }

    pub fn text(&self, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.view.draw(&self.app, area, &mut buffer);
        text_of(&buffer)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.app.host.processes.rows.iter().map(|row| row.pid().0).collect()
    }
}
