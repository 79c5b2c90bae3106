//! The configuration from the user's view: its location, precedence and error messages.

use std::fs;
use std::path::PathBuf;

use crate::support::fake_machine::{Outcome, dashboard, gputop, is_root, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::gpu_shows;
use crate::support::terminal::Launch;

/// A configuration home with a `config.toml`.
struct Home(tempfile::TempDir);

impl Home {
    fn new(text: &str) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.write("config.toml", text);
        home
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("gputop")
    }

    fn config(&self) -> PathBuf {
        self.folder().join("config.toml")
    }

    /// Runs a subcommand with this home and these environment variables.
    fn run(&self, variables: &[(&str, &str)], args: &[&str]) -> Outcome {
        let mut command = gputop(args);
        command.env("XDG_CONFIG_HOME", self.0.path());
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        Outcome {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn assert_wrong(&self, sentence: &str) {
        self.run(&[], &["config", "check"]).assert_refused(2, sentence);
    }
}

/// Returns a setting's line in the output of `config print`.
fn line<'a>(printed: &'a Outcome, name: &str) -> &'a str {
    assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""));
    let begin = format!("{name} = ");
    let mut lines = printed.out.lines();
    lines.find(|line| line.starts_with(&begin)).unwrap()
}

#[test]
fn flags_override_environment_and_environment_overrides_file() {
    let home = Home::new("interval = \"2s\"\ntheme = \"light\"\nascii = true\n");
    let path = home.config().display().to_string();
    let variables = [("GPUTOP_INTERVAL", "3s"), ("GPUTOP_THEME", "16")];
    let printed = home.run(&variables, &["config", "print", "--theme", "dark"]);
    assert_eq!(line(&printed, "interval"), "interval = \"3s\"  # GPUTOP_INTERVAL");
    assert_eq!(line(&printed, "theme"), "theme = \"dark\"  # --theme");
    assert_eq!(line(&printed, "ascii"), format!("ascii = true  # {path}, line 3"));
    assert_eq!(line(&printed, "quit"), "quit = [\"q\"]  # default");
    let printed = home.run(&[], &["config", "print"]);
    assert_eq!(line(&printed, "theme"), format!("theme = \"light\"  # {path}, line 2"));
}

#[test]
fn config_print_output_is_a_valid_configuration() {
    let printed = Home::new("").run(&[], &["config", "print"]);
    assert_eq!(line(&printed, "ascii"), "ascii = false  # default, from the locale");
    let again = Home::new(&printed.out);
    let checked = again.run(&[], &["config", "check"]);
    assert_eq!(checked.out, format!("{} is valid\n", again.config().display()));
    assert_eq!(checked.code, Some(0));
}

#[test]
fn configuration_path_has_three_sources() {
    let home = Home::new("interval = \"2s\"\n");
    home.write("other.toml", "interval = \"3s\"\n");
    home.write("third.toml", "interval = \"4s\"\n");
    let path = |name: &str| home.folder().join(name).display().to_string();
    let (other, third) = (path("other.toml"), path("third.toml"));
    let variable = [("GPUTOP_CONFIG", other.as_str())];
    for (variables, flag, shown) in [
        (&[][..], &[][..], &path("config.toml")),
        (&variable, &[], &other),
        (&variable, &["--config", &third], &third),
        (&[("GPUTOP_CONFIG", "")], &[], &path("config.toml")),
    ] {
        let reported = home.run(variables, &[&["config", "path"], flag].concat());
        assert_eq!(reported.out, format!("{shown}\n"));
        let printed = home.run(variables, &[&["config", "print"], flag].concat());
        assert!(line(&printed, "interval").contains(shown.as_str()));
    }
    fs::remove_file(home.config()).unwrap();
    let checked = home.run(&[], &["config", "check"]);
    let expected = format!("{} does not exist; the defaults apply\n", path("config.toml"));
    assert_eq!((checked.code, checked.out), (Some(0), expected));
}

