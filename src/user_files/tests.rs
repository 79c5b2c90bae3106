use std::os::unix::fs::{chown, symlink};

use super::*;

const NOBODY: u32 = 65_534;

#[test]
fn appends_to_a_private_file_and_empties_a_large_one() {
    let state = tempfile::tempdir().expect("a directory");
    let path = state.path().join("gputop/gputop.log");
    let mode = |path: &Path| fs::metadata(path).expect("it exists").mode() & 0o777;
    let add = |text: &str| {
        let mut file = append(&path, 8).expect("it opens");
        file.write_all(text.as_bytes()).expect("written");
    };
    add("12345");
    assert_eq!((mode(&path), mode(path.parent().expect("above"))), (0o600, 0o700));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
        .expect("set the mode that older versions used");
    add("6789");
    assert_eq!(mode(&path), 0o600);
    assert_eq!(fs::read_to_string(&path).expect("read"), "123456789");
    add("new");
    assert_eq!(fs::read_to_string(&path).expect("read"), "new");
}

#[test]
fn append_refuses_links_and_pipes() {
    let state = tempfile::tempdir().expect("a directory");
    let path = state.path().join("gputop.log");
    let victim = state.path().join("victim");
    fs::write(&victim, "x".repeat(100)).expect("written");
    symlink(&victim, &path).expect("a link");
    assert!(append(&path, 8).is_err());
    fs::remove_file(&path).expect("removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(append(&path, 8).is_err());
    assert_eq!(fs::metadata(&victim).expect("it exists").len(), 100);
    let linked = state.path().join("linked");
    fs::create_dir(state.path().join("folder")).expect("made");
    symlink(state.path().join("folder"), &linked).expect("a link");
    assert!(append(&linked.join("gputop.log"), 8).is_err());
}

#[test]
fn replaces_regular_files_only_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a directory");
    let (path, victim) = (folder.path().join("state.json"), folder.path().join("victim"));
    fs::write(&victim, "mine").expect("written");
    symlink(&victim, &path).expect("a link");
    let why = replace(&path, b"new").expect_err("a link").to_string();
    assert_eq!(why, "not a regular file");
    assert!(path.is_symlink());
    fs::remove_file(&path).expect("removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(replace(&path, b"new").is_err() && !path.is_file());
    fs::remove_file(&path).expect("removed");
    // A link under the name of the temporary file stays, and so does its target.
    let part = path.with_extension(format!("{}.{PART}", std::process::id()));
    symlink(&victim, &part).expect("a link");
    assert!(replace(&path, b"new").is_err() && part.is_symlink());
    fs::remove_file(&part).expect("removed");
    fs::write(&part, "of a killed process").expect("written");
    replace(&path, b"new").expect("replaced");
    assert_eq!(fs::read(&path).expect("read"), b"new");
    assert_eq!(fs::read(&victim).expect("read"), b"mine");
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2);
}

#[test]
fn deletes_only_the_file_that_was_written() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("gputop.prom");
    let write = |text: &'static [u8]| {
        replace_with(&path, 0o644, |file| file.write_all(text)).expect("written")
    };
    let (first, second) = (write(b"1"), write(b"2"));
    first.remove_at(&path);
    assert_eq!(fs::read(&path).expect("the second file"), b"2");
    second.remove_at(&path);
    assert!(!path.exists());
}

#[test]
fn root_uses_no_directory_of_another_user() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join(".local/state/gputop/incidents");
    assert!(refuse_other_users(&path).is_ok());
    if !geteuid().is_root() {
        return;
    }
    // Root owns the directory, but not its parent.
    fs::create_dir_all(&path).expect("made");
    chown(home.path(), Some(NOBODY), None).expect("given away");
    let why = refuse_other_users(&path).expect_err("refused").to_string();
    let expected = format!("{} belongs to another user ({NOBODY}), but", home.path().display());
    assert!(why.starts_with(&expected), "{why}");
}

#[test]
fn another_users_file_or_directory_is_not_opened() {
    if !geteuid().is_root() {
        return;
    }
    let state = tempfile::tempdir().expect("a directory");
    let path = state.path().join("gputop/gputop.log");
    drop(append(&path, 8).expect("it opens"));
    chown(&path, Some(NOBODY), None).expect("given away");
    assert!(append(&path, 8).is_err() && read(&path, 8).is_err());
    fs::remove_file(&path).expect("removed");
    chown(path.parent().expect("above"), Some(NOBODY), None).expect("given away");
    assert!(append(&path, 8).is_err());
    chown(path.parent().expect("above"), Some(0), None).expect("taken back");
    chown(state.path(), Some(NOBODY), None).expect("given away");
    assert!(append(&path, 8).is_err());
    assert!(!path.exists());
}
