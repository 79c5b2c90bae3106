use std::time::Duration;

use gputop_model::event::{Event, LogExcerpt};
use gputop_model::process::ProcessKey;
use gputop_model::units::Mono;

use super::*;

fn log_update(pid: u32, text: &str) -> Update {
    Update::Event(Event {
        mono: Mono(u64::from(pid)),
        process: Some(ProcessKey::new(pid, 1)),
        observation: Observation::Log(Box::new(LogExcerpt {
            text: text.to_owned(),
            ..LogExcerpt::default()
        })),
        ..Event::default()
    })
}

fn ids(found: &[WatchResult]) -> Vec<&str> {
    let incidents = found.iter().filter_map(|found| match found {
        WatchResult::Incident(record) => Some(record.incident.id.as_str()),
        WatchResult::Error(_) => None,
    });
    incidents.collect()
}

const FAILED: &str = "CUDA error: device-side assert triggered\n";

#[test]
fn a_multibyte_name_does_not_stop_the_diagnosis() {
    let name = "é".repeat(300);
    let xid = format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a{name}, MMU Fault\n");
    let watcher = Watcher::start(None).expect("a thread");
    watcher.see(&log_update(418, &xid));
    watcher.see(&log_update(419, FAILED));
    let found = watcher.finish(Duration::from_secs(60));
    assert_eq!(ids(&found), ["xid-31-mmu-fault", "assert-unknown-device-side"]);
}

#[test]
fn a_slow_diagnosis_fills_the_backlog_until_it_continues() {
    let watcher = Watcher::start(None).expect("a thread");
    let lock = diagnosis_lock();
    for pid in 0..9 {
        watcher.see(&log_update(pid, &"x".repeat(1 << 20)));
    }
    assert!(watcher.backlog().is_full());
    drop(lock);
    watcher.backlog().wait();
}

#[test]
fn reads_the_failing_function_of_a_program_on_this_machine() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("evaluate.py");
    let source = "def evaluate(net, batches):\n    outputs = []\n    for batch in batches:\n        \
                      output = net(batch)\n        outputs.append(output)\n";
    std::fs::write(&file, source).expect("a file");
    let log = format!(
        "Traceback (most recent call last):\n  File \"{}\", line 4, in evaluate\n    output = net(batch)\n\
             torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of \
             79.18 GiB of which 168.19 MiB is free. Including non-PyTorch memory, this process has 79.01 GiB memory in \
             use. Of the allocated memory 78.34 GiB is allocated by PyTorch, and 960.00 KiB is reserved by PyTorch but \
             unallocated.\n",
        file.display()
    );
    let evidence = |boot_id: &str| {
        let watcher = Watcher::start(None).expect("a thread");
        let boot_id = boot_id.trim().to_owned();
        watcher.see(&Update::Hello(Arc::new(Hello { boot_id, ..Hello::default() })));
        watcher.see(&log_update(418, &log));
        let found = watcher.finish(Duration::from_secs(60));
        let Some(WatchResult::Incident(record)) = found.last() else {
            panic!("no incident: {found:?}");
        };
        record.incident.causes.iter().flat_map(|cause| cause.r#for.clone()).collect::<String>()
    };
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot ID");
    assert!(evidence(&own).contains("outputs.append(output)"), "{}", evidence(&own));
    assert!(!evidence("another machine").contains("outputs.append(output)"));
}

#[test]
fn continues_after_a_panic_and_reports_it_once() {
    let (report, mut found) = result_channel();
    let mut thread = Thread::new(None, Arc::default(), report, Observer::default());
    for _ in 0..2 {
        let records: Vec<Record> = thread.with_restart(|_| panic!("injected"));
        assert!(records.is_empty());
    }
    let Ok(WatchResult::Error(why)) = found.try_next() else {
        panic!("nothing was reported");
    };
    assert!(why.starts_with("diagnosis restarted: injected"), "{why}");
    assert!(found.try_next().is_err(), "reported twice");
    let input = WatchInput::Update(log_update(419, FAILED));
    assert_eq!(thread.with_restart(|thread| thread.handle(input)).len(), 1);
}
