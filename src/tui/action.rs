//! Defines all actions that keys can trigger: name, default keys, scope, label, help and handler. The keymap, help
//! screen, footer, dispatch and reference are generated from this table.
//!
//! Each action is passed first to the overlay, then to the screen. If neither handles it, the table's handler runs,
//! which does the same on every screen.

use super::app::App;
use super::help::Help;
use super::menu::{Menu, sort_by};
use super::overlay::Overlay;
use super::screen::Effect;
use super::screens::unreadable::Unreadable;
use super::time_window::ScrollDirection;
use super::view::{View, cycle_sort, jump, set_speed, sort_by_vram};
use crate::model::signal::Signal;
use crate::protocol::Play;

/// Screens or modes in which an action is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Screens,
    /// Only while a recording is playing.
    Recording,
    /// Everywhere, including while a menu is open. Keys with Ctrl also work while text is being typed.
    Program,
}

/// Definition of an action.
#[derive(Debug)]
pub struct ActionDef {
    pub action: Action,
    pub scope: Scope,
    /// Action name in the `[keys]` table of the configuration.
    pub name: &'static str,
    /// Default keys, preferred key first.
    pub keys: &'static [&'static str],
    /// Footer label, shown after the key: `open log`.
    pub short: &'static str,
    /// Help text, an imperative phrase without a period: `Go to the first row`.
    pub help: &'static str,
    /// Handler that runs if neither a menu nor the screen handles the action.
    pub run: fn(&mut View, &mut App) -> Effect,
}

macro_rules! actions {
    ($($action:ident: $scope:ident, $name:literal, $keys:expr, $short:literal, $help:literal, $run:expr;)*) => {
        /// A dashboard action, independent of its key binding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($action,)*
        }

        pub const ACTIONS: &[ActionDef] = &[$(ActionDef {
            action: Action::$action,
            scope: Scope::$scope,
            name: $name,
            keys: &$keys,
            short: $short,
            help: $help,
            run: $run,
        },)*];
    };
}

impl Action {
    pub fn def(self) -> &'static ActionDef {
        // The macro lists actions and definitions in the same order.
        &ACTIONS[self as usize]
    }
}

/// Returns the new position of a cursor in `0..count`, or `None` if the action does not move the cursor.
pub fn moved(at: usize, count: usize, page: usize, action: Action) -> Option<usize> {
    let last = count.saturating_sub(1);
    Some(match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => (at + 1).min(last),
        Action::PageUp => at.saturating_sub(page.max(1)),
        Action::PageDown => (at + page.max(1)).min(last),
        Action::First => 0,
        Action::Last => last,
        _ => return None,
    })
}

