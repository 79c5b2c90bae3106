use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn shown(arguments_in: &[&str]) -> Vec<String> {
    arguments(arguments_in.iter().map(|a| a.as_bytes()))
        .into_iter()
        .map(|a| String::from_utf8_lossy(&a).into_owned())
        .collect()
}

fn shown_text(line: &str) -> String {
    String::from_utf8_lossy(&text(line.as_bytes())).into_owned()
}

/// Words are separated by `¦`.
#[rustfmt::skip]
const ORDINARY_COMMAND_LINES: &[&str] = &[
    "python¦-u¦train.py¦--lr¦3e-4¦--max_tokens¦4096¦--tokenizer=gpt2¦--pad-token-id¦0",
    "torchrun¦--nproc_per_node=8¦--rdzv_id=123¦--rdzv_endpoint=node17:29400¦fsdp.py¦--eos_token¦</s>",
    "/usr/bin/python3¦-m¦torch.distributed.run¦--master_addr=10.0.0.1¦--master_port¦29500¦x.py",
    "python¦-c¦import torch; x = torch.empty(1 << 30, device='cuda'); input()",
    "docker¦run¦-p¦8080:80¦-u¦1000:1000¦--user¦1000:1000¦-v¦/a:/b¦img:latest",
    "pip¦install¦git+https://github.com/org/repo@v1.2¦https://host/pkg/@scope/x",
    "ssh¦-p¦22¦git@github.com¦git clone ssh://git@github.com/org/repo",
    "vllm¦serve¦meta-llama/Llama-3-8B¦--port¦8000¦--served-model-name¦hf_transfer_model",
    "python¦train.py¦model.hidden_key=64¦sort_key=name¦--key¦image¦--use-auth-token¦--fp16",
    "python¦x.py¦--use_auth_token=True¦--token¦none¦--passes¦3¦--pass¦2",
    "bash¦-c¦export HF_TOKEN=$HF_TOKEN; python don't.py | tee out.log && echo token count: 12",
    r#"python¦x.py¦--ckpt¦/data/sha/9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c¦--cfg¦{"lr": 1, "pad_token": "<pad>"}"#,
    "srun¦--export=ALL,LR=1¦-p¦gpu¦python¦x.py¦--password-file¦/run/pw",
    "mysql¦-u¦root¦-p¦training",
    "nsys¦profile¦-o¦report¦python¦sk-learn-pipeline-for-testing.py¦¦-¦--",
];

#[test]
fn keeps_ordinary_command_lines() {
    for line in ORDINARY_COMMAND_LINES {
        let words: Vec<&str> = line.split('¦').collect();
        assert_eq!(shown(&words), words);
    }
}

#[test]
fn hides_secrets_and_keeps_the_rest_of_the_line() {
    #[rustfmt::skip]
    let cases = [
        ("a¦--api-key¦s3cr3t¦--lr¦1", "a¦--api-key¦***¦--lr¦1"),
        ("a¦--api-key=s3=cr,3t¦x", "a¦--api-key=***¦x"),
        ("a¦--password¦two words", "a¦--password¦***"),
        ("env¦WANDB_API_KEY=abc¦HOME=/root¦x", "env¦WANDB_API_KEY=***¦HOME=/root¦x"),
        ("docker¦run¦-e¦HF_TOKEN=abc¦--env=PGPASSWORD=a", "docker¦run¦-e¦HF_TOKEN=***¦--env=PGPASSWORD=***"),
        ("x¦https://ana:p@ss@host/p?x=1", "x¦https://***@host/p?x=1"),
        ("x¦https://ana:pa/ss@host/p", "x¦https://***@host/p"),
        ("x¦https://0123456789abcdef@github.com/o/r", "x¦https://***@github.com/o/r"),
        ("x¦https://h/p?token=abc&user=1", "x¦https://h/p?token=***&user=1"),
        ("curl¦-H¦Authorization: Bearer abc.def", "curl¦-H¦Authorization: ***"),
        ("curl¦-u¦ana:pw¦-uana:pw", "curl¦-u¦ana:***¦-uana:***"),
        ("mysql¦-uroot¦-pgeheim¦db", "mysql¦-uroot¦-p***¦db"),
        ("sshpass¦-p¦geheim¦ssh¦h", "sshpass¦-p¦***¦ssh¦h"),
        ("docker¦login¦-u¦ana¦-p¦pw¦reg", "docker¦login¦-u¦ana¦-p¦***¦reg"),
        ("wandb¦login¦0123abc", "wandb¦login¦***"),
        ("aws¦configure¦set¦aws_secret_access_key¦x/y", "aws¦configure¦set¦aws_secret_access_key¦***"),
        ("x¦--foo¦hf_abcdefghijABCDEFGHIJ", "x¦--foo¦***"),
        ("x¦--key¦9f8e7d6c5b4a39281706f5e4d3c2b1a0", "x¦--key¦***"),
        ("x¦https://hooks.slack.com/services/T0/B0/XX", "x¦https://hooks.slack.com/services/***"),
    ];
    for (line, expected) in cases {
        let words: Vec<&str> = line.split('¦').collect();
        assert_eq!(shown(&words).join("¦"), expected);
    }
}

