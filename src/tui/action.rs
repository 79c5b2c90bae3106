//! The table of all actions that keys can trigger. Keymap, help screen, footer and reference are generated from it.

/// An action of the dashboard, independent of the key bound to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Quit,
    QuitNow,
    Back,
    Help,
    Suspend,
    Redraw,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Memory,
    Stack,
    Log,
    NextError,
    PreviousError,
    Watch,
    Unread,
    Why,
    Incidents,
    Hosts,
    Connect,
    Probe,
    NextPane,
    NextGpu,
    PreviousGpu,
    Signal,
    SignalTerm,
    SignalKill,
    Tag,
    Untag,
    Group,
    Columns,
    Filter,
    Sort,
    SortNext,
    SortPrevious,
    Invert,
    Pause,
    Now,
    ZoomIn,
    ZoomOut,
    ScrollBack,
    ScrollForward,
    Density,
    Copy,
    CopyMarkdown,
    Wrong,
    Write,
    SkipBack,
    SkipForward,
    StepBack,
    StepForward,
    Slower,
    Faster,
}

/// When an action is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Everywhere,
    /// Only during the playback of a recording.
    Recording,
}

/// The definition of an action.
#[derive(Debug)]
pub struct ActionDef {
    pub action: Action,
    /// Name in `keymap.toml`.
    pub name: &'static str,
    pub scope: Scope,
    /// Help text, an imperative phrase without a period: `Go to the first row`.
    pub help: &'static str,
    /// Label for the footer, shown after the key: `open log`.
    pub short: &'static str,
}

const fn def(
    action: Action,
    name: &'static str,
    short: &'static str,
    help: &'static str,
) -> ActionDef {
    ActionDef {
        action,
        name,
        scope: Scope::Everywhere,
        help,
        short,
    }
}

const fn recording(
    action: Action,
    name: &'static str,
    short: &'static str,
    help: &'static str,
) -> ActionDef {
    ActionDef {
        scope: Scope::Recording,
        ..def(action, name, short, help)
    }
}

