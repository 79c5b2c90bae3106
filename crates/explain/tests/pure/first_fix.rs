//! The first fix fits the place where the program runs: conda, Windows, a notebook, a job, one GPU.

use gputop_explain::{Catalogue, explain};
use gputop_model::incident::{Incident, Verdict};

/// Returns the first incident of a log.
fn first(log: &str) -> Incident {
    let mut found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    assert!(!found.is_empty(), "no incident in {log}");
    found.swap_remove(0)
}

/// Checks that the first fix for `log` contains `expected`, and that no advice contains a part of `unsuitable`.
#[track_caller]
fn check(log: &str, expected: &str, unsuitable: &[&str]) {
    let incident = first(log);
    let fix = incident.fixes.first().expect("a fix");
    assert!(fix.change.contains(expected), "{}: {fix:?}", incident.id);
    // Causes and the advice to avoid may name what a fix must not.
    let fixes = incident.fixes.iter().flat_map(|fix| [&fix.title, &fix.change]);
    let needs = incident.causes.iter().filter_map(|cause| cause.needs.as_ref());
    let advice: Vec<&str> = fixes.chain(needs).chain(&incident.needs).map(String::as_str).collect();
    assert_parts(&advice.join("\n"), &[], unsuitable);
}

/// Returns all advice of an incident in one text.
fn advice(incident: &Incident) -> String {
    let fixes = incident.fixes.iter().flat_map(|fix| {
        [Some(&fix.title), Some(&fix.change), fix.effect.as_ref()].into_iter().flatten()
    });
    let causes =
        incident.causes.iter().flat_map(|cause| [Some(&cause.title), cause.needs.as_ref()]);
    let lines = [&incident.title].into_iter().chain(fixes).chain(causes.flatten());
    lines
        .chain(&incident.needs)
        .chain(&incident.not_helpful)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Checks that a text contains each part of `present` and no part of `absent`.
#[track_caller]
fn assert_parts(text: &str, present: &[&str], absent: &[&str]) {
    for part in present {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    for part in absent {
        assert!(!text.contains(part), "{part} is in:\n{text}");
    }
}

const CONDA: &str = "/home/eva/miniforge3/envs/sim/lib/python3.12/site-packages";

#[test]
fn libraries_of_a_conda_environment_are_mended_with_conda() {
    check(
        &format!(
            "ImportError: {CONDA}/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_IsProfilingActive\n"
        ),
        "conda install 'mkl<2024.1'",
        &["PACKAGE"],
    );
    check(
        "Could not load library libcudnn_ops_train.so.8. Error: /opt/anaconda3/envs/seg/bin/../lib/\
         libcudnn_ops_train.so.8: undefined symbol: _Z22cudnnCheckTensorLayoutP12cudnnContext, version \
         libcudnn_ops_infer.so.8\n",
        "conda install --force-reinstall -c conda-forge cudnn",
        &["driver"],
    );
    check(
        &format!(
            "ImportError: {CONDA}/torch/lib/libtorch_cuda.so: undefined symbol: cudaGraphExecUpdate_v2, version \
             libcudart.so.11.0\n"
        ),
        "conda create -n NEW_ENVIRONMENT",
        &["PACKAGE"],
    );
    let cudnn = "E0911 11:12:13.456789 4242 cuda_dnn.cc:463] Loaded runtime CuDNN library: 9.2.0 but source was \
                 compiled with: 9.8.0.  CuDNN library needs to have matching major version.\n";
    check(
        &format!("{CONDA}/jax/_src/dispatch.py\n{cudnn}"),
        "conda install -c conda-forge 'cudnn>=9.8.0'",
        &[],
    );
    let venv = "/home/eva/sim/.venv/lib/python3.12/site-packages/jax/_src/dispatch.py";
    check(
        &format!("{venv}\n{cudnn}"),
        "pip install 'nvidia-cudnn-cu12>=9.8.0'",
        &["conda install"],
    );
}

#[test]
fn windows_gets_commands_that_windows_has() {
    const UNIX: &[&str] = &["apt", "sudo", "dmesg", "export ", "/usr/", "LD_LIBRARY_PATH"];
    check(
        "C:\\work\\app> python sample.py --compile\n\
         torch._inductor.exc.TritonMissing: Cannot find a working triton installation.\n",
        "triton-windows",
        UNIX,
    );
    check(
        "C:\\work\\app> pip install deepspeed\n  File \"C:\\Temp\\pip-install-1\\deepspeed_1\\op_builder\\builder.py\"\n\
         AssertionError: CUDA_HOME does not exist, unable to compile CUDA op(s)\n",
        "pip install --only-binary :all: deepspeed",
        UNIX,
    );
    check(
        "  File \"D:\\nets\\train.py\", line 80, in <module>\n    for x, y in loader:\n\
         RuntimeError: DataLoader worker (pid(s) 4120, 5216) exited unexpectedly\n",
        "num_workers=0",
        UNIX,
    );
    check(
        "Error no kernel image is available for execution on the device at line 89 in file \
         D:\\build\\bitsandbytes\\csrc\\ops.cu\n",
        "python -m pip install --upgrade bitsandbytes",
        &["TORCH_CUDA_ARCH_LIST", "whl/cu"],
    );
}

#[test]
fn a_hosted_notebook_is_not_a_machine_of_ones_own() {
    check(
        "/usr/local/lib/python3.12/dist-packages/cupy/_core/__init__.py in <module>\n\
         ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n\
         <ipython-input-2-0c5a3c> in <cell line: 1>()\n----> 1 import cupy\n",
        "Change runtime type",
        &["docker", "driver", "find /"],
    );
    check(
        "notebook_launcher failed:\nRuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with \
         multiprocessing, you must use the 'spawn' start method\n",
        "notebook_launcher(training_function",
        &["DataLoader("],
    );
}

#[test]
fn the_driver_library_is_looked_for_where_it_is() {
    let missing =
        "OSError: libcuda.so: cannot open shared object file: No such file or directory\n";
    check(
        &format!("5.15.90.1-microsoft-standard-WSL2\n{missing}"),
        "/usr/lib/wsl/lib",
        &["docker"],
    );
    check(
        &format!("+ srun python bench.py\n{missing}"),
        "#SBATCH --gres=gpu:1",
        &["docker", "find /"],
    );
    check(missing, "nvidia-smi -L", &["docker", "find /"]);
}

#[test]
fn a_job_script_without_a_gpu_requests_one() {
    let script = "#!/bin/bash\n#SBATCH -C gpu\n#SBATCH -N 2\nsrun fit\n";
    let error = "MisconfigurationException('No supported gpu backend found!')\n";
    check(&format!("{script}{error}"), "#SBATCH --gres=gpu:1", &["modprobe"]);
}

#[test]
fn a_mac_is_not_asked_for_nvidia_software() {
    check(
        "File /Users/kim/envs/amp/lib/python3.11/site-packages/lightning/pytorch/trainer/trainer.py:401\n\
         MisconfigurationException: No supported gpu backend found!\n",
        "accelerator=\"auto\"",
        &["nvidia", "whl/cu", "docker"],
    );
}

#[test]
fn too_many_processes_are_told_from_a_missing_set_device() {
    let error =
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n";
    let log = format!(
        "INFO - __main__ - Distributed environment: MULTI_GPU  Backend: nccl\nNum processes: 2\nProcess index: 1\n\
         Local process index: 1\nDevice: cuda:0\n{error}Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000\n"
    );
    check(&log, "accelerate launch --num_processes", &[]);
    let log =
        format!("{error}Duplicate GPU detected : rank 3 and rank 1 both on CUDA device b000\n");
    check(&log, "torchrun --nproc_per_node", &[]);
}

#[test]
fn a_timeout_in_the_first_collectives_is_one_of_the_start() {
    let report = |rank: u32| {
        format!(
            "[rank{rank}]:[E1 01:02:03.{rank} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation \
             timeout: WorkNCCL(SeqNum=2, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 \
             milliseconds before timing out.\n"
        )
    };
    let incident = first(&(report(1) + &report(2)));
    assert_eq!(incident.causes[0].id, "at-start", "{:#?}", incident.causes);
    assert!(incident.fixes[0].title.contains("rank 0"), "{:#?}", incident.fixes);
}

#[test]
fn the_change_comes_before_the_check_if_the_log_shows_the_cause() {
    check(
        "NVIDIA GeForce RTX 4070 with CUDA capability sm_89 is not compatible with the current PyTorch installation.\n\
         The current PyTorch install supports CUDA capabilities sm_37 sm_50 sm_60 sm_70.\n\
         RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        "pip install --force-reinstall torch",
        &[],
    );
    check(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).\n  File \"fit.py\", line 3\n",
        "whl/cu126",
        &[],
    );
    check(
        "2024-03-04 05:06:07.8: E xla/stream_executor/cuda/cuda_diagnostics.cc:312] kernel version 470.82.1 does not match \
         DSO version 535.104.5 -- cannot find working devices in this configuration\n",
        "grep -v compat",
        &[],
    );
    check(
        "Unique mask values: [0, 1, 5]\nNetwork: 3 input channels, 2 output channels (classes)\n\
         ../aten/src/ATen/native/cuda/NLLLoss2d.cu:104: nll_loss2d_forward_kernel: block: [1,0,0], thread: [5,0,0] \
         Assertion `t >= 0 && t < n_classes` failed.\nRuntimeError: CUDA error: device-side assert triggered\n",
        "num_classes = 6",
        &[],
    );
}

#[test]
fn an_old_nvcc_is_told_from_faulty_sources() {
    check(
        "/usr/include/c++/11/bits/std_function.h:530:146: error: parameter packs not expanded with '...':\n\
         RuntimeError: Error building extension 'voxel_ops'\n",
        "g++-10",
        &["driver"],
    );
    check(
        "nvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\n",
        "CUDA_HOME=",
        &["triton"],
    );
}

#[test]
fn native_programs_get_no_advice_for_python() {
    check(
        "0 CUDA Error: out of memory\nsolver: ./src/gpu.c:36: check_error: Assertion `0' failed.\nAborted (core dumped)\n",
        "nvidia-smi",
        &["torch", "python"],
    );
    check(
        "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n=========     at \
         scatter(int *, int)+0x90\n=========     by thread (5,0,0) in block (0,0,0)\n",
        "-lineinfo",
        &["compute-sanitizer --tool", "python"],
    );
    check(
        "make: *** [Makefile:9: solver.o] Error 1\n/usr/include/c++/11/bits/std_function.h:530:146: error: \
         parameter packs not expanded with '...':\n",
        "g++-10",
        &["pip install", "torch"],
    );
    check(
        "NSTEP = 48000\npmemd.cuda -O -i eq.mdin\nError: an illegal memory access was encountered launching \
         kernel kNLSkinTest\n",
        "shorter time step",
        &["tensor", "python"],
    );
}

#[test]
fn libraries_get_their_own_build_options_and_readers() {
    check(
        "what():  OpenCV(4.8.0) /src/modules/cudev/transform.hpp:312: error: (-217:Gpu API call) no kernel image is \
         available for execution on the device in function 'call'\n",
        "CUDA_ARCH_BIN",
        &["torch"],
    );
    check(
        "cudf/_lib/csv.pyx in cudf._lib.csv.read_csv()\nMemoryError: std::bad_alloc: CUDA error at: \
         /opt/librmm/cuda_memory_resource.hpp66: cudaErrorMemoryAllocation out of memory\n",
        "dask_cudf",
        &["torch", "cupy"],
    );
}

#[test]
fn the_layer_that_refuses_the_gpu_is_mended() {
    check(
        "PS C:\\Users\\eva> nvidia-smi\n|   0  NVIDIA A40                    TCC   |   00000000:61:00.0 Off |\n\
         eva@server:~$ uname -r\n5.15.153.1-microsoft-standard-WSL2\n\
         Failed to initialize NVML: GPU access blocked by the operating system\n",
        "-dm WDDM",
        &["docker", "modprobe"],
    );
    check(
        "Error: setting up CDI devices: failed to inject devices: failed to stat CDI host device \
         \"/dev/dri/card3\": no such file or directory\n",
        "nvidia-ctk cdi generate",
        &["apt-get", "chmod"],
    );
    check(
        "  File \"/opt/env/lib/python3.11/site-packages/submitit/core/core.py\", line 294, in results\n\
         srun: error: Unable to create step for job 880415: Invalid generic resource (gres) specification\n",
        "env $(env",
        &[],
    );
    check(
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1db4)\nNVRM: installed in this system is not supported by open\n\
         NVRM: nvidia.ko because it does not include the required GPU\nNVRM: System Processor (GSP).\n",
        "without -open",
        &["pci=realloc", "poweroff"],
    );
}

