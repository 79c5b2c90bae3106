//! Seeds of each target, from the data of other tests and from inputs that libFuzzer found.

use std::fs;
use std::path::Path;

use gputop::source::record::Recorder;
use gputop_explain::{Catalogue, explain};
use gputop_model::host::Hello;
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::Record;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Line, Update};
use gputop_model::units::{Mono, UnixMillis};

use crate::targets::repository;

/// Larger files are left out, because most changes to them would have no effect.
const MAX_SEED: usize = 64 << 10;

/// Returns all seeds of a target, including the files in `fuzz/regressions` and `fuzz/corpus`.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = match target {
        "log" => log(),
        "wire" => wire(),
        "nvidia_smi" => vec![NVIDIA_SMI.into()],
        "recording" => recording(),
        "snapshot" => files("crates/allocator/tests/data/snapshots", ".pickle"),
        "incident" => incidents(),
        "dump" => dumps(),
        "hook" => HOOK.iter().map(|text| text.as_bytes().to_vec()).collect(),
        "redact" => REDACT.iter().map(|text| text.as_bytes().to_vec()).collect(),
        "config" => config(),
        "terminal" => TERMINAL.iter().map(|text| text.as_bytes().to_vec()).collect(),
        _ => Vec::new(),
    };
    seeds.extend(files(&format!("fuzz/regressions/{target}"), ""));
    seeds.extend(files(&format!("fuzz/corpus/{target}"), ""));
    seeds.retain(|seed| seed.len() <= MAX_SEED);
    seeds
}

/// Reads the files below a folder whose names have this ending, sorted by path.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    fn collect(folder: &Path, ending: &str, into: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, ending, into);
            } else if path.to_string_lossy().ends_with(ending) {
                into.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    collect(&repository().join(folder), ending, &mut paths);
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Returns the example logs of the cards.
fn log() -> Vec<Vec<u8>> {
    let mut logs = files("tests/data/logs", ".log");
    for card in files("crates/explain/assets/cards", ".md") {
        let card = String::from_utf8(card).unwrap();
        let examples = card.split("text = '''\n").skip(1);
        logs.extend(
            examples
                .filter_map(|text| text.split("'''").next())
                .map(|text| text.as_bytes().to_vec()),
        );
    }
    logs
}

/// Returns recorded agent sessions, and lines of the recordings.
fn wire() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for session in files("tests/data/protocol", ".said") {
        let stream = session.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        // Use the beginning of a truncated session.
        let mut text = Vec::new();
        let mut decoder = zstd::Decoder::new(&session[stream..]).unwrap();
        let _ = std::io::Read::read_to_end(&mut decoder, &mut text);
        seeds.extend(lines(&text, 200));
        text.truncate(MAX_SEED);
        seeds.push(text);
    }
    seeds.extend(recorded_lines());
    seeds.extend(WIRE.iter().map(|text| text.as_bytes().to_vec()));
    seeds
}

fn recorded_lines() -> Vec<Vec<u8>> {
    let recordings = ["assets/demo.gpt.zst", "tests/data/recordings/trouble.gpt.zst"];
    let mut seeds = Vec::new();
    for name in recordings {
        let bytes = fs::read(repository().join(name)).unwrap();
        let text = zstd::decode_all(&bytes[..]).unwrap();
        // Use every fortieth frame, but all other lines, because there are few.
        let lines = lines(&text, usize::MAX).into_iter().enumerate();
        let chosen = lines.filter(|(n, line)| n % 40 == 0 || !line.starts_with(b"{\"frame\""));
        seeds.extend(chosen.map(|(_, line)| line).take(60));
    }
    seeds
}

/// Splits text into lines, each with its line break.
fn lines(text: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.take(limit).map(<[u8]>::to_vec).collect()
}

/// Returns a short recording with all kinds of lines, recordings of the tests, and groups of lines.
fn recording() -> Vec<Vec<u8>> {
    let mut recorder = Recorder::new(Vec::new(), &Hello::default()).unwrap();
    let lines = recorded_lines();
    for line in &lines {
        match Line::read(line).unwrap() {
            Line::Update(Update::Frame(frame)) => recorder.frame(&frame).unwrap(),
            Line::Update(Update::Event(event)) => recorder.event(&event).unwrap(),
            Line::Update(Update::Stacks(_, stack)) => {
                recorder.stack(stack.as_ref().as_ref().unwrap()).unwrap();
            }
            _ => {}
        }
    }
    let mut seeds = vec![recorder.finish().unwrap()];
    seeds.extend(files("tests/data/recordings", ".gpt.zst"));
    seeds.extend(lines.chunks(4).map(<[_]>::concat));
    seeds
}