// Recording bindings take precedence during playback. Keys that terminate processes must not be adjacent to keys that
// move the cursor.
actions! {
    Up: Screens, "up", ["k", "up"], "up", "Move the cursor up, or scroll",
        View::pass;
    Down: Screens, "down", ["j", "down"], "down", "Move the cursor down, or scroll",
        View::pass;
    Left: Screens, "left", ["h", "left"], "left", "Move to the previous block of a memory map",
        View::pass;
    Right: Screens, "right", ["l", "right"], "right", "Move to the next block of a memory map",
        View::pass;
    PageUp: Screens, "page_up", ["pgup", "ctrl-u"], "page up", "Move up one page",
        View::pass;
    PageDown: Screens, "page_down", ["pgdn", "ctrl-d"], "page down", "Move down one page",
        View::pass;
    First: Screens, "first", ["g", "home"], "go to top", "Go to the first row",
        View::pass;
    Last: Screens, "last", ["G", "end"], "go to end", "Go to the last row",
        View::pass;
    Open: Screens, "open", ["enter"], "open", "Open the GPU, process, incident, host or stack under the cursor",
        View::pass;
    Back: Screens, "back", ["esc"], "back", "Go back; on the first screen, clear the filter, then ungroup the processes",
        View::back;
    Memory: Screens, "memory", ["M"], "memory", "Show the allocator of the process under the cursor",
        View::open_memory;
    Holders: Screens, "holders", ["o"], "holders", "Show which tensors hold the memory of the process, and what is leaking; press again to refresh",
        View::open_holders;
    Stack: Screens, "stack", ["S"], "read stack", "Read the Python stack of the process without stopping it",
        View::read_stack;
    Log: Screens, "log", ["L"], "open log", "Open the log of the process under the cursor",
        View::open_log;
    NextError: Screens, "next_error", ["n"], "next error", "Go to the next error in a log, or the next failed request in a snapshot",
        View::pass;
    PreviousError: Screens, "previous_error", ["N"], "previous error", "Go to the previous error in a log, or the previous failed request in a snapshot",
        View::pass;
    Watch: Screens, "watch", ["w"], "follow log", "Follow a file as the log of the process under the cursor; asks for its path",
        View::name_log;
    Unread: Screens, "unread", ["!"], "list unreadable", "List the processes whose allocator is not readable, with the reason",
        |_, _| Effect::Open(Box::new(Unreadable::default()));
    Why: Screens, "why", ["d"], "explain", "Explain the incident of the process under the cursor, or else the newest unread incident",
        View::explain;
    Incidents: Screens, "incidents", ["i"], "incidents", "List all known incidents",
        View::list_incidents;
    Hosts: Screens, "hosts", ["H"], "list hosts", "List the hosts, if several are monitored",
        |_, _| Effect::Hosts;
    Connect: Screens, "connect", ["c"], "connect", "Reconnect to a host now; leaves the dashboard while ssh waits for your input",
        |_, _| Effect::Connect(None);
    Probe: Screens, "probe", ["P"], "probe", "Probe how much memory can be allocated on the GPU under the cursor; shows the cost and asks first",
        View::ask_to_probe;
    NextPane: Screens, "next_pane", ["tab"], "switch pane", "Switch between GPUs and processes, or to the next pane of a screen",
        View::pass;
    PreviousPane: Screens, "previous_pane", ["backtab"], "previous pane", "Like switching panes, but to the previous pane of a snapshot",
        |view, app| view.act(Action::NextPane, app);
    NextGpu: Screens, "next_gpu", ["]"], "next GPU", "Show the next GPU, or the next device of a snapshot",
        View::pass;
    PreviousGpu: Screens, "previous_gpu", ["["], "previous GPU", "Show the previous GPU",
        View::pass;
    Filter: Screens, "filter", ["/", "f4", "\\"], "filter", "Show only matching processes (see FILTER), or matching stacks in a snapshot",
        |_, app| Overlay::filter(app).into();
    FilterUser: Screens, "filter_user", ["u"], "user", "Show only the processes of a user; asks for the name",
        |_, app| Overlay::user_filter(app).into();
    Signal: Screens, "signal", ["f9", "x"], "signal", "Kill or signal the tagged processes, or the one under the cursor; asks first",
        |view, app| view.choose_signal(Signal::Term, app);
    SignalTerm: Screens, "signal_term", ["T"], "send TERM", "Send TERM, which requests termination; asks first",
        |view, app| view.choose_signal(Signal::Term, app);
    SignalKill: Screens, "signal_kill", ["K"], "send KILL", "Send KILL, which terminates immediately; asks first",
        |view, app| view.choose_signal(Signal::Kill, app);
    Tag: Screens, "tag", ["space"], "tag", "Tag or untag the process or group under the cursor; in a snapshot, mark the time",
        View::tag;
    Untag: Screens, "untag", ["U"], "untag", "Remove all tags",
        |_, app| { app.tags.clear(); Effect::Done };
    Group: Screens, "group", ["t", "f5"], "group", "Show processes as a tree by parent, or in groups by user, container, job or rank",
        View::group;
    Columns: Screens, "columns", ["C", "f2"], "choose columns", "Choose the columns of the process table",
        |_, _| Menu::columns();
    Sort: Screens, "sort", ["s", "f6"], "sort", "Choose the column to sort processes by",
        |_, app| Menu::sort(app);
    SortVram: Screens, "sort_vram", ["v"], "sort by VRAM", "Sort processes by VRAM, largest first",
        |_, app| sort_by_vram(app);
    SortNext: Screens, "sort_next", [">"], "sort by next", "Sort by the next column",
        |_, app| cycle_sort(app, 1);
    SortPrevious: Screens, "sort_previous", ["<"], "sort by previous", "Sort by the previous column",
        |_, app| cycle_sort(app, -1);
    Invert: Screens, "invert", ["I"], "invert", "Reverse the sort order",
        |_, app| Effect::Message(sort_by(app, app.sort, !app.inverted));
    ZoomIn: Screens, "zoom_in", ["}"], "zoom in", "Show a shorter time range in charts",
        |_, app| { app.time_window.zoom_by(-1, app.now()); Effect::Done };
    ZoomOut: Screens, "zoom_out", ["{"], "zoom out", "Show a longer time range in charts",
        |_, app| { app.time_window.zoom_by(1, app.now()); Effect::Done };
    ScrollBack: Screens, "scroll_back", ["(", ","], "scroll back", "Go back in time by a quarter of the charts' range; in a recording, the playback goes back",
        |view, app| view.scroll(ScrollDirection::Back, app);
    ScrollForward: Screens, "scroll_forward", [")", "."], "scroll forward", "Go forward in time by a quarter of the charts' range; in a recording, the playback goes forward",
        |view, app| view.scroll(ScrollDirection::Forward, app);
    Theme: Screens, "theme", ["A"], "theme", "Choose the colour theme, with a preview of the theme under the cursor",
        |_, app| Menu::theme(app);
    Density: Screens, "density", ["z"], "compact", "Toggle compact view (tables only)",
        View::toggle_density;
    Copy: Screens, "copy", ["y"], "copy", "Copy the selected item to the clipboard, through tmux or the terminal (OSC 52)",
        View::copy;
    CopyFix: Screens, "copy_fix", ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "copy fix", "Copy the fix with this number to the clipboard",
        |view, app| view.copy_fix(1, app);
    CopyMarkdown: Screens, "copy_markdown", ["Y"], "copy Markdown", "Copy the incident to the clipboard as Markdown",
        View::needs_incident;
    Wrong: Screens, "wrong", ["X"], "report", "Report a wrong explanation: copy the command that writes a redacted report",
        View::needs_incident;
    Write: Screens, "write", ["W"], "save", "Export the data of this screen to gputop-HOST-DATE.json in the current directory",
        View::save;
    Pause: Screens, "pause", ["p", "Z"], "pause", "Pause the display (collection continues) or the playback of a recording",
        View::pause;
    Now: Screens, "now", ["0"], "go to now", "Return charts, tables and a paused display to the current time; in a recording, return to where it was before you went back, or go to the start",
        View::go_to_now;
    SkipBack: Recording, "skip_back", ["left"], "-10s", "Go back ten seconds",
        |_, app| jump(app, Play::Skip(-10_000));
    SkipForward: Recording, "skip_forward", ["right"], "+10s", "Go forward ten seconds",
        |_, app| jump(app, Play::Skip(10_000));
    StepBack: Recording, "step_back", [","], "step back", "Go back one frame and pause",
        |_, app| jump(app, Play::Step(-1));
    StepForward: Recording, "step_forward", ["."], "step forward", "Go forward one frame and pause",
        |_, app| jump(app, Play::Step(1));
    GoToStart: Recording, "go_to_start", ["home"], "start", "Go to the start of the recording",
        |_, app| jump(app, Play::Start);
    GoToEnd: Recording, "go_to_end", ["end"], "end", "Go to the end of the recording and pause",
        |_, app| jump(app, Play::End);
    PlayPause: Recording, "play_pause", ["space"], "pause", "Pause or continue the playback",
        View::pause;
    Slower: Recording, "slower", ["-"], "slow down", "Play at half the speed",
        |_, app| set_speed(app, 0.5);
    Faster: Recording, "faster", ["+", "="], "speed up", "Play at twice the speed",
        |_, app| set_speed(app, 2.0);
    Help: Screens, "help", ["?", "f1"], "help", "Explain the keys on this screen; press again for all keys, terms and columns",
        |_, _| Overlay::Help(Help::default()).into();
    Redraw: Program, "redraw", ["ctrl-l"], "redraw", "Redraw the whole screen",
        |_, _| Effect::Redraw;
    Suspend: Program, "suspend", ["ctrl-z"], "suspend", "Suspend gputop and return to the shell; `fg` resumes",
        |_, _| Effect::Suspend;
    Quit: Screens, "quit", ["q"], "back or quit", "Go back; quit from the first screen",
        |_, _| Effect::Close;
    QuitNow: Program, "quit_now", ["ctrl-c"], "quit now", "Quit immediately",
        |_, _| Effect::Quit;
}