/// These programs report that they use something else and go on.
#[test]
fn a_fallback_is_not_a_failure() {
    for log in [
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.5.1+cu124 \
         with CUDA 1204 (you have 2.7.0+cu128)\nstep 1: loss 2.31\n",
        "The NVIDIA driver's CUDA version is 12.2 which is older than the PTX compiler version (12.5.40). XLA is \
         disabling parallel compilation.\nstep 1: loss 2.31\n",
    ] {
        assert!(explain(Catalogue::embedded(), "x.log", log.as_bytes()).is_empty(), "{log}");
    }
}

#[test]
fn what_worked_before_the_failure_excludes_causes() {
    check(
        "C:\\lora> accelerate launch train_network.py\n\
         steps:  22%|##        | 440/2000 [11:02<39:10,  1.51s/it, avr_loss=0.12]Traceback (most recent call last):\n\
         \x20 File \"C:\\lora\\sd-scripts\\train_network.py\", line 855, in train\n    optimizer.step()\n\
         RuntimeError: CUDA error: unknown error\n",
        "wevtutil",
        &["rmmod", "GPUS", "spawn", "dmesg"],
    );
    check(
        "/opt/tune/lib/python3.11/site-packages/axolotl/utils/distributed.py\n    with zero_first(is_local_main_process()):\n\
         torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via \
         c10d key-value store by key '0', but store->get('0') got error: wait timeout after 1800000ms\n",
        "axolotl preprocess",
        &["SOCKET_IFNAME", "rdzv"],
    );
    check(
        "/usr/include/python3.10/pyconfig.h:3:12: fatal error: x86_64-linux-gnu/python3.10/pyconfig.h: No such file or \
         directory\ncompilation terminated.\n\
         CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpab/main.c', '-O3', '-shared']' returned non-zero exit \
         status 1.\n",
        "python3-dev",
        &["build-essential"],
    );
    check(
        "torch 2.7.1+cu128 NVIDIA GeForce RTX 5090\n  File \"/work/gsplat/gsplat/rendering.py\", line 9, in render\n\
         RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        "--no-build-isolation gsplat",
        &["cu118"],
    );
}