/// Returns stored incidents of the example logs.
fn incidents() -> Vec<Vec<u8>> {
    let logs = log();
    let records = logs.iter().step_by(7).filter_map(|log| {
        let incident = explain(Catalogue::embedded(), "train.log", log).into_iter().next()?;
        let key = IncidentKey {
            boot_id: "1b4e28ba".into(),
            process: Some(ProcessKey::new(4_711, 99)),
            first: Mono(1_000),
            time: UnixMillis(1_763_668_000_000),
            ..IncidentKey::default()
        };
        serde_json::to_vec(&Record::new(incident, key)).ok()
    });
    records.take(40).collect()
}

/// Returns edits of each recorded dump, and complete dumps.
fn dumps() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (b'A'..=b'Z')
        .map(|choice| {
            let edits = (0..48_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes());
            std::iter::once(choice).chain(edits).collect()
        })
        .collect();
    for dump in files("crates/peek/tests/data/torch", "fresh.dump.zst") {
        seeds.push(zstd::decode_all(&dump[..]).unwrap());
    }
    seeds.push(b"gputop-dump 1\n{\"maps\":[],\"ranges\":[[4096,8]]}\nabcdefgh".to_vec());
    seeds
}

fn config() -> Vec<Vec<u8>> {
    let mut seeds = files("assets/themes", ".toml");
    seeds.extend(CONFIG.iter().map(|text| text.as_bytes().to_vec()));
    seeds
}

const NVIDIA_SMI: &str = "N node\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\nF \"name\"\n\
F \"memory.total\"\nF \"memory.used\"\nF \"memory.free\"\nF \"clocks_throttle_reasons.active\"\nF \"mig.mode.current\"\n\
V CUDA Version        : 13.0\n.\n\
b 1\nu 1001.00 1763668000\nm MemTotal:  1000 kB\nm MemAvailable:  400 kB\nc cpu  100 0 0 100 0 0 0 0\n\
l 0.20 0.18 0.12 1/80 9\ng 0, GPU-1, NVIDIA H200, 143771, 1551, 141606, 0x0000000000000044, Disabled\n\
g 1, GPU-2, NVIDIA H200, 100, 200, [N/A], [Not Supported], Enabled\ne 0\na GPU-1, 426, 1542, python3\n\
a GPU-1, 427, [N/A], [Not Found]\nd 0\n\
s 426 (python3) R 1 1 1 0 1 0 0 0 0 0 100 0 0 0 20 0 1 0 50000 100 256\n\
p   426 ana      python3 train.py --api-key x8f2c\n. 1\n\
i 2\nt # gpu pid type sm mem fb command\nt 0 426 C 91 30 1542 python3\nt 0 77 G - - 624 Xorg\n\
v GPU 1: NVIDIA H200 (UUID: GPU-2)\nv   MIG 3g.71gb     Device  0: (UUID: MIG-7)\n\
w |  1    2   0   0  |   142MiB / 72448MiB    | 56 |\n; 2\n\
b 3\nu 1003.00 1763668002\ng 0, GPU-1, NVIDIA H200, 143771, 1551, 141606, 0x0, Disabled\ne 0\nd 0\n. 3\n\
h 1010.00 1763668010\n";

