//! What programs tell of their own pools by the hook inside them: of PyTorch's where nobody may read them, better than
//! nothing; of other frameworks' always, since nobody reads those.

use std::sync::Arc;

use crate::collect::hook::ToldPools;
use crate::model::pool::{Pool, Pools, Unread};

/// What was read, of what could not be what was told, and the pools that are only ever told of.
pub fn added(pools: Pools, told: &ToldPools) -> Pools {
    let unread = |pool: &&Pool| pools.why_unread(pool.process).is_some();
    let list = pools.list.iter().chain(told.torch.iter().filter(unread));
    let is_told = |unread: &Unread| {
        let by_torch = told.torch.iter().map(|pool| pool.process);
        let by_others = told.others.iter().map(|pool| pool.process);
        by_torch.chain(by_others).any(|key| key == unread.process)
    };
    Pools {
        list: Arc::new(list.cloned().collect()),
        unread: Arc::new(
            pools
                .unread
                .iter()
                .filter(|u| !is_told(u))
                .cloned()
                .collect(),
        ),
        reported: Arc::new(told.others.clone()),
        ..pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::process::ProcessKey;
    use crate::model::reported_pool::ReportedPool;
    use crate::model::units::{Pid, StartTicks};

    #[test]
    fn what_was_read_comes_before_what_was_told() {
        let key = |pid| ProcessKey {
            pid: Pid(pid),
            start: StartTicks(1),
        };
        let pool = |pid, library: &str| Pool {
            process: key(pid),
            library: library.to_owned(),
            ..Pool::default()
        };
        let unread = |pid| Unread {
            process: key(pid),
            ..Unread::default()
        };
        let pools = Pools {
            list: Arc::new(vec![pool(1, "read")]),
            unread: Arc::new(vec![unread(2), unread(3), unread(4)]),
            ..Pools::default()
        };
        let told = ToldPools {
            torch: vec![pool(1, "told"), pool(2, "told")],
            others: vec![ReportedPool {
                process: key(3),
                ..ReportedPool::default()
            }],
        };
        let all = added(pools, &told);
        let list: Vec<(u32, &str)> = all
            .list
            .iter()
            .map(|pool| (pool.process.pid.0, pool.library.as_str()))
            .collect();
        assert_eq!(list, [(1, "read"), (2, "told")]);
        assert_eq!(all.reported.len(), 1);
        let unread: Vec<u32> = all.unread.iter().map(|one| one.process.pid.0).collect();
        assert_eq!(unread, [4]);
    }
}