#[test]
fn a_process_killed_while_it_loads_weights_needs_less_host_memory() {
    check(
        "Loading checkpoint shards:  40%|####      | 2/5 [00:31<00:46, 15.6s/it]WARNING:torch.distributed.elastic.\
         multiprocessing.api:Sending process 71 closing signal SIGTERM\n\
         ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 72) of binary: \
         /usr/bin/python3\n",
        "low_cpu_mem_usage",
        &["DataLoader(", "np.asarray"],
    );
}

#[test]
fn a_resumed_run_does_not_keep_its_checkpoint_on_the_gpu() {
    check(
        "Resuming training from out\nTraceback (most recent call last):\n  File \"/work/gpt/train.py\", line 299, in <module>\n\
         torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 8.00 GiB total capacity; \
         7.20 GiB already allocated; 0 bytes free; 7.30 GiB reserved in total by PyTorch)\n",
        "map_location=\"cpu\"",
        &["max_split_size_mb"],
    );
}

#[test]
fn each_training_program_gets_its_own_option() {
    check(
        "RuntimeError: One or more background workers are no longer alive. Exiting.\n\
         /opt/seg/lib/python3.10/site-packages/nnunetv2/run/run_training.py\n",
        "nnUNet_n_proc_DA",
        &["DataLoader(", "shm-size"],
    );
    check(
        "/opt/rl/lib/python3.12/site-packages/trl/trainer/grpo_trainer.py\n\
         /opt/rl/lib/python3.12/site-packages/vllm/device_allocator/cumem.py\n\
         RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        "vllm_gpu_memory_utilization",
        &["vllm serve", "--max-model-len"],
    );
    check(
        "cmd = python -u -m deepspeed.launcher.launch train.py --deepspeed zero3.json --bf16 True --num_train_epochs 2\n\
         ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0\n",
        "--fp16 true",
        &[],
    );
    check(
        "/opt/ds/lib/python3.10/site-packages/deepspeed/runtime/fp16/loss_scaler.py\n\
         Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
        "bf16",
        &["initial_scale"],
    );
}

