//! The filter typed after `/`: which processes match, the error messages, and the time it takes.

use std::time::{Duration, Instant};

use gputop_model::event::{Event, Exit, Observation};
use gputop_model::pool::{Pool, Pools, Unread};
use gputop_model::process::RunState;
use gputop_model::protocol::Update;
use gputop_model::reading::{Missing, Reason};
use gputop_model::units::GpuUuid;

use crate::support::many_processes::{Member, TestApp, frame};

fn members() -> Vec<Member> {
    vec![
        Member::new(418, "ana", "python train.py --lr 1", &[(0, 20), (1, 20)])
            .with(|p| p.rank = 3.into()),
        Member::new(421, "bob", "python eval.py", &[(1, 4)])
            .with(|p| p.job = "81234".to_owned().into()),
        Member::new(977, "anabel", "blender", &[(0, 1)]).with(|p| p.state = RunState::Zombie),
    ]
}

#[test]
fn filter_terms_select_matching_processes() {
    let table: &[(&str, &[u32])] = &[
        ("", &[418, 977, 418, 421]),
        ("python", &[418, 418, 421]),
        ("user:me", &[418, 418]),
        ("user:ana", &[418, 977, 418]),
        ("-user:me", &[977, 421]),
        ("!python", &[977]),
        ("gpu:1 vram>10g", &[418]),
        ("gpu:0,1 -pid:418", &[977, 421]),
        ("vram<4096m", &[977]),
        ("rank:3 gpu:0", &[418]),
        ("job:812", &[421]),
        ("cmd:\"train.py --lr\" gpu:0", &[418]),
        ("state:zombie|dead", &[977]),
        ("sm>50", &[]),
        ("sm>=50 gpu:0", &[418, 977]),
    ];
    for (filter, pids) in table {
        let mut desk = TestApp::new(2, &members());
        desk.send(&format!("/{filter}\n"));
        assert_eq!(desk.pids(), *pids, "{filter}");
    }
}

#[test]
fn state_terms_select_failed_processes() {
    let members = members();
    let key = |i: usize| members[i].process.key;
    let mut frame = frame(2, &members);
    let mut pool = Pool { process: key(0), gpu: GpuUuid("GPU-1".into()).into(), ..Pool::default() };
    pool.stats.num_ooms = 1;
    let unread = Unread {
        process: key(1),
        why: Missing::new(Reason::Denied, "ptrace"),
        ..Unread::default()
    };
    frame.pools =
        Some(Pools { list: vec![pool].into(), unread: vec![unread].into(), ..Pools::default() });
    let mut desk = TestApp::of_frame(frame);
    let exit = Exit {
        last: Some(Box::new(members[2].process.clone())),
        gpus: vec![GpuUuid("GPU-0".into())],
        status: 3.into(),
        ..Exit::default()
    };
    desk.update(Update::Event(Event {
        process: Some(crate::support::many_processes::key(500)),
        observation: Observation::Exit(Box::new(exit)),
        ..Event::default()
    }));
    let table: &[(&str, &[u32])] = &[
        ("state:oom", &[418]),
        ("oom>0", &[418]),
        ("state:unreadable", &[421]),
        ("state:dead", &[500]),
        ("-state:dead gpu:1", &[418, 421]),
        ("state:oom,dead,unreadable", &[418, 421, 500]),
        ("state:stopped", &[]),
        ("exited", &[500]),
        ("\"exit 3\"", &[500]),
    ];
    for (filter, pids) in table {
        desk.send(&format!("/{filter}\n"));
        assert_eq!(desk.pids(), *pids, "{filter}");
        desk.send("\x1b");
    }
}

#[test]
fn invalid_term_is_explained_and_the_last_valid_filter_stays() {
    let mut desk = TestApp::new(2, &members());
    desk.send("/gpu:1 usr:m");
    assert_eq!(desk.pids(), [418, 421], "gpu:1 holds while `usr:m` is wrong");
    let text = desk.text(80, 24);
    let line = text.lines().last().unwrap();
    assert!(
        line.contains("gpu:1 usr:m") && line.contains("unknown field `usr`; did you mean `user`?"),
        "{text}"
    );
    // Enter keeps an invalid filter open. Without room beside the filter, its error is shown above it.
    desk.send("\n");
    let text = desk.text(44, 24);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[23].contains("gpu:1 usr:m"), "{text}");
    assert!(lines[22].contains("did you mean `user`?"), "{text}");
    // Once corrected, the filter is applied.
    for _ in 0..5 {
        desk.press(ratatui::crossterm::event::KeyCode::Backspace);
    }
    desk.send("user:bob\n");
    assert_eq!(desk.pids(), [421]);
    assert!(desk.text(80, 24).contains("filter: gpu:1 user:bob (3 hidden, Esc clears)"));
    // Esc restores the previous filter.
    desk.send("/ vram>\x1b");
    assert_eq!(desk.pids(), [421]);
}

