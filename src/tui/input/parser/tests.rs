use std::cell::RefCell;

use proptest::prelude::*;

use super::*;

/// Parses bytes as if they arrived in a single read at the end of the input.
fn events(bytes: &[u8]) -> Vec<Event> {
    let events = RefCell::new(Vec::new());
    let push = |event| events.borrow_mut().push(event);
    let mut parser = Parser::default();
    parser.advance(bytes, push);
    parser.give_up(push);
    events.into_inner()
}

fn plain(code: KeyCode) -> Event {
    key(code, KeyModifiers::NONE)
}

#[test]
fn keys_are_parsed() {
    let cases: &[(&[u8], Event)] = &[
        (b"q", plain(KeyCode::Char('q'))),
        (b"G", key(KeyCode::Char('G'), KeyModifiers::SHIFT)),
        ("é".as_bytes(), plain(KeyCode::Char('é'))),
        ("\u{1f600}".as_bytes(), plain(KeyCode::Char('\u{1f600}'))),
        (b"\r", plain(KeyCode::Enter)),
        (b"\n", control('j')),
        (b"\t", plain(KeyCode::Tab)),
        (b"\x7f", plain(KeyCode::Backspace)),
        (b"\0", control(' ')),
        (b"\x1a", control('z')),
        (b"\x1f", control('7')),
        (b"\x1b", plain(KeyCode::Esc)),
        (b"\x1bx", key(KeyCode::Char('x'), KeyModifiers::ALT)),
        (b"\x1b[A", plain(KeyCode::Up)),
        (b"\x1bOA", plain(KeyCode::Up)),
        (b"\x1bOR", plain(KeyCode::F(3))),
        (b"\x1b[1;5D", key(KeyCode::Left, KeyModifiers::CONTROL)),
        (b"\x1b[Z", key(KeyCode::BackTab, KeyModifiers::SHIFT)),
        (b"\x1b[[B", plain(KeyCode::F(2))),
        (b"\x1b[6~", plain(KeyCode::PageDown)),
        (b"\x1b[15~", plain(KeyCode::F(5))),
        (b"\x1b[20~", plain(KeyCode::F(9))),
        (b"\x1b[24~", plain(KeyCode::F(12))),
        (b"\x1b[3;2~", key(KeyCode::Delete, KeyModifiers::SHIFT)),
        (b"\x1b[99;5u", control('c')),
    ];
    for (bytes, event) in cases {
        assert_eq!(events(bytes), std::slice::from_ref(event), "{bytes:?}");
    }
    assert_eq!(events(b"\x1b\x1b"), [plain(KeyCode::Esc), plain(KeyCode::Esc)]);
    assert_eq!(events(b"\x1b[?1;2c\x1b[0n"), []);
}

#[test]
fn mouse_reports_are_parsed() {
    let at = |kind, modifiers| Event::Mouse(MouseEvent { kind, column: 299, row: 3, modifiers });
    let left = MouseButton::Left;
    let cases: &[(&[u8], Event)] = &[
        (b"\x1b[<0;300;4M", at(MouseEventKind::Down(left), KeyModifiers::NONE)),
        (b"\x1b[<0;300;4m", at(MouseEventKind::Up(left), KeyModifiers::NONE)),
        (b"\x1b[<32;300;4M", at(MouseEventKind::Drag(left), KeyModifiers::NONE)),
        (b"\x1b[<64;300;4M", at(MouseEventKind::ScrollUp, KeyModifiers::NONE)),
        (b"\x1b[<81;300;4M", at(MouseEventKind::ScrollDown, KeyModifiers::CONTROL)),
    ];
    for (bytes, event) in cases {
        assert_eq!(events(bytes), std::slice::from_ref(event), "{bytes:?}");
    }
    let Some(Event::Mouse(mouse)) = events(b"\x1b[M !\"").pop() else {
        panic!("no mouse event");
    };
    assert_eq!(mouse.kind, MouseEventKind::Down(left));
    assert_eq!((mouse.column, mouse.row), (0, 1));
}

#[test]
fn ctrl_c_is_never_part_of_a_sequence() {
    for before in [
        &b"\x1b"[..],
        b"\x1b[",
        b"\x1b[<0;1",
        b"\x1b[M",
        b"\x1b[M !",
        b"\x1bO",
        b"\x1b[200~pasted",
        b"\xe2\x82",
        b"\x1b]52;",
    ] {
        let mut bytes = before.to_vec();
        bytes.push(INTERRUPT);
        let last = events(&bytes).pop();
        assert_eq!(last, Some(control('c')), "{before:?}");
    }
    assert_eq!(events(b"\x1b\x03"), [plain(KeyCode::Esc), control('c')]);
}

#[test]
fn keys_after_a_timed_out_sequence_are_parsed() {
    let parsed = RefCell::new(Vec::new());
    let push = |event| parsed.borrow_mut().push(event);
    let mut parser = Parser::default();
    parser.advance(b"\x1b[<0;1", push);
    assert_eq!(parser.timeout(), Some(SEQUENCE_TIMEOUT));
    parser.give_up(push);
    assert_eq!(parser.timeout(), None);
    parser.advance(b"q", push);
    assert_eq!(parsed.into_inner(), [plain(KeyCode::Char('q'))]);
    // A control character or another escape ends the incomplete sequence.
    assert_eq!(events(b"\x1b[<0;1\r"), [plain(KeyCode::Enter)]);
    assert_eq!(events(b"\x1b[<0;1\x1b[A"), [plain(KeyCode::Up)]);
    assert_eq!(events(b"\xe2q"), [plain(KeyCode::Char('q'))]);
}

#[test]
fn pasted_text_counts_as_typed() {
    let typed = [plain(KeyCode::Char('a')), plain(KeyCode::Char('b'))];
    assert_eq!(events(b"\x1b[200~ab\x1b[201~"), typed);
}

proptest! {
    #[test]
    fn accepts_ctrl_c_after_any_bytes_and_stays_bounded(bytes: Vec<u8>) {
        let last = RefCell::new(None);
        let push = |event| *last.borrow_mut() = Some(event);
        let mut parser = Parser::default();
        parser.advance(&bytes, push);
        prop_assert!(parser.pending.len() < MAX_SEQUENCE_BYTES);
        parser.advance(&[INTERRUPT], push);
        prop_assert_eq!(last.into_inner(), Some(control('c')));
    }

    #[test]
    fn parses_split_sequences_like_whole_ones(bytes in "(\u{1b}\\[[A-D]|\u{1b}\\[<0;1;1M|[a-zé]|\u{1b}O[A-D]){0,9}") {
        let whole = events(bytes.as_bytes());
        let pieces = RefCell::new(Vec::new());
        let mut parser = Parser::default();
        for byte in bytes.as_bytes() {
            parser.advance(&[*byte], |event| pieces.borrow_mut().push(event));
        }
        prop_assert_eq!(pieces.into_inner(), whole);
    }
}
