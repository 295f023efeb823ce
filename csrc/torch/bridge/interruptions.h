// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Lets signals of Python's, such as Ctrl-C, end the waits of its main thread: what a handler raises, the wait throws.
/// Needs the GIL. Repeated calls do nothing.
void install_interruptions();

/// Whether a backward pass that begins here may be interrupted: it is the main thread's, not one within another, and
/// Ctrl-C is sure to end it. What a handler of the program's own would do is known only when it has run. Needs the GIL.
bool may_be_interrupted();

/// Calls `run`, which runs a backward pass, with the arguments of a tuple and a dictionary. Meanwhile Ctrl-C also ends
/// the waits of other threads that work for it: those whose thread-local Python objects, which PyTorch hands on to
/// them, have `kBackward`; the caller sets it. The main thread, which calls this with the GIL, runs no handler until
/// the pass has ended, and then the one that is due. Python's own handler must be in force, so that it is known what it
/// would do. Throws what `run` or the handler raises. All of it happens outside of Python code, where a signal could
/// come between any two lines.
constexpr const char* kBackward = "outboard.backward";
pybind11::object run_interruptibly(const pybind11::object& run, const pybind11::tuple& args,
                                   const pybind11::dict& kwargs);

}  // namespace outboard::aten