pub const ACTIONS: &[ActionDef] = &[
    def(Action::Up, "up", "up", "Move the cursor up, or scroll"),
    def(
        Action::Down,
        "down",
        "down",
        "Move the cursor down, or scroll",
    ),
    def(
        Action::Left,
        "left",
        "left",
        "Move to the previous cell of a map",
    ),
    def(
        Action::Right,
        "right",
        "right",
        "Move to the next cell of a map",
    ),
    def(Action::PageUp, "page_up", "page up", "Move up one page"),
    def(
        Action::PageDown,
        "page_down",
        "page down",
        "Move down one page",
    ),
    def(Action::First, "first", "go to top", "Go to the first row"),
    def(Action::Last, "last", "go to end", "Go to the last row"),
    def(
        Action::Open,
        "open",
        "open",
        "Open the GPU, process, incident, host or stack under the cursor",
    ),
    def(
        Action::Back,
        "back",
        "back",
        "Go back; on the first screen, clear the filter",
    ),
    def(
        Action::Memory,
        "memory",
        "inspect",
        "Inspect the allocator of the process under the cursor",
    ),
    def(
        Action::Stack,
        "stack",
        "read stack",
        "Read the Python stack of the process without stopping it",
    ),
    def(
        Action::Log,
        "log",
        "open log",
        "Open the log of the process under the cursor",
    ),
    def(
        Action::NextError,
        "next_error",
        "next error",
        "Go to the next error in a log, or the next failed request in a snapshot",
    ),
    def(
        Action::PreviousError,
        "previous_error",
        "previous error",
        "Go to the previous error in a log, or failed request in a snapshot",
    ),
    def(
        Action::Watch,
        "watch",
        "follow log",
        "Follow a file as the log of the process under the cursor; asks for its path",
    ),
    def(
        Action::Unread,
        "unread",
        "list unreadable",
        "List the processes whose allocator is not readable, with the reason",
    ),
    def(
        Action::Why,
        "why",
        "explain",
        "Explain the newest unread incident; on the process screen, the one of the process",
    ),
    def(
        Action::Incidents,
        "incidents",
        "list incidents",
        "List all known incidents",
    ),
    def(
        Action::Hosts,
        "hosts",
        "list hosts",
        "List the hosts, if several are monitored",
    ),
    def(
        Action::Connect,
        "connect",
        "connect",
        "Reconnect to a host now; if ssh prompts, leaves the dashboard until you have answered",
    ),
    def(
        Action::Probe,
        "probe",
        "probe",
        "Probe how much the GPU under the cursor can allocate; shows the cost and asks first",
    ),
    def(
        Action::NextPane,
        "next_pane",
        "switch pane",
        "Switch between GPUs and processes, or between the panes of a screen",
    ),
    def(
        Action::NextGpu,
        "next_gpu",
        "next GPU",
        "Show the next GPU, or the next device of a snapshot",
    ),
    def(
        Action::PreviousGpu,
        "previous_gpu",
        "previous GPU",
        "Show the previous GPU",
    ),
    def(
        Action::Filter,
        "filter",
        "filter",
        "Show only matching processes (see FILTER), or matching stacks in a snapshot",
    ),
    def(
        Action::Signal,
        "signal",
        "signal",
        "Send a signal to the tagged processes, or the one under the cursor; asks first",
    ),
    def(
        Action::SignalTerm,
        "signal_term",
        "send TERM",
        "Send TERM, which requests termination; asks first",
    ),
    def(
        Action::SignalKill,
        "signal_kill",
        "send KILL",
        "Send KILL, which terminates immediately; asks first",
    ),
    def(
        Action::Tag,
        "tag",
        "tag",
        "Tag or untag the process or group under the cursor; in a snapshot, mark the time",
    ),
    def(Action::Untag, "untag", "untag", "Remove all tags"),
    def(
        Action::Group,
        "group",
        "group",
        "Group processes by parent, user, container, job or rank, or not at all",
    ),
    def(
        Action::Columns,
        "columns",
        "choose columns",
        "Choose the columns of the process table",
    ),
    def(
        Action::Sort,
        "sort",
        "sort",
        "Choose the column to sort processes by",
    ),
    def(
        Action::SortNext,
        "sort_next",
        "sort",
        "Sort by the next column",
    ),
    def(
        Action::SortPrevious,
        "sort_previous",
        "sort",
        "Sort by the previous column",
    ),
    def(Action::Invert, "invert", "invert", "Reverse the sort order"),
    def(
        Action::ZoomIn,
        "zoom_in",
        "zoom in",
        "Show a shorter time range in charts",
    ),
    def(
        Action::ZoomOut,
        "zoom_out",
        "zoom out",
        "Show a longer time range in charts",
    ),
    def(
        Action::ScrollBack,
        "scroll_back",
        "scroll back",
        "Scroll the charts back in time by a quarter of their range",
    ),
    def(
        Action::ScrollForward,
        "scroll_forward",
        "scroll forward",
        "Scroll the charts forward in time by a quarter of their range",
    ),
    def(
        Action::Density,
        "density",
        "compact",
        "Toggle compact view (tables only)",
    ),
    def(
        Action::Copy,
        "copy",
        "copy",
        "Copy the selected item to the clipboard, through tmux or the terminal (OSC 52)",
    ),
    def(
        Action::CopyMarkdown,
        "copy_markdown",
        "copy Markdown",
        "Copy the incident to the clipboard as Markdown",
    ),
    def(
        Action::Wrong,
        "wrong",
        "report",
        "Report a wrong explanation: copy the command that writes a redacted report",
    ),
    def(
        Action::Write,
        "write",
        "save",
        "Save the data of this screen to gputop-HOST-DATE.json in the current directory",
    ),
    def(
        Action::Pause,
        "pause",
        "pause",
        "Pause the display while collection continues, or the playback of a recording",
    ),
    def(
        Action::Now,
        "now",
        "go to now",
        "Return charts and a paused display to now; else go to the start of a recording",
    ),
    recording(Action::SkipBack, "skip_back", "-10s", "Go back ten seconds"),
    recording(
        Action::SkipForward,
        "skip_forward",
        "+10s",
        "Go forward ten seconds",
    ),
    recording(
        Action::StepBack,
        "step_back",
        "step back",
        "Go back one frame and pause",
    ),
    recording(
        Action::StepForward,
        "step_forward",
        "step forward",
        "Go forward one frame and pause",
    ),
    recording(
        Action::Slower,
        "slower",
        "slow down",
        "Play at half the speed",
    ),
    recording(
        Action::Faster,
        "faster",
        "speed up",
        "Play at twice the speed",
    ),
    def(
        Action::Help,
        "help",
        "help",
        "Explain the keys and terms of this screen",
    ),
    def(
        Action::Redraw,
        "redraw",
        "redraw",
        "Redraw the whole screen",
    ),
    def(
        Action::Suspend,
        "suspend",
        "suspend",
        "Suspend gputop and return to the shell; `fg` resumes",
    ),
    def(
        Action::Quit,
        "quit",
        "quit",
        "Go back; quit from the first screen",
    ),
    def(Action::QuitNow, "quit_now", "quit", "Quit immediately"),
];

impl Action {
    pub fn def(self) -> &'static ActionDef {
        // A test of the keymap checks that every action is listed.
        ACTIONS
            .iter()
            .find(|def| def.action == self)
            .unwrap_or(&ACTIONS[0])
    }
}
