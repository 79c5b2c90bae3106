//! The process table as a tree, grouped, and with other columns.

use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use gputop_model::process::{Parent, Process, RunState};
use gputop_model::units::{Percent, Pid};
use ratatui::crossterm::event::KeyCode;

use crate::memory_screen::{drawn, view_after_keys};
use crate::support::many_processes::{Member, TestApp};
use crate::support::screen_fixture::{DEMO, app_at};

fn child_of(pid: u32, name: &str) -> impl FnOnce(&mut Process) {
    let parent = Parent { pid: Pid(pid), name: name.into() };
    |process| process.parent = Some(parent)
}

/// Two ranks on two GPUs each under one launcher, a loader started by the first rank, and an unrelated process.
fn members() -> Vec<Member> {
    vec![
        Member::new(418, "ana", "train.py", &[(0, 20), (1, 30)])
            .with(child_of(400, "torchrun"))
            .with(|p| p.job = "81234".to_owned().into()),
        Member::new(419, "ana", "train.py", &[(0, 10), (1, 5)])
            .with(child_of(400, "torchrun"))
            .with(|p| p.rank = 1.into()),
        Member::new(430, "ana", "loader.py", &[(0, 1)]).with(child_of(418, "python")),
        Member::new(977, "bob", "blender", &[(1, 2)]).with(child_of(900, "bash")),
    ]
}

/// Returns the names of groups and the commands of processes, with their indentation.
fn table(desk: &TestApp) -> Vec<String> {
    let text = desk.text(140, 40);
    let lines = text.lines().map(str::trim_end).map(str::to_owned);
    let lines: Vec<String> = lines
        .skip_while(|line| !(line.contains("PID") && line.contains("COMMAND")))
        .take_while(|line| !line.trim().is_empty())
        .collect();
    let at = lines[0].find("COMMAND").unwrap();
    let command = |line: &String| line.chars().skip(at).collect::<String>();
    lines.iter().skip(1).map(command).collect()
}

