//! Clicks and the wheel of the mouse.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use gputop_model::protocol::Request;
use ratatui::layout::{Position, Rect};

use super::View;
use super::playback::go_to;
use crate::dashboard::incidents::news;
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::chrome;
use crate::tui::screen::{Effect, Hit, is_small};

impl View {
    /// Handles the mouse. A click selects a row, and a click on the selected row opens it. A click on a heading sorts,
    /// a click on a footer key triggers it, and a click in a chart goes to that time. The wheel scrolls; over a chart it
    /// scrolls through time.
    pub fn mouse(
        &mut self,
        mouse: MouseEvent,
        area: Rect,
        app: &mut App,
    ) -> (Effect, Vec<Request>) {
        let position = Position::new(mouse.column, mouse.row);
        let action = match mouse.kind {
            MouseEventKind::ScrollUp if self.is_on_chart(position, area, app) => {
                Some(Action::ScrollBack)
            }
            MouseEventKind::ScrollDown if self.is_on_chart(position, area, app) => {
                Some(Action::ScrollForward)
            }
            MouseEventKind::ScrollUp => Some(Action::Up),
            MouseEventKind::ScrollDown => Some(Action::Down),
            MouseEventKind::Down(MouseButton::Left) => {
                let action = self.click(position, area, app);
                app.ui.message = None;
                action
            }
            _ => None,
        };
        let effect = action.map_or(Effect::Done, |action| self.act(action, app));
        (effect, self.follow(app))
    }

    fn is_on_chart(&self, position: Position, area: Rect, app: &App) -> bool {
        if self.overlay.is_some() {
            return false;
        }
        self.plot_at(position, area, app).is_some()
    }

    /// Returns the chart at a position, including the axis below it.
    fn plot_at(&self, position: Position, area: Rect, app: &App) -> Option<Rect> {
        let mut plots = self.top().plots(app, self.body(app, area)).into_iter();
        plots.find(|plot| Rect { height: plot.height + 1, ..*plot }.contains(position))
    }

    /// Goes to the time of a column in a chart.
    fn go_to_column(&mut self, plot: Rect, column: u16, app: &mut App) {
        let axis = app.host.time_axis(self.top().exited_at(app));
        let time = axis.time(column - plot.x, plot.width);
        go_to(app, time).into_iter().for_each(|request| self.requests.push(request));
    }

    /// Handles a click. Returns an additional action to perform, if any.
    fn click(&mut self, position: Position, area: Rect, app: &mut App) -> Option<Action> {
        if let Some(overlay) = &mut self.overlay {
            return overlay.click(position, area, app);
        }
        let body = self.body(app, area);
        if !is_small(area) && position.y + 1 == area.bottom() {
            let (hints, _) = chrome::hints(app, self.top(), self.is_first(app), area);
            let hit = hints.iter().find(|hint| hint.columns.contains(&position.x));
            return hit.map(|hint| hint.action);
        }
        if self.parts(app, area).status.contains(position) {
            let incident = || news(self.unread(app)).cloned().map_or(Effect::Done, Effect::Explain);
            let effect = match chrome::status_action(
                app,
                &self.unread(app),
                self.incident_to_explain(app),
                self.top(),
            ) {
                Some(Action::Ranks) => self.open_ranks(app),
                _ => incident(),
            };
            self.perform(effect, app);
            return None;
        }
        if let Some(plot) = self.plot_at(position, area, app) {
            self.go_to_column(plot, position.x, app);
            return None;
        }
        match self.stack.last_mut()?.click(app, position, body) {
            Hit::SameRow => return Some(Action::Open),
            Hit::Column(column) if app.host.processes.sort == Some(column) => {
                return Some(Action::Invert);
            }
            Hit::Column(column) if PROCESS_COLUMNS[column].sort.is_some() => {
                app.host.processes.set_sort(Some(column), false);
            }
            Hit::Column(_) | Hit::Row | Hit::Nothing => {}
        }
        None
    }
}
