//! Reasons for reduced GPU clocks.

use serde::{Deserialize, Serialize};

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Throttle {
        Idle = "idle",
        ApplicationsClocks = "clocks set by user",
        SwPowerCap = "power cap",
        HwSlowdown = "hardware slowdown",
        SyncBoost = "sync boost",
        SwThermal = "too warm",
        HwThermal = "too hot",
        HwPowerBrake = "power brake",
        DisplayClocks = "display clocks",
        #[serde(other)]
        Unknown = "throttled, reason unknown",
    }
    /// Returns the throttle reason as a noun phrase for a narrow column: `power cap`.
    fn words;
}

impl Throttle {
    /// Throttle reasons in the bit order of nvmlClocksEventReason… in nvml.h.
    #[rustfmt::skip]
    const BY_BIT: [Self; 9] = [
        Self::Idle, Self::ApplicationsClocks, Self::SwPowerCap, Self::HwSlowdown, Self::SyncBoost,
        Self::SwThermal, Self::HwThermal, Self::HwPowerBrake, Self::DisplayClocks,
    ];

    /// Returns the throttle reasons in an NVML bit mask.
    pub fn of_mask(mask: u64) -> Vec<Self> {
        let reasons = Self::BY_BIT.into_iter().enumerate();
        let known = reasons.filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, reason)| reason);
        let unknown = (mask >> Self::BY_BIT.len() != 0).then_some(Self::Unknown);
        known.chain(unknown).collect()
    }

    /// Returns the reasons without those that tell the user nothing: a general slowdown beside its exact cause, and limits
    /// that the driver's software sets on an idle GPU.
    pub fn informative(reasons: &[Self]) -> Vec<Self> {
        let has = |reason: Self| reasons.contains(&reason);
        let is_exact = has(Self::HwThermal) || has(Self::HwPowerBrake);
        let is_said = |reason: &Self| match reason {
            Self::HwSlowdown => !is_exact,
            Self::SwPowerCap | Self::SwThermal | Self::SyncBoost => !has(Self::Idle),
            _ => true,
        };
        reasons.iter().copied().filter(is_said).collect()
    }

    /// Returns true if the user should act, because heat or the power supply slows down the GPU.
    pub fn is_trouble(self) -> bool {
        matches!(
            self,
            Self::HwSlowdown
                | Self::SwThermal
                | Self::HwThermal
                | Self::HwPowerBrake
                | Self::Unknown
        )
    }
}
