// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Calls `run`, which runs a backward pass, with `args` and `kwargs`; needs the GIL. Where it may be interrupted, as
/// `run_interruptibly` does; its threads are marked by `kBackward`. Throws what `run` throws.
///
/// PyTorch hands the calling thread's state, Python objects included, to the threads of the pass. The last of them to
/// let it go asks for Python's lock, and does so after the pass has returned: if Python ends meanwhile, the process
/// aborts. So what such threads still hold is held here, too, until the next pass or for good.
pybind11::object run_backward(const pybind11::object& run, const pybind11::args& args, const pybind11::kwargs& kwargs);

}  // namespace outboard::aten
