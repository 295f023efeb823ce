// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Lets signals of Python's, such as Ctrl-C, end the waits of its main thread: what a handler raises, the wait throws.
/// Needs the GIL. Repeated calls do nothing.
void install_interruptions();

}  // namespace outboard::aten
