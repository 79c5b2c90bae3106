//! The tree of processes that run on this host.

use crate::support::fake_machine::{RealProcess, dashboard, is_host, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::shows;

#[test]
fn tree_shows_children_below_their_parents() {
    if !is_host() {
        return;
    }
    let [a, b] = ["a.py", "b.py"].map(RealProcess::start);
    let scenario = ["[[gpu]]\n".to_owned(), on_gpu(0, &a, ""), on_gpu(0, &b, "")];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| shows(s, b.pid(), &[]), "the processes");
    terminal.send("t");
    terminal.wait_text(&format!("- {} ", std::process::id()));
    terminal.send("\t\r");
    terminal.wait_text(&format!("+ {} ", std::process::id()));
    terminal.wait_for(|s| !shows(s, b.pid(), &[]), "no process");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}
