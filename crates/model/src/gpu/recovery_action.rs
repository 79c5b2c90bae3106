//! The action with which a GPU recovers from an error.

use serde::{Deserialize, Serialize};

/// Action that the driver asks for, as a number of `nvmlDeviceGpuRecoveryAction_t` in nvml.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecoveryAction(pub u32);

impl RecoveryAction {
    /// The words of `nvidia-smi`, by number.
    const WORDS: [&str; 5] = ["none", "reset", "reboot", "drain P2P", "drain and reset"];

    pub fn of_words(words: &str) -> Option<Self> {
        let number = Self::WORDS.iter().position(|known| known.eq_ignore_ascii_case(words))?;
        u32::try_from(number).ok().map(Self)
    }

    pub fn words(self) -> &'static str {
        let words = usize::try_from(self.0).ok().and_then(|number| Self::WORDS.get(number));
        words.copied().unwrap_or("unknown action")
    }

    pub fn is_needed(self) -> bool {
        self.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_words_of_nvidia_smi() {
        for (words, number) in [("None", Some(0)), ("Reset", Some(1)), ("Drain and Reset", Some(4))]
        {
            assert_eq!(RecoveryAction::of_words(words).map(|action| action.0), number);
        }
        assert_eq!(RecoveryAction::of_words("[N/A]"), None);
        assert_eq!(RecoveryAction(9).words(), "unknown action");
    }
}
