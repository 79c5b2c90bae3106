//! Evidence from the figures that PyTorch puts into its out-of-memory text.
//!
//! `REQ` is the segment that PyTorch asked the driver for; what it says is reserved but unallocated is what was left
//! after it had given every whole free segment back (CUDACachingAllocator.cpp: the message is built after the
//! flush), so it lies in pieces beside live tensors.

use super::{Case, Evidence, Finding};
use crate::model::units::Bytes;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// What a CUDA context and its libraries take, at most, where the text does not say (518 MiB on an H200 with torch
/// 2.11, more with cuDNN and NCCL loaded).
const CONTEXT: u64 = GIB;

pub(super) const EVIDENCE: &[Evidence] = &[
    Evidence {
        name: "no-sizes",
        judge: no_sizes,
    },
    Evidence {
        name: "over-limit",
        judge: over_limit,
    },
    Evidence {
        name: "free-memory-suffices",
        judge: free_suffices,
    },
    Evidence {
        name: "cache-suffices",
        judge: holes_suffice,
    },
    Evidence {
        name: "cache-nearly-suffices",
        judge: holes_nearly,
    },
    Evidence {
        name: "free-and-cached-too-small",
        judge: compaction_fails,
    },
    Evidence {
        name: "other-processes-hold-most",
        judge: others_hold,
    },
    Evidence {
        name: "fits-without-other-processes",
        judge: others_share,
    },
    Evidence {
        name: "non-pytorch-large",
        judge: non_pytorch,
    },
    Evidence {
        name: "mostly-non-pytorch",
        judge: non_pytorch_most,
    },
    Evidence {
        name: "private-pools",
        judge: private_pools,
    },
    Evidence {
        name: "request-large",
        judge: request_large,
    },
    Evidence {
        name: "request-exceeds-gpu",
        judge: request_beyond_card,
    },
    Evidence {
        name: "request-absurd",
        judge: request_absurd,
    },
    Evidence {
        name: "oversubscribed",
        judge: oversubscribed,
    },
    Evidence {
        name: "not-attributable",
        judge: not_attributable,
    },
    Evidence {
        name: "mig-device",
        judge: mig,
    },
    Evidence {
        name: "live-tensors-fill-gpu",
        judge: live_tensors_fill,
    },
    Evidence {
        name: "gpu-full",
        judge: card_full,
    },
];

/// The figures by their short names; each only where the text holds it.
pub(super) struct Oom {
    pub(super) req: Option<u64>,
    /// What was wanted is not known, but that it is more than this.
    over: Option<u64>,
    tot: Option<u64>,
    free: Option<u64>,
    pub(super) al: Option<u64>,
    /// Reserved and in no tensor.
    ru: Option<u64>,
    lim: Option<u64>,
    this: Option<u64>,
    pp: Option<u64>,
    others: u64,
}

impl Oom {
    pub(super) fn of(case: &Case<'_>) -> Self {
        let get = |name: &str| case.found.get(name).and_then(serde_json::Value::as_u64);
        let al = get("allocated_bytes");
        let others = case.found.get("other_processes").and_then(|o| o.as_array());
        let others = others.map_or(0, |all| {
            let bytes = all.iter().filter_map(|p| p["bytes"].as_u64());
            bytes.fold(0, u64::saturating_add)
        });
        let req = get("requested_bytes");
        Self {
            req,
            over: case
                .measured
                .wanted_over
                .map(|b| b.0)
                .filter(|_| req.is_none()),
            tot: get("total_bytes"),
            free: get("free_bytes"),
            al,
            ru: get("reserved_unallocated_bytes")
                .or_else(|| Some(get("reserved_bytes")?.saturating_sub(al?))),
            lim: get("allowed_bytes"),
            this: get("process_bytes"),
            pp: get("private_pool_bytes"),
            others,
        }
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.al?.saturating_add(self.ru?))
    }

    /// Used, and by nobody the text names.
    fn unseen(&self) -> Option<u64> {
        let this = match self.this {
            // Where the driver cannot tell, the text says 0 bytes.
            Some(this) => this.max(self.reserved().or(self.al).unwrap_or(0)),
            None => self.reserved().or(self.al)?.saturating_add(CONTEXT),
        };
        let known = self.free?.saturating_add(this).saturating_add(self.others);
        Some(self.tot?.saturating_sub(known))
    }

    /// Held by others, named or not.
    fn elsewhere(&self) -> Option<u64> {
        Some(self.others.saturating_add(self.unseen()?))
    }
}

