//! Takes control of the terminal and restores it on every exit path: return, error, signal, suspension, panic, abort.

use std::io::{self, BufWriter, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::style::Print;
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, execute, queue};
use gputop_explain::recovery::is_recovered;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::signal_actions;
use super::terminal_size::Bounded;

/// True while gputop owns the screen. Whichever code clears this flag restores the screen, so the screen is restored
/// only once.
static IS_SCREEN_OWNED: AtomicBool = AtomicBool::new(false);
/// True while the terminal reports mouse events.
static MOUSE: AtomicBool = AtomicBool::new(false);

/// Enables mouse reports for clicks and the wheel, including positions beyond column 223. crossterm would also enable
/// reports of every movement, which would waste bandwidth on a slow connection.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

type Out = Bounded<CrosstermBackend<BufWriter<Stdout>>>;

pub struct Terminal {
    /// Never dropped: ratatui's `drop` prints to stderr if it cannot show the cursor, and panics if stderr is a closed
    /// terminal. [`restore`] restores everything instead.
    inner: ManuallyDrop<ratatui::Terminal<Out>>,
    mouse: bool,
}

impl Terminal {
    /// Takes control of the screen, and of the mouse if requested.
    pub fn enter(mouse: bool) -> io::Result<Self> {
        take(mouse)?;
        // Use a buffer that is large enough to send a full screen in one write.
        let out = BufWriter::with_capacity(64 << 10, io::stdout());
        match ratatui::Terminal::new(Bounded(CrosstermBackend::new(out))) {
            Ok(inner) => Ok(Self { inner: ManuallyDrop::new(inner), mouse }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Takes control of the screen again after a suspension.
    pub fn resume(&mut self) -> io::Result<()> {
        take(self.mouse)?;
        self.redraw()
    }

    /// Discards the cached screen content, so that the next draw writes everything.
    pub fn redraw(&mut self) -> io::Result<()> {
        // Do not use `clear`: it queries the cursor position, and the response would be read as keys.
        let size = self.inner.size()?;
        self.inner.resize(size.into())
    }

    /// Returns the drawing area.
    pub fn area(&self) -> Rect {
        let size = self.inner.size().unwrap_or_default();
        Rect::new(0, 0, size.width, size.height)
    }

    /// Sends a control sequence that does not change the screen.
    pub fn print(&mut self, sequence: &str) -> io::Result<()> {
        execute!(self.inner.backend_mut().0, Print(sequence))
    }

    /// Draws a frame as one synchronized update.
    pub fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        queue!(self.inner.backend_mut().0, BeginSynchronizedUpdate)?;
        self.inner.draw(|frame| draw(frame.area(), frame.buffer_mut()))?;
        execute!(self.inner.backend_mut().0, EndSynchronizedUpdate)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn take(mouse: bool) -> io::Result<()> {
    signal_actions::arm();
    enable_raw_mode().inspect_err(|_| signal_actions::disarm())?;
    IS_SCREEN_OWNED.store(true, Ordering::SeqCst);
    let entered = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide);
    let entered = entered.and_then(|()| {
        if mouse {
            MOUSE.store(true, Ordering::SeqCst);
            execute!(io::stdout(), Print(MOUSE_ON))?;
        }
        Ok(())
    });
    if entered.is_err() {
        restore();
    }
    entered
}

/// Restores the terminal if gputop controls it. Never fails: if the terminal has closed, there is nothing to restore.
pub fn restore() {
    if !IS_SCREEN_OWNED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    if MOUSE.swap(false, Ordering::SeqCst) {
        let _ = queue!(out, Print(MOUSE_OFF));
    }
    let _ = execute!(out, EndSynchronizedUpdate, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
    signal_actions::disarm();
}

/// Installs a panic hook that restores the terminal before a main-thread panic is reported. A collector-thread panic is
/// logged, and the dashboard continues and marks that collector's data as stale. If the diagnosis recovers from a
/// panic, its caller reports the panic.
pub fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if is_recovered(panic) {
            return;
        }
        let is_main = std::thread::current().name() == Some("main");
        if !is_main && IS_SCREEN_OWNED.load(Ordering::SeqCst) {
            tracing::error!("a gputop thread panicked: {panic}");
            return;
        }
        restore();
        report(panic);
    }));
}
