use gputop_model::incident::Fix;

use super::*;
use crate::export::explanation::{Detail, Style, text};

#[test]
fn wraps_at_blanks_and_keeps_long_words_whole() {
    assert_eq!(wrapped("a bb  ccc dddddddd", 6), ["a bb", "ccc", "dddddddd"]);
    assert_eq!(wrapped("", 6), [""; 0]);
    assert_eq!(wrapped("run `a bb c`, then", 10), ["run", "`a bb c`,", "then"]);
    assert_eq!(wrapped("run `a bb ccc dd` or `e", 8), ["run `a", "bb ccc", "dd` or", "`e"]);
}

fn wrapped_line(text: &str, width: usize, is_command: bool) -> Vec<String> {
    let line = StyledLine(vec![(Tone::Change, text.to_owned())]);
    let text = |line: StyledLine| line.0.into_iter().map(|(_, text)| text).collect();
    wrap_line(line, width, is_command).into_iter().map(text).collect()
}

#[test]
fn wraps_at_words_and_within_paths() {
    assert_eq!(wrapped_line("a bb ccc", 5, false), ["a bb ", "ccc"]);
    assert_eq!(wrapped_line("/opt/venv/bin/python", 12, false), ["/opt/venv/", "bin/python"]);
    assert_eq!(wrapped_line("abcdef", 4, false), ["abcd", "ef"]);
    assert_eq!(wrapped_line("数据集", 4, false), ["数据", "集"]);
}

#[test]
fn wrapped_code_means_the_same() {
    let lines = |code: &str| code_lines(code, 40);
    assert_eq!(lines("loss.backward()  # a comment"), ["loss.backward()  # a comment"]);
    assert_eq!(
        lines("loss_fn(model(x), y).backward(); model.zero_grad(set_to_none=True)"),
        ["loss_fn(model(x), y).backward()", "model.zero_grad(set_to_none=True)"]
    );
    assert_eq!(
        lines("for x, y in zip(a.chunk(4), b.chunk(4)): loss(x, y).backward(); n += 1"),
        ["for x, y in zip(a.chunk(4), b.chunk(4)):", "    loss(x, y).backward()", "    n += 1"]
    );
    assert_eq!(
        lines("loader = DataLoader(dataset, sampler=DistributedSampler(dataset, seed=3))"),
        ["loader = DataLoader(dataset,", "    sampler=DistributedSampler(dataset,", "    seed=3))"]
    );
    assert_eq!(
        lines("head = Linear(size, classes)  # Hugging Face: from_pretrained(name, num_labels=n)"),
        [
            "head = Linear(size, classes)",
            "# Hugging Face: from_pretrained(name,",
            "# num_labels=n)"
        ]
    );
    // Neither a string nor a name is broken.
    let long = "print('a; long (text, that, cannot) be broken at all')";
    assert_eq!(lines(long), ["print(", &format!("    {}", &long[6..])]);
}

#[test]
fn wrapped_shell_commands_stay_the_same_command() {
    let command = "A=expandable_segments:True /opt/venv/bin/python3 fragment.py 0 94";
    let lines = wrapped_line(command, 30, true);
    assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= 30), "{lines:?}");
    assert_eq!(lines.join("\n").replace("\\\n", ""), command);
    let quoted = "dmesg | grep -iE 'xid|out of memory|killed process' | tail -20 -c 100";
    let lines = wrapped_line(quoted, 24, true);
    assert_eq!(lines[1], "'xid|out of memory|killed process'\\");
    assert_eq!(lines.join("\n").replace("\\\n", ""), quoted);
}

#[test]
fn commands_and_code_are_wrapped_only_on_a_terminal() {
    let command = format!("{} python train.py", "A=expandable_segments:True ".repeat(4).trim());
    let code = "loss_fn(model(x), y).backward(); model.zero_grad(set_to_none=True)";
    let fixes = vec![
        Fix { change: command.clone(), kind: FixKind::Env, ..Fix::default() },
        Fix { change: code.to_owned(), kind: FixKind::Code, ..Fix::default() },
    ];
    let incident = Incident { fixes, ..Incident::default() };
    let printed = |height| {
        let style = Style { width: 60, colour: false, height };
        text(std::slice::from_ref(&incident), Detail::Full, &style)
    };
    let piped = printed(None);
    assert!(piped.lines().any(|line| line == command) && piped.contains(code));
    let wrapped = printed(Some(24));
    assert!(wrapped.lines().all(|line| line.len() <= 60), "{wrapped}");
    assert!(wrapped.replace("\\\n", "").lines().any(|line| line == command), "{wrapped}");
    assert!(wrapped.contains("backward()\nmodel.zero_grad"), "{wrapped}");
}
