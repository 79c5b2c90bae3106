//! Everything a key can do, in one list: keymap, help screen, footer and documentation are made from it.

/// What a key press means, whatever the key.
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

/// Where an action exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Everywhere,
    /// Only while a recording plays.
    Recording,
}

#[derive(Debug)]
pub struct ActionDef {
    pub action: Action,
    /// Its name in `keymap.toml`.
    pub name: &'static str,
    pub scope: Scope,
    /// What it does, as an imperative without a period: `Open what the cursor is on`.
    pub help: &'static str,
    /// One word for the footer.
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
        "Move the cursor of a map to the cell before",
    ),
    def(
        Action::Right,
        "right",
        "right",
        "Move the cursor of a map to the next cell",
    ),
    def(Action::PageUp, "page_up", "page", "Move a page up"),
    def(Action::PageDown, "page_down", "page", "Move a page down"),
    def(Action::First, "first", "first", "Go to the first row"),
    def(Action::Last, "last", "last", "Go to the last row"),
    def(
        Action::Open,
        "open",
        "open",
        "Open what is under the cursor: a GPU, a process, a stack",
    ),
    def(
        Action::Back,
        "back",
        "back",
        "Close what is open; at the top it does nothing",
    ),
    def(
        Action::Memory,
        "memory",
        "memory",
        "Look into the allocator of the process under the cursor",
    ),
    def(
        Action::Stack,
        "stack",
        "stack",
        "Read the Python stack of the process, without stopping it",
    ),
    def(
        Action::Log,
        "log",
        "log",
        "Show what the process writes, from where that was found",
    ),
    def(
        Action::NextError,
        "next_error",
        "next error",
        "In a log: go to the next line with an error; in a snapshot to the next request that failed",
    ),
    def(
        Action::PreviousError,
        "previous_error",
        "previous error",
        "In a log: go to the line with an error before; in a snapshot to the failed request before",
    ),
    def(
        Action::Watch,
        "watch",
        "name a log",
        "Name a file to follow as a log of the process under the cursor",
    ),
    def(
        Action::Unread,
        "unread",
        "unreadable",
        "List the processes whose allocator cannot be read, and why",
    ),
    def(
        Action::Why,
        "why",
        "why",
        "Explain the newest incident that nobody has read; again: the one before it; on the page of a process, its own",
    ),
    def(
        Action::Incidents,
        "incidents",
        "incidents",
        "List all incidents that are known; Enter explains the one under the cursor",
    ),
    def(
        Action::Hosts,
        "hosts",
        "hosts",
        "List the hosts, where several are watched; Enter opens the one under the cursor",
    ),
    def(
        Action::Connect,
        "connect",
        "connect",
        "Try a lost link again now; where ssh has to ask for something, in the plain terminal",
    ),
    def(
        Action::Probe,
        "probe",
        "probe",
        "Allocate on the GPU under the cursor for a moment, to see what it can hand out; says what it costs and asks first",
    ),
    def(
        Action::NextPane,
        "next_pane",
        "pane",
        "Jump between GPUs and processes, or between the parts of a screen",
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
        "Show only processes that match: a text, user:me, gpu:0, vram>10g, -state:dead; FILTER below lists all. In a snapshot: only stacks with that text",
    ),
    def(
        Action::Signal,
        "signal",
        "signal",
        "Send a signal to the process under the cursor, or to all tagged ones; asks first",
    ),
    def(
        Action::SignalTerm,
        "signal_term",
        "TERM",
        "The same with TERM chosen: ask it to end",
    ),
    def(
        Action::SignalKill,
        "signal_kill",
        "KILL",
        "The same with KILL chosen: end it at once",
    ),
    def(
        Action::Tag,
        "tag",
        "tag",
        "Tag the process or the group under the cursor, or take the tag away; in a snapshot, mark the moment",
    ),
    def(Action::Untag, "untag", "untag", "Take all tags away"),
    def(
        Action::Group,
        "group",
        "group",
        "Show processes as a tree by parent, grouped by user, container, job, rank, then flat again; Enter folds a group",
    ),
    def(
        Action::Columns,
        "columns",
        "columns",
        "Choose the columns of the process table",
    ),
    def(
        Action::Sort,
        "sort",
        "sort",
        "Choose the column that orders the processes",
    ),
    def(
        Action::SortNext,
        "sort_next",
        "sort",
        "Order by the next column",
    ),
    def(
        Action::SortPrevious,
        "sort_previous",
        "sort",
        "Order by the previous column",
    ),
    def(Action::Invert, "invert", "invert", "Turn the order round"),
    def(
        Action::ZoomIn,
        "zoom_in",
        "zoom in",
        "Show a shorter time in charts",
    ),
    def(
        Action::ZoomOut,
        "zoom_out",
        "zoom out",
        "Show a longer time in charts",
    ),
    def(
        Action::ScrollBack,
        "scroll_back",
        "past",
        "Scroll the charts back in time, by a quarter of their length; they stand there until 0",
    ),
    def(
        Action::ScrollForward,
        "scroll_forward",
        "forward",
        "Scroll the charts on in time, up to now",
    ),
    def(
        Action::Density,
        "density",
        "density",
        "Leave out of the overview what is no table, or show it again",
    ),
    def(
        Action::Copy,
        "copy",
        "copy",
        "Send to the clipboard what the cursor or the screen is about, through tmux or the terminal (OSC 52)",
    ),
    def(
        Action::CopyMarkdown,
        "copy_markdown",
        "Markdown",
        "On an incident: send it to the clipboard as Markdown, for an issue tracker",
    ),
    def(
        Action::Wrong,
        "wrong",
        "wrong",
        "On an incident that is explained wrongly: send to the clipboard the command that writes a redacted report",
    ),
    def(
        Action::Write,
        "write",
        "write",
        "Write what is on screen into a new file here, as JSON: gputop-HOST-DATE.json",
    ),
    def(
        Action::Pause,
        "pause",
        "pause",
        "Hold the display while collection goes on; in a recording, hold the playback",
    ),
    def(
        Action::Now,
        "now",
        "now",
        "Bring charts that were scrolled back to now, show a held display as it is now; else go to the start of a recording",
    ),
    recording(Action::SkipBack, "skip_back", "-10s", "Go back ten seconds"),
    recording(
        Action::SkipForward,
        "skip_forward",
        "+10s",
        "Go on ten seconds",
    ),
    recording(
        Action::StepBack,
        "step_back",
        "step",
        "Go back one frame and hold",
    ),
    recording(
        Action::StepForward,
        "step_forward",
        "step",
        "Go on one frame and hold",
    ),
    recording(Action::Slower, "slower", "slower", "Play at half the speed"),
    recording(
        Action::Faster,
        "faster",
        "faster",
        "Play at twice the speed",
    ),
    def(
        Action::Help,
        "help",
        "help",
        "Explain the keys and the words of this screen",
    ),
    def(
        Action::Redraw,
        "redraw",
        "redraw",
        "Draw the whole screen again",
    ),
    def(
        Action::Suspend,
        "suspend",
        "suspend",
        "Give the terminal back to the shell; fg returns",
    ),
    def(
        Action::Quit,
        "quit",
        "quit",
        "Close what is open, else leave",
    ),
    def(Action::QuitNow, "quit_now", "quit", "Leave at once"),
];

impl Action {
    pub fn def(self) -> &'static ActionDef {
        // The table test below holds that every action is listed.
        ACTIONS
            .iter()
            .find(|def| def.action == self)
            .unwrap_or(&ACTIONS[0])
    }
}
