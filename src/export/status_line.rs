//! Formats the short plain-ASCII line that `gputop line` prints for a status bar.
//!
//! The full form is `0 118.6/141G 84% sm 100% 67C | 1 …`. With less space, it becomes `mem 84 84 0 84%  sm 75%  67C`:
//! memory share of each GPU, mean SM use and highest temperature. With even less space, only sums remain. Warnings such
//! as ` ! 3 too hot` are dropped last.

use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::units::Bytes;

use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::gpu_columns::notes;

/// Returns the most detailed form that fits `width`. If none fits, the shortest is truncated.
pub fn of(gpus: &[&Gpu], frame: &Frame, width: usize) -> String {
    if let Some(words) = without_values(gpus) {
        return words.chars().take(width).collect();
    }
    let forms: [fn(&[&Gpu], &Frame) -> String; 4] = [each_gpu, share_of_each, sums, shortest];
    let mut lines = forms.into_iter().map(|form| ascii(&form(gpus, frame)));
    lines.find(|line| line.len() <= width).unwrap_or_else(|| {
        let mut line = ascii(&shortest(gpus, frame));
        line.truncate(width.saturating_sub(2));
        line + &".."[..width.min(2)]
    })
}

/// Replaces non-ASCII characters, because a status bar may miscount the columns that they occupy.
fn ascii(line: &str) -> String {
    line.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// Returns `2 GPUs asleep` or `1 GPU not yours`, if all GPUs are in that state, in which they have no values.
fn without_values(gpus: &[&Gpu]) -> Option<String> {
    let words = state_words(gpus.first()?)?;
    let is_same = |gpu: &&Gpu| state_words(gpu) == Some(words);
    let count = if gpus.len() == 1 { "1 GPU".into() } else { format!("{} GPUs", gpus.len()) };
    gpus.iter().all(is_same).then(|| format!("{count} {words}"))
}

fn state_words(gpu: &Gpu) -> Option<&'static str> {
    match gpu.health.state {
        HealthState::Asleep => Some("asleep"),
        HealthState::Denied => Some("not yours"),
        _ => None,
    }
}

fn each_gpu(gpus: &[&Gpu], frame: &Frame) -> String {
    let line = |gpu: &&Gpu| {
        if let Some(words) = state_words(gpu) {
            return format!("{} {words}", gpu.index);
        }
        let note = warning(&[gpu], frame).map_or(String::new(), |(_, words)| format!(" ! {words}"));
        let (sm, hot) = (mean_sm(&[gpu]), hottest(&[gpu]));
        format!("{} {} sm {sm} {hot}{note}", gpu.index, memory(&[gpu]))
    };
    gpus.iter().map(line).collect::<Vec<_>>().join(" | ")
}

fn share_of_each(gpus: &[&Gpu], frame: &Frame) -> String {
    let share = |gpu: &&Gpu| share(&[gpu]).map_or_else(|| "-".into(), |share| share.to_string());
    let shares: Vec<String> = gpus.iter().map(share).collect();
    let (sm, hot) = (mean_sm(gpus), hottest(gpus));
    format!("mem {}%  sm {sm}  {hot}{}", shares.join(" "), worst(gpus, frame))
}

fn sums(gpus: &[&Gpu], frame: &Frame) -> String {
    let (sm, hot) = (mean_sm(gpus), hottest(gpus));
    let count = match gpus {
        [gpu] => gpu.index.to_string(),
        gpus => {
            let counted = gpus.iter().filter(|gpu| state_words(gpu).is_none()).count();
            format!("{counted} GPUs")
        }
    };
    format!("{count} {} sm {sm} {hot}{}", memory(gpus), worst(gpus, frame))
}

fn shortest(gpus: &[&Gpu], frame: &Frame) -> String {
    let share = share(gpus).map_or_else(|| "-".into(), |share| format!("{share}%"));
    format!("{share} sm {}{}", mean_sm(gpus), worst(gpus, frame))
}

/// Returns used and total memory, such as `118.6/141G 84%`, or a dash unless every GPU reports its memory.
fn memory(gpus: &[&Gpu]) -> String {
    let Some((used, total)) = used_and_total(gpus) else {
        // A GPU that shares the host's memory has no total.
        let used = gpus.iter().find(|_| gpus.len() == 1).and_then(|gpu| gpu.memory.used.get());
        return used.map_or_else(|| "-".into(), |used| format!("{:.1}G", used.as_gib()));
    };
    let share = share(gpus).map_or_else(|| "-".into(), |share| format!("{share}%"));
    let decimals = usize::from(used.as_gib() < 999.95);
    // A small total that is not a whole number would not match the share.
    let is_whole = total.as_gib() >= 10.0 || (total.as_gib().round() - total.as_gib()).abs() < 0.05;
    let total_decimals = usize::from(!is_whole);
    format!("{:.decimals$}/{:.total_decimals$}G {share}", used.as_gib(), total.as_gib())
}

fn used_and_total(gpus: &[&Gpu]) -> Option<(Bytes, Bytes)> {
    // The sum of several GPUs leaves out those that cannot be read.
    let mut counted = gpus.iter().filter(|gpu| gpus.len() == 1 || state_words(gpu).is_none());
    counted.try_fold((Bytes(0), Bytes(0)), |(used, total), gpu| {
        let (more_used, more) = (gpu.memory.taken()?, gpu.memory.total.get()?);
        let add = |a: Bytes, b: Bytes| Bytes(a.0.saturating_add(b.0));
        Some((add(used, more_used), add(total, more)))
    })
}