fn when(holds: Option<bool>, says: impl FnOnce() -> Option<String>) -> Finding {
    match holds {
        Some(true) => says().map_or(Finding::Silent, Finding::For),
        _ => Finding::Silent,
    }
}

fn b(bytes: u64) -> Bytes {
    Bytes(bytes)
}

fn no_sizes(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let none = oom.req.is_none() && oom.al.is_none() && oom.tot.is_none();
    when(Some(none), || {
        Some("the message contains no memory figures".into())
    })
}

fn over_limit(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    when(Some(oom.lim.is_some()), || {
        let lim = oom.lim?;
        Some(match oom.free {
            Some(free) => format!(
                "the limit for this process is {}, while {} was free on the GPU",
                b(lim),
                b(free)
            ),
            None => format!("the limit for this process is {}", b(lim)),
        })
    })
}

/// Free memory that would have done; crumbs on a full card are none.
fn free_suffices(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let enough = oom
        .req
        .zip(oom.free)
        .map(|(req, free)| free >= req && free >= 100 * MIB);
    when(enough, || {
        Some(format!(
            "{} was free, enough for the {} requested",
            b(oom.free?),
            b(oom.req?)
        ))
    })
}

/// The holes alone would do, and are a share of the cache that is worth a change.
fn fragmented(oom: &Oom) -> Option<bool> {
    let (req, ru) = (oom.req.or(oom.over)?, oom.ru?);
    Some(ru >= req && ru.saturating_mul(4) >= oom.reserved()?)
}

fn holes_suffice(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    match fragmented(&oom) {
        Some(true) => when(Some(true), || {
            let (cached, requested) = (b(oom.ru?), oom.req.map(b));
            Some(match requested {
                Some(requested) => {
                    format!("{cached} cached in fragments, {requested} requested")
                }
                None => format!(
                    "{cached} cached in fragments, more than {} requested",
                    b(oom.over?)
                ),
            })
        }),
        _ => compaction_fails_against(&oom),
    }
}

/// Even one perfect piece would not have been enough.
fn compaction_fails_against(oom: &Oom) -> Finding {
    let (Some(req), Some(ru)) = (oom.req, oom.ru) else {
        return Finding::Silent;
    };
    let sum = ru.saturating_add(oom.free.unwrap_or(0));
    if oom.free.is_some() && sum < req {
        return Finding::Against(format!(
            "all free and cached memory, {}, is less than the {} requested",
            b(sum),
            b(req)
        ));
    }
    Finding::Silent
}

fn holes_nearly(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let (Some(req), Some(ru)) = (oom.req, oom.ru) else {
        return Finding::Silent;
    };
    if ru >= req / 2 && fragmented(&oom) == Some(false) {
        return Finding::Hint(format!(
            "{} cached in fragments, {} requested",
            b(ru),
            b(req)
        ));
    }
    Finding::Silent
}

fn compaction_fails(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let (Some(req), Some(free), Some(ru)) = (oom.req, oom.free, oom.ru) else {
        return Finding::Silent;
    };
    if free.saturating_add(ru) < req {
        Finding::For(format!(
            "{} free + {} cached < {} requested",
            b(free),
            b(ru),
            b(req)
        ))
    } else {
        Finding::Silent
    }
}

fn others_words(oom: &Oom) -> Option<String> {
    let unseen = oom.unseen()?;
    let tot = oom.tot?;
    Some(match (oom.others, unseen) {
        (0, unseen) => format!(
            "the message does not attribute {} of {} to any process",
            b(unseen),
            b(tot)
        ),
        (others, unseen) if unseen < GIB => {
            format!("other processes hold {} of {}", b(others), b(tot))
        }
        (others, unseen) => {
            format!(
                "other processes hold {}, and {} of {} is unattributed",
                b(others),
                b(unseen),
                b(tot)
            )
        }
    })
}

/// Most of the card is somebody else's.
fn others_hold(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let Some((elsewhere, tot)) = oom.elsewhere().zip(oom.tot) else {
        return Finding::Silent;
    };
    if elsewhere > tot / 2 {
        return when(Some(true), || others_words(&oom));
    }
    Finding::Silent
}

