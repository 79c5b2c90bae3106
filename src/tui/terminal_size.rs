//! Limits the part of the terminal that gputop uses.
//!
//! Terminals report their own size, and some report 65535x65535, which is over four billion cells. gputop uses only the
//! upper left part of such a terminal.

use std::io;

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};

/// Maximum size: twice the largest size that the screens are designed for. No terminal shows this many rows, even with
/// the smallest font.
const MAX_SIZE: Size = Size::new(800, 300);

/// A backend that caps the reported size.
pub struct Bounded<B>(pub B);

fn bounded(size: Size) -> Size {
    Size::new(size.width.min(MAX_SIZE.width), size.height.min(MAX_SIZE.height))
}

impl<B: Backend<Error = io::Error>> Backend for Bounded<B> {
    type Error = io::Error;

    fn size(&self) -> io::Result<Size> {
        self.0.size().map(bounded)
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = self.0.window_size()?;
        Ok(WindowSize { columns_rows: bounded(size.columns_rows), ..size })
    }

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        self.0.draw(content)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.0.hide_cursor()
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.0.show_cursor()
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        self.0.get_cursor_position()
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.0.set_cursor_position(position)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
    }

    fn clear_region(&mut self, clear_type: ClearType) -> io::Result<()> {
        self.0.clear_region(clear_type)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
