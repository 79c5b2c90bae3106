//! The dashboard on a working machine: the contents of each screen and the effect of each key.

use gputop::tui::action::{ACTIONS, Scope};
use gputop::tui::keymap::{Keymap, show_key};

use crate::support::fake_machine::{INTERVAL, RealProcess, dashboard, is_host, on_gpu, run};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::{self, gpu_shows, shows};
use crate::support::terminal::Terminal;

const ENTER: &str = "\r";
const ESC: &str = "\x1b";
const TAB: &str = "\t";

/// Total memory of an H200 and the driver's part. The FREE column shows `total` without the driver's part and the
/// memory of processes.
const H200_MIB: f64 = 143_771.0;
const DRIVER_MIB: f64 = 616.0;

fn free_gib(used_gib: f64) -> String {
    format!("{:.1}", (H200_MIB - DRIVER_MIB) / 1024.0 - used_gib)
}

fn used_gib(used_gib: f64) -> String {
    format!("{:.1}", DRIVER_MIB / 1024.0 + used_gib)
}

#[test]
fn overview_lists_every_gpu_and_process_with_memory() {
    let [a, b, c] = ["train-a", "train-b", "infer-c"].map(RealProcess::start);
    let scenario = [
        "[[gpu]]\nsm = 97\npower = 131400\ntemperature = 44\n".to_owned(),
        "[[gpu]]\n[[gpu]]\n".to_owned(),
        on_gpu(0, &a, "used = \"100 GiB\"\nsm = 93"),
        on_gpu(1, &b, "used = \"3.5 GiB\"\nsm = 4"),
        on_gpu(2, &b, "used = \"7.25 GiB\""),
        on_gpu(2, &c, "used = \"512 MiB\"\nsm = 12"),
    ]
    .concat();
    let fake = FakeNvml::new(&scenario);
    let terminal = dashboard(&fake).start();
    for (gpu, used) in [("0", 100.0), ("1", 3.5), ("2", 7.75)] {
        let cells = [("USED", used_gib(used)), ("FREE", free_gib(used))];
        let cells = cells.each_ref().map(|(title, text)| (*title, text.as_str()));
        let what = format!("{cells:?} of GPU {gpu}");
        terminal.wait_for(|screen| gpu_shows(screen, gpu, &cells), &what);
    }
    let cells = [("SM%", "97"), ("W", "131"), ("TEMP", "44C")];
    terminal.wait_for(|s| gpu_shows(s, "0", &cells), "the figures of GPU 0");
    let rows = [
        (a.pid(), "0", "100.0", "93"),
        (b.pid(), "1", "3.5", "4"),
        (b.pid(), "2", "7.2", "0"),
        (c.pid(), "2", "0.5", "12"),
    ];
    for (pid, gpu, vram, sm) in rows {
        let cells = [
            ("PID", pid.to_string()),
            ("GPU", gpu.to_owned()),
            ("VRAM", vram.to_owned()),
            ("SM%", sm.to_owned()),
        ];
        let stands = |screen: &vt100::Screen| {
            screen_tables::processes(screen)
                .iter()
                .any(|row| cells.iter().all(|(title, text)| row.cell(title) == *text))
        };
        terminal.wait_for(stands, &format!("{cells:?}"));
    }
    let screen = terminal.screen();
    assert_eq!(screen_tables::gpus(&screen).len(), 3);
    assert_eq!(screen_tables::processes(&screen).len(), 4);
    assert!(screen.contents().contains("3xH200"));
    if is_host() {
        let commands = screen_tables::processes(&screen).into_iter().map(|r| r.cell("COMMAND"));
        assert_eq!(commands.collect::<Vec<_>>(), ["train-a", "train-b", "train-b", "infer-c"]);
    }
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn a_process_appears_grows_and_ends_with_its_peak() {
    if !is_host() {
        return;
    }
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("No process uses a GPU");
    let process = RealProcess::start("train.py");
    let pid = process.pid();
    for (size, shown) in [("1 GiB", "1.0"), ("21.5 GiB", "21.5"), ("20 GiB", "20.0")] {
        fake.replace(&scenario_of(&process, &format!("used = \"{size}\"")));
        terminal.wait_for(|s| shows(s, pid, &[("VRAM", shown)]), shown);
    }
    drop(process);
    fake.replace("[[gpu]]");
    terminal.wait_for(|s| shows(s, pid, &[("VRAM", "21.5")]), "the peak of the process that ended");
    let row = screen_tables::process(&terminal.screen(), pid).unwrap();
    let command = row.cell("COMMAND");
    let clock = command
        .strip_prefix("train.py (signal 9 ")
        .map_or_else(|| panic!("{command}"), |clock| clock.trim_end_matches(')'));
    assert!(is_about_now(clock), "{clock}");
    assert_eq!(row.cell("CPU%"), "–");
    // The row remains, and a new process is listed above it.
    let second = RealProcess::start("second.py");
    fake.replace(&scenario_of(&second, "used = \"2 GiB\""));
    terminal.wait_for(|s| shows(s, second.pid(), &[("VRAM", "2.0")]), "the next process");
    let order: Vec<String> =
        screen_tables::processes(&terminal.screen()).iter().map(|row| row.cell("PID")).collect();
    assert_eq!(order, [second.pid().to_string(), pid.to_string()]);
}

fn scenario_of(process: &RealProcess, more: &str) -> String {
    format!("[[gpu]]\n{}", on_gpu(0, process, more))
}

/// Returns true for an `HH:MM` (UTC) of the last minutes.
fn is_about_now(clock: &str) -> bool {
    let now = jiff::Timestamp::now();
    (0..3).any(|minutes| {
        let then = now - jiff::SignedDuration::from_mins(minutes);
        then.strftime("%H:%M").to_string() == clock
    })
}

#[test]
fn rank_and_job_come_from_the_environment() {
    if !is_host() {
        return;
    }
    let by_torchrun = RealProcess::with("ddp.py", |command| {
        command.env("RANK", "3").env("SLURM_PROCID", "9");
    });
    let by_slurm = RealProcess::with("srun.py", |command| {
        command.env("SLURM_PROCID", "5").env("SLURM_JOB_ID", "81234");
    });
    let without = RealProcess::start("alone.py");
    let scenario = [
        "[[gpu]]\n".to_owned(),
        on_gpu(0, &by_torchrun, ""),
        on_gpu(0, &by_slurm, ""),
        on_gpu(0, &without, ""),
    ];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    for (process, rank) in [(&by_torchrun, "3"), (&by_slurm, "5"), (&without, "–")] {
        let what = format!("rank {rank}");
        terminal.wait_for(|s| shows(s, process.pid(), &[("RANK", rank)]), &what);
    }
    terminal.wait_text("1xH200  job 81234");
}

#[test]
fn gpu_problem_is_shown_in_its_row() {
    let fake = FakeNvml::new(
        "[[gpu]]\npcie_width = 8\n\
         [[gpu]]\nthrottle = [\"hw_thermal\"]\n\
         [[gpu]]\nthrottle = [\"sw_power_cap\"]\npower = 690000\n\
         [[gpu]]\necc_uncorrected = 3\n\
         [[gpu]]\nremap_failed = true\n\
         [[gpu]]\ncontext = \"2 GiB\"\n\
         [[gpu]]\ncompute_mode = 3\n\
         [[gpu]]\n",
    );
    let terminal = dashboard(&fake).start();
    let notes = [
        "PCIe x8 of x16",
        "too hot",
        "power cap",
        "3 ECC uncorrected",
        "row remap failed",
        "2.0 GiB unattributed",
        "exclusive process",
        "",
    ];
    for (gpu, note) in notes.iter().enumerate() {
        let gpu = gpu.to_string();
        let what = format!("note {note:?} of GPU {gpu}");
        terminal.wait_for(|s| gpu_shows(s, &gpu, &[("NOTE", note)]), &what);
    }
    // The GPU's own screen shows all notes.
    fake.replace("[[gpu]]\npcie_width = 4\nthrottle = [\"hw_power_brake\", \"sw_thermal\"]\n");
    terminal.send(ENTER);
    terminal.wait_text("too warm  power brake  PCIe x");
    terminal.wait_text("too warm, power brake");
}

#[test]
fn mig_instances_are_rows_of_their_own() {
    let [big, small] = ["big.py", "small.py"].map(RealProcess::start);
    let mig = "[[gpu]]\n\
        [[gpu]]\nmig = [{ profile = \"3g.71gb\", gi = 2 }, { profile = \"1g.18gb\", gi = 7 }]\n";
    let scenario = [
        mig.to_owned(),
        on_gpu(1, &big, "gi = 2\nused = \"50 GiB\""),
        on_gpu(1, &small, "gi = 7\nused = \"6 GiB\""),
    ];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    let rows = [(":2", "50.0", "21.0", "3g.71gb"), (":7", "6.0", "12.0", "1g.18gb")];
    for (instance, used, free, note) in rows {
        let cells = [("USED", used), ("FREE", free), ("NOTE", note), ("W", "–")];
        terminal.wait_for(|s| gpu_shows(s, instance, &cells), instance);
    }
    let order: Vec<String> =
        screen_tables::gpus(&terminal.screen()).iter().map(|row| row.cell("GPU")).collect();
    assert_eq!(order, ["0", "1", ":2", ":7"]);
    assert!(gpu_shows(&terminal.screen(), "1", &[("NOTE", "MIG, 2 instances")]));
    for (process, gpu) in [(&big, "1:2"), (&small, "1:7")] {
        // In MIG mode, the driver does not report the utilization of a process.
        let cells = [("GPU", gpu), ("SM%", "–")];
        terminal.wait_for(|s| shows(s, process.pid(), &cells), gpu);
    }
    // The cursor moves by GPUs, not instances: one step down is GPU 1, whose screen lists both instances.
    terminal.send("j\r");
    terminal.wait_text("GPU 1  NVIDIA H200");
    terminal.send(TAB);
    terminal.send("G");
    terminal.wait_text("MIG instance 7  1g.18gb");
}

/// Returns a value from the GPU screen's list in hundredths of a GiB.
fn hundredths(screen: &str, name: &str) -> i64 {
    let line = screen
        .lines()
        .find(|line| line.trim_start().starts_with(name) && line.contains(" GiB"))
        .unwrap_or_else(|| panic!("no {name} in\n{screen}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let gib = words.iter().position(|word| *word == "GiB").unwrap();
    let (whole, part) = words[gib - 1].split_once('.').unwrap();
    assert_eq!(part.len(), 2, "{line}");
    whole.parse::<i64>().unwrap() * 100 + part.parse::<i64>().unwrap()
}

#[test]
fn the_accounting_of_a_gpu_adds_up_in_print() {
    let [a, b] = ["a.py", "b.py"].map(RealProcess::start);
    // Sizes that are slightly below a rounding boundary. If each were rounded separately, they would not add up.
    let sizes: [(i64, i64, i64); 4] = [
        (5_368_709, 1_234_567_891, 777_777_777),
        (64_424_509_440 / 7, 33_333_333_333, 3_221_225_472 / 13),
        (1, 1, 1),
        (11_811_160_063, 22_548_578_303, 4_831_838_207),
    ];
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    terminal.send(ENTER);
    terminal.wait_text("GPU 0  NVIDIA H200");
    for (of_a, of_b, context) in sizes {
        let mut scenario = format!("[[gpu]]\ncontext = {context}\n");
        scenario += &on_gpu(0, &a, &format!("used = {of_a}"));
        scenario += &on_gpu(0, &b, &format!("used = {of_b}"));
        fake.replace(&scenario);
        let other = context * 100 / (1 << 30);
        let arrived = |screen: &vt100::Screen| {
            let text = screen.contents();
            text.contains("2 processes") && (hundredths(&text, "unattributed") - other).abs() < 2
        };
        terminal.wait_for(arrived, &format!("{other} hundredths of a GiB of nobody"));
        let text = terminal.text();
        let parts =
            ["processes", "unattributed", "driver", "free"].map(|name| hundredths(&text, name));
        assert_eq!(parts.iter().sum::<i64>(), hundredths(&text, "total"), "{text}");
    }
}

#[test]
fn keys_open_screens_and_go_back() {
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&["[[gpu]]\n[[gpu]]\n", &on_gpu(1, &process, "")].concat());
    let terminal = dashboard(&fake).start();
    let pid = process.pid();
    terminal.wait_for(|s| shows(s, pid, &[]), "the process");
    let cursor_on = |words: &str| {
        let words = words.to_owned();
        move |screen: &vt100::Screen| {
            screen.contents().lines().any(|line| line.starts_with('▸') && line.contains(&words))
        }
    };
    terminal.wait_for(cursor_on("  0 "), "the cursor on GPU 0");
    terminal.send(TAB);
    terminal.wait_for(cursor_on(&pid.to_string()), "the cursor on the process");
    terminal.send(TAB);
    terminal.wait_for(cursor_on("  0 "), "the cursor back on GPU 0");
    terminal.send("]");
    terminal.wait_for(cursor_on("  1 "), "the cursor on GPU 1");
    terminal.send("[");
    terminal.wait_for(cursor_on("  0 "), "the cursor on GPU 0 again");
    terminal.send(ENTER);
    terminal.wait_text("GPU 0  NVIDIA H200");
    terminal.wait_text("No process uses this GPU");
    terminal.send("]");
    terminal.wait_text("GPU 1  NVIDIA H200");
    terminal.send(ENTER);
    terminal.wait_text(&format!("{pid}"));
    terminal.wait_text("On the GPU");
    // Esc and q both close one screen at a time.
    terminal.send(ESC);
    terminal.wait_text("GPU 1  NVIDIA H200");
    terminal.send("[");
    terminal.wait_text("GPU 0  NVIDIA H200");
    terminal.send("q");
    terminal.wait_for(|s| screen_tables::gpus(s).len() == 2, "the overview");
    // On the first screen, Esc does nothing. Send the next key separately, because both together would be Alt-G.
    terminal.send(ESC);
    let before = fake.calls().of("memory");
    fake.wait_calls("two ticks", |calls| calls.of("memory") >= before + 4);
    terminal.send("G");
    terminal.wait_for(cursor_on(&pid.to_string()), "the cursor on the last row");
    terminal.send(ENTER);
    terminal.wait_text("On the host");
    terminal.send("q");
    terminal.wait_for(|s| screen_tables::gpus(s).len() == 2, "the overview again");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

fn pids(screen: &vt100::Screen) -> Vec<u32> {
    let rows = screen_tables::processes(screen);
    rows.iter().map(|r| r.cell("PID").parse().unwrap()).collect()
}

#[test]
fn enter_keeps_the_filter_and_esc_reverts_it() {
    if !is_host() {
        return;
    }
    let processes = ["train.py", "Infer.py", "train-2.py"].map(RealProcess::start);
    let [a, b, c] = processes.each_ref().map(RealProcess::pid);
    let scenario = processes
        .iter()
        .zip(["3 GiB", "2 GiB", "1 GiB"])
        .fold("[[gpu]]\n".to_owned(), |text, (process, used)| {
            text + &on_gpu(0, process, &format!("used = \"{used}\""))
        });
    let fake = FakeNvml::new(&scenario);
    let terminal = dashboard(&fake).start();
    let rows = |wanted: Vec<u32>| move |screen: &vt100::Screen| pids(screen) == wanted;
    terminal.wait_for(rows(vec![a, b, c]), "all rows");
    terminal.send("/train");
    terminal.wait_for(rows(vec![a, c]), "the rows with train");
    terminal.wait_text("2 of 3");
    terminal.send(ENTER);
    terminal.wait_text("filter: train (1 hidden, Esc clears)");
    // Typing starts from the current filter, and Esc restores it.
    terminal.send("/-2");
    terminal.wait_for(rows(vec![c]), "the row with train-2");
    terminal.wait_text("1 of 3");
    terminal.send(ESC);
    terminal.wait_for(rows(vec![a, c]), "the rows with train again");
    terminal.wait_text("filter: train (1 hidden, Esc clears)");
    // On the first screen, with nothing open, Esc clears the filter.
    terminal.send(ESC);
    terminal.wait_for(rows(vec![a, b, c]), "all rows again");
    // Letters that are keys elsewhere are text here, and case does not matter.
    terminal.send("/INFERq");
    terminal.wait_text("No process matches `inferq`");
    terminal.send("\x7f");
    terminal.wait_for(rows(vec![b]), "the row with Infer");
    terminal.send(ENTER);
    terminal.wait_text("filter: infer (2 hidden, Esc clears)");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn rows_are_sorted_by_menu_and_keys() {
    let processes = ["c.py", "a.py", "b.py"].map(RealProcess::start);
    let [first, second, third] = processes.each_ref().map(RealProcess::pid);
    let by_pid = {
        let mut pids = vec![first, second, third];
        pids.sort_unstable();
        pids
    };
    let reverse = |pids: &[u32]| pids.iter().rev().copied().collect::<Vec<_>>();
    let scenario = [
        "[[gpu]]\n[[gpu]]\n".to_owned(),
        on_gpu(1, &processes[0], "used = \"30 GiB\""),
        on_gpu(0, &processes[1], "used = \"10 GiB\""),
        on_gpu(0, &processes[2], "used = \"20 GiB\""),
    ];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    let rows = |wanted: Vec<u32>| move |screen: &vt100::Screen| pids(screen) == wanted;
    terminal.wait_for(rows(vec![third, second, first]), "GPU, then VRAM");
    terminal.send("s");
    terminal.wait_text("GPU, then VRAM (current)");
    terminal.send("jjj");
    terminal.wait_text("▸ PID");
    terminal.send(ENTER);
    terminal.wait_for(rows(by_pid.clone()), "by PID");
    terminal.wait_text("▲PID");
    terminal.send("I");
    terminal.wait_for(rows(reverse(&by_pid)), "by PID, reversed");
    terminal.wait_text("▼PID");
    terminal.send(">");
    terminal.wait_text("sorted by USER");
    terminal.send(">");
    terminal.wait_text("sorted by VRAM");
    terminal.wait_for(rows(vec![first, third, second]), "by VRAM");
    terminal.wait_text("▼VRAM");
    terminal.send("<<");
    terminal.wait_text("sorted by PID");
    terminal.wait_for(rows(by_pid), "by PID again");
    // The menu marks the current choice, and Esc changes nothing.
    terminal.send("s");
    terminal.wait_text("PID (current)");
    terminal.send("k");
    terminal.wait_text("▸ GPU");
    terminal.send(ESC);
    terminal.wait_for(|s| !s.contents().contains("Sort by"), "no menu");
    terminal.send("s");
    terminal.wait_text("PID (current)");
}

#[test]
fn enter_typed_before_raw_mode_is_accepted() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    // Enter as the kernel delivers it before raw mode is set.
    terminal.send("s");
    terminal.wait_text("Sort by");
    terminal.send("j\n");
    terminal.wait_for(|s| !s.contents().contains("Sort by"), "no menu");
    terminal.send("/abc\n");
    terminal.wait_text("filter: abc (");
    terminal.send("\n");
    terminal.wait_text("No process uses this GPU");
}

#[test]
fn paused_display_stands_still_while_collection_continues() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 11");
    let terminal = dashboard(&fake).start();
    for back in ["p", "0"] {
        fake.replace("[[gpu]]\nsm = 11");
        terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", "11")]), "11 %");
        terminal.send("p");
        terminal.wait_text("paused");
        let held = clock(&terminal.screen());
        let before = fake.calls().of("memory");
        fake.replace("[[gpu]]\nsm = 77");
        fake.wait_calls("three more ticks", |calls| calls.of("memory") >= before + 3);
        // Keys still work and redraw the screen, with the old values and the old clock.
        terminal.send("?");
        terminal.wait_text("Help: Overview");
        terminal.send(ESC);
        terminal.wait_for(|s| !s.contents().contains("Help:"), "no help");
        let screen = terminal.screen();
        assert!(gpu_shows(&screen, "0", &[("SM%", "11")]));
        assert_eq!(clock(&screen), held);
        terminal.send(back);
        terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", "77")]), "77 %");
        terminal.wait_text("live");
    }
}

/// Returns the last word of the header.
fn clock(screen: &vt100::Screen) -> String {
    let text = screen.contents();
    let header = text.lines().next().unwrap_or_default();
    header.split_whitespace().last().unwrap_or_default().to_owned()
}

#[test]
fn the_help_lists_every_key_and_explains_the_words() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).size(24, 80).start();
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    terminal.send("?");
    terminal.wait_text("Help: Overview");
    // The keys of this screen first, then everything.
    terminal.wait_text("? more");
    terminal.send("?");
    terminal.wait_for(|s| !s.contents().contains("? more"), "all lines");
    let mut text = page_through(&terminal);
    let keymap = Keymap::default();
    for def in ACTIONS.iter().filter(|def| def.scope != Scope::Recording) {
        let keys = keymap.keys(def.action).iter().map(|key| show_key(key));
        let keys = keys.collect::<Vec<_>>().join(" ");
        // Long help texts continue on the next line.
        let begin: String = def.help.chars().take(40).collect();
        let stands = |line: &str| line.contains(&keys) && line.contains(begin.trim_end());
        assert!(text.lines().any(stands), "{keys} {begin}\n{text}");
    }
    for word in ["TERMS: OVERVIEW", "GPU TABLE", "PROCESS TABLE", "no answer"] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    assert!(!text.contains("Go back ten seconds"), "a recording's key");
    // A third press changes nothing.
    terminal.send("?");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("Help:"), "no help");
    terminal.send("\r?");
    terminal.wait_text("Help: GPU");
    terminal.send("?");
    terminal.wait_for(|s| !s.contents().contains("? more"), "all lines");
    text = page_through(&terminal);
    assert!(text.contains("while shown"), "{text}");
    terminal.send("q");
    terminal.wait_text("GPU 0  NVIDIA H200");
}