fn share(gpus: &[&Gpu]) -> Option<u64> {
    let (used, total) = used_and_total(gpus)?;
    let hundredfold = u128::from(used.0) * 100 + u128::from(total.0) / 2;
    u64::try_from(hundredfold.checked_div(u128::from(total.0))?).ok()
}

/// Returns the mean over the GPUs that report SM use.
fn mean_sm(gpus: &[&Gpu]) -> String {
    let known: Vec<f64> = gpus.iter().filter_map(|gpu| Some(gpu.sm.get()?.0)).collect();
    let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
    match count {
        0 => "-".into(),
        count => format!("{:.0}%", known.iter().sum::<f64>() / f64::from(count)),
    }
}

fn hottest(gpus: &[&Gpu]) -> String {
    let hot = gpus.iter().filter_map(|gpu| gpu.temperature.get()).max();
    hot.map_or_else(|| "-".into(), |hot| format!("{}C", hot.0))
}

/// Returns the most severe warning and the number of other GPUs with a warning: ` ! 3 too hot +1`.
fn worst(gpus: &[&Gpu], frame: &Frame) -> String {
    let Some((index, words)) = warning(gpus, frame) else {
        return String::new();
    };
    let others = gpus.iter().filter(|gpu| gpu.index != index);
    let more = others.filter(|gpu| warning(&[gpu], frame).is_some()).count();
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    match gpus {
        [_] => format!(" ! {words}"),
        _ => format!(" ! {index} {words}{more}"),
    }
}

fn warning(gpus: &[&Gpu], frame: &Frame) -> Option<(u32, String)> {
    let with = |emphasis: Emphasis| {
        gpus.iter().find_map(|gpu| {
            let note = notes(gpu, frame).into_iter().find(|note| note.emphasis == emphasis)?;
            Some((gpu.index, note.text))
        })
    };
    with(Emphasis::Bad).or_else(|| with(Emphasis::Warn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::gpu::{Health, Memory, Throttle};
    use gputop_model::units::{Celsius, Percent};

    fn gpu(index: u32, used: u64) -> Gpu {
        Gpu {
            index,
            health: Health { state: HealthState::Answering, ..Health::default() },
            memory: Memory {
                total: Bytes::gib(141).into(),
                free: Bytes::gib(141 - used).into(),
                ..Memory::default()
            },
            sm: Percent(f64::from(index) * 10.0).into(),
            temperature: Celsius(60 + index.cast_signed()).into(),
            processes: Vec::new().into(),
            ..Gpu::default()
        }
    }

    /// Attributes all used memory to the driver, because unattributed memory would itself cause a warning.
    fn quiet(mut gpu: Gpu) -> Gpu {
        gpu.memory.reserved = gpu.memory.taken().expect("memory is set").into();
        gpu
    }

    fn line(gpus: &[Gpu], width: usize) -> String {
        let gpus: Vec<&Gpu> = gpus.iter().collect();
        of(&gpus, &Frame::default(), width)
    }

    #[test]
    fn chooses_the_form_that_fits_the_width() {
        let two = [0, 1].map(|index| quiet(gpu(index, 100)));
        let full = "0 100.0/141G 71% sm 0% 60C | 1 100.0/141G 71% sm 10% 61C";
        assert_eq!(line(&two, 60), full);
        assert_eq!(line(&two, 40), "mem 71 71%  sm 5%  61C");
        let eight = [0, 1, 2, 3, 4, 5, 6, 7].map(|index| quiet(gpu(index, 100)));
        assert_eq!(line(&eight, 60), "mem 71 71 71 71 71 71 71 71%  sm 35%  67C");
        assert_eq!(line(&eight, 40), "8 GPUs 800.0/1128G 71% sm 35% 67C");
        assert_eq!(line(&eight, 12), "71% sm 35%");
        assert_eq!(line(&eight, 6), "71% ..");
        assert_eq!(line(&eight, 0), "");
    }

    #[test]
    fn warnings_are_dropped_last() {
        let mut eight = [0, 1, 2, 3, 4, 5, 6, 7].map(|index| quiet(gpu(index, 1)));
        eight[2].pcie.width = 8.into();
        eight[2].pcie.max_width = 16.into();
        eight[3].throttle = vec![Throttle::HwThermal].into();
        let words = Throttle::HwThermal.words();
        let long = line(&eight, 80);
        assert!(long.starts_with("mem 1 1 1 ") && long.ends_with(&format!(" ! 3 {words} +1")));
        assert_eq!(line(&eight, 40), format!("1% sm 35% ! 3 {words} +1"));
    }

    #[test]
    fn unknown_figures_are_dashes() {
        let mut unknown = quiet(gpu(0, 1));
        (unknown.memory, unknown.sm) =
            (Memory::default(), gputop_model::reading::Reading::default());
        assert_eq!(line(&[unknown.clone()], 60), "0 - sm - 60C");
        assert_eq!(line(&[unknown, quiet(gpu(1, 47))], 30), "mem - 33%  sm 10%  61C");
    }
}
