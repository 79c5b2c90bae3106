//! The runtime of the main loop.

use color_eyre::Result;

/// Returns a single-threaded async runtime. It runs only the main loop, because collectors have their own threads.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
