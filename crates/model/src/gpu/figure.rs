//! The definition of a GPU metric, from which all screens, tables and exports are generated.

use super::{Gpu, RecoveryAction, Throttle};
use crate::reading::{Missing, Reading};
use crate::units::{
    Bytes, BytesPerSecond, Celsius, MegaHertz, MilliJoules, MilliWatts, Millis, Percent,
};

#[derive(Debug, Clone, Copy)]
pub struct GpuFigure {
    /// Name of the CSV column, without the unit.
    pub name: &'static str,
    /// Name of the figure on the GPU screen and in doctor's schedule.
    pub title: &'static str,
    pub section: Section,
    pub period: Period,
    pub field: Field,
    /// Names of the `nvidia-smi --query-gpu` field, newest first. Empty if `nvidia-smi` does not report the figure.
    pub nvidia_smi: &'static [&'static str],
    /// Name of the figure in NVIDIA's DCGM, used as the metric name in `gputop serve`.
    pub dcgm: Option<&'static str>,
    pub column: Option<FigureColumn>,
    /// Returns true if the user should act on the value.
    pub is_bad: fn(&Gpu) -> bool,
}

#[derive(Debug, Clone, Copy)]
pub struct FigureColumn {
    pub title: &'static str,
    pub width: u16,
    /// Placement priority. If space is limited, columns with smaller numbers are placed first.
    pub priority: u8,
    /// Description of the column for the help screen, a full sentence.
    pub help: &'static str,
}

crate::named! {
    /// Heading on the GPU screen under which a figure is listed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Section {
        /// Memory sizes. The GPU screen shows them as parts that add up.
        Memory = "Memory",
        Activity = "Activity",
        Power = "Power, heat, clocks",
        Links = "Links",
        Errors = "Memory errors",
        Identity = "Board",
    }
    fn title;
}

/// Interval between reads of GPU figures that rarely change or are expensive to read.
pub const SLOW_INTERVAL: Millis = Millis(10_000);

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Period {
        Tick = "every sample",
        /// Read every [`SLOW_INTERVAL`].
        Slow = "10 s",
        /// Read only while the GPU's screen is open, because the call takes 2 to 40 ms.
        WhileShown = "while shown",
        /// Read once, when the GPU is opened.
        Once = "once",
    }
    /// Returns the read interval as shown on the GPU screen beside the value.
    fn words;
}

/// Declares [`Field`], which accesses a figure's [`Gpu`] field, and [`Value`], which borrows its value.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($type:ty)),* $(,)?) => {
        /// Accessors for a GPU figure: one returns a shared reference, the other a mutable one.
        #[derive(Debug, Clone, Copy)]
        pub enum Field {
            $($(#[$doc])* $kind(fn(&Gpu) -> &Reading<$type>, fn(&mut Gpu) -> &mut Reading<$type>),)*
        }

        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Value<'a> {
            $($kind(&'a $type),)*
        }

        impl Field {
            pub fn read<'g>(&self, gpu: &'g Gpu) -> Result<Value<'g>, &'g Missing> {
                match self {
                    $(Self::$kind(get, _) => match get(gpu) {
                        Reading::Value(value) => Ok(Value::$kind(value)),
                        Reading::Missing(why) => Err(why),
                    },)*
                }
            }

            pub fn set_missing(&self, gpu: &mut Gpu, why: Missing) {
                match self {
                    $(Self::$kind(_, get_mut) => *get_mut(gpu) = Reading::Missing(why),)*
                }
            }
        }
    };
}

kinds! {
    Bytes(Bytes),
    Percent(Percent),
    Power(MilliWatts),
    Energy(MilliJoules),
    Temperature(Celsius),
    Clock(MegaHertz),
    Rate(BytesPerSecond),
    Count(u32),
    LongCount(u64),
    /// PCIe lanes: `x16`.
    Lanes(u32),
    /// The number N of /dev/nvidiaN.
    DeviceFile(u32),
    PState(u8),
    /// A state shown as yes or no.
    Flag(bool),
    /// A mode shown as on or off.
    Switch(bool),
    Text(String),
    Throttle(Vec<Throttle>),
    Recovery(RecoveryAction),
}

