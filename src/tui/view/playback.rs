//! Keys that move in time: in the charts of a host, or in a recording.

use gputop_model::protocol::{Play, Request};
use gputop_model::units::Mono;

use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::screen::Effect;

fn play(play: Play) -> Effect {
    Effect::Request(Request::Play(play))
}

/// Moves the playback position of a recording.
pub fn jump(app: &mut App, target: Play) -> Effect {
    note_jump(app, target);
    play(target)
}

/// Notes where the playback is. After a move back or to the end, the user can return there.
fn note_jump(app: &mut App, target: Play) {
    if let Some(recording) = &mut app.host.recording {
        let position = recording.position;
        match target {
            Play::Skip(0..) | Play::Step(_) => {}
            Play::End if position.at_end => {}
            Play::End => recording.return_point.request(),
            // Playback cannot go back from the start.
            _ if position.now == position.start => {}
            _ => recording.return_point.request(),
        }
    }
}

/// Goes to a time in the charts, or in a recording. Returns the request that moves the recording.
pub fn go_to(app: &mut App, time: Mono) -> Option<Request> {
    if app.host.recording.is_none() {
        app.host.scroll_to(time);
        return None;
    }
    note_jump(app, Play::To(time));
    Some(Request::Play(Play::To(time)))
}

/// Multiplies a recording's playback speed.
pub fn set_speed(app: &App, factor: f32) -> Effect {
    let speed = app.host.recording.as_ref().map_or(1.0, |r| r.position.speed);
    play(Play::Speed((speed * factor).clamp(0.125, 64.0)))
}

pub fn pause(app: &mut App) -> Effect {
    match &app.host.recording {
        Some(recording) => return play(Play::Pause(!recording.position.paused)),
        None => app.host.set_paused(!app.host.paused),
    }
    Effect::Done
}

/// Returns scrolled charts and a paused display to now, and a recording to the time before the user went back.
pub fn go_to_now(app: &mut App) -> Effect {
    if let Some(recording) = &app.host.recording {
        let start = app.ui.keymap.label(Action::GoToStart);
        return match recording.target_of_return() {
            Some(time) => play(Play::To(time)),
            None => Effect::Message(format!("nothing to return to; {start} goes to the start")),
        };
    }
    app.host.to_now();
    app.host.set_paused(false);
    Effect::Done
}

pub fn zoom(app: &mut App, step: isize) -> Effect {
    app.host.time_window.zoom_by(step, app.host.now());
    Effect::Done
}
