use super::*;

fn press(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn own(action: &str, keys: &[&str]) -> Binding {
    Binding { action: action.to_owned(), keys: keys.iter().map(|key| (*key).to_owned()).collect() }
}

#[test]
fn the_default_keymap_binds_every_action_once() {
    let keymap = Keymap::with(&[]).expect("valid keys");
    for def in ACTIONS {
        assert!(!keymap.keys(def.action).is_empty(), "{} has no key", def.name);
        assert_eq!(def.action.def().name, def.name, "an action is listed twice");
    }
}

#[test]
fn default_keys_trigger_the_expected_actions() {
    let keymap = Keymap::default();
    let table = [
        (KeyCode::Char('j'), Action::Down),
        (KeyCode::Up, Action::Up),
        (KeyCode::Enter, Action::Open),
        (KeyCode::Esc, Action::Back),
        (KeyCode::Tab, Action::NextPane),
        (KeyCode::Char('/'), Action::Filter),
        (KeyCode::Char('s'), Action::Sort),
        (KeyCode::Char('?'), Action::Help),
        (KeyCode::Char('q'), Action::Quit),
        (KeyCode::Char('G'), Action::Last),
        (KeyCode::Char('z'), Action::Density),
        (KeyCode::F(9), Action::Signal),
        (KeyCode::Char('x'), Action::Signal),
        (KeyCode::Char(' '), Action::Tag),
        (KeyCode::Char('U'), Action::Untag),
        (KeyCode::Char('t'), Action::Group),
        (KeyCode::Char('C'), Action::Columns),
    ];
    for (key, action) in table {
        assert_eq!(keymap.resolve(press(key), false), Some(action), "{key:?}");
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(keymap.resolve(interrupt, false), Some(Action::QuitNow));
    // k moves the cursor; it must never send a signal.
    assert_eq!(keymap.resolve(press(KeyCode::Char('k')), false), Some(Action::Up));
}

#[test]
fn enter_typed_before_raw_mode_is_enter_unless_ctrl_j_is_bound() {
    let line_feed = KeyEvent::new(KeyCode::Char('j'), KeyModifiers::CONTROL);
    let keymap = Keymap::default();
    assert_eq!(keymap.resolve(line_feed, false), Some(Action::Open));
    assert_eq!(keymap.resolve(line_feed, true), Some(Action::Open));
    let bound = Keymap::with(&[own("down", &["ctrl-j"])]).expect("a keymap");
    assert_eq!(bound.resolve(line_feed, false), Some(Action::Down));
}

#[test]
fn user_bindings_replace_the_default_keys() {
    let with = Keymap::with;
    let letter = |keymap: &Keymap, c| keymap.resolve(press(KeyCode::Char(c)), false);
    let table: [(&[Binding], char, Option<Action>); 6] = [
        (&[own("up", &["9"])], '9', Some(Action::Up)),
        // The default key is unbound.
        (&[own("up", &["9"])], 'k', None),
        (&[own("sort", &[])], 's', None),
        // Two actions may swap keys.
        (&[own("up", &["j"]), own("down", &["k"])], 'j', Some(Action::Up)),
        // A binding used in recordings may share its key with another binding.
        (&[own("skip_back", &["q"])], 'q', Some(Action::Quit)),
        (&[own("quit", &["q", "q"])], 'q', Some(Action::Quit)),
    ];
    for (bindings, key, action) in table {
        let keymap = with(bindings).expect("a keymap");
        assert_eq!(letter(&keymap, key), action, "{key} {bindings:?}");
    }
    let keymap = with(&[own("sort", &[])]).expect("a keymap");
    assert_eq!(keymap.label(Action::Sort), "(no key)");
    let error = |bindings: &[Binding]| with(bindings).expect_err("wrong").to_string();
    assert_eq!(
        error(&[own("up", &["s"])]),
        "key `s` is bound to both `up` and `sort`; bind one of them to another key, or to none: `sort = []`"
    );
    // Bindings conflict if a terminal cannot distinguish their keys.
    assert!(error(&[own("up", &["ctrl-m"])]).contains("both `up` and `open`"));
    assert!(error(&[own("up", &["ctrl-C"])]).contains("both `up` and `quit_now`"));
    assert!(error(&[own("up", &["\u{1b}"])]).contains("is not a valid key"));
    assert_eq!(
        error(&[own("quit", &[]), own("quit_now", &[])]),
        "no key quits gputop; bind one to `quit` or `quit_now`"
    );
    assert_eq!(
        error(&[own("quit_nwo", &["x"])]),
        "unknown action `quit_nwo`; did you mean `quit_now`?"
    );
}

#[test]
fn bindings_for_recordings_apply_only_during_playback() {
    let keymap = Keymap::default();
    assert_eq!(keymap.resolve(press(KeyCode::Char('-')), false), None);
    assert_eq!(keymap.resolve(press(KeyCode::Left), true), Some(Action::SkipBack));
    // Outside recordings, the same key may trigger a different action.
    let comma = press(KeyCode::Char(','));
    assert_eq!(keymap.resolve(comma, true), Some(Action::StepBack));
    assert_eq!(keymap.resolve(comma, false), Some(Action::ScrollBack));
    assert_eq!(keymap.resolve(press(KeyCode::Left), false), Some(Action::Left));
}

#[test]
fn an_invalid_keymap_is_explained_in_one_line() {
    let error = |binding| Keymap::with(&[binding]).expect_err("wrong").to_string();
    assert_eq!(error(own("quti", &["q"])), "unknown action `quti`; did you mean `quit`?");
    assert!(
        error(own("quit", &["hyper-q"]))
            .starts_with("`hyper-q`, bound to action `quit`, is not a valid key")
    );
    assert_eq!(
        error(own("open", &["q"])),
        "key `q` is bound to both `open` and `quit`; bind one of them to another key, or to none: `quit = []`"
    );
}
