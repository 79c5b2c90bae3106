//! Where processes of this user meet: below `$XDG_RUNTIME_DIR`, else below the state directory.

use std::path::PathBuf;

use etcetera::BaseStrategy;

/// `…/gputop/NAME`; it need not be there yet. The Python hook looks for its own by the same rule.
#[must_use]
pub fn folder(name: &str) -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = runtime
        .filter(|path| path.is_absolute() && path.is_dir())
        .or_else(|| etcetera::choose_base_strategy().ok()?.state_dir())?;
    Some(base.join("gputop").join(name))
}

/// `…/gputop/NAME` below the state directory: what outlives the session, or is too large for memory.
#[must_use]
pub fn lasting(name: &str) -> Option<PathBuf> {
    let state = etcetera::choose_base_strategy().ok()?.state_dir()?;
    Some(state.join("gputop").join(name))
}
