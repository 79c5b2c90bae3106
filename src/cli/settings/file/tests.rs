use super::*;

fn parse(text: &str) -> Result<WrittenSettings, String> {
    WrittenSettings::parse(Path::new("c.toml"), text).map_err(|error| error.to_string())
}

proptest::proptest! {
    #[test]
    fn reports_errors_in_any_text_on_one_line(text in "(keys|hosts|theme|[a-z.]|[\"'=\\[\\]{}#,0-9\n -]|\\PC){0,60}") {
        if let Err(message) = parse(&text) {
            proptest::prop_assert_eq!(message.lines().count(), 1, "{}", message);
        }
    }
}

#[test]
fn records_the_line_of_each_value() {
    let text = "# mine\ninterval = \"2s\"\nascii = true\n[keys]\nquit = \"x\"\nup = [\"w\", \"up\"]\n[hosts]\nall = [\"gpu1\", \"via:sh\"]\n";
    let file = parse(text).expect("a configuration");
    let value = |(def, raw, origin): &(&SettingDef, Value, Origin)| {
        format!("{} = {raw} ({origin})", def.name)
    };
    let values: Vec<String> = file.values.iter().map(value).collect();
    assert_eq!(values, ["ascii = true (c.toml, line 3)", "interval = \"2s\" (c.toml, line 2)"]);
    let keys: Vec<_> = file.bindings.iter().map(|(b, _)| b.keys.len()).collect();
    assert_eq!(keys, [1, 2]);
    let groups: Vec<_> = file.groups.iter().map(ToString::to_string).collect();
    assert_eq!(groups, ["all = [\"gpu1\", \"via:sh\"]  # c.toml, line 8"]);
}

#[test]
fn reports_each_error_with_its_line() {
    let names = SETTINGS.iter().map(|def| def.name).chain(TABLES.iter().map(|def| def.name));
    let names = names.collect::<Vec<_>>().join(", ");
    let unknown = format!("1: unknown key `a^[[31m^Jb`; expected one of {names}");
    for (text, message) in [
        ("\"a\\u001b[31m\\nb\" = 1", unknown.as_str()),
        (
            "theme = \"dark\"\ninterval = 1",
            "2: `interval`: invalid type: integer `1`, expected a string, such as \"1s\"",
        ),
        (
            "ascii = \"yes\"",
            "1: `ascii`: invalid type: string \"yes\", expected a boolean, such as true",
        ),
        (
            "keys = 3",
            "1: `keys`: invalid type: integer `3`, expected a map, such as sort = [\"o\", \"f6\"]",
        ),
        (
            "[keys]\n\nquit = [\"q\", 1]",
            "3: `keys`: expected a key or a list of keys, such as sort = [\"o\", \"f6\"]",
        ),
        (
            "[hosts]\nall = \"gpu1\"",
            "2: `hosts`: invalid type: string \"gpu1\", expected a sequence, such as cluster = [\"gpu1\", \"me@gpu2:2222\", \"via:CMD\"]",
        ),
        (
            "[hosts]\nall = [\n  \"gpu1\",\n  \"gpu2:x\",\n]",
            "4: `x` is not a valid port: use a number from 1 to 65535",
        ),
        ("[hosts]\nall = [\"gpu1\\n\"]", "2: `gpu1^J` is not a valid host: use [user@]host[:port]"),
        ("[hosts]\nall = [\"gpu1\",\n\"gpu1\"]", "3: `gpu1` is listed twice in `all`; remove one"),
        ("[hosts]\n\nall = []", "3: group `all` is empty; add hosts as [user@]host[:port]"),
        ("[hosts]\ndemo = [\"gpu1\"]", "2: group name `demo` is a subcommand; use another name"),
    ] {
        assert_eq!(parse(text).expect_err(text), format!("c.toml, line {message}"));
    }
    let syntax = parse("theme = \"dark\"\ninterval = soon").expect_err("no TOML");
    assert!(syntax.starts_with("c.toml, line 2: invalid TOML: "), "{syntax}");
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let file = parse("interval = \"4s\"\ntheme = \"light\"\nascii = true").expect("valid");
    let variable = |name: &str| match name {
        "GPUTOP_INTERVAL" => Some("3s".to_owned()),
        "GPUTOP_THEME" => Some("dark".to_owned()),
        _ => Some(String::new()),
    };
    let interval = SETTINGS.iter().find(|def| def.name == "interval").expect("a setting");
    let flags = vec![(interval, Value::from("2s"))];
    let written = file.overridden(flags, &variable).expect("valid settings");
    let origin = |name: &str| written.origin(name).to_string();
    let text = |name: &str| written.parsed(name, "", |text| Ok(text.to_owned())).expect("a text");
    assert_eq!(text("interval"), "2s");
    assert_eq!(origin("interval"), "--interval");
    assert_eq!(text("theme"), "dark");
    assert_eq!(origin("theme"), "GPUTOP_THEME");
    assert_eq!(written.switch("ascii"), Some(true));
    assert_eq!(origin("ascii"), "c.toml, line 3");
}

#[test]
fn parses_switches_in_the_environment() {
    let ascii = |text: &str| {
        let text = text.to_owned();
        let variable = move |name: &str| (name == "GPUTOP_ASCII").then(|| text.clone());
        let written = WrittenSettings::default().overridden(Vec::new(), &variable);
        written.map(|written| written.switch("ascii")).map_err(|error| error.to_string())
    };
    assert_eq!(ascii("1"), Ok(Some(true)));
    assert_eq!(ascii("false"), Ok(Some(false)));
    assert_eq!(ascii(""), Ok(None));
    let message = "GPUTOP_ASCII: `maybe` is not a valid value; use true or false";
    assert_eq!(ascii("maybe"), Err(message.to_owned()));
}