/// One flush is no reason to change anything.
#[test]
fn a_single_cache_flush_is_not_reported() {
    let log = "[stage3.py:1850:step] 1 pytorch allocator cache flushes since last step. this happens when there is high \
               memory pressure\n{'train_runtime': 4210.3, 'train_loss': 1.4, 'epoch': 1.0}\n";
    assert!(explain(Catalogue::embedded(), "x.log", log.as_bytes()).is_empty());
}

#[test]
fn an_unknown_program_without_a_sign_of_python_gets_no_python() {
    let python = &["python", "PYTORCH_", "torch", "pip install", "DataLoader"];
    check("starting solver, 4 GPUs\nCUDA error: out of memory\n", "nvidia-smi", python);
    check(
        "starting solver\nCUDA error: an illegal memory access was encountered\n",
        "./PROGRAM",
        python,
    );
    let change = |log: &str| first(log).fixes.remove(0).change;
    let script = "$ ./start.sh train.py\nCUDA error: an illegal memory access was encountered\n";
    assert!(change(script).contains("python"), "{}", change(script));
}

#[test]
fn two_hints_identify_a_program_and_one_does_not() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
               23.69 GiB of which 1.06 GiB is free. Of the allocated memory 22.10 GiB is allocated by PyTorch, and \
               20.00 MiB is reserved by PyTorch but unallocated.\n";
    let rank = "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]\n";
    let bar = "Epoch 0:  25%|##  | 1/4 [00:11<00:35, loss=0.9, v_num=7]\n";
    check(&format!("{rank}{bar}{oom}"), "Trainer(accumulate_grad_batches=4)", &[]);
    for one in [rank, bar] {
        check(&format!("{one}{oom}"), "zip(x.chunk(4)", &["Trainer("]);
    }
}