impl Value<'_> {
    /// Returns the figure's value with its unit: `124.7 W`.
    pub fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Percent(share) => format!("{:.0} %", share.0),
            Self::Power(power) => format!("{:.1} W", f64::from(power.0) / 1_000.0),
            Self::Energy(energy) => {
                format!("{:.2} kWh since driver load", energy.0 as f64 / 3.6e9)
            }
            Self::Temperature(celsius) => format!("{} °C", celsius.0),
            Self::Clock(clock) => format!("{} MHz", clock.0),
            Self::Rate(rate) => rate_text(*rate),
            Self::Lanes(width) => format!("x{width}"),
            Self::DeviceFile(minor) => format!("/dev/nvidia{minor}"),
            Self::PState(state) => format!("P{state}"),
            Self::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Self::Switch(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
            Self::Throttle(reasons) if reasons.is_empty() => "none".to_owned(),
            Self::Throttle(_)
            | Self::Recovery(_)
            | Self::Count(_)
            | Self::LongCount(_)
            | Self::Text(_) => self.raw(),
        }
    }

    /// Returns the figure's value for a table column. Only a temperature has its unit, because the titles of the other
    /// columns state theirs. Power is in whole watts.
    pub fn cell(self) -> String {
        match self {
            Self::Percent(share) => format!("{:.0}", share.0),
            Self::Power(power) => (power.0.saturating_add(500) / 1_000).to_string(),
            Self::Temperature(celsius) => format!("{}C", celsius.0),
            Self::PState(_) => self.text(),
            _ => self.raw(),
        }
    }

    /// Returns the bare value for other programs, in the figure's [`unit`](GpuFigure::unit).
    pub fn raw(self) -> String {
        match self {
            Self::Bytes(bytes) => bytes.0.to_string(),
            Self::Percent(share) => share.0.to_string(),
            Self::Power(power) => power.0.to_string(),
            Self::Energy(energy) => energy.0.to_string(),
            Self::Temperature(celsius) => celsius.0.to_string(),
            Self::Clock(clock) => clock.0.to_string(),
            Self::Rate(rate) => rate.0.to_string(),
            Self::Count(n) | Self::Lanes(n) | Self::DeviceFile(n) => n.to_string(),
            Self::LongCount(n) => n.to_string(),
            Self::PState(state) => state.to_string(),
            Self::Flag(flag) | Self::Switch(flag) => flag.to_string(),
            Self::Text(text) => text.clone(),
            Self::Throttle(reasons) => {
                reasons.iter().map(|reason| reason.words()).collect::<Vec<_>>().join(", ")
            }
            Self::Recovery(action) => action.words().to_owned(),
        }
    }

    /// Returns the figure's value in DCGM's unit, or `None` for rates, text and lists.
    pub fn dcgm_number(self) -> Option<f64> {
        Some(match self {
            Self::Bytes(bytes) => bytes.0 as f64 / Bytes::mib(1).0 as f64,
            Self::Percent(share) => share.0,
            Self::Power(power) => f64::from(power.0) / 1_000.0,
            Self::Energy(energy) => energy.0 as f64,
            Self::Temperature(celsius) => f64::from(celsius.0),
            Self::Clock(clock) => f64::from(clock.0),
            Self::Count(n) | Self::Lanes(n) | Self::DeviceFile(n) => f64::from(*n),
            Self::LongCount(n) => *n as f64,
            Self::PState(state) => f64::from(*state),
            Self::Recovery(action) => f64::from(action.0),
            Self::Flag(flag) | Self::Switch(flag) => f64::from(u8::from(*flag)),
            Self::Rate(_) | Self::Text(_) | Self::Throttle(_) => return None,
        })
    }
}

fn rate_text(rate: BytesPerSecond) -> String {
    match rate.0 {
        n if n < 10_000_000 => format!("{:.1} MB/s", n as f64 / 1e6),
        n if n < 10_000_000_000 => format!("{:.0} MB/s", n as f64 / 1e6),
        n => format!("{:.1} GB/s", n as f64 / 1e9),
    }
}

