//! The sentences of an answer.

use gputop_model::gpu::Throttle;
use gputop_model::phases::{Phase, PhaseCount, PhasePlace};
use gputop_model::units::Millis;

use super::answer::{Answer, Cause, LoaderLimit};
use super::decision::{LOADER_WAIT, OWN_WORK, Signals, bytes, known, percent, seconds};
use super::gpu_load::GpuLoad;
use super::share::{MIN_SAMPLES, Share};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
/// Share from which on a phase without a cause of its own is what a program mostly does.
const MOST: f64 = 0.6;
/// Share from which on the second phase is worth a sentence.
const MIN_SECOND: f64 = 0.2;
/// Age from which on a compilation is a recompilation.
const MIN_RECOMPILE_AGE: Millis = Millis(600_000);
/// Age up to which a program tunes its kernels.
const START_AGE: Millis = Millis(30_000);

pub(super) fn answer(signals: &Signals<'_>, cause: Cause) -> Answer {
    let text = Text { signals };
    let (sentence, advice, note) = text.of(cause);
    Answer { cause, sentence, evidence: text.evidence(cause), advice, also: text.also(cause), note }
}

/// Sentence, advice and note.
type Parts = (String, Option<String>, String);

struct Text<'a> {
    signals: &'a Signals<'a>,
}

