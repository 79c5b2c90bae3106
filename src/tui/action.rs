//! Defines all actions that keys can trigger: name, default keys, scope, label and help. The keymap, help screen, footer
//! and reference are generated from this table.
//!
//! Each action is passed first to the overlay, then to the screen. If neither handles it, [`View`](super::view::View)
//! performs its default.

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
}

macro_rules! actions {
    ($($action:ident: $scope:ident, $name:literal, $keys:expr, $short:literal, $help:literal;)*) => {
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
    Up: Screens, "up", ["k", "up"], "up", "Move the cursor up, or scroll";
    Down: Screens, "down", ["j", "down"], "down", "Move the cursor down, or scroll";
    Left: Screens, "left", ["h", "left"], "left", "Move to the previous block of a memory map";
    Right: Screens, "right", ["l", "right"], "right", "Move to the next block of a memory map";
    PageUp: Screens, "page_up", ["pgup", "ctrl-u"], "page up", "Move up one page";
    PageDown: Screens, "page_down", ["pgdn", "ctrl-d"], "page down", "Move down one page";
    First: Screens, "first", ["g", "home"], "go to top", "Go to the first row";
    Last: Screens, "last", ["G", "end"], "go to end", "Go to the last row";
    Open: Screens, "open", ["enter"], "open", "Open the GPU, process, incident, host or stack under the cursor";
    Back: Screens, "back", ["esc"], "back", "Go back; on the first screen, clear the filter, then ungroup the processes";
    Memory: Screens, "memory", ["M"], "allocator", "Show the allocator of the process under the cursor";
    Holders: Screens, "holders", ["o"], "tensors", "Show which tensors hold the memory of the process, and what is leaking; press again to refresh";
    Stack: Screens, "stack", ["S"], "read stack", "Read the Python stack of the process without stopping it";
    Slow: Screens, "slow", ["b"], "why slow", "Show why the process is slow or its GPU idle, from samples of what it does; press again to stop";
    Log: Screens, "log", ["L"], "open log", "Open the log of the process under the cursor";
    NextError: Screens, "next_error", ["n"], "next error", "Go to the next error in a log, or the next failed request in a snapshot";
    PreviousError: Screens, "previous_error", ["N"], "previous error", "Go to the previous error in a log, or the previous failed request in a snapshot";
    Watch: Screens, "watch", ["w"], "follow log", "Follow a file as the log of the process under the cursor; asks for its path";
    Unread: Screens, "unread", ["!"], "list unreadable", "List the processes whose allocator is not readable, with the reason";
    Why: Screens, "why", ["d"], "explain", "Explain the incident of the process under the cursor, or else the newest unread incident";
    Incidents: Screens, "incidents", ["i"], "incidents", "List all known incidents";
    Ranks: Screens, "ranks", ["r"], "ranks", "Show the ranks of a distributed job side by side: who waits for whom";
    SlowRank: Screens, "slow_rank", ["B"], "slow rank", "Find the rank that comes last to most collectives, by counting them 50 times a second; press again to stop";
    Ras: Screens, "ras", ["R"], "ask NCCL", "Ask NCCL about the ranks on all hosts; says what that does and asks first";
    Hosts: Screens, "hosts", ["H"], "list hosts", "List the hosts, if several are monitored";
    Connect: Screens, "connect", ["c"], "connect", "Reconnect to a host now; leaves the dashboard while ssh waits for your input";
    Wake: Screens, "wake", ["a"], "wake", "Wake the GPUs that are asleep; they can sleep again a minute after their last use";
    Probe: Screens, "probe", ["P"], "probe", "Probe how much memory can be allocated on the GPU under the cursor; shows the cost and asks first";
    NextPane: Screens, "next_pane", ["tab"], "switch pane", "Switch between GPUs and processes, or to the next pane of a screen";
    PreviousPane: Screens, "previous_pane", ["backtab"], "previous pane", "Like switching panes, but to the previous pane of a snapshot";
    NextGpu: Screens, "next_gpu", ["]"], "next GPU", "Show the next GPU, or the next device of a snapshot";
    PreviousGpu: Screens, "previous_gpu", ["["], "previous GPU", "Show the previous GPU";
    Filter: Screens, "filter", ["/", "f4", "\\"], "filter", "Show only matching processes (see FILTER), or matching stacks in a snapshot";
    FilterUser: Screens, "filter_user", ["u"], "filter user", "Show only the processes of a user; asks for the name";
    Signal: Screens, "signal", ["f9", "x"], "kill", "Kill or signal the tagged processes, or the one under the cursor; asks first";
    SignalTerm: Screens, "signal_term", ["T"], "send TERM", "Send TERM, which requests termination; asks first";
    SignalKill: Screens, "signal_kill", ["K"], "send KILL", "Send KILL, which terminates immediately; asks first";
    Tag: Screens, "tag", ["space"], "tag", "Tag or untag the process or group under the cursor; in a snapshot, mark the time";
    Untag: Screens, "untag", ["U"], "untag", "Remove all tags";
    Group: Screens, "group", ["t", "f5"], "group", "Show processes as a tree by parent, or in groups by user, container, job or rank";
    Columns: Screens, "columns", ["C", "f2"], "choose columns", "Choose the columns of the process table";
    Sort: Screens, "sort", ["s", "f6"], "sort", "Choose the column to sort processes by";
    SortVram: Screens, "sort_vram", ["v"], "sort by VRAM", "Sort processes by VRAM, largest first; press again for the default order: by GPU, then VRAM, exited ones last";
    SortNext: Screens, "sort_next", [">"], "sort by next", "Sort by the next column";
    SortPrevious: Screens, "sort_previous", ["<"], "sort by previous", "Sort by the previous column";
    Invert: Screens, "invert", ["I"], "invert", "Reverse the sort order";
    ZoomIn: Screens, "zoom_in", ["}"], "zoom in", "Show a shorter time range in charts";
    ZoomOut: Screens, "zoom_out", ["{"], "zoom out", "Show a longer time range in charts";
    ScrollBack: Screens, "scroll_back", ["(", ","], "scroll back", "Go back in time by a quarter of the charts' range; in a recording, the playback goes back";
    ScrollForward: Screens, "scroll_forward", [")", "."], "scroll forward", "Go forward in time by a quarter of the charts' range; in a recording, the playback goes forward";
    Theme: Screens, "theme", ["A"], "theme", "Choose the colour theme, with a preview of the theme under the cursor";
    Density: Screens, "density", ["z"], "compact", "Toggle compact view (tables only)";
    Sources: Screens, "sources", ["@"], "sources", "Show where each figure of a process or GPU comes from, and how often it is read";
    Copy: Screens, "copy", ["y"], "copy", "Copy the selected item to the clipboard, through tmux or the terminal (OSC 52)";
    CopyFix: Screens, "copy_fix", ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "copy fix", "Copy the fix with this number to the clipboard";
    CopyMarkdown: Screens, "copy_markdown", ["Y"], "copy Markdown", "Copy the incident to the clipboard as Markdown";
    Wrong: Screens, "wrong", ["X"], "report", "Report a wrong explanation: copy the command that writes a redacted report";
    Write: Screens, "write", ["W"], "save", "Export the data of this screen to gputop-HOST-DATE.json in the current directory";
    Pause: Screens, "pause", ["p", "Z"], "pause", "Pause the display (collection continues) or the playback of a recording";
    Now: Screens, "now", ["0"], "go to now", "Return charts, tables and a paused display to the current time; in a recording, return to where it was before you went back";
    SkipBack: Recording, "skip_back", ["left"], "-10s", "Go back ten seconds";
    SkipForward: Recording, "skip_forward", ["right"], "+10s", "Go forward ten seconds";
    StepBack: Recording, "step_back", [","], "step back", "Go back one frame and pause";
    StepForward: Recording, "step_forward", ["."], "step forward", "Go forward one frame and pause";
    GoToStart: Recording, "go_to_start", ["home"], "start", "Go to the start of the recording";
    GoToEnd: Recording, "go_to_end", ["end"], "end", "Go to the end of the recording and pause";
    PlayPause: Recording, "play_pause", ["space"], "pause", "Pause or continue the playback";
    Slower: Recording, "slower", ["-"], "slow down", "Play at half the speed";
    Faster: Recording, "faster", ["+", "="], "speed up", "Play at twice the speed";
    Help: Screens, "help", ["?", "f1"], "help", "Explain the keys on this screen; press again for all keys, terms and columns";
    Redraw: Program, "redraw", ["ctrl-l"], "redraw", "Redraw the whole screen";
    Suspend: Program, "suspend", ["ctrl-z"], "suspend", "Suspend gputop and return to the shell; `fg` resumes";
    Quit: Screens, "quit", ["q"], "back or quit", "Go back; quit from the first screen";
    QuitNow: Program, "quit_now", ["ctrl-c"], "quit now", "Quit immediately";
}