#[test]
fn a_word_that_only_suggests_a_cause_does_not_make_it_likely() {
    let busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n";
    let incident = first(&format!("|      |               |               MIG M. |\n{busy}"));
    let cause = incident.causes.iter().find(|cause| cause.id == "mig").expect("a cause");
    assert_eq!(cause.verdict, Verdict::Possible);
    assert_eq!(cause.r#for, ["the log mentions MIG"]);
}

#[test]
fn the_system_chooses_the_remedy_for_the_display_watchdog() {
    let error = "RuntimeError: CUDA error: the launch timed out and was terminated\n";
    let windows = format!("  File \"D:\\ui\\main.py\", line 9, in run\n{error}");
    check(&windows, "TdrDelay", &["xorg", "Interactive", "systemctl"]);
    let linux = format!("  File \"/home/eva/ui/main.py\", line 9, in run\n{error}");
    check(&linux, "CUDA_VISIBLE_DEVICES", &["TdrDelay"]);
}

#[test]
fn a_mac_is_not_told_to_install_cuda() {
    let log = "  File \"/Users/eva/ui/env/lib/python3.11/site-packages/exllamav2/ext.py\", line 90, in <module>\nOSError: \
               CUDA_HOME environment variable is not set. Please set it to your CUDA install root.\n";
    check(log, "Metal", &["CUDA_PATH", "export CUDA_HOME", "conda install", "apt"]);
}

#[test]
fn a_version_elsewhere_in_the_log_is_no_version_conflict() {
    let log = "llm version 1.2.0\nggml/src/ggml-cuda/ggml-cuda.cu:88: CUDA error\n";
    let incident = first(log);
    assert_eq!(incident.id, "cuda-error-other");
    let versions = incident.causes.iter().find(|cause| cause.id == "versions").expect("a cause");
    assert_eq!(versions.verdict, Verdict::Possible);
}

#[test]
fn a_quantized_weight_is_not_reported_as_a_number_of_processes() {
    let log = "ValueError: Weight output_partition_size = 320 is not divisible by weight quantization block_n = 128.\n";
    let title = first(log).title;
    assert!(!title.contains("MPI"), "{title}");
}

#[test]
fn nccl_errors_of_an_adapter_get_the_advice_for_this_adapter() {
    let error = "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:317, ";
    let efa = "remote process exited or there was a network error, NCCL version 2.27.3\nLast error:\nNET/OFI Request \
               0x7f01 completed with error. RC: 103. Error: 4126 (Unresponsive receiver)\n";
    check(&format!("{error}{efa}"), "grep -m1", &["NCCL_SOCKET_IFNAME", "NCCL_IB_", "--shm-size"]);
    let registration = "unhandled system error, NCCL version 2.21.5\nLast error:\nCall to ibv_reg_mr failed with error \
                        Bad address\n";
    check(&format!("{error}{registration}"), "NCCL_NET_GDR_LEVEL", &["NCCL_IB_HCA", "ibv_devinfo"]);
    check(
        "gpu4:71:90 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n",
        "nvidia-smi --query-compute-apps",
        &["--ipc=host", "NCCL_P2P_DISABLE"],
    );
}

#[test]
fn a_kill_while_zero_starts_is_not_blamed_on_the_data_loader() {
    check(
        "[deepspeed] see_memory_usage Before creating fp32 partitions\nERROR failed (exitcode: -9) local_rank: 0 \
         (pid: 438) of binary: /opt/conda/bin/python\n",
        "offload_optimizer",
        &["DataLoader"],
    );
}

#[test]
fn a_kernel_that_fits_no_gpu_needs_other_dimensions() {
    let kernel = |required: &str| {
        format!(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {required}, Hardware \
             limit: 101376. Reducing block sizes or `num_stages` may help.\n"
        )
    };
    check(&kernel("663808"), "headdim", &[]);
    check(&kernel("131072"), "BLOCK_M", &["headdim"]);
}

#[test]
fn the_head_of_a_notebook_traceback_is_enough() {
    let incident = first(
        "OutOfMemoryError                          Traceback (most recent call last)\n----> 1 trainer.train()\n",
    );
    assert_eq!(incident.id, "oom-capacity");
}

#[test]
fn ranks_that_never_exchanged_anything_try_without_direct_copies() {
    let rank = |rank: u32| {
        format!(
            "[rank{rank}]:[E1104 09:41:20.118 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n\
             [rank{rank}]:[E1104 09:41:20.219 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0 Rank {rank}] failure detected by watchdog at work sequence id: 1 PG status: last enqueued work: 212, last completed work: -1\n"
        )
    };
    let launcher = "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 4021\n";
    let log = [rank(0), rank(1), launcher.to_owned()].concat();
    check(&log, "NCCL_P2P_DISABLE=1", &[]);
    let causes = first(&log).causes;
    let failed = causes.iter().find(|cause| cause.id == "rank-died");
    assert!(failed.is_none_or(|cause| cause.verdict != Verdict::Likely), "{causes:#?}");
}

#[test]
fn memory_that_the_message_does_not_name_is_looked_for_first() {
    let log = "Exception has occurred: RuntimeError\n\
        CUDA out of memory. Tried to allocate 16.00 MiB (GPU 0; 8.00 GiB total capacity; 4.25 GiB already allocated; 20.00 MiB free; 4.50 GiB reserved in total by PyTorch)\n  \
        File \"/home/ana/net.py\", line 8, in forward\n    return x @ x.T\n";
    check(log, "nvidia-smi", &[]);
}

#[test]
fn a_notebook_shows_where_results_are_collected() {
    let log = "OutOfMemoryError                          Traceback (most recent call last)\n\
        Cell In[9], line 1\n\
        ----> 1 result = trainer.predict(test_set)\n\n\
        File /opt/venv/lib/python3.11/site-packages/transformers/trainer.py:3140, in Trainer.evaluation_loop(self, dataloader)\n   \
           3139     logits = self.preprocess_logits_for_metrics(logits, labels)\n\
        -> 3140 preds_host = nested_concat(preds_host, logits, padding_index=-100)\n";
    check(log, "preprocess_logits_for_metrics", &[]);
    let place = first(log).at.expect("a place");
    assert!(place.starts_with("In[9]:1 "), "{place}");
}

#[test]
fn a_notebook_sets_variables_in_a_cell() {
    let log = "OutOfMemoryError                          Traceback (most recent call last)\n\
        Cell In[9], line 4\n\
        ----> 4 loss.backward()\n\n\
        OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.12 GiB is free. Process 4211 has 13.62 GiB memory in use. Of the allocated memory 9.10 GiB is allocated by PyTorch, and 4.20 GiB is reserved by PyTorch but unallocated.\n";
    check(log, "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", &["python YOUR_SCRIPT.py"]);
}

#[test]
fn a_device_index_out_of_range_is_not_out_of_memory() {
    let log = "  File \"/env/lib/python3.11/site-packages/torch/cuda/__init__.py\", line 465, in get_device_properties\n    \
        return _get_device_properties(device)\nRuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at \
        \"/work/aten/src/ATen/cuda/CUDAContext.cpp\":52, please report a bug to PyTorch. \n";
    let incident = first(log);
    assert_eq!(incident.id, "cuda-invalid-device-101");
    let present = ["device index", "visible", "nvidia-smi -L", "one instance", "MIG"];
    let absent = ["out of memory", "mem_get_info", "expandable_segments"];
    assert_parts(&advice(&incident), &present, &absent);
}

/// An assertion says nothing about memory unless it names memory or NVML.
#[test]
fn an_internal_assertion_has_only_causes_that_its_text_supports() {
    let incident = first(
        "RuntimeError: grad_fn INTERNAL ASSERT FAILED at \"../torch/csrc/autograd/python_function.cpp\":412, please report a bug to PyTorch. \n",
    );
    assert_eq!(incident.id, "internal-assert-torch");
    let causes: Vec<&str> = incident.causes.iter().map(|cause| cause.id.as_str()).collect();
    assert_eq!(causes, ["autograd", "bug"]);
    assert_parts(&advice(&incident), &[], &["out of memory", "expandable"]);
}

#[test]
fn a_message_about_nvlink_that_is_not_fatal_suggests_no_reset() {
    for log in [
        "NVRM: Xid (PCI:0000:17:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x04050002 0x00000008 0x00000001)\n",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)\n",
        "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:C1:00.0 physical id 3 port 32\n",
    ] {
        let incident = first(log);
        assert_eq!(incident.id, "nvlink-fault", "{log}");
        let fixes = incident.fixes.iter().map(|fix| format!("{} {}", fix.title, fix.change));
        let fixes = fixes.collect::<Vec<_>>().join("\n").to_lowercase();
        let absent = ["reset", "stop", "drain", "end its jobs", "restart", "dcgmi diag"];
        assert_parts(&fixes, &[], &absent);
        assert_eq!(incident.causes[0].id, "recovered", "{log}");
    }
    let fatal = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n";
    check(fatal, "drain this machine", &[]);
}

