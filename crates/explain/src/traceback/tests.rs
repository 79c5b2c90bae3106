use super::super::text::{flows, lines};
use super::*;

const LOG: &str = "\
step 1
Traceback (most recent call last):
  File \"/home/ana/train.py\", line 57, in step
    loss.backward()
    ~~~~~~~~~~~~~^^
  File \"/opt/venv/lib/python3.11/site-packages/torch/_tensor.py\", line 492, in backward
    torch.autograd.backward(
KeyError: 'labels'
";

#[test]
fn the_location_is_the_innermost_user_frame() {
    let lines = lines(LOG.as_bytes(), 1);
    let flow = &flows(&lines)[0];
    let all = all(flow, &lines);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].exception.as_str(), all[0].message.as_str()), ("KeyError", "'labels'"));
    let place = all[0].place().expect("a place");
    assert_eq!((place.file.as_str(), place.line), ("/home/ana/train.py", 57));
    assert_eq!(place.code.as_deref(), Some("loss.backward()"));
    let at = flow.text.find("KeyError").expect("part of the log");
    assert_eq!(frames_before(flow, &lines, at), all[0].frames);
}

#[test]
fn reads_the_frames_of_a_chained_exception() {
    let library = "Traceback (most recent call last):\n  File \"/opt/venv/lib/python3.11/site-packages/torch/a.py\", line 2, in get\nRuntimeError: a worker is killed\n";
    let link = "\nThe above exception was the direct cause of the following exception:\n\n";
    let log = format!("{library}{link}{LOG}");
    let lines = lines(log.as_bytes(), 1);
    let flow = &flows(&lines)[0];
    let at = flow.text.find("RuntimeError").expect("part of the log");
    let frames = frames_of_next_exception(flow, &lines, at);
    assert_eq!(frames.len(), 2, "{frames:?}");
    assert_eq!(frames[0].code.as_deref(), Some("loss.backward()"));
    let last = flow.text.find("KeyError").expect("part of the log");
    assert_eq!(frames_of_next_exception(flow, &lines, last), []);
}

#[test]
fn reads_the_frames_of_notebooks_and_debuggers() {
    let older = "\
KeyError                                  Traceback (most recent call last)
<ipython-input-13-94186933> in <cell line: 3>()
      2 model.train()
----> 3 loss = step(batch)

/home/ana/train.py in step(batch, scale)
     56     model.train()
---> 57     return model(batch['labels'])

KeyError: 'labels'
";
    let newer = older
        .replace("<ipython-input-13-94186933> in <cell line: 3>()", "Cell In[13], line 3")
        .replace("/home/ana/train.py in ", "File /home/ana/train.py:57, in Run.");
    for log in [older, &newer] {
        let lines = lines(log.as_bytes(), 1);
        let flow = &flows(&lines)[0];
        let end = flow.text.rfind("KeyError").expect("part of the log");
        let frames = frames_before(flow, &lines, end);
        let places: Vec<_> = frames.iter().map(|f| (f.file.as_str(), f.line)).collect();
        assert_eq!(places, [("In[13]", 3), ("/home/ana/train.py", 57)], "{log}");
        assert_eq!(frames[1].function, "step");
        assert_eq!(frames[1].code.as_deref(), Some("return model(batch['labels'])"));
        assert_eq!(frames_after(flow, &lines, 0), frames);
        assert_eq!(all(flow, &lines)[0].frames, frames);
    }
    let debugger = "\
Exception has occurred: RuntimeError
CUDA out of memory.
  File \"/home/ana/net.py\", line 8, in forward
    return x @ x.T
  File \"/home/ana/train.py\", line 57, in step
    loss = model(x)
";
    let lines = lines(debugger.as_bytes(), 1);
    let flow = &flows(&lines)[0];
    let frames = frames_after(flow, &lines, flow.text.find("CUDA").expect("part of the log"));
    assert_eq!(frames.iter().map(|f| f.line).collect::<Vec<_>>(), [57, 8]);
}

#[test]
fn ignored_exceptions_are_not_read() {
    let ignored = LOG.replace("step 1\n", "Exception ignored in: <function A.__del__ at 0x7f>\n");
    let log = format!("{LOG}{}", ignored.replace("KeyError: 'labels'", "AttributeError: x"));
    let lines = lines(log.as_bytes(), 1);
    let all = all(&flows(&lines)[0], &lines);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].exception, "KeyError");
}

#[test]
fn reads_a_traceback_whose_beginning_is_missing() {
    let (_, cut) = LOG.split_once("last):\n").expect("a header");
    for log in [
        cut.to_owned(),
        format!("Scheduler hit an exception: Traceback (most recent call last):\n{cut}"),
    ] {
        let lines = lines(log.as_bytes(), 1);
        let all = all(&flows(&lines)[0], &lines);
        assert_eq!(all.len(), 1, "{log}");
        assert_eq!(all[0].exception, "KeyError");
    }
}

#[test]
fn ordinary_lines_are_not_exceptions() {
    for line in ["loss: 0.3", "Epoch 3: done", "  ValueError: indented", "Note: x"] {
        assert_eq!(exception(line), None, "{line}");
    }
    assert_eq!(exception("KeyError: 'x'"), Some(("KeyError", "'x'")));
    assert_eq!(exception("torch.OutOfMemoryError: CUDA"), Some(("torch.OutOfMemoryError", "CUDA")));
}