/// Without the others it would have fitted.
fn others_share(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let (Some(elsewhere), Some(tot), Some(req), Some(free)) =
        (oom.elsewhere(), oom.tot, oom.req, oom.free)
    else {
        return Finding::Silent;
    };
    let short = req.saturating_sub(free.saturating_add(oom.ru.unwrap_or(0)));
    if elsewhere >= short.max(1) && elsewhere > tot / 20 {
        return when(Some(true), || others_words(&oom));
    }
    Finding::Against(format!(
        "other processes hold {} of {}",
        b(elsewhere),
        b(tot)
    ))
}

fn non_pytorch(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let Some((this, reserved)) = oom.this.zip(oom.reserved()) else {
        return Finding::Silent;
    };
    let outside = this.saturating_sub(reserved);
    if outside >= GIB {
        Finding::Hint(format!("{} of this process is outside PyTorch", b(outside)))
    } else {
        Finding::Against(format!(
            "only {} of this process is outside PyTorch",
            b(outside)
        ))
    }
}

/// More than half of the card is this process's, and not PyTorch's.
fn non_pytorch_most(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let outside = || Some(oom.this?.saturating_sub(oom.reserved()?));
    let most = outside()
        .zip(oom.tot)
        .map(|(outside, tot)| outside > tot / 2);
    when(most, || {
        Some(format!(
            "{} of this process is outside PyTorch",
            b(outside()?)
        ))
    })
}

fn private_pools(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let large = oom
        .pp
        .zip(oom.al)
        .map(|(pp, al)| pp.saturating_mul(10) >= al && pp >= 64 * MIB);
    when(large, || {
        Some(format!("{} is in private pools (CUDA graphs)", b(oom.pp?)))
    })
}

fn request_large(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let large = oom.req.zip(oom.tot).map(|(req, tot)| req > tot / 4);
    when(large, || {
        Some(format!(
            "{} was requested in one block, and a quarter of the GPU is {}",
            b(oom.req?),
            b(oom.tot? / 4)
        ))
    })
}

fn request_beyond_card(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    when(oom.req.zip(oom.tot).map(|(req, tot)| req > tot), || {
        Some(format!(
            "{} was requested, but the GPU has only {}",
            b(oom.req?),
            b(oom.tot?)
        ))
    })
}

fn request_absurd(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    if case.context.contains("more than 1EB memory") {
        return Finding::For("more than 1 EB was requested".into());
    }
    when(oom.req.zip(oom.tot).map(|(req, tot)| req / 4 > tot), || {
        Some(format!(
            "{} was requested, more than four times the GPU's {}",
            b(oom.req?),
            b(oom.tot?)
        ))
    })
}

fn oversubscribed(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    when(oom.al.zip(oom.tot).map(|(al, tot)| al > tot), || {
        Some(format!(
            "{} is allocated on a GPU with {}",
            b(oom.al?),
            b(oom.tot?)
        ))
    })
}

fn not_attributable(case: &Case<'_>) -> Finding {
    let holds = case.context.contains("17179869184.00 GiB");
    when(Some(holds), || {
        Some("17179869184.00 GiB means that the driver cannot attribute the memory".into())
    })
}

/// `MIG-<uuid>` or `MIG 1g.10gb`; nvidia-smi's own header says MIG on every card.
fn mig(case: &Case<'_>) -> Finding {
    let mut after = case
        .context
        .match_indices("MIG")
        .map(|(at, _)| &case.context.as_bytes()[at + 3..]);
    let is_device = |rest: &[u8]| match rest {
        [b'-', uuid @ ..] => uuid.len() >= 8 && uuid[..8].iter().all(u8::is_ascii_hexdigit),
        [b' ', slices, b'g', ..] => slices.is_ascii_digit(),
        _ => false,
    };
    when(Some(after.any(is_device)), || {
        Some("the log names a MIG device".into())
    })
}

fn live_tensors_fill(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    let Some((al, tot)) = oom.al.zip(oom.tot) else {
        return Finding::Silent;
    };
    if al > tot / 100 * 85 {
        Finding::For(format!("live tensors hold {} of {}", b(al), b(tot)))
    } else {
        Finding::Silent
    }
}

fn card_full(case: &Case<'_>) -> Finding {
    let oom = Oom::of(case);
    when(oom.free.map(|free| free < 100 * MIB), || {
        Some(format!("only {} was free on the GPU", b(oom.free?)))
    })
}
