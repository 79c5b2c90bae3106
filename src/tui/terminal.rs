//! The terminal: taken over, and given back on every path out: return, error, signal, suspension, panic, abort.

use std::io::{self, BufWriter, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::style::Print;
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::fatal_signals;
use super::terminal_size::Bounded;
use crate::diagnose::recovery::is_recovered;

/// True while the screen is ours; whoever turns it false gives the screen back, and only once.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// True while the terminal reports the mouse to us.
static MOUSE: AtomicBool = AtomicBool::new(false);

/// Presses and the wheel, with places beyond column 223. Not what crossterm asks for, which is every movement too: a
/// slow link would carry those for nothing.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

type Out = Bounded<CrosstermBackend<BufWriter<Stdout>>>;

pub struct Terminal {
    /// Never dropped: its own way out prints to standard error when it cannot show the cursor, and when that is the
    /// terminal that went away, printing is a panic. [`give_back`] does all there is to do.
    inner: ManuallyDrop<ratatui::Terminal<Out>>,
    mouse: bool,
}

impl Terminal {
    /// Takes the screen, and where it is wanted the mouse.
    ///
    /// # Errors
    /// When standard output is no terminal or went away.
    pub fn enter(mouse: bool) -> io::Result<Self> {
        take(mouse)?;
        // Large enough that a full screen leaves in one write.
        let out = BufWriter::with_capacity(64 << 10, io::stdout());
        match ratatui::Terminal::new(Bounded(CrosstermBackend::new(out))) {
            Ok(inner) => Ok(Self {
                inner: ManuallyDrop::new(inner),
                mouse,
            }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Takes the screen again after a suspension.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub fn resume(&mut self) -> io::Result<()> {
        take(self.mouse)?;
        self.redraw()
    }

    /// Forgets what is on the screen, so that the next draw writes all of it.
    ///
    /// # Errors
    /// When standard output went away.
    pub fn redraw(&mut self) -> io::Result<()> {
        // Not `clear`: it asks the terminal where its cursor is, and the answer would be read as keys.
        let size = self.inner.size()?;
        self.inner.resize(size.into())
    }

    /// What there is to draw on.
    pub fn area(&self) -> Rect {
        let size = self.inner.size().unwrap_or_default();
        Rect::new(0, 0, size.width, size.height)
    }

    /// Says to the terminal what is no part of the screen.
    ///
    /// # Errors
    /// When standard output went away.
    pub fn print(&mut self, sequence: &str) -> io::Result<()> {
        execute!(self.inner.backend_mut().0, Print(sequence))
    }

    /// # Errors
    /// When standard output went away.
    pub fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        queue!(self.inner.backend_mut().0, BeginSynchronizedUpdate)?;
        self.inner
            .draw(|frame| draw(frame.area(), frame.buffer_mut()))?;
        execute!(self.inner.backend_mut().0, EndSynchronizedUpdate)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn take(mouse: bool) -> io::Result<()> {
    fatal_signals::arm();
    enable_raw_mode().inspect_err(|_| fatal_signals::disarm())?;
    TAKEN.store(true, Ordering::SeqCst);
    let entered = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide);
    let entered = entered.and_then(|()| {
        if mouse {
            MOUSE.store(true, Ordering::SeqCst);
            execute!(io::stdout(), Print(MOUSE_ON))?;
        }
        Ok(())
    });
    if entered.is_err() {
        give_back();
    }
    entered
}

/// Gives the screen back if it is taken. Never fails: when the terminal is gone there is nothing to restore.
pub fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    if MOUSE.swap(false, Ordering::SeqCst) {
        let _ = queue!(out, Print(MOUSE_OFF));
    }
    let _ = execute!(
        out,
        EndSynchronizedUpdate,
        LeaveAlternateScreen,
        cursor::Show
    );
    let _ = disable_raw_mode();
    let _ = out.flush();
    fatal_signals::disarm();
}

/// Makes a panic of the main thread give the screen back before it is reported. A panic of a collector's thread is
/// written to the log and costs its section: the screen stays, and shows that section growing old. A panic that the
/// diagnosis recovers from is reported by whoever asked for it.
pub fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if is_recovered(panic) {
            return;
        }
        let is_main = std::thread::current().name() == Some("main");
        if !is_main && TAKEN.load(Ordering::SeqCst) {
            tracing::error!("a thread of gputop panicked: {panic}");
            return;
        }
        give_back();
        report(panic);
    }));
}
