# SPDX-License-Identifier: Apache-2.0
"""docs/cuda-names.md: each public name of ``torch.cuda`` in PyTorch, and whether ``torch.<device>`` has it.

``python tools/cuda_names.py --write docs/cuda-names.md``, with the newest PyTorch, makes the page;
tests/device/test_cuda_names.py checks it.
"""

from __future__ import annotations

import pages
import torch

#: Why names are not there, by what they have in common.
REASONS = {
    "CUDA's own library, compiler or handles: a device of ours has a driver (docs/driver.md) in their place": (
        "CudaError DeferredCudaCallError check_error cudaStatus cudart current_blas_handle current_solver_handle "
        "get_arch_list get_gencode_flags has_half has_magma jiterator gds profiler"
    ),
    "streams, contexts and graphs are CUDA's to share or to read; `outboard.borrow()` gives others a device's stream": (
        "ExternalStream get_stream_from_external GreenContext green_contexts export_dot export_graph_data "
        "graph_annotations"
    ),
    "named as all accelerators name it: `Graph`": "CUDAGraph",
    "storages with a dtype of their own are deprecated in PyTorch: `torch.UntypedStorage`": (
        "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage "
        "FloatStorage HalfStorage IntStorage LongStorage ShortStorage"
    ),
    "a driver does not say which processes use its device": "list_gpu_processes",
    "one allocator, which lazy and spillable memory need": (
        "CUDAPluggableAllocator caching_allocator_disabled caching_allocator_enable change_current_allocator"
    ),
    "not there yet": ("nccl sparse tunable"),
}
WHY = {name: reason for reason, names in REASONS.items() for name in names.split()}


def names() -> list[str]:
    """The public names of ``torch.cuda``, with the errors and modules that programs take from it."""
    return sorted({*torch.cuda.__all__, "AcceleratorError", "OutOfMemoryError", "gds", "green_contexts"})


def page() -> str:
    """The text of docs/cuda-names.md."""
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    there = [name for name in names() if hasattr(module, name)]
    release = torch.__version__.split("+")[0]
    lines = [
        "# Names of `torch.cuda`", "",
        f"Made by `python tools/cuda_names.py --write docs/cuda-names.md` with PyTorch {release}.",
        f"Of {len(names())} public names, `torch.<device>` (`torch.ocl`, unless a profile names it otherwise) has"
        f" {len(there)}:", "",
        ", ".join(f"`{name}`" for name in there) + ".", "",
        "The others:", "",
        "| name | why not |", "|---|---|",
    ]  # fmt: skip
    for reason, group in REASONS.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in group.split())} | {reason} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    pages.main(page, __doc__)