#[test]
fn configuration_mistake_is_reported_with_its_line() {
    let home = Home::new("");
    let path = home.config().display().to_string();
    for (text, sentence) in [
        ("\nthem = \"dark\"", "line 2: unknown key `them`; did you mean `theme`?"),
        (
            "interval = 2",
            "line 1: `interval`: invalid type: integer `2`, expected a string, such as \"1s\"",
        ),
        ("interval = \"5ms\"", "line 1: interval 5ms is out of range; use 100ms to 1h"),
        ("[keys]\nqiut = \"x\"", "line 2: unknown action `qiut`; did you mean `quit`?"),
        (
            "[keys]\n\nup = \"hyper-x\"",
            "line 3: `hyper-x`, bound to action `up`, is not a valid key; use a character, or a name such as enter, pgup, f5, ctrl-x",
        ),
        (
            "[hosts]\n\nall = [\"gpu1\", \"-oProxyCommand=x\"]",
            "line 3: `-oProxyCommand=x` is not a valid host: use [user@]host[:port]",
        ),
        ("[host]\n", "line 1: unknown key `host`; did you mean `hosts`?"),
        ("density = \"tight\"", "line 1: unknown density `tight`; expected one of normal, compact"),
        (
            "[keys]\nup = \"s\"",
            "line 2: key `s` is bound to both `up` and `sort`; bind one of them to another key, or to none: `sort = []`",
        ),
    ] {
        home.write("config.toml", text);
        home.assert_wrong(&format!("{path}, {sentence}"));
    }
    // Files that cannot be read.
    fs::write(home.config(), b"theme = \"\xff\"").unwrap();
    home.assert_wrong(&format!(
        "cannot read configuration {path}: stream did not contain valid UTF-8"
    ));
    fs::remove_file(home.config()).unwrap();
    fs::create_dir(home.config()).unwrap();
    home.assert_wrong(&format!("cannot read configuration {path}: Is a directory (os error 21)"));
    // A file named by `--config` must exist.
    let missing = home.run(&[], &["--config", "/no/such.toml", "config", "check"]);
    missing.assert_refused(
        2,
        "cannot read configuration /no/such.toml: No such file or directory (os error 2)",
    );
    let variable =
        home.run(&[("GPUTOP_INTERVAL", "soon")], &["--config", "/dev/null", "config", "print"]);
    variable.assert_refused(2, "GPUTOP_INTERVAL: `soon` is not a duration; use 100ms to 1h");
}

#[test]
fn user_theme_is_found_by_name() {
    let home = Home::new("theme = \"mine\"");
    home.write("themes/mine.toml", "base = \"dark\"\ntitle = \"#010203\"\n");
    assert_eq!(home.run(&[], &["config", "check"]).code, Some(0));
    let terminal = Launch::gputop().args(["demo"]).env("XDG_CONFIG_HOME", home.0.path()).start();
    wait_until("the colour of a title", || {
        let drawn = terminal.raw();
        drawn.windows(10).any(|seen| seen == b"38;2;1;2;3")
    });
    terminal.send("q");
    assert!(terminal.wait_exit().success());
}

#[test]
fn invalid_theme_is_reported_with_its_line() {
    let home = Home::new("theme = \"mine\"");
    let mine = home.folder().join("themes/mine.toml");
    for (text, sentence) in [
        ("base = \"dark\"\nwran = \"red\"", ", line 2: unknown role `wran`; did you mean `warn`?"),
        (
            "base = \"dark\"\n\nwarn = 208",
            ", line 3: `warn` must be a colour in quotes or a style such as { fg = \"#8a8f98\", bold = true }",
        ),
    ] {
        home.write("themes/mine.toml", text);
        home.assert_wrong(&format!("{}{sentence}", mine.display()));
    }
    home.write("themes/mine.toml", "text = \"default\"");
    let lacking = home.run(&[], &["config", "check"]);
    assert!(lacking.err.contains("missing roles: `dim`, `title`, "), "{lacking:?}");
    assert_eq!(lacking.err.lines().count(), 1);
    // A theme that is not in use is checked too.
    home.write("config.toml", "");
    assert_eq!(home.run(&[], &["config", "check"]).err, lacking.err);
    fs::remove_file(&mine).unwrap();
    home.write("config.toml", "theme = \"drak\"");
    let path = home.config().display().to_string();
    home.assert_wrong(&format!("{path}, line 1: unknown theme `drak`; did you mean `dark`?"));
    let flag = home.run(&[], &["--theme", "../mine", "config", "check"]);
    flag.assert_refused(
        2,
        "--theme: unknown theme `../mine`; expected one of dark, light, colour-blind, 16, mono, auto",
    );
}