/// Returns all pages of the open screen. Lines that are on two pages occur twice.
fn page_through(terminal: &Terminal) -> String {
    let mut text = page(&terminal.screen());
    let last = "hoarding, growing.";
    while !page(&terminal.screen()).contains(last) {
        let before = page(&terminal.screen());
        terminal.send("\x1b[6~");
        terminal.wait_for(|screen| page(screen) != before, "the next page");
        text += &page(&terminal.screen());
    }
    text
}

/// Returns the screen without the header, which contains a moving clock.
fn page(screen: &vt100::Screen) -> String {
    let text = screen.contents();
    let lines = text.lines().skip(1).map(str::trim_end);
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn pcie_throughput_is_read_only_while_a_gpu_screen_is_open() {
    let fake = FakeNvml::new("[[gpu]]\n[[gpu]]\npcie_tx = 12000\npcie_rx = 345000\n");
    let terminal = dashboard(&fake).size(50, 200).start();
    terminal.wait_for(|s| gpu_shows(s, "1", &[]), "the overview");
    fake.wait_calls("six ticks", |calls| calls.on("memory", 1) >= 6);
    assert_eq!(fake.calls().of("pcie_throughput"), 0);
    assert_eq!(fake.calls().of("energy"), 0);
    terminal.send("j\r");
    terminal.wait_text("GPU 1  NVIDIA H200");
    terminal.wait_text("345 MB/s");
    terminal.wait_text("12 MB/s");
    let open = fake.wait_calls("a second reading", |c| c.on("pcie_throughput", 1) >= 4);
    assert_eq!(open.on("pcie_throughput", 0), 0, "GPU 0 is not shown");
    terminal.send(ESC);
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    // The worker is notified before its next tick, and makes no such calls from then on.
    let ticks = |calls: &crate::support::fake_nvml::Calls| calls.on("memory", 1);
    let closed = ticks(&fake.calls());
    let after = fake.wait_calls("two ticks", |calls| ticks(calls) >= closed + 2);
    // Longer than the period of these calls.
    let later = fake.wait_calls("twelve more ticks", |c| ticks(c) >= closed + 14);
    for call in ["pcie_throughput", "energy", "pcie_replays"] {
        assert_eq!(after.of(call), later.of(call), "{call}");
    }
}

const SECRET: &str = "8f2c41d0aa2bb7";

fn with_secrets(directory: &std::path::Path) -> RealProcess {
    let mut arguments = vec!["train.py", "--lr", "3e-4", "--api-key", SECRET];
    arguments.push("https://ana:pa55w0rd@data.example/set");
    RealProcess::with_arguments(arguments, |command| {
        command
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("PYTORCH_ALLOC_CONF", "expandable_segments:True")
            .env("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY")
            .env("MY_OWN_SETTING", "private-matter");
    })
}

const HIDDEN: [&str; 4] = [SECRET, "pa55w0rd", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY", "private-matter"];

#[test]
fn the_process_screen_shows_the_process_and_none_of_its_secrets() {
    if !is_host() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let process = with_secrets(directory.path());
    let fake = FakeNvml::new(&scenario_of(&process, ""));
    let terminal = dashboard(&fake).size(60, 200).start();
    // Its first row may be older than its data from the kernel.
    let row = |screen: &vt100::Screen| screen_tables::process(screen, process.pid());
    terminal.wait_for(|s| row(s).is_some_and(|row| row.cell("AGE") != "–"), "the process");
    terminal.send("G\r");
    terminal.wait_text("On the host");
    terminal.wait_text("expandable_segments:True");
    terminal.send("G");
    terminal.wait_for(|s| !s.contents().contains(" more"), "the end of the list");
    let mut text = terminal.text();
    terminal.send("g");
    terminal.wait_text("On the GPU");
    text += &terminal.text();
    // Ignore whitespace, because long lines are wrapped at the edge of the screen.
    let flat: String = text.split_whitespace().collect();
    let cwd = directory.path().display().to_string();
    let parents = format!("parents{}", std::process::id());
    for shown in [
        cwd.as_str(),
        &parents,
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "AWS_SECRET_ACCESS_KEY",
        "MY_OWN_SETTING",
        "--lr3e-4--api-key***",
        "https://***@data.example/set",
    ] {
        assert!(flat.contains(shown), "{shown}\n{text}");
    }
    terminal.send("\x03");
    terminal.wait_exit();
    let raw = String::from_utf8_lossy(&terminal.raw()).into_owned();
    for secret in HIDDEN {
        assert!(!raw.contains(secret) && !flat.contains(secret), "{secret}");
    }
}

#[test]
fn recording_and_json_contain_no_secrets() {
    if !is_host() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let process = with_secrets(directory.path());
    let fake = FakeNvml::new(&scenario_of(&process, ""));
    let file = directory.path().join("secrets.gpt.zst");
    let done = |args: &[&str]| {
        let outcome = run(&fake, args);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.out.into_bytes()
    };
    let path = file.to_str().unwrap();
    done(&["record", "--for", "1s", "-i", INTERVAL, "-o", path]);
    let bytes = std::fs::read(&file).unwrap();
    let recorded = zstd::stream::decode_all(&bytes[..]).unwrap();
    let printed = done(&["once", "--json"]);
    let csv = done(&["once", "--csv"]);
    for text in [bytes, recorded.clone(), printed.clone(), csv] {
        let text = String::from_utf8_lossy(&text);
        for secret in HIDDEN {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    // Not even the names of environment variables are recorded.
    for text in [recorded, printed] {
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("--api-key ***"), "{text}");
        assert!(!text.contains("AWS_SECRET_ACCESS_KEY"));
    }
}

#[test]
fn charts_begin_with_the_first_frame_and_zoom() {
    let fake = FakeNvml::new("[[gpu]]\nused = \"70 GiB\"");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("GPU 0 VRAM used");
    terminal.wait_text("-1m");
    for longer in ["-2m", "-3m", "-5m", "-10m"] {
        terminal.send("{");
        terminal.wait_text(longer);
    }
    terminal.send("}}}}");
    terminal.wait_text("-1m");
}
