// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Lets signals of Python's, such as Ctrl-C, end the waits of its main thread: what a handler raises, the wait throws.
/// Needs the GIL. Repeated calls do nothing.
void install_interruptions();

/// Between these, on the main thread, Ctrl-C also ends the waits of other threads that run backward passes for it:
/// those whose thread-local Python objects, which PyTorch hands on to them, have `kBackward`. The main thread runs no
/// handler meanwhile. Python's own handler must be in force, so that it is known what it would do. Both need the GIL.
constexpr const char* kBackward = "outboard.backward";
void begin_backward();
/// Runs the handler that is due, and throws what it raises.
void end_backward();

}  // namespace outboard::aten