/// Hellos, and events of all kinds with the figures that the diagnosis uses.
pub const WIRE: &[&str] = &[
    "{\"hello\":{\"host\":\"far\",\"boot_id\":\"1\",\"agent\":\"a\",\"ticks_per_second\":100}}\n\
     {\"hello\":{\"host\":\"far\",\"boot_id\":\"1\",\"agent\":\"a\",\"ticks_per_second\":100}}\n\
     {\"frame\":{\"seq\":1,\"mono\":1000,\"gpus\":[{\"index\":0,\"uuid\":\"GPU-1\",\"memory\":{\"total\":100},\
     \"processes\":[{\"pid\":7,\"process\":{\"pid\":7,\"start\":3},\"vram\":90}]}],\
     \"processes\":{\"at\":1000,\"list\":[{\"key\":{\"pid\":7,\"start\":3},\"command\":\"python train.py\",\"rank\":0,\
     \"job\":\"42\"}]}}}\n\
     {\"hello\":{\"host\":\"far\",\"boot_id\":\"2\",\"reduced\":true,\"kernel\":{\"missing\":\"denied\"}}}\n",
    "{\"event\":{\"boot_id\":\"1\",\"agent\":\"a\",\"seq\":1,\"mono\":2000,\"process\":{\"pid\":7,\"start\":3},\"gpu\":\"GPU-1\",\
     \"observation\":{\"kind\":\"ooms\",\"before\":0,\"after\":2,\"since\":1950,\"stats\":{\"num_ooms\":2}}}}\n\
     {\"event\":{\"seq\":2,\"mono\":2010,\"process\":{\"pid\":7,\"start\":3},\"observation\":{\"kind\":\"log\",\"first_line\":9,\
     \"text\":\"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\n\",\"why\":\"matched\"}}}\n\
     {\"event\":{\"seq\":3,\"mono\":2020,\"process\":{\"pid\":7,\"start\":3},\"observation\":{\"kind\":\"gpu_at_oom\",\
     \"memory\":{\"free\":1},\"lag\":3}}}\n\
     {\"event\":{\"seq\":4,\"mono\":3000,\"process\":{\"pid\":7,\"start\":3},\"observation\":{\"kind\":\"exit\",\"status\":1,\
     \"gpus\":[\"GPU-1\"],\"last\":{\"key\":{\"pid\":7,\"start\":3}},\"peak_vram\":90,\"oom\":{\"killed\":false}}}}\n",
    "{\"event\":{\"seq\":1,\"mono\":2000,\"gpu\":\"GPU-1\",\"observation\":{\"kind\":\"xid\",\"number\":31}}}\n\
     {\"event\":{\"seq\":2,\"mono\":2001,\"gpu\":\"GPU-1\",\"process\":{\"pid\":7,\"start\":3},\"observation\":{\"kind\":\"xid\",\
     \"number\":31,\"pid\":7,\"text\":\"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 00000008\"}}}\n\
     {\"event\":{\"seq\":3,\"mono\":9000,\"gpu\":\"GPU-1\",\"observation\":{\"kind\":\"xid\",\"number\":79,\
     \"text\":\"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\"}}}\n\
     {\"event\":{\"seq\":4,\"mono\":9001,\"gpu\":\"GPU-1\",\"observation\":{\"kind\":\"health\",\"state\":\"lost\",\"detail\":\"x\"}}}\n",
    "{\"event\":{\"mono\":5,\"process\":{\"pid\":7,\"start\":3},\"observation\":{\"kind\":\"exit\",\"status\":137,\"signal\":9,\
     \"oom\":{\"killed\":true,\"evidence\":\"Killed process 7 (python) total-vm:9kB, anon-rss:8kB\"}}}}\n\
     {\"event\":{\"mono\":6,\"process\":{\"pid\":8,\"start\":3},\"observation\":{\"kind\":\"hook\",\"what\":\"oom\",\"oom\":{\
     \"device\":0,\"requested_bytes\":9,\"free_bytes\":1,\"limit_bytes\":10}}}}\n\
     {\"event\":{\"mono\":7,\"process\":{\"pid\":8,\"start\":3},\"observation\":{\"kind\":\"replayed\",\"ordinal\":0}}}\n\
     {\"event\":{\"mono\":8,\"observation\":{\"kind\":\"kept\",\"uid\":\"01kq3v7-x2c9\",\"record\":{\"schema\":1}}}}\n\
     {\"holder_summary\":{\"process\":{\"pid\":8,\"start\":3},\"at\":6,\"allocated\":9,\"groups\":[{\"name\":\"model.w\"}]}}\n",
];

