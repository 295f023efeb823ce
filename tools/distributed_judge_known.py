# SPDX-License-Identifier: Apache-2.0
"""Why tests of PyTorch's fail on the device's process-group backend, one sentence for each kind of failure."""

#: (a regular expression over the test's name, one over what it said, the explanation); the first that fits counts.
EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (
        r"test_batch_isend_irecv(_self)?_nccl$",
        r"cannot send to itself",
        "By design: a rank sends to itself, and gloo, which carries messages, has no connection of a rank to itself.",
    ),
    (
        r"test_ddp_logging_data_(cpu|gpu)$",
        r"0 not greater than or equal to 1",
        "PyTorch's own naming: DDP's timers are there for CPU and CUDA devices only, so it logs times of 0.",
    ),
    (
        r"test_ddp_profiling_torch_profiler$",
        r"0 not greater than 0",
        "PyTorch's own naming: it looks in the trace for what ProcessGroupNCCL records about each collective.",
    ),
    (
        r"test_monitored_barrier_allreduce_hang",
        r"caught collective operation timeout",
        "PyTorch's own naming: it wants the words of NCCL's watchdog; ours raises DistBackendError (timed out).",
    ),
    (
        r"test_nccl_high_priority_stream$",
        r"MASTER_ADDR expected",
        "PyTorch's own naming: it makes a ProcessGroupNCCL itself, over a rendezvous that only its launcher prepares.",
    ),
    (
        r"test_sparse_all_reduce_sum$",
        r"specified values in sparse COO tensors does not match",
        "An artefact of this run: the sums to compare with are made on the device, which, as CUDA, keeps all entries.",
    ),
    (
        r"^dtensor\.sparse_",
        r"crow_indices|in _moved",
        "By design: tensors in compressed sparse layouts are not on the device, and DTensor takes none either.",
    ),
    (
        r"^dtensor\.tensor_split$",
        r"to be on cpu",
        "An artefact of this run: the function takes its indices on the CPU alone, and the test moves all tensors.",
    ),
    (
        r"^dtensor\.",
        r"no tensor that can be distributed .*over gloo on the CPU: failed",
        "A function that takes no tensor, or none that PyTorch's converter distributes: nothing to test.",
    ),
    (
        r"^dtensor\.",
        r"^([\w.]+: .{16}).*over gloo on the CPU: failed: \1",
        "PyTorch's DTensor cannot do it on any device: the same exception on CPU tensors over gloo.",
    ),
)
