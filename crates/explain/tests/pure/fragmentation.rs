//! An out-of-memory error names fragmentation if the request would have fitted without it.

use gputop_explain::{Catalogue, explain};
use gputop_model::incident::{Cause, Incident, Verdict};

const EXPANDABLE: &str = "expandable_segments:True";

/// Memory in GiB, as PyTorch's message states it.
#[derive(Clone, Copy)]
struct Memory {
    requested: f64,
    total: f64,
    free: f64,
    allocated: f64,
    cached: f64,
}

/// The live tensors leave much free: 7.83 GiB would have fitted into 5.21 GiB free and 12.40 GiB cached.
const FRAGMENTED: Memory =
    Memory { requested: 7.83, total: 79.25, free: 5.21, allocated: 60.9, cached: 12.4 };
/// The same request on a larger GPU that live tensors nearly fill.
const ALSO_FULL: Memory = Memory { total: 139.8, allocated: 121.4, ..FRAGMENTED };

fn message(memory: Memory) -> String {
    let Memory { requested, total, free, allocated, cached } = memory;
    let process = total - free;
    format!(
        "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 180, in <module>\n    loss.backward()\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested:.2} GiB. GPU 0 has a total capacity of \
         {total:.2} GiB of which {free:.2} GiB is free. Including non-PyTorch memory, this process has {process:.2} GiB \
         memory in use. Of the allocated memory {allocated:.2} GiB is allocated by PyTorch, and {cached:.2} GiB is \
         reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
         PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
    )
}

fn first(log: &str) -> Incident {
    explain(Catalogue::embedded(), "x.log", log.as_bytes()).swap_remove(0)
}

/// Returns the evidence for fragmentation, if that is a likely cause.
fn fragmentation(incident: &Incident) -> Option<&Cause> {
    let mut causes = incident.causes.iter();
    causes.find(|cause| {
        ["fragmentation", "pieces"].contains(&cause.id.as_str()) && cause.verdict == Verdict::Likely
    })
}

fn offers(incident: &Incident, change: &str) -> bool {
    incident.fixes.iter().take(4).any(|fix| fix.change.contains(change))
}

#[track_caller]
fn assert_named(incident: &Incident, id: &str) {
    assert_eq!(incident.id, id);
    assert!(incident.title.contains("12.40 GiB"), "{}", incident.title);
    let cause = fragmentation(incident).expect("fragmentation is likely");
    assert_eq!(cause.r#for, ["5.21 GiB free + 12.40 GiB cached >= 7.83 GiB requested"]);
    assert!(offers(incident, EXPANDABLE), "{:#?}", incident.fixes);
    assert!(offers(incident, ".chunk("), "no smaller batch: {:#?}", incident.fixes);
}

#[test]
fn a_request_that_would_have_fitted_is_fragmentation() {
    assert_named(&first(&message(FRAGMENTED)), "oom-fragmentation");
}

#[test]
fn capacity_and_fragmentation_are_named_together_if_live_tensors_fill_the_gpu() {
    let incident = first(&message(ALSO_FULL));
    assert_named(&incident, "oom-capacity");
    assert!(incident.title.contains("without fragmentation"), "{}", incident.title);
    let activations = incident.causes.iter().find(|cause| cause.id == "activations");
    assert_eq!(activations.map(|cause| cause.verdict), Some(Verdict::Likely));
}

#[test]
fn other_out_of_memory_errors_name_fragmentation_too() {
    let in_optimizer = message(ALSO_FULL).replace("loss.backward()", "optimizer.step()");
    let evaluates = message(ALSO_FULL).replace("in <module>", "in evaluate");
    for (log, id) in [(in_optimizer, "oom-first-step-states"), (evaluates, "oom-eval-no-grad")] {
        let incident = first(&log);
        assert_eq!(incident.id, id);
        assert!(incident.title.contains("12.40 GiB was cached in pieces"), "{}", incident.title);
        assert!(fragmentation(&incident).is_some(), "{:#?}", incident.causes);
        assert!(incident.fixes.iter().any(|fix| fix.change.contains(EXPANDABLE)), "{id}");
    }
}

#[test]
fn a_request_larger_than_free_and_cached_memory_is_not_fragmentation() {
    let incident = first(&message(Memory { requested: 17.62, ..FRAGMENTED }));
    assert_eq!(incident.id, "oom-capacity");
    assert_eq!(fragmentation(&incident), None);
    assert!(!incident.title.contains("fragmentation"), "{}", incident.title);
    assert!(!offers(&incident, EXPANDABLE), "{:#?}", incident.fixes);
}

/// The driver refused a request although it had enough memory, so fragments of the cache are not the reason.
#[test]
fn enough_free_memory_is_not_fragmentation() {
    let incident = first(&message(Memory { requested: 2.0, ..FRAGMENTED }));
    assert_eq!(incident.id, "oom-memory-fraction-limit");
    assert_eq!(fragmentation(&incident), None);
}

/// Memory beyond the process's limit does not count as free.
#[test]
fn a_memory_fraction_limits_what_is_free() {
    let log = |allowed: &str| {
        format!(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB (GPU 0; 79.25 GiB total capacity; \
             30.00 GiB already allocated; 40.00 GiB free; {allowed} GiB allowed; 34.00 GiB reserved in total by PyTorch)\n"
        )
    };
    let incident = first(&log("35.00"));
    assert_eq!(incident.id, "oom-memory-fraction-limit");
    assert_eq!(fragmentation(&incident), None, "{:#?}", incident.causes);
    let incident = first(&log("37.00"));
    let cause = fragmentation(&incident).expect("3 GiB below the limit and 4 GiB cached");
    assert_eq!(cause.r#for, ["3.00 GiB free + 4.00 GiB cached >= 6.00 GiB requested"]);
}

/// Free blocks of a private pool serve only its graphs, and expandable segments do not change that.
#[test]
fn private_pools_do_not_count_as_fragments() {
    let pools =
        "is allocated by PyTorch, with 30.00 GiB allocated in private pools (e.g., CUDA Graphs),";
    let log = message(ALSO_FULL).replace("is allocated by PyTorch,", pools);
    let incident = first(&log);
    assert_eq!(fragmentation(&incident), None, "{:#?}", incident.causes);
    assert!(!offers(&incident, EXPANDABLE), "{:#?}", incident.fixes);
}

#[test]
fn expandable_segments_are_offered_only_where_they_are_missing_and_exist() {
    let log = message(FRAGMENTED);
    for set in [
        "$ PYTORCH_ALLOC_CONF=expandable_segments:True python train.py\n",
        "$ PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True python train.py\n",
        "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\"\n",
    ] {
        let incident = first(&format!("{set}{log}"));
        assert_eq!(incident.id, "oom-fragmentation", "{set}");
        assert!(!offers(&incident, EXPANDABLE), "{set}: {:#?}", incident.fixes);
        assert!(!offers(&incident, "max_split_size_mb"), "{set}: {:#?}", incident.fixes);
    }
    for other in [
        log.replace("/home/ana/train.py", "C:\\\\Users\\\\ana\\\\train.py"),
        log.replace("CUDA out of memory", "HIP out of memory"),
    ] {
        assert!(!offers(&first(&other), EXPANDABLE), "{other}");
    }
}