/// Returns a group's value in a numeric column.
fn sum(desk: &TestApp, group: &str, title: &str) -> String {
    let text = desk.text(140, 40);
    let heading = text.lines().find(|line| line.contains("COMMAND")).unwrap();
    let end = heading.find(title).unwrap() + title.len();
    let line = text.lines().find(|line| line.contains(group)).unwrap();
    let cell: String = line.chars().take(end).collect();
    cell.rsplit(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn one_key_cycles_tree_and_groups() {
    let mut desk = TestApp::new(2, &members());
    let flat = ["train.py", "train.py", "loader.py", "train.py", "train.py", "blender"];
    assert_eq!(table(&desk), flat);
    desk.send("t");
    assert!(desk.text(140, 40).contains("processes: tree by parent"));
    let tree = [
        "- 400 torchrun (3)",
        "  train.py",
        "  train.py",
        "    loader.py",
        "  train.py",
        "  train.py",
        "blender",
    ];
    assert_eq!(table(&desk), tree);
    // Even in a small window, the name is complete.
    assert!(desk.text(60, 20).contains("- 400 torchrun (3)"));
    desk.send("t");
    let by_user = [
        "- user ana (3)",
        "  train.py",
        "  train.py",
        "  loader.py",
        "  train.py",
        "  train.py",
        "- user bob (1)",
        "  blender",
    ];
    assert_eq!(table(&desk), by_user);
    for title in ["no container (4)", "job 81234 (1)", "rank 1 (1)"] {
        desk.send("t");
        let lines = table(&desk);
        assert!(lines.iter().any(|line| line.contains(title)), "{lines:?}");
    }
    assert!(desk.text(140, 40).contains("processes: grouped by rank  t or Esc flat"));
    desk.press(KeyCode::F(5));
    assert_eq!(table(&desk), flat);
    // Esc clears the filter first.
    desk.send("t/train\n\x1b");
    assert_eq!(table(&desk), tree);
    desk.send("\x1b");
    assert_eq!(table(&desk), flat);
}

#[test]
fn sums_count_memory_on_every_gpu_and_the_host_once() {
    let mut desk = TestApp::new(2, &members());
    desk.send("tt");
    assert_eq!(sum(&desk, "user ana", "VRAM"), "66.0");
    assert_eq!(sum(&desk, "user bob", "VRAM"), "2.0");
    // Three processes with 2 GiB and one core each, although they take up five lines.
    assert_eq!(sum(&desk, "user ana", "RSS"), "6.0G");
    assert_eq!(sum(&desk, "user ana", "CPU%"), "300");
    // Five lines with half a GPU each.
    assert_eq!(sum(&desk, "user ana", "SM%"), "250");
    // A filter removes hidden processes from the sum.
    desk.send("/gpu:0\n");
    assert_eq!(sum(&desk, "user ana", "VRAM"), "31.0");
}

#[test]
fn printed_parts_add_up_and_an_unknown_one_is_marked() {
    let mut members: Vec<Member> =
        (0..3).map(|i| Member::new(100 + i, "ana", "a.py", &[(0, 1)])).collect();
    for member in &mut members {
        member.on[0].1.0 = (1 << 30) * 104 / 100;
    }
    let mut desk = TestApp::new(1, &members);
    desk.send("tt");
    // Three times 1.04 is 3.12, but each row shows 1.0.
    assert_eq!(sum(&desk, "user ana", "VRAM"), "3.0");
}

#[test]
fn enter_folds_a_group_and_the_cursor_stays_on_it() {
    let mut desk = TestApp::new(2, &members());
    desk.send("tt\t\n");
    assert_eq!(table(&desk), ["+ user ana (3)", "- user bob (1)", "  blender"]);
    assert_eq!(sum(&desk, "user ana", "VRAM"), "66.0");
    // The selected group cannot be signalled; a row further down is a process.
    desk.send("x");
    assert!(desk.text(140, 40).contains("no process under the cursor"));
    desk.send("jjx");
    assert!(desk.text(140, 40).contains("Signal to 977 blender"));
    desk.send("\x1bkk\n");
    assert_eq!(table(&desk).len(), 8);
}

#[test]
fn a_group_is_tagged_as_a_whole() {
    let mut desk = TestApp::new(2, &members());
    desk.send("tt\t ");
    assert_eq!(desk.app.host.processes.tags.len(), 3);
    desk.send("kT");
    let asked = desk.text(100, 30);
    assert!(asked.contains("Send TERM to 3 processes?"), "{asked}");
    assert!(!asked.contains("977"), "{asked}");
    desk.send("n ");
    assert!(desk.app.host.processes.tags.is_empty());
}

#[test]
fn cyclic_and_deep_parent_chains_are_shown() {
    let mut members: Vec<Member> = (0..3_000)
        .map(|i| Member::new(10 + i, "ana", "a.py", &[(0, 1)]).with(child_of(9 + i, "a")))
        .collect();
    members.push(Member::new(5, "ana", "b.py", &[(0, 1)]).with(child_of(6, "b")));
    members.push(Member::new(6, "ana", "b.py", &[(0, 1)]).with(child_of(5, "b")));
    members.push(Member::new(7, "ana", "c.py", &[(0, 1)]).with(child_of(7, "c")));
    let mut desk = TestApp::new(1, &members);
    desk.send("t");
    let shown = desk.app.host.processes.lines.iter().filter_map(|line| line.row());
    let mut shown: Vec<usize> = shown.collect();
    shown.sort_unstable();
    assert_eq!(shown, (0..3_003).collect::<Vec<_>>());
}

#[test]
fn columns_are_hidden_and_shown_and_the_rest_keeps_its_room() {
    let mut desk = TestApp::new(2, &members());
    let heading = |desk: &TestApp, width| {
        let text = desk.text(width, 40);
        let heading = text.lines().find(|line| line.contains("COMMAND"));
        heading.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = heading(&desk, 80);
    // No process is in a container.
    let wide = heading(&desk, 250);
    assert!(!wide.contains(&"CONTAINER".to_owned()), "{wide:?}");
    assert!(!before.contains(&"CACHED".to_owned()), "{before:?}");
    assert!(before.contains(&"USER".to_owned()), "{before:?}");
    desk.send("C");
    let menu = desk.text(80, 24);
    assert!(menu.contains("[x] USER") && !menu.contains("[x] PID"), "{menu}");
    // RANK, GPU, USER.
    desk.send("\njj ");
    assert!(desk.text(80, 24).contains("[ ] USER"));
    desk.send("\x1b");
    let after = heading(&desk, 80);
    assert!(!after.contains(&"USER".to_owned()) && !after.contains(&"RANK".to_owned()));
    assert!(after.contains(&"FITS".to_owned()), "another took the room: {after:?}");
    desk.press(KeyCode::F(2));
    desk.send("\njj\n\x1b");
    assert_eq!(heading(&desk, 80), before);
}

#[test]
fn only_a_process_without_cpu_use_is_marked_as_blocked() {
    for (cpu, expected) in [(0.0, true), (40.0, false)] {
        let member = Member::new(418, "ana", "train.py", &[(0, 20)]).with(|p| {
            p.state = RunState::Blocked;
            p.cpu = Percent(cpu).into();
        });
        let text = TestApp::new(1, &[member]).text(120, 40);
        assert_eq!(text.contains("train.py (blocked)"), expected, "{text}");
    }
}

#[test]
fn an_idle_process_says_so_behind_its_name_and_since_when_on_its_screen() {
    let mut app = app_at(DEMO, 142, Palette::None, false, false);
    let view = view_after_keys(&mut app, "\t/notebook\n");
    let text = text_of(&drawn(&view, &app, 120, 40));
    assert!(text.contains("notebook.py (idle 1m52) 0 4"), "{text}");
    let view = view_after_keys(&mut app, "\t\n");
    let text = text_of(&drawn(&view, &app, 120, 40));
    assert!(text.contains("has not used its GPU since 14:23:51 "), "{text}");
}

#[test]
fn a_filter_is_not_taken_for_a_gpu_without_processes() {
    let mut app = app_at(DEMO, 142, Palette::None, false, false);
    view_after_keys(&mut app, "\t/notebook\n");
    let view = view_after_keys(&mut app, "\n");
    let text = text_of(&drawn(&view, &app, 120, 40));
    assert!(text.contains("No process on this GPU matches the filter"), "{text}");
}