/// Returns a figure that has neither a column in the GPU table nor an `nvidia-smi` field.
pub(super) const fn figure(
    name: &'static str,
    title: &'static str,
    section: Section,
    period: Period,
    field: Field,
) -> GpuFigure {
    GpuFigure {
        name,
        title,
        section,
        period,
        field,
        nvidia_smi: &[],
        dcgm: None,
        column: None,
        is_bad: |_| false,
    }
}

impl GpuFigure {
    pub(super) const fn nvidia_smi(self, nvidia_smi: &'static [&'static str]) -> Self {
        Self { nvidia_smi, ..self }
    }

    pub(super) const fn dcgm(self, name: &'static str) -> Self {
        let dcgm = Some(name);
        Self { dcgm, ..self }
    }

    pub(super) const fn column(
        self,
        title: &'static str,
        width: u16,
        priority: u8,
        help: &'static str,
    ) -> Self {
        let column = Some(FigureColumn { title, width, priority, help });
        Self { column, ..self }
    }

    pub(super) const fn bad_if(self, is_bad: fn(&Gpu) -> bool) -> Self {
        Self { is_bad, ..self }
    }

    /// Returns the figure's title, with the section if the title alone is ambiguous: `memory total`.
    pub fn label(&self) -> String {
        match self.section {
            Section::Memory => format!("memory {}", self.title),
            _ => self.title.to_owned(),
        }
    }

    /// Returns DCGM's unit for [`Value::dcgm_number`] as a suffix to a phrase: ` (MiB)`.
    pub fn dcgm_unit(&self) -> &'static str {
        match self.field {
            Field::Bytes(..) => " (MiB)",
            Field::Percent(..) => " (percent)",
            Field::Power(..) => " (W)",
            Field::Energy(..) => " (mJ)",
            Field::Temperature(..) => " (degrees Celsius)",
            Field::Clock(..) => " (MHz)",
            Field::Flag(..) | Field::Switch(..) => " (1 or 0)",
            _ => "",
        }
    }

    /// Returns the unit of [`Value::raw`] as a suffix to a CSV heading.
    pub fn unit(&self) -> &'static str {
        match self.field {
            Field::Bytes(..) => "_bytes",
            Field::Percent(..) => "_percent",
            Field::Power(..) => "_milliwatts",
            Field::Energy(..) => "_millijoules",
            Field::Temperature(..) => "_celsius",
            Field::Clock(..) => "_mhz",
            Field::Rate(..) => "_bytes_per_second",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::GPU_FIGURES;
    use super::*;
    use crate::reading::Reason;

    #[test]
    fn slow_figures_are_labelled_with_their_interval() {
        let seconds = SLOW_INTERVAL.0 / 1_000;
        assert_eq!(Period::Slow.words(), format!("{seconds} s"));
    }

    #[test]
    fn every_number_that_is_read_without_a_screen_has_a_dcgm_name() {
        for figure in GPU_FIGURES {
            let has_no_number = matches!(
                figure.field,
                Field::Text(..) | Field::Throttle(..) | Field::DeviceFile(..)
            );
            let is_exported = figure.period != Period::WhileShown && !has_no_number;
            assert_eq!(figure.dcgm.is_some(), is_exported, "{}", figure.name);
        }
    }

    #[test]
    fn rounds_power_up_to_the_largest_reading() {
        assert_eq!(Value::Power(&MilliWatts(131_500)).cell(), "132");
        assert_eq!(Value::Power(&MilliWatts(u32::MAX)).cell(), "4294967");
    }

    #[test]
    fn energy_fits_into_a_column_of_the_gpu_screen() {
        let text = Value::Energy(&MilliJoules(3_600_000_000)).text();
        assert_eq!(text, "1.00 kWh since driver load");
    }

    #[test]
    fn each_figure_reads_the_field_that_it_stores() {
        for figure in GPU_FIGURES {
            let mut gpu = Gpu::default();
            figure.field.set_missing(&mut gpu, Missing::new(Reason::Unknown, "stored"));
            let stored: Vec<_> = GPU_FIGURES
                .iter()
                .filter(|other| {
                    other.field.read(&gpu).is_err_and(|why| why.to_string() == "stored")
                })
                .map(|other| other.name)
                .collect();
            assert_eq!(stored, [figure.name]);
            assert!(serde_json::to_string(&gpu).expect("it serializes").contains("stored"));
        }
    }
}
