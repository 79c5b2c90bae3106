//! The pools of processes that nobody may read, by what the hook inside them tells: better than nothing, and marked.

use std::sync::Arc;

use crate::model::pool::{Pool, Pools, Unread};

/// What was read, and of what could not be what was told.
pub fn added(pools: Pools, told: &[Pool]) -> Pools {
    let is_told = |unread: &Unread| told.iter().any(|pool| pool.process == unread.process);
    let (known, unread): (Vec<Unread>, Vec<Unread>) =
        pools.unread.iter().cloned().partition(is_told);
    if known.is_empty() {
        return pools;
    }
    let is_known = |pool: &&Pool| known.iter().any(|one| one.process == pool.process);
    let list = pools.list.iter().chain(told.iter().filter(is_known));
    Pools {
        list: Arc::new(list.cloned().collect()),
        unread: Arc::new(unread),
        ..pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::process::ProcessKey;
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
            unread: Arc::new(vec![unread(2), unread(3)]),
            ..Pools::default()
        };
        let told = [pool(1, "told"), pool(2, "told")];
        let all = added(pools, &told);
        let list: Vec<(u32, &str)> = all
            .list
            .iter()
            .map(|pool| (pool.process.pid.0, pool.library.as_str()))
            .collect();
        assert_eq!(list, [(1, "read"), (2, "told")]);
        assert_eq!(all.unread.len(), 1);
    }
}
