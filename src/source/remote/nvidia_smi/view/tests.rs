use super::super::lines::{ScriptLine, SmiLines};
use super::*;
use gputop_model::gpu::Throttle;
use gputop_model::units::{Bytes, Percent, UnixMillis};
use proptest::prelude::*;

const FACTS: &str = "N node\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\nF \"name\"\n\
         F \"memory.total\"\nF \"memory.used\"\nF \"memory.free\"\nF \"clocks_throttle_reasons.active\"\n.\n";

fn frames(text: &str) -> Vec<Frame> {
    let mut view = View::new(Missing::new(Reason::Unsupported, "unavailable"));
    let mut lines = SmiLines::default();
    let mut frames = Vec::new();
    for line in text.lines() {
        match lines.take(line.as_bytes()) {
            Some(ScriptLine::Facts(facts)) => drop(view.hello(*facts)),
            Some(ScriptLine::Round(round)) => frames.push(view.frame(&round, Millis(1_000))),
            Some(ScriptLine::Details(details)) => view.take(&details),
            Some(ScriptLine::Clocks(clocks)) => {
                frames.push(view.silent(clocks, Duration::from_secs(7), Millis(1_000)));
            }
            None => {}
        }
    }
    frames
}

#[test]
fn a_round_becomes_a_frame_with_kernel_process_data() {
    let round = |number: u32, up: &str, ticks: u32| {
        format!(
            "b {number}\nu {up} 1763668000\nm MemTotal:  1000 kB\nm MemAvailable:  400 kB\nc cpu  {ticks} 0 0 100 0 0 0 0\n\
                 l 0.20 0.18 0.12 1/80 9\ng 0, GPU-1, NVIDIA H200, 143771, 1551, 141606, 0x0000000000000044\ng a warning\n\
                 g 1, GPU-2, NVIDIA H200, 100, 200, [N/A], [Not Supported]\ne 0\na GPU-1, 426, 1542, python3\n\
                 a GPU-1, 427, [N/A], [Not Found]\nd 0\n\
                 s 426 (python3) R 1 1 1 0 1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 50000 100 256\n\
                 p   426 ana      python3 train.py --api-key x8f2c\n. {number}\n"
        )
    };
    let text = FACTS.to_owned() + &round(1, "1000.00", 100) + &round(2, "1002.00", 200);
    let frames = frames(&(text + "h 1010.00 1763668010\n"));
    let [first, second, silent] = &frames[..] else {
        panic!("{}", frames.len());
    };
    let [gpu, other] = &second.gpus[..] else {
        panic!("{:?}", second.gpus);
    };
    assert_eq!(gpu.memory.used.get(), Some(Bytes::mib(1_551)));
    assert_eq!(gpu.throttle.value(), Some(&vec![Throttle::SwPowerCap, Throttle::HwThermal]));
    assert_eq!(
        gpu.power.why().map(ToString::to_string).as_deref(),
        Some("not supported by the nvidia-smi on that host")
    );
    // The script reports more used memory than the GPU has.
    assert_eq!(other.memory.used.why().map(|why| why.reason), Some(Reason::Implausible));
    let listed = gpu.processes.value().map(Vec::as_slice).unwrap_or_default();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].vram.get(), Some(Bytes::mib(1_542)));
    assert_eq!(
        listed[0].sm.why().map(ToString::to_string).as_deref(),
        Some("not read yet; queried through nvidia-smi every few seconds")
    );
    let known = second.process(listed[0].key()).expect("it is known");
    assert_eq!(
        (known.name.as_str(), known.user.value().map(String::as_str)),
        ("python3", Some("ana"))
    );
    assert_eq!(known.command.value().map(String::as_str), Some("python3 train.py --api-key ***"));
    // The process used 100 CPU ticks in 2 s.
    assert_eq!((known.cpu.get(), known.rss.get()), (Some(Percent(50.0)), Some(Bytes(256 * 4096))));
    // The process started 500 s after boot, which was 1002 s before this round.
    assert_eq!(known.started, UnixMillis((1_763_668_000 - 502) * 1_000));
    let host = second.host.as_ref().expect("a host");
    assert_eq!(
        (host.memory_used.get(), host.cpu.get()),
        (Some(Bytes(600 << 10)), Some(Percent(100.0)))
    );
    assert_eq!(first.host.as_ref().and_then(|host| host.cpu.get()), None);
    assert_eq!(second.pools.as_ref().map(|pools| pools.unread.len()), Some(2));
    // If no new readings arrived, keep the previous data and its original time.
    assert_eq!((silent.seq, silent.mono), (3, Mono(1_010_000)));
    assert_eq!(silent.gpus[0].at, Mono(1_002_000));
    assert_eq!(silent.gpus[0].health.state, HealthState::Silent);
    assert_eq!(silent.gpus[0].health.since, Some(Mono(1_003_000)));
}