impl Text<'_> {
    fn of(&self, cause: Cause) -> Parts {
        match cause {
            Cause::SlowedDown(why) => self.slowed_down(why),
            Cause::Busy => self.busy(),
            Cause::NotEnoughSamples => self.not_enough(),
            Cause::CpuQuota => self.quota(),
            Cause::GlobalLock => self.global_lock(),
            Cause::NoFreeCore => self.no_free_core(),
            Cause::Compiles => self.compiles(),
            Cause::Starts => self.phase(
                "It is starting: imports or loads a model",
                &[Phase::Import, Phase::Load],
                None,
                "starting",
            ),
            Cause::NothingRuns => self.nothing_runs(),
            Cause::Checkpoint => self.phase(
                "Writes a checkpoint",
                &[Phase::Checkpoint],
                Some(
                    "Save less often, or asynchronously (torch.distributed.checkpoint.async_save).",
                ),
                "writes a checkpoint",
            ),
            Cause::DataLoader(limit) => self.data_loader(limit),
            Cause::LoadsInline => self.phase(
                "Loads data in the main thread",
                &[Phase::LoaderInline],
                Some("Try num_workers=4 or more in DataLoader."),
                "loads data in the main thread",
            ),
            Cause::Disk => self.disk(),
            Cause::Evaluation => {
                self.phase("Runs an evaluation", &[Phase::Evaluation], None, "evaluates")
            }
            Cause::Logging => self.phase(
                "Logs or prints",
                &[Phase::Log],
                Some("Log less often, and without tensors that are on the GPU."),
                "logs",
            ),
            Cause::ChildProcess => self.phase(
                "Waits for a program that it started",
                &[Phase::ChildProcess],
                Some("Start it less often, or in a thread of its own."),
                "waits for another program",
            ),
            Cause::OtherRank => self.other_rank(),
            Cause::CopiesToGpu => self.phase(
                "Copies data to the GPU",
                &[Phase::Copy],
                Some("Try pin_memory=True in DataLoader and non_blocking=True in .to()."),
                "copies to the GPU",
            ),
            Cause::WaitsForGpu => self.waits_for_gpu(),
            Cause::SmallKernels => self.small_kernels(),
            Cause::FewSms => self.few_sms(),
            Cause::PythonOrLaunches => self.python_or_launches(),
            Cause::NoSingleCause => self.no_single_cause(),
        }
    }

    fn gpu(&self) -> Option<&GpuLoad> {
        self.signals.gpu
    }

    fn last(&self) -> String {
        format!("of the last {}", seconds(self.signals.window.length))
    }

    /// Returns `Writes a checkpoint: 38 % (±9) of the last 10 s.`
    fn phase(&self, what: &str, phases: &[Phase], advice: Option<&str>, note: &str) -> Parts {
        let share = self.signals.share(phases);
        let sentence = format!("{what}: {share} {}.", self.last());
        (sentence, advice.map(str::to_owned), self.noted(note, share))
    }

    /// Adds a share to a note, if there are enough samples for a number.
    fn noted(&self, note: &str, share: Share) -> String {
        match share.is_counted() {
            true => format!("{note} {:.0} %", share.value() * 100.0),
            false => note.to_owned(),
        }
    }

    fn slowed_down(&self, why: Throttle) -> Parts {
        let what = match why {
            Throttle::HwPowerBrake => "the power supply limits it (power brake)",
            Throttle::HwSlowdown => "the hardware limits its clock (heat or power supply)",
            _ => "it is too hot",
        };
        let clock = self.gpu().and_then(|gpu| Some((gpu.sm_clock?, gpu.max_sm_clock?)));
        let clock = clock.map(|(now, max)| format!("clock {now:.0} of {max:.0} MHz"));
        let advice = match why {
            Throttle::HwPowerBrake => "Check the power supply of the host.",
            _ => "Check the cooling and the fans of the host.",
        };
        let reason = if why == Throttle::HwPowerBrake { "power brake" } else { "hot" };
        let note = format!("{reason}: {}", clock.unwrap_or_else(|| "slow clock".into()));
        (format!("The GPU runs slower because {what}."), Some(advice.into()), note)
    }

    fn busy(&self) -> Parts {
        let gpu = self.gpu().cloned().unwrap_or_default();
        let limit = match (gpu.memory_rate, gpu.tensor_active) {
            (Some(rate), _) if rate >= 60.0 => "the limit is the bandwidth of its memory",
            (_, Some(tensor)) if tensor >= 40.0 => "the limit is its tensor cores",
            (Some(_), Some(_)) => "neither its memory nor its tensor cores are the limit",
            _ => "what limits it cannot be read on this GPU",
        };
        (format!("The GPU is busy; {limit}."), None, "busy".into())
    }

    fn not_enough(&self) -> Parts {
        let window = self.signals.window;
        if let Some(why) = &window.no_stacks {
            return self.without_stacks(&why.to_string());
        }
        let read = window.samples();
        let sentence = format!("Not enough samples yet: {read} of at least {MIN_SAMPLES}.");
        (sentence, None, String::new())
    }

    /// Describes a process by its CPU time alone.
    fn without_stacks(&self, why: &str) -> Parts {
        let window = self.signals.window;
        let workers = &window.workers;
        let cpu = known(&window.thread.cpu);
        let worker_cpu = known(&workers.cpu).filter(|_| workers.count > 0);
        let text = match (cpu, worker_cpu) {
            (Some(cpu), Some(workers_cpu)) if cpu < 0.2 && workers_cpu >= 0.5 => format!(
                "The main thread uses {} of a core and its {} children {} each: probably the data loader.",
                whole(cpu),
                workers.count,
                whole(workers_cpu),
            ),
            _ if let Some(call) = self.most_frequent_call() => call,
            (Some(cpu), _) => format!(
                "Its {} uses {} of a core; what it does is unknown.",
                self.thread_name(),
                whole(cpu)
            ),
            (None, _) => "What the process does is unknown.".to_owned(),
        };
        (text, Some(format!("Stacks: {why}.")), String::new())
    }

    /// Says where the busiest thread of a process without Python was most often.
    fn most_frequent_call(&self) -> Option<String> {
        let window = self.signals.window;
        let calls = &window.thread.calls;
        let samples = calls.iter().map(|call| call.count).fold(0, u32::saturating_add);
        let first = calls.first().filter(|_| samples >= MIN_SAMPLES)?;
        let share = Share::new(first.count, samples);
        let (thread, last) = (self.thread_name(), self.last());
        if first.call.is_empty() {
            return Some(format!(
                "Its {thread} runs: {share} {last}. What it computes cannot be read without Python."
            ));
        }
        let what = match &*first.call {
            "futex" => "waits for another thread",
            "accept" | "epoll_wait" | "poll" | "recv" | "select" => "waits for input",
            "clock_nanosleep" | "nanosleep" => "sleeps",
            "read" | "io_getevents" | "io_uring_enter" => "reads or waits for input",
            "fdatasync" | "fsync" | "write" | "send" => "writes",
            "ioctl" => "is in a driver",
            "wait" => "waits for a child process",
            _ => "is in the kernel",
        };
        Some(format!("Its {thread} {what} ({}): {share} {last}.", first.call))
    }

    fn quota(&self) -> Parts {
        let stopped = percent(&self.signals.window.quota_stopped);
        let quota = known(&self.signals.window.quota);
        let quota = quota.map_or(String::new(), |cores| format!(" of {cores:.1} cores"));
        let sentence = format!(
            "The CPU quota{quota} of its container stops the process {} of the time.",
            whole(stopped)
        );
        let advice = "Raise the CPU limit of the container.".to_owned();
        (sentence, Some(advice), format!("CPU quota stops it {}", whole(stopped)))
    }

    fn global_lock(&self) -> Parts {
        let gil = self.signals.window.gil.clone().unwrap_or_default();
        let share = Share::new(gil.others, gil.samples);
        let which = [gil.name, gil.place].into_iter().filter(|text| !text.is_empty());
        let which = which.collect::<Vec<_>>().join(", ");
        let which = if which.is_empty() { which } else { format!(" ({which})") };
        let sentence =
            format!("Another Python thread{which} holds the GIL: {share} {}.", self.last());
        let advice = "Move its work to another process.".to_owned();
        (sentence, Some(advice), self.noted("another thread holds the GIL", share))
    }

    fn no_free_core(&self) -> Parts {
        let thread = &self.signals.window.thread;
        let delay = percent(&thread.run_delay);
        let sentence = format!(
            "Its {} waits for a free CPU core {} of the time.",
            self.thread_name(),
            whole(delay)
        );
        let advice = match (thread.cpu_count.get(), self.signals.cores.map(|cores| cores.total)) {
            (Some(allowed), Some(cores)) if allowed < cores => {
                format!("It may run on {allowed} of {cores} cores only: check its CPU affinity.")
            }
            _ => "Run fewer threads or processes on this host.".to_owned(),
        };
        (sentence, Some(advice), format!("waits for a CPU core {}", whole(delay)))
    }

    fn thread_name(&self) -> String {
        let thread = &self.signals.window.thread;
        match (thread.is_main, thread.name.is_empty()) {
            (true, _) | (_, true) => "main thread".to_owned(),
            (false, false) => format!("thread {}", thread.name),
        }
    }

    fn compiles(&self) -> Parts {
        let is_late = self.signals.window.age >= MIN_RECOMPILE_AGE;
        let what = if is_late {
            "Compiles kernels again, long after its start"
        } else {
            "Compiles kernels"
        };
        let advice = "Shapes that change cause recompilations: try torch.compile(dynamic=True), and TORCH_LOGS=recompiles.";
        self.phase(what, &[Phase::Compile], is_late.then_some(advice), "compiles kernels")
    }

    fn nothing_runs(&self) -> Parts {
        let held = self.gpu().and_then(|gpu| gpu.held).filter(|held| held.0 > 0);
        let sentence = match held {
            Some(held) => {
                format!("Nothing runs: the process waits, and holds {held} of GPU memory.")
            }
            None => "Nothing runs: the process waits.".to_owned(),
        };
        (sentence, None, "process idle".into())
    }

    fn data_loader(&self, limit: LoaderLimit) -> Parts {
        let share = self.signals.share(LOADER_WAIT);
        let window = self.signals.window;
        let count = window.workers.count;
        let advice = match limit {
            LoaderLimit::Workers => Some(self.more_workers(count)),
            LoaderLimit::Cores => Some("The workers lack cores: use fewer workers, or fewer threads in each (torch.set_num_threads, cv2.setNumThreads).".into()),
            LoaderLimit::OneCore => Some("All workers may run on one core only: a package has probably set the CPU affinity. Reset it in worker_init_fn with os.sched_setaffinity.".into()),
            LoaderLimit::Storage => Some("The workers wait too: for storage, the network or a lock.".into()),
            LoaderLimit::Unknown => None,
        };
        let sentence = format!("Waits for the data loader: {share} {}.", self.last());
        (sentence, advice, self.noted("waits for data loader", share))
    }

    fn more_workers(&self, count: u32) -> String {
        match self.signals.cores {
            Some(cores) if cores.idle > 0 => {
                let wanted = count.saturating_mul(4).min(count + cores.idle);
                format!("Try num_workers={wanted}: {} cores, {} idle.", cores.total, cores.idle)
            }
            Some(cores) => format!(
                "All {} cores are in use: prepare the data earlier, or do less for each sample.",
                cores.total
            ),
            None => "Try more workers (num_workers).".into(),
        }
    }

    fn disk(&self) -> Parts {
        let window = self.signals.window;
        let share = self.signals.share(&[Phase::Disk]);
        let blocked = percent(&window.thread.blocked);
        let swapping = window.swapped.get().is_some_and(|bytes| bytes.0 > 0);
        let sentence = if swapping {
            "Waits for swapped memory: the host lacks memory.".to_owned()
        } else if share.value() >= blocked {
            format!("Reads or writes files: {share} {}.", self.last())
        } else {
            format!("Waits for storage: {} {}.", whole(blocked), self.last())
        };
        let advice = match window.no_stacks {
            None => "Read ahead in workers of a data loader, or copy the data to a local disk.",
            Some(_) => "Copy the data to a local disk, or read it ahead.",
        };
        (sentence, Some(advice.into()), self.noted("reads or writes files", share))
    }

    fn other_rank(&self) -> Parts {
        let sentence = match self.signals.waits_for {
            Some(rank) => format!("Waits for another rank: {rank}."),
            None => "Waits for another rank.".to_owned(),
        };
        let advice =
            self.signals.waits_for.is_none().then(|| "See which one: gputop ranks.".to_owned());
        (sentence, advice, "waits for another rank".into())
    }

    fn waits_for_gpu(&self) -> Parts {
        let share = self.signals.share(&[Phase::Sync]);
        let sentence = format!("Waits for the GPU after each step: {share} {}.", self.last());
        let advice = match share.is_counted() {
            true => format!("Read results less often: at most {} to gain.", whole(share.value())),
            false => "Read results less often.".to_owned(),
        };
        (sentence, Some(advice), self.noted("waits for the GPU", share))
    }

    fn small_kernels(&self) -> Parts {
        let sentence = "The kernels are too small: the CPU launches them one by one.".to_owned();
        let advice = "Try torch.compile, CUDA graphs or a larger batch.".to_owned();
        (sentence, Some(advice), self.sm_note("kernels use"))
    }

    fn few_sms(&self) -> Parts {
        let sentence = "A kernel runs all the time, but uses few SMs of the GPU.".to_owned();
        let advice = "Try a larger batch, or run another program on the same GPU.".to_owned();
        (sentence, Some(advice), self.sm_note("kernels use"))
    }

    fn sm_note(&self, what: &str) -> String {
        let sm = self.gpu().and_then(|gpu| gpu.sm_active);
        sm.map_or(String::new(), |sm| format!("{what} {sm:.0} % of the SMs"))
    }

    fn python_or_launches(&self) -> Parts {
        let share = self.signals.share(OWN_WORK);
        let sentence = format!("Python or kernel launches limit it: {share} {}.", self.last());
        let advice = "Try torch.compile, CUDA graphs or a larger batch.".to_owned();
        (sentence, Some(advice), self.noted("Python or launches", share))
    }

    fn no_single_cause(&self) -> Parts {
        let window = self.signals.window;
        let samples = window.samples();
        let parts = window.phases.iter().take(3).map(|phase| {
            let share = Share::new(phase.count, samples);
            match share.is_counted() {
                true => format!("{} {}", whole(share.value()), phase.phase.label()),
                false => phase.phase.label().to_owned(),
            }
        });
        let first = window.phases.first().map(|phase| Share::new(phase.count, samples));
        let lead = match first.is_some_and(|share| share.is_counted() && share.value() >= MOST) {
            true => "Most samples",
            false => "No single cause",
        };
        let sentence = format!("{lead}: {}.", parts.collect::<Vec<_>>().join(", "));
        (sentence, None, String::new())
    }

    /// Returns the figures behind a cause.
    fn evidence(&self, cause: Cause) -> Vec<String> {
        let window = self.signals.window;
        let mut list = Vec::new();
        match cause {
            Cause::DataLoader(_) => list.extend(self.workers()),
            Cause::Disk | Cause::Checkpoint => list.extend(self.storage()),
            Cause::Compiles | Cause::Logging | Cause::ChildProcess
                if !window.workers.programs.is_empty() =>
            {
                list.push(format!("child processes: {}", window.workers.programs.join(", ")));
            }
            Cause::SlowedDown(_) => list.extend(self.gpu().map(clock)),
            Cause::CopiesToGpu => {
                let rate = self.gpu().and_then(|gpu| gpu.pcie_rx);
                list.extend(rate.map(|rate| format!("PCIe {:.1} GiB/s", rate / GIB)));
            }
            Cause::NothingRuns | Cause::Busy | Cause::LoadsInline => {}
            _ => list.extend(self.cpu()),
        }
        list.extend(self.place_of(cause));
        list.extend(self.gpu().and_then(gpu_figures));
        list
    }

    /// Returns the most frequent line of the cause: "`loss.item()` at train.py:57".
    fn place_of(&self, cause: Cause) -> Option<String> {
        self.signals.window.place(phases_of(cause)).map(place_text)
    }

    fn workers(&self) -> Option<String> {
        let workers = &self.signals.window.workers;
        let cpu = known(&workers.cpu)?;
        let one = workers.count == 1;
        let (s, each) = if one { ("", "") } else { "s each".split_at(1) };
        let mut text = format!("{} worker{s} at {} CPU{each}", workers.count, whole(cpu));
        if let Some(delay) = known(&workers.run_delay).filter(|delay| *delay >= 0.25) {
            text += &format!(", {} without a core", whole(delay));
        }
        if workers.blocked > 0 {
            text += &format!(", {} in uninterruptible sleep", workers.blocked);
        }
        Some(text)
    }

    fn storage(&self) -> Vec<String> {
        let window = self.signals.window;
        let rate = |what: &str, rate| {
            let rate = bytes(rate).filter(|rate| *rate >= MIB)?;
            Some(format!("{what} {:.0} MiB/s", rate / MIB))
        };
        let faults = window.major_faults.get().filter(|faults| *faults >= 100);
        let faults = faults.map(|faults| format!("{faults} page faults per second from storage"));
        [rate("reads", &window.read), rate("writes", &window.written), faults]
            .into_iter()
            .flatten()
            .collect()
    }

    fn cpu(&self) -> Option<String> {
        let cpu = known(&self.signals.window.thread.cpu)?;
        Some(format!("{} at {} CPU", self.thread_name(), whole(cpu)))
    }

    /// Returns what else slows the program down, and what limits the answer.
    fn also(&self, cause: Cause) -> Vec<String> {
        let window = self.signals.window;
        let mut list = Vec::new();
        list.extend(self.signals.holds_up.map(|verdict| format!("Others wait for it: {verdict}.")));
        let sync = self.signals.share(&[Phase::Sync]);
        let has_sync = !matches!(cause, Cause::WaitsForGpu | Cause::Busy | Cause::FewSms);
        if has_sync && sync.is_counted() && sync.value() >= 0.1 {
            let place = window.place(&[Phase::Sync]).map(place_text);
            let place = place.map_or(String::new(), |place| format!(", most often {place}"));
            list.push(format!("Waits for the GPU: {sync}{place}."));
        }
        list.extend(self.second(cause));
        let delay = percent(&window.thread.run_delay);
        if delay >= 0.25 && cause != Cause::NoFreeCore {
            list.push(format!(
                "Its {} waits for a free CPU core {} of the time.",
                self.thread_name(),
                whole(delay)
            ));
        }
        let stopped = percent(&window.quota_stopped);
        if (0.02..0.1).contains(&stopped) {
            list.push(format!(
                "The CPU quota of its container stops it {} of the time.",
                whole(stopped)
            ));
        }
        if window.major_faults.get().is_some_and(|faults| faults >= 100) && cause != Cause::Disk {
            list.extend(self.storage().pop().map(|faults| format!("{faults}.")));
        }
        if self.gpu().is_some_and(|gpu| gpu.processes > 1) {
            let count = self.gpu().map_or(0, |gpu| gpu.processes);
            list.push(format!("{count} processes share the GPU, and its figures are their sum."));
        }
        let is_work = matches!(
            cause,
            Cause::PythonOrLaunches | Cause::SmallKernels | Cause::Compiles | Cause::NoSingleCause
        );
        if window.age < START_AGE && is_work {
            list.push(
                "The program has just started: kernels may still be tuned or compiled.".into(),
            );
        }
        list
    }

    /// Returns the second group of samples, if it is large.
    fn second(&self, cause: Cause) -> Option<String> {
        if matches!(cause, Cause::Busy | Cause::NotEnoughSamples | Cause::NoSingleCause) {
            return None;
        }
        let samples = self.signals.window.samples();
        let [first, second, ..] = &self.signals.window.phases[..] else { return None };
        let share = |count: u32| Share::new(count, samples);
        let (first, second, names) =
            (share(first.count), share(second.count), (first.phase.label(), second.phase.label()));
        if !first.is_counted() {
            return None;
        }
        if first.overlaps(second) {
            return Some(format!("Close together: {first} {}, {second} {}.", names.0, names.1));
        }
        let named = match cause {
            Cause::DataLoader(_) => LOADER_WAIT,
            cause => phases_of(cause),
        };
        let is_other = |phase: &&PhaseCount| {
            phase.phase != Phase::Sync && !named.is_empty() && !named.contains(&phase.phase)
        };
        let other = self.signals.window.phases.iter().find(is_other)?;
        let share = share(other.count);
        let is_large = share.value() >= MIN_SECOND;
        is_large.then(|| format!("Most of the rest: {share} {}.", other.phase.label()))
    }
}

