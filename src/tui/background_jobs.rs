//! What a key starts outside the program: a text for the clipboard, a file. A program or a disk may take its time or
//! never answer, so each is done by a thread of its own, and comes back to the loop as a sentence, within a time.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// After this long it is said that there is no answer; the thread goes on by itself.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct BackgroundJobs {
    patience: Duration,
    done: mpsc::UnboundedSender<String>,
    sentences: mpsc::UnboundedReceiver<String>,
    /// One at a time: a key held down starts no crowd of threads.
    running: bool,
}

impl BackgroundJobs {
    fn with_patience(patience: Duration) -> Self {
        let (done, sentences) = mpsc::unbounded_channel();
        Self {
            patience,
            done,
            sentences,
            running: false,
        }
    }

    /// Starts `work` on a thread; `what` names it where it does not come back: `the clipboard`.
    ///
    /// # Errors
    /// With a sentence, when the one before has not come back or no thread can be had.
    pub fn start(
        &mut self,
        what: &'static str,
        work: impl FnOnce() -> String + Send + 'static,
    ) -> Result<(), String> {
        if self.running {
            return Err(
                "the last text or file is still on its way; try again when that is said".into(),
            );
        }
        let (answer, sentence) = oneshot::channel();
        let work = move || drop(answer.send(work()));
        let thread = std::thread::Builder::new().name("errand".into());
        thread
            .spawn(work)
            .map_err(|error| format!("{what}: {error}"))?;
        let (done, patience) = (self.done.clone(), self.patience);
        self.running = true;
        tokio::spawn(async move {
            let sentence = match timeout(patience, sentence).await {
                Ok(Ok(sentence)) => sentence,
                Ok(Err(_)) => format!("{what}: failed, for a reason that is in the log"),
                Err(_) => format!("{what}: no answer for {} s", patience.as_secs()),
            };
            let _ = done.send(sentence);
        });
        Ok(())
    }

    /// The sentence of one that came back.
    pub async fn next(&mut self) -> String {
        let sentence = self.sentences.recv().await.unwrap_or_default();
        self.running = false;
        sentence
    }
}

impl Default for BackgroundJobs {
    fn default() -> Self {
        Self::with_patience(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn they_come_back_one_at_a_time() {
        let mut errands = BackgroundJobs::default();
        let (release, held) = std::sync::mpsc::channel();
        let work = move || held.recv().unwrap_or_default();
        assert_eq!(errands.start("it", work), Ok(()));
        assert!(errands.start("another", String::new).is_err());
        release.send("done".to_owned()).expect("the thread waits");
        assert_eq!(errands.next().await, "done");
        assert_eq!(errands.start("another", || "too".into()), Ok(()));
        assert_eq!(errands.next().await, "too");
    }

    #[tokio::test]
    async fn one_that_does_not_come_back_is_told() {
        let mut errands = BackgroundJobs::with_patience(Duration::ZERO);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let work = move || {
            held.recv()
                .map_or_else(|_| String::new(), |()| String::new())
        };
        assert_eq!(errands.start("the file", work), Ok(()));
        assert_eq!(errands.next().await, "the file: no answer for 0 s");
        drop(release);
    }
}