#[test]
fn later_frames_contain_the_details() {
    let facts = FACTS.trim_end_matches(".\n").to_owned()
        + "F \"mig.mode.current\"\nV CUDA Version        : 13.0\n.\n";
    let round = |number: u32| {
        format!(
            "b {number}\nu 100{number}.00 1763668000\ng 0, GPU-1, NVIDIA H200, 143771, 1551, 141606, 0x0, Disabled\n\
                 g 1, GPU-2, NVIDIA H200, 143771, 1551, 141606, 0x0, Enabled\ne 0\na GPU-1, 426, 1542, python3\n\
                 a GPU-2, 430, 1542, python3\nd 0\ns 77 (Xorg) S 1 1 1 0 1 0 0 0 0 0 5 0 0 0 20 0 1 0 50 100 256\n. {number}\n"
        )
    };
    let details = "i 2\nt # gpu pid type sm mem fb command\nt 0 426 C 91 30 1542 python3\nt 0 77 G - - 624 Xorg\n\
                       v GPU 1: NVIDIA H200 (UUID: GPU-2)\nv   MIG 3g.71gb     Device  0: (UUID: MIG-7)\n\
                       w |  1    2   0   0  |   142MiB / 72448MiB    | 56 |\n; 2\n";
    let frames = frames(&(facts + &round(1) + details + &round(3)));
    let [before, after] = &frames[..] else {
        panic!("{}", frames.len());
    };
    let cuda = before.driver.as_ref().and_then(|driver| driver.cuda.value());
    assert_eq!(cuda.map(String::as_str), Some("13.0"));
    assert_eq!(before.gpus[0].processes.value().map(Vec::len), Some(1));
    assert!(before.gpus[1].mig.is_empty());
    let [python, xorg] = &after.gpus[0].processes.value().expect("a list")[..] else {
        panic!("{:?}", after.gpus[0].processes);
    };
    assert_eq!(
        (python.sm.get(), python.memory_bandwidth.get()),
        (Some(Percent(91.0)), Some(Percent(30.0)))
    );
    assert_eq!((xorg.kind, xorg.vram.get()), (ContextKind::Graphics, Some(Bytes::mib(624))));
    let known = after.process(xorg.key()).expect("it is known");
    assert_eq!((known.name.as_str(), known.key.start.0), ("Xorg", 50));
    let unread = after.pools.as_ref().map(|pools| pools.unread.len());
    assert_eq!(unread, Some(2), "graphics-only processes have no allocator");
    assert_eq!(after.gpus[0].utilization_at, Some(Mono(1_001_000)));
    let [instance] = &after.gpus[1].mig[..] else {
        panic!("{:?}", after.gpus[1].mig);
    };
    assert_eq!((&*instance.uuid.0, instance.memory.used.get()), ("MIG-7", Some(Bytes::mib(142))));
    let inside = &after.gpus[1].processes.value().expect("a list")[0];
    assert_eq!(
        inside.sm.why().map(ToString::to_string).as_deref(),
        Some("MIG is on: nvidia-smi does not report usage per instance")
    );
}

#[test]
fn ignores_driver_pids_in_a_container() {
    let text = FACTS.replace("4026531836", "4026532541")
        + "b 1\nu 1.0 1\ng 0, GPU-1, H200, 1, 1, 0, 0x0\ne 0\na GPU-1, 1, 1, x\nd 0\n\
               s 1 (init) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 1 1 1\n. 1\n";
    let frame = frames(&text).pop().expect("a frame");
    let listed = frame.gpus[0].processes.value().expect("a list");
    assert_eq!(listed[0].process, None);
    assert!(frame.processes.is_some_and(|processes| processes.list.is_empty()));
}

proptest! {
    #[test]
    fn no_line_of_a_round_causes_a_panic(lines: Vec<(prop::sample::Index, String)>) {
        let mut text = FACTS.to_owned() + "b 1\ni 1\n";
        for (kind, line) in lines {
            let kind = char::from(*kind.get(b"umclgeadsptvw"));
            text += &format!("{kind} {}\n", line.replace('\n', " "));
        }
        frames(&(text + "; 1\n. 1\n"));
    }
}