#[test]
fn a_gpu_that_does_not_answer_is_not_called_off_the_bus() {
    for log in [
        "Unable to determine the device handle for GPU0000:B1:00.0: Unknown Error\n",
        "Unable to determine the device handle for GPU3: 0000:B1:00.0: Unknown Error\nNo devices were found\n",
        "Unable to determine the device handle for GPU 0000:21:00.0: Not Found\n",
    ] {
        let incident = first(log);
        assert_eq!(incident.id, "gpu-unreachable", "{log}");
        assert!(!incident.headline.contains("BUS"), "{}", incident.headline);
        assert!(incident.fixes[0].change.contains("dmesg"), "{:?}", incident.fixes[0]);
    }
    let lost = "Unable to determine the device handle for GPU0000:B1:00.0: Unknown Error\nNVRM: GPU 0000:b1:00.0: GPU has fallen off the bus.\n";
    assert_eq!(first(lost).id, "xid-79-off-bus");
}

#[test]
fn out_of_memory_in_jax_asks_about_its_share_and_other_processes() {
    let log = "Traceback (most recent call last):\n  File \"/home/kim/train.py\", line 88, in <module>\n    state = step(state)\n\
        jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.\n";
    check(log, "nvidia-smi --query-compute-apps", &[]);
    let incident = first(log);
    let fix = format!("{:?}", incident.fixes[0]);
    let present = ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "processes"];
    assert_parts(&fix, &present, &[]);
    let open: Vec<&str> = incident.causes.iter().map(|cause| cause.id.as_str()).collect();
    assert!(open.contains(&"other-process") && open.contains(&"pool"), "{open:?}");
}
