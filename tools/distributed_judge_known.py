# SPDX-License-Identifier: Apache-2.0
"""Why tests of PyTorch's fail on the device's process-group backend, one sentence for each kind of failure."""

#: (a regular expression over the test's name, one over what it said, the explanation); the first that fits counts.
EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (
        r"test_batch_isend_irecv(_self)?_nccl$",
        r"Pair is not connected",
        "By design: a rank sends to itself, and gloo, which carries messages, has no connection of a rank to itself.",
    ),
    (
        r"test_ddp_logging_data_(cpu|gpu)$",
        r"0 not greater than or equal to 1",
        "PyTorch's own naming: DDP's timers are there for CPU and CUDA devices only, so it logs times of 0.",
    ),
    (
        r"test_gather_object(_subgroup)?$",
        r"Comparing ObjectPair",
        "An artefact of this run: each rank has a device of its own, a tensor in an object comes back on the sender's, "
        "as CUDA's would, and the test, written for the CPU, compares it with one of the receiver's.",
    ),
)