#[test]
fn ten_thousand_processes_are_filtered_and_sorted_while_one_types() {
    let members: Vec<Member> = (0..10_000_u32)
        .map(|i| {
            let user = if i % 10 == 0 { "ana" } else { "bob" };
            let command = format!("python train.py --seed {i}");
            Member::new(1_000 + i, user, &command, &[(i % 8, u64::from(i % 100))])
        })
        .collect();
    let mut frame = frame(8, &members);
    let pool = |member: &Member| Pool {
        process: member.process.key,
        gpu: GpuUuid(format!("GPU-{}", member.on[0].0).into()).into(),
        ..Pool::default()
    };
    frame.pools = Some(Pools {
        list: members.iter().map(pool).collect::<Vec<_>>().into(),
        ..Pools::default()
    });
    let mut desk = TestApp::of_frame(frame);
    // Sort by VRAM, then type a filter letter by letter.
    desk.send("sG");
    desk.send("\x1b>>>>>");
    let start = Instant::now();
    desk.send("/user:me vram>50g seed");
    let keys = 22;
    let each = start.elapsed() / keys;
    assert_eq!(desk.pids().len(), 400);
    // Generous for a debug build on a busy machine: the test only rules out quadratic time.
    assert!(each < Duration::from_millis(500), "{each:?} a key");
}

#[test]
fn the_cursor_moves_to_the_nearest_process_that_the_filter_shows() {
    let member = |n: u32| Member::new(400 + n, "ana", &format!("job{n}.py"), &[(0, 20 - n as u64)]);
    let members: Vec<Member> = (0..6).map(member).collect();
    let selected = |app: &TestApp| {
        let text = app.text(120, 40);
        text.lines().filter_map(|line| line.split("\u{25b8}").nth(1)).collect::<String>()
    };
    let mut app = TestApp::new(1, &members);
    app.send("\tj");
    assert!(selected(&app).contains("job1.py"), "{}", selected(&app));
    app.send("/vram<17");
    assert!(selected(&app).contains("job4.py"), "{}", selected(&app));
    app.send("\n\x1b");
    assert!(selected(&app).contains("job4.py"), "{}", selected(&app));
    app.send("/vram>=18");
    assert!(selected(&app).contains("job2.py"), "{}", selected(&app));
}

#[test]
fn the_cursor_returns_to_a_process_that_one_frame_lacks() {
    let member = |n: u32| Member::new(400 + n, "ana", &format!("job{n}.py"), &[(0, 20 - n as u64)]);
    let members: Vec<Member> = (0..3).map(member).collect();
    let mut app = TestApp::new(1, &members);
    app.send("\tj");
    let is_selected = |app: &TestApp| {
        let text = app.text(120, 40);
        text.lines().any(|line| line.starts_with('\u{25b8}') && line.contains("job1.py"))
    };
    assert!(is_selected(&app), "{}", app.text(120, 40));
    let update = |members: &[Member]| Update::Frame(std::sync::Arc::new(frame(1, members)));
    app.update(update(&[member(0), member(2)]));
    assert!(!is_selected(&app), "{}", app.text(120, 40));
    app.update(update(&members));
    assert!(is_selected(&app), "{}", app.text(120, 40));
}

#[test]
fn u_asks_for_a_user_and_lists_them() {
    let mut app = TestApp::new(2, &members());
    app.send("u");
    let text = app.text(120, 40);
    assert!(text.contains("filter: user:"), "{text}");
    assert!(text.contains("ana  anabel  bob  me"), "{text}");
    app.send("bob\n");
    assert_eq!(app.pids(), [421]);
    // The term is added to those of the current filter.
    app.send("u");
    assert!(app.text(120, 40).contains("filter: user:bob user:"));
}