const HOOK: &[&str] = &[
    "{\"what\": \"process\", \"rank\": 3, \"python\": \"3.11.7\", \"torch\": \"2.6.0\"}\n\
     {\"what\": \"oom\", \"time\": 5, \"steps\": {\"begun\": 1, \"done\": 0}, \"device\": 1, \"requested_bytes\": 2147483648, \
     \"largest_free_block\": 644245094, \"pools\": [{\"pool\": \"large\", \"free_bytes\": 9}], \"new\": 1}\n\
     {\"what\": \"exception\", \"type\": \"KeyError\", \"message\": \"token=hf_abcdefghijklmnopqrstuvwxyz0123456789\", \
     \"traceback\": \"a\\u001b[31m\\nb \\u202e c\"}\n{\"what\": \"graph\", \"nodes\": 3}\n{\"wh",
    "{\"what\": \"statistics\", \"allocators\": [{\"framework\": \"torch\", \"device\": 1, \
     \"allocated_bytes\": {\"current\": 5, \"peak\": 9}, \"num_ooms\": 2}, {\"framework\": \"jax\", \"device\": 2, \
     \"allocator\": \"bfc\", \"allocated_bytes\": {\"current\": 5, \"peak\": 9}, \"reserved_bytes\": {\"current\": 8}, \
     \"limit_bytes\": 100}, {\"framework\": \"cupy\", \"device\": 0, \"allocator\": \"memory_pool\"}]}",
];

const REDACT: &[&str] = &[
    "python\0train.py\0--lr\x003e-4\0--api-key\x008f2c6d1e\0--name=run",
    "curl -u ana:pw https://ana:pw@host/x?token=abc&sig=a%2Bb -H 'Authorization: Bearer abc.def.ghi'",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 PATH=/usr/bin python train.py",
    "export AWS_SECRET_ACCESS_KEY=\"abc/def+ghi\"; mysql -phunter2 --password hunter2",
    "2026-11-22 INFO login(token='hf_abcdefghijklmnopqrstuvwxyz0123456789') ok\n{\"password\": \"x\", \"n\": 1}",
    "CUDA_VISIBLE_DEVICES=0,1\nHF_TOKEN=hf_abc\nHTTP_PROXY=http://u:p@proxy:3128",
    "os.environ.setdefault(\"HF_TOKEN\", \"abc\"); auth=HTTPBasicAuth('ana', 'x1') Cookie: a=b; c=d\r\nServer=db;Pwd=x;",
    "%22token%22%3A%22abc%22 &quot;token&quot;:&#34;abc&quot; {\\\"a\\\": \\\"\\u0022pw\\u0022\\\"} <password>x</password>",
    "| token | x | **Password:** `x`\n- name: TOKEN\n  value: x\npassword: |\n  x\npassword for ana is x1y2z3, using x1y2z3 as key",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\nPrivate-Lines: 2\nabc\nPrivate-MAC: 0\n-----END RSA PRIVATE KEY-----",
    "\x1b[1mtoken\x1b[0m=\x1b[31mab\x1b[0mcd k7Zp9QmX2vLr8TsWbN4cYd6F.Cl2FMQ \x1b]0;x\x07\n$ vault login x1y2z3 | docker login <<< x",
];

const CONFIG: &[&str] = &[
    "# mine\ninterval = \"2s\"\ntheme = \"dark\"\ndensity = \"compact\"\nascii = true\nmouse = false\nreadonly = true\n\
     on_incident = \"notify-send x\"\nprobe_interval = \"1m\"\n[keys]\nquit = \"x\"\nup = [\"w\", \"up\"]\n\
     [hosts]\nall = [\"gpu1\", \"me@gpu2:2222\", \"via:sh\"]\n",
    "vram>10GiB user:ana\nstate:oom !cmd:python\nsm>=50 gpu:0\npid:4711",
];

const TERMINAL: &[&str] = &[
    "jjkk\x1b[B\x1b[A\r\x1b\tq",
    "\tjM\x1b[C\x1b[Dn\x1bd\x1b",
    "/user:ana\r\x1b/vram>10\x7f\x7f\x1b",
    "?jjjj\x1b[6~\x1b[5~\x1b",
    "\x1b[<0;10;5M\x1b[<0;10;5m\x1b[<64;40;10M\x1b[<65;40;10M\x1b[<0;70;24M",
    "\x1b[8;6;40tjj\x1b[8;60;200tM\x1b[8;1;1t\x1b[8;24;80t",
    "iwPcsotgzy1234567890 \x0c\x1b[Z\x1b[H\x1b[F",
    "\x1b[200~pasted \u{6570} text\x1b[201~\x03",
];
