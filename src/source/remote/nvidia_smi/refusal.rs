//! Replies to requests for a host that is read through `nvidia-smi`, which supports none of them.

use std::sync::Arc;

use crate::model::log::LogView;
use crate::model::probe::{Outcome, Probe};
use crate::model::reading::{Missing, Reason};
use crate::model::signal::Signalled;
use crate::model::text::visible;
use crate::protocol::{Request, Update};
use crate::source::remote::Target;

/// Returns the reply to a request that expects one.
pub(in super::super) fn refused(request: &Request, why: Missing) -> Option<Update> {
    Some(match request {
        Request::Detail(key) => Update::Detail(*key, Box::new(Err(why))),
        Request::Map(wanted) => Update::NoMap((*wanted)?, why),
        Request::Stacks(key) => Update::Stacks(*key, Arc::new(Err(why))),
        Request::Holders(wanted) => Update::Holders((*wanted)?, Arc::new(Err(why))),
        Request::Log(process) => Update::Log(Arc::new(LogView {
            process: *process,
            missing: Some(why),
            ..LogView::default()
        })),
        Request::Watch { process, .. } => Update::Watched(*process, Err(why)),
        Request::Signal { signal, processes } => {
            let outcomes = processes.iter().map(|key| (*key, Err(why.clone())));
            Update::Signalled(Signalled {
                signal: *signal,
                outcomes: outcomes.collect(),
            })
        }
        Request::Probe(request) => Update::Probed(Arc::new(Probe {
            gpu: request.gpu.clone(),
            outcome: Outcome::Refused,
            reason: Some(why.to_string()),
            ..Probe::default()
        })),
        Request::Focus(_) | Request::Interval(_) | Request::Connect | Request::Play(_) => {
            return None;
        }
    })
}

/// Returns the reason for missing data and actions. `other` is the version of a remote gputop with another protocol.
pub(in super::super) fn unavailable(target: &Target, other: Option<&str>) -> Missing {
    let name = visible(target.name().as_bytes(), 60);
    let own = env!("CARGO_PKG_VERSION");
    let hint = match (other, target) {
        (Some(other), _) => {
            format!(
                "{name} is read through nvidia-smi: gputop {other} on it uses another protocol than {own} on this host"
            )
        }
        (None, Target::Ssh(_)) => {
            format!("{name} has only nvidia-smi; `gputop --push {name}` copies gputop there")
        }
        (None, Target::Via(_) | Target::Slurm(_)) => {
            format!("{name} has only nvidia-smi; gputop is not installed there")
        }
    };
    Missing::new(Reason::Unsupported, hint)
}
