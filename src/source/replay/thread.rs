//! The thread of the playback.

pub(super) fn spawn(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("replay".into());
    if let Err(error) = thread.spawn(work) {
        tracing::error!("cannot play the recording: no thread could be started: {error}");
    }
}