#[test]
fn searches_scripts_and_code_in_one_argument() {
    let cases = [
        ("export HF_TOKEN=abc; python x.py --lr 1", "export HF_TOKEN=***; python x.py --lr 1"),
        ("TOKEN=\"a b\" python x.py", "TOKEN=\"***\" python x.py"),
        ("bash -c 'x --token abc --lr 1'", "bash -c 'x --token *** --lr 1'"),
        ("x --password \"a b\" --lr 1", "x --password \"***\" --lr 1"),
        ("run([\"x\", \"--token\", \"abc\"], 1)", "run([\"x\", \"--token\", \"***\"], 1)"),
        ("login(token='abc', lr=1)", "login(token='***', lr=1)"),
        ("os.environ[\"HF_TOKEN\"] = \"abc\"", "os.environ[\"HF_TOKEN\"] = \"***\""),
        ("{\"api_key\": \"a b\", \"lr\": 1}", "{\"api_key\": \"***\", \"lr\": 1}"),
        (
            "{\\\"api_key\\\": \\\"a b\\\", \\\"lr\\\": 1}",
            "{\\\"api_key\\\": \\\"***\\\", \\\"lr\\\": 1}",
        ),
        ("-H 'Cookie: a=b; c=d' -x", "-H 'Cookie: ***' -x"),
        ("sent Bearer abcdef to host", "sent Bearer *** to host"),
        ("DB_PASSWORD=password python x.py", "DB_PASSWORD=*** python x.py"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- x",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(shown_text(line), expected);
    }
}

#[test]
fn keeps_code_schemas_and_messages_without_a_secret() {
    for line in [
        "self._password = password",
        "$token = Get-AzAccessToken",
        "String token = System.getenv(\"TOKEN\");",
        "url = f\"postgresql://{user}:{password}@{host}/{db}\"",
        "logger.info(\"password: %s\", mask(password))",
        "if password != confirm_password:",
        "export TOKEN=$(cat /run/secrets/token)",
        "{\"password\": {\"type\": \"string\", \"minLength\": 8}}",
        "{\"api_key\":null,\"method\":\"password\",\"result\":\"denied\"}",
        "{Host:db01 User:ana Password: SSLMode:disable}",
        "train.py: error: argument --token: expected one argument",
        "  --hf-token HF_TOKEN   The token to use for gated models",
        "level=error msg=\"invalid password\" user=ana ip=10.0.0.9",
        "Please enter your password to continue",
        "MountVolume.SetUp failed for volume \"hf-secret\" : secret \"hf-secret\" not found",
        "idempotency-key: b03f1754-a476-a03b-4915-69815b884528",
        "required: --api-key\nerror: see --help",
    ] {
        assert_eq!(shown_text(line), line);
    }
}

/// A terminal breaks lines anywhere, and colours begin and end anywhere.
#[test]
fn hides_secrets_that_line_breaks_and_colours_interrupt() {
    let secret = "hf_k7ZpQ9mX2vLr8TsWbN4cYd6FgHjA1eUoK3iS5";
    for before in
        ["login with token=", "python train.py --api-key ", "sent Bearer ", "could not use "]
    {
        for at in 1..secret.len() {
            let (first, rest) = secret.split_at(at);
            let line = format!("2026-11-22 10:00:00 INFO {before}");
            let indent = if at % 2 == 0 { "    " } else { "" };
            let broken = format!("{line}{first}\n{indent}{rest} in 3 s\nstep 2\n");
            let shown = shown_text(&broken);
            // A part of one character is left alone.
            let parts = [first, rest].into_iter().filter(|part| part.len() > 3 && *part != "hf_");
            for part in parts {
                assert!(!shown.contains(part), "{broken} -> {shown}");
            }
            assert!(shown.ends_with(" in 3 s\nstep 2\n"), "{shown}");
            let coloured = format!("{line}\x1b[1m{first}\x1b[0;31m{rest}\x1b[0m in 3 s");
            let shown = shown_text(&coloured);
            assert_eq!(shown, format!("{line}\x1b[1m***\x1b[0m in 3 s"), "{coloured}");
        }
    }
}

#[test]
fn hides_keys_up_to_their_end_and_no_further() {
    let body = "k7ZpQ9mX2vLr8TsWbN4cYd6FgHjA1eUoK3iS5\nQ9mX2vLr8TsWbN4cYd6FgHjA1eUo\n";
    let kinds = [
        ("-----BEGIN RSA PRIVATE KEY-----\n", "-----END RSA PRIVATE KEY-----\n"),
        (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 2\n\n",
            "-----END PGP PRIVATE KEY BLOCK-----\n",
        ),
        (
            "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n",
            "---- END SSH2 ENCRYPTED PRIVATE KEY ----\n",
        ),
        ("-----BEGIN OpenVPN Static key V1-----\n", "-----END OpenVPN Static key V1-----\n"),
        ("Private-Lines: 2\n", "Private-MAC: 9f8e7d6c5b4a39281706f5e4d3c2b1a0\n"),
        ("AGE-SECRET-KEY-1QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", "\n"),
    ];
    for (begin, end) in kinds {
        for end in [end, ""] {
            let text = format!("step 1\n{begin}{body}{end}step 2 of the run\n");
            let shown = shown_text(&text);
            for secret in ["k7ZpQ9", "8TsWbN4", "6b7a89", "QPZRY9X8"] {
                assert!(!shown.contains(secret), "{text} -> {shown}");
            }
            assert!(
                shown.starts_with("step 1\n") && shown.ends_with("step 2 of the run\n"),
                "{shown}"
            );
        }
    }
}

#[test]
fn only_allowed_variables_show_their_value() {
    let value = |name: &str, value: &str| variable(name.as_bytes(), value.as_bytes()).value;
    assert_eq!(
        value("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True").as_deref(),
        Some("expandable_segments:True")
    );
    assert_eq!(value("RANK", "3").as_deref(), Some("3"));
    assert_eq!(value("HOME", "/home/ana"), None);
    assert_eq!(value("RANKING", "3"), None);
    assert_eq!(value("NCCL_SECRET_TOKEN", "abc"), None);
    assert_eq!(value("TORCH_HOME", "https://ana:pw@host/x").as_deref(), Some("https://***@host/x"));
    assert_eq!(variable(b"A\x1b[1m", b"x").name, "A^[[1m");
}

/// Returns the CPU time of this thread, which does not depend on what else the machine runs.
#[cfg(target_os = "linux")]
#[expect(clippy::unwrap_used)]
fn thread_cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_text_is_searched_in_linear_time() {
    // A quadratic search takes far longer than 5 s.
    #[rustfmt::skip]
    let pieces = [
        "token=", "key=", "://", "a://b:c", "sk-", "eyJ.", "--token ", "mysql -p", "\"token\":'", "'", "Bearer ",
        "\\\"", "%22token%22", "<token ", "login(\"", "| token ", "mysql ", "password is ", "a:b@",
        "-----BEGIN PRIVATE KEY-----\n", "PRIVATE KEY----", "Private-Lines: 9\n", "\x1b[1m", "k7Zp9QmX2vLr8TsW",
        "auth=('", "basic '", "token\n", "user,token\n", "user  password\n", "password:\n\n", "password \"a\" -> ",
        "AUTH \"", "a0=\"mysql\" a1=", "db:5432:", "login / x1", "priv:\n00:", "--pass <(echo ",
    ];
    for piece in pieces {
        let line = piece.repeat((16 << 10) / piece.len());
        let started = thread_cpu_time();
        let _ = text(line.as_bytes());
        let words = line.as_bytes().split(|&b| b == b' ');
        let _ = arguments(words);
        let took = thread_cpu_time() - started;
        assert!(took.as_secs() < 5, "{piece}: {took:?}");
    }
}

/// Returns command lines that contain the secret in every known form.
fn planted(secret: &str) -> Vec<Vec<String>> {
    #[rustfmt::skip]
    let templates = [
        "x|--api-key|§", "x|--api-key=§", "x|--password|§", "x|--hub_token=§", "env|MY_TOKEN=§|x", "x|--db-passwd|§",
        "x|https://u:§@h/p", "x|https://§@h/p", "x|postgres://u:§@h:5432/d", "x|http://h/?api_key=§",
        "x|http://h/?a=1&token=§&b=2", "curl|-H|Authorization: Bearer §", "curl|-H|X-Api-Key: §", "curl|-u|u:§",
        "curl|-H|Cookie: a=§; b=§", "bash|-c|export A_SECRET=§; y", "bash|-c|export A_SECRET='§' && y",
        "bash|-c|y --token § -z", "bash|-c|y --token '§' -z", "bash|-c|y --token=\"§\" -z",
        "python|-c|f(api_key='§')", "python|-c|f(api_key = \"§\")", "python|-c|d['token']='§'",
        "x|{\"password\": \"§\"}", "x|{\"password\":\"§\",\"a\":1}", "x|password: §", "x|hf_§", "x|y=ghp_§",
        "x|(sk-§)", "x|AKIA§", "wandb|login|§", "mysql|-p§", "sshpass|-p|§|ssh", "x|a.b.api_key=§",
        "x|--x=y,token=§", "x|Bearer §",
    ];
    templates
        .iter()
        .map(|template| template.split('|').map(|word| word.replace('§', secret)).collect())
        .collect()
}

proptest! {
    #[test]
    fn no_planted_secret_survives(secret in "[A-Za-z0-9]{18,40}") {
        for line in planted(&secret) {
            let words: Vec<&str> = line.iter().map(String::as_str).collect();
            for word in shown(&words) {
                prop_assert!(!word.contains(&secret), "{words:?} -> {word}");
            }
            let joined = words.join(" ");
            prop_assert!(!shown_text(&joined).contains(&secret), "{joined} -> {}", shown_text(&joined));
        }
    }

    #[test]
    fn redacted_text_stays_the_same(secret in "[A-Za-z0-9]{18,40}", next in "(--)?[a-hjl-r]{1,12}") {
        for line in planted(&secret) {
            let once = shown_text(&format!("{} {next}", line.join(" ")));
            prop_assert_eq!(shown_text(&once), once);
        }
    }

    #[test]
    fn hides_passwords_of_any_characters_in_an_argument(secret in "[!-,.-~][ -~]{3,30}") {
        for line in [vec!["x".to_owned(), "--password".into(), secret.clone()], vec!["x".into(), format!("--password={secret}")]] {
            let words: Vec<&str> = line.iter().map(String::as_str).collect();
            prop_assert!(shown(&words).iter().all(|word| !word.contains(&secret)));
        }
    }

    // The generated words use a restricted set of letters, so that they cannot contain sensitive names such as `pin`
    // and `key`, whose values would be hidden.
    #[test]
    fn keeps_words_and_numbers(words in prop::collection::vec("(--)?[a-hjl-r]{1,12}(=[0-9.]{1,8})?", 1..20)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        prop_assert_eq!(shown(&words), words);
    }

    #[test]
    fn accepts_any_bytes(bytes: Vec<u8>) {
        let _ = text(&bytes);
        let _ = arguments(bytes.split(|&b| b == 0));
    }
}