#[test]
fn the_dashboard_is_not_opened_on_a_wrong_configuration_and_explanations_need_none() {
    let home = Home::new("theme = 1");
    let terminal = Launch::gputop().args(["demo"]).env("XDG_CONFIG_HOME", home.0.path()).start();
    assert_eq!(terminal.wait_exit().exit_code(), 2);
    assert!(terminal.text().contains("`theme`: invalid type"));
    assert_eq!(home.run(&[], &["cards"]).code, Some(0));
    let doctor = home.run(&[], &["doctor"]).out;
    let row = doctor.split("\nNO ").find(|row| row.trim_start().starts_with("configuration"));
    assert!(row.is_some_and(|row| row.contains("`theme`: invalid type")), "{doctor}");
}

#[test]
fn the_dashboard_obeys_the_users_keys_and_its_help_shows_them() {
    let home = Home::new("density = \"compact\"\n[keys]\nhelp = [\"9\", \"f1\"]\nquit = \"8\"\n");
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).env("XDG_CONFIG_HOME", home.0.path()).start();
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    assert!(!terminal.text().contains("VRAM used"));
    terminal.send("z");
    terminal.wait_text("VRAM used");
    // A key that is no longer bound, and then one that is.
    terminal.send("q9");
    terminal.wait_text("Help: Overview");
    terminal.wait_for(|s| s.contents().contains("8 "), "the user's key");
    terminal.send("9");
    terminal.wait_text("more below");
    let quits =
        |line: &str| line.contains("8 ") && line.contains("Go back; quit from the first screen");
    while !terminal.text().lines().any(quits) {
        let before = terminal.text();
        assert!(before.contains("more below"), "{before}");
        terminal.send("\x1b[6~");
        terminal.wait_for(|s| s.contents() != before, "the next page");
    }
    terminal.send("88");
    assert!(terminal.wait_exit().success());
}

/// `sudo -E gputop`: the home and the XDG variables are those of the calling user.
#[test]
fn root_uses_no_settings_incidents_and_log_of_another_user() {
    if !is_root() {
        return;
    }
    let home = Home::new("on_incident = \"touch owned\"\n");
    let folder = home.0.path().to_str().unwrap().to_owned();
    // A log of an older version, which its owner replaced with a link to a victim file.
    let victim = home.0.path().join("victim");
    fs::write(&victim, "x".repeat(2 << 20)).unwrap();
    std::os::unix::fs::symlink(&victim, home.folder().join("gputop.log")).unwrap();
    std::os::unix::fs::chown(home.0.path(), Some(65_534), None).unwrap();
    let why = format!("{folder} belongs to another user (65534), but gputop runs as root");
    let variables = [("HOME", folder.as_str()), ("XDG_STATE_HOME", &folder)];

    let fake = FakeNvml::new("[[gpu]]\n");
    let mut once = gputop(["once"]);
    once.envs(fake.env()).env("XDG_CONFIG_HOME", &folder).envs(variables);
    let output = once.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.starts_with("gputop: your settings, incidents and log are not used: "), "{err}");
    assert!(err.contains(&why), "{err}");

    let printed = home.run(&variables, &["config", "print"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.out.contains("on_incident = \"\"  # default"), "{}", printed.out);
    for args in [&["config", "check"][..], &["config", "path"], &["incidents"]] {
        let refused = home.run(&variables, args);
        assert_eq!(refused.code, Some(2), "{args:?}");
        assert!(refused.err.contains(&why), "{args:?}: {}", refused.err);
    }
    let config = home.config();
    let named = [("XDG_CONFIG_HOME", "/nonexistent"), ("GPUTOP_CONFIG", config.to_str().unwrap())];
    let printed = home.run(&named, &["config", "print"]);
    assert!(printed.err.contains(&why), "{}", printed.err);
    assert_eq!(fs::metadata(&victim).unwrap().len(), 2 << 20);
    assert!(!home.folder().join("incidents").exists());
}
