//! What is asked of a host that only `nvidia-smi` speaks for: none of it can be done.

use std::sync::Arc;

use crate::model::log::LogView;
use crate::model::probe::{Outcome, Probe};
use crate::model::reading::{Missing, Reason};
use crate::model::signal::Signalled;
use crate::model::text::visible;
use crate::source::remote::Target;
use crate::source::{Request, Update};

/// The answer to a request that wants one.
pub(in super::super) fn refused(request: &Request, why: Missing) -> Option<Update> {
    Some(match request {
        Request::Detail(key) => Update::Detail(*key, Box::new(Err(why))),
        Request::Map(wanted) => Update::NoMap((*wanted)?, why),
        Request::Stacks(key) => Update::Stacks(*key, Arc::new(Err(why))),
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
        Request::Probe(wish) => Update::Probed(Arc::new(Probe {
            gpu: wish.gpu.clone(),
            outcome: Outcome::Refused,
            reason: Some(why.to_string()),
            ..Probe::default()
        })),
        Request::Focus(_) | Request::Interval(_) | Request::Connect | Request::Play(_) => {
            return None;
        }
    })
}

/// Why a thing is not known or done there. `other` is the version of a gputop there that speaks another protocol.
pub(in super::super) fn untold(target: &Target, other: Option<&str>) -> Missing {
    let name = visible(target.name().as_bytes(), 60);
    let own = env!("CARGO_PKG_VERSION");
    let hint = match (other, target) {
        (Some(other), _) => {
            format!(
                "nvidia-smi alone tells of {name}; gputop {other} there is of another protocol than {own} here"
            )
        }
        (None, Target::Ssh(_)) => {
            format!("nvidia-smi alone tells of {name}; `gputop --push {name}` copies gputop there")
        }
        (None, Target::Via(_) | Target::Slurm(_)) => {
            format!("nvidia-smi alone tells of {name}; there is no gputop there")
        }
    };
    Missing::new(Reason::Unsupported, hint)
}
