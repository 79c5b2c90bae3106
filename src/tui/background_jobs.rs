//! Background jobs started by a key press: clipboard copies and file writes. Each job has its own thread, because an
//! external program or a disk may block. The event loop receives the job's message, or a timeout.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Time after which a job is reported as timed out. Its thread continues to run.
const JOB_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs background jobs, one at a time.
#[derive(Debug)]
pub struct BackgroundJobs {
    limit: Duration,
    done: mpsc::UnboundedSender<String>,
    messages: mpsc::UnboundedReceiver<String>,
    /// True while a job is running. Prevents a held key from starting many threads.
    running: bool,
}

impl BackgroundJobs {
    fn with_timeout(limit: Duration) -> Self {
        let (done, messages) = mpsc::unbounded_channel();
        Self { limit, done, messages, running: false }
    }

    /// Starts `work` on a new thread. `what` is the job's name in error messages: `the clipboard`.
    pub fn start(
        &mut self,
        what: &'static str,
        work: impl FnOnce() -> String + Send + 'static,
    ) -> Result<(), String> {
        if self.running {
            return Err("the previous copy or file write is still running; try again later".into());
        }
        let (answer, message) = oneshot::channel();
        let work = move || drop(answer.send(work()));
        let thread = std::thread::Builder::new().name("background job".into());
        thread.spawn(work).map_err(|error| format!("{what}: {error}"))?;
        let (done, limit) = (self.done.clone(), self.limit);
        self.running = true;
        tokio::spawn(async move {
            let message = match timeout(limit, message).await {
                Ok(Ok(message)) => message,
                Ok(Err(_)) => format!("{what}: failed; see the log for the reason"),
                Err(_) => format!("{what}: no response after {} s", limit.as_secs()),
            };
            let _ = done.send(message);
        });
        Ok(())
    }

    /// Waits for the message of the next finished job.
    pub async fn next(&mut self) -> String {
        let message = self.messages.recv().await.unwrap_or_default();
        self.running = false;
        message
    }
}

impl Default for BackgroundJobs {
    fn default() -> Self {
        Self::with_timeout(JOB_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_one_job_at_a_time() {
        let mut jobs = BackgroundJobs::default();
        let (release, released) = std::sync::mpsc::channel();
        let work = move || released.recv().unwrap_or_default();
        assert_eq!(jobs.start("it", work), Ok(()));
        assert!(jobs.start("another", String::new).is_err());
        release.send("done".to_owned()).expect("the thread waits");
        assert_eq!(jobs.next().await, "done");
        assert_eq!(jobs.start("another", || "too".into()), Ok(()));
        assert_eq!(jobs.next().await, "too");
    }

    #[tokio::test]
    async fn reports_a_job_that_times_out() {
        let mut jobs = BackgroundJobs::with_timeout(Duration::ZERO);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let work = move || released.recv().map_or_else(|_| String::new(), |()| String::new());
        assert_eq!(jobs.start("reading the file", work), Ok(()));
        assert_eq!(jobs.next().await, "reading the file: no response after 0 s");
        drop(release);
    }
}
