//! Adds pools reported by the hook inside a program, unless gputop has read the same pool from the process's memory.

use std::sync::Arc;

use gputop_model::{Pool, Pools, Unread};

use crate::collect::hook::ReportedPools;

pub fn merge(pools: Pools, reported: &ReportedPools) -> Pools {
    let unread = |pool: &&Pool| pools.why_unread(pool.process).is_some();
    let list = pools.list.iter().chain(reported.torch.iter().filter(unread));
    let is_reported = |unread: &Unread| {
        let by_torch = reported.torch.iter().map(|pool| pool.process);
        let by_others = reported.others.iter().map(|pool| pool.process);
        by_torch.chain(by_others).any(|key| key == unread.process)
    };
    Pools {
        list: Arc::new(list.cloned().collect()),
        unread: Arc::new(pools.unread.iter().filter(|u| !is_reported(u)).cloned().collect()),
        reported: Arc::new(reported.others_beside(&pools.reported)),
        ..pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::process::ProcessKey;
    use gputop_model::reported_pool::{Framework, PoolSource, ReportedPool};

    #[test]
    fn prefers_read_pools_over_reported_ones() {
        let key = |pid| ProcessKey::new(pid, 1);
        let pool = |pid, library: &str| Pool {
            process: key(pid),
            library: library.to_owned(),
            ..Pool::default()
        };
        let unread = |pid| Unread { process: key(pid), ..Unread::default() };
        let pools = Pools {
            list: Arc::new(vec![pool(1, "read")]),
            unread: Arc::new(vec![unread(2), unread(3), unread(4)]),
            ..Pools::default()
        };
        let reported = ReportedPools {
            torch: vec![pool(1, "reported"), pool(2, "reported")],
            others: vec![ReportedPool { process: key(3), ..ReportedPool::default() }],
        };
        let all = merge(pools, &reported);
        let list: Vec<(u32, &str)> =
            all.list.iter().map(|pool| (pool.process.pid.0, pool.library.as_str())).collect();
        assert_eq!(list, [(1, "read"), (2, "reported")]);
        assert_eq!(all.reported.len(), 1);
        let unread: Vec<u32> = all.unread.iter().map(|one| one.process.pid.0).collect();
        assert_eq!(unread, [4]);
    }

    #[test]
    fn a_pool_that_was_read_replaces_the_one_from_the_hook() {
        let pool = |ordinal, framework, source| ReportedPool {
            ordinal,
            framework,
            source,
            ..ReportedPool::default()
        };
        let read = [pool(0, Framework::Jax, PoolSource::Memory)];
        let hook = [
            pool(0, Framework::Jax, PoolSource::Hook),
            pool(1, Framework::Jax, PoolSource::Hook),
            pool(0, Framework::Cupy, PoolSource::Hook),
        ];
        let reported = ReportedPools { others: hook.to_vec(), ..ReportedPools::default() };
        assert_eq!(reported.others_beside(&read), [&read[..], &hook[1..]].concat());
    }
}