/// Returns the phases that a cause names, if it has a line of its own.
fn phases_of(cause: Cause) -> &'static [Phase] {
    match cause {
        Cause::Compiles => &[Phase::Compile],
        Cause::Starts => &[Phase::Import, Phase::Load],
        Cause::Checkpoint => &[Phase::Checkpoint],
        Cause::LoadsInline => &[Phase::LoaderInline],
        Cause::Disk => &[Phase::Disk],
        Cause::Evaluation => &[Phase::Evaluation],
        Cause::Logging => &[Phase::Log],
        Cause::ChildProcess => &[Phase::ChildProcess],
        Cause::CopiesToGpu => &[Phase::Copy],
        Cause::WaitsForGpu => &[Phase::Sync],
        Cause::PythonOrLaunches | Cause::SmallKernels => OWN_WORK,
        _ => &[],
    }
}

/// Returns "`loss.item()` at train.py:57", or "in step (train.py:57)" without the text of the line.
fn place_text(place: &PhasePlace) -> String {
    let at = format!("{}:{}", place.file_name(), place.line);
    match &place.text {
        Some(text) => format!("`{text}` at {at}"),
        None => format!("in {} ({at})", place.function),
    }
}

fn clock(gpu: &GpuLoad) -> String {
    let clock = gpu.sm_clock.map_or("–".into(), |clock| format!("{clock:.0}"));
    let max = gpu.max_sm_clock.map_or(String::new(), |max| format!(" of {max:.0}"));
    let temperature = gpu.temperature.map_or(String::new(), |t| format!(", {t:.0} °C"));
    format!("clock {clock}{max} MHz{temperature}")
}

/// Returns the figures that say how busy the GPU is.
fn gpu_figures(gpu: &GpuLoad) -> Option<String> {
    if let Some(sm) = gpu.sm_active {
        let mut text = format!("SM active {sm:.0} %");
        for (name, figure) in [("tensor cores", gpu.tensor_active), ("memory", gpu.memory_rate)] {
            if let Some(figure) = figure.filter(|_| sm >= 25.0) {
                text += &format!(", {name} {figure:.0} %");
            }
        }
        return Some(text);
    }
    let utilization = gpu.utilization?;
    let power = gpu
        .power_share()
        .map_or(String::new(), |share| format!(" at {} of its power limit", whole(share)));
    Some(format!("a kernel runs {utilization:.0} % of the time{power}"))
}

fn whole(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
