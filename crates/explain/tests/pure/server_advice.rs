//! The first fix for servers, image programs and drivers: it fits where the program runs, and it changes something.

use gputop_explain::{Catalogue, explain};
use gputop_model::incident::Incident;

fn first(log: &str) -> Incident {
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    found.into_iter().next().expect("an incident")
}

/// Checks the card and the first fix for a log.
fn check(log: &str, id: &str, fix: &str) {
    let incident = first(log);
    assert_eq!(incident.id, id, "{log}");
    let change = &incident.fixes[0].change;
    assert!(change.contains(fix), "{log}\n{change}");
}

const NO_CACHE: &str = "ValueError: To serve at least one request with the model's max seq len (40960), (5.0 GiB KV \
    cache is needed, which is larger than the available KV cache memory (2.5 GiB). Based on the available memory, the \
    estimated maximum model length is 20480.\n";
const NO_CUDA: &str = "AssertionError: Torch not compiled with CUDA enabled\n";
const SMALL_SHM: &str = "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 4194660 bytes, \
    error: No space left on device (28)\n";

#[test]
fn a_container_gets_the_option_and_the_place_for_it() {
    let own = first(&format!("$ vllm serve org/model --port 8000\n{NO_CACHE}"));
    assert_eq!(own.fixes[0].change, "vllm serve MODEL --max-model-len 20400");
    let compose = format!("services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n{NO_CACHE}");
    let fix = &first(&compose).fixes[0];
    assert_eq!(fix.change, "--max-model-len 20400");
    assert!(fix.effect.as_ref().is_some_and(|e| e.contains("`command:` in the compose file")));
    let pod = format!("$ kubectl logs llm-0\nINFO 03-02 10:00:00 [core.py:70] vLLM\n{NO_CACHE}");
    let fix = &first(&pod).fixes[0];
    assert!(fix.effect.as_ref().is_some_and(|e| e.contains("`args:`")), "{fix:?}");
    let ollama = "$ docker logs ollama\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: \
        cudaMalloc failed: out of memory\nllama runner process has terminated: exit status 2\n";
    let fixes = first(ollama).fixes;
    let fix = fixes.iter().find(|fix| fix.change.starts_with("OLLAMA_")).expect("a variable");
    assert!(!fix.change.contains("serve"), "{fix:?}");
    assert!(fix.effect.as_ref().is_some_and(|e| e.contains("`environment:`")), "{fix:?}");
}

#[test]
fn shared_memory_of_a_pod_is_a_volume() {
    check(&format!("node9:71:90 [2] {SMALL_SHM}"), "dataloader-shm-bus-error", "--shm-size");
    let pod = format!("llm-server-6d4b75cb6d-h7x2k:71:90 [2] {SMALL_SHM}");
    check(&pod, "dataloader-shm-bus-error", "emptyDir: {medium: Memory");
}

#[test]
fn a_portable_edition_gets_its_own_python() {
    let frame = "  File \"D:\\ui\\python_embeded\\Lib\\site-packages\\torch\\cuda\\__init__.py\", line 9, in f\n";
    let log = format!("got prompt\nTraceback (most recent call last):\n{frame}{NO_CUDA}");
    check(&log, "cuda-no-device-100", r".\python_embeded\python.exe -s -m pip install");
}

#[test]
fn an_option_that_is_in_use_is_not_recommended() {
    let oom = "!!! Exception during processing !!! Allocation on device \nOutOfMemoryError: Allocation on device \n";
    let changes = |command: &str| {
        let fixes = first(&format!("{command}\ngot prompt\n{oom}")).fixes;
        fixes.into_iter().map(|fix| fix.change).collect::<Vec<_>>().join("\n")
    };
    assert!(changes("$ python main.py --listen").contains("--lowvram"));
    assert!(!changes("$ python main.py --listen --lowvram").contains("--lowvram"));
}

#[test]
fn a_logged_warning_is_not_the_failure() {
    let log = "WARNING 03-02 10:00:00 _custom_ops.py:15] Failed to import from vllm._C with \
        ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n\
        ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Quadro RTX 5000 \
        GPU has compute capability 7.5. You can use float16 instead by explicitly setting the`dtype` flag in CLI, for \
        example: --dtype=half.\n";
    check(log, "dtype-unsupported-on-gpu", "--dtype half");
}

#[test]
fn the_first_fix_changes_something() {
    for (log, id, fix) in [
        (
            "[    9.101000] NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP\n\
             [    9.201000] NVRM: GPU 0000:2a:00.0: RmInitAdapter failed! (0x62:0x40:2168)\n",
            "adapter-init-failed",
            "remove the power",
        ),
        (
            "NVRM: Xid (PCI:0000:d1:00): 119, pid=3120, name=nvidia-smi, Timeout after 6s of waiting for RPC \
             response from GPU7 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a618 0x10).\n",
            "xid-gpu-firmware-hang",
            "drain this machine",
        ),
        (
            "'make' -j16 NV_EXCLUDE_BUILD_MODULES='' KERNEL_UNAME=6.14.0-24-generic modules...(bad exit status: 2)\n\
             Error! Bad return status for module build on kernel: 6.14.0-24-generic (x86_64)\n\
             Consult /var/lib/dkms/nvidia/550.120/build/make.log for more information.\n",
            "driver-build-failed",
            "boot menu",
        ),
        (
            "$ docker run --gpus=all -it llm bash\nCUDA error 304 at /src/ggml-cuda.cu:5065: OS call failed or \
             operation not supported on this OS\n",
            "cuda-init-unknown-3-999",
            "seccomp=unconfined",
        ),
        (
            "/src/llama_cpp_python-0.3.9/vendor/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:75: CUDA error\n\
             CUDA error: no kernel image is available for execution on the device\n",
            "cuda-no-kernel-image-209",
            "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python",
        ),
        (
            "thread 'main' panicked at 'Unable to warmup model: Generation(\"CUDA out of memory. Tried to allocate \
             2.00 GiB\")', router/src/main.rs:216:18\nERROR text_generation_launcher: Webserver Crashed\n",
            "oom-capacity",
            "--max-batch-prefill-tokens",
        ),
        (
            "Could not locate cudnn_ops64_9.dll. Please make sure it is in your library path!\n\
             INFO:faster_whisper:Processing audio\n",
            "library-not-found",
            "nvidia-cudnn-cu12",
        ),
    ] {
        check(log, id, fix);
    }
}

/// Ollama prints the names of AMD's variables, without values, on every machine.
#[test]
fn a_variable_without_a_value_shows_no_amd_gpu() {
    let incident = first(
        "level=INFO msg=\"server config\" env=\"map[HSA_OVERRIDE_GFX_VERSION: OLLAMA_DEBUG:false]\"\n\
         level=DEBUG msg=\"amdgpu driver not detected /sys/module/amdgpu\"\n\
         CUDA error: unspecified launch failure\n  current device: 0, in function ggml_backend_cuda_synchronize at \
         ggml-cuda.cu:2401\n",
    );
    assert_eq!(incident.id, "cuda-launch-failure-719");
    for fix in &incident.fixes {
        assert!(!fix.change.contains("AMD_") && !fix.change.contains("rocm"), "{fix:?}");
    }
}

#[test]
fn a_tool_environment_gets_its_own_command() {
    check(
        "  File \"/home/u/.local/share/uv/tools/whisper-ctranslate2/lib/python3.12/site-packages/faster_whisper/\
         transcribe.py\", line 9, in encode\nRuntimeError: Library libcublas.so.12 is not found or cannot be loaded\n",
        "library-not-found",
        "uv tool install TOOL --with nvidia-cublas-cu12",
    );
}

#[test]
fn the_gpu_and_the_failed_library_choose_the_fix() {
    for (log, id, fix) in [
        (
            "Welcome to KoboldCpp - Version 1.90\n  Device 0: Quadro GP100, compute capability 6.0, VMM: yes\n\
             C:\\b\\ggml-cuda\\mmv.cu:51: ERROR: CUDA kernel mul_mat_vec has no device code compatible with CUDA arch \
             520. ggml-cuda.cu was compiled for: 500,520,750\nCUDA error: unspecified launch failure\n",
            "cuda-no-kernel-image-209",
            "koboldcpp/releases",
        ),
        (
            "$ python -m sglang.launch_server --model-path m\nRuntimeError: BatchDecodeWithPagedKVCache failed with \
             error no kernel image is available for execution on the device\n",
            "cuda-no-kernel-image-209",
            "--attention-backend triton",
        ),
        (
            "  File \"faster_whisper\\transcribe.py\", line 1719, in encode\n\
             RuntimeError: cuBLAS failed with status CUBLAS_STATUS_NOT_SUPPORTED\n",
            "cublas-call-failed",
            "--compute_type float16",
        ),
        (
            "E0102 03:04:05.000001 1 model_lifecycle.cc:638] failed to load 'm' version 1: Internal: unable to create \
             stream: operation not supported\nI0102 03:04:05.000002 1 metrics.cc:877] Collecting metrics for GPU 0: \
             GRID A100D-10C\n",
            "cuda-not-supported",
            "enable_uvm",
        ),
    ] {
        check(log, id, fix);
    }
}

/// The web UI suggests more precision only if the options for it are not set.
#[test]
fn precision_is_not_the_fix_if_its_options_are_set() {
    let frame =
        "  File \"/srv/stable-diffusion-webui/modules/devices.py\", line 203, in test_for_nans\n";
    let nan = "modules.devices.NansException: A tensor with all NaNs was produced in VAE.";
    let off = " Use --disable-nan-check commandline argument to disable this check.\n";
    let hint = " This could be because there's not enough precision to represent the picture.";
    check(&format!("{frame}{nan}{hint}{off}"), "nan-output", "--no-half-vae");
    check(&format!("{frame}{nan}{off}"), "nan-output", "--opt-sdp-attention");
}
